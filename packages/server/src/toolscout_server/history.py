"""Keeps the figures of former checks of the catalogue, so that a person sees how its quality changes."""

from __future__ import annotations

import threading
from typing import Final, Literal

import msgspec

from toolscout.checks.lint import Lint
from toolscout.checks.selftest import Selftest
from toolscout.home.database import now, open_home
from toolscout.location import Home

__all__ = ["CheckRun", "read_history", "record_lint", "record_selftest"]

HISTORY_FILE: Final = "checks/history.json"
MAX_HISTORY_RUNS: Final = 200  # of all checks together; the oldest are dropped
_lock: Final = threading.Lock()


class CheckRun(msgspec.Struct, frozen=True, kw_only=True):
    """One check of the catalogue.

    Attributes:
        at: when.
        check: which check.
        generation: of the catalogue.
        n_tools: how many tools were checked.
        figures: name → value, from 0 to 1.
        comparable: what the run was about, such as "100 tools". Only runs with equal texts are compared.
    """

    at: str
    check: Literal["selftest", "lint"]
    generation: int
    n_tools: int
    figures: dict[str, float]
    comparable: str = ""


def read_history(home: Home) -> list[CheckRun]:
    """Return the former checks, the oldest first. Empty if there are none, or the file cannot be read."""
    try:
        return msgspec.json.decode(open_home(home).read_document(HISTORY_FILE), type=list[CheckRun])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return []


def record_lint(home: Home, generation: int, result: Lint, max_tools: int) -> None:
    """Record a run of lint: the shares of the checked tools that are found, and that are not confused with another.

    Args:
        home: whose history.
        generation: of the catalogue that was checked.
        result: of the run.
        max_tools: how many tools lint may check. Runs with another number are not compared.
    """
    checked = max(1, result.asked)
    figures = {
        "tools found": 1 - len(result.hidden) / checked,
        "without confusion": 1 - _count_confused(result) / checked,
    }
    _append(home, "lint", generation, result.asked, figures, f"{max_tools} tools")


def record_selftest(home: Home, generation: int, result: Selftest, serving: str, max_queries: int) -> None:
    """Record a run of selftest: the figures of the recipe that serves.

    Args:
        home: whose history.
        generation: of the catalogue that was tested.
        result: of the run.
        serving: the recipe that serves. If it was not tested, the first recipe of the result is recorded.
        max_queries: how many queries the run may have. Runs with another number are not compared.
    """
    row = next((row for row in result.rows if row.recipe == serving), result.rows[0])
    figures = {**row.measures, "chat turned away": row.no_tool}
    _append(home, "selftest", generation, result.n_tools, figures, f"{row.recipe}, {max_queries} queries")


def _count_confused(result: Lint) -> int:
    return len({tool for pair in result.confused for tool in (pair.one, pair.other)})


def _append(
    home: Home,
    check: Literal["selftest", "lint"],
    generation: int,
    n_tools: int,
    figures: dict[str, float],
    comparable: str,
) -> None:
    """Append a run to the history, with its figures between 0 and 1. Only the newest `MAX_HISTORY_RUNS` are kept."""
    figures = {name: round(max(0.0, min(1.0, value)), 4) for name, value in figures.items()}
    run = CheckRun(
        at=now(), check=check, generation=generation, n_tools=n_tools, figures=figures, comparable=comparable
    )
    with _lock:
        runs = [*read_history(home), run][-MAX_HISTORY_RUNS:]
        open_home(home).write_document(HISTORY_FILE, msgspec.json.encode(runs))
