"""MCP servers as some twenty clients write them down: files, keys, spellings, and the tools that a user forbade."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests_cli import run
from toolscout import Scout
from toolscout.errors import SourceError
from toolscout.sources import detect
from toolscout.sources.clients import CLIENTS
from toolscout.sources.mcp_config import (
    MAX_VALUE_CHARS,
    Server,
    discover,
    load_entries,
    name_projects,
    parse_server,
    resolve,
)
from toolscout.sources.reading import listen
from toolscout.trust.trusted_folders import MCP_CONFIGURATIONS

ROOT = Path(__file__).parents[2]
STDIO = {"command": "python3", "args": ["s.py"]}
REMOTE = {"url": "http://h/mcp"}


def write(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def read(path: Path, document: object) -> dict[str, Server]:
    """Write a document, and read its servers."""
    return {name: parse_server(name, entry, path) for name, entry in load_entries(write(path, document)).items()}


DOCUMENTS: Mapping[str, tuple[str, object]] = {
    "Claude Code": (".claude.json", {"mcpServers": {"a": STDIO}}),
    "plug-in": (".claude-plugin/plugin.json", {"name": "p", "mcpServers": {"a": STDIO}}),
    "VS Code": (".vscode/mcp.json", {"servers": {"a": {"type": "stdio", **STDIO}}}),
    "VS Code settings": (".vscode/settings.json", {"mcp": {"servers": {"a": STDIO}}}),
    "dev container": (
        ".devcontainer/devcontainer.json",
        {"image": "x", "customizations": {"vscode": {"extensions": ["e"], "mcp": {"servers": {"a": STDIO}}}}},
    ),
    "Codex": (".codex/config.toml", 'model = "m"\n[mcp_servers.a]\ncommand = "python3"\nargs = ["s.py"]\n'),
    "Zed": (
        ".zed/settings.json",
        '{ // mine\n"context_servers": {"a": {"source": "custom", "command": "python3", "args": ["s.py"]}},}',
    ),
    "Zed, older": (
        ".zed/settings.json",
        {"context_servers": {"a": {"command": {"path": "python3", "args": ["s.py"]}}}},
    ),
    "Continue": (".continue/config.yaml", "name: n\nmcpServers:\n- name: a\n  command: python3\n  args: [s.py]\n"),
    "Continue, older": (
        ".continue/config.json",
        {"experimental": {"modelContextProtocolServers": [{"name": "a", "transport": {"type": "stdio", **STDIO}}]}},
    ),
    "opencode": ("opencode.json", {"mcp": {"a": {"type": "local", "command": ["python3", "s.py"]}}}),
    "Crush": ("crush.json", {"mcp": {"a": {"type": "stdio", **STDIO}}}),
    "Amp": (".amp/settings.json", {"amp.mcpServers": {"a": STDIO}}),
    "Copilot CLI": (".copilot/mcp-config.json", {"mcpServers": {"a": {"type": "local", "tools": ["*"], **STDIO}}}),
    "Goose": (
        "goose/config.yaml",
        "extensions:\n  developer: {type: builtin, name: developer}\n"
        "  a: {type: stdio, cmd: python3, args: [s.py], envs: {}, available_tools: []}\n",
    ),
    "null fields": ("mcp.json", {"mcpServers": {"a": {**STDIO, "env": None, "url": None, "timeout": None}}}),
}  # fmt: skip


@pytest.mark.parametrize("spelling", DOCUMENTS)
def test_the_servers_of_each_client_are_read(tmp_path: Path, spelling: str) -> None:
    file, document = DOCUMENTS[spelling]
    servers = read(tmp_path / file, document)
    assert [(name, server.command, server.args) for name, server in servers.items()] == [("a", "python3", ("s.py",))]
    assert servers["a"].permits("anything")
    assert detect(str(tmp_path / file)) == "mcp"


@pytest.mark.parametrize(
    ("fields", "transport"),
    [
        ({"type": "remote", "url": "http://h/mcp"}, "http"),
        ({"type": "streamable_http", "uri": "http://h/mcp"}, "http"),
        ({"transport": "sse", "url": "http://h/sse"}, "sse"),
        ({"httpUrl": "http://h/mcp"}, "http"),
        ({"serverUrl": "http://h/mcp"}, "http"),
    ],
)
def test_an_address_is_read_in_each_spelling(fields: object, transport: str) -> None:
    server = parse_server("a", fields, Path("mcp.json"))
    assert (server.transport, server.url[:8]) == (transport, "http://h")


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": {"Authorization": "Bearer k3y"}},
        {"http_headers": {"Authorization": "Bearer k3y"}},
        {"requestOptions": {"headers": {"Authorization": "Bearer k3y"}}},
        {"requestInit": {"headers": {"Authorization": "Bearer k3y"}}},
        {"headers": {"Authorization": "Bearer ${env:KEY}"}},
        {"headers": {"Authorization": "Bearer {env:KEY}"}},
        {"headers": {"Authorization": "Bearer $KEY"}},
        {"headers": {"Authorization": "Bearer ${{ secrets.KEY }}"}},
        {"bearer_token_env_var": "KEY"},
        {"env_http_headers": {"Authorization": "WHOLE"}},
    ],
)
def test_headers_are_read_in_each_spelling(fields: dict[str, object]) -> None:
    server = resolve(parse_server("a", {**REMOTE, **fields}, Path("c.json")), {"KEY": "k3y", "WHOLE": "Bearer k3y"})
    assert server.headers == {"Authorization": "Bearer k3y"}
    assert "k3y" in server.credentials or "Bearer k3y" in server.credentials


def test_variables_come_from_the_environment_from_files_and_from_what_an_editor_proposes(tmp_path: Path) -> None:
    write(tmp_path / ".env", "# mine\nexport A=1\nB='two words' # said\nC=3 # three\nKEY=old\n\nnonsense\n")
    write(tmp_path / "token", "t0ken\n")
    document = {
        "inputs": [{"id": "level", "type": "promptString", "default": "debug"}, {"id": "key"}],
        "servers": {
            "a": {
                "command": "${workspaceFolder}${/}run",
                "args": ["${workspaceFolderBasename}", "${input:level}"],
                "envFile": "${workspaceFolder}/.env",
                "env": {"KEY": "new", "TOKEN": "${file:token}"},
            },
            "b": {"command": "x", "args": ["${input:key}"]},
        },
    }
    servers = read(tmp_path / ".vscode" / "mcp.json", document)
    server = resolve(servers["a"], {})
    assert server.command == f"{tmp_path}/run"
    assert server.args == (tmp_path.name, "debug")
    assert server.env == {"A": "1", "B": "two words", "C": "3", "KEY": "new", "TOKEN": "t0ken"}
    with pytest.raises(SourceError, match=r"\$\{input:key\}"):
        resolve(servers["b"], {})
    with pytest.raises(SourceError, match=r"missing\.env"):
        resolve(parse_server("a", {**STDIO, "envFile": "missing.env"}, tmp_path / "mcp.json"), {})


def test_a_file_that_is_too_long_for_a_value_is_refused_and_not_cut(tmp_path: Path) -> None:
    write(tmp_path / "token", "t" * MAX_VALUE_CHARS)
    entry = {**STDIO, "env": {"TOKEN": "${file:token}"}}
    assert len(resolve(parse_server("a", entry, tmp_path / "mcp.json"), {}).env["TOKEN"]) == MAX_VALUE_CHARS
    write(tmp_path / "token", "t" * MAX_VALUE_CHARS + "\n")
    with pytest.raises(SourceError, match=r"at most 100,000 characters in .*token"):
        resolve(parse_server("a", entry, tmp_path / "mcp.json"), {})


def test_codex_passes_on_the_variables_that_it_names_and_goose_needs_its_keys() -> None:
    fields = {**STDIO, "env_vars": ["A", {"name": "B", "source": "local"}], "env": {"C": "3"}}
    assert resolve(parse_server("a", fields, Path("config.toml")), {"A": "1", "B": "2"}).env == {
        "A": "1", "B": "2", "C": "3",
    }  # fmt: skip
    goose = parse_server("a", {"cmd": "x", "env_keys": ["KEY"]}, Path("goose/config.yaml"))
    with pytest.raises(SourceError, match="environment variable KEY"):
        resolve(goose, {})


def test_a_dollar_sign_is_a_variable_where_the_client_says_so_or_where_the_variable_exists() -> None:
    fields = {"command": "x", "args": ["--key=$KEY"], "env": {"A": "$KEY", "B": "pa$$w0rd$X", "C": "%KEY%"}}
    gemini = resolve(parse_server("a", fields, Path(".gemini/settings.json")), {"KEY": "k3y"})
    assert (gemini.args, gemini.env["A"]) == (("--key=k3y",), "k3y")
    other = resolve(parse_server("a", fields, Path("claude_desktop_config.json")), {"KEY": "k3y"})
    assert other.args == ("--key=$KEY",)
    assert other.env == {"A": "k3y", "B": "pa$$w0rd$X", "C": "k3y"}


FILTERS = (
    {"excludeTools": ["danger", "other(x)"]},
    {"disabledTools": ["danger"]},
    {"disabled_tools": ["danger"]},
    {"tools": {"danger": False, "safe": True}},
    {"includeTools": ["safe", "read_*"]},
    {"enabled_tools": ["safe", "read_*"]},
    {"allowedTools": ["safe", "read_*"]},
    {"allowed_tools": {"tool_names": ["safe", "read_*"]}},
    {"tools": ["safe", "read_*"]},
    {"available_tools": ["safe", "read_*"]},
    {"enabledTools": ["*"], "excludeTools": ["dang*"]},
)


@pytest.mark.parametrize("fields", FILTERS)
def test_a_tool_that_the_user_forbade_is_forbidden_in_each_spelling(fields: dict[str, object]) -> None:
    server = parse_server("a", {**STDIO, **fields}, Path("mcp.json"))
    assert server.permits("safe")
    assert server.permits("read_file")
    assert not server.permits("danger")


@pytest.mark.parametrize("fields", [{"excludeTools": {"danger": 1}}, {"disabledTools": 7}, {"allowedTools": [1]}])
def test_a_list_of_tools_that_cannot_be_read_is_an_error_and_not_dropped(fields: dict[str, object]) -> None:
    if fields == {"excludeTools": {"danger": 1}}:
        fields = {"excludeTools": [["danger"]]}
    with pytest.raises(SourceError, match="list of tool names"):
        parse_server("a", {**STDIO, **fields}, Path("mcp.json"))


@pytest.mark.parametrize(
    ("file", "document"),
    [
        ("opencode.json", {"mcp": {"my srv": {"type": "local", **STDIO}}, "tools": {"my_srv_danger": False}}),
        (".amp/settings.json", {"amp.mcpServers": {"my srv": STDIO}, "amp.tools.disable": ["mcp__my_srv__danger"]}),
        (".claude/settings.json", {"mcpServers": {"my srv": STDIO}, "permissions": {"deny": ["mcp__my_srv__danger"]}}),
        (
            ".zed/settings.json",
            {
                "context_servers": {"my srv": STDIO},
                "agent": {"profiles": {"write": {"context_servers": {"my srv": {"tools": {"danger": False}}}}}},
            },
        ),
    ],
)
def test_rules_about_tools_elsewhere_in_the_file_are_obeyed(tmp_path: Path, file: str, document: object) -> None:
    server = read(tmp_path / file, document)["my srv"]
    assert server.permits("safe")
    assert not server.permits("danger")


@pytest.mark.parametrize(
    "rule",
    [
        {"mcp": {"excluded": ["a"]}},
        {"mcp": {"allowed": ["b"]}},
        {"excludeMCPServers": ["a"]},
        {"disabledMcpServers": ["a"]},
    ],
)
def test_a_server_that_the_user_switched_off_elsewhere_in_the_file_is_off(
    tmp_path: Path, rule: dict[str, object]
) -> None:
    servers = read(tmp_path / ".gemini" / "settings.json", {"mcpServers": {"a": STDIO, "b": STDIO}, **rule})
    assert (servers["a"].disabled, servers["b"].disabled) == (True, False)


@pytest.mark.parametrize(
    ("file", "fields", "seconds"),
    [
        (".gemini/settings.json", {"timeout": 600}, 0.6),
        (".roo/mcp.json", {"timeout": 1800}, 1800),
        ("cline_mcp_settings.json", {"timeout": 3600}, 3600),
        ("opencode.json", {"timeout": {"startup": 900}}, 0.9),
        (".codex/config.toml", {"startup_timeout_sec": 20}, 20),
        (".codex/config.toml", {"startup_timeout_ms": 20000}, 20),
        (".continue/config.yaml", {"connectionTimeout": 500}, 0.5),
        ("any.json", {"timeout": 30000}, 30),
        ("any.json", {"timeout": 90}, 90),
    ],
)
def test_a_time_out_is_in_the_unit_of_its_client(file: str, fields: dict[str, object], seconds: float) -> None:
    assert parse_server("a", {**STDIO, **fields}, Path(file)).timeout == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({**REMOTE, "headersHelper": "node h.mjs"}, "headersHelper"),
        ({**REMOTE, "authProviderType": "google_credentials"}, "authProviderType"),
        ({"type": "ws", "url": "ws://h"}, "WebSocket"),
        ({"source": "extension", "settings": {}}, "extension"),
        ({"settings": {"key": 1}}, "extension"),
    ],
)
def test_what_only_the_client_can_do_is_refused_by_name(fields: object, reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        parse_server("a", fields, Path("mcp.json"))


def test_a_type_that_is_no_text_is_an_error_of_its_server_alone(tmp_path: Path) -> None:
    path = write(tmp_path / ".mcp.json", {"mcpServers": {"bad": {**STDIO, "type": ["stdio"]}, "good": STDIO}})
    entries = load_entries(path)
    assert parse_server("good", entries["good"], path).transport == "stdio"
    with pytest.raises(SourceError, match='expected "type" stdio'):
        parse_server("bad", entries["bad"], path)


def test_a_field_that_is_not_used_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse_server("a", {**STDIO, "alwaysAllow": ["x"], "description": "d", "maxRetries": 3}, Path("mcp.json"))
    assert [record.getMessage() for record in caplog.records] == [
        "toolscout: mcp.json: the entry of the server a has fields that have no effect: maxRetries"
    ]


def claude_file(home: Path, project: Path) -> Path:
    servers = {"mine": STDIO, "files": STDIO}
    document = {"mcpServers": {}, "projects": {str(project): {"mcpServers": servers, "disabledMcpServers": ["mine"]}}}
    return write(home / ".claude.json", document)


def test_the_servers_that_claude_code_keeps_for_a_project_are_found_from_inside_the_project(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    file = claude_file(home, project)
    (project / "src").mkdir(parents=True)
    locator = f"{file}#{project}"
    assert discover(home=home, cwd=project / "src") == [Path(locator)]
    assert detect(locator) == "mcp"
    servers = {name: parse_server(name, entry, Path(locator)) for name, entry in load_entries(Path(locator)).items()}
    assert {name: server.disabled for name, server in servers.items()} == {"mine": True, "files": False}
    assert name_projects(str(file), tmp_path) == [str(file)]
    with pytest.raises(SourceError, match=f"belong to projects.*{project}"):
        load_entries(file)


def test_user_files_of_the_clients_are_discovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "COPILOT_HOME"):
        monkeypatch.delenv(variable, raising=False)
    toml = '[mcp_servers.q]\ncommand = "python3"\nargs = ["s.py"]\n'
    servers = {"mcpServers": {"a": STDIO}}
    expected = {
        write(tmp_path / ".codex/config.toml", toml),
        write(tmp_path / ".copilot/mcp-config.json", servers),
        write(tmp_path / ".config/opencode/opencode.json", {"mcp": {"a": {"type": "local", "command": ["x"]}}}),
        write(tmp_path / ".config/zed/settings.json", {"context_servers": {"a": STDIO}}),
        write(tmp_path / ".config/amp/settings.json", {"amp.mcpServers": {"a": STDIO}}),
        write(tmp_path / ".continue/mcpServers/one.yaml", "mcpServers:\n- name: a\n  command: x\n"),
        write(tmp_path / ".gemini/extensions/maps/gemini-extension.json", servers),
    }
    write(tmp_path / ".config/goose/config.yaml", "extensions:\n  developer: {type: builtin}\n")
    assert set(discover(home=tmp_path, cwd=tmp_path / "nowhere")) == expected
    moved = write(tmp_path / "moved/config.toml", toml)
    monkeypatch.setenv("CODEX_HOME", str(moved.parent))
    assert moved in discover(home=tmp_path, cwd=tmp_path / "nowhere")


def test_project_files_of_the_table_are_those_that_a_user_trusts() -> None:
    named = {file for client in CLIENTS for file in client.project}
    assert named - {".claude-plugin/plugin.json"} <= {*MCP_CONFIGURATIONS}


def test_the_page_names_every_client_and_file() -> None:
    page = (ROOT / "docs/use/client-files.md").read_text()
    missing = [client.name for client in CLIENTS if client.name not in page]
    assert not missing
    for short, long in (("DATA/", "CODE/globalStorage/"), ("CODE/", "APP/Code/User/"), ("APP/", "{app}/")):
        page = page.replace(short, long)
    files = {file for client in CLIENTS for file in (*client.user, *client.project)}
    assert not {file for file in files if f"`{file}`" not in page}


SERVER = """
import json, os, sys
for line in sys.stdin:
    m = json.loads(line); i = m.get("id")
    if i is None: continue
    if m["method"] == "initialize":
        r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}},
             "serverInfo": {"name": "e", "version": "1"}}
    elif m["method"] == "tools/list":
        names = ("key_is_" + os.environ.get("API_KEY", ""), "danger")
        r = {"tools": [{"name": n, "description": n, "inputSchema": {"type": "object"}} for n in names]}
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": i, "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": i, "result": r}), flush=True)
"""


def test_a_forbidden_tool_never_enters_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "k3y")
    server = write(tmp_path / "server.py", SERVER)
    fields = {"command": "python3", "args": [str(server)], "env": {"API_KEY": "$MY_KEY"}}
    entry = {**fields, "excludeTools": ["danger"], "timeout": 30000}
    file = write(tmp_path / "settings.json", {"mcpServers": {"env": entry}})
    scout = Scout(home=tmp_path / "home")
    changes = scout.add(file)
    assert [tool.id for tool in scout.store.tools([id for id, _ in scout.store.page("env", limit=None)])] == [
        "env/key_is_k3y"
    ]
    assert "leaves out 1 of 2 tools" in changes[0].message


def test_add_reads_the_servers_of_the_project_in_which_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    server = write(project / "server.py", SERVER)
    document = {"projects": {str(project): {"mcpServers": {"files": {"command": "python3", "args": [str(server)]}}}}}
    file = write(tmp_path / ".claude.json", document)
    monkeypatch.chdir(project)
    home = tmp_path / "home"
    outcome = run("add", str(file), "--home", str(home))
    assert outcome.exit_code == 0, outcome.output
    monkeypatch.chdir(tmp_path)
    outcome = run("sync", "--home", str(home), "--json")
    assert [source["state"] for source in json.loads(outcome.stdout)["sources"]] == ["ok"]


def test_a_corrected_entry_starts_one_server_and_not_all_of_its_file(tmp_path: Path) -> None:
    started = tmp_path / "started"
    server = write(tmp_path / "server.py", f"open({str(started)!r}, 'a').write('x')\n{SERVER}")
    good = {"command": "python3", "args": [str(server)]}
    file = write(
        tmp_path / "mcp.json", {"mcpServers": {"one": good, "two": good, "bad": {"command": "no-such-program"}}}
    )
    scout = Scout(home=tmp_path / "home")
    assert [change.state for change in scout.add(file)] == ["ok", "ok", "error"]
    assert started.read_text() == "xx"
    write(file, {"mcpServers": {"one": good, "two": good, "bad": good}})
    assert [(change.source, change.state) for change in scout.sync(["bad"])] == [("bad", "ok")]
    assert started.read_text() == "xxx"
    write(file, {"mcpServers": {"one": good}})
    assert [change.source for change in scout.sync(["bad"])] == ["bad"]
    assert {source.name for source in scout.sources()} == {"one", "two"}


def test_a_missing_program_is_said_once_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    entries = {name: {"command": "uvx", "args": [f"mcp-server-{name}"]} for name in ("git", "time", "fetch")}
    file = write(tmp_path / "mcp.json", {"mcpServers": entries})
    outcome = run("add", str(file), "--home", str(tmp_path / "home"))
    errors = [line for line in outcome.stderr.splitlines() if line.startswith(("error:", "hint:"))]
    assert [line.partition(":")[0] for line in errors] == ["error", "hint"]
    assert errors[0].startswith("error: git, time, fetch: ") and "'uvx'" in errors[0]
    assert "install uv (https://docs.astral.sh/uv/" in errors[1]
    assert "toolscout sync fetch git time " in outcome.stdout  # which starts these, and no other server


def test_whoever_waits_learns_which_servers_are_read(tmp_path: Path) -> None:
    server = write(tmp_path / "server.py", SERVER)
    good = {"command": "python3", "args": [str(server)]}
    file = write(tmp_path / "mcp.json", {"mcpServers": {"one": good, "two": good, "gone": {"command": "no-such"}}})
    heard: list[tuple[str, int, int]] = []
    with listen(lambda text, done, total: heard.append((text, done, total))), Scout(tmp_path / "home") as scout:
        scout.add(file)
    assert heard[0] == ("reading one, two, gone", 0, 3)
    counts = [done for _, done, _ in heard]
    assert counts == sorted(counts) and counts[-1] > 0, "servers that end at the same time are not counted apart"
    assert all(len(text.split(", ")) == total - done for text, done, total in heard)


def test_an_entry_that_is_no_server_is_not_called_one(tmp_path: Path) -> None:
    file = write(tmp_path / "mcp.json", {"mcpServers": {"note": {"text": "mine"}, "number": 3}})
    outcome = run("add", str(file), "--home", str(tmp_path / "home"))
    assert outcome.exit_code == 1 and "server" not in outcome.stderr.replace("mcpServers", "")
    for document, words in ((["hello"], "entry 1"), ({"theme": "dark"}, "no function schema in it can be read")):
        other = write(tmp_path / "other.json", document)
        outcome = run("add", str(other), "--home", str(tmp_path / "home"))
        assert outcome.exit_code != 0 and words in outcome.stderr and "server" not in outcome.stderr
