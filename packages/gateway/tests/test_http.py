"""The gateway as a program: over HTTP with keys, over standard input and output, with a client of another maker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from click.testing import Result

from gateway.tests.conftest import busy, raw
from homes_in_postgres import name_home
from ports import find_free_port
from tests_cli import run
from toolscout.scout import Scout
from toolscout.trust.policy import hashed_key

pytestmark = pytest.mark.net
KEY, OTHER = "tsk_of_ann", "tsk_of_bob"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
ACCEPT = {"accept": "application/json, text/event-stream"}


def command(folder: Path, *options: str, **entries: Any) -> list[str]:
    """The command line of a gateway over `entries`."""
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries or {"a": busy()}}))
    home = ["--home", name_home(folder / "home")]
    return [sys.executable, "-m", "toolscout", *home, "gateway", "--config", str(path), *options]


def policy(folder: Path) -> str:
    path = folder / "policy.toml"
    path.write_text(
        f'[[caller]]\nname = "ann"\nkey = "{hashed_key(KEY)}"\nallow = ["**"]\n'
        f'[[caller]]\nname = "bob"\nkey = "{hashed_key(OTHER)}"\nallow = ["a/echo"]\n'
    )
    return str(path)


class Service:
    """A gateway that serves HTTP."""

    def __init__(self, folder: Path, *options: str) -> None:
        port = find_free_port()
        self.home = folder / "home"
        self.url = f"http://127.0.0.1:{port}/mcp"
        line = command(folder, "--http", "--port", str(port), *options)
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        for _ in range(200):
            try:
                httpx.get(self.url, timeout=1)
                return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError("the gateway did not start")

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=20)[1]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests that leave it running; whoever reads its journal looks at their own events."""
    folder = tmp_path_factory.mktemp("service")
    running = Service(folder, "--policy", policy(folder))
    yield running
    running.process.kill()
    running.process.communicate()


def hello(url: str, **headers: str) -> httpx.Response:
    return httpx.post(url, json=HELLO, headers={**ACCEPT, **headers})


@pytest.mark.slow
def test_over_http_a_caller_comes_in_with_a_key_and_sees_what_is_theirs(service: Service) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}, {"authorization": f"Basic {KEY}"}):
        refused = hello(service.url, **headers)
        assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Bearer realm=")
    assert hello(service.url, authorization=f"Bearer {KEY}").status_code == 200
    assert hello(service.url, **{"x-api-key": OTHER}).status_code == 200

    async def as_caller(key: str) -> tuple[set[str], bool]:
        from fastmcp import Client
        from fastmcp.client.transports import StreamableHttpTransport

        transport = StreamableHttpTransport(service.url, headers={"Authorization": f"Bearer {key}"})
        async with Client(transport) as client:
            for _ in range(100):
                found = await client.call_tool("search_tools", {"queries": ["give back the text"], "limit": 50})
                [result] = found.structured_content["results"]
                if result["tools"]:
                    break
                await anyio.sleep(0.1)
            arguments = {"id": "a/pid", "arguments": {}}
            called = await client.call_tool("call_tool", arguments, raise_on_error=False)
            return {tool["id"] for tool in result["tools"]}, called.is_error

    seen, refused_call = anyio.run(as_caller, KEY)
    assert {"a/echo", "a/pid"} <= seen and not refused_call
    assert anyio.run(as_caller, OTHER) == ({"a/echo"}, True)
    with Scout(service.home) as scout:
        calls = [(event["caller"], event["ok"]) for event in scout.journal.read(event="call")]
    assert calls == [("ann", True), ("bob", False)]


@pytest.mark.slow
def test_over_http_pages_and_names_of_others_are_refused(service: Service) -> None:
    key = {"authorization": f"Bearer {KEY}"}
    assert hello(service.url, **key, host="evil.example").status_code == 421
    assert hello(service.url, **key, origin="http://evil.example").status_code == 403
    assert hello(service.url, **key, origin=service.url.removesuffix("/mcp")).status_code == 200
    assert hello(service.url, **key, origin="http://127.0.0.1:1").status_code == 403, "another program's page"
    assert hello(service.url, **key, host="127.0.0.1:99999", origin="http://evil:99999").status_code == 403


@pytest.mark.slow
def test_a_session_belongs_to_the_caller_that_began_it(service: Service) -> None:
    begun = hello(service.url, authorization=f"Bearer {KEY}")
    session = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    answers = [
        httpx.post(service.url, json=listing, headers={**ACCEPT, **session, "authorization": f"Bearer {key}"})
        for key in (OTHER, KEY)
    ]
    assert [answer.status_code for answer in answers] == [404, 200]


@pytest.mark.slow
def test_over_http_a_gateway_and_a_body_beyond_measure_are_refused(service: Service) -> None:
    key = {"authorization": f"Bearer {KEY}"}
    assert hello(service.url, **key, **{"x-toolscout-gateway": "1"}).status_code == 403
    huge = {**HELLO, "id": "x" * 5_000_000}
    assert httpx.post(service.url, json=huge, headers={**ACCEPT, **key}).status_code == 413
    assert hello(service.url, **key).status_code == 200


def refuse(line: list[str]) -> Result:
    """What the program prints where it ends at once, run in this process."""
    done = run(*line[3:])
    assert done.exit_code == 1 and not done.stdout, done.output
    assert isinstance(done.exception, SystemExit), "an error of the user is a sentence, not a traceback"
    return done


@pytest.mark.folder_only("a file in the folder")
def test_a_policy_in_the_home_is_in_force_without_being_named(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    Path(policy(tmp_path)).rename(tmp_path / "home" / "policy.toml")
    done = refuse(command(tmp_path))
    assert "expected a valid key" in done.stderr
    assert f"the policy file {tmp_path / 'home' / 'policy.toml'}" in done.stderr


def test_without_a_policy_it_listens_to_this_machine_alone(tmp_path: Path) -> None:
    assert "expected a policy file for 0.0.0.0" in refuse(command(tmp_path, "--http", "--host", "0.0.0.0")).stderr


def test_a_key_that_is_nobodys_is_refused_over_stdio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = policy(tmp_path)
    advice = f'write default = "NAME" at the top of {path}'
    for key, found in (
        (None, "none: set it, or"),
        ("x", "another value: set it to the key of a caller, or leave it out and"),
    ):
        monkeypatch.delenv("TOOLSCOUT_KEY", raising=False) if key is None else monkeypatch.setenv("TOOLSCOUT_KEY", key)
        said = " ".join(refuse(command(tmp_path, "--policy", path)).stderr.split())
        assert f"error: expected a valid key or token in TOOLSCOUT_KEY, found {found} {advice}" in said


def test_a_caller_that_nobody_can_be_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('[[caller]]\nname = "me"\nallow = ["**"]\n')
    said = refuse(command(tmp_path, "--policy", str(tmp_path / "policy.toml"))).stderr
    assert "toolscout: Nobody can be the caller 'me': it has no key" in " ".join(said.split())


def test_a_client_of_another_maker_speaks_to_it_over_stdio(tmp_path: Path) -> None:
    async def main() -> None:
        from fastmcp import Client
        from fastmcp.client.transports import StdioTransport

        line = command(tmp_path, "--pin", "a/echo")
        async with Client(StdioTransport(line[0], line[1:], env=dict(os.environ), keep_alive=False)) as client:
            assert len(await client.list_tools()) >= 3
            for _ in range(100):
                found = (await client.call_tool("search_tools", {"queries": ["give back the text"]})).structured_content
                if found["results"][0]["tools"]:
                    break
                await anyio.sleep(0.05)
            described = await client.call_tool("describe_tools", {"ids": ["a/echo"]})
            assert described.structured_content["tools"][0]["id"] == "a/echo"
            called = await client.call_tool("call_tool", {"id": "a/echo", "arguments": {"text": "hi"}})
            assert called.content[0].text == "hi"
            assert [tool.name for tool in await client.list_tools()][-1] == "a_echo"

    anyio.run(main)


def test_a_signal_ends_it_with_every_process_that_it_started(tmp_path: Path) -> None:
    line = command(tmp_path, a=busy(), sleeper=raw("hang-start"))
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    children: list[str] = []
    for _ in range(200):
        listed = subprocess.run(["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True)
        children = listed.stdout.split()
        if len(children) == 3:  # two servers, and the watchdog that ends them should the gateway be killed
            break
        time.sleep(0.2)  # each look is a process of its own
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM
    assert len(children) == 3
    while [child for child in children if Path(f"/proc/{child}").exists()]:  # the test's time limit ends this
        time.sleep(0.05)


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("editor", "key"), [("claude", "mcpServers"), ("cursor", "mcpServers"), ("vscode", "servers")])
def test_it_prints_what_to_paste(tmp_path: Path, editor: str, key: str) -> None:
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {}}')
    options = ["--config", str(config), "--pin", "a/b", "--print-config", editor]

    def printed(*more: str) -> dict[str, Any]:
        done = run("--home", str(tmp_path / "h"), "gateway", *options, *more)
        assert done.exit_code == 0, done.output
        entry: dict[str, Any] = json.loads(done.stdout)[key]["toolscout"]
        return entry

    entry = printed()
    words = [entry["command"], *entry["args"]]
    assert words[-4:] == ["--config", str(config), "--pin", "a/b"] and "gateway" in words
    entry = printed("--http", "--policy", policy(tmp_path))
    assert entry["url"] == "http://127.0.0.1:8765/mcp" and "TOOLSCOUT_KEY" in entry["headers"]["Authorization"]


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "toolscout", "gateway", "--config", str(tmp_path / "none.json")]
    assert "expected an mcpServers JSON file" in refuse(line).stderr
