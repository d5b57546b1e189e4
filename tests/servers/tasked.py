"""An MCP server that runs tools as tasks, without the SDK: the SDK's server has no answer of that type.

Lines in, lines out, at revision 2026-07-28 (SEP-2663), or with the argument `older` at 2025-11-25. `counts` returns how
often each method was received.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import Any

EXTENSION = "io.modelcontextprotocol/tasks"
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TOOLS = ("must", "may", "ask", "fail", "gone", "counts")
OLDER = sys.argv[1:] == ["older"]
received: Counter[str] = Counter()
tasks: dict[str, dict[str, Any]] = {}  # id → tool, arguments, when it began, and what came for it


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(value: str) -> dict[str, Any]:
    content = {"content": [{"type": "text", "text": value}]}
    return content if OLDER else {"resultType": "complete", **content}


def list_tools() -> dict[str, Any]:
    schema = {"type": "object", "properties": {"seconds": {"type": "number"}}}
    tools = [{"name": name, "description": f"The tool {name}.", "inputSchema": schema} for name in TOOLS]
    if OLDER:
        modes = {"may": "optional", "counts": "forbidden"}
        return {
            "tools": [{**each, "execution": {"taskSupport": modes.get(each["name"], "required")}} for each in tools]
        }
    return {"resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private"}


def call(params: dict[str, Any]) -> dict[str, Any]:
    name, meta = params["name"], params.get("_meta", {})
    if name == "counts":
        return text(json.dumps(received))
    is_declared = (
        "task" in params
        if OLDER
        else EXTENSION in (meta["io.modelcontextprotocol/clientCapabilities"].get("extensions") or {})
    )
    if name == "may" and not is_declared:
        token = meta.get("progressToken")
        if token is not None:
            send(method="notifications/progress", params={"progressToken": token, "progress": 1, "total": 2})
        return text("may without a task")
    if not is_declared:
        required = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        return {"error": {"code": -32021, "message": f"{name} requires tasks", "data": required}}
    id = f"task-{len(tasks)}"
    tasks[id] = {"tool": name, "began": time.monotonic(), "seconds": params.get("arguments", {}).get("seconds", 0.2)}
    return {"task": state(id, "working")} if OLDER else {"resultType": "task", **state(id, "working")}


def state(id: str, status: str, **more: Any) -> dict[str, Any]:
    now = "2026-11-28T00:00:00Z"
    return {"taskId": id, "status": status, "createdAt": now, "lastUpdatedAt": now, "ttlMs": 60_000,
            "pollInterval" if OLDER else "pollIntervalMs": 200, **more}  # fmt: skip


def get(id: str) -> dict[str, Any]:
    task = tasks[id]
    name, passed = task["tool"], time.monotonic() - task["began"]
    complete = {"resultType": "complete"}
    if name == "ask" and "answer" not in task and not OLDER:
        params = {"mode": "form", "message": "Name?", "requestedSchema": FORM}
        questions = {"q1": {"method": "elicitation/create", "params": params}}
        return complete | state(id, "input_required", inputRequests=questions)
    if passed < task["seconds"]:
        said = "first half" if passed < task["seconds"] / 2 else "second half"
        return complete | state(id, "working", statusMessage=said)
    if name == "fail":
        return complete | state(id, "failed", error={"code": -32050, "message": "no ink"})
    if name == "gone":
        return complete | state(id, "cancelled")
    result = text(json.dumps(task["answer"]) if name == "ask" else f"{name} as a task")
    return complete | state(id, "completed", result=result)


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "server/discover" and not OLDER:
        info = {"name": "tasked", "version": "1"}
        return {"resultType": "complete", "supportedVersions": ["2026-07-28"], "serverInfo": info, "ttlMs": 0,
                "cacheScope": "private", "capabilities": {"tools": {}, "extensions": {EXTENSION: {}}}}  # fmt: skip
    if method == "tools/list":
        return list_tools()
    if method == "tools/call":
        return call(params)
    if method == "initialize":
        capabilities = {"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
        info = {"name": "tasked", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
    if method == "tasks/result":
        name = tasks[params["taskId"]]["tool"]
        return {**text(f"{name} as a task"), "isError": name == "fail"}
    if method == "tasks/get":
        return get(params["taskId"])
    if method == "tasks/update":
        tasks[params["taskId"]]["answer"] = params["inputResponses"]
        return {"resultType": "complete"}
    if method == "tasks/cancel":
        return {"resultType": "complete"}
    return {"error": {"code": -32601, "message": "no such method"}}


for line in sys.stdin:
    message = json.loads(line)
    received[message["method"]] += 1
    if "id" in message:
        outcome = answer(message["method"], message.get("params") or {})
        send(id=message["id"], **(outcome if outcome.keys() == {"error"} else {"result": outcome}))
