"""Bounds what an MCP server may send, and holds the messages for servers that exceed a bound."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from toolscout.sources.mcp_spill import Spills, SpillWriter
from toolscout.sources.wire_limits import MAX_MESSAGE_BYTES

__all__ = [
    "ENCODED",
    "MAX_LIST_BYTES",
    "SPLIT_BYTES",
    "TOO_LARGE",
    "LineSplitter",
    "LongLine",
    "find_refusal",
    "find_request_id",
]

SPLIT_BYTES: Final = 2 * 2**20  # of a message; the values of a larger result go to a file while they arrive
MAX_LIST_BYTES: Final = 32 * 2**20  # all pages of one list of tools, as JSON
MAX_DISCARDED_BYTES: Final = 512 * 2**20  # of one line, also of one in a file; above that the server is ended
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

    def __init__(self, limit: int = MAX_MESSAGE_BYTES, spills: Spills | None = None, prefix: bytes = b"") -> None:
        """Cut into lines.

        Args:
            limit: bytes of one line. A longer one becomes a `LongLine`.
            spills: where the values of large results go. None: they count as the rest.
            prefix: stands before the JSON of each message, in an event stream.
        """
        self.limit = limit
        self.discarded = 0
        self._spills, self._prefix = spills, prefix
        self._writer: SpillWriter | None = None
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
        self._size += len(piece)
        if self._writer is not None:
            self._split(piece)
            return
        self._parts.append(piece)
        if self._spills is not None and self._size > SPLIT_BYTES:
            line = b"".join(self._parts)
            self._head, self._parts = line[:EDGE_BYTES], []
            if line.startswith(self._prefix):
                self._writer = self._spills.open()
                self._split(line[len(self._prefix) :])
            else:
                self._discard(line)
        elif self._size > self.limit:
            line = b"".join(self._parts)
            self._head, self._parts = line[:EDGE_BYTES], []
            self._discard(line)

    def _discard(self, piece: bytes) -> None:
        self._tail, self.discarded = piece[-EDGE_BYTES:], self._size

    def _split(self, piece: bytes) -> None:
        """Pass a piece of a large message to its writer. Throw the message away if it is no result."""
        assert self._writer is not None
        try:
            self._writer.feed(piece)
            if self._size <= MAX_DISCARDED_BYTES:
                return
        except ValueError:
            pass
        self._drop_writer()
        self._discard(piece)

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def close(self) -> None:
        """Remove what was written of a line that will not end."""
        self._drop_writer()

    def _end_message(self) -> bytes | LongLine:
        """Return the large message that ends here, without the values in its file."""
        assert self._writer is not None
        try:
            line = self._prefix + self._writer.finish()
            self._writer = None
            return line
        except ValueError:
            self._drop_writer()
            return LongLine(self._head, b"")

    def _finish_line(self) -> bytes | LongLine:
        line: bytes | LongLine
        if self._writer is not None:
            line = self._end_message()
        else:
            line = LongLine(self._head, self._tail) if self.discarded else b"".join(self._parts)
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
