"""Puts a gateway under load over HTTP while a server is killed, one floods and one hangs; counts what was lost.

    python benchmarks/gateway_load.py                half an hour, 64 callers
    python benchmarks/gateway_load.py --minutes 1    the same in short

Each caller has a session of its own. It writes texts, each once, into the ledger of a good server, and each fifth one
into the ledger of a server that is killed every 20 s while there is trouble. Minutes with trouble and without take
turns. Lost is a text that was answered and is in no ledger, or a call to the good server that failed; doubled is a text
that is in a ledger twice. A call that the killed server did not answer may or may not be in its ledger.

Writes benchmarks/results/gateway-load.json. On a busy machine only the counts and the ratio of p95 mean something.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mcp import Client
from mcp.shared.exceptions import MCPError

from toolscout.checks.results import write_json
from toolscout_lab.machine import provenance

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from ports import find_free_port  # noqa: E402

SERVERS: Final = ROOT / "tests" / "servers"
RESULTS: Final = ROOT / "benchmarks" / "results" / "gateway-load.json"
START_S: Final = 120.0
PAUSE_S: Final = 1.0  # of a caller between two calls, the mean
KILL_EVERY_S: Final = 20.0
CALL_S: Final = 60.0
KILLED_EVERY_CALLS: Final = 5


@dataclass
class LoadRecord:
    """What has happened so far.

    Attributes:
        troubled: whether servers are killed, flood and hang now.
        answered: ledger → texts whose call was answered.
        failed: ledger → texts whose call failed.
        seconds: for each state of `troubled` the times of calls to the good server.
        kills: how often the server was killed.
        memory_mb: of the gateway, twice a minute.
    """

    troubled: bool = False
    answered: dict[str, list[str]] = field(default_factory=lambda: {"good": [], "killed": []})
    failed: dict[str, list[str]] = field(default_factory=lambda: {"good": [], "killed": []})
    seconds: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    kills: int = 0
    memory_mb: list[float] = field(default_factory=list)


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[tuple[str, int]]:
    """Start a gateway with four servers. Yields its address and the number of its process."""
    busy = {"command": sys.executable, "args": [str(SERVERS / "busy.py")], "timeout": 5}
    entries: dict[str, Any] = {"floods": busy, "hangs": busy}
    for name in ("good", "killed"):
        files = [str(folder / f"{name}.{kind}") for kind in ("ledger", "pid")]
        entries[name] = {"command": sys.executable, "args": [str(SERVERS / "ledger.py"), *files]}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    port = find_free_port()
    words = ["--home", str(folder / "home"), "gateway", "--http", "--port", str(port)]
    line = [sys.executable, "-m", "toolscout", *words, "--config", str(folder / "mcp.json")]
    process = subprocess.Popen(line, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/mcp", process.pid
    finally:
        process.terminate()
        process.wait(30)


async def call(client: Client, tool: str, arguments: dict[str, Any]) -> str | None:
    """Call a tool through the gateway. Returns the text of its result, or None if the call failed."""
    try:
        async with asyncio.timeout(CALL_S):
            result = await client.call_tool("call_tool", {"id": tool, "arguments": arguments})
    except (MCPError, TimeoutError):
        return None
    return None if result.is_error else str(getattr(result.content[0], "text", ""))


async def write_texts(address: str, caller: int, load: LoadRecord, ends: float) -> None:
    """Be one caller until the end."""
    async with Client(address) as client:
        number = 0
        while time.monotonic() < ends:
            number += 1
            ledger = "killed" if number % KILLED_EVERY_CALLS == 0 else "good"
            text, troubled, started = f"{caller}-{number}", load.troubled, time.perf_counter()
            is_answered = await call(client, f"{ledger}/write", {"text": text}) == text
            (load.answered if is_answered else load.failed)[ledger].append(text)
            if ledger == "good" and troubled == load.troubled:
                load.seconds[troubled].append(time.perf_counter() - started)
            await asyncio.sleep(random.uniform(0.5, 1.5) * PAUSE_S)


async def make_trouble(address: str, tool: str, load: LoadRecord, ends: float) -> None:
    """Call a tool that floods or hangs again and again, while there is trouble."""
    async with Client(address) as client:
        while time.monotonic() < ends:
            if load.troubled:
                await call(client, tool, {})
            await asyncio.sleep(0.5)


async def kill_server(pid_file: Path, load: LoadRecord, ends: float) -> None:
    """Kill a server every 20 s, while there is trouble."""
    while time.monotonic() < ends:
        await asyncio.sleep(KILL_EVERY_S)
        if load.troubled:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError, ValueError):
                os.kill(int(pid_file.read_text()), signal.SIGKILL)
                load.kills += 1


async def watch(pid: int, load: LoadRecord, ends: float) -> None:
    """Begin and end the trouble every minute, and read the memory of the gateway twice a minute."""
    while time.monotonic() < ends:
        await asyncio.sleep(30)
        status = Path(f"/proc/{pid}/status").read_text()
        load.memory_mb.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)
        load.troubled = len(load.memory_mb) % 4 in (2, 3)


async def wait_until_ready(address: str) -> None:
    """Wait until the gateway answers and both ledgers can be written."""
    ends = time.monotonic() + START_S
    while time.monotonic() < ends:
        with contextlib.suppress(Exception):  # of the HTTP library, while nobody listens yet
            async with Client(address) as client:
                tools = [f"{name}/write" for name in ("good", "killed")]
                if all([await call(client, tool, {"text": "ready"}) == "ready" for tool in tools]):
                    return
        await asyncio.sleep(0.5)
    raise SystemExit(f"the gateway did not answer within {START_S:.0f} s")


async def run(folder: Path, callers: int, minutes: float) -> dict[str, Any]:
    """Run the load and count."""
    load = LoadRecord()
    with serve(folder) as (address, pid):
        await wait_until_ready(address)
        ends = time.monotonic() + 60 * minutes
        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(write_texts(address, number, load, ends))
            for tool in ("floods/flood", "hangs/hang"):
                group.create_task(make_trouble(address, tool, load, ends))
            group.create_task(kill_server(folder / "killed.pid", load, ends))
            group.create_task(watch(pid, load, ends))
    return summarise(load, folder) | {"callers": callers, "minutes": minutes}


def summarise(load: LoadRecord, folder: Path) -> dict[str, Any]:
    """Compare the answers with the ledgers."""
    counts: dict[str, Any] = {}
    for name in ("good", "killed"):
        written = Counter((folder / f"{name}.ledger").read_text().split())
        written.pop("ready", None)
        counts[name] = {
            "answered": len(load.answered[name]),
            "failed": len(load.failed[name]),
            "lost": sum(written[text] == 0 for text in load.answered[name]),
            "doubled": sum(count > 1 for count in written.values()),
        }
    p95 = {
        state: round(1000 * statistics.quantiles(times, n=20)[18], 1)
        for state, times in load.seconds.items()
        if len(times) > 1
    }
    memory = [round(value, 1) for value in load.memory_mb]
    return {
        **counts,
        "kills": load.kills,
        "p95_ms": {"quiet": p95.get(False), "trouble": p95.get(True)},
        "p95_ratio": round(p95[True] / p95[False], 2) if len(p95) == 2 else None,
        "memory_mb": memory,
    }


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(run(Path(folder), options.callers, options.minutes))
    write_json(options.out, result | provenance())
    sys.stdout.write(options.out.read_text())


if __name__ == "__main__":
    main()
