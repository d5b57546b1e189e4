"""What cross-encoders said of pairs of a query and a tool, kept by content: a pair is read once, whichever recipe asks.

For measuring, not for searching: `bench` fits and scores many recipes over one cross-encoder.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from toolscout.database import CacheDatabase, rebuild_if_damaged
from toolscout.errors import StoreError
from toolscout.types import digest

__all__ = ["Kept", "Reader", "Readings", "kept"]

FILE_NAME: Final = "readings.db"
MIGRATIONS: Final = (
    """
    CREATE TABLE readings (
        reader TEXT NOT NULL, pair BLOB NOT NULL, logit REAL NOT NULL, PRIMARY KEY (reader, pair)) WITHOUT ROWID
    """,
)
_log: Final = logging.getLogger("toolscout.encoders.pair_cache")
Floats = npt.NDArray[np.float64]


class Reader(Protocol):
    """A cross-encoder; see `OnnxPairs`.

    Attributes:
        length: pieces that are read of a pair.
        fingerprint: of all that decides on a logit.
    """

    length: int
    fingerprint: str

    def logits(self, query: str, texts: Sequence[str], deadline: float | None = None) -> Floats:
        """How much the query needs each tool; fewer where the deadline came first."""
        ...


class Readings(CacheDatabase):
    """The file of readings.

    Attributes:
        taken: how many readings, about, were answered from the file; 0 if none was.
    """

    def __init__(self, folder: Path, *, repair: bool = True) -> None:
        """Open or create the file in the folder; see `CacheDatabase`."""
        super().__init__(folder / FILE_NAME, MIGRATIONS, repair=repair)
        self.taken, self.resting, self._warned = 0, False, False

    @contextlib.contextmanager
    def rest(self) -> Iterator[None]:
        """Meanwhile everything is read anew and nothing is kept: what it takes is what a search takes."""
        self.resting = True
        try:
            yield
        finally:
            self.resting = False

    @rebuild_if_damaged
    def held(self, reader: str, pairs: Sequence[bytes]) -> dict[bytes, float]:
        """Those of the pairs that the reader of that fingerprint has read → their logits."""
        found: dict[bytes, float] = {}
        with self.reading() as connection:
            for pair in pairs:
                question = "SELECT logit FROM readings WHERE reader = ? AND pair = ?"
                for (logit,) in connection.execute(question, (reader, pair)):
                    found[pair] = logit
        if found:  # nothing else is added up: threads may then lose some, but never all
            self.taken += len(found)
        return found

    def put(self, reader: str, logits: Mapping[bytes, float]) -> None:
        """Keep what was read, where the file can be written; otherwise warn once."""
        try:
            if not self.read_only:
                self._put(reader, logits)
        except StoreError as error:
            if not self._warned:
                _log.warning("new readings are not kept: %s", error)
            self._warned = True

    @rebuild_if_damaged
    def _put(self, reader: str, logits: Mapping[bytes, float]) -> None:
        with self.writing() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO readings VALUES (?, ?, ?)",
                [(reader, pair, logit) for pair, logit in logits.items()],
            )


class Kept:
    """A reader that reads what is not kept yet, and keeps it.

    With a deadline it reads everything anew: what a caller gets in time must not depend on what others asked before.
    """

    def __init__(self, reader: Reader, readings: Readings) -> None:
        """Take the reader, and where its readings are kept."""
        self.reader, self.readings = reader, readings
        self.length, self.fingerprint = reader.length, reader.fingerprint

    def logits(self, query: str, texts: Sequence[str], deadline: float | None = None) -> Floats:
        """As the reader's; a pair that was in another batch then may differ by what rounding makes of that."""
        if deadline is not None or self.readings.resting:
            return self.reader.logits(query, texts, deadline)
        pairs = [bytes.fromhex(digest("pair/1", [query, text])) for text in texts]
        found = self.readings.held(self.fingerprint, pairs)
        missing = {pair: text for pair, text in zip(pairs, texts, strict=True) if pair not in found}
        if missing:
            made = dict(zip(missing, self.reader.logits(query, [*missing.values()]).tolist(), strict=True))
            self.readings.put(self.fingerprint, made)
            found |= made
        return np.array([found[pair] for pair in pairs], dtype=np.float64)


def kept(reader: Reader, readings: Readings | None) -> Reader:
    """The reader over what is kept of its readings, unless nothing is, or it is so already."""
    return reader if readings is None or isinstance(reader, Kept) else Kept(reader, readings)
