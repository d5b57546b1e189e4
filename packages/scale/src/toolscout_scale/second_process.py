"""Screens the tools of a large catalogue in a second process, while the first one builds indexes.

Suspicious tools, duplicates, rivals, dependencies and the words of tools need no index. The second process writes the
words into a file of the same snapshot, and returns the others as the values that the store keeps. If it fails, the
first process builds them when the indexes are done.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from toolscout.home.catalogue.snapshot import STAMP_KEY, read_snapshot
from toolscout.home.catalogue.snapshot_files import SNAPSHOTS_FOLDER
from toolscout.home.catalogue.store import Catalogue, Store
from toolscout.search.relations.dependencies import find_dependencies
from toolscout.search.relations.duplicates import find_duplicates
from toolscout.search.relations.similar import find_rivals
from toolscout.search.suspects import claimants, suspects

__all__ = ["ScreeningProcess", "screen_tools"]

MIN_SCREENED_ASIDE: Final = 30_000  # tools; with fewer, a second process saves less than a few seconds
_log: Final = logging.getLogger("toolscout_scale.second_process")
# The child is isolated from its folder and the environment, so it gets the paths of modules as data.
_SCREENING: Final = """
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request.pop("paths")
from toolscout_scale.second_process import screen_tools
sys.stdout.buffer.write(screen_tools(**request))
"""


class ScreeningProcess:
    """Screens the tools of a snapshot in a second process; see `toolscout.recipes.builder.SecondProcess`."""

    def __init__(self, store: Store, catalogue: Catalogue, preferred: Sequence[str], parts: Sequence[str]) -> None:
        """Start the process if it saves time and can read the snapshot; else do nothing.

        It saves time if the catalogue is large, no earlier snapshot has values to take over, and the machine has a
        second core. It can read the snapshot if the home is a folder, in which this process has begun files for it.

        Args:
            store: the snapshot's.
            catalogue: the snapshot.
            preferred: sources, as `duplicates.find_duplicates` takes them.
            parts: names of the values to build, as `toolscout.recipes.builder.list_parts` returns them.
        """
        self._catalogue, self._process = catalogue, None
        stamp = catalogue.pending.get(STAMP_KEY)  # in the names of files that this process has begun
        has_second_core = (os.cpu_count() or 1) > 1
        has_work = len(parts) > 0 and len(catalogue) >= MIN_SCREENED_ASIDE and catalogue.earlier is None
        if not (has_second_core and has_work and store.dialect.is_file and stamp):
            return
        request = {
            "paths": [os.path.abspath(path) for path in sys.path],
            "home": str(store.home),
            "requires_approval": store.requires_approval,
            "stamp": stamp.decode(),
            "generation": catalogue.generation,
            "preferred": list(preferred),
            "parts": list(parts),
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _SCREENING],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode())
            self._process.stdin.close()
        except OSError as error:
            _log.info("The tools are screened without a second process: %s", error)

    def finish(self) -> None:
        """Wait for the process, and add its values to those that the store saves with the snapshot.

        If it failed, nothing is added: the first process then builds the values when it needs them.
        """
        process, self._process = self._process, None
        if process is None or process.stdout is None:
            return
        with process:
            answer = process.stdout.read()
        try:
            if process.returncode:
                raise ValueError(f"it ended with {process.returncode}")
            self._catalogue.pending.update(msgspec.msgpack.decode(answer, type=dict[str, bytes]))
        except ValueError as error:
            _log.info("The second process did not screen the tools: %s", error)

    def stop(self) -> None:
        """End the process if it still runs."""
        if self._process is not None:
            with self._process as process:
                process.kill()


def screen_tools(
    *, home: str, requires_approval: bool, stamp: str, generation: int, preferred: list[str], parts: list[str]
) -> bytes:
    """Screen the tools of a home; runs in the second process.

    Args:
        home: its folder.
        requires_approval: whether changed definitions wait for approval, as in `Store`.
        stamp: names the snapshot's files.
        generation: of the snapshot.
        preferred: names of the sources from which the tool that stands for its duplicates is chosen first.
        parts: names of the values to build, as `toolscout.recipes.builder.list_parts` returns them.

    Returns:
        The values for the store, key → bytes, as msgpack; none of them if the catalogue has changed.
    """
    store = Store(Path(home), requires_approval=requires_approval)
    try:
        values: dict[str, object] = {}
        with store.reading():
            catalogue = read_snapshot(store, Path(home) / SNAPSHOTS_FOLDER, stamp)
            if catalogue.generation == generation:
                _build_parts(catalogue, preferred, parts)  # leaves its values in `catalogue.pending`
                # The first process stores the stamp of the files.
                values = {key: value for key, value in catalogue.pending.items() if key != STAMP_KEY}
        return msgspec.msgpack.encode(values)
    finally:
        store.close()


def _build_parts(catalogue: Catalogue, preferred: Sequence[str], parts: Sequence[str]) -> None:
    """Build the values with the given names. Each maker keeps them in `catalogue.pending`; its result is unused."""
    makers: dict[str, Callable[[], object]] = {
        "suspects": lambda: (suspects(catalogue), claimants(catalogue)),
        "duplicates": lambda: find_duplicates(catalogue, preferred),
        "rivals": lambda: find_rivals(catalogue),
        "dependencies": lambda: find_dependencies(catalogue),
    }
    for part in parts:
        makers[part]()
