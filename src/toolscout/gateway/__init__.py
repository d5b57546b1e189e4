"""One MCP server in front of all tools.

`server` is what agents see; `calls`, `upstream` and `openapi` are how tools are called; `http` is how it is reached;
`text` is how it speaks.
"""

from toolscout.gateway.server import Gateway, Options

__all__ = ["Gateway", "Options"]
