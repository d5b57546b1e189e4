"""Shared options of commands that may use a language model: endpoint, budget, cost estimates and records."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from toolscout.cli.output import choose_home, echo, escape_line
from toolscout.config import Settings, load_settings
from toolscout.errors import UserError

if TYPE_CHECKING:
    from toolscout.llm import LLM, SharedLLM, Spent

__all__ = [
    "budget_options",
    "describe_cost",
    "describe_llm",
    "load_llm_settings",
    "open_llm",
    "print_cost",
    "print_llm",
    "share_llm",
    "spending_options",
]

PROBE_TIMEOUT_S: Final = 15.0
F = TypeVar("F", bound=Callable[..., Any])


def budget_options(command: F) -> F:
    """Add the options of a command that may ask a language model: which one, how much, or only an estimate."""
    for option in (
        click.option(
            "--llm-budget",
            metavar="LIMITS",
            help="Stop before more is spent, like calls=500,tokens=9000,dollars=2. Default: the setting `llm_budget`.",
        ),
        click.option("--dry-run", is_flag=True, help="Estimate calls, tokens and cost; send nothing."),
        click.option("--llm", "llm_address", metavar="URL#MODEL", help="The endpoint. Default: the setting `llm`."),
    ):
        command = option(command)
    return command


def spending_options(command: F) -> F:
    """Add the options of a command that may ask a language model, with those for records of its replies."""
    for option in (
        click.option("--replay", metavar="FILE", help="Take all replies from this record; send nothing."),
        click.option("--record", metavar="FILE", help="Write all replies to this record at the end."),
        budget_options,
    ):
        command = option(command)
    return command


def load_llm_settings(ctx: click.Context, llm_address: str | None) -> Settings:
    """Load the settings, with the endpoint of the command line."""
    return load_settings(**choose_home(ctx), llm=llm_address)


@contextlib.contextmanager
def share_llm(
    settings: Settings,
    *,
    dry_run: bool = False,
    llm_budget: str | None = None,
    record: str | None = None,
    replay: str | None = None,
    temperature: float = 0.0,
    prints_cost: bool = False,
) -> Iterator[SharedLLM]:
    """Prepare the language model of a command, or a rehearsal for `--dry-run`, with one budget for all that it does.

    It is opened when something first needs it. At the end the record is written. With `prints_cost`, or if the command
    fails, what was spent is printed after the last running call has ended, unless nothing was sent.

    Raises:
        ConfigError: if the budget cannot be read.
    """
    from toolscout.llm import Budget, Prices, SharedLLM

    if llm_budget is not None:
        settings = dataclasses.replace(settings, llm_budget=llm_budget)
    Budget.parse(settings.llm_budget, Prices(settings.llm_price_in, settings.llm_price_out))
    source = Path(replay) if replay else None
    shared = SharedLLM(settings, rehearse=dry_run, replay=source, temperature=temperature)
    failed = True
    try:
        yield shared
        failed = False
    finally:
        opened = shared.opened
        if record and opened is not None and opened.cache is not None:
            opened.cache.export(Path(record), opened.answers)
        shared.close()
        if (prints_cost or failed) and not dry_run and shared.spent.calls:
            print_cost(shared, dry_run=False)


@contextlib.contextmanager
def open_llm(settings: Settings, **options: Any) -> Iterator[LLM]:
    """Open the language model of a command at once; `options` as in `share_llm`."""
    with share_llm(settings, **options) as shared:
        yield shared()


def print_cost(llm: LLM | SharedLLM, *, dry_run: bool) -> None:
    """Print in one line what was spent, or would be."""
    spent = llm.spent
    money = f", {spent.dollars:.4g} dollars" if spent.dollars else ""
    late = f"; {spent.unanswered:,} were not answered in time and count in full" if spent.unanswered else ""
    verb = "would send about" if dry_run else "sent"
    click.echo(
        f"{verb} {spent.calls:,} calls: {spent.tokens_in:,} tokens in, {spent.tokens_out:,} out{money}{late}", err=True
    )


def describe_cost(spent: Spent) -> dict[str, Any]:
    """Return what was spent, or would be, as JSON values."""
    costs = {"calls": spent.calls, "tokens_in": spent.tokens_in, "tokens_out": spent.tokens_out}
    return {**costs, "dollars": spent.dollars or None}


def describe_llm(settings: Settings) -> dict[str, Any] | None:
    """Ask the language model for one word, and return its state; None if none is set.

    `problem` says in one sentence why it cannot be used.
    """
    if not settings.llm:
        return None
    from toolscout.llm import Budget, Prices, probe

    address, _, model = settings.llm.partition("#")
    row: dict[str, Any] = {"address": address, "model": model, "budget": settings.llm_budget, "problem": None}
    started = time.monotonic()
    try:
        Budget.parse(settings.llm_budget, Prices(settings.llm_price_in, settings.llm_price_out))
        answer = probe(settings, min(PROBE_TIMEOUT_S, settings.llm_timeout))
    except UserError as error:
        return {**row, "problem": str(error)}
    return {**row, "seconds": round(time.monotonic() - started, 3), "tokens": answer.tokens_in + answer.tokens_out}


def print_llm(row: Mapping[str, Any] | None) -> None:
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
