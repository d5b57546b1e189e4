"""Does it get better from its own traffic? A dataset's training queries as traffic of many callers, `learn` in between.

The training queries (dev among them) are cut into parts. Of each part every query is searched by one of the callers,
then its gold tools are called with success, wherever they stood; then `learn` runs. The test queries are asked without
a journal before the first part and after each. Ends with a rollback, which must restore the former answers exactly.

    python benchmarks/learning.py [--data toollens] [--parts 10] [--only 2] [--callers 50] [--noise 0.3] [--flood 20000]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import click

from toolscout import champion, metrics
from toolscout.dataset import Dataset
from toolscout.errors import NotFound
from toolscout.lab.bench import load_dataset
from toolscout.lab.machine import commit, machine, peak_mb, reset_peak, versions
from toolscout.learn import Report, learn
from toolscout.scout import Scout

SOURCE, BATCH = "tools", 64


class Transport(Protocol):
    """How traffic reaches toolscout; an HTTP client fits too."""

    def search(self, queries: Sequence[str], caller: str) -> Sequence[str]:
        """Ask a batch, and return the id of each search."""

    def called(self, search_id: str, tool: str, caller: str) -> None:
        """Say that a tool was called with success."""


class InProcess:
    """Traffic by method calls."""

    def __init__(self, scout: Scout) -> None:
        self.scout = scout

    def search(self, queries: Sequence[str], caller: str) -> list[str]:
        found = self.scout.search_many(queries, caller=caller)
        return [each.search_id or "" for each in found]

    def called(self, search_id: str, tool: str, caller: str) -> None:
        self.scout.called(tool, ok=True, search_id=search_id, caller=caller)


def replay(
    through: Transport,
    texts: Mapping[str, str],
    gold: Mapping[str, Mapping[str, float]],
    queries: Sequence[str],
    callers: Sequence[str],
    wrong: Mapping[str, Sequence[str]],
) -> None:
    """Search each query, then call what it needs, or what `wrong` says instead; the callers take turns."""
    size = max(1, min(BATCH, len(queries) // (4 * len(callers))))
    for turn, start in enumerate(range(0, len(queries), size)):
        batch, caller = queries[start : start + size], callers[turn % len(callers)]
        if batch:
            ids = through.search([texts[query] for query in batch], caller)
            for query, search in zip(batch, ids, strict=True):
                for tool in wrong.get(query) or gold[query]:
                    through.called(search, f"{SOURCE}/{tool}", caller)


def quality(scout: Scout, dataset: Dataset) -> dict[str, Any]:
    """Means on test of what a search that names nothing returns; and the rankings."""
    texts, qrels = dataset.texts("test"), dataset.split("test")
    ids, ranking = list(texts), {}
    for start in range(0, len(ids), BATCH):
        some = ids[start : start + BATCH]
        found = scout.search_many([texts[query] for query in some], 5)
        ranking |= {query: [id.partition("/")[2] for id in each.ids] for query, each in zip(some, found, strict=True)}
    means = metrics.score(ranking, qrels, ["recall@5", "ndcg@5", "comp@5"]).means()
    return {"means": means, "ranking": ranking}


def shown(report: Report) -> dict[str, Any]:
    """What a line of the result says of a `learn`."""
    return {
        "outcome": report.outcome,
        "candidate": report.candidate,
        "learn_seconds": report.seconds,
        "evidence": report.evidence["examples"],
        "reason": report.reason,
    }


def parts(
    scout: Scout, asked: Scout, dataset: Dataset, given: argparse.Namespace, through: Transport
) -> Iterator[dict[str, Any]]:
    """The result after each part; the first is before any."""
    rng = random.Random(given.seed)
    gold = {**dataset.split("train"), **(dataset.split("dev") if "dev" in dataset.qrels else {})}
    order = sorted(gold)
    rng.shuffle(order)
    tools = sorted({tool for needed in gold.values() for tool in needed})
    wrong = {query: [rng.choice(tools)] for query in order if rng.random() < given.noise}
    yield {"part": 0, "queries": 0, **quality(asked, dataset)["means"]}
    size = -(-len(order) // given.parts)
    for part in range(min(given.parts, given.only or given.parts)):
        queries = order[part * size : (part + 1) * size]
        replay(through, dataset.queries, gold, queries, [f"caller-{n}" for n in range(given.callers)], wrong)
        reset_peak()
        report = learn(scout, say=lambda line: click.echo(f"  {line}", err=True))
        yield {
            "part": part + 1,
            "queries": (part + 1) * size,
            **quality(asked, dataset)["means"],
            **shown(report),
            "peak_rss_mb": round(peak_mb(), 1),
        }


def flooded(scout: Scout, dataset: Dataset, given: argparse.Namespace, through: Transport) -> dict[str, Any]:
    """One caller makes many false calls: nothing may be promoted."""
    rng, texts = random.Random(given.seed + 1), sorted(dataset.texts("train").values())
    queries = {f"f{number}": f"{rng.choice(texts)} {number}" for number in range(given.flood)}
    tool = min(dataset.corpus_ids())
    before = len(champion.history(scout.settings.home))
    replay(through, queries, {query: {tool: 1.0} for query in queries}, list(queries), ["flood"], {})
    report = learn(scout)
    return {"calls": given.flood, "promoted": len(champion.history(scout.settings.home)) > before, **shown(report)}


def rolled_back(asked: Scout, dataset: Dataset) -> bool:
    """Whether taking back a promotion of another model restores the former answers exactly."""
    home, before = asked.settings.home, quality(asked, dataset)["ranking"]
    held = champion.history(home)
    if len(held) < 2:
        raise NotFound("expected two promotions at least, found fewer: give more parts")
    champion.promote(home, held[0].model, "to take it back")
    other = quality(asked, dataset)["ranking"]
    champion.rollback(home)
    return bool(other != before and quality(asked, dataset)["ranking"] == before)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="toollens")
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--only", type=int, help="so many of the parts, to try it out")
    parser.add_argument("--callers", type=int, default=50)
    parser.add_argument("--noise", type=float, default=0.0, help="share of the queries that call a tool at random")
    parser.add_argument("--flood", type=int, default=0, help="false calls of one more caller at the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--out", type=Path, help="where the result goes; by default it is only printed")
    return parser.parse_args(given)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """The whole benchmark."""
    root = os.environ.get("TOOLSCOUT_DATA")
    dataset = load_dataset(given.data, Path(root) if root else None)
    started = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        Scout(given.home or folder) as scout,
        Scout(given.home or folder, journal=False) as asked,
    ):
        scout.add(dataset.folder, name=SOURCE)
        through, rows = InProcess(scout), []
        for row in parts(scout, asked, dataset, given, through):
            rows.append(row)
            click.echo(json.dumps(row))
        result = {
            "dataset": dataset.name,
            "callers": given.callers,
            "parts": given.parts,
            "noise": given.noise,
            "seed": given.seed,
            "rows": rows,
            "rollback_exact": rolled_back(asked, dataset) if len(champion.history(scout.settings.home)) > 1 else None,
            "flood": flooded(scout, dataset, given, through) if given.flood else None,
            "seconds": round(time.perf_counter() - started, 1),
            "versions": versions(),
            "commit": commit(),
            "machine": machine(),
        }
    click.echo(json.dumps({key: result[key] for key in ("rollback_exact", "flood", "seconds")}))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    run(arguments())
