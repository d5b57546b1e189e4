"""What was said to be done is on the disk: how the databases are opened, and how a promotion is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolscout.home.catalogue.store import Store
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.home.journal.journal import Journal
from toolscout.home.models import champion

NORMAL = 1  # of PRAGMA synchronous: below it, losing power can damage the file


@pytest.mark.folder_only("pragmas of SQLite")
@pytest.mark.parametrize("kind", [Store, Journal, VectorStore])
def test_a_database_is_synchronised_so_that_losing_power_cannot_damage_it(tmp_path: Path, kind: type) -> None:
    database = kind(tmp_path)
    try:
        [(level,)] = database.connection.execute("PRAGMA synchronous").fetchall()
        [(mode,)] = database.connection.execute("PRAGMA journal_mode").fetchall()
    finally:
        database.close()
    assert level >= NORMAL and mode == "wal"


def test_a_promotion_is_on_the_disk_before_it_takes_the_place_of_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (champion.shelf(tmp_path) / "m").mkdir(parents=True)
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted(number: int) -> None:
        steps.append("synchronised" if os.fstat(number).st_size else "synchronised nothing")
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", lambda *paths, **more: steps.append("replaced") or replace(*paths, **more))
    champion._write(tmp_path, [])
    assert [step for step in steps if step != "synchronised nothing"][:2] == ["synchronised", "replaced"]
