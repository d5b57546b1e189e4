"""How settings of a mixture are chosen: with tools hidden from training, and prerequisites as a search has them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lessons
from toolscout.home.catalogue.store import Catalogue
from toolscout.learn.fit import Lesson, fit
from toolscout.rankers.shared import hidden_tools
from toolscout.rankers.shared.dev_choice import DevQueries, rank_by_score, rank_with_prerequisites
from toolscout.rankers.shared.hidden_tools import expect_new_tools, hide_tools, make_trial
from toolscout.rankers.shared.mixture import Part
from toolscout.rankers.shared.usage import HybridScorer
from toolscout.rankers.shared.usage_fit import Estimate, FitData, UsageMethod
from toolscout.recipes import registry
from toolscout.search.home_resources import HomeResources
from toolscout.search.prerequisites import Prerequisites
from toolscout.search.relations.dependencies import Need
from toolscout.testing import HashEncoder
from toolscout.types import Tool

WORDS = ("umbrella", "bed", "flight", "letter", "song", "copy", "recipe", "loan", "taxi", "poem", "chess", "garden")


@pytest.fixture
def requests() -> Lesson:
    """Twelve tools, and for each ten requests whose words its description lacks; a fifth of them is dev."""
    tools = [Tool(id=f"a/t{n:02}", name=f"t{n:02}", description=f"Serves purpose {n}.") for n in range(len(WORDS))]
    texts = {f"{n}-{i}": f"{word} please {i}" for n, word in enumerate(WORDS) for i in range(10)}
    gold = {query: {tools[int(query.partition("-")[0])].id: 1.0} for query in texts}
    dev = {query: gold[query] for query in gold if query[-1] in "89"}
    return Lesson("requests", tools, texts, {query: gold[query] for query in gold if query not in dev}, dev)


def add_unused(lesson: Lesson, count: int) -> Lesson:
    """The same lesson with tools that no request needs."""
    unused = [Tool(id=f"z/t{n:02}", name=f"t{n:02}", description=f"Sharpens pencil {n}.") for n in range(count)]
    return dataclasses.replace(lesson, tools=[*lesson.tools, *unused])


def read(lesson: Lesson) -> FitData:
    options, _ = registry.resolve("scout-light", {})
    return FitData(HomeResources(HashEncoder()), lesson, options, HashEncoder(), HybridScorer)


def score(data: FitData) -> Any:
    return np.zeros((len(data.dev), len(data.lesson.tools)))


def test_no_training_query_needs_a_hidden_tool_and_all_dev_queries_do(requests: Lesson) -> None:
    data = read(requests)
    found = hide_tools(data, score)
    assert found is not None and found.hidden.any()
    train, dev = found.data.gold[: found.data.n_train], found.data.gold[found.data.n_train :]
    assert not any(found.hidden[gold].any() for gold in train)
    assert all(found.hidden[gold].any() for gold in dev)
    assert len(train) >= (1 - hidden_tools.MAX_HIDDEN_SHARE) * data.n_train
    assert found.data.uses(found.data.n_train)[found.hidden].sum() == 0
    assert [found.data.texts[i] for i in found.data.dev] == [
        text for text, gold in zip(data.texts, data.gold, strict=True) if found.hidden[gold].any()
    ]
    assert found.data.dev_gold.sum(axis=1).tolist() == [len(gold) for gold in dev]


def test_a_part_says_nothing_of_hidden_tools_that_it_knows_from_before(requests: Lesson) -> None:
    found = hide_tools(read(requests), score)
    assert found is not None
    fit_of_two = found._replace(hidden=np.array([True, False, False]))
    cleared = fit_of_two.clear(np.array([[0.6, 0.3, 0.1], [1.0, 0.0, 0.0]]))
    assert cleared == pytest.approx(np.array([[0.0, 0.75, 0.25], [0.0, 0.0, 0.0]]))


def test_a_stand_in_speaks_for_a_part_that_was_tuned_before(requests: Lesson) -> None:
    data = read(add_unused(requests, 3))
    asked: list[str] = []

    class Constant(UsageMethod):
        def __init__(self, name: str, level: float) -> None:
            self.name, self.level = name, level

        def estimate(self, data: FitData) -> Estimate:
            asked.append(self.name)
            dev = np.full((len(data.dev), len(data.lesson.tools)), self.level)
            dev[:, 0] *= 2
            return Estimate(dev=dev, usage=lambda text, row: dev[0], chosen={}, finish=dict)

    encoder = HashEncoder()
    light = Part(Constant("light", 1.0), encoder)
    tuned = Part(Constant("tuned", 2.0), encoder, stand_ins=("absent", "light"))
    parts = {"light": light, "tuned": tuned}
    estimates = {name: part.estimate(data) for name, part in parts.items()}
    trial, usages = make_trial(data, parts, estimates, {}, score, rank_by_score)
    assert asked == ["light", "tuned", "light"]
    real, count = len(data.dev), len(trial.gold)
    assert count > real
    assert (usages["tuned"][:real] == estimates["tuned"].dev).all()
    assert (usages["tuned"][real:] == usages["light"][real:]).all()


def test_requests_for_new_tools_count_as_the_catalogue_suggests(requests: Lesson) -> None:
    data = read(requests)
    assert expect_new_tools(data) == 0.0
    pairs = {query: {**gold, "a/t00": 1.0, "a/t01": 1.0} for query, gold in requests.train.items() if query[0] != "0"}
    [mean] = {sum(map(len, pairs.values())) / len(pairs)}
    data = read(dataclasses.replace(add_unused(requests, 12), train=pairs))
    share = expect_new_tools(data)
    assert share == pytest.approx(1 - 0.75**mean)
    data = read(add_unused(requests, 12))
    share = expect_new_tools(data)
    assert share == pytest.approx(0.25)
    found = hide_tools(data, score)
    assert found is not None
    queries = found.join(data, share, rank_by_score)
    assert queries.weights.sum() == pytest.approx(1.0)
    assert queries.weights[queries.needs_new].sum() == pytest.approx(share)
    assert queries.needs_new.tolist() == list(range(len(data.dev), len(data.dev) + len(found.data.dev)))


def test_what_new_tools_lose_against_the_description_counts_in_full() -> None:
    gold = np.array([[True, False], [False, True]])
    description = np.array([[0.0, 1.0], [0.0, 1.0]])
    queries = DevQueries(description, gold, np.array([1.0, 0.0]), np.array([0.9, 0.1]))
    as_usage = np.array([[1.0, 0.0], [1.0, 0.0]])
    first, second = queries.measure(as_usage)
    assert (first, second) == pytest.approx((1.0, (1 / np.log2(3) + 1) / 2))
    judged = queries.mark_new(np.array([False, True]))
    assert queries.quality(as_usage) == pytest.approx(0.9 + 0.1 * second)
    assert judged.quality(as_usage) == pytest.approx(0.9 + 0.1 * second - (1 - second))
    assert judged.quality(description) == pytest.approx(queries.quality(description))


def test_prerequisites_are_brought_before_dev_is_measured() -> None:
    tools = [Tool(id=f"s/t{n}", name=f"t{n}", description=f"Does {n}.") for n in range(9)]
    catalogue = Catalogue.of(tools)
    stage = Prerequisites(catalogue, {"s/t0": [Need("declared", {"s/t8": 1.0})]}, budget=3)
    scores = np.arange(9.0, 0.0, -1.0)[None]
    assert rank_by_score(scores).tolist() == [[0, 1, 2, 3, 4]]
    assert rank_with_prerequisites(catalogue, stage)(scores).tolist() == [[0, 8, 1, 2, 3]]


def test_a_fit_chooses_the_weight_of_new_tools_where_tools_have_no_usage(requests: Lesson, tmp_path: Path) -> None:
    plain = fit(lessons.plan("scout-light", requests, tmp_path / "plain", encoder=HashEncoder()))
    assert plain.manifest.settings["novelty"].value == 1.0
    said: list[str] = []
    lesson = add_unused(requests, 3)
    fitted = fit(lessons.plan("scout-light", lesson, tmp_path / "new", encoder=HashEncoder(), say=said.append))
    assert any(line.startswith("learning without ") for line in said)
    assert fitted.manifest.settings["novelty"].value in (1.0, 1.5, 2.0)
    assert fitted.manifest.settings["novelty"].origin == "dev"
