"""Everything that the OpenAPI document allows, and much that it does not: no fault, no leak, answers as described.

Half of the requests are aimed: their ids are those of tools, searches and models that are there, for this caller or
for others, over a home that has learned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from server.tests.conftest import KEYS, POLICY
from toolscout.home.catalogue.store import Origin
from toolscout.home.models import champion
from toolscout.scout import Scout
from toolscout.testing import toy_tools
from toolscout.trust.policy import Policies, hashed_key
from toolscout.types import Tool
from toolscout_server.routes import JSON_LINES, ROUTES

FULL = os.environ.get("TOOLSCOUT_FULL") == "1"
EXAMPLES = 300 if FULL else int(os.environ.get("TOOLSCOUT_FUZZ", "8"))
CALLERS = {**KEYS, "pat": "tsk_of_pat"}
PAT = f'[[caller]]\nname = "pat"\nkey = "{hashed_key(CALLERS["pat"])}"\nallow = ["mail/**"]\noperator = true\n'
# what an operator from whom the policy hides tools may not do
FOR_MANAGERS = {"/v1/sources/add", "/v1/sources/sync", "/v1/sources/enable", "/v1/approvals", "/v1/selftest"}
AIMS = ("right", "mixed", "random", "random")  # the simplest is tried first
# where an answer may repeat what it was asked, in words too; events repeat what others asked
ECHOED = ("query", "error", "reason", "missing", "causes")


@dataclasses.dataclass
class World:
    """What is there: of tools, those that the caller may see and those that are hidden; searches; the model."""

    seen: list[Tool]
    hidden: list[Tool]
    own: str
    theirs: str
    model: str

    def values(self, right: bool) -> dict[str, Any]:
        """For each field that names something, the strategy of what it may name."""
        from hypothesis import strategies as st

        tools = self.seen if right else self.seen + self.hidden
        ids = st.sampled_from([tool.id for tool in tools])
        words = [(tool.description, tool.id, f"select:{tool.id}") for tool in tools]
        queries = st.sampled_from([text for texts in words for text in texts])
        models = st.sampled_from([self.model] if right else [self.model, self.model.upper(), f"../models/{self.model}"])
        call = st.builds(
            dict, event=st.just("call"), at=st.just("2026-01-01"), caller=st.just("x"), tool=ids, ok=st.booleans()
        )
        return {
            "tool": ids,
            "id": ids,
            "search_id": st.sampled_from([self.own] if right else [self.own, self.theirs, "none"]),
            "good": st.lists(ids, max_size=3),
            "bad": st.lists(ids, max_size=3),
            "within": st.sampled_from(sorted({tool.source for tool in tools})),
            "source": st.sampled_from(sorted({tool.source for tool in tools})),
            "sources": st.lists(st.sampled_from(sorted({tool.source for tool in tools})), max_size=2),
            "enabled": st.just(True),  # what is asked later should find something
            "withdrawn": st.lists(ids, max_size=3),
            "most": st.just(10),
            "locator": st.just(""),
            "tools": st.just([{"name": "bell", "description": "Rings."}]),
            "name": st.just("tower"),
            "text": queries,
            "query": queries,
            "queries": st.lists(queries, min_size=1, max_size=4),
            "caller": st.sampled_from(sorted(CALLERS)),
            "model": models,
            "champion": models,
            JSON_LINES: st.lists(call, max_size=3).map(lambda found: b"\n".join(map(msgspec.json.encode, found))),
        }

    def aims(self, fields: tuple[msgspec.inspect.Field, ...], lines: bool) -> Any:
        """What to write over a request: nothing in half of the cases, else fields that name something."""
        from hypothesis import strategies as st

        def aim(how: str) -> Any:
            if how == "random":
                return st.none()
            values = self.values(how == "right")
            if lines:
                return values[JSON_LINES]
            together = ("locator", "tools", "name")  # one source to add
            named = {
                field.encode_name: field.required or field.encode_name in together
                for field in fields
                if field.encode_name in values
            }
            return st.fixed_dictionaries(
                {name: values[name] for name, required in named.items() if required},
                optional={name: values[name] for name, required in named.items() if not required},
            )

        return st.sampled_from(AIMS).flatmap(aim)


def as_key(name: str) -> dict[str, str]:
    """The headers of a caller."""
    return {"authorization": f"Bearer {CALLERS[name]}", "host": "localhost"}


def leaks(world: World, sent: str, told: Any, key: str = "") -> Iterator[str]:
    """Every place of an answer where a hidden tool shows: id, description, name, source, if none visible has it."""
    if isinstance(told, dict):
        for name, value in told.items():
            yield from leaks(world, sent, name)
            yield from leaks(world, sent, value, name)
    elif isinstance(told, list):
        for value in told:
            yield from leaks(world, sent, value, key)
    elif isinstance(told, str):
        text, echo = unquote(told).casefold(), sent if key in ECHOED else ""
        common = " ".join(f"{tool.id} {tool.description}" for tool in world.seen).casefold()
        for tool in world.hidden:
            for mark in (tool.id, tool.description, tool.name):
                if mark.casefold() in text and mark.casefold() not in common and mark.casefold() not in echo:
                    yield f"{key}: {told}"
        if told not in echo and told in {tool.source for tool in world.hidden} - {tool.source for tool in world.seen}:
            yield f"{key}: {told}"


def parts(answer: Any) -> list[Any]:
    """What an answer says."""
    if answer.headers["content-type"][0] == "application/json":
        return [json.loads(answer.text)]
    return [json.loads(line) if line.startswith("{") else line for line in answer.text.splitlines()]


def fuzz(operation: Any, mode: Any, caller: str, world: World) -> set[int]:
    """Ask for one operation in many ways. Returns the statuses that came."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st
    from hypothesis.errors import Unsatisfiable
    from schemathesis import GenerationMode

    headers = as_key(caller)
    route = next(each for each in ROUTES if (each.path, each.method.lower()) == (operation.path, operation.method))
    fields = msgspec.inspect.type_info(route.request_type).fields  # type: ignore[attr-defined]
    aims = world.aims(fields, route.body_media == JSON_LINES) if mode is GenerationMode.POSITIVE else st.none()
    others = (
        route.operators_only and caller != "ann"
    )  # the journal tells an operator what others asked, whatever it was
    seen: set[int] = set()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), aim=aims)
    def ask(case: Any, aim: Any) -> None:
        if isinstance(aim, bytes):
            case.body = aim
        elif aim and route.method == "GET":
            case.query = {**(case.query or {}), **aim}
        elif aim:
            case.body = {**case.body, **aim}
        answer = case.call(headers=headers)
        seen.add(answer.status_code)
        assert answer.status_code < 500, answer.text
        case.validate_response(answer, headers=headers, checks=checks(answer.status_code, mode))
        sent = f"{case.query} {case.body!r}".casefold()
        for told in parts(answer):
            if others and isinstance(told, dict):
                told = without_queries(told)
            assert not list(leaks(world, sent, told)), answer.text

    with contextlib.suppress(Unsatisfiable):  # nothing can be wrong about an operation that takes nothing
        ask()
    return seen


def without_queries(told: dict[str, Any]) -> dict[str, Any]:
    """Events without what was asked: these are words of people, not of tools."""
    plain = {name: value for name, value in told.items() if name != "query"}
    for key in ("events", "queries"):
        if isinstance(entries := plain.get(key), list) and all(isinstance(each, dict) for each in entries):
            plain[key] = [without_queries(each) for each in entries]
    return plain


@pytest.fixture
def world(start: Any, taught: Scout, tmp_path: Any) -> Any:
    """A service over a home that has learned and holds the toy tools too; and what is there for a caller."""
    tools = toy_tools()
    for source in sorted({tool.source for tool in tools}):
        held = [tool for tool in tools if tool.source == source]
        taught.store.put_source(Origin(f"toy:{source}", "objects"), source, kind="objects", tools=held)
    (tmp_path / "policy.toml").write_text(POLICY + PAT)
    policies = Policies.load(tmp_path / "policy.toml")
    client = start(scout=taught, policies=policies)
    until = time.monotonic() + 30
    while client.get("/ready").status_code != 200 and time.monotonic() < until:
        time.sleep(0.01)
    tools += taught.store.tools([id for id, _ in taught.store.page("office")])

    def of(caller: str) -> tuple[Any, World]:
        known = next(each for each in policies.callers if each.name == caller)
        searches = {
            name: client.post("/v1/search", json={"query": "mail"}, headers=as_key(name)).json()["search_id"]
            for name in (caller, "eve")
        }
        seen, hidden = ([tool for tool in tools if known.sees(tool) is wanted] for wanted in (True, False))
        [entry] = champion.history(taught.settings.place)
        return client, World(seen, hidden, searches[caller], searches["eve"], entry.model)

    return of


@pytest.mark.slow
@pytest.mark.timeout(1800)
# pat is an operator who may see a part of the tools: what the others may, and may not, is asked at full size
@pytest.mark.parametrize(
    "caller", [pytest.param("ann", marks=pytest.mark.full), pytest.param("bob", marks=pytest.mark.full), "pat"]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fuzzing_finds_no_fault_and_no_leak(world: Any, taught: Scout, caller: str) -> None:
    import schemathesis
    from schemathesis import GenerationMode

    @schemathesis.serializer("application/x-ndjson")
    def lines(_: Any, value: Any) -> bytes:
        return value if isinstance(value, bytes) else json.dumps(value).encode(errors="replace")

    client, there = world(caller)
    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app, headers={"host": "localhost"})
    seen: dict[str, set[int]] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        champion.promote(taught.settings.place, there.model, "again, whatever was asked before")
        for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:
            seen.setdefault(operation.path, set()).update(fuzz(operation, mode, caller, there))
    me = client.get("/v1/me", headers=as_key(caller)).json()
    assert set(seen) == {route.path for route in ROUTES} and seen["/v1/search"] >= {200, 422}
    unanswered = [route.path for route in ROUTES if 200 not in seen[route.path]]
    forbidden = [
        route.path
        for route in ROUTES
        if (route.operators_only and not me["operator"]) or (route.path in FOR_MANAGERS and not me["manages"])
    ]
    assert unanswered == forbidden
    assert all(seen[path] & {403} for path in unanswered)


def test_a_leak_would_be_found() -> None:
    tool, other = toy_tools()[0], toy_tools()[1]
    there = World([other], [tool], "", "", "")
    for told in (
        {"tool": tool.id},
        {"hits": [{"description": tool.description}]},
        {"causes": [f"{tool.id.upper()} stands before it"]},
        {"nodes": [{"key": tool.id.replace("/", "%2F")}]},
        {tool.id: 1},
        {"error": f"expected a tool, found {tool.id!r}"},
    ):
        assert list(leaks(there, "", told)), told
    assert not list(leaks(there, tool.id, {"error": f"expected a tool, found {tool.id!r}", "tool": other.id}))


def checks(status: int, mode: Any) -> list[Any]:
    """What holds for each answer to a request that was made to be right, or wrong."""
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks as described

    found = [
        not_a_server_error,
        described.status_code_conformance,
        described.content_type_conformance,
        described.response_schema_conformance,
    ]
    if mode is GenerationMode.NEGATIVE and status != 413:  # the check takes "too long to be read" for no refusal
        found.append(described.negative_data_rejection)
    return found
