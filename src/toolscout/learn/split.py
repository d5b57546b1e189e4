"""A journal as a dataset folder: what was asked and used, cut by time into train, dev and test.

The newest requests are held out, since it is the coming ones that a model must serve. A tool whose use was seen less
than twice in train teaches nothing there; such a call may be a slip. Grades are the weights of
`toolscout.journal.evidence`.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.dataset import Dataset, Qrels
from toolscout.journal.evidence import Example
from toolscout.methods.lesson import Lesson
from toolscout.types import Tool

__all__ = ["Traffic", "cut"]

HELD_OUT: Final = 0.2
MOST_HELD_OUT: Final = 2_000
DEV: Final = 0.1
MOST_DEV: Final = 1_000
SUPPORT: Final = 2
SOURCE: Final = "journal"


class Traffic(NamedTuple):
    """Requests cut by time.

    Attributes:
        dataset: all of them, as a dataset.
        lesson: what a fit may see; its tools have the source `journal`, so that models know them by their whole ids.
        test: query id → tool id → weight, of the newest.
        callers: query id of the newest → who asked.
        known: the examples before the newest.
        groups: slices of the newest.
        unknown: uses of tools that are not in the catalogue (any more), left out.
        unsupported: tools of train that were used less than twice, left out.
    """

    dataset: Dataset
    lesson: Lesson
    test: Qrels
    callers: dict[str, str]
    known: Sequence[Example]
    groups: dict[str, dict[str, str]]
    unknown: int
    unsupported: int

    def write(self, folder: Path) -> None:
        """Write the dataset folder (docs/formats.md), whole or not at all; ids of tools are those of the catalogue."""
        aside = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(aside, ignore_errors=True)
        (aside / "qrels").mkdir(parents=True)
        entries = (_entry(tool) for tool in self.lesson.tools)
        _lines(aside / "corpus.jsonl", entries)
        queries = self.dataset.queries
        _lines(aside / "queries.jsonl", ({"_id": query, "text": text} for query, text in queries.items()))
        for split, qrels in self.dataset.qrels.items():
            rows = [f"{query}\t{tool}\t{grade:g}" for query, gold in qrels.items() for tool, grade in gold.items()]
            text = "\n".join(["query-id\tcorpus-id\tscore", *rows])
            (aside / "qrels" / f"{split}.tsv").write_text(f"{text}\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        aside.replace(folder)


def cut(examples: Sequence[Example], tools: Sequence[Tool], folder: Path) -> Traffic:
    """Cut examples, the oldest first, for a catalogue; `folder` is where the dataset will lie."""
    known = {tool.id for tool in tools}
    held = [msgspec.structs.replace(each, tools=_of(each, known)) for each in examples]
    unknown = sum(len(each.tools) for each in examples) - sum(len(each.tools) for each in held)
    held = [each for each in held if each.tools]
    n_test = min(MOST_HELD_OUT, int(HELD_OUT * len(held)))
    n_dev = min(MOST_DEV, int(DEV * len(held)))
    before, newest = held[: len(held) - n_test], held[len(held) - n_test :]
    train, dev = before[: len(before) - n_dev], before[len(before) - n_dev :]
    uses = Counter(tool for each in train for tool in each.tools)
    often = {tool for tool, count in uses.items() if count >= SUPPORT}
    qrels = {
        "train": {_id(each): gold for each in train if (gold := _of(each, often))},
        "dev": {_id(each): each.tools for each in dev},
        "test": {_id(each): each.tools for each in newest},
    }
    asked = {_id(each): each.query for each in held}
    ids = tuple(sorted(known))
    dataset = Dataset(folder, SOURCE, asked, {query: {} for query in asked}, qrels, ids)
    own = {tool: f"{SOURCE}/{tool}" for tool in ids}
    renamed = [msgspec.structs.replace(tool, id=own[tool.id]) for tool in tools]
    lesson = Lesson(
        name=SOURCE,
        tools=sorted(renamed, key=lambda tool: tool.id),
        texts=asked,
        train=_renamed(qrels["train"], own),
        dev=_renamed(qrels["dev"], own),
    )
    return Traffic(
        dataset,
        lesson,
        qrels["test"],
        {_id(each): each.caller for each in newest},
        before,
        {name: labels for name, labels in _groups(dataset, newest).items() if len(set(labels.values())) > 1},
        unknown,
        len(uses) - len(often),
    )


def _id(example: Example) -> str:
    return f"q{example.row}"


def _of(example: Example, tools: set[str]) -> dict[str, float]:
    return {tool: round(grade, 4) for tool, grade in example.tools.items() if tool in tools}


def _renamed(qrels: Qrels, own: dict[str, str]) -> Qrels:
    return {query: {own[tool]: grade for tool, grade in gold.items()} for query, gold in qrels.items()}


def _groups(dataset: Dataset, newest: Sequence[Example]) -> dict[str, dict[str, str]]:
    """Slices: how many tools were used, how long the request is, the source of the tool used first."""
    if not newest:
        return {}
    sources = {_id(each): min(each.tools).partition("/")[0] for each in newest}
    common = {source for source, _ in Counter(sources.values()).most_common(20)}
    named = {query: source if source in common else "other" for query, source in sources.items()}
    return {**dataset.groups("test"), "source": named}


def _entry(tool: Tool) -> dict[str, Any]:
    metadata = {"path": tool.path, "parameters": tool.parameters}
    return {"_id": tool.id.partition("/")[2], "title": tool.name, "text": tool.description, "metadata": metadata}


def _lines(file: Path, rows: Any) -> None:
    with file.open("wb") as stream:
        for row in rows:
            stream.write(msgspec.json.encode(row) + b"\n")
