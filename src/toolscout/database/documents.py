"""Small files of a home, such as the list of champions, and the files of its models.

In a folder they are files. In a PostgreSQL home they are rows, so that all machines share them. A model is stored as
the content of its files, in pieces, with the digest of its manifest, which holds the digests of all files.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from toolscout.database.dialect import Migration
from toolscout.database.tenant_schema import separate_tables
from toolscout.home import Address, Home
from toolscout.privacy.private_files import make_private_folder, open_private, replace_file

if TYPE_CHECKING:
    from toolscout.database.postgres import PostgresDatabase

__all__ = [
    "FILE_MIGRATIONS",
    "close_documents",
    "delete_document",
    "list_documents",
    "open_files",
    "read_document",
    "read_tree",
    "stamp_document",
    "write_document",
    "write_tree",
]

#: What handles name; see `toolscout.database.handles`. A version without them keeps results on its own machine.
_HANDLES: Final = """
    CREATE TABLE results (handle TEXT NOT NULL, at DOUBLE PRECISION NOT NULL, about BLOB NOT NULL);
    CREATE TABLE result_pieces (handle TEXT NOT NULL, piece INTEGER NOT NULL, body BLOB NOT NULL);
    CREATE TABLE questions (
        handle TEXT NOT NULL, caller TEXT NOT NULL, renewed_at DOUBLE PRECISION NOT NULL, answer BLOB, outcome BLOB);
    """ + separate_tables(
    {"results": "handle", "result_pieces": "handle, piece", "questions": "handle"},
    references=(("result_pieces", "handle", "results"),),
)
FILE_MIGRATIONS: Final = (
    """
    CREATE TABLE documents (name TEXT PRIMARY KEY, version INTEGER NOT NULL, body BLOB NOT NULL);
    CREATE TABLE models (name TEXT PRIMARY KEY, digest TEXT NOT NULL);
    CREATE TABLE model_files (
        model TEXT NOT NULL REFERENCES models ON DELETE CASCADE, path TEXT NOT NULL, piece INTEGER NOT NULL,
        body BLOB NOT NULL, PRIMARY KEY (model, path, piece));
    """,
    separate_tables(
        {"documents": "name", "models": "name", "model_files": "model, path, piece"},
        references=(("model_files", "model", "models"),),
        constraints=("documents documents_pkey", "models models_pkey", "model_files model_files_pkey"),
    ),
    Migration("", _HANDLES, expands=True),
)
MODEL_PIECE_BYTES: Final = 4_000_000
APPEND: Final = os.O_WRONLY | os.O_APPEND
Stamp = tuple[int, int, int]
_open: dict[Address, PostgresDatabase] = {}
_open_lock = threading.Lock()


def open_files(address: Address) -> PostgresDatabase:
    """Return the part `files` of a home. It is opened once in a process, and stays open until `close_documents`."""
    from toolscout.database.postgres import PostgresDatabase

    with _open_lock:
        if address not in _open:
            if not _open:
                atexit.register(close_documents)
            _open[address] = PostgresDatabase(address, "files", FILE_MIGRATIONS)
        return _open[address]


def close_documents(home: Home | None = None) -> None:
    """Close the connections for documents of a home, or of all homes. The next use opens them again."""
    with _open_lock:
        for address in [address for address in _open if home in (None, address)]:
            _open.pop(address).close()


def read_document(home: Home, name: str) -> bytes:
    """Return the content of a small file of the home.

    Raises:
        OSError: FileNotFoundError if there is none; in a folder also if it cannot be read.
        StoreError: if the database does not answer.
    """
    if not isinstance(home, Address):
        return (home / name).read_bytes()
    rows = open_files(home).ask("SELECT body FROM documents WHERE name = ?", (name,))
    if not rows:
        raise FileNotFoundError(2, "No such file", f"{name} in {home.label}")
    return bytes(rows[0][0])


def write_document(home: Home, name: str, content: bytes) -> None:
    """Replace or create a small file of the home, atomically and durably."""
    if not isinstance(home, Address):
        make_private_folder((home / name).parent)
        replace_file(home / name, content)
        return
    with open_files(home).writing() as connection:
        connection.execute(
            "INSERT INTO documents VALUES (?, 1, ?) ON CONFLICT (name) DO UPDATE SET version = documents.version + 1, "
            "body = excluded.body",
            (name, content),
        )


def delete_document(home: Home, name: str) -> None:
    """Delete a small file of the home, if it is there."""
    if not isinstance(home, Address):
        (home / name).unlink(missing_ok=True)
        return
    with open_files(home).writing() as connection:
        connection.execute("DELETE FROM documents WHERE name = ?", (name,))


def list_documents(address: Address) -> list[str]:
    """Return the names of the small files of a home in a database."""
    return [name for (name,) in open_files(address).ask("SELECT name FROM documents ORDER BY name")]


def stamp_document(home: Home, name: str) -> Stamp | None:
    """Return a cheap stamp that changes when the file is written; None: there is none."""
    if not isinstance(home, Address):
        try:
            status = (home / name).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
    rows = open_files(home).ask("SELECT version, length(body) FROM documents WHERE name = ?", (name,))
    return (0, int(rows[0][0]), int(rows[0][1])) if rows else None


def write_tree(address: Address, name: str, digest: str, folder: Path) -> None:
    """Store all files of a model folder under a name, in one transaction. Nothing is written if the digest is there."""
    files = open_files(address)
    with files.writing() as connection:
        if connection.execute("SELECT 1 FROM models WHERE name = ? AND digest = ?", (name, digest)).fetchone():
            return
        connection.execute("DELETE FROM models WHERE name = ?", (name,))
        connection.execute("INSERT INTO models VALUES (?, ?)", (name, digest))
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
            for piece, body in enumerate(_read_pieces(path)):
                connection.execute(
                    "INSERT INTO model_files VALUES (?, ?, ?, ?)",
                    (name, path.relative_to(folder).as_posix(), piece, body),
                )


def read_tree(address: Address, name: str, folder: Path) -> None:
    """Write all files of a stored model into an empty folder. Their digests are not checked here."""
    with open_files(address).reading() as connection:
        pieces = connection.execute(
            "SELECT path, piece FROM model_files WHERE model = ? ORDER BY path, piece", (name,)
        ).fetchall()
        for path, piece in pieces:
            file = folder / path
            if not file.resolve().is_relative_to(folder.resolve()):
                continue  # the manifest of a model that toolscout wrote names no such file
            make_private_folder(file.parent)
            query = "SELECT body FROM model_files WHERE model = ? AND path = ? AND piece = ?"
            (body,) = connection.execute(query, (name, path, piece)).fetchone()  # type: ignore[misc]
            with open(open_private(file, APPEND), "ab") as stream:
                stream.write(body)


def _read_pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in pieces, at least one."""
    with path.open("rb") as stream:
        yield stream.read(MODEL_PIECE_BYTES)
        while piece := stream.read(MODEL_PIECE_BYTES):
            yield piece
