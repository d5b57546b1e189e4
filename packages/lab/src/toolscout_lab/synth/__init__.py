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
from collections.abc import Callable, Mapping, Sequence
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
from toolscout_lab.synth.filters import Sieve, summarise_lengths

__all__ = [
    "Build",
    "Builder",
    "Draft",
    "Dropped",
    "build",
    "chance",
    "examples",
    "filler",
    "load_instructions",
    "write_dataset",
]

ATTEMPTS_PER_ROUND: Final = 32
MAX_ATTEMPTS_PER_QUERY: Final = 4  # attempts for each query that is wanted
TEST_HASH_BELOW: Final = 26


class Draft(msgspec.Struct, frozen=True):
    """A query, the ids of its gold tools, and the steps that led to it."""

    query: str
    gold: tuple[str, ...]
    steps: dict[str, Any] = {}


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
    settings: Mapping[str, Any]
    drops: Counter[str]

    def attempt(self, llm: LLM, number: int, examples: Sequence[Mapping[str, Any]]) -> Draft:
        """Make one query.

        Raises:
            Dropped: if the attempt failed.
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

    drafts: dict[int, Draft] = dataclasses.field(default_factory=dict)
    drops: Counter[str] = dataclasses.field(default_factory=Counter)
    attempts: int = 0


def examples(kind: str) -> list[dict[str, Any]]:
    """Load the packaged examples of `toolbank`, `polish` or `toollens`."""
    text = (resources.files("toolscout_lab.synth") / "examples.json").read_text(encoding="utf-8")
    examples_of_kind: list[dict[str, Any]] = json.loads(text)[kind]
    return examples_of_kind


def load_instructions(name_or_file: str) -> str:
    """Load further instructions for a builder: packaged ones (`numpy`, `pandas`, `boto3`), or a text file.

    Raises:
        ConfigError: if there is neither.
    """
    text = (resources.files("toolscout_lab.synth") / "instructions.json").read_text(encoding="utf-8")
    packaged: dict[str, str] = json.loads(text)
    if name_or_file in packaged:
        return packaged[name_or_file]
    try:
        return Path(name_or_file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        names = ", ".join(packaged)
        raise ConfigError(f"expected instructions for {names}, or a text file, found {name_or_file!r}") from None


def chance(*of: Any) -> random.Random:
    """Return a random generator seeded by these values."""
    return random.Random(int(digest("synth/1", list(of))[:16], 16))


def filler(source: random.Random, tools: Sequence[Tool], count: int) -> str:
    """Return as many words as a query has, taken from descriptions of tools, to estimate the cost."""
    words = [word for tool in tools for word in tool.description.split()[:60] if word.isalpha()] or ["something"]
    return " ".join(source.choice(words) for _ in range(count)).lower()


def build(
    builder: Builder,
    llm: LLM,
    wanted: int,
    *,
    held_out: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Build:
    """Attempt queries in rounds until there are `wanted`, or four attempts for each were made.

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
    pool: list[dict[str, Any]] = []

    def attempt(number: int) -> Draft | str:
        try:
            return builder.attempt(llm, number, tuple(pool))
        except Dropped as dropped:
            return dropped.reason
        except BadReply as error:
            return error.reason

    while len(done.drafts) < wanted and done.attempts < wanted * MAX_ATTEMPTS_PER_QUERY:
        numbers = range(done.attempts, done.attempts + min(ATTEMPTS_PER_ROUND, wanted - len(done.drafts)))
        for number, draft in zip(numbers, list(llm.map(attempt, numbers)), strict=True):
            reason = draft if isinstance(draft, str) else sieve.refuses(draft.query, draft.gold)
            if reason is not None:
                done.drops[reason] += 1
            elif isinstance(draft, Draft):
                done.drafts[number] = draft
        done.attempts = numbers.stop
        pool = [{"tools": list(draft.gold), "query": draft.query} for draft in done.drafts.values()]
        say(f"{len(done.drafts):,} of {wanted:,} queries, {sum(done.drops.values()):,} dropped")
    return done


# --- the folder -------------------------------------------------------------------------------------------------------


def write_dataset(folder: Path, builder: Builder, done: Build, *, seed: int, model: str, wanted: int) -> dict[str, Any]:
    """Write corpus, queries, qrels (a tenth is test), report.json and README.md. Returns the report.

    Equal builds give equal bytes.

    Raises:
        ConfigError: if the folder holds something else, or nothing was made.
    """
    if not done.drafts:
        raise ConfigError(f"{folder}: no query is left. Dropped: {_describe_drops(done.drops)}")
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
    lines(folder / "corpus.jsonl", map(_make_corpus_entry, builder.tools))
    lines(
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
            if (split == "test") == in_test(ids[number])
            for tool in draft.gold
        ]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["\t".join(QRELS_HEADER), *rows]) + "\n")
    report = {**origin, "wanted": wanted, **describe_build(builder.tools, done)}
    write_json(folder / "report.json", report)
    (folder / "README.md").write_text(_card(report))
    return report


def in_test(query: str) -> bool:
    """Return whether a query belongs to test, which is a tenth by a hash of its id."""
    return int(digest("synth/test", query)[:2], 16) < TEST_HASH_BELOW


def refuse_other(folder: Path) -> None:
    """Refuse a folder that a builder did not write.

    Raises:
        ConfigError: if the folder holds other files.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "report.json").is_file():
        raise ConfigError(f"{folder} holds other files. Choose an empty folder, or one that `synth` wrote.")


def lines(file: Path, rows: Any) -> None:
    """Write JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _make_corpus_entry(tool: Tool) -> dict[str, Any]:
    place = {key: tool.meta[key] for key in ("module", "qualname", "examples") if key in tool.meta}
    return {
        "_id": tool.id,
        "title": tool.name,
        "text": tool.description,
        "metadata": {"path": list(tool.path), "parameters": tool.parameters, "source": tool.source, **place},
    }


def describe_build(tools: Sequence[Tool], done: Build) -> dict[str, Any]:
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


def _describe_drops(drops: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(drops.items())) or "no attempt was made"


def _card(report: Mapping[str, Any]) -> str:
    return (
        f"# A dataset written by a language model ({report['builder']})\n\n"
        f"{report['queries']:,} queries over {report['tools']:,} tools, {100 * report['coverage']:.0f} % of which some "
        f"query needs. Written by `{report['model']}` with toolscout {report['toolscout']}, seed {report['seed']}; "
        "nobody has checked that the gold tools are the right ones. A tenth of the queries is `test`.\n\n"
        f"Dropped: {_describe_drops(report['drops'])}. Everything else is in `report.json`, and how each query came "
        "to be in its metadata.\n"
    )
