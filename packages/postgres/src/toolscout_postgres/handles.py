"""What a handle names, for all replicas of a home in PostgreSQL: results of calls, and questions to users.

A client keeps a handle and shows it to whichever replica answers next. Results are kept for a day. A question belongs
to the replica that waits for its answer: that replica renews it, so others notice when it has ended.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from toolscout.trust.private_files import make_private_folder, open_private

if TYPE_CHECKING:
    from toolscout_postgres.address import Address

__all__ = ["MAX_SHARED_RESULT_BYTES", "PostgresHandles"]

RESULT_PIECE_BYTES: Final = 4_000_000
MAX_SHARED_RESULT_BYTES: Final = 64 * 2**20  # a larger result stays on the machine that made the call
RENEWAL_S: Final = 10.0  # a question that its replica has not renewed for this time is lost
QUESTION_KEPT_S: Final = 3600.0
_NOW: Final = "extract(epoch FROM clock_timestamp())"  # the clock of the database, which all replicas share


class PostgresHandles:
    """What handles name in a home; see `toolscout.location.SharedHandles`."""

    def __init__(self, address: Address) -> None:
        """Use the database of a home. It is opened with the first handle."""
        self._address = address

    def share_secret(self, name: str) -> bytes:
        """Return the secret of a home under a name: 32 random bytes that all its replicas use. The first one makes it.

        Raises:
            StoreError: if the database does not answer.
        """
        with self._address.open_files().writing() as connection:
            connection.execute(
                "INSERT INTO documents VALUES (?, 1, ?) ON CONFLICT (name) DO NOTHING", (name, secrets.token_bytes(32))
            )
            row = connection.execute("SELECT body FROM documents WHERE name = ?", (name,)).fetchone()
        assert row is not None
        return bytes(row[0])

    def put_result(self, handle: str, about: bytes, file: Path, kept_s: float) -> bool:
        """Store a result for all replicas, and remove those that are older than `kept_s`.

        Args:
            handle: names the result.
            about: what is known of it.
            file: its bytes.
            kept_s: seconds that results are kept.

        Returns:
            Whether it was stored. A result above 64 MiB is not stored.

        Raises:
            StoreError: if the database does not answer.
        """
        if file.stat().st_size > MAX_SHARED_RESULT_BYTES:
            return False
        with self._address.open_files().writing() as connection:
            connection.execute("DELETE FROM results WHERE at < ?", (time.time() - kept_s,))
            connection.execute("INSERT INTO results VALUES (?, ?, ?)", (handle, time.time(), about))
            for piece, body in enumerate(_read_pieces(file)):
                connection.execute("INSERT INTO result_pieces VALUES (?, ?, ?)", (handle, piece, body))
        return True

    def fetch_result(self, handle: str, file: Path) -> bytes | None:
        """Write the bytes of a stored result to a new file. Returns what is known of it; None: there is no such result.

        Raises:
            StoreError: if the database does not answer.
        """
        with self._address.open_files().reading() as connection:
            row = connection.execute("SELECT about FROM results WHERE handle = ?", (handle,)).fetchone()
            if row is None:
                return None
            make_private_folder(file.parent)
            with open(open_private(file, os.O_WRONLY | os.O_TRUNC), "wb") as stream:
                query = "SELECT body FROM result_pieces WHERE handle = ? AND piece = ?"
                piece = 0
                while (body := connection.execute(query, (handle, piece)).fetchone()) is not None:
                    stream.write(body[0])
                    piece += 1
        return bytes(row[0])

    def offer(self, handle: str, caller: str) -> None:
        """Let other replicas take the answer to a question of this one. `caller`: a mark of who may answer."""
        with self._address.open_files().session() as connection:
            connection.execute(f"DELETE FROM questions WHERE renewed_at < {_NOW} - ?", (QUESTION_KEPT_S,))
            connection.execute(f"INSERT INTO questions VALUES (?, ?, {_NOW}, NULL, NULL)", (handle, caller))

    def renew(self, handle: str) -> bytes | None:
        """Say that this replica still waits for an answer, and return the answer that another one has taken.

        None: there is no answer, or its caller has given the request up since.
        """
        with self._address.open_files().session() as connection:
            query = f"UPDATE questions SET renewed_at = {_NOW} WHERE handle = ? RETURNING answer"
            row = connection.execute(query, (handle,)).fetchone()
        return None if row is None or row[0] is None else bytes(row[0])

    def withdraw(self, handle: str) -> bool:
        """Close a question that got its answer here, or was given up. Returns whether no other replica answered it."""
        with self._address.open_files().session() as connection:
            query = "DELETE FROM questions WHERE handle = ? AND answer IS NULL"
            return connection.execute(query, (handle,)).rowcount > 0

    def answer(self, handle: str, caller: str, answer: bytes) -> bool:
        """Give the replica that waits the answer of its caller. Returns whether the question was still open."""
        with self._address.open_files().session() as connection:
            query = (
                "UPDATE questions SET answer = ? WHERE handle = ? AND caller = ? AND answer IS NULL "
                f"AND renewed_at > {_NOW} - ?"
            )
            return connection.execute(query, (answer, handle, caller, RENEWAL_S)).rowcount > 0

    def give_up(self, handle: str, caller: str) -> None:
        """Forget an answered question, because its caller no longer waits for what comes of it.

        A question without an answer stays, because the replica that asked it still waits.
        """
        with self._address.open_files().session() as connection:
            connection.execute(
                "DELETE FROM questions WHERE handle = ? AND caller = ? AND answer IS NOT NULL", (handle, caller)
            )

    def finish(self, handle: str, outcome: bytes) -> None:
        """Hand what came of the request to the replica that took the answer."""
        with self._address.open_files().session() as connection:
            connection.execute("UPDATE questions SET outcome = ? WHERE handle = ?", (outcome, handle))

    def take(self, handle: str) -> tuple[bytes | None, bool]:
        """Return what came of an answered question, and whether the replica that works on it still runs."""
        with self._address.open_files().session() as connection:
            query = f"SELECT outcome, renewed_at > {_NOW} - ? FROM questions WHERE handle = ?"
            row = connection.execute(query, (RENEWAL_S, handle)).fetchone()
            if row is None:
                return None, False
            if row[0] is not None:
                connection.execute("DELETE FROM questions WHERE handle = ?", (handle,))
        return None if row[0] is None else bytes(row[0]), bool(row[1])


def _read_pieces(file: Path) -> Iterator[bytes]:
    with contextlib.closing(file.open("rb")) as stream:
        while piece := stream.read(RESULT_PIECE_BYTES):
            yield piece
