"""An MCP server with the tools of the examples, for servers.json."""

import sys
from pathlib import Path

from fastmcp import FastMCP

sys.path.insert(0, str(Path(__file__).parents[1]))
from office import TOOLS

server = FastMCP("office")
for function in TOOLS:
    server.tool(function)

if __name__ == "__main__":
    server.run(show_banner=False)
