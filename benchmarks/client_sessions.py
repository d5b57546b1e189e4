"""Has six published clients do the same session with the gateway, and writes what each of them could do.

    python benchmarks/client_sessions.py --folder DIR [--only NAME,NAME]

The session searches, calls a tool, answers a question of a server, reads on in a result that was cut, reads a resource,
and cancels a call. Behind the gateway is `tests/servers/full.py`, once of protocol 2026-07-28 and once of an older one.
The clients are installed below DIR with exact versions; `clients/` has their programs. The inspector's command line has
neither questions nor cancelling, and starts the gateway anew for each request.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from servers import install
from toolscout.checks.results import write_json
from toolscout_lab.machine import provenance

BENCHMARKS: Final = Path(__file__).resolve().parent
RESULTS: Final = BENCHMARKS / "results" / "clients.json"
SERVER: Final = BENCHMARKS.parent / "tests" / "servers" / "full.py"
AGES: Final = ("modern", "legacy")
SESSION_SECONDS: Final = 300
REST_OFFSET: Final = 19_000
BIG_BYTES: Final = 20_000
TYPESCRIPT: Final = ["@modelcontextprotocol/sdk@1.32.2", "zod"]
#: What is installed, and the program that does the session.
CLIENTS: Final[dict[str, tuple[dict[str, object], str]]] = {
    "MCP SDK for Python 2": ({"pypi": "mcp==2.3.0", "command": ["mcp"]}, "mcp2.py"),
    "MCP SDK for Python 1": ({"pypi": "mcp==1.30.0", "command": ["mcp"]}, "mcp1.py"),
    "FastMCP 4": ({"pypi": "fastmcp==4.2.3", "command": ["fastmcp"]}, "fastmcp_client.py"),
    "FastMCP 3": ({"pypi": "fastmcp==3.4.11", "command": ["fastmcp"]}, "fastmcp_client.py"),
    "MCP SDK for TypeScript": (
        {"npm": "@modelcontextprotocol/inspector@2.12.0", "with": TYPESCRIPT, "command": ["mcp-inspector"]},
        "typescript.mjs",
    ),
    "Inspector (command line)": (
        {"npm": "@modelcontextprotocol/inspector@2.12.0", "with": TYPESCRIPT, "command": ["mcp-inspector"]},
        "",
    ),
}


def run(command: Sequence[str]) -> Any:
    """Run a program, and read the JSON that it prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=SESSION_SECONDS)
    lines = done.stdout.strip()
    if done.returncode or not lines:
        raise SystemExit(f"{command[0]} failed: {done.stderr.strip()[-2000:] or lines[-2000:]}")
    return json.loads(lines)


def inspect(programs: Path, gateway: Sequence[str], file: Path) -> dict[str, Any]:
    """Do the session with the inspector's command line, as far as it can. `file`: where to write its configuration."""
    file.write_text(json.dumps({"mcpServers": {"gateway": {"command": gateway[0], "args": gateway[1:]}}}))

    def ask(*words: str) -> Any:
        return run([str(programs / "mcp-inspector"), "--cli", "--config", str(file), "--server", "gateway", *words])

    def call(name: str, **values: object) -> Any:
        pairs = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()]
        return ask("--method", "tools/call", "--tool-name", name, "--tool-arg", *pairs)

    steps = {"search": call("search_tools", queries=["structured number"])}
    steps["call"] = call("call_tool", id="it/structured", arguments={"number": 7})
    steps["cut"] = call("call_tool", id="it/big", arguments={})
    handle = str(find_handle(steps["cut"]))
    steps["rest"] = call("read_result", handle=handle, path="content.0.text", offset=REST_OFFSET)
    steps["resource"] = ask("--method", "resources/read", "--uri", "memo://notes/1")
    return steps


def find_handle(result: Any) -> str:
    return str(((result.get("_meta") or {}).get("toolscout/result") or {}).get("handle") or "")


def judge(steps: dict[str, Any]) -> dict[str, bool]:
    """Return for each step that a client has done whether it is right."""
    texts = {name: json.dumps(result) for name, result in steps.items()}
    right = {
        "search": "it/structured(" in texts["search"],
        "call": (steps["call"].get("structuredContent") or {}).get("number") == 7,
        "cut": bool(find_handle(steps["cut"])) and "x" * (BIG_BYTES - REST_OFFSET) in texts["rest"],
        "resource": "a memo" in texts["resource"],
    }
    if "question" in steps:
        right["question"] = "Ann" in texts["question"]
    if "cancelled" in steps:
        right["cancel"] = steps["cancelled"]["content"][0]["text"] == "1"
    return right


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Have a client do the session with servers of both ages."""
    package, program = CLIENTS[name]
    spec = str(package.get("npm") or package.get("pypi"))
    programs = install("inspector" if "npm" in package else spec.replace("==", "-"), package, folder / "clients")
    row: dict[str, Any] = {"package": TYPESCRIPT[0] if program.endswith(".mjs") else spec}
    for age in AGES:
        home = folder / "homes" / f"session-{age}"
        home.mkdir(parents=True, exist_ok=True)
        config = home / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"it": {"command": sys.executable, "args": [str(SERVER), age]}}}))
        toolscout = [sys.executable, "-m", "toolscout", "--home", str(home / "home")]
        if not (home / "home").exists():
            subprocess.run([*toolscout, "add", str(config)], check=True, capture_output=True)
        gateway = [*toolscout, "gateway", "--result-budget", "1000", "--config", str(config)]
        if not program:
            steps = inspect(programs, gateway, home / "inspector.json")
        elif program.endswith(".mjs"):
            script = Path(shutil.copy(BENCHMARKS / "clients" / program, programs.parent.parent))
            steps = run(["node", str(script), *gateway])
        else:
            steps = run([str(programs / "python"), str(BENCHMARKS / "clients" / program), *gateway])
        row[age] = {"protocol": steps.pop("protocol", ""), **judge(steps)}
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the clients are installed")
    parser.add_argument("--only", default="", help="names, with commas between them")
    arguments = parser.parse_args()
    rows: dict[str, Any] = json.loads(RESULTS.read_text())["clients"] if RESULTS.exists() else {}
    for client in [name for name in arguments.only.split(",") if name] or CLIENTS:
        rows[client] = measure(client, arguments.folder.resolve())
        print(client, rows[client], file=sys.stderr)  # noqa: T201
        write_json(RESULTS, {"clients": {name: rows[name] for name in CLIENTS if name in rows}, **provenance()})
