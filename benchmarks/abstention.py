"""Measures the abstention that ships on domains left out, at a budget of 2 %, with its own thresholds.

Each dataset of `fit_decision.py` is left out once: the fit, its calibration and its thresholds see none of its queries.
Its test queries are then searched in its catalogue (`whole`), in catalogues of one to five of its tools (`small`), and
in parts between. Figures are shares that are turned away: of requests with fitting tools (`right`: lost by mistake), of
the same without their gold tools (`near`), of requests of other datasets (`foreign`), and of no_tool's test queries
(`chat`), of which ToolDet's have no licence and train nothing.

    python benchmarks/abstention.py [--data DIR] [--part test] [--out benchmarks/results/abstention.json]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from toolscout.arrays import Array, Mask
from toolscout.checks.results import write_json
from toolscout.search.abstain.decision import Decision, find_budget_share
from toolscout.search.abstain.wording import is_small_talk
from toolscout.search.pipeline import Floors
from toolscout_lab.machine import provenance
from toolscout_lab.training.decision import QueryGroup

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fit_decision import SETS, Fits, collect, estimate

RESULTS: Final = Path(__file__).resolve().parent / "results" / "abstention.json"
BUDGET: Final = 0.02


def measure_away(decision: Decision, group: QueryGroup) -> float:
    """Return the share of the queries that the decision turns away."""
    floors = decision.small_floors if group.is_small and decision.small_floors else decision.floors
    wish = decision.measure_wishes(group.texts, group.vectors)
    return float(mark_away(floors, BUDGET, group.texts, *estimate(decision, group), wish).mean())


def mark_away(floors: Floors, budget: float, texts: Sequence[str], need: Array, fits: Array, wish: Array) -> Mask:
    """Return which queries are turned away. Short ones use a share of the budget, unless they are clearly chat.

    Without a search, nobody knows which queries name what a best tool does (`search.abstain.wording`).
    """
    budgets = [budget * find_budget_share(text, value) for text, value in zip(texts, wish.tolist(), strict=True)]
    need_floors, fit_floors = (np.array([at(share) for share in budgets]) for at in (floors.need_at, floors.fit_at))
    away: Mask = (need < need_floors) | (fits < fit_floors) | np.array([is_small_talk(text) for text in texts], bool)
    return away


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--part", choices=("dev", "test"), default="test", help="the queries that are scored")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    asked = collect(Path(options.data), tuple(dict.fromkeys(("train", "dev", options.part))))
    fits, figures = Fits(asked), dict[str, Any]()
    for name in SETS:
        decision = fits.fit({}, frozenset({name}))
        figures[name] = {
            f"{extent} {kind}": {"n": len(group), "away": round(measure_away(decision, group), 4)}
            for (owner, extent, kind), group in asked[options.part].items()
            if owner == name
        }
        click.echo(f"{name}: {figures[name]}", err=True)
    kinds = figures[next(iter(SETS))]
    means = {
        kind: round(float(np.mean([found[kind]["away"] for found in figures.values() if kind in found])), 4)
        for kind in kinds
    }
    click.echo(f"mean: {means}", err=True)
    write_json(options.out, {"budget": BUDGET, "part": options.part, "mean": means, **figures, **provenance()})


if __name__ == "__main__":
    main()
