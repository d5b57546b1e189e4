"""Measures when the drift watch notices a change, and how often it is wrong without one.

A catalogue of ToolLens, one source for each category, serves training queries of ToolLens, whose callers then call the
gold tools. `learn` fits a champion on them. Each replay takes a copy of this home, and continues with queries that were
not replayed yet:

* `same`: ToolLens alone; any alarm is false.
* `other`: ToolLens, then Seal-Tools. The callers find no tool for those.
* `plugged`: the same, after the tools of Seal-Tools were added; the callers call them.
* `failing`: ToolLens, but from some request on, nine in ten calls of one source fail.

    python benchmarks/drift.py --data FOLDER [--replays 20] [--out benchmarks/results/drift.json]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from toolscout.dataset import Dataset
from toolscout.home.catalogue.store import Origin
from toolscout.home.models import champion
from toolscout.learn.drift import FALSE_ALARMS, DriftWatch
from toolscout.learn.loop import learn
from toolscout.scout import Scout
from toolscout.sources.folder import read_tools
from toolscout.types import Tool
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import provenance

CHAMPION_REQUESTS, SAME_REQUESTS, MAX_AFTER, CHECK_EVERY, CALLERS = 2_000, 600, 300, 10, 20
FAILURES: Final = 0.9
BEFORE_CHANGE: Final = 100
PLUGGED_REPLAYS: Final = 5
OTHER: Final = "seal"


class Request(NamedTuple):
    text: str
    tools: tuple[str, ...]


class Outcome(NamedTuple):
    """The alarms of a replay, and after how many requests since the change each was raised."""

    raised: dict[str, int]
    report: Any


def group_tools(folder: Path, source: str | None = None) -> dict[str, list[Tool]]:
    """Return source → tools; without a name, the first part of a tool's path is its source."""
    by_source: dict[str, list[Tool]] = {}
    for tool in read_tools(folder, "d").tools:
        name = source or re.sub(r"\W+", "-", tool.path[0].casefold())
        by_source.setdefault(name, []).append(msgspec.structs.replace(tool, id=f"{name}/{tool.id[2:]}", path=()))
    return by_source


def put_tools(scout: Scout, by_source: dict[str, list[Tool]]) -> None:
    for source, tools in by_source.items():
        scout.store.put_source(Origin(f"objects:{source}", "objects"), source, kind="objects", tools=tools)
    scout.embed()


def read_requests(dataset: Dataset, splits: Sequence[str], by_source: dict[str, list[Tool]]) -> list[Request]:
    ids = {tool.id.partition("/")[2]: tool.id for tools in by_source.values() for tool in tools}
    return [
        Request(dataset.queries[query], tuple(ids[tool] for tool in gold))
        for split in splits
        for query, gold in sorted(dataset.qrels[split].items())
    ]


def replay(
    scout: Scout, requests: Sequence[Request], start: int, fails: Callable[[str], bool] = lambda tool: False
) -> None:
    """Search each request, then write a call of each of its tools that the catalogue has."""
    caller = f"caller{start // CHECK_EVERY % CALLERS}"
    answers = scout.search_many([request.text for request in requests], caller=caller)
    for request, answer in zip(requests, answers, strict=True):
        for tool in request.tools:
            scout.called(tool, ok=not fails(tool), search_id=answer.search_id, caller=caller)


def watch(scout: Scout, before: Sequence[Request], after: Sequence[Request], fails: Callable[[str], bool]) -> Outcome:
    """Replay the requests before and after a change, and check now and then."""
    drift, done = DriftWatch(scout), 0
    raised: dict[str, Any] = {}
    for start in range(0, len(before), CHECK_EVERY):
        replay(scout, before[start : start + CHECK_EVERY], start)
    report = drift.check()
    raised |= {f"{alarm.what} {alarm.name}".strip(): -1 for alarm in report.alarms}
    for start in range(0, len(after), CHECK_EVERY):
        replay(scout, after[start : start + CHECK_EVERY], start, fails)
        done, report = start + CHECK_EVERY, drift.check()
        for alarm in report.alarms:
            raised.setdefault(f"{alarm.what} {alarm.name}".strip(), done)
        if "requests" in raised and done >= 100:
            break
    return Outcome(raised, report)


def make_home(folder: Path, by_source: dict[str, list[Tool]], requests: Sequence[Request]) -> dict[str, Any]:
    """Make a home with a champion that was fitted on the requests."""
    with Scout(folder) as scout:
        put_tools(scout, by_source)
        for start in range(0, len(requests), CHECK_EVERY):
            replay(scout, requests[start : start + CHECK_EVERY], start)
        report = learn(scout, say=lambda line: click.echo(f"  {line}", err=True))
        promoted = champion.current(scout.settings.place)
        return {"outcome": report.outcome, "champion": promoted.name if promoted else None, "reason": report.reason}


def list_kinds(
    same: Sequence[Request], other: Sequence[Request], sources: Sequence[str], rng: random.Random
) -> Iterator[tuple[str, list[Request], list[Request], str]]:
    """Yield (kind, requests before the change, requests after it, source that fails)."""
    yield "same", list(same[:SAME_REQUESTS]), [], ""
    after = list(same[BEFORE_CHANGE : BEFORE_CHANGE + MAX_AFTER])
    yield "other", list(same[:BEFORE_CHANGE]), list(other[:MAX_AFTER]), ""
    yield "plugged", list(same[:BEFORE_CHANGE]), list(other[:MAX_AFTER]), ""
    yield "failing", list(same[:BEFORE_CHANGE]), after, rng.choice(sources)


def run_replay(home: Path, seed: int, options: argparse.Namespace, data: dict[str, Any]) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    same, other = list(data["same"]), list(data["other"])
    rng.shuffle(same)
    rng.shuffle(other)
    rows = []
    for kind, before, after, broken in list_kinds(same, other, data["frequent"], rng):
        if (options.only and kind not in options.only) or (kind == "plugged" and seed >= PLUGGED_REPLAYS):
            continue
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "home"
            shutil.copytree(home, copy)
            with Scout(copy) as scout:
                if kind == "plugged":
                    put_tools(scout, data["other_tools"])
                elif kind == "other":
                    after = [Request(request.text, ()) for request in after]
                fails = lambda tool, broken=broken: tool.startswith(f"{broken}/") and rng.random() < FAILURES  # noqa: E731
                started = time.perf_counter()
                outcome = watch(scout, before, after, fails if broken else lambda tool: False)
        row = {
            "kind": kind,
            "seed": seed,
            "raised": outcome.raised,
            "advice": list(outcome.report.advice),
            "new_tools": len(outcome.report.new_tools),
            "topics": [topic.size for topic in outcome.report.topics],
            "seconds": round(time.perf_counter() - started, 1),
        }
        if broken:
            calls = [tool.startswith(f"{broken}/") for request in after for tool in request.tools]
            row |= {"broken": broken, "calls_of_broken": sum(calls)}
        click.echo(json.dumps(row), err=True)
        rows.append(row)
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    by_kind = {
        kind: [row for row in rows if row["kind"] == kind] for kind in dict.fromkeys(row["kind"] for row in rows)
    }
    result: dict[str, Any] = {}
    for kind, some in by_kind.items():
        if kind == "same":
            result[kind] = {"replays": len(some), "with_a_false_alarm": sum(bool(row["raised"]) for row in some)}
            continue
        early = sum(min(row["raised"].values(), default=0) < 0 for row in some)
        right = "server " if kind == "failing" else "requests"
        waits = [wait for row in some if (wait := find_wait(row, right)) is not None]
        result[kind] = {
            "replays": len(some),
            "raised": len(waits),
            "raised_before_the_change": early,
            "requests_until_raised": {"median": statistics.median(waits), "max": max(waits)} if waits else None,
        }
        if kind == "failing":
            names = [name for row in some for name in row["raised"] if name.startswith("server ")]
            result[kind]["other_servers_named"] = len(names) - len(waits)
    return result


def find_wait(row: dict[str, Any], right: str) -> int | None:
    wait = row["raised"].get(f"server {row['broken']}" if right == "server " else right)
    return wait if wait is not None and wait > 0 else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--only", action="append", help="same, other, plugged or failing; may be repeated")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lens, seal = (load_dataset(name, options.data) for name in ("toollens", "seal_tools_in"))
    tools, other_tools = group_tools(lens.folder), group_tools(seal.folder, OTHER)
    train = read_requests(lens, ["train"], tools)
    random.Random(0).shuffle(train)
    uses: dict[str, int] = {}
    for request in train[CHAMPION_REQUESTS:]:
        for tool in request.tools:
            uses[tool.partition("/")[0]] = uses.get(tool.partition("/")[0], 0) + 1
    data = {
        "same": train[CHAMPION_REQUESTS:],
        "other": read_requests(seal, ["train", "test"], other_tools),
        "other_tools": other_tools,
        "frequent": sorted(uses, key=lambda source: (-uses[source], source))[:10],
    }
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        learned = make_home(home, tools, train[:CHAMPION_REQUESTS])
        rows = [row for seed in range(options.replays) for row in run_replay(home, seed, options, data)]
    result = {
        **provenance(),
        "command": f"python benchmarks/drift.py --replays {options.replays}",
        "false_alarm_level": FALSE_ALARMS,
        "learned": learned,
        "summary": summarise(rows),
        "rows": rows,
    }
    text = json.dumps(result, indent=1)
    click.echo(json.dumps(result["summary"], indent=1))
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
