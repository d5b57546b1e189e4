"""Measures one tool call through the gateway against the same call made directly, and counts what it enters.

    python benchmarks/gateway_call.py [--calls N] [--list] [--json]

The times are medians of calls made in turns, over stdio: a client of the MCP SDK at the server, and the same client at
a gateway before the server. Two servers are called: one without the SDK (`tests/servers/busy.py`), whose answers take
next to no time, and one that is built with the SDK. The count is of the functions of toolscout that one warm call
enters in the gateway's process, in all its threads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import click
from mcp import Client, StdioServerParameters

import toolscout
import toolscout_gateway
from toolscout import Scout
from toolscout_gateway import Gateway, Options

ROOTS = tuple(f"{Path(str(package.__file__)).parent}/" for package in (toolscout, toolscout_gateway))
BUSY = str(Path(__file__).parent.parent / "tests" / "servers" / "busy.py")
SDK_SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("echo")
@server.tool()
def echo(text: str) -> str:
    "Gives back the text it is given."
    return text
server.run()
"""
SERVERS = {
    "plain": {"command": sys.executable, "args": [BUSY]},
    "sdk": {"command": sys.executable, "args": ["-c", SDK_SERVER]},
}
WARM = 30
COUNTED = 10  # calls, of which the one that enters the fewest functions counts: others meet the gateway's own rounds
#: Names that Python gives to bodies without one: they're part of the function around them.
PARTS = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>", "<module>"}
ARGUMENTS = {"text": "x"}


def write_config(folder: Path, name: str) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"it": SERVERS[name]}}))
    return path


async def call_until_ready(client: Client) -> None:
    while (await client.call_tool("call_tool", {"id": "it/echo", "arguments": ARGUMENTS})).is_error:
        await asyncio.sleep(0.2)


async def measure_call(name: str, calls: int) -> dict[str, float]:
    """Measure a call directly and through the gateway, in turns; medians in ms."""
    entry: dict[str, Any] = SERVERS[name]
    times: dict[str, list[float]] = {"direct": [], "gateway": []}
    with tempfile.TemporaryDirectory() as folder:
        config = write_config(Path(folder), name)
        words = ["-m", "toolscout", "--home", f"{folder}/home", "gateway", "--config", str(config)]
        through = Client(StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ)))
        async with Client(StdioServerParameters(**entry)) as direct, through:
            await call_until_ready(through)
            turns: dict[str, tuple[Client, str, dict[str, Any]]] = {
                "direct": (direct, "echo", ARGUMENTS),
                "gateway": (through, "call_tool", {"id": "it/echo", "arguments": ARGUMENTS}),
            }
            for number in range(WARM + calls):
                for turn, (client, tool, arguments) in turns.items():
                    started = time.perf_counter()
                    await client.call_tool(tool, arguments)
                    times[turn] += [time.perf_counter() - started] if number >= WARM else []
    medians = {turn: round(statistics.median(values) * 1000, 3) for turn, values in times.items()}
    return {**medians, "ratio": round(medians["gateway"] / medians["direct"], 2)}


async def count_functions() -> list[str]:
    """List the functions of toolscout that one warm call enters, in the order in which it first enters them."""
    codes: list[CodeType] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOTS) and code.co_name not in PARTS:
            codes.append(code)

    journeys: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder, Scout(f"{folder}/home") as scout:
        threading.setprofile(note)  # for the threads of the gateway's pool, which begin later
        gateway = Gateway(scout, Options(configs=(write_config(Path(folder), "plain"),)))
        async with gateway.running(), Client(gateway.server) as client:
            await call_until_ready(client)
            for _ in range(COUNTED):
                await asyncio.sleep(0.1)
                codes.clear()
                sys.setprofile(note)
                await client.call_tool("call_tool", {"id": "it/echo", "arguments": ARGUMENTS})
                sys.setprofile(None)
                names = (f"{code.co_filename}:{code.co_firstlineno} {code.co_name}" for code in codes)
                journeys.append(list(dict.fromkeys(names)))
        threading.setprofile(None)
    common = str(Path(toolscout.__file__).parents[2])
    return [name.removeprefix(f"{common}/") for name in min(journeys, key=len)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300, help="calls of each kind [default: %(default)s]")
    parser.add_argument("--list", action="store_true", help="name the functions")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    names = asyncio.run(count_functions())
    counts = {"functions": len(names), "files": len({name.partition(":")[0] for name in names})}
    times = {name: asyncio.run(measure_call(name, options.calls)) for name in SERVERS} if options.calls else {}
    if options.json:
        click.echo(json.dumps({**counts, "ms": times, "names": names}, indent=1))
        return
    click.echo(f"one call enters {counts['functions']} functions in {counts['files']} files")
    for name, measured in times.items():
        click.echo(f"{name}: {measured}")
    if options.list:
        click.echo("\n".join(names))


if __name__ == "__main__":
    main()
