"""Searching parts of the lists of common words gives the answer of a full scan, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from toolscout.indexes import large
from toolscout.indexes.bm25 import BM25, CODE_SETTINGS, PLAIN_SETTINGS, BM25Settings
from toolscout.search import everyday
from toolscout.search.everyday import ExpandedWords, Thesaurus
from toolscout.types import Tool

pruned_words = pytest.importorskip("toolscout_scale.pruned_words")

WORDS = [f"w{letter}{other}" for letter in "bcdfghjklmnp" for other in "aeiou"]
N_TOOLS = 3_000


def make_tools(n: int = N_TOOLS, seed: int = 0) -> list[Tool]:
    """Tools with words of very different frequency, in runs that share words as servers do."""
    draw = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, len(WORDS) + 1)
    tools = []
    for number in range(n):
        words = draw.choice(WORDS, size=draw.integers(1, 25), p=frequency / frequency.sum())
        topic = WORDS[number * len(WORDS) // n]
        tools.append(Tool(id=f"s/{number:05}", name=f"{words[0]} {topic}", description=" ".join(words)))
    return tools


@pytest.fixture(scope="module", params=[CODE_SETTINGS, PLAIN_SETTINGS], ids=["code", "plain"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[BM25, BM25]]:
    """An index that always scans, and one that prunes where it can."""
    settings: BM25Settings = request.param
    tools = make_tools()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MIN_LONG_LIST": 256, "FIRST_LOOK": 64, "MAX_PRUNED_SHARE": 0.9}.items():
            patch.setattr(pruned_words, name, value)
        patch.setattr(pruned_words.PrunedWords, "min_postings", 0)
        whole = BM25.build_batches([tools], settings)
        with pytest.MonkeyPatch.context() as small:
            small.setattr(large, "MIN_LARGE_TOOLS", 1)
            pruned = BM25.build_batches([tools], settings)
        assert "impact_terms" in pruned.arrays() and "impact_terms" not in whole.arrays()
        yield whole, pruned


def draw_queries(seed: int, n: int = 25) -> list[str]:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 9, n)
    queries = [" ".join(draw.choice(WORDS[: draw.integers(1, len(WORDS))], size)) for size in sizes]
    return [*queries, "nothing of this", "", f"{WORDS[0]} {WORDS[0]} {WORDS[1]}"]


@pytest.mark.parametrize("k", [1, 10, 100, N_TOOLS])
def test_the_best_tools_and_their_scores_are_those_of_a_full_scan(pair: tuple[BM25, BM25], k: int) -> None:
    whole, pruned = pair
    queries = draw_queries(k)
    for (ids, scores), (others, values) in zip(
        zip(*whole.search(queries, k), strict=True), zip(*pruned.search(queries, k), strict=True), strict=True
    ):
        assert ids == others
        assert scores.tolist() == values.tolist()


def test_added_words_keep_the_answer_of_a_full_scan(pair: tuple[BM25, BM25], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everyday, "is_foreign", lambda *_: False)  # these words are of no language
    lines = [f"umbrella\t{WORDS[0]} {WORDS[30]}", f"jacket\t{WORDS[2]} {WORDS[50]} {WORDS[1]}"]
    whole = ExpandedWords(pair[0], lambda: Thesaurus(lines), 0.3)
    monkeypatch.setattr(large, "MIN_LARGE_TOOLS", 1)
    pruned = ExpandedWords(pair[1], lambda: Thesaurus(lines), 0.3)
    queries = [f"{extra} {query}" for query in draw_queries(3, 10) for extra in ("umbrella", "umbrella jacket")]
    assert sum(part.weight == 0.3 for query in queries for part in pruned._look_up_terms(query)[1].values()) > len(
        queries
    )
    for query in queries:
        ids, [scores] = pruned.search([query], 10)
        wanted_ids, [wanted] = whole.search([query], 10)
        assert (ids, scores.tolist()) == (wanted_ids, wanted.tolist())


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_a_mask_gets_the_best_visible_tools(pair: tuple[BM25, BM25], share: float) -> None:
    whole, pruned = pair
    mask = np.random.default_rng(5).random(N_TOOLS) < share
    for query in draw_queries(2, 30):
        assert whole.search([query], 50, mask)[0] == pruned.search([query], 50, mask)[0]


def test_common_words_are_read_in_part(pair: tuple[BM25, BM25], monkeypatch: pytest.MonkeyPatch) -> None:
    pruned = pair[1]
    query = f"{WORDS[0]} {WORDS[40]} {WORDS[1]}"
    scored: list[int] = []
    score = pruned_words._score_positions

    def count(positions: np.ndarray, *arguments: object) -> np.ndarray:
        scored.append(len(positions))
        return score(positions, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pruned_words, "_score_positions", count)
    assert len(pruned.search([query], 10)[0][0]) == 10
    assert 0 < sum(scored) < N_TOOLS / 2


def test_single_tools_have_the_scores_of_the_search(pair: tuple[BM25, BM25]) -> None:
    whole, pruned = pair
    positions = [17, 3, N_TOOLS - 1, 3]
    for query in draw_queries(9, 10):
        assert whole.at(query, positions).tolist() == pruned.at(query, positions).tolist()


def test_the_distribution_of_scores_is_estimated_from_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruned_words, "SAMPLED_TOOLS", 2_000)
    tools = make_tools(6_000, 4)
    tools = [Tool(id=f"s/{number:06}", name=tool.name, description=tool.description)
             for number, tool in enumerate(tools)]  # fmt: skip
    whole = BM25.build_batches([tools])
    monkeypatch.setattr(large, "MIN_LARGE_TOOLS", 1)
    pruned = BM25.build_batches([tools])
    mask = np.random.default_rng(1).random(len(tools)) < 0.5
    queries = draw_queries(3, 12)[:-2]
    for visible, tolerance in ((None, 1e-4), (mask, 0.15)):
        masks = None if visible is None else [visible] * len(queries)
        for exact, estimated in zip(whole.spreads(queries, 20, masks), pruned.spreads(queries, 20, masks), strict=True):
            assert exact.best.tolist() == estimated.best.tolist()
            assert exact.first == estimated.first
            assert estimated.mean == pytest.approx(exact.mean, rel=tolerance, abs=1e-3)
            assert estimated.deviation == pytest.approx(exact.deviation, rel=0.15, abs=1e-3)


def test_batches_make_the_index_of_all_tools_at_once() -> None:
    tools = make_tools(500)
    at_once = BM25.build(tools)
    batched = BM25.build_batches([tools[:7], [], tools[7:450], tools[450:]])
    assert at_once.ids == batched.ids
    for name, array in at_once.arrays().items():
        assert np.array_equal(array, batched.arrays()[name]), name
