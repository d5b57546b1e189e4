"""An MCP server without the SDK whose tools do what callers fear; each call in a thread of its own.

Arguments: how many further tools it has (0), and a word that begins the descriptions of those; `Pid` for one that is
another at each start.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 0
WORD = sys.argv[2] if len(sys.argv) > 2 else "Plain"
WORD = str(os.getpid()) if WORD == "Pid" else WORD  # other descriptions at each start
VERBS = [
    "read",
    "write",
    "list",
    "move",
    "copy",
    "send",
    "fetch",
    "count",
    "merge",
    "split",
    "rename",
    "archive",
    "publish",
    "approve",
]
THINGS = [
    "invoice",
    "photo",
    "customer",
    "ticket",
    "flight",
    "recipe",
    "contract",
    "sensor",
    "playlist",
    "branch",
    "parcel",
    "lecture",
]
state = {"version": 1, "cancelled": []}
lock = threading.Lock()


def tool(name: str, text: str, properties: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties or {}}
    return {"name": name, "description": text, "inputSchema": schema, **more}


def tools() -> list[dict[str, Any]]:
    text, number = {"type": "string"}, {"type": "number"}
    found = [
        tool("echo", "Gives back the text it is given.", {"text": text}, annotations={"readOnlyHint": True}),
        tool("wait", "Waits for some seconds.", {"seconds": number}),
        tool("die", "Ends the server while it is called."),
        tool("hang", "Never answers."),
        tool("flood", "Answers with a great many lines that are no messages."),
        tool("junk", "Answers with something that is no result."),
        tool("picture", "Gives a picture, a resource and structured content."),
        tool("fail", "Gives a result that is an error."),
        tool("refuse", "Gives a protocol error."),
        tool("progress", "Tells how far it is."),
        tool("cancelled", "Names the calls that were cancelled."),
        tool("change", "Changes the list of tools and says so."),
        tool("pid", "Gives the number of the process."),
        tool("huge", "x" * 1_000_000 if WORD == "Huge" else "A tool of ordinary size.", {"text": text}),
        tool("changing", f"Version {state['version']} of a tool that changes."),
    ]
    for number_ in range(COUNT):
        verb, thing = VERBS[number_ % len(VERBS)], THINGS[number_ // len(VERBS) % len(THINGS)]
        properties = {
            "name": {"type": "string", "description": f"Name of the {thing}, as the catalogue of {WORD} has it."},
            "limit": {"type": "integer", "description": "How many at most; by default ten.", "minimum": 1},
            "mode": {"type": "string", "enum": ["fast", "careful"], "description": "How much care to take with it."},
        }
        long = (
            f"{WORD}: {verb} one {thing} after the other, number {number_}. Use it whenever a {thing} must be handled."
        )
        found.append(tool(f"{verb}_{thing}_{number_}", long, properties))
    return found


def send(message: Any) -> None:
    with lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def text(value: Any, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}], **more}


def call(number: Any, name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    result: Any = text("done")
    if name == "echo":
        result = text(arguments.get("text", ""))
    elif name == "wait":
        time.sleep(arguments["seconds"])
    elif name == "die":
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(1)
    elif name == "hang":
        return
    elif name == "flood":
        for _ in range(3000):
            sys.stdout.write("not a message\n")
        sys.stdout.flush()
        return
    elif name == "junk":
        result = {"content": "no list"}
    elif name == "picture":
        picture = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
        resource = {"type": "resource", "resource": {"uri": "memo://1", "text": "a memo", "mimeType": "text/plain"}}
        result = {"content": [picture, resource], "structuredContent": {"seen": [1, 2]}}
    elif name == "fail":
        result = text("it did not work", isError=True)
    elif name == "refuse":
        send({"jsonrpc": "2.0", "id": number, "error": {"code": -32000, "message": "no licence\u202e for this"}})
        return
    elif name == "progress":
        for step in (1, 2, 3):
            params = {
                "progressToken": meta.get("progressToken"),
                "progress": step,
                "total": 3,
                "message": f"step {step}",
            }
            send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
    elif name == "cancelled":
        result = text(state["cancelled"])
    elif name == "change":
        state["version"] += 1
        state["mute"] = arguments.get("mute")
        for _ in range(0 if arguments.get("quiet") else 20):
            send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    elif name == "pid":
        result = text(str(os.getpid()))
    elif name not in {each["name"] for each in tools()}:
        send({"jsonrpc": "2.0", "id": number, "error": {"code": -32602, "message": f"no tool {name}"}})
        return
    send({"jsonrpc": "2.0", "id": number, "result": result})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        number, method, params = message.get("id"), message["method"], message.get("params") or {}
        if method == "initialize":
            info = {"name": "busy", "version": "1"}
            capabilities = {"tools": {"listChanged": True}}
            result = {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}
            send({"jsonrpc": "2.0", "id": number, "result": result})
        elif method == "tools/list":
            send({"jsonrpc": "2.0", "id": number, "result": {"tools": "none" if state.get("mute") else tools()}})
        elif method == "tools/call":
            given = (number, params["name"], params.get("arguments") or {}, params.get("_meta") or {})
            threading.Thread(target=call, args=given, daemon=True).start()
        elif method == "notifications/cancelled":
            state["cancelled"].append(params.get("requestId"))
        elif number is not None:
            send({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no such method"}})


if __name__ == "__main__":
    main()
