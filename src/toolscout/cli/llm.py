"""Shared options of commands that use a language model: endpoint, budget, cost estimates and records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from toolscout.config import Settings, load_settings

__all__ = ["load_llm_settings", "open_llm", "print_cost", "spending_options"]

F = TypeVar("F", bound=Callable[..., Any])


def spending_options(command: F) -> F:
    """Add the options of a command that may cost money."""
    for option in (
        click.option("--replay", metavar="FILE", help="Take all replies from this record; send nothing."),
        click.option("--record", metavar="FILE", help="Write all replies to this record at the end."),
        click.option("--max-dollars", type=float, help="Stop before this cost. Needs llm_price_in and llm_price_out."),
        click.option("--max-tokens", type=int, help="Stop before this number of tokens."),
        click.option("--dry-run", is_flag=True, help="Estimate calls, tokens and cost; send nothing."),
        click.option("--llm", "llm_address", metavar="URL#MODEL", help="The endpoint. Default: the setting `llm`."),
    ):
        command = option(command)
    return command


def load_llm_settings(ctx: click.Context, llm_address: str | None) -> Settings:
    """Load the settings, with the endpoint of the command line."""
    return load_settings(home=(ctx.find_root().obj or {}).get("home"), llm=llm_address)


@contextlib.contextmanager
def open_llm(
    settings: Settings,
    *,
    dry_run: bool,
    max_tokens: int | None,
    max_dollars: float | None,
    record: str | None,
    replay: str | None,
    temperature: float = 0.0,
) -> Iterator[Any]:
    """Open the language model of a command, or a rehearsal for `--dry-run`. Reads and writes the record."""
    from toolscout.llm import Prices, Rehearsal, connect

    if dry_run:
        yield Rehearsal(Prices(settings.llm_price_in, settings.llm_price_out))
        return
    source = Path(replay) if replay else None
    with connect(settings, tokens=max_tokens, dollars=max_dollars, replay=source, temperature=temperature) as llm:
        try:
            yield llm
        finally:
            if record:
                assert llm.cache is not None
                llm.cache.export(Path(record), llm.answers)


def print_cost(llm: Any, *, dry_run: bool) -> None:
    """Print in one line what was spent, or would be."""
    spent = llm.spent
    money = f", {spent.dollars:.4g} dollars" if spent.dollars else ""
    late = f"; {spent.unanswered:,} were not answered in time and count in full" if spent.unanswered else ""
    verb = "would send about" if dry_run else "sent"
    click.echo(
        f"{verb} {spent.calls:,} calls: {spent.tokens_in:,} tokens in, {spent.tokens_out:,} out{money}{late}", err=True
    )
