"""A dataset whose queries speak otherwise than its tools: only usage tells which tool is meant."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from toolscout.dataset import Dataset, NoTool
from toolscout.learn.fit import FitJob, make_lesson, plan_fit
from toolscout.rankers.lesson import Lesson
from toolscout.search.home_resources import HomeResources
from toolscout.sources.folder import read_tools

TOOLS = {
    "weather/forecast": "Meteorological outlook of a place",
    "mail/send": "Deliver a letter to a recipient",
    "travel/hotel": "Reserve a room",
    "travel/flight": "Reserve a seat in an aeroplane",
    "files/copy": "Duplicate a document",
    "music/play": "Start a song",
}
SLANG = {
    "weather/forecast": ["umbrella", "sunglasses", "raincoat", "snowman"],
    "mail/send": ["drop grandma a line", "ping the boss", "tell everybody", "write to auntie"],
    "travel/hotel": ["somewhere to sleep", "a bed for two", "stay overnight", "sleep downtown"],
    "travel/flight": ["get me off the island", "cross the ocean", "window seat", "across the ocean by noon"],
    "files/copy": ["backup my thesis", "clone this paper", "one more of that", "backup of the report"],
}
BOTH = ["umbrella and somewhere to sleep", "raincoat and a bed for two", "sunglasses and stay overnight"]
FRAMES = ["{}", "please {}", "i want {} now", "could you {} for me"]
QUICK_BASE = {  # of a `dpr` below another recipe, over a random encoder
    "base.epochs": 8,
    "base.batch": 16,
    "base.rate": 0.01,
    "base.precision": "float32",
    "base.threads": 1,
}


def write(root: Path, name: str = "slang", tools: dict[str, str] = TOOLS) -> Path:
    """The folder: every phrase in four frames, two for train, one for dev, one for test; none asks for music/play."""
    folder = root / name
    (folder / "qrels").mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w") as stream:
        for tool, text in tools.items():
            entry = {"_id": tool, "title": tool.partition("/")[2], "text": text, "metadata": {"path": [tool[:4]]}}
            stream.write(json.dumps(entry) + "\n")
    phrases = [(phrase, [tool]) for tool, held in SLANG.items() for phrase in held]
    phrases += [(phrase, ["weather/forecast", "travel/hotel"]) for phrase in BOTH]
    qrels: dict[str, list[tuple[str, str]]] = {"train": [], "dev": [], "test": []}
    with (folder / "queries.jsonl").open("w") as stream:
        for number, (phrase, gold) in enumerate(phrases):
            for variant, frame in enumerate(FRAMES):
                query = f"q{number}-{variant}"
                split = ("train", "train", "dev", "test")[variant]
                stream.write(json.dumps({"_id": query, "text": frame.format(phrase)}) + "\n")
                qrels[split] += [(query, tool) for tool in gold]
    for split, rows in qrels.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"{query}\t{tool}\t1" for query, tool in rows)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@dataclasses.dataclass(frozen=True)
class DatasetLesson(Lesson):
    """A lesson that remembers the dataset it was made from, so that tests can ask for its other splits."""

    dataset: Any = None


def load(folder: Path) -> DatasetLesson:
    """The lesson of a dataset folder; test queries are held out."""
    dataset = Dataset.load(folder)
    lesson = make_lesson(dataset, read_tools(dataset.folder, "d").tools, dataset.texts("test"))
    fields = {field.name: getattr(lesson, field.name) for field in dataclasses.fields(lesson)}
    return DatasetLesson(**fields, dataset=dataset)


def plan(
    name: str,
    lesson: Lesson,
    out: Path,
    *,
    changes: dict[str, Any] | None = None,
    no_tool: NoTool | None = None,
    **workspace: Any,
) -> FitJob:
    """Plan a fit; further arguments are those of `HomeResources`."""
    if no_tool is not None:
        lesson = dataclasses.replace(lesson, no_tool=no_tool)
    return plan_fit(name, lesson, HomeResources(**workspace), out, changes)


def resumed(job: FitJob, **workspace: Any) -> FitJob:
    """The same fit, going on from what an interrupted one left."""
    return dataclasses.replace(job, workspace=dataclasses.replace(job.workspace, resume=True, **workspace))
