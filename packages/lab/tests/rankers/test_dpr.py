from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tiny import tiny_bert

torch = pytest.importorskip("torch")

import lessons  # noqa: E402
from toolscout.encoders.static import StaticEncoder  # noqa: E402
from toolscout.errors import ConfigError  # noqa: E402
from toolscout.home.catalogue.store import Catalogue  # noqa: E402
from toolscout.home.models.model_store import load  # noqa: E402
from toolscout.learn.fit import FitJob, fit  # noqa: E402
from toolscout.rankers.lesson import Lesson  # noqa: E402
from toolscout.recipes import registry  # noqa: E402
from toolscout.testing import check_encoder, check_stage, toy_tools  # noqa: E402
from toolscout.types import Search, Tool  # noqa: E402
from toolscout_lab import training  # noqa: E402
from toolscout_lab.encoders.transformer import TransformerEncoder  # noqa: E402
from toolscout_lab.rankers import dpr  # noqa: E402
from toolscout_lab.rankers.shared import novelty  # noqa: E402
from toolscout_lab.training.biencoders import InBatch, Lists, Texts  # noqa: E402
from toolscout_lab.training.towers import Tower  # noqa: E402

ASKED = {
    "weather/get_forecast": ["rain in the city", "weather forecast", "will it rain"],
    "mail/send_email": ["send a message", "mail to a friend", "send mail"],
    "files/copy": ["copy a file", "file to a folder", "copy the folder"],
    "travel/book_flight": ["book a flight", "flight to the city", "book a seat"],
    "travel/find_hotel": ["hotel in the city", "a room for the night", "book a hotel room"],
}
PAIRS = {"book a flight": "travel/find_hotel", "send a message": "files/copy"}
QUICK = {"epochs": 12, "batch": 5, "rate": 0.01, "patience": 12, "precision": "float32", "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert") / "tiny")


def job(folder: Path, out: Path, recipe: str = "dpr", **changes: Any) -> FitJob:
    queries = {text: {tool: 1.0} for tool, texts in ASKED.items() for text in texts}
    for text, tool in PAIRS.items():
        queries[text][tool] = 1.0
    train = {text: gold for number, (text, gold) in enumerate(queries.items()) if number % 3}
    dev = {text: gold for text, gold in queries.items() if text not in train}
    lesson = Lesson(
        name="toy",
        tools=sorted(toy_tools(), key=lambda tool: tool.id),
        texts={text: text for text in queries},
        train=train,
        dev=dev,
    )
    return lessons.plan(recipe, lesson, out, changes={**QUICK, **changes}, encoder=str(folder))


def fitted(folder: Path, out: Path, recipe: str = "dpr", **changes: Any) -> Path:
    fit(job(folder, out, recipe, **changes))
    return out


@pytest.fixture(scope="module")
def plain(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fit of `dpr` with the settings of `QUICK`, which nobody changes."""
    return fitted(folder, tmp_path_factory.mktemp("models") / "plain")


def build(model: Path, tools: list[Tool] | None = None, recipe: str = "dpr") -> Any:
    return registry.build(recipe, Catalogue.of(tools or toy_tools()), model=model)


@pytest.mark.parametrize("recipe", ["dpr", "dpr-inbatch"])
def test_what_was_asked_in_training_is_found_first(folder: Path, plain: Path, tmp_path: Path, recipe: str) -> None:
    stage = build(plain if recipe == "dpr" else fitted(folder, tmp_path / "model", recipe), recipe=recipe)
    check_stage(stage, [Search(query="rain in the city"), Search(query="copy the folder")])
    asked = [(text, tool) for tool, texts in ASKED.items() for text in texts[1:]]
    found = stage([Search(query=text, k=1) for text, _ in asked])
    right = [search.ids[0] == tool for search, (_, tool) in zip(found, asked, strict=True)]
    assert np.mean(right) >= 0.8


def test_the_model_says_how_it_was_trained_and_holds_no_pickle(plain: Path) -> None:
    model = load(plain, recipe="dpr")
    manifest = model.manifest
    assert manifest.encoder is None and manifest.settings["temperature"].value == 0.05
    assert manifest.settings["rate"].origin == "argument" and manifest.settings["decay"].origin == "default"
    history = manifest.values["history"]
    assert manifest.metrics["ndcg@5"] == max(each["ndcg@5"] for each in history)
    assert history[manifest.values["best_epoch"] - 1]["comp@5"] == manifest.metrics["comp@5"]
    assert {name.rpartition(".")[2] for name in manifest.files} == {"json", "md", "safetensors"}
    assert "encoder/model.safetensors" in manifest.files
    assert [path.name for path in plain.parent.iterdir()] == [plain.name], "no working folder stays"


def test_the_encoder_of_a_model_is_another_one_and_keeps_the_promises(folder: Path, plain: Path) -> None:
    model = load(plain)
    tuned, base = dpr.load_model_encoder(model), TransformerEncoder(str(folder))
    check_encoder(tuned)
    assert tuned.fingerprint not in (base.fingerprint, TransformerEncoder(str(model.folder / "encoder")).fingerprint)
    assert tuned.fingerprint == dpr.load_model_encoder(model).fingerprint
    assert not np.allclose(tuned.encode(["rain"]), base.encode(["rain"]), atol=1e-3)


def test_texts_of_tools_are_cut_as_in_training_and_those_of_queries_are_not(folder: Path) -> None:
    encoder = dpr.FittedEncoder(folder, 6)
    long, short = "send mail rain file copy forecast", "send mail rain file"
    assert encoder.encode([long], "tool") == pytest.approx(encoder.encode([short], "tool"), abs=1e-6)
    assert not np.allclose(encoder.encode([long]), encoder.encode([short]), atol=1e-3)
    assert encoder.encode([], "tool").shape == (0, encoder.dim)


def test_tools_that_training_never_saw_are_found_and_others_never_returned(plain: Path) -> None:
    new = Tool(id="new/rain", name="rain", description="rain in the city")
    [found] = build(plain, [*toy_tools()[1:3], new])([Search(query="rain in the city", k=10)])
    assert set(found.ids) == {"weather/getAirQuality", "mail/send_email", "new/rain"}


def test_the_same_seed_gives_the_same_model(folder: Path, plain: Path, tmp_path: Path) -> None:
    again = fitted(folder, tmp_path / "again")
    weights = [(model / "encoder" / "model.safetensors").read_bytes() for model in (plain, again)]
    assert weights[0] == weights[1]


def test_a_large_catalogue_is_sampled_and_still_learned(folder: Path, tmp_path: Path) -> None:
    model = load(fitted(folder, tmp_path / "model", whole=3, sampled=2, hard=2))
    history = model.manifest.values["history"]
    assert history[-1]["loss"] < history[0]["loss"] and model.manifest.metrics["recall@5"] > 0.5


MINED = {"whole": 3, "sampled": 1, "hard": 2}


@pytest.mark.parametrize(
    ("changes", "dies_at"),
    [
        pytest.param({}, 9, id="whole-9"),
        pytest.param({}, 10, id="whole-10", marks=pytest.mark.full),
        pytest.param(MINED, 9, id="mined-9", marks=pytest.mark.full),
        pytest.param(MINED, 10, id="mined-10"),
    ],
)
def test_an_interrupted_fit_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], dies_at: int
) -> None:
    whole = fitted(folder, tmp_path / "whole", **changes)
    steps: list[int] = []
    monkeypatch.setattr(training, "CHECKPOINT_INTERVAL_S", -1.0)
    backward = Lists.backward

    def dying(self: Lists, rows: Any, random: Any) -> float:
        steps.append(1)
        if len(steps) == dies_at:
            raise KeyboardInterrupt
        return backward(self, rows, random)

    monkeypatch.setattr(Lists, "backward", dying)
    with pytest.raises(KeyboardInterrupt):
        fitted(folder, tmp_path / "again", **changes)
    fit(lessons.resumed(job(folder, tmp_path / "again", **changes)))
    assert len(steps) == 1 + 12 * 2
    one, other = load(whole).manifest, load(tmp_path / "again").manifest
    assert one.metrics == other.metrics and one.values["history"] == other.values["history"]
    assert other.fit_seconds >= other.values["training_seconds"] > 0


def test_a_checkpoint_serves_no_other_catalogue(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(self: Lists, rows: Any, random: Any) -> float:
        raise KeyboardInterrupt

    plain = Lists.backward
    monkeypatch.setattr(Lists, "figures", lambda self: monkeypatch.setattr(Lists, "backward", dying) or {})
    with pytest.raises(KeyboardInterrupt):
        fitted(folder, tmp_path / "model")
    monkeypatch.undo()
    assert Lists.backward is plain and (tmp_path / "model.work" / "checkpoint.safetensors").exists()
    task = lessons.resumed(job(folder, tmp_path / "model"))
    less = [tool for tool in task.lesson.tools if tool.id != "zh/tianqi"]
    assert len(less) == len(task.lesson.tools) - 1
    with pytest.raises(ConfigError, match=r"belongs to a training with other data or settings .* without --resume"):
        fit(dataclasses.replace(task, lesson=dataclasses.replace(task.lesson, tools=less)))
    fit(task)


def test_an_encoder_that_cannot_be_tuned_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected an encoder that can be tuned .* found static"):
        plan = job(folder, tmp_path / "model")
        fit(dataclasses.replace(plan, workspace=dataclasses.replace(plan.workspace, encoder=StaticEncoder())))


@pytest.mark.parametrize("wrong", [{"temperature": 0}, {"batch": 1}, {"schedule": "steep"}, {"lr": 1}])
def test_a_setting_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="recipe dpr: a setting is not valid"):
        registry.resolve("dpr", wrong)


# --- the tasks, against what numpy says of the same vectors -----------------------------------------------------------


def texts(folder: Path) -> Texts:
    tower = Tower(TransformerEncoder(str(folder)).model, dropout=0.0, precision="float32")
    queries = ["rain", "send mail", "book a room", "copy"]
    tools = ["rain city", "mail", "hotel", "file copy", "flight", "translate text"]
    gold = [np.array([0]), np.array([1, 3]), np.array([2, 4]), np.array([3])]
    return Texts(
        tower=tower,
        queries=tower.tokens(queries, "query", 16),
        tools=tower.tokens(tools, "tool", 16),
        gold=gold,
        dev=tower.tokens(queries[:2], "query", 16),
        evaluate=lambda cosines: {"ndcg@5": float(cosines[0, 0])},
        identity="test",
        temperature=0.1,
    )


def log_softmax(row: Any) -> Any:
    return row - math.log(sum(math.exp(value) for value in row))


def test_the_list_task_sets_all_golds_against_all_tools_in_use(folder: Path) -> None:
    held = texts(folder)
    scores = held.tower.vectors(held.queries) @ held.tower.vectors(held.tools[:5]).T / 0.1  # the sixth is not in use
    rows = np.array([1, 3])
    wanted = np.mean([-np.mean(log_softmax(scores[row])[held.gold[row]]) for row in rows])
    found = Lists(held).backward(rows, np.random.default_rng(0))
    assert found == pytest.approx(wanted, abs=1e-4)


def test_the_in_batch_task_sets_one_gold_against_the_tools_of_its_batch(folder: Path) -> None:
    held = texts(folder)
    scores = held.tower.vectors(held.queries) @ held.tower.vectors(held.tools).T / 0.1
    task = InBatch(held)
    assert task.size == 6 and task.pairs.tolist() == [[0, 0], [1, 1], [1, 3], [2, 2], [2, 4], [3, 3]]
    columns = [1, 3, 4]  # the tools of the four pairs below, one of them twice
    wanted = np.mean(
        [-log_softmax(scores[query, columns])[columns.index(tool)] for query, tool in ((1, 1), (1, 3), (2, 4), (3, 3))]
    )
    found = task.backward(np.array([2, 1, 5, 4]), np.random.default_rng(0))
    assert found == pytest.approx(wanted, abs=1e-4)


def test_hard_negatives_are_near_and_never_gold(folder: Path) -> None:
    held = texts(folder)
    by_words = [np.array([0, 1, 2]), np.array([1, 0, 3, 5]), np.array([4]), np.array([3, 2])]
    task = Lists(held, sampled=0, hard=2, by_words=lambda: by_words)
    task.begin(0, np.random.default_rng(0))
    assert [found.tolist() for found in task.mined] == [[1, 2], [0], [], [2]]
    assert task.choose_columns(np.array([1, 2]), np.random.default_rng(0)).tolist() == [0, 1, 2, 3, 4]
    task.begin(1, np.random.default_rng(0))
    cosines = held.tower.vectors(held.queries) @ held.tower.vectors(held.tools).T
    order = [tool for tool in np.argsort(-cosines[1], kind="stable") if tool not in (1, 3, 5)]
    assert task.mined[1].tolist() == order


def test_drawn_tools_join_the_list(folder: Path) -> None:
    task = Lists(texts(folder), sampled=200, by_words=lambda: [np.array([], dtype=np.intp)] * 4)
    task.begin(0, np.random.default_rng(0))
    assert task.choose_columns(np.array([0]), np.random.default_rng(0)).tolist() == [0, 1, 2, 3, 4]


def test_dev_is_judged_by_cosines_and_without_dev_there_are_no_figures(folder: Path) -> None:
    held = texts(folder)
    wanted = held.tower.vectors(held.queries[:1]) @ held.tower.vectors(held.tools[:1]).T
    assert Lists(held).figures()["ndcg@5"] == pytest.approx(wanted.item(), abs=1e-5)
    assert Lists(dataclasses.replace(held, dev=[])).figures() == {}


# --- tools that training did not use ---------------------------------------------------------------------------------

NEW = "travel/find_hotel"


def without_new(folder: Path, out: Path, **changes: Any) -> Any:
    """A fit whose queries never need one of the tools."""
    given = job(folder, out, **changes)
    splits = (given.lesson.train, given.lesson.dev)
    train, dev = ({query: gold for query, gold in split.items() if NEW not in gold} for split in splits)
    return dataclasses.replace(given, lesson=dataclasses.replace(given.lesson, train=train, dev=dev))


def scores(model: Path, tools: Any, query: str) -> dict[str, float]:
    [found] = registry.build("dpr", Catalogue.of(tools), model=model)([Search(query=query, k=10)])
    return {hit.id: hit.score for hit in found.hits}


def test_a_new_tool_stands_back_by_the_margin_and_the_others_do_not(folder: Path, tmp_path: Path) -> None:
    fit(without_new(folder, tmp_path / "none", margin=0.0))
    fit(without_new(folder, tmp_path / "some", margin=0.03))
    plain, back = (scores(tmp_path / name, toy_tools(), "a room in the city") for name in ("none", "some"))
    used = load(tmp_path / "some").arrays["used"]
    new = {tool.id for tool, known in zip(job(folder, tmp_path).lesson.tools, used, strict=True) if not known}
    assert NEW in new
    for tool, score in plain.items():
        assert back[tool] == pytest.approx(score - 0.03 * (tool in new), abs=1e-6)
    assert list(back.values()) == sorted(back.values(), reverse=True)


def test_a_catalogue_of_new_tools_alone_is_left_as_it_is(folder: Path, tmp_path: Path) -> None:
    fit(without_new(folder, tmp_path / "m", margin=0.05))
    others = [
        msgspec.structs.replace(tool, id=tool.id.replace("/", "/other_"), name=f"other_{tool.name}")
        for tool in toy_tools()
    ]
    [found] = registry.build("dpr", Catalogue.of(others), model=tmp_path / "m")([Search(query="mail", k=5)])
    assert not any("novelty" in hit.why for hit in found.hits)


def test_colt_keeps_it_too(folder: Path, tmp_path: Path) -> None:
    given = without_new(folder, tmp_path / "m")
    changes = {"base": None, "epochs": 2, "batch": 5, "threads": 1, "margin": 0.04}
    fit(lessons.plan("colt", given.lesson, tmp_path / "m", changes=changes, encoder=str(folder)))
    model = load(tmp_path / "m")
    assert model.manifest.settings["margin"].value == 0.04
    assert not model.arrays["used"][[tool.id for tool in given.lesson.tools].index(NEW)]
    [found] = registry.build("colt", Catalogue.of(toy_tools()), model=tmp_path / "m")([Search(query="mail", k=5)])
    assert any("novelty" in hit.why for hit in found.hits)


def test_the_margin_is_the_smallest_that_dev_likes_best(folder: Path, tmp_path: Path) -> None:
    given = without_new(folder, tmp_path / "m").lesson
    places = {tool.id: number for number, tool in enumerate(given.tools)}
    used = np.array([tool.id != NEW for tool in given.tools])
    cosines = np.zeros((len(given.dev), len(places)), dtype=np.float32)
    for row, gold in zip(cosines, given.dev.values(), strict=True):
        row[[places[tool] for tool in gold]] = 0.5
        row[places[NEW]] = 0.525  # the new tool is in the way by a quarter of a tenth
    assert novelty.choose_margin(given, cosines, used, None)[0] == 0.03
    assert novelty.choose_margin(given, cosines, used, 0.01)[0] == 0.01
    cosines[:, places[NEW]] = 0.4
    chosen, figures = novelty.choose_margin(given, cosines, used, None)
    assert chosen == 0.0 and figures["comp@5"] == 1.0
