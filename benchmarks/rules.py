"""Measures what each rule of ranking gains, and writes `docs/results/rules.md`.

A rule is left out by the setting `rules_off`, and the whole pipeline of `scout`, with exact names, prerequisites,
demotion and folding, is measured with and without it: on dev requests of sets with train, on `requests_*`, on compound
requests joined from dev (`joining.py`), and on the three clean sets, whose tools neither encoder nor rules have seen.
Only dev chooses. A gain is a mean over requests, in points, with a paired bootstrap interval. Milliseconds are the
median difference in processor time of one search, taken in turns.

    python benchmarks/rules.py [--data DIR] [--only RULE …] [--out FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np
from joining import SETS, build_joined

import toolscout
from toolscout import metrics
from toolscout.checks.results import write_json
from toolscout.home.catalogue.store import Catalogue
from toolscout.recipes import registry
from toolscout.recipes.builder import guard
from toolscout.search.pipeline import Stage
from toolscout.settings import RULES
from toolscout.sources.folder import read_tools
from toolscout.types import Search
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import provenance
from toolscout_lab.resources import Workspace

ROOT: Final = Path(__file__).resolve().parent
CODE: Final = Path(toolscout.__file__).parent
TRAINED: Final = (
    *("toollens", "metatool", "numpybank", "toollinkos", "seal_tools_in", "bfcl", "hammerbench", "ultratool"),
)
UNTUNED: Final = tuple(f"requests_{name}" for name in ("clinc", "hwu", "snips", "sgd", "hass", "tldr", "aws"))
CLEAN: Final = ("toolbench", "openapi/restbench_tmdb", "openapi/restbench_spotify")
GROUPS: Final = {"dev": TRAINED, "untuned": UNTUNED, "clean": CLEAN}
PER_SET: Final = 300
PER_JOINED_SET: Final = 150
TIMED: Final = 100
BATCH: Final = 128
DEPTH: Final = 20
BASE: Final = ""
MEASURES: Final = ("ndcg@5", "comp@5")


class Rule(NamedTuple):
    """What a rule consists of: its modules and its data, as paths below `src/toolscout`."""

    code: tuple[str, ...]
    data: tuple[str, ...] = ()


PARTS: Final = {
    "opposites": Rule(
        ("search/opposites.py",),
        ("search/words/en.actions.txt",),
    ),
    "everyday": Rule(
        ("search/everyday.py",),
        ("search/words/en.everyday.txt",),
    ),
    "quotations": Rule(()),
    "sources": Rule(()),
    "glosses": Rule(
        ("encoders/gloss.py",),
        ("encoders/static_data/multilingual/glosses.safetensors",),
    ),
    "steps": Rule(
        ("search/steps/splitter.py", "search/steps/stage.py", "search/steps/merge.py", "search/steps/words.py"),
        ("search/data/steps.json",),
    ),
    "refusals": Rule(()),
    "places": Rule(()),
    "names": Rule(("search/exact_names.py",)),
    "prerequisites": Rule(
        ("search/prerequisites.py", "search/relations/dependencies.py", "search/relations/operations.py"),
    ),
    "demotion": Rule(
        ("search/demote.py", "search/suspects.py", "search/relations/similar.py"),
    ),
    "folding": Rule(
        ("search/fold.py", "search/relations/duplicates.py", "search/relations/services.py"),
    ),
}


class Requests(NamedTuple):
    """Requests over the tools of one dataset.

    Attributes:
        texts: of the requests.
        gold: tools with their grades of each request, or for joined requests the tools of each part.
    """

    texts: list[str]
    gold: list[Any]


def sample(items: Sequence[str], count: int) -> list[str]:
    """Return so many of the items, the same each time."""
    return sorted(random.Random(0).sample(sorted(items), min(count, len(items))))


def build_pipelines(catalogue: Catalogue, rules: Sequence[str]) -> dict[str, Stage]:
    """Return the pipeline with all rules, under `BASE`, and one without each of the rules."""
    pipelines: dict[str, Stage] = {}
    resources = Workspace("static")
    resources = dataclasses.replace(resources, encoder=resources.load_encoder())
    for rule in (BASE, *rules):
        settings = dataclasses.replace(resources.settings, rules_off=(rule,) if rule else ())
        changed = dataclasses.replace(resources, settings=settings)
        ranking = registry.build("scout", catalogue, changed)
        pipelines[rule] = guard(ranking, catalogue, changed, k=DEPTH)
    return pipelines


def rank_tools(stage: Stage, texts: Sequence[str], k: int) -> list[tuple[str, ...]]:
    """Return the first tools for each text."""
    ranked: list[tuple[str, ...]] = []
    for start in range(0, len(texts), BATCH):
        ranked += [hits.ids for hits in stage([Search(query=text, k=k) for text in texts[start : start + BATCH]])]
    return ranked


def score(rankings: Sequence[Sequence[str]], gold: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the measures of each request."""
    run = {f"{number:06}": ranking for number, ranking in enumerate(rankings)}
    qrels = {f"{number:06}": dict(tools) for number, tools in enumerate(gold)}
    return dict(metrics.score(run, qrels, MEASURES).values)


def are_complete(rankings: Sequence[Sequence[str]], gold: Sequence[Sequence[Sequence[str]]]) -> np.ndarray[Any, Any]:
    """Return for each joined request whether the first ten tools hold a right tool of every part."""
    rows = [all(set(part) & set(ids[:10]) for part in parts) for ids, parts in zip(rankings, gold, strict=True)]
    return np.array(rows, dtype=float)


def measure_times(pipelines: Mapping[str, Stage], texts: Sequence[str]) -> dict[str, float]:
    """Return the median milliseconds that each rule adds to a search; all pipelines search each text in turns."""
    added: dict[str, list[float]] = {rule: [] for rule in pipelines}
    seconds_of_base = added[BASE]
    for text in texts:
        seconds: dict[str, float] = {}
        rules = list(pipelines)
        first = len(seconds_of_base) % len(rules)
        for number, rule in enumerate((*rules[first:], *rules[:first])):  # blanks, so that none finds a cached text
            started = time.process_time()
            pipelines[rule]([Search(query=text + " " * number)])
            seconds[rule] = time.process_time() - started
        for rule in pipelines:
            added[rule].append((seconds[BASE] - seconds[rule]) * 1000)
    return {rule: statistics.median(values) for rule, values in added.items()}


class Measurement:
    """Values of each request, with all rules and without each, collected set by set."""

    def __init__(self, root: Path, rules: Sequence[str]) -> None:
        """Measure these rules on the datasets below `root`."""
        self.root, self.rules = root, rules
        self.values: dict[str, dict[str, dict[str, list[np.ndarray[Any, Any]]]]] = {}
        self.moved: dict[str, int] = dict.fromkeys(rules, 0)
        self.n_requests = 0
        self.times: dict[str, float] = {}

    def add(self, group: str, measure: str, rule: str, values: np.ndarray[Any, Any]) -> None:
        """Keep the values of one set."""
        self.values.setdefault(group, {}).setdefault(measure, {}).setdefault(rule, []).append(values)

    def measure_set(self, name: str, group: str) -> None:
        """Measure one dataset, and its joined requests if it has them."""
        dataset = load_dataset(name, self.root)
        catalogue = Catalogue.of(read_tools(dataset.folder, "d").tools)
        pipelines = build_pipelines(catalogue, self.rules)
        qrels = dataset.split("test" if group == "clean" else "dev")
        ids = sample(list(qrels), PER_SET)
        texts = [dataset.queries[query] for query in ids]
        gold = [{f"d/{tool}": grade for tool, grade in qrels[query].items()} for query in ids]
        rankings = {rule: rank_tools(stage, texts, DEPTH) for rule, stage in pipelines.items()}
        self.n_requests += len(ids)
        for rule, ranking in rankings.items():
            for measure, values in score(ranking, gold).items():
                self.add(group, measure, rule, values)
            if rule:
                self.moved[rule] += sum(a[:10] != b[:10] for a, b in zip(ranking, rankings[BASE], strict=True))
        if name in SETS:
            joined = build_joined(dataset, "dev", PER_JOINED_SET)
            compound = [request.text for request in joined]
            parts = [[[f"d/{tool}" for tool in qrels[part]] for part in request.parts] for request in joined]
            for rule, stage in pipelines.items():
                self.add("joined", "comp@10", rule, are_complete(rank_tools(stage, compound, 10), parts))
        if name == "seal_tools_in":  # the largest catalogue of requests with one and with several steps
            self.times = measure_times(pipelines, texts[:TIMED])

    def compare(self, group: str, measure: str, rule: str) -> dict[str, float]:
        """Return what a rule gains in points, the mean over sets, with its interval."""
        pairs = list(zip(self.values[group][measure][BASE], self.values[group][measure][rule], strict=True))
        gains = [with_rule - without for with_rule, without in pairs]
        rng = np.random.default_rng(0)
        means = [np.mean([gain[rng.integers(0, len(gain), len(gain))].mean() for gain in gains]) for _ in range(2000)]
        low, high = np.percentile(means, [2.5, 97.5])
        gain = float(np.mean([gain.mean() for gain in gains]))
        return {"gain": round(100 * gain, 2), "low": round(100 * float(low), 2), "high": round(100 * float(high), 2)}


def count_lines(files: Sequence[str]) -> int:
    """Count the lines of modules."""
    return sum(len((CODE / file).read_text(encoding="utf-8").splitlines()) for file in files if (CODE / file).exists())


def count_bytes(files: Sequence[str]) -> int:
    """Count the bytes of data."""
    return sum((CODE / file).stat().st_size for file in files if (CODE / file).exists())


def main() -> None:
    """Measure, print n of N, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--only", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--sets", nargs="+", help="only these datasets")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "rules.json")
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    measurement = Measurement(Path(options.data), options.only)
    sets = [(name, group) for group, names in GROUPS.items() for name in names]
    sets = [(name, group) for name, group in sets if not options.sets or name in options.sets]
    for number, (name, group) in enumerate(sets, 1):
        click.echo(f"[{number} of {len(sets)}] {name}", err=True)
        measurement.measure_set(name, group)
    rules = {
        rule: {
            "about": RULES[rule],
            "lines": count_lines(PARTS[rule].code),
            "bytes": count_bytes(PARTS[rule].data),
            "gains": {
                group: {measure: measurement.compare(group, measure, rule) for measure in measures}
                for group, measures in measurement.values.items()
            },
            "ms": round(measurement.times.get(rule, float("nan")), 3),
            "changed": round(measurement.moved[rule] / measurement.n_requests, 4),
        }
        for rule in options.only
    }
    result = {"command": "python benchmarks/rules.py", "rules": rules, **provenance()}
    write_json(options.out, result)
    for rule, figures in rules.items():
        click.echo(f"{rule}: {figures}")
    subprocess.run([sys.executable, str(ROOT.parent / "scripts" / "tables.py")], check=True)


if __name__ == "__main__":
    main()
