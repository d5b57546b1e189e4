"""What Prometheus reads: counts and times, without names of callers and without a word of any query."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from toolscout.errors import require

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["Metrics"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The counters of one service, in a registry of their own."""

    def __init__(self, waiting: Callable[[], int], generation: Callable[[], int], tools: Callable[[], int]) -> None:
        """Make them; the three are asked when somebody reads."""
        require("prometheus_client", "server")
        from prometheus_client import (
            CollectorRegistry,
            Counter,
            Gauge,
            Histogram,
            PlatformCollector,
            ProcessCollector,
        )

        self.registry: CollectorRegistry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

        def gauge(name: str, what: str, ask: Callable[[], int]) -> None:
            Gauge(f"toolscout_{name}", what, registry=self.registry).set_function(ask)

        gauge("waiting_searches", "Queries that wait for a search.", waiting)
        gauge("catalogue_generation", "The number that every change of the catalogue raises.", generation)
        gauge("catalogue_tools", "Tools that are searched.", tools)
        self._requests = Counter(
            "toolscout_requests", "Answered requests.", ["method", "path", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "toolscout_request_seconds", "Time of an answer.", ["path"], buckets=SECONDS, registry=self.registry
        )
        self._batches = Histogram(
            "toolscout_batch_queries", "Queries searched together.", buckets=SIZES, registry=self.registry
        )
        self._searches = Counter("toolscout_searches", "Answers of searches.", ["answer"], registry=self.registry)
        self._events = Counter("toolscout_events", "Calls and feedback written.", ["event"], registry=self.registry)

    def request(self, method: str, path: str, status: int, seconds: float) -> None:
        """A request was answered; `path` is a route's, or `other`."""
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, size: int) -> None:
        """So many queries were searched together."""
        self._batches.observe(size)

    def search(self, answer: str | None) -> None:
        """A search was answered."""
        self._searches.labels(answer or "none").inc()

    def event(self, event: str) -> None:
        """A call or feedback was written to the journal."""
        self._events.labels(event).inc()

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
