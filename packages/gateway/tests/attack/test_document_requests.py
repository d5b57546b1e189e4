"""No document and no argument of a call sets a header, a path or a server that is not its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolscout.errors import UserError
from toolscout.settings import Settings
from toolscout.sources import openapi
from toolscout.types import Tool
from toolscout_gateway.calls import openapi as calls

pytestmark = pytest.mark.attack


def operation(path: str = "/pets", method: str = "GET", **meta: Any) -> Tool:
    return Tool(
        id="api/op",
        name="op",
        callable=True,
        meta={"method": method, "path": path, "server": "http://api.test", "in": {}, **meta},
    )


FORBIDDEN = [
    *("Host", "content-length", "Transfer-Encoding", "CONNECTION", "TE", "Trailer", "Upgrade", "Keep-Alive", "Expect"),
    *("Cookie", "Set-Cookie", "Proxy-Authorization", "proxy-connection", "X-Forwarded-For", "X-Forwarded-Host"),
    *("Forwarded", "Via", "Sec-Fetch-Site", "Accept-Encoding", "X-Toolscout-Gateway", "HTTP2-Settings"),
    *("X-A\r\nHost", "X A", "X:A", "", "é", "X-A\0", " Host"),
]


@pytest.mark.parametrize("name", FORBIDDEN)
def test_no_parameter_sets_a_header_that_frames_or_routes(name: str) -> None:
    with pytest.raises(UserError, match="may set"):
        calls.build_request(operation(**{"in": {"q": "header"}, "names": {"q": name}}), {"q": "evil"})


def test_such_a_header_is_no_argument_of_a_tool(tmp_path: Path) -> None:
    names = ["Host", "content-length", "TE", "Cookie", "Proxy-Authorization", "X-Forwarded-For", "Sec-Fetch-Site"]
    parameters = [{"name": name, "in": "header", "schema": {"type": "string"}} for name in [*names, "X-Own"]]
    paths = {"/a": {"get": {"operationId": "a", "parameters": parameters}}}
    (tmp_path / "api.json").write_text(json.dumps({"openapi": "3.0.0", "info": {"title": "api"}, "paths": paths}))
    [reading] = openapi.read(str(tmp_path / "api.json"), name=None, settings=Settings())
    assert list((reading.tools[0].parameters or {})["properties"]) == ["X-Own"]


@pytest.mark.parametrize("name", FORBIDDEN)
def test_no_security_scheme_puts_a_credential_into_such_a_header(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TOOLSCOUT_CREDENTIAL_API_KEY", "s3cret")
    with pytest.raises(UserError, match="may set") as error:
        calls.build_request(operation(security_schemes={"key": {"type": "apiKey", "in": "header", "name": name}}), {})
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("kind", ["application/json\r\nHost: evil", "text/plain\nX: y"])
def test_no_content_type_adds_a_header(kind: str) -> None:
    tool = operation(method="POST", content_type=kind, body="body", **{"in": {"body": "body"}})
    headers = calls.build_request(tool, {"body": "x"})["headers"]
    assert list(headers) == ["content-type"] and not {"\r", "\n"} & set(headers["content-type"])


@pytest.mark.parametrize("name", ["Authorization", "AUTHORIZATION", "authorization"])
def test_no_argument_stands_in_place_of_a_credential(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    tool = operation(
        security_schemes={"key": {"type": "http", "scheme": "bearer"}}, **{"in": {"q": "header"}, "names": {"q": name}}
    )
    assert calls.build_request(tool, {"q": "Bearer theirs"})["headers"] == {name: "Bearer theirs"}
    monkeypatch.setenv("TOOLSCOUT_CREDENTIAL_API_KEY", "mine")
    assert calls.build_request(tool, {"q": "Bearer theirs"})["headers"] == {"authorization": "Bearer mine"}


@pytest.mark.parametrize("place", ["query", "header", "cookie"])
def test_no_argument_stands_beside_an_api_key(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("TOOLSCOUT_CREDENTIAL_API_KEY", "mine")
    scheme = {"type": "apiKey", "in": place, "name": "key"}
    sent = calls.build_request(operation(security_schemes={"key": scheme}, **{"in": {"key": place}}), {"key": "theirs"})
    assert "theirs" not in json.dumps(sent) and "mine" in json.dumps(sent)


@pytest.mark.parametrize("value", ["../../admin", "..%2f..%2fadmin", "a?b=c", "a#b", "//evil.test", "\\\\evil", "a/.."])
def test_no_value_leaves_its_place_in_the_path(value: str) -> None:
    url = calls.build_request(operation("/pets/{id}", **{"in": {"id": "path"}}), {"id": value})["url"]
    rest = url.removeprefix("http://api.test/pets/")
    assert rest != url and not set("/?#\\") & set(rest)


@pytest.mark.parametrize(
    "server",
    [
        *("http://api.test@evil.test", "http://user:pw@evil.test", "http://api.test\\@evil.test", "http://a b"),
        *("http://api.test\tevil", "ftp://api.test", "file:///etc", "http://", "http://api.test:99999", "//evil.test"),
        *("javascript:alert(1)", "http://api.test:80:81", "http://0177.0.0.1", "http://[::1", "gopher://127.0.0.1"),
    ],
)
def test_a_server_that_two_readers_may_understand_differently_is_asked_by_nobody(server: str) -> None:
    with pytest.raises(UserError, match="nothing is sent"):
        calls.build_request(operation(server=server), {})
