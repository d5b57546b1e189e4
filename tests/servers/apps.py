"""An MCP server with an app (MCP Apps): a tool with a page, which is a resource under `ui://`.

python apps.py NAME FILE     # FILE: a JSON object with changes: "csp": [hosts], "uri": of the page of the tool
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mcp.server.apps import Apps, ResourceCsp, client_supports_apps
from mcp.server.mcpserver import Context, MCPServer

NAME = sys.argv[1]
CHANGES = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
PAGE = CHANGES.get("uri", "ui://clock/app.html")
apps = Apps()


@apps.tool(resource_uri=PAGE, description="Tells the time of day.")
def get_time(ctx: Context) -> str:
    """Say whose clock it is, and whether the caller shows pages."""
    return f"{NAME}: {'page' if client_supports_apps(ctx) else 'words'}"


@apps.tool(resource_uri=PAGE, visibility=["app"], description="Winds the spring of the clock on the page.")
def wind(turns: int) -> str:
    """Wind the clock, for its page only."""
    return f"{NAME}: {turns} turns"


csp = ResourceCsp(connect_domains=CHANGES.get("csp", ["https://clock.example"]))
apps.add_html_resource(PAGE, f"<html>{NAME}</html>", name="clock", description="A clock.", csp=csp)
server = MCPServer(NAME, extensions=[apps])

if __name__ == "__main__":
    server.run()
