"""Answers by the content of their requests: nothing that was answered is paid for twice, and a record can be replayed.

The file holds digests of requests, never the requests.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from toolscout.database import Database, now
from toolscout.errors import SourceError
from toolscout.llm.wire import Completion

__all__ = ["Replies"]

MIGRATIONS: Final = ("CREATE TABLE replies (key TEXT PRIMARY KEY, at TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID",)
_DECODER: Final = msgspec.json.Decoder(Completion)


class _Line(msgspec.Struct):
    key: str
    reply: Completion


class Replies(Database):
    """The file of answers, `llm.db` in the home; only its owner may read it."""

    def __init__(self, home: Path) -> None:
        super().__init__(home / "llm.db", MIGRATIONS)
        os.chmod(self.path, 0o600)

    def get(self, key: str) -> Completion | None:
        """The answer to a request, if it was answered before."""
        with self.reading() as connection:
            row = connection.execute("SELECT body FROM replies WHERE key = ?", (key,)).fetchone()
        return None if row is None else _DECODER.decode(row[0])

    def put(self, key: str, reply: Completion) -> None:
        """Keep an answer; it survives a crash of the process as soon as this returns."""
        with self.writing() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO replies VALUES (?, ?, ?)", (key, now(), msgspec.json.encode(reply))
            )

    def export(self, file: Path) -> int:
        """Write a record that `load` replays: JSON lines of key and reply. Returns how many."""
        with self.reading() as connection:
            rows = connection.execute("SELECT key, body FROM replies ORDER BY key").fetchall()
        lines = [msgspec.json.encode(_Line(key, _DECODER.decode(body))) for key, body in rows]
        file.write_bytes(b"".join(line + b"\n" for line in lines))
        return len(lines)

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
