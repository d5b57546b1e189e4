"""Each example runs as it is, against a scripted model that speaks the real protocols over HTTP."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ports import find_free_port
from server.tests.program import Program
from toolscout.scout import Scout

pytestmark = [pytest.mark.net, pytest.mark.slow, pytest.mark.timeout(180)]
EXAMPLES = Path(__file__).parents[2] / "examples"
META_TOOLS = {"search_tools", "describe_tools", "call_tool", "read_result"}


@pytest.fixture
def model() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("scripted_model", EXAMPLES / "scripted_model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server = module.make_server()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def run_example(name: str, folder: Path, model: Any = None, **variables: str) -> str:
    """Run an example in an empty folder and return what it printed."""
    address = f"http://127.0.0.1:{model.server_port}" if model else "http://127.0.0.1:9"
    keys = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    addresses = {"OPENAI_BASE_URL": f"{address}/v1", "ANTHROPIC_BASE_URL": address, "no_proxy": "*"}
    quiet = {"FASTMCP_CHECK_FOR_UPDATES": "off", "LANGSMITH_TRACING": "false"}
    environment = {**os.environ, **keys, **addresses, **quiet, **variables}
    line = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("claude/agent.py", {"search_tools", "forecast", "send_mail", "convert_currency"}, None),
        ("openai_tools/agent.py", {None}, None),
        ("langgraph/agent.py", {"forecast"}, {"forecast"}),
        ("pydantic_ai/agent.py", {"search_tools"}, {"search_tools", "forecast"}),
    ],
)
def test_an_agent_finds_its_tool_and_answers(
    name: str, first: set[str | None], last: set[str | None] | None, model: Any, tmp_path: Path
) -> None:
    told = run_example(name, tmp_path, model)
    assert "rain in Oslo" in told
    assert {str(tool).rpartition("__")[2] if tool else tool for tool in model.asked[0]} == first
    assert last is None or set(model.asked[-1]) == last
    if last is None:  # here the example itself says what was called
        with Scout(tmp_path / "my-tools") as scout:
            assert scout.journal.stats()["searches_followed_by_a_successful_call"] == 1


def test_an_agent_behind_the_gateway_sees_four_tools(model: Any, tmp_path: Path) -> None:
    entry = {"command": sys.executable, "args": [str(EXAMPLES / "openai_agents" / "office_server.py")]}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"office": entry}}))
    with Scout(tmp_path / "my-tools") as scout:  # so that no search has to wait for the server's start
        scout.add(tmp_path / "servers.json")
    told = run_example("openai_agents/agent.py", tmp_path, model)
    assert "rain in Oslo" in told and set(model.asked[0]) == META_TOOLS


def test_a_server_of_fastmcp_is_searched_over_http(tmp_path: Path) -> None:
    port = find_free_port()
    line = [sys.executable, str(EXAMPLES / "fastmcp" / "server.py")]
    environment = {**os.environ, "PORT": str(port), "FASTMCP_CHECK_FOR_UPDATES": "off", "FASTMCP_LOG_LEVEL": "ERROR"}
    server = subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(400):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        told = run_example("fastmcp/client.py", tmp_path, PORT=str(port))
    finally:
        server.terminate()
        server.wait(30)
    assert "listed: ['call_tool', 'search_tools']" in told and "forecast: rain in Oslo" in told


def test_plain_http_searches_and_reports_the_call(tmp_path: Path) -> None:
    with Scout(tmp_path / "home") as scout:
        scout.add("py:tempfile")
    program = Program(tmp_path / "home")
    try:
        told = run_example("http/search.py", tmp_path, TOOLSCOUT_URL=f"http://127.0.0.1:{program.port}")
    finally:
        program.process.terminate()
        program.process.communicate(timeout=30)
    assert "tempfile/tempfile.TemporaryDirectory" in told.splitlines()[0]
    with Scout(tmp_path / "home") as scout:
        assert scout.journal.stats()["searches_followed_by_a_successful_call"] == 1


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(EXAMPLES / "measured_retriever.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()) if "text" in output
    )
    assert "office: 3 new" in printed and "office/forecast" in printed
    assert "calls to learn from: 12" in printed and "recall@1 before" in printed and "recall@1 after" in printed


def test_every_example_is_listed_and_begins_with_what_to_copy() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for folder in ("claude", "openai_tools", "openai_agents", "langgraph", "pydantic_ai", "fastmcp", "http"):
        [main] = [
            path for path in (EXAMPLES / folder).glob("*.py") if path.name in ("agent.py", "server.py", "search.py")
        ]
        assert f"({folder}/{main.name})" in listed
        assert "copy from here" in main.read_text() or folder == "http"
