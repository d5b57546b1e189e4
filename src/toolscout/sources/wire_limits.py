"""Bounds what is received, over HTTP after decoding: bytes are counted while they are produced.

A zstd body of 91 kB can hold 4.4 GB, and a library that decodes chunk by chunk produces them before anybody can count.
Therefore requests ask for no encoding (`IDENTITY`). Some servers send gzip and deflate nevertheless; both are decoded
here in bounded steps. Every other encoding, and more than one, is refused unread.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Final

__all__ = [
    "IDENTITY",
    "MAX_MESSAGE_BYTES",
    "LimitedBody",
    "UnsupportedEncoding",
    "is_header_name",
    "is_reserved_header",
]

MAX_MESSAGE_BYTES: Final = 16 * 2**20  # from an MCP server: a line of stdio, an HTTP body, or an event of SSE
IDENTITY: Final[Mapping[str, str]] = {"accept-encoding": "identity"}  # headers for every request to a stranger
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_HEADER_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")  # RFC 9110, 5.6.2
_FRAMING: Final = ("host", "content-length", "transfer-encoding", "te", "trailer", "connection", "keep-alive")
_ROUTING: Final = ("upgrade", "expect", "http2-settings", "forwarded", "via", "cookie", "cookie2", "set-cookie")
_CODING: Final = ("accept-encoding", "content-encoding")
_RESERVED_HEADERS: Final = frozenset((*_FRAMING, *_ROUTING, *_CODING))
_RESERVED_PREFIXES: Final = ("proxy-", "x-forwarded-", "sec-")


def is_header_name(name: str) -> bool:
    """Return whether a text is a valid name of a header."""
    return _HEADER_TOKEN.fullmatch(name) is not None


def is_reserved_header(name: str) -> bool:
    """Return whether a header frames or routes the message. No document and no argument may set it."""
    lowered = name.strip().lower()
    return lowered in _RESERVED_HEADERS or lowered.startswith(_RESERVED_PREFIXES)


class UnsupportedEncoding(ValueError):
    """A body is damaged, or in an encoding other than gzip and deflate."""


class LimitedBody:
    """Collects a body from raw chunks, decodes it, and stops at a bound.

    ::

        body = LimitedBody(response.headers.get("content-encoding"), MAX_BYTES)
        for chunk in response.iter_raw():  # not iter_bytes, which decodes without a bound
            if not body.feed(chunk):
                break

    Attributes:
        content: the decoded bytes, at most `max_bytes`.
        is_cut: whether the body is longer.
    """

    def __init__(self, encoding: str | None, max_bytes: int) -> None:
        """Prepare to decode as the header `content-encoding` says.

        Raises:
            UnsupportedEncoding: for an encoding other than identity, gzip and deflate.
        """
        names = [name.strip().lower() for name in (encoding or "").split(",")]
        names = [name for name in names if name not in ("", "identity")]
        if len(names) > 1 or any(name not in _WINDOW_BITS for name in names):
            raise UnsupportedEncoding(f"a body in the encoding {(encoding or '')[:60]!r}, which was not asked for")
        self.content, self.is_cut = bytearray(), False
        self._max_bytes = max_bytes
        self._inflate = zlib.decompressobj(_WINDOW_BITS[names[0]]) if names else None
        self._may_be_bare = names == ["deflate"]  # many servers send deflate without the header of zlib

    def feed(self, chunk: bytes) -> bool:
        """Decode a raw chunk. Returns whether to read the next one.

        Raises:
            UnsupportedEncoding: if the chunk is not in the encoding that the header names.
        """
        room = self._max_bytes - len(self.content) + 1
        try:
            piece = chunk[:room] if self._inflate is None else self._inflate.decompress(chunk, room)
        except zlib.error:
            if not self._may_be_bare:
                raise UnsupportedEncoding("a compressed body that is damaged") from None
            self._may_be_bare, self._inflate = False, zlib.decompressobj(-15)
            return self.feed(chunk)
        self._may_be_bare = self._may_be_bare and not piece
        self.content += piece
        if len(self.content) > self._max_bytes:
            del self.content[self._max_bytes :]
            self.is_cut = True
        return not self.is_cut and not (self._inflate is not None and self._inflate.eof)
