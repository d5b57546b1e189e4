"""Shared options of commands that may use a language model: endpoint, budget, cost estimates and records."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolscout.cli.options import budget_options, print_cost
from toolscout.cli.output import choose_home
from toolscout.settings import Settings, load_settings

if TYPE_CHECKING:
    from toolscout_lab.llm import LLM, SharedLLM

__all__ = [
    "lend_judge",
    "load_llm_settings",
    "open_llm",
    "share_llm",
    "spending_options",
]

F = TypeVar("F", bound=Callable[..., Any])


def spending_options(command: F) -> F:
    """Add the options of a command that may ask a language model, with those for records of its replies."""
    for option in (
        click.option("--replay", metavar="FILE", help="Take all replies from this record; send nothing."),
        click.option("--record", metavar="FILE", help="Write all replies to this record."),
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

    Args:
        settings: name the model and its limits.
        dry_run: whether calls are only counted.
        llm_budget: replaces the setting of this name.
        record: file that gets all replies at the end.
        replay: file with all replies; nothing is sent.
        temperature: of the model.
        prints_cost: whether the cost is printed at the end.

    Raises:
        ConfigError: if the budget cannot be read.
    """
    from toolscout_lab.llm import Budget, Prices, SharedLLM

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
            print_cost(shared.spent, dry_run=False)


@contextlib.contextmanager
def lend_judge(llm: LLM, settings: Settings, address: str | None) -> Iterator[LLM]:
    """Lend the model of `--judge-llm`; without an address, and in a dry run, that is the agent's own."""
    from toolscout_lab.llm import Endpoint, Rehearsal

    if not address or isinstance(llm, Rehearsal):
        yield llm
        return
    endpoint = Endpoint(address, timeout=settings.llm_timeout, rpm=settings.llm_rpm)
    try:
        yield llm.replace_backend(endpoint)
    finally:
        endpoint.close()


@contextlib.contextmanager
def open_llm(settings: Settings, **options: Any) -> Iterator[LLM]:
    """Open the language model of a command at once; `options` as in `share_llm`."""
    with share_llm(settings, **options) as shared:
        yield shared()
