"""What `doctor` says of the encoder, the index over vectors and the plug-ins of others."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from toolscout.cli.main import COMMANDS, LAB_COMMANDS
from toolscout.cli.output import echo, escape_line
from toolscout.encoders import describe_encoder, load
from toolscout.errors import UserError, install_line
from toolscout.home.catalogue.snapshot_files import (
    SNAPSHOTS_FOLDER,
    check_snapshot_files,
    list_snapshot_files,
)
from toolscout.indexes import BUILT_IN_INDEXES, MIN_ANN_TOOLS, choose_index
from toolscout.indexes.large import MIN_LARGE_TOOLS, find_large
from toolscout.location import local_folder
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
from toolscout.settings import Settings

__all__ = [
    "check_snapshots",
    "describe_configured_encoder",
    "describe_index",
    "describe_plugins",
    "drop_damaged_snapshots",
    "print_encoder",
    "print_index",
    "print_plugins",
]

LIMIT_UNITS: Final = {"tokens": "tokens", "chars": "characters"}


def describe_configured_encoder(settings: Settings) -> dict[str, Any]:
    """Load the encoder of the settings and describe it, as `describe_encoder`; with a `problem` if it does not load."""
    try:
        encoder = load(settings.encoder, settings)
    except UserError as error:
        return {"name": settings.encoder, "problem": str(error)}
    return {**describe_encoder(encoder), "problem": None}


def print_encoder(row: Mapping[str, Any]) -> None:
    """Print what the encoder is, or why it does not load."""
    echo("\nencoder")
    echo(escape_line(f"  name       {row['name']}"))
    if row["problem"]:
        echo(escape_line(f"  warning    {row['problem']}"))
        return
    echo(f"  dimension  {row['dimension']}")
    echo(f"  languages  {', '.join(row['languages']) if row['languages'] else 'all, or unknown'}")
    for kind in ("query", "tool"):
        prompt = row[f"{kind}_prompt"]
        echo(escape_line(f"  {f'{kind} prompt':<12}  {repr(prompt) if prompt else 'none'}"))
    echo(f"  maximum    {_describe_maximum(row)}")


def _describe_maximum(row: Mapping[str, Any]) -> str:
    """Say how much of a text the encoder reads, in tokens or characters."""
    limits = [f"{row[f'max_{unit}']:,} {word}" for unit, word in LIMIT_UNITS.items() if row[f"max_{unit}"]]
    return f"{' or '.join(limits)} of a text" if limits else "not stated"


def describe_index(settings: Settings, n_tools: int) -> dict[str, Any]:
    """Return which index searches the vectors, why, and how many bytes processes share."""
    name = settings.index
    chosen = choose_index(n_tools, name) if name in BUILT_IN_INDEXES else name
    files = list_snapshot_files(_find_snapshots(settings))
    advice = ""
    if name == "auto" and n_tools >= MIN_LARGE_TOOLS and not find_large("ann"):
        advice = f"searches of so many tools are faster with  {install_line('scale')}"
    return {
        "setting": name,
        "index": chosen,
        "tools": n_tools,
        "ann_from": MIN_ANN_TOOLS,
        "shared_bytes": sum(path.stat().st_size for path in files if path.exists()),
        "advice": advice,
    }


def print_index(report: dict[str, Any]) -> None:
    """Print one line about the index, and the advice if there is any."""
    why = f": ann from {report['ann_from']:,} tools on, with toolscout-scale" if report["setting"] == "auto" else ""
    shared = f"{report['shared_bytes'] / 1e6:,.1f} MB of snapshots, which all processes share"
    echo(f"\nindex over vectors: {report['index']}  (setting: {report['setting']}{why})\n  {shared}")
    if report["advice"]:
        echo(f"  {report['advice']}")


def check_snapshots(settings: Settings) -> list[str]:
    """Read the files of the catalogue's snapshots. Returns one line for each damaged one."""
    return [f"{SNAPSHOTS_FOLDER}/{line}" for line in check_snapshot_files(_find_snapshots(settings))]


def drop_damaged_snapshots(settings: Settings) -> list[str]:
    """Remove damaged files of snapshots, which the next search builds again. Returns one sentence for each."""
    repairs = []
    for line in check_snapshot_files(_find_snapshots(settings)):
        name, _, problem = line.partition(": ")
        path = _find_snapshots(settings) / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        repairs.append(f"{SNAPSHOTS_FOLDER}/{name}: {problem}: removed, and built again by the next search")
    return repairs


def _find_snapshots(settings: Settings) -> Path:
    """Return the folder of the snapshots, which is on this machine also if the home is in a database."""
    return local_folder(settings.place) / SNAPSHOTS_FOLDER


def describe_plugins() -> list[dict[str, Any]]:
    """Import every plug-in that is not toolscout's own and describe it, with the problem if it cannot be used."""
    plugins = [plugin for group in PLUGIN_GROUPS for plugin in list_plugins(group)]
    return [_describe_plugin(plugin) for plugin in plugins if not is_own(plugin)]


def _describe_plugin(plugin: Plugin) -> dict[str, Any]:
    """Describe a plug-in, with the problem if it cannot be used."""
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
    builtin_names: Collection[str] = ()
    if plugin.group == METHOD_PLUGINS:
        builtin_names = registry.all_recipes()
    elif plugin.group == COMMAND_PLUGINS:
        builtin_names = {*COMMANDS, *LAB_COMMANDS}
    refusal = explain_refusal(plugin, builtin_names)
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
