from __future__ import annotations

import pytest

import lessons
from tiny import tiny_bert
from toolscout.recipes.fit import Lesson


@pytest.fixture(scope="session")
def slang(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    return lessons.load(lessons.write(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a random encoder, wide enough to learn the slang by heart."""
    pytest.importorskip("torch")
    return str(tiny_bert(tmp_path_factory.mktemp("bert") / "tiny", width=32))
