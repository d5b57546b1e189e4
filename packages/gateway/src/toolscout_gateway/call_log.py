"""Writes the calls of agents to the journal, before the agents get their answers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from toolscout.errors import StoreError, ToolscoutError
from toolscout.home.database.sqlite import without_waiting
from toolscout.home.journal.journal import redact
from toolscout.trust.policy import Caller
from toolscout_gateway import text as show
from toolscout_gateway.lookup import Lookup
from toolscout_gateway.session_host import SessionHost

__all__ = ["CallLog"]

THREAD_EVERY: Final = 256  # calls, one of which is written in a thread, where SQLite moves its log into the file
MAX_ID_CHARS: Final = 500


class CallLog:
    """Writes calls to the journal of a home."""

    def __init__(self, lookup: Lookup, host: SessionHost, say: Callable[[str], None]) -> None:
        """Write to the journal of the host. `say`: receives a sentence if a call could not be written."""
        self._scout, self._lookup, self._host, self._say = host.scout, lookup, host, say
        self._calls = 0

    async def write(self, caller: Caller, id: str, ok: bool, search: str | None, ms: float) -> None:
        """Write a call. It belongs to a search only if the caller made that search.

        In a folder this is done in the event loop, because a change of thread takes longer than the write. A thread
        writes the first call, because it opens the journal, each 256th, and while another writer is at work.
        """
        if not self._scout.settings.journal:
            return
        write = functools.partial(self._write, caller, id, ok, search, ms)
        number, self._calls = self._calls, self._calls + 1
        try:
            if self._scout.settings.database is None and number % THREAD_EVERY:
                connection: Any = self._scout.journal.connection
                with suppress(StoreError), without_waiting(connection):
                    write()
                    return
            await self._host.run_in_thread(write)
        except ToolscoutError as error:
            self._say(f"a call could not be written to the journal: {error}")

    def _write(self, caller: Caller, id: str, ok: bool, search: str | None, ms: float) -> None:
        journal = self._scout.journal
        event = journal.search(search) if search else None
        is_own = event and event["caller"] == caller.name and not journal.is_full(event["search_id"])
        tool = show.clip(id if self._lookup.was_listed(id) else redact(id), MAX_ID_CHARS)
        self._scout.called(tool, ok=ok, ms=round(ms, 3), caller=caller.name, search_id=search if is_own else None)
