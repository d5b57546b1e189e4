"""What `doctor` says of the index over vectors, and of the files that processes share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolscout.cli.output import echo
from toolscout.home.catalogue.snapshot_files import (
    SNAPSHOTS_FOLDER,
    check_snapshot_files,
    list_snapshot_files,
)
from toolscout.indexes import BUILT_IN_INDEXES, MIN_ANN_TOOLS, choose_index
from toolscout.indexes.large import MIN_LARGE_TOOLS, find_large
from toolscout.location import local_folder
from toolscout.settings import Settings

__all__ = ["check_snapshots", "describe_index", "drop_damaged_snapshots", "print_index"]


def describe_index(settings: Settings, n_tools: int) -> dict[str, Any]:
    """Return which index searches the vectors, why, and how many bytes processes share."""
    name = settings.index
    chosen = choose_index(n_tools, name) if name in BUILT_IN_INDEXES else name
    files = list_snapshot_files(_locate(settings))
    advice = ""
    if name == "auto" and n_tools >= MIN_LARGE_TOOLS and not find_large("ann"):
        advice = "searches of so many tools are faster with  pip install 'toolscout[scale]'"
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
    why = f"; from {report['ann_from']:,} tools on: ann" if report["setting"] == "auto" else ""
    shared = f"{report['shared_bytes'] / 1e6:,.1f} MB of snapshots, which all processes share"
    echo(f"\nindex over vectors: {report['index']}  (setting: {report['setting']}{why})\n  {shared}")
    if report["advice"]:
        echo(f"  {report['advice']}")


def check_snapshots(settings: Settings) -> list[str]:
    """Read the files of the snapshots. Returns one line for each damaged one."""
    return [f"{SNAPSHOTS_FOLDER}/{line}" for line in check_snapshot_files(_locate(settings))]


def drop_damaged_snapshots(settings: Settings) -> list[str]:
    """Remove damaged files of snapshots, which the next search builds again. Returns one sentence for each."""
    done = []
    for line in check_snapshot_files(_locate(settings)):
        name, _, wrong = line.partition(": ")
        (_locate(settings) / name).unlink(missing_ok=True)
        done.append(f"{SNAPSHOTS_FOLDER}/{name}: {wrong}: removed, and built again by the next search")
    return done


def _locate(settings: Settings) -> Path:
    return local_folder(settings.place) / SNAPSHOTS_FOLDER
