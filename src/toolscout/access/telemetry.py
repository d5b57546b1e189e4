"""Traces and metrics of the service and the gateway, sent to an OpenTelemetry collector by OTLP over HTTP.

They are off unless the setting `telemetry` names a collector. Without one, nothing here imports OpenTelemetry. The MCP
SDK makes its own spans as soon as a provider is set. Each message gets one, below the `traceparent` in the `_meta` of
the request (SEP-414). So does each message to a server, whose `_meta` carries the trace on. The variables of the
OpenTelemetry SDK, such as OTEL_EXPORTER_OTLP_HEADERS, hold here too.

A trace is kept or not when it begins. A request of a caller's trace follows the caller; of the others a share is kept,
by the setting `telemetry_share` unless OTEL_TRACES_SAMPLER says otherwise. Metrics count every request. Nothing is made
for a span that is not kept, because most are not; see `unkept_traces`.

The spans and metrics of this module hold no query, argument, result or name of a caller. A span of the SDK may hold the
message of an error.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import toolscout
from toolscout.errors import require
from toolscout.types import Search

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = [
    "Telemetry",
    "current_trace",
    "is_on",
    "make_headers",
    "record_call",
    "record_list",
    "record_searches",
    "span",
    "start",
    "stop",
    "trace_app",
]

Attribute = str | int | float | bool
SHUTDOWN_MS: Final = 5_000
RECORD_INTERVAL_S: Final = 0.2
MAX_WAITING_SEARCHES: Final = 1_000
_active: Telemetry | None = None


class Telemetry:
    """The providers of one process. One at a time is active."""

    def __init__(self, address: str, service: str, share: float = 1.0) -> None:
        """Send to a collector.

        Args:
            address: of the collector, without `/v1/traces`.
            service: name of this service, unless OTEL_SERVICE_NAME names it.
            share: of the traces that begin here, how many are kept, unless OTEL_TRACES_SAMPLER names a sampler.

        Raises:
            MissingExtra: without the extra `otel`.
        """
        for package in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
            require(package, "otel")
        from opentelemetry import propagate, trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.metrics import Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        from toolscout.access.durations import Durations, MetricExporter
        from toolscout.access.unkept_traces import Propagator, Provider, find_unkept, make_headers

        base = address.rstrip("/")
        described = {"service.name": service, "service.version": toolscout.__version__}
        resource = Resource.create(described).merge(OTELResourceDetector().detect())
        has_sampler = bool(os.environ.get("OTEL_TRACES_SAMPLER"))
        self.traces = TracerProvider(None if has_sampler else ParentBased(ALWAYS_ON), resource)
        self._processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{base}/v1/traces"))
        self.traces.add_span_processor(self._processor)
        self._scope = InstrumentationScope("toolscout")
        self.stage_seconds = Durations("toolscout.stage.duration", "stage")
        self.call_seconds = Durations("toolscout.call.duration", "server", "ok")
        exporter = MetricExporter(f"{base}/v1/metrics", [self.stage_seconds, self.call_seconds])
        self.metrics = MeterProvider(resource=resource, metric_readers=[PeriodicExportingMetricReader(exporter)])
        self.answers = Counter(tools=0)
        self.metrics.get_meter("toolscout").create_observable_counter(
            "toolscout.searches",
            [lambda _: [Observation(count, {"answer": answer}) for answer, count in self.answers.copy().items()]],
            description="Answers of searches.",
        )
        provider = Provider(self.traces, None if has_sampler else share)
        trace.set_tracer_provider(provider)
        propagate.set_global_textmap(Propagator())
        self.tracer = provider.get_tracer("toolscout")
        self.find_unkept, self.make_headers, self._get_span = find_unkept, make_headers, trace.get_current_span
        self.recorder = _Recorder(self)

    def get_context(self) -> SpanContext:
        """Return the ids of the present span, and whether it is kept."""
        return (self.find_unkept() or self._get_span()).get_span_context()

    def end_span(self, name: str, parent: SpanContext, begin: int, end: int, details: dict[str, Any]) -> SpanContext:
        """Send a span that has ended, and return its context. This takes a fraction of the time of `start_span`.

        Args:
            name: of the span.
            parent: context of a span that is kept.
            begin: nanoseconds since 1970.
            end: nanoseconds since 1970.
            details: attributes.
        """
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, TraceFlags

        span_id = self.traces.id_generator.generate_span_id()
        context = SpanContext(parent.trace_id, span_id, False, TraceFlags(TraceFlags.SAMPLED))
        span = ReadableSpan(
            name,
            context,
            parent,
            self.traces.resource,
            details,
            start_time=begin,
            end_time=end,
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(span)
        return context

    def close(self) -> None:
        """Send what is left, and stop."""
        global _active
        if _active is self:
            _active = None
        self.recorder.close()
        self.traces.force_flush(SHUTDOWN_MS)
        self.metrics.force_flush(SHUTDOWN_MS)
        self.traces.shutdown()
        self.metrics.shutdown(SHUTDOWN_MS)


class _Searches(NamedTuple):
    """Searches that ended at an instant (nanoseconds since 1970), below a span."""

    ended: int
    parent: SpanContext
    searches: Sequence[Search]


class _Recorder:
    """Makes the spans and metrics of searches in a thread, at most some times a second. Without searches it sleeps."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._waiting: deque[_Searches] = deque(maxlen=MAX_WAITING_SEARCHES)
        self._has_work, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="toolscout-telemetry", daemon=True)
        self._thread.start()

    def take(self, searches: _Searches) -> None:
        """Take searches. If too many wait, the oldest are dropped."""
        self._waiting.append(searches)
        if not self._has_work.is_set():
            self._has_work.set()

    def close(self) -> None:
        """Record what waits, and end the thread."""
        self._ending.set()
        self._has_work.set()
        self._thread.join(SHUTDOWN_MS / 1000)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._has_work.wait()
            self._ending.wait(RECORD_INTERVAL_S)
            self._has_work.clear()  # before recording: what comes from now on is waited for again
            self._record_waiting()
        self._record_waiting()

    def _record_waiting(self) -> None:
        while self._waiting:
            group = self._waiting.popleft()
            for search in group.searches:
                self._record(search, group.ended, group.parent)

    def _record(self, search: Search, ended: int, parent: SpanContext) -> None:
        telemetry, answer = self._telemetry, search.answer or "none"
        telemetry.answers[answer] += 1
        for step in search.trace:
            telemetry.stage_seconds.record(step.seconds, step.stage)
        if not parent.trace_flags.sampled:
            return
        begin = ended - sum(round(step.seconds * 1e9) for step in search.trace)
        details = {"toolscout.answer": answer, "toolscout.hits": len(search.hits)}
        search_context = telemetry.end_span("search", parent, begin, ended, details)
        for step in search.trace:
            end = begin + round(step.seconds * 1e9)
            telemetry.end_span(f"stage {step.stage}", search_context, begin, end, {})
            begin = end


@contextlib.contextmanager
def start(address: str, service: str, share: float) -> Iterator[None]:
    """Send traces and metrics inside this context; see `Telemetry`. Nothing is done without an address."""
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


class CallOutcome:
    """What became of a call; no success until it is set."""

    ok = False


def stop() -> None:
    """Send what is left, for a process that ends at once. Nothing is done if telemetry is off."""
    if _active is not None:
        _active.close()


def is_on() -> bool:
    """Return whether traces and metrics are sent."""
    return _active is not None


def span(name: str, **attributes: Attribute) -> contextlib.AbstractContextManager[Span | None]:
    """Return a context that records a span below the present one. It gives None if telemetry is off.

    It gives None too in a trace that is not kept.

    Args:
        name: of the span.
        **attributes: of the span, each below `toolscout.`.
    """
    if _active is None or _active.find_unkept() is not None:
        return contextlib.nullcontext()
    return _active.tracer.start_as_current_span(
        name,
        attributes={f"toolscout.{key}": value for key, value in attributes.items()},
        record_exception=False,
        set_status_on_exception=False,
    )


def record_searches(searches: Sequence[Search]) -> None:
    """Record searches that have just ended: a span for each below the present one, and in it one for each stage.

    The durations are those of the trace. The stages are laid one after the other up to now; those of a batch share
    their time. The spans are made in the background, so that the answer does not wait for them. Without a present span
    that is kept only the metrics are recorded.
    """
    if _active is not None:
        _active.recorder.take(_Searches(time.time_ns(), _active.get_context(), searches))


@contextlib.contextmanager
def record_call(server: str, tool: str) -> Iterator[CallOutcome]:
    """Record a call of a tool: a span, and its time with the outcome that is set inside. An error is no success.

    Args:
        server: name of the source, in the catalogue.
        tool: id of the tool.
    """
    outcome, telemetry = CallOutcome(), _active
    if telemetry is None:
        yield outcome
        return
    started = time.perf_counter()
    with span("call tool", server=server, tool=tool) as current:
        try:
            yield outcome
        finally:
            if current is not None:
                current.set_attribute("toolscout.ok", outcome.ok)
                if not outcome.ok:
                    _set_error(current)
            telemetry.call_seconds.record(time.perf_counter() - started, server, outcome.ok)


def _set_error(span: Span) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR)


def record_list(server: str, began: float) -> None:
    """Record that the list of tools of a server was read past the SDK: a span below the present one, up to now.

    Args:
        server: name of the source, in the catalogue.
        began: when the list was asked for, by `time.monotonic`.
    """
    if _active is None:
        return
    if _active.find_unkept() is not None:
        return
    parent = _active.get_context()
    if parent.trace_flags.sampled:
        now = time.time_ns()
        begin = now - round((time.monotonic() - began) * 1e9)
        _active.end_span("list tools", parent, begin, now, {"toolscout.server": server})


def make_headers() -> dict[str, str]:
    """Return headers that carry the present trace to a server or an HTTP API. Empty if telemetry is off."""
    if _active is None:
        return {}
    unkept = _active.find_unkept()
    if unkept is not None:
        return unkept.headers.copy()
    context = _active.get_context()
    return _active.make_headers(context) if context.is_valid else {}


def current_trace() -> tuple[str, str] | None:
    """Return the hexadecimal ids of the present trace and span. None outside of a span, or if telemetry is off."""
    if _active is None:
        return None
    context = _active.get_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


def trace_app(app: ASGIApp) -> ASGIApp:
    """Wrap an ASGI application so that each request is a span, below the trace of its headers. Off: the same object."""
    return app if _active is None else _TracedApp(app)


class _TracedApp:
    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _active is None:
            await self._inner(scope, receive, send)
            return
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE") else "other"
        options: dict[str, Any] = {"context": extract(carrier), "kind": SpanKind.SERVER}
        options |= {"record_exception": False, "set_status_on_exception": False}
        with _active.tracer.start_as_current_span(f"HTTP {method}", **options) as current:
            current.set_attribute("url.path", scope["path"][:200])

            async def send_noted(message: Any) -> None:
                if message["type"] == "http.response.start":
                    current.set_attribute("http.response.status_code", message["status"])
                await send(message)

            await self._inner(scope, receive, send_noted)
