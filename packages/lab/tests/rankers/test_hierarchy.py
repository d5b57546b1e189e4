"""ToolRerank's truncation and its two algorithms against the paper's pseudo-code, written out line by line."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from toolscout_lab.rankers.toolrerank.hierarchy import (
    concentrate,
    diversify,
    extend_list,
    find_likely,
    truncate,
)

SCORES = [0.0, 0.1, 0.35, 0.6, 0.65, 0.7, 0.85, 0.9, 1.0]  # few, so that ties and limits are met
CASES = 1_000


def drawn(seed: int) -> dict[str, Any]:
    """R with its scores, the tool of each entry, and similarities; 1 to 24 entries of up to 8 tools."""
    chance = random.Random(seed)
    n = chance.randint(1, 24)
    share = chance.choice([0.02, 0.1, 0.3])
    similar = np.full((n, n), 0.3)
    for i in range(n):
        for j in range(i + 1, n):
            if chance.random() < share:
                similar[i, j] = similar[j, i] = chance.choice([0.7, 0.8, 0.95])
    R = [f"r{number}" for number in range(n)]
    return {
        "R": R,
        "score": dict(zip(R, sorted((chance.choice(SCORES) for _ in R), reverse=True), strict=True)),
        "tool": {r: chance.randint(0, 7) for r in R},
        "similar": similar,
        "tau": chance.choice([0.35, 0.6, 0.7, 0.75, 0.9]),
        "n": chance.randint(1, 5),
    }


def algorithm_1(R: list[str], score: dict[str, float], tool: dict[str, int], tau: float) -> list[str]:
    ell = len(R)
    X = {tool[R[0]]}
    for i in range(2, ell + 1):
        if score[R[i - 1]] > tau:
            X = X | {tool[R[i - 1]]}
    F1: list[str] = []
    F2: list[str] = []
    for i in range(1, ell + 1):
        if tool[R[i - 1]] in X:
            F1 = [*F1, R[i - 1]]
        else:
            F2 = [*F2, R[i - 1]]
    return F1 + F2


def algorithm_2(
    R: list[str], score: dict[str, float], tool: dict[str, int], sim: dict[tuple[str, str], float], tau: float, n: int
) -> list[str]:
    ell = len(R)
    V, E = set(R), set[frozenset[str]]()
    for i in range(1, ell):
        for j in range(i + 1, ell + 1):
            if tool[R[i - 1]] == tool[R[j - 1]] or sim[R[i - 1], R[j - 1]] > tau:
                E.add(frozenset({R[i - 1], R[j - 1]}))
    components: list[set[str]] = [{vertex} for vertex in V]
    for edge in E:
        touched = [part for part in components if part & edge]
        components = [part for part in components if not part & edge] + [set().union(*touched)]
    S: set[str] = set()
    for component in components:
        best = sorted(component, key=lambda r: (-score[r], R.index(r)))[:n]
        S = S | set(best)
    F1: list[str] = []
    F2: list[str] = []
    for i in range(1, ell + 1):
        if R[i - 1] in S:
            F1 = [*F1, R[i - 1]]
        else:
            F2 = [*F2, R[i - 1]]
    return F1 + F2


def test_algorithm_1_is_the_pseudo_code() -> None:
    moved = 0
    for case in map(drawn, range(CASES)):
        R, score, tool, tau = case["R"], case["score"], case["tool"], case["tau"]
        wanted = algorithm_1(R, score, tool, tau)
        assert concentrate(R, [score[r] for r in R], tool.__getitem__, tau) == wanted
        assert extend_list(R, score, tool.__getitem__, tau, lambda tools: {}) == (wanted, {})
        moved += wanted != R
    assert moved > CASES / 4


def test_algorithm_2_is_the_pseudo_code() -> None:
    moved = 0
    for case in map(drawn, range(CASES)):
        R, score, tool, tau = case["R"], case["score"], case["tool"], case["tau"]
        sim = {(a, b): case["similar"][i, j] for i, a in enumerate(R) for j, b in enumerate(R)}
        wanted = algorithm_2(R, score, tool, sim, tau, case["n"])
        assert diversify(R, tool.__getitem__, case["similar"], tau, case["n"]) == wanted
        moved += wanted != R
    assert moved > CASES / 4


def test_truncation_keeps_what_is_within_the_limit_of_its_kind() -> None:
    chance = random.Random(0)
    for _ in range(CASES):
        seen = [chance.random() < 0.5 for _ in range(chance.randint(0, 60))]
        most_seen, most = chance.randint(1, 50), chance.randint(1, 50)
        T = []
        for i in range(1, len(seen) + 1):
            if (seen[i - 1] and i <= most_seen) or (not seen[i - 1] and i <= most):
                T.append(i - 1)
        assert truncate(range(len(seen)), seen.__getitem__, most_seen, most) == T


def test_a_long_chain_of_likes_is_one_group() -> None:
    n = 50
    similar = np.eye(n)
    for i in range(n - 1):
        similar[i, i + 1] = similar[i + 1, i] = 0.9
    found = diversify(range(n), lambda each: each, similar, 0.8, 3)
    assert found == [0, 1, 2, *range(3, n)]
    apart = diversify([0, 1, 2, 3], lambda each: each // 2, np.eye(4), 0.8, 1)
    assert apart == [0, 2, 1, 3]


def test_what_likely_tools_bring_in_is_ranked_with_them_and_before_the_rest() -> None:
    tool = {"a1": "a", "b1": "b", "a2": "a", "c1": "c", "a9": "a", "b9": "b"}
    asked: list[set[str]] = []

    def more(tools: set[str]) -> dict[str, float]:
        asked.append(tools)
        return {"a9": 0.5, "b9": 0.97}

    scores = {"a1": 0.95, "c1": 0.7, "b1": 0.85, "a2": 0.1}
    ranked = ["a1", "b1", "c1", "a2"]
    found, brought = extend_list(ranked, scores, tool.__getitem__, 0.8, more)
    assert asked == [{"a", "b"}] == [find_likely(ranked, [0.95, 0.85, 0.7, 0.1], tool.__getitem__, 0.8)]
    assert found == ["b9", "a1", "b1", "a9", "a2", "c1"] and brought == {"a9": 0.5, "b9": 0.97}


@pytest.mark.parametrize("empty", [concentrate, extend_list])
def test_no_results_stay_none(empty: Any) -> None:
    if empty is concentrate:
        assert empty([], [], str, 0.5) == []
    else:
        assert empty([], {}, str, 0.5, lambda tools: {}) == ([], {})
    assert diversify([], str, np.empty((0, 0)), 0.5, 2) == []
