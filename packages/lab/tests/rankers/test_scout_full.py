"""scout-full: scout-light with tuned encoders in the same mixture."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lessons

torch = pytest.importorskip("torch")

from toolscout.errors import ConfigError  # noqa: E402
from toolscout.home.catalogue.store import Catalogue  # noqa: E402
from toolscout.home.journal.evidence import Example  # noqa: E402
from toolscout.home.models import model_store  # noqa: E402
from toolscout.home.models.model_store import Model  # noqa: E402
from toolscout.learn.fit import Lesson, fit  # noqa: E402
from toolscout.rankers.shared.usage import HybridScorer  # noqa: E402
from toolscout.rankers.shared.usage_fit import FitData  # noqa: E402
from toolscout.recipes import registry  # noqa: E402
from toolscout.search.home_resources import HomeResources  # noqa: E402
from toolscout.search.pipeline import Stage  # noqa: E402
from toolscout.testing import HashEncoder, check_stage  # noqa: E402
from toolscout.types import Search, Tool  # noqa: E402
from toolscout_lab.encoders.transformer import TransformerEncoder  # noqa: E402
from toolscout_lab.rankers.mlc import load_classifier  # noqa: E402
from toolscout_lab.rankers.scout_full import _choose_tuned_weight  # noqa: E402

QUICK = {
    "base.epochs": 12,
    "base.batch": 16,
    "base.rate": 0.01,
    "base.precision": "float32",
    "base.threads": 1,
    **{f"base.{name}": value for name, value in lessons.QUICK_BASE.items()},
}
CLASSIFIER = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
PARTS = ("neighbours", "mlc-light", "tool2vec", "mlc", "near", "dpr")


def fitted(slang: Lesson, bert: str, home: Path, name: str, **changes: Any) -> Model:
    from toolscout.settings import Settings

    settings = {"encoder": TransformerEncoder(bert), "settings": Settings(home=home)}
    return fit(lessons.plan("scout-full", slang, home / name, changes={**QUICK, **changes}, **settings))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the encoders are tuned once, for all tests."""
    return tmp_path_factory.mktemp("home")


def build(model: Model, bert: str, tools: Any, **workspace: Any) -> Stage:
    surroundings = HomeResources(TransformerEncoder(bert), **workspace)
    return registry.build("scout-full", Catalogue.of(tools), surroundings, model=model.folder)


def complete(slang: Any, stage: Stage) -> float:
    texts = slang.dataset.texts("test")
    gold = {query: {f"d/{tool}" for tool in tools} for query, tools in slang.dataset.split("test").items()}
    answers = stage([Search(query=text, k=2) for text in texts.values()])
    return sum(gold[query] <= set(hits.ids[:2]) for query, hits in zip(texts, answers, strict=True)) / len(texts)


def test_dev_weighs_the_tuned_parts_beside_those_of_scout_light(slang: Lesson, bert: str, home: Path) -> None:
    model = fitted(slang, bert, home, "chosen")
    shares = dict(zip(PARTS, model.manifest.settings["shares"].value, strict=True))
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-3)
    assert model.manifest.settings["shares"].origin == "dev"
    tuned = model_store.read_manifest(model.folder / "base"), model_store.read_manifest(model.folder / "base" / "base")
    assert model.manifest.fit_seconds > sum(manifest.fit_seconds for manifest in tuned) > 0
    saved = {name.partition(".")[0] for name in model.arrays} - {"uses"}
    assert saved == {name for name, share in shares.items() if share and name != "mlc"}
    stage = build(model, bert, slang.tools)
    assert complete(slang, stage) >= 0.75
    check_stage(stage, [Search(query=text) for text in list(slang.dataset.texts("test").values())[:4]])


def test_the_classifier_speaks_from_the_encoder_that_it_tuned(slang: Lesson, bert: str, home: Path) -> None:
    changes = {"shares": CLASSIFIER, "steps": False, "agreement": 0.0, "kappa": 0.0}
    model = fitted(slang, bert, home, "classifier", **changes)
    stage = build(model, bert, slang.tools)
    classify, tuned = load_classifier(model_store.load(model.folder / "base")), model.folder / "base" / "encoder"
    texts = list(slang.dataset.texts("test").values())
    best = [
        slang.tools[int(classify(text, row).argmax())].id
        for text, row in zip(texts, TransformerEncoder(str(tuned)).encode(texts), strict=True)
    ]
    assert [answer.ids[0] for answer in stage([Search(query=text, k=3) for text in texts])] == best


def test_a_tool_without_usage_keeps_the_score_of_hybrid(slang: Lesson, bert: str, home: Path) -> None:
    fixed = {"steps": False, "sharpness": 0.7, "agreement": 0.25, "tuned_weight": 0.0}
    model = fitted(slang, bert, home, "new", **fixed)
    tools = [*slang.tools, *(Tool(id=f"new/t{n}", name=f"t{n}", description=f"Sharpens pencil {n}") for n in range(9))]
    request = Search(query="sharpens pencil 3", k=15)
    [learned] = build(model, bert, tools)([request])
    [plain] = registry.build("hybrid", Catalogue.of(tools), HomeResources(TransformerEncoder(bert)))([request])
    expected = {hit.id: hit.score for hit in plain.hits}
    scores = {hit.id: hit.score for hit in learned.hits if hit.id.startswith("new/")}
    assert len(scores) == 9
    assert scores == pytest.approx({tool: expected[tool] for tool in scores}, abs=1e-3)


@pytest.mark.parametrize("part", ["neighbours", "near"])
def test_new_usage_counts_at_once(part: str, slang: Lesson, bert: str, home: Path) -> None:
    shares = tuple(float(name == part) for name in PARTS)
    model = fitted(slang, bert, home, f"live-{part}", shares=shares, steps=False, kappa=0.0, k=3, near_k=3)
    examples: list[Example] = []
    stage = build(model, bert, slang.tools, live=lambda: (len(examples), examples))
    request = Search(query="karaoke tonight", k=6)
    assert stage([request])[0].ids[0] != "d/music/play"
    used = {"d/music/play": 1.0}
    examples.extend(Example(query="karaoke tonight", tools=used, caller="c", row=n, at="") for n in range(3))
    assert stage([request])[0].ids[0] == "d/music/play"


def test_descriptions_take_the_tuned_encoder_only_where_requests_for_new_tools_gain(slang: Lesson) -> None:
    options, _ = registry.resolve("scout-full", {})
    encoder = HashEncoder()
    data = FitData(HomeResources(encoder), slang, options, encoder, HybridScorer)
    ideal = np.zeros_like(data.description_scores)
    for row, place in zip(ideal, data.dev, strict=True):
        row[data.gold[place]] = 100.0
    assert _choose_tuned_weight(data, ideal) == 0.0  # no request of dev needs a new tool
    old = dict(list(slang.train.items())[:1])
    unseen = dataclasses.replace(slang, train=old)
    data = FitData(HomeResources(encoder), unseen, options, encoder, HybridScorer)
    ideal = np.zeros_like(data.description_scores)
    for row, place in zip(ideal, data.dev, strict=True):
        row[data.gold[place]] = 100.0
    assert _choose_tuned_weight(data, ideal) > 0
    assert _choose_tuned_weight(data, -ideal) == 0.0


def test_descriptions_take_the_tuned_encoder_where_tools_have_no_usage_and_dev_cannot_say(
    slang: Lesson, bert: str, home: Path
) -> None:
    used = {tool for gold in slang.train.values() for tool in gold}
    lesson = dataclasses.replace(slang, tools=[tool for tool in slang.tools if tool.id in used])
    assert _read(fitted(lesson, bert, home, "all-used"), "tuned_weight", "novelty") == [0.0, 1.0]
    others = [Tool(id=f"d/unused{n}", name="unused", description="Sharpens pencils") for n in range(20)]
    many = dataclasses.replace(lesson, tools=sorted([*lesson.tools, *others], key=lambda tool: tool.id))
    assert _read(fitted(many, bert, home, "many-unused"), "tuned_weight") == [0.0]
    lesson = dataclasses.replace(lesson, tools=sorted([*lesson.tools, others[0]], key=lambda tool: tool.id))
    assert _read(fitted(lesson, bert, home, "one-unused"), "tuned_weight", "novelty") == [1.0, 0.5]
    assert _read(fitted(lesson, bert, home, "one-novelty", novelty=2.0), "tuned_weight", "novelty") == [1.0, 2.0]
    assert _read(fitted(lesson, bert, home, "one-weight", tuned_weight=0.0), "tuned_weight") == [0.0]


def _read(model: Model, *names: str) -> list[Any]:
    return [model.manifest.settings[name].value for name in names]


def test_it_refuses_a_base_that_tunes_no_encoder(slang: Lesson, bert: str, home: Path) -> None:
    with pytest.raises(ConfigError, match="expected a recipe that tunes a classifier over dpr"):
        fitted(slang, bert, home, "wrong", base="neighbours")
