"""Traces that are not kept cost next to nothing, and what they carry on is as it would be with the SDK alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra `otel`")

from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.metrics.export import AggregationTemporality
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

from toolscout.access import durations
from toolscout.access.durations import Durations
from toolscout.access.unkept_traces import Propagator, Provider, find_unkept

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Sdk:
    """An SDK whose finished spans the test reads."""

    def __init__(self) -> None:
        self.provider, self._spans = TracerProvider(ParentBased(ALWAYS_ON)), InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._spans))

    def tracer(self, share: float | None) -> Any:
        return Provider(self.provider, share).get_tracer("test")

    def finished(self) -> dict[str, Any]:
        return {span.name: span for span in self._spans.get_finished_spans()}


@pytest.fixture
def sdk() -> Iterator[Sdk]:
    sdk = Sdk()
    yield sdk
    sdk.provider.shutdown()


def inject() -> dict[str, str]:
    carrier: dict[str, str] = {}
    Propagator().inject(carrier)
    return carrier


def extract(flags: str, **headers: str) -> Any:
    return Propagator().extract({"traceparent": f"00-{TRACE}-{SPAN}-{flags}", **headers})


def test_a_trace_that_is_not_kept_makes_no_span_and_is_carried_on_with_one_id(sdk: Sdk) -> None:
    tracer = sdk.tracer(0)
    with tracer.start_as_current_span("request") as request:
        began = inject()
        with tracer.start_as_current_span("send", attributes={"a": 1}) as send:
            assert send is request and inject() == began
        with tracer.start_span("other") as other:
            assert other is request
        assert find_unkept() is request
    assert began["traceparent"].endswith("-00") and find_unkept() is None and not inject()
    with tracer.start_as_current_span("next"):
        assert inject()["traceparent"][3:35] != began["traceparent"][3:35], "each trace has ids of its own"
    assert sdk.finished() == {}


def test_a_kept_trace_inside_of_one_that_is_not_is_kept_whole(sdk: Sdk) -> None:
    """A stream of HTTP may carry messages of several traces."""
    tracer = sdk.tracer(0)
    with tracer.start_as_current_span("stream") as stream:
        with tracer.start_as_current_span("message", extract("01")), tracer.start_as_current_span("send"):
            carried = inject()["traceparent"]
        assert find_unkept() is stream
    spans = sdk.finished()
    assert set(spans) == {"message", "send"}
    assert format(spans["message"].parent.span_id, "016x") == SPAN
    assert carried == f"00-{TRACE}-{spans['send'].context.span_id:016x}-01"


def test_a_message_without_a_trace_in_a_kept_one_is_not_cut_off(sdk: Sdk) -> None:
    tracer = sdk.tracer(1)
    with tracer.start_as_current_span("request"), tracer.start_as_current_span("send"):
        assert find_unkept() is None
    spans = sdk.finished()
    assert spans["send"].parent.span_id == spans["request"].context.span_id


def test_a_caller_s_decision_not_to_keep_a_trace_is_carried_on_with_its_state(sdk: Sdk) -> None:
    with sdk.tracer(1).start_as_current_span("request", extract("00", tracestate="vendor=x")):
        assert inject() == {"traceparent": f"00-{TRACE}-{SPAN}-00", "tracestate": "vendor=x"}
    assert sdk.finished() == {}


@pytest.mark.parametrize("named", [None, "tracecontext,baggage"])
def test_baggage_of_a_caller_reaches_servers_only_if_the_operator_names_it(
    named: str | None, sdk: Sdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_PROPAGATORS", named) if named else monkeypatch.delenv("OTEL_PROPAGATORS", raising=False)
    token = attach(baggage.set_baggage("customer", "zebra"))
    try:
        for share in (0, 1):
            with sdk.tracer(share).start_as_current_span("request"):
                carried = inject()
            assert carried["traceparent"].endswith(f"-0{share}") or share
            assert ("baggage" in carried) is (named is not None)
    finally:
        detach(token)


def test_the_sampler_of_the_sdk_decides_alone_where_one_is_named(sdk: Sdk) -> None:
    with sdk.tracer(None).start_as_current_span("request", extract("00")) as request:
        assert find_unkept() is None and not request.is_recording()


def test_durations_fall_into_buckets_and_begin_anew_where_differences_are_sent() -> None:
    calls = Durations("calls", "server", "ok")
    for seconds in (0.0005, 0.001, 0.03, 100.0):
        calls.record(seconds, "a", True)
    calls.record(0.2, "a", False)
    metric = calls.collect(AggregationTemporality.CUMULATIVE)
    assert metric is not None
    first, second = metric.data.data_points
    assert first.attributes == {"server": "a", "ok": True} and second.attributes == {"server": "a", "ok": False}
    assert [first.bucket_counts[place] for place in (0, 5, 13)] == [2, 1, 1] and sum(first.bucket_counts) == 4
    assert (first.count, first.min, first.max) == (4, 0.0005, 100.0) and first.sum == pytest.approx(100.0315)
    assert calls.collect(AggregationTemporality.DELTA) is not None
    assert calls.collect(AggregationTemporality.DELTA) is None


def test_durations_of_too_many_series_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "MAX_SERIES", 2)
    calls = Durations("calls", "server")
    for server in "abcda":
        calls.record(0.1, server)
    metric = calls.collect(AggregationTemporality.CUMULATIVE)
    assert metric is not None
    counts = {point.attributes.get("server"): point.count for point in metric.data.data_points}
    assert counts == {"a": 2, "b": 1, None: 2}
