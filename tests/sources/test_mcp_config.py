"""MCP servers as files, URLs and commands name them; expansion; what is kept out of messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolscout.errors import SourceError
from toolscout.sources.mcp_config import (
    Server,
    discover,
    load_entries,
    parse_server,
    redact,
    resolve,
    server_from_locator,
    show_url,
)


def write(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def server(entry: dict[str, Any], folder: Path = Path("/project")) -> Server:
    return parse_server("weather", entry, folder / ".mcp.json")


@pytest.mark.parametrize(
    "document",
    [
        {"mcpServers": {"a": {"command": "x"}}},
        {"servers": {"a": {"command": "x"}}, "inputs": [{"id": "key"}]},
        {"editor.fontSize": 12, "mcp": {"servers": {"a": {"command": "x"}}}},
        '{ // mine\n"mcpServers": {"a": {"command": "x"}, /* later */},}',
    ],
    ids=["claude", "vscode", "vscode-settings", "comments"],
)
def test_the_servers_of_every_editor_are_found(tmp_path: Path, document: Any) -> None:
    entries = load_entries(write(tmp_path / "mcp.json", document))
    assert {name: entry.fields for name, entry in entries.items()} == {"a": {"command": "x"}}


@pytest.mark.parametrize("document", [[], {}, {"mcpServers": []}, {"mcp": 3}, "{nonsense"])
def test_a_file_without_servers_is_refused_by_name(tmp_path: Path, document: Any) -> None:
    with pytest.raises(SourceError, match=r"mcp\.json: expected"):
        load_entries(write(tmp_path / "mcp.json", document))


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"command": "x"}, "stdio"),
        ({"url": "http://h/mcp"}, "http"),
        ({"httpUrl": "http://h/mcp"}, "http"),
        ({"serverUrl": "http://h/mcp"}, "http"),
        ({"type": "streamable-http", "url": "http://h/mcp"}, "http"),
        ({"type": "streamableHttp", "url": "http://h/mcp"}, "http"),
        ({"type": "sse", "url": "http://h/sse"}, "sse"),
    ],
)
def test_the_transport_follows_from_the_entry(entry: dict[str, Any], transport: str) -> None:
    assert server(entry).transport == transport


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("npx", "expected an object"),
        ({}, "found neither"),
        ({"command": 7}, "found neither"),
        ({"command": "x", "args": "a b"}, '"args"'),
        ({"command": "x", "args": [{}]}, '"args"'),
        ({"command": "x", "env": ["A"]}, '"env"'),
        ({"command": "x", "env": {"A": None}}, '"env"'),
        ({"command": "x", "cwd": 1}, '"cwd"'),
        ({"url": "http://h", "headers": {"A": []}}, '"headers"'),
        ({"type": "carrier pigeon", "url": "http://h"}, "carrier pigeon"),
        ({"type": "http", "command": "x"}, "'http'"),
        ({"command": "x", "timeout": "soon"}, '"timeout"'),
        ({"command": "x", "timeout": -1}, '"timeout"'),
    ],
)
def test_a_broken_entry_says_what_was_expected(entry: Any, found: str) -> None:
    with pytest.raises(SourceError, match="expected") as caught:
        parse_server("weather", entry, Path("mcp.json"))
    assert found in str(caught.value)


def test_numbers_and_booleans_become_text_as_a_process_needs_them() -> None:
    found = server({"command": "x", "args": ["--port", 80, True], "env": {"DEBUG": False, "N": 3}})
    assert found.args == ("--port", "80", "true")
    assert found.env == {"DEBUG": "false", "N": "3"}


def test_a_timeout_counts_seconds_and_large_ones_milliseconds() -> None:
    assert server({"command": "x", "timeout": 90}).timeout == 90
    assert server({"command": "x", "timeout": 30000}).timeout == 30


@pytest.mark.parametrize("off", [{"disabled": True}, {"enabled": False}])
def test_a_server_can_be_switched_off(off: dict[str, bool]) -> None:
    assert server({"command": "x", **off}).disabled


def test_variables_are_filled_in_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    entry = {"command": "${BIN}/run", "args": ["${env:KEY}", "${MISSING:-none}", "${EMPTY:-some}", "$KEY {x}"],
             "env": {"A": "${workspaceFolder}/a"}, "cwd": "sub"}  # fmt: skip
    found = resolve(server(entry), {"BIN": "/opt", "KEY": "k3y!", "EMPTY": ""})
    assert found.command == "/opt/run"
    assert found.args == ("k3y!", "none", "some", "$KEY {x}")
    assert found.env == {"A": "/project/a"}
    assert found.cwd == "/project/sub"
    assert resolve(server({"command": "${userHome}/run"}), {}).command == "/home/me/run"
    remote = resolve(server({"url": "http://${HOST}/mcp", "headers": {"X": "${KEY}"}}), {"HOST": "h", "KEY": "k3y!"})
    assert (remote.url, remote.headers) == ("http://h/mcp", {"X": "k3y!"})


def test_the_workspace_of_an_editor_folder_is_the_folder_around_it() -> None:
    assert parse_server("a", {"command": "x"}, Path("/project/.vscode/mcp.json")).folder == Path("/project")


def test_an_unset_variable_is_named_and_a_prompt_explained() -> None:
    with pytest.raises(SourceError, match="environment variable NO_SUCH_KEY"):
        resolve(server({"command": "x", "env": {"A": "${env:NO_SUCH_KEY}"}}), {})
    with pytest.raises(SourceError, match=r"\$\{input:key\}.*environment"):
        resolve(server({"command": "x", "args": ["${input:key}"]}), {})


@pytest.mark.parametrize(
    "url", ["ftp://h/mcp", "http://h:0/mcp", "http://", "h/mcp", "http://h:port/mcp", "http://[/mcp"]
)
def test_an_address_that_is_no_web_address_is_refused(url: str) -> None:
    with pytest.raises(SourceError, match="http://"):
        resolve(server({"url": url}), {})


def test_secrets_never_show_in_messages_or_in_repr() -> None:
    entry = {"command": "run", "args": ["${TOKEN}"], "env": {"PASSWORD": "hunter22", "MODE": "dev"}}
    found = resolve(server(entry), {"TOKEN": "t0ken/1"})
    assert redact("t0ken/1 t0ken%2F1 hunter22 dev", found.secrets) == "*** *** *** dev"
    assert not {"t0ken/1", "hunter22"} & set(repr(found).split("'"))
    address = "https://me:s3cret@h/mcp?key=abcdef"
    remote = resolve(server({"url": address, "headers": {"Authorization": "Bearer abc.def"}}), {})
    assert redact("s3cret abcdef abc.def", remote.secrets) == "*** *** ***"
    assert "s3cret" not in repr(remote)


def test_a_shown_address_has_no_credentials() -> None:
    shown = show_url("https://me:pw@h.example:8443/u/0123456789abcdef0123/mcp?key=1#x")
    assert shown == "https://h.example:8443/u/***/mcp"


@pytest.mark.parametrize(
    ("locator", "name"),
    [
        ("npx -y @modelcontextprotocol/server-everything", "everything"),
        ("npx -y @modelcontextprotocol/server-filesystem@1.2 /data", "filesystem"),
        ("npx @playwright/mcp@latest", "playwright"),
        ("npx -y mcp-remote https://mcp.linear.app/sse", "linear"),
        ("uvx mcp-server-time", "time"),
        ("uvx --from git+https://h/x mcp-thing==2.0", "thing"),
        ("uv tool run mcp-thing", "thing"),
        ("python -m mcp_server_time --local-timezone=UTC", "time"),
        ("python -m mcp.server", "mcp.server"),
        ("python server.py", "server"),
        ("node /srv/weather-server/dist/index.js", "weather"),
        ("/usr/bin/python3.11 -u tools/weather.py", "weather"),
        ("node build/weather.js", "weather"),
        ("docker run -i --rm -e TOKEN ghcr.io/owner/github-mcp:latest", "github"),
        ("docker run -i --env-file .env -w /srv mcp/notion", "notion"),
        ("podman container run weather-mcp", "weather"),
        ("npx -y --registry https://npm.corp @corp/mcp-wiki", "wiki"),
        ("npm exec -y weather-mcp", "weather"),
        ("node x", "x"),
        ("npx tool", "tool"),
        ("bash run", "run"),
        ("sh -c 'exec npx -y weather-mcp'", "weather"),
        ("env KEY=1 uvx mcp-server-git", "git"),
        ("uv run -m mcp_server_time", "time"),
        ("npx -y supergateway --sse https://mcp.linear.app/sse", "linear"),
        ("/opt/bin/my-server --stdio", "my"),
        ("https://mcp.example.com/mcp", "example"),
        ("https://me:pw@mcp.example.com/v1/github/mcp?key=1", "example/github"),
        ("http://127.0.0.1:8000/mcp", "127.0.0.1:8000"),
        ("http://localhost:8000/sse", "localhost:8000"),
        ("https://h.example/s/0123456789abcdef0123/mcp", "h/s"),
    ],
)
def test_a_url_or_command_gets_a_short_name(locator: str, name: str) -> None:
    assert server_from_locator(locator).name == name


@pytest.mark.parametrize("locator", ["", "run 'it", "http://["])
def test_a_locator_that_is_nothing_is_refused(locator: str) -> None:
    with pytest.raises(SourceError, match="expected"):
        server_from_locator(locator)


def test_the_usual_places_are_searched_and_files_without_servers_left_out(tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "project"
    some = {"mcpServers": {"a": {"command": "x"}}}
    expected = {
        write(home / ".config/Claude/claude_desktop_config.json", some),
        write(home / "Library/Application Support/Claude/claude_desktop_config.json", some),
        write(home / ".claude.json", some),
        write(home / ".codeium/windsurf/mcp_config.json", some),
        write(home / ".cursor/mcp.json", "{broken"),
        write(cwd / ".mcp.json", some),
        write(cwd / ".vscode/mcp.json", {"servers": {"a": {"url": "http://h"}}}),
    }
    write(home / ".gemini/settings.json", {"theme": "dark"})
    write(cwd / ".vscode/settings.json", {"mcp": {"servers": {}}})
    assert set(discover(home=home, cwd=cwd)) == expected
    assert discover(home=tmp_path / "nobody", cwd=tmp_path) == []


@pytest.mark.parametrize(("command", "started"), [("./server.sh", "./server.sh"), ("npx", "npx"), ("~/x", "/home/x")])
def test_a_command_in_the_working_directory_keeps_its_dot(
    command: str, started: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home")
    assert resolve(parse_server("a", {"command": command, "args": ["b"]}, Path("/f/mcp.json")), {}).command == started
