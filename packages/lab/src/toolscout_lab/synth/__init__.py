"""Builds datasets of queries that a language model writes for existing tools; the parts that all builders share.

An attempt depends only on the seed and on the queries accepted in earlier rounds, and replies are cached by the content
of their requests. So an interrupted build can be started again: it asks only for missing replies, and writes the same
files.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

import toolscout
from toolscout.checks.results import write_json
from toolscout.dataset import QRELS_HEADER
from toolscout.errors import BadReply, ConfigError
from toolscout.types import Tool, digest
from toolscout_lab.llm import LLM
from toolscout_lab.llm.prompts import version
from toolscout_lab.machine import Record
from toolscout_lab.progress import Progress, Say, ignore
from toolscout_lab.synth.filters import Sieve, summarise_lengths

__all__ = [
    "Build",
    "Builder",
    "Dropped",
    "SynthQuery",
    "build",
    "chance",
    "examples",
    "filler",
    "load_instructions",
    "refuse_other",
    "write_dataset",
]

ATTEMPTS_PER_ROUND: Final = 32
MAX_ATTEMPTS_PER_QUERY: Final = 4  # attempts for each query that is wanted
TEST_HASH_BELOW: Final = 26


class SynthQuery(msgspec.Struct, frozen=True):
    """A query, the ids of its gold tools, and the steps that led to it."""

    query: str
    gold: tuple[str, ...]
    steps: Mapping[str, object] = {}


class Dropped(Exception):
    """Raised by a failed attempt, with the reason in one word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Builder(Protocol):
    """Makes the queries of a dataset.

    Attributes:
        name: name of the builder.
        tools: the corpus.
        prompts: names of its prompts.
        settings: values that decide how its queries come out, for the report and the origin of each query.
        drops: reason → tools that were dropped before the first attempt.
    """

    name: str
    tools: Sequence[Tool]
    prompts: Sequence[str]
    settings: Mapping[str, object]
    drops: Counter[str]

    def attempt(self, llm: LLM, number: int, examples: Sequence[Record]) -> SynthQuery:
        """Make one query.

        Raises:
            Dropped, BadReply: if the attempt failed.
        """
        ...


@dataclasses.dataclass
class Build:
    """The outcome of a build.

    Attributes:
        drafts: number of the attempt → its query.
        drops: reason → number of dropped attempts and tools.
        attempts: number of attempts.
    """

    drafts: dict[int, SynthQuery] = dataclasses.field(default_factory=dict)
    drops: Counter[str] = dataclasses.field(default_factory=Counter)
    attempts: int = 0


def _read_packaged(file: str) -> Any:
    return json.loads((resources.files("toolscout_lab.synth") / file).read_text(encoding="utf-8"))


def examples(kind: str) -> list[Record]:
    """Load the packaged examples of `toolbank`, `polish` or `toollens`."""
    examples_of_kind: list[Record] = _read_packaged("examples.json")[kind]
    return examples_of_kind


def load_instructions(name_or_file: str) -> str:
    """Load further instructions for a builder: packaged ones (`numpy`, `pandas`, `boto3`), or a text file.

    Raises:
        ConfigError: if there is neither.
    """
    packaged: dict[str, str] = _read_packaged("instructions.json")
    if name_or_file in packaged:
        return packaged[name_or_file]
    try:
        return Path(name_or_file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        names = ", ".join(packaged)
        raise ConfigError(f"expected instructions for {names}, or a text file, found {name_or_file!r}") from None


def chance(*of: object) -> random.Random:
    """Return a random generator seeded by these values."""
    return random.Random(int(digest("synth/1", list(of))[:16], 16))


def filler(source: random.Random, tools: Sequence[Tool], count: int) -> str:
    """Return as many words as a query has, taken from descriptions of tools, to estimate the cost."""
    words = [word for tool in tools for word in tool.description.split()[:60] if word.isalpha()] or ["something"]
    return " ".join(source.choice(words) for _ in range(count)).lower()


def build(builder: Builder, llm: LLM, wanted: int, *, held_out: Sequence[str] = (), say: Say = ignore) -> Build:
    """Let a language model write queries until `wanted` of them pass the filters, or `wanted` x 4 attempts were made.

    Args:
        builder: makes the attempts.
        llm: the language model that the builder asks.
        wanted: number of queries.
        held_out: texts that must not be written again, such as those of a test set.
        say: called with progress messages.

    Raises:
        OverBudget, Unavailable: replies so far stay in the cache; a new build continues from there.
    """
    shown = [example["query"] for kind in ("toolbank", "polish", "toollens") for example in examples(kind)]
    sieve = Sieve(builder.tools, known=shown, held_out=held_out)
    done = Build(drops=Counter(builder.drops))
    pool: list[Record] = []
    progress = Progress(say, "queries", wanted)

    def attempt(number: int) -> SynthQuery | str:
        try:
            return builder.attempt(llm, number, tuple(pool))
        except (Dropped, BadReply) as error:
            return error.reason

    while len(done.drafts) < wanted and done.attempts < wanted * MAX_ATTEMPTS_PER_QUERY:
        numbers = range(done.attempts, done.attempts + min(ATTEMPTS_PER_ROUND, wanted - len(done.drafts)))
        for number, draft in zip(numbers, llm.map(attempt, numbers), strict=True):
            reason = draft if isinstance(draft, str) else sieve.refuses(draft.query, draft.gold)
            if reason is not None:
                done.drops[reason] += 1
            elif isinstance(draft, SynthQuery):
                done.drafts[number] = draft
            progress.show(len(done.drafts), f", {sum(done.drops.values()):,} dropped")
        done.attempts = numbers.stop
        pool = [{"tools": list(draft.gold), "query": draft.query} for draft in done.drafts.values()]
    return done


# --- the folder -------------------------------------------------------------------------------------------------------


def write_dataset(folder: Path, builder: Builder, done: Build, *, seed: int, model: str, wanted: int) -> Record:
    """Write corpus, queries, qrels (a tenth is test), report.json and README.md. Returns the report.

    Equal builds give equal bytes.

    Args:
        folder: of the dataset.
        builder: made the queries; its settings go into the report.
        done: the queries, and what was dropped.
        seed: of the build.
        model: name of the language model.
        wanted: how many queries were asked for.

    Raises:
        ConfigError: if the folder holds something else, or nothing was made.
    """
    if not done.drafts:
        raise ConfigError(f"{folder}: no query is left. Dropped: {describe_drops(done.drops)}")
    refuse_other(folder)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    origin = {
        "builder": builder.name,
        "toolscout": toolscout.__version__,
        "model": model,
        "seed": seed,
        "settings": dict(builder.settings),
        "prompts": {name: version(name) for name in builder.prompts},
    }
    ids = {number: f"{builder.name}-{number:06d}" for number in done.drafts}
    write_lines(folder / "corpus.jsonl", map(_make_corpus_entry, builder.tools))
    write_lines(
        folder / "queries.jsonl",
        (
            {
                "_id": ids[number],
                "text": draft.query,
                "metadata": {"kind": builder.name, "attempt": number, "steps": draft.steps, "origin": origin},
            }
            for number, draft in done.drafts.items()
        ),
    )
    for split in ("train", "test"):
        rows = [
            f"{ids[number]}\t{tool}\t1"
            for number, draft in done.drafts.items()
            if (split == "test") == _is_test(ids[number])
            for tool in draft.gold
        ]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["\t".join(QRELS_HEADER), *rows]) + "\n")
    report = {**origin, "wanted": wanted, **_describe_build(builder.tools, done)}
    write_json(folder / "report.json", report)
    (folder / "README.md").write_text(
        f"# A dataset written by a language model ({report['builder']})\n\n"
        f"{report['queries']:,} queries over {report['tools']:,} tools, {100 * report['coverage']:.0f} % of which some "
        f"query needs. Written by `{report['model']}` with toolscout {report['toolscout']}, seed {report['seed']}; "
        "nobody has checked that the gold tools are the right ones. A tenth of the queries is `test`.\n\n"
        f"Dropped: {describe_drops(report['drops'])}. Everything else is in `report.json`, and how each query came "
        "to be in its metadata.\n"
    )
    return report


def _is_test(query: str) -> bool:
    """Return whether a query belongs to test, which is a tenth by a hash of its id."""
    return int(digest("synth/test", query)[:2], 16) < TEST_HASH_BELOW


def refuse_other(folder: Path) -> None:
    """Refuse a folder that a builder did not write.

    Raises:
        ConfigError: if the folder holds other files.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "report.json").is_file():
        raise ConfigError(f"{folder} holds other files. Choose an empty folder, or one that `synth` wrote.")


def write_lines(file: Path, rows: Iterable[object]) -> None:
    """Write JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _make_corpus_entry(tool: Tool) -> dict[str, object]:
    place: dict[str, object] = {key: tool.meta[key] for key in ("module", "qualname", "examples") if key in tool.meta}
    return {
        "_id": tool.id,
        "title": tool.name,
        "text": tool.description,
        "metadata": {"path": list(tool.path), "parameters": tool.parameters, "source": tool.source, **place},
    }


def _describe_build(tools: Sequence[Tool], done: Build) -> Record:
    """Describe a build without labels: drops, lengths, coverage, tools that occur together."""
    golds = [draft.gold for draft in done.drafts.values()]
    used = Counter(tool for gold in golds for tool in gold)
    pairs = Counter(pair for gold in golds for pair in itertools.combinations(sorted(gold), 2))
    return {
        "queries": len(done.drafts),
        "attempts": done.attempts,
        "drops": dict(sorted(done.drops.items())),
        "words": summarise_lengths([draft.query for draft in done.drafts.values()]),
        "tools": len(tools),
        "tools_used": len(used),
        "coverage": round(len(used) / max(1, len(tools)), 4),
        "most_used": used.most_common(5),
        "tools_per_query": dict(sorted(Counter(map(len, golds)).items())),
        "pairs": len(pairs),
        "pairs_seen_again": sum(count > 1 for count in pairs.values()),
        "most_paired": [[*pair, count] for pair, count in pairs.most_common(5)],
    }


def describe_drops(drops: Mapping[str, int], nothing: str = "no attempt was made") -> str:
    """List the reasons with their numbers."""
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(drops.items())) or nothing
