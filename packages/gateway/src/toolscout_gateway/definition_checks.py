"""Reads a server's list of tools before each call, so that no changed definition is called before it is approved."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from toolscout.errors import Unavailable
from toolscout.home.access import telemetry
from toolscout.sources.mcp_session import Connection, ListRequest

if TYPE_CHECKING:
    from toolscout.settings import Settings

__all__ = ["CheckedSession", "DefinitionChecks"]


class CheckedSession(Protocol):
    """What the checks use of a session. `Upstream` is one."""

    name: str

    @property
    def settings(self) -> Settings:
        """The settings of the gateway."""

    @property
    def settled_connection(self) -> Connection | None:
        """The open session, if the catalogue holds its current tools."""

    async def wait_ready(self) -> Connection:
        """Wait until the catalogue holds the current tools, and return the session."""

    async def is_stored(self, tools: list[Any]) -> bool:
        """Return whether the catalogue holds this list of the server now."""

    async def store_list(self, connection: Connection, tools: list[Any]) -> None:
        """Write a list of tools to the catalogue."""

    def end_session(self, error: Exception) -> None:
        """End a broken session."""


class DefinitionChecks:
    """The checks of one server. Calls that wait for the same check share it.

    Attributes:
        list_lock: held while a list is read and stored, so that lists are stored in the order in which they were read.
    """

    def __init__(self, session: CheckedSession) -> None:
        import anyio

        self.list_lock = anyio.Lock()
        self._session = session
        self._check_lock = anyio.Lock()
        self._begun: ListRequest | None = None  # by the call that asked last before its check
        self._listed_at = 0.0  # when the last list was read under the lock
        self._checked_at = 0.0  # when the list of the last check was asked for

    def note_list(self) -> None:
        """Note that a list is read from now on. What was asked for before is older, and not used any more."""
        self._listed_at = time.monotonic()

    async def begin(self) -> ListRequest | None:
        """Ask for the list at once, for a call whose check comes soon.

        Returns None if that would have to wait, or if another call has asked and waits already: they share a check.
        """
        connection = self._session.settled_connection
        if connection is None or self._session.settings.trust == "off":
            return None
        if self._check_lock.locked() or (self._begun is not None and not self._begun.answer.done()):
            return None
        self._begun = await connection.begin_list(telemetry.make_headers())
        return self._begun

    async def run(self, begun: ListRequest | None) -> Connection:
        """Read the list, store what changed, and return the session; see `Upstream.check_definitions`."""
        arrived = time.monotonic() if begun is None else begun.began
        session = self._session
        connection = await session.wait_ready()
        if session.settings.trust == "off":
            return connection
        async with self._check_lock:
            if self._checked_at < arrived or connection is not session.settled_connection:
                connection = await session.wait_ready()
                async with self.list_lock:
                    self._checked_at = await self._check(connection, begun)
            return await session.wait_ready()

    async def _check(self, connection: Connection, begun: ListRequest | None) -> float:
        """Read the list and store what changed. Returns when the list was asked for, or earlier."""
        now = time.monotonic()
        if begun is None or begun.began < self._listed_at:
            begun = await connection.begin_list(telemetry.make_headers())
        self._listed_at = now
        tools = await self._read(connection, begun)
        if begun is not None:
            telemetry.record_list(self._session.name, begun.began)
        if not await self._session.is_stored(tools):
            # Store this list and do not read another: a server may alternate between two. Another process may also
            # have stored a different list of this server.
            await self._session.store_list(connection, tools)
        return now if begun is None else begun.began

    async def _read(self, connection: Connection, begun: ListRequest | None) -> list[Any]:
        name = self._session.name
        try:
            return await connection.list_tools(self._session.settings.max_tools, timed=False, begun=begun)
        except Exception as error:  # without a list the definition cannot be checked, whatever the error
            if connection.is_closed:
                self._session.end_session(error)
                raise Unavailable(f"server {name!r} ended before the call and is being restarted") from None
            raise Unavailable(
                f"server {name!r} did not list its tools before the call, so nothing was called"
            ) from None
