"""Stores what a handle names, for all replicas of a home in PostgreSQL: results of calls, and questions to users.

A handle is a random name that a client gets. It shows the handle to whichever replica serves its next request. Results
are kept for a day.

A call that must ask its user something waits in one replica, the *asking* replica. The user's answer may reach another
replica, the *receiving* one. It stores the answer (`answer`), the asking replica fetches it (`renew`), goes on with the
call, and stores the outcome (`finish`), which the receiving replica fetches (`take`) and returns to the client. While
the asking replica waits or works, it keeps renewing the question, so that others notice when it has ended.
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
RENEWAL_S: Final = 10.0  # after this time without a renewal, the asking replica counts as ended
QUESTION_KEPT_S: Final = 3600.0  # after this time without a renewal, a question is deleted
_NOW: Final = "extract(epoch FROM clock_timestamp())"  # the clock of the database, which all replicas share


class PostgresHandles:
    """Results and questions of a home; see `toolscout.location.SharedHandles`."""

    def __init__(self, address: Address) -> None:
        """Use the database of a home. It is opened with the first use."""
        self._address = address

    def share_secret(self, name: str) -> bytes:
        """Return a secret of the home: 32 random bytes that all replicas get. The first replica that asks makes them.

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
            about: bytes that describe the result; `fetch_result` returns them.
            file: has the content of the result.
            kept_s: seconds for which results are kept.

        Returns:
            Whether it was stored. A result above `MAX_SHARED_RESULT_BYTES` is not stored.

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
        """Write the content of a stored result to a file. Returns its `about`; None: there is no such result.

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
                number = 0  # of the next piece; one piece at a time is in memory
                while (piece := connection.execute(query, (handle, number)).fetchone()) is not None:
                    stream.write(piece[0])
                    number += 1
        return bytes(row[0])

    def offer(self, handle: str, caller: str) -> None:
        """Store a question of this replica, so that another replica can receive the answer.

        Old questions are deleted.

        Args:
            handle: names the question.
            caller: identifies the caller who may answer.
        """
        with self._address.open_files().session() as connection:
            connection.execute(f"DELETE FROM questions WHERE renewed_at < {_NOW} - ?", (QUESTION_KEPT_S,))
            connection.execute(f"INSERT INTO questions VALUES (?, ?, {_NOW}, NULL, NULL)", (handle, caller))

    def renew(self, handle: str) -> bytes | None:
        """Say that this replica still waits, and return the answer that another replica has received.

        None if there is no answer yet, or if the question is gone, because its caller gave the request up.
        """
        with self._address.open_files().session() as connection:
            query = f"UPDATE questions SET renewed_at = {_NOW} WHERE handle = ? RETURNING answer"
            row = connection.execute(query, (handle,)).fetchone()
        return None if row is None or row[0] is None else bytes(row[0])

    def withdraw(self, handle: str) -> bool:
        """Delete a question that got its answer in this replica, or was given up.

        Returns False if another replica has answered it, or if it is gone; nothing is then deleted.
        """
        with self._address.open_files().session() as connection:
            query = "DELETE FROM questions WHERE handle = ? AND answer IS NULL"
            return connection.execute(query, (handle,)).rowcount > 0

    def answer(self, handle: str, caller: str, answer: bytes) -> bool:
        """Store the answer that this replica has received, for the replica that asked.

        Returns:
            Whether the question was open: asked to this caller, not answered, and its replica still waits.
        """
        with self._address.open_files().session() as connection:
            query = (
                "UPDATE questions SET answer = ? WHERE handle = ? AND caller = ? AND answer IS NULL "
                f"AND renewed_at > {_NOW} - ?"
            )
            return connection.execute(query, (answer, handle, caller, RENEWAL_S)).rowcount > 0

    def give_up(self, handle: str, caller: str) -> None:
        """Delete an answered question, because its caller no longer waits for the outcome.

        A question without an answer stays, because the replica that asked it still waits.
        """
        with self._address.open_files().session() as connection:
            connection.execute(
                "DELETE FROM questions WHERE handle = ? AND caller = ? AND answer IS NOT NULL", (handle, caller)
            )

    def finish(self, handle: str, outcome: bytes) -> None:
        """Store the outcome of the request, for the replica that received the answer."""
        with self._address.open_files().session() as connection:
            connection.execute("UPDATE questions SET outcome = ? WHERE handle = ?", (outcome, handle))

    def take(self, handle: str) -> tuple[bytes | None, bool]:
        """Return the outcome of an answered question, and delete the question.

        Returns:
            The outcome, None if there is none yet; whether the replica that works on it still runs.
        """
        with self._address.open_files().session() as connection:
            query = f"SELECT outcome, renewed_at > {_NOW} - ? FROM questions WHERE handle = ?"
            row = connection.execute(query, (RENEWAL_S, handle)).fetchone()
            if row is None:
                return None, False
            outcome, still_runs = row
            if outcome is not None:
                connection.execute("DELETE FROM questions WHERE handle = ?", (handle,))
        return None if outcome is None else bytes(outcome), bool(still_runs)


def _read_pieces(file: Path) -> Iterator[bytes]:
    """Yield the content of a file in pieces; nothing if it is empty."""
    with contextlib.closing(file.open("rb")) as stream:
        while piece := stream.read(RESULT_PIECE_BYTES):
            yield piece
