"""The part of `doctor` on plug-ins: imports each one and says whether it can be used."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from toolscout.cli.main import COMMANDS, LAB_COMMANDS
from toolscout.cli.output import echo, escape_line
from toolscout.errors import UserError
from toolscout.plugins import (
    COMMAND_PLUGINS,
    METHOD_PLUGINS,
    PLUGIN_GROUPS,
    Plugin,
    explain_refusal,
    is_own,
    list_plugins,
    load_function,
)
from toolscout.recipes import registry

__all__ = ["describe_plugins", "print_plugins"]


def describe_plugins() -> list[dict[str, Any]]:
    """Import every plug-in of others and describe it, with a problem for each that cannot be used."""
    plugins = [plugin for group in PLUGIN_GROUPS for plugin in list_plugins(group)]
    return [_describe_plugin(plugin) for plugin in plugins if not is_own(plugin)]


def _describe_plugin(plugin: Plugin) -> dict[str, Any]:
    problem = _find_problem(plugin)
    return {
        "group": plugin.group,
        "name": plugin.name,
        "package": plugin.package,
        "version": plugin.version,
        "loads": problem is None,
        "problem": problem,
    }


def _find_problem(plugin: Plugin) -> str | None:
    """Return why a plug-in cannot be used. None: it can."""
    taken: Collection[str] = ()
    if plugin.group == METHOD_PLUGINS:
        taken = registry.all_recipes()
    elif plugin.group == COMMAND_PLUGINS:
        taken = {*COMMANDS, *LAB_COMMANDS}
    refusal = explain_refusal(plugin, taken)
    if refusal is not None:
        return refusal
    try:
        if plugin.group == METHOD_PLUGINS:
            registry.load_recipe(plugin)
        else:
            load_function(plugin)
    except UserError as error:
        return str(error)
    return None


def print_plugins(rows: Sequence[dict[str, Any]]) -> None:
    """Print one line for each plug-in; without plug-ins nothing."""
    if rows:
        echo("\nplug-ins")
    for row in rows:
        line = f"  {row['group']:<19} {row['name']}  ({row['package']} {row['version']})"
        echo(escape_line(line if row["loads"] else f"{line}  warning: {row['problem']}"))
