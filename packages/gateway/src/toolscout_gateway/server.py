"""The gateway: one MCP server in front of all tools. An agent searches, reads descriptions, and calls.

What a caller may find and call depends on who they are: `permissions`. `tools` answers the agent, `calls` brings a call
to its server, and `sessions` holds the servers.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from toolscout.errors import UserError, require
from toolscout.home.access.live_policy import LivePolicies
from toolscout.home.access.profiles import Profiles
from toolscout.home.catalogue.store import Changes
from toolscout.scout import Scout
from toolscout.trust.policy import Caller, Policies
from toolscout.trust.screening import sanitise
from toolscout_gateway.access.permissions import Permissions
from toolscout_gateway.calls.arguments import Validators
from toolscout_gateway.calls.kinds import Calls
from toolscout_gateway.health import Health, describe_states
from toolscout_gateway.lookup import Lookup, say_unknown_names
from toolscout_gateway.options import Options, list_origins
from toolscout_gateway.results import Results
from toolscout_gateway.sessions.host import SessionHost
from toolscout_gateway.sessions.upstreams import Upstreams
from toolscout_gateway.stdio import open_standard_streams
from toolscout_gateway.threads import FairThreads

if TYPE_CHECKING:
    from mcp.server import Server

__all__ = ["Gateway"]

GATEWAY_THREADS: Final = 8


class Gateway:
    """The MCP server of a Scout.

    ::

        async with gateway.running():
            await gateway.serve_stdio()

    Attributes:
        server: the server of the MCP SDK, for any transport of the SDK.
        say: receives one sentence for each event.
        permissions: who calls, and what they may do.
        upstreams: the servers behind it.
        lookup: finds tools for a caller.
        results: results that were cut, by their handles.
        identities: who is signed in at the servers behind it.
        offers: resources and prompts of the servers behind it.
        programs: runs programs of agents. None: that is off.
        calls: make calls, for each kind of tools in its own way.
        router: checks a call, and has `calls` make it.
        tools: the tools that an agent sees.
        protocol: answers the requests of MCP clients.
        health: writes the states of the servers behind it to a file.
    """

    def __init__(
        self,
        scout: Scout,
        options: Options | None = None,
        *,
        policies: Policies | LivePolicies | None = None,
        profiles: Profiles | None = None,
        credential: str | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Connect a catalogue, its policies and its options.

        Args:
            scout: catalogue, search and journal.
            options: see `Options`.
            policies: who may do what. By default everybody may do everything.
            profiles: by default those in the home.
            credential: the key or token of the caller on stdio.
            say: receives one sentence for each event.

        Raises:
            MissingExtra: without the extra `mcp`.
            Unavailable: if programs shall run, and this system cannot keep them from files and network.
        """
        require("mcp", "mcp")
        from toolscout_gateway.access.identities import Identities
        from toolscout_gateway.calls.router import Router
        from toolscout_gateway.offers import Offers
        from toolscout_gateway.programs import Programs
        from toolscout_gateway.protocol import Protocol
        from toolscout_gateway.tools import AgentTools

        self.scout = scout
        self.say = say = functools.partial(_say_cleaned, say)
        self.options = options = options or Options()
        policies, profiles = policies or Policies.load(None), profiles or Profiles(scout.settings.place)
        self.permissions = permissions = Permissions(
            scout.settings.gateway_rate, policies, profiles, credential=credential, profile=options.profile
        )
        self._threads = FairThreads(GATEWAY_THREADS, GATEWAY_THREADS - 2)  # one caller leaves two to the others
        host = SessionHost(scout, self._threads, say)
        self.upstreams = upstreams = Upstreams(host)
        self.lookup = Lookup(scout, self._collect_notes)
        self.identities = Identities(upstreams, permissions, self.lookup)
        self.calls = Calls(upstreams, allow_python=options.allow_python, timeout=options.call_timeout)
        self.offers = Offers(upstreams, self.lookup, options.call_timeout)
        self.results = Results(host.spills.folder, options.result_budget, scout.settings.place)
        self.health = Health(upstreams)
        self._syncing: set[str] = set()  # sources that are being read now, for the notes to agents
        validators = Validators()
        self.router = Router(self.lookup, self.identities, self.offers, self.calls, validators, self.results)
        self.programs = Programs(options, permissions, self.router, host.relay) if options.run_code else None
        self.tools = AgentTools(options, permissions, self.lookup, self.calls, self.router, validators, self.programs)
        self.protocol = Protocol(upstreams, permissions, self.tools, self.offers, runs_code=options.run_code)
        self.server: Server[Any] = self.protocol.server

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the servers behind the gateway inside this context, and keep the catalogue in step with them."""
        import anyio

        self.scout.engine.switch_in_background()
        self._server_scope, self._all_stopped = anyio.CancelScope(), anyio.Event()
        relay = self.upstreams.host.relay
        async with anyio.create_task_group() as group, anyio.create_task_group() as relay.group:
            group.start_soon(self._run_servers)
            try:
                yield
            finally:
                relay.close()
                with anyio.CancelScope(shield=True):
                    await self.stop()
                    self.health.remove()
                    await anyio.to_thread.run_sync(self.scout.engine.stop_switching)
                    for threads in (self.results.threads, self._threads):  # they use the store until they have ended
                        await anyio.to_thread.run_sync(threads.shutdown)

    async def stop(self) -> None:
        """Stop every server behind the gateway, with the processes that it started."""
        self._server_scope.cancel()
        await self._all_stopped.wait()
        await self.calls.close()
        self.upstreams.host.spills.close()

    async def _run_servers(self) -> None:
        """Run the upstream servers and what follows them until the gateway stops."""
        import anyio

        try:
            with self._server_scope:
                async with anyio.create_task_group() as group:
                    origins = functools.partial(list_origins, self.scout.store, self.options.configs)
                    group.start_soon(self.upstreams.run, origins, self._do_upkeep)
                    group.start_soon(self._sync_other_sources)
                    group.start_soon(self.identities.follow_vault)
                    callers, profiles = self.permissions.policies.callers, self.permissions.profiles.all
                    group.start_soon(say_unknown_names, self.upstreams, self.options.pins, callers, profiles)
                    if self.programs is not None:
                        group.start_soon(self.programs.keep_ready)
        finally:
            self._all_stopped.set()

    def _do_upkeep(self) -> None:
        """Apply changed policies, write the states of the servers, and remove old results; called twice a second."""
        policies = self.permissions.policies
        if isinstance(policies, LivePolicies):
            policies.refresh(self.say)
        self.permissions.profiles.refresh(self.say)
        self.health.write()
        self.results.purge_if_due()

    async def _sync_other_sources(self) -> None:
        """Read documents and files again, and Python modules if their code may run."""
        kinds = {"openapi", "schemas", "folder", "skills", "agents"}
        if self.options.allow_python:
            kinds.add("python")
        run = self.upstreams.host.run_in_thread

        def sync(name: str) -> list[Changes]:
            return list(self.scout.sync([name]))

        try:
            sources = await run(self.scout.sources)
        except UserError as error:
            self.say(f"documents and files are not read again: {error}")
            return
        self._syncing = {source.name for source in sources if source.kind in kinds}
        for name in sorted(self._syncing):
            try:
                for changes in await run(sync, name):
                    if changes.state == "error":
                        self.say(f"{changes.source}: {changes.message}")
            except UserError as error:
                self.say(f"{name}: {error}")
            self._syncing.discard(name)

    async def serve_stdio(self) -> None:
        """Serve MCP over standard input and output until the client closes them."""
        async with open_standard_streams() as (reading, writing):
            await self.server.run(reading, writing, self.server.create_initialization_options())

    def _collect_notes(self, caller: Caller) -> list[str]:
        """Collect notes on servers that start or fail. Their names are only for callers who see everything."""
        notes = describe_states(self.upstreams, self._syncing, is_limited=caller.rules is not None)
        return notes + self.identities.describe(caller)


def _say_cleaned(say: Callable[[str], None], text: str) -> None:
    """Say a sentence without characters that would steer a terminal, which a server's words may contain."""
    say(sanitise(text))
