"""Measures whether a search answers every part of a compound request in the first ten tools.

Compound requests are joined from requests with one gold tool each (`joining.py`): 300 of each dataset, with 2, 3 and 4
parts. Three ways to answer are compared: the recipe for the whole request; the base for each part alone, interleaved to
ten; and the base for the whole request. Then come `suites/joined_by_hand.jsonl` over the tools of `languages_dev` (and,
to choose, `suites/joined_dev` over its own), and the share of single needs that stay whole (`suites/one_need*.jsonl`).
The measure is COMP@10: the first ten tools hold a right tool of every part.

    python benchmarks/joined.py --edition dev --out ""            to choose
    python benchmarks/joined.py                                   the test edition, once
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from joining import EDITIONS, PARTS, PER_SET, SETS, build_joined

from toolscout import metrics
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.recipes import registry
from toolscout.search.pipeline import Stage
from toolscout.search.steps.splitter import load_splitter
from toolscout.settings import load_settings
from toolscout.sources.folder import read_tools
from toolscout.types import Search, Tool
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import provenance
from toolscout_lab.resources import Workspace

SUITES = Path(__file__).parent / "suites"
FIRST = 10
BATCH = 128
BASE, RECIPE = "hybrid", "scout"
ONE_NEED_LISTS = ("one_need", "one_need_more", "one_need_third", "one_need_dev")


def percent(share: float) -> float:
    """Return a share in percent."""
    return round(100 * float(share), 1)


def rank_tools(stage: Stage, texts: Sequence[str]) -> list[list[str]]:
    """Return the first ten tools for each text."""
    ranked = []
    for start in range(0, len(texts), BATCH):
        searches = stage([Search(query=text, k=FIRST) for text in texts[start : start + BATCH]])
        ranked += [list(search.ids[:FIRST]) for search in searches]
    return ranked


def interleave(rankings: Sequence[Sequence[str]]) -> list[str]:
    """Return the first tools of rankings that take turns."""
    turns = [ranking[rank] for rank in range(FIRST) for ranking in rankings if rank < len(ranking)]
    return list(dict.fromkeys(turns))[:FIRST]


def is_complete(gold: Sequence[Sequence[str]], tools: Sequence[str]) -> bool:
    """Tell whether the tools hold one right tool of every part."""
    return all(set(part) & set(tools) for part in gold)


def summarise(rows: Mapping[str, Sequence[bool]], sizes: Sequence[int]) -> dict[str, Any]:
    """Return COMP@10 in percent with 95 % intervals, for all requests and by number of parts."""
    summary: dict[str, Any] = {}
    for label in ("all", *sorted(set(sizes))):
        chosen = [number for number, size in enumerate(sizes) if label in ("all", size)]
        figures: dict[str, Any] = {"n": len(chosen)}
        for name, values in rows.items():
            some = np.array([values[number] for number in chosen], dtype=float)
            low, high = metrics.bootstrap_ci(some)
            figures[name] = {"comp@10": percent(some.mean()), "ci95": [percent(low), percent(high)]}
        alone = figures["alone"]["comp@10"]
        figures["share"] = round(100 * figures[RECIPE]["comp@10"] / alone, 1) if alone else None
        summary[str(label)] = figures
    return summary


def compare(
    stages: Mapping[str, Stage],
    texts: Sequence[str],
    parts: Sequence[Sequence[str]],
    gold: Sequence[Sequence[Sequence[str]]],
) -> dict[str, Any]:
    """Measure compound requests whose parts and gold tools are known.

    Args:
        stages: the base and the recipe.
        texts: the requests.
        parts: the texts of the parts of each.
        gold: the right tools of each part of each.
    """
    every = sorted({part for some in parts for part in some})
    alone = dict(zip(every, rank_tools(stages[BASE], every), strict=True))
    rankings = {
        "plain": rank_tools(stages[BASE], texts),
        "alone": [interleave([alone[part] for part in some]) for some in parts],
        RECIPE: rank_tools(stages[RECIPE], texts),
    }
    rows = {
        name: [is_complete(need, tools) for need, tools in zip(gold, ranking, strict=True)]
        for name, ranking in rankings.items()
    }
    return summarise(rows, [len(some) for some in parts])


def build_stages(tools: Sequence[Tool], workspace: Workspace) -> dict[str, Stage]:
    """Return the base and the recipe over some tools."""
    catalogue = Catalogue.of(tools)
    return {name: registry.build(name, catalogue, workspace) for name in (BASE, RECIPE)}


def measure_sets(root: Path, edition: str, workspace: Workspace) -> dict[str, Any]:
    """Measure the joined requests of each dataset."""
    measured = {}
    for name in SETS:
        dataset = load_dataset(name, root)
        joined = build_joined(dataset, edition, PER_SET)
        texts, qrels = dataset.texts(EDITIONS[edition]), dataset.split(EDITIONS[edition])
        parts = [[texts[part] for part in request.parts] for request in joined]
        gold = [[[f"d/{tool_id}" for tool_id in qrels[part]] for part in request.parts] for request in joined]
        stages = build_stages(read_tools(dataset.folder, "d").tools, workspace)
        measured[name] = compare(stages, [request.text for request in joined], parts, gold)
        show(name, measured[name])
    return measured


def read_servers(root: Path, suite: str) -> list[Tool]:
    """Return the tools that a suite names; the source of each is its server, as in a home."""
    chosen = set((SUITES / suite / "tools.txt").read_text(encoding="utf-8").split())
    tools = read_tools(root / "tool_corpora" / "toucan", "d").tools
    renamed = (msgspec.structs.replace(tool, id=tool.id.partition("/")[2]) for tool in tools)
    return [tool for tool in renamed if tool.id in chosen]


def measure_by_hand(lines: Sequence[Mapping[str, Any]], tools: Sequence[Tool], workspace: Workspace) -> dict[str, Any]:
    """Measure requests that were written by hand."""
    stages = build_stages(tools, workspace)
    parts = [[step["text"] for step in line["steps"]] for line in lines]
    gold = [[step["gold"] for step in line["steps"]] for line in lines]
    measured = compare(stages, [line["text"] for line in lines], parts, gold)
    splitter = load_splitter()
    right = sum(len(splitter.split(line["text"])) == len(line["steps"]) for line in lines)
    show("by hand", measured)
    return {**measured, "right_number_of_steps": round(100 * right / len(lines), 1)}


def measure_hand_lists(root: Path, edition: str, workspace: Workspace) -> dict[str, Any]:
    """Measure the hand-written lists of an edition: `joined_by_hand`, and for dev `joined_dev` too."""
    lines = [line for line in read_suite("joined_by_hand") if line["split"] == edition]
    measured = {"by_hand": measure_by_hand(lines, read_servers(root, "languages_dev"), workspace)}
    if edition == "dev":
        lines = read_suite("joined_dev/queries")
        measured["joined_dev"] = measure_by_hand(lines, read_servers(root, "joined_dev"), workspace)
    return measured


def measure_one_need(split: str) -> dict[str, Any]:
    """Return the share of single needs that stay whole, for each list and for all."""
    measured: dict[str, Any] = {}
    every: list[bool] = []
    for name in ONE_NEED_LISTS:
        lines = [line for line in read_suite(name) if line["split"] == split]
        whole = [len(load_splitter().split(line["text"])) == 1 for line in lines]
        every += whole
        measured |= {name: {"n": len(whole), "whole": percent(float(np.mean(whole)))}} if whole else {}
    low, high = metrics.bootstrap_ci(np.array(every, dtype=float))
    measured |= {"n": len(every), "whole": percent(float(np.mean(every))), "ci95": [percent(low), percent(high)]}
    click.echo(f"one need: {measured}", err=True)
    return measured


def read_suite(name: str) -> list[dict[str, Any]]:
    """Return the lines of a suite."""
    return [json.loads(line) for line in (SUITES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def show(name: str, measured: Mapping[str, Any]) -> None:
    """Print one line for each number of parts."""
    for size, figures in measured.items():
        values = ", ".join(f"{way} {figures[way]['comp@10']}" for way in ("plain", "alone", RECIPE))
        click.echo(f"{name}, parts {size} (n={figures['n']}): {values}, share {figures['share']}", err=True)


def main() -> None:
    """Measure one edition, print it, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edition", choices=("dev", "test"), default="test")
    parser.add_argument("--encoder", default="static")
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--home", type=Path, default=Path("~/.cache/toolscout-bench").expanduser())
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "joined.json"))
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    root = Path(options.data)
    vectors = None if options.encoder == "static" else VectorStore(options.home / "bench")
    workspace = Workspace(options.encoder, load_settings(home=options.home), vectors)
    result = {
        "edition": options.edition,
        "encoder": options.encoder,
        "parts": list(PARTS),
        "sets": measure_sets(root, options.edition, workspace),
        **measure_hand_lists(root, options.edition, workspace),
        "one_need": measure_one_need(options.edition),
        **provenance(),
    }
    if options.out:
        file = Path(options.out)
        kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        kept[f"{options.edition}/{options.encoder}"] = result
        file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
