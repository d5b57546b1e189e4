"""Creates files and folders that only their owner can read, and replaces files atomically and durably."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from toolscout.errors import StoreError

__all__ = [
    "list_exposed",
    "make_private_folder",
    "open_plain_file",
    "open_private",
    "protect_tree",
    "read_plain_file",
    "refuse_links",
    "replace_file",
    "sync_file",
    "sync_folder",
    "sync_tree",
    "tighten",
]

MAX_READ_BYTES: Final = 100_000_000  # of a file that is read as a whole
HOME_FILES: Final = ("catalogue.db", "journal.db", "vectors.db")  # a folder with one of them is a home
MAX_DEPTH_IN_HOME: Final = 4
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO  # permission bits of everybody but the owner
#: Private entries of a home: databases with the files that SQLite adds, and files with queries, names or keys.
HOME_PATTERNS: Final = (
    "*.db", "*.db-*", "*.db.damaged-*", "*.json", "*.toml", "oauth", "identities", "models", "learn", "bench",
    "results", "snapshots",
)  # fmt: skip


def make_private_folder(folder: Path) -> None:
    """Make a folder that only its owner can enter. Missing parents are made in the same way.

    An existing folder may be shared on purpose. It is not changed here, but `doctor` reports it.

    Raises:
        OSError: if it cannot be made.
        StoreError: see `refuse_links`.
    """
    refuse_links(folder)
    if not folder.parent.exists():
        make_private_folder(folder.parent)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def refuse_links(path: Path) -> None:
    """Refuse a path that is a link inside a home, or is below one, because toolscout would write somewhere else.

    The home itself may be a link, since its owner chose its path.

    Raises:
        StoreError: if there is such a link; the message names it.
    """
    for folder in (path, *path.parents[:MAX_DEPTH_IN_HOME]):
        if folder.is_symlink() and any((folder.parent / name).exists() for name in HOME_FILES):
            raise StoreError(
                f"{folder} is a link to another place, and toolscout does not write there. Replace it by a folder."
            )


def open_private(path: Path, flags: int) -> int:
    """Open or create a file that only its owner can read and write. Returns the descriptor; flags as for `os.open`."""
    descriptor = os.open(path, flags | os.O_CREAT, FILE_MODE)  # the mode is for a new file alone
    with contextlib.suppress(OSError):  # a file of another owner keeps its mode
        os.fchmod(descriptor, FILE_MODE)
    return descriptor


def tighten(path: Path) -> bool:
    """Remove the permissions of group and others from a file or folder. Returns whether there were any to remove.

    Links are left as they are, and so are files that this process may not change.
    """
    with contextlib.suppress(OSError):
        mode = path.lstat().st_mode
        if mode & OTHERS and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)
            return True
    return False


def protect_tree(folder: Path) -> None:
    """Remove the permissions of group and others from a folder and everything in it."""
    for path in (folder, *folder.rglob("*")):
        tighten(path)


def list_exposed(home: Path) -> list[Path]:
    """List what group or others can reach of a home: the home itself, and its private entries.

    Folders are listed without their content. If the home is no folder, nothing is listed.
    """
    if not home.is_dir():
        return []
    paths = [home, *sorted({path for pattern in HOME_PATTERNS for path in home.glob(pattern)})]
    return [path for path in paths if not path.is_symlink() and _is_exposed(path)]


def _is_exposed(path: Path) -> bool:
    """Return whether others may read or change a file. False if it is gone."""
    try:
        return bool(path.stat().st_mode & OTHERS)
    except OSError:
        return False


def sync_file(path: Path) -> None:
    """Write a file's content through to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Write a folder's entries through to the disk, so that a rename survives a loss of power."""
    sync_file(folder)


def sync_tree(folder: Path) -> None:
    """Write every file and folder below a folder through to the disk, then the folder itself."""
    for path in _walk_inner_first(folder):
        sync_file(path)


def _walk_inner_first(folder: Path) -> Iterator[Path]:
    """Yield the files and folders below a folder, and the folder last. Links are left out."""
    for path in folder.iterdir():
        if path.is_symlink():
            continue
        if path.is_dir():
            yield from _walk_inner_first(path)
        elif path.is_file():
            yield path
    yield folder


def open_plain_file(path: Path) -> BinaryIO:
    """Open a file for reading. A pipe is refused, because the reader would wait for ever.

    Raises:
        OSError: if there is no file, or it is no plain file.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a writer. Some systems lack O_NONBLOCK or O_BINARY.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    stream = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "expected a plain file", str(path))
    return stream


def read_plain_file(path: Path, max_bytes: int = MAX_READ_BYTES) -> bytes:
    """Read a file of at most `max_bytes` bytes.

    Raises:
        OSError: if there is no file, it is no plain file, or it is larger.
    """
    with open_plain_file(path) as stream:
        if os.fstat(stream.fileno()).st_size > max_bytes:
            raise OSError(errno.EINVAL, f"expected a file of at most {max_bytes:,} bytes", str(path))
        return stream.read(max_bytes)


def replace_file(path: Path, content: bytes) -> None:
    """Replace or create a private file atomically. The new content survives a loss of power."""
    # The name belongs to this thread, so two writers of one file do not mix their contents.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        with open(open_private(partial, os.O_WRONLY | os.O_TRUNC), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except OSError as error:  # the disk may be full
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(path.parent)
