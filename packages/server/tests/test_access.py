"""Who comes in, from where, and that nobody hears of a tool that the policy hides."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from server.tests.conftest import KEYS, POLICY, as_caller
from toolscout.home.access.http import Buckets
from toolscout.home.access.live_policy import LivePolicies
from toolscout.home.catalogue.store import Catalogue, Origin, Store
from toolscout.scout import Scout
from toolscout.testing import TOY_TOOLS
from toolscout.trust.policy import Caller, Policies, Rules, hashed_key
from toolscout.types import Hints, Tool
from toolscout_server import Limits, Service, app
from toolscout_server.batches import Batches
from toolscout_server.command import DEFAULT_QUERIES_PER_S, choose_limits
from toolscout_server.routes import ROUTES
from toolscout_server.view import CatalogueViews, RowFilter

BOBS = {"mail/search", "weather/get_forecast", "weather/getAirQuality"}
HIDDEN = sorted(set(TOY_TOOLS) - BOBS)


def test_without_a_valid_key_only_health_the_page_and_the_document_answer(guarded: Any) -> None:
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"x-api-key": "x"},
        {"authorization": f"Basic {KEYS['ann']}"},
    ):
        for route in ROUTES:
            answer = guarded.request(route.method, route.path, headers=headers)
            assert (answer.status_code == 401) is not route.open, route.path
            if not route.open:
                assert answer.headers["www-authenticate"].startswith('Bearer realm="toolscout"')
                assert set(answer.json()) == {"error"}
        for path in ("/", "/openapi.json"):
            assert guarded.get(path, headers=headers).status_code == 200
    assert guarded.get("/v1/me", headers={"x-api-key": KEYS["bob"]}).json()["caller"] == "bob"


def test_what_a_gateway_sends_for_an_agent_is_refused_everywhere(guarded: Any, start: Any) -> None:
    for client, key in ((guarded, as_caller("ann")), (start(), {})):
        for path in (*(route.path for route in ROUTES if route.method == "GET"), "/", "/openapi.json"):
            answer = client.get(path, headers={**key, "X-Toolscout-Gateway": "1"})
            assert (answer.status_code, set(answer.json())) == (403, {"error"}), path
            assert "toolscout gateway" in answer.json()["error"]


def test_what_belongs_to_all_is_for_operators(guarded: Any) -> None:
    for route in ROUTES:
        if route.operators_only:
            content = {"headers": {**as_caller("bob"), "content-type": route.body_media}, "content": b""}
            if route.method == "GET":
                content = {"headers": as_caller("bob")}
            answer = guarded.request(route.method, route.path, **content)
            assert answer.status_code == 403 and "operator" in answer.json()["error"], route.path
            if route.method == "GET":
                assert guarded.get(route.path, headers=as_caller("ann")).status_code == 200, route.path


def everything(client: Any, headers: dict[str, str]) -> str:
    """All that a caller can get out of the service, as one text."""
    queries = [*TOY_TOOLS, *(name.partition("/")[2] for name in TOY_TOOLS), *(text for text, *_ in TOY_TOOLS.values())]
    queries += [f"select:{name.partition('/')[2]}" for name in TOY_TOOLS]
    texts = [client.post("/v1/search/batch", json={"queries": queries, "k": 50, "trace": True}, headers=headers).text]
    for path in ("/v1/me", "/v1/sources", "/v1/tree", "/v1/tools"):
        texts.append(client.get(path, headers=headers).text)
    for name in TOY_TOOLS:
        source = name.partition("/")[0]
        texts.append(client.get("/v1/tool", params={"id": name}, headers=headers).text)
        texts.append(client.get("/v1/tools", params={"within": source}, headers=headers).text)
        texts.append(client.get("/v1/tree", params={"within": source}, headers=headers).text)
        body = {"query": "send mail in the rain", "tool": name, "cures": True}
        texts.append(client.post("/v1/why", json=body, headers=headers).text)
    return "\n".join(texts)


def test_a_caller_gets_nothing_of_what_the_policy_hides(guarded: Any) -> None:
    told = everything(guarded, as_caller("bob"))
    for name in HIDDEN:
        assert f'"description":"{TOY_TOOLS[name][0]}"' not in told
        assert f'"id":"{name}"' not in told and f'["{name}"' not in told
    for name in BOBS:
        assert f'"id":"{name}"' in told
    me = guarded.get("/v1/me", headers=as_caller("bob")).json()
    assert me["tools"] == len(BOBS) and not me["operator"]
    nodes = guarded.get("/v1/tree", headers=as_caller("bob")).json()["nodes"]
    assert {node["name"]: node["tools"] for node in nodes} == {"mail": 1, "weather": 2}


def test_who_may_see_nothing_gets_nothing(guarded: Any) -> None:
    told = everything(guarded, as_caller("eve"))
    assert '"id":' not in told and '"description":' not in told
    assert guarded.get("/v1/tree", headers=as_caller("eve")).json()["nodes"] == []


def test_a_hidden_tool_is_answered_as_one_that_does_not_exist(guarded: Any) -> None:
    search_id = guarded.post("/v1/search", json={"query": "mail"}, headers=as_caller("bob")).json()["search_id"]
    for hidden, missing in (("mail/send_email", "mail/send_emaix"), ("files/copy", "files/copx")):
        answers = []
        for id in (hidden, missing):
            head = as_caller("bob")
            told = [
                guarded.get("/v1/tool", params={"id": id}, headers=head),
                guarded.post("/v1/why", json={"query": "mail", "tool": id}, headers=head),
                guarded.post("/v1/calls", json={"tool": id, "ok": True}, headers=head),
                guarded.post("/v1/feedback", json={"search_id": search_id, "good": [id]}, headers=head),
            ]
            answers.append([(each.status_code, each.text.replace(id, "it")) for each in told])
        assert answers[0] == answers[1] and {status for status, _ in answers[0]} == {404}


def meanwhile(work: Callable[[], object]) -> None:
    """Do it as another process would: on another connection, and at once."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(20)


def test_what_a_caller_sees_is_found_out_on_one_state_whatever_is_written_meanwhile(
    guarded: Any, toy: Scout, monkeypatch: Any
) -> None:
    real, left = Catalogue.mask, ["ru", "files"]

    def mask(self: Catalogue, visible: Any) -> Any:
        if visible is not None and left:
            meanwhile(lambda: toy.remove([left.pop()]))
        return real(self, visible)

    monkeypatch.setattr(Catalogue, "mask", mask)
    for _ in range(3):
        answer = guarded.get("/v1/tools", headers=as_caller("bob"))
        assert answer.status_code == 200 and {row["id"] for row in answer.json()["tools"]} == BOBS
    assert not left


def test_a_hidden_text_is_not_shown_because_another_took_its_place(tmp_path: Path, monkeypatch: Any) -> None:
    store, real, done = Store(tmp_path), Catalogue.mask, []
    caller = Caller("reader", Rules(frozenset({"**"}), read_only=True))

    def put(text: str, read_only: bool) -> None:
        tool = Tool(id="s/a", name="a", description=text, hints=Hints(read_only=read_only))
        store.put_source(Origin("s", "objects"), "s", kind="objects", tools=[tool])

    def mask(self: Catalogue, visible: Any) -> Any:
        if not done:
            done.append(meanwhile(lambda: put("harmless", True)))
        return real(self, visible)

    put("of the owner alone", False)
    views = CatalogueViews(store)
    monkeypatch.setattr(Catalogue, "mask", mask)
    seen = [
        [row.description for row in views.current(caller).page_tools(caller, RowFilter(), 0, 9)[0]] for _ in range(2)
    ]
    assert seen == [[], ["harmless"]]


def test_no_lint_tells_of_hidden_tools_when_sources_go_meanwhile(start: Any, toy: Scout, monkeypatch: Any) -> None:
    real, first = toy.pipeline, iter([True])

    def pipeline(*arguments: Any, **named: Any) -> Any:
        """As the real one; just after it has looked, somebody takes a source away."""
        found = real(*arguments, **named)
        found[0].mask(rules)
        if next(first, False):  # the service may look at the same moment, from another thread
            toy.remove(["files"])
        return found

    rules = Rules(allow=frozenset({"mail/**"}))
    caller = Caller("o", rules, operator=True)
    monkeypatch.setattr(toy, "pipeline", pipeline)
    told = start(policies=Policies((caller,), caller)).get("/v1/lint?most=100").json()
    assert told["asked"] == 2 and "travel" not in repr(told) and "ru/" not in repr(told)


def test_searches_of_others_are_not_there(guarded: Any) -> None:
    theirs = guarded.post("/v1/search", json={"query": "mail"}, headers=as_caller("ann")).json()["search_id"]
    for id in (theirs, "none"):
        for path, body in (("/v1/feedback", {"good": []}), ("/v1/calls", {"tool": "mail/search", "ok": True})):
            answer = guarded.post(path, json={"search_id": id, **body}, headers=as_caller("bob"))
            assert answer.status_code == 404 and answer.json()["error"].startswith(
                "expected the id of one of your searches"
            )


def test_the_journal_names_who_asked(guarded: Any, toy: Scout) -> None:
    for name in ("ann", "bob"):
        guarded.post("/v1/search", json={"query": "mail"}, headers=as_caller(name))
    assert [event["caller"] for event in toy.journal.read()] == ["ann", "bob"]


def test_other_names_and_pages_are_refused(client: Any) -> None:
    ask = {"url": "/v1/search", "json": {"query": "mail"}}
    assert client.post(**ask, headers={"host": "evil.example"}).status_code == 421
    assert client.get("/", headers={"host": "localhost.evil.example"}).status_code == 421
    for origin in (
        "http://evil.example",
        "null",
        "http://localhost.evil.example",
        "http://[::1",
        "https://evil/localhost",
        "http://localhost:9999",
        "https://localhost:1",
        "http://user@localhost",
        "http://localhost:x",
        "http://localhost:99999",
    ):
        assert client.post(**ask, headers={"origin": origin}).status_code == 403, origin
    for host in ("localhost:1", "LOCALHOST", "127.0.0.1:8766", "[::1]:8766", "[::1]"):
        assert client.post(**ask, headers={"host": host, "origin": f"http://{host}"}).status_code == 200, host
    assert client.get("/health", headers={"host": "10.0.0.7:8766"}).status_code == 200  # probes come by address


def test_a_form_of_another_page_is_no_search(client: Any, toy: Scout) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        body = json.dumps({"query": "mail"}).encode()
        answer = client.post("/v1/search", content=body, headers={"content-type": kind})
        assert answer.status_code == 415 and answer.json()["error"].startswith("expected a body of type")
    assert not list(toy.journal.read())


def test_a_body_beyond_measure_is_refused_unread(start: Any, toy: Scout) -> None:
    client = start(limits=Limits(body=1_000, upload=2_000))
    answer = client.post("/v1/search", json={"query": "x" * 2_000})
    assert answer.status_code == 413 and "1,000 bytes" in answer.json()["error"]

    def endless() -> Any:
        for _ in range(10):
            yield b"x" * 500

    headers = {"content-type": "application/json"}
    assert client.post("/v1/search", content=endless(), headers=headers).status_code == 413
    lines = {"content-type": "application/x-ndjson"}
    assert client.post("/v1/journal/import", content=endless(), headers=lines).status_code == 413
    assert client.post("/v1/search", json={"query": "rain"}).status_code == 200


def test_who_asks_too_much_is_told_when_to_come_back_and_others_are_not(start: Any, policies: Any) -> None:
    client = start(policies=policies, limits=Limits(rate=0.5))

    def ask(name: str, count: int) -> Any:
        return client.post("/v1/search/batch", json={"queries": ["rain"] * count}, headers=as_caller(name))

    assert ask("ann", 5).status_code == 200
    refused = ask("ann", 1)
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert "0.5 queries a second" in refused.json()["error"]
    assert ask("bob", 1).status_code == 200
    assert ask("eve", 60).status_code == 200, "more than a full bucket goes through when the bucket is full"
    assert ask("eve", 1).status_code == 429


def test_a_policy_that_appears_while_the_service_runs_limits_the_rate(start: Any, tmp_path: Path) -> None:
    path, said = tmp_path / "policy.toml", list[str]()
    client = start(
        policies=LivePolicies(path, is_required=False),
        limits=Limits(rate_with_policy=0.5),
        follow_policies=said.append,
    )
    many = {"queries": ["rain"] * 60}
    for _ in range(3):
        assert client.post("/v1/search/batch", json=many).status_code == 200, "without a policy there is no limit"
    path.write_text(POLICY)
    while client.post("/v1/search/batch", json={"queries": ["rain"]}).status_code != 401:
        assert not any("not valid" in text for text in said)
        time.sleep(0.05)

    def ask() -> Any:
        return client.post("/v1/search/batch", json=many, headers=as_caller("ann"))

    assert ask().status_code == 200
    refused = ask()
    assert refused.status_code == 429 and "0.5 queries a second" in refused.json()["error"]
    path.unlink()
    while not any("is gone" in text for text in said):
        time.sleep(0.05)
    assert ask().status_code == 429, "its rules stay in force, and so does the limit"


def test_the_default_rate_needs_callers_who_are_told_apart_and_a_rate_that_is_given_stays() -> None:
    assert choose_limits(None, has_tenants=False) == Limits(rate_with_policy=DEFAULT_QUERIES_PER_S)
    assert choose_limits(None, has_tenants=True).rate == DEFAULT_QUERIES_PER_S
    for has_tenants in (False, True):
        assert choose_limits(3, has_tenants=has_tenants) == Limits(rate=3)
        assert choose_limits(0, has_tenants=has_tenants) == Limits()


def test_a_bucket_holds_the_queries_of_ten_seconds_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr("toolscout.home.access.http.time.monotonic", lambda: now[0])
    buckets = Buckets(2.0)
    assert buckets.take("ann", 20) == 0.0
    assert buckets.take("ann") == pytest.approx(0.5) and buckets.take("bob") == 0.0
    now[0] += 0.5
    assert buckets.take("ann") == 0.0 and buckets.take("ann") == pytest.approx(0.5)
    now[0] += 3_600
    assert buckets.take("ann", 20) == 0.0
    assert buckets.take("ann") == pytest.approx(0.5), "an hour fills it no further"


@pytest.mark.parametrize("sent", [b"", b'{"query": '])
def test_a_body_that_does_not_come_in_in_time_is_given_up(toy: Scout, sent: bytes) -> None:
    """Seen from below, where a connection that hangs is a `receive` that does not return."""
    service = Service(toy, limits=Limits(patience=1))
    told: list[Any] = []

    async def ask(path: str, kind: str, seconds: float) -> None:
        pieces = [{"type": "http.request", "body": sent, "more_body": True}]

        async def receive() -> Any:
            if not pieces:
                await anyio.sleep_forever()
            return pieces.pop()

        async def send(message: Any) -> None:
            told.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", kind.encode())]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        with anyio.fail_after(seconds):
            await app(service, ["localhost"])(scope, receive, send)

    try:
        anyio.run(ask, "/v1/search", "application/json", 8)
        assert told[0]["status"] == 408 and b"did not arrive within 1 s" in told[1]["body"]
        assert not list(toy.journal.read())
        with pytest.raises(TimeoutError):  # an import may take ten times as long
            anyio.run(ask, "/v1/journal/import", "application/x-ndjson", 1.5)
    finally:
        service.close()


def test_methods_and_addresses_that_are_not_there_are_sentences(client: Any) -> None:
    wrong = client.delete("/v1/search")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST" and wrong.json()["error"]
    assert client.get("/v1/search").status_code == 405
    assert client.head("/v1/me").status_code == 200
    lost = client.get("/v1/nowhere")
    assert lost.status_code == 404 and "/openapi.json" in lost.json()["error"]
    assert client.get("/web/../server/app.py").status_code == 404


@pytest.mark.parametrize("path", ["/v1/me", "/", "/v1/nowhere", "/openapi.json"])
def test_every_answer_forbids_what_pages_must_not_do(client: Any, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "frame-ancestors 'none'" in policy and "unsafe" not in policy


def test_a_changed_policy_is_in_force_without_a_restart_and_requests_under_way_finish(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = tmp_path / "policy.toml", list[str]()
    path.write_text(POLICY)
    client = start(policies=LivePolicies(path), follow_policies=said.append)
    begun, may_end, search = threading.Event(), threading.Event(), Batches.search

    async def search_slowly(self: Batches, *arguments: Any, **named: Any) -> Any:
        begun.set()
        await anyio.to_thread.run_sync(may_end.wait)
        return await search(self, *arguments, **named)

    def status_of(key: str) -> int:
        return int(client.get("/v1/me", headers={"x-api-key": key}).status_code)

    def wait_for(number: int) -> None:
        until = time.monotonic() + 20
        while len(said) < number and time.monotonic() < until:
            time.sleep(0.02)

    monkeypatch.setattr(Batches, "search", search_slowly)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.post, "/v1/search", json={"query": "mail"}, headers=as_caller("bob"))
        assert begun.wait(20)
        path.write_text(POLICY.replace(hashed_key(KEYS["bob"]), hashed_key("another key of bob")))
        wait_for(1)
        assert status_of(KEYS["bob"]) == 401 and status_of("another key of bob") == 200
        assert status_of(KEYS["ann"]) == 200
        path.write_text("callers = 5")
        wait_for(2)
        assert "the old rules stay in force" in said[1] and status_of("another key of bob") == 200
        may_end.set()  # also bob's old key, which the request came with, still counts for it
        assert waiting.result(20).status_code == 200
