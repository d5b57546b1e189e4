"""The part of `doctor` on the encoder of the settings: loads it and says what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolscout.cli.output import echo, escape_line
from toolscout.encoders import describe_encoder, load
from toolscout.errors import UserError
from toolscout.settings import Settings

__all__ = ["describe_configured_encoder", "print_encoder"]

LIMIT_UNITS: Final = {"tokens": "tokens", "chars": "characters"}


def describe_configured_encoder(settings: Settings) -> dict[str, Any]:
    """Load the encoder of the settings and describe it, as `describe_encoder`; with a `problem` if it does not load."""
    try:
        encoder = load(settings.encoder, settings)
    except UserError as error:
        return {"name": settings.encoder, "problem": str(error)}
    return {**describe_encoder(encoder), "problem": None}


def print_encoder(row: Mapping[str, Any]) -> None:
    """Print what the encoder is, or why it does not load."""
    echo("\nencoder")
    echo(escape_line(f"  name       {row['name']}"))
    if row["problem"]:
        echo(escape_line(f"  warning    {row['problem']}"))
        return
    echo(f"  dimension  {row['dimension']}")
    echo(f"  languages  {', '.join(row['languages']) if row['languages'] else 'all, or unknown'}")
    for kind in ("query", "tool"):
        prompt = row[f"{kind}_prompt"]
        echo(escape_line(f"  before a {kind:<5}  {prompt!r}") if prompt else f"  before a {kind:<5}  nothing")
    echo(f"  maximum    {_describe_maximum(row)}")


def _describe_maximum(row: Mapping[str, Any]) -> str:
    limits = [f"{row[f'max_{unit}']:,} {word}" for unit, word in LIMIT_UNITS.items() if row[f"max_{unit}"]]
    return f"{' or '.join(limits)} of a text" if limits else "not stated"
