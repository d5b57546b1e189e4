"""Bounds what an MCP server may send, and holds the messages for servers that exceed a bound."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = [
    "ENCODED",
    "MAX_LIST_BYTES",
    "MAX_MESSAGE_BYTES",
    "TOO_LARGE",
    "LineSplitter",
    "LongLine",
    "find_refusal",
    "find_request_id",
]

MAX_MESSAGE_BYTES: Final = 16 * 2**20  # one line of stdio, one HTTP body, one event of an SSE stream
MAX_LIST_BYTES: Final = 32 * 2**20  # all pages of one list of tools, as JSON
MAX_DISCARDED_BYTES: Final = 512 * 2**20  # of one line; above that the server is ended
EDGE_BYTES: Final = 4096  # kept of each end of a line that is too long, to find the request that it answers
TOO_LARGE: Final = f"its answer is larger than {MAX_MESSAGE_BYTES // 2**20} MiB, so it was thrown away"
_LONG_EVENT: Final = "event exceeded the"  # part of the SDK's own message
ENCODED: Final = "its answer is compressed although no compression was accepted, so it was thrown away"


class LongLine(NamedTuple):
    """A line that was longer than the limit: its first and its last bytes."""

    head: bytes
    tail: bytes


class LineSplitter:
    """Cuts a stream of bytes into lines and keeps at most `limit` bytes of one line in memory.

    Attributes:
        discarded: bytes of the current line that were thrown away.
    """

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self.limit = limit
        self.discarded = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._head = self._tail = b""

    def feed(self, chunk: bytes) -> Iterator[bytes | LongLine]:
        """Yield every line that ends in `chunk`, without its line break."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._add_piece(chunk[start:end])
            yield self._finish_line()
            start = end + 1
        if start < len(chunk):
            self._add_piece(chunk[start:] if start else chunk)

    def _add_piece(self, piece: bytes) -> None:
        if self.discarded:
            self.discarded += len(piece)
            self._tail = (self._tail + piece)[-EDGE_BYTES:]
            return
        self._parts.append(piece)
        self._size += len(piece)
        if self._size > self.limit:
            line = b"".join(self._parts)
            self._head, self._tail, self.discarded = line[:EDGE_BYTES], line[-EDGE_BYTES:], self._size
            self._parts, self._size = [], 0

    def _finish_line(self) -> bytes | LongLine:
        line: bytes | LongLine = LongLine(self._head, self._tail) if self.discarded else b"".join(self._parts)
        self.discarded, self._parts, self._size = 0, [], 0
        self._head = self._tail = b""
        return line


_NUMBER_AT_HEAD: Final = re.compile(rb'^\s*\{[^{\[]{0,200}?"id"\s*:\s*(\d{1,18})\s*,')
_NUMBER_AT_TAIL: Final = re.compile(rb'"id"\s*:\s*(\d{1,18})[^{}\[\]]{0,200}\}\s*$')


def find_request_id(line: LongLine) -> int | None:
    """Find the id of the request that a line answers in the two ends of the line. None if it is in neither."""
    match = _NUMBER_AT_HEAD.search(line.head) or _NUMBER_AT_TAIL.search(line.tail)
    return int(match[1]) if match else None


def find_refusal(message: str) -> str | None:
    """Return the sentence of this module that belongs to an error message. None if there is none."""
    if _LONG_EVENT in message:
        return TOO_LARGE
    return next((sentence for sentence in (TOO_LARGE, ENCODED) if sentence in message), None)
