"""Measures how often the first ten tools hold two that a reader would call the same, before and after folding.

200 English requests (dev requests of metatool and hammerbench, and those of `suites/languages_dev`) are searched over
`tool_corpora/toucan`, where each server is a source. Two tools of different servers count as suspected duplicates if
their descriptions share 60 % of their words and their names most of theirs; this is wider than the rule that folds.
Every pair that is left is printed, so that a reader can judge it.

    python benchmarks/duplicates.py [--data DIR] [--seed 1]

The requests of seed 0 were read to choose the rule. Another seed draws 200 others, from metatool and hammerbench alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from toolscout.encoders import split_identifiers
from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.words import tokenize
from toolscout.recipes import registry
from toolscout.recipes.builder import guard
from toolscout.search.home_resources import HomeResources
from toolscout.search.relations.similar import word_overlap
from toolscout.settings import Settings
from toolscout.sources.folder import read_tools
from toolscout.types import Search, Tool
from toolscout_lab.bench_jobs import load_dataset

REQUESTS = {"metatool": 80, "hammerbench": 60}
SUITE = Path(__file__).parent / "suites" / "languages_dev" / "queries.jsonl"
FIRST = 10
MIN_TEXT = 0.6
MIN_NAME = 0.5


def are_suspected(one: Tool, other: Tool) -> bool:
    """Tell whether two tools of different servers look the same."""
    texts = [frozenset(tokenize(tool.description)) for tool in (one, other)]
    names = [frozenset(tokenize(split_identifiers(tool.name))) for tool in (one, other)]
    return one.source != other.source and word_overlap(*texts) >= MIN_TEXT and word_overlap(*names) >= MIN_NAME


def list_requests(root: Path, seed: int = 0) -> list[str]:
    """Return the requests of a draw."""
    texts: list[str] = []
    if seed:
        chosen = set(list_requests(root))
        for name in REQUESTS:
            others = sorted(set(load_dataset(name, root).texts("dev").values()) - chosen)
            texts += random.Random(seed).sample(others, 100)
        return texts
    for name, count in REQUESTS.items():
        texts += random.Random(0).sample(sorted(load_dataset(name, root).texts("dev").values()), count)
    lines = map(json.loads, SUITE.read_text(encoding="utf-8").splitlines())
    return texts + [line["text"] for line in lines if line["metadata"]["kind"] == "en"]


def find_pairs(hits: Sequence[Tool]) -> list[tuple[Tool, Tool]]:
    """Return the suspected pairs among the first tools."""
    return [pair for pair in itertools.combinations(hits[:FIRST], 2) if are_suspected(*pair)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--seed", type=int, default=0, help="of the draw of requests")
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    root = Path(options.data)
    read = read_tools(root / "tool_corpora" / "toucan", "d").tools
    tools = {tool.id.partition("/")[2]: tool for tool in read}
    tools = {tool_id: msgspec.structs.replace(tool, id=tool_id) for tool_id, tool in tools.items()}
    catalogue = Catalogue.of(tools.values())
    retrieve, requests = registry.build("hybrid", catalogue), list_requests(root, options.seed)
    searches = [Search(query=text, k=FIRST) for text in requests]
    for label, rules_off in (("before", ("demotion", "folding")), ("after", ("demotion",))):
        answers = guard(retrieve, catalogue, HomeResources(settings=Settings(rules_off=rules_off)))(searches)
        pairs = [find_pairs([tools[tool_id] for tool_id in answer.ids]) for answer in answers]
        share = 100 * sum(map(bool, pairs)) / len(requests)
        click.echo(f"{label}: {share:.1f} % of {len(requests)} first tens hold suspected duplicates")
    counts = Counter(tuple(sorted((one.id, other.id))) for found in pairs for one, other in found)
    for (one, other), count in sorted(counts.items()):
        click.echo(f"  {count}: {one} = {other}: {tools[one].description[:80]!r} / {tools[other].description[:80]!r}")


if __name__ == "__main__":
    main()
