"""An MCP server without the SDK whose results are large. It writes them piece by piece."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

NUMBER = {"type": "number"}
TOOLS = {
    "lines": "Gives a text of numbered lines, about `bytes` long.",
    "both": "Gives rows as structured content, and the same as text.",
    "rows": "Gives so many rows as structured content alone.",
    "picture": "Gives a picture of so many bytes of base64, and a caption.",
    "parts": "Gives so many short texts.",
    "memo": "Gives an embedded text of so many bytes.",
    "secret": "Gives its own credential, again and again.",
    "echo": "Gives back the text.",
}


def make_line(number: int) -> str:
    return f'line {number}: the quick brown fox é 😀 "jumps" \\ over {"Waldo" if number % 5000 == 4999 else "it"}\n'


def make_lines(size: int) -> Iterator[str]:
    number, written = 0, 0
    while written < size:
        line = make_line(number)
        yield line
        number, written = number + 1, written + len(line.encode())


def make_row(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"row {number}", "tags": ["a", {"deep": number}]}


def write_text(pieces: Iterator[str]) -> None:
    batch: list[str] = []
    for piece in pieces:
        batch.append(json.dumps(piece)[1:-1])
        if len(batch) > 500:
            sys.stdout.write("".join(batch))
            batch.clear()
    sys.stdout.write("".join(batch))


def write_rows(count: int) -> None:
    sys.stdout.write('{"rows": [')
    for number in range(count):
        sys.stdout.write((", " if number else "") + json.dumps(make_row(number)))
    sys.stdout.write(f'], "total": {count}}}')


def answer(number: Any, name: str, size: int, text: str) -> None:
    """Write one result. Its id stands last, as some servers write it."""
    sys.stdout.write('{"jsonrpc": "2.0", "result": {')
    if name in ("lines", "memo", "parts", "picture", "secret", "echo", "both"):
        sys.stdout.write('"content": [')
        if name == "lines":
            sys.stdout.write('{"type": "text", "text": "')
            write_text(make_lines(size))
            sys.stdout.write('"}')
        elif name == "memo":
            sys.stdout.write('{"type": "resource", "resource": {"uri": "memo://1", "text": "')
            write_text(make_lines(size))
            sys.stdout.write('"}}')
        elif name == "parts":
            parts = (json.dumps({"type": "text", "text": f"part {index}"}) for index in range(size))
            sys.stdout.write(", ".join(parts))
        elif name == "picture":
            sys.stdout.write('{"type": "image", "mimeType": "image/png", "data": "' + "QUJD" * (size // 4) + '"}, ')
            sys.stdout.write('{"type": "text", "text": "a caption"}')
        elif name == "secret":
            sys.stdout.write('{"type": "text", "text": "')
            write_text(f"{index} {os.environ['API_TOKEN']}\n" for index in range(size))
            sys.stdout.write('"}')
        elif name == "both":
            rows = json.dumps({"rows": [make_row(index) for index in range(size)], "total": size})
            sys.stdout.write(json.dumps({"type": "text", "text": rows}))
        else:
            sys.stdout.write(json.dumps({"type": "text", "text": text}))
        sys.stdout.write("]")
    else:
        sys.stdout.write('"content": []')
    if name in ("both", "rows"):
        sys.stdout.write(', "structuredContent": ')
        write_rows(size)
    sys.stdout.write(f'}}, "id": {json.dumps(number)}}}\n')
    sys.stdout.flush()


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        number, method, params = message.get("id"), message["method"], message.get("params") or {}
        result: Any = None
        if method == "initialize":
            info = {"name": "large", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        elif method == "tools/list":
            schema = {"type": "object", "properties": {"size": NUMBER, "text": {"type": "string"}}}
            tools = [{"name": name, "description": what, "inputSchema": schema} for name, what in TOOLS.items()]
            result = {"tools": tools}
        elif method == "tools/call":
            given = params.get("arguments") or {}
            answer(number, params["name"], int(given.get("size", 0)), given.get("text", ""))
            continue
        if result is not None:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}) + "\n")
            sys.stdout.flush()
        elif number is not None:
            error = {"code": -32601, "message": "no such method"}
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": number, "error": error}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
