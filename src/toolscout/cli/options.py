"""Options that commands share: the data folder, settings of a recipe, a language model and what it may cost.

The language models are in toolscout-lab. The core knows only what one has cost.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import click

from toolscout.cli.output import setting_option
from toolscout.errors import ConfigError
from toolscout.settings import parse_pairs

__all__ = [
    "Spender",
    "Spent",
    "budget_options",
    "data_option",
    "describe_cost",
    "find_folder",
    "find_root",
    "parse_settings",
    "print_cost",
    "set_option",
]

F = TypeVar("F", bound=Callable[..., Any])


def data_option(command: F) -> F:
    """Add the option `--data` to a command over several datasets."""
    return click.option("--data", metavar="DIR", help="Folder of the datasets. Also TOOLSCOUT_DATA.")(command)


def set_option(command: F) -> F:
    """Add the option `--set`."""
    return click.option(
        "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="A setting of the recipe; may be repeated."
    )(command)


def find_root(data: str | None) -> Path | None:
    """Return the folder of the datasets: the option `--data`, else TOOLSCOUT_DATA. None: neither is set.

    Raises:
        ConfigError: if there is no such folder.
    """
    root = data or os.environ.get("TOOLSCOUT_DATA")
    if root and not Path(root).is_dir():
        raise ConfigError(f"--data: expected a folder of datasets, found none at {root}")
    return Path(root) if root else None


def find_folder(root: Path | None, name: str) -> Path:
    """Return the folder of a dataset: the one of that name in the folder of datasets, else `name` as a path."""
    return root / name if root and (root / name).is_dir() else Path(name)


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse the values of `--set`, such as `depth=50`, into a dictionary.

    Raises:
        ConfigError: if one is not a pair.
    """
    return parse_pairs(pairs, "--set")


@dataclasses.dataclass(frozen=True)
class Spent:
    """The calls, tokens and dollars spent so far; dollars are 0 without prices.

    `unanswered` is the number of calls that timed out. They are in the other counts too, with the most that they can
    have cost.
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
    """A resource whose use costs something, such as the language model that a package's rankers share."""

    @property
    def spent(self) -> Spent:
        """The cost so far."""


def budget_options(command: F) -> F:
    """Add the options of a command that may ask a language model: which one, how much, or only an estimate."""
    for option in (
        setting_option("llm_budget", "--llm-budget", metavar="LIMITS"),
        click.option("--dry-run", is_flag=True, help="Estimate calls, tokens and cost; send nothing."),
        setting_option("llm", "--llm", "llm_address", metavar="URL#MODEL"),
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
