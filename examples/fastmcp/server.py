"""FastMCP: a server over HTTP whose clients search its tools through toolscout."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

# --- copy from here ---------------------------------------------------------------------------------------------------
from fastmcp import FastMCP
from office import TOOLS

from toolscout import Scout
from toolscout.adapters.fastmcp import ToolscoutTransform

server = FastMCP("office")
for function in TOOLS:
    server.tool(function)
server.add_transform(ToolscoutTransform(Scout("my-tools"), max_results=1))

if __name__ == "__main__":
    server.run("http", host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), show_banner=False)
