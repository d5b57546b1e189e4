"""What only another tenant has is answered as what nobody has: by the service, the gateway and the command line.

The other tenant has `quokka` in its names and `pelican` in its texts. A request names something of it, or in its place
what is nowhere. The two answers differ in that name alone, and `pelican` is in neither of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from conftest import TEST_HOME
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from gateway.tests.test_results import large
from postgres_server import PostgresServer
from tests_cli import run
from together.test_tenants import as_caller, name_home, write_policy
from toolscout.home.access.live_policy import put_policy
from toolscout.home.access.tenants import TenantKeys
from toolscout.home.catalogue.store import Origin
from toolscout.home.database import open_home
from toolscout.location import Home, place_tenant
from toolscout.scout import Scout
from toolscout.types import Tool
from toolscout_gateway import Options
from toolscout_gateway.access.http import serve_tenants as serve_gateways
from toolscout_gateway.results import HANDLE
from toolscout_server.app import serve_tenants
from toolscout_server.routes import JSON, ROUTES, Route
from toolscout_server.service import Service

pytestmark = [
    pytest.mark.net,
    pytest.mark.slow,
    # The threads of a pool of connections draw pauses at random, also while hypothesis draws.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module"),
]
THEIRS, NOBODYS, MARK = "quokka", "quokke", "pelican"
CHANGING = re.compile(r"[0-9a-f]{32}|\d+(\.\d+)?(e-?\d+)?")  # from one answer to the next
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
Pair = tuple[Any, Any]  # a value that the other tenant has, and one of the same form that nobody has


@dataclasses.dataclass
class Two:
    """A home of two tenants, what each names differently, and the clients of the first at the faces."""

    home: Home
    theirs: Scout
    service: Any
    gateway: Any
    search: Pair
    result: Pair

    def ask_service(self, route: Route, fields: dict[str, Any]) -> str:
        """The status and the body of an answer of the service."""
        how = {"params" if route.method == "GET" else "json": fields}
        answer = self.service.request(route.method, route.path, headers=as_caller("a"), **how)
        assert answer.status_code not in (401, 403, 429, 500), answer.text
        return f"{answer.status_code} {answer.text}"

    def ask_gateway(self, tool: str, arguments: dict[str, Any]) -> str:
        """The answer of a tool of the gateway."""
        return json.dumps(call_gateway(self.gateway, "a", "tools/call", {"name": tool, "arguments": arguments}))

    def read_theirs(self) -> tuple[Any, ...]:
        """What the other tenant has."""
        sources = [(source.name, source.state, source.tools) for source in self.theirs.sources()]
        return sources, self.theirs.store.generation(), [event["event"] for event in self.theirs.journal.read()]


def call_gateway(client: Any, tenant: str, method: str, params: Any) -> Any:
    """Send one message in the session of a tenant, and return what is answered."""
    headers = as_caller(tenant, accept="application/json, text/event-stream", **client.sessions.get(tenant, {}))
    answer = client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, headers=headers)
    if method == "initialize":
        client.sessions[tenant] = {"mcp-session-id": answer.headers["mcp-session-id"]}
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return json.loads(lines[-1] if lines else answer.text)


@pytest.fixture(scope="module", params=["postgres"] if TEST_HOME == "postgres" else ["folder", "postgres"])
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """Tenant `a` asks. Tenant `b` has a server, tools, a disabled source, a search, a call and a stored result."""
    folder = tmp_path_factory.mktemp("two")
    home: Home = folder / "home"
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        home = server.new_home()
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        for name in ("a", "b"):
            open_home(home).add_tenant(name)
            put_policy(place_tenant(home, name), write_policy(folder, name))
        with Scout(name_home(home), tenant="a", recipe="bm25") as scout:
            put_tools(scout, "crm", "Finds the customers")
        with Scout(name_home(home), tenant="b", recipe="bm25") as scout:
            put_tools(scout, THEIRS, f"Finds the {MARK}")
            put_tools(scout, f"{THEIRS}-off", f"Is the {MARK}")
            scout.store.set_enabled(f"{THEIRS}-off", False)
            search = scout.search(f"where is the {MARK}").search_id
            assert search is not None
            scout.called(f"{THEIRS}/find", ok=True, search_id=search)
            (folder / "mcp.json").write_text(json.dumps({"mcpServers": {f"{THEIRS}-server": large()}}))
            scout.add(folder / "mcp.json")
        root = stack.enter_context(Scout(name_home(home), recipe="bm25", gateway_rate=0.0, gateway_result_budget=2_000))
        keys = TenantKeys(home, lambda text: None)
        service = serve_tenants(root, keys, Service, ["localhost"])
        gateway = serve_gateways(root, keys, Options(), ["localhost"], "http://localhost")
        clients = [stack.enter_context(open_client(application)) for application in (service, gateway)]
        clients[1].sessions = {}
        for name in ("a", "b"):
            call_gateway(clients[1], name, "initialize", HELLO)
        long = {"name": "call_tool", "arguments": {"id": f"{THEIRS}-server/lines", "arguments": {"size": 60_000}}}
        answer = call_gateway(clients[1], "b", "tools/call", long)
        handle = answer["result"]["_meta"][HANDLE]["handle"]
        theirs = stack.enter_context(Scout(name_home(home), tenant="b", recipe="bm25"))
        yield Two(home, theirs, *clients, (search, search[::-1]), (handle, handle[::-1]))


@contextlib.contextmanager
def open_client(application: Any) -> Iterator[Any]:
    outer = Starlette(routes=[Mount("/", application)], lifespan=lambda app: application.running())
    with TestClient(outer, base_url="http://localhost") as client:
        yield client


def put_tools(scout: Scout, source: str, text: str) -> None:
    tools = [Tool(id=f"{source}/{name}", name=name, description=f"{text} {name}.") for name in ("find", "send")]
    scout.store.put_source(Origin(source, "objects"), source, kind="objects", tools=tools)


def name_values(two: Two, field: str, nested: str = "") -> st.SearchStrategy[Pair]:
    """What a field of a request may name."""
    both = (THEIRS, NOBODYS)
    ids = st.sampled_from(["{}/find", "{}-off/send", "{}-server/lines"]).map(lambda form: pair_up(form, both))
    words = st.sampled_from(["select:{}/find", "`{}/send`", "please find {} now", "{}", "SELECT:{}-off/find"])
    sources = st.sampled_from(["{}", "{}-off", "{}-server"]).map(lambda form: pair_up(form, both))
    if field in ("query", "text"):
        return words.map(lambda form: pair_up(form, both))
    if field in ("source", "parent", "within", "model", "champion"):
        return sources
    return {
        "search_id": st.just(two.search),
        "handle": st.just(two.result),
        "queries": words.map(lambda form: tuple([each] for each in pair_up(form, both))),
        "sources": sources.map(lambda pair: tuple([each] for each in pair)),
        "approvals": ids.map(lambda pair: tuple([{"id": each, "fingerprint": "x"}] for each in pair)),
        "enabled": st.booleans().map(lambda value: (value, value)),
        "ok": st.just((True, True)),
        "arguments": st.just(({"size": 10}, {"size": 10})),
        **dict.fromkeys(("id", "tool"), ids),
        **dict.fromkeys(("good", "bad", "ids"), ids.map(lambda pair: tuple([each] for each in pair))),
    }.get(field, st.nothing())


def pair_up(form: str, names: tuple[str, str]) -> Pair:
    return form.format(names[0]), form.format(names[1])


def draw_fields(data: st.DataObject, two: Two, names: dict[str, bool]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a request about the other tenant, and the same about nobody. `names`: field → whether it is required."""
    drawn: dict[str, Pair] = {}
    for name, required in names.items():
        values = name_values(two, name)
        if not values.is_empty and (required or data.draw(st.booleans(), label=name)):
            drawn[name] = data.draw(values, label=name)
        else:
            assert not required, f"{name}: name_values does not know what it may name"
    return {name: pair[0] for name, pair in drawn.items()}, {name: pair[1] for name, pair in drawn.items()}


def check_same(two: Two, theirs: str, nobodys: str) -> None:
    """Check that two answers are the same but for the name that was asked for, and hold nothing of the other tenant."""
    for theirs_value, nobodys_value in ((THEIRS, NOBODYS), two.search, two.result):
        theirs = theirs.replace(theirs_value, nobodys_value)
    assert MARK not in theirs and MARK not in nobodys
    assert CHANGING.sub("#", theirs) == CHANGING.sub("#", nobodys)


SLOW = ("/v1/selftest", "/v1/lint")  # they embed, and name nothing
GROWING = ("/v1/journal", "/metrics")  # tell of earlier requests, so that two answers may differ


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_service_says_nothing_of_what_another_tenant_has(two: Two, data: st.DataObject) -> None:
    before = two.read_theirs()
    routes = [route for route in ROUTES if route.body_media == JSON and route.path not in SLOW]
    route = data.draw(st.sampled_from(routes), label="route")
    fields = msgspec.inspect.type_info(route.request_type).fields  # type: ignore[attr-defined]
    theirs, nobodys = draw_fields(data, two, {field.encode_name: field.required for field in fields})
    answers = [two.ask_service(route, asked) for asked in (theirs, nobodys)]
    if route.path.startswith(GROWING):
        assert MARK not in answers[0]
    else:
        check_same(two, *answers)
    assert two.read_theirs() == before


GATEWAY_TOOLS = {
    "search_tools": {"queries": True},
    "describe_tools": {"ids": True},
    "call_tool": {"id": True, "arguments": True, "search_id": False},
    "read_result": {"handle": True},
}


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_gateway_says_nothing_of_what_another_tenant_has(two: Two, data: st.DataObject) -> None:
    tool = data.draw(st.sampled_from(sorted(GATEWAY_TOOLS)), label="tool")
    theirs, nobodys = draw_fields(data, two, GATEWAY_TOOLS[tool])
    check_same(two, *(two.ask_gateway(tool, asked) for asked in (theirs, nobodys)))


def test_the_gateway_lists_its_tools_and_reads_its_results_for_the_tenant_who_has_them(two: Two) -> None:
    listed = call_gateway(two.gateway, "a", "tools/list", {})["result"]["tools"]
    assert {tool["name"] for tool in listed} == set(GATEWAY_TOOLS)
    own = {"name": "read_result", "arguments": {"handle": two.result[0]}}
    assert "line 1:" in json.dumps(call_gateway(two.gateway, "b", "tools/call", own))
    assert "line 1:" not in json.dumps(call_gateway(two.gateway, "a", "tools/call", own))


COMMANDS = [  # with the status for what the tenant has itself
    ("show {}/find", 0),
    ("list {}", 0),
    ("search select:{}/find", 0),
    ("why find {}/find", 0),
    ("hide {}/find", 0),
    ("enable {}", 0),
    ("sync {}", 0),
    ("journal export -", 0),
    ("models", 0),
    ("policy", 0),
    ("doctor", 0),
    ("remove {}", 0),
]


@pytest.mark.parametrize(("words", "status"), COMMANDS, ids=[words.split()[0] for words, _ in COMMANDS])
def test_the_command_line_says_nothing_of_what_another_tenant_has(two: Two, words: str, status: int) -> None:
    before, command = two.read_theirs(), ["--home", name_home(two.home), "--tenant", "a"]
    done = [run(*command, *words.format(name).split()) for name in (THEIRS, NOBODYS)]
    if "{}" in words:
        check_same(two, *(f"{each.exit_code} {each.output}" for each in done))
    assert MARK not in done[0].output
    assert two.read_theirs() == before
    assert run(*command, *words.format("crm").split()).exit_code == status, "the command itself is right"
