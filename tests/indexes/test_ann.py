"""The graph finds nearly what comparing every tool finds, also where a mask hides most tools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from toolscout.errors import StoreError
from toolscout.indexes import MIN_ANN_TOOLS, ann, choose_index, pack, unpack
from toolscout.indexes.ann import Ann
from toolscout.indexes.exact import Exact
from toolscout.testing import check_index

pytest.importorskip("usearch")
N_TOOLS = 6_000
DIM = 32


def make_rows(n: int, seed: int = 0) -> np.ndarray:
    """Unit rows in clusters, as the tools of servers are."""
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(200, DIM))
    vectors = (centres[draw.integers(0, 200, n)] + 0.5 * draw.normal(size=(n, DIM))).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def pair() -> tuple[Exact, Ann]:
    ids = tuple(f"t/{number:05}" for number in range(N_TOOLS))
    return Exact.of(ids, make_rows(N_TOOLS)), Ann.of(ids, make_rows(N_TOOLS))


def measure_recall(expected: Sequence[Sequence[str]], ids: Sequence[Sequence[str]]) -> float:
    return float(np.mean([len(set(best) & set(row)) / len(best) for best, row in zip(expected, ids, strict=True)]))


def test_it_keeps_the_promises_of_an_index() -> None:
    index = Ann(DIM)
    index.upsert([f"t/{number:03}" for number in range(150)], make_rows(150))
    check_index(index, make_rows(5, 1))


def test_it_finds_what_the_exact_index_finds_with_the_same_scores(pair: tuple[Exact, Ann]) -> None:
    exact, index = pair
    queries = make_rows(60, 2)
    expected, ids = exact.search(queries, 10), index.search(queries, 10)
    assert measure_recall(expected[0], ids[0]) >= 0.98
    for row, scores, best, values in zip(*ids, *expected, strict=True):
        known = dict(zip(best, values.tolist(), strict=True))
        for tool_id, score in zip(row, scores.tolist(), strict=True):
            assert known.get(tool_id, score) == score


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("compared", [100, 20_000], ids=["by the graph", "one by one"])
def test_a_mask_keeps_the_recall(
    pair: tuple[Exact, Ann], share: float, compared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ann, "MAX_COMPARED_TOOLS", compared)
    exact, index = pair
    queries = make_rows(40, 3)
    mask = np.random.default_rng(4).random(N_TOOLS) < share
    expected, ids = exact.search(queries, 10, mask)[0], index.search(queries, 10, mask)[0]
    assert all(len(row) == 10 for row in ids)
    assert measure_recall(expected, ids) >= 0.95


def test_a_mask_that_hides_the_neighbourhood_still_gets_the_nearest(
    pair: tuple[Exact, Ann], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the tools are visible, but none of those near to the query."""
    monkeypatch.setattr(ann, "MAX_COMPARED_TOOLS", 100)
    exact, index = pair
    query = make_rows(1, 5)
    mask = exact.cosines(query[0]) < np.median(exact.cosines(query[0]))
    assert exact.search(query, 10, mask)[0] == index.search(query, 10, mask)[0]


def test_the_distribution_of_cosines_is_that_of_the_exact_index(pair: tuple[Exact, Ann]) -> None:
    exact, index = pair
    queries = make_rows(8, 6)
    mask = np.random.default_rng(7).random(N_TOOLS) < 0.5
    for masks in (None, [mask] * 8):
        for one, other in zip(exact.spreads(queries, 20, masks), index.spreads(queries, 20, masks), strict=True):
            assert one.best == pytest.approx(other.best, abs=1e-5)
            assert one.first == other.first
            assert (one.mean, one.deviation) == pytest.approx((other.mean, other.deviation), abs=0.01)


def test_it_comes_back_from_its_arrays_and_reads_rows_from_elsewhere(pair: tuple[Exact, Ann]) -> None:
    index = pair[1]
    arrays, meta = unpack(pack(index.arrays(), index.meta))
    again = Ann.from_arrays(arrays, meta, index.ids)
    read: list[int] = []

    def read_rows(positions: np.ndarray) -> np.ndarray:
        read.append(len(positions))
        return index.vectors[positions]

    again.read_rows_with(read_rows)
    queries = make_rows(5, 8)
    assert measure_recall(index.search(queries, 5)[0], again.search(queries, 5)[0]) >= 0.96
    assert read
    with pytest.raises(StoreError, match="graph of the index is damaged"):
        Ann.from_arrays({**arrays, "codes": arrays["codes"][1:]}, meta, index.ids)


def test_new_and_removed_tools_change_the_graph() -> None:
    index = Ann(DIM)
    index.upsert(["t/a", "t/b"], make_rows(2))
    assert index.search(make_rows(1), 1)[0] == [["t/a"]]
    index.delete(["t/a"])
    assert index.search(make_rows(1), 1)[0] == [["t/b"]]
    index.upsert(["t/c"], make_rows(1))
    assert index.search(make_rows(1), 1)[0] == [["t/c"]]


def test_the_size_of_the_catalogue_and_the_package_choose_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [choose_index(size) for size in (0, MIN_ANN_TOOLS - 1, MIN_ANN_TOOLS)] == ["exact", "exact", "ann"]
    assert choose_index(MIN_ANN_TOOLS, "exact") == "exact"
    assert choose_index(3, "ann") == "ann"
    monkeypatch.setattr(ann, "is_available", lambda: False)
    assert choose_index(10**6) == "exact"
