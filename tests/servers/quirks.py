"""Small MCP servers with one quirk, without the SDK: over standard streams if run, and over HTTP as `QuirkyWeb`.

Each is a quirk of servers that people use. They speak the handshake, and offer the tools `hello` and `bye`.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
LOST = {  # quirk: status, media type and body of the answer to a request in a session that the server forgot
    "404-null": (404, "application/json", {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "no"}}),
    "404-text": (404, "text/plain", "Session not found"),
    "404-empty": (404, "", ""),
    "400-text": (400, "text/plain", "No valid session ID provided"),
    "refused": (400, "application/json", {"jsonrpc": "2.0", "id": 0, "error": {"code": -32602, "message": "bad x"}}),
    "400-json": (400, "application/json", {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no"}}),
}


def tool(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "description": f"Says {name}.", "inputSchema": SCHEMA, **changes}


def list_tools(quirk: str) -> dict[str, Any]:
    result: dict[str, Any] = {"tools": [tool("hello"), tool("bye")]}
    if quirk == "same-cursor":
        result["nextCursor"] = "again"
    elif quirk == "no-schema":
        del result["tools"][0]["inputSchema"]
    elif quirk == "null-schema":
        result["tools"][0]["inputSchema"] = None
    elif quirk == "nulls":
        result["tools"][0] |= dict.fromkeys(("title", "annotations", "outputSchema", "_meta", "icons", "description"))
    return result


def call_tool(quirk: str, text: str) -> dict[str, Any]:
    content: dict[str, Any] = {"type": "text", "text": text}
    results: dict[str, dict[str, Any]] = {
        "empty": {},
        "structured-only": {"structuredContent": {"n": 1, "of": None}},
        "null-content": {"content": None, "structuredContent": {"n": 1, "of": None}},
        "nulls": {
            "content": [{**content, "annotations": None, "_meta": None}],
            **dict.fromkeys(("isError", "structuredContent", "_meta", "resultType")),
        },
    }
    return results.get(quirk, {"content": [content]})


def answer(quirk: str, message: dict[str, Any], text: str = "hello") -> dict[str, Any]:
    """Answer a request with a response, or an error."""
    method, params = message["method"], message.get("params") or {}
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        revision = {"old": "2024-11-05", "names-revision": params["protocolVersion"]}.get(quirk, "2025-06-18")
        result = {"protocolVersion": revision, "capabilities": {"tools": None if quirk == "nulls" else {}}}
        if quirk == "odd-offers":
            result["capabilities"] |= {"resources": {}, "prompts": {}}
        name = params["protocolVersion"] if quirk == "names-revision" else quirk
        return {**reply, "result": {**result, "serverInfo": {"name": name, "version": "1"}, "instructions": None}}
    if method == "server/discover" and quirk == "late":
        newest = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete"}
        return {**reply, "result": {**newest, "ttlMs": 0, "cacheScope": "private"}}
    if method == "resources/list":
        return {**reply, "result": {"resources": [{"uri": "memo://1", "name": "memo"}, {"name": 5}, "odd"]}}
    if method == "prompts/list":
        return {**reply, "result": {"prompts": [{"name": "greet"}, {"arguments": 7}]}}
    if method == "tools/list":
        return {**reply, "result": list_tools(quirk)}
    if method == "tools/call":
        return {**reply, "result": call_tool(quirk, text)}
    if quirk == "null-id":
        reply["id"] = None
    return {**reply, "error": {"code": -32601, "message": "Method not found"}}


def main() -> None:
    quirk, starts = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else os.devnull
    is_slow = quirk in ("late", "exits-late") and not os.path.exists(starts)
    with open(starts, "a") as file:
        file.write("started\n")
    unread: list[str] = [sys.stdin.readline(), sys.stdin.readline()] if is_slow else []
    for line in itertools.chain(unread, sys.stdin):
        message = json.loads(line)
        if message["method"] == "server/discover" and quirk in ("exits", "exits-late"):
            print("expected initialize request", file=sys.stderr)
            return
        if message["method"] == "server/discover" and quirk == "ignores":
            continue
        if "id" in message:
            print(json.dumps(answer(quirk, message)), flush=True)


class QuirkyWeb(ThreadingHTTPServer):
    """A server over HTTP with sessions, which `forget` makes it forget; or, as `sse`, over the older transport.

    Attributes:
        address: where it is.
        seen: the methods that it was sent.
    """

    daemon_threads = True

    def __init__(self, quirk: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.quirk, self.seen, self.sessions = quirk, list[str](), set[str]()
        self.n_sessions = 0
        self.streams: dict[str, queue.Queue[dict[str, Any]]] = {}
        self.address = f"http://127.0.0.1:{self.server_port}/{'sse' if quirk == 'sse' else 'mcp'}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def forget(self) -> None:
        self.sessions.clear()


class _Handler(BaseHTTPRequestHandler):
    server: QuirkyWeb
    protocol_version: ClassVar[str] = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def say(self, status: int, kind: str = "", body: Any = "", **headers: str) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**({"content-type": kind} if kind else {}), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.server.quirk != "sse":
            self.say(405)
            return
        stream: queue.Queue[dict[str, Any]] = queue.Queue()
        self.server.streams["1"] = stream
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"event: endpoint\ndata: /messages?session=1\n\n")
        while True:
            self.wfile.write(f"event: message\ndata: {json.dumps(stream.get())}\n\n".encode())
            self.wfile.flush()

    def do_DELETE(self) -> None:
        self.say(200)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        quirk, session = self.server.quirk, self.headers.get("mcp-session-id", "")
        self.server.seen.append(message["method"])
        if quirk == "sse":
            if self.path.startswith("/messages"):
                if "id" in message:
                    self.server.streams["1"].put(answer(quirk, message))
                self.say(202)
            else:
                self.say(405)
        elif message["method"] == "initialize":
            self.server.n_sessions += 1
            session = f"s{self.server.n_sessions}"
            self.server.sessions.add(session)
            self.say(200, "application/json", answer(quirk, message), mcp_session_id=session)
        elif session and (session not in self.server.sessions or (quirk == "refused" and "arguments" in str(message))):
            self.say(*LOST[quirk])
        elif "id" in message:
            self.say(200, "application/json", answer(quirk, message, session))
        else:
            self.say(202)


if __name__ == "__main__":
    main()
