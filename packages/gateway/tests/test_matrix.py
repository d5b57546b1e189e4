"""Real servers, asked directly and through the gateway: byte-equal, over both transports, at both ages, by two clients.

Every server runs twice, once for the direct answers and once behind one gateway, however many cases there are.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.tests.conftest import SERVERS, open_agent

pytestmark = [pytest.mark.net, pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(500)]
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
CLOCK = re.compile(r"\d{1,2}:\d\d:\d\d( ?[AP]M)?")
EVERYTHING = "@modelcontextprotocol/server-everything"
DOCUMENT = "demo://resource/static/document/features.md"
#: Joins standard input and output to a local port: what a client starts to speak to a gateway over them.
BRIDGE = """
import os, socket, sys, threading
other = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def pump():
    while data := os.read(0, 65536):
        other.sendall(data)
    other.shutdown(socket.SHUT_WR)
threading.Thread(target=pump, daemon=True).start()
while data := other.recv(65536):
    os.write(1, data)
"""


def entries(folder: Path, state: Path) -> dict[str, Any]:
    """Entries of an mcpServers file for six servers. `state`: a folder for what they write."""
    programs, npx = Path(sys.executable).parent, str(shutil.which("npx"))
    memory = {"MEMORY_FILE_PATH": str(state / "memory.jsonl")}
    return {
        "everything": {"command": npx, "args": ["-y", EVERYTHING], "timeout": 180},
        "files": {
            "command": npx,
            "args": ["-y", "@modelcontextprotocol/server-filesystem", str(folder)],
            "timeout": 180,
        },
        "memory": {
            "command": npx,
            "args": ["-y", "@modelcontextprotocol/server-memory"],
            "env": memory,
            "timeout": 180,
        },
        "git": {"command": str(programs / "mcp-server-git")},
        "time": {"command": str(programs / "mcp-server-time"), "args": ["--local-timezone", "UTC"]},
        "example": {"command": sys.executable, "args": [str(SERVERS / "example.py")]},
    }


def make_cases(folder: Path) -> list[tuple[str, str, str, Any]]:
    """Server, kind of request, its name or URI, its arguments."""
    note, oslo = str(folder / "note.txt"), {"source_timezone": "Europe/Oslo", "time": "12:00"}
    ann = {"name": "Ann", "entityType": "person", "observations": ["sails"]}
    edge = {"from": "Ann", "to": "Ann", "relationType": "knows"}
    repo = {"repo_path": str(folder)}
    tools: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "everything": [
            ("echo", {"message": "hello"}),
            ("echo", {"message": "ünïcödé \u2028 \U0001f9ed"}),
            ("get-sum", {"a": 2, "b": 3.5}),
            ("get-tiny-image", {}),
            *(("get-annotated-message", {"messageType": kind, "includeImage": True}) for kind in ("error", "success")),
            ("get-structured-content", {"location": "New York"}),
            ("get-structured-content", {"location": "Chicago"}),
            ("get-resource-links", {"count": 3}),
            ("get-resource-links", {"count": 10}),
            ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
            ("trigger-long-running-operation", {"duration": 0.3, "steps": 3}),
            ("trigger-elicitation-request", {}),
            ("trigger-url-elicitation", {"url": "https://example.com/in", "elicitationId": "e1"}),
        ],
        "files": [
            ("read_text_file", {"path": note}),
            ("read_text_file", {"path": note, "head": 1}),
            ("read_text_file", {"path": "/etc/shadow"}),
            ("read_media_file", {"path": str(folder / "dot.png")}),
            ("list_directory", {"path": str(folder)}),
            ("directory_tree", {"path": str(folder / "sub")}),
            ("search_files", {"path": str(folder), "pattern": "*.txt"}),
            ("read_multiple_files", {"paths": [note, note]}),
            ("write_file", {"path": str(folder / "out.txt"), "content": "written"}),
            ("list_directory_with_sizes", {"path": str(folder / "sub")}),
            ("list_allowed_directories", {}),
        ],
        "memory": [
            ("create_entities", {"entities": [ann]}),
            ("create_relations", {"relations": [edge]}),
            ("read_graph", {}),
            ("search_nodes", {"query": "sails"}),
            ("open_nodes", {"names": ["Ann"]}),
            ("delete_entities", {"entityNames": ["Ann"]}),
            ("read_graph", {}),
        ],
        "git": [
            *((f"git_{name}", repo) for name in ("status", "log", "diff_unstaged", "diff_staged")),
            ("git_show", {**repo, "revision": "HEAD"}),
            ("git_show", {**repo, "revision": "no-such-revision"}),
            ("git_diff", {**repo, "target": "HEAD"}),
            ("git_branch", {**repo, "branch_type": "local"}),
            ("git_status", {"repo_path": str(folder / "absent")}),
        ],
        "time": [
            ("convert_time", {**oslo, "target_timezone": "Asia/Tokyo"}),
            ("convert_time", {**oslo, "target_timezone": "Nowhere/Never"}),
        ],
        "example": [
            ("add", {"a": 2, "b": 3}),
            ("mirror", {"point": {"x": 1, "y": -2.5}}),
            ("fail", {}),
            ("count", {"to": 3}),
        ],
    }
    cases: list[tuple[str, str, str, Any]] = [
        (server, "tool", name, arguments) for server, rows in tools.items() for name, arguments in rows
    ]
    return [
        *cases,
        *(("everything", "resource", uri, None) for uri in (DOCUMENT, "demo://resource/dynamic/text/7")),
        *(("example", "resource", uri, None) for uri in ("config://version", "user://ann/profile", "user://nobody")),
        ("everything", "prompt", "simple-prompt", {}),
        ("everything", "prompt", "args-prompt", {"city": "Oslo", "state": "Oslo"}),
        ("everything", "prompt", "completable-prompt", {"department": "Engineering", "name": "Alice"}),
        ("everything", "prompt", "resource-prompt", {"resourceType": "Text", "resourceId": "2"}),
        ("everything", "prompt", "no-such-prompt", {}),
        ("example", "prompt", "summarise", {"text": "long"}),
        ("everything", "completion", "completable-prompt", {"name": "department", "value": "E"}),
        *((server, "resources", "", None) for server in ("everything", "example")),
        *((server, "templates", "", None) for server in ("everything", "example")),
    ]


class Asker:
    """Sends the requests of the cases with a client, and keeps what came beside the answers."""

    def __init__(self, prefix: bool) -> None:
        self.prefix = prefix  # whether the gateway is between
        self.beside: list[str] = []

    async def answer(self, _: Any, params: Any) -> Any:
        from mcp_types import ElicitResult

        message = re.sub(r"^\[\w+\] ", "", params.message) if self.prefix else params.message
        schema = json.dumps(getattr(params, "requested_schema", None), sort_keys=True)  # the SDK sorts some keys
        self.beside.append(f"{params.mode} {message} {schema}")
        return ElicitResult(action="accept", content=None if params.mode == "url" else {"name": "Ann"})

    async def note(self, *progress: Any) -> None:
        self.beside.append(str(progress))

    async def ask(self, client: Any, case: tuple[str, str, str, Any]) -> str:
        from mcp.shared.exceptions import MCPError

        self.beside.clear()
        try:
            result = await self.send(client, *case)
        except MCPError as error:
            words = "" if case[2] == "no-such-prompt" else error.message  # the gateway says what may be meant
            return f"error {error.code} {words} {json.dumps(error.data, sort_keys=True)}"
        if isinstance(result, list):
            shown = json.dumps([item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in result])
        else:
            meta = {key: value for key, value in (result.meta or {}).items() if key != SERVER_INFO}
            shown = result.model_copy(update={"meta": meta or None}).model_dump_json(by_alias=True, exclude_none=True)
        return CLOCK.sub("0:00:00", "\n".join([shown, *self.beside]))

    async def send(self, client: Any, server: str, kind: str, name: str, arguments: Any) -> Any:
        from mcp_types import PromptReference

        if kind == "tool":
            if self.prefix:
                name, arguments = "call_tool", {"id": f"{server}/{name}", "arguments": arguments}
            return await client.call_tool(name, arguments, progress_callback=self.note)
        if kind == "resource":
            return await client.read_resource(name)
        if kind in ("resources", "templates"):
            listed = await (client.list_resources() if kind == "resources" else client.list_resource_templates())
            items = listed.resources if kind == "resources" else listed.resource_templates
            schemes = {"everything": "demo:", "example": ("config:", "user:")}[server]
            return [
                item for item in items if getattr(item, "uri", getattr(item, "uri_template", "")).startswith(schemes)
            ]
        name = f"{server}/{name}" if self.prefix else name
        if kind == "prompt":
            return await client.get_prompt(name, arguments)
        return await client.complete(PromptReference(name=name), arguments)


class OtherMaker:
    """The requests of `Asker`, by fastmcp's client."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def call_tool(self, name: str, arguments: Any, progress_callback: Any) -> Any:
        return await self.client.call_tool_mcp(name, arguments, progress_handler=progress_callback)

    async def read_resource(self, uri: str) -> Any:
        return await self.client.read_resource_mcp(uri)

    async def get_prompt(self, name: str, arguments: Any) -> Any:
        return await self.client.get_prompt_mcp(name, arguments)

    async def complete(self, reference: Any, argument: Any) -> Any:
        return await self.client.complete_mcp(reference, argument)

    async def list_resources(self) -> Any:
        return await self.client.list_resources_mcp()

    async def list_resource_templates(self) -> Any:
        return await self.client.list_resource_templates_mcp()


async def ask_directly(configured: dict[str, Any], cases: list[Any], mode: str) -> dict[int, str]:
    """Ask every server itself, all at the same time."""
    from mcp import Client, StdioServerParameters

    answers: dict[int, str] = {}

    async def ask_server(server: str, entry: dict[str, Any]) -> None:
        asker = Asker(prefix=False)
        command = StdioServerParameters(command=entry["command"], args=entry.get("args", []), env=entry.get("env"))
        async with Client(command, mode=mode, elicitation_callback=asker.answer) as client:
            for number, case in enumerate(cases):
                if case[0] == server:
                    answers[number] = await asker.ask(client, case)

    async with anyio.create_task_group() as group:
        for server, entry in configured.items():
            group.start_soon(ask_server, server, entry)
    return answers


@contextlib.asynccontextmanager
async def serve_http(agent: Any) -> AsyncIterator[str]:
    """Serve a gateway over HTTP. Yields its address."""
    import uvicorn

    from toolscout_gateway.access.http import app

    application = app(agent.gateway.server, agent.gateway.permissions.policies, ["127.0.0.1"])
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error", lifespan="on"))
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve)
        while not server.started:
            await anyio.sleep(0.02)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
        server.should_exit = True


@contextlib.asynccontextmanager
async def serve_stdio(agent: Any) -> AsyncIterator[Any]:
    """Serve a gateway over standard input and output. Yields the command that a client starts."""
    from mcp import StdioServerParameters
    from mcp.server.stdio import stdio_server

    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-S", "-c", BRIDGE, str(listener.getsockname()[1])]

        async def serve() -> None:
            while True:
                accepted, _ = await anyio.to_thread.run_sync(listener.accept, abandon_on_cancel=True)
                group.start_soon(serve_one, accepted)

        async def serve_one(accepted: socket.socket) -> None:
            with accepted, accepted.makefile("r", encoding="utf-8") as heard, accepted.makefile("w") as said:
                async with stdio_server(anyio.wrap_file(heard), anyio.wrap_file(said)) as streams:
                    options = agent.gateway.server.create_initialization_options()
                    await agent.gateway.server.run(*streams, options)

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(serve)
                yield StdioServerParameters(command=command[0], args=command[1:])
                group.cancel_scope.cancel()
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # the thread that still accepts would keep this process alive


async def compare(tmp_path: Path, configured: Any, behind: Any, cases: list[Any]) -> tuple[int, list[str]]:
    """Ask directly and through the gateway. Returns how many answers were compared, and those that differ."""
    from fastmcp import Client as OtherClient
    from mcp import Client

    direct = await ask_directly(configured, cases, "auto")
    example = {"example": configured["example"]}
    direct_old = direct | await ask_directly(example, cases, "legacy")
    compared, different = 0, []
    async with open_agent(tmp_path, behind) as agent, serve_http(agent) as address, serve_stdio(agent) as command:
        await agent.settled(200)
        ways: list[tuple[str, Callable[[Asker], Any], bool]] = [
            ("sdk, http, auto", lambda asker: Client(address, elicitation_callback=asker.answer), False),
            ("sdk, http, old", lambda asker: Client(address, mode="legacy", elicitation_callback=asker.answer), True),
            ("sdk, stdio, auto", lambda asker: Client(command, elicitation_callback=asker.answer), False),
            ("sdk, stdio, old", lambda asker: Client(command, mode="legacy", elicitation_callback=asker.answer), True),
            ("fastmcp, http", lambda _: OtherClient(address), False),
        ]
        for way, make_client, is_old in ways:
            asker = Asker(prefix=True)
            async with make_client(asker) as opened:
                client = OtherMaker(opened) if way.startswith("fastmcp") else opened
                for number, case in enumerate(cases):
                    if way.startswith("fastmcp") and "elicitation" in case[2]:
                        continue  # its client answers questions in another form
                    expected = (direct_old if is_old else direct)[number]
                    found = await asker.ask(client, case)
                    compared += 1
                    if found != expected:
                        different.append(f"{way}: {case}:\n  directly {expected[:600]}\n  gateway  {found[:600]}")
    return compared, different


def test_real_servers_answer_through_the_gateway_byte_for_byte(tmp_path: Path) -> None:
    folder, states = tmp_path / "files", [tmp_path / "direct", tmp_path / "behind"]
    for made in (folder / "sub", *states):
        made.mkdir(parents=True)
    (folder / "note.txt").write_text("a note\nof two lines\n")
    (folder / "out.txt").write_text("")
    (folder / "sub" / "inner.txt").write_text("inner")
    (folder / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
    for line in (["init", "-q", "-b", "main"], ["add", "note.txt"], [*who, "commit", "-q", "-m", "First."]):
        subprocess.run(["git", "-C", str(folder), *line], check=True)
    cases = make_cases(folder)
    outcome: Callable[..., Awaitable[tuple[int, list[str]]]] = compare
    compared, different = anyio.run(outcome, tmp_path, entries(folder, states[0]), entries(folder, states[1]), cases)
    assert not different, f"{len(different)} of {compared} differ:\n" + "\n".join(different[:12])
    assert len(cases) >= 60 and compared >= 4 * len(cases)
