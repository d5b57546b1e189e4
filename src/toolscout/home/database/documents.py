"""Small files of a home, such as the list of champions. A shared home keeps them where all machines see them."""

from __future__ import annotations

from toolscout.home.database.folder import open_home
from toolscout.location import Home, Stamp

__all__ = ["close_documents", "delete_document", "read_document", "stamp_document", "write_document"]


def close_documents(home: Home) -> None:
    """Close the connections for documents of a home. The next use opens them again."""
    open_home(home).close()


def read_document(home: Home, name: str) -> bytes:
    """Return the content of a small file of the home.

    Raises:
        OSError: FileNotFoundError if there is none; in a folder also if it cannot be read.
        StoreError: if the database does not answer.
    """
    return open_home(home).read_document(name)


def write_document(home: Home, name: str, content: bytes) -> None:
    """Replace or create a small file of the home, atomically and durably."""
    open_home(home).write_document(name, content)


def delete_document(home: Home, name: str) -> None:
    """Delete a small file of the home, if it is there."""
    open_home(home).delete_document(name)


def stamp_document(home: Home, name: str) -> Stamp | None:
    """Return a cheap stamp that changes when the file is written; None: there is none."""
    return open_home(home).stamp_document(name)
