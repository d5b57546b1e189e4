"""Moved to `toolscout.sources.mcp_transport`."""

from toolscout.sources.mcp_transport import HttpGuard as Guard  # moved
from toolscout.sources.mcp_transport import is_private, origin_of  # moved

__all__ = ["Guard", "is_private", "origin_of"]
