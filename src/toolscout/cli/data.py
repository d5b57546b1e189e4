"""Shared options of the commands over datasets: the data folder and settings of recipes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from toolscout.errors import ConfigError
from toolscout.settings import parse_pairs

__all__ = ["data_option", "find_folder", "find_root", "parse_settings", "set_option"]

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
    """Find the data root: the option, else the environment variable.

    Raises:
        ConfigError: if there is no such folder.
    """
    root = data or os.environ.get("TOOLSCOUT_DATA")
    if root and not Path(root).is_dir():
        raise ConfigError(f"--data: expected a folder of datasets, found none at {root}")
    return Path(root) if root else None


def find_folder(root: Path | None, name: str) -> Path:
    """Find a folder below the data root, else by its own path."""
    return root / name if root and (root / name).is_dir() else Path(name)


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse the values of `--set`.

    Raises:
        ConfigError: if one is not a pair.
    """
    return parse_pairs(pairs, "--set")
