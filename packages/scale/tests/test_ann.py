"""The graph finds nearly what comparing every tool finds, also where a mask hides most tools."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolscout.encoders.static import load_static
from toolscout.errors import MissingExtra, StoreError
from toolscout.indexes import MIN_ANN_TOOLS, choose_index, find_index_class
from toolscout.indexes.exact import Exact
from toolscout.recipes.select import Selection
from toolscout.scout import Scout
from toolscout.testing import check_index

ann = pytest.importorskip("toolscout_scale.ann")
graph = pytest.importorskip("toolscout_scale.graph")
Ann, EarlierGraph = ann.Ann, graph.EarlierGraph
N_TOOLS = 6_000
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(sys.path)}
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


def test_an_index_without_tools_is_read_back_and_finds_nothing() -> None:
    """It is stored when the last tool of a large catalogue is removed."""
    index = Ann(DIM)
    stored = Ann.from_arrays(index.arrays(), index.meta, ())
    [found], [scores] = stored.search(make_rows(1, 1), 5)
    assert found == [] and len(scores) == 0


def test_threads_that_build_a_graph_lose_no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without second entries, sixteen threads lose some 30 of these tools, and up to 90 others are hard to find."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    index = Ann.of([f"t/{number:05}" for number in range(N_TOOLS)], make_rows(N_TOOLS))
    arrays = index.arrays()
    assert len(arrays["keyed"]) > N_TOOLS
    assert not len(graph._find_lost(arrays["graph"], arrays["keyed"]))  # no two of these tools have the same code
    found = index.search(index.vectors, 1)[0]
    assert sum(row != [tool_id] for row, tool_id in zip(found, index.ids, strict=True)) < 0.001 * N_TOOLS


def test_what_no_edge_leads_to_is_lost_unless_it_has_another_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(500)
    content, keyed, *_ = graph.build_graph(rows, Ann.of(range(500), rows)._choose_projection(), lambda: 1)
    edges = graph._Edges(content)
    keys, (slots, neighbours) = edges.read_keys(), edges.read_level(0)
    assert sorted(keys.tolist()) == slots.tolist() == list(range(500)) and not len(graph._find_lost(content, keyed))
    nearest = np.argsort(-(rows @ rows.T), axis=1)[:, 1]
    near = [set(keyed[keys[row[row < 500]]].tolist()) for row in neighbours]
    assert np.mean([nearest[keyed[key]] in row for key, row in zip(keys, near, strict=True)]) > 0.9
    assert edges.highest and edges.entry in edges.read_level(edges.highest)[0]
    [slot] = np.setdiff1d(slots, edges.read_level(1)[0])[7:8]
    read_level = graph._Edges.read_level

    def cut(self: graph._Edges, level: int) -> tuple[np.ndarray, np.ndarray]:
        slots, neighbours = read_level(self, level)
        return slots, np.where(neighbours == slot, 500, neighbours)

    monkeypatch.setattr(graph._Edges, "read_level", cut)
    lost = keyed[keys[slot]]
    assert graph._find_lost(content, keyed).tolist() == [lost]
    assert not len(graph._find_lost(content, np.where(keyed == keyed[keys[edges.entry]], lost, keyed)))
    assert not len(graph._find_lost(content, np.where(keyed == lost, -1, keyed)))


def test_a_tool_that_only_a_far_one_leads_to_gets_a_second_entry() -> None:
    rows = make_rows(2_000)
    projection = Ann.of(range(2_000), rows)._choose_projection()
    content, keyed, *_ = graph.build_graph(rows, projection, lambda: 1)
    content, edges = content.copy(), graph._Edges(content)
    keys, (_, neighbours) = edges.read_keys(), edges.read_level(0)
    [slot] = np.setdiff1d(np.arange(2_000), edges.read_level(1)[0])[7:8]
    tool = int(keyed[keys[slot]])
    far = int(np.argmin(rows[keyed[keys]] @ rows[tool]))
    for row in np.flatnonzero((neighbours == slot).any(axis=1)):
        cut(content, edges, int(row), neighbours[row], slot, neighbours[row][neighbours[row] != slot][0])
    cut(content, edges, far, neighbours[far], neighbours[far][0], slot)
    index = graph._make_graph(projection)
    index.load(content.tobytes())
    assert not len(graph._find_lost(content, keyed))

    def find_first(index: Any, keyed: np.ndarray) -> int:
        index.expansion_search = 64
        return int(keyed[int(index.search(projection.make_codes(rows[[tool]])[0], 1).keys[0])])

    assert find_first(index, keyed) != tool
    content, keyed = graph._reach_all(index, keyed, lambda some: projection.make_codes(rows[some]), lambda: 1)
    assert keyed[2_000:].tolist() == [tool] and find_first(index, keyed) == tool


def cut(content: np.ndarray, edges: graph._Edges, node: int, neighbours: np.ndarray, old: int, new: int) -> None:
    """Lead the edge of a node on the lowest level to another one, in the bytes of a graph."""
    start = int(edges._node_starts[node]) + 14 + 4 * int(np.flatnonzero(neighbours == old)[0])
    content[start : start + 4] = np.frombuffer(np.uint32(new).tobytes(), dtype=np.uint8)


def test_a_graph_of_another_form_is_not_taken_for_one_without_losses() -> None:
    content, keyed, *_ = graph.build_graph(
        make_rows(50), graph.Projection(np.eye(DIM, dtype=np.float32), 127.0), lambda: 1
    )
    for other in (content[:-4], np.concatenate([content, content[:4]])):
        with pytest.raises(StoreError, match="new form"):
            graph._find_lost(other, keyed)


def test_many_equal_and_empty_rows_hide_no_other_tool() -> None:
    """With all of them in the graph, 500 others were lost."""
    rows = make_rows(2_000).copy()
    rows[:600], rows[600:700] = rows[0], 0.0
    index = Ann.of([f"t/{number:04}" for number in range(2_000)], rows)
    assert len(index.arrays()["keyed"]) < 1_400
    assert [row[0] for row in index.search(rows[700:], 1)[0]] == list(index.ids[700:])
    assert index.search(rows[:1], 10)[0] == [list(index.ids[:10])]


def make_ids(n: int) -> list[str]:
    return [f"t/{number:05}" for number in range(n)]


def grow(arrays: dict[str, np.ndarray], places: np.ndarray, new: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of the tools at some places of an index and of new ones, with a graph grown from the one there."""
    vectors = arrays["vectors"][places]
    vectors[places < 0] = new
    assert EarlierGraph(arrays, places).is_worthwhile
    return Ann.of(make_ids(len(places)), vectors).arrays(earlier=(arrays, places))


def expect_exact(
    arrays: dict[str, np.ndarray], queries: np.ndarray, *counts: int, mask: np.ndarray | None = None
) -> None:
    """Compare the answers of an index with those of the exact one."""
    exact = Exact.of(make_ids(len(arrays["vectors"])), arrays["vectors"])
    index = Ann.from_arrays(arrays, exact.meta, exact.ids)
    for k in counts:
        (ids, values), (expected, scores) = index.search(queries, k, mask), exact.search(queries, k, mask)
        assert ids == expected
        assert all(np.array_equal(*pair) for pair in zip(values, scores, strict=True))


def make_twins(n: int, n_twins: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """An index in which the first tools have the same row, and a query near to it."""
    rows = make_rows(n).copy()
    rows[:n_twins] = rows[0]
    query = rows[:1] + 0.1 * make_rows(1, 1)
    return Ann.of(make_ids(n), rows).arrays(), query / np.linalg.norm(query)


def test_more_twins_are_found_than_the_graph_holds() -> None:
    expect_exact(*make_twins(2_000, 40), 1, 5, 30, 60)


def test_a_mask_that_hides_the_twins_in_the_graph_shows_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ann, "MAX_COMPARED_TOOLS", 100)
    monkeypatch.setattr(Ann, "_choose_nearest", lambda *_: pytest.fail("the tools were compared one by one"))
    for n_hidden in (graph.MAX_TWINS, 30):
        expect_exact(*make_twins(2_000, 40), 1, 5, mask=np.arange(2_000) >= n_hidden)


def test_twins_take_the_place_of_those_that_are_gone() -> None:
    arrays, query = make_twins(2_000, 40)
    for n_gone in (graph.MAX_TWINS, 10, 14):
        arrays = grow(arrays, np.arange(n_gone, len(arrays["vectors"])), np.empty((0, DIM)))
        expect_exact(arrays, query, 1, 5, 30)
    again = grow(arrays, np.arange(len(arrays["vectors"])), np.empty((0, DIM)))
    assert len(again["keyed"]) == len(arrays["keyed"])


def test_a_graph_does_not_grow_by_more_twins_than_a_new_one_holds() -> None:
    arrays, query = make_twins(2_000, 1)
    for _ in range(2):
        places = np.concatenate([np.full(100, -1), np.arange(len(arrays["vectors"]))])
        arrays = grow(arrays, places, arrays["vectors"][0])
        assert len(set(arrays["keyed"].tolist())) == 1_999 + graph.MAX_TWINS
        expect_exact(arrays, query, 1, 30)


def test_tools_with_the_same_code_that_differ_are_ordered_by_their_vectors() -> None:
    arrays, query = make_twins(2_000, 15)
    rows = arrays["vectors"].copy()
    rows[:15] += np.linspace(0, 1e-5, 15)[:, None].astype(np.float32) * query
    arrays = Ann.of(make_ids(2_000), rows).arrays()
    assert len(set(arrays["marks"][:15].tolist())) == 1
    expect_exact(arrays, query, 1, 3)


@pytest.mark.parametrize("seed", range(4))
def test_among_many_twins_it_finds_what_the_exact_index_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty rows for 3,000 tools, of which the first of some are removed or hidden."""
    monkeypatch.setattr(ann, "MAX_COMPARED_TOOLS", 100)
    monkeypatch.setattr(graph, "MAX_CHANGED_SHARE", 1.0)
    draw = np.random.default_rng(seed)
    centres, which = make_rows(60, 10 + seed), draw.integers(0, 60, 3_000)
    arrays = Ann.of(make_ids(3_000), centres[which]).arrays()
    for _ in range(3):
        near = draw.integers(0, 60, 8)
        queries = centres[near] + 0.1 * make_rows(8, int(draw.integers(1_000)))
        queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
        mask = draw.random(len(which)) < 0.9
        for centre in near[:5]:
            mask[np.flatnonzero(which == centre)[: draw.integers(5, 60)]] = False
        expect_exact(arrays, queries, 1, 20, 90)
        expect_exact(arrays, queries, 1, 20, 90, mask=mask)
        gone = np.concatenate([np.flatnonzero(which == centre)[:30] for centre in near[:3]])
        places = np.insert(np.setdiff1d(np.arange(len(which)), gone), 500, [-1] * 20)
        which = np.where(places < 0, near[0], which[places])
        arrays = grow(arrays, places, centres[near[0]])


def test_few_twins_are_compared_where_many_codes_have_them() -> None:
    """With 60 codes of 50 tools each, all tools are twins of one of 240 in the graph."""
    index = Ann.of(make_ids(3_000), make_rows(60)[np.random.default_rng(0).integers(0, 60, 3_000)])
    index.search(make_rows(1, 1), 1)
    counts = [len(index._search_graph(make_rows(1, 1)[0], k, 256, 256)) for k in (1, 30)]
    assert max(counts) <= 240 + graph.TWINS_PER_TOOL * 240 + 30 + graph.MORE_TWINS


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
            assert one.best == pytest.approx(other.best, abs=0.03)  # the graph may miss one of the twenty
            assert one.first == other.first
            assert (one.mean, one.deviation) == pytest.approx((other.mean, other.deviation), abs=0.01)


def test_it_comes_back_from_its_arrays_and_reads_rows_from_elsewhere(
    pair: tuple[Exact, Ann], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = pair[1]
    arrays, meta = index.arrays(), index.meta
    read: list[int] = []

    def read_rows(positions: np.ndarray) -> np.ndarray:
        read.append(len(positions))
        return index.vectors[positions]

    monkeypatch.setattr(ann, "MIN_READ_TOOLS", 1)
    again = Ann.from_arrays(arrays, meta, index.ids, {"vectors": read_rows})
    queries = make_rows(5, 8)
    assert measure_recall(index.search(queries, 5)[0], again.search(queries, 5)[0]) >= 0.96
    assert read
    with pytest.raises(StoreError, match="graph of the index is damaged"):
        Ann.from_arrays({**arrays, "codes": arrays["codes"][1:]}, meta, index.ids)


@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        ("keyed", lambda keyed: np.where(keyed == 100, 2_000, keyed)),
        ("keyed", lambda keyed: np.where(keyed == 100, -2, keyed)),
        ("keyed", lambda keyed: keyed[:, None]),
        ("keyed", lambda keyed: keyed.astype(np.float32)),
        ("marks", lambda marks: marks[1:]),
        ("marks", lambda marks: marks.astype(np.float64)),
        ("twins", lambda twins: twins.T),
        ("twins", lambda twins: twins[:, ::-1] * [[1], [-1]]),
        ("twins", lambda twins: np.add(twins, [[0], [2_000]])),
        ("twins", lambda twins: twins.astype(np.float64)),
        ("twins", lambda twins: twins[0]),
    ],
)
def test_damaged_arrays_of_a_graph_are_not_read(name: str, damaged: Callable[[np.ndarray], np.ndarray]) -> None:
    arrays, meta = make_twins(2_000, 40)[0], Ann.of(range(1), make_rows(1)).meta
    for other in ({**arrays, name: damaged(arrays[name])}, {key: arrays[key] for key in arrays.keys() - {name}}):
        with pytest.raises(StoreError, match="graph of the index is damaged"):
            Ann.from_arrays(other, meta, make_ids(2_000))
    with pytest.raises(StoreError, match="graph of the index is damaged"):
        EarlierGraph({**arrays, name: damaged(arrays[name])}, np.arange(2_000))


def test_a_graph_grows_by_new_tools_and_loses_those_that_are_gone(pair: tuple[Exact, Ann]) -> None:
    before = pair[1]
    arrays = before.arrays()
    for round_ in range(2):
        order = np.random.default_rng(round_).permutation(len(before.ids))
        kept = np.sort(order[50:])
        vectors = np.insert(before.vectors[kept], [7, 90], make_rows(2, 30 + round_), axis=0)
        ids = [f"t/{number:05}" for number in range(len(vectors))]
        places = np.insert(kept, [7, 90], -1)
        earlier = EarlierGraph(arrays, places)
        assert earlier.is_worthwhile and len(earlier.position_of_key) >= N_TOOLS + 2 * round_
        arrays = Ann.of(ids, vectors).arrays(earlier=(arrays, places))
        grown = Ann.from_arrays(arrays, before.meta, ids)
        exact, queries = Exact.of(ids, vectors), np.concatenate([vectors[[7, 91]], make_rows(40, 9)])
        found = grown.search(queries, 10)[0]
        assert measure_recall(exact.search(queries, 10)[0], found) >= 0.97
        assert [row[0] for row in found[:2]] == [ids[7], ids[91]]
        [near_last] = grown.search(vectors[-1:], 200)[0]
        assert near_last[0] == ids[-1] and len(set(near_last)) == 200  # a gone tool does not stand for the last
        before = grown
    assert not EarlierGraph(arrays, np.where(np.arange(len(ids)) % 5, np.arange(len(ids)), -1)).is_worthwhile


def test_the_graph_holds_the_longest_components_and_is_built_beside_other_work() -> None:
    rows = make_rows(300, 3).copy()
    rows[:, 8:] *= 0.01
    index, done = Ann.of([f"t/{number:04}" for number in range(300)], rows), list[int]()
    arrays = index.arrays(meanwhile=lambda: done.append(1))
    assert done == [1] and arrays["components"].shape == (DIM, min(DIM, graph.COMPONENTS_STEP))
    kept = rows @ arrays["components"]
    assert np.square(kept).sum() >= graph.MIN_SQUARE_SHARE * np.square(rows).sum()


def test_new_and_removed_tools_change_the_graph() -> None:
    index = Ann(DIM)
    index.upsert(["t/a", "t/b"], make_rows(2))
    assert index.search(make_rows(1), 1)[0] == [["t/a"]]
    index.delete(["t/a"])
    assert index.search(make_rows(1), 1)[0] == [["t/b"]]
    index.upsert(["t/c"], make_rows(1))
    assert index.search(make_rows(1), 1)[0] == [["t/c"]]


@pytest.mark.parametrize("least", [1, 1_000])
def test_the_vectors_of_a_large_catalogue_do_not_count_as_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(ann, "MIN_READ_TOOLS", least)
    tools = [{"name": f"tool_{number}", "description": f"does the thing {number}"} for number in range(30)]
    with Scout(tmp_path, index="ann", encoder="static") as scout:
        scout.add(tools, name="things")
        catalogue, _ = scout.pipeline("dense")
        index = scout.engine.builder.make_resources(Selection("dense")).index_tools(catalogue, load_static())
        assert (index._read_rows is not None) == (least == 1)
        assert scout.search("does the thing 7", recipe="dense").ids


def test_the_size_of_the_catalogue_and_the_package_choose_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [choose_index(size) for size in (0, MIN_ANN_TOOLS - 1, MIN_ANN_TOOLS)] == ["exact", "exact", "ann"]
    assert choose_index(MIN_ANN_TOOLS, "exact") == "exact"
    assert choose_index(3, "ann") == "ann"
    monkeypatch.setattr("toolscout.plugins.find_plugin", lambda *_: None)
    assert choose_index(10**6) == "exact"
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[scale\]'"):
        find_index_class("ann")


def test_an_onnx_encoder_can_be_loaded_after_a_graph() -> None:
    """onnxruntime ends a process with a segmentation fault if usearch was imported before it without care."""
    pytest.importorskip("onnxruntime")
    code = """
import sys
import numpy as np
from toolscout_scale.ann import Ann
index = Ann.of(["t/a", "t/b"], np.eye(8, dtype=np.float32)[:2])
index.arrays()
print("onnxruntime" in sys.modules, end=" ")
import onnxruntime
print(index.search(np.eye(8, dtype=np.float32)[1:2], 1)[0])
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert process.stdout == f"{sys.platform != 'linux'} [['t/b']]\n", process.returncode
