"""One MCP server in front of all tools.

`server` answers the agent. `calls`, `upstream` and `openapi` call tools. `http` serves it over HTTP. `text` formats
tools and answers.
"""

from toolscout_gateway.options import Options, choose_options
from toolscout_gateway.server import Gateway

__all__ = ["Gateway", "Options", "choose_options"]
