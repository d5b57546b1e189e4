"""Bounds what an MCP server may send: one line or event at a time, with the large values of a result in a file."""

from __future__ import annotations

import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec

from toolscout.sources.json_stream import ENTER, KEEP, TAKE, JsonPath, JsonSplitter
from toolscout.trust.private_files import make_private_folder, open_private

__all__ = [
    "ENCODED",
    "MAX_DISCARDED_BYTES",
    "MAX_LIST_BYTES",
    "MAX_MESSAGE_BYTES",
    "PARTIAL",
    "RESULTS_FOLDER",
    "SPILL",
    "SPLIT_BYTES",
    "TOO_LARGE",
    "LineSplitter",
    "LongLine",
    "Spill",
    "SpillWriter",
    "SpilledPart",
    "Spills",
    "find_refusal",
    "find_request_id",
]

MAX_MESSAGE_BYTES: Final = 16 * 2**20  # a line of stdio, an HTTP body, or an event of SSE
SPLIT_BYTES: Final = 2 * 2**20  # of a message; the values of a larger result go to a file while they arrive
MAX_LIST_BYTES: Final = 32 * 2**20  # all pages of one list of tools, as JSON
MAX_DISCARDED_BYTES: Final = 512 * 2**20  # of one line, also of one in a file; above that the server is ended
EDGE_BYTES: Final = 4096  # kept of each end of a line that is too long, to find the request that it answers
TOO_LARGE: Final = f"its answer is larger than {MAX_MESSAGE_BYTES // 2**20} MiB, so it was thrown away"
ENCODED: Final = "its answer is compressed although no compression was accepted, so it was thrown away"
_LONG_EVENT: Final = "event exceeded the"  # part of the SDK's own message
RESULTS_FOLDER: Final = "results"  # in the home
PARTIAL: Final = ".partial"  # suffix of a file that no handle names yet
SPILL: Final = "toolscout/spill"  # key in `_meta` of a result whose large values are in a file
MAX_WAITING_SPILLS: Final = 64  # the oldest belong to calls that were given up


# --- large results in files -------------------------------------------------------------------------------------------


class SpilledPart(NamedTuple):
    """One value of a result: its path in the result, and its `size` bytes from `start` on in the file.

    `is_text`: whether the bytes are a text in UTF-8; otherwise they are JSON.
    """

    path: JsonPath
    is_text: bool
    start: int
    size: int


class Spill(NamedTuple):
    """The large values of one result, in a file that only its owner can read."""

    file: Path
    parts: list[SpilledPart]


def choose_part(path: JsonPath) -> str:
    """Choose what `JsonSplitter` takes out of a message: the texts, data and structured content of a result."""
    if not path:
        return ENTER  # the message itself
    if path[0] != "result":
        return KEEP
    match path[1:]:
        case () | ("content",) | ("content", int()) | ("content", int(), "resource"):
            return ENTER
        case ("structuredContent",) | ("content", int(), "text" | "data"):
            return TAKE
        case ("content", int(), "resource", "text" | "blob"):
            return TAKE
    return KEEP


class SpillWriter:
    """Splits one message: large values of a result go to a file, the rest stays in memory."""

    def __init__(self, spills: Spills) -> None:
        self.size = 0  # bytes of the message that were read
        self._spills = spills
        self._path = spills.folder / f"{secrets.token_urlsafe(12)}{PARTIAL}"
        self._file: IO[bytes] | None = None  # made for the first value
        self._parts: list[SpilledPart] = []
        self._written = 0  # bytes in the file
        self._rest = bytearray()
        self._splitter = JsonSplitter(choose_part, self, self._rest.extend)

    def feed(self, piece: bytes) -> None:
        """Parse the next piece of the message: large values go to the file, all else stays in memory.

        Raises ValueError if the message is not JSON, the rest is too large, or the file cannot be written.
        """
        self.size += len(piece)
        try:
            self._splitter.feed(piece)
        except OSError as error:
            raise ValueError(f"the result cannot be written to {self._spills.folder}: {error.strerror}") from None
        if len(self._rest) + self._splitter.skipped > MAX_MESSAGE_BYTES:
            raise ValueError("expected a smaller message")

    def finish(self) -> bytes:
        """Return the message without its large values. Its `_meta` names the file, for `Spills.take`.

        Raises ValueError if the message is not complete.
        """
        self._splitter.finish()
        if self._file is None:
            return bytes(self._rest)
        self._file.close()
        self._close_part()
        message = msgspec.json.decode(self._rest)
        result = message["result"]
        meta = result["_meta"] if isinstance(result.get("_meta"), dict) else {}
        token = self._spills.keep(Spill(self._path, self._parts))
        result["_meta"] = {**meta, SPILL: token}
        return msgspec.json.encode(message)

    def abandon(self) -> None:
        """Remove the file, if one was made."""
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)

    # What `JsonSplitter` calls for the values that it takes.

    def begin(self, path: JsonPath, is_text: bool) -> None:
        """Begin a value. The file is made for the first one."""
        if self._file is None:
            make_private_folder(self._spills.folder)
            self._file = os.fdopen(open_private(self._path, os.O_WRONLY | os.O_EXCL), "wb")
        self._close_part()
        path_in_result = path[1:]  # without "result"
        self._parts.append(SpilledPart(path_in_result, is_text, start=self._written, size=0))

    def write(self, data: bytes) -> None:
        """Write the next bytes of the value."""
        assert self._file is not None
        self._file.write(data)
        self._written += len(data)

    def _close_part(self) -> None:
        """Set the size of the last part, which ends where the file ends now."""
        if self._parts:
            last = self._parts[-1]
            self._parts[-1] = last._replace(size=self._written - last.start)


class Spills:
    """The large results that nobody has taken yet."""

    def __init__(self, folder: Path) -> None:
        """Keep results in a folder, which is made for the first of them."""
        self.folder = folder
        self._waiting: OrderedDict[str, Spill] = OrderedDict()  # token → result, the oldest first

    def open(self) -> SpillWriter:
        """Return a writer that splits one message."""
        return SpillWriter(self)

    def keep(self, spill: Spill) -> str:
        """Keep a result until it is taken, and return its token, which no server can guess."""
        token = secrets.token_urlsafe(18)
        self._waiting[token] = spill
        while len(self._waiting) > MAX_WAITING_SPILLS:
            self._remove(next(iter(self._waiting)))
        return token

    def take(self, meta: Mapping[str, Any] | None) -> Spill | None:
        """Return the large values of the result with this `_meta`. The caller owns the file from now on."""
        token = (meta or {}).get(SPILL)
        return self._waiting.pop(token, None) if isinstance(token, str) else None

    def close(self) -> None:
        """Remove the results that nobody took."""
        for token in list(self._waiting):
            self._remove(token)

    def _remove(self, token: str) -> None:
        """Forget a result that nobody took, and remove its file."""
        with suppress(OSError):
            self._waiting.pop(token).file.unlink(missing_ok=True)


# --- lines ------------------------------------------------------------------------------------------------------------


class LongLine(NamedTuple):
    """A line that was longer than the limit: its first and its last bytes."""

    head: bytes
    tail: bytes


class LineSplitter:
    """Cuts a stream of bytes into lines and keeps at most `limit` bytes of one line in memory."""

    def __init__(self, limit: int = MAX_MESSAGE_BYTES, spills: Spills | None = None, prefix: bytes = b"") -> None:
        """Cut into lines.

        Args:
            limit: bytes of one line. A longer one becomes a `LongLine`.
            spills: where the large values of results above 2 MiB go. None: they are not taken out of the line.
            prefix: the bytes before the JSON of each message in an event stream, such as `data:`.
        """
        self.limit = limit
        self.discarded = 0  # bytes of the current line that were thrown away
        self._spills, self._prefix = spills, prefix
        self._writer: SpillWriter | None = None  # of a line that is so long that its values go to a file
        self._parts: list[bytes] = []  # of the current line
        self._size = 0  # bytes of the current line
        self._head = self._tail = b""  # first and last bytes of a line that is too long, for `find_request_id`

    def feed(self, chunk: bytes) -> Iterator[bytes | LongLine]:
        """Yield every line that ends in `chunk`, without its line break."""
        start, end = 0, chunk.find(b"\n")
        while end >= 0:
            piece = chunk[start:end]
            is_whole_line = self._size == 0
            if is_whole_line and len(piece) <= min(self.limit, SPLIT_BYTES):
                yield piece
            else:
                self._add_piece(piece)
                yield self._finish_line()
            start = end + 1
            end = chunk.find(b"\n", start)
        if start < len(chunk):
            self._add_piece(chunk[start:])

    def _add_piece(self, piece: bytes) -> None:
        """Add bytes to the current line. If it gets too long, its large values go to a file, or it is discarded."""
        if self.discarded:
            self.discarded += len(piece)
            self._tail = (self._tail + piece)[-EDGE_BYTES:]
            return
        self._size += len(piece)
        if self._writer is not None:
            self._split(piece)
            return
        self._parts.append(piece)
        max_in_memory = self.limit if self._spills is None else min(self.limit, SPLIT_BYTES)
        if self._size <= max_in_memory:
            return
        line = b"".join(self._parts)
        self._head, self._parts = line[:EDGE_BYTES], []
        may_be_result = self._size > SPLIT_BYTES and line.startswith(self._prefix)
        if self._spills is not None and may_be_result:
            self._writer = self._spills.open()
            self._split(line[len(self._prefix) :])
        else:
            self._discard(line)

    def _discard(self, piece: bytes) -> None:
        """Throw the current line away, with all its later bytes. `piece`: the last bytes that arrived of it."""
        self._tail = piece[-EDGE_BYTES:]
        self.discarded = self._size

    def _split(self, piece: bytes) -> None:
        """Pass a piece of a large message to its writer. Discard the line if it cannot be split or gets too large."""
        assert self._writer is not None
        try:
            self._writer.feed(piece)
            can_go_on = self._size <= MAX_DISCARDED_BYTES
        except ValueError:  # no JSON, too much outside of the large values, or the file cannot be written
            can_go_on = False
        if not can_go_on:
            self._drop_writer()
            self._discard(piece)

    def _drop_writer(self) -> None:
        """Give up splitting the current line, and remove its file."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def close(self) -> None:
        """End the stream: remove the file of a line that has not ended."""
        self._drop_writer()

    def _end_message(self) -> bytes | LongLine:
        """Return the large message that ends here, without the values in its file. `LongLine` if it is no JSON."""
        assert self._writer is not None
        try:
            line = self._prefix + self._writer.finish()
            self._writer = None
            return line
        except ValueError:
            self._drop_writer()
            return LongLine(self._head, b"")

    def _finish_line(self) -> bytes | LongLine:
        """Return the current line, and begin the next."""
        line: bytes | LongLine
        if self._writer is not None:
            line = self._end_message()
        elif self.discarded:
            line = LongLine(self._head, self._tail)
        else:
            line = b"".join(self._parts)
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
    """Return which limit of this module was passed, if an error says so. None if it was another error.

    The MCP SDK wraps our errors into its own and keeps only their text. So the text must tell that it was our limit.
    For an event that is too long, the text is the SDK's own.
    """
    if _LONG_EVENT in message:  # the SDK applies this limit itself
        return TOO_LARGE
    return next((sentence for sentence in (TOO_LARGE, ENCODED) if sentence in message), None)
