"""MCP servers behind a URL: headers, SSE, refusals, and signing in."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from toolscout.settings import Settings
from toolscout.sources import Reading, mcp, mcp_oauth

WEB = str(Path(__file__).parents[1] / "servers" / "web.py")
pytestmark = pytest.mark.net
Serve = Callable[[str], str]


@pytest.fixture(scope="module")
def web() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, WEB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def serve(web: subprocess.Popen[str], tmp_path: Path) -> Serve:
    """Starts a loopback server of a kind and gives its address; what it says goes to `web.log`."""

    def start(kind: str) -> str:
        assert web.stdin is not None and web.stdout is not None
        web.stdin.write(f"{kind} {tmp_path / 'web.log'}\n")
        web.stdin.flush()
        return web.stdout.readline().strip()

    return start


def read(folder: Path, locator: str) -> Reading:
    (reading,) = mcp.read(locator, name=None, settings=Settings(home=folder / "home", mcp_timeout=20))
    return reading


def config(folder: Path, entry: dict[str, Any]) -> str:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"web": entry}}))
    return str(path)


def test_a_server_behind_a_url_is_read(serve: Serve, tmp_path: Path) -> None:
    address = serve("plain")
    reading = read(tmp_path, f"{address}/mcp")
    assert reading.source == address.removeprefix("http://")
    assert [tool.name for tool in reading.tools] == ["forecast"]
    assert reading.message == "loopback 3.1"


def test_sse_is_spoken_whether_the_entry_says_so_or_not(serve: Serve, tmp_path: Path) -> None:
    address = serve("sse")
    reading = read(tmp_path, config(tmp_path, {"type": "sse", "url": f"{address}/sse"}))
    assert [tool.name for tool in reading.tools] == ["forecast"]
    untyped = read(tmp_path, f"{address}/sse")
    assert [tool.name for tool in untyped.tools] == ["forecast"]


def test_headers_are_sent_and_never_shown(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = serve("key")
    monkeypatch.setenv("WEB_KEY", "open sesame")
    entry = {"url": f"{address}/mcp?trace=abcdefgh", "headers": {"X-Key": "${WEB_KEY}"}}
    assert read(tmp_path, config(tmp_path, entry)).state == "ok"
    monkeypatch.setenv("WEB_KEY", "shut sesame")
    refused = read(tmp_path, config(tmp_path, entry))
    assert refused.state == "error"
    assert f"web: expected an MCP server at {address}/mcp, found HTTP status 403" in refused.message
    assert "sesame" not in refused.message and "abcdefgh" not in refused.message


def test_an_address_where_nobody_listens_is_an_error(tmp_path: Path) -> None:
    reading = read(tmp_path, "http://127.0.0.1:9/mcp")
    assert reading.state == "error"
    assert "http://127.0.0.1:9/mcp cannot be reached" in reading.message and "Check the address" in reading.message


class Scripted(BaseHTTPRequestHandler):
    """Answers every POST with the status, type and body in its path."""

    replies: ClassVar = {
        "/html": (200, "text/html", b"<h1>Welcome</h1>"),
        "/json": (200, "application/json", b'{"hello": "world"}'),
        "/broken": (200, "application/json", b'{"jsonrpc": "2.0", "id": 1, "result": '),
        "/error": (500, "text/plain", b"Traceback"),
        "/missing": (404, "text/plain", b"no"),
        "/denied": (401, "text/plain", b"who are you"),
        "/stream": (200, "text/event-stream", b"data: nonsense\n\n"),
    }

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        status, kind, body = self.replies[self.path]
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/html", "text/html"),
        ("/json", "Failed to parse"),
        ("/broken", "Failed to parse"),
        ("/error", "HTTP status 500"),
        ("/missing", "HTTP status 404"),
        ("/stream", "Failed to parse"),
        ("/denied", "wants you to sign in: run  toolscout add http"),
    ],
)
def test_what_is_no_mcp_server_is_an_error(scripted: str, tmp_path: Path, path: str, found: str) -> None:
    reading = read(tmp_path, scripted + path)
    assert reading.state == "error"
    assert found in reading.message
    assert "\n" not in reading.message


def test_refused_credentials_are_no_invitation_to_sign_in(scripted: str, tmp_path: Path) -> None:
    entry = {"url": f"{scripted}/denied", "headers": {"authorization": "Bearer abcdefgh"}}
    reading = read(tmp_path, config(tmp_path, entry))
    assert "refuses these credentials" in reading.message
    assert "abcdefgh" not in reading.message


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Seats somebody at the terminal, or nobody; their browser follows every redirect."""

    def seat(there: bool) -> None:
        monkeypatch.setattr(mcp, "has_terminal", lambda: there)
        monkeypatch.setattr(mcp_oauth, "open_browser", lambda url: httpx.get(url, follow_redirects=True))

    return seat


def test_signing_in_once_is_enough(serve: Serve, tmp_path: Path, person: Callable[[bool], None]) -> None:
    address = serve("oauth") + "/mcp"
    person(False)
    refused = read(tmp_path, config(tmp_path, {"url": address}))
    assert refused.state == "error"
    assert f"sign in: run  toolscout add {tmp_path / 'mcp.json'}  on a terminal" in refused.message
    assert not (tmp_path / "home" / "oauth").exists()
    person(True)
    assert [tool.name for tool in read(tmp_path, address).tools] == ["forecast"]
    person(False)
    assert read(tmp_path, config(tmp_path, {"url": address})).state == "ok"


def test_tokens_are_for_their_owner_only(serve: Serve, tmp_path: Path, person: Callable[[bool], None]) -> None:
    address = serve("oauth") + "/mcp"
    person(True)
    assert read(tmp_path, address).state == "ok"
    folder = tmp_path / "home" / "oauth"
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    file.write_text("{damaged")
    person(False)
    assert "wants you to sign in" in read(tmp_path, address).message
    person(True)
    assert read(tmp_path, address).state == "ok"


def test_an_expired_token_is_renewed_without_a_person(
    serve: Serve, tmp_path: Path, person: Callable[[bool], None]
) -> None:
    address = serve("oauth-short") + "/mcp"
    person(True)
    assert read(tmp_path, address).state == "ok"
    person(False)
    time.sleep(2.2)
    assert read(tmp_path, address).state == "ok"
    assert (tmp_path / "web.log").read_text().split().count("refreshed") == 1
    assert (tmp_path / "web.log").read_text().split().count("registered") == 1


def test_a_sign_in_that_is_over_is_said_to_be_over(
    serve: Serve, tmp_path: Path, person: Callable[[bool], None]
) -> None:
    address = serve("oauth") + "/mcp"
    person(True)
    assert read(tmp_path, address).state == "ok"
    (file,) = (tmp_path / "home" / "oauth").iterdir()
    stored = json.loads(file.read_text())
    stored["tokens"] |= {"access_token": "revoked", "refresh_token": "revoked"}
    file.write_text(json.dumps(stored))
    person(False)
    assert "expected a valid sign-in, found an expired one: run  toolscout add" in read(tmp_path, address).message


def test_a_refusal_in_the_browser_is_passed_on(
    serve: Serve, tmp_path: Path, person: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    person(True)

    def refuse(url: str) -> None:
        with httpx.Client() as browser:
            query = httpx.URL(browser.get(url).headers["location"]).params
            browser.get(query["redirect_uri"])  # a stray request is no answer
            browser.get(query["redirect_uri"], params={"state": "forged", "code": "x"})
            httpx.get(query["redirect_uri"], params={"state": query["state"], "code": "of another browser"})
            browser.get(query["redirect_uri"], params={"state": query["state"], "error": "access_denied"})

    monkeypatch.setattr(mcp_oauth, "open_browser", refuse)
    reading = read(tmp_path, serve("oauth") + "/mcp")
    assert "found that the server refused: access_denied" in reading.message
