"""The signals of a catalogue's scores, against sums written out one by one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from toolscout.encoders import encode_tools
from toolscout.encoders.static import StaticEncoder
from toolscout.indexes.bm25 import BM25
from toolscout.indexes.exact import Exact
from toolscout.search.abstain.score_features import MIN_DEVIATION, SCORES_READ, ScoreFeatures
from toolscout.testing import toy_tools
from toolscout.types import Tool


def slowly(scores: list[list[float]]) -> list[float]:
    """The numbers of the scores, one by one."""
    found: list[float] = []
    for row in scores:
        best = sorted(row, reverse=True)[:SCORES_READ]
        best += [best[-1]] * (SCORES_READ - len(best))

        def mean(some: list[float]) -> float:
            return sum(some) / len(some)

        def deviation(some: list[float], middle: float) -> float:
            return math.sqrt(sum((each - middle) ** 2 for each in some) / len(some))

        top, middle = best[0], mean(row)
        found += [top, top - best[1], top - mean(best[1:5]), top - mean(best[5:]), mean(best[:10]), top - middle]
        found += [(top - middle) / (deviation(row, middle) + MIN_DEVIATION)]
        found += [(top - mean(best[1:11])) / (deviation(best[1:], mean(best[1:])) + MIN_DEVIATION)]
    for a, b in itertools.permutations(range(len(scores)), 2):
        first = scores[a].index(max(scores[a]))
        found.append(max(scores[b]) - scores[b][first])
    return found


def made(n: int, meanings: int, seed: int) -> tuple[ScoreFeatures, list[str], list[npt.NDArray[np.float32]]]:
    """A catalogue of n tools of random words and vectors of 8 numbers, five queries, and their vectors."""
    rng = np.random.default_rng(seed)
    words = [f"word{chr(97 + number)}" for number in range(12)]
    ids = [f"s/t{number:03}" for number in range(n)]
    tools = [
        Tool(id=each, name=each[2:], description=" ".join(rng.choice(words, 4, replace=False).tolist())) for each in ids
    ]

    def rows(count: int) -> npt.NDArray[np.float32]:
        drawn = rng.normal(size=(count, 8))
        return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), dtype=np.float32)

    indexes = {}
    for number in range(meanings):
        indexes[f"v{number}"] = Exact(8)
        indexes[f"v{number}"].upsert(ids, rows(n))
    texts = [" ".join(rng.choice(words, 2, replace=False).tolist()) for _ in range(5)]
    return ScoreFeatures(BM25.build(tools), indexes), texts, [rows(5) for _ in range(meanings)]


@pytest.mark.parametrize("meanings", [0, 1, 2])
@pytest.mark.parametrize("n", [1, 2, 5, 19, 20, 21, 300])
@pytest.mark.parametrize("hidden", [False, True])
def test_the_numbers_are_those_written_out(meanings: int, n: int, hidden: bool) -> None:
    signals, texts, vectors = made(n, meanings, n * 10 + meanings)
    rng = np.random.default_rng(n)
    masks = [rng.random(n) < 0.6 if hidden else np.ones(n, dtype=bool) for _ in texts]
    for mask in masks:
        mask[rng.integers(n)] = True
    rows = signals.rows(texts, vectors, masks if hidden else None)
    for number, (text, mask) in enumerate(zip(texts, masks, strict=True)):
        points = signals.words.scores(text)[mask].astype(float)
        mass, known = signals.words.mass(text)
        table = [points / max(mass, MIN_DEVIATION)]
        for index, each in zip(signals.meanings.values(), vectors, strict=True):
            table.append((index.vectors @ each[number])[mask].astype(float))
        expected = [*slowly([row.tolist() for row in table]), points.max(), known, math.log(1 + mask.sum())]
        assert rows[number] == pytest.approx(expected, abs=2e-5, rel=2e-5)


def test_alone_in_a_batch_and_after_a_search_a_large_catalogue_gives_the_same_row() -> None:
    signals, texts, vectors = made(300, 2, 7)
    together = signals.rows(texts, vectors)
    for _ in range(2):
        alone = [signals.rows([text], [each[n : n + 1] for each in vectors])[0] for n, text in enumerate(texts)]
        assert np.array_equal(together, alone)
        signals, texts, vectors = made(300, 2, 7)  # as it was, nothing kept
        for index, each in zip(signals.meanings.values(), vectors, strict=True):
            index.search(each, 100)
    index, row = signals.meanings["v0"], vectors[0][:1]
    index.upsert(["s/t000"], row)
    assert index.spreads(row, SCORES_READ)[0].first == 0 and index.spreads(row, SCORES_READ)[0].best[
        0
    ] == pytest.approx(1.0)


def test_equal_scores_and_a_single_tool_give_finite_numbers() -> None:
    index = Exact(2)
    index.upsert([f"s/t{n:02}" for n in range(40)], np.tile(np.array([[1.0, 0.0]], dtype=np.float32), (40, 1)))
    tools = [Tool(id=each, name="rain", description="Rain.") for each in index.ids]
    query = np.array([[0.6, 0.8]], dtype=np.float32)
    [row] = ScoreFeatures(BM25.build(tools), {"static": index}).rows(["rain"], [query])
    assert np.isfinite(row).all()
    index.delete(index.ids[1:])
    signals = ScoreFeatures(BM25.build(tools[:1]), {"static": index})
    alone = dict(zip(signals.names, signals.rows(["rain"], [query])[0].tolist(), strict=True))
    assert alone["static.top"] == pytest.approx(0.6) and alone["static.second"] == alone["words>static"] == 0.0


@pytest.fixture(scope="module")
def encoder() -> StaticEncoder:
    return StaticEncoder()


def put(tools: list[Tool], encoder: StaticEncoder) -> ScoreFeatures:
    ordered = sorted(tools, key=lambda tool: tool.id)
    index = Exact(encoder.dim)
    index.upsert([tool.id for tool in ordered], encode_tools(lambda texts: encoder.encode(texts, "tool"), ordered))
    return ScoreFeatures(BM25.build(ordered), {"static": index})


def test_a_row_is_what_the_indexes_say(encoder: StaticEncoder) -> None:
    signals = put(toy_tools(), encoder)
    text = "send a message about the forecast of zorbs"
    vectors = encoder.encode([text])
    [row] = signals.rows([text], [vectors])
    said = dict(zip(signals.names, row.tolist(), strict=True))
    points = signals.words.scores(text).astype(float)
    cosines = signals.meanings["static"].vectors @ vectors[0]
    most, known = signals.words.mass(text)
    assert said["points"] == pytest.approx(points.max()) and said["size"] == pytest.approx(math.log(11))
    assert said["words.top"] == pytest.approx(points.max() / most) and 0 < said["words.top"] < 1
    assert said["static.top"] == pytest.approx(cosines.max())
    assert said["words>static"] == pytest.approx(cosines.max() - cosines[points.argmax()])
    assert said["known"] == known == pytest.approx(3 / 4)  # send, message, forecast; not zorbs


def test_no_tool_scores_more_than_the_mass_of_the_query(encoder: StaticEncoder) -> None:
    words = put(toy_tools(), encoder).words
    for text in ("rain", "copy a file to another folder", "book a flight, find a hotel, send an email", "天气预报"):
        assert 0 < words.scores(text).max() < words.mass(text)[0]
    assert words.mass("") == (0.0, 0.0)
    assert words.mass("zorbs")[1] == 0.0


def test_hidden_tools_do_not_count(encoder: StaticEncoder) -> None:
    signals, text = put(toy_tools(), encoder), "weather forecast"
    vectors = encoder.encode([text])
    mask = np.array([tool_id.startswith("files/") for tool_id in signals.words.ids])
    [some] = signals.rows([text], [vectors], [mask])
    said: dict[str, Any] = dict(zip(signals.names, some.tolist(), strict=True))
    assert said["points"] == 0.0 and said["size"] == pytest.approx(math.log(3))
    [none] = signals.rows([text], [vectors], [np.zeros(10, dtype=bool)])
    assert not none.any()
    assert signals.rows([], [vectors[:0]]).shape == (0, len(signals.names))


def test_alone_and_in_a_batch_a_query_has_the_same_row(encoder: StaticEncoder) -> None:
    signals = put(toy_tools(), encoder)
    texts = ["will it rain", "copy a file", "", "tell me a joke about cats and dogs"]
    together = signals.rows(texts, [encoder.encode(texts)])
    alone = np.concatenate([signals.rows([text], [encoder.encode([text])]) for text in texts])
    assert np.array_equal(together, alone)
