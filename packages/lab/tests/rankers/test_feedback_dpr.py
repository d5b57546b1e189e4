"""Iteration-aware training: wordings made before it, one loss over all rounds, and the loop around what was trained."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import lessons  # noqa: E402
from toolscout.errors import ConfigError, Unavailable  # noqa: E402
from toolscout.home.catalogue.store import Catalogue  # noqa: E402
from toolscout.home.models.model_store import Model  # noqa: E402
from toolscout.learn.fit import FitJob, Lesson, fit  # noqa: E402
from toolscout.recipes import registry  # noqa: E402
from toolscout.settings import Settings  # noqa: E402
from toolscout.testing import check_stage  # noqa: E402
from toolscout.types import Search, Tool  # noqa: E402
from toolscout_lab import training  # noqa: E402
from toolscout_lab.encoders.transformer import TransformerEncoder  # noqa: E402
from toolscout_lab.rankers.feedback import trained  # noqa: E402
from toolscout_lab.resources import Workspace  # noqa: E402
from toolscout_lab.testing import ScriptedLLM, ScriptedServer  # noqa: E402
from toolscout_lab.training.biencoders import (  # noqa: E402
    Texts,
    WordingPairs,
)
from toolscout_lab.training.towers import Tower  # noqa: E402

QUICK = {"epochs": 2, "batch": 32, "rate": 0.005, "precision": "float32", "threads": 1, "rounds": 2}
WARM = {"epochs": 12, "batch": 8, "rate": 0.01, "precision": "float32", "threads": 1}
BASE = {f"base.{name}": value for name, value in WARM.items()}


def job(slang: Lesson, bert: str, out: Path, recipe: str = "feedback-dpr", **changes: Any) -> FitJob:
    """A fit; all of them begin with one tuned encoder, from the shelf."""
    base = {} if recipe.endswith("warmup") else BASE
    return lessons.plan(
        recipe,
        slang,
        out,
        encoder=TransformerEncoder(bert),
        changes={**QUICK, **base, **changes},
        settings=Settings(home=Path(bert).parent / "home", llm=changes.pop("llm", "")),
    )


@pytest.fixture(scope="module")
def model(slang: Lesson, bert: str, tmp_path_factory: pytest.TempPathFactory) -> Model:
    thorough = {"epochs": 16, "patience": 16, "batch": 16, "rate": 0.01}
    return fit(job(slang, bert, tmp_path_factory.mktemp("fit") / "m", served=2, **thorough))


def build(model: Model, tools: list[Tool]) -> Any:
    return registry.build(model.manifest.recipe, Catalogue.of(tools), model=model.folder)


def asked(slang: Lesson) -> list[Search]:
    """The queries of dev, which were chosen by and not trained on."""
    return [Search(query=slang.dataset.queries[query], k=3) for query in slang.dev]


def test_what_was_trained_is_searched_round_by_round_and_finds_what_was_asked(slang: Lesson, model: Model) -> None:
    stage = build(model, list(slang.tools))
    check_stage(stage, asked(slang)[:3])
    found = stage(asked(slang))
    assert all(1 <= len(each.rewrites) <= 2 for each in found)
    assert all(each.rewrites[0].startswith(f"{each.query} ") for each in found), "the prefix stays inside"
    assert any(step.stage == "feedback-dpr/refine" and "words added" in step.note for step in found[0].trace)
    right = [each.ids[0] in gold for each, gold in zip(found, slang.dev.values(), strict=True)]
    assert np.mean(right) > 0.6, "one of six tools"


def test_the_encoder_is_told_which_round_it_is(slang: Lesson, model: Model) -> None:
    inner = build(model, list(slang.tools)).inner
    first, again, later, last = inner(
        [
            Search(query="umbrella"),
            Search(query="other", rewrites=("umbrella",)),
            Search(query="x", rewrites=("y", "umbrella")),
            Search(query="x", rewrites=("y", "y", "y", "umbrella")),
        ]
    )
    scores = [[hit.score for hit in each.hits] for each in (first, again, later, last)]
    assert scores[0] != scores[1] != scores[2] and scores[2] == scores[3], "no round beyond those of the training"


def test_the_model_says_what_each_round_was_worth_on_dev(slang: Lesson, model: Model) -> None:
    values, settings = model.manifest.values, model.manifest.settings
    assert [each["rounds"] for each in values["by_round"]] == [0, 1, 2]
    assert {"ndcg@5", "comp@5", "seconds"} <= set(values["by_round"][0])
    assert 0 < values["by_round"][0]["seconds"] < values["by_round"][2]["seconds"]
    assert model.manifest.metrics["ndcg@5"] == values["by_round"][2]["ndcg@5"]
    assert settings["served"].origin == "argument" and settings["base"].value == "dpr"
    assert len(slang.train) < values["wordings"] <= 3 * len(slang.train)
    assert {name.rpartition(".")[2] for name in model.manifest.files} == {"json", "md", "safetensors"}


def test_rounds_that_dev_does_not_ask_for_are_not_searched(slang: Lesson, bert: str, tmp_path: Path) -> None:
    found = fit(job(slang, bert, tmp_path / "m", epochs=1)).manifest
    assert found.settings["served"].origin == "dev"
    if found.settings["served"].value == 0:
        assert build(fit(job(slang, bert, tmp_path / "n", epochs=1)), list(slang.tools)).name == "dense"
    assert trained._choose_rounds([judged([0.5] * 20), judged([0.9] * 20), judged([0.8] * 20)], 0) == 1
    assert trained._choose_rounds([judged([0.5] * 20), judged([0.5] * 19 + [0.6])], 0) == 0
    assert trained._choose_rounds([judged([0.5] * 20), judged([0.1] * 20)], 0) == 0


def test_without_new_wordings_only_the_hard_negatives_are_new(slang: Lesson, bert: str, tmp_path: Path) -> None:
    model = fit(job(slang, bert, tmp_path / "m", "feedback-dpr-no-rounds", epochs=1, rounds=0))
    values = model.manifest.values
    assert values["wordings"] == len(slang.train) and [each["rounds"] for each in values["by_round"]] == [0]
    assert model.manifest.settings["served"].value == 0 and model.manifest.settings["hard"].value == 1
    assert build(model, list(slang.tools)).name == "dense"


def test_a_fit_with_a_language_model_is_another_with_other_prompts_or_another_model(
    slang: Lesson, bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def identities() -> list[str]:
        jobs = [job(slang, bert, tmp_path / "m", "feedback-dpr-no-warmup", refiner=name) for name in ("words", "model")]
        return [each.identity for each in jobs]

    before = identities()
    assert identities() == before
    monkeypatch.setattr("toolscout_lab.llm.prompts._read_parts", lambda name: (name, "other words"))
    words, model = identities()
    assert words == before[0] and model != before[1]


def judged(values: list[float]) -> Any:
    @dataclasses.dataclass
    class Found:
        values: dict[str, list[float]]

    return Found({"ndcg@5": values, "comp@5": values})


@pytest.mark.parametrize("recipe", ["feedback-dpr-no-warmup", "feedback-dpr-no-hard", "feedback-dpr-no-joint"])
def test_each_ablation_leaves_out_what_it_says(
    slang: Lesson, bert: str, tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[WordingPairs] = []
    rounds: list[list[int]] = []
    plain = WordingPairs.begin

    def seen(self: WordingPairs, epoch: int, random: Any) -> None:
        plain(self, epoch, random)
        tasks.append(self)
        rounds.append(list(self.active_rounds))

    monkeypatch.setattr(WordingPairs, "begin", seen)
    model = fit(job(slang, bert, tmp_path / "m", recipe, epochs=3, patience=1))
    assert model.manifest.recipe == recipe and (model.manifest.settings["base"].value is None) == ("warmup" in recipe)
    assert tasks[0].hard == (1 if "warmup" in recipe else 0)
    assert rounds == [[0], [1], [2]] if "joint" in recipe else all(each == [0, 1, 2] for each in rounds)


def test_tools_that_training_never_saw_are_found_and_others_never_returned(slang: Lesson, model: Model) -> None:
    new = Tool(id="new/bed", name="bed", description="a bed for two")
    [found] = build(model, [new, *slang.tools[:2]])([Search(query="a bed for two", k=9)])
    assert set(found.ids) == {"new/bed", *(tool.id for tool in slang.tools[:2])}


def test_vectors_can_be_made_longer_or_shorter(slang: Lesson, bert: str, tmp_path: Path) -> None:
    for size in (8, 64):
        model = fit(job(slang, bert, tmp_path / f"m{size}", size=size, epochs=1, served=0))
        encoder = trained.dpr.load_model_encoder(model)
        assert encoder.dim == size and encoder.encode(["umbrella"]).shape == (1, size)
        assert build(model, list(slang.tools))(asked(slang)[:1])[0].hits
    assert model.manifest.settings["size"].value == 64


def test_a_layer_behind_the_encoder_turns_its_vectors_and_keeps_their_cosines(bert: str) -> None:
    tower = Tower(TransformerEncoder(bert).model, dropout=0.0, precision="float32")
    tokens = tower.tokens(["rain", "send mail", "copy the file"], "query")
    before = tower.vectors(tokens)
    tower.project(48, 0)
    after = tower.vectors(tokens)
    assert after.shape == (3, 48) and after @ after.T == pytest.approx(before @ before.T, abs=1e-5)


def test_an_interrupted_fit_goes_on_to_the_same_end(
    slang: Lesson, bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(job(slang, bert, tmp_path / "whole")).manifest
    monkeypatch.setattr(training, "CHECKPOINT_INTERVAL_S", -1.0)
    steps: list[int] = []
    plain = WordingPairs.backward

    def dying(self: WordingPairs, rows: Any, random: Any) -> float:
        steps.append(1)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return plain(self, rows, random)

    monkeypatch.setattr(WordingPairs, "backward", dying)
    with pytest.raises(KeyboardInterrupt):
        fit(job(slang, bert, tmp_path / "again"))
    monkeypatch.setattr(trained, "_make_wordings", None)  # the wordings are not made again
    again = fit(lessons.resumed(job(slang, bert, tmp_path / "again"))).manifest
    assert len(steps) == 1 + 2 * 2 and again.metrics == whole.metrics
    assert again.values["history"] == whole.values["history"]


# --- with a language model --------------------------------------------------------------------------------------------


@pytest.mark.net
@pytest.mark.slow
def test_a_language_model_says_the_queries_anew_and_is_paid_once(slang: Lesson, bert: str, tmp_path: Path) -> None:
    few = dataclasses.replace(slang, train=dict(list(slang.train.items())[::4]), dev=dict(list(slang.dev.items())[::4]))

    def task(name: str, place: str) -> FitJob:
        changes = {"refiner": "model", "depth": 3, "served": 1, "epochs": 1, "base.epochs": 2}
        found = job(few, bert, tmp_path / name, **changes)
        workspace = dataclasses.replace(found.workspace, settings=Settings(home=tmp_path, llm=place, llm_concurrency=8))
        return dataclasses.replace(found, workspace=workspace)

    with ScriptedServer(ScriptedLLM()) as server:
        model = fit(task("m", server.place))
        asked_for = sum(server.served.values())
        assert asked_for >= 3 * len(few.train) and max(server.served.values()) == 1
        assert model.manifest.values["wordings"] > len(few.train), "some goals are missed at first"
        again = fit(task("n", server.place))
        assert again.manifest.metrics == model.manifest.metrics
        workspace = Workspace(settings=Settings(home=tmp_path, llm=server.place))
        stage = registry.build("feedback-dpr", Catalogue.of(slang.tools), workspace, model=model.folder)
        [found] = stage([Search(query="umbrella and a bed for two", k=3)])
        assert any(step.stage == "feedback-dpr/refine" for step in found.trace) and found.hits
    with pytest.raises(ConfigError, match="No language model is set"):
        registry.build("feedback-dpr", Catalogue.of(slang.tools), model=model.folder)


@pytest.mark.net
def test_a_language_model_that_does_not_answer_is_an_error_before_training(
    slang: Lesson, bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(self: Any, *_: Any, **__: Any) -> Any:
        raise Unavailable("nobody is there")

    monkeypatch.setattr("toolscout_lab.llm.endpoint.Endpoint.__call__", down)
    found = job(slang, bert, tmp_path / "m", refiner="model")
    with pytest.raises(Unavailable, match="nobody is there"):
        fit(
            dataclasses.replace(
                found,
                workspace=dataclasses.replace(
                    found.workspace, settings=Settings(home=tmp_path, llm="http://127.0.0.1:9/v1#m")
                ),
            )
        )
    with pytest.raises(ConfigError, match="No language model is set"):
        fit(found)


# --- the task, against what numpy says of the same vectors ------------------------------------------------------------


def log_softmax(row: Any) -> Any:
    return row - math.log(sum(math.exp(value) for value in row))


def wordings(bert: str, **changes: Any) -> WordingPairs:
    tower = Tower(TransformerEncoder(bert).model, dropout=0.0, precision="float32")
    queries = ["rain", "rain city", "send mail", "send mail text", "send mail folder", "copy"]
    tools = ["rain city", "mail", "hotel", "file copy", "flight", "translate text"]
    texts = Texts(
        tower=tower,
        queries=tower.tokens(queries, "query", 16),
        tools=tower.tokens(tools, "tool", 16),
        gold=[np.array([0]), np.array([1, 3]), np.array([3])],
        dev=[],
        evaluate=lambda cosines: {},
        identity="test",
        temperature=0.1,
    )
    wrong = [np.array(each, dtype=np.intp) for each in ([5], [4], [2], [5], [0], [])]
    places = [np.array(each) for each in ([0, 1], [2, 3, 4], [5])]
    return WordingPairs(texts, places, wrong, **{"hard": 1, "balance": 1.0, **changes})


def expected(task: WordingPairs, rounds: dict[int, list[tuple[int, int, list[int]]]]) -> float:
    """The sum over rounds of the mean over (wording, positive, the tools that it is set against)."""
    held = task.texts
    scores = held.tower.vectors(held.queries) @ held.tower.vectors(held.tools).T / 0.1
    return float(
        sum(
            task.balance**t
            * np.mean([-log_softmax(scores[said, against])[against.index(tool)] for said, tool, against in of_round])
            for t, of_round in rounds.items()
        )
    )


def test_the_loss_sums_over_rounds_and_a_hard_negative_is_that_of_its_own_wording(bert: str) -> None:
    task = wordings(bert, balance=0.5)
    assert task.pairs.tolist() == [[0, 0], [1, 1], [1, 3], [2, 3]] and task.rounds == 3
    found = task.backward(np.array([0, 2]), np.random.default_rng(0))  # rain → 0, send mail → 3
    wanted = {
        0: [(0, 0, [0, 3, 5]), (2, 3, [0, 3, 2])],
        1: [(1, 0, [0, 3, 4]), (3, 3, [0, 3, 5])],
        2: [(4, 3, [0, 3])],
    }
    wanted[2] = [(4, 3, [3, 0])]  # the query itself has stopped; its own wrong tool is 0
    assert found == pytest.approx(expected(task, wanted), abs=1e-4)


def test_without_hard_negatives_only_the_tools_of_the_round_count(bert: str) -> None:
    task = wordings(bert, hard=0)
    found = task.backward(np.array([0, 3]), np.random.default_rng(0))  # rain → 0, copy → 3, which has one wording
    wanted = {0: [(0, 0, [0, 3]), (5, 3, [0, 3])], 1: [(1, 0, [0, 3])]}
    assert found == pytest.approx(expected(task, wanted), abs=1e-4)


def test_rounds_take_turns_where_they_are_not_learned_together(bert: str) -> None:
    task = wordings(bert, hard=0, turns=6)
    seen = []
    for epoch in range(6):
        task.begin(epoch, np.random.default_rng(0))
        seen.append(list(task.active_rounds))
    assert seen == [[0], [0], [1], [1], [2], [2]]
    assert task.backward(np.array([3]), np.random.default_rng(0)) == 0.0, "nothing was said in that round"
    task.begin(2, np.random.default_rng(0))
    found = task.backward(np.array([0, 1]), np.random.default_rng(0))
    assert found == pytest.approx(expected(task, {1: [(1, 0, [0, 1]), (3, 1, [0, 1])]}), abs=1e-4)
