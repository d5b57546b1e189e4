"""Runs tests that were written for homes in folders on PostgreSQL: a schema of the database stands for each folder.

`TOOLSCOUT_TEST_HOME=postgres` (`scripts/test --postgres`) switches it on, for the process of the test. A program that a
test starts is given its home by `name_home`. What speaks of the files of a home has the marker `folder_only`, and is
left out.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from postgres_server import PostgresServer, describe
from toolscout import settings as config
from toolscout.home.catalogue.store import Store
from toolscout.home.journal.journal import Journal
from toolscout.location import Home

_servers: list[PostgresServer] = []  # the server of this run, if the switch is on
_folders: set[Path] = set()  # homes of fixtures for the whole run: they stay folders, and tests copy them


def use_server(server: PostgresServer) -> None:
    """Name the server whose schemas stand for folders."""
    _servers[:] = [server]


def replace_folders(patch: pytest.MonkeyPatch) -> None:
    """Let settings, stores and journals use the schema that stands for a folder."""
    choose_home = config._choose_home

    def choose(values: Mapping[str, Any]) -> dict[str, Any]:
        home = values.get("home")
        return choose_home({**values, "home": find_place(home)} if home is not None else values)

    patch.setattr(config, "_choose_home", choose)
    for part in (Store, Journal):
        patch.setattr(part, "__init__", _open_elsewhere(part.__init__))


def _open_elsewhere(open_part: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(open_part)
    def open_in_schema(part: object, home: Home, **options: Any) -> None:
        open_part(part, find_place(home), **options)

    return open_in_schema


def find_place(home: Home) -> Home:
    """The home itself, or the schema that stands for it."""
    return _servers[0].stand_for(home) if _servers and isinstance(home, Path) and home not in _folders else home


def name_home(home: Home) -> str:
    """The home as a user names it."""
    place = find_place(home)
    return str(place) if isinstance(place, Path) else describe(place)


def copy_home(source: Path, target: Path) -> None:
    """Copy a home that a fixture of the whole run has made in a folder, to where a test opens `target`."""
    if not _servers:
        shutil.copytree(source, target)
        return
    from toolscout_postgres.migrate import migrate_home

    _folders.add(source)
    migrate_home(source, find_place(target))
