"""Forty configurations in the forms that the documentation of fourteen clients shows, and what the clients would run.

Each case names a client, its file, the document, and for each server what the client would start: `run` is the program
with its arguments, `to` the address with its transport; `only` are tools that it would show, `no` those that it would
not. A text in place of this is the reason for which the server is refused; None: the client has it switched off.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from toolscout.errors import SourceError
from toolscout.sources.mcp_config import load_entries, parse_server, resolve

ENV: Final = {"API_KEY": "k3y-of-mine", "TOKEN": "t0ken-of-mine", "HOME_URL": "http://127.0.0.1:8000/mcp"}
NPX: Final = ["npx", "-y", "@scope/server"]


def npx(**more: Any) -> dict[str, Any]:
    return {"command": "npx", "args": NPX[1:], **more}


def run(*words: str, **more: Any) -> dict[str, Any]:
    return {"run": list(words or NPX), **more}


def to(url: str, transport: str = "http", **more: Any) -> dict[str, Any]:
    return {"to": (url, transport), **more}


URL: Final = "https://example.com/mcp"
BEARER: Final = {"Authorization": "Bearer k3y-of-mine"}
CASES: Final[list[tuple[str, str, Any, dict[str, Any]]]] = [
    # --- Claude Desktop
    ("Claude Desktop", "claude_desktop_config.json", {"mcpServers": {"a": npx(args=[*NPX[1:], "/one", "/two"])}},
     {"a": run(*NPX, "/one", "/two")}),
    ("Claude Desktop", "claude_desktop_config.json",
     {"globalShortcut": "", "mcpServers": {"a": {"command": "cmd", "args": ["/c", *NPX], "env": {"KEY": "plain"}}}},
     {"a": run("cmd", "/c", *NPX, env={"KEY": "plain"})}),
    ("Claude Desktop", "claude_desktop_config.json",
     {"mcpServers": {"a": {"command": "docker", "args": ["run", "-i", "--rm", "-e", "TOKEN", "image"]}}},
     {"a": run("docker", "run", "-i", "--rm", "-e", "TOKEN", "image")}),
    # --- Claude Code
    ("Claude Code", ".mcp.json",
     {"mcpServers": {"a": {"type": "http", "url": "${BASE:-https://example.com}/mcp",
                           "headers": {"Authorization": "Bearer ${API_KEY}"}}}},
     {"a": to(URL, headers=BEARER)}),
    ("Claude Code", ".mcp.json", {"mcpServers": {"a": {"type": "sse", "url": "https://example.com/sse"}}},
     {"a": to("https://example.com/sse", "sse")}),
    ("Claude Code", ".mcp.json", {"mcpServers": {"a": npx(type="stdio", env={"KEY": "${API_KEY}"}, timeout=600000)}},
     {"a": run(env={"KEY": "k3y-of-mine"}, timeout=600)}),
    ("Claude Code", ".mcp.json", {"a": {"type": "http", "url": URL}, "b": npx()}, {"a": to(URL), "b": run()}),
    ("Claude Code", ".mcp.json",
     {"mcpServers": {"db": {"command": "${CLAUDE_PLUGIN_ROOT}/bin/db", "args": ["--config", "x"],
                            "cwd": "${CLAUDE_PLUGIN_ROOT}"}}},
     {"db": run("{folder}/bin/db", "--config", "x", cwd="{folder}")}),
    ("Claude Code", ".mcp.json", {"mcpServers": {"a": {"type": "http", "url": URL, "headersHelper": "./h.sh"}}},
     {"a": "headersHelper"}),
    # --- Cursor
    ("Cursor", ".cursor/mcp.json",
     {"mcpServers": {"a": {"type": "stdio", "command": "python", "args": ["${workspaceFolder}/s.py"],
                           "env": {"KEY": "${env:API_KEY}"}, "envFile": ".env"}}},
     {"a": run("python", "{folder}/s.py", env={"KEY": "k3y-of-mine", "FROM_FILE": "1"})}),
    ("Cursor", ".cursor/mcp.json",
     {"mcpServers": {"a": {"url": URL, "headers": {"Authorization": "Bearer ${env:API_KEY}"}}}},
     {"a": to(URL, headers=BEARER)}),
    ("Cursor", ".cursor/mcp.json",
     {"mcpServers": {"a": {"url": URL, "auth": {"CLIENT_ID": "x", "scopes": ["read"]}}}}, {"a": to(URL)}),
    # --- VS Code
    ("VS Code", ".vscode/mcp.json",
     {"inputs": [{"type": "promptString", "id": "key", "description": "Key", "password": True}],
      "servers": {"a": {"type": "http", "url": URL},
                  "b": npx(type="stdio", env={"KEY": "${input:key}"})}},
     {"a": to(URL), "b": "only an editor can ask"}),
    ("VS Code", ".vscode/mcp.json",
     '{\n  // a comment\n  "servers": {"a": {"command": "uvx", "args": ["srv"], "envFile": "${workspaceFolder}/.env",'
     ' "dev": {"watch": "src/**", "debug": {"type": "debugpy"}}},},\n}',
     {"a": run("uvx", "srv", env={"FROM_FILE": "1"})}),
    ("VS Code", ".vscode/settings.json", {"editor.fontSize": 12, "mcp": {"inputs": [], "servers": {"a": npx()}}},
     {"a": run()}),
    # --- Codex
    ("Codex", ".codex/config.toml",
     'model = "m"\n[mcp_servers.a]\ncommand = "npx"\nargs = ["-y", "@scope/server"]\nenv_vars = ["API_KEY"]\n'
     '[mcp_servers.a.env]\nMODE = "x"\n',
     {"a": run(env={"API_KEY": "k3y-of-mine", "MODE": "x"})}),
    ("Codex", ".codex/config.toml",
     f'[mcp_servers.a]\nurl = "{URL}"\nbearer_token_env_var = "API_KEY"\nhttp_headers = {{ "X-Region" = "eu" }}\n'
     'startup_timeout_sec = 20\ntool_timeout_sec = 45\nenabled_tools = ["open", "shut"]\ndisabled_tools = ["shut"]\n',
     {"a": to(URL, headers={**BEARER, "X-Region": "eu"}, timeout=20, only=["open"], no=["shut", "other"])}),
    ("Codex", ".codex/config.toml",
     '[mcp_servers.a]\ncommand = "a"\nenabled = false\n[mcp_servers.b]\ncommand = "b"\nrequired = true\n'
     '[mcp_servers.b.tools.search]\napproval_mode = "approve"\n',
     {"a": None, "b": run("b", only=["search", "other"])}),
    # --- Gemini CLI
    ("Gemini CLI", ".gemini/settings.json",
     {"mcpServers": {"a": {"command": "python", "args": ["-m", "srv", "--key=$API_KEY"], "cwd": "./srv",
                           "timeout": 15000, "trust": True, "env": {"KEY": "$API_KEY", "OTHER": "${TOKEN}"}}}},
     {"a": run("python", "-m", "srv", "--key=k3y-of-mine", cwd="{folder}/srv", timeout=15,
               env={"KEY": "k3y-of-mine", "OTHER": "t0ken-of-mine"})}),
    ("Gemini CLI", ".gemini/settings.json",
     {"mcpServers": {"a": {"httpUrl": URL, "url": "https://example.com/sse", "headers": {"Authorization":
                           "Bearer $API_KEY"}, "includeTools": ["safe", "risky"], "excludeTools": ["risky"]}}},
     {"a": to(URL, headers=BEARER, only=["safe"], no=["risky", "other"])}),
    ("Gemini CLI", ".gemini/settings.json",
     {"mcp": {"allowed": ["a"]}, "mcpServers": {"a": npx(), "b": npx()}}, {"a": run(), "b": None}),
    ("Gemini CLI", ".gemini/settings.json",
     {"mcpServers": {"a": {"httpUrl": URL, "authProviderType": "google_credentials", "oauth": {"scopes": ["s"]}}}},
     {"a": "authProviderType"}),
    # --- Cline, Roo Code, Windsurf
    ("Cline", "saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
     {"mcpServers": {"a": npx(alwaysAllow=["x"], disabled=False, timeout=60), "b": npx(disabled=True)}},
     {"a": run(timeout=60), "b": None}),
    ("Cline", "saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
     {"mcpServers": {"a": {"url": URL, "type": "streamableHttp", "headers": {"Authorization": "Bearer k3y-of-mine"}}}},
     {"a": to(URL, headers=BEARER)}),
    ("Roo Code", ".roo/mcp.json",
     {"mcpServers": {"a": {"type": "streamable-http", "url": URL, "disabledTools": ["risky"], "timeout": 300}}},
     {"a": to(URL, timeout=300, no=["risky"])}),
    ("Roo Code", ".roo/mcp.json",
     {"mcpServers": {"a": {"command": "node", "args": ["build/index.js"], "cwd": "${workspaceFolder}",
                           "watchPaths": ["build"], "env": {"KEY": "${env:API_KEY}"}}}},
     {"a": run("node", "build/index.js", cwd="{folder}", env={"KEY": "k3y-of-mine"})}),
    ("Windsurf", ".codeium/windsurf/mcp_config.json",
     {"mcpServers": {"a": {"serverUrl": URL, "headers": {"Authorization": "Bearer ${env:API_KEY}"},
                           "disabledTools": ["risky"]}}},
     {"a": to(URL, headers=BEARER, no=["risky"])}),
    # --- Zed
    ("Zed", ".zed/settings.json",
     '{"context_servers": {"a": {"source": "custom", "enabled": true, "command": "npx", "args": ["-y",'
     ' "@scope/server"], "env": {}}, "b": {"source": "extension", "settings": {"k": 1}}, "c": {"url": "' + URL + '"}}}',
     {"a": run(), "b": "extension", "c": to(URL)}),
    ("Zed", ".zed/settings.json",
     {"context_servers": {"a": npx(), "b": npx()},
      "agent": {"default_profile": "mine", "profiles": {"mine": {
          "name": "Mine", "enable_all_context_servers": False,
          "context_servers": {"a": {"tools": {"safe": True, "risky": False}}}}}}},
     {"a": run(only=["safe"], no=["risky", "other"]), "b": None}),
    # --- Continue
    ("Continue", ".continue/config.yaml",
     "name: n\nschema: v1\nmcpServers:\n  - name: a\n    command: npx\n    args: ['-y', '@scope/server']\n"
     "    env:\n      KEY: ${{ secrets.API_KEY }}\n    connectionTimeout: 4000\n",
     {"a": run(env={"KEY": "k3y-of-mine"}, timeout=4)}),
    ("Continue", ".continue/mcpServers/remote.yaml",
     f"name: n\nversion: 0.0.1\nschema: v1\nmcpServers:\n  - name: a\n    type: streamable-http\n    url: {URL}\n"
     "    requestOptions:\n      headers:\n        Authorization: Bearer ${{ secrets.API_KEY }}\n",
     {"a": to(URL, headers=BEARER)}),
    # --- opencode
    ("opencode", "opencode.jsonc",
     '{"$schema": "x", /* mine */ "mcp": {"a": {"type": "local", "command": ["npx", "-y", "@scope/server"],'
     ' "enabled": true, "environment": {"KEY": "{env:API_KEY}"}, "timeout": 8000}, "b": {"type": "remote", "url": "'
     + URL + '", "enabled": false}}}',
     {"a": run(env={"KEY": "k3y-of-mine"}, timeout=8), "b": None}),
    ("opencode", "opencode.json",
     {"mcp": {"my-a": {"type": "remote", "url": URL, "oauth": False, "headers": {"Authorization":
              "Bearer {env:API_KEY}"}}}, "tools": {"my-a_risky": False}, "permission": {"my-*_drop*": "deny",
              "edit": "ask"}},
     {"my-a": to(URL, headers=BEARER, no=["risky", "drop_table"], only=["safe"])}),
    ("opencode", "opencode.json",
     {"mcp": {"my-a": {"type": "local", "command": NPX}}, "tools": {"my-*": False}},
     {"my-a": run(no=["safe", "risky"])}),
    # --- Crush
    ("Crush", "crush.json",
     {"$schema": "x", "mcp": {"a": {"type": "stdio", "command": "node", "args": ["s.js"], "timeout": 120,
                                    "disabled": False, "disabled_tools": ["risky"], "env": {"KEY": "$API_KEY"}}}},
     {"a": run("node", "s.js", timeout=120, no=["risky"], env={"KEY": "k3y-of-mine"})}),
    ("Crush", "crush.json",
     {"mcp": {"a": {"type": "http", "url": URL, "headers": {"Authorization": "Bearer $(cat /key)"}}}},
     {"a": "runs a program"}),
    # --- Amp
    ("Amp", ".config/amp/settings.json",
     {"amp.mcpServers": {"a": npx(env={"KEY": "${API_KEY}"}, includeTools=["nav_*", "drop"]), "b": {"url": URL}},
      "amp.tools.disable": ["mcp__b__*"],
      "amp.permissions": [{"tool": "mcp__a__drop", "action": "reject"}, {"tool": "mcp__a__nav_to", "action": "allow"}]},
     {"a": run(env={"KEY": "k3y-of-mine"}, only=["nav_to"], no=["drop", "other"]), "b": to(URL, no=["any"])}),
    # --- Copilot CLI, Goose, Amazon Q
    ("Copilot CLI", ".copilot/mcp-config.json",
     {"mcpServers": {"a": npx(type="local", tools=["*"]), "b": {"type": "http", "url": URL, "tools": ["safe"]}}},
     {"a": run(only=["any"]), "b": to(URL, only=["safe"], no=["other"])}),
    ("Goose", ".config/goose/config.yaml",
     "GOOSE_PROVIDER: x\nextensions:\n  developer: {type: builtin, enabled: true, name: developer}\n"
     "  a: {type: stdio, enabled: true, cmd: npx, args: ['-y', '@scope/server'], envs: {A: '1'}, env_keys: [API_KEY],"
     f" timeout: 300, available_tools: []}}\n  b: {{type: streamable_http, enabled: false, uri: '{URL}'}}\n",
     {"a": run(env={"A": "1", "API_KEY": "k3y-of-mine"}, timeout=300, only=["any"]), "b": None}),
    ("Amazon Q", ".aws/amazonq/cli-agents/mine.json",
     {"name": "mine", "tools": ["fs_read", "@git/status", "@all"], "allowedTools": ["@git/status"],
      "mcpServers": {"git": npx(timeout=120000), "all": npx(), "none": npx()}},
     {"git": run(timeout=120, only=["status"], no=["push"]), "all": run(only=["any"]), "none": None}),
]  # fmt: skip


def check(server: Any, expected: dict[str, Any], folder: Path) -> None:
    """Compare a server with what its client would run."""
    ready = resolve(server, ENV)

    def place(value: Any) -> Any:
        return json.loads(json.dumps(value).replace("{folder}", str(folder)))

    if "run" in expected:
        assert [ready.command, *ready.args] == place(expected["run"])
    else:
        assert (ready.url, ready.transport) == expected["to"]
    assert dict(ready.env) == expected.get("env", {})
    assert dict(ready.headers) == expected.get("headers", {})
    assert ready.cwd == place(expected.get("cwd", ""))
    assert ready.timeout == expected.get("timeout")
    assert not [
        tool for tool in expected.get("only", ["any"] if "no" not in expected else []) if not ready.permits(tool)
    ]
    assert not [tool for tool in expected.get("no", ()) if ready.permits(tool)]


@pytest.mark.parametrize(("file", "document", "expected"), [case[1:] for case in CASES])
def test_what_is_read_is_what_the_client_would_run(
    file: str, document: Any, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / ".env").write_text("FROM_FILE=1\n")
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    entries = load_entries(path)
    assert entries.keys() == expected.keys()
    for name, what in expected.items():
        if isinstance(what, str):
            with pytest.raises(SourceError, match=what):
                resolve(parse_server(name, entries[name], path), ENV)
            continue
        server = parse_server(name, entries[name], path)
        assert server.disabled == (what is None)
        if what is not None:
            check(server, what, tmp_path)


def test_there_are_forty_of_fourteen_clients() -> None:
    assert len(CASES) >= 40
    assert len({client for client, *_ in CASES}) >= 14


@pytest.mark.parametrize("file", ["settings.json", "settings.local.json"])
def test_the_rules_that_claude_code_keeps_in_its_settings_are_obeyed(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = tmp_path / ".mcp.json"
    path.write_text(json.dumps({"mcpServers": {"my srv": npx(), "off": npx(), "denied": npx()}}))
    (tmp_path / ".claude").mkdir()
    rules = {"permissions": {"deny": ["mcp__my_srv__risky", "Bash(rm *)"], "allow": ["mcp__my_srv__safe"]}}
    rules |= {"disabledMcpjsonServers": ["off"], "deniedMcpServers": [{"serverName": "denied"}]}  # type: ignore[dict-item]
    (tmp_path / ".claude" / file).write_text(json.dumps(rules))
    servers = {name: parse_server(name, entry, path) for name, entry in load_entries(path).items()}
    assert {name: server.disabled for name, server in servers.items()} == {"my srv": False, "off": True, "denied": True}
    assert servers["my srv"].permits("safe") and not servers["my srv"].permits("risky")
    (tmp_path / ".claude" / file).write_text("{ no JSON")
    with pytest.raises(SourceError, match=file):
        load_entries(path)
