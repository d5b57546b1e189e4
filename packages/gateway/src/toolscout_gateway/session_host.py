"""Holds what every session with a server behind the gateway uses: the catalogue, threads, process slots, the relay."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from toolscout.home.catalogue.store import Changes, Origin
from toolscout.sources import Reading
from toolscout.sources.mcp_limits import RESULTS_FOLDER, Spills
from toolscout.sources.mcp_oauth import SessionIdentity
from toolscout_gateway.handover import make_handover
from toolscout_gateway.lifecycle import ListedServers, ProcessSlots
from toolscout_gateway.relay import Relay

if TYPE_CHECKING:
    from toolscout.scout import Scout
    from toolscout.sources.mcp import Connection
    from toolscout_gateway.exchange import ServerSession

__all__ = ["SessionHost"]

T = TypeVar("T")


class SessionHost:
    """What the sessions share.

    Attributes:
        scout: the catalogue and the settings.
        say: receives one sentence for each event.
        listed: servers whose tools the catalogue holds.
        spills: large results that nobody has taken yet.
        slots: bounds the processes. It is there while the servers run.
        relay: passes questions and log messages on to callers.
        followed: by the key of a session, how many of its resources clients are subscribed to.
        on_notification: gets every notification of a server, with the key of its session.
        on_session: runs beside each session, from its start on.
        choose_identity: returns whose session callers share. None: that of the person who added the server.
    """

    def __init__(self, scout: Scout, threads: ThreadPoolExecutor, say: Callable[[str], None]) -> None:
        """Share a catalogue, and the threads of the gateway's pool."""
        self.scout, self.say = scout, say
        self.listed = ListedServers(scout.settings.home)
        self.spills = Spills(scout.settings.home / RESULTS_FOLDER)
        self.slots: ProcessSlots
        self.relay = Relay(make_handover(scout.settings.place, self.run_in_thread))
        self.followed: Counter[str] = Counter()
        self.on_notification: Callable[[str, object], Awaitable[None]] | None = None
        self.on_session: Callable[[ServerSession, Connection], Coroutine[Any, Any, None]] | None = None
        self.choose_identity: Callable[[ServerSession], SessionIdentity | None] = lambda session: None
        self._threads = threads

    async def run_in_thread(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run blocking work in a thread of the gateway's pool. Each thread keeps its connections to the store."""
        call = functools.partial(function, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def store_reading(self, origin: Origin, reading: Reading) -> tuple[Changes, int]:
        """Write a reading to the catalogue. Returns a generation at which the catalogue certainly held it."""

        def write() -> tuple[Changes, int]:
            before = self.scout.store.generation()
            changes = self.scout.put_reading(origin, reading)
            after = self.scout.store.generation()
            return changes, after if after - before <= 1 else before  # another process may have written in between

        return await self.run_in_thread(write)

    async def read_generation(self) -> int:
        """Read the current generation of the catalogue."""
        if self.scout.settings.database is None:  # a folder answers in microseconds
            return self.scout.store.generation()
        return await self.run_in_thread(self.scout.store.generation)
