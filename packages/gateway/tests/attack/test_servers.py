"""Hostile MCP servers behind one gateway: it goes on, the others are served, nobody else is asked for anything."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from gateway.tests.conftest import Agent, busy
from servers import hostile_web
from toolscout.errors import SourceError
from toolscout.scout import Scout
from toolscout.sources.mcp_oauth import TokenFile
from toolscout.sources.mcp_transport import MAX_RESUMPTIONS
from toolscout_gateway import Gateway, Options

pytestmark = [pytest.mark.attack, pytest.mark.net, pytest.mark.timeout(180)]

HOSTILE = str(Path(__file__).parents[4] / "tests" / "servers" / "hostile.py")
QUICK = ["-I", "-S", HOSTILE]  # without site-packages, which it does not need, an interpreter starts in half the time
SECRET = "tok-4f9a77c1e0b2d35a"
FULL = os.environ.get("TOOLSCOUT_FULL") == "1"
MAX_TOOLS, MAX_PAGES = (20_000, 1_000) if FULL else (2_000, 100)
GROWTH_KIB = 700 * 1024  # of this process over all cases; one of them alone would send 4 GB


@dataclasses.dataclass(frozen=True)
class Case:
    """One server: how it is hostile, and what its callers must be told.

    Attributes:
        way: what `tests/servers/hostile.py` or `hostile_web.py` make of it; the name of the source.
        says: part of the answer to the call of its tool; where it has none, part of what the gateway says of it.
        starts: whether its tools come into the catalogue at all.
        fails: whether the call of its tool must fail.
        arguments: of the call.
        patience: seconds for the call, where no answer comes.
    """

    way: str
    says: str
    starts: bool = True
    fails: bool = True
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    patience: float | None = None


def fine(way: str, says: str = "done", **more: Any) -> Case:
    return Case(way, says, fails=False, **more)


def never(way: str, says: str) -> Case:
    return Case(way, says, starts=False)


STDIO = [
    fine("giant-result", "this result is cut to 10,000 tokens"),
    fine("giant-result-id-last", "this result is cut to 10,000 tokens"),
    Case("deep-result", "no JSON-RPC"),
    Case("broken-json", "no JSON-RPC"),
    Case("line-without-end", "within 2 s", patience=2),
    Case("never-answers", "within 2 s", patience=2),
    Case("wrong-id", "within 2 s", patience=2),
    Case("exits", "ended during the call"),
    Case("asks-without-end", "ended during the call"),
    Case("odd-result", "not the result of a tool"),
    Case("odd-error", "error"),
    Case("error-secrets", "401 for token [credential]"),
    Case("alternates", "alternates between definitions"),
    Case("changes-after-list", "toolscout approve"),
    fine("garbage", "after the garbage"),
    fine("surrogate-result", "half"),
    fine("answers-twice", "first"),
    fine("list-storm"),
    fine("progress-storm"),
    fine("unasked-lists"),
    fine("stderr-flood"),
    fine("binary-start"),
    fine(
        "asks-the-client", '{"sampling/createMessage": "error", "elicitation/create": "error", "roots/list": "error"}'
    ),
    fine("echoes-secrets", "[credential]"),
    fine("same-name"),
    fine("newline-name"),
    fine("escape-name"),
    fine("meta-names"),
    fine("huge-schema"),
    fine("regex-bomb", arguments={"x": "a" * 64 + "!"}),
    fine("ref-http", arguments={"x": "y"}),
    fine("ref-file", arguments={"x": "y"}),
    fine("ref-bomb", arguments={"x": "y"}),
    fine("ref-loop", arguments={"x": "y"}),
    never("giant-list", "at most 16 MiB"),
    never("many-tools", f"at most {MAX_TOOLS:,} tools"),
    never("endless-pages", "at most 32 MiB"),
    never("empty-pages", f"more than {MAX_PAGES:,} pages"),
    fine("same-cursor"),
    never("deep-schema", "no JSON-RPC"),
    never("stdout-flood", "something else on its standard output"),
]
WEB = [
    Case("redirects", "not followed"),
    Case("bomb", "compressed"),
    Case("bomb-in-bomb", "compressed"),
    Case("event-bomb", "compressed"),
    Case("giant", "larger than 16 MiB"),
    Case("giant-chunked", "larger than 16 MiB"),
    Case("giant-event", "larger than 16 MiB"),
    Case("giant-error", "content type"),
    Case("sse-without-end", "within 2 s", patience=2),
    Case("sse-breaks-off", "reconnection attempts were exhausted"),
    Case("huge-header", "web-huge-header"),
    fine("echoes-headers", "[credential]"),
    never("redirects-at-start", "not followed"),
    never("bomb-at-start", "compressed"),
    never("refuses", "sign in"),
    never("refuses-with-tokens", "nobody has approved"),
    never("sse-endpoint", "expected"),
]


# One of each kind in the ordinary run; `scripts/check --attack` has all of them.
ORDINARY = {
    *("giant-result", "broken-json", "never-answers", "exits", "alternates", "changes-after-list", "garbage"),
    *("list-storm", "asks-the-client", "echoes-secrets", "regex-bomb", "giant-list", "many-tools", "stdout-flood"),
    *("web-redirects", "web-bomb", "web-giant-chunked", "web-sse-without-end", "web-echoes-headers"),
    *("web-refuses", "web-bomb-at-start", "web-sse-breaks-off"),
    *("same-name", "newline-name", "escape-name", "meta-names"),  # others ask about their texts
}


@dataclasses.dataclass
class Range:
    """Where the attacks take place: the gateway, whoever it must not ask, and the loop that it runs in."""

    agent: Agent
    portal: BlockingPortal
    web: hostile_web.Web
    witness: hostile_web.Web
    memory_kib: int

    def call(self, id: str, **arguments: Any) -> Any:
        return self.portal.call(lambda: self.agent.call(id, **arguments))

    def told(self, source: str) -> str:
        """What the gateway has said about a source, as soon as it has said something."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            upstream = self.agent.gateway.upstreams.servers[source]
            if upstream.state == "error":
                return upstream.message
            time.sleep(0.02)
        raise AssertionError(f"{source} has not failed")


def peak_kib() -> int:
    """The most memory that this process ever had; 0 where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


@pytest.fixture(scope="module")
def range_(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    """A gateway before the servers of the cases that this run has, and an honest one."""
    from contextlib import asynccontextmanager

    from mcp import Client

    folder = tmp_path_factory.mktemp("attack")
    with hostile_web.serving() as witness, hostile_web.serving(witness.address) as web:
        environment = {"API_TOKEN": SECRET}
        entries: dict[str, Any] = {
            case.way: {"command": sys.executable, "args": [*QUICK, case.way, witness.address], "env": environment}
            for case in STDIO
        }
        for case in WEB:
            entry: dict[str, Any] = {"url": f"{web.address}/{case.way}/mcp"}
            if case.way == "echoes-headers":
                entry["headers"] = {"Authorization": f"Bearer {SECRET}"}
            if case.way == "sse-endpoint":
                entry["type"] = "sse"
            entries[f"web-{case.way}"] = entry
        attacks = {item.callspec.params["source"] for item in request.session.items if is_attack(item)}
        entries = {name: entry for name, entry in entries.items() if name in attacks}
        entries["good"] = busy()
        path = folder / "mcp.json"
        path.write_text(json.dumps({"mcpServers": entries}))
        tokens = TokenFile(folder / "home", f"{web.address}/refuses-with-tokens/mcp")
        tokens._save(tokens={"access_token": "access", "token_type": "Bearer"}, client={"client_id": "toolscout"})

        @asynccontextmanager
        async def opened() -> Any:
            said: list[str] = []
            with Scout(folder / "home", trust_scan=False, max_tools=MAX_TOOLS) as scout:
                gateway = Gateway(scout, Options(configs=(path,)), say=said.append)
                async with gateway.running(), Client(gateway.server) as client:
                    agent = Agent(gateway, client, said)
                    await agent.settled(100)
                    yield agent

        memory_kib = peak_kib()
        patched = pytest.MonkeyPatch()
        patched.setattr("toolscout.sources.mcp_session.MAX_LIST_PAGES", MAX_PAGES)
        # What cannot start is not started again meanwhile: each floods the gateway anew (test_faults.py: restarts).
        patched.setattr("toolscout_gateway.sessions.upstream.FIRST_RESTART_DELAY_S", 600)
        patched.setattr("toolscout_gateway.sessions.upstream.MAX_RESTART_DELAY_S", 600)
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened()) as agent:
            yield Range(agent, portal, web, witness, memory_kib)
        patched.undo()


def is_attack(item: Any) -> bool:
    return item.path == Path(__file__) and "source" in getattr(getattr(item, "callspec", None), "params", {})


CASES = [
    pytest.param(case, source, id=source, marks=() if source in ORDINARY else pytest.mark.full)
    for case, source in [*((case, case.way) for case in STDIO), *((case, f"web-{case.way}") for case in WEB)]
]


@pytest.mark.parametrize(("case", "source"), CASES)
def test_a_hostile_server_harms_nobody(range_: Range, case: Case, source: str) -> None:
    upstream = range_.agent.gateway.upstreams.servers[source]
    if case.patience:
        upstream.server = dataclasses.replace(upstream.server, timeout=case.patience)
    if case.starts:
        answer = range_.call(f"{source}/go", **case.arguments)
        if case.way == "alternates":  # a definition at the first look, another at the next, and so on
            for _ in range(4):
                upstream.doubt_list()
                answer = range_.call(f"{source}/go")
        said = answer.content[-1].text  # of a long result: what was left out
        assert answer.is_error == case.fails, said
    else:
        said = range_.told(source)
    assert case.says in said
    assert "Traceback" not in said and "\n" not in said.strip() and len(said) < 3_000
    assert SECRET not in str(said)
    assert range_.call("good/echo", text="still here").content[0].text == "still here"
    assert range_.witness.asked == []


def test_nothing_was_accepted_compressed_and_no_secret_was_told(range_: Range) -> None:
    assert {headers.get("accept-encoding") for _, headers in range_.web.asked} == {"identity"}
    told = range_.agent.gateway.scout.tool("echoes-secrets/told")
    assert told.description == "My key is [credential]."
    answer = range_.call("echoes-secrets/go")
    assert SECRET not in answer.model_dump_json() and SECRET.encode().hex() not in answer.model_dump_json()
    assert list(answer.structured_content) == ["[credential]"]


def test_streams_that_break_off_are_not_taken_up_for_ever(range_: Range) -> None:
    resumed = [
        path for path, headers in range_.web.asked if path == "/sse-breaks-off/mcp" and "last-event-id" in headers
    ]
    assert len(resumed) <= MAX_RESUMPTIONS


def test_names_of_tools_cannot_leave_their_line_or_stand_for_the_gateways_own(range_: Range) -> None:
    agent = range_.agent
    listed = range_.portal.call(agent.client.list_tools)
    assert [tool.name for tool in listed.tools] == ["search_tools", "describe_tools", "call_tool", "read_result"]
    answer = range_.portal.call(lambda: agent.use("search_tools", queries=["select:echo\nIgnore this line"]))
    assert "Ignore this line" in answer.content[0].text
    assert not any(line.startswith("Ignore") for line in answer.content[0].text.splitlines())
    ids = [id for id, _ in agent.gateway.scout.store.page("escape-name")]
    described = range_.portal.call(lambda: agent.use("describe_tools", ids=ids))
    assert not set("\x1b\x07\x9b\u202e") & set(described.content[0].text)


def test_the_memory_of_the_gateway_stays_bounded(range_: Range) -> None:
    assert peak_kib() - range_.memory_kib < GROWTH_KIB


def test_a_restarted_server_with_other_definitions_waits_for_approval(tmp_path: Path) -> None:
    import anyio

    async def body() -> None:
        from mcp import Client

        path = tmp_path / "mcp.json"
        entry = {"command": sys.executable, "args": [HOSTILE, "restarts-changed"]}
        path.write_text(json.dumps({"mcpServers": {"bad": entry}}))
        with Scout(tmp_path / "home") as scout:
            gateway = Gateway(scout, Options(configs=(path,)))
            async with gateway.running(), Client(gateway.server) as client:
                agent = Agent(gateway, client, [])
                await agent.settled()
                assert await agent.text("bad/go") == "done"
                await agent.call("bad/end")
                with anyio.fail_after(30):
                    while "toolscout approve" not in (said := await agent.text("bad/go")):
                        assert "'bad'" in said
                        await anyio.sleep(0.05)

    anyio.run(body)


# --- processes that a server starts -----------------------------------------------------------------------------------


def running(tag: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if f"sleep {tag}" in line and not line.startswith("Z")]


def wait_until(true: Any) -> None:
    deadline = time.monotonic() + 100
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)  # each look is a process of its own


def grandchildren(folder: Path, tag: str, shell: bool) -> list[str]:
    """A program that opens a session with a server that starts processes, says so, and waits for its own end."""
    command = [sys.executable, HOSTILE, "grandchildren", tag]
    entry = {"command": "sh", "args": ["-c", 'sleep 0; "$@"; true', "sh", *command]} if shell else {
        "command": command[0], "args": command[1:]
    }  # fmt: skip
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"bad": entry}}))
    return [sys.executable, "-m", "toolscout", "--home", str(folder / "home"), "gateway", "--config", str(path)]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("end", "shell"),
    [
        pytest.param("SIGTERM", True, id="SIGTERM-wrapped"),
        pytest.param("SIGKILL", True, id="SIGKILL-wrapped"),
        *(pytest.param(end, False, marks=pytest.mark.full) for end in ("hangs-up", "SIGTERM", "SIGINT", "SIGKILL")),
        *(pytest.param(end, True, marks=pytest.mark.full) for end in ("hangs-up", "SIGINT")),
    ],
)
def test_no_process_of_a_server_outlives_the_gateway(tmp_path: Path, end: str, shell: bool) -> None:
    import signal

    tag = f"7{os.getpid()}{time.time_ns() % 10**9}"
    log = (tmp_path / "log").open("w")
    gateway = subprocess.Popen(grandchildren(tmp_path, tag, shell), stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        wait_until(lambda: len(running(tag)) >= 3)
        assert gateway.stdin is not None
        if end == "hangs-up":
            gateway.stdin.close()
        else:
            gateway.send_signal(getattr(signal, end))
        gateway.wait(30)
        wait_until(lambda: not running(tag))
    finally:
        gateway.kill()
        gateway.wait()
        gateway.stdin.close() if gateway.stdin else None
        log.close()


def test_no_process_of_a_server_outlives_its_session(tmp_path: Path) -> None:
    import asyncio

    from toolscout.settings import Settings
    from toolscout.sources import mcp

    tag = f"9{os.getpid()}{time.time_ns() % 10**9}"
    entry = mcp.parse_server("bad", {"command": sys.executable, "args": [*QUICK, "deaf", tag]}, tmp_path / "m")

    async def body() -> None:
        async with mcp.connect(entry, settings=Settings(home=tmp_path)) as connection:
            await connection.list_tools(10)
            wait_until(lambda: len(running(tag)) >= 3)  # the last of them may not have begun

    asyncio.run(asyncio.wait_for(body(), 30))
    assert not running(tag)


def test_no_process_of_a_server_outlives_its_crash(tmp_path: Path) -> None:
    import asyncio

    from toolscout.settings import Settings
    from toolscout.sources import mcp

    tag = f"8{os.getpid()}{time.time_ns() % 10**9}"
    entry = mcp.parse_server(
        "bad", {"command": sys.executable, "args": [HOSTILE, "grandchildren", tag]}, tmp_path / "m"
    )

    async def body() -> None:
        async with mcp.connect(entry, settings=Settings(home=tmp_path)) as connection:
            await connection.list_tools(10)
            children = running(tag)
            assert len(children) >= 3
            found = subprocess.run(["pgrep", "-f", f"hostile.py grandchildren {tag}"], capture_output=True, text=True)
            os.kill(int(found.stdout.split()[0]), 9)
            while running(tag):
                await asyncio.sleep(0.2)

    with suppress(SourceError):  # the session has ended with its server
        asyncio.run(asyncio.wait_for(body(), 30))
    assert not running(tag)
