"""Serves the scripted model over HTTP, in the wire format of chat completions."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from toolscout.types import digest
from toolscout_lab.llm.wire import ChatRequest, Completion
from toolscout_lab.testing.scripted import Data, ScriptedLLM

__all__ = ["ScriptedServer"]

DRIP_PAUSE_S: Final = 0.02
Response = tuple[int, dict[str, str], Any]
"""Status, headers and body; bytes are sent as they are, anything else as JSON."""


class ScriptedServer:
    """Serves `ScriptedLLM` at `http://127.0.0.1:PORT/v1` while it is open.

    It adds the faults of servers: 429 with Retry-After, 500, and slow answers, each before a request's first answer.
    Invalid requests get a 400 that names the parameter.

    Attributes:
        place: address and model, in the form of the setting `llm`.
        served: digest of a request → number of its answers.
        bodies: the requests as sent, in the order of the answers.
        keys: the values of the Authorization header.
        refuses: parameters, or types of `response_format`, that get the status `refusal`.
        says: the answer to every request, such as a refusal, instead of that of the model.
        drips: spaces that each answer begins with, one every 20 ms, as servers do that keep connections open.
    """

    def __init__(
        self,
        llm: ScriptedLLM | None = None,
        *,
        port: int = 0,
        refuses: tuple[str, ...] = (),
        refusal: int = 400,
        says: Response | None = None,
        drips: int = 0,
    ) -> None:
        """Serve `llm` at `port`; 0 takes a free one."""
        self.says, self.drips = says, drips
        self.llm = llm or ScriptedLLM()
        self.refuses, self.refusal = refuses, refusal
        self.served: dict[str, int] = {}
        self.bodies: list[Data] = []
        self.keys: set[str | None] = set()
        self._faults_done: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                scripted.keys.add(self.headers.get("Authorization"))
                status, headers, answer = scripted.answer(self.path, body)
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(scripted.drips + len(content)))
                self.end_headers()
                for _ in range(scripted.drips):
                    self.wfile.write(b" ")
                    time.sleep(DRIP_PAUSE_S)
                self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                """Log nothing."""

        class QuietServer(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: object, client_address: object) -> None:
                """Ignore callers that close the connection."""

        self._server = QuietServer(("127.0.0.1", port), Handler)
        self.port = int(self._server.server_address[1])
        self.place = f"http://127.0.0.1:{self.port}/v1#{self.llm.model}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: Data) -> Response:
        """Return status, headers and body for one request."""
        mark = digest("body", body)
        if self.says is not None:
            with self._lock:
                self.bodies.append(body)
            return self.says
        refusal = self._refuse(path, body) or self._inject_fault(mark)
        if refusal is not None:
            return refusal
        reply = self.llm(_parse_request(body))
        with self._lock:
            self.served[mark] = self.served.get(mark, 0) + 1
            self.bodies.append(body)
        return 200, {}, _format_completion(reply, body["model"], mark)

    def _refuse(self, path: str, body: Data) -> Response | None:
        """Return the error for an invalid request, or None."""
        if path != "/v1/chat/completions":
            return 404, {}, _error(f"no such path: {path}")
        for name in self.refuses:
            if name in body or name == (body.get("response_format") or {}).get("type"):
                return self.refusal, {}, _error(f"Unsupported parameter: '{name}'")
        if not isinstance(body.get("messages"), list) or not body["messages"] or body.get("model") != self.llm.model:
            return 400, {}, _error("expected 'messages' and a known 'model'")
        return None

    def _inject_fault(self, mark: str) -> Response | None:
        """Apply the faults of a server to a request's first attempt."""
        if self._is_first("busy", mark) and self.llm.meets("busy", mark):
            return 429, {"Retry-After": "0.01"}, _error("rate limit")
        if self._is_first("broken", mark) and self.llm.meets("broken", mark):
            return 500, {"Retry-After": "0.01"}, _error("internal error")
        if self._is_first("slow", mark) and self.llm.meets("slow", mark):
            time.sleep(self.llm.faults.pause)
        return None

    def _is_first(self, kind: str, mark: str) -> bool:
        with self._lock:
            seen = (kind, mark) in self._faults_done
            self._faults_done.add((kind, mark))
        return not seen


def _parse_request(body: Data) -> ChatRequest:
    return ChatRequest(
        model=body["model"],
        messages=tuple(body["messages"]),
        max_tokens=body.get("max_tokens") or body.get("max_completion_tokens") or 1024,
        schema=(body.get("response_format") or {}).get("json_schema", {}).get("schema"),
        tools=tuple(body.get("tools") or ()),
        sample=body.get("seed") or 0,
    )


def _error(message: str) -> Data:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


def _format_completion(reply: Completion, model: str, mark: str) -> Data:
    message: Data = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    return {
        "id": f"chatcmpl-{mark[:24]}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": reply.tokens_in,
            "completion_tokens": reply.tokens_out,
            "total_tokens": reply.tokens_in + reply.tokens_out,
        },
    }
