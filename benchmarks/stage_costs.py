"""Measures what one search costs in Tool2Vec, MLC, ToolRefiner and a cross-encoder: processor time and memory.

This repeats Table 9 of the Tool2Vec paper on one thread of a processor. A method's cost doesn't depend on how well it
was trained, so each one is fitted on 60 queries of ToolLens with all of its tools. All of them encode with MiniLM, and
ToolRefiner and the cross-encoder read 64 candidates. Each method runs in a process of its own, and the processor's time
is counted, so other work on the machine hardly matters. With more `TURNS` the methods take turns.

    python benchmarks/stage_costs.py [--data ROOT] [--folder DIR]      writes benchmarks/results/stage-costs.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from toolscout.checks.results import write_json
from toolscout.home.catalogue.store import Catalogue
from toolscout.recipes import registry
from toolscout.settings import Settings
from toolscout.sources.folder import read_tools
from toolscout.types import Search
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import provenance, resident_mb
from toolscout_lab.reproduce import draw_ids
from toolscout_lab.resources import Workspace

OUT: Final = Path(__file__).resolve().parent / "results" / "stage-costs.json"
TRAIN_QUERIES, DEV_QUERIES, TEST_QUERIES, WARM_UP, TURNS = 60, 12, 40, 5, 1
SMALL: Final = ["--set", "epochs=1", "--set", "batch=8"]
WIDE: Final = [*SMALL, "--set", "candidates=64", "--set", "base=tool2vec", "--set", "start=encoder"]
METHODS: Final = {"tool2vec": [], "mlc-published": SMALL, "toolrefiner": WIDE, "crossencoder": WIDE}
"""Recipe → the words that fit it."""


def write_small_dataset(folder: Path, root: Path | None) -> None:
    """Write a dataset folder with the tools of ToolLens and some of its queries."""
    dataset = load_dataset("toollens", root)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / name).write_bytes((dataset.folder / name).read_bytes())
    learned = draw_ids(dataset.qrels["train"], TRAIN_QUERIES)
    parts = {"train": learned[DEV_QUERIES:], "dev": learned[:DEV_QUERIES]}
    parts["test"] = draw_ids(dataset.qrels["test"], TEST_QUERIES)
    gold = {**dataset.qrels["train"], **dataset.qrels["test"]}
    for split, queries in parts.items():
        rows = [f"{query}\t{tool}\t1" for query in queries for tool in gold[query]]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")


def fit(recipe: str, words: list[str], folder: Path) -> None:
    """Fit a recipe by the command, unless its model is there."""
    if (folder / recipe).exists():
        return
    command = [str(Path(sys.executable).with_name("toolscout")), "train", recipe, "--data", str(folder / "data")]
    subprocess.run([*command, "--encoder", "minilm", *words, "--out", str(folder / recipe)], check=True)


def search_in_turn(recipe: str, folder: Path) -> dict[str, float]:
    """Load a model and search once for each test query; return milliseconds of processor time, and the memory."""
    before = resident_mb()
    dataset = load_dataset(str(folder / "data"), None)
    tools = Catalogue.of(read_tools(dataset.folder, "d").tools)
    workspace = Workspace.open("minilm", Settings(home=folder / "home"))
    stage = registry.build(recipe, tools, workspace, model=folder / recipe)
    texts, spent = list(dataset.texts("test").values()), []
    for text in [*texts[:WARM_UP], *texts]:
        started = time.process_time()
        stage([Search(query=text, k=5)])
        spent.append(1000 * (time.process_time() - started))
    return {"cpu_ms": statistics.median(spent[WARM_UP:]), "mb": resident_mb(), "mb_added": resident_mb() - before}


def main() -> None:
    """Fit, measure in turns and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", default=os.environ.get("TOOLSCOUT_DATA"), help="folder of the datasets")
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "toolscout-stage-costs")
    parser.add_argument("--turn", choices=list(METHODS), help="measure this one alone, and print")
    given = parser.parse_args()
    if given.turn:
        sys.stdout.write(json.dumps(search_in_turn(given.turn, given.folder)) + "\n")
        return
    write_small_dataset(given.folder / "data", Path(given.data) if given.data else None)
    turns: dict[str, list[dict[str, Any]]] = {recipe: [] for recipe in METHODS}
    for recipe, words in METHODS.items():
        fit(recipe, words, given.folder)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for _ in range(TURNS):
        for recipe in METHODS:
            command = [sys.executable, __file__, "--folder", str(given.folder), "--turn", recipe]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            turns[recipe].append(json.loads(done.stdout.splitlines()[-1]))
    figures = {
        recipe: {key: round(statistics.median(turn[key] for turn in each), 3) for key in each[0]}
        for recipe, each in turns.items()
    }
    write_json(OUT, {"tools": 464, "candidates": 64, "methods": figures, **provenance()})


if __name__ == "__main__":
    main()
