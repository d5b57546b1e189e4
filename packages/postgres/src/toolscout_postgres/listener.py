"""Hears when another machine changes the catalogue, so that a search need not ask the database first.

Every change of the generation is announced with NOTIFY. What is heard only decides which snapshot a search tries: the
search then compares its snapshot with the generation inside its own transaction. So a lost announcement costs time and
never a wrong answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from typing import Final

from toolscout.location import DEFAULT_TENANT
from toolscout_postgres.address import Address
from toolscout_postgres.database import connect

__all__ = ["LISTEN_AFTER_QUESTIONS", "GenerationListener"]

LISTEN_AFTER_QUESTIONS: Final = 20  # a process that asks so often serves searches
LISTEN_POLL_S: Final = 1.0  # the generation is read again after this time without an announcement
_log: Final = logging.getLogger("toolscout_postgres.listener")


class GenerationListener:
    """Knows the generation of a catalogue while its connection lasts. Thread-safe."""

    def __init__(self, address: Address) -> None:
        """Prepare to listen. A process that never asks often opens no connection for it."""
        self._address = address
        self._generation = self._questions = 0
        self._is_connected = self._is_doubtful = False
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def hear(self) -> int | None:
        """Return `generation`. After many questions, a thread begins to listen."""
        if self._thread is None:
            self._questions += 1
            if self._questions >= LISTEN_AFTER_QUESTIONS:
                self._start()
        return self.generation

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="toolscout listener", daemon=True)
                self._thread.start()

    @property
    def generation(self) -> int | None:
        """The generation, as far as it was heard; None: the database must be asked."""
        return self._generation if self._is_connected and not self._is_doubtful else None

    def doubt(self) -> None:
        """Answer None until `learn` is called, because this process has just written."""
        self._is_doubtful = True

    def learn(self, generation: int) -> None:
        """Take a generation that was read from the database."""
        self._generation, self._is_doubtful = max(self._generation, generation), False

    def close(self) -> None:
        """Stop listening."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        import psycopg

        while not self._stopped.is_set():
            try:
                with contextlib.closing(connect(self._address)) as raw:
                    raw.execute(f'LISTEN "{_name_channel(self._address)}"'.encode())
                    while not self._stopped.is_set():
                        row = raw.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()
                        self._generation, self._is_connected = int(row[0]) if row else 0, True
                        for notice in raw.notifies(timeout=LISTEN_POLL_S, stop_after=1):
                            self._generation = max(self._generation, int(notice.payload))
            except psycopg.Error as error:
                _log.debug("not listening to %s: %s", self._address, error)
            finally:
                self._is_connected = False
            self._stopped.wait(LISTEN_POLL_S)


def _name_channel(address: Address) -> str:
    """Return the channel on which the tenant of an address hears of its generations."""
    if address.tenant == DEFAULT_TENANT:
        return f"toolscout_{address.schema}"
    mark = hashlib.md5(f"{address.schema}/{address.tenant}".encode(), usedforsecurity=False).hexdigest()
    return f"toolscout_{mark}"
