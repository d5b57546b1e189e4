"""Asks thirteen apps for what 80 requests need: the tool that acts, and the tools that find what it acts on.

    python benchmarks/servers.py --suite extensions.toml --folder DIR      installs the servers, once
    python benchmarks/extensions.py --servers DIR/servers.json [--encoder static,compact] [--without prerequisites]

All tools are in one catalogue, and every search is the installed one, which `Scout.search` runs; `plain hybrid` has
every rule off. `COMP@k`: each need has one of its tools in the first k. `recall@k`: the part of the needs that have.
`NDCG@k`: the first tool of each need counts, a second one of the same need does not. Requests for one tool and for
several are apart, each with a 95 % bootstrap interval over requests.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from everyday_catalogue import BOOTSTRAPS, COMPOUND_RANKS, SEED, Request, list_servers, read_all, search_all

from toolscout.checks.results import write_json
from toolscout.scout import Scout
from toolscout.settings import RULES
from toolscout_lab.machine import provenance

BENCHMARKS: Final = Path(__file__).resolve().parent
APP_REQUESTS: Final = BENCHMARKS / "suites" / "extensions_test.jsonl"
APP_RESULTS: Final = BENCHMARKS / "results" / "extensions.json"
CUTS: Final = (5, 10)


def score(needs: Sequence[Sequence[str]], ids: Sequence[str], k: int) -> dict[str, float]:
    """Return COMP, recall and NDCG at k of one answer."""
    open_needs = [set(need) for need in needs]
    gain = 0.0
    for rank, tool in enumerate(ids[:k]):
        met = next((need for need in open_needs if tool in need), None)
        if met is not None:
            open_needs.remove(met)
            gain += 1 / math.log2(rank + 2)
    ideal = sum(1 / math.log2(rank + 2) for rank in range(len(needs)))
    return {"COMP": float(not open_needs), "recall": 1 - len(open_needs) / len(needs), "NDCG": gain / ideal}


def summarise(requests: Sequence[Request], answers: dict[str, list[str]]) -> dict[str, object]:
    """Return the means with their intervals, in percent, of all requests, those for one tool and those for several."""
    rows: dict[str, object] = {}
    for group, counts in (("all", (1, 9)), ("one", (1, 1)), ("several", (2, 9))):
        asked = [request for request in requests if counts[0] <= len(request["needs"]) <= counts[1]]
        row: dict[str, object] = {"n": len(asked)}
        for k in CUTS:
            scores = [score(request["needs"], answers[request["id"]], k) for request in asked]
            for name in ("COMP", "recall", "NDCG"):
                values = np.array([one[name] for one in scores]) * 100
                samples = np.random.default_rng(SEED).choice(values, (BOOTSTRAPS, len(values))).mean(axis=1)
                low, high = np.percentile(samples, [2.5, 97.5])
                row[f"{name}@{k}"] = [round(float(value), 1) for value in (values.mean(), low, high)]
        rows[group] = row
    return {**rows, "missed": [request["id"] for request in requests if misses(request, answers)]}


def misses(request: Request, answers: dict[str, list[str]]) -> bool:
    """Tell whether a need of a request has no tool in the first five."""
    return score(request["needs"], answers[request["id"]], CUTS[0])["COMP"] < 1


def build(home: Path, servers: Path, encoder: str) -> int:
    """Read the servers into a home, each as a source of its own. Returns the number of tools."""
    if not home.exists():
        read_all(home, list_servers(servers))
    with Scout(home=home, trust="off", encoder=encoder) as scout:
        return sum(source.tools for source in scout.sources())


def main() -> None:
    """Build the catalogue, search, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=Path, required=True, help="the file that benchmarks/servers.py wrote")
    parser.add_argument("--homes", type=Path, help="where the homes are kept, to be used again")
    parser.add_argument("--encoder", default="static", help="names, with commas between them")
    parser.add_argument("--without", default="prerequisites", help="rules that are left out in turn")
    parser.add_argument("--show", action="store_true", help="print what each missed request found")
    arguments = parser.parse_args()
    homes = arguments.homes or Path(tempfile.mkdtemp())
    requests: list[Request] = [json.loads(line) for line in APP_REQUESTS.read_text().splitlines()]
    result: dict[str, object] = {"command": "python benchmarks/extensions.py"}
    for encoder in arguments.encoder.split(","):
        home = homes / encoder.replace("/", "-")
        tools = build(home, arguments.servers, encoder)
        ways: dict[str, dict[str, object]] = {recipe: {"recipe": recipe} for recipe in ("scout", "hybrid", "bm25")}
        ways |= {f"without {rule}": {"rules_off": (rule,)} for rule in arguments.without.split(",") if rule}
        ways["plain hybrid"] = {"recipe": "hybrid", "rules_off": tuple(RULES)}
        figures: dict[str, object] = {"tools": tools}
        for way, settings in ways.items():
            answers = search_all(home, requests, encoder=encoder, **settings)
            figures[way] = summarise(requests, answers)
            print(encoder, way, json.dumps(figures[way]), file=sys.stderr)  # noqa: T201
            if arguments.show and way == "scout":
                for request in requests:
                    if misses(request, answers):
                        print(json.dumps({**request, "found": answers[request["id"]][:COMPOUND_RANKS]}))  # noqa: T201
        result[encoder] = figures
    write_json(APP_RESULTS, {**result, **provenance()})


if __name__ == "__main__":
    main()
