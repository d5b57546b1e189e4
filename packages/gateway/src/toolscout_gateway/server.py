"""Serves one MCP server in front of all tools: an agent searches, reads descriptions, and calls.

The agent sees `search_tools`, `describe_tools`, `call_tool`, `read_result`, the pinned tools, and `run_code` where that
is on. What it may find and call depends on the caller. Permissions are read again at each call and apply to the raw id.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolscout.errors import Denied, NotFound, ToolscoutError, Unavailable, UserError, require
from toolscout.home.access.http import Buckets
from toolscout.home.access.live_policy import LivePolicies
from toolscout.home.access.profiles import Profiles, profile_of
from toolscout.home.access.telemetry import record_searches
from toolscout.scout import Scout
from toolscout.trust.policy import LOCAL, Caller, Policies, Rules
from toolscout.types import Search, Tool, keep_kind
from toolscout_gateway import text as show
from toolscout_gateway.answers import Answers, make_result, refuse
from toolscout_gateway.call_log import CallLog
from toolscout_gateway.calls import Calls, accepts_at_once
from toolscout_gateway.exchange import Exchange
from toolscout_gateway.health import Health, describe_states
from toolscout_gateway.http_scope import CALLER
from toolscout_gateway.lookup import Lookup
from toolscout_gateway.options import Options, list_origins
from toolscout_gateway.programs import Programs
from toolscout_gateway.relay import ask_to_open, is_question
from toolscout_gateway.repairs import add_notes, check_arguments, read_request
from toolscout_gateway.result_pages import read_result
from toolscout_gateway.results import Results, wants_everything
from toolscout_gateway.stdio import open_standard_streams
from toolscout_gateway.unknown_names import say_unknown_names
from toolscout_gateway.upstreams import Upstreams

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams, CallToolResult, InputRequiredResult, ListToolsResult

__all__ = ["Gateway"]

GATEWAY_THREADS: Final = 8
TOOL_LIST_TTL_MS: Final = 300_000  # how long a client may cache the list of tools


class Gateway:
    """The MCP server of a Scout.

    ::

        async with gateway.running():
            await gateway.serve_stdio()

    Attributes:
        server: the server of the MCP SDK, for any transport of the SDK.
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
        self.scout, self.say = scout, say
        self.options = options = options or Options()
        self.policies = policies or Policies.load(None)
        self.profiles = profiles or Profiles(scout.settings.place)
        self.credential = credential
        self._threads = ThreadPoolExecutor(GATEWAY_THREADS, thread_name_prefix="toolscout")
        self.upstreams = Upstreams(scout, self._threads, say)
        self.calls = Calls(self.upstreams, allow_python=options.allow_python, timeout=options.call_timeout)
        self.results = Results(self.upstreams.spills.folder, options.result_budget, scout.settings.place)
        self.buckets = Buckets(scout.settings.gateway_rate or None)
        self.lookup = Lookup(scout, self._collect_notes)
        self.answers = Answers(self.lookup, self.calls, self._collect_notes, options.budget)
        self.call_log = CallLog(self.lookup, self.upstreams, say)
        self.programs = Programs(self) if options.run_code else None
        self.meta_tools = show.META_TOOLS | (show.RUN_CODE_TOOL if options.run_code else {})
        self.health = Health(self.upstreams)
        self._speaker: tuple[int, Caller] | None = None
        self._syncing: set[str] = set()
        from toolscout_gateway.identities import Identities
        from toolscout_gateway.protocol import Protocol

        self.identities = Identities(self)
        self.protocol = Protocol(self)
        self.server: Server[Any] = self.protocol.server

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the servers behind the gateway inside this context, and keep the catalogue in step with them."""
        import anyio

        self.scout.engine.switch_in_background()
        self._server_scope, self._all_stopped = anyio.CancelScope(), anyio.Event()
        async with anyio.create_task_group() as group, anyio.create_task_group() as self.upstreams.relay.group:
            group.start_soon(self._run_servers)
            try:
                yield
            finally:
                self.upstreams.relay.close()
                with anyio.CancelScope(shield=True):
                    await self.stop()
                    self.health.remove()
                    await anyio.to_thread.run_sync(self.scout.engine.stop_switching)
                    end = functools.partial(self._threads.shutdown, cancel_futures=True)
                    await anyio.to_thread.run_sync(end)  # the threads use the store until they have ended

    async def stop(self) -> None:
        """Stop every server behind the gateway, with the processes that it started."""
        self._server_scope.cancel()
        await self._all_stopped.wait()
        await self.calls.close()
        self.upstreams.spills.close()

    async def _run_servers(self) -> None:
        import anyio

        try:
            with self._server_scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(
                        self.upstreams.run,
                        functools.partial(list_origins, self.scout.store, self.options.configs),
                        self._look_after,
                    )
                    group.start_soon(self._sync_other_sources)
                    group.start_soon(self.identities.follow_vault)
                    named = self.options.pins, self.policies.callers, self.profiles.all
                    group.start_soon(say_unknown_names, self.upstreams, *named)
                    if self.programs is not None:
                        group.start_soon(self.programs.keep_ready)
        finally:
            self._all_stopped.set()

    def _look_after(self) -> None:
        """Apply changes of the policy file, and write what the servers do for `toolscout status`."""
        if isinstance(self.policies, LivePolicies):
            self.policies.refresh(self.say)
        self.profiles.refresh(self.say)
        self.health.write()
        self.results.purge_if_due()

    async def _sync_other_sources(self) -> None:
        """Read documents and files again, and Python modules if their code may run."""
        kinds = {"openapi", "schemas", "folder", "skills", "agents"} | (
            {"python"} if self.options.allow_python else set()
        )
        try:
            sources = await self.upstreams.run_in_thread(self.scout.sources)
        except UserError as error:
            self.say(f"documents and files are not read again: {error}")
            return
        self._syncing = {source.name for source in sources if source.kind in kinds}
        for name in sorted(self._syncing):
            try:
                for changes in await self.upstreams.run_in_thread(lambda name=name: list(self.scout.sync([name]))):
                    if changes.state == "error":
                        self.say(f"{changes.source}: {changes.message}")
            except UserError as error:
                self.say(f"{name}: {error}")
            self._syncing.discard(name)

    async def serve_stdio(self) -> None:
        """Serve MCP over standard input and output until the client closes them."""
        async with open_standard_streams() as (reading, writing):
            await self.server.run(reading, writing, self.server.create_initialization_options())

    # --- the caller and the catalogue

    def get_caller(self, context: ServerRequestContext[Any, Any]) -> Caller:
        """Return the caller of a request."""
        scope = getattr(context.request, "scope", None)
        if isinstance(scope, dict) and CALLER in scope:
            caller: Caller = scope[CALLER]
            return caller
        if not self.options.profile:
            return self.speaker
        profile = self.profiles.find(self.options.profile)
        return profile.narrow(self.speaker) if profile else Caller(self.speaker.name, Rules())  # it was removed

    def list_all_pins(self) -> set[str]:
        """List the ids of the tools that are pinned for somebody."""
        return set(self.options.pins).union(*(profile.pins for profile in self.profiles.all))

    @property
    def speaker(self) -> Caller:
        """The caller on stdio. One who had access and lost it sees nothing any more.

        Raises:
            Denied: if the credential was never valid.
        """
        version = getattr(self.policies, "version", 0)
        if self._speaker is None or self._speaker[0] != version:
            try:
                self._speaker = version, self.policies.caller(self.credential)
            except Denied:
                if self._speaker is None:
                    raise
                self._speaker = version, Caller(self._speaker[1].name, Rules())
        return self._speaker[1]

    @speaker.setter
    def speaker(self, caller: Caller) -> None:
        self._speaker = getattr(self.policies, "version", 0), caller

    def _collect_notes(self, caller: Caller) -> list[str]:
        """Collect notes on servers that start or fail. Their names are only for callers who see everything."""
        notes = describe_states(self.upstreams, self._syncing, is_limited=caller.rules is not None)
        return notes + self.identities.describe(caller)

    # --- the list of tools

    async def list_tools(self, context: ServerRequestContext[Any, Any], _: object) -> ListToolsResult:
        """List the meta-tools and the pinned tools that the caller may call."""
        from mcp_types import ListToolsResult, ToolAnnotations
        from mcp_types import Tool as Listed

        tools = [
            Listed(name=name, description=text, input_schema=schema, annotations=ToolAnnotations(read_only_hint=reads))
            for name, (text, schema, reads) in self.meta_tools.items()
        ]
        pinned = await self.upstreams.run_in_thread(self._find_pinned, self.get_caller(context))
        for name, tool in pinned.items():
            hints = ToolAnnotations(
                read_only_hint=tool.hints.read_only,
                destructive_hint=tool.hints.destructive,
                idempotent_hint=tool.hints.idempotent,
                open_world_hint=tool.hints.open_world,
            )
            schema = show.clean_schema({"type": "object", **(tool.parameters or {})})
            text = show.clip(show.make_plain(tool.description), 2_000)
            title = show.read_title(tool)
            tools.append(Listed(name=name, title=title, description=text, input_schema=schema, annotations=hints))
        open_to_all = self.policies.default is LOCAL
        return ListToolsResult(tools=tools, ttl_ms=TOOL_LIST_TTL_MS, cache_scope="public" if open_to_all else "private")

    def _find_pinned(self, caller: Caller) -> dict[str, Tool]:
        """Map shown names to the pinned tools that the caller may call, in the order of the pins.

        A name is for display only. Permissions apply to the id behind it.
        """
        profile = profile_of(caller)
        names = show.name_pinned_tools(self.options.pins if profile is None else profile.pins)
        if not names:
            return {}
        tools, _ = self.lookup.find_tools(caller, names)
        return {names[id]: tool for id, tool in tools.items() if caller.may_call(tool)}

    # --- the meta-tools

    async def call_tool(
        self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Answer a call of a meta-tool, a pinned tool, or a tool by its id."""
        caller = self.get_caller(context)
        exchange = Exchange(caller, context, params)
        arguments: dict[str, Any] = params.arguments or {}
        faults: list[str] = []
        if params.name in self.meta_tools:
            arguments, exchange.notes, faults = read_request(params.name, arguments)
        exchange.wants_everything = wants_everything(params, arguments)
        if refusal := self._check_limits(caller, params.name, arguments):
            return refuse(refusal)
        if params.name not in self.meta_tools:
            pinned = await self.upstreams.run_in_thread(self._find_pinned, caller)
            tool = pinned.get(params.name)
            id = tool.id if tool else params.name
            return await self._relay_call(exchange, id, arguments, None)
        if faults:
            return refuse("; ".join(faults))
        try:
            if params.name == "search_tools":
                return await self._answer_search(exchange, arguments["queries"], arguments.get("limit"), arguments)
            if params.name == "describe_tools":
                return await self._answer_describe(exchange, list(dict.fromkeys(arguments["ids"])))
            if params.name == "read_result":
                results = self._choose_results(caller)
                answer = await self.upstreams.run_in_thread(read_result, results, caller.person, **arguments)
                page: CallToolResult = add_notes(make_result(*answer), exchange.notes)
                return page
            if params.name == "run_code":
                return await self._run_program(exchange, arguments)
        except ToolscoutError as error:
            return refuse(str(error))
        return await self._relay_call(exchange, arguments["id"], arguments["arguments"], arguments.get("search_id"))

    def _check_limits(self, caller: Caller, name: str, arguments: dict[str, Any]) -> str:
        """Check the size and the rate of a request. Returns a sentence on what to do, empty if all is well."""
        settings = self.scout.settings
        if refusal := self.check_size(arguments):
            return refusal
        queries = arguments.get("queries") if name == "search_tools" else None
        queries = [query for query in queries if isinstance(query, str)] if isinstance(queries, list) else []
        longest = max(map(len, queries), default=0)
        if longest > settings.gateway_query_chars:
            return (
                f"expected a query of at most {settings.gateway_query_chars:,} characters, found {longest:,}: "
                "describe in one sentence what the tool must do"
            )
        return self.check_rate(caller, max(1, len(queries)))

    def check_size(self, arguments: dict[str, Any]) -> str:
        """Check the size of arguments. Returns a sentence on what to do, empty if all is well."""
        size, most = len(msgspec.json.encode(arguments)), self.scout.settings.gateway_argument_bytes
        if size > most:
            return f"expected arguments of at most {most:,} bytes, found {size:,}: send less at once"
        return ""

    def check_rate(self, caller: Caller, cost: int) -> str:
        """Check the rate of a caller's requests. Returns a sentence on what to do, empty if all is well."""
        if wait := self.buckets.take(caller.name, cost):
            rate = self.scout.settings.gateway_rate
            return f"You sent more than {rate:g} requests a second: try again in {math.ceil(wait)} s."
        return ""

    async def _answer_search(
        self, exchange: Exchange, queries: Sequence[str], limit: int | None, options: dict[str, Any]
    ) -> CallToolResult:
        caller, ends = exchange.caller, time.monotonic() + self.options.call_timeout
        await self.upstreams.wait_listed()
        is_one = len(queries) == 1  # several: the agent has split the request itself
        common: dict[str, Any] = {"visible": keep_kind(options.get("kind"), caller.visible), "caller": caller.name}

        def search() -> tuple[list[Search], tuple[dict[str, Any], str]]:
            searches = self.scout.search_many(queries, limit, split=is_one, deadline=ends, **common)
            return searches, self.answers.build_search(exchange, searches, options.get("detail", "compact"))

        searches, answer = await self.upstreams.run_in_thread(search)
        record_searches(searches)
        return make_result(*answer)

    async def _answer_describe(self, exchange: Exchange, ids: list[str]) -> CallToolResult:
        answer, text = await self.upstreams.run_in_thread(self.answers.build_descriptions, exchange, ids)
        return make_result(answer, text, is_error=not answer["tools"])

    async def _run_program(self, exchange: Exchange, arguments: dict[str, Any]) -> CallToolResult | InputRequiredResult:
        assert self.programs is not None  # otherwise run_code is no meta-tool
        return await self.programs.answer(exchange, arguments["code"], arguments.get("search_id"))

    async def _relay_call(
        self, exchange: Exchange, id: str, arguments: dict[str, Any], search: str | None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool for a caller, or go on with a call that waited for the answer to a question."""
        work = functools.partial(self.answer_call, exchange, id, arguments, search)
        try:
            return await self.upstreams.relay.run(exchange, work)
        except Unavailable as error:
            return refuse(str(error), id=id)

    async def answer_call(self, exchange: Exchange, id: str, arguments: dict[str, Any], search: str | None) -> Any:
        """Call a tool for a caller. The outcome is in the journal before the agent gets the answer."""
        import anyio
        from mcp.shared.exceptions import MCPError

        started = time.perf_counter()
        result: Any = None
        try:
            try:
                result = await self._call_upstream(exchange, id, arguments)
            except UserError as error:
                result = refuse(str(error), id=id)
            except MCPError as error:
                if (answer := ask_to_open(error, exchange)) is not None:
                    return answer
                message = show.quote(show.clip(show.make_plain(error.message), 2_000))
                result = refuse(f"the tool's server answered with the error {message} (code {error.code})", id=id)
        finally:
            with anyio.CancelScope(shield=True):
                if not is_question(result):
                    ok = result is not None and not result.is_error
                    seconds = time.perf_counter() - started - exchange.asked_s
                    await self.call_log.write(exchange.caller, exchange.tool_id or id, ok, search, seconds * 1000)
        if is_question(result):
            return result
        return add_notes(await self.fit_result(exchange, exchange.tool_id or id, result), exchange.notes)

    async def _call_upstream(
        self, exchange: Exchange, id: str, arguments: dict[str, Any]
    ) -> CallToolResult | InputRequiredResult:
        """Check that the caller may call the tool, and call it."""
        await self.upstreams.wait_planned()
        caller = exchange.caller
        try:
            tool = await self._require_tool(caller, id, waiting=True)
        except NotFound:
            if (answer := await self.identities.answer_sign_in(exchange, id)) is not None:
                return answer
            meant = await self.upstreams.run_in_thread(self.lookup.resolve_id, caller, id)
            if not meant:
                raise
            exchange.notes.append(f"{show.clip(show.make_plain(id), 80)!r} was read as {meant!r}")
            exchange.tool_id = meant
            tool = await self._require_tool(caller, meant, waiting=True)
        if refusal := self.answers.explain_refusal(caller, tool):
            return refuse(f"{tool.id} cannot be called: {refusal}", id=id, callable=False)
        if (upstream := self.upstreams.servers.get(tool.source)) is not None:
            exchange.begun_check = await upstream.begin_check()  # the server lists its tools while we prepare the call
        work = functools.partial(self._call_checked, exchange, tool, arguments)
        return await self.identities.run(exchange, tool.source, work)

    async def _call_checked(
        self, exchange: Exchange, tool: Tool, arguments: dict[str, Any]
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool that the caller may call. For an MCP server its definition is read again first."""
        import anyio

        caller, accepted = exchange.caller, accepts_at_once(tool, arguments)
        upstream, session = exchange.upstream, None
        begun, exchange.begun_check = exchange.begun_check, None
        if upstream is not None:
            seconds = self.calls.timeout_of(tool)
            try:
                with anyio.move_on_after(seconds):
                    session = await upstream.check_definitions(begun)
            except Unavailable as error:
                why = upstream.message if caller.rules is None else ""  # it may name files of the operator
                raise type(error)(f"{error}{': ' if why else ''}{why}") from None
            if session is None:
                state = "starting" if upstream.state == "starting" else "silent"
                raise Unavailable(f"server {tool.source!r} is still {state} after {seconds:g} s: try again later")
            before = tool
            tool = await self._require_tool(caller, tool.id)  # as the server defines it now
            accepted = accepted if tool is before else accepts_at_once(tool, arguments)
        if refusal := exchange.explain_refusal(tool):
            return refuse(f"{tool.id} was not called: {refusal}", id=tool.id)
        if not accepted:
            arguments = await self.upstreams.run_in_thread(check_arguments, tool, arguments, exchange.notes)
        result: CallToolResult | InputRequiredResult = await self.calls.call(tool, arguments, exchange, session)
        self.protocol.offers.remember_links(caller, tool.source, result)
        return result

    def _choose_results(self, caller: Caller) -> Results:
        profile = profile_of(caller)
        return self.results.within(profile.result_budget) if profile else self.results

    async def fit_result(self, exchange: Exchange, id: str, result: CallToolResult) -> CallToolResult:
        """Cut a result to the budget, unless the caller asks for everything. The rest is read by handle."""
        spill = self.upstreams.spills.take(result.meta)
        results = self._choose_results(exchange.caller)
        if spill is None and (exchange.wants_everything or results.fits(result)):
            return result
        cover = self.calls.cover(exchange)
        caller, everything = exchange.caller.person, exchange.wants_everything
        details = {"caller": caller, "tool": id, "cover": cover, "everything": everything}
        try:
            return await self.upstreams.run_in_thread(results.fit, result, spill, **details)
        except Unavailable as error:
            return refuse(str(error), id=id)

    async def _require_tool(self, caller: Caller, id: str, *, waiting: bool = False) -> Tool:
        """Return the tool if the caller may see it; with `waiting`, also one whose definition waits for approval.

        Raises:
            NotFound: if the caller may not see it.
        """
        if (tool := self.lookup.find_now(caller, id)) is not None:
            return tool
        tools, missing = await self.upstreams.run_in_thread(self.lookup.find_tools, caller, [id])
        if id in tools:
            return tools[id]
        definition = self.lookup.find_waiting(caller, self.lookup.load_catalogue()[0], id) if waiting else None
        if definition is not None and definition.tool.source in self.upstreams.servers:
            return definition.tool
        raise NotFound(missing[id])
