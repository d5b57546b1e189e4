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
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from toolscout.abstain.decision import Decision, columns, find_budget_share
from toolscout.abstain.fit import QueryGroup
from toolscout.arrays import Array, Mask
from toolscout.checks.results import write_json
from toolscout.lab.machine import provenance
from toolscout.search.pipeline import Floors

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fit_decision import NAMES, SETS, Groups, collect, fit

RESULTS: Final = Path(__file__).resolve().parent / "results" / "abstention.json"
BUDGET: Final = 0.02


def leave_out(groups: Groups, name: str, texts: set[str]) -> Groups:
    """Return the groups of the other datasets, without requests of this one that stand in as foreign."""
    kept = {}
    for key, group in groups.items():
        places = [place for place, text in enumerate(group.texts) if text not in texts]
        if key[0] != name and places:
            vectors = {view: rows[places] for view, rows in group.vectors.items()}
            chosen = [group.texts[place] for place in places]
            kept[key] = dataclasses.replace(group, rows=group.rows[places], vectors=vectors, texts=chosen)
    return kept


def measure_away(decision: Decision, group: QueryGroup) -> float:
    """Return the share of the queries that the decision turns away."""
    table = columns(NAMES, group.rows, group.vectors | decision.mark_terms(group.texts), decision.wishes)
    floors = decision.small_floors if group.is_small and decision.small_floors else decision.floors
    return float(mark_away(floors, BUDGET, group.texts, *decision.estimate(table)).mean())


def mark_away(floors: Floors, budget: float, texts: Sequence[str], need: Array, fits: Array) -> Mask:
    """Return which queries are turned away at a budget, of which short ones use a share alone."""
    budgets = [budget * find_budget_share(text) for text in texts]
    need_floors, fit_floors = (np.array([at(share) for share in budgets]) for at in (floors.need_at, floors.fit_at))
    away: Mask = (need < need_floors) | (fits < fit_floors)
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
    figures: dict[str, Any] = {}
    for name in SETS:
        texts = {
            text for part in asked.values() for key, group in part.items() for text in group.texts
            if key[0] == name and key[2] == "right"
        }  # fmt: skip
        decision = fit(leave_out(asked["train"], name, texts), leave_out(asked["dev"], name, texts), {})
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
