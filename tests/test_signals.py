"""The signals of a catalogue's scores, against sums written out one by one."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from toolscout.encoders import encode_tools
from toolscout.encoders.static import StaticEncoder
from toolscout.indexes.exact import Exact
from toolscout.indexes.sparse import BM25
from toolscout.signals import DEPTH, LEAST, Signals, names, of_scores
from toolscout.testing import toy_tools
from toolscout.types import Tool


def slowly(scores: list[list[float]]) -> list[float]:
    """`of_scores`, number by number."""
    found: list[float] = []
    for row in scores:
        best = sorted(row, reverse=True)[:DEPTH]
        best += [best[-1]] * (DEPTH - len(best))

        def mean(some: list[float]) -> float:
            return sum(some) / len(some)

        def deviation(some: list[float], middle: float) -> float:
            return math.sqrt(sum((each - middle) ** 2 for each in some) / len(some))

        top, middle = best[0], mean(row)
        found += [top, top - best[1], top - mean(best[1:5]), top - mean(best[5:]), mean(best[:10]), top - middle]
        found += [(top - middle) / (deviation(row, middle) + LEAST)]
        found += [(top - mean(best[1:11])) / (deviation(best[1:], mean(best[1:])) + LEAST)]
    for a, b in itertools.permutations(range(len(scores)), 2):
        first = scores[a].index(max(scores[a]))
        found.append(max(scores[b]) - scores[b][first])
    return found


@pytest.mark.parametrize("views", [1, 2, 3])
@pytest.mark.parametrize("n", [1, 2, 5, 19, 20, 21, 300])
def test_the_numbers_of_the_scores_are_those_written_out(views: int, n: int) -> None:
    scores = np.random.default_rng(n * 10 + views).normal(size=(views, n))
    assert of_scores(scores) == pytest.approx(slowly(scores.tolist()), abs=1e-9, rel=1e-9)


def test_equal_scores_and_a_single_tool_give_finite_numbers() -> None:
    assert np.isfinite(of_scores(np.full((2, 40), 0.5))).all()
    alone = dict(zip(names(("words", "static")), of_scores(np.array([[0.3], [0.7]])), strict=False))
    assert (alone["static.top"], alone["static.second"], alone["words>static"]) == (0.7, 0.0, 0.0)


@pytest.fixture(scope="module")
def encoder() -> StaticEncoder:
    return StaticEncoder()


def put(tools: list[Tool], encoder: StaticEncoder) -> Signals:
    ordered = sorted(tools, key=lambda tool: tool.id)
    index = Exact(encoder.dim)
    index.upsert([tool.id for tool in ordered], encode_tools(lambda texts: encoder.encode(texts, "tool"), ordered))
    return Signals(BM25.build(ordered), {"static": index})


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
