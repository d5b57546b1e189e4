"""Measures what traces and metrics cost: the same search and the same call through two gateways, in turn.

One gateway sends to a collector in a process of its own, the other has telemetry off. A pair is one request to each, in
an order that changes each time; its ratio is time with telemetry over time without. The figure is the median ratio,
with a bootstrap interval. The catalogue is a dataset's, beside a server that sleeps as an API would.

    python benchmarks/telemetry.py --data FOLDER [--pairs 400] [--out benchmarks/results/telemetry.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from mcp import Client, StdioServerParameters

from toolscout.lab.machine import provenance
from toolscout.scout import Scout

ROOT: Final = Path(__file__).parent.parent
BUSY: Final = str(ROOT / "tests" / "servers" / "busy.py")
WARM: Final = 20
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


def make_parameters(folder: Path, telemetry: str) -> StdioServerParameters:
    words = ["-m", "toolscout", "--home", str(folder / "home"), "gateway", "--config", str(folder / "mcp.json")]
    environment = {**os.environ, "TOOLSCOUT_TELEMETRY": telemetry, "TOOLSCOUT_GATEWAY_RATE": "0"}
    return StdioServerParameters(command=sys.executable, args=words, env=environment)


def summarise(ratios: list[float]) -> dict[str, Any]:
    values, rng = np.array(ratios), np.random.default_rng(0)
    medians = np.median(rng.choice(values, (RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return {"median_ratio": round(float(np.median(values)), 4), "ci95": [round(float(low), 4), round(float(high), 4)]}


async def measure(folder: Path, queries: list[str], address: str, pairs: int) -> dict[str, Any]:
    rng = random.Random(0)
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(Client(make_parameters(folder / name, telemetry)))
            for name, telemetry in (("on", address), ("off", ""))
        }
        for client in clients.values():
            while (await client.call_tool(*CALLS["call that answers at once"])).is_error:
                await asyncio.sleep(0.2)
        result: dict[str, Any] = {}
        for kind in ("search", *CALLS):
            times: dict[str, list[float]] = {"on": [], "off": []}
            for number in range(WARM + pairs):
                order = ["on", "off"] if rng.random() < 0.5 else ["off", "on"]
                for name in order:
                    query = queries[number % len(queries)]
                    search = ("search_tools", {"queries": [query]})
                    started = time.perf_counter()
                    answer = await clients[name].call_tool(*CALLS.get(kind, search))
                    times[name].append(time.perf_counter() - started)
                    assert not answer.is_error, answer
            on, off = times["on"][WARM:], times["off"][WARM:]
            result[kind] = {
                **summarise([a / b for a, b in zip(on, off, strict=True)]),
                "pairs": pairs,
                "p50_ms": {"on": round(float(np.median(on)) * 1000, 3), "off": round(float(np.median(off)) * 1000, 3)},
            }
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--set", default="ultratool")
    parser.add_argument("--pairs", type=int, default=400)
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
        for name in ("on", "off"):
            folder = Path(place) / name
            folder.mkdir()
            (folder / "mcp.json").write_text(
                json.dumps({"mcpServers": {"busy": {"command": sys.executable, "args": [BUSY]}}})
            )
            with Scout(folder / "home") as scout:
                scout.add(options.data / options.set)
                scout.embed()
                tools = len(scout.store.catalogue())
        measured = asyncio.run(measure(Path(place), queries, address, options.pairs))
    spans, _ = collector.communicate()
    result = {
        **provenance(),
        "command": f"python benchmarks/telemetry.py --set {options.set} --pairs {options.pairs}",
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
