"""Runs the paired tests that the documentation shows, on the results in benchmarks/results.

The comment `<!-- table versus SET A B… -->` in a page (see scripts/tables.py) asks to compare label A with each label B
on a dataset. The tests give differences, 95 % intervals and p by sign-flips, for all queries and by what training saw
of the gold tools' parents. They go to benchmarks/results/versus.json with the hashes of both rankings.

    python benchmarks/versus.py [--data DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path

import click

from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.compare import compare
from toolscout_lab.machine import provenance

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
WANTED = re.compile(r"<!-- table versus\s+(\S+)\s+(\S+)\s+(.+?)\s-->", re.DOTALL)
MEASURES = ("recall@3", "recall@5", "ndcg@5", "comp@3", "comp@5")
KEPT = ("n_queries", "tests", "parents")


def main() -> None:
    """Read the pages, run the tests whose results exist, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("TOOLSCOUT_DATA"))
    given = parser.parse_args()
    text = "\n".join(page.read_text() for page in sorted((ROOT / "docs").rglob("*.md")))
    wanted = {(name, a, b) for name, a, rest in WANTED.findall(text) for b in rest.split()}
    found: dict[str, dict[str, object]] = {}
    for name, a, b in sorted(wanted):
        files = [RESULTS / name / f"{label}.json" for label in (a, b)]
        if not all(file.exists() for file in files):
            click.echo(f"{name}: {a}, {b}: no result yet")
            continue
        test = compare(RESULTS, load_dataset(name, Path(given.data) if given.data else None), a, b, measures=MEASURES)
        rankings = [json.loads(file.read_text())["run_sha256"] for file in files]
        found.setdefault(name, {})[f"{a} {b}"] = {"run_sha256": rankings, **{key: test[key] for key in KEPT}}
        click.echo(f"{name}: {a} against {b}: ndcg@5 {100 * test['tests']['ndcg@5']['difference']:+.2f}")
    (RESULTS / "versus.json").write_text(json.dumps({**found, "provenance": provenance()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
