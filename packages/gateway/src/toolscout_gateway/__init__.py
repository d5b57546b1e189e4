"""One MCP server in front of all tools.

`server` puts the parts together. `access` knows the callers, `tools` answers them, `calls` brings calls to servers,
`sessions` holds the servers, and `text` formats tools and answers.
"""

from toolscout_gateway.options import Options, choose_options
from toolscout_gateway.server import Gateway

__all__ = ["Gateway", "Options", "choose_options"]
