"""An OTLP collector in the test: decodes the protobuf messages of traces and metrics that it gets over HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Collector:
    """What a program has sent.

    Attributes:
        address: for the setting `telemetry`.
        spans: as protobuf messages.
        services: names of the services that sent them.
        metrics: name of each metric → its newest protobuf message.
        bodies: the bytes of all requests, decompressed.
    """

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.metrics: dict[str, Any] = {}
        self.bodies = b""
        self.address = ""

    def take(self, path: str, body: bytes) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.bodies += body
        if path == "/v1/traces":
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.services |= {
                    pair.value.string_value for pair in group.resource.attributes if pair.key == "service.name"
                }
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for group in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics |= {metric.name: metric for scope in group.scope_metrics for metric in scope.metrics}

    def find(self, name: str) -> Any:
        """The one span of a name."""
        [span] = [span for span in self.spans if span.name == name]
        return span

    def count_durations(self, name: str) -> dict[tuple[str | bool, ...], int]:
        """The number of durations of a metric, by the values of its attributes."""
        return {
            tuple(getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in point.attributes): point.count
            for point in self.metrics[name].histogram.data_points
        }

    def below(self, span: Any) -> list[Any]:
        return [other for other in self.spans if other.parent_span_id == span.span_id]


@contextmanager
def open_collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    collector.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
