"""Tests the papers' ideas on six datasets with three seeds each, query by query, against the simpler method.

    python benchmarks/paper_seeds.py run --data DIR --runs DIR      makes the runs: hours; goes on where it was stopped
    python benchmarks/paper_seeds.py test --data DIR --runs DIR     writes results/paper-seeds.json

The value of a query is the mean over the seeds. Differences are paired: the same queries, a sign-flip test, and p
corrected by Holm over the datasets of an idea. The interval is over queries; the figures of the seeds stand beside it.
A method that draws nothing at random has one run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from toolscout import metrics
from toolscout.checks.results import write_json
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.compare import load_checked
from toolscout_lab.machine import provenance
from toolscout_lab.statistics import holm

RESULTS: Final = Path(__file__).resolve().parent / "results"
SETS: Final = ("bfcl", "hammerbench", "numpybank", "seal_tools_in", "toollinkos", "ultratool")
SIMPLER: Final = "hybrid-minilm"
SEEDS: Final = {"tool2vec": (0,), "mlc": (0, 1, 2), "dpr": (0, 1, 2), "hybrid-dpr": (0, 1, 2)}
MEASURES: Final = ("ndcg@5", "comp@5")


def name_label(recipe: str, seed: int) -> str:
    """Return the label that `toolscout lab bench` gives to a recipe with a seed."""
    return f"{recipe}-s{seed}" if seed else recipe


def run_all(data: Path, runs: Path) -> None:
    """Make the runs that are missing; `bench` keeps those that are there."""
    jobs = [(SIMPLER, 0), *((recipe, seed) for recipe, seeds in SEEDS.items() for seed in seeds)]
    for number, (recipe, seed) in enumerate(jobs, 1):
        click.echo(f"{number} of {len(jobs)}: {recipe}, seed {seed} …", err=True)
        words = [*SETS, "--recipe", recipe, "--seed", str(seed), "--out", str(runs), "--resume"]
        environment = os.environ | {"TOOLSCOUT_DATA": str(data), "TOOLSCOUT_ENCODER": "static"}
        subprocess.run([sys.executable, "-m", "toolscout", "lab", "bench", *words], env=environment, check=True)


def test_idea(data: Path, runs: Path, recipe: str) -> dict[str, Any]:
    """Compare the mean over the seeds of a recipe with the simpler method on each dataset."""
    figures: dict[str, Any] = {}
    for name in SETS:
        dataset = load_dataset(name, data)
        base, simpler = load_checked(runs, dataset, SIMPLER)
        loaded = [load_checked(runs, dataset, name_label(recipe, seed)) for seed in SEEDS[recipe]]
        results = [base, *(result for result, _ in loaded)]
        if any(result["dirty"] for result in results):
            raise SystemExit(f"{name}: {recipe} or {SIMPLER} was run from a tree with changes")
        commits = sorted({str(result["commit"]) for result in results})
        figures[name] = {"n_queries": len(simpler.ids), "commits": commits}
        for measure in MEASURES:
            by_seed = np.array([per_query.values[measure] for _, per_query in loaded])  # (seeds, queries)
            test = metrics.paired_test(by_seed.mean(axis=0), simpler.values[measure])
            figures[name][measure] = {
                "simpler": float(np.mean(simpler.values[measure])),
                "by_seed": by_seed.mean(axis=1).tolist(),
                "difference": test.difference,
                "ci95": [test.low, test.high],
                "p": test.p,
            }
    for measure in MEASURES:
        corrected = holm([figures[name][measure]["p"] for name in SETS])
        for name, value in zip(SETS, corrected, strict=True):
            figures[name][measure]["p_holm"] = value
    return figures


def main() -> None:
    """Make the runs, or test those that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("run", "test"))
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--runs", type=Path, required=True, help="the folder of the runs, which are not committed")
    given = parser.parse_args()
    if given.data is None:
        parser.error("Name the data folder with --data or TOOLSCOUT_DATA.")
    if given.task == "run":
        run_all(given.data, given.runs)
        return
    ideas = {
        recipe: test_idea(given.data, given.runs, recipe)
        for recipe, seeds in SEEDS.items()
        if all((given.runs / name / f"{name_label(recipe, seed)}.json").exists() for name in SETS for seed in seeds)
    }
    for recipe, figures in ideas.items():
        gains = {name: round(100 * figures[name]["ndcg@5"]["difference"], 1) for name in SETS}
        click.echo(f"{recipe}: ndcg@5 {np.mean(list(gains.values())):+.1f} in the mean; {json.dumps(gains)}")
    write_json(RESULTS / "paper-seeds.json", {"simpler": SIMPLER, "ideas": ideas, **provenance()})


if __name__ == "__main__":
    main()
