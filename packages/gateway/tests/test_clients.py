"""Entries for clients: what is printed and what the pages show is valid for the client's own parser, or its schema."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from homes_in_postgres import find_place
from tests_cli import run
from toolscout.home.access.profiles import PROFILE_FILE
from toolscout.home.catalogue.store import Origin
from toolscout.home.database import open_home
from toolscout.scout import Scout
from toolscout_gateway.commands.client_entries import CLIENTS
from toolscout_gateway.options import list_origins
from toolscout_gateway.text import INSTRUCTIONS, META_TOOLS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).parents[3] / "docs" / "use"
SCHEMAS = json.loads(Path(__file__).with_name("client_schemas.json").read_text())
HEADINGS = {
    "Claude Code": "claude",
    "Claude Desktop": "claude-desktop",
    "Cursor": "cursor",
    "VS Code": "vscode",
    "Codex": "codex",
    "OpenAI Agents SDK": "openai-agents",
    "Pydantic AI": "pydantic-ai",
    "LangGraph": "langgraph",
}
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.S | re.M)


def read_blocks() -> dict[str, list[tuple[str, str]]]:
    """The blocks of code of both pages, with their languages, by client."""
    blocks: dict[str, list[tuple[str, str]]] = {}
    for page in ("clients.md", "frameworks.md"):
        for section in re.split(r"^## ", (DOCS / page).read_text(), flags=re.M)[1:]:
            heading = section.partition("\n")[0]
            if heading in HEADINGS:
                blocks[HEADINGS[heading]] = [(match[1], match[2]) for match in FENCE.finditer(section)]
    return blocks


BLOCKS = read_blocks()
SHOWN = [
    (client, text)
    for client, blocks in BLOCKS.items()
    for kind, text in blocks
    if kind in ("json", "toml") or text.startswith("{")
]


def check_entry(client: str, text: str, folder: Path) -> None:
    """Have the client's own parser read an entry, or compare it with the client's schema."""
    if client == "pydantic-ai":
        mcp = pytest.importorskip("pydantic_ai.mcp")
        path = folder / "toolscout.json"
        path.write_text(text)
        [toolset] = mcp.load_mcp_toolsets(path)
        assert toolset.prefix == "toolscout"
    elif client == "openai-agents":
        agents = pytest.importorskip("agents.mcp")
        entry = json.loads(text)
        kind = agents.MCPServerStreamableHttpParams if "url" in entry else agents.MCPServerStdioParams
        fields = {"command", "args", "env"} if "command" in entry else {"url", "headers"}
        assert set(entry) <= fields <= set(kind.__annotations__)
        server = agents.MCPServerStreamableHttp if "url" in entry else agents.MCPServerStdio
        assert server(entry).params is not None
    else:
        entry = tomllib.loads(text) if client == "codex" else json.loads(text)
        jsonschema.Draft202012Validator(SCHEMAS[client]).validate(entry)


def print_entry(client: str, home: Path, *options: str) -> str:
    done = run("--home", str(home), "gateway", "--print-config", client, *options)
    assert done.exit_code == 0, done.output
    return done.stdout


def write_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files that `OPTIONS` name."""
    monkeypatch.chdir(folder)
    (folder / "policy é.toml").write_text('default = "ann"\n[[caller]]\nname = "ann"\nallow = ["**"]\n')
    (folder / "home").mkdir()
    profile = b'[[profile]]\nname = "billing"\nallow = ["**"]\n'
    open_home(find_place(folder / "home")).write_document(PROFILE_FILE, profile)


OPTIONS = {
    "program": (),
    "program-with-a-key": ("--policy", "policy é.toml", "--profile", "billing", "--pin", "a/b"),
    "address": ("--http",),
    "address-with-a-key": ("--http", "--policy", "policy é.toml", "--profile", "billing"),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_printed_is_valid_for_the_client(
    client: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_KEY", "tsk_x")
    write_files(tmp_path, monkeypatch)
    if client == "claude-desktop" and "--http" in options:
        done = run("--home", str(tmp_path / "home"), "gateway", "--print-config", client, *options)
        assert done.exit_code == 2 and "starts programs only" in done.output
        return
    text = print_entry(client, tmp_path / "home", *options)
    check_entry(client, text, tmp_path)
    assert ("/mcp/p/billing" if "--http" in options else '"--profile"') in text or "--profile" not in options
    names_key = "TOOLSCOUT_KEY" in text
    assert not names_key or "--policy" in options
    assert names_key or "--policy" not in options or client in ("claude", "claude-desktop", "cursor", "vscode")
    assert "tsk_x" not in text


def test_a_file_of_the_client_that_the_catalogue_follows_is_to_be_copied_first(tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "home"))
    file = tmp_path / ".cursor/mcp.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": {"shop": {"command": "no-such-program"}}}))
    run(*home, "add", str(file))
    assert f"follows {file}" in (said := run(*home, "gateway", "--print-config", "cursor").stderr)
    assert "copy the file first, and run  toolscout add  with the copy" in said
    assert "follows" not in run(*home, "gateway", "--print-config", "codex").stderr


@pytest.mark.parametrize(("client", "text"), SHOWN, ids=[client for client, _ in SHOWN])
def test_what_the_pages_show_is_valid_for_the_client(
    client: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCOUT_KEY", "tsk_x")
    check_entry(client, text, tmp_path)


def test_every_client_has_an_entry_on_a_page() -> None:
    assert {client for client, _ in SHOWN} == set(CLIENTS) == set(HEADINGS.values())


def test_a_schema_refuses_what_its_client_does() -> None:
    for client, wrong in (
        ("claude", {"mcpServers": {"a": {"url": "https://x"}}}),  # Claude Code needs the type of an address
        ("claude-desktop", {"mcpServers": {"a": {"url": "https://x"}}}),
        ("cursor", {"servers": {}}),
        ("vscode", {"mcpServers": {}}),
        ("codex", {"mcp_servers": {"a": {"url": "https://x", "bearer_token": "secret"}}}),
        ("langgraph", {"a": {"command": "x", "args": []}}),
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(SCHEMAS[client]).validate(wrong)


@pytest.mark.folder_only("a file in the folder")
def test_an_entry_names_no_policy_that_the_gateway_finds_by_itself(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = home / "policy.toml"
    path.write_text('default = "ann"\n[[caller]]\nname = "ann"\nallow = ["**"]\n')
    entry = tomllib.loads(print_entry("codex", home))["mcp_servers"]["toolscout"]
    assert "--policy" not in entry["args"] and entry["env_vars"] == ["TOOLSCOUT_KEY"]
    entry = tomllib.loads(print_entry("codex", home, "--policy", str(path)))["mcp_servers"]["toolscout"]
    assert entry["args"][-2:] == ["--policy", str(path)], "a policy that is named must be there when it starts"


def test_paths_are_printed_as_add_stores_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    (tmp_path / "policy.toml").write_text('default = "ann"\n[[caller]]\nname = "ann"\nallow = ["**"]\n')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    text = print_entry("claude", tmp_path / "home", "--config", "../mcp.json", "--policy", "../policy.toml")
    arguments = json.loads(text)["mcpServers"]["toolscout"]["args"]
    assert {str(tmp_path / "mcp.json"), str(tmp_path / "policy.toml")} < set(arguments)
    with Scout(tmp_path / "home", recipe="bm25") as scout:
        scout.store.put_source(Origin(str(tmp_path / "mcp.json"), "mcp"), "shop", kind="mcp", tools=[])
        [origin] = list_origins(scout.store, (Path("../mcp.json"),))
    assert origin.name is None and origin.id, "the file that was added, not another one"


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.timeout(120)
@pytest.mark.parametrize("client", ["openai-agents", "pydantic-ai"])
def test_the_lines_of_the_page_list_the_tools(client: str, tmp_path: Path) -> None:
    pytest.importorskip({"openai-agents": "agents", "pydantic-ai": "pydantic_ai.mcp"}[client])
    entry = json.loads(print_entry(client, tmp_path / "home"))
    program = entry if client == "openai-agents" else entry["mcpServers"]["toolscout"]
    program["env"] = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}  # where this checkout is not installed
    (tmp_path / "toolscout.json").write_text(json.dumps(entry))
    [code] = [text for language, text in BLOCKS[client] if language == "py"]
    # Pydantic AI waits five seconds for a server, which may be too short on a machine that runs tests.
    code = code.replace("async with toolset:", "toolset.wrapped.client._init_timeout = 50\n    async with toolset:")
    environment = {**os.environ, "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(list(META_TOOLS))


@pytest.mark.full
@pytest.mark.node
@pytest.mark.net
@pytest.mark.timeout(600)
def test_codex_itself_reads_its_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, monkeypatch)
    for options in OPTIONS.values():
        text = print_entry("codex", tmp_path / "home", *options)
        (tmp_path / "config.toml").write_text(text)
        done = subprocess.run(
            ["npx", "-y", "@openai/codex", "mcp", "list", "--json"],
            env={**os.environ, "CODEX_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        [server] = json.loads(done.stdout)
        entry = tomllib.loads(text)["mcp_servers"]["toolscout"]
        assert server["name"] == "toolscout" and server["enabled"]
        assert {key: server["transport"][key] for key in entry} == entry


@pytest.mark.full
@pytest.mark.node
@pytest.mark.net
@pytest.mark.timeout(600)
def test_claude_code_itself_reads_its_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, monkeypatch)
    quiet = {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    for options in OPTIONS.values():
        entry = json.loads(print_entry("claude", tmp_path / "home", *options))["mcpServers"]["toolscout"]
        (tmp_path / ".claude.json").unlink(missing_ok=True)
        done = subprocess.run(
            ["npx", "-y", "@anthropic-ai/claude-code", "mcp", "add-json", "toolscout", json.dumps(entry)],
            env={**os.environ, **quiet, "HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.dumps(entry["url" if "url" in entry else "command"]) in (tmp_path / ".claude.json").read_text()


def test_the_page_says_what_the_model_reads() -> None:
    encoding = pytest.importorskip("bpe_openai").get_encoding("o200k_base")
    page = (DOCS / "clients.md").read_text()

    def read(row: str) -> int:
        match = re.search(rf"\| {row} *\| (\d+) \|", page)
        assert match is not None
        return int(match[1])

    tools = [
        {"type": "function", "name": name, "description": text, "parameters": schema}
        for name, (text, schema, _) in META_TOOLS.items()
    ]
    sizes = [len(encoding.encode(json.dumps(tool, separators=(",", ":"), ensure_ascii=False))) for tool in tools]
    assert abs(read("the four tools") / sum(sizes) - 1) < 0.05
    shown = read("the instructions, where the client shows them")
    assert abs(shown / len(encoding.encode(INSTRUCTIONS)) - 1) < 0.05


@pytest.mark.parametrize(
    ("options", "host"),
    [
        (["--host", "0.0.0.0", "--allow-host", "tools.example.com"], "tools.example.com"),
        (["--host", "0.0.0.0"], socket.gethostname()),
        (["--host", "::1"], "[::1]"),
        ([], "127.0.0.1"),
    ],
)
def test_an_entry_names_a_host_that_the_client_can_reach(tmp_path: Path, options: list[str], host: str) -> None:
    entry = json.loads(print_entry("claude", tmp_path / "home", "--http", *options))
    assert entry["mcpServers"]["toolscout"]["url"] == f"http://{host}:8765/mcp"
