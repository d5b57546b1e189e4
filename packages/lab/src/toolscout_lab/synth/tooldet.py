"""Builds ToolDet: requests that need no tool but look as if they might (MassTool, section 5).

1. Compare general chat prompts with queries that need a tool. Keep a prompt if its highest cosine is in [0.4, 0.6].
2. A model confirms that the prompt needs no tool.
3. People check the candidates (`toolscout lab synth review`).

The folder holds queries.jsonl for `bench --no-tool`, review.jsonl with the candidates, and decisions.jsonl with the
decisions of people.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

import toolscout
from toolscout.checks.results import write_json
from toolscout.encoders import Encoder
from toolscout.errors import BadReply, ConfigError, NotFound, SourceError
from toolscout.home.database import now
from toolscout_lab.llm import LLM, prompt
from toolscout_lab.llm.prompts import version
from toolscout_lab.machine import Record
from toolscout_lab.progress import Progress, Say, ignore
from toolscout_lab.synth import describe_drops, refuse_other, write_lines
from toolscout_lab.synth.filters import NearDuplicates, summarise_lengths

__all__ = ["SIMILARITY_WINDOW", "Review", "ReviewCandidate", "build", "prompts_of", "sift"]

SIMILARITY_WINDOW: Final = (0.4, 0.6)
VERIFY_BATCH: Final = 64
ENCODE_BATCH: Final = 512
TEST_HASH_BELOW: Final = 26


class NeedVerdict(msgspec.Struct):
    """The model's verdict."""

    needs_tool: bool
    reason: str


class ReviewCandidate(msgspec.Struct, frozen=True):
    """A prompt that may need no tool, the model's `reason`, and its highest cosine with a query that needs tools."""

    id: str
    text: str
    similarity: float
    reason: str = ""


class ReviewDecision(msgspec.Struct, frozen=True):
    """A person's decision on a candidate: `at` which instant (ISO 8601), and `by` whom."""

    id: str
    verdict: Literal["accept", "reject"]
    at: str
    by: str = ""


def prompts_of(file: Path) -> list[str]:
    """Read general chat prompts: the `text` (or `prompt`) of each line of a .jsonl file, or the lines of any other.

    Raises:
        SourceError: naming the line without a prompt.
    """
    try:
        raw = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{file}: expected a file of prompts, found: {type(error).__name__}") from None
    if file.suffix != ".jsonl":
        return [line.strip() for line in raw if line.strip()]
    prompts = []
    for number, line in enumerate(raw, 1):
        try:
            entry = msgspec.json.decode(line)
            text = entry if isinstance(entry, str) else entry.get("text") or entry["prompt"]
        except (msgspec.DecodeError, KeyError, AttributeError):
            raise SourceError(f'{file}, line {number}: expected an object with "text" or "prompt"') from None
        prompts.append(str(text).strip())
    return list(filter(None, prompts))


def sift(
    prompts: Sequence[str], queries: Sequence[str], encoder: Encoder, *, window: tuple[float, float] = SIMILARITY_WINDOW
) -> tuple[list[ReviewCandidate], Counter[str]]:
    """Return the prompts within the window, in order, and counts of those outside it and of duplicates."""
    drops: Counter[str] = Counter()
    seen = NearDuplicates()
    fresh = []
    for text in prompts:
        if text in seen or seen.has_near_duplicate(text):
            drops["duplicate"] += 1
            continue
        seen.add(text)
        fresh.append(text)
    needing = encoder.encode(list(queries), "query")
    candidates = []
    for start in range(0, len(fresh), ENCODE_BATCH):
        batch = fresh[start : start + ENCODE_BATCH]
        nearest = np.max(encoder.encode(batch, "query") @ needing.T, axis=1)
        for text, value in zip(batch, nearest.tolist(), strict=True):
            if value < window[0]:
                drops["too_far"] += 1
            elif value > window[1]:
                drops["too_near"] += 1
            else:
                mark = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
                candidates.append(ReviewCandidate(f"tooldet-{mark}", text, round(value, 4)))
    return candidates, drops


def build(
    candidates: Sequence[ReviewCandidate],
    llm: LLM,
    wanted: int,
    drops: Counter[str],
    *,
    say: Say = ignore,
) -> list[ReviewCandidate]:
    """Ask the model about candidates, and return the first `wanted` that need no tool.

    `drops` counts the rejected ones by reason.

    Raises:
        OverBudget, Unavailable: replies so far stay in the cache; a new build continues from there.
    """

    def verify(candidate: ReviewCandidate) -> ReviewCandidate | str:
        """Ask whether a request needs a tool. Returns the candidate with the reason, or why it is dropped."""
        what = prompt("tooldet_verify", query=candidate.text)
        try:
            reply = llm.ask(
                what, NeedVerdict, example_reply=NeedVerdict(False, "Language alone is enough to answer that.")
            )
        except BadReply as error:
            return error.reason
        return "needs_tool" if reply.needs_tool else msgspec.structs.replace(candidate, reason=reply.reason)

    verified: list[ReviewCandidate] = []
    waiting, progress = iter(candidates), Progress(say, "prompts", wanted)
    while len(verified) < wanted and (
        batch := list(itertools.islice(waiting, min(VERIFY_BATCH, wanted - len(verified))))
    ):
        for outcome in llm.map(verify, batch):
            if isinstance(outcome, str):
                drops[outcome] += 1
            else:
                verified.append(outcome)
            progress.show(len(verified), f", {sum(drops.values()):,} dropped")
    return verified


class Review:
    """The folder of a build, with the decisions of people about its candidates."""

    def __init__(self, folder: Path) -> None:
        """Read a folder that `write` wrote.

        Raises:
            NotFound: if the folder holds no build.
            SourceError: for a damaged line, or a report without the origin of the candidates.
        """
        self.folder = folder
        if not (folder / "review.jsonl").is_file():
            raise NotFound(
                f"{folder}: expected a folder that  toolscout lab synth tooldet  wrote, found no review.jsonl"
            )
        self.candidates = {record.id: record for record in _read_records(folder / "review.jsonl", ReviewCandidate)}
        self.origin = _read_origin(folder / "report.json")
        self.decisions: dict[str, ReviewDecision] = {}
        if (folder / "decisions.jsonl").is_file():
            self.decisions = {record.id: record for record in _read_records(folder / "decisions.jsonl", ReviewDecision)}

    @classmethod
    def write(
        cls,
        folder: Path,
        kept: Sequence[ReviewCandidate],
        drops: Mapping[str, int],
        *,
        model: str,
        window: tuple[float, float],
        wanted: int,
    ) -> Review:
        """Write the candidates of a build for review. Earlier decisions in the folder stay.

        Args:
            folder: of the review.
            kept: the candidates.
            drops: reason → how many prompts were dropped for it.
            model: name of the language model.
            window: least and greatest similarity of a candidate.
            wanted: how many candidates were asked for.

        Raises:
            ConfigError: if the folder holds something else, or nothing was kept.
        """
        if not kept:
            dropped = describe_drops(drops, "none given")
            raise ConfigError(f"{folder}: no prompt that needs no tool is left: {dropped}")
        refuse_other(folder)
        write_lines(folder / "review.jsonl", map(msgspec.to_builtins, kept))
        report = {
            "builder": "tooldet",
            "toolscout": toolscout.__version__,
            "model": model,
            "prompts": {"tooldet_verify": version("tooldet_verify")},
            "window": list(window),
            "wanted": wanted,
            "queries": len(kept),
            "drops": dict(sorted(drops.items())),
            "words": summarise_lengths([record.text for record in kept]),
        }
        write_json(folder / "report.json", report)
        made = cls(folder)
        made.export()
        return made

    def waiting(self) -> Iterator[ReviewCandidate]:
        """Yield the undecided candidates, the most doubtful (nearest to a query that needs a tool) first."""
        left = [candidate for candidate in self.candidates.values() if candidate.id not in self.decisions]
        yield from sorted(left, key=lambda candidate: (-candidate.similarity, candidate.id))

    def decide(self, id: str, verdict: Literal["accept", "reject"], *, by: str = "") -> None:
        """Append a decision to the file at once.

        Raises:
            NotFound: for an id that is no candidate.
        """
        if id not in self.candidates:
            raise NotFound(f"expected the id of a candidate, found {id!r}")
        made = ReviewDecision(id, verdict, now(), by)
        with (self.folder / "decisions.jsonl").open("ab") as stream:
            stream.write(msgspec.json.encode(made) + b"\n")
        self.decisions[id] = made

    def export(self, *, reviewed_only: bool = False) -> int:
        """Write queries.jsonl without rejected candidates, or only accepted ones. Returns the number of queries."""
        rows = []
        for candidate in self.candidates.values():
            decision = self.decisions.get(candidate.id)
            if (decision and decision.verdict == "reject") or (reviewed_only and decision is None):
                continue
            test = hashlib.blake2b(f"test/{candidate.id}".encode()).digest()[0] < TEST_HASH_BELOW
            meta = {
                "kind": "tooldet",
                "split": "test" if test else "dev",
                "similarity": candidate.similarity,
                "reviewed": decision is not None,
                "origin": self.origin,
            }
            rows.append({"_id": candidate.id, "text": candidate.text, "metadata": meta})
        write_lines(self.folder / "queries.jsonl", rows)
        return len(rows)


def _read_origin(report: Path) -> Record:
    """Read from the report of the build the origin that every query records."""
    try:
        origin = msgspec.json.decode(report.read_bytes(), type=Record)
        return {key: origin[key] for key in ("builder", "toolscout", "model", "prompts", "window")}
    except (OSError, KeyError, msgspec.MsgspecError) as error:
        raise SourceError(f"{report}: expected the report of the build, found: {type(error).__name__}") from None


def _read_records(file: Path, kind: type[Any]) -> Iterator[Any]:
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            yield msgspec.json.decode(line, type=kind)
        except msgspec.MsgspecError as error:
            raise SourceError(
                f"{file}, line {number}: expected a {kind.__name__.removeprefix('Review').lower()}, found: {error}"
            ) from None
