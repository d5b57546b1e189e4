from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolscout.errors import BadEntry, NotFound, StoreError
from toolscout.home.catalogue.approvals import OFFER
from toolscout.home.catalogue.store import CATALOGUE_MIGRATIONS, Catalogue, Origin, Store
from toolscout.home.database import Database
from toolscout.location import Home
from toolscout.testing import toy_tools
from toolscout.types import Tool

ORIGIN = Origin("file.json", "schemas")


def make(*names: str, **fields: object) -> list[Tool]:
    return [Tool(id=f"s/{name}", name=name, **fields) for name in names]  # type: ignore[arg-type]


@pytest.fixture
def store(place: Home) -> Iterator[Store]:
    with contextlib.closing(Store(place)) as opened:
        yield opened


def put(store: Store, tools: list[Tool], **fields: object) -> object:
    return store.put_source(ORIGIN, "s", kind="schemas", tools=tools, **fields)  # type: ignore[arg-type]


def test_only_what_changed_is_written_and_counted(store: Store) -> None:
    first = put(store, make("a", "b", "c"))
    assert (first.new, first.changed, first.gone, first.same) == (3, 0, 0, 0)
    second = put(store, [*make("a"), *make("b", description="new"), *make("d")])
    assert (second.new, second.changed, second.gone, second.same) == (1, 1, 1, 1)
    assert store.tool("s/b").description == "new"
    with pytest.raises(NotFound, match="found 's/c'"):
        store.tool("s/c")


def test_the_generation_rises_with_every_change_and_with_nothing_else(store: Store) -> None:
    put(store, make("a"))
    before = store.generation()
    put(store, make("a"))
    assert store.generation() == before
    put(store, make("a", description="x"))
    assert store.generation() == before + 1
    store.set_enabled("s", False)
    assert store.generation() == before + 2


def test_a_source_that_cannot_be_read_keeps_its_tools(store: Store) -> None:
    put(store, make("a"))
    change = put(store, [], state="error", message="the server is down")
    assert (change.state, change.same, change.any) == ("error", 1, False)
    [source] = store.sources()
    assert (source.state, source.message, source.tools) == ("error", "the server is down", 1)
    assert store.catalogue().ids == ("s/a",)


def test_a_disabled_source_is_kept_but_not_searched(store: Store) -> None:
    put(store, make("a"))
    put(store, [], state="disabled", message="disabled in mcp.json")
    snapshot = store.catalogue()
    assert snapshot.ids == ()
    assert snapshot.disabled == {"s": ("disabled in mcp.json", {"a": "s/a", "s/a": "s/a"})}
    put(store, make("a"))
    assert store.catalogue().ids == ("s/a",)


def test_a_tool_comes_back_as_it_went_in(store: Store) -> None:
    tool = Tool(
        id="s/t", name="t", description="d", parameters={"type": "object"}, path=("p", "q"), parent=("p",),
        returns="text", tags=("x",), callable=True, meta={"n": 1, "unicode": "天气"},
    )  # fmt: skip
    put(store, [tool])
    assert store.tool("s/t") == tool
    assert store.tool("s/t").fingerprint == tool.fingerprint
    assert store.tools(["s/none", "s/t"]) == [tool]


def test_a_tool_that_json_cannot_carry_leaves_the_source_as_it_was(store: Store) -> None:
    put(store, make("a"))
    with pytest.raises(BadEntry):
        put(store, [*make("b"), *make("c", meta={"x": object()})])
    assert [id for id, _ in store.page()] == ["s/a"]
    assert store.check() == []


def test_a_failure_half_way_leaves_tools_and_counts_in_step(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, make("a"))
    before = store.generation()

    def broken(connection: object) -> None:
        raise RuntimeError("power cut")

    monkeypatch.setattr("toolscout.home.catalogue.store._raise_generation", broken)
    with pytest.raises(RuntimeError):
        put(store, make("b", "c"))
    assert [id for id, _ in store.page()] == ["s/a"]
    assert store.generation() == before


def test_problems_are_kept_with_their_source_until_it_is_read_again(store: Store) -> None:
    put(store, make("a"), problems=[("line 3", "expected a name")])
    assert store.problems("s") == [("line 3", "expected a name")]
    put(store, make("a"))
    assert store.problems("s") == []


def test_removing_a_source_removes_its_tools_and_its_origin(store: Store) -> None:
    put(store, make("a", "b"))
    assert store.remove_source("s") == 2
    assert store.origins() == [] == store.sources()
    assert store.remove_tools(["s/a"]) == 0


def test_disabling_what_is_not_there_is_said(store: Store) -> None:
    with pytest.raises(NotFound, match="expected the name of a source, found 'x'"):
        store.set_enabled("x", False)


def test_a_read_transaction_sees_one_state_whatever_another_connection_writes(store: Store, place: Home) -> None:
    put(store, make("a"))
    with contextlib.closing(Store(place)) as other, store.reading():
        before = store.generation()
        put(other, make("b"))
        assert store.generation() == before
        assert [id for id, _ in store.page()] == ["s/a"]
    assert [id for id, _ in store.page()] == ["s/b"]


def test_what_was_lost_since_the_snapshot_is_hidden_and_nothing_takes_its_place(store: Store) -> None:
    put(store, make("a", "b", "c"))
    snapshot = store.catalogue()
    store.remove_tools(["s/a"])
    mask = snapshot.mask(lambda tool: tool.name != "c")
    assert mask is not None and dict(zip(snapshot.ids, mask.tolist(), strict=True)) == {
        "s/a": False,
        "s/b": True,
        "s/c": False,
    }


def test_a_snapshot_is_sorted_and_its_cache_lasts_for_one_generation(store: Store) -> None:
    put(store, make("b", "a", "c"))
    snapshot = store.catalogue()
    assert snapshot.ids == ("s/a", "s/b", "s/c")
    assert [tool.id for tool in snapshot.tools()] == list(snapshot.ids)
    built: list[int] = []
    build = lambda: built.append(1) or b"index"  # noqa: E731
    assert snapshot.load_or_build("k", build) == b"index"
    store.keep(snapshot)
    assert store.catalogue().load_or_build("k", build) == b"index"
    assert len(built) == 1
    put(store, make("z"))
    assert store.catalogue().load_or_build("k", build) == b"index"
    assert len(built) == 2


def test_keeping_a_cache_gives_way_to_a_writer(store: Store, place: Home) -> None:
    put(store, make("a"))
    snapshot = store.catalogue()
    snapshot.load_or_build("k", lambda: b"x")
    with contextlib.closing(Store(place)) as other, other.writing():
        store.keep(snapshot)
    with store.reading() as connection:
        assert connection.execute("SELECT count(*) FROM caches").fetchone() == (0,)


def test_a_predicate_that_raises_hides_the_tool_it_raised_on() -> None:
    snapshot = Catalogue.of(toy_tools())
    mask = snapshot.mask(lambda tool: tool.path[1] == "x" or True)
    assert mask is not None and not mask.any()
    assert snapshot.mask(None) is None


def test_many_policies_do_not_grow_memory_without_bound() -> None:
    snapshot = Catalogue.of(toy_tools())
    for number in range(400):
        snapshot.mask(lambda tool, number=number: number > 0)
    assert len(snapshot._masks) <= 256


@pytest.mark.folder_only("PRAGMA user_version")
def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / "catalogue.db") as connection:
        connection.execute(f"PRAGMA user_version = {len(CATALOGUE_MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(StoreError, match="written by a newer toolscout"):
        Store(tmp_path)


@pytest.mark.folder_only("a damaged file")
def test_a_file_that_is_no_database_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "catalogue.db").write_bytes(b"this is not a database, really not" * 100)
    with pytest.raises(StoreError, match="expected a healthy store"):
        Store(tmp_path)


@pytest.mark.folder_only("a path that is no folder")
def test_a_home_that_cannot_be_made_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written: Not a directory. Choose another folder with --home"):
        Store(tmp_path / "file" / "home")


def test_migrations_run_in_order_and_only_once(place: Home) -> None:
    steps = ("CREATE TABLE a (x INTEGER)", "INSERT INTO a VALUES (1)")
    Database(place, "x", steps[:1]).close()
    grown = Database(place, "x", steps)
    again = Database(place, "x", steps)
    with again.reading() as connection:
        assert connection.execute("SELECT count(*) FROM a").fetchone() == (1,)
    grown.close()
    again.close()
    with pytest.raises(StoreError, match="written by a newer toolscout"):
        Database(place, "x", steps[:1])


def test_many_threads_may_open_and_write_at_once(place: Home) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            store = Store(place)
            store.put_source(
                Origin(f"o{number}", "x"), f"s{number}", kind="x", tools=[Tool(id=f"s{number}/t", name="t")]
            )
            store.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with contextlib.closing(Store(place)) as store:
        assert len(store.sources()) == 8


def test_an_approved_resource_is_no_damage(store: Store) -> None:
    put(store, make("a"))
    page = Tool(id="s/resource:a://b", name="b", meta={OFFER: "resources"})
    assert store.hold_back_offers("s", "resources", [page], whole=True) == {}
    assert store.check() == []


def test_damage_is_found_named_and_repaired(store: Store) -> None:
    put(store, make("a", "b", "c"))
    with store.writing() as connection:
        connection.execute("UPDATE tools SET body = ? WHERE id = 's/a'", (b"{broken",))
        connection.execute("UPDATE tools SET fingerprint = 'x' WHERE id = 's/b'")
    found = store.check()
    assert len(found) == 2
    assert found[0].startswith("tool s/a: its definition cannot be read")
    assert "does not match its fingerprint" in found[1]
    done = store.repair()
    assert done[:2] == [
        "dropped the damaged tool s/a: the next sync brings it back",
        "dropped the damaged tool s/b: the next sync brings it back",
    ]
    assert store.check() == []
    assert put(store, make("a", "b", "c")).new == 2


@pytest.mark.folder_only("a damaged file")
def test_a_damaged_page_is_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, make(*(f"t{number}" for number in range(500)), description="x" * 200))
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    path = tmp_path / "catalogue.db"
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    assert Store(tmp_path).check()
