"""The files of one snapshot: large arrays that all processes of a machine map and share.

They lie in the folder `snapshots` of the home, or beside it for a home in a database. Each file holds one part, such as
an index. Its name begins with the *stamp* of the snapshot, a random text that the catalogue keeps for one generation.
So a file always belongs to the state of the catalogue that it was built from, even if the catalogue is replaced by
another one with the same generation. A build takes over what has not changed from the files of the stamp before
(`toolscout.home.catalogue.earlier`). Files of other stamps are removed when the catalogue knows the new stamp.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from toolscout.errors import StoreError
from toolscout.home.catalogue.array_file import (
    Arrays,
    RowFile,
    check_file,
    open_arrays,
    write_arrays,
)
from toolscout.types import digest

__all__ = ["SNAPSHOTS_FOLDER", "Part", "SnapshotFiles", "check_snapshot_files", "list_snapshot_files"]

SNAPSHOTS_FOLDER: Final = "snapshots"
SUFFIX: Final = ".arrays"
_log: Final = logging.getLogger("toolscout.catalogue.snapshot_files")


class Part(NamedTuple):
    """One part of a snapshot.

    Attributes:
        arrays: read only.
        meta: JSON values.
        rows: readers of single rows of some arrays, if they lie in a file.
        is_file: whether they lie in a file, with a checksum.
    """

    arrays: Arrays
    meta: Mapping[str, Any]
    rows: Mapping[str, RowFile]
    is_file: bool = False


class SnapshotFiles:
    """Reads and writes the parts of one snapshot.

    Attributes:
        folder: of all snapshots. It need not exist.
        stamp: of this one.
        is_known: whether the catalogue knows the stamp.
        has_written: whether a part was written here.
    """

    def __init__(self, folder: Path, stamp: str, *, is_known: bool = True) -> None:
        """Keep the parts with this stamp in a folder."""
        self.folder, self.stamp, self.is_known, self.has_written = folder, stamp, is_known, False

    def open(self, key: str, *, check: bool = False) -> Part | None:
        """Return a part; None if it is not there. A damaged file is named in the log, and counts as not there.

        Args:
            key: of the part.
            check: whether to read the whole file first, also if it is large.
        """
        path = self._locate(key)
        if not path.exists():
            return None
        try:
            if check and (damage := check_file(path)):
                raise StoreError(f"{path} cannot be read: {damage}.")
            arrays, meta, rows = open_arrays(path)
        except StoreError as error:
            _log.warning("%s It is built again.", error)
            return None
        return Part(arrays, meta, rows, True) if meta.pop("key", None) == key else None

    def write(self, key: str, arrays: Arrays, meta: Mapping[str, Any]) -> Part | None:
        """Write a part and return it as a file has it; None if it cannot be written, which the log says."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_arrays(self._locate(key), arrays, {**meta, "key": key})
        except (OSError, StoreError) as error:
            _log.warning("The snapshot is not kept, and every process builds it for itself: %s", error)
            return None
        self.has_written = True
        return self.open(key)

    def find_others(self, key: str) -> list[SnapshotFiles]:
        """Return the files of other snapshots that have a part of this key, the newest first."""
        paths = [path for path in self.folder.glob(f"*-{_name_part(key)}") if path != self._locate(key)]
        with contextlib.suppress(OSError):  # another process may remove them now
            paths.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        return [SnapshotFiles(self.folder, path.name.partition("-")[0]) for path in paths]

    def _locate(self, key: str) -> Path:
        return self.folder / f"{self.stamp}-{_name_part(key)}"

    def remove_others(self) -> None:
        """Remove the files of other stamps. Processes that map one keep its content."""
        for path in list_snapshot_files(self.folder):
            if not path.name.startswith(f"{self.stamp}-"):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _name_part(key: str) -> str:
    """Return the end of the name of a file with a part of this key."""
    return f"{digest('snapshot/1', key)[-16:]}{SUFFIX}"


def list_snapshot_files(folder: Path) -> list[Path]:
    """Return the files of all snapshots, and what an interrupted write left."""
    return sorted([*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{SUFFIX}.*.part")])


def check_snapshot_files(folder: Path) -> list[str]:
    """Read all files of a folder as a whole, and return one line for each damaged one."""
    return [
        f"{path.name}: {wrong}"
        for path in list_snapshot_files(folder)
        if path.suffix == SUFFIX and (wrong := check_file(path))
    ]
