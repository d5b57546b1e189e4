"""A model hub on this machine: the part of the Hugging Face API that pushing and pulling use."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz01234567"


class Hub:
    """Repositories in memory: name → file → content. `large` files travel through LFS, as arrays do there."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.objects: dict[str, bytes] = {}
        self.large = re.compile(r"\.(safetensors|onnx)$")
        self.downloaded: list[str] = []
        self.commits = 0
        self.address = ""

    def sha(self) -> str:
        return hashlib.sha1(str(self.commits).encode()).hexdigest()

    def list_tree(self, name: str) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": path, "oid": hashlib.sha1(content).hexdigest(), "size": len(content)}
            for path, content in sorted(self.repositories[name].items())
        ]

    def apply(self, name: str, lines: bytes) -> None:
        """Carry out the commit that newline-separated JSON describes."""
        files = self.repositories[name]
        for line in map(json.loads, lines.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        self.commits += 1


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *about: object) -> None:
        pass

    def answer(self, status: int, body: Any = b"", **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.pop("length", str(len(content))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def missing(self, code: str) -> None:
        self.answer(404, {"error": "not found"}, X_Error_Code=code, X_Error_Message="not found")

    def read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def may_write(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def do_POST(self) -> None:
        body, path = self.read(), unquote(urlsplit(self.path).path)
        if not self.may_write():
            return self.answer(401, {"error": "Invalid credentials"})
        if path == "/api/validate-yaml":
            head = re.match(r"---\n(.*?)\n---\n", json.loads(body)["content"], re.S)
            known = head is not None and "library_name" in yaml.safe_load(head[1])
            return self.answer(200, {"errors": [] if known else [{"message": "no head"}], "warnings": []})
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            private = wanted.get("private", wanted.get("visibility") == "private")
            status = 409 if name in self.hub.repositories else 200
            self.hub.repositories.setdefault(name, {})
            self.hub.private.setdefault(name, private)
            return self.answer(status, {"url": f"{self.hub.address}/{name}", "name": name})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            files = [
                {"path": file["path"], "shouldIgnore": False,
                 "uploadMode": "lfs" if self.hub.large.search(file["path"]) else "regular"}
                for file in json.loads(body)["files"]
            ]  # fmt: skip
            return self.answer(200, {"files": files})
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**wanted, "actions": {"upload": {"href": f"{self.hub.address}/lfs/{wanted['oid']}"}}}
                for wanted in json.loads(body)["objects"]
            ]
            return self.answer(200, {"transfer": "basic", "objects": objects})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            self.hub.apply(match[1], body)
            url = f"{self.hub.address}/{match[1]}/commit/{self.hub.sha()}"
            return self.answer(200, {"commitUrl": url, "commitOid": self.hub.sha(), "hookOutput": ""})
        return self.missing("EntryNotFound")

    def do_PUT(self) -> None:
        self.hub.objects[self.path.rpartition("/")[2]] = self.read()
        self.answer(200)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        match = re.fullmatch(r"(?:/api/models)?/([^/]+/[^/]+)(?:/(revision|tree|resolve)/([^/]+)/?(.*))?", path)
        if match is None or match[1] not in self.hub.repositories:
            return self.missing("RepoNotFound")
        name, kind, revision, file = match.groups()
        if revision not in (None, "main", self.hub.sha()):
            return self.missing("RevisionNotFound")
        if kind == "tree":
            return self.answer(200, self.hub.list_tree(name))
        if kind == "resolve":
            content = self.hub.repositories[name].get(file)
            if content is None:
                return self.missing("EntryNotFound")
            if self.command == "GET":
                self.hub.downloaded.append(file)
            etag = hashlib.sha1(content).hexdigest()
            return self.answer(200, content, ETag=f'"{etag}"', X_Repo_Commit=self.hub.sha())
        siblings = [{"rfilename": row["path"], "size": row["size"]} for row in self.hub.list_tree(name)]
        return self.answer(200, {"id": name, "sha": self.hub.sha(), "siblings": siblings, "private": True})


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Serve an empty hub on a free port."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
