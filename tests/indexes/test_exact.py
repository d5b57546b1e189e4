from __future__ import annotations

import json

import numpy as np
import pytest

from toolscout.errors import NotFound, StoreError
from toolscout.indexes.exact import Exact
from toolscout.testing import check_index


def rows(n: int, dim: int = 16, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def index() -> Exact:
    made = Exact(16)
    made.upsert([f"t/{i:03}" for i in reversed(range(200))], rows(200)[::-1])
    return made


def test_it_keeps_the_promises_of_an_index(index: Exact) -> None:
    check_index(index, rows(5, seed=1))


def test_scores_are_cosines_and_agree_with_a_plain_matrix_product(index: Exact) -> None:
    queries = rows(4, seed=2)
    ids, scores = index.search(queries, 200)
    for query, found, values in zip(queries, ids, scores, strict=True):
        expected = dict(zip(index.ids, index.vectors @ query, strict=True))
        assert values == pytest.approx([expected[tool_id] for tool_id in found], abs=1e-6)
        assert found == sorted(found, key=lambda tool_id: -expected[tool_id])


def test_equal_vectors_are_ordered_by_id_whatever_their_places() -> None:
    index = Exact(300)
    one = rows(1, 300)[0]
    index.upsert([f"t/{i:04}" for i in range(1001)], np.tile(one, (1001, 1)))
    [ids], [scores] = index.search(one[None], 1001)
    assert ids == sorted(ids)
    assert len(set(scores.tolist())) == 1


def test_a_query_has_the_same_answer_alone_and_in_a_batch(index: Exact) -> None:
    queries = rows(9, seed=3)
    ids, scores = index.search(queries, 10)
    for i, query in enumerate(queries):
        [alone], [values] = index.search(query[None], 10)
        assert alone == ids[i]
        assert values.tolist() == scores[i].tolist()


@pytest.mark.parametrize("dim", [16, 97, 256])
def test_many_near_ties_are_answered_in_a_batch_as_they_are_alone(dim: int) -> None:
    chance = np.random.default_rng(dim)
    vectors = rows(1, dim) + chance.normal(size=(3_000, dim)).astype(np.float32) * np.float32(1e-7)
    vectors[::7] = vectors[0]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = Exact(dim)
    index.upsert([f"t/{i:04}" for i in range(len(vectors))], vectors)
    queries = np.concatenate([vectors[:3], rows(66, dim, seed=6), np.zeros((1, dim), np.float32)])
    mask = np.arange(len(vectors)) % 5 != 0
    for visible in (None, mask, [mask, None] * 35):
        ids, scores = index.search(queries, 20, visible)
        for i, query in enumerate(queries):
            [alone], [values] = index.search(query[None], 20, visible[i] if isinstance(visible, list) else visible)
            assert alone == ids[i]
            assert values.tolist() == scores[i].tolist()


def test_upsert_replaces_adds_and_keeps_ids_ascending(index: Exact) -> None:
    new = rows(2, seed=4)
    index.upsert(["t/zzz", "t/005"], new)
    assert list(index.ids) == sorted(index.ids)
    assert len(index.ids) == 201
    assert [found[0] for found in index.search(new, 1)[0]] == ["t/zzz", "t/005"]


def test_deleted_tools_are_never_returned_and_unknown_ids_are_no_error(index: Exact) -> None:
    index.delete(["t/000", "t/001", "t/nowhere"])
    [ids], _ = index.search(rows(1), 500)
    assert len(ids) == len(index.ids) == len(index.vectors) == 198
    assert "t/000" not in ids


def test_an_upsert_that_cannot_be_changes_nothing(index: Exact) -> None:
    before, vectors = index.ids, index.vectors
    bad = rows(2)
    bad[1, 3] = np.nan
    for ids, values in (
        (["a", "a"], rows(2)),
        (["a", "b"], rows(3)),
        (["a", "b"], rows(2, dim=8)),
        (["a", "b"], bad),
    ):
        with pytest.raises(ValueError, match="expected"):
            index.upsert(ids, values)
    assert index.ids == before
    assert index.vectors is vectors


def test_a_query_of_zeros_and_an_empty_index_find_nothing(index: Exact) -> None:
    assert index.search(np.zeros((1, 16)), 5)[0] == [[]]
    assert Exact(16).search(rows(1), 5)[0] == [[]]
    assert index.search(np.empty((0, 16)), 5) == ([], [])
    assert index.explain(np.zeros(16), "t/000").rank is None


def test_a_query_of_another_length_is_refused(index: Exact) -> None:
    with pytest.raises(ValueError, match=r"expected vectors of shape \(1, 16\), found \(1, 8\)"):
        index.search(rows(1, dim=8), 5)


def test_explain_gives_the_rank_that_a_full_search_gives(index: Exact) -> None:
    query = rows(1, seed=5)
    mask = np.arange(len(index.ids)) % 3 == 0
    for visible in (None, mask):
        [ids], [scores] = index.search(query, len(index.ids), visible)
        for rank in (1, 7, len(ids)):
            found = index.explain(query[0], ids[rank - 1], visible)
            assert (found.rank, found.score) == (rank, pytest.approx(float(scores[rank - 1])))
    with pytest.raises(NotFound, match="index has no tool"):
        index.explain(query[0], "t/nowhere")


def test_it_comes_back_from_its_arrays(index: Exact) -> None:
    again = Exact.from_arrays(index.arrays(), json.loads(json.dumps(index.meta)), ids=index.ids)
    assert again.ids == index.ids
    assert np.array_equal(again.vectors, index.vectors)
    query = rows(1, seed=7)
    assert again.describe_cosines(query[0]) == index.describe_cosines(query[0])
    assert again.search(np.tile(query, (5, 1)), 9)[0] == index.search(np.tile(query, (5, 1)), 9)[0]


def test_damaged_arrays_are_refused(index: Exact) -> None:
    arrays, meta = index.arrays(), index.meta
    for broken, said in (
        ({**arrays, "vectors": arrays["vectors"][:-1]}, meta),
        ({**arrays, "vectors": arrays["vectors"].astype(np.float64)}, meta),
        ({**arrays, "mean": arrays["mean"][:-1]}, meta),
        ({"vectors": arrays["vectors"]}, meta),
        (arrays, {**meta, "format": "exact/0"}),
        (arrays, {}),
    ):
        with pytest.raises(StoreError, match="exact index is damaged"):
            Exact.from_arrays(broken, said, index.ids)
