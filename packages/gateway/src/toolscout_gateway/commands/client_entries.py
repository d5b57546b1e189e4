"""Builds the entry for a client's configuration, which starts the gateway or connects to it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from toolscout.location import describe_home
from toolscout.settings import Settings

__all__ = ["CLIENTS", "KEY_VARIABLE", "TITLES", "render_entry"]

KEY_VARIABLE: Final = "TOOLSCOUT_KEY"
NAME: Final = "toolscout"
CLIENTS: Final = (
    "claude",
    "claude-desktop",
    "codex",
    "cursor",
    "langgraph",
    "openai-agents",
    "pydantic-ai",
    "vscode",
)
#: Client → its name in `toolscout.sources.clients`, for clients with a configuration file.
TITLES: Final = {
    "claude": "Claude Code",
    "claude-desktop": "Claude Desktop",
    "codex": "Codex",
    "cursor": "Cursor",
    "vscode": "VS Code",
}
#: Addresses that mean "at every address of this machine": a server can listen there, but no client can connect to them.
ANY_ADDRESS: Final = ("0.0.0.0", "::")
#: Clients that keep most variables of the environment from the programs that they start.
CLIENTS_WITHOUT_ENVIRONMENT: Final = ("langgraph", "openai-agents", "pydantic-ai")


def render_entry(client: str, settings: Settings, configs: tuple[Path, ...], options: Mapping[str, Any]) -> str:
    """Return the text to paste: TOML for Codex, JSON for all others.

    In `options`, `policy` is the file in force, and `names_policy` whether the user named it. Only then it is in the
    entry: the gateway finds the home's own policy by itself, also after it was replaced or removed.

    Raises:
        UsageError: if the client cannot connect in this way.
    """
    entry = _build_http(client, options) if options["http"] else _build_stdio(client, settings, configs, options)
    if client == "codex":
        return "\n".join([f"[mcp_servers.{NAME}]", *(f"{key} = {_quote(value)}" for key, value in entry.items())])
    if client == "openai-agents":
        configuration = entry
    elif client == "langgraph":
        configuration = {NAME: entry}
    else:
        configuration = {"servers" if client == "vscode" else "mcpServers": {NAME: entry}}
    return json.dumps(configuration, indent=2, ensure_ascii=False)


def _make_absolute(path: Path) -> str:
    """Return the absolute path without `..`, as `toolscout add` stores it."""
    return os.path.abspath(path.expanduser())


def _quote(value: object) -> str:
    """Write a text or a list of texts in TOML. It is written as JSON, which is valid TOML too."""
    return json.dumps(value, ensure_ascii=False)


def _build_http(client: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Build the entry of a gateway that is already running at an address, in the spelling of a client."""
    if client == "claude-desktop":
        raise click.UsageError(
            "The configuration file of Claude Desktop starts programs only. Leave --http out, or add the address under "
            "Settings, Connectors."
        )
    profile = f"/p/{options['profile']}" if options["profile"] else ""
    url = f"http://{_name_host(options)}:{options['port']}/mcp{profile}"
    has_key = bool(options["policy"])
    if client == "codex":
        return {"url": url} | ({"bearer_token_env_var": KEY_VARIABLE} if has_key else {})
    entry = {"url": url}
    if client == "langgraph":
        entry = {"transport": "streamable_http", **entry}
    elif client not in ("openai-agents", "pydantic-ai"):
        entry = {"type": "http", **entry}
    if has_key:
        prefix = "env:" if client in ("cursor", "vscode") else ""
        variable = f"${{{prefix}{KEY_VARIABLE}}}"  # the client puts its value here
        return {**entry, "headers": {"Authorization": f"Bearer {variable}"}}
    return entry


def _name_host(options: Mapping[str, Any]) -> str:
    """Return the host name or address for the URL of the gateway. In place of 0.0.0.0 it names this machine."""
    if options["names"]:
        return str(options["names"][0])
    host = str(options["host"])
    if host in ANY_ADDRESS:
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _build_stdio(
    client: str, settings: Settings, configs: tuple[Path, ...], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the entry of a gateway that the client starts as a program, in its spelling."""
    program = shutil.which("toolscout")
    command = [program] if program else [sys.executable, "-m", "toolscout"]
    entry: dict[str, Any] = {
        "command": command[0],
        "args": [*command[1:], "gateway", *_list_options(settings, configs, options)],
    }
    if client == "langgraph":
        entry = {"transport": "stdio", **entry}
    elif client == "vscode":
        entry = {"type": "stdio", **entry}
    if options["policy"] and client in CLIENTS_WITHOUT_ENVIRONMENT:
        entry["env"] = {KEY_VARIABLE: f"${{{KEY_VARIABLE}}}"}
    elif options["policy"] and client == "codex":
        entry["env_vars"] = [KEY_VARIABLE]
    return entry


def _list_options(settings: Settings, configs: tuple[Path, ...], options: Mapping[str, Any]) -> list[str]:
    """List the options of the gateway that the entry starts."""
    home = describe_home(settings.database) if settings.database else _make_absolute(settings.home)
    words = ["--home", home]
    for path in configs:
        words += ["--config", _make_absolute(path)]
    flags = {"--discover": "discover", "--allow-python": "allow_python", "--run-code": "run_code"}
    words += [flag for flag, name in flags.items() if options[name]]
    if options["names_policy"]:
        words += ["--policy", _make_absolute(options["policy"])]
    if options["profile"]:
        words += ["--profile", options["profile"]]
    for pin in options["pins"]:
        words += ["--pin", pin]
    return words
