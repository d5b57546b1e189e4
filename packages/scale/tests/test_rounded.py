"""A search that compares 8-bit copies first gives the answer of comparing every vector, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from toolscout.errors import StoreError
from toolscout.home.catalogue.array_file import open_arrays, write_arrays
from toolscout.indexes import find_index_class, large
from toolscout.indexes.exact import Exact

rounded = pytest.importorskip("toolscout_scale.rounded")
N_TOOLS, DIM = 3_000, 32
IDS = [f"t/{number:05}" for number in range(N_TOOLS)]


def make_rows(n: int, seed: int) -> np.ndarray:
    """Unit rows around some centres, some of them equal and some nearly so."""
    chance = np.random.default_rng(seed)
    centres = chance.normal(size=(20, DIM))
    rows = centres[chance.integers(20, size=n)] + 0.7 * chance.normal(size=(n, DIM))
    if n > 31:
        rows[::9] = rows[0]
        rows[1::31] = rows[1] + 1e-6 * chance.normal(size=rows[1::31].shape)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def indexes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Exact, Exact]:
    """The same vectors without and with copies; the latter from a file, as a search process opens it."""
    vectors = make_rows(N_TOOLS, 1)
    vectors[7] = 0.0
    monkeypatch.setattr(large, "MIN_LARGE_TOOLS", 1)
    made = find_index_class("exact", N_TOOLS).of(IDS, vectors)
    write_arrays(tmp_path / "index.arrays", made.arrays(), made.meta)
    arrays, meta, readers = open_arrays(tmp_path / "index.arrays")
    assert "rounded.codes" in arrays
    opened = rounded.RoundedExact.from_arrays(arrays, meta, IDS, readers)
    return Exact.of(IDS, vectors), opened


@pytest.mark.parametrize("k", [1, 10, 100, N_TOOLS])
def test_the_answer_is_that_of_comparing_every_vector(indexes: tuple[Exact, Exact], k: int) -> None:
    plain, opened = indexes
    chance = np.random.default_rng(k)
    queries = np.concatenate([make_rows(12, 2), plain.vectors[[0, 1, 9, 32]]])
    for mask in (None, *(chance.random(N_TOOLS) < share for share in (0.5, 0.1, 0.001))):
        for query in queries:
            [ids], [scores] = plain.search(query[None], k, mask)
            [fast_ids], [fast_scores] = opened.search(query[None], k, mask)
            assert fast_ids == ids
            assert fast_scores.tolist() == scores.tolist()


def test_few_vectors_are_compared(indexes: tuple[Exact, Exact]) -> None:
    rows = make_rows(10, 3)
    counts = [len(positions) for positions in indexes[1].find_candidates(rows, 10, [None] * len(rows))]
    assert len(counts) == 10 and float(np.median(counts)) < 0.1 * N_TOOLS


def test_a_row_of_zeros_finds_nothing(indexes: tuple[Exact, Exact]) -> None:
    assert indexes[1].search(np.zeros((1, DIM), dtype=np.float32), 5)[0] == [[]]


def test_an_index_that_was_stored_without_the_package_makes_the_copies(indexes: tuple[Exact, Exact]) -> None:
    plain, _ = indexes
    index = rounded.RoundedExact.from_arrays(plain.arrays(), plain.meta, IDS)
    query = make_rows(1, 4)
    assert index.search(query, 10)[0] == plain.search(query, 10)[0]
    assert "rounded.codes" in index.arrays()


def test_without_the_package_every_vector_is_compared(
    indexes: tuple[Exact, Exact], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, opened = indexes
    monkeypatch.setattr("toolscout.plugins.find_plugin", lambda *_: None)
    index = find_index_class("exact", N_TOOLS).from_arrays(opened.arrays(), opened.meta, IDS)
    assert type(index) is Exact
    query = make_rows(1, 4)
    assert index.search(query, 10)[0] == plain.search(query, 10)[0]


def test_copies_of_another_shape_are_refused(indexes: tuple[Exact, Exact]) -> None:
    _, opened = indexes
    arrays = {**opened.arrays(), "rounded.codes": np.zeros((N_TOOLS, DIM - 1), dtype=np.int8)}
    with pytest.raises(StoreError, match="damaged"):
        rounded.RoundedExact.from_arrays(arrays, opened.meta, IDS)


def test_changed_tools_drop_the_copies(indexes: tuple[Exact, Exact]) -> None:
    _, opened = indexes
    query = make_rows(1, 5)
    opened.upsert(["t/new"], query)
    assert opened.search(query, 1)[0] == [["t/new"]]


def test_rounding_loses_at_most_what_the_residual_says() -> None:
    vectors = make_rows(50, 6)
    rows = rounded.RoundedRows.of(vectors)
    arrays = rows.arrays()
    restored = arrays["rounded.codes"] * arrays["rounded.scales"][:, None]
    lost = np.linalg.norm(vectors - restored, axis=1)
    assert np.allclose(lost, arrays["rounded.residuals"], atol=1e-6) and 0 < lost.max() < 0.05
