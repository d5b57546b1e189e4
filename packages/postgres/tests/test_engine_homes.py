"""The catalogue of a home and the engine that holds its vectors: in step, also after a kill on either side."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from homes_in_postgres import name_home
from postgres_server import PostgresServer, describe
from tests_cli import run
from toolscout.indexes.bm25 import BM25
from toolscout.scout import Scout
from toolscout.testing import toy_tools
from toolscout.types import Tool
from toolscout_postgres.engines import search
from toolscout_postgres.engines.contract import identify_home
from toolscout_postgres.engines.search import Snapshot, compare, open_engine

QUERIES = ("weather forecast of a city", "checksum of a file", "send a message to a friend", "book a flight")
HOMES = ("folder + pgvector", "database + pgvector", "folder + milvus", "database + milvus")
VERSION = {
    1: slice(0, 7),
    2: slice(2, 10),
}


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The home and the setting `index`."""
    kind, _, engine = request.param.partition(" + ")
    home = name_home(tmp_path / "home")
    if kind == "database":
        home = describe(request.getfixturevalue("postgres"))
    if engine == "milvus":
        pytest.importorskip("milvus_lite")
        return home, f"milvus:{tmp_path / 'milvus.db'}"
    if kind == "database":
        return home, "pgvector"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return home, f"pgvector:{describe(server.new_home())}"


def make_schemas(version: int) -> list[dict[str, object]]:
    """The tools of a source: of the second version some are gone, some new, and one has changed."""
    schemas = [{"name": tool.name, "description": tool.description} for tool in toy_tools()[VERSION[version]]]
    schemas[-1]["description"] += f" Version {version}."
    return schemas


def list_answers(scout: Scout) -> list[list[str]]:
    return [[hit.id for hit in scout.search(query, 5, recipe="hybrid").hits] for query in QUERIES]


def find_differences(scout: Scout) -> str:
    [state] = open_engine(scout.settings).list_collections(identify_home(scout.settings.place))
    catalogue = scout.store.catalogue()
    assert catalogue.fingerprints is not None
    snapshot = Snapshot(catalogue.generation, catalogue.ids, catalogue.fingerprints)
    return str(compare(open_engine(scout.settings).collection(state.key), snapshot))


@pytest.fixture(scope="module")
def right_answers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[list[str]]]:
    """Version of the source → the answers with the exact index."""
    answers = {}
    for version in VERSION:
        with Scout(tmp_path_factory.mktemp("exact"), index="exact", recipe="hybrid") as scout:
            scout.add(make_schemas(version), name="toy")
            answers[version] = list_answers(scout)
    assert answers[1] != answers[2]
    return answers


@pytest.mark.parametrize("place", HOMES, indirect=True)
def test_add_sync_remove_and_search_keep_engine_and_catalogue_in_step(
    place: tuple[str, str], right_answers: dict[int, list[list[str]]]
) -> None:
    home, index = place
    with Scout(home, index=index, recipe="hybrid") as scout:
        scout.add(make_schemas(1), name="toy")
        scout.embed()
        assert list_answers(scout) == right_answers[1]
        scout.add(make_schemas(2), name="toy")
        in_same_transaction = index == "pgvector"
        assert (find_differences(scout) == "") == in_same_transaction
        assert list_answers(scout) == right_answers[2]
        assert find_differences(scout) == ""
    with Scout(home, index=index, recipe="hybrid") as scout:
        assert list_answers(scout) == right_answers[2]
        only = scout.search(QUERIES[0], 5, visible=lambda tool: tool.name in ("copy", "sha256"))
        assert {hit.tool.name for hit in only.hits} <= {"copy", "sha256"}
        why = scout.why(QUERIES[0], "toy/copy", recipe="hybrid")  # tries other descriptions, without writing them
        assert why is not None and find_differences(scout) == ""
        scout.remove(["toy"])
        assert scout.search(QUERIES[0]).hits == () and find_differences(scout) == ""


@pytest.mark.parametrize("place", ["folder + pgvector", "folder + milvus"], indirect=True)
def test_doctor_says_what_differs_and_mends_it(place: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    home, index = place
    monkeypatch.setenv("TOOLSCOUT_INDEX", index)
    with Scout(home, recipe="hybrid") as scout:
        scout.add(make_schemas(1), name="toy")
        scout.embed()
        [state] = open_engine(scout.settings).list_collections(identify_home(scout.settings.place))
        collection = open_engine(scout.settings).collection(state.key)
        ids, vectors = collection.read_vectors()
        from toolscout_postgres.engines.contract import ToolRows

        collection.change(ToolRows(["toy/stranger"], ["?"], vectors[:1]), ids[:2], state.mark.generation)
    report = run_doctor(home)
    assert not report["healthy"]
    [finding] = report["findings"]
    assert finding.startswith("index: ") and "tools 2 missing, 1 no longer in the catalogue" in finding
    assert report["engine"]["collections"][0]["tools"] == 6
    repaired = run_doctor(home, "--repair")
    assert repaired["healthy"] and any("brought in step" in line for line in repaired["repaired"])
    assert repaired["engine"]["collections"] == [
        {"tenant": "default", "dim": 256, "tools": 7, "generation": repaired["store"]["generation"],
         "current_encoder": True}
    ]  # fmt: skip
    with Scout(home, recipe="hybrid") as scout:
        assert find_differences(scout) == ""


def run_doctor(home: str, *options: str) -> dict[str, object]:
    report: dict[str, object] = json.loads(run("doctor", "--home", home, "--json", *options).stdout)
    return report


def test_an_engine_that_does_not_answer_is_said_and_words_serve(tmp_path: Path) -> None:
    with Scout(tmp_path, index="pgvector:postgresql://nobody@/tools?host=/nowhere", recipe="hybrid") as scout:
        scout.add(make_schemas(1), name="toy")
        answer = scout.search(QUERIES[0])
        assert answer.hits and answer.reason is not None
        assert answer.reason.startswith("searched with bm25 alone: The database") and "does not answer" in answer.reason


def test_a_milvus_file_serves_one_process_and_the_others_say_so(tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite")
    index = f"milvus:{tmp_path / 'milvus.db'}"
    holder = "import sys; from milvus_lite import MilvusLite; MilvusLite(sys.argv[1]); print(1, flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "milvus.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        with Scout(tmp_path / "home", index=index, recipe="hybrid") as scout:
            scout.add(make_schemas(1), name="toy")
            assert "Another process uses the Milvus Lite file" in (scout.search(QUERIES[0]).reason or "")
    finally:
        process.kill()
        process.communicate()


# --- kills

CHILD = """
    import os, signal, sys
    from toolscout_postgres.engines import milvus, pgvector
    from toolscout.scout import Scout

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    home, index, point, schemas = sys.argv[1], sys.argv[2], sys.argv[3], eval(sys.argv[4])
    with Scout(home, index=index, recipe="hybrid") as scout:
        if point == "before the engine":
            pgvector.PgvectorCollection.change = milvus.MilvusCollection.change = die
        elif point == "within the transaction":
            write = pgvector._write_mark
            pgvector._write_mark = lambda *arguments: (write(*arguments), die())
        elif point == "after half of the rows":
            write_rows = milvus.MilvusCollection._write_rows
            def write_half(collection, target, rows):
                half = len(rows.ids) // 2
                cut = [None if part is None else part[:half] for part in rows]
                write_rows(collection, target, type(rows)(*cut))
                die()
            milvus.MilvusCollection._write_rows = write_half
        elif point == "before the mark":
            write_mark = milvus.MilvusCollection._write_mark
            milvus.MilvusCollection._write_mark = (
                lambda self, mark: die() if mark.generation >= 0 else write_mark(self, mark))
        scout.add(schemas, name="toy")
        scout.embed()
"""
MENDED_BY_DOCTOR = ("before the engine", "before the mark")
KILLS = [
    ("folder + pgvector", "before the engine"),
    ("database + pgvector", "within the transaction"),
    ("folder + milvus", "after half of the rows"),
    ("folder + milvus", "before the mark"),
]
MORE_KILLS = [
    ("folder + pgvector", "within the transaction"),
    ("folder + milvus", "before the engine"),
    ("database + milvus", "before the engine"),
    ("database + milvus", "before the mark"),
]


def run_child(arguments: Sequence[str]) -> int:
    command = [sys.executable, "-c", textwrap.dedent(CHILD), *arguments]
    return subprocess.run(command, capture_output=True, timeout=50).returncode


def check_kill(place: tuple[str, str], point: str, right_answers: dict[int, list[list[str]]]) -> None:
    home, index = place
    with Scout(home, index=index, recipe="hybrid") as scout:
        scout.add(make_schemas(1), name="toy")
        scout.embed()
    assert run_child([home, index, point, repr(make_schemas(2))]) == -signal.SIGKILL
    is_rolled_back = index == "pgvector"  # the catalogue and the vectors are one transaction
    if point in MENDED_BY_DOCTOR:  # otherwise the next search mends it
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TOOLSCOUT_INDEX", index)
            assert run_doctor(home)["healthy"] == is_rolled_back
            assert run_doctor(home, "--repair")["healthy"]
        with Scout(home, index=index, recipe="hybrid") as scout:
            assert find_differences(scout) == ""
    with Scout(home, index=index, recipe="hybrid") as scout:
        assert list_answers(scout) == right_answers[1 if is_rolled_back else 2]
        assert find_differences(scout) == ""
        scout.add(make_schemas(2), name="toy")
        assert list_answers(scout) == right_answers[2]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "point"), KILLS, indirect=["place"])
def test_a_kill_between_catalogue_and_engine_heals(
    place: tuple[str, str], point: str, right_answers: dict[int, list[list[str]]]
) -> None:
    check_kill(place, point, right_answers)


@pytest.mark.full
@pytest.mark.parametrize(("place", "point"), MORE_KILLS * 3, indirect=["place"])
def test_kills_at_every_point_heal(
    place: tuple[str, str], point: str, right_answers: dict[int, list[list[str]]]
) -> None:
    check_kill(place, point, right_answers)


@pytest.mark.slow
def test_a_kill_of_the_database_heals(
    own_server: PostgresServer, tmp_path: Path, right_answers: dict[int, list[list[str]]]
) -> None:
    index = f"pgvector:{describe(own_server.new_home())}"
    with Scout(tmp_path, index=index, recipe="hybrid") as scout:
        scout.add(make_schemas(1), name="toy")
        scout.embed()
        own_server.stop(signal.SIGKILL)
        scout.add(make_schemas(2), name="toy")
        assert "bm25 alone" in (scout.search(QUERIES[0]).reason or "")
        own_server.start()
        scout.engine._down.clear()  # it asks again after half a minute
        assert list_answers(scout) == right_answers[2] and find_differences(scout) == ""


# --- words


def test_milvus_scores_words_as_our_bm25_does(tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite")
    tools = [
        Tool(id=f"toy/{number:03d}", name=f"{verb}_{noun}", description=f"{verb} the {noun} of {place_name}")
        for number, (verb, noun, place_name) in enumerate(
            (verb, noun, place_name)
            for verb in ("find", "delete", "rename", "measure")
            for noun in ("weather", "order", "file", "customer", "wind")
            for place_name in ("Oslo", "a shop", "the whole world, by hour")
        )
    ]
    from toolscout_postgres.engines.search import EngineWords

    index = f"milvus:{tmp_path / 'milvus.db'}"
    with Scout(tmp_path / "home", index=index, recipe="hybrid") as scout:
        scout.add([{"name": tool.id[4:] + tool.name, "description": tool.description} for tool in tools], name="toy")
        catalogue, _ = scout.pipeline("hybrid")
        selection, _ = scout.engine.serving()
        workspace = scout.engine.builder.make_resources(selection)
        engine = workspace.index_nearest_words(catalogue, workspace.load_encoder())
        assert isinstance(engine, EngineWords)
        words = engine.words
        assert isinstance(words, BM25)
        queries = ["delete the order of a customer", "wind in Oslo by hour", "zebra", "file file file"]
        mask = [None, catalogue.mask(lambda tool: "Oslo" in tool.description), None, None]
        found, scores = engine.search(queries, 12, mask)
        right, right_scores = words.search(queries, 12, mask)
        assert [set(row) for row in found] == [set(row) for row in right] and found[2] == []
        for row, right_row in zip(scores, right_scores, strict=True):
            assert row.tolist() == pytest.approx(right_row.tolist(), rel=1e-4)


@pytest.fixture(autouse=True)
def _close_engines() -> Iterator[None]:
    before = set(search._engines)
    yield
    assert set(search._engines) == before, "closing a Scout closes its engine"
