"""Measures the gateway at scale: many configured servers, results of 100 MB, and servers that fail.

    python benchmarks/gateway_scale.py [--servers 300] [--megabytes 100] [--calls 300] [--only PART]

Writes `benchmarks/results/gateway-scale.json`. Memory is that of the gateway's process, as Linux counts it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from toolscout_lab.machine import provenance

ROOT = Path(__file__).parent.parent
SERVERS = ROOT / "tests" / "servers"
sys.path.insert(0, str(SERVERS))
from large import make_lines  # noqa: E402

CAP = 8
FAILING = 10
PAGE_TOKENS = 1_000_000


def make_entry(program: str, *words: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(SERVERS / program), *words], **more}


class Gateway:
    """A gateway as a process of its own, with a client."""

    def __init__(self, folder: Path, entries: dict[str, Any], *options: str, **variables: str) -> None:
        self.folder, self.options, self.variables = folder, options, variables
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
        self.pid_file = folder / "pid"

    async def __aenter__(self) -> Gateway:
        self._stack = AsyncExitStack()
        words = ["-m", "toolscout", "--home", str(self.folder / "home"), "gateway"]
        words += ["--config", str(self.folder / "mcp.json"), *self.options]
        code = f'echo $$ > {self.pid_file}; exec "$0" "$@"'
        own = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **self.variables}  # compiled once, as when it is installed
        parameters = StdioServerParameters(command="sh", args=["-c", code, sys.executable, *words], env=own)
        began = time.perf_counter()
        self.client = await self._stack.enter_async_context(Client(parameters))
        await self.client.list_tools()
        self.ready_s = time.perf_counter() - began
        self.pid = int(self.pid_file.read_text())
        self.ready_cpu_s = self.read_cpu()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def call(self, id: str, **arguments: Any) -> Any:
        return await self.client.call_tool("call_tool", {"id": id, "arguments": arguments})

    def read_memory(self, key: str = "VmRSS") -> float:
        """Return MiB of memory: now (`VmRSS`), or at most since the start (`VmHWM`)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return round(int(line.split()[1]) / 1024, 1)
        raise LookupError(key)

    def count_servers(self) -> int:
        """Return how many servers run as children of the gateway."""
        count = 0
        for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                count += str(SERVERS).encode() in Path(f"/proc/{child}/cmdline").read_bytes()
        return count

    def read_cpu(self) -> float:
        """Return the seconds of processor time that the gateway has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 2)


async def wait_until_listed(gateway: Gateway, names: list[str]) -> float:
    """Wait until the tools of all servers are in the catalogue. Returns the seconds."""
    began = time.perf_counter()
    for name in names:
        while (await gateway.client.call_tool("describe_tools", {"ids": [f"{name}/echo"]})).is_error:
            await asyncio.sleep(0.2)
    return round(time.perf_counter() - began, 1)


async def measure_fleet(folder: Path, servers: int) -> dict[str, Any]:
    """Measure a gateway with many servers, whose tools are not known at first, and known afterwards."""
    entries = {f"s{number}": make_entry("busy.py", "3", f"Warehouse{number}") for number in range(servers)}
    limits = {"TOOLSCOUT_GATEWAY_SERVERS": str(CAP), "TOOLSCOUT_GATEWAY_RATE": "0"}
    found: dict[str, Any] = {"servers": servers, "cap": CAP}
    async with Gateway(folder, entries, **limits) as gateway:
        found["cold_ready_s"] = round(gateway.ready_s, 2)
        found["cold_listed_s"] = await wait_until_listed(gateway, list(entries))
        await asyncio.sleep(2)
    async with Gateway(folder, entries, **limits) as gateway:
        found["ready_s"], found["ready_cpu_s"] = round(gateway.ready_s, 2), gateway.ready_cpu_s
        await asyncio.sleep(3)
        found["ready_mb"] = gateway.read_memory()
        found["running_before_calls"] = gateway.count_servers()
        most = 0
        for number in range(0, servers, max(1, servers // (3 * CAP))):
            answer = await gateway.call(f"s{number}/echo", text="x")
            assert answer.content[0].text == "x", answer.content[0].text
            most = max(most, gateway.count_servers())
        found["running_at_most"] = most
        query = {"queries": ["read one invoice after the other"]}
        assert (await gateway.client.call_tool("search_tools", query)).structured_content["results"][0]["tools"]
        found["mb_after_a_search"] = gateway.read_memory()
    return found


async def time_call(gateway: Gateway, id: str) -> float:
    began = time.perf_counter()
    assert not (await gateway.call(id, text="x")).is_error
    return time.perf_counter() - began


async def read_all(gateway: Gateway, handle: str) -> str:
    """Return the SHA-256 of all pages of a result."""
    digest, offset = hashlib.sha256(), 0
    while True:
        answer = await gateway.client.call_tool("read_result", {"handle": handle, "offset": offset})
        page = answer.structured_content
        digest.update(page["text"].encode())
        if "next_offset" not in page:
            return digest.hexdigest()
        offset = page["next_offset"]


async def measure_large(folder: Path, megabytes: int) -> dict[str, Any]:
    """Measure what one large result costs, and whether its pages give every byte."""
    size = megabytes * 1_000_000
    entries, options = {"a": make_entry("large.py")}, ("--call-timeout", "600")
    found: dict[str, Any] = {"megabytes": megabytes}
    async with Gateway(folder, entries, *options) as gateway:
        await wait_until_listed(gateway, ["a"])
        usual = statistics.median([await time_call(gateway, "a/echo") for _ in range(50)])
        before = gateway.read_memory()
        Path(f"/proc/{gateway.pid}/clear_refs").write_text("5")  # the peak is counted from here on
        began = time.perf_counter()
        answer = await gateway.call("a/lines", size=size)
        found["call_s"] = round(time.perf_counter() - began, 2)
        after = await time_call(gateway, "a/echo")
        found["memory_mb"] = round(gateway.read_memory("VmHWM") - before, 1)
        found["next_call_ratio"] = round(after / usual, 2)
        handle = answer.meta["toolscout/result"]["handle"]
        began = time.perf_counter()
        matches = await gateway.client.call_tool("read_result", {"handle": handle, "grep": "no such words"})
        assert "no line matches" in matches.content[0].text
        found["grep_s"] = round(time.perf_counter() - began, 2)
        found["memory_with_grep_mb"] = round(gateway.read_memory("VmHWM") - before, 1)
    digest = hashlib.sha256()
    for line in make_lines(size):
        digest.update(line.encode())
    options = ("--result-budget", str(PAGE_TOKENS))
    async with Gateway(folder, entries, *options, TOOLSCOUT_GATEWAY_RATE="0") as gateway:  # a handle survives it
        began = time.perf_counter()
        found["every_byte_by_handle"] = await read_all(gateway, handle) == digest.hexdigest()
        found["read_all_s"] = round(time.perf_counter() - began, 2)
    return found


async def measure_beside_failures(folder: Path, calls: int) -> dict[str, Any]:
    """Measure calls to a good server, alone and beside ten that hang and die. The two take turns.

    Times are those of a machine that others may use as well. The processor time of the gateway for each good call
    depends on its own work alone.
    """
    entries = {"good": make_entry("busy.py")}
    entries |= {f"bad{number}": make_entry("busy.py") for number in range(FAILING)}
    ids = [f"bad{number}/{'hang' if number % 2 else 'die'}" for number in range(FAILING)]
    times: dict[bool, list[float]] = {False: [], True: []}
    cpu_s = {False: 0.0, True: 0.0}
    async with Gateway(folder, entries, "--call-timeout", "2", TOOLSCOUT_GATEWAY_RATE="0") as gateway:
        await wait_until_listed(gateway, list(entries))

        async def trouble(id: str) -> None:
            while True:
                await gateway.call(id)
                await asyncio.sleep(0.05)

        for _ in range(10):
            for troubled in (False, True):
                tasks = [asyncio.create_task(trouble(id)) for id in ids if troubled]
                await asyncio.sleep(0.5)
                before = gateway.read_cpu()
                times[troubled] += [await time_call(gateway, "good/echo") for _ in range(calls // 10)]
                cpu_s[troubled] += gateway.read_cpu() - before
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    alone, beside = (statistics.quantiles(times[troubled], n=20)[18] for troubled in (False, True))
    found = {"failing": FAILING, "p95_alone_ms": round(alone * 1000, 2), "p95_beside_ms": round(beside * 1000, 2)}
    return {**found, "p95_ratio": round(beside / alone, 2), "cpu_ratio": round(cpu_s[True] / cpu_s[False], 2)}


async def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--servers", type=int, default=300)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--only", action="append", help="measure only this part; the others keep their figures")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gateway-scale.json")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    for name, measure, amount in (
        ("large_result", measure_large, options.megabytes),
        ("fleet", measure_fleet, options.servers),
        ("beside_failures", measure_beside_failures, options.calls),
    ):
        if options.only and name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found[name] = await measure(Path(folder), amount)
        sys.stderr.write(f"{name}: {json.dumps(found[name])}\n")
    options.out.write_text(json.dumps(found | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
