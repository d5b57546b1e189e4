"""Turns the journal into a dataset of requests and used tools, split by time into train, dev and test.

The newest requests are held out, because a model must serve future requests. A tool that train uses only once is left
out of train, because a single call may be a mistake. The grades are weights from `toolscout.home.journal.evidence`. A
query has the id `q` and the journal row of its search, such as `q7`.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.dataset import Dataset, Qrels
from toolscout.home.journal.evidence import Example
from toolscout.rankers.lesson import Lesson
from toolscout.types import Tool

__all__ = ["Traffic", "split_by_time"]

TEST_SHARE: Final = 0.2
MAX_TEST_REQUESTS: Final = 2_000
DEV_SHARE: Final = 0.1
MAX_DEV_REQUESTS: Final = 1_000
MIN_TOOL_USES: Final = 2
MAX_SOURCE_LABELS: Final = 20  # the most frequent sources; requests of the others share a label
JOURNAL_SOURCE: Final = "journal"


class Traffic(NamedTuple):
    """The requests of the journal, split by time.

    Attributes:
        dataset: all requests as a dataset.
        lesson: what a fit may see. Its tools are named `journal/` and their id, because models drop the first part.
        test: query id → tool id → weight, for the test requests.
        callers: query id → caller, for the test requests.
        earlier: the examples of train and dev, oldest first.
        groups: slice → query id → label, for the test requests.
        unknown: number of uses that were left out because their tools are not in the catalogue.
        unsupported: number of tools that were left out of train because it uses them only once.
    """

    dataset: Dataset
    lesson: Lesson
    test: Qrels
    callers: dict[str, str]
    earlier: Sequence[Example]
    groups: dict[str, dict[str, str]]
    unknown: int
    unsupported: int

    def write(self, folder: Path) -> None:
        """Write the dataset folder (docs/reference/formats.md), whole or not at all. It replaces the former one.

        The tools have their ids of the catalogue.
        """
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "qrels").mkdir(parents=True)
        _write_json_lines(partial / "corpus.jsonl", map(_describe_tool, self.lesson.tools))
        queries = self.dataset.queries
        _write_json_lines(partial / "queries.jsonl", ({"_id": query, "text": text} for query, text in queries.items()))
        for split, qrels in self.dataset.qrels.items():
            rows = [f"{query}\t{tool}\t{grade:g}" for query, gold in qrels.items() for tool, grade in gold.items()]
            text = "\n".join(["query-id\tcorpus-id\tscore", *rows])
            (partial / "qrels" / f"{split}.tsv").write_text(f"{text}\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        partial.replace(folder)


def split_by_time(examples: Sequence[Example], tools: Sequence[Tool], folder: Path) -> Traffic:
    """Split examples, oldest first, into train, dev and test. Uses of tools that the catalogue lacks are left out.

    `folder` is where the dataset will be written.
    """
    tool_ids = tuple(sorted(tool.id for tool in tools))
    usable, unknown = _keep_catalogue_tools(examples, set(tool_ids))
    n_test = min(MAX_TEST_REQUESTS, int(TEST_SHARE * len(usable)))
    n_dev = min(MAX_DEV_REQUESTS, int(DEV_SHARE * len(usable)))
    n_earlier = len(usable) - n_test
    earlier, newest = usable[:n_earlier], usable[n_earlier:]
    train, dev = earlier[: n_earlier - n_dev], earlier[n_earlier - n_dev :]
    train_qrels, unsupported = _keep_supported_tools(train)
    qrels = {
        "train": train_qrels,
        "dev": {_make_id(example): example.tools for example in dev},
        "test": {_make_id(example): example.tools for example in newest},
    }
    queries = {_make_id(example): example.query for example in usable}
    no_metadata: dict[str, dict[str, Any]] = {query: {} for query in queries}
    dataset = Dataset(folder, JOURNAL_SOURCE, queries, no_metadata, qrels, tool_ids)
    return Traffic(
        dataset=dataset,
        lesson=_make_lesson(dataset, tools),
        test=qrels["test"],
        callers={_make_id(example): example.caller for example in newest},
        earlier=earlier,
        groups=_group_requests(dataset, newest),
        unknown=unknown,
        unsupported=unsupported,
    )


def _keep_catalogue_tools(examples: Sequence[Example], tool_ids: set[str]) -> tuple[list[Example], int]:
    """Leave out tools that the catalogue lacks, and examples that used no other. Return how many uses were left out."""
    kept = [msgspec.structs.replace(example, tools=_keep_tools(example, tool_ids)) for example in examples]
    unknown = sum(len(example.tools) for example in examples) - sum(len(example.tools) for example in kept)
    return [example for example in kept if example.tools], unknown


def _make_lesson(dataset: Dataset, tools: Sequence[Tool]) -> Lesson:
    """Make the lesson from train and dev, with the tools under the source `journal`."""
    journal_ids = {tool.id: f"{JOURNAL_SOURCE}/{tool.id}" for tool in tools}
    journal_tools = [msgspec.structs.replace(tool, id=journal_ids[tool.id]) for tool in tools]
    return Lesson(
        name=JOURNAL_SOURCE,
        tools=sorted(journal_tools, key=lambda tool: tool.id),
        texts=dataset.queries,
        train=_rename_tools(dataset.qrels["train"], journal_ids),
        dev=_rename_tools(dataset.qrels["dev"], journal_ids),
    )


def _keep_supported_tools(train: Sequence[Example]) -> tuple[Qrels, int]:
    """Return train without tools that it uses less than `MIN_TOOL_USES` times, and the number of these tools."""
    uses = Counter(tool for example in train for tool in example.tools)
    supported = {tool for tool, count in uses.items() if count >= MIN_TOOL_USES}
    qrels = {_make_id(example): _keep_tools(example, supported) for example in train}
    return {query: gold for query, gold in qrels.items() if gold}, len(uses) - len(supported)


def _make_id(example: Example) -> str:
    return f"q{example.row}"


def _keep_tools(example: Example, tools: set[str]) -> dict[str, float]:
    """Return the weights of those of an example's tools that are in `tools`."""
    return {tool: round(weight, 4) for tool, weight in example.tools.items() if tool in tools}


def _rename_tools(qrels: Qrels, new_ids: dict[str, str]) -> Qrels:
    return {query: {new_ids[tool]: grade for tool, grade in gold.items()} for query, gold in qrels.items()}


def _group_requests(dataset: Dataset, newest: Sequence[Example]) -> dict[str, dict[str, str]]:
    """Label the test requests by number of tools, length, and source of the first used tool by id.

    A slice with one label for all requests is left out.
    """
    if not newest:
        return {}
    sources = {_make_id(example): min(example.tools).partition("/")[0] for example in newest}
    common = {source for source, _ in Counter(sources.values()).most_common(MAX_SOURCE_LABELS)}
    source_labels = {query: source if source in common else "other" for query, source in sources.items()}
    groups = {**dataset.groups("test"), "source": source_labels}
    return {name: labels for name, labels in groups.items() if len(set(labels.values())) > 1}


def _describe_tool(tool: Tool) -> dict[str, object]:
    """Return the line of a tool in `corpus.jsonl`. Its id loses the source `journal` that the lesson gave it."""
    metadata = {"path": tool.path, "parameters": tool.parameters}
    return {"_id": tool.id.partition("/")[2], "title": tool.name, "text": tool.description, "metadata": metadata}


def _write_json_lines(file: Path, rows: Any) -> None:
    with file.open("wb") as stream:
        for row in rows:
            stream.write(msgspec.json.encode(row) + b"\n")
