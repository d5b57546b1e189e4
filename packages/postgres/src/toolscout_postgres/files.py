"""Keeps documents (small files) and models of a home in PostgreSQL: the part `files`.

The files of a model are stored in pieces, because a value of PostgreSQL is in memory as a whole. A model also has the
digest of its manifest, which contains the digests of all its files.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from toolscout.trust.private_files import make_private_folder, open_private
from toolscout_postgres.address import Address
from toolscout_postgres.database import PostgresDatabase
from toolscout_postgres.schema import FILE_MIGRATIONS

__all__ = ["close_files", "open_files", "read_model", "write_model"]

MODEL_PIECE_BYTES: Final = 4_000_000
APPEND: Final = os.O_WRONLY | os.O_APPEND
_databases: dict[Address, PostgresDatabase] = {}  # those that are open
_databases_lock = threading.Lock()


def open_files(address: Address) -> PostgresDatabase:
    """Return the part `files` of a home. It is opened once in a process, and stays open until `close_files`."""
    with _databases_lock:
        if address not in _databases:
            if not _databases:
                atexit.register(close_files)
            _databases[address] = PostgresDatabase(address, "files", FILE_MIGRATIONS)
        return _databases[address]


def close_files(home: Address | None = None) -> None:
    """Close the part `files` of a home; None: of all homes. The next use opens it again."""
    with _databases_lock:
        for address in [address for address in _databases if home in (None, address)]:
            _databases.pop(address).close()


def write_model(address: Address, name: str, digest: str, folder: Path) -> None:
    """Store all files of a model's folder, except hidden ones, in one transaction.

    Args:
        address: of the home.
        name: of the model. Another model of this name is replaced; one with the same digest stays as it is.
        digest: of the model's manifest.
        folder: the folder of the model.
    """
    files = open_files(address)
    with files.writing() as connection:
        if connection.execute("SELECT 1 FROM models WHERE name = ? AND digest = ?", (name, digest)).fetchone():
            return
        connection.execute("DELETE FROM models WHERE name = ?", (name,))  # and its files, which refer to it
        connection.execute("INSERT INTO models VALUES (?, ?)", (name, digest))
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
            for piece, body in enumerate(_read_pieces(path)):
                connection.execute(
                    "INSERT INTO model_files VALUES (?, ?, ?, ?)",
                    (name, path.relative_to(folder).as_posix(), piece, body),
                )


def read_model(address: Address, name: str, folder: Path) -> None:
    """Write all files of a stored model into an empty folder. Their digests are not checked here."""
    with open_files(address).reading() as connection:
        pieces = connection.execute(
            "SELECT path, piece FROM model_files WHERE model = ? ORDER BY path, piece", (name,)
        ).fetchall()
        for path, piece in pieces:
            file = folder / path
            if not file.resolve().is_relative_to(folder.resolve()):
                continue  # a path out of the folder, which toolscout never stores
            make_private_folder(file.parent)
            query = "SELECT body FROM model_files WHERE model = ? AND path = ? AND piece = ?"
            (body,) = connection.execute(query, (name, path, piece)).fetchone()  # type: ignore[misc]
            with open(open_private(file, APPEND), "ab") as stream:
                stream.write(body)


def _read_pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in pieces; of an empty file one empty piece, so that the file is stored too."""
    with path.open("rb") as stream:
        yield stream.read(MODEL_PIECE_BYTES)
        while piece := stream.read(MODEL_PIECE_BYTES):
            yield piece
