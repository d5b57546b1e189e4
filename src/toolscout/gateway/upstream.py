"""The MCP servers behind the gateway: one shared session each, kept in step with the catalogue, restarted when it ends.

Every server has a task of its own that opens its session, lists its tools into the catalogue, and stays until the
session ends. Whatever a server does, its task survives and says what happened; the others do not notice.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from toolscout.catalogue.store import Changes, Origin
from toolscout.errors import SourceError, Unavailable
from toolscout.privacy.credentials import Cover, find_environment_credentials
from toolscout.sources import Reading, mcp
from toolscout.sources.mcp import Connection, Server, connect
from toolscout.sources.mcp_limits import find_refusal

if TYPE_CHECKING:
    import anyio
    from mcp.client.session import MessageHandlerFnT
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult

    from toolscout.scout import Scout

__all__ = ["Upstream", "Upstreams", "runs_gateway"]

NAME: Final = "toolscout"  # how the gateway introduces itself, and how it knows another
AT_ONCE: Final = 16
FIRST_DELAY: Final = 0.5  # seconds, doubled after each failure
LONGEST_DELAY: Final = 60.0
HEALTHY: Final = 30.0
RELIST_PAUSE: Final = 1.0
ENDED: Final = ("Connection closed", "Session terminated")
T = TypeVar("T")


def runs_gateway(server: Server) -> bool:
    """Whether an entry starts a gateway of toolscout: it would call itself."""
    words = [Path(word).name for word in (server.command, *server.args)]
    words = [re.split(r"[@=<>~\[]", word)[0] for text in words for word in text.split()]
    return NAME in words and "gateway" in words[words.index(NAME) :]


class Upstream:
    """One MCP server: its state, its session while it has one, and the waiting room of its calls.

    Attributes:
        name: the source in the catalogue.
        state: starting, ok or error.
        message: what was wrong when it was last tried.
    """

    def __init__(self, name: str, origin: Origin, server: Server, pool: Upstreams) -> None:
        import anyio

        self.name, self.origin, self.server = name, origin, server
        self.state, self.message = "starting", ""
        self._pool = pool
        self._connection: Connection | None = None
        self._cover = Cover(find_environment_credentials())
        self._settled = anyio.Event()  # set while there is a session whose tools are in the catalogue, or an error
        self._wake = anyio.Event()  # set when the task has something to do: tools changed, or the session is over
        self._over: Exception | None = None
        self._retry_at = 0.0
        self._served = self._cried = False
        self._looking = anyio.Lock()
        self._listing = anyio.Lock()  # lists come into the catalogue in the order in which they were read
        self._looked_at = 0.0  # when the last look began
        self._seen: list[Any] = []  # the list that is in the catalogue
        self._generation = -1  # of the catalogue when that list was put into it

    async def run(self, turns: anyio.CapacityLimiter) -> None:
        """Keep a session open until cancelled."""
        import anyio

        failures = 0
        while True:
            began = time.monotonic()
            try:
                await self._session(turns)
            except SourceError as error:
                message = str(error)
            except Exception as error:  # whatever it is, it is this server's alone
                message = f"{self.name}: expected a session, found {type(error).__name__}: {str(error)[:200]}"
                message = self.cover.text(message)
            failures = 1 if time.monotonic() - began >= HEALTHY else failures + 1
            self._pool.say(message)
            if failures == 1 and self._served:  # it did well until now: whoever calls may wait for it
                self.state, self.message = "starting", message
                self._unsettle()
                continue
            delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** (failures - 1))
            self.state, self.message, self._retry_at = "error", message, time.monotonic() + delay
            self._settled.set()
            await anyio.sleep(delay)

    async def _session(self, turns: anyio.CapacityLimiter) -> None:
        """One session, from its start to its end."""
        import anyio

        self._over, self._wake, self._served = None, anyio.Event(), False
        try:
            async with AsyncExitStack() as turn:
                await turn.enter_async_context(turns)
                async with connect(self.server, settings=self._pool.scout.settings) as connection:
                    if connection.about.get("name") == NAME:
                        raise SourceError("expected a server of tools, found a gateway of toolscout")
                    _listen(connection, self._heard)
                    await self._list(connection)
                    await turn.aclose()
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._subscribe, connection)
                        await self._serve(connection)
        finally:
            self._connection = None

    async def _serve(self, connection: Connection) -> None:
        """Read the list of tools again whenever it changes, until the session is over."""
        import anyio

        while True:
            await self._wake.wait()
            if self._over is not None:
                raise self._over
            self._wake = anyio.Event()
            cried, self._cried = self._cried, False
            await self._list(connection)
            if cried:
                await anyio.sleep(RELIST_PAUSE)  # a server that cries change all the time is heard once a second

    async def _subscribe(self, connection: Connection) -> None:
        """Servers of 2026-07-28 and later say what changes only to those who subscribe; others say it unasked."""
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
        from mcp.shared.exceptions import MCPError

        with suppress(ListenNotSupportedError, SubscriptionLost, MCPError):
            async with connection.client.listen(tools_list_changed=True) as changes:
                self._changed()  # what happened between the list and this moment
                async for _ in changes:
                    self._cry()

    async def _list(self, connection: Connection) -> None:
        async with self._listing:
            await self._put(connection, await connection.list_tools(self._pool.scout.settings.max_tools))
        self._connection, self.state, self.message, self._served = connection, "ok", "", True
        if not self._wake.is_set():  # else they have changed again, and calls wait for that
            self._settled.set()

    async def _put(self, connection: Connection, raw: list[Any]) -> None:
        """Bring a list of tools into the catalogue, as it was read.

        Raises:
            SourceError: if it cannot be taken in.
        """
        self._seen = raw
        reading = mcp.reading_of(self.name, self.server, (raw, connection.about))
        changes, self._generation = await self._pool.put(self.origin, reading)
        if changes.state == "error":
            raise SourceError(changes.message)

    async def _heard(self, message: object) -> None:
        """Something that the server says unasked."""
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._cry()

    def _cry(self) -> None:
        """The server says that its tools have changed."""
        self._cried = True
        self._changed()

    def _changed(self) -> None:
        self._unsettle()
        self._wake.set()

    def _unsettle(self) -> None:
        """Let calls wait; those that wait already go on waiting."""
        import anyio

        if self._settled.is_set():
            self._settled = anyio.Event()

    @property
    def cover(self) -> Cover:
        """Covers the credentials that the server was given."""
        if self._connection is not None:
            self._cover = self._connection.cover
        return self._cover

    def end(self, error: Exception) -> None:
        """The session is of no more use: the task ends it and opens another."""
        if self._over is None and self._connection is not None:
            self._over, self._connection, self.state = error, None, "starting"
            self._changed()

    @property
    def settled(self) -> bool:
        """Whether there is a session and the catalogue holds what the server has now."""
        return self._connection is not None and self._settled.is_set() and not _closed(self._connection)

    async def ready(self) -> Connection:
        """The session, once the catalogue holds what the server has now.

        Raises:
            Unavailable: naming the server, what is wrong, and when it is tried again.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        connection = self._connection
        if connection is not None and _closed(connection):
            self.end(MCPError(CONNECTION_CLOSED, "Connection closed"))
        await self._settled.wait()
        if self._connection is None:
            seconds = max(0.0, self._retry_at - time.monotonic())
            when = f"in {seconds:.0f} s" if seconds else "just now"
            raise Unavailable(f"server {self.name!r} is down; it is tried again {when}")
        return self._connection

    async def look(self) -> Connection:
        """The session, once the catalogue holds what the server lists at this moment.

        A server that changes a tool need not say so: its list is read before each call. Calls that wait for a look
        which has not begun yet share it. With the setting `trust = "off"` the server's word is enough.

        Raises:
            Unavailable: as `ready`; or the server gave no list.
            SourceError: its list cannot be taken in.
        """
        arrived = time.monotonic()
        connection = await self.ready()
        if self._pool.scout.settings.trust == "off":
            return connection
        async with self._looking:
            if self._looked_at < arrived or connection is not self._connection:
                connection = await self.ready()
                async with self._listing:
                    began = time.monotonic()
                    raw = await self._listed(connection)
                    if raw != self._seen or await self._pool.generation() != self._generation:
                        # This very list, not one that is read anew: a server may alternate. And another process may
                        # have brought another list of this server into the catalogue.
                        await self._put(connection, raw)
                    self._looked_at = began
            return await self.ready()

    async def _listed(self, connection: Connection) -> list[Any]:
        try:
            return await connection.list_tools(self._pool.scout.settings.max_tools, timed=False)
        except Exception as error:  # whatever it is, without a list nobody knows what would be called
            if _closed(connection):
                self.end(error)
                raise Unavailable(f"server {self.name!r} ended before the call: it is started again") from None
            raise Unavailable(
                f"server {self.name!r} gave no list of its tools before the call: nothing is called"
            ) from None

    async def call(
        self, connection: Connection, name: str, arguments: dict[str, Any], heard: ProgressFnT | None
    ) -> CallToolResult:
        """Call a tool in a session that `look` gave; the answer as the server gives it.

        Raises:
            Unavailable: the server died, or broke the protocol.
            MCPError: the server answered with an error.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult
        from pydantic import ValidationError

        cover = connection.cover

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            if heard is not None:
                await heard(progress, total, None if message is None else cover.text(message))

        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
        try:
            return await connection.client.session.send_request(request, CallToolResult, progress_callback=tell)
        except ValidationError:
            raise Unavailable(
                f"server {self.name!r} gave an answer that is no result of a tool: expected content, found something "
                "else (a question to the user cannot be passed on)"
            ) from None
        except MCPError as error:
            if refusal := find_refusal(error.message):
                raise Unavailable(f"server {self.name!r} was called, but {refusal}") from None
            if not (_closed(connection) or error.message in ENDED):
                raise
            self.end(error)
            raise Unavailable(f"server {self.name!r} ended during the call: it is started again") from None


class Upstreams:
    """All servers, by the name of their source."""

    def __init__(self, scout: Scout, threads: ThreadPoolExecutor, say: Callable[[str], None]) -> None:
        self.scout, self.say = scout, say
        self._threads = threads
        self.servers: dict[str, Upstream] = {}
        self.skipped: dict[str, str] = {}

    async def thread(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run what blocks in one of the gateway's own threads: each keeps its connections to the store."""
        call = functools.partial(function, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def put(self, origin: Origin, reading: Reading) -> tuple[Changes, int]:
        """Bring one reading into the catalogue; the generation is one at which it certainly held it."""

        def put() -> tuple[Changes, int]:
            before = self.scout.store.generation()
            changes = self.scout.put_reading(origin, reading)
            after = self.scout.store.generation()
            return changes, after if after - before <= 1 else before  # others may have written in between

        return await self.thread(put)

    async def generation(self) -> int:
        """The present generation of the catalogue."""
        return await self.thread(self.scout.store.generation)

    async def run(self, origins: list[Origin]) -> None:
        """Serve every server of these origins until cancelled; one that cannot be read is named."""
        import anyio

        turns = anyio.CapacityLimiter(AT_ONCE)
        async with anyio.create_task_group() as group:
            for origin in origins:
                try:
                    plan = await self.thread(mcp.plan, origin.locator, origin.name)
                except SourceError as error:
                    self.say(str(error))
                    continue
                for name, server in plan.items():
                    await self._begin(group, turns, origin, name, server)
                await self._forget(origin, plan)

    async def _begin(
        self, group: Any, turns: anyio.CapacityLimiter, origin: Origin, name: str, server: Server | Reading
    ) -> None:
        if isinstance(server, Reading):
            await self.put(origin, server)
            self.say(f"{name}: {server.message}")
        elif runs_gateway(server):
            self.skipped[name] = f"{name} is skipped: it runs a gateway of toolscout, which never calls itself"
            self.say(self.skipped[name])
        elif name in self.servers:
            self.say(f"{name}: expected a name of its own, found two servers of that name: the first is kept")
        else:
            self.servers[name] = Upstream(name, origin, server, self)
            group.start_soon(self.servers[name].run, turns)

    async def _forget(self, origin: Origin, plan: Mapping[str, object]) -> None:
        """Sources that the file no longer names."""
        for source in await self.thread(self.scout.brought_by, origin):
            if source.name not in plan:
                await self.thread(self.scout.store.remove_source, source.name)
                self.say(f"{source.name}: no longer there")


# --- what the SDK does not offer in public ----------------------------------------------------------------------------


def _listen(connection: Connection, heard: MessageHandlerFnT) -> None:
    connection.client.session._message_handler = heard


def _closed(connection: Connection) -> bool:
    """Whether the other end has gone, although nobody has tried to speak to it since."""
    return bool(getattr(connection.client.session._dispatcher, "_closed", False))
