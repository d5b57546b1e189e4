"""Collects traces by OTLP over HTTP, in memory: the example of the page on watching.

python examples/shop/collector.py        serve on port 4318; `curl localhost:4318` prints each span below its parent
"""

import argparse
import gzip
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

SPANS: dict[bytes, Span] = {}


class SpanHandler(BaseHTTPRequestHandler):
    """Takes spans by POST, and shows them by GET."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                SPANS.update((span.span_id, span) for scope in resource.scope_spans for span in scope.spans)
        self.answer("")

    def do_GET(self) -> None:
        self.answer("".join(describe(span) for span in sort_spans(SPANS.values()) if span.parent_span_id not in SPANS))

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


def describe(span: Span, depth: int = 0) -> str:
    """Return a line for a span, and one for each span below it."""
    below = [child for child in sort_spans(SPANS.values()) if child.parent_span_id == span.span_id]
    took = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
    return f"{'  ' * depth}{span.name}  {took:.1f} ms\n" + "".join(describe(child, depth + 1) for child in below)


def sort_spans(spans: object) -> list[Span]:
    return sorted(spans, key=lambda span: span.start_time_unix_nano)  # type: ignore[call-overload]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=4318)
    HTTPServer(("127.0.0.1", parser.parse_args().port), SpanHandler).serve_forever()
