"""Answers by the content of their requests: nothing that was answered is paid for twice, and a record can be replayed.

The file holds digests of requests, never the requests.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from toolscout.database import CacheDatabase, now, rebuild_if_damaged
from toolscout.errors import SourceError, UserError
from toolscout.llm.wire import Completion
from toolscout.privacy.private_files import open_private

__all__ = ["Record", "Replies"]

FILE_NAME: Final = "llm.db"
MIGRATIONS: Final = ("CREATE TABLE replies (key TEXT PRIMARY KEY, at TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID",)
_DECODER: Final = msgspec.json.Decoder(Completion)


class _Line(msgspec.Struct):
    key: str
    reply: Completion


class Replies(CacheDatabase):
    """The file of answers, `llm.db` in the home; only its owner may read it."""

    def __init__(self, home: Path, *, repair: bool = True) -> None:
        """Open or create it; see `CacheDatabase`."""
        super().__init__(home / FILE_NAME, MIGRATIONS, repair=repair)

    @rebuild_if_damaged
    def get(self, key: str) -> Completion | None:
        """The answer to a request, if it was answered before."""
        with self.reading() as connection:
            row = connection.execute("SELECT body FROM replies WHERE key = ?", (key,)).fetchone()
        return None if row is None else _DECODER.decode(row[0])

    @rebuild_if_damaged
    def put(self, key: str, reply: Completion) -> None:
        """Keep an answer; it survives a crash of the process as soon as this returns."""
        with self.writing() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO replies VALUES (?, ?, ?)", (key, now(), msgspec.json.encode(reply))
            )

    def export(self, file: Path, keys: Iterable[str]) -> int:
        """Write a record that `Record` replays: JSON lines of key and reply, for its owner alone. Returns how many.

        Args:
            file: where to; it is there in full or not at all.
            keys: of the answers; those that are not there are left out.

        Raises:
            UserError: if it cannot be written.
        """
        found = [(key, reply) for key in sorted(set(keys)) if (reply := self.get(key)) is not None]
        partial = file.with_name(f"{file.name}.partial")
        try:
            with open(open_private(partial, os.O_WRONLY | os.O_TRUNC), "wb") as stream:
                stream.writelines(msgspec.json.encode(_Line(key, reply)) + b"\n" for key, reply in found)
            partial.replace(file)
        except OSError as error:
            raise UserError(f"{file}: expected a place to write the record, found: {error.strerror}") from None
        return len(found)

    def load(self, file: Path) -> int:
        """Take in a record; what is there already stays. Returns how many lines it has.

        Raises:
            SourceError: naming file and line that is none.
        """
        count = 0
        try:
            lines = file.read_bytes().splitlines()
        except OSError as error:
            raise SourceError(f"{file}: expected a record of replies, found: {error.strerror}") from None
        for count, line in enumerate(lines, 1):
            try:
                entry = msgspec.json.decode(line, type=_Line)
            except msgspec.MsgspecError as error:
                raise SourceError(f"{file}, line {count}: expected a key and a reply, found: {error}") from None
            self.put(entry.key, entry.reply)
        return count


class Record(Replies):
    """The answers of a record and no others, in a folder that goes when it is closed."""

    def __init__(self, file: Path) -> None:
        """Read the record.

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
        """Forget it."""
        super().close()
        self._folder.cleanup()
