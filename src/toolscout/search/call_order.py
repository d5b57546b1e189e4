"""Learns from the journal which tools are called before others within one task.

A task is a run of calls of one caller without a long pause. Only successful calls count, and of each tool the first.
Nobody can change the answers of others alone: an order counts if a trusted caller follows it, or two callers do.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Container, Mapping
from datetime import datetime
from typing import Any, Final

from toolscout.home.journal.journal import Journal

__all__ = ["CallOrder"]

MAX_ORDER_EVENTS: Final = 30_000  # newest events that are read at the start
TASK_PAUSE_S: Final = 600.0  # a longer pause of a caller ends the task
MAX_TASK_TOOLS: Final = 20  # tools of one task that count
MIN_ORDERED_TASKS: Final = 5  # tasks that must show an order
MIN_ORDERED_SHARE: Final = 0.6  # share of the tasks with the later tool that must show it
MIN_ORDER_CALLERS: Final = 2  # callers that must show it, unless one of them is trusted
MAX_TASKS_PER_CALLER: Final = 50  # a caller with more counts like one with so many
REFRESH_AFTER_S: Final = 30.0


class CallOrder:
    """Which tools are usually called before a tool. It follows the journal; thread-safe."""

    def __init__(self, journal: Journal, *, trusted: Container[str] = ()) -> None:
        """Read the newest events.

        Args:
            journal: the journal.
            trusted: callers that may show an order alone.
        """
        self._journal, self._trusted = journal, trusted
        self._lock = threading.Lock()
        self._row = max(0, journal.last() - MAX_ORDER_EVENTS)
        self._running: dict[str, tuple[float, list[str]]] = {}  # caller → instant of the last call, tools of the task
        self._tasks: dict[str, Counter[str]] = defaultdict(Counter)  # tool → caller → tasks
        self._before: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)  # (earlier, later) → caller → tasks
        self._shares: dict[str, dict[str, float]] = {}
        self._read_at = time.monotonic()
        self._read_new()

    def __call__(self) -> Mapping[str, Mapping[str, float]]:
        """Return tool → tool that is usually called before it → share of the tasks. New calls count within 30 s."""
        with self._lock:
            if time.monotonic() - self._read_at >= REFRESH_AFTER_S:
                self._read_at = time.monotonic()
                self._read_new()
            return self._shares

    def _read_new(self) -> None:
        """Read the events since the last time."""
        last = self._journal.last()
        if last <= self._row:
            return
        for event in self._journal.read(event="call", after=self._row):
            self._add(event)
        self._row = last
        self._shares = self._find_orders()

    def _add(self, event: Mapping[str, Any]) -> None:
        """Count one call."""
        tool, caller, instant = event.get("tool"), event["caller"], _read_instant(event["at"])
        if not event.get("ok") or not isinstance(tool, str) or instant is None:
            return
        at, earlier = self._running.get(caller, (instant, []))
        if abs(instant - at) > TASK_PAUSE_S:
            earlier = []
        if tool not in earlier and len(earlier) < MAX_TASK_TOOLS:
            self._tasks[tool][caller] += 1
            for other in earlier:
                self._before[other, tool][caller] += 1
            earlier = [*earlier, tool]
        self._running[caller] = (instant, earlier)

    def _find_orders(self) -> dict[str, dict[str, float]]:
        orders: dict[str, dict[str, float]] = {}
        for (earlier, later), callers in self._before.items():
            if len(callers) < MIN_ORDER_CALLERS and not any(caller in self._trusted for caller in callers):
                continue
            tasks = self._tasks[later]
            weights = {caller: min(1.0, MAX_TASKS_PER_CALLER / count) for caller, count in tasks.items()}
            total = sum(count * weights[caller] for caller, count in tasks.items())
            ordered = sum(count * weights[caller] for caller, count in callers.items())
            reverse = sum(self._before.get((later, earlier), Counter()).values())
            if ordered >= MIN_ORDERED_TASKS and ordered / total >= MIN_ORDERED_SHARE and ordered > reverse:
                orders.setdefault(later, {})[earlier] = ordered / total
        return orders


def _read_instant(text: object) -> float | None:
    """Return the seconds of an ISO instant; None if it is none, which imported events may hold."""
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
