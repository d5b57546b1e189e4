from __future__ import annotations

import pytest

import lessons
from tiny import tiny_bert
from toolscout.dataset import Dataset
from toolscout.recipes.fit import Lesson, make_lesson
from toolscout.sources.folder import read_tools


@pytest.fixture(scope="session")
def slang(tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    dataset = Dataset.load(lessons.write(tmp_path_factory.mktemp("data")))
    return make_lesson(dataset, read_tools(dataset.folder, "d").tools, dataset.texts("test"))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a random encoder, wide enough to learn the slang by heart."""
    pytest.importorskip("torch")
    return str(tiny_bert(tmp_path_factory.mktemp("bert") / "tiny", width=32))
