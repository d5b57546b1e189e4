"""crossencoder: pairs of a query and a tool, read together; how it learns, what it writes, and what a deadline does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from toolscout.config import Settings  # noqa: E402
from toolscout.encoders.transformer import TransformerEncoder  # noqa: E402
from toolscout.lab.fit import Lesson, fit, prepared  # noqa: E402
from toolscout.models import Model  # noqa: E402

QUICK = {"epochs": 12, "batch": 16, "rate": 0.01, "fast": 1.0, "patience": 12, "precision": "float32", "threads": 1}


def fitted(slang: Lesson, bert: str, home: Path, **changes: Any) -> Model:
    job = prepared(
        "crossencoder",
        slang,
        home / "out" / f"{len(list(home.glob('out/*')))}",
        encoder=TransformerEncoder(bert),
        changes={"base": "bm25", "candidates": 4, "start": "encoder", **QUICK, **changes},
        settings=Settings(home=home),
    )
    return fit(job)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def model(slang: Lesson, bert: str, home: Path) -> Model:
    return fitted(slang, bert, home, base="neighbours", length=32)


def test_x(model):
    print(model.manifest.values)
    print(model.manifest.metrics)
