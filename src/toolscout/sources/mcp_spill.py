"""Writes large results of tools to files while they arrive, so that a result of any size costs little memory."""

from __future__ import annotations

import os
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec

from toolscout.privacy.private_files import make_private_folder, open_private
from toolscout.sources.json_stream import ENTER, KEEP, TAKE, JsonPath, JsonSplitter
from toolscout.sources.wire_limits import MAX_MESSAGE_BYTES

__all__ = ["PARTIAL", "RESULTS_FOLDER", "SPILL", "Spill", "SpillWriter", "SpilledPart", "Spills"]

RESULTS_FOLDER: Final = "results"  # in the home
PARTIAL: Final = ".partial"  # suffix of a file that no handle names yet
SPILL: Final = "toolscout/spill"  # key in `_meta` of a result whose large values are in a file
MAX_WAITING_SPILLS: Final = 64  # the oldest belong to calls that were given up


class SpilledPart(NamedTuple):
    """One value of a result: where it stands in the result, and where its bytes are in the file."""

    path: JsonPath
    is_text: bool
    start: int
    size: int


class Spill(NamedTuple):
    """The large values of one result, in a file that only its owner can read."""

    file: Path
    parts: list[SpilledPart]


def choose_part(path: JsonPath) -> str:
    """Choose what is taken out of a message: the texts, data and structured content of a result."""
    if not path or path[0] != "result" or len(path) > 5:
        return KEEP if path else ENTER
    match path[1:]:
        case () | ("content",) | ("content", int()) | ("content", int(), "resource"):
            return ENTER
        case ("structuredContent",) | ("content", int(), "text" | "data"):
            return TAKE
        case ("content", int(), "resource", "text" | "blob"):
            return TAKE
    return KEEP


class SpillWriter:
    """Splits one message: values of a result go to a file, the rest stays in memory.

    Attributes:
        size: bytes that were read.
    """

    def __init__(self, spills: Spills) -> None:
        self.size = 0
        self._spills = spills
        self._path = spills.folder / f"{secrets.token_urlsafe(12)}{PARTIAL}"
        self._file: IO[bytes] | None = None
        self._parts: list[SpilledPart] = []
        self._written = 0
        self._rest = bytearray()
        self._splitter = JsonSplitter(choose_part, self, self._rest.extend)

    def feed(self, piece: bytes) -> None:
        """Parse the next piece of the message: large values go to the file, all else stays in memory.

        Raises:
            ValueError: if the message is not JSON, if what stays in memory is too large, or if the file cannot be
                written.
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

        Raises:
            ValueError: if the message is not complete.
        """
        self._splitter.finish()
        if self._file is None:
            return bytes(self._rest)
        self._file.close()
        self._close_part()
        message = msgspec.json.decode(self._rest)
        meta = message["result"].get("_meta")
        token = self._spills.keep(Spill(self._path, self._parts))
        message["result"]["_meta"] = {**(meta if isinstance(meta, dict) else {}), SPILL: token}
        return msgspec.json.encode(message)

    def abandon(self) -> None:
        """Remove what was written."""
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)

    # What `JsonSplitter` calls for the values that it takes.

    def begin(self, path: JsonPath, is_text: bool) -> None:
        """Begin a value."""
        if self._file is None:
            make_private_folder(self._spills.folder)
            self._file = os.fdopen(open_private(self._path, os.O_WRONLY | os.O_EXCL), "wb")
        self._close_part()
        self._parts.append(SpilledPart(path[1:], is_text, self._written, 0))

    def write(self, data: bytes) -> None:
        """Write the next bytes of the value."""
        assert self._file is not None
        self._file.write(data)
        self._written += len(data)

    def _close_part(self) -> None:
        if self._parts:
            last = self._parts[-1]
            self._parts[-1] = last._replace(size=self._written - last.start)


class Spills:
    """The large results that nobody has taken yet."""

    def __init__(self, folder: Path) -> None:
        """Keep results in a folder, which is made for the first of them."""
        self.folder = folder
        self._waiting: OrderedDict[str, Spill] = OrderedDict()

    def open(self) -> SpillWriter:
        """Begin to split a message."""
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
        with suppress(OSError):
            self._waiting.pop(token).file.unlink(missing_ok=True)
