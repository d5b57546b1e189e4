"""What the commands over datasets share: where these lie, and settings of recipes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from toolscout.errors import ConfigError

__all__ = ["below", "changes", "data_option", "root_of", "set_option"]

F = TypeVar("F", bound=Callable[..., Any])


def data_option(command: F) -> F:
    """The option `--data` of a command over several datasets."""
    return click.option("--data", metavar="DIR", help="Root of the datasets. Also TOOLSCOUT_DATA.")(command)


def set_option(command: F) -> F:
    """The option `--set`."""
    return click.option(
        "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="A setting of the recipe; may be repeated."
    )(command)


def root_of(data: str | None) -> Path | None:
    """The data root: the option, else the environment.

    Raises:
        ConfigError: if there is no such folder.
    """
    found = data or os.environ.get("TOOLSCOUT_DATA")
    if found and not Path(found).is_dir():
        raise ConfigError(f"--data: expected a folder of datasets, found none at {found}")
    return Path(found) if found else None


def below(root: Path | None, name: str) -> Path:
    """A folder by its path below the data root, or by its path."""
    return root / name if root and (root / name).is_dir() else Path(name)


def changes(pairs: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` pairs; a value that is JSON is read as JSON, everything else is text.

    Raises:
        ConfigError: for what is no pair.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set: expected KEY=VALUE, found {pair!r}")
        try:
            found[key] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[key] = value
    return found
