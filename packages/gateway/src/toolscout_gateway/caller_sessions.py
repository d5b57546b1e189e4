"""The session of one caller at a server that wants its callers to sign in."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from toolscout.errors import SourceError
from toolscout.sources import Reading, mcp
from toolscout.sources.mcp import Connection, connect
from toolscout_gateway.upstream import Upstream

if TYPE_CHECKING:
    from toolscout_gateway.session_host import SessionHost
    from toolscout_gateway.sign_in import Identity

__all__ = ["CallerSession"]


class CallerSession(Upstream):
    """A server as one caller meets it. Nobody else uses the session.

    Attributes:
        identity: who the session belongs to.
    """

    def __init__(self, shared: Upstream, identity: Identity, host: SessionHost) -> None:
        """Prepare a session. `shared`: the server as it was configured."""
        super().__init__(shared.name, shared.origin, shared.server, host, is_listed=True)
        self.identity = identity
        self.key = f"{shared.name}\n{identity.person}"

    def _connect(self) -> AbstractAsyncContextManager[Connection]:
        settings, spills = self._host.scout.settings, self._host.spills
        return connect(self.server, settings=settings, spills=spills, identity=self.identity)

    async def store_list(self, connection: Connection, raw: list[Any]) -> None:
        """Write the caller's list of tools to the catalogue, beside the tools that only other callers are offered.

        Raises:
            SourceError: if it cannot be stored.
        """
        self._stored_list = raw
        reading = mcp.build_reading(self.name, self.server, (raw, connection.about))
        reading = await self._host.run_in_thread(self._add_others, reading)
        changes, self._generation = await self._host.store_reading(self.origin, reading)
        if changes.state == "error":
            raise SourceError(changes.message)

    def _add_others(self, reading: Reading) -> Reading:
        store = self._host.scout.store
        ids = {tool.id for tool in reading.tools}
        absent = [id for id, _ in store.page(self.name, limit=None) if id not in ids]
        return msgspec.structs.replace(reading, tools=[*reading.tools, *store.tools(absent)])
