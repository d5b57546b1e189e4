"""Moved to `toolscout.sources.mcp_session`."""

from toolscout.sources.mcp_session import ListRequest  # moved

__all__ = ["ListRequest"]
