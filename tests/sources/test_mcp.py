"""MCP servers that start as commands: real ones, broken ones, and both at once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from toolscout.errors import MissingExtra, SourceError
from toolscout.settings import Settings
from toolscout.sources import Reading, mcp, mcp_session

RAW = str(Path(__file__).parents[1] / "servers" / "raw.py")
pytestmark = pytest.mark.net


def raw(*arguments: str, **changes: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [RAW, *arguments], "timeout": 20, **changes}


def read(folder: Path, entries: dict[str, Any], **settings: Any) -> dict[str, Reading]:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries}))
    found = mcp.read(str(path), name=None, settings=Settings(home=folder, **settings))
    return {reading.source: reading for reading in found}


def names(reading: Reading) -> list[str]:
    return [tool.name for tool in reading.tools]


def test_a_tool_keeps_what_its_server_says_of_it(tmp_path: Path) -> None:
    reading = read(tmp_path, {"my weather": raw("hints")})["my-weather"]
    (tool,) = reading.tools
    assert (reading.state, reading.kind, reading.problems) == ("ok", "mcp", [])
    assert (tool.id, tool.name, tool.description) == ("my-weather/forecast", "forecast", "About forecast")
    assert tool.path == ("my weather",)
    assert tool.parameters is not None and tool.parameters["required"] == ["city"]
    assert tool.returns == {"type": "object"}
    assert (tool.hints.read_only, tool.hints.destructive, tool.hints.open_world) == (True, None, False)
    assert tool.callable
    assert tool.meta == {"title": "Weather"}
    assert reading.message == "raw 1.2"


def test_two_readings_give_the_same_fingerprints(tmp_path: Path) -> None:
    first, second = (read(tmp_path, {"a": raw("paged")})["a"].tools for _ in range(2))
    assert [tool.fingerprint for tool in first] == [tool.fingerprint for tool in second]
    assert [tool.name for tool in first] == ["a", "b"]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reading]:
    """One good server among every kind of broken one, read once."""
    entries: dict[str, Any] = {
        fault: raw(fault)
        for fault in ["good", "junk", "bad-schema", "surrogate", "twice", "big", "no-tools", "die-start", "die-list",
                      "flood", "bad-handshake", "no-list"]
    }  # fmt: skip
    entries |= {fault: raw(fault, timeout=4) for fault in ["hang-start", "hang-list"]}
    entries |= {
        "many": raw("many", "3000"),
        "refuse": raw("refuse", "yet"),
        "absent": {"command": "no-such-command-anywhere"},
        "nowhere": raw("good", cwd="/no/such/folder"),
        "unset": raw("good", env={"KEY": "${NO_SUCH_KEY_EVER}"}),
        "shapeless": ["npx"],
        "asleep": raw("good", disabled=True),
    }
    return read(tmp_path_factory.mktemp("faulty"), entries)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("hang-start", "expected an answer to its start within 4 s, found none"),
        ("hang-list", "expected its list of tools within 4 s, found none"),
        ("die-start", "found that it ended; it wrote to stderr: 'no database at'"),
        ("die-list", "expected its list of tools, found that it ended"),
        ("flood", "found something else on its standard output"),
        ("bad-handshake", "found one that MCP does not know"),
        ("no-list", "expected a list of tools, found something else"),
        ("refuse", "found the error 'no licence yet'"),
        ("absent", "expected a command that starts, found 'no-such-command-anywhere'"),
        ("nowhere", "/no/such/folder"),
        ("unset", "NO_SUCH_KEY_EVER"),
        ("shapeless", "expected an object"),
    ],
)
def test_a_broken_server_is_named_with_its_reason(faulty: dict[str, Reading], server: str, message: str) -> None:
    reading = faulty[server]
    assert (reading.state, reading.tools) == ("error", [])
    assert reading.message.startswith(f"{server}: ")
    assert message in reading.message
    assert "\n" not in reading.message and "Traceback" not in reading.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "tools"),
    [
        ("good", ["forecast"]),
        ("junk", ["forecast"]),
        ("bad-schema", ["one", "two"]),
        ("surrogate", ["half", "whole"]),
        ("twice", ["same", "else"]),
        ("big", ["big", "small"]),
        ("no-tools", []),
        ("many", [f"t{i}" for i in range(3000)]),
    ],
)
def test_whatever_can_be_used_arrives(faulty: dict[str, Reading], server: str, tools: list[str]) -> None:
    assert faulty[server].state == "ok"
    assert names(faulty[server]) == tools


@pytest.mark.slow
def test_a_bad_tool_is_named_and_its_siblings_arrive(faulty: dict[str, Reading]) -> None:
    problems = {problem.entry: problem.message for problem in faulty["bad-schema"].problems}
    assert set(problems) == {f"odd{i}" for i in range(5)}
    assert all("expected" in message and "found" in message for message in problems.values())


@pytest.mark.slow
def test_a_disabled_server_is_said_to_be_disabled(faulty: dict[str, Reading]) -> None:
    assert faulty["asleep"].state == "disabled"
    assert "asleep is disabled" in faulty["asleep"].message


def test_a_disabled_server_is_never_started(tmp_path: Path) -> None:
    witness = tmp_path / "started"
    touch = {"command": sys.executable, "args": ["-c", f"open({str(witness)!r}, 'w')"]}
    readings = read(tmp_path, {"a": {**touch, "disabled": True}, "b": {**touch, "enabled": False}})
    assert [reading.state for reading in readings.values()] == ["disabled", "disabled"]
    assert not witness.exists()


def test_servers_that_would_share_a_name_are_both_named(tmp_path: Path) -> None:
    readings = read(tmp_path, {"a b": raw("good"), "a/b": raw("good")})
    assert readings["a-b"].state == "ok"
    assert readings["a-b-2"].state == "error"
    assert "a/b" in readings["a-b-2"].message and "'a b'" in readings["a-b-2"].message


def test_a_server_named_as_a_numbered_double_is_an_error_of_its_own(tmp_path: Path) -> None:
    readings = read(tmp_path, {"a": raw("good"), "a/": raw("good"), "a-2": raw("good")})
    assert {source: reading.state for source, reading in readings.items()} == {
        "a": "ok",
        "a-2": "error",
        "a-2-2": "error",
    }


def test_too_many_tools_are_refused_and_a_list_without_end_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_session, "MAX_LIST_PAGES", 30)
    entries = {"many": raw("many", "21"), "endless": raw("endless"), "empty": raw("empty-endless"), "ok": raw("paged")}
    readings = read(tmp_path, entries, max_tools=20)
    assert "at most 20 tools" in readings["many"].message
    assert "at most 20 tools" in readings["endless"].message
    assert "more than 30 pages" in readings["empty"].message
    assert names(readings["ok"]) == ["a", "b"]


def test_expanded_values_never_reach_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE", "postgres://me:pw@h")
    entries = {"dies": raw("die-start", "${DATABASE}"), "refuses": raw("refuse", "${env:DATABASE}"),
               "own": raw("refuse", "hunter22", env={"PASSWORD": "hunter22"})}  # fmt: skip
    readings = read(tmp_path, entries)
    for reading in readings.values():
        assert reading.state == "error" and "***" in reading.message
        assert "postgres" not in reading.message and "hunter22" not in reading.message


@pytest.mark.slow
def test_many_hanging_servers_are_waited_for_together_and_leave_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All eight are being listed before the first of them is given up, so that they take one timeout, not eight."""
    steps: list[str] = []
    list_tools = mcp_session.McpConnection.list_tools

    async def noted(self: Any, most: int) -> Any:
        steps.append("asked")
        try:
            return await list_tools(self, most)
        finally:
            steps.append("given up")

    monkeypatch.setattr(mcp_session.McpConnection, "list_tools", noted)
    tag = f"witness-{os.getpid()}-{uuid.uuid4().hex}"
    entries = {f"hang{i}": raw("hang-list", timeout=3) for i in range(6)}
    entries |= {f"deaf{i}": raw("stubborn", tag, timeout=3) for i in range(2)}
    readings = read(tmp_path, entries)
    assert steps == [*["asked"] * 6, *["given up"] * 6], "the deaf two never get so far"
    assert {reading.state for reading in readings.values()} == {"error"}
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert tag not in running


def test_it_works_where_an_event_loop_is_running(tmp_path: Path) -> None:
    async def inside() -> dict[str, Reading]:
        return read(tmp_path, {"a": raw("good")})

    assert names(asyncio.run(inside())["a"]) == ["forecast"]


def test_a_single_server_takes_the_name_it_is_given(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, mcp_timeout=20)
    (reading,) = mcp.read(f"{sys.executable} {RAW} good", name="mine", settings=settings)
    assert (reading.source, reading.tools[0].id) == ("mine", "mine/forecast")
    (reading,) = mcp.read(f"{sys.executable} {RAW} good", name=None, settings=settings)
    assert reading.source == "raw"


def test_a_file_without_servers_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="at least one server"):
        read(tmp_path, {})


def test_without_the_sdk_the_install_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.delitem(sys.modules, "mcp", raising=True)
    monkeypatch.setattr(sys, "meta_path", [Hidden(), *sys.meta_path])
    with pytest.raises(MissingExtra, match=r"toolscout\[mcp\]"):
        read(tmp_path, {"a": raw("good")})


class Hidden:
    """An import hook for which the SDK is not installed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "mcp":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.slow
def test_malformed_lists_never_give_a_traceback(tmp_path: Path) -> None:
    count = int(os.environ.get("TOOLSCOUT_FUZZ", "24"))
    readings = read(tmp_path, {f"fuzz{seed}": raw("fuzz", str(seed), timeout=30) for seed in range(count)})
    assert len(readings) == count
    for name, reading in readings.items():
        assert reading.state in ("ok", "error")
        assert reading.state == "ok" or reading.message.startswith(f"{name}: expected")
        assert "within 30 s" not in reading.message, "a malformed answer is an answer"
        assert all(problem.entry for problem in reading.problems)
        assert all(re.search("expected|another entry.* has the id", problem.message) for problem in reading.problems)
    assert any(reading.problems and "fine" in names(reading) for reading in readings.values())


# --- real servers ---

TIME = {"command": sys.executable, "args": ["-m", "mcp_server_time", "--local-timezone=UTC"]}


def test_an_open_connection_can_call(tmp_path: Path) -> None:
    entry = mcp.parse_server("time", TIME, tmp_path / "mcp.json")
    settings = Settings(home=tmp_path)

    async def call() -> tuple[list[str], str]:
        async with mcp.connect(entry, settings=settings) as connection:
            listed = [tool["name"] for tool in await connection.list_tools(100)]
            result = await connection.client.call_tool("get_current_time", {"timezone": "Europe/Oslo"})
            return listed, str(result.content[0])

    listed, text = asyncio.run(call())
    assert "get_current_time" in listed
    assert "Europe/Oslo" in text


def test_a_failure_inside_an_open_connection_is_one_sentence(tmp_path: Path) -> None:
    async def fail() -> None:
        entry = mcp.parse_server("raw", raw("good"), tmp_path / "mcp.json")
        async with mcp.connect(entry, settings=Settings(home=tmp_path)):
            raise RuntimeError("the house is on fire")

    with pytest.raises(SourceError, match=r"raw: .*RuntimeError: the house is on fire"):
        asyncio.run(fail())


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.timeout(180)
@pytest.mark.parametrize("real", [("time", "files"), pytest.param(("git", "everything"), marks=pytest.mark.full)])
def test_real_servers_arrive_whole_whatever_stands_beside_them(tmp_path: Path, real: tuple[str, ...]) -> None:
    """The gateway's own test reads all four of them."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    official = "@modelcontextprotocol/server-"
    entries = {
        "time": TIME,
        "git": {"command": sys.executable, "args": ["-m", "mcp_server_git", "--repository", str(tmp_path)]},
        "everything": {"command": "npx", "args": ["-y", f"{official}everything"]},
        "files": {"command": "npx", "args": ["-y", f"{official}filesystem", str(tmp_path)]},
        "hangs": raw("hang-start", timeout=5),
        "dies": raw("die-list"),
        "odd": raw("bad-schema"),
        "invalid": {"cmd": "x"},
    }
    tools = {"time": "get_current_time", "git": "git_status", "everything": "echo", "files": "read_text_file"}
    wanted = {name: entry for name, entry in entries.items() if name in real or name not in tools}
    readings = read(tmp_path, wanted, mcp_timeout=120)
    for server in real:
        tool = tools[server]
        assert readings[server].state == "ok", readings[server].message
        assert tool in names(readings[server])
        assert readings[server].problems == []
    assert [problem.entry for problem in readings["odd"].problems] == [f"odd{i}" for i in range(5)]
    for server in ("hangs", "dies", "invalid"):
        assert readings[server].state == "error"
        assert readings[server].message.startswith(f"{server}: ")
