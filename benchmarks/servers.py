"""Installs published MCP servers from PyPI and npm, and writes an mcpServers file of them.

    python benchmarks/servers.py --folder DIR [--only NAME,NAME] [--suite extensions.toml]

`suites/servers.toml` names them, with exact versions. Each has a folder of its own below DIR, so none shares a
dependency with another or with toolscout. A server that is installed already is left alone. `DIR/servers.json` is the
mcpServers file; a server that can't be installed is named and left out. Without names, those of the everyday catalogue
are installed; `matrix.py` installs and uses all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SUITE: Final = Path(__file__).resolve().parent / "suites" / "servers.toml"
INSTALL_SECONDS: Final = 600
Entry = dict[str, object]


def load_servers(
    only: Sequence[str] = (), *, everyday: bool = False, suite: Path = SUITE
) -> dict[str, dict[str, object]]:
    """Load the table of servers, or the named ones of it. `everyday`: if none is named, only the everyday ones."""
    servers = tomllib.loads(suite.read_text())
    unknown = sorted(set(only) - servers.keys())
    if unknown:
        raise SystemExit(f"{suite.name} has no {', '.join(unknown)}")
    if only:
        return {name: servers[name] for name in servers if name in only}
    return {name: server for name, server in servers.items() if not everyday or server.get("everyday", True)}


def install(name: str, server: dict[str, object], folder: Path) -> Path:
    """Install one server, unless it is there. Returns the folder of its programs.

    Raises:
        subprocess.SubprocessError: if npm or pip fails.
    """
    place = folder / name
    programs = place / ("node_modules/.bin" if "npm" in server else "bin")
    command = [str(word) for word in _read_list(server["command"])]
    if (programs / command[0]).exists():
        return programs
    place.mkdir(parents=True, exist_ok=True)
    packages = [str(server.get("npm") or server["pypi"]), *(str(package) for package in _read_list(server.get("with")))]
    if "npm" in server:
        steps = [["npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", *packages]]
    else:
        steps = [
            [sys.executable, "-m", "venv", str(place)],
            [str(programs / "pip"), "install", "-q", "--no-compile", *packages],
        ]
    for step in steps:
        subprocess.run(step, cwd=place, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    return programs


def _read_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def build_entry(server: dict[str, object], programs: Path, folder: Path) -> Entry:
    """Build the entry of a server in an mcpServers file. `folder` is an empty folder that it may write."""
    words = [str(word).replace("{folder}", str(folder)) for word in _read_list(server["command"])]
    env = server.get("env")
    values = {str(key): str(value).replace("{folder}", str(folder)) for key, value in dict(env or {}).items()}  # type: ignore[call-overload]
    return {"command": str(programs / words[0]), "args": words[1:], "env": values, "cwd": str(folder)}


def install_all(folder: Path, only: Sequence[str] = (), suite: Path = SUITE) -> Path:
    """Install servers, and write `servers.json` with those that could be installed. Returns its path."""
    servers = load_servers(only, everyday=True, suite=suite)
    entries: dict[str, Entry] = {}
    for number, (name, server) in enumerate(servers.items(), 1):
        print(f"{number} of {len(servers)}: {name}", file=sys.stderr)  # noqa: T201
        try:
            programs = install(name, server, folder / "installed")
        except (subprocess.SubprocessError, OSError) as error:
            print(f"{name} cannot be installed: {error}", file=sys.stderr)  # noqa: T201
            continue
        scratch = folder / "scratch" / name
        scratch.mkdir(parents=True, exist_ok=True)
        entries[name] = build_entry(server, programs, scratch)
    path = folder / "servers.json"
    path.write_text(json.dumps({"mcpServers": entries}, indent=1))
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, required=True, help="where the servers are installed")
    parser.add_argument("--only", default="", help="names, with commas between them")
    parser.add_argument("--suite", default=SUITE.name, help="the table in suites/ that names the servers")
    arguments = parser.parse_args()
    names = [name for name in arguments.only.split(",") if name]
    print(install_all(arguments.folder.resolve(), names, SUITE.parent / arguments.suite))  # noqa: T201
