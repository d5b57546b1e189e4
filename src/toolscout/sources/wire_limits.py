"""Moved to `toolscout.sources.addresses`; the bound of a message to `toolscout.sources.mcp_limits`."""

from toolscout.sources.addresses import (  # moved
    IDENTITY,
    LimitedBody,
    UnsupportedEncoding,
    is_header_name,
    is_reserved_header,
)
from toolscout.sources.mcp_limits import MAX_MESSAGE_BYTES  # moved

__all__ = [
    "IDENTITY",
    "MAX_MESSAGE_BYTES",
    "LimitedBody",
    "UnsupportedEncoding",
    "is_header_name",
    "is_reserved_header",
]
