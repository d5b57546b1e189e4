"""Prints what a model reads at the gateway: scripted agents that search, slip, and go on as the answer tells them.

Each turn shows what the agent sends and the text that comes back, with its tokens as the gateway counts them. Read it
whenever a text of the gateway changes: is it short, and does it say what to do next?

    python benchmarks/transcripts.py [NAME …]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import click
from mcp import Client

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gateway import BUSY, PROGRAMS, make_gateway_parameters, wait_until_ready
from toolscout_gateway.text import count_tokens

TIME: Final = "time/convert_time"
NOON: Final = {"source_timezone": "Europe/Oslo", "time": "12:00", "target_timezone": "Asia/Tokyo"}
Turn = tuple[str, dict[str, Any]]
AGENTS: Final[dict[str, list[Turn]]] = {
    "straight": [
        ("search_tools", {"queries": ["what time is it in Tokyo when it is noon in Oslo"]}),
        ("describe_tools", {"ids": [TIME]}),
        ("call_tool", {"id": TIME, "arguments": NOON}),
    ],
    "several needs": [("search_tools", {"queries": ["current time in Lima", "give back a text"], "limit": 2})],
    "one string": [("search_tools", {"queries": "what time is it in Lima"})],
    "no tool": [("search_tools", {"queries": ["book a table for four at an Italian place"]})],
    "chat": [("search_tools", {"queries": ["thank you, that was very kind of you, see you tomorrow"]})],
    "bare name": [("call_tool", {"id": "convert_time", "arguments": NOON})],
    "near name": [("call_tool", {"id": "time/convert_times", "arguments": NOON})],
    "unknown": [("call_tool", {"id": "mail/send", "arguments": {}}), ("describe_tools", {"ids": ["mail/send"]})],
    "arguments as text": [("call_tool", {"id": TIME, "arguments": json.dumps(NOON)})],
    "missing argument": [("call_tool", {"id": TIME, "arguments": {"time": "12:00"}})],
    "wrong value": [("call_tool", {"id": TIME, "arguments": {**NOON, "target_timezone": "Tokio"}})],
    "large result": [("call_tool", {"id": "busy/echo", "arguments": {"text": "word " * 20_000}})],
    "lost handle": [("read_result", {"handle": "r-0123456789"})],
    "wrong tool": [("find_tools", {"query": "time"})],
}


async def play(client: Client, turns: list[Turn]) -> None:
    """Print the turns of one agent."""
    for name, arguments in turns:
        sent = json.dumps(arguments, ensure_ascii=False)
        click.echo(f"> {name} {sent if len(sent) <= 200 else sent[:197] + '…'}")
        try:
            result = await client.call_tool(name, arguments)
        except Exception as error:  # what the SDK raises is what its agent reads
            click.echo(f"  {type(error).__name__}: {error}")
            continue
        text = "\n".join(getattr(part, "text", f"[{part.type}]") for part in result.content)
        kind = "error" if result.is_error else "answer"
        shown = text if len(text) <= 1_500 else f"{text[:1_000]}\n[…]\n{text[-400:]}"
        click.echo(f"  {kind}, {count_tokens(text)} tokens\n" + "\n".join(f"  | {line}" for line in shown.splitlines()))


async def run(names: list[str]) -> None:
    """Open one gateway, and play the agents one after the other."""
    servers = {
        "time": {"command": str(PROGRAMS / "mcp-server-time")},
        "busy": {"command": sys.executable, "args": [BUSY]},
    }
    folder = Path(tempfile.mkdtemp())
    try:
        async with Client(make_gateway_parameters(folder, servers)) as client:
            for id, arguments in ((TIME, NOON), ("busy/echo", {"text": "a"})):
                await wait_until_ready(client, id, arguments)
            for name in names or AGENTS:
                click.echo(f"\n== {name}")
                await play(client, AGENTS[name])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(AGENTS)}")
    asyncio.run(run(parser.parse_args().names))
