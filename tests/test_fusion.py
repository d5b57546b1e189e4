from __future__ import annotations

import numpy as np
import pytest

from toolscout.encoders import get_short_weight, unit_rows
from toolscout.encoders.onnx import CompactEncoder, OnnxEncoder
from toolscout.encoders.static import load_static
from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.exact import Exact, StandardScores
from toolscout.rankers.shared.usage import HybridScorer
from toolscout.recipes.registry import build
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import WEIGHT, add_standard_scores, words_and_meaning
from toolscout.testing import HashEncoder
from toolscout.types import Search, Tool

SEARCH = Search(query="any")


def ranked(scores: dict[str, float]) -> list[str]:
    return sorted(scores, key=lambda tool_id: (-scores[tool_id], tool_id))


def test_the_best_by_meaning_gains_the_weight_and_the_last_gains_nothing() -> None:
    scores = words_and_meaning([[("a", 3.0)], [("b", 0.8), ("c", 0.6), ("d", 0.4)]], SEARCH)
    assert scores == pytest.approx({"a": 3.0, "b": WEIGHT, "c": WEIGHT / 2, "d": 0.0})


def test_a_tool_in_both_rankings_gets_the_sum() -> None:
    scores = words_and_meaning([[("a", 3.0), ("b", 2.0)], [("b", 0.9), ("a", 0.1)]], SEARCH)
    assert scores == pytest.approx({"a": 3.0, "b": 2.0 + WEIGHT})


def test_much_evidence_in_words_outweighs_meaning_and_little_does_not() -> None:
    meaning = [("other", 0.9), ("match", 0.2), ("last", 0.1)]
    assert ranked(words_and_meaning([[("match", 12.0), ("other", 1.0)], meaning], SEARCH))[0] == "match"
    assert ranked(words_and_meaning([[("match", 2.0), ("other", 1.0)], meaning], SEARCH))[0] == "other"


@pytest.mark.parametrize(("points", "first"), [(4.9, "meant"), (5.1, "said")])
def test_the_nearest_by_meaning_is_worth_five_points_of_words(points: float, first: str) -> None:
    assert ranked(words_and_meaning([[("said", points)], [("meant", 0.4), ("last", 0.2)]], SEARCH))[0] == first


def test_only_the_spacing_of_the_cosines_counts() -> None:
    words = [("a", 1.0), ("b", 0.5)]
    wide = words_and_meaning([words, [("b", 0.9), ("a", 0.5), ("c", 0.1)]], SEARCH)
    narrow = words_and_meaning([words, [("b", 0.89), ("a", 0.85), ("c", 0.81)]], SEARCH)
    assert wide == pytest.approx(narrow)


@pytest.mark.parametrize("meaning", [[], [("b", 0.7)], [("a", 0.7), ("b", 0.7)]])
def test_without_a_spread_of_meaning_the_words_decide(meaning: list[tuple[str, float]]) -> None:
    assert ranked(words_and_meaning([[("a", 3.0), ("b", 2.0)], meaning], SEARCH))[:2] == ["a", "b"]


def test_without_words_meaning_alone_decides() -> None:
    assert ranked(words_and_meaning([[], [("b", 0.8), ("a", 0.4)]], SEARCH)) == ["b", "a"]


# --- standard scores --------------------------------------------------------------------------------------------------


def test_standard_scores_are_added_and_those_below_the_average_are_not() -> None:
    rankings = [[("a", 3.0), ("b", 1.0)], [("b", 4.0), ("c", 2.0), ("a", -1.0)]]
    scores = add_standard_scores(rankings, SEARCH, short_weight=0.5)
    assert scores == pytest.approx({"a": 3.0, "b": 3.0, "c": 1.0})


@pytest.mark.parametrize(("words", "weight"), [(1, 2.0), (15, 2.0), (16, 1.0), (400, 1.0)])
def test_the_encoders_weight_counts_in_short_requests_only(words: int, weight: float) -> None:
    search = Search(query=" ".join(["word"] * words))
    scores = add_standard_scores([[("said", 3.0)], [("meant", 2.0)]], search, short_weight=2.0)
    assert scores == pytest.approx({"said": 3.0, "meant": 2.0 * weight})


def test_hybrid_takes_the_weight_that_the_encoder_declares() -> None:
    catalogue = Catalogue.of(
        [Tool(id="t/other", name="other", description="sunny"), Tool(id="t/rain", name="rain", description="drums")]
    )
    gains = []
    for weight in (1.0, 3.0):
        encoder = HashEncoder()
        encoder.short_weight = weight  # type: ignore[attr-defined]
        points = []
        for recipe in ("bm25", "hybrid"):
            [answer] = build(recipe, catalogue, HomeResources(encoder))([Search(query="rain", k=5)])
            points += [hit.score for hit in answer.hits if hit.id == "t/rain"]
        gains.append(points[1] - points[0])
    assert gains[1] == pytest.approx(3 * gains[0])
    assert gains[0] > 0


@pytest.mark.parametrize("text", ["rain", " ".join(["rain"] * 16)])
def test_a_fitted_method_scores_descriptions_as_hybrid_does(text: str) -> None:
    catalogue = Catalogue.of(
        [Tool(id="t/other", name="other", description="sunny"), Tool(id="t/rain", name="rain", description="drums")]
    )
    encoder = HashEncoder()
    encoder.short_weight = 3.0  # type: ignore[attr-defined]
    resources = HomeResources(encoder)
    scorer = HybridScorer.of(resources, catalogue, encoder)
    [answer] = build("hybrid", catalogue, resources)([Search(query=text, k=5)])
    [score] = [hit.score for hit in answer.hits if hit.id == "t/rain"]
    assert scorer.scores(text, scorer.encode([text])[0])[1] == pytest.approx(score)


def test_a_transformer_has_more_weight_in_short_requests_than_the_bundled_table() -> None:
    assert get_short_weight(load_static()) == 1.0
    assert CompactEncoder.short_weight == OnnxEncoder.short_weight > 1.0


def test_standard_scores_follow_from_all_cosines_of_the_catalogue() -> None:
    draw = np.random.default_rng(3)
    index = Exact(6)
    index.upsert([f"t{number:02}" for number in range(40)], unit_rows(draw.normal(size=(40, 6))))
    queries = unit_rows(draw.normal(size=(2, 6)))
    ids, scores = StandardScores(index, index).search(queries, 5)
    cosines = queries @ index.vectors.T
    standard = (cosines - cosines.mean(axis=1, keepdims=True)) / cosines.std(axis=1, keepdims=True)
    for row, found, values in zip(standard, ids, scores, strict=True):
        nearest = np.argsort(-row)[:5]
        assert found == [index.ids[place] for place in nearest]
        assert values == pytest.approx(row[nearest], abs=1e-4)
    explanation = StandardScores(index, index).explain(queries[0], ids[0][2])
    assert (explanation.rank, explanation.score) == (3, pytest.approx(float(scores[0][2])))


def test_visible_tools_keep_the_scores_that_they_have_among_all() -> None:
    index = Exact(3)
    index.upsert(["a", "b", "c"], unit_rows(np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1]], dtype=np.float32)))
    query = unit_rows(np.array([[1.0, 0.2, 0.0]]))
    _, [everything] = StandardScores(index, index).search(query, 3)
    [found], [visible] = StandardScores(index, index).search(query, 3, np.array([False, True, True]))
    assert found == ["b", "c"] and visible.tolist() == everything[1:].tolist()


def test_equal_cosines_give_standard_scores_of_zero() -> None:
    index = Exact(2)
    index.upsert(["a", "b"], np.array([[1, 0], [1, 0]], dtype=np.float32))
    _, [scores] = StandardScores(index, index).search(np.array([[0.6, 0.8]], dtype=np.float32), 2)
    assert scores.tolist() == [0.0, 0.0]
