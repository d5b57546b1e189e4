from __future__ import annotations

import pytest

from toolscout.encoders.static import load_static
from toolscout.search.fusion import FOREIGN_WEIGHT, WEIGHT, words_and_meaning, words_and_meaning_by_language
from toolscout.types import Search

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


@pytest.mark.parametrize(
    ("query", "weight"), [("wie wird das Wetter morgen?", FOREIGN_WEIGHT), ("what is the weather tomorrow?", WEIGHT)]
)
def test_meaning_weighs_more_in_other_languages_than_english(query: str, weight: float) -> None:
    rankings = [[("a", 3.0)], [("b", 0.8), ("c", 0.6)]]
    scores = words_and_meaning_by_language(rankings, Search(query=query), is_word=load_static().pieces.is_word)
    assert scores == pytest.approx({"a": 3.0, "b": weight, "c": 0.0})
