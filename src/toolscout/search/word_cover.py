"""Tells which words of a request the tools have, and keeps the last places for words that no earlier tool has.

Requests often hold needs that no mark separates: "export the interpolated values of the angles in radians as text". The
first tools then repeat each other's words, and the tool for a word that is said once stands behind them. So from the
ninth place on, the first tool comes next that scores enough BM25 points with words that none before it has, if its
vector is also among the nearest to these words together. Without vectors its points must be more: tools that share no
more than a name or a number with the rest of the request stay where they are. Verbs ("confirm", "check"), the labels of
values ("verification code 7788") and a text pasted before the query ("EMAIL: …
query: …") bring no tool: they name no need by themselves, but hold words that no tool before has.

The numbers were chosen on train and dev requests of eight datasets (benchmarks/LAB.md). Fewer points move tools where
the right ones share their object ("query and book a train"); word cover at earlier places does too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from toolscout.search.steps.words import PASTED_TEXT, VERBS
from toolscout.types import Hit

__all__ = ["FIRST_COVER_PLACE", "Compare", "WordTable", "Words", "cover_words", "read_words"]

FIRST_COVER_PLACE: Final = 8  # from 0: so many tools keep their places
LAST_COVER_PLACE: Final = 10  # after it all tools keep their order
MIN_NEW_POINTS: Final = 3.0  # of BM25, by words that no tool before has
MIN_NEAR_POINTS: Final = 2.0  # the same, for a tool that is near to the words
NEAR_TOOLS: Final = 5  # hits that count as near
MAX_COVER_HITS: Final = 60  # hits whose words are read, and that may move up

_LABEL: Final = re.compile(  # up to two words before a value: "train number T12306", "password is abc123"
    r"(?:\b[A-Za-z]{1,30}\s{1,3})?\b[A-Za-z]{1,30}(?:\s{1,3}(?:is|of|as|are|was))?[\s:#=('\"“]{1,4}"
    r"(?=[A-Za-z]{0,30}-?\d)"
)
_PASTED: Final = re.compile(PASTED_TEXT, re.IGNORECASE)
_TOKEN: Final = re.compile(r"[\w'’-]+")


Compare = Callable[[str, Sequence[str]], npt.NDArray[Any]]
"""A text, ids of tools → how near the vector of each is, (tools,)."""


class Words(Protocol):
    """Compares the words of a text with those of tools: a BM25 index."""

    def score_terms(self, query: str, ids: Sequence[str]) -> npt.NDArray[Any]:
        """Return the points of each known word for each tool, (words, tools)."""
        ...

    def mass(self, query: str) -> tuple[float, float]:
        """Return what a text can score at most, and the share of its words that some tool has."""
        ...

    def weigh_query(self, query: str) -> Mapping[str, float]:
        """Return the weight of each known term of a text, in the order of `score_terms`."""
        ...


class WordTable(NamedTuple):
    """Which words of a request the first hits have.

    Attributes:
        points: of each word that some tool has, for each hit, (words, hits).
        request_points: the same, without the words that only pasted texts have.
        columns: id of a hit → its column.
        known_share: share of the words of the request that some tool has; None: the request has no words that count.
        request: the request without pasted texts, verbs and labels, whose words `request_points` has.
    """

    points: npt.NDArray[Any]
    request_points: npt.NDArray[Any]
    columns: Mapping[str, int]
    known_share: float | None
    request: str = ""

    def share(self, hits: Sequence[Hit]) -> list[float]:
        """Return after each hit the share of the words that it or one before has; nothing if there are no words."""
        if self.known_share is None:
            return []
        columns = [self.columns[hit.id] for hit in hits if hit.id in self.columns]
        if not len(self.points):
            return [0.0] * len(columns)
        has = np.logical_or.accumulate(self.points[:, columns] > 0, axis=1)
        return (self.known_share * has.mean(axis=0)).tolist()  # type: ignore[no-any-return]


def read_words(query: str, hits: Sequence[Hit], words: Words) -> WordTable:
    """Compare the words of a request with its first hits. Verbs and labels of values are left out."""
    text, ids = _keep_objects(query), [hit.id for hit in hits[:MAX_COVER_HITS]]
    points, (most, known_share) = words.score_terms(text, ids), words.mass(text)
    request = _keep_objects(_PASTED.sub(" ", query))
    request_points = points if request == text else words.score_terms(request, ids)
    columns = {tool_id: column for column, tool_id in enumerate(ids)}
    return WordTable(points, request_points, columns, known_share if most else None, request)


def cover_words(
    hits: tuple[Hit, ...],
    table: WordTable,
    k: int | None = None,
    words: Words | None = None,
    compare: Compare | None = None,
) -> tuple[Hit, ...]:
    """Return the hits with tools for uncovered words moved up to the last places.

    Args:
        hits: best first.
        table: of these hits.
        k: how many hits are wanted; None: all.
        words: that the table was read with.
        compare: compares the uncovered words with tools. None, or without `words`: the points alone decide.

    Returns:
        All hits, with scores that never rise. Places keep their coverage, since a hit that moves up changes hardly more
        than the chance of one tool.
    """
    last = LAST_COVER_PLACE if k is None else min(k, LAST_COVER_PLACE)
    if len(hits) <= FIRST_COVER_PLACE or last <= FIRST_COVER_PLACE:
        return hits
    if words is None or compare is None:
        order = _choose_order(table.request_points, last, MIN_NEW_POINTS)
    else:
        near = _find_near(table, words, compare)
        order = _choose_order(table.request_points, last, MIN_NEAR_POINTS, near) if len(near) else []
    if order == sorted(order):
        return hits
    moved = [hits[place] for place in order]
    moved += hits[len(order) :]
    return _keep_falling(hits, moved)


def _keep_objects(query: str) -> str:
    """Return a request without its verbs and without the labels of values."""
    return _TOKEN.sub(lambda match: "" if match[0].lower() in VERBS else match[0], _LABEL.sub(" ", query))


def _find_near(table: WordTable, words: Words, compare: Compare) -> npt.NDArray[Any]:
    """Return the places of the hits that are near to the words that none of the first has; none if none may move up."""
    is_covered = np.asarray((table.request_points[:, :FIRST_COVER_PLACE] > 0).any(axis=1))
    if not (table.request_points[~is_covered, FIRST_COVER_PLACE:].sum(axis=0) >= MIN_NEAR_POINTS).any():
        return np.zeros(0, dtype=np.intp)
    covered = {term for term, has in zip(words.weigh_query(table.request), is_covered, strict=True) if has}
    rest = [word for word in _TOKEN.findall(table.request) if words.mass(word)[0]]
    uncovered = " ".join([word for word in rest if covered.isdisjoint(words.weigh_query(word))])
    return np.argsort(-compare(uncovered, [*table.columns]), kind="stable")[:NEAR_TOOLS]


def _choose_order(
    table: npt.NDArray[Any], last: int, least: float, allowed: npt.NDArray[Any] | None = None
) -> list[int]:
    """Return the places of the hits in their new order; `allowed`: the places of those that may move up."""
    may_move = np.ones(table.shape[1], dtype=bool) if allowed is None else np.isin(np.arange(table.shape[1]), allowed)
    chosen, left = list(range(FIRST_COVER_PLACE)), list(range(FIRST_COVER_PLACE, table.shape[1]))
    uncovered = ~(table[:, chosen] > 0).any(axis=1)
    while len(chosen) < last and left:
        enough = (table[uncovered][:, left].sum(axis=0) >= least) & may_move[left]
        place = left.pop(int(np.argmax(enough)))  # the first that has enough, or the first of all
        chosen.append(place)
        uncovered &= table[:, place] <= 0
    return [*chosen, *left]


def _keep_falling(before: Sequence[Hit], after: Sequence[Hit]) -> tuple[Hit, ...]:
    """Return the hits after the move: no score rises, and each place keeps its coverage."""
    lowest, finished = after[0].score, []
    for hit, replaced in zip(after, before, strict=True):
        lowest = min(lowest, hit.score)
        if hit is not replaced or hit.score > lowest:
            hit = Hit(hit.id, lowest, hit.why, hit.tool, hit.step, hit.role, hit.similar, replaced.coverage)
        finished.append(hit)
    return tuple(finished)
