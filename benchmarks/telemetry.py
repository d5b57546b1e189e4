"""Measures what traces and metrics cost: blocks of the same requests to one gateway, with telemetry on and off in turn.

A collector runs in a process of its own. A pair is a block with telemetry and one without, in random order. The wall
time of a request is what a caller notices. The processor time of answering is that until the last answer of a block;
all processor time holds also what is then made and sent in the background. A block is as long as the SDK's own batches.
The figures are medians over pairs, with bootstrap intervals: of ratios, and of the processor time added to a request.
One process with both settings keeps them apart from the load of the machine. The agent, who shares the process here,
makes no spans. The catalogue is a dataset's, beside a server of the tests.

    python benchmarks/telemetry.py --data FOLDER [--pairs 60] [--out benchmarks/results/telemetry.json]
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from mcp import Client
from mcp.shared import _otel as mcp_telemetry
from mcp.shared import jsonrpc_dispatcher
from opentelemetry import trace

from toolscout.access import telemetry
from toolscout.gateway import Gateway
from toolscout.gateway.options import Options
from toolscout.lab.machine import provenance
from toolscout.scout import Scout

ROOT: Final = Path(__file__).parent.parent
BUSY: Final = str(ROOT / "tests" / "servers" / "busy.py")
BLOCK: Final = 128  # a call has four spans at most, and the SDK sends 512 at once
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


_is_agent: Final[ContextVar[bool]] = ContextVar("is_agent", default=False)
_open_span: Final = mcp_telemetry.otel_span


@dataclasses.dataclass(frozen=True)
class Times:
    """The seconds of a block: wall time of the median request, processor time of answering, and all processor time."""

    wall: float
    answering: float
    processor: float


def summarise(values: list[float]) -> dict[str, Any]:
    array, rng = np.array(values), np.random.default_rng(0)
    medians = np.median(rng.choice(array, (RESAMPLES, len(array))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return {"median": round(float(np.median(array)), 4), "ci95": [round(float(low), 4), round(float(high), 4)]}


@contextmanager
def open_server_span(name: str, **options: Any) -> Iterator[Any]:
    """Open a span of the MCP SDK, but none for a request that the agent sends: its process is another one."""
    if _is_agent.get():
        _is_agent.set(False)  # what the request starts is the gateway's
        yield trace.INVALID_SPAN
        return
    with _open_span(name, **options) as span:
        yield span


@contextmanager
def set_telemetry(active: Any) -> Iterator[None]:
    """Switch telemetry on or off. The spans of the MCP SDK follow, since it finds its provider at each span."""
    telemetry._active = active
    trace._TRACER_PROVIDER = active.traces if active is not None else trace.NoOpTracerProvider()
    mcp_telemetry._tracer = trace.get_tracer("mcp-python-sdk")
    try:
        yield
    finally:
        telemetry._active = None


async def run_block(client: Client, requests: list[tuple[str, dict[str, Any]]], active: Any) -> Times:
    """Send the requests one after the other, and wait until everything that they leave to do is done."""
    walls, began = [], time.process_time()
    with set_telemetry(active):
        for request in requests:
            started = time.perf_counter()
            _is_agent.set(True)
            answer = await client.call_tool(*request)
            walls.append(time.perf_counter() - started)
            assert not answer.is_error, answer
    answering = time.process_time() - began
    if active is not None:
        await asyncio.to_thread(active.recorder._record_waiting)
        await asyncio.to_thread(active.traces.force_flush)
    return Times(float(np.median(walls)), answering, time.process_time() - began)


async def measure(folder: Path, queries: list[str], address: str, pairs: int) -> dict[str, Any]:
    rng, result = random.Random(0), {}
    active = telemetry.Telemetry(address, "benchmark")
    with Scout(folder / "home", gateway_rate=0.0) as scout:
        gateway = Gateway(scout, Options(configs=(folder / "mcp.json",)))
        async with gateway.running(), Client(gateway.server) as client:
            while (await client.call_tool(*CALLS["call that answers at once"])).is_error:
                await asyncio.sleep(0.2)
            for kind in ("search", *CALLS):
                times: dict[str, list[Times]] = {"on": [], "off": []}
                for _ in range(1 + pairs):
                    some = rng.choices(queries, k=BLOCK)
                    block = [CALLS.get(kind, ("search_tools", {"queries": [query]})) for query in some]
                    for name in rng.sample(["on", "off"], 2):
                        times[name].append(await run_block(client, block, active if name == "on" else None))
                result[kind] = summarise_pairs(times["on"][1:], times["off"][1:])
                click.echo(json.dumps({kind: result[kind]}), err=True)
    active.close()
    return result


def summarise_pairs(on: list[Times], off: list[Times]) -> dict[str, Any]:
    pairs = list(zip(on, off, strict=True))
    added = [1000 * (a.processor - b.processor) / BLOCK for a, b in pairs]
    return {
        "wall_ratio": summarise([a.wall / b.wall for a, b in pairs]),
        "answering_ratio": summarise([a.answering / b.answering for a, b in pairs]),
        "processor_ratio": summarise([a.processor / b.processor for a, b in pairs]),
        "added_processor_ms": summarise(added),
        "p50_ms": {
            name: round(1000 * float(np.median([times.wall for times in some])), 3)
            for name, some in (("on", on), ("off", off))
        },
        "processor_ms": {
            name: round(1000 * float(np.median([times.processor for times in some])) / BLOCK, 3)
            for name, some in (("on", on), ("off", off))
        },
        "pairs": len(pairs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--set", default="ultratool")
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument(
        "--share", type=float, action="append", help="share of the traces that are kept; default 1 and 0.1"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = (options.data / options.set / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    queries = [json.loads(line)["text"][:2_000] for line in random.Random(0).sample(lines, 100)]
    collector = subprocess.Popen(
        [sys.executable, "-c", COLLECTOR, str(ROOT / "tests")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert collector.stdout is not None
    address = collector.stdout.readline().strip()
    jsonrpc_dispatcher.otel_span = open_server_span
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
        for share in options.share or [1.0, 0.1]:
            os.environ |= {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": str(share)}
            measured[f"share {share:g}"] = asyncio.run(measure(folder, queries, address, options.pairs))
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
