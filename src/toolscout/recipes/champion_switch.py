"""Lets the former champion answer searches until the pipeline of a new one is ready.

A pipeline over many tools takes seconds to build. A program that serves for long builds that of a new champion in the
background, and switches to it in one step. A change of the catalogue is different: nobody may get a tool that was
removed, so searches wait for the new pipeline then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from toolscout.catalogue.store import Catalogue
from toolscout.config import Settings
from toolscout.errors import StoreError, UserError
from toolscout.models import champion, model_store
from toolscout.recipes.select import Selection, SelectionKey, Selector
from toolscout.search.pipeline import Pipeline

__all__ = ["ChampionSwitch"]

LOOK_INTERVAL_S: Final = 0.5  # between looks at who is promoted, so that a replica without searches switches too
RETRY_AFTER_S: Final = 30.0  # after a build that failed for a reason that nobody expected
KEEP_FORMER_S: Final = 30.0  # for searches that chose the former champion and still run
Prepare = Callable[[Selection], tuple[Catalogue, Pipeline]]
_log: Final = logging.getLogger("toolscout.recipes")


class _Serving(NamedTuple):
    """What serves searches that name nothing, and the state of the home in which that was decided.

    Attributes:
        selection: what serves.
        notice: says why the champion does not.
        champion: the folder of the champion, whether it serves or not.
        state: changes with the champion.
        generation: of the catalogue.
    """

    selection: Selection
    notice: str
    champion: Path | None
    state: object
    generation: int


class ChampionSwitch:
    """Decides what serves searches that name no recipe and no model, in a program that serves for long."""

    def __init__(
        self,
        settings: Settings,
        selector: Selector,
        generation: Callable[[], int],
        forget: Callable[[SelectionKey], None],
    ) -> None:
        """Follow the champion of a home.

        Args:
            settings: of the home.
            selector: decides what should serve.
            generation: returns the generation of the catalogue.
            forget: frees the pipeline of a selection.
        """
        self._settings, self._selector, self._generation, self._forget = settings, selector, generation, forget
        self._serving: _Serving | None = None
        self._retired: dict[SelectionKey, float] = {}  # former champions with a pipeline, and since when
        self._decide_lock = threading.Lock()
        self._failed_at = float("-inf")
        self._has_changed, self._shall_end = threading.Event(), False
        self._thread: threading.Thread | None = None

    def start(self, prepare: Prepare, prepare_aside: Prepare) -> None:
        """Begin to look at who is promoted.

        Args:
            prepare: builds a pipeline for which searches wait.
            prepare_aside: builds a pipeline while others serve.
        """
        self._prepare, self._prepare_aside = prepare, prepare_aside
        self._thread = threading.Thread(target=self._follow, daemon=True, name="toolscout champion")
        self._thread.start()

    def stop(self) -> None:
        """Stop looking, after a build that is under way."""
        self._shall_end = True
        self._has_changed.set()
        if self._thread is not None:
            self._thread.join()

    def select(self) -> tuple[Selection, str]:
        """Return what serves a search now, and a sentence if the champion should serve but cannot."""
        serving, generation = self._serving, self._generation()
        if serving is None or serving.generation != generation:
            return self._decide(self._prepare)
        if self._is_outdated(serving):
            self._has_changed.set()
        return serving.selection, serving.notice

    def catch_up(self) -> tuple[Selection, str]:
        """Wait until the present champion serves, while searches go on. Returns what serves then, as `select`."""
        with self._decide_lock:
            serving = self._serving
            if serving is None or serving.generation != self._generation() or self._is_outdated(serving):
                return self._decide(self._prepare_aside)
            return serving.selection, serving.notice

    def _is_outdated(self, serving: _Serving) -> bool:
        try:
            return self._read_state(serving.champion) != serving.state
        except StoreError:
            return False  # the database is away: who served goes on

    def _read_state(self, folder: Path | None) -> object:
        return champion.stamp(self._settings.place), model_store.stamp(folder)

    def _decide(self, prepare: Prepare) -> tuple[Selection, str]:
        """Decide what should serve, build its pipeline, and let it serve."""
        folder, state, generation = None, None, self._generation()
        with suppress(StoreError):  # the selector says what is wrong
            folder = self._selector.champion()
        with suppress(StoreError):
            state = self._read_state(folder)
        selection, notice = self._selector.select(None, None, prepare=prepare, generation=self._generation)
        if not selection.promoted:
            with suppress(UserError):  # the next search raises it
                prepare(selection)
        former, self._serving = self._serving, _Serving(selection, notice, folder, state, generation)
        if former is not None and former.selection.promoted and former.selection.key != selection.key:
            self._retired[former.selection.key] = time.monotonic()
        self._retired.pop(selection.key, None)
        return selection, notice

    def _follow(self) -> None:
        """Look at who is promoted, in a thread of its own, and build what should serve."""
        while not self._shall_end:
            self._has_changed.wait(LOOK_INTERVAL_S)
            self._has_changed.clear()
            self._free_retired()
            serving = self._serving
            has_paused = time.monotonic() - self._failed_at >= RETRY_AFTER_S
            if serving is None or self._shall_end or not has_paused or not self._is_outdated(serving):
                continue
            try:
                self.catch_up()
            except Exception:  # the former champion goes on, whatever the error
                self._failed_at = time.monotonic()
                _log.exception("The new champion could not be made ready. The former one goes on.")

    def _free_retired(self) -> None:
        """Free the pipelines of former champions on which no search can still run."""
        for key, since in list(self._retired.items()):
            if time.monotonic() - since < KEEP_FORMER_S:
                continue
            self._retired.pop(key, None)
            if self._serving is not None and self._serving.selection.key != key:
                self._forget(key)
