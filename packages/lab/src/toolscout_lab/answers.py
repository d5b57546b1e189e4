"""Answers of several systems to the same requests: files of answers, pairs to compare, and the results of people.

A file of answers holds JSON lines with `id`, `request` and `answer`; `lab downstream --out` writes such lines. They may
belong to several conditions. Each condition is then a system of its own. Files of earlier versions have `task` in place
of `id`, and no `request`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import msgspec

from toolscout.errors import SourceError
from toolscout.types import digest
from toolscout_lab.downstream import UNANSWERED, Episode
from toolscout_lab.judge import JudgeOutcome, Pair, Result
from toolscout_lab.machine import Record

__all__ = [
    "JudgedAnswer",
    "PeopleFile",
    "ResultKey",
    "Systems",
    "collect_answers",
    "pair_answers",
    "read_answers",
    "read_people",
]

REVERSED_RESULTS: Final = {"win": "loss", "tie": "tie", "loss": "win"}

ResultKey = tuple[str, str, str, str]
"""(id, aspect, a, b) of a pair that was judged."""


class JudgedAnswer(msgspec.Struct, frozen=True):
    """The answer of one system to one request."""

    id: str
    request: str
    answer: str


Systems = dict[str, dict[str, JudgedAnswer]]
"""Name of a system → id of a request → its answer."""


def collect_answers(episodes: Sequence[Episode]) -> dict[str, JudgedAnswer]:
    """Collect the answers of one system by id. Requests that the endpoint did not answer are left out."""
    return {
        episode.task: JudgedAnswer(episode.task, episode.request, episode.answer)
        for episode in episodes
        if episode.stopped not in UNANSWERED
    }


def read_answers(file: Path, name: str = "", requests: Mapping[str, str] | None = None) -> Systems:
    """Read the answers in a file, each condition as a system. Requests that an endpoint did not answer are left out.

    Args:
        file: JSON lines.
        name: name of the system; with several conditions the systems are called `name:condition`. Without a name they
            have the names of the conditions.
        requests: id → request, for lines without a request.

    Raises:
        SourceError: naming file and line, for a line that lacks something or repeats an id.
    """
    lines = list(_read_objects(file, "id, request, answer"))
    conditions = {str(line["condition"]) for _, line in lines if "condition" in line}
    systems: Systems = {}
    for number, line in lines:
        answer = _read_answer(f"{file}, line {number}", line, requests or {})
        if line.get("stopped") in UNANSWERED:
            continue
        condition = str(line.get("condition", ""))
        system = f"{name}:{condition}" if name and len(conditions) > 1 else name or condition
        if not system:
            raise SourceError(f"{file}, line {number}: the line has no condition. Name the system: NAME={file}")
        if answer.id in systems.setdefault(system, {}):
            raise SourceError(f"{file}, line {number}: {system} has another answer to {answer.id!r} already")
        systems[system][answer.id] = answer
    return systems


def _read_answer(place: str, line: Record, requests: Mapping[str, str]) -> JudgedAnswer:
    """Read one line of a file of answers. A line without a request takes that of the dataset."""
    id = line.get("id", line.get("task"))
    if id is None or "answer" not in line:
        raise SourceError(f"{place}: expected an object with id, request, answer")
    request = line.get("request", requests.get(str(id)))
    if request is None:
        raise SourceError(
            f"{place}: the request is missing. Name the dataset with --queries, or write the file again with  "
            "toolscout lab downstream --out"
        )
    return JudgedAnswer(str(id), str(request), str(line["answer"]))


def pair_answers(systems: Mapping[str, Mapping[str, JudgedAnswer]]) -> list[Pair]:
    """Pair the answers of every two systems to the same request."""
    return [
        Pair(id, a, b, systems[a][id].answer, systems[b][id].answer, systems[a][id].request)
        for a, b in itertools.combinations(systems, 2)
        for id in systems[a]
        if id in systems[b]
    ]


# --- people -----------------------------------------------------------------------------------------------------------


class PeopleFile:
    """The results that people gave, in a file of JSON lines. `lab judge --people` reads the same lines.

    Each result is written at once, with a digest of the texts that were compared. If the texts are other ones later,
    the result no longer counts.
    """

    def __init__(self, file: Path, pairs: Sequence[Pair], aspects: Sequence[str]) -> None:
        """Read the results so far.

        Raises:
            SourceError: naming file and line.
        """
        self.file, self.pairs, self.aspects = file, pairs, aspects
        self.results = read_people(file, pairs) if file.is_file() else {}

    def list_waiting(self) -> list[tuple[Pair, str]]:
        """List the pairs and aspects without a result, all aspects of a pair together."""
        return [
            (pair, aspect)
            for pair in self.pairs
            for aspect in self.aspects
            if (pair.id, aspect, pair.a, pair.b) not in self.results
        ]

    def decide(self, pair: Pair, aspect: str, result: Result) -> None:
        """Write the result of `a`."""
        row = {"id": pair.id, "aspect": aspect, "a": pair.a, "b": pair.b, "result": result, "texts": _hash_texts(pair)}
        with self.file.open("ab") as stream:
            stream.write(msgspec.json.encode(row) + b"\n")
        self.results[pair.id, aspect, pair.a, pair.b] = result

    def list_outcomes(self) -> list[JudgeOutcome]:
        """List the results as outcomes, without the pairs that wait."""
        keys = [(pair.id, aspect, pair.a, pair.b) for aspect in self.aspects for pair in self.pairs]
        return [
            JudgeOutcome(id, a, b, aspect, self.results[id, aspect, a, b])
            for id, aspect, a, b in keys
            if (id, aspect, a, b) in self.results
        ]


def read_people(file: Path, pairs: Sequence[Pair]) -> dict[ResultKey, Result]:
    """Read the results that people gave, as seen from `a` of each pair.

    A line may leave out a and b if only two systems are compared, and may name them in either order. A line with a
    digest of other texts than those of `pairs` does not count.

    Raises:
        SourceError: naming file and line.
    """
    compared = list(dict.fromkeys((pair.a, pair.b) for pair in pairs))
    texts = {(pair.id, pair.a, pair.b): _hash_texts(pair) for pair in pairs}
    results: dict[ResultKey, Result] = {}
    for number, line in _read_objects(file, "id, aspect, result"):
        place = f"{file}, line {number}"
        if not {"id", "aspect", "result"} <= line.keys():
            raise SourceError(f"{place}: expected an object with id, aspect, result")
        a, b, result = _read_result(place, line, compared)
        right_texts = texts.get((str(line["id"]), a, b))
        if right_texts is None or line.get("texts", right_texts) == right_texts:
            results[str(line["id"]), str(line["aspect"]), a, b] = result
    return results


def _read_result(place: str, line: Record, compared: Sequence[tuple[str, str]]) -> tuple[str, str, Result]:
    """Return the two systems that a person compared, in the order of `compared`, and the result of the first.

    Raises:
        SourceError: for another result or other systems.
    """
    result = "loss" if line["result"] == "lose" else str(line["result"])
    if result not in REVERSED_RESULTS:
        raise SourceError(f"{place}: expected the result win, tie or loss, found {result!r}")
    if len(compared) == 1 and "a" not in line and "b" not in line:
        return (*compared[0], cast(Result, result))
    a, b = str(line.get("a")), str(line.get("b"))
    if (a, b) in compared:
        return a, b, cast(Result, result)
    if (b, a) in compared:
        return b, a, cast(Result, REVERSED_RESULTS[result])
    expected = ", ".join(f"{one} and {other}" for one, other in compared)
    raise SourceError(f"{place}: expected as a and b two systems that are compared ({expected}), found {a} and {b}")


def _hash_texts(pair: Pair) -> str:
    return digest("people/1", [pair.request, pair.text_a, pair.text_b])[:12]


def _read_objects(file: Path, keys: str) -> Iterator[tuple[int, Record]]:
    """Yield (line number, object) of JSON lines. `keys` names what an object should have.

    Raises:
        SourceError: naming file and line.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise SourceError(f"{file}: the file cannot be read ({error.strerror}). Check its path") from None
    for number, line in enumerate(lines, 1):
        try:
            yield number, msgspec.json.decode(line, type=Record)
        except msgspec.MsgspecError:
            raise SourceError(f"{file}, line {number}: expected an object with {keys}") from None
