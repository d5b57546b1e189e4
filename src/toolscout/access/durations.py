"""Counts durations in buckets, and adds these histograms to the metrics that are sent.

A histogram of the OpenTelemetry SDK makes some fifty function calls to record one duration, and a search has one for
each stage. Here it is five.

Import this module only with the extra `otel`.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Histogram as HistogramInstrument
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
)

__all__ = ["Durations", "MetricExporter"]

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
MAX_SERIES: Final = 2_000  # of one histogram, as in the SDK
OVERFLOW: Final = {"otel.metric.overflow": True}  # the attributes of what comes after them

Value = str | bool


class _Series:
    """The durations with equal attributes."""

    __slots__ = ("counts", "highest", "lowest", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total, self.lowest, self.highest = 0.0, float("inf"), 0.0


class Durations:
    """Durations in seconds, by the values of their attributes. Threads may share it."""

    def __init__(self, name: str, *attributes: str) -> None:
        """Count from now on. `name`: of the metric; `attributes`: their names."""
        self._name, self._attributes = name, attributes
        self._lock = threading.Lock()
        self._series: dict[tuple[Value, ...], _Series] = {}
        self._since = time.time_ns()

    def record(self, seconds: float, *values: Value) -> None:
        """Count a duration. `values`: of the attributes, in their order."""
        with self._lock:
            series = self._series.get(values)
            if series is None:
                values = values if len(self._series) < MAX_SERIES else ()
                series = self._series.setdefault(values, _Series())
            series.counts[bisect_left(BUCKETS_S, seconds)] += 1
            series.total += seconds
            if seconds < series.lowest:
                series.lowest = seconds
            if seconds > series.highest:
                series.highest = seconds

    def collect(self, temporality: AggregationTemporality) -> Metric | None:
        """Return what was counted: since the beginning, or with DELTA since the last time. None: nothing."""
        now = time.time_ns()
        with self._lock:
            points = [
                HistogramDataPoint(
                    attributes=dict(zip(self._attributes, values, strict=True)) if values else OVERFLOW,
                    start_time_unix_nano=self._since,
                    time_unix_nano=now,
                    count=sum(series.counts),
                    sum=series.total,
                    bucket_counts=tuple(series.counts),
                    explicit_bounds=BUCKETS_S,
                    min=series.lowest,
                    max=series.highest,
                )
                for values, series in self._series.items()
            ]
            if temporality is AggregationTemporality.DELTA:
                self._series.clear()
                self._since = now
        return Metric(self._name, "", "s", Histogram(points, temporality)) if points else None


class MetricExporter(OTLPMetricExporter):
    """Sends the metrics of the SDK, and durations with them."""

    def __init__(self, endpoint: str, durations: Sequence[Durations]) -> None:
        """Send to an endpoint."""
        super().__init__(endpoint=endpoint)
        self._durations = durations

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Send metrics of the SDK and the durations. What cannot be sent is lost with DELTA, as in the SDK."""
        temporality = (self._preferred_temporality or {}).get(HistogramInstrument, AggregationTemporality.CUMULATIVE)
        metrics = [metric for part in self._durations if (metric := part.collect(temporality)) is not None]
        if metrics:
            [resource] = metrics_data.resource_metrics
            scope, *others = resource.scope_metrics  # two entries of one scope would become the second
            scope = dataclasses.replace(scope, metrics=[*scope.metrics, *metrics])
            metrics_data = MetricsData([dataclasses.replace(resource, scope_metrics=[scope, *others])])
        return super().export(metrics_data, timeout_millis, **kwargs)
