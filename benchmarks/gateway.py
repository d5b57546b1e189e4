"""What the gateway costs and spares: time added to a call, side by side with direct calls, and tokens an agent reads.

    python benchmarks/gateway.py

Writes `benchmarks/results/gateway.json`. Needs the packages mcp-server-time, mcp-server-git and tokenizers.
"""

from __future__ import annotations

import asyncio
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

CALLS = 300
WARM = 20
SIZES = (8, 40)  # servers of 50 tools each
ROOT = Path(__file__).parent.parent
BUSY = str(ROOT / "tests" / "servers" / "busy.py")
PROGRAMS = Path(sys.executable).parent


def gateway(folder: Path, entries: dict[str, Any]) -> StdioServerParameters:
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    words = ["-m", "toolscout", "--home", str(folder / "home"), "gateway", "--config", str(folder / "mcp.json")]
    return StdioServerParameters(command=sys.executable, args=words)


async def ready(client: Client, id: str, arguments: dict[str, Any]) -> None:
    while (await client.call_tool("call_tool", {"id": id, "arguments": arguments})).is_error:
        await asyncio.sleep(0.2)


def quantiles(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=20)
    return {"p50": round(statistics.median(seconds) * 1000, 3), "p95": round(cuts[18] * 1000, 3)}


async def overhead(folder: Path, entry: dict[str, Any], tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of the same call with and without the gateway, one after the other in turn."""
    direct_to = StdioServerParameters(command=entry["command"], args=entry.get("args", []))
    times: tuple[list[float], list[float]] = ([], [])
    async with Client(direct_to) as direct, Client(gateway(folder, {"it": entry})) as through:
        await ready(through, f"it/{tool}", arguments)
        for number in range(WARM + CALLS):
            started = time.perf_counter()
            await direct.call_tool(tool, arguments)
            between = time.perf_counter()
            await through.call_tool("call_tool", {"id": f"it/{tool}", "arguments": arguments})
            ended = time.perf_counter()
            if number >= WARM:
                times[0].append(between - started)
                times[1].append(ended - between)
    direct_ms, through_ms = map(quantiles, times)
    return {
        "direct_ms": direct_ms,
        "gateway_ms": through_ms,
        "added_p50_ms": round(through_ms["p50"] - direct_ms["p50"], 3),
    }


def counter(texts: list[str]) -> Any:
    """A byte-level BPE of 8,000 pieces, learned from the definitions themselves: it flatters neither side."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=8000, show_progress=False))
    return lambda text: len(tokenizer.encode(text).ids)


async def definitions(parameters: StdioServerParameters) -> str:
    async with Client(parameters) as client:
        tools = (await client.list_tools()).tools
    return json.dumps([tool.model_dump(by_alias=True, exclude_none=True, mode="json") for tool in tools])


async def spared(folder: Path, entries: dict[str, Any]) -> dict[str, Any]:
    """Tokens of the definitions that an agent reads with every server at it, and with the gateway alone."""
    theirs = [
        await definitions(StdioServerParameters(command=entry["command"], args=entry.get("args", [])))
        for entry in entries.values()
    ]
    ours = await definitions(gateway(folder, {}))
    count = counter([*theirs, ours])
    before, after = sum(map(count, theirs)), count(ours)
    tools = sum(len(json.loads(each)) for each in theirs)
    return {"servers": len(entries), "tools": tools, "tokens": before, "gateway_tokens": after,
            "spared": round(1 - after / before, 4)}  # fmt: skip


async def main() -> None:
    """Measure and write."""
    busy = {"command": sys.executable, "args": [BUSY]}
    clock = {"command": str(PROGRAMS / "mcp-server-time"), "args": ["--local-timezone", "UTC"]}
    noon = {"source_timezone": "Europe/Oslo", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    found: dict[str, Any] = {"calls": CALLS, "overhead": {}, "tokens": []}
    for name, entry, tool, arguments in (("echo", busy, "echo", {"text": "x"}), ("time", clock, "convert_time", noon)):
        with tempfile.TemporaryDirectory() as folder:
            found["overhead"][name] = await overhead(Path(folder), entry, tool, arguments)
    real = {"time": clock, "git": {"command": str(PROGRAMS / "mcp-server-git")}}
    fleets = [{f"s{n}": {**busy, "args": [BUSY, "35", f"Warehouse{n}"]} for n in range(size)} for size in SIZES]
    for entries in (real, *fleets):
        with tempfile.TemporaryDirectory() as folder:
            found["tokens"].append(await spared(Path(folder), entries))
    found["machine"] = f"{platform.machine()}, Python {platform.python_version()}"
    target = ROOT / "benchmarks" / "results" / "gateway.json"
    target.write_text(json.dumps(found, indent=2) + "\n")
    sys.stdout.write(target.read_text())


if __name__ == "__main__":
    asyncio.run(main())
