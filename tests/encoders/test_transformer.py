from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

from toolscout.config import Settings
from toolscout.encoders import load
from toolscout.errors import ConfigError, MissingExtra


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
    with pytest.raises(ConfigError, match=r"encoder 'nowhere': expected static, .* found none .* folder and not on"):
        load("nowhere", Settings())


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[train\]'"):
        load("minilm", Settings())
