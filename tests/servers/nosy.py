"""An MCP server without the SDK that does to its system what it is asked to do."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any


def use(name: str, arguments: dict[str, Any]) -> str:
    if name == "read":
        path = Path(arguments["path"])
        return "\n".join(sorted(os.listdir(path))) if path.is_dir() else path.read_text()
    if name == "write":
        Path(arguments["path"]).write_text("written")
        return "written"
    if name == "connect":
        with socket.create_connection(("127.0.0.1", int(arguments["port"])), timeout=5):
            return "connected"
    if name == "variable":
        return os.environ.get(arguments["name"], "")
    return str(len([entry for entry in os.listdir("/proc") if entry.isdigit()]))  # processes


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        number, method, params = message.get("id"), message["method"], message.get("params") or {}
        result: dict[str, Any] = {}
        if method == "initialize":
            info = {"name": "nosy", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        elif method == "tools/list":
            names = ("read", "write", "connect", "variable", "processes")
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
        elif method == "tools/call":
            try:
                text, failed = use(params["name"], params.get("arguments") or {}), False
            except OSError as error:
                text, failed = type(error).__name__, True
            result = {"content": [{"type": "text", "text": text}], "isError": failed}
        if number is not None:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
