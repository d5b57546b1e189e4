"""A fit that was killed at any point goes on to the model that it would have become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lessons

pytest.importorskip("torch")

from toolscout.learn.fit import Lesson, fit
from toolscout.settings import Settings
from toolscout_lab import training
from toolscout_lab.encoders.transformer import TransformerEncoder

TUNED = {"epochs": 3, "batch": 16, "rate": 0.01, "precision": "float32", "threads": 1}
BASE = {f"base.{name}": value for name, value in TUNED.items()}
CASES: dict[str, dict[str, Any]] = {
    "mlc": TUNED,
    "tool2vec-tuned": TUNED,
    "toolrefiner-tool2vec": {**TUNED, **BASE, "candidates": 4},
    "crossencoder": {**TUNED, "base": "dense", "candidates": 4, "length": 24},
    "colt": {**BASE, "epochs": 4, "batch": 16, "length": 4, "threads": 1},
    "masstool": {**BASE, "epochs": 4, "batch": 16, "length": 4, "k": 3, "threads": 1},
}


class Killed(BaseException):
    pass


# The cross-encoder goes through the same loop as `toolrefiner`, and takes longest.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name == "crossencoder" else ()) for name in CASES]
)
def test_a_killed_fit_goes_on_to_the_same_model(
    name: str, slang: Lesson, bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, encoder = Settings(home=tmp_path), TransformerEncoder(bert)
    given: dict[str, Any] = {"encoder": encoder, "changes": CASES[name], "settings": settings}
    whole = fit(lessons.plan(name, slang, tmp_path / "whole", **given))

    job = lessons.plan(name, slang, tmp_path / "killed", **given)
    step, left = training._Loop._train_step, [int(np.random.default_rng().integers(4, 9))]

    def dying(self: Any, *about: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        step(self, *about)

    monkeypatch.setattr(training._Loop, "_train_step", dying)
    with pytest.raises(Killed):
        fit(job)
    monkeypatch.setattr(training._Loop, "_train_step", step)
    assert not (tmp_path / "killed").exists()
    said: list[str] = []
    again = fit(lessons.resumed(job, say=said.append))
    assert any("resuming after" in line for line in said)
    assert again.manifest.metrics == whole.manifest.metrics
    weights = [name for name in whole.manifest.files if name.endswith((".safetensors", ".onnx"))]
    assert weights and all(again.manifest.files[name] == whole.manifest.files[name] for name in weights)
    for key, array in whole.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[key])
