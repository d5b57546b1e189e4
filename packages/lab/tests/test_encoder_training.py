from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

import torch

import lessons
import tiny
from tests_cli import run
from toolscout.encoders import Encoder
from toolscout.encoders.static import load_static
from toolscout.errors import ConfigError
from toolscout.types import Tool
from toolscout_lab import encoder_training
from toolscout_lab.encoder_data import (
    DataPlan,
    DistilOptions,
    EncoderOptions,
    RequestOptions,
    TrainingExample,
    TrainingSet,
    build_training_set,
    mistype,
    word_tool,
)
from toolscout_lab.encoder_training import render_without, train_encoder
from toolscout_lab.encoders.transformer import TransformerEncoder
from toolscout_lab.training.catalogues import (
    Catalogues,
    CatalogueTexts,
    average_weights,
)
from toolscout_lab.training.distillation import align_vectors
from toolscout_lab.training.requests import Requests, RequestTexts
from toolscout_lab.training.towers import Tower

QUICK = EncoderOptions(steps=40, queries=16, rate=0.01, dropout=0.0, precision="float32", threads=1)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> TransformerEncoder:
    return TransformerEncoder(str(tiny.tiny_bert(tmp_path_factory.mktemp("start") / "bert")))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingSet:
    root = tmp_path_factory.mktemp("data")
    lessons.write(root)
    return build_training_set(DataPlan(root, ("slang",), corpus=None, test_sets=("slang",)))


def score(encoder: TransformerEncoder, data: TrainingSet) -> float:
    """Return the mean rank of the gold tools of the training requests, from 0."""
    tools = data.tools["slang"]
    rows = encoder.encode([f"{tool.name}: {tool.description}" for tool in tools], "tool")
    requests = [example for example in data.examples if example.kind == "request" and len(example.gold) == 1]
    cosines = encoder.encode([example.text for example in requests]) @ rows.T
    ids = [tool.id.partition("/")[2] for tool in tools]
    gold = np.array([ids.index(example.gold[0]) for example in requests])
    own = cosines[np.arange(len(gold)), gold]
    return float((cosines > own[:, None]).sum(axis=1).mean())


@pytest.fixture(scope="module")
def tuned(start: TransformerEncoder, data: TrainingSet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("tuned") / "encoder"
    train_encoder(start, data, out, QUICK)
    yield out


def test_a_tuned_encoder_places_requests_nearer_to_their_tools(
    start: TransformerEncoder, data: TrainingSet, tuned: Path
) -> None:
    assert score(TransformerEncoder(str(tuned)), data) < 0.7 * score(start, data)


def test_the_folder_says_what_the_encoder_has_seen(data: TrainingSet, tuned: Path) -> None:
    record = json.loads((tuned / "training.json").read_text())
    assert record["settings"]["steps"] == 40 and record["data"]["fingerprint"] == data.report["fingerprint"]
    card = (tuned / "README.md").read_text()
    assert "examples from slang; 40 steps" in card and "Left out: no dataset" in card
    assert not (tuned / "checkpoint.safetensors").exists()


def test_the_same_training_gives_the_same_weights_and_resuming_keeps_them(
    start: TransformerEncoder, data: TrainingSet, tuned: Path, tmp_path: Path
) -> None:
    train_encoder(start, data, tmp_path / "again", QUICK)
    weights = "model.safetensors"
    assert (tmp_path / "again" / weights).read_bytes() == (tuned / weights).read_bytes()
    before = (tmp_path / "again" / weights).stat().st_mtime_ns
    record = train_encoder(start, data, tmp_path / "again", QUICK, resume=True)
    assert record["seed"] == 0 and (tmp_path / "again" / weights).stat().st_mtime_ns == before
    for changed in ({"resume": False}, {"resume": True, "seed": 1}):
        with pytest.raises(ConfigError, match="already holds an encoder"):
            train_encoder(start, data, tmp_path / "again", QUICK, **changed)  # type: ignore[arg-type]


def test_without_any_step_nothing_is_trained(start: TransformerEncoder, data: TrainingSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no step to train"):
        train_encoder(start, data, tmp_path / "none", EncoderOptions(steps=0))
    assert not (tmp_path / "none").exists()


def test_a_step_draws_tools_evenly_and_lists_gold_and_rivals(start: TransformerEncoder) -> None:
    gold = [np.array([0]) for _ in range(50)] + [np.array([1]), np.array([2, 3])]
    texts = CatalogueTexts(
        queries=[[1]] * 52,
        tools=[[1]] * 8,
        gold=gold,
        rivals=[np.array([7])] * 52,
        masked={},
        steps=1,
    )
    task = Catalogues(Tower(start.model, dropout=0.0), [texts], "x", EncoderOptions(queries=4, columns=5, rivals=1))
    random = np.random.default_rng(0)
    drawn = task.draw_examples(0, random)
    assert sorted(drawn)[-2:] == [50, 51] and len(drawn) == 3  # tools 2 and 3 have the same example
    columns = task.choose_columns(0, drawn, random)
    assert columns.tolist() == [0, 1, 2, 3, 7]
    assert task.choose_columns(0, [50], random).tolist() == [0, 1, 2, 3, 7]  # tools that nobody uses are not listed


def test_weights_between_start_and_end() -> None:
    module = torch.nn.Linear(2, 1)
    start = {name: torch.zeros_like(value) for name, value in module.state_dict().items()}
    end = {name: value.clone() for name, value in module.state_dict().items()}
    average_weights(module, start, 0.25)
    assert torch.allclose(module.weight, 0.25 * end["weight"])


def test_the_tool_lacks_the_field_that_the_example_came_from() -> None:
    tool = Tool(
        id="s/get_rain",
        name="get_rain",
        description="Tells the rain. By city.",
        parameters={"type": "object", "properties": {"city": {}}},
    )
    texts = {
        field: render_without(
            tool, TrainingExample(id="e", kind=field, catalogue="s", text="", hidden=field, gold=("get_rain",))
        )
        for field in ("name", "description", "parameters")
    }
    assert texts == {
        "name": "Tells the rain. By city. city",
        "description": "get_rain By city. city",
        "parameters": "get_rain Tells the rain. By city.",
    }


def test_the_command_tunes_on_the_data_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lessons.write(tmp_path)
    tiny.tiny_bert(tmp_path / "bert")
    monkeypatch.setenv("TOOLSCOUT_DATA", str(tmp_path))
    start = ["train", "encoder", "--data", "slang", "--encoder", str(tmp_path / "bert"), "--out", str(tmp_path / "e")]
    done = run(*start, "--set", "steps=1", "--set", "queries=4", "--set", "threads=1", "--json")
    assert json.loads(done.stdout)["data"]["sources"]["slang"]["train_requests"] > 0, done.output
    refused = run(*start, "--set", "step=1")
    assert refused.exit_code == 1 and "step" in refused.stderr
    two = run("train", "neighbours", "--data", "slang", "--data", "slang", "--out", str(tmp_path / "m"))
    assert two.exit_code == 1 and "fitted on one dataset" in two.stderr
    chat = run(*start, "--no-tool", "slang")
    assert chat.exit_code == 1 and "--no-tool" in chat.stderr


def test_several_catalogues_take_turns(start: TransformerEncoder, data: TrainingSet, tmp_path: Path) -> None:
    corpus = [msgspec.structs.replace(tool, id=f"c/{tool.name}") for tool in data.tools["slang"]]
    examples = [
        TrainingExample(
            id=f"c/{tool.name}", kind="name", catalogue="c", text=tool.name, hidden="name", gold=(tool.name,)
        )
        for tool in corpus
    ]
    both = TrainingSet([*data.examples, *examples], {**data.tools, "c": corpus}, data.report)
    record = train_encoder(
        start, both, tmp_path / "both", EncoderOptions(steps=1, corpus_steps=2, queries=4, threads=1, rate=0.001)
    )
    assert "3 steps" in (tmp_path / "both" / "README.md").read_text() and record["history"][0]["loss"] > 0


def test_requests_of_many_sources_tune_an_encoder_in_few_steps(
    start: TransformerEncoder, data: TrainingSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_training, "REQUEST_SHARES", {"slang": 16})
    options = RequestOptions(steps=40, tools=8, rate=0.01, near=0.99, dropout=0.0, precision="float32", threads=1)
    train_encoder(start, data, tmp_path / "e", options)
    assert score(TransformerEncoder(str(tmp_path / "e")), data) < 0.7 * score(start, data)
    assert "40 steps of 16 examples" in (tmp_path / "e" / "README.md").read_text()
    again = train_encoder(start, data, tmp_path / "e", options, resume=True)
    assert again["settings"]["near"] == 0.99


def test_sources_without_a_share_are_not_learned(start: TransformerEncoder, data: TrainingSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no step to train"):
        train_encoder(start, data, tmp_path / "none", RequestOptions(threads=1))


def test_a_step_draws_a_share_of_each_source_and_each_tool_once(start: TransformerEncoder) -> None:
    texts = RequestTexts(
        queries=[[1]] * 12,
        mistyped=[[2]] * 12,
        wordings=[[[3]], [[4], [5]], [[6]]],
        gold=[np.array([number // 6]) for number in range(11)] + [np.array([2])],
        examples_of={"a": {0: [0, 1, 2, 3, 4, 5], 1: [6, 7, 8, 9, 10]}, "b": {2: [11]}},
        shares={"a": 2, "b": 3, "c": 4},
    )
    task = Requests(Tower(start.model, dropout=0.0), texts, "x", RequestOptions())
    random = np.random.default_rng(0)
    drawn = [task.draw_examples(random) for _ in range(20)]
    assert all(sorted(number // 6 if number < 11 else 2 for number in one) == [0, 1, 2] for one in drawn)
    assert {tuple(task.choose_words(1, random)) for _ in range(40)} == {(4,), (5,)}


def test_a_typing_error_changes_one_word_and_leaves_short_ones() -> None:
    texts = [f"please turn on the light number {number} for me" for number in range(50)]
    wrong = [mistype(text, 0) for text in texts]
    assert wrong == [mistype(text, 0) for text in texts] and wrong != [mistype(text, 1) for text in texts]
    for text, changed in zip(texts, wrong, strict=True):
        pairs = zip(text.split(), changed.split(), strict=True)
        assert sum(one != other and len(one) > 3 for one, other in pairs) <= 1
        assert abs(len(text) - len(changed)) <= 1
    assert sum(text != changed for text, changed in zip(texts, wrong, strict=True)) > 40
    assert mistype("do it now", 0) == "do it now"


def test_a_tool_is_worded_in_several_ways() -> None:
    tool = Tool(
        id="s/get_rain",
        name="get_rain",
        description="Tells the rain. By city.",
        parameters={"type": "object", "properties": {"city": {}}},
        meta={"variants": [{"title": "rainfall", "text": "How wet it gets", "parameters": ["town"]}]},
    )
    assert word_tool(tool) == [
        "get_rain: Tells the rain. By city. (city)",
        "get_rain: Tells the rain. By city.",
        "Tells the rain.",
        "get_rain",
        "rainfall: How wet it gets (town)",
    ]


TAUGHT = DistilOptions(epochs=3, batch=16, rate=0.003, kept=1.0, precision="float32", threads=1)


class Stopping:
    """The bundled encoder, which fails after some calls. `read` is every text that it was given."""

    def __init__(self, calls: int) -> None:
        self.inner, self.left, self.read = load_static(), calls, []  # type: ignore[var-annotated]
        self.name, self.dim, self.fingerprint = self.inner.name, self.inner.dim, self.inner.fingerprint

    def encode(self, texts: list[str], kind: str = "query") -> np.ndarray:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        self.read += texts
        return self.inner.encode(texts, kind)  # type: ignore[arg-type]


def compute_likenesses(encoder: Encoder, texts: list[str]) -> np.ndarray:
    rows = encoder.encode(texts, "tool")
    return np.asarray(rows @ rows.T)


def test_a_student_comes_nearer_to_its_teacher(start: TransformerEncoder, data: TrainingSet, tmp_path: Path) -> None:
    out = tmp_path / "taught"
    record = train_encoder(start, data, out, TAUGHT, teacher=load_static())
    texts = [tool.description for tool in data.tools["slang"]]
    teacher = compute_likenesses(load_static(), texts)
    before, after = (compute_likenesses(it, texts) for it in (start, TransformerEncoder(str(out))))
    assert ((after - teacher) ** 2).mean() < 0.5 * ((before - teacher) ** 2).mean()
    assert record["teacher"] == load_static().name
    assert f"Taught by `{load_static().name}`" in (out / "README.md").read_text()
    again = train_encoder(start, data, out, TAUGHT, teacher=load_static(), resume=True)
    assert again["identity"] == record["identity"] and not (out / "teacher").exists()


def test_what_the_teacher_has_read_is_not_read_again(
    start: TransformerEncoder, data: TrainingSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_training, "TEACHER_BATCH", 16)
    first, second, whole = Stopping(4), Stopping(10_000), Stopping(10_000)
    with pytest.raises(KeyboardInterrupt):
        train_encoder(start, data, tmp_path / "taught", TAUGHT, teacher=first)  # type: ignore[arg-type]
    resumed = train_encoder(start, data, tmp_path / "taught", TAUGHT, teacher=second, resume=True)  # type: ignore[arg-type]
    at_once = train_encoder(start, data, tmp_path / "whole", TAUGHT, teacher=whole)  # type: ignore[arg-type]
    assert len(set(second.read)) < len(set(whole.read)) <= len(set(first.read + second.read))
    assert [epoch["cosine"] for epoch in resumed["history"]] == [epoch["cosine"] for epoch in at_once["history"]]


def test_a_teacher_that_only_turns_the_space_is_turned_back() -> None:
    random = np.random.default_rng(0)
    student = random.normal(size=(50, 8)).astype(np.float32)
    student /= np.linalg.norm(student, axis=1, keepdims=True)
    turned = student @ np.linalg.qr(random.normal(size=(12, 12)))[0][:8].astype(np.float32)
    assert np.allclose(align_vectors(turned, student[:30]), student, atol=1e-4)
