"""crossencoder: pairs of a query and a tool, read together; how it learns, what it writes, and what a deadline does."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import lessons  # noqa: E402
from toolscout import Scout  # noqa: E402
from toolscout.errors import ConfigError, MissingExtra  # noqa: E402
from toolscout.home.catalogue.store import Catalogue  # noqa: E402
from toolscout.home.models.model_store import Model  # noqa: E402
from toolscout.learn.fit import FitJob, Lesson, fit  # noqa: E402
from toolscout.recipes import registry  # noqa: E402
from toolscout.search.pipeline import Pipeline, Stage  # noqa: E402
from toolscout.settings import Settings  # noqa: E402
from toolscout.testing import check_stage  # noqa: E402
from toolscout.types import Search, Tool  # noqa: E402
from toolscout_lab.encoders.onnx_pairs import OnnxPairs  # noqa: E402
from toolscout_lab.encoders.transformer import TransformerEncoder  # noqa: E402
from toolscout_lab.rankers import crossencoder  # noqa: E402
from toolscout_lab.rankers.crossencoder import (  # noqa: E402
    CROSSENCODER_BLEND_GRID,
    PAIR_GRAPH_FOLDER,
    CrossEncoderStage,
    LogitBlend,
    export,
)
from toolscout_lab.rankers.shared.reranking import RankedQueries  # noqa: E402
from toolscout_lab.resources import Workspace  # noqa: E402
from toolscout_lab.training import Plan, train  # noqa: E402
from toolscout_lab.training.crossencoders import CrossEncoder, PairData, PairTask  # noqa: E402
from toolscout_lab.training.towers import Tower  # noqa: E402

QUICK = {"epochs": 16, "batch": 16, "rate": 0.01, "fast": 1.0, "patience": 16, "precision": "float32", "threads": 1}


def plan_quick(slang: Lesson, bert: str, home: Path, out: str, **changes: Any) -> FitJob:
    return lessons.plan(
        "crossencoder",
        slang,
        home / out,
        encoder=TransformerEncoder(bert),
        changes={"base": "dense", "candidates": 5, "length": 32, **QUICK, **changes},
        settings=Settings(home=home),
    )


def fitted(slang: Lesson, bert: str, home: Path, out: str, **changes: Any) -> Model:
    return fit(plan_quick(slang, bert, home, out, **changes))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def model(slang: Lesson, bert: str, home: Path) -> Model:
    return fitted(slang, bert, home, "model")


def pipeline(model: Model, tools: Any, bert: str) -> Stage:
    return registry.build("crossencoder", Catalogue.of(tools), Workspace(TransformerEncoder(bert)), model=model.folder)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_what_the_export_lacks_is_said_before_anything_is_trained(
    slang: Lesson, bert: str, home: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("toolscout_lab.training.train", None)
    for recipe, changes in (("crossencoder", {"base": "dpr"}), ("toolrerank", {"base.base": "dpr"})):
        with pytest.raises(MissingExtra, match=package):
            lessons.plan(
                recipe,
                slang,
                home / "none",
                encoder=TransformerEncoder(bert),
                changes=changes,
                settings=Settings(home=home),
            )


def test_it_learns_and_puts_the_first_tools_in_a_new_order(slang: Lesson, bert: str, model: Model) -> None:
    values = model.manifest.values
    assert values["history"][-1]["loss"] < 0.85 * values["history"][0]["loss"]
    assert model.manifest.metrics["ndcg@5"] >= values["first_stage"]["ndcg@5"]
    assert model.manifest.settings["blend"].origin == "dev"
    assert abs(model.manifest.metrics["ndcg@5"] - values["in_training"]["ndcg@5"]) < 0.1
    stage = pipeline(model, slang.tools, bert)
    searches = [Search(query=text) for text in slang.dataset.texts("test").values()]
    check_stage(stage, searches[:6])
    first = registry.build("dense", Catalogue.of(slang.tools), Workspace(TransformerEncoder(bert)))
    for one, other in zip(first(searches[:8]), stage(searches[:8]), strict=True):
        assert set(one.ids[:5]) == set(other.ids[:5]) and one.ids[5:] == other.ids[5:]
        assert all(0.0 < hit.score < 1.0 for hit in other.hits[:5])


def test_where_logits_know_nothing_dev_chooses_the_order_of_a_good_first_stage(
    slang: Lesson, bert: str, home: Path
) -> None:
    job = plan_quick(slang, bert, home, "none", base="neighbours")
    lesson = dataclasses.replace(job.lesson, base=job.base)
    train, dev = (RankedQueries(lesson, qrels, 5, lesson.positions()) for qrels in (lesson.train, lesson.dev))
    judged = crossencoder._DevPairs(lesson, dev, crossencoder._measure_scale(train), job.options)
    logits = np.random.default_rng(0).normal(size=dev.candidates.shape, scale=0.01)
    first, alone = judged.evaluate(judged.distances).means(), judged.evaluate(logits).means()
    assert first["ndcg@5"] > 0.95 > 0.7 > alone["ndcg@5"]
    blend, figures = judged.choose(logits)
    assert blend.weight == CROSSENCODER_BLEND_GRID[-1] and figures == first


@pytest.mark.full  # the test above chooses a blend without training for it
def test_one_that_learned_nothing_leaves_the_order_of_a_good_first_stage(slang: Lesson, bert: str, home: Path) -> None:
    dull = fitted(slang, bert, home, "dull", base="neighbours", rate=1e-9, epochs=1, precise="float32")
    first, alone = dull.manifest.values["first_stage"], dull.manifest.values["logits_alone"]
    assert first["ndcg@5"] > 0.95 > 0.7 > alone["ndcg@5"]
    assert dull.manifest.settings["blend"].value == CROSSENCODER_BLEND_GRID[-1] and dull.manifest.metrics == first


def test_a_search_needs_no_torch_beyond_its_first_stage(model: Model) -> None:
    held = {path.name for path in (model.folder / PAIR_GRAPH_FOLDER).iterdir()}
    assert held == {"model.onnx", "tokenizer.json"}
    assert not list(model.folder.glob("encoder/*"))
    assert not (model.folder / "base").exists()  # dense is not fitted, and asks for the encoder that is set
    assert model.manifest.encoder is not None


def test_new_tools_are_read_and_gone_ones_are_not_returned(slang: Lesson, bert: str, model: Model) -> None:
    new = Tool(id="other/translate", name="translate", description="Translate a text into another language.")
    left = [tool for tool in slang.tools if tool.id != "d/mail/send"]
    [found] = pipeline(model, [*left, new], bert)([Search(query="translate a song")])
    assert "other/translate" in found.ids and "d/mail/send" not in found.ids
    [none] = pipeline(model, [], bert)([Search(query="anything")])
    assert none.hits == ()


def test_a_deadline_leaves_the_rest_as_it_was_and_the_trace_says_so(
    slang: Lesson, bert: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = pipeline(model, slang.tools, bert)
    query = "could you clone this paper for me"
    [late] = stage([Search(query=query, deadline=time.monotonic() - 1)])
    [first] = registry.build("dense", Catalogue.of(slang.tools), Workspace(TransformerEncoder(bert)))(
        [Search(query=query)]
    )
    assert late.ids == first.ids and [hit.score for hit in late.hits] == [hit.score for hit in first.hits]
    assert late.trace[-1].note == "the deadline left 5 of 5 candidates as they were"
    [calm] = stage([Search(query=query, deadline=time.monotonic() + 600)])
    [free] = stage([Search(query=query)])
    assert calm.hits == free.hits and calm.trace[-1].note == free.trace[-1].note == ""

    monkeypatch.setattr("toolscout_lab.encoders.onnx_pairs.PAIR_BATCH", 2)
    clock = iter([0.0, 0.0, 1.0, 9.5, 20.0])  # the start, then before each batch: two end, a third would be too late
    monkeypatch.setattr("toolscout_lab.encoders.onnx_pairs.time.monotonic", lambda: next(clock))
    [half] = stage.stages[-1].run([msgspec.structs.replace(first, deadline=10.0)])  # type: ignore[attr-defined]
    monkeypatch.undo()
    assert set(half.ids[:4]) == set(first.ids[:4]) and half.ids[4:] == first.ids[4:]
    assert stage.stages[-1].note(half) == "the deadline left 1 of 5 candidates as they were"  # type: ignore[attr-defined]
    assert [hit.score for hit in half.hits] == sorted((hit.score for hit in half.hits), reverse=True)


def test_what_is_read_is_the_caller_s_wording(slang: Lesson, bert: str, model: Model) -> None:
    stage = pipeline(model, slang.tools, bert)
    assert isinstance(stage, Pipeline)
    [first] = stage.stages[0]([Search(query="clone this paper")])
    [told] = stage.stages[-1].run([first])
    [reworded] = stage.stages[-1].run([msgspec.structs.replace(first, rewrites=("a bed for two",))])
    assert reworded.hits == told.hits != first.hits


def test_over_another_cross_encoder_each_counts_its_own(slang: Lesson, bert: str, model: Model) -> None:
    below = pipeline(model, slang.tools, bert)
    assert isinstance(below, Pipeline)
    reranker = below.stages[-1]
    assert isinstance(reranker, CrossEncoderStage) and reranker.name == "crossencoder"
    above = CrossEncoderStage(reranker.need_scorer, 3, below)
    assert above.name == "crossencoder 2"
    [found] = below([Search(query="clone this paper")])
    assert (reranker.read(found), above.read(found)) == (5, 0)
    late = msgspec.structs.replace(found, deadline=time.monotonic() - 1)
    [same] = above.run([late])
    assert same.ids == found.ids and above.note(same) == "the deadline left 3 of 3 candidates as they were"
    [both] = above.run([found])
    assert (reranker.read(both), above.read(both)) == (5, 3)


def test_a_caller_sets_the_deadline(slang: Lesson, model: Model, tmp_path: Path) -> None:
    with Scout(tmp_path) as scout:
        scout.add(slang.dataset.folder)
        scout.embed(model=model.folder)
        late = scout.search("clone this paper", model=model.folder, deadline=time.monotonic() - 1)
        free = scout.search("clone this paper", model=model.folder)
    assert len(late.hits) == len(free.hits) == 5
    assert [step.note for step in late.trace if "deadline" in step.note] == [
        "the deadline left 5 of 5 candidates as they were"
    ]
    assert not any("deadline" in step.note for step in free.trace)


def test_a_logit_does_not_depend_on_its_batch_and_agrees_with_torch(
    slang: Lesson, bert: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(net: CrossEncoder, *about: Any) -> None:
        export(net, *about)
        monkeypatch.delattr(CrossEncoder, "score_pairs")  # it lies on another device now than where its batches go

    monkeypatch.setattr("toolscout_lab.rankers.crossencoder.export", written)
    plain = fitted(
        slang, bert, home, "plain", base="bm25", precise="float32", layers=1, epochs=1, start="encoder", blend=0.0
    )
    assert plain.manifest.encoder is None  # bm25 asks for none
    assert plain.manifest.settings["blend"].value == 0.0 and plain.manifest.settings["blend"].origin == "argument"
    assert plain.manifest.metrics == pytest.approx(plain.manifest.values["in_training"], abs=1e-3)
    reader = OnnxPairs(plain.folder / PAIR_GRAPH_FOLDER, 32)
    texts = [tool.description for tool in slang.tools]
    query = "please write to auntie, and a very long story " * 3
    together = reader.logits(query, texts * 3)
    alone = [reader.logits(query, [text])[0] for text in texts]
    np.testing.assert_allclose(together, alone * 3, atol=1e-4)
    assert all(len(each.ids) <= 32 for each in reader.pieces(query, texts))
    assert reader.logits(query, []).size == 0


def test_a_graph_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cross-encoder in .* cannot be loaded"):
        OnnxPairs(tmp_path, 32)


# --- by hand ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def net(bert: str) -> CrossEncoder:
    tower = Tower(TransformerEncoder(bert).model, dropout=0.0, precision="float32")
    return CrossEncoder(tower, length=24, seed=3).eval()


def test_a_pair_is_one_text_of_two_kinds(net: CrossEncoder) -> None:
    tokenizer = net.tower.model.tokenizer
    [[ids, kinds]] = net.pairs(["book a room"], ["a b " * 100])
    assert len(ids) == len(kinds) == 24 and sorted(kinds) == kinds and set(kinds) == {0, 1}
    assert tokenizer.decode(ids).count("[SEP]") == 2 and ids[0] == tokenizer.cls_token_id
    pairs = net.pairs(["book a room", "send"], ["hotel", "a long text about mail"])
    together = net.logits(pairs)
    assert together == pytest.approx([net.logits([pair])[0] for pair in pairs], abs=1e-5)
    states = net.encoder(
        input_ids=torch.tensor([pairs[1][0]]), token_type_ids=torch.tensor([pairs[1][1]])
    ).last_hidden_state
    wanted = net.score(states.mean(dim=1))[0, 0].item()
    assert together[1] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("loss", ["binary", "joint"])
def test_the_loss_of_a_step_is_the_mean_over_its_queries(net: CrossEncoder, loss: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("toolscout_lab.training.crossencoders.MAX_GRAPH_TOKENS", 24 * 4)  # several groups a step
    queries, tools = ["rain", "mail a file", "hotel"], ["weather", "send", "copy", "book a room", "flight"]
    gold, wrong = [[0], [1, 2], [3]], [[1, 4], [0], [0, 1, 2]]
    places = [[np.array(each) for each in side] for side in (gold, wrong)]
    task = PairTask(
        net,
        PairData(queries, tools, gold=places[0], wrong=places[1]),
        negatives=3,
        loss=loss,
        fast=1.0,
        evaluate=dict,
        identity="test",
    )
    wanted = []
    for query, right, other in zip(queries, gold, wrong, strict=True):
        logits = net.logits(net.pairs([query] * len(right + other), [tools[each] for each in right + other]))
        yes = np.arange(len(logits)) < len(right)
        each = -np.mean(np.where(yes, -np.log1p(np.exp(-logits)), -np.log1p(np.exp(logits))))
        logs = logits - np.log(np.exp(logits).sum())
        wanted.append(each + (-logs[yes].mean() if loss == "joint" else 0.0))
    rows = np.array([2, 0, 1])
    assert task.backward(rows, np.random.default_rng(0)) == pytest.approx(np.mean(wanted), abs=1e-4)
    task.negatives = 1
    assert task.backward(rows[:1], np.random.default_rng(0)) < np.inf
    assert all(values.grad is not None for values in net.score.parameters())


def test_it_learns_which_tool_a_phrase_means(net: CrossEncoder) -> None:
    ids = list(lessons.TOOLS)
    tools = [f"{tool}: {text}" for tool, text in lessons.TOOLS.items()]
    phrases = [(phrase, ids.index(tool)) for tool, held in lessons.SLANG.items() for phrase in held]
    asked = [phrase for phrase, _ in phrases for _ in tools]

    def figures() -> dict[str, float]:
        best = net.logits(net.pairs(asked, tools * len(phrases))).reshape(len(phrases), -1).argmax(axis=1)
        return {"right": float(np.mean(best == [tool for _, tool in phrases]))}

    task = PairTask(
        net,
        PairData(
            queries=[phrase for phrase, _ in phrases],
            tools=tools,
            gold=[np.array([tool]) for _, tool in phrases],
            wrong=[np.setdiff1d(np.arange(len(tools)), [tool]) for _, tool in phrases],
        ),
        negatives=4,
        loss="joint",
        fast=1.0,
        evaluate=figures,
        identity="test",
    )
    plan = Plan(epochs=40, batch=8, rate=0.01, patience=40, targets=("right",), threads=1)
    assert figures()["right"] < 0.4 and train(task, plan).figures["right"] > 0.6


def test_more_layers_than_there_are_is_refused(bert: str) -> None:
    tower = Tower(TransformerEncoder(bert).model, dropout=0.0, precision="float32")
    with pytest.raises(ConfigError, match="layers: expected at most 1, found 3"):
        CrossEncoder(tower, length=24, layers=3)


def test_the_blend_keeps_the_order_of_the_first_stage_where_the_logits_say_nothing() -> None:
    blend = LogitBlend(weight=2.0, spread=4.0, far=-3.0, slope=0.5, offset=0.25)
    scores = np.array([9.0, 7.0, 1.0])
    z = blend.distances(scores)
    assert z.tolist() == [0.0, -0.5, -2.0]
    shares = blend.probabilities(np.zeros(3), z)
    assert shares == pytest.approx(1 / (1 + np.exp(-(0.5 * 2.0 * z + 0.25))))
    assert blend.probabilities(np.array([0.0]), blend.far)[0] < shares[2]
