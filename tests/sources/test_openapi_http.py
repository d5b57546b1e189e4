from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolscout.errors import SourceError
from toolscout.settings import Settings
from toolscout.sources import Reading, detect, openapi
from toolscout.types import Tool

pytestmark = pytest.mark.net

SETTINGS = Settings(http_timeout=5.0)


def document(paths: Any = None, **more: Any) -> dict[str, Any]:
    return {"openapi": "3.0.3", "info": {"title": "Shop"}, "paths": paths or {"/pets": {"get": {}}}, **more}


def only(reading: Reading) -> Tool:
    assert reading.problems == []
    [tool] = reading.tools
    return tool


class Site(ThreadingHTTPServer):
    """Answers with `pages` (path → JSON value, text, or a redirect to another address) and keeps what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, Any] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        page = self.server.pages.get(self.path.partition("?")[0])
        redirect = isinstance(page, tuple)
        body = page if isinstance(page, bytes) else json.dumps(page).encode()
        self.send_response(302 if redirect else 404 if page is None else 200)
        if redirect:
            self.send_header("Location", page[0])
        self.send_header("Content-Length", "0" if redirect else str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if redirect else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def read_url(url: str) -> Reading:
    [reading] = openapi.read(url, name=None, settings=SETTINGS)
    return reading


def test_a_document_is_read_over_http_with_its_parts_and_its_relative_server(site: Site) -> None:
    schema = {"$ref": "parts/pet.json#/Pet"}
    body = {"requestBody": {"content": {"application/json": {"schema": schema}}}}
    site.pages = {
        "/": ("/v1/openapi.json",),
        "/v1/openapi.json": document({"/pets": {"post": body}}, servers=[{"url": "../v2"}]),
        "/v1/parts/pet.json": {"Pet": {"type": "object", "properties": {"name": {"$ref": "/name.json"}}}},
        "/name.json": {"type": "string"},
    }
    tool = only(read_url(f"{site.url}/"))
    assert tool.parameters["properties"] == {"name": {"type": "string"}}
    assert (tool.meta["server"], tool.callable) == (f"{site.url}/v2", True)
    assert [path for path, _ in site.asked] == ["/", "/v1/openapi.json", "/v1/parts/pet.json", "/name.json"]


def test_a_document_without_servers_is_called_where_it_came_from(site: Site) -> None:
    old = {"swagger": "2.0", "paths": {"/pets": {"get": {}}}, "basePath": "/v3"}
    site.pages = {"/api/swagger.json": old, "/a.json": document()}
    assert only(read_url(f"{site.url}/api/swagger.json")).meta["server"] == f"{site.url}/v3"
    assert only(read_url(f"{site.url}/a.json")).meta["server"] == site.url


def test_a_remote_document_cannot_reach_files_or_other_origins(site: Site, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"type": "string"}')
    refs = {
        "file": f"file://{tmp_path}/secret.json",
        "port": "http://127.0.0.1:9/pet.json",
        "host": f"http://localhost:{site.server_port}/pet.json",
        "redirect": "/away.json",
        "good": "/pet.json",
    }
    paths = {f"/{name}": {"get": {"parameters": [{"$ref": f"{ref}#/p"}]}} for name, ref in refs.items()}
    site.pages = {
        "/openapi.json": document(paths),
        "/away.json": (f"http://localhost:{site.server_port}/pet.json",),
        "/pet.json": {"p": {"name": "q", "in": "query", "type": "string"}},
    }
    reading = read_url(f"{site.url}/openapi.json")
    assert [tool.meta["path"] for tool in reading.tools if tool.parameters["properties"]] == ["/good"]
    assert {problem.entry for problem in reading.problems} == {"GET /file", "GET /port", "GET /host", "GET /redirect"}
    assert sorted(path for path, _ in site.asked) == ["/away.json", "/openapi.json", "/pet.json"]


def test_credentials_of_an_address_are_sent_and_never_kept_or_shown(site: Site) -> None:
    site.pages = {"/openapi.json": document(), "/empty.json": {"openapi": "3.0.0"}}
    address = site.url.replace("//", "//user:hunter2@")
    tool = only(read_url(f"{address}/openapi.json?token=hunter3"))
    assert site.asked[0][1] is not None
    assert b"hunter" not in msgspec.json.encode(tool)
    for path in ("/empty.json", "/gone.json"):
        with pytest.raises(SourceError) as error:
            read_url(f"{address}{path}?token=hunter3")
        assert "hunter" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/gone.json", "HTTP status 404"),
        ("/latin.json", "expected a readable document"),
        ("/loop", "expected a readable document"),
        ("/large.json", "expected at most"),
        ("/bad.json", "expected JSON"),
    ],
)
def test_an_address_that_gives_no_document_is_said(
    site: Site, monkeypatch: pytest.MonkeyPatch, path: str, message: str
) -> None:
    monkeypatch.setattr("toolscout.sources.documents.MAX_DOCUMENT_BYTES", 1000)
    site.pages = {"/latin.json": b"\xff\xfe{", "/loop": ("/loop",), "/large.json": b" " * 2000, "/bad.json": b"{]"}
    with pytest.raises(SourceError, match=message) as error:
        read_url(site.url + path)
    assert str(error.value).startswith(site.url + path)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/openapi.json", "http://[/openapi.json", "http:///openapi.json"])
def test_an_address_that_cannot_be_reached_is_said(url: str) -> None:
    with pytest.raises(SourceError, match=r"cannot be reached .*Check the address|expected a readable document"):
        read_url(url)


def test_a_document_is_known_by_a_look_where_its_address_does_not_tell(site: Site) -> None:
    site.pages = {"/v1/contract": document(), "/v1/other": {"hello": "paths"}}
    assert detect(f"{site.url}/v1/contract") == "openapi"
    assert detect(f"{site.url}/v1/other") == detect(f"{site.url}/v1/gone") == "mcp"
    asked = len(site.asked)
    assert detect(f"{site.url}/mcp") == detect(site.url) == "mcp" and len(site.asked) == asked
