"""ToolRerank's three steps over ranked lists (arXiv:2403.06551, section 3), as pure functions without a model.

An entry of a list is anything hashable. `tool_of` maps an entry to its tool; the entries of the paper are APIs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from toolscout.arrays import Array

__all__ = ["concentrate", "diversify", "extend_list", "find_likely", "truncate"]

Entry = TypeVar("Entry", bound=Hashable)
Family = TypeVar("Family", bound=Hashable)


def truncate(
    candidates: Sequence[Entry], seen: Callable[[Entry], bool], max_seen_place: int, max_unseen_place: int
) -> list[Entry]:
    """Truncate adaptively (3.2): keep entries that training saw up to place m_s, others up to place m_u.

    Args:
        candidates: C, best first; both limits are places in it.
        seen: whether training saw the tool of an entry.
        max_seen_place: m_s, counted from 1.
        max_unseen_place: m_u.
    """
    return [
        entry
        for place, entry in enumerate(candidates, 1)
        if place <= (max_seen_place if seen(entry) else max_unseen_place)
    ]


def find_likely(
    ranked: Sequence[Entry], scores: Sequence[float], tool_of: Callable[[Entry], Family], threshold: float
) -> set[Family]:
    """Find X of algorithm 1 (lines 1-4): the likely families.

    Args:
        ranked: the entries R, best first.
        scores: of each entry, 0 to 1.
        tool_of: returns the family of an entry (the paper's "tool").
        threshold: τ_s. The family of the first entry is likely anyway.
    """
    tools = {tool_of(entry) for entry, score in zip(ranked, scores, strict=True) if score > threshold}
    return tools | {tool_of(entry) for entry in ranked[:1]}


def concentrate(
    ranked: Sequence[Entry], scores: Sequence[float], tool_of: Callable[[Entry], Hashable], threshold: float
) -> list[Entry]:
    """Apply algorithm 1, for queries that one tool serves: entries of likely tools go before the rest.

    Args:
        ranked: R, best first.
        scores: of each entry of R, 0 to 1.
        tool_of: returns the family of an entry (the paper's "tool").
        threshold: τ_s.
    """
    tools = find_likely(ranked, scores, tool_of, threshold)
    return sorted(ranked, key=lambda entry: tool_of(entry) not in tools)


def extend_list(
    ranked: Sequence[str],
    scores: Mapping[str, float],
    tool_of: Callable[[str], Family],
    threshold: float,
    score_members: Callable[[set[Family]], Mapping[str, float]],
) -> tuple[list[str], Mapping[str, float]]:
    """Put all entries of the likely tools first, also those that are missing in the ranking (algorithm 1, extended).

    The entries of the likely tools are ordered by score, and the rest of the ranking follows.

    Args:
        ranked: the entries (the paper's R), best first.
        scores: of each entry of `ranked`, 0 to 1.
        tool_of: returns the family of an entry (the paper's "tool").
        threshold: τ_s; see `find_likely`.
        score_members: the likely tools → their entries that are not in `ranked`, with scores.

    Returns:
        The new ranking (the paper's F); the entries that `score_members` added, with their scores.
    """
    values = [scores[entry] for entry in ranked]
    tools = find_likely(ranked, values, tool_of, threshold)
    listed, added = concentrate(ranked, values, tool_of, threshold), score_members(tools)
    if not added:
        return listed, added
    all_scores, inside = {**scores, **added}, sum(tool_of(entry) in tools for entry in listed)
    first = sorted([*listed[:inside], *added], key=lambda entry: (-all_scores[entry], entry))
    return [*first, *listed[inside:]], added


def diversify(
    ranked: Sequence[Entry],
    tool_of: Callable[[Entry], Hashable],
    similar: Array,
    threshold: float,
    group_head: int,
) -> list[Entry]:
    """Apply algorithm 2, for queries that need several tools: the best of each group go before the rest.

    Two entries are joined if they have the same tool, or a similarity above τ_m. A group is a connected component.

    Args:
        ranked: R, best score first.
        tool_of: returns the family of an entry (the paper's "tool").
        similar: (l, l) similarities of the entries, symmetric.
        threshold: τ_m.
        group_head: n, the number of entries of a group that come first.
    """
    numbers: dict[Hashable, int] = {}
    tools = np.array([numbers.setdefault(tool_of(entry), len(numbers)) for entry in ranked], dtype=np.intp)
    joined = (tools[:, None] == tools) | (similar > threshold)
    ungrouped, leaders = np.ones(len(ranked), dtype=np.bool_), set[int]()
    for first in range(len(ranked)):
        if not ungrouped[first]:
            continue
        group, frontier = np.zeros_like(ungrouped), np.zeros_like(ungrouped)
        frontier[first] = True
        while frontier.any():
            group |= frontier
            frontier = joined[frontier].any(axis=0) & ~group
        ungrouped &= ~group
        leaders.update(np.flatnonzero(group)[:group_head].tolist())
    order = sorted(range(len(ranked)), key=lambda place: place not in leaders)
    return [ranked[place] for place in order]
