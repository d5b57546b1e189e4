"""Holds the servers behind the gateway, and brings them in step with the configuration files and the catalogue."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from toolscout.errors import ConfigError, SourceError, StoreError
from toolscout.home.access.live_policy import stamp_file
from toolscout.home.catalogue.store import Origin
from toolscout.sources import Reading, mcp
from toolscout.sources.mcp import Server
from toolscout.sources.own_gateway import runs_gateway
from toolscout.sources.sandbox.servers import SANDBOX_FILE, read_sandboxes
from toolscout.trust.policy import Caller
from toolscout_gateway.sessions.host import ProcessSlots, SessionHost
from toolscout_gateway.sessions.upstream import Upstream

if TYPE_CHECKING:
    import anyio.abc

__all__ = ["Upstreams"]

MAX_STARTING_SERVERS: Final = 16
FIRST_SEARCH_WAIT_S: Final = 4.0  # from the start of a gateway with an empty catalogue, for its servers
FIRST_SEARCH_POLL_S: Final = 0.05
MAX_PLANNING_S: Final = 10.0
FOLLOW_PAUSE_S: Final = 0.5
OriginKey = tuple[str, str | None]
OriginState = tuple[Origin, object]  # an origin and a stamp that changes when its file does; None: no file


def _key_of(origin: Origin) -> OriginKey:
    return origin.locator, origin.name


def _read_origins(list_origins: Callable[[], list[Origin]]) -> list[OriginState]:
    return [(origin, stamp_file(Path(origin.locator))) for origin in list_origins()]


class Upstreams:
    """All servers behind the gateway, by the name of their source.

    Attributes:
        host: what their sessions share.
        servers: the servers.
        is_planned: whether it is known which servers there are.
        skipped: why servers of the configuration files are not among them, a sentence each.
        find_own: returns the session whose resources and prompts a caller may see. None: they have not signed in.
    """

    def __init__(self, host: SessionHost) -> None:
        self.host = host
        self.is_planned = True  # nothing is awaited until `run` begins
        self._started_at, self._is_cold = time.monotonic(), False  # cold: still without any tool
        self._home_problem = ""  # why the home cannot be read; said once
        self._group: anyio.abc.TaskGroup | None = None  # of the servers' tasks, while `run` runs
        self._sandbox_stamp: object = None  # of the file at the last look; another one: servers may start differently
        self._start_limit: anyio.CapacityLimiter | None = None  # for the servers that start at once
        self.find_own: Callable[[Upstream, Caller], Upstream | None] = lambda upstream, caller: upstream
        self.servers: dict[str, Upstream] = {}
        self.skipped: dict[str, str] = {}

    async def run(self, list_origins: Callable[[], list[Origin]], look_after: Callable[[], None]) -> None:
        """Serve the servers of all origins until cancelled, and follow changes of their files and of the catalogue.

        Args:
            list_origins: returns the present origins. It is called in a thread, twice a second.
            look_after: called as often, for what else may have changed.
        """
        import anyio

        self._started_at, self._is_cold, self.is_planned = time.monotonic(), True, False
        self.host.slots = ProcessSlots(self.host.scout.settings.gateway_servers)
        self._start_limit = anyio.CapacityLimiter(MAX_STARTING_SERVERS)
        await self.host.run_in_thread(self.host.listed.load)
        applied: dict[OriginKey, OriginState] = {}
        async with anyio.create_task_group() as self._group:
            while True:
                try:
                    await self._update(applied, list_origins)
                    self._note_home("")
                except StoreError as error:  # a database may be away for a while
                    self._note_home(str(error))
                await self.host.run_in_thread(self._look_after, look_after)
                await anyio.sleep(FOLLOW_PAUSE_S)

    async def _update(self, applied: dict[OriginKey, OriginState], list_origins: Callable[[], list[Origin]]) -> None:
        """Apply what changed since the last look."""
        if not self.is_planned:
            sources = await self.host.run_in_thread(self.host.scout.sources)
            self._is_cold = not any(source.tools for source in sources)
        await self._follow(applied, await self.host.run_in_thread(_read_origins, list_origins))
        self.is_planned = True

    def _note_home(self, problem: str) -> None:
        """Say when the home cannot be read, and when it can again."""
        if problem and not self._home_problem:
            self.host.say(f"{problem} Until then the servers stay as they are")
        elif self._home_problem and not problem:
            self.host.say("the home can be read again")
        self._home_problem = problem

    def _look_after(self, look_after: Callable[[], None]) -> None:
        """Do what else is due twice a second: call `look_after`, and write which servers were listed."""
        look_after()
        with suppress(OSError):  # the file only spares starts
            self.host.listed.write()

    async def _follow(self, applied: dict[OriginKey, OriginState], present: list[OriginState]) -> None:
        """Apply the origins that are new or changed, and drop those that are gone."""
        for key in applied.keys() - {_key_of(origin) for origin, _ in present}:
            gone, _ = applied.pop(key)
            self._drop(gone)
        sandboxes = await self.host.run_in_thread(stamp_file, self.host.scout.settings.home / SANDBOX_FILE)
        is_same, self._sandbox_stamp = sandboxes == self._sandbox_stamp, sandboxes
        for origin, stamp in present:
            if is_same and _key_of(origin) in applied:
                _, applied_stamp = applied[_key_of(origin)]
                if stamp in (applied_stamp, None):  # also if the file is gone for now: an editor may be replacing it
                    continue
            await self._apply(origin)
            applied[_key_of(origin)] = origin, stamp

    async def _apply(self, origin: Origin) -> None:
        """Bring the servers of an origin in step with its file. Calls that are under way end in their old session."""
        try:
            plan = await self.host.run_in_thread(self._plan, origin)
        except (SourceError, ConfigError) as error:
            self.host.say(str(error))
            return
        present = {
            source.name for source in await self.host.run_in_thread(self.host.scout.brought_by, origin) if source.tools
        }
        for name, server in plan.items():
            await self._start(origin, name, server, is_listed=name in present)
        self._drop(origin, keep=plan)
        await self._remove_missing(origin, plan)

    def _plan(self, origin: Origin) -> dict[str, Server | Reading]:
        settings = self.host.scout.settings
        return mcp.plan_servers(origin.locator, origin.name, read_sandboxes(settings.home), settings.place)

    def _drop(self, origin: Origin, keep: Collection[str] = ()) -> None:
        """Retire the servers of an origin, except those with these names."""
        for name, upstream in list(self.servers.items()):
            if _key_of(upstream.origin) == _key_of(origin) and name not in keep:
                self.servers.pop(name).retire()

    async def _start(self, origin: Origin, name: str, server: Server | Reading, *, is_listed: bool) -> None:
        """Serve one server of an origin, unless it is invalid, a gateway, or of the same name as another."""
        present = self.servers.get(name)
        if isinstance(server, Reading):
            if present is not None and _key_of(present.origin) == _key_of(origin):
                self.servers.pop(name).retire()
            await self.host.store_reading(origin, server)
            self.host.say(f"{name}: {server.message}")
        elif runs_gateway(server.command, server.args):
            self.skipped[name] = (
                f"{name} is skipped: it runs a toolscout gateway, and a gateway does not call another one"
            )
            self.host.say(self.skipped[name])
        elif present is not None and _key_of(present.origin) != _key_of(origin):
            self.host.say(f"{name}: two servers have this name; only the first is used")
        elif present is None or present.server != server:
            is_listed = is_listed and present is None and self.host.listed.holds(name, server)
            upstream = self.servers[name] = Upstream(name, origin, server, self.host, is_listed=is_listed)
            if present is not None:
                present.retire()
            self.run_session(upstream)

    def replace(self, upstream: Upstream) -> Upstream:
        """Begin anew with a server. Calls that are under way end in its old session."""
        name = upstream.name
        self.servers[name] = Upstream(name, upstream.origin, upstream.server, self.host, is_listed=upstream.is_listed)
        upstream.retire()
        self.run_session(self.servers[name])
        return self.servers[name]

    def run_session(self, upstream: Upstream) -> None:
        """Run the task of a server, or of a caller's session at one."""
        assert self._group is not None and self._start_limit is not None, "run_session is called while `run` runs"
        self._group.start_soon(upstream.run, self._start_limit)

    def find_session(self, key: str) -> Upstream | None:
        """Return the session of this key; see `Upstream.key`."""
        name, _, person = key.partition("\n")
        upstream = self.servers.get(name)
        return upstream.own_sessions.get(person) if upstream is not None and person else upstream

    async def wait_listed(self) -> None:
        """Wait for the first lists of the servers, for a few seconds after a start with an empty catalogue."""
        import anyio

        while self._is_cold and time.monotonic() < self._started_at + FIRST_SEARCH_WAIT_S:
            if self.is_planned and not self.list_unlisted():
                self._is_cold = False
                return
            await anyio.sleep(FIRST_SEARCH_POLL_S)

    async def wait_planned(self) -> None:
        """Wait until it is known which servers there are, which takes a moment after the start."""
        import anyio

        if self.is_planned:
            return
        with anyio.move_on_after(MAX_PLANNING_S):
            while not self.is_planned:
                await anyio.sleep(FIRST_SEARCH_POLL_S)

    def list_unlisted(self) -> list[str]:
        """List the servers that are starting and have no tools in the catalogue yet."""
        return [name for name, server in self.servers.items() if server.is_unlisted]

    async def _remove_missing(self, origin: Origin, plan: Mapping[str, object]) -> None:
        """Remove sources that the file no longer names."""
        for source in await self.host.run_in_thread(self.host.scout.brought_by, origin):
            if source.name not in plan:
                await self.host.run_in_thread(self.host.scout.store.remove_source, source.name)
                self.host.say(f"{source.name} is removed: its configuration file no longer names it")
