"""Options of a gateway: from the command line, or else from the settings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolscout.home.catalogue.store import Origin, Store
from toolscout.settings import Settings

__all__ = ["Options", "choose_options", "list_origins"]


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a gateway.

    Attributes:
        configs: mcpServers files to read into the catalogue.
        pins: ids of tools that are listed beside the meta-tools.
        allow_python: whether Python functions of the catalogue may be called.
        call_timeout: seconds for one call, and for a search. In a call, a server's own `timeout` takes precedence.
        budget: approximate number of tokens for an answer of search_tools or describe_tools.
        result_budget: approximate number of tokens for the result of a call.
        profile: name of the profile that the caller on stdio uses. Empty: none.
        run_code: whether agents may run programs that call tools.
        run_code_writes: whether such a program may call other tools than read-only ones.
        run_code_seconds: seconds for one program, with its calls.
    """

    configs: tuple[Path, ...] = ()
    pins: tuple[str, ...] = ()
    allow_python: bool = False
    call_timeout: float = 60.0
    budget: int = 3_000
    result_budget: int = 10_000
    profile: str = ""
    run_code: bool = False
    run_code_writes: bool = False
    run_code_seconds: float = 60.0


def choose_options(settings: Settings, configs: tuple[Path, ...], command_options: Mapping[str, Any]) -> Options:
    """Choose the options of a gateway. The settings replace options of the command that are None, empty or False."""
    return Options(
        configs=configs,
        pins=command_options["pins"] or settings.pins,
        allow_python=command_options["allow_python"],
        call_timeout=command_options["call_timeout"] or settings.call_timeout,
        budget=command_options["budget"] or settings.gateway_budget,
        result_budget=command_options["result_budget"] or settings.gateway_result_budget,
        profile=command_options["profile"] or "",
        run_code=command_options["run_code"] or settings.run_code,
        run_code_writes=settings.run_code_writes,
        run_code_seconds=settings.run_code_seconds,
    )


def list_origins(store: Store, configs: tuple[Path, ...]) -> list[Origin]:
    """List the origins of MCP servers: those of the catalogue, and the configuration files of the options.

    The path of a file is written as `toolscout add` stores it, so that no file counts twice.
    """
    stored = [origin for origin in store.origins() if origin.kind == "mcp"]
    stored_files = {origin.locator for origin in stored if origin.name is None}
    files = dict.fromkeys(os.path.abspath(path.expanduser()) for path in configs)
    return [*stored, *(Origin(file, "mcp") for file in files if file not in stored_files)]
