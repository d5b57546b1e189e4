"""What a search asks of a database: one statement, and a right answer while the catalogue changes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from conftest import fill

from postgres_server import describe
from toolscout.errors import Unavailable
from toolscout.home.catalogue.store import MAX_IDS_IN_QUERY, Store
from toolscout.location import Home
from toolscout.recipes.engine import SearchEngine
from toolscout.scout import Scout
from toolscout.types import Search
from toolscout_postgres.address import Address
from toolscout_postgres.database import LISTEN_AFTER_QUESTIONS


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All statements that this thread sends to a database."""
    sent: list[str] = []
    execute, thread = psycopg.Connection.execute, threading.current_thread()

    def record(self: psycopg.Connection[Any], query: Any, *rest: Any, **options: Any) -> psycopg.Cursor[Any]:
        if threading.current_thread() is thread:
            sent.append(query.decode() if isinstance(query, bytes) else str(query))
        return execute(self, query, *rest, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", record)
    return sent


def first_words(statement: str) -> str:
    """The start of a statement."""
    return " ".join(statement.replace(",", " ").split()[:2])


def listen(scout: Scout) -> None:
    """Search until the process hears of changes."""
    listener = scout.store._listener
    assert listener is not None
    deadline = time.monotonic() + 20
    for _ in range(LISTEN_AFTER_QUESTIONS + 1):
        scout.search("rain tomorrow")
    while listener.generation is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def change_during_search(
    monkeypatch: pytest.MonkeyPatch, engine: SearchEngine, change: Any, *, fails: Exception | None = None
) -> list[int]:
    """Let the first search meet a change after it began. Returns the generations that were searched."""
    prepare, searched = engine.prepare, list[int]()

    def prepare_late(*arguments: Any, **options: Any) -> tuple[Any, Any]:
        catalogue, pipeline = prepare(*arguments, **options)

        def search(batch: Sequence[Search]) -> list[Search]:
            searched.append(catalogue.generation)
            if len(searched) == 1:
                change()
                if fails:
                    raise fails
            return pipeline(batch)

        return catalogue, search

    monkeypatch.setattr(engine, "prepare", prepare_late)
    return searched


def test_one_search_or_many_ask_the_database_one_thing(postgres: Address, statements: list[str]) -> None:
    with Scout(describe(postgres), recipe="bm25", journal=False) as scout:
        fill(scout)
        listen(scout)
        for queries, hits in (["rain tomorrow"], 1), (["rain tomorrow", "send a letter"], 2), (["qzxv"], 0):
            del statements[:]
            found = scout.search_many(queries)
            assert sum(bool(search.hits) for search in found) == hits
            assert all(hit.tool for search in found for hit in search.hits)
            assert len(statements) == 1, statements
    with Scout(describe(postgres), journal=False) as scout:
        scout.search("rain tomorrow")
        listen(scout)
        del statements[:]
        assert scout.search("rain tomorrow").ids
        assert [*map(first_words, statements)] == ["SELECT version", "SELECT value"], (
            "who is the champion, and the tools"
        )


def test_generations_and_a_few_tools_are_read_without_a_transaction(place: Home, statements: list[str]) -> None:
    with Scout(describe(place) if isinstance(place, Address) else place) as scout:
        fill(scout)
    with contextlib.closing(Store(place)) as store:
        del statements[:]
        generation = store.generation()
        assert [tool.id for tool in store.tools(["weather/get_forecast", "no/such"])] == ["weather/get_forecast"]
        tools = store.tools_at(generation, ["weather/get_forecast", "no/such"])
        assert tools is not None and list(tools) == ["weather/get_forecast"]
        assert store.tools_at(generation, []) == {}
        assert store.tools_at(generation - 1, ["weather/get_forecast"]) is None
        assert len(statements) == (5 if isinstance(place, Address) else 0), statements


def test_a_change_during_a_search_is_in_its_answer(postgres: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scout(describe(postgres), recipe="bm25", journal=False) as scout, Scout(describe(postgres)) as other:
        fill(scout)
        before = scout.store.generation()
        assert scout.search("rain tomorrow").ids[0].startswith("weather/")
        searched = change_during_search(monkeypatch, scout.engine, lambda: other.enable("weather", False))
        assert not {id for id in scout.search("rain tomorrow").ids if id.startswith("weather/")}
        assert searched == [before, before + 1]


def test_many_answers_are_of_one_generation(postgres: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scout(describe(postgres), recipe="bm25", journal=False) as scout, Scout(describe(postgres)) as other:
        tools = [{"name": f"t{number}", "description": "red thing"} for number in range(MAX_IDS_IN_QUERY + 10)]
        scout.add(tools, name="many")
        fill(scout)
        [found] = scout.search_many(["red thing"], len(tools))
        assert len(found.hits) == len(tools) and all(hit.tool for hit in found.hits)
        searched = change_during_search(monkeypatch, scout.engine, lambda: other.enable("many", False))
        [found] = scout.search_many(["red thing"], len(tools))
        assert not {id for id in found.ids if id.startswith("many/")} and len(searched) == 2


def test_what_fails_because_of_a_change_is_searched_again(postgres: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scout(describe(postgres), recipe="bm25", journal=False) as scout, Scout(describe(postgres)) as other:
        fill(scout)
        disable, broken = lambda: other.enable("weather", False), KeyError("weather/get_forecast")
        change_during_search(monkeypatch, scout.engine, disable, fails=broken)
        assert not {id for id in scout.search("rain tomorrow").ids if id.startswith("weather/")}
        monkeypatch.undo()
        searched = change_during_search(monkeypatch, scout.engine, lambda: None, fails=Unavailable("no encoder"))
        with pytest.raises(Unavailable, match="no encoder"):
            scout.search("rain tomorrow")
        assert len(searched) == 1


def test_a_search_that_waits_keeps_no_connection(postgres: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scout(describe(postgres), recipe="bm25", journal=False) as scout:
        fill(scout)
        in_use: list[bool] = []
        change_during_search(monkeypatch, scout.engine, lambda: in_use.append(scout.store.in_transaction))
        assert scout.search("rain tomorrow").ids and in_use == [False]


def test_a_question_survives_a_connection_that_was_closed(postgres: Address) -> None:
    with Scout(describe(postgres), recipe="bm25", journal=False) as scout:
        fill(scout)
        generation = scout.store.generation()
        with scout.store.reading() as connection:
            (process,) = connection.execute("SELECT pg_backend_pid()").fetchone()
        with psycopg.connect(postgres.conninfo, autocommit=True) as raw:
            raw.execute("SELECT pg_terminate_backend(%s)", (process,))
        assert scout.store.generation() == generation and scout.search("rain tomorrow").ids
