"""Four servers that people really use, behind one gateway: what comes back is what they say themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.conftest import Agent, Start
from gateway.test_gateway import run

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
        for server, tool, arguments, query in asked:
            entry = configured[server]
            parameters = StdioServerParameters(command=entry["command"], args=entry.get("args", []))
            async with Client(parameters) as direct:
                theirs = await direct.call_tool(tool, arguments)
            [found] = (await agent.search(query, limit=10))["results"]
            assert f"{server}/{tool}" in [each["id"] for each in found["tools"]]
            ours = await agent.call(f"{server}/{tool}", found["search_id"], **arguments)
            assert [part.model_dump() for part in ours.content] == [part.model_dump() for part in theirs.content]
            assert ours.structured_content == theirs.structured_content
            assert ours.is_error == theirs.is_error
        assert [event["ok"] for event in agent.events("call")] == [True] * 6 + [False]

    run(start, body, configured, settle=False)


def test_progress_of_a_real_server_reaches_the_agent(start: Start, tmp_path: Path) -> None:
    only = {"everything": entries(tmp_path)["everything"]}

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
