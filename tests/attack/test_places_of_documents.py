"""References and redirects of documents: nothing outside of the folder is read, and no odd address stops a sync."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolscout.errors import SourceError, ToolscoutError
from toolscout.scout import Scout

pytestmark = [pytest.mark.attack, pytest.mark.net]
SECRET = "canary-of-another-folder"
OUT = "{out}/secret.json#/Secret"
REFERENCES = (
    *("../out/secret.json#/Secret", OUT, "file://" + OUT, "FILE://" + OUT, "file:" + OUT, "link/secret.json#/Secret"),
    *("secret-link.json#/Secret", "./link/../link/secret.json#/Secret", "..%2fout%2fsecret.json#/Secret"),
    *("%2e%2e/out/secret.json#/Secret", "..\\out\\secret.json#/Secret", "~/secret.json", "/proc/self/environ#/x"),
    *(
        "/dev/zero",
        "fifo.json#/x",
        "．．/out/secret.json#/Secret",
        "..;/out/secret.json",
        "/" + OUT,
        "link\u200b/secret.json",
    ),
    *("http://127.0.0.1:{port}/secret.json#/Secret", "//127.0.0.1:{port}/secret.json#/Secret", "ftp://127.0.0.1/x"),
    *(
        "HTTP://127.0.0.1:{port}/secret.json#/Secret",
        "http://0x7f000001:{port}/secret.json#/Secret",
        "LINK/secret.json",
    ),
    *(
        "../out/secret.json?x#/Secret",
        "../out/secret.json",
        "./../out/secret.json#/Secret",
        "link//..//link/secret.json",
    ),
    *("sub/../../out/secret.json#/Secret", " ../out/secret.json", "\t../out/secret.json", "../out/secret.json\0.json"),
    *("jar:file:..!/out/secret.json", "json:../out/secret.json", "\u2025/out/secret.json", "$HOME/secret.json"),
    *("/proc/self/cwd/secret.json", "/dev/stdin", "file://localhost" + OUT, "dev.json", "data:application/json,%7B%7D"),
    *(
        "http://localhost:{port}/secret.json",
        "http://[::ffff:127.0.0.1]:{port}/secret.json",
        "http://169.254.169.254/x",
    ),
)
REDIRECTS = (
    *(
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
        "http://10.0.0.1/",
        "http://2852039166/",
        "/document.json",
    ),
    *("http://8.8.8.8:99999/x", "http://127.0.0.1:0/", "gopher://8.8.8.8/", "http://[::1/", "http://u:p@127.0.0.1/"),
)


def make_document(reference: str = "") -> dict[str, Any]:
    schema = {"$ref": reference} if reference else {"type": "string"}
    operation = {"operationId": "show", "parameters": [{"name": "p", "in": "query", "schema": schema}]}
    return {"openapi": "3.0.0", "info": {"title": "t", "version": "1"}, "paths": {"/a": {"get": operation}}}


class Web(http.server.BaseHTTPRequestHandler):
    """Serves a document, until it redirects."""

    target, asked = "", list[str]()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = b"" if self.target else json.dumps(make_document()).encode()
        self.send_response(302 if self.target else 200)
        self.send_header("location", self.target)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_no_reference_leads_out_of_the_folder(port: int, tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "in"
    out.mkdir(), folder.mkdir()
    (out / "secret.json").write_text(json.dumps({"Secret": {"type": "string", "description": SECRET}}))
    (folder / "link").symlink_to(out)
    (folder / "dev.json").symlink_to("/dev/zero")
    os.mkfifo(folder / "fifo.json")
    (folder / "secret-link.json").symlink_to(out / "secret.json")
    Web.target, Web.asked = "", []
    with Scout(tmp_path / "home") as scout:
        for number, reference in enumerate(REFERENCES):
            file = folder / f"{number}.json"
            file.write_text(json.dumps(make_document(reference.format(out=out, port=port))))
            try:
                scout.add(str(file), name=f"s{number}", kind="openapi")
            except ToolscoutError as error:
                assert SECRET not in str(error)
        kept = b"".join(file.read_bytes() for file in (tmp_path / "home").rglob("*") if file.is_file())
    assert SECRET.encode() not in kept and not Web.asked


def test_no_redirect_stops_the_other_sources(port: int, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{port}/document.json"
    Web.target = ""
    with Scout(tmp_path / "home") as scout:
        scout.add(address, name="far", kind="openapi")
        (tmp_path / "near.json").write_text(json.dumps([{"name": "near", "description": "d"}]))
        scout.add(str(tmp_path / "near.json"), name="near")
        for target in REDIRECTS:
            Web.target = target
            states = {change.source: change.state for change in scout.sync()}
            assert states == {"far": "error", "near": "ok"}, target


@pytest.mark.parametrize(
    "address", ("http://127.0.0.1:99999/x", "http://127.0.0.1:-1/", "http://[::1/x", "http://a..b/")
)
def test_an_address_that_cannot_be_is_refused(address: str, tmp_path: Path) -> None:
    with Scout(tmp_path / "home") as scout, pytest.raises(SourceError):
        scout.add(address, name="s", kind="openapi")
