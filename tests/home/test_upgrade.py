"""A home of version 0.1 is opened by this version: nothing in it is lost, and its ids stay as they were.

`home_0_1.zip` was made by the code of version 0.1: five function schemas and an OpenAPI document were added, four
requests searched, one call and one feedback recorded, `neighbours` fitted and promoted, and a source disabled and
enabled again.
"""

from __future__ import annotations

import json
import sqlite3
import zipfile
from pathlib import Path

import pytest

from tests_cli import run
from toolscout.home.catalogue.store import CATALOGUE_MIGRATIONS
from toolscout.home.catalogue.vector_cache import VECTOR_MIGRATIONS, VectorStore
from toolscout.home.journal.journal import JOURNAL_MIGRATIONS
from toolscout.home.models import champion, model_store
from toolscout.scout import Scout

pytestmark = pytest.mark.folder_only("files of version 0.1")
TOOLS = ["convert_currency", "get_forecast", "list_events", "send_email", "translate_text"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    with zipfile.ZipFile(Path(__file__).with_name("home_0_1.zip")) as archive:
        archive.extractall(folder)
    return folder


def read_version(home: Path, part: str) -> int:
    connection = sqlite3.connect(home / f"{part}.db")
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def read_layout(home: Path, part: str) -> dict[str, list[tuple[object, ...]]]:
    """The columns of each table (their types were written out after 0.1), and the indexes and triggers of each."""
    connection = sqlite3.connect(home / f"{part}.db")
    try:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
        columns = 'SELECT name, "notnull", pk FROM pragma_table_info(?)'
        layout = {name: connection.execute(columns, (name,)).fetchall() for (name,) in names}
        others = "SELECT type, name, tbl_name FROM sqlite_master WHERE type != 'table' ORDER BY type, name"
        return {**layout, "": connection.execute(others).fetchall()}
    finally:
        connection.close()


def test_a_home_of_0_1_gets_every_table_that_a_new_home_has(home: Path, tmp_path: Path) -> None:
    for folder in (home, tmp_path / "new"):
        with Scout(folder, recipe="bm25") as scout:
            scout.search("weather")
        VectorStore(folder).close()
    parts = {"catalogue": CATALOGUE_MIGRATIONS, "journal": JOURNAL_MIGRATIONS, "vectors": VECTOR_MIGRATIONS}
    for part, migrations in parts.items():
        assert read_version(home, part) == read_version(tmp_path / "new", part) == len(migrations)
        layout = read_layout(home, part)
        assert layout == read_layout(tmp_path / "new", part)
        assert {"catalogue": "tools", "journal": "events", "vectors": "vectors"}[part] in layout


def test_a_home_of_0_1_can_do_what_came_later(home: Path, tmp_path: Path) -> None:
    """Tables that 0.1 did not have are written, and its journal can be taken to another home."""
    with Scout(home, recipe="bm25") as scout:
        scout.hide(["tools/send_email"])
        assert scout.store.hidden() == ["tools/send_email"]
        assert [change.source for change in scout.show(["tools/send_email"])] == ["tools"]
        assert scout.waiting() == []
        answer = scout.search("write an email", k=1)
        scout.called("tools/send_email", ok=True, search_id=answer.search_id)
    exported = run("--home", str(home), "journal", "export", str(tmp_path / "events.jsonl"))
    assert exported.exit_code == 0 and len((tmp_path / "events.jsonl").read_text().splitlines()) == 8
    imported = run("--home", str(tmp_path / "other"), "journal", "import", str(tmp_path / "events.jsonl"))
    assert imported.exit_code == 0 and "8 new events" in imported.stdout


def test_a_home_of_0_1_keeps_tools_journal_and_champion(home: Path) -> None:
    before = {part: read_version(home, part) for part in ("catalogue", "journal")}
    with Scout(home) as scout:
        ids = sorted(id for id, _ in scout.store.page(None, limit=None))
        assert ids == ["shop-api/createOrder", "shop-api/listOrders", *(f"tools/{name}" for name in TOOLS)]
        answer = scout.search("weather tomorrow", k=1)
        assert [hit.id for hit in answer.hits] == ["tools/get_forecast"]
        assert champion.history(home)[-1].model == "first"
        stats = scout.journal.stats()
        assert stats["events"] == {"search": 5, "call": 1, "feedback": 1}
        assert stats["searches_followed_by_a_successful_call"] == 1
        assert scout.store.check() == [] and scout.journal.check() == []
    after = {part: read_version(home, part) for part in ("catalogue", "journal")}
    assert all(after[part] > before[part] for part in after)
    assert model_store.verify(home / "models" / "first").recipe == "neighbours"


def test_the_program_works_on_a_home_of_0_1(home: Path) -> None:
    place = ("--home", str(home))
    checked = json.loads(run(*place, "doctor", "--repair", "--json").stdout)
    assert checked["healthy"] and checked["store"]["tools"] == 7
    assert json.loads(run(*place, "doctor", "--json").stdout)["exposed"] == []
    assert "first (champion)" in run(*place, "models").stdout
    assert run(*place, "rollback").exit_code == 0
    assert champion.history(home) == []
    found = json.loads(run(*place, "search", "order an article", "-k", "1", "--json").stdout)
    assert [hit["id"] for hit in found["hits"]] == ["shop-api/createOrder"]


def test_a_sync_after_the_upgrade_changes_no_id(home: Path, tmp_path: Path) -> None:
    document = {
        "openapi": "3.0.0",
        "info": {"title": "Shop API", "version": "1"},
        "servers": [{"url": "https://shop.example"}],
        "paths": {"/orders": {"get": {"operationId": "listOrders", "summary": "List the orders of a customer"}}},
    }
    (tmp_path / "shop.json").write_text(json.dumps(document))
    connection = sqlite3.connect(home / "catalogue.db")
    with connection:
        connection.execute(
            "UPDATE origins SET locator = ? WHERE locator = '/srv/example/shop.json'", (str(tmp_path / "shop.json"),)
        )
    connection.close()
    with Scout(home) as scout:
        [change] = scout.sync(["shop-api"])
        assert (change.source, change.state, change.new, change.gone) == ("shop-api", "ok", 0, 1)
