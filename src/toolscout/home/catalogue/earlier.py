"""What the snapshot before holds about tools that have not changed since, so that it need not be computed again.

A tool has not changed if its fingerprint is the same. Each part of a snapshot that is expensive to compute for a tool
keeps a row for it: its vector, its words, its terms. A build takes these rows over, computes those of other tools, and
derives from all rows what depends on more than one tool. So the result is that of a build from nothing.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolscout.home.catalogue.snapshot_files import Part, SnapshotFiles

__all__ = ["FINGERPRINTS_FORMAT", "EarlierSnapshot", "make_fingerprint_rows"]

FINGERPRINTS_FORMAT: Final = "fingerprints/1"
FINGERPRINT_BYTES: Final = 16

Fingerprints = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


def make_fingerprint_rows(
    ids: Sequence[str], fingerprints: Mapping[str, str]
) -> tuple[dict[str, Fingerprints], dict[str, Any]]:
    """Return the fingerprints of tools as arrays and values for a part of a snapshot.

    Args:
        ids: of the snapshot.
        fingerprints: tool id → fingerprint. A tool without one counts as changed.
    """
    nothing = "0" * 2 * FINGERPRINT_BYTES
    rows = b"".join(bytes.fromhex(fingerprints.get(tool_id, nothing)) for tool_id in ids)
    sizes = Counter(tool_id.partition("/")[0] for tool_id in ids)
    return {"rows": np.frombuffer(rows, dtype=np.uint8).reshape(len(ids), FINGERPRINT_BYTES)}, {"sources": dict(sizes)}


class EarlierSnapshot:
    """The snapshot before, as far as it holds for the present one.

    Attributes:
        places: `(tools,)`, for each tool of the present snapshot its position in the earlier one; -1: new or changed.
        n_tools: tools of the earlier snapshot.
        sources: sources that have the same tools in both.
    """

    def __init__(
        self, files: SnapshotFiles, present: Part, earlier: Part, load_value: Callable[[str], bytes | None]
    ) -> None:
        """Compare the fingerprints of two snapshots.

        Args:
            files: of the earlier snapshot.
            present: the fingerprints of the present snapshot.
            earlier: those of the earlier one.
            load_value: key → the value that the catalogue stored for the earlier snapshot, or None.
        """
        self.load_value = load_value
        self._files = files
        self.n_tools = len(earlier.arrays["rows"])
        self.places = _find_rows(present.arrays["rows"], earlier.arrays["rows"])
        starts = np.cumsum([0, *present.meta["sources"].values()])
        self.sources = frozenset(
            source
            for (source, size), start in zip(present.meta["sources"].items(), starts.tolist(), strict=False)
            if earlier.meta["sources"].get(source) == size and (self.places[start : start + size] >= 0).all()
        )

    @functools.cached_property
    def new_positions(self) -> npt.NDArray[np.intp]:
        """Positions of the tools that are new or changed, ascending."""
        return np.flatnonzero(self.places < 0)

    @functools.cached_property
    def kept_positions(self) -> npt.NDArray[np.intp]:
        """Positions of the other tools, ascending."""
        return np.flatnonzero(self.places >= 0)

    def open_part(self, key: str) -> Part | None:
        """Return a part of the earlier snapshot; None if it is not there, or any of its bytes is damaged."""
        return self._files.open(key, check=True)


def _find_rows(rows: Fingerprints, others: Fingerprints) -> Places:
    """Return for each row its place among other rows that are all different, or -1."""
    if not len(rows) or not len(others):
        return np.full(len(rows), -1, dtype=np.int64)
    keys, other_keys = (np.ascontiguousarray(some).view(np.uint64) for some in (rows, others))
    order = np.argsort(other_keys[:, 0], kind="stable")
    places = order[np.minimum(np.searchsorted(other_keys[order, 0], keys[:, 0]), len(order) - 1)]
    same: npt.NDArray[np.bool_] = (other_keys[places] == keys).all(axis=1) & keys.any(axis=1)
    own_places: Places = np.where(same, places, -1)
    return own_places
