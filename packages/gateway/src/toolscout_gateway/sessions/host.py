"""Holds what all sessions with servers use: the catalogue, threads, process slots, and which servers were listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from toolscout.home.catalogue.store import Changes, Origin
from toolscout.sources import Reading
from toolscout.sources.mcp_limits import RESULTS_FOLDER, Spills
from toolscout.sources.mcp_oauth import SessionIdentity
from toolscout.sources.mcp_session import digest_entry
from toolscout.trust.private_files import make_private_folder, replace_file
from toolscout_gateway.sessions.handover import make_handover
from toolscout_gateway.sessions.relay import Relay
from toolscout_gateway.threads import FairThreads

if TYPE_CHECKING:
    from toolscout.scout import Scout
    from toolscout.sources.mcp import McpConnection, Server
    from toolscout_gateway.sessions.exchange import ServerSession

__all__ = ["ListedServers", "ProcessSlots", "SessionHost"]

LISTED_FILE: Final = "gateway-servers.json"  # in the home
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

    def __init__(self, scout: Scout, threads: FairThreads, say: Callable[[str], None]) -> None:
        """Share a catalogue, and the threads of the gateway's pool."""
        self.scout, self.say = scout, say
        self.listed = ListedServers(scout.settings.home)
        self.spills = Spills(scout.settings.home / RESULTS_FOLDER)
        self.slots: ProcessSlots
        self.relay = Relay(make_handover(scout.settings.place, self.run_in_thread))
        self.followed: Counter[str] = Counter()
        self.on_notification: Callable[[str, object], Awaitable[None]] | None = None
        self.on_session: Callable[[ServerSession, McpConnection], Coroutine[Any, Any, None]] | None = None
        self.choose_identity: Callable[[ServerSession], SessionIdentity | None] = lambda session: None
        self._threads = threads

    async def run_in_thread(self, function: Callable[..., T], *arguments: object, **options: object) -> T:
        """Run blocking work in a thread of the gateway's pool. Each thread keeps its connections to the store."""
        return await self._threads.run(function, *arguments, **options)

    async def store_reading(self, origin: Origin, reading: Reading) -> tuple[Changes, int]:
        """Write a reading to the catalogue. Returns what changed, and the generation of the catalogue with it.

        If another process wrote at the same time, the generation from before is returned. The list of tools then
        counts as outdated and is read again.
        """

        def write() -> tuple[Changes, int]:
            before = self.scout.store.generation()
            changes = self.scout.put_reading(origin, reading)
            after = self.scout.store.generation()
            is_only_write = after - before <= 1  # each write adds one
            return changes, (after if is_only_write else before)

        return await self.run_in_thread(write)

    async def read_generation(self) -> int:
        """Read the current generation of the catalogue."""
        now = self.scout.store.generation_now()
        return await self.run_in_thread(self.scout.store.generation) if now is None else now


class _Holder(Protocol):
    """A server that holds a slot."""

    last_used: float

    @property
    def is_free(self) -> bool: ...

    @property
    def is_followed(self) -> bool: ...

    def stop(self) -> None: ...


class ProcessSlots:
    """Bounds how many servers run as processes. The one that was not used for the longest time makes room."""

    def __init__(self, limit: int) -> None:
        import anyio

        self.limit = limit
        self.held: dict[_Holder, None] = {}  # servers that have a slot, in the order in which they got it
        self._stopping: set[_Holder] = set()  # of these, those that were told to make room
        self._released = anyio.Event()

    async def take(self, holder: _Holder) -> None:
        """Wait for a slot. If all are taken, a server without calls is stopped."""
        import anyio

        while len(self.held) >= self.limit:
            free = [other for other in self.held if other.is_free and other not in self._stopping]
            if free and len(self._stopping) < self.limit:
                oldest = min(free, key=lambda other: (other.is_followed, other.last_used))  # followed ones last
                self._stopping.add(oldest)
                oldest.stop()
            with anyio.move_on_after(1.0):  # no event tells when a server has become free, so look every second
                await self._released.wait()
        self.held[holder] = None

    def release(self, holder: _Holder) -> None:
        """Give a slot back."""
        import anyio

        self.held.pop(holder, None)
        self._stopping.discard(holder)
        self._released.set()
        self._released = anyio.Event()


class ListedServers:
    """Remembers with which entry each server was listed, so that an unchanged one need not start to be served.

    The file holds digests of commands and addresses, and no values of variables or headers.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / LISTED_FILE
        self._digests: dict[str, str] = {}  # source → digest of its entry
        self._is_written = True  # the file has what is in memory

    def load(self) -> None:
        """Read the file, if there is one that can be read."""
        try:
            self._digests = msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError):
            self._digests = {}

    def holds(self, source: str, server: Server) -> bool:
        """Return whether the source was listed with this entry, or it is not known with which one."""
        known = self._digests.get(source)
        return known is None or known == digest_entry(server)

    def add(self, source: str, server: Server) -> None:
        """Remember that the source was listed with this entry."""
        if self._digests.get(source) != digest_entry(server):
            self._digests[source] = digest_entry(server)
            self._is_written = False

    def write(self) -> None:
        """Write the file, if something changed."""
        if not self._is_written:
            self._is_written = True
            make_private_folder(self._path.parent)
            replace_file(self._path, msgspec.json.encode(self._digests))
