"""Caches answers by a digest of their request, so that no answer is paid for twice and runs can be replayed.

The file contains digests of requests, never the requests.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from toolscout.errors import SourceError, UserError
from toolscout.home.database import CacheDatabase, now, rebuild_if_damaged
from toolscout.trust.private_files import open_private
from toolscout_lab.llm.wire import Completion

__all__ = ["Record", "Replies"]

REPLIES_FILE: Final = "llm.db"
REPLY_MIGRATIONS: Final = (
    "CREATE TABLE replies (key TEXT PRIMARY KEY, at TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID",
)
_COMPLETION_DECODER: Final = msgspec.json.Decoder(Completion)


class _Line(msgspec.Struct):
    key: str
    reply: Completion


class Replies(CacheDatabase):
    """The cache of answers, `llm.db` in the home; only its owner may read it."""

    def __init__(self, home: Path, *, repair: bool = True) -> None:
        """Open or create the file; see `CacheDatabase`."""
        super().__init__(home / REPLIES_FILE, REPLY_MIGRATIONS, repair=repair)

    @rebuild_if_damaged
    def get(self, key: str) -> Completion | None:
        """Return the stored answer to a request, or None."""
        with self.reading() as connection:
            row = connection.execute("SELECT body FROM replies WHERE key = ?", (key,)).fetchone()
        return None if row is None else _COMPLETION_DECODER.decode(row[0])

    @rebuild_if_damaged
    def put(self, key: str, reply: Completion) -> None:
        """Store an answer; it survives a crash of the process once this returns."""
        with self.writing() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO replies VALUES (?, ?, ?)", (key, now(), msgspec.json.encode(reply))
            )

    def export(self, file: Path, keys: Iterable[str]) -> int:
        """Write a record for `Record` as JSON lines of key and reply, readable only by its owner; return its length.

        Args:
            file: file to write, replaced atomically.
            keys: keys of the answers; unknown keys are skipped.

        Raises:
            UserError: if it cannot be written.
        """
        replies = [(key, reply) for key in sorted(set(keys)) if (reply := self.get(key)) is not None]
        partial = file.with_name(f"{file.name}.partial")
        try:
            with open(open_private(partial, os.O_WRONLY | os.O_TRUNC), "wb") as stream:
                stream.writelines(msgspec.json.encode(_Line(key, reply)) + b"\n" for key, reply in replies)
            partial.replace(file)
        except OSError as error:
            raise UserError(f"The record {file} cannot be written: {error.strerror}") from None
        return len(replies)

    def load(self, file: Path) -> int:
        """Import a record, keep the answers that are already stored, and return the number of its lines.

        Raises:
            SourceError: naming file and line of a bad entry.
        """
        count = 0
        try:
            lines = file.read_bytes().splitlines()
        except OSError as error:
            raise SourceError(f"The record {file} cannot be read: {error.strerror}") from None
        for count, line in enumerate(lines, 1):
            try:
                entry = msgspec.json.decode(line, type=_Line)
            except msgspec.MsgspecError as error:
                raise SourceError(f"{file}, line {count}: expected a key and a reply, found: {error}") from None
            self.put(entry.key, entry.reply)
        return count


class Record(Replies):
    """The answers of one record, in a temporary folder that `close` removes."""

    def __init__(self, file: Path) -> None:
        """Load the record.

        Raises:
            SourceError: see `load`.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="toolscout-")
        super().__init__(Path(self._folder.name))
        try:
            self.load(file)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file and remove the temporary folder."""
        super().close()
        self._folder.cleanup()
