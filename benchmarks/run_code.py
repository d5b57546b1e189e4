"""Measures `run_code`: what ten calls cost in a program, and one by one, and what the model reads of each.

    python benchmarks/run_code.py

Writes `benchmarks/results/run-code.json`. Needs Linux with bubblewrap or Landlock. The two ways take turns; figures are
medians over the pairs.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from toolscout_gateway.sandbox.runner import find_isolation
from toolscout_gateway.text import count_tokens
from toolscout_lab.machine import provenance

CALLS = 10
PAIRS = 40
WARM_PAIRS = 3
PAUSE_S = 1.0
ROOT = Path(__file__).parent.parent
BUSY = str(ROOT / "tests" / "servers" / "busy.py")
LARGE = str(ROOT / "tests" / "servers" / "large.py")
CODE = f"""
texts = [call("busy/echo", text=str(number)) for number in range({CALLS})]
print(len(texts), texts[-1])
"""
PARALLEL_CODE = f"""
texts = call_all([("busy/echo", {{"text": str(number)}}) for number in range({CALLS})])
print(len(texts), texts[-1])
"""
FILTER_CODE = """
text = call("large/lines", size=200_000)
print([line for line in text.splitlines() if line.startswith("line 99")])
"""


def make_parameters(folder: Path) -> StdioServerParameters:
    servers = {name: {"command": sys.executable, "args": [path]} for name, path in (("busy", BUSY), ("large", LARGE))}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    words = ["-m", "toolscout", "--home", str(folder / "home"), "gateway", "--config", str(folder / "mcp.json")]
    environment = {"TOOLSCOUT_RUN_CODE_WRITES": "1", "TOOLSCOUT_GATEWAY_RATE": "0", "PYTHONPATH": str(ROOT / "src")}
    return StdioServerParameters(command=sys.executable, args=[*words, "--run-code"], env=environment)


async def run_program(client: Client, code: str) -> str:
    answer = await client.call_tool("run_code", {"code": code})
    assert not answer.is_error, answer.content
    return "".join(block.text for block in answer.content)


async def call_one_by_one(client: Client) -> int:
    """Make the calls one by one. Returns the tokens of their results."""
    tokens = 0
    for number in range(CALLS):
        arguments = {"id": "busy/echo", "arguments": {"text": str(number)}}
        answer = await client.call_tool("call_tool", arguments)
        tokens += count_tokens(answer.content[0].text)
    return tokens


async def measure_pairs(client: Client, code: str) -> dict[str, Any]:
    """Measure a program and the same calls one by one, in turn; figures in ms."""
    ratios, programs, calls = [], [], []
    for pair in range(WARM_PAIRS + PAIRS):
        started = time.perf_counter()
        await call_one_by_one(client)
        between = time.perf_counter()
        assert await run_program(client, code) == f"{CALLS} {CALLS - 1}"
        ended = time.perf_counter()
        await asyncio.sleep(PAUSE_S)  # the next process starts meanwhile, and not during the calls
        if pair >= WARM_PAIRS:
            calls.append(between - started)
            programs.append(ended - between)
            ratios.append((ended - between) / (between - started))
    return {
        "calls_ms": round(statistics.median(calls) * 1000, 2),
        "program_ms": round(statistics.median(programs) * 1000, 2),
        "ratio": round(statistics.median(ratios), 3),
    }


async def count_read_tokens(client: Client) -> dict[str, int]:
    """Count the tokens that the model reads of a result of which it needs little."""
    arguments = {"id": "large/lines", "arguments": {"size": 200_000}}
    answer = await client.call_tool("call_tool", arguments)
    plain = sum(count_tokens(block.text) for block in answer.content)
    return {"call_tool": plain, "run_code": count_tokens(await run_program(client, FILTER_CODE))}


async def main() -> None:
    """Measure and write."""
    with tempfile.TemporaryDirectory() as folder:
        async with Client(make_parameters(Path(folder))) as client:
            while (await client.call_tool("call_tool", {"id": "busy/echo", "arguments": {}})).is_error:
                await asyncio.sleep(0.2)
            measured = {
                "isolation": find_isolation(),
                "calls": CALLS,
                "pairs": PAIRS,
                "one_after_the_other": await measure_pairs(client, CODE),
                "at_the_same_time": await measure_pairs(client, PARALLEL_CODE),
                "tokens_read": await count_read_tokens(client),
                **provenance(),
            }
    path = ROOT / "benchmarks" / "results" / "run-code.json"
    path.write_text(json.dumps(measured, indent=2) + "\n")
    sys.stdout.write(path.read_text())


if __name__ == "__main__":
    asyncio.run(main())
