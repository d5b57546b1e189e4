"""Traces, metrics and log lines of the service and the gateway.

Traces and metrics are sent to an OpenTelemetry collector by OTLP over HTTP. They are off unless the setting `telemetry`
names a collector. Without one, nothing here imports OpenTelemetry. The MCP SDK makes its own spans as soon as a
provider is set. Each message gets one, below the `traceparent` in the `_meta` of the request (SEP-414). So does each
message to a server, whose `_meta` carries the trace on. The variables of the OpenTelemetry SDK, such as
OTEL_EXPORTER_OTLP_HEADERS, work here too.

Whether a trace is kept is decided when it begins. If the caller has begun it, the caller decides. Of the traces that
begin here, the share `telemetry_share` (a setting) is kept, unless OTEL_TRACES_SAMPLER says otherwise. Metrics count
every request.

The spans and metrics of this module contain no query, argument, result or name of a caller. A span of the SDK may
contain the message of an error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

import msgspec

import toolscout
from toolscout.errors import require
from toolscout.types import Search, clean

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.util.types import Attributes
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = [
    "JsonLines",
    "Telemetry",
    "current_trace",
    "make_headers",
    "record_call",
    "record_searches",
    "start",
    "start_logs",
    "stop",
    "trace_app",
]

SHUTDOWN_MS: Final = 5_000
DURATION_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
MAX_LOG_CHARS: Final = 10_000
_active: Telemetry | None = None
_log: Final = logging.getLogger("toolscout.program")


class Telemetry:
    """The providers of one process. One at a time is active."""

    def __init__(self, address: str, service: str, share: float = 1.0) -> None:
        """Send to a collector.

        Args:
            address: of the collector, without `/v1/traces`.
            service: name of this service, unless OTEL_SERVICE_NAME names it.
            share: share of the traces begun here that is kept, 0 to 1, unless OTEL_TRACES_SAMPLER names a sampler.

        Raises:
            MissingExtra: without the extra `otel`.
        """
        for package in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
            require(package, "otel")
        from opentelemetry import propagate, trace
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        base = address.rstrip("/")
        attributes = {"service.name": service, "service.version": toolscout.__version__}
        resource = Resource.create(attributes).merge(OTELResourceDetector().detect())
        has_sampler = bool(os.environ.get("OTEL_TRACES_SAMPLER"))
        # with None the SDK makes the sampler that the variable names
        self._traces = TracerProvider(None if has_sampler else ParentBased(TraceIdRatioBased(share)), resource)
        self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{base}/v1/traces")))
        trace.set_tracer_provider(self._traces)
        if not os.environ.get("OTEL_PROPAGATORS"):
            propagate.set_global_textmap(TraceContextTextMapPropagator())  # baggage of a caller does not reach servers
        self.tracer = self._traces.get_tracer("toolscout")
        exporter = OTLPMetricExporter(endpoint=f"{base}/v1/metrics")
        reader = PeriodicExportingMetricReader(exporter)
        self._metrics = MeterProvider([reader], resource, exemplar_filter=AlwaysOffExemplarFilter())
        meter = self._metrics.get_meter("toolscout")
        self.searches = meter.create_counter("toolscout.searches", description="Answers of searches.")
        self.searches.add(0, {"answer": "tools"})  # so that the collector knows the counter before the first search
        buckets = DURATION_BUCKETS_S
        self.stage_seconds = meter.create_histogram(
            "toolscout.stage.duration", "s", explicit_bucket_boundaries_advisory=buckets
        )
        self.call_seconds = meter.create_histogram(
            "toolscout.call.duration", "s", explicit_bucket_boundaries_advisory=buckets
        )

    def add_span(
        self, name: str, begin: int, end: int, attributes: Attributes = None, parent: Context | None = None
    ) -> Context:
        """Record a span that has ended, and return its context, the `parent` of spans inside it.

        Args:
            name: of the span.
            begin: nanoseconds since 1970.
            end: nanoseconds since 1970.
            attributes: shown with the span; no text of a query or an argument.
            parent: context of the span around it; None: the current one.
        """
        from opentelemetry.trace import set_span_in_context

        span = self.tracer.start_span(name, parent, attributes=attributes, start_time=begin)
        span.end(end)
        return set_span_in_context(span)

    def close(self) -> None:
        """Send what is left, and stop."""
        global _active
        if _active is self:
            _active = None
        self._traces.force_flush(SHUTDOWN_MS)
        self._traces.shutdown()
        self._metrics.shutdown(SHUTDOWN_MS)  # sends what is left


@contextlib.contextmanager
def start(address: str, service: str, share: float) -> Iterator[None]:
    """Send traces and metrics inside this context.

    Args:
        address: of the collector, OTLP over HTTP; empty: nothing is done.
        service: its name in the traces.
        share: share of the traces begun here that is sent, 0 to 1.
    """
    global _active
    if not address:
        yield
        return
    telemetry = _active = Telemetry(address, service, share)
    try:
        yield
    finally:
        if _active is telemetry:
            telemetry.close()


def stop() -> None:
    """Send what is left, for a process that ends at once. Nothing is done if telemetry is off."""
    if _active is not None:
        _active.close()


def _is_kept() -> bool:
    """Return whether there is a current span whose trace is kept."""
    from opentelemetry.trace import get_current_span

    return get_current_span().get_span_context().trace_flags.sampled


def record_searches(searches: Sequence[Search]) -> None:
    """Record the metrics and spans of searches that have just ended.

    Each search is a span inside the current one, and contains a span for each stage. Their durations are those of
    `Search.trace`. When they began wasn't noted, so the stages are placed one after the other, the last one ending now.
    Without a current span that is kept, only the metrics are recorded.
    """
    telemetry = _active
    if telemetry is None:
        return
    is_kept, ended = _is_kept(), time.time_ns()
    for search in searches:
        answer = search.kind or "none"
        telemetry.searches.add(1, {"answer": answer})
        for timing in search.trace:
            telemetry.stage_seconds.record(timing.seconds, {"stage": timing.stage})
        if is_kept:
            begin = ended - sum(round(timing.seconds * 1e9) for timing in search.trace)
            details = {"toolscout.answer": answer, "toolscout.hits": len(search.hits)}
            parent = telemetry.add_span("search", begin, ended, details)
            for timing in search.trace:
                end = begin + round(timing.seconds * 1e9)
                telemetry.add_span(f"stage {timing.stage}", begin, end, parent=parent)
                begin = end


class CallOutcome:
    """The outcome of a call. Whoever makes the call sets `ok` to True if it succeeds."""

    ok = False


@contextlib.contextmanager
def record_call(server: str, tool: str) -> Iterator[CallOutcome]:
    """Record a call of a tool that is made inside this context: its span, its duration and its outcome.

    Args:
        server: name of the source, in the catalogue.
        tool: id of the tool.

    Yields:
        The outcome, to be set inside.
    """
    outcome, telemetry = CallOutcome(), _active
    if telemetry is None:
        yield outcome
        return
    from opentelemetry.trace import StatusCode

    started = time.perf_counter()
    with telemetry.tracer.start_as_current_span(
        "call tool",
        attributes={"toolscout.server": server, "toolscout.tool": tool},
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield outcome
        finally:
            span.set_attribute("toolscout.ok", outcome.ok)
            if not outcome.ok:
                span.set_status(StatusCode.ERROR)
            telemetry.call_seconds.record(time.perf_counter() - started, {"server": server, "ok": outcome.ok})


def make_headers() -> dict[str, str]:
    """Return headers that carry the current trace to a server or an HTTP API. Empty if telemetry is off."""
    headers: dict[str, str] = {}
    if _active is not None:
        from opentelemetry.propagate import inject

        inject(headers)
    return headers


def current_trace() -> tuple[str, str] | None:
    """Return the hexadecimal ids of the current trace and span. None outside of a span, or if telemetry is off."""
    if _active is None:
        return None
    from opentelemetry.trace import get_current_span

    context = get_current_span().get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


def trace_app(app: ASGIApp) -> ASGIApp:
    """Wrap an ASGI application so that each request is a span. If telemetry is off, return the application itself."""
    if _active is None:
        return app
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    tracer = _active.tracer

    async def answer_traced(scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request within a span, which belongs to the caller's trace if the headers name one."""
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        # a client may send any method, and must not make any number of span names
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE") else "other"
        with tracer.start_as_current_span(
            f"HTTP {method}",
            extract(carrier),
            SpanKind.SERVER,
            {"url.path": scope["path"][:200]},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:

            async def send_and_note_status(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            await app(scope, receive, send_and_note_status)

    return answer_traced


# --- log lines --------------------------------------------------------------------------------------------------------


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object: at, level, logger, message, and the trace if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record. Line breaks inside are escaped, so that one record is one line."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MAX_LOG_CHARS],
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)[:MAX_LOG_CHARS]
        trace = current_trace()
        if trace is not None:
            line["trace_id"], line["span_id"] = trace
        return msgspec.json.encode(clean(line)).decode()


def start_logs(form: str, say: Callable[[str], None]) -> Callable[[str], None]:
    """Set the form of the log lines of this process, and return a function that writes a sentence in this form.

    Args:
        form: `text` or `json`. `text` changes nothing.
        say: writes a sentence as text; returned for `text`.
    """
    if form != "json":
        return say
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger("toolscout").setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return lambda text: _log.info("%s", text)
