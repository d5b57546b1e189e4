"""An MCP server with a tool and, among its resources, a skill that uses it (SEP-2640).

python skilled.py FILE     # FILE: its SKILL.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("skilled")


@server.tool(description="Applies a stencil.")
def stamp(paper: str) -> str:
    """Stamp a paper."""
    return f"stamped {paper}"


@server.tool(description="Paints a fence.")
def paint() -> str:
    """Paint."""
    return "painted"


@server.resource("skill://letters/SKILL.md", mime_type="text/markdown")
def skill() -> str:
    """Return the skill."""
    return Path(sys.argv[1]).read_text(encoding="utf-8")


if __name__ == "__main__":
    server.run()
