"""What a collector sees of the gateway and the service, and what it never sees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

import traffic
from collector import Collector, open_collector
from homes_in_postgres import name_home
from server.tests.program import Program
from toolscout.errors import ConfigError
from toolscout.home.access import telemetry
from toolscout.scout import Scout

pytest.importorskip("opentelemetry.sdk", reason="needs the extra `otel`")
pytestmark = [pytest.mark.net]
SERVER = Path(__file__).parents[3] / "tests" / "servers" / "traced.py"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CARRY_ON = f"""
import json, sys
from opentelemetry import baggage, trace
from opentelemetry.context import attach
from opentelemetry.propagate import extract
from toolscout.home.access import telemetry
with telemetry.start(sys.argv[1], "test", 1):
    caller = extract({{"traceparent": "00-{TRACE}-{SPAN}-00", "tracestate": "vendor=x"}})
    attach(baggage.set_baggage("customer", "zebra", caller))
    with trace.get_tracer("test").start_as_current_span("request"):
        print(json.dumps(telemetry.make_headers()))
"""  # a process has one provider of traces, and none may be set twice
QUERY = "tell the trace context of my zebra"


def run_gateway(folder: Path, collector: Collector, *, traced: bool = True, **variables: str) -> list[Any]:
    """Search and call through a gateway in a process of its own. Returns the answers.

    Args:
        folder: for its home.
        collector: gets its traces.
        traced: whether the requests belong to a trace of the caller.
        **variables: of the environment.
    """
    from mcp import Client, StdioServerParameters

    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"traced": {"command": sys.executable, "args": [str(SERVER)]}}}))
    words = ["-m", "toolscout", "--home", name_home(folder / "home"), "gateway", "--config", str(config)]
    environment = {**os.environ, "TOOLSCOUT_TELEMETRY": collector.address, **variables}

    async def use() -> list[Any]:
        parameters = StdioServerParameters(command=sys.executable, args=words, env=environment)
        meta: Any = {"traceparent": f"00-{TRACE}-{SPAN}-01"} if traced else None
        async with Client(parameters) as client:
            found = await client.call_tool("search_tools", {"queries": [QUERY]}, meta=meta)
            call = {"id": "traced/trace", "arguments": {}}
            return [found, await client.call_tool("call_tool", call, meta=meta)]

    return anyio.run(use)


def test_one_call_shows_every_stage_and_the_upstream_span_below_the_caller_s_trace(tmp_path: Path) -> None:
    with open_collector() as collector:
        _, called = run_gateway(tmp_path, collector)
    assert {span.trace_id.hex() for span in collector.spans if span.parent_span_id} >= {TRACE}
    searched, answered = collector.find("tools/call search_tools"), collector.find("tools/call call_tool")
    assert searched.parent_span_id.hex() == answered.parent_span_id.hex() == SPAN
    [search] = collector.below(searched)
    stages = [span.name for span in collector.below(search)]
    with Scout(tmp_path / "home", journal=False) as scout:
        told = [f"stage {step.stage}" for step in scout.search(QUERY).trace]
    assert search.name == "search" and len(stages) > 3 and sorted(stages) == sorted(told)
    [call] = [span for span in collector.below(answered) if span.name == "call tool"]
    assert call.trace_id.hex() == TRACE
    [upstream] = [span for span in collector.below(call) if span.name == "MCP send tools/call trace"]
    assert called.content[0].text.endswith(f"{TRACE}-{upstream.span_id.hex()}-01")
    assert collector.services == {"toolscout-gateway"}
    assert collector.count_durations("toolscout.call.duration") == {("traced", True): 1}
    assert collector.count_durations("toolscout.stage.duration") == {
        (name.removeprefix("stage "),): 1 for name in stages
    }
    [answers] = collector.metrics["toolscout.searches"].sum.data_points
    assert answers.as_int == 1
    assert b"zebra" not in collector.bodies


@pytest.mark.parametrize(
    ("variables", "is_kept"),
    [
        ({"TOOLSCOUT_TELEMETRY_SHARE": "0"}, False),
        ({"TOOLSCOUT_TELEMETRY_SHARE": "0", "OTEL_TRACES_SAMPLER": "always_on"}, True),
    ],
)
def test_a_trace_that_begins_here_is_kept_by_share_unless_the_sdk_s_variable_names_a_sampler(
    variables: dict[str, str], is_kept: bool, tmp_path: Path
) -> None:
    with open_collector() as collector:
        _, called = run_gateway(tmp_path, collector, traced=False, **variables)
    assert bool(collector.spans) is is_kept
    assert {"toolscout.searches", "toolscout.stage.duration", "toolscout.call.duration"} <= collector.metrics.keys()
    assert int(called.content[0].text[-2:], 16) & 1 == is_kept, "the server learns whether the trace is kept"


@pytest.mark.parametrize("named", [None, "tracecontext,baggage"])
def test_a_server_gets_the_caller_s_trace_as_it_is_and_baggage_only_if_the_operator_names_it(named: str | None) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "OTEL_PROPAGATORS"}
    variables |= {"OTEL_PROPAGATORS": named} if named else {}
    with open_collector() as collector:
        words = [sys.executable, "-c", CARRY_ON, collector.address]
        answer = subprocess.run(words, env=variables, check=True, capture_output=True, text=True)
    headers = json.loads(answer.stdout)
    assert ("baggage" in headers) is (named is not None)
    assert headers["traceparent"].startswith(f"00-{TRACE}-") and headers["traceparent"].endswith("-00")
    assert headers["tracestate"] == "vendor=x" and not collector.spans


def test_the_service_joins_the_trace_of_its_request_and_sends_its_spans_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Scout(tmp_path / "home") as scout:
        traffic.catalogue(scout)
    with open_collector() as collector:
        monkeypatch.setenv("TOOLSCOUT_TELEMETRY", collector.address)
        monkeypatch.setenv("TOOLSCOUT_LOG_FORMAT", "json")
        program = Program(name_home(tmp_path / "home"))
        program.ask("POST", "/v1/search", {"query": "send a zebra by mail"}, traceparent=f"00-{TRACE}-{SPAN}-01")
        assert program.end(signal.SIGTERM) == 0
    request = next(span for span in collector.spans if span.trace_id.hex() == TRACE and span.name == "HTTP POST")
    assert request.parent_span_id.hex() == SPAN
    assert [span.name for span in collector.below(request)] == ["search"]
    assert b"zebra" not in collector.bodies
    for text in program.said.splitlines():
        assert json.loads(text)["message"]


def test_without_the_setting_nothing_of_opentelemetry_is_imported() -> None:
    check = (
        "import sys; from toolscout.home.access import telemetry\n"
        "with telemetry.start('', 'x', 1), telemetry.record_call('a', 'a/b') as outcome:\n"
        "    telemetry.record_searches([]); outcome.ok = True\n"
        "    assert telemetry.make_headers() == {} and telemetry.current_trace() is None\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize("value", ["collector:4318", "https://me:secret@collector:4318"])
def test_an_address_that_is_none_is_refused_without_showing_a_password(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="telemetry: expected") as refused:
        Scout(tmp_path, telemetry=value)
    assert "secret" not in str(refused.value)


def test_an_application_is_not_wrapped_while_telemetry_is_off() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    assert telemetry.trace_app(app) is app
