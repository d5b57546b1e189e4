"""Counts the requests of `suites/everyday_dev.jsonl` whose first 1, 3 and 10 hits hold a right tool.

Of `suites/everyday_compound_dev.jsonl` it counts the requests that are cut into as many steps as they have, and those
whose first 10 hits hold a right tool for each step.

The catalogue is that of `everyday.py`, whose list is test only. Whatever is built for requests in people's own words is
chosen by this list. A folded duplicate counts as the line that it is folded into.

    python benchmarks/everyday_dev.py                            with the bundled encoder, nothing turned away
    python benchmarks/everyday_dev.py --ways installed compact   as `everyday.py` names them
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from toolscout.scout import Scout
from toolscout.types import Search

sys.path.insert(0, str(Path(__file__).resolve().parent))
from everyday import BENCHMARKS, MAX_HITS, WAYS, fill_catalogue

SUITE: Final = BENCHMARKS / "suites" / "everyday_dev.jsonl"
COMPOUND_SUITE: Final = BENCHMARKS / "suites" / "everyday_compound_dev.jsonl"
RANKS: Final = (1, 3, 10)


def find_rank(answer: Search, gold: Sequence[str]) -> int | None:
    """Return the rank, from 1, of the first hit that is a right tool or has one folded into it."""
    for rank, hit in enumerate(answer.hits, 1):
        if {hit.id, *hit.similar} & set(gold):
            return rank
    return None


def count_found(requests: Sequence[Mapping[str, Any]], answers: Sequence[Search]) -> dict[str, int]:
    """Return how many requests have a right tool among the first 1, 3 and 10 hits."""
    ranks = [find_rank(answer, request["gold"]) for request, answer in zip(requests, answers, strict=True)]
    return {f"first {limit}": sum(rank is not None and rank <= limit for rank in ranks) for limit in RANKS}


def count_served(requests: Sequence[Mapping[str, Any]], answers: Sequence[Search]) -> dict[str, int]:
    """Return how many compound requests are cut into their steps, and how many have a right tool for each of them."""
    cut = served = 0
    for request, answer in zip(requests, answers, strict=True):
        cut += len(answer.steps) == len(request["steps"])
        served += all(find_rank(answer, step["gold"]) is not None for step in request["steps"])
    return {"cut": cut, "served": served}


def read_requests(suite: Path) -> list[dict[str, Any]]:
    """Read the lines of a suite."""
    return [json.loads(line) for line in suite.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Search, count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--home", type=Path, help="keep the catalogue here [default: a temporary folder]")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["unlimited"])
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    requests, compounds = read_requests(SUITE), read_requests(COMPOUND_SUITE)
    with tempfile.TemporaryDirectory() as folder:
        for way in options.ways:
            with Scout(options.home or Path(folder) / "home", journal=False, **WAYS[way]) as scout:
                if not scout.sources():
                    (Path(folder) / "servers").mkdir()
                    fill_catalogue(scout, Path(options.data), Path(folder) / "servers")
                scout.embed()
                answers = scout.search_many([request["text"] for request in (*requests, *compounds)], MAX_HITS)
            click.echo(f"{way}: of {len(requests)}, {json.dumps(count_found(requests, answers[: len(requests)]))}")
            served = count_served(compounds, answers[len(requests) :])
            click.echo(f"{way}: of {len(compounds)} compound, {json.dumps(served)}")


if __name__ == "__main__":
    main()
