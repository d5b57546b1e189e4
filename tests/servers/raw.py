"""An MCP server in a hundred lines, without the SDK, that misbehaves as its first argument says.

Lines in, lines out; the rest of the arguments are the fault's own. It speaks the handshake of 2025-06-18.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from typing import Any

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: Any = "forecast", **changes: Any) -> dict[str, Any]:
    return {"name": name, "description": f"About {name}", "inputSchema": SCHEMA, **changes}


def send(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def pages(fault: str, arguments: list[str], cursor: str | None) -> dict[str, Any]:
    """The result of tools/list."""
    if fault == "bad-schema":
        odd: list[Any] = [{"type": "object", "properties": 7}, ["object"], "object", 3, {"type": "array"}]
        return {"tools": [tool("one"), *(tool(f"odd{i}", inputSchema=odd[i]) for i in range(len(odd))), tool("two")]}
    if fault == "endless":
        number = int(cursor or 0)
        return {"tools": [tool(f"t{number}")], "nextCursor": str(number + 1)}
    if fault == "empty-endless":
        return {"tools": [], "nextCursor": str(int(cursor or 0) + 1)}
    if fault == "same-cursor":
        return {"tools": [tool(f"t{cursor}")], "nextCursor": "again"}
    if fault == "many":
        return {"tools": [tool(f"t{i}") for i in range(int(arguments[0]))]}
    if fault == "big":
        return {"tools": [tool("big", description="x" * 1_200_000), tool("small")]}
    if fault == "surrogate":
        return {"tools": [tool("half", description="half a \ud83d smile"), tool("whole")]}
    if fault == "no-list":
        return {"tools": "forecast"}
    if fault == "twice":
        return {"tools": [tool("same"), tool("same", description="another"), tool("else")]}
    if fault == "hints":
        notes = {"readOnlyHint": True, "destructiveHint": "no", "openWorldHint": False, "title": "Weather"}
        return {"tools": [tool("forecast", annotations=notes, outputSchema={"type": "object"}, extra=[1])]}
    if fault == "paged":
        return {"tools": [tool("b")]} if cursor else {"tools": [tool("a")], "nextCursor": "rest"}
    return {"tools": [tool()]}


def junk(generator: random.Random, depth: int = 0) -> Any:
    kinds = ["text", "number", "null", "bool", "list", "object", "tool", "schema", "surrogate", "huge"]
    kind = generator.choice(kinds[: 6 if depth > 3 else None] if depth < 6 else kinds[:4])
    if kind == "list":
        return [junk(generator, depth + 1) for _ in range(generator.randrange(4))]
    if kind == "object":
        keys = ["name", "type", "properties", "inputSchema", "description", "annotations", "", "required", "items"]
        return {generator.choice(keys): junk(generator, depth + 1) for _ in range(generator.randrange(5))}
    if kind == "tool":
        found = tool("ok" if generator.random() < 0.5 else junk(generator, depth + 1))
        found[generator.choice(["name", "description", "inputSchema", "annotations", "outputSchema", "title"])] = junk(
            generator, depth + 1
        )
        return found
    if kind == "schema":
        return {"type": generator.choice(["object", "array", 3, None]), "properties": junk(generator, depth + 1)}
    return {"text": generator.choice(["", "x", "\x00", "é" * 50]), "number": generator.choice([-1, 0.5, 10**400]),
            "null": None, "bool": True, "surrogate": "\ud800", "huge": "y" * 100_000}[kind]  # fmt: skip


def fuzzed(seed: int, number: int) -> Any:
    """A reply to tools/list that nobody should send."""
    generator = random.Random(seed)
    shape = generator.randrange(8)
    if shape == 0:
        return {"jsonrpc": "2.0", "id": number, "result": junk(generator)}
    if shape == 1:
        return {"jsonrpc": "2.0", "id": number, "error": junk(generator)}
    if shape == 2:
        return {"jsonrpc": "2.0", "id": number, "result": {"tools": junk(generator), "nextCursor": junk(generator)}}
    if shape == 3:
        deep: Any = "deep"
        for _ in range(generator.choice([70, 400])):
            deep = {"properties": deep}
        return {"jsonrpc": "2.0", "id": number, "result": {"tools": [tool("deep", inputSchema=deep), tool("fine")]}}
    tools = [junk(generator) for _ in range(generator.randrange(1, 8))]
    return {"jsonrpc": "2.0", "id": number, "result": {"tools": [*tools, tool("fine")], "_meta": junk(generator)}}


def main() -> None:
    fault, arguments = sys.argv[1], sys.argv[2:]
    if fault == "hang-start":
        time.sleep(600)
    if fault == "stubborn":  # deaf to everything but SIGKILL, and so is its child
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code, arguments[0]])
        sys.exit(child.wait())
    if fault == "die-start":
        print("no database at", *arguments, file=sys.stderr)
        sys.exit(3)
    if fault == "flood":
        while True:
            sys.stdout.write("not a message\n")
    if fault == "flood-line":
        while True:
            sys.stdout.write("x" * 65536)
    if fault == "junk":
        sys.stdout.write("Welcome!\n\n[1, 2]\n\xff\n{}\n")
    for line in sys.stdin:
        message = json.loads(line)
        number, method = message.get("id"), message["method"]
        if method == "initialize" and fault != "bad-handshake":
            capabilities = {} if fault == "no-tools" else {"tools": {}}
            result = {"protocolVersion": "2025-06-18", "capabilities": capabilities,
                      "serverInfo": {"name": "raw", "version": "1.2"}}  # fmt: skip
            send({"jsonrpc": "2.0", "id": number, "result": result})
        elif method == "initialize":
            send({"jsonrpc": "2.0", "id": number, "result": {"hello": "world"}})
        elif method == "tools/list" and fault == "hang-list":
            time.sleep(600)
        elif method == "tools/list" and fault == "die-list":
            print("out of memory", file=sys.stderr)
            sys.exit(1)
        elif method == "tools/list" and fault == "fuzz":
            send(fuzzed(int(arguments[0]), number))
        elif method == "tools/list" and fault == "refuse":
            error = {"code": -32000, "message": f"no licence {arguments[0]}"}
            send({"jsonrpc": "2.0", "id": number, "error": error})
        elif method == "tools/list" and fault != "no-tools":
            cursor = (message.get("params") or {}).get("cursor")
            send({"jsonrpc": "2.0", "id": number, "result": pages(fault, arguments, cursor)})
        elif number is not None:
            send({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no such method"}})


if __name__ == "__main__":
    main()
