"""Metrics for Prometheus: counts and times. They contain no caller names and no queries."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from toolscout.learn.drift_report import DRIFT_KINDS, DriftReport

__all__ = ["Metrics"]

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The counters of one service, in their own registry."""

    def __init__(self, waiting: Callable[[], int], generation: Callable[[], int], tools: Callable[[], int]) -> None:
        """Create the metrics. The three functions are called when Prometheus reads them."""
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

        def add_gauge(name: str, what: str, read: Callable[[], int]) -> None:
            Gauge(f"toolscout_{name}", what, registry=registry).set_function(read)

        add_gauge("waiting_searches", "Queries that wait for a search.", waiting)
        add_gauge("catalogue_generation", "The number that every change of the catalogue raises.", generation)
        add_gauge("catalogue_tools", "Tools that are searched.", tools)
        self._requests = Counter(
            "toolscout_requests", "Answered requests.", ["method", "path", "status"], registry=registry
        )
        self._seconds = Histogram(
            "toolscout_request_seconds", "Time of an answer.", ["path"], buckets=LATENCY_BUCKETS_S, registry=registry
        )
        self._batches = Histogram(
            "toolscout_batch_queries", "Queries searched together.", buckets=BATCH_SIZE_BUCKETS, registry=registry
        )
        self._searches = Counter("toolscout_searches", "Answers of searches.", ["answer"], registry=registry)
        self._events = Counter("toolscout_events", "Calls and feedback written.", ["event"], registry=registry)
        self._drift_alarms = Gauge(
            "toolscout_drift_alarms", "Changes of the traffic since the champion's time.", ["what"], registry=registry
        )
        self._drift_searches = Gauge(
            "toolscout_drift_watched_searches", "Searches since the champion's time.", registry=registry
        )

    def show_drift(self, report: DriftReport) -> None:
        """Show how many changes of each kind the drift watch has found; 0 for kinds without one."""
        for what in DRIFT_KINDS:
            self._drift_alarms.labels(what).set(sum(alarm.what == what and not alarm.over for alarm in report.alarms))
        self._drift_searches.set(report.watched)

    def count_request(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count an answered request. `path` is the path of a route, or `other`."""
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def count_batch(self, size: int) -> None:
        """Count a batch of queries that were searched together."""
        self._batches.observe(size)

    def count_search(self, answer: str | None) -> None:
        """Count an answered search."""
        self._searches.labels(answer or "none").inc()

    def count_event(self, event: str) -> None:
        """Count a call or feedback that was written to the journal."""
        self._events.labels(event).inc()

    def render(self) -> bytes:
        """Render all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
