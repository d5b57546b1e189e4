"""Measures what traces and metrics cost: the same requests to two gateways, one with telemetry and one without.

Both are programs of their own that speak MCP over stdio, each with a copy of the home and a server of the tests behind.
A collector is another program. A round is the same requests to both, in short blocks in random order, so that both meet
the same load of the machine. The gateways are started anew several times, since two processes that do the same differ.

* `wall_ratio`: time of the median request of a round; the median over all rounds.
* `processor_ratio`: processor time of the gateway with all that it makes and sends in the background; the sums of all
  rounds, since the background sends seldom. The servers behind it are not counted.
* `added_processor_ms`: the same for a request, as a difference.

The intervals (95 %) are bootstrapped over the rounds. `starts` has the ratios of each start. With `--share none` both
gateways run without telemetry: what that finds is the error of the measurement.

    python benchmarks/telemetry.py --data FOLDER [--starts 4] [--rounds 15] [--out benchmarks/results/telemetry.json]

On a busy machine these ratios err by five hundredths. `--count` counts the function calls of all threads of a gateway
for each request instead, with what is sent in the background. That does not depend on the load.

    python benchmarks/telemetry.py --data FOLDER --count [--out benchmarks/results/telemetry-calls.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np
from mcp import Client, StdioServerParameters

from toolscout.scout import Scout
from toolscout_lab.machine import provenance

ROOT: Final = Path(__file__).parent.parent
BUSY: Final = str(ROOT / "tests" / "servers" / "busy.py")
REQUESTS: Final = 64  # of a round, to each gateway
BLOCK: Final = 8  # requests between two switches
RESAMPLES: Final = 2_000
CALLS: Final = {
    "call of 20 ms": ("call_tool", {"id": "busy/wait", "arguments": {"seconds": 0.02}}),
    "call that answers at once": ("call_tool", {"id": "busy/echo", "arguments": {"text": "hello"}}),
}
COLLECTOR: Final = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from collector import open_collector
with open_collector() as collector:
    print(collector.address, flush=True)
    sys.stdin.read()
    print(len(collector.spans), flush=True)
"""


#: Runs a gateway that counts its function calls between two signals, and writes their number to a file.
COUNTER: Final = """
import os, runpy, signal, sys, threading
file, sys.argv = sys.argv[1], ["toolscout", *sys.argv[2:]]
counts, counting = {}, False
def profile(frame, event, _):
    if counting and event in ("call", "c_call"):
        thread = threading.get_ident()
        counts[thread] = counts.get(thread, 0) + 1
def begin(*_):
    global counting
    counts.clear()
    counting = True
def end(*_):
    global counting
    counting = False
    with open(file + ".new", "w") as out:
        out.write(str(sum(counts.values())))
    os.rename(file + ".new", file)
signal.signal(signal.SIGUSR1, begin)
signal.signal(signal.SIGUSR2, end)
threading.setprofile(profile)
sys.setprofile(profile)
runpy.run_module("toolscout", run_name="__main__")
"""
COUNTED_REQUESTS: Final = 600
SENDING_S: Final = 6.0  # after the requests: the SDK sends spans every five seconds


class Gateway(NamedTuple):
    """A running gateway and the number of its process."""

    client: Client
    process: int

    def read_seconds(self) -> float:
        """Return the processor time of all its threads so far."""
        threads = Path(f"/proc/{self.process}/task").glob("*/schedstat")
        return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


class Round(NamedTuple):
    """What one gateway needed for the requests of a round: seconds of the median request, and processor time."""

    wall: float
    processor: float


@asynccontextmanager
async def open_gateway(
    folder: Path, home: Path, variables: dict[str, str], program: tuple[str, ...] = ("-m", "toolscout")
) -> AsyncIterator[Gateway]:
    """Start a gateway and wait until its server is there."""
    words = [*program, "--home", str(home), "gateway", "--config", str(folder / "mcp.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOOLSCOUT_GATEWAY_RATE": "0", **variables}
    before = find_children()
    async with Client(StdioServerParameters(command=sys.executable, args=words, env=environment)) as client:
        [process] = find_children() - before
        while (await client.call_tool(*CALLS["call that answers at once"])).is_error:
            await asyncio.sleep(0.2)
        yield Gateway(client, process)


def find_children() -> set[int]:
    return {int(word) for path in Path("/proc/self/task").glob("*/children") for word in path.read_text().split()}


async def run_round(
    sides: dict[str, Gateway], requests: list[tuple[str, dict[str, Any]]], rng: random.Random
) -> dict[str, Round]:
    """Send the requests to both gateways, one after the other."""
    walls: dict[str, list[float]] = {name: [] for name in sides}
    began = {name: gateway.read_seconds() for name, gateway in sides.items()}
    for start in range(0, len(requests), BLOCK):
        for name in rng.sample(sorted(sides), 2):
            for request in requests[start : start + BLOCK]:
                started = time.perf_counter()
                answer = await sides[name].client.call_tool(*request)
                walls[name].append(time.perf_counter() - started)
                assert not answer.is_error, answer
    return {
        name: Round(float(np.median(walls[name])), gateway.read_seconds() - began[name])
        for name, gateway in sides.items()
    }


async def measure(folder: Path, queries: list[str], address: str, share: str, options: Any) -> dict[str, Any]:
    rng = random.Random(0)
    on = {} if share == "none" else {"TOOLSCOUT_TELEMETRY": address, "TOOLSCOUT_TELEMETRY_SHARE": share}
    rounds: dict[str, list[list[dict[str, Round]]]] = {kind: [] for kind in ("search", *CALLS)}
    for start in range(options.starts):
        async with AsyncExitStack() as stack:
            sides = {}
            for name in ["on", "off"] if start % 2 else ["off", "on"]:
                home = folder / f"{share}-{start}-{name}"
                shutil.copytree(folder / "home", home)
                gateway = open_gateway(folder, home, on if name == "on" else {})
                sides[name] = await stack.enter_async_context(gateway)
            for kind, results in rounds.items():
                results.append([])
                for _ in range(1 + options.rounds):
                    some = rng.choices(queries, k=REQUESTS)
                    requests = [CALLS.get(kind, ("search_tools", {"queries": [query]})) for query in some]
                    results[-1].append(await run_round(sides, requests, rng))
                del results[-1][0]
    return {kind: summarise(results) for kind, results in rounds.items()}


async def count(folder: Path, queries: list[str], address: str, share: str) -> dict[str, Any]:
    """Count the function calls of a request, with telemetry at a share and without."""
    counts: dict[str, dict[str, float]] = {kind: {} for kind in ("search", *CALLS)}
    on = {"TOOLSCOUT_TELEMETRY": address, "TOOLSCOUT_TELEMETRY_SHARE": share}
    for kind, results in counts.items():
        for name, variables in (("off", {}), ("on", on)):
            home, file = folder / f"{share}-{kind}-{name}", folder / f"{share}-{kind}-{name}.count"
            shutil.copytree(folder / "home", home)
            async with open_gateway(folder, home, variables, ("-c", COUNTER, str(file))) as gateway:
                for number in range(-20, COUNTED_REQUESTS):
                    if number == 0:
                        os.kill(gateway.process, signal.SIGUSR1)
                    request = CALLS.get(kind, ("search_tools", {"queries": [queries[number % len(queries)]]}))
                    assert not (await gateway.client.call_tool(*request)).is_error
                await asyncio.sleep(SENDING_S)
                os.kill(gateway.process, signal.SIGUSR2)
                while not file.exists():
                    await asyncio.sleep(0.1)
            results[name] = int(file.read_text()) / COUNTED_REQUESTS
    return {kind: {**side, "ratio": round(side["on"] / side["off"], 4)} for kind, side in counts.items()}


def summarise(starts: list[list[dict[str, Round]]]) -> dict[str, Any]:
    rounds = [result for start in starts for result in start]
    walls, seconds = ([[getattr(r[side], name) for side in ("on", "off")] for r in rounds] for name in Round._fields)
    on, off = np.array(seconds).T
    wall_ratios = np.divide(*np.array(walls).T)
    picks = np.random.default_rng(0).integers(0, len(rounds), (RESAMPLES, len(rounds)))
    added = (on - off) * 1000 / REQUESTS
    return {
        "wall_ratio": describe(np.median(wall_ratios), np.median(wall_ratios[picks], axis=1)),
        "processor_ratio": describe(on.sum() / off.sum(), on[picks].sum(axis=1) / off[picks].sum(axis=1)),
        "added_processor_ms": describe(added.mean(), added[picks].mean(axis=1)),
        "p50_ms": dict(zip(("on", "off"), (np.median(np.array(walls), axis=0) * 1000).round(3).tolist(), strict=True)),
        "processor_ms": {
            name: round(float(side.mean()) * 1000 / REQUESTS, 3) for name, side in (("on", on), ("off", off))
        },
        "starts": [
            {
                "wall_ratio": round(float(np.median([r["on"].wall / r["off"].wall for r in start])), 4),
                "processor_ratio": round(
                    sum(r["on"].processor for r in start) / sum(r["off"].processor for r in start), 4
                ),
            }
            for start in starts
        ],
        "rounds": len(rounds),
    }


def describe(value: Any, resampled: Any) -> dict[str, Any]:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return {"value": round(float(value), 4), "ci95": [round(float(low), 4), round(float(high), 4)]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--set", default="ultratool")
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15, help="of each start and kind of request")
    parser.add_argument("--share", action="append", help="share of the traces that are kept; default none, 0.1 and 1")
    parser.add_argument("--count", action="store_true", help="count function calls instead of time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = (options.data / options.set / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    queries = [json.loads(line)["text"][:2_000] for line in random.Random(0).sample(lines, 100)]
    collector = subprocess.Popen(
        [sys.executable, "-c", COLLECTOR, str(ROOT / "tests")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert collector.stdout is not None
    address = collector.stdout.readline().strip()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "mcp.json").write_text(
            json.dumps({"mcpServers": {"busy": {"command": sys.executable, "args": [BUSY]}}})
        )
        with Scout(folder / "home") as scout:
            scout.add(options.data / options.set)
            scout.embed()
            tools = len(scout.store.catalogue())
        measured = {}
        shares = options.share or (["0", "0.05", "0.1"] if options.count else ["none", "0.05", "1"])
        for share in shares:
            work = count(folder, queries, address, share) if options.count else None
            result = asyncio.run(work or measure(folder, queries, address, share, options))
            measured[f"share {share}"] = result
            click.echo(json.dumps({share: result}), err=True)
    spans, _ = collector.communicate()
    how = "--count" if options.count else f"--starts {options.starts} --rounds {options.rounds}"
    result = {
        **provenance(),
        "command": f"python benchmarks/telemetry.py {how}",
        "tools": tools,
        "spans": int(spans.split()[-1]),
        **measured,
    }
    click.echo(json.dumps(measured | {"spans": result["spans"], "tools": tools}, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
