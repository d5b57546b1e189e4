"""The part of `doctor` on the language model of the settings: sends it two short requests, and names the caches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from toolscout.cli.output import echo, escape_line
from toolscout.errors import UserError
from toolscout.home.database import CacheDatabase
from toolscout.scout import Scout
from toolscout.settings import Settings
from toolscout_lab.encoders.pair_cache import PAIR_CACHE_FILE, PairCache
from toolscout_lab.llm.cache import REPLIES_FILE, Replies

__all__ = ["CACHE_FILES", "check", "describe", "print_report"]

PROBE_TIMEOUT_S: Final = 15.0
REPLY_FORMATS: Final = {
    "json_schema": "held to a JSON schema",
    "json_object": "held to JSON; the prompt alone says which",
    "text": "free text; only the prompt asks for JSON",
}
CACHE_FILES: Final[Mapping[str, type[CacheDatabase]]] = {PAIR_CACHE_FILE: PairCache, REPLIES_FILE: Replies}


def describe(settings: Settings, scout: Scout | None) -> dict[str, Any] | None:
    """Ask the language model what the features ask, and return its state; None if none is set.

    `problem` says in one sentence why it cannot be used.
    """
    if not settings.llm:
        return None
    from toolscout_lab.llm import Budget, Prices, probe

    address, _, model = settings.llm.partition("#")
    row: dict[str, Any] = {"address": address, "model": model, "budget": settings.llm_budget, "problem": None}
    started = time.monotonic()
    try:
        Budget.parse(settings.llm_budget, Prices(settings.llm_price_in, settings.llm_price_out))
        ready = probe(settings, min(PROBE_TIMEOUT_S, settings.llm_timeout))
    except UserError as error:
        return {**row, "problem": str(error)}
    return {**row, "seconds": round(time.monotonic() - started, 3), **ready._asdict()}


def print_report(row: Mapping[str, Any] | None) -> None:
    """Print whether the language model answers, or why it does not. Without one nothing is printed."""
    if row is None:
        return
    echo("\nlanguage model")
    echo(escape_line(f"  address    {row['address']}"))
    echo(escape_line(f"  model      {row['model']}"))
    echo(escape_line(f"  budget     {row['budget'] or 'none: set llm_budget to limit what is spent'}"))
    if row["problem"]:
        echo(escape_line(f"  warning    {row['problem']}"))
    else:
        echo(f"  answers    in {row['seconds']:.1f} s, with {row['tokens']:,} tokens")
        echo(f"  replies    {REPLY_FORMATS[row['reply_format']]}")
        if not row["calls_tools"]:
            echo("  warning    It takes no functions, so lab downstream and lab elo cannot use it.")


def check(scout: Scout) -> list[str]:
    """Return no line: a language model that does not answer is no fault of the home."""
    return []
