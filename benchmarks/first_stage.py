"""Measures how much a reranker can find at most: the recall of its first stage among the first 3 to 20 tools.

It reads the rankings in benchmarks/results, which hold 20 tools for each query, and fits nothing.

    python benchmarks/first_stage.py [--data ROOT]       writes benchmarks/results/first-stage.json
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Final

from toolscout import metrics
from toolscout.checks.results import write_json
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import provenance
from toolscout_lab.run_files import read_run

RESULTS: Final = Path(__file__).resolve().parent / "results"
DEPTHS: Final = (3, 5, 10, 15, 20)
DATASET: Final = "toollens"
LABELS: Final = ("dpr-inbatch", "dpr", "tool2vec", "tool2vec-tuned", "mlc", "toolrefiner-tool2vec", "toolrefiner")


def measure_depths(label: str, qrels: dict[str, dict[str, int]]) -> dict[str, float]:
    """Return the recall in percent at each depth, from the ranking of a label."""
    ranking = read_run(RESULTS / DATASET / f"{label}.run.gz")
    tools = {query: [tool for tool, _ in hits] for query, hits in ranking.items()}
    names = [f"recall@{depth}" for depth in DEPTHS]
    means = metrics.score(tools, qrels, names).means()
    return {str(depth): 100 * means[name] for depth, name in zip(DEPTHS, names, strict=True)}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", default=os.environ.get("TOOLSCOUT_DATA"), help="folder of the datasets")
    root = parser.parse_args().data
    qrels: Any = load_dataset(DATASET, Path(root) if root else None).split("test")
    figures = {label: measure_depths(label, qrels) for label in LABELS}
    write_json(RESULTS / "first-stage.json", {DATASET: figures, **provenance()})


if __name__ == "__main__":
    main()
