"""The files of one snapshot: large arrays that all processes of a machine map and share.

They are in the folder `snapshots` of the home, or of the local folder of a home in a database. Each file contains one
part, such as an index. Its name begins with the *stamp* of the snapshot, a random text that the catalogue stores for
one generation. So a file always belongs to the state of the catalogue that it was built from, even if the catalogue is
replaced by another one with the same generation. A build takes over what has not changed from the files of the stamp
before (`EarlierSnapshot`). Files of other stamps are removed when the catalogue has stored the new stamp.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toolscout.errors import StoreError
from toolscout.home.catalogue.array_file import Arrays, RowFile, check_file, open_arrays, write_arrays
from toolscout.trust.private_files import make_private_folder
from toolscout.types import digest

__all__ = [
    "FINGERPRINTS_FORMAT",
    "SNAPSHOTS_FOLDER",
    "EarlierSnapshot",
    "SnapshotFiles",
    "SnapshotPart",
    "check_snapshot_files",
    "list_snapshot_files",
    "make_fingerprint_rows",
]

SNAPSHOTS_FOLDER: Final = "snapshots"
SUFFIX: Final = ".arrays"
_log: Final = logging.getLogger("toolscout.catalogue.snapshot_files")


class SnapshotPart(NamedTuple):
    """One part of a snapshot, such as an index.

    Attributes:
        arrays: name → array, which must not be changed.
        meta: name → JSON value.
        rows: name of an array → reader of its single rows, for arrays that are in a file.
        is_file: whether the arrays are in a file with a checksum, not in memory alone.
    """

    arrays: Arrays
    meta: Mapping[str, Any]
    rows: Mapping[str, RowFile]
    is_file: bool = False


class SnapshotFiles:
    """Reads and writes the parts of one snapshot.

    Attributes:
        folder: folder of all snapshots. It need not exist.
        stamp: identifies this snapshot, and begins the names of its files.
        is_known: whether the catalogue has stored the stamp, so that other processes use these files too.
        has_written: whether this object has written a part.
    """

    def __init__(self, folder: Path, stamp: str, *, is_known: bool = True) -> None:
        """Keep the parts with this stamp in a folder."""
        self.folder, self.stamp, self.is_known, self.has_written = folder, stamp, is_known, False
        self._has_failed = False  # a part could not be written; said once

    def open(self, key: str, *, check: bool = False) -> SnapshotPart | None:
        """Return a part; None if it is not there. A damaged file is named in the log, and counts as not there.

        Args:
            key: names the part, its format and what it depends on besides the snapshot.
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
            # a file of an earlier version has another format, which is no reason to worry
            level = logging.INFO if "another format" in str(error) else logging.WARNING
            _log.log(level, "%s. It is built again.", str(error).removesuffix("."))
            return None
        is_same_key = meta.pop("key", None) == key  # the name of the file has only a digest of it
        return SnapshotPart(arrays, meta, rows, True) if is_same_key else None

    def write(self, key: str, arrays: Arrays, meta: Mapping[str, Any]) -> SnapshotPart | None:
        """Write a part and return it as a file has it; None if it cannot be written, which the log says."""
        try:
            make_private_folder(self.folder)
            write_arrays(self._locate(key), arrays, {**meta, "key": key})
        except (OSError, StoreError) as error:
            if not self._has_failed:
                _log.warning("The snapshot is not kept, and every process builds it for itself: %s", error)
            self._has_failed = True
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
        """Return the path of a part."""
        return self.folder / f"{self.stamp}-{_name_part(key)}"

    def remove_others(self) -> None:
        """Remove the files of other stamps. A process that has mapped one can go on reading it."""
        for path in list_snapshot_files(self.folder):
            if not path.name.startswith(f"{self.stamp}-"):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _name_part(key: str) -> str:
    """Return the end of the name of a file with a part of this key."""
    return f"{digest('snapshot/1', key)[-16:]}{SUFFIX}"


def list_snapshot_files(folder: Path) -> list[Path]:
    """Return the files of all snapshots, and what interrupted writes left. Empty for a link: its files are not ours."""
    return [] if folder.is_symlink() else sorted([*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{SUFFIX}.*.part")])


def check_snapshot_files(folder: Path) -> list[str]:
    """Read all files of a folder as a whole, and return one line for each damaged one.

    A file that is gone when it was read is none: another process has put a later snapshot in its place.
    """
    return [
        f"{path.name}: {damage}"
        for path in list_snapshot_files(folder)
        if path.suffix == SUFFIX and (damage := check_file(path)) and os.path.lexists(path)
    ]


FINGERPRINTS_FORMAT: Final = "fingerprints/1"
FINGERPRINT_BYTES: Final = 16

Fingerprints = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]


def make_fingerprint_rows(
    ids: Sequence[str], fingerprints: Mapping[str, str]
) -> tuple[dict[str, Fingerprints], dict[str, object]]:
    """Return the arrays and the JSON values of the part of a snapshot that contains the fingerprints of its tools.

    Args:
        ids: of the snapshot.
        fingerprints: tool id → fingerprint. A tool without one counts as changed.

    Returns:
        `rows`, `(tools, 16)` bytes in the order of `ids`; and `sources`, source → number of tools, in the same order.
    """
    no_fingerprint = "0" * 2 * FINGERPRINT_BYTES
    content = b"".join(bytes.fromhex(fingerprints.get(tool_id, no_fingerprint)) for tool_id in ids)
    rows = np.frombuffer(content, dtype=np.uint8).reshape(len(ids), FINGERPRINT_BYTES)
    sizes = Counter(tool_id.partition("/")[0] for tool_id in ids)
    return {"rows": rows}, {"sources": dict(sizes)}


class EarlierSnapshot:
    """The snapshot before, from which parts for tools that have not changed can be taken.

    Attributes:
        positions: `(tools,)`, for each tool of the present snapshot its position in the earlier one, or -1 for a tool
            that is new or changed.
        n_tools: number of tools of the earlier snapshot.
        unchanged_sources: names of the sources that have the same tools in both.
    """

    def __init__(
        self,
        files: SnapshotFiles,
        present: SnapshotPart,
        earlier: SnapshotPart,
        load_value: Callable[[str], bytes | None],
    ) -> None:
        """Compare the fingerprints of two snapshots.

        Args:
            files: of the earlier snapshot.
            present: the part with the fingerprints of the present snapshot; see `make_fingerprint_rows`.
            earlier: the same part of the earlier one.
            load_value: key → the value that the catalogue stored for the earlier snapshot, or None.
        """
        self.load_value = load_value
        self._files = files
        self.n_tools = len(earlier.arrays["rows"])
        self.positions = _find_rows(present.arrays["rows"], earlier.arrays["rows"])
        sizes, earlier_sizes = present.meta["sources"], earlier.meta["sources"]
        starts = np.cumsum([0, *sizes.values()])[:-1].tolist()  # where the tools of each source begin
        self.unchanged_sources = frozenset(
            source
            for (source, size), start in zip(sizes.items(), starts, strict=True)
            if earlier_sizes.get(source) == size and (self.positions[start : start + size] >= 0).all()
        )

    @functools.cached_property
    def new_positions(self) -> npt.NDArray[np.intp]:
        """Positions (in the present snapshot) of the tools that are new or changed, ascending."""
        return np.flatnonzero(self.positions < 0)

    @functools.cached_property
    def kept_positions(self) -> npt.NDArray[np.intp]:
        """Positions (in the present snapshot) of the tools that have not changed, ascending."""
        return np.flatnonzero(self.positions >= 0)

    def open_part(self, key: str) -> SnapshotPart | None:
        """Return a part of the earlier snapshot; None if it is not there, or any of its bytes is damaged."""
        return self._files.open(key, check=True)


def _find_rows(rows: Fingerprints, others: Fingerprints) -> Positions:
    """Return for each row, `(n, 16)`, the position of the same row in `others`, `(m, 16)`; -1: there is none.

    A row of zeros, which stands for no fingerprint, is never found. Rows of `others` are all different.
    """
    if not len(rows) or not len(others):
        return np.full(len(rows), -1, dtype=np.int64)
    keys, other_keys = (np.ascontiguousarray(array).view(np.uint64) for array in (rows, others))  # two numbers a row
    order = np.argsort(other_keys[:, 0], kind="stable")
    # the first number finds a candidate; if two of `others` begin alike, the second one is just not found
    candidates = order[np.minimum(np.searchsorted(other_keys[order, 0], keys[:, 0]), len(order) - 1)]
    is_same: npt.NDArray[np.bool_] = (other_keys[candidates] == keys).all(axis=1) & keys.any(axis=1)
    positions: Positions = np.where(is_same, candidates, -1)
    return positions
