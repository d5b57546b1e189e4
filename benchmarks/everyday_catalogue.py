"""Searches a catalogue as a user has it: some forty published MCP servers, OpenAPI documents, stdlib and pandas.

    python benchmarks/servers.py --folder DIR                  installs the servers, once
    python benchmarks/everyday_catalogue.py --servers DIR/servers.json [--orders 3] [--tools]

The sources are read once, and added in several orders, each into a home of its own. The requests are those of
`suites/everyday_catalogue_dev.jsonl`: `needs` is a list with, for each thing that a request asks for, the tools that do
it; those that the catalogue takes for the same tool (`search.relations.duplicates`) count too. A single request is
right if one of its tools is in the first five, a compound one if each need has a tool in the first ten. A request
without needs is right if nothing is returned. `lost` counts requests with needs whose answer has no hits. Then each
rule of ranking is left out in turn (`rules_off`), and its gain is what the requests lose by that, with a paired 95 %
bootstrap interval. Compound requests have `parts`, one for each need, which a person wrote out: they are also asked one
by one, and their hits interleaved, which shows what steps could bring at most.

`--tools` prints id and first sentence of each tool, for those who write requests. The result is of the bundled
encoder, whatever is installed; with another `--encoder` the counts are printed and not written.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypedDict

import numpy as np

from toolscout.checks.results import write_json
from toolscout.scout import Scout
from toolscout.search.relations.duplicates import find_duplicates
from toolscout.settings import RULES
from toolscout_lab.machine import provenance

BENCHMARKS: Final = Path(__file__).resolve().parent
REQUESTS: Final = BENCHMARKS / "suites" / "everyday_catalogue_dev.jsonl"
RESULTS: Final = BENCHMARKS / "results" / "everyday_catalogue.json"
SPECS: Final = ("github_subset", "k8s_core_v1", "tmdb_oas", "spotify_oas")
PACKAGES: Final = ("py:stdlib", "py:pandas", "py:pandas:DataFrame")
RECIPES: Final = ("scout", "hybrid", "bm25")
SINGLE_RANKS: Final = 5
COMPOUND_RANKS: Final = 10
SEED: Final = 20261127
BOOTSTRAPS: Final = 2000


class Request(TypedDict):
    """One request of the suite."""

    id: str
    query: str
    needs: list[list[str]]
    parts: list[str]


def list_servers(servers: Path) -> list[tuple[str, str | None]]:
    """Give each server of a configuration file a file of its own. Returns locator and name of every source."""
    folder = Path(tempfile.mkdtemp())
    sources: list[tuple[str, str | None]] = []
    for name, entry in json.loads(servers.read_text())["mcpServers"].items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps({"mcpServers": {name: entry}}))
        sources.append((str(path), None))
    return sources


def list_sources(servers: Path, data: Path) -> list[tuple[str, str | None]]:
    """Return locator and name of every source: servers, OpenAPI documents and Python packages."""
    sources = list_servers(servers)
    sources += [(str(data / "openapi" / "specs" / f"{spec}.json"), spec) for spec in SPECS]
    return sources + [(package, None) for package in PACKAGES]


def order_sources(names: Sequence[str], number: int) -> list[str]:
    """Return the sources in the order of this number: as listed, reversed, then shuffled with a seed."""
    if number < 2:
        return list(names) if number == 0 else list(reversed(names))
    return random.Random(SEED + number).sample(list(names), len(names))


def judge(request: Request, ids: Sequence[str]) -> bool:
    """Return whether the hits are right for a request."""
    if not request["needs"]:
        return not ids
    ranks = SINGLE_RANKS if len(request["needs"]) == 1 else COMPOUND_RANKS
    return all(set(need) & set(ids[:ranks]) for need in request["needs"])


def describe_group(request: Request) -> str:
    """Return to which group a request belongs."""
    return ("none", "single")[len(request["needs"])] if len(request["needs"]) < 2 else "compound"


def count(requests: Sequence[Request], answers: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """Count right requests by group, and those with needs that got no hits."""
    counts: dict[str, object] = {}
    for group in ("single", "compound", "none"):
        members = [request for request in requests if describe_group(request) == group]
        right = sum(judge(request, answers[request["id"]]) for request in members)
        counts[group] = {"n": len(members), "right": right}
    counts["lost"] = sum(bool(request["needs"]) and not answers[request["id"]] for request in requests)
    counts["wrong"] = [request["id"] for request in requests if not judge(request, answers[request["id"]])]
    return counts


def compare(
    requests: Sequence[Request], one: Mapping[str, Sequence[str]], other: Mapping[str, Sequence[str]], group: str = ""
) -> dict[str, float]:
    """Return by how many points `one` is right more often, with a 95 % interval of a paired bootstrap.

    Args:
        requests: all of them.
        one: the answers of one search.
        other: those of the other.
        group: the requests that count; by default those with needs.
    """
    asked = [r for r in requests if (describe_group(r) == group if group else r["needs"])]
    gains = np.array([judge(r, one[r["id"]]) - judge(r, other[r["id"]]) for r in asked], dtype=float)
    samples = np.random.default_rng(SEED).choice(gains, (BOOTSTRAPS, len(gains))).mean(axis=1) * 100
    low, high = np.percentile(samples, [2.5, 97.5])
    return {"gain": round(float(gains.mean()) * 100, 1), "low": round(float(low), 1), "high": round(float(high), 1)}


def search_all(home: Path, requests: Sequence[Request], **settings: object) -> dict[str, list[str]]:
    """Return the first ten ids for each request."""
    with Scout(home=home, journal=False, **settings) as scout:
        answers = scout.preview_many([request["query"] for request in requests], COMPOUND_RANKS)
    return {request["id"]: list(answer.ids) for request, answer in zip(requests, answers, strict=True)}


def measure_steps(home: Path, requests: Sequence[Request], encoder: str) -> dict[str, int]:
    """Count the compound requests that are complete in ten: split, unsplit, and with the parts asked by hand."""
    asked = [request for request in requests if request["parts"]]
    ways = {
        "split": search_all(home, asked, encoder=encoder),
        "unsplit": search_all(home, asked, encoder=encoder, rules_off=("steps",)),
    }
    with Scout(home=home, journal=False, encoder=encoder, rules_off=("steps",)) as scout:
        by_hand = {
            request["id"]: interleave(answer.ids for answer in scout.preview_many(request["parts"], COMPOUND_RANKS))
            for request in asked
        }
    ways["by hand"] = by_hand
    return {"n": len(asked)} | {
        way: sum(judge(request, ids[request["id"]]) for request in asked) for way, ids in ways.items()
    }


def interleave(rankings: Iterable[Sequence[str]]) -> list[str]:
    """Return the first of each ranking, then the second of each, and so on, each tool once."""
    rows = itertools.zip_longest(*rankings)
    return list(dict.fromkeys(tool for row in rows for tool in row if tool is not None))


def read_all(home: Path, sources: Sequence[tuple[str, str | None]]) -> None:
    """Read all sources into a home."""
    with Scout(home=home, trust="off") as scout:
        for number, (locator, name) in enumerate(sources, 1):
            print(f"\r{number} of {len(sources)}: {name or locator:60.60}", end="", file=sys.stderr)  # noqa: T201
            for change in scout.add(locator, name=name, embed=False):
                if change.state == "error":
                    print(f"\n{change.source}: {change.message}", file=sys.stderr)  # noqa: T201


def add_in_order(home: Path, read: Path, number: int) -> int:
    """Fill a home with the sources of another, in the order of a number. Returns how many tools there are."""
    with Scout(home=read, trust="off") as one, Scout(home=home, trust="off") as other:
        origins = {origin.id: origin for origin in one.store.origins()}
        sources = {source.name: source for source in one.sources() if source.tools}
        by_origin = sorted(sources, key=lambda name: (sources[name].origin, name))
        for name in order_sources(by_origin, number):
            tools = one.store.tools([tool_id for tool_id, _ in one.store.page(name, limit=None)])
            other.store.put_source(origins[sources[name].origin], name, kind=sources[name].kind, tools=tools)
        return sum(source.tools for source in other.sources())


def read_requests(home: Path) -> list[Request]:
    """Read the requests that the catalogue has tools for; a server that cannot be installed takes its own away.

    Each need also names the tools that are the same as one of its tools.
    """
    with Scout(home=home) as scout:
        catalogue = scout.store.catalogue()
        duplicates, ids = find_duplicates(catalogue), set(catalogue.ids)
    requests: list[Request] = [json.loads(line) for line in REQUESTS.read_text().splitlines()]
    requests = [request for request in requests if all(ids.intersection(need) for need in request["needs"])]
    for request in requests:
        request.setdefault("parts", [])
        for need in request["needs"]:
            groups = {duplicates.first[tool] for tool in need if tool in duplicates.first}
            need += [tool for group in sorted(groups) for tool in duplicates.groups[group] if tool not in need]
    return requests


def measure_rules(home: Path, requests: Sequence[Request], encoder: str) -> dict[str, object]:
    """Return what each rule gains, in points."""
    base = search_all(home, requests, encoder=encoder)
    rules: dict[str, object] = {}
    for rule in RULES:
        without = search_all(home, requests, encoder=encoder, rules_off=(rule,))
        gains = {group: compare(requests, base, without, group) for group in ("single", "compound")}
        changed = {
            kind: [r["id"] for r in requests if r["needs"] and judge(r, good[r["id"]]) > judge(r, bad[r["id"]])]
            for kind, good, bad in (("won", base, without), ("lost", without, base))
        }
        rules[rule] = {**gains, "both": compare(requests, base, without), **changed}
        print(rule, json.dumps(rules[rule]), flush=True)  # noqa: T201
    return rules


def list_tools(home: Path) -> Iterator[str]:
    """Yield id and first sentence of each tool."""
    scout = Scout(home=home)
    for tool in scout.store.tools([id for id, _ in scout.store.page(None, limit=None)]):
        yield f"{tool.id}\t{' '.join(tool.description.split())[:160]}"


def main() -> None:
    """Build the catalogues, search, and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=Path, required=True, help="the file that benchmarks/servers.py wrote")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("TOOLSCOUT_DATA", "data")))
    parser.add_argument("--homes", type=Path, help="where the homes are kept, to be used again")
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--encoder", default="static")
    parser.add_argument("--tools", action="store_true", help="print the tools, and exit")
    arguments = parser.parse_args()
    homes = arguments.homes or Path(tempfile.mkdtemp())
    read = homes / "read"
    if not read.exists():
        read_all(read, list_sources(arguments.servers, arguments.data))
    if arguments.tools:
        print("\n".join(list_tools(read)))  # noqa: T201
        return
    requests, encoder = read_requests(read), arguments.encoder
    orders: list[dict[str, object]] = []
    answers: list[dict[str, dict[str, list[str]]]] = []
    for number in range(arguments.orders):
        home = homes / f"order-{number}"
        tools = add_in_order(home, read, number)
        answers.append({recipe: search_all(home, requests, encoder=encoder, recipe=recipe) for recipe in RECIPES})
        counts = {recipe: count(requests, ids) for recipe, ids in answers[-1].items()}
        gain = compare(requests, answers[-1]["scout"], answers[-1]["hybrid"])
        orders.append({"tools": tools, **counts, "scout - hybrid": gain})
        print(number, json.dumps(orders[-1]), flush=True)  # noqa: T201
    with Scout(home=read) as scout:
        n_sources = sum(source.tools > 0 for source in scout.sources())
    result = {
        "command": "python benchmarks/everyday_catalogue.py",
        "sources": n_sources,
        "same_in_every_order": all(one == answers[0] for one in answers),
        "orders": orders,
        "steps": measure_steps(homes / "order-0", requests, encoder),
        "rules": measure_rules(homes / "order-0", requests, encoder),
    }
    if encoder != "static":
        print(json.dumps({key: result[key] for key in ("same_in_every_order", "steps")}))  # noqa: T201
        return
    write_json(RESULTS, {**result, **provenance()})
    subprocess.run([sys.executable, str(BENCHMARKS.parent / "scripts" / "tables.py")], check=True)


if __name__ == "__main__":
    main()
