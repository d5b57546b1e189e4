"""Measures how well a fitted recipe finds tools that training never saw, and what this costs the other queries.

A random fifth of a dataset's tools is hidden: train and dev lose the queries that need them, but the whole catalogue
stays searchable. Queries that need only hidden tools are compared with `dense` over the same encoder, without training.
Queries that need none are compared with the same model over a catalogue without the hidden tools.

The measure is recall@5 of test queries with seeds 0 to 2, and of dev queries for choices. A recipe that is refitted on
train and dev has seen the dev queries without hidden tools; no recipe has seen the others.

    python benchmarks/hidden_tools.py --recipe scout-light --recipe scout-full [--data metatool] [--set epochs=3]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from toolscout import metrics
from toolscout.cli.options import parse_settings
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.learn.fit import fit, make_lesson, on_shelf, plan_fit
from toolscout.recipes import registry
from toolscout.search.pipeline import Stage
from toolscout.settings import Settings
from toolscout.sources.folder import read_tools
from toolscout.types import Search, Tool
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import provenance
from toolscout_lab.resources import Workspace

HIDDEN = 0.2
BATCH = 256


def measure_recall(stage: Stage, texts: dict[str, str], gold: dict[str, dict[str, float]]) -> float:
    """Return the mean recall@5 of some queries in percent."""
    ids = list(gold)
    ranking: dict[str, Sequence[str]] = {}
    for start in range(0, len(ids), BATCH):
        some = ids[start : start + BATCH]
        found = stage([Search(query=texts[query], k=5) for query in some])
        ranking |= {query: search.ids[:5] for query, search in zip(some, found, strict=True)}
    return round(100 * metrics.score(ranking, gold, ["recall@5"]).means()["recall@5"], 2)


def measure_draw(
    name: str, dataset: Any, tools: Sequence[Tool], seed: int, pairs: tuple[str, ...], settings: Settings
) -> Any:
    """Measure one recipe with one draw of hidden tools, on test and on dev."""
    order = sorted(tool.id for tool in tools)
    hidden = set(random.Random(seed).sample(order, round(HIDDEN * len(order))))
    whole = make_lesson(dataset, tools, dataset.texts("test"))
    learned = dataclasses.replace(
        whole,
        train={query: gold for query, gold in whole.train.items() if not hidden & set(gold)},
        dev={query: gold for query, gold in whole.dev.items() if not hidden & set(gold)},
    )
    vectors = VectorStore(settings.home / "bench")
    chosen = registry.recipe(name)
    workspace = Workspace(
        settings=settings, vectors=vectors, say=lambda line: click.echo(line, err=True), seed=seed, resume=True
    )
    job = plan_fit(name, learned, workspace, settings.home, parse_settings(pairs))
    model = fit(on_shelf(job))

    def build_over(some: Sequence[Tool], recipe: str = name) -> Stage:
        encoder = job.workspace.encoder if recipe == name else chosen.encoder or "static"
        surroundings = Workspace(encoder, settings, vectors)
        folder = model.folder if recipe == name else None
        return registry.build(recipe, Catalogue.of(some), surroundings, model=folder)

    shown = [tool for tool in tools if tool.id not in hidden]
    full, without, dense = build_over(tools), build_over(shown), build_over(tools, "dense")

    def measure_split(split: str) -> dict[str, float]:
        golds = {
            query: {f"d/{tool}": grade for tool, grade in gold.items()} for query, gold in dataset.split(split).items()
        }
        new = {query: gold for query, gold in golds.items() if set(gold) <= hidden}
        seen = {query: gold for query, gold in golds.items() if not hidden & set(gold)}
        found = {
            "hidden_queries": len(new),
            "hidden": measure_recall(full, dataset.queries, new),
            "dense": measure_recall(dense, dataset.queries, new),
            "seen_queries": len(seen),
            "seen": measure_recall(full, dataset.queries, seen),
            "seen_without_hidden": measure_recall(without, dataset.queries, seen),
        }
        kept, lost = found["hidden"] / found["dense"], found["seen_without_hidden"] - found["seen"]
        return {**found, "kept": round(kept, 4), "lost": round(lost, 2)}

    return {"seed": seed, **measure_split("test"), "dev": measure_split("dev")}


def main() -> None:
    """Run all recipes and seeds; each draw is printed and written at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", action="append", required=True)
    parser.add_argument("--data", default="metatool")
    parser.add_argument("--set", dest="pairs", action="append", default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--resume", action="store_true", help="keep the draws that are there with the same settings")
    parser.add_argument("--home", type=Path, default=Path("~/.cache/toolscout-bench").expanduser())
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "hidden-tools.json")
    given = parser.parse_args()
    root = os.environ.get("TOOLSCOUT_DATA")
    dataset = load_dataset(given.data, Path(root) if root else None)
    tools = read_tools(dataset.folder, "d").tools
    held = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in given.recipe:
        there = held.setdefault(given.data, {})
        before = there.get(name, []) if given.resume else []
        rows = there[name] = [row for row in before if row.get("set", []) == given.pairs]
        for seed in range(len(rows), given.seeds):
            found = measure_draw(name, dataset, tools, seed, tuple(given.pairs), Settings(home=given.home))
            rows.append({**found, **({"set": given.pairs} if given.pairs else {}), "provenance": provenance()})
            given.out.write_text(json.dumps(held, indent=1) + "\n")
            click.echo(f"{name} {rows[-1]}")


if __name__ == "__main__":
    main()
