"""ToolRerank's three steps over ranked lists (arXiv:2403.06551, section 3): pure functions, no model in sight.

An entry of a list is anything hashable; `tool_of` says what it belongs to, in the paper the tool of an API.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from toolscout.arrays import Array

__all__ = ["concentrate", "diversify", "extend_list", "likely", "truncate"]

Entry = TypeVar("Entry", bound=Hashable)
Family = TypeVar("Family", bound=Hashable)


def truncate(candidates: Sequence[Entry], seen: Callable[[Entry], bool], most_seen: int, most: int) -> list[Entry]:
    """Adaptive truncation (3.2): the first `most_seen` (m_s) of what training saw, the first `most` (m_u) of the rest.

    Args:
        candidates: C, best first; both limits count places in it.
        seen: whether training saw the tool of an entry.
        most_seen: m_s.
        most: m_u.
    """
    return [each for place, each in enumerate(candidates, 1) if place <= (most_seen if seen(each) else most)]


def likely(
    ranked: Sequence[Entry], scores: Sequence[float], tool_of: Callable[[Entry], Family], threshold: float
) -> set[Family]:
    """X of algorithm 1 (lines 1-4): the tool of the first entry, and of each that scores more than τ_s."""
    found = {tool_of(each) for each, score in zip(ranked, scores, strict=True) if score > threshold}
    return found | {tool_of(each) for each in ranked[:1]}


def concentrate(
    ranked: Sequence[Entry], scores: Sequence[float], tool_of: Callable[[Entry], Hashable], threshold: float
) -> list[Entry]:
    """Algorithm 1, for queries that one tool serves: what belongs to a likely tool goes before the rest.

    Args:
        ranked: R, best first.
        scores: of each of them, 0 to 1.
        tool_of: see above.
        threshold: τ_s.
    """
    tools = likely(ranked, scores, tool_of, threshold)
    return sorted(ranked, key=lambda each: tool_of(each) not in tools)


def extend_list(
    ranked: Sequence[str],
    scores: Mapping[str, float],
    tool_of: Callable[[str], Family],
    threshold: float,
    more: Callable[[set[Family]], Mapping[str, float]],
) -> tuple[list[str], Mapping[str, float]]:
    """Algorithm 1 with the extended list: F, and what came in from beyond R, with its scores.

    What `more` brings joins the entries of the likely tools, and these are put in the order of their scores.

    Args:
        ranked: R, best first.
        scores: of each of them, 0 to 1.
        tool_of: see above.
        threshold: τ_s.
        more: the likely tools → their entries that are not in R, with the scores of these.
    """
    values = [scores[each] for each in ranked]
    tools = likely(ranked, values, tool_of, threshold)
    listed, found = concentrate(ranked, values, tool_of, threshold), more(tools)
    if not found:
        return listed, found
    known, inside = {**scores, **found}, sum(tool_of(each) in tools for each in listed)
    first = sorted([*listed[:inside], *found], key=lambda each: (-known[each], each))
    return [*first, *listed[inside:]], found


def diversify(
    ranked: Sequence[Entry],
    tool_of: Callable[[Entry], Hashable],
    similar: Array,
    threshold: float,
    most: int,
) -> list[Entry]:
    """Algorithm 2, for queries that need several tools: the best of each group of like entries before the rest.

    Entries are of one group if a chain leads from one to the other in which neighbours have the same tool or a
    similarity of more than τ_m.

    Args:
        ranked: R, best score first.
        tool_of: see above.
        similar: (l, l): of each two entries, symmetric.
        threshold: τ_m.
        most: n, how many of a group come first.
    """
    numbers: dict[Hashable, int] = {}
    tools = np.array([numbers.setdefault(tool_of(each), len(numbers)) for each in ranked], dtype=np.intp)
    joined = (tools[:, None] == tools) | (similar > threshold)
    left, kept = np.ones(len(ranked), dtype=np.bool_), set[int]()
    for first in range(len(ranked)):
        if not left[first]:
            continue
        group, edge = np.zeros_like(left), np.zeros_like(left)
        edge[first] = True
        while edge.any():
            group |= edge
            edge = joined[edge].any(axis=0) & ~group
        left &= ~group
        kept.update(np.flatnonzero(group)[:most].tolist())
    order = sorted(range(len(ranked)), key=lambda place: place not in kept)
    return [ranked[place] for place in order]
