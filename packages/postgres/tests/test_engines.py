"""One suite over every index: the exact one, and those that keep the vectors outside of the process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from postgres_server import describe
from toolscout.arrays import Vectors
from toolscout.errors import ConfigError, UserError
from toolscout.indexes import VectorIndex, new_index
from toolscout.indexes.exact import Exact
from toolscout.settings import Settings
from toolscout.testing import check_index
from toolscout.types import digest
from toolscout_postgres.address import Address
from toolscout_postgres.engines import milvus as milvus_module
from toolscout_postgres.engines import pgvector as pgvector_module
from toolscout_postgres.engines.contract import CollectionKey, Mark, ToolRows, identify_home
from toolscout_postgres.engines.search import EngineIndex, Snapshot, close_engine, compare, open_engine, reflect

DIM = 24
INDEXES = ["exact", "pgvector", "milvus"]
ENGINES = INDEXES[1:]


@pytest.fixture(scope="module")
def engine_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="module")
def engine_address(postgres_server) -> Address:  # type: ignore[no-untyped-def]
    return postgres_server.new_home()


@pytest.fixture
def settings(request: pytest.FixtureRequest, engine_home: Path) -> Iterator[Settings]:
    name = request.param
    if name == "pgvector":
        name = f"pgvector:{describe(request.getfixturevalue('engine_address'))}"
    elif name == "milvus":
        pytest.importorskip("milvus_lite")
        name = "milvus:milvus.db"
    yield Settings(home=engine_home, index=name)
    if request.param == "pgvector":
        close_engine(Settings(home=engine_home, index=name))


@pytest.fixture(scope="module", autouse=True)
def _close_milvus(engine_home: Path) -> Iterator[None]:
    yield
    close_engine(Settings(home=engine_home, index="milvus:milvus.db"))


over_all = pytest.mark.parametrize("settings", INDEXES, indirect=True)
over_engines = pytest.mark.parametrize("settings", ENGINES, indirect=True)


def make_rows(n: int, seed: int = 0, dim: int = DIM) -> tuple[list[str], Vectors]:
    """Unit rows in clusters, as those of tools are, and ids of seven sources."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(n // 10 + 1, dim))
    rows = centres[random.integers(0, len(centres), n)] + 0.5 * random.normal(size=(n, dim))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return [f"source{number % 7}/tool{number:05d}" for number in range(n)], rows


def make_exact(ids: list[str], rows: Vectors) -> Exact:
    exact = Exact(rows.shape[1])
    exact.upsert(ids, rows)
    return exact


def reopen(index: VectorIndex, settings: Settings) -> VectorIndex:
    """The index as another process finds it."""
    if isinstance(index, Exact):
        return Exact.from_arrays(index.arrays(), index.meta, index.ids)
    close_engine(settings)
    key = index.collection.key  # type: ignore[attr-defined]
    return EngineIndex(open_engine(settings).collection(key), index.ids)


def assert_equal_answers(index: VectorIndex, exact: Exact, queries: Vectors, k: int, visible=None) -> None:  # type: ignore[no-untyped-def]
    ids, scores = index.search(queries, k, visible)
    right_ids, right_scores = exact.search(queries, k, visible)
    assert ids == right_ids
    for row, right in zip(scores, right_scores, strict=True):
        np.testing.assert_array_equal(row, right)


@over_all
def test_an_index_keeps_the_contract(settings: Settings) -> None:
    ids, rows = make_rows(40)
    index = new_index(settings.index, DIM, settings)
    index.upsert(ids, rows)
    check_index(index, np.concatenate([make_rows(3, seed=1)[1], np.zeros((1, DIM), dtype=np.float32)]))


@over_all
def test_rows_are_added_replaced_deleted_and_there_again_after_reopening(settings: Settings) -> None:
    ids, rows = make_rows(60)
    _, queries = make_rows(4, seed=1)
    index = new_index(settings.index, DIM, settings)
    index.upsert(ids[:50], rows[:50])
    index.upsert(ids[40:], rows[40:][::-1])
    changed = np.concatenate([rows[:40], rows[40:][::-1]])
    assert_equal_answers(index, make_exact(ids, changed), queries, 10)
    index.delete([*ids[:20], "no/such-tool"])  # type: ignore[attr-defined]
    assert tuple(index.ids) == tuple(sorted(ids[20:]))
    right = make_exact(ids[20:], changed[20:])
    assert_equal_answers(index, right, queries, 60)
    assert_equal_answers(reopen(index, settings), right, queries, 10)


@over_all
def test_only_visible_tools_are_returned_and_as_many_as_there_are(settings: Settings) -> None:
    ids, rows = make_rows(600)
    _, queries = make_rows(5, seed=1)
    index, exact = new_index(settings.index, DIM, settings), make_exact(ids, rows)
    index.upsert(ids, rows)
    random = np.random.default_rng(2)
    for share in (0.01, 0.1, 0.5):
        mask = random.random(len(ids)) < share
        assert_equal_answers(index, exact, queries, 20, mask)
    of_source = np.array([tool_id.startswith(("source1/", "source4/")) for tool_id in exact.ids])
    nothing = np.zeros(len(ids), dtype=bool)
    assert_equal_answers(index, exact, queries, 20, [of_source, None, nothing, of_source, None])


@over_engines
def test_a_certain_search_of_all_tools_reads_no_row_numbers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, rows = make_rows(300)
    index = new_index(settings.index, DIM, settings)
    index.upsert(ids, rows)
    assert isinstance(index, EngineIndex)
    monkeypatch.setattr(type(index.collection), "number_tools", lambda *_: pytest.fail("they are not needed"))
    assert_equal_answers(index, make_exact(ids, rows), make_rows(3, seed=1)[1], 5)


@over_all
def test_equal_vectors_are_ordered_by_id_also_at_the_cut(settings: Settings) -> None:
    ids, rows = make_rows(400)
    rows[50:350] = rows[50]
    index, exact = new_index(settings.index, DIM, settings), make_exact(ids, rows)
    index.upsert(ids, rows)
    assert_equal_answers(index, exact, rows[50:51], 5)
    assert_equal_answers(index, exact, rows[50:51], 5, np.arange(len(ids)) % 3 == 0)


@over_all
def test_a_row_of_zeros_is_a_tool_and_finds_nothing_as_a_query(settings: Settings) -> None:
    ids, rows = make_rows(30)
    rows[7] = 0
    index = new_index(settings.index, DIM, settings)
    index.upsert(ids, rows)
    found, scores = index.search(np.concatenate([rows[7:8], rows[:1]]), 30)
    assert found[0] == [] and len(scores[0]) == 0
    assert scores[1][found[1].index(ids[7])] == 0.0


@over_all
def test_bad_rows_are_refused_and_change_nothing(settings: Settings) -> None:
    ids, rows = make_rows(5)
    index = new_index(settings.index, DIM, settings)
    index.upsert(ids, rows)
    for bad in (rows[:, :3], np.full((5, DIM), np.nan, dtype=np.float32)):
        with pytest.raises(ValueError, match="expected"):
            index.upsert(ids, bad)
        with pytest.raises(ValueError, match="expected"):
            index.search(bad, 3)
    with pytest.raises(ValueError, match="once"):
        index.upsert([ids[0]] * 5, rows)
    assert_equal_answers(index, make_exact(ids, rows), rows, 5)


@over_all
def test_explain_names_the_rank_and_the_score_of_the_search(settings: Settings) -> None:
    ids, rows = make_rows(50)
    index = new_index(settings.index, DIM, settings)
    index.upsert(ids, rows)
    [found], [scores] = index.search(rows[:1], 50)
    mask = np.arange(50) % 2 == 0
    for position in (0, 20, 49):
        explanation = index.explain(rows[0], found[position])
        assert (explanation.rank, explanation.score) == (position + 1, float(scores[position]))
    last_visible = index.search(rows[:1], 50, mask)[0][0][-1]
    assert index.explain(rows[0], last_visible, mask).rank == 25


# --- engines


def use_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engines search their graphs, which they otherwise do only in large catalogues."""
    monkeypatch.setattr(pgvector_module, "EXACT_ROWS", 0)
    monkeypatch.setattr(pgvector_module, "EXACT_SHARE", 0)
    monkeypatch.setattr(milvus_module, "FLAT_ROWS", 0)


def measure_recall(index: VectorIndex, exact: Exact, queries: Vectors, k: int, mask=None) -> float:  # type: ignore[no-untyped-def]
    pairs = zip(index.search(queries, k, mask)[0], exact.search(queries, k, mask)[0], strict=True)
    return float(np.mean([len(set(found) & set(right)) / max(len(right), 1) for found, right in pairs]))


def check_graph(settings: Settings, n: int, dim: int) -> None:
    ids, rows = make_rows(n, dim=dim)
    queries = make_rows(40, seed=1, dim=dim)[1]
    index, exact = new_index(settings.index, dim, settings), make_exact(ids, rows)
    index.upsert(ids, rows)
    assert measure_recall(index, exact, queries, 10) >= 0.99
    random = np.random.default_rng(3)
    for share in (0.01, 0.1, 0.5):
        mask = random.random(n) < share
        found = index.search(queries, 10, mask)[0]
        assert all(len(row) == min(10, int(mask.sum())) for row in found)
        assert measure_recall(index, exact, queries, 10, mask) >= 0.95


@over_engines
def test_a_graph_finds_nearly_all_also_where_few_tools_are_visible(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_graphs(monkeypatch)
    check_graph(settings, 2_000, DIM)


@pytest.mark.full
@over_engines
def test_a_large_graph_finds_nearly_all(settings: Settings) -> None:
    check_graph(settings, 40_000, 128)


@over_engines
def test_a_tool_that_the_snapshot_does_not_have_is_never_returned(settings: Settings) -> None:
    ids, rows = make_rows(300)
    rows[100:] = rows[0]
    index = new_index(settings.index, DIM, settings)
    index.upsert(ids, rows)
    snapshot = sorted(ids[:100])
    narrow = EngineIndex(index.collection, snapshot)  # type: ignore[attr-defined]
    right = make_exact(ids[:100], rows[:100])
    assert_equal_answers(narrow, right, rows[:1], 40)
    index.delete(ids[120:])  # type: ignore[attr-defined]  # now the others do not fill the candidates
    assert_equal_answers(narrow, right, rows[:1], 5)


def make_snapshot(generation: int, ids: list[str], version: str = "1") -> Snapshot:
    return Snapshot(generation, sorted(ids), lambda: {tool_id: f"{tool_id}@{version}" for tool_id in ids})


def sort_rows(ids: list[str], rows: Vectors) -> Callable[[], Vectors]:
    return lambda: rows[np.argsort(ids)]


@over_engines
def test_a_collection_is_brought_in_step_from_any_state(settings: Settings) -> None:
    ids, rows = make_rows(30)
    key = CollectionKey(identify_home(settings.home), digest("test", "reflect"), DIM)
    collection = open_engine(settings).collection(key)
    collection.drop()
    assert collection.read_mark() is None
    assert reflect(collection, make_snapshot(4, ids), sort_rows(ids, rows)) == Mark(4, 30)
    assert str(compare(collection, make_snapshot(4, ids))) == ""
    behind = make_snapshot(5, ids[5:])
    assert str(compare(collection, behind)) == "5 no longer in the catalogue"
    assert reflect(collection, behind, sort_rows(ids[5:], rows[5:])) == Mark(5, 25)
    changed = make_snapshot(6, ids[:28], version="2")
    assert compare(collection, changed)[:2] == (sorted(ids[:5]), sorted(ids[5:28]))
    assert reflect(collection, changed, sort_rows(ids[:28], rows[:28])) == Mark(6, 28)
    assert collection.list_rows() == changed.fingerprints()
    restored = make_snapshot(2, ids)  # the catalogue came from a backup
    assert reflect(collection, restored, sort_rows(ids, rows)) == Mark(2, 30)
    older = make_snapshot(1, ids[:10])  # another process still searches what is now a part
    assert reflect(collection, older, sort_rows(ids[:10], rows[:10])) == Mark(2, 30)
    assert [state for state in open_engine(settings).list_collections(key.home) if state.key == key] == [
        (key, Mark(2, 30))
    ]
    collection.drop()
    assert collection.read_mark() is None and collection.list_rows() == {}


@over_engines
def test_a_search_mends_what_somebody_else_changed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, rows = make_rows(20)
    key = CollectionKey(identify_home(settings.home), digest("test", "mend"), DIM)
    collection = open_engine(settings).collection(key)
    collection.drop()
    snapshot = make_snapshot(3, ids)
    mend = lambda: reflect(collection, snapshot, sort_rows(ids, rows))  # noqa: E731
    index = EngineIndex(collection, snapshot.ids, mark=mend(), mend=mend)
    collection.change(ToolRows([], [], np.empty((0, DIM), dtype=np.float32)), ids[:10], 2)
    monkeypatch.setattr("toolscout_postgres.engines.search.MARK_CHECK_S", 0.0)
    assert_equal_answers(index, make_exact(ids, rows), rows, 20)
    assert collection.read_mark() == Mark(3, 20)


def test_an_incomplete_setting_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for index, message in (
        ("pgvector", "this home is a folder"),
        ("pgvector:somewhere", "needs an address"),
        ("milvus", "needs a file or an address"),
        ("milvus:vectors.txt", "ends with .db"),
    ):
        settings = Settings(home=tmp_path, index=index)
        with pytest.raises(UserError, match=message):
            new_index(index, DIM, settings)
        close_engine(settings)
    for address in (
        "pgvector:postgresql://a:b@host/x",
        "pgvector:postgresql://host/x?password=b",
        "milvus:http://a:b@h",
    ):
        with pytest.raises(ConfigError, match="without a password") as refusal:
            dataclasses.replace(Settings(home=tmp_path), index=address)
        assert ":b" not in str(refusal.value)


def test_a_server_without_pgvector_is_refused_in_one_sentence() -> None:
    class Bare:
        def execute(self, query: str) -> Bare:
            return self

        def fetchone(self) -> None:
            return None

    with pytest.raises(ConfigError, match=r"has no pgvector\. Install it there"):
        pgvector_module._find_extension(Bare(), "postgresql://db/tools")  # type: ignore[arg-type]
