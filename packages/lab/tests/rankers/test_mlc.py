from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lessons

torch = pytest.importorskip("torch")

from toolscout.errors import ConfigError, StoreError  # noqa: E402
from toolscout.home.catalogue.store import Catalogue  # noqa: E402
from toolscout.home.models.model_store import Model  # noqa: E402
from toolscout.learn.fit import Lesson, fit  # noqa: E402
from toolscout.rankers.shared.sparse_features import ToolSets  # noqa: E402
from toolscout.recipes import registry  # noqa: E402
from toolscout.search.pipeline import Stage  # noqa: E402
from toolscout.testing import check_stage  # noqa: E402
from toolscout.types import Search, Tool  # noqa: E402
from toolscout_lab.encoders.transformer import TransformerEncoder  # noqa: E402
from toolscout_lab.rankers.mlc import LOGIT_SCALE  # noqa: E402
from toolscout_lab.rankers.shared.tuning import MlcOptions  # noqa: E402
from toolscout_lab.training.classifiers import (  # noqa: E402
    Classifier,
    Heads,
    drop_tokens,
)
from toolscout_lab.training.towers import Tower  # noqa: E402

QUICK = {"epochs": 30, "batch": 16, "rate": 0.01, "fast": 2.0, "patience": 30, "precision": "float32", "threads": 1}


def fitted(slang: Lesson, bert: str, out: Path, **changes: Any) -> Model:
    return fit(lessons.plan("mlc", slang, out, encoder=TransformerEncoder(bert), changes={**QUICK, **changes}))


@pytest.fixture(scope="module")
def model(slang: Lesson, bert: str, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return fitted(slang, bert, tmp_path_factory.mktemp("models") / "mlc")


def pipeline(model: Model, tools: Any) -> Stage:
    return registry.build("mlc", Catalogue.of(tools), model=model.folder)


def complete(slang: Lesson, stage: Stage, split: str = "test") -> float:
    texts = slang.dataset.texts(split)
    gold = {query: {f"d/{tool}" for tool in tools} for query, tools in slang.dataset.split(split).items()}
    found = stage([Search(query=text) for text in texts.values()])
    return sum(gold[query] <= set(each.ids[:2]) for query, each in zip(texts, found, strict=True)) / len(texts)


def test_usage_finds_what_no_description_says(slang: Lesson, model: Model) -> None:
    stage = pipeline(model, slang.tools)
    plain = registry.build("bm25", Catalogue.of(slang.tools))
    assert complete(slang, stage) >= 0.75 > 0.5 > complete(slang, plain)
    check_stage(stage, [Search(query=text) for text in list(slang.dataset.texts("test").values())[:6]])


def test_the_published_form_has_neither_sets_nor_descriptions(slang: Lesson, bert: str, tmp_path: Path) -> None:
    encoder = TransformerEncoder(bert)
    other = fit(lessons.plan("mlc-published", slang, tmp_path / "m", encoder=encoder, changes=QUICK))
    assert "sets.weight" not in other.arrays
    new = Tool(id="d/new", name="umbrella", description=slang.dataset.queries[next(iter(slang.dev))])
    stage = registry.build("mlc-published", Catalogue.of([*slang.tools, new]), model=other.folder)
    [found] = stage([Search(query=new.description, k=len(slang.tools) + 1)])
    assert found.ids[-1] == "d/new", "a tool without usage is last, however well its description fits"
    assert complete(slang, stage) >= 0.4


@pytest.mark.parametrize("changes", [{"loss": "binary"}, {"start": "zeros"}, {"sets": 0.0}, {"dropout": 0.1}])
def test_it_learns_with_every_switch(slang: Lesson, bert: str, tmp_path: Path, changes: dict[str, Any]) -> None:
    other = fitted(slang, bert, tmp_path / "m", epochs=15, **changes)
    assert ("sets.weight" in other.arrays) == (changes != {"sets": 0.0})
    assert complete(slang, pipeline(other, slang.tools)) >= 0.5


def test_the_weight_of_the_sets_that_is_set_counts_in_the_fit_and_in_a_search(
    slang: Lesson, bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: list[float] = []
    join = ToolSets.join

    def noted(self: ToolSets, tools: Any, shares: Any, weight: float) -> Any:
        weights.append(weight)
        return join(self, tools, shares, weight)

    monkeypatch.setattr(ToolSets, "join", noted)
    model = fitted(slang, bert, tmp_path / "m", sets=2.0, epochs=2)
    assert weights and set(weights) == {2.0}
    weights.clear()
    pipeline(model, slang.tools)([Search(query="umbrella")])
    assert weights == [2.0]


def test_a_tool_that_training_never_saw_is_found_and_a_removed_one_is_not(slang: Lesson, model: Model) -> None:
    new = Tool(id="other/translate", name="translate", description="Translate a text into another language.")
    left = [tool for tool in slang.tools if tool.id != "d/weather/forecast"]
    found = pipeline(model, [*left, new])(
        [Search(query="translate a text into another language", k=4), Search(query="please umbrella")]
    )
    assert "other/translate" in found[0].ids
    assert "d/weather/forecast" not in found[1].ids


def test_the_same_seed_gives_the_same_model(slang: Lesson, bert: str, model: Model, tmp_path: Path) -> None:
    again = fitted(slang, bert, tmp_path / "again")
    for name, array in model.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])
    assert again.manifest.metrics == model.manifest.metrics


def test_a_flipped_byte_another_catalogue_and_no_model_are_refused(slang: Lesson, bert: str, tmp_path: Path) -> None:
    made = fitted(slang, bert, tmp_path / "m", epochs=1)
    with pytest.raises(ConfigError, match="shares no tool with this catalogue"):
        pipeline(made, [Tool(id="x/else", name="else")])
    with pytest.raises(ConfigError, match="needs a fitted model. Run  toolscout train mlc"):
        registry.build("mlc", Catalogue.of(slang.tools))
    weights = next((made.folder / "encoder").rglob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    with pytest.raises(StoreError, match="was changed"):
        pipeline(made, slang.tools)


def test_an_encoder_that_cannot_be_tuned_is_refused(slang: Lesson, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected an encoder that can be tuned"):
        fit(lessons.plan("mlc", slang, tmp_path / "m", encoder="static", changes=QUICK))


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_a_layer_starts_at_the_mean_of_the_queries_of_each_class_and_its_frequency() -> None:
    rows = np.array([[1, 0], [0, 1], [0, 1]], np.float32)
    gold = np.array([[1, 0], [1, 0], [0, 1]], np.bool_)
    heads = Heads(2, {"tools": 2}, LOGIT_SCALE)
    heads.start(rows, gold, "tools")
    half = np.sqrt(0.5)
    np.testing.assert_allclose(heads.layers["tools"].weight.detach().numpy(), [[half, half], [0, 1]], rtol=1e-6)
    logits = heads(torch.from_numpy(rows))["tools"].detach().numpy()
    np.testing.assert_allclose(logits.mean(axis=0), np.log([3 / 4, 2 / 4]), rtol=1e-4)  # of two and one of three


def test_thinned_texts_keep_their_ends_and_their_order() -> None:
    tokens = list(range(100, 160))
    kept = drop_tokens(tokens, 0.5, np.random.default_rng(0))
    assert kept[0] == 100 and kept[-1] == 159 and kept == sorted(kept) and 15 < len(kept) < 45
    assert drop_tokens(tokens, 0.0, np.random.default_rng(0)) == tokens
    assert drop_tokens([1, 2], 0.9, np.random.default_rng(0)) == [1, 2]


def test_the_published_layer_reads_the_mean_of_the_tokens_scaled_to_length_one(bert: str) -> None:
    """Its loss is the binary cross-entropy per tool, summed over the tools; worked out from the encoder's states."""
    encoder = TransformerEncoder(bert)
    tower = Tower(encoder.model, dropout=0.0, precision="float32")
    tokens = tower.tokens(["book a room", "umbrella"], "query", 16)
    heads = Heads(encoder.dim, {"tools": 3}, LOGIT_SCALE)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for values in heads.parameters():
            values.copy_(0.1 * torch.randn(values.shape, generator=random))
    gold = np.array([[True, False, True], [False, True, False]])
    tuning = MlcOptions(loss="binary", fast=1.0, thinned=0.0, hold=10_000)
    task = Classifier(
        tower, heads, queries=tokens, gold=gold, set_of=None, evaluate=dict, identity="test", tuning=tuning
    )
    total = 0.0
    for text, golds in zip(tokens, gold, strict=True):
        with torch.no_grad():
            states = encoder.model[0].auto_model.eval()(input_ids=torch.tensor([list(text)])).last_hidden_state[0]
        row = states.mean(dim=0) / states.mean(dim=0).norm()
        logits = (LOGIT_SCALE * (heads.layers["tools"].weight @ row + heads.layers["tools"].bias)).tolist()
        for logit, is_gold in zip(logits, golds, strict=True):
            share = 1 / (1 + np.exp(-logit))
            total -= np.log(share if is_gold else 1 - share)
    loss = task.backward(np.array([0, 1]), np.random.default_rng(0))
    assert loss == pytest.approx(total / 2, rel=1e-4)
