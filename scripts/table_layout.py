"""Reading the files of benchmarks/results; for scripts/table_kinds.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolscout.checks.results import SWEEPS_FOLDER
from toolscout_lab.report.markdown import MAX_LINE_CHARS, lay_out

__all__ = [
    "MAIN_MEASURES",
    "MAX_LINE_CHARS",
    "RESULTS",
    "ROOT",
    "join_percents",
    "lay_out",
    "mark_read",
    "read_present",
    "read_result",
    "read_sweep",
    "read_value",
    "write_means",
]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MAIN_MEASURES = ("ndcg@5", "comp@5")
READ_ALL, READ_SOME = "²", "¹"


# --- reading results --------------------------------------------------------------------------------------------------


def read_result(name: str, label: str) -> dict[str, Any] | None:
    """A result of a label on a set, or a single trial of a sweep; None: there is neither."""
    for folder in (RESULTS / name, RESULTS / SWEEPS_FOLDER / name):
        path = folder / f"{label}.json"
        if path.exists():
            result: dict[str, Any] = json.loads(path.read_text())
            return result
    return None


def read_present(name: str, labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Label → result, for those labels that have one on the set."""
    return {label: result for label in labels if (result := read_result(name, label))}


def read_sweep(name: str, label: str) -> dict[str, Any]:
    sweep: dict[str, Any] = json.loads((RESULTS / SWEEPS_FOLDER / name / f"{label}.sweep.json").read_text())
    return sweep


def read_value(file: str, path: str, separator: str = "/") -> Any:
    """A value inside a JSON file of benchmarks/results."""
    value = json.loads((RESULTS / file).read_text())
    for key in path.split(separator):
        value = value[int(key) if isinstance(value, list) else key]
    return value


def mark_read(name: str) -> str:
    """The mark of a set of whose tools the bundled encoder has read all, or some; "": none."""
    counts = read_value("contamination.json", f"tools|{name}", "|")
    return READ_ALL if counts["corpus_was_read"] else READ_SOME * (counts["same_name_and_description"] > 0)


# --- writing lines ----------------------------------------------------------------------------------------------------


def join_percents(metrics: dict[str, float], measures: Sequence[str]) -> str:
    return " / ".join(f"{100 * metrics[name]:.1f}" for name in measures)


def write_means(results: Sequence[dict[str, Any] | None]) -> str:
    """Mean NDCG@5 / COMP@5 in percent; `-` where a result is missing."""
    present = [result["metrics"] for result in results if result]
    if len(present) < len(results):
        return "-"
    return join_percents({m: sum(each[m] for each in present) / len(present) for m in MAIN_MEASURES}, MAIN_MEASURES)
