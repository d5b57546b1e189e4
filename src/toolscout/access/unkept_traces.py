"""Makes next to nothing for traces that are not kept, which are most: no spans of toolscout, and none of the MCP SDK.

The OpenTelemetry SDK makes a span with a context of its own for each step of such a trace. Here the trace gets its ids
once, when it begins. Each span below is the same object, which records nothing. Traces that are kept are the SDK's.

Import this module only with the extra `otel`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.propagate import get_global_textmap
from opentelemetry.propagators.textmap import Getter, Setter, TextMapPropagator, default_getter, default_setter
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    Tracer,
    TracerProvider,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as SdkProvider

__all__ = ["Propagator", "Provider", "find_unkept", "make_headers"]


def make_headers(context: SpanContext) -> dict[str, str]:
    """Return the headers of W3C Trace Context."""
    headers = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
    if context.trace_state:
        headers["tracestate"] = context.trace_state.to_header()
    return headers


class _UnkeptSpan(NonRecordingSpan):
    """Stands for every span of a trace that is not kept."""

    def __init__(self, context: SpanContext) -> None:
        super().__init__(context)
        self.headers = make_headers(context)


_unkept: Final[ContextVar[_UnkeptSpan | None]] = ContextVar("toolscout-unkept-trace", default=None)
find_unkept: Final = _unkept.get  # the span that stands for the present trace, if the trace is not kept


class Provider(TracerProvider):
    """Gives tracers that ask the SDK only for spans that may be kept."""

    def __init__(self, sdk: SdkProvider, share: float | None) -> None:
        """Decide for the tracers of the SDK.

        Args:
            sdk: makes the spans that are kept.
            share: of the traces that begin here, how many are kept. None: the SDK decides about every trace.
        """
        self._sdk, self._share = sdk, share

    def get_tracer(self, *arguments: Any, **named: Any) -> Tracer:
        """Return a tracer for a library."""
        tracer = self._sdk.get_tracer(*arguments, **named)
        return tracer if self._share is None else _Tracer(tracer, self._share)


class _Tracer(Tracer):
    def __init__(self, sdk: Tracer, share: float) -> None:
        self._sdk, self._share = sdk, share

    def start_span(self, name: str, context: Context | None = None, *arguments: Any, **named: Any) -> Span:
        return self._find_unkept(context) or self._sdk.start_span(name, context, *arguments, **named)

    def start_as_current_span(  # type: ignore[override]  # the SDK's is a context manager that decorates too
        self, name: str, context: Context | None = None, *arguments: Any, **named: Any
    ) -> AbstractContextManager[Span]:
        present = _unkept.get()
        span = self._find_unkept(context)
        if span is None:
            started = self._sdk.start_as_current_span(name, context, *arguments, **named)
            return started if present is None else _leave_unkept(started)
        return span if span is present else _Entry(span)

    def _find_unkept(self, context: Context | None) -> _UnkeptSpan | None:
        """Return the span that stands for a trace that is not kept. None: it is kept."""
        present = _unkept.get()
        if present is not None and context is None:
            return present
        parent = get_current_span(context).get_span_context()
        if parent.is_valid:
            return None if parent.trace_flags.sampled else _UnkeptSpan(parent)
        if random.random() < self._share:
            return None
        return _UnkeptSpan(SpanContext(random.getrandbits(128) or 1, random.getrandbits(64) or 1, False))


class _Entry(AbstractContextManager[Span]):
    """A trace that is not kept is the present one inside this context."""

    __slots__ = ("_span", "_token")
    _token: Token[_UnkeptSpan | None]

    def __init__(self, span: _UnkeptSpan) -> None:
        self._span = span

    def __enter__(self) -> Span:
        self._token = _unkept.set(self._span)
        return self._span

    def __exit__(self, *_: object) -> None:
        _unkept.reset(self._token)


@contextmanager
def _leave_unkept(started: AbstractContextManager[Span]) -> Iterator[Span]:
    """Enter a span that is kept, for a request that arrives inside a trace that is not."""
    token = _unkept.set(None)
    try:
        with started as span:
            yield span
    finally:
        _unkept.reset(token)


class Propagator(TextMapPropagator):
    """Carries traces by W3C Trace Context, or as OTEL_PROPAGATORS says. Baggage of a caller does not reach servers."""

    def __init__(self) -> None:
        """Keep the propagators that the variable names."""
        named = os.environ.get("OTEL_PROPAGATORS")
        self._inner = get_global_textmap() if named else TraceContextTextMapPropagator()
        self._is_standard = not named

    def extract(self, carrier: Any, context: Context | None = None, getter: Getter[Any] = default_getter) -> Context:
        """Read the trace of a caller."""
        return self._inner.extract(carrier, context, getter)

    def inject(self, carrier: Any, context: Context | None = None, setter: Setter[Any] = default_setter) -> None:
        """Write the present trace, or that of a context."""
        unkept = _unkept.get() if context is None else None
        if unkept is None:
            self._inner.inject(carrier, context, setter)
        elif self._is_standard:
            for name, value in unkept.headers.items():
                setter.set(carrier, name, value)
        else:
            self._inner.inject(carrier, set_span_in_context(unkept), setter)

    @property
    def fields(self) -> set[str]:
        """The names of the fields that `inject` writes."""
        return self._inner.fields
