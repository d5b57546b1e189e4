"""An MCP server without the SDK that writes down each call: `ledger.py FILE PID_FILE`.

Its tool `write` appends its text to FILE, and then gives it back. It is not read-only, so nobody may repeat a call.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

WRITE = {
    "name": "write",
    "description": "Writes a text down, once for each call.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def answer(ledger: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        version = params.get("protocolVersion", "2025-06-18")
        server = {"name": "ledger", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": [WRITE]}
    if method == "tools/call":
        text = params["arguments"]["text"]
        os.write(ledger, f"{text}\n".encode())  # one call of the system: lines of two processes don't mix
        return {"content": [{"type": "text", "text": text}]}
    return {}


def main() -> None:
    ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    Path(sys.argv[2]).write_text(str(os.getpid()))
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = answer(ledger, message["method"], message.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
