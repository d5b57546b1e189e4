"""toolrerank's grid: what is chosen on dev has to be clearly better than what is taken without it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from toolscout.rankers.lesson import Lesson
from toolscout.types import Search, Tool
from toolscout_lab.rankers.crossencoder import LogitBlend
from toolscout_lab.rankers.toolrerank.method import ToolRerankOptions
from toolscout_lab.rankers.toolrerank.settings_search import Grid, ScoredQueries, limits
from toolscout_lab.rankers.toolrerank.stages import ChosenSettings, Families

TOOLS = [Tool(id=f"s/{number:02}", name=f"t{number}", path=(f"family{number // 4}",)) for number in range(64)]
FIRST = ChosenSettings(50, 50, sure=0.8, alike=0.8)


def made(golds: list[set[int]], logits: Any, single: Any = (), seen: Any = range(16), **options: Any) -> Grid:
    """A grid of queries that have the tools 0, 1, 2 … as their candidates in this order, with these logits."""
    given = ToolRerankOptions(**options)
    depth = max(map(max, limits(given)))
    queries = [f"q{number}" for number in range(len(golds))]
    dev = {query: {TOOLS[tool].id: 1 for tool in gold} for query, gold in zip(queries, golds, strict=True)}
    lesson = Lesson(name="toy", tools=TOOLS, texts=dict(zip(queries, queries, strict=True)), train={}, dev=dev)
    ranked: Any = SimpleNamespace(
        queries=queries,
        candidates=np.tile(np.arange(depth), (len(queries), 1)),
        scores=np.tile(np.linspace(1, 0, depth), (len(queries), 1)),
    )

    def score_others(search: Search, ids: list[str]) -> Any:
        return np.full(len(ids), 0.1)

    judge: Any = SimpleNamespace(blend=LogitBlend(), score_others=score_others)
    families = Families(TOOLS)
    return Grid(
        lesson,
        given,
        ScoredQueries(
            ranked,
            np.tile(np.asarray(logits, dtype=float)[:depth], (len(queries), 1)),
            single or [True] * len(queries),
            np.eye(len(TOOLS), dtype=np.float32),
        ),
        families,
        {families.family_of[TOOLS[4 * family].id] for family in seen},
        judge,
        lambda line: None,
    )


FALLING = np.linspace(3, -6, 50)


def test_what_changes_nothing_on_dev_leaves_all_as_it_is() -> None:
    for single in (True, False):
        grid = made([{0}] * 6, FALLING, [single] * 6)
        chosen, figures = grid.search(True)
        assert chosen == FIRST and figures == {"recall@5": 1.0, "ndcg@5": 1.0, "comp@5": 1.0}
        assert len(grid.by_limits) == 9 and next(iter(grid.by_limits)) == "50/50"


def test_a_half_of_the_hierarchy_is_used_where_it_is_clearly_better_and_by_its_own_queries() -> None:
    scattered = FALLING - 3.5
    scattered[[0, 4, 5, 6, 7]] = [3, 0, 0, 0, 0]  # before 1, 2 and 3, which belong to what is best
    grid = made([{0, 1, 2, 3}] * 6, scattered)
    found, figures = grid.search(True)
    assert found == FIRST and figures["comp@5"] == 1.0 > grid.figures([grid.ids(0)[3:]] * 6)["comp@5"]
    apart, _ = made([{0, 4, 5, 6, 7}] * 6, scattered).search(True)
    assert apart == ChosenSettings(50, 50, sure=0.0, alike=0.8)  # what is needed is of another parent than what is best
    crowded, _ = made([{0, 1, 4, 5, 8}] * 6, FALLING, [False] * 6).search(True)
    assert crowded == ChosenSettings(50, 50, sure=0.8, alike=0.8, each=2)


def test_less_than_two_standard_errors_are_not_enough() -> None:
    several, one = {0, 1, 4, 5, 8}, {0, 1, 2, 3, 4}
    for better, errors in ((6, 1.56), (7, 1.93), (8, 2.29)):
        golds = [several] * better + [one] * 2
        grid = made(golds, FALLING, [False] * len(golds))
        lists = [grid._rank_candidates(row, (50, 50)) for row in range(len(golds))]
        off, on = (
            np.sum(list(grid._score(range(len(golds)), found).values.values()), axis=0)
            for found in (
                [
                    grid._rank_query(row, columns, ChosenSettings(50, 50, alike=0.8, each=each))
                    for row, columns in enumerate(lists)
                ]
                for each in (0, 2)
            )
        )
        gain = on - off
        assert gain.mean() / (gain.std(ddof=1) / len(gain) ** 0.5) == pytest.approx(errors, abs=0.005)
        assert (grid.search(True)[0].each == 2) == (errors > 2)


def test_one_query_switches_nothing_on_and_what_is_given_stays() -> None:
    golds = [{0, 4, 8, 12, 16}]
    assert made(golds, FALLING, [False]).search(True)[0] == FIRST
    assert made(golds, FALLING, [False], each=2).search(True)[0] == ChosenSettings(50, 50, sure=0.8, alike=0.8, each=2)
    assert made(golds, FALLING, [False], sure=0.7).search(True)[0] == ChosenSettings(50, 50, sure=0.7, alike=0.8)
    assert made(golds * 6, FALLING, [False] * 6, alike=0.9, each=0).search(True)[0] == ChosenSettings(
        50, 50, sure=0.8, alike=0.9
    )


def test_gains_here_and_losses_there_are_not_clear() -> None:
    several, one = {0, 1, 4, 5, 8}, {0, 1, 2, 3, 4}
    golds = [several, one, several, one, several, one, several]
    free, on = made(golds, FALLING, [False] * 7), made(golds, FALLING, [False] * 7, each=2)
    assert sum(on.search(True)[1].values()) > sum(free.figures([free.ids(0)] * 7).values())
    assert free.search(True)[0] == FIRST


def test_less_is_read_only_where_dev_says_clearly_that_it_is_better() -> None:
    misled = FALLING.copy()
    misled[10:15] = 5.0  # the cross-encoder is wrong on what lies deeper
    seen, _ = made([{0, 1, 2}] * 6, misled).search(False)
    assert (seen.seen, seen.unseen) == (10, 50), "of what training saw, not of the rest"
    new, _ = made([{0, 1, 2}] * 6, misled, seen=range(2)).search(False)
    assert (new.seen, new.unseen) == (10, 10), "of equals the one that reads no less of what is new"
    assert made([{0, 1, 2}] * 6, FALLING).search(False)[0] == ChosenSettings(50, 50)


def test_no_more_is_read_than_the_largest_limit_on_offer() -> None:
    assert limits(ToolRerankOptions(seen=10, unseen=10)) == [(10, 10)]
    assert limits(ToolRerankOptions(seen=30)) == [(30, 50), (30, 30), (30, 10)]
    assert limits(ToolRerankOptions())[0] == (50, 50) and len(limits(ToolRerankOptions())) == 9
