"""Operations of HTTP APIs: each argument in its place, credentials from the environment, answers as they came."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from gateway.tests.conftest import Agent, Start
from gateway.tests.test_gateway import run
from toolscout.errors import UserError
from toolscout.scout import Scout
from toolscout.types import Tool
from toolscout_gateway.calls.openapi import MAX_RESPONSE_BYTES, build_request

pytestmark = pytest.mark.net


def operation(path: str = "/pets/{id}", method: str = "GET", **meta: Any) -> Tool:
    base = {"method": method, "path": path, "server": "http://api.test/v1", "in": {}}
    return Tool(id="api/op", name="op", callable=True, meta={**base, **meta})


def test_each_argument_goes_where_the_document_says() -> None:
    places = {"id": "path", "tags": "query", "X-Mode": "header", "seen": "cookie", "name": "body"}
    tool = operation(method="POST", content_type="application/json", **{"in": places})
    given = {"id": "a/b?c", "tags": ["x", "y"], "X-Mode": "fast\r\nEvil: 1", "seen": True, "name": "Rex"}
    sent = build_request(tool, given)
    assert sent["url"] == "http://api.test/v1/pets/a%2Fb%3Fc"
    assert sent["params"] == [("tags", "x"), ("tags", "y")]
    assert sent["headers"] == {"X-Mode": "fast  Evil: 1", "content-type": "application/json"}
    assert sent["cookies"] == {"seen": "true"} and json.loads(sent["content"]) == {"name": "Rex"}


@pytest.mark.parametrize(
    ("value", "style", "pairs"),
    [
        (["a", "b"], {"explode": False}, [("q", "a,b")]),
        (["a", "b"], {"style": "pipeDelimited", "explode": False}, [("q", "a|b")]),
        (["a", "b"], {"style": "spaceDelimited"}, [("q", "a b")]),
        ({"x": 1, "y": None}, {"style": "deepObject", "explode": True}, [("q[x]", "1"), ("q[y]", "null")]),
        ({"x": 1, "y": 2}, {}, [("x", "1"), ("y", "2")]),
        ({"x": 1}, {"explode": False}, [("q", "x,1")]),
        ({"x": 1}, {"content_type": "application/json"}, [("q", '{"x":1}')]),
        (1.5, {}, [("q", "1.5")]),
        (False, {}, [("q", "false")]),
    ],
)
def test_lists_and_objects_are_written_in_the_style_of_the_document(value: Any, style: Any, pairs: Any) -> None:
    sent = build_request(operation("/pets", **{"in": {"q": "query"}, "style": {"q": style}}), {"q": value})
    assert sent["params"] == pairs


@pytest.mark.parametrize("value", ["", ".", ".."])
def test_a_value_cannot_leave_its_place_in_the_path(value: str) -> None:
    with pytest.raises(UserError, match="is valid in a path"):
        build_request(operation(**{"in": {"id": "path"}}), {"id": value})


def test_a_missing_part_of_the_path_is_named() -> None:
    with pytest.raises(UserError, match="expected a value for id"):
        build_request(operation(**{"in": {"id": "path"}}), {})


def test_an_argument_without_a_place_is_refused() -> None:
    with pytest.raises(UserError, match="found 'verbose'"):
        build_request(operation("/pets", **{"in": {"q": "query"}}), {"verbose": 1})


def test_two_parameters_of_one_name_are_sent_under_their_own() -> None:
    tool = operation(**{"in": {"id": "path", "id_query": "query"}, "names": {"id_query": "id"}})
    sent = build_request(tool, {"id": 1, "id_query": 2})
    assert (sent["url"][-2:], sent["params"]) == ("/1", [("id", "2")])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("application/x-www-form-urlencoded", {"data": {"a": ["1"], "b": ["x", "y"]}}),
        ("multipart/form-data", {"files": [("a", (None, "1")), ("b", (None, "x")), ("b", (None, "y"))]}),
    ],
)
def test_forms_are_written_as_forms(kind: str, expected: Any) -> None:
    sent = build_request(
        operation("/pets", "POST", content_type=kind, **{"in": {"a": "body", "b": "body"}}), {"a": 1, "b": ["x", "y"]}
    )
    assert {key: sent[key] for key in expected} == expected


def test_a_body_that_is_no_object_is_sent_whole() -> None:
    tool = operation("/pets", "POST", content_type="application/json", body="body", **{"in": {"body": "body"}})
    assert build_request(tool, {"body": [1, 2]})["content"] == b"[1,2]"


@pytest.mark.parametrize(
    ("scheme", "place"),
    [
        ({"type": "http", "scheme": "bearer"}, {"headers": {"authorization": "Bearer s:ecret"}}),
        ({"type": "oauth2"}, {"headers": {"authorization": "Bearer s:ecret"}}),
        ({"type": "http", "scheme": "basic"}, {"headers": {"authorization": "Basic czplY3JldA=="}}),
        ({"type": "basic"}, {"headers": {"authorization": "Basic czplY3JldA=="}}),
        ({"type": "apiKey", "in": "header", "name": "X-Key"}, {"headers": {"X-Key": "s:ecret"}}),
        ({"type": "apiKey", "in": "query", "name": "key"}, {"params": [("key", "s:ecret")]}),
        ({"type": "apiKey", "in": "cookie", "name": "key"}, {"cookies": {"key": "s:ecret"}}),
    ],
)
def test_a_credential_comes_from_the_environment_under_the_name_of_its_source(
    monkeypatch: pytest.MonkeyPatch, scheme: Any, place: Any
) -> None:
    tool = operation("/pets", security_schemes={"main-key": scheme})
    for others in ("MAIN_KEY", "BANK_MAIN_KEY", "API", "_MAIN_KEY"):
        monkeypatch.setenv(f"TOOLSCOUT_CREDENTIAL_{others}", "s:ecret")
    assert not {"headers", "params", "cookies"} & build_request(tool, {}).keys()
    monkeypatch.setenv("TOOLSCOUT_CREDENTIAL_API_MAIN_KEY", "s:ecret")
    assert {key: build_request(tool, {})[key] for key in place} == place


# --- over the wire ----------------------------------------------------------------------------------------------------


class Api(BaseHTTPRequestHandler):
    """Tells what it was asked, and misbehaves where the path says so."""

    def answer(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length).decode()
        kind, data, status, headers = "application/json", b"", 200, {}
        if parts.path == "/elsewhere":
            status, headers = 302, {"location": "http://127.0.0.1:9/secret"}
        elif parts.path == "/moved":
            status, headers = 307, {"location": "/pets/7"}
        elif parts.path == "/round":
            status, headers = 302, {"location": "/round"}
        elif parts.path == "/large":
            kind, data = "text/plain", b"x" * (MAX_RESPONSE_BYTES + 10)
        elif parts.path == "/image":
            kind, data = "image/png", b"hello"
        elif parts.path == "/broken":
            status, data = 500, b'{"why": "no idea"}'
        elif parts.path != "/empty":
            asked = {"method": self.command, "path": parts.path, "query": parse_qsl(parts.query), "body": body}
            data = json.dumps({**asked, "key": self.headers.get("authorization")}).encode()
        self.send_response(status)
        for name, value in {**headers, "content-type": kind, "content-length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path, home: str) -> Iterator[Callable[[], None]]:
    """A loopback API, and its document in the catalogue."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    simple = {"responses": {"200": {"description": "fine"}}}
    paths: dict[str, Any] = {
        f"/{name}": {"get": {"operationId": name, **simple}}
        for name in ("elsewhere", "moved", "round", "large", "image", "broken", "empty")
    }
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    content = {"required": True, "content": {"application/json": {"schema": schema}}}
    identity = {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}
    paths["/pets/{id}"] = {
        "post": {"operationId": "rename", "parameters": [identity], "requestBody": content, **simple}
    }
    document = {
        "openapi": "3.0.0",
        "info": {"title": "pets", "version": "1"},
        "servers": [{"url": f"http://127.0.0.1:{server.server_port}"}],
        "security": [{"token": []}],
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "paths": paths,
    }
    (tmp_path / "pets.json").write_text(json.dumps(document))
    with Scout(home) as scout:
        scout.add(tmp_path / "pets.json")
    yield server.shutdown
    server.shutdown()
    server.server_close()


def test_an_operation_is_called(start: Start, api: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_CREDENTIAL_PETS_TOKEN", "very secret")

    async def body(agent: Agent) -> None:
        answer = await agent.call("pets/rename", id=7, name="Rex")
        assert answer.structured_content == {
            "status": 200,
            "body": {
                "method": "POST",
                "path": "/pets/7",
                "query": [],
                "body": '{"name":"Rex"}',
                "key": "Bearer [credential]",
            },
        }
        wrong = await agent.call("pets/rename", id="seven", nam="Rex")
        assert "parameter 'id': expected integer" in wrong.content[0].text
        assert "'name' (is that what 'nam' means?)" in wrong.content[0].text
        assert "secret" not in json.dumps(agent.events("call"))

    run(start, body)


def test_a_pinned_tool_has_names_that_providers_accept_and_is_called_by_its_own(
    start: Start, api: object, tmp_path: Path, home: str
) -> None:
    document = json.loads((tmp_path / "pets.json").read_text())
    document["paths"]["/empty"]["get"]["parameters"] = [{"name": "filter[name]", "in": "query", "schema": {}}]
    document["paths"]["/pets/{id}"]["get"] = document["paths"].pop("/empty")["get"] | {"operationId": "find"}
    (tmp_path / "pets.json").write_text(json.dumps(document))
    with Scout(home) as scout:
        scout.add(tmp_path / "pets.json")

    async def body(agent: Agent) -> None:
        [listed] = [tool for tool in (await agent.client.list_tools()).tools if tool.name == "pets_find"]
        [name, _] = sorted(listed.input_schema["properties"])
        assert name.startswith("filter_name_")
        answer = await agent.use("pets_find", **{name: "Rex", "id": "7"})
        assert answer.structured_content["body"]["query"] == [["filter[name]", "Rex"]]

    run(start, body, pins=("pets/find",))


def test_answers_of_every_kind_come_through(start: Start, api: object) -> None:
    async def body(agent: Agent) -> None:
        image = await agent.call("pets/image")
        assert (image.content[0].type, image.content[0].data) == ("image", "aGVsbG8=")
        broken = await agent.call("pets/broken")
        assert broken.is_error and broken.structured_content == {"status": 500, "body": {"why": "no idea"}}
        large = await agent.call("pets/large")
        assert "cut at 4,000,000 bytes" in large.structured_content["cut"]
        assert (await agent.text("pets/empty")).startswith("HTTP 200")

    run(start, body)


def test_redirects_are_followed_on_the_same_origin_only(start: Start, api: object) -> None:
    async def body(agent: Agent) -> None:
        moved = await agent.call("pets/moved")
        assert moved.structured_content["body"]["path"] == "/pets/7"
        away = await agent.call("pets/elsewhere")
        assert away.is_error and "redirected the call to another server" in away.content[0].text
        assert "more than 5 times" in await agent.text("pets/round")

    run(start, body)


def test_an_api_that_does_not_answer_is_one_sentence(
    start: Start, api: Callable[[], None], tmp_path: Path, home: str
) -> None:
    document = json.loads((tmp_path / "pets.json").read_text())
    document["servers"] = [{"url": "http://127.0.0.1:9"}]
    (tmp_path / "pets.json").write_text(json.dumps(document))
    with Scout(home) as scout:
        scout.add(tmp_path / "pets.json")

    async def body(agent: Agent) -> None:
        answer = await agent.call("pets/empty")
        assert answer.is_error and answer.content[0].text.startswith("http://127.0.0.1:9 did not answer")

    run(start, body)
