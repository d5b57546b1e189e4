"""Options of commands that may ask a language model, and what they say about its cost.

The language models are in toolscout-lab. The core knows only what one has cost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

import click

__all__ = ["Spender", "Spent", "budget_options", "describe_cost", "print_cost"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Spent:
    """The calls, tokens and dollars spent so far; dollars are 0 without prices.

    `unanswered` counts the calls that timed out; they count at the maximum that they can have cost.
    """

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    dollars: float = 0.0
    unanswered: int = 0

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.tokens_in + self.tokens_out


@runtime_checkable
class Spender(Protocol):
    """What a package lends its rankers, such as a shared language model, if its use costs something."""

    @property
    def spent(self) -> Spent:
        """The cost so far."""


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


def print_cost(spent: Spent, *, dry_run: bool) -> None:
    """Print in one line what was spent, or would be."""
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
