"""Serves one MCP server in front of all tools: an agent searches, reads descriptions, and calls.

The agent sees three tools, `search_tools`, `describe_tools` and `call_tool`, and the pinned ones. What it may find and
call depends on the caller. Permissions are read again at each call and apply to the raw id alone.
"""

from __future__ import annotations

import bisect
import dataclasses
import difflib
import functools
import itertools
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolscout.access.policy import LOCAL, Caller, Policies
from toolscout.access.rate_limit import Buckets
from toolscout.catalogue.store import Catalogue, Origin, Waiting
from toolscout.errors import NotFound, ToolscoutError, Unavailable, UserError, require
from toolscout.gateway import text as show
from toolscout.gateway.calls import Calls, explain_faults
from toolscout.gateway.http import CALLER
from toolscout.gateway.upstream import GATEWAY_NAME, Upstreams
from toolscout.journal.journal import redact
from toolscout.scout import Scout
from toolscout.types import Search, Tool

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult

__all__ = ["Gateway", "Options"]

GATEWAY_THREADS: Final = 8
MAX_COMPARED_IDS: Final = 2_000  # ids of a source that are compared with a misspelt one
MAX_ID_CHARS: Final = 500
TOOL_LIST_TTL_MS: Final = 300_000  # how long a client may cache the list of tools


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a gateway.

    Attributes:
        configs: mcpServers files to read into the catalogue.
        pins: ids of tools that are listed beside the three meta-tools.
        allow_python: whether Python functions of the catalogue may be called.
        call_timeout: seconds for one call. A server's own `timeout` takes precedence.
        budget: approximate number of tokens for an answer of search_tools or describe_tools.
    """

    configs: tuple[Path, ...] = ()
    pins: tuple[str, ...] = ()
    allow_python: bool = False
    call_timeout: float = 60.0
    budget: int = 3_000


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
        options: Options = Options(),
        *,
        policies: Policies | None = None,
        credential: str | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Connect a catalogue, its policies and its options.

        Args:
            scout: catalogue, search and journal.
            options: see `Options`.
            policies: who may do what. By default everybody may do everything.
            credential: the key or token of the caller on stdio.
            say: receives one sentence for each event.

        Raises:
            MissingExtra: without the extra `mcp`.
        """
        require("mcp", "mcp")
        self.scout, self.options, self.say = scout, options, say
        self.policies = policies or Policies.load(None)
        self._credential = credential
        self._threads = ThreadPoolExecutor(GATEWAY_THREADS, thread_name_prefix="toolscout")
        self.upstreams = Upstreams(scout, self._threads, say)
        self.calls = Calls(self.upstreams, allow_python=options.allow_python, timeout=options.call_timeout)
        self._buckets = Buckets(scout.settings.gateway_rate or None)
        self._catalogue: tuple[Catalogue, frozenset[str]] | None = None
        self._lock = threading.Lock()
        self._syncing: set[str] = set()
        self._pins = show.name_pinned_tools(options.pins)
        self.server = self._make_server()

    def _make_server(self) -> Server[Any]:
        from mcp.server import Server

        return Server(
            GATEWAY_NAME,
            version=version("toolscout"),
            instructions=show.INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the servers behind the gateway inside this context, and keep the catalogue in step with them."""
        import anyio

        self._server_scope, self._all_stopped = anyio.CancelScope(), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self._run_servers)
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self.stop()
                    end = functools.partial(self._threads.shutdown, cancel_futures=True)
                    await anyio.to_thread.run_sync(end)  # the threads use the store until they have ended

    async def stop(self) -> None:
        """Stop every server behind the gateway, with the processes that it started."""
        self._server_scope.cancel()
        await self._all_stopped.wait()
        await self.calls.close()

    async def _run_servers(self) -> None:
        import anyio

        def list_origins() -> list[Origin]:
            stored = self.scout.store.origins()
            stored_names = {(origin.locator, origin.name) for origin in stored}
            files = dict.fromkeys(str(path.expanduser().absolute()) for path in self.options.configs)
            return [*stored, *(Origin(file, "mcp") for file in files if (file, None) not in stored_names)]

        try:
            with self._server_scope:
                origins = await self.upstreams.run_in_thread(list_origins)
                async with anyio.create_task_group() as group:
                    group.start_soon(self.upstreams.run, [origin for origin in origins if origin.kind == "mcp"])
                    group.start_soon(self._sync_other_sources)
        finally:
            self._all_stopped.set()

    async def _sync_other_sources(self) -> None:
        """Read documents and files again, and Python modules if their code may run."""
        kinds = {"openapi", "schemas", "folder"} | ({"python"} if self.options.allow_python else set())
        sources = await self.upstreams.run_in_thread(self.scout.sources)
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
        from mcp.server.stdio import stdio_server

        async with stdio_server() as (reading, writing):
            await self.server.run(reading, writing, self.server.create_initialization_options())

    # --- the caller and the catalogue

    def _get_caller(self, context: ServerRequestContext[Any, Any]) -> Caller:
        scope = getattr(context.request, "scope", None)
        if isinstance(scope, dict) and CALLER in scope:
            caller: Caller = scope[CALLER]
            return caller
        return self.speaker

    @functools.cached_property
    def speaker(self) -> Caller:
        """The caller on stdio.

        Raises:
            Denied: if the credential is not valid.
        """
        return self.policies.caller(self._credential)

    def _load_catalogue(self) -> tuple[Catalogue, frozenset[str]]:
        """Load the current catalogue and its ids."""
        with self._lock:
            snapshot = self._catalogue
            if snapshot is None or snapshot[0].generation != self.scout.store.generation():
                catalogue = self.scout.store.catalogue()
                snapshot = self._catalogue = catalogue, frozenset(catalogue.ids)
            return snapshot

    def _find_tools(self, caller: Caller, ids: Iterable[str]) -> tuple[dict[str, Tool], dict[str, str]]:
        """Return the visible tools, and for every other id a sentence that does not reveal whether it exists."""
        catalogue, present = self._load_catalogue()
        tools: dict[str, Tool] = {}
        missing: dict[str, str] = {}
        for id in ids:
            tool = next(iter(catalogue.tools([id])), None) if id in present else None
            if tool is not None and caller.sees(tool):
                tools[id] = tool
            else:
                missing[id] = self._explain_missing(caller, catalogue, id)
        return tools, missing

    def _explain_missing(self, caller: Caller, catalogue: Catalogue, id: str) -> str:
        """Explain why a caller gets no tool for an id. The sentence uses only what the caller may see."""
        what = f"expected the id of a tool that you may see, found {show.clip(show.make_plain(id), 200)!r}"
        if waiting := self._find_waiting(caller, catalogue, id):
            return f"{what}: its definition waits for approval ( toolscout approve ), because {waiting.why}"
        source = id.partition("/")[0]
        mask = catalogue.mask(caller.visible)
        visible = catalogue.ids if mask is None else [id for id, sees in zip(catalogue.ids, mask, strict=True) if sees]
        prefix = f"{source}/"
        first = bisect.bisect_left(visible, prefix)
        siblings = list(
            itertools.takewhile(lambda id: id.startswith(prefix), visible[first : first + MAX_COMPARED_IDS])
        )
        if near := difflib.get_close_matches(id[:MAX_ID_CHARS], siblings, n=1, cutoff=0.75):
            return f"{what}: did you mean {near[0]!r}?"
        states = [note for note in self._collect_notes(caller) if repr(source) in note]
        why, names = catalogue.disabled.get(source, ("", {}))
        if caller.rules is None and why:
            states.append(f"source {source!r} is {why}")
        elif any(caller.sees(tool) for tool in catalogue.tools([names.get(id.casefold(), "")])):
            states.append(f"source {source!r} is disabled")
        return ": ".join([what, *states, "use an id from search_tools, unchanged"])

    def _find_waiting(self, caller: Caller, catalogue: Catalogue, id: str) -> Waiting | None:
        """Find the definition that waits for approval under an id, if the caller may see it."""
        definitions = catalogue.waiting.get(id.casefold(), ())
        return next((waiting for waiting in definitions if waiting.id == id and caller.sees(waiting.tool)), None)

    def _collect_notes(self, caller: Caller) -> list[str]:
        """Collect notes on servers that start or fail. Their names are only for callers who see everything."""
        upstreams = self.upstreams.servers.values()
        starting = sorted({server.name for server in upstreams if server.state == "starting"} | self._syncing)
        failed = sorted((server.name, server.message) for server in upstreams if server.state == "error")
        if caller.rules is not None:
            notes = [f"{len(starting)} servers are still starting"] if starting else []
            return notes + ([f"{len(failed)} servers do not answer"] if failed else [])
        notes = [f"server {name!r} is still starting: its newest tools may be missing" for name in starting[:10]]
        notes += [
            f"server {name!r} does not answer: {show.clip(show.make_plain(why), 200)}" for name, why in failed[:10]
        ]
        unnamed = len(starting) + len(failed) - len(notes)
        return notes + ([f"and {unnamed} more servers"] if unnamed else [])

    # --- the list of tools

    async def _list_tools(self, context: ServerRequestContext[Any, Any], _: object) -> ListToolsResult:
        from mcp_types import ListToolsResult, ToolAnnotations
        from mcp_types import Tool as Listed

        tools = [
            Listed(name=name, description=text, input_schema=schema, annotations=ToolAnnotations(read_only_hint=reads))
            for name, (text, schema, reads) in show.META_TOOLS.items()
        ]
        pinned = await self.upstreams.run_in_thread(self._find_pinned, self._get_caller(context))
        for name, tool in pinned.items():
            hints = ToolAnnotations(
                read_only_hint=tool.hints.read_only,
                destructive_hint=tool.hints.destructive,
                idempotent_hint=tool.hints.idempotent,
                open_world_hint=tool.hints.open_world,
            )
            schema = show.clean_schema({"type": "object", **(tool.parameters or {})})
            text = show.clip(show.make_plain(tool.description), 2_000)
            tools.append(Listed(name=name, description=text, input_schema=schema, annotations=hints))
        open_to_all = self.policies.default is LOCAL
        return ListToolsResult(tools=tools, ttl_ms=TOOL_LIST_TTL_MS, cache_scope="public" if open_to_all else "private")

    def _find_pinned(self, caller: Caller) -> dict[str, Tool]:
        """Map shown names to the pinned tools that the caller may call, in the order of the pins.

        A name is for display only. Permissions apply to the id behind it.
        """
        tools, _ = self._find_tools(caller, self._pins)
        return {self._pins[id]: tool for id, tool in tools.items() if caller.may_call(tool)}

    # --- the three meta-tools

    async def _call_tool(
        self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams
    ) -> CallToolResult:
        caller = self._get_caller(context)
        arguments = params.arguments or {}
        if refusal := self._check_limits(caller, params.name, arguments):
            return _refuse(refusal)
        if params.name not in show.META_TOOLS:
            pinned = await self.upstreams.run_in_thread(self._find_pinned, caller)
            tool = pinned.get(params.name)
            id = tool.id if tool else params.name
            return await self._answer_call(context, caller, id, arguments, None)
        if wrong := explain_faults(show.META_TOOL_RECORDS[params.name], arguments):
            return _refuse("; ".join(wrong))
        try:
            if params.name == "search_tools":
                return await self._answer_search(
                    caller, arguments["queries"], arguments.get("limit"), arguments.get("detail", "compact")
                )
            if params.name == "describe_tools":
                return await self._answer_describe(caller, list(dict.fromkeys(arguments["ids"])))
        except ToolscoutError as error:
            return _refuse(str(error))
        return await self._answer_call(
            context, caller, arguments["id"], arguments["arguments"], arguments.get("search_id")
        )

    def _check_limits(self, caller: Caller, name: str, arguments: dict[str, Any]) -> str:
        """Check the size and the rate of a request. Returns a sentence on what to do, empty if all is well."""
        settings = self.scout.settings
        size = len(msgspec.json.encode(arguments))
        if size > settings.gateway_argument_bytes:
            return (
                f"expected arguments of at most {settings.gateway_argument_bytes:,} bytes, found {size:,}: "
                "send less at once"
            )
        queries = arguments.get("queries") if name == "search_tools" else None
        queries = [query for query in queries if isinstance(query, str)] if isinstance(queries, list) else []
        longest = max(map(len, queries), default=0)
        if longest > settings.gateway_query_chars:
            return (
                f"expected a query of at most {settings.gateway_query_chars:,} characters, found {longest:,}: "
                "describe in one sentence what the tool must do"
            )
        if wait := self._buckets.take(caller.name, max(1, len(queries))):
            return f"You sent more than {settings.gateway_rate:g} requests a second: try again in {math.ceil(wait)} s."
        return ""

    async def _answer_search(
        self, caller: Caller, queries: Sequence[str], limit: int | None, detail: str
    ) -> CallToolResult:
        search = functools.partial(self.scout.search_many, split=len(queries) == 1)  # several: the agent has split them
        searches = await self.upstreams.run_in_thread(
            search, queries, limit, visible=caller.visible, caller=caller.name
        )
        answer, text = await self.upstreams.run_in_thread(self._build_search_answer, caller, searches, detail)
        return _make_result(answer, text)

    def _build_search_answer(
        self, caller: Caller, searches: Sequence[Search], detail: str
    ) -> tuple[dict[str, Any], str]:
        """Build the structured content and the text of a search answer."""
        results: list[dict[str, Any]] = []
        budget = max(200, self.options.budget // 3) if detail == "full" else None
        for search in searches:
            tools = []
            for hit in search.hits:
                if hit.tool is None:
                    continue
                refusal = self._explain_refusal(caller, hit.tool)
                tools.append(show.describe_hit(hit, refusal, budget))
            results.append(
                {
                    "query": search.query,
                    "search_id": search.search_id,
                    "answer": search.answer,
                    "reason": search.reason and show.make_plain(search.reason),
                    **show.describe_steps(search),
                    "tools": tools,
                }
            )
        return show.fill_search_answer(results, self._collect_notes(caller), self.options.budget)

    def _explain_refusal(self, caller: Caller, tool: Tool) -> str:
        return self.calls.explain_refusal(tool) if caller.may_call(tool) else "you may see this tool, but not call it"

    async def _answer_describe(self, caller: Caller, ids: list[str]) -> CallToolResult:
        answer, text = await self.upstreams.run_in_thread(self._build_descriptions, caller, ids)
        return _make_result(answer, text, is_error=not answer["tools"])

    def _build_descriptions(self, caller: Caller, ids: list[str]) -> tuple[dict[str, Any], str]:
        visible, missing = self._find_tools(caller, ids)
        budget = max(100, self.options.budget // max(1, len(visible)))
        tools = [show.describe_tool(tool, self._explain_refusal(caller, tool), budget) for tool in visible.values()]
        answer: dict[str, Any] = {"tools": tools} | ({"missing": missing} if missing else {})
        return answer, show.render_descriptions(answer)

    async def _answer_call(
        self,
        context: ServerRequestContext[Any, Any],
        caller: Caller,
        id: str,
        arguments: dict[str, Any],
        search: str | None,
    ) -> CallToolResult:
        """Call a tool for a caller. The outcome is in the journal before the agent gets the answer."""
        import anyio
        from mcp.shared.exceptions import MCPError

        started, result = time.perf_counter(), None
        try:
            try:
                result = await self._call_upstream(context, caller, id, arguments)
            except UserError as error:
                result = _refuse(str(error), id=id)
            except MCPError as error:
                message = show.quote(show.clip(show.make_plain(error.message), 2_000))
                result = _refuse(f"the tool's server answered with the error {message} (code {error.code})", id=id)
        finally:
            with anyio.CancelScope(shield=True):
                ok = result is not None and not result.is_error
                await self._write_call(caller, id, ok, search, (time.perf_counter() - started) * 1000)
        return result

    async def _call_upstream(
        self, context: ServerRequestContext[Any, Any], caller: Caller, id: str, arguments: dict[str, Any]
    ) -> CallToolResult:
        """Check the tool and its arguments, and call it. For an MCP server its definition is read again first."""
        import anyio

        tool = await self._require_tool(caller, id, waiting=True)
        if refusal := self._explain_refusal(caller, tool):
            return _refuse(f"{tool.id} cannot be called: {refusal}", id=id, callable=False)
        upstream, session = self.upstreams.servers.get(tool.source), None
        if upstream is not None:
            seconds = self.calls.timeout_of(tool)
            try:
                with anyio.move_on_after(seconds):
                    session = await upstream.check_definitions()
            except Unavailable as error:
                why = upstream.message if caller.rules is None else ""  # it may name files of the operator
                raise Unavailable(f"{error}{': ' if why else ''}{why}") from None
            if session is None:
                state = "starting" if upstream.state == "starting" else "silent"
                raise Unavailable(f"server {tool.source!r} is still {state} after {seconds:g} s: try again later")
            tool = await self._require_tool(caller, id)  # as the server defines it now
        if wrong := await self.upstreams.run_in_thread(explain_faults, tool, arguments):
            raise UserError(f"wrong arguments for {tool.id}: {'; '.join(wrong)}")
        return await self.calls.call(tool, arguments, context.session.report_progress, session)

    async def _require_tool(self, caller: Caller, id: str, *, waiting: bool = False) -> Tool:
        """Return the tool if the caller may see it.

        With `waiting`, a definition that waits for approval counts too, because the server may have changed it back.

        Raises:
            NotFound: if the caller may not see it.
        """
        tools, missing = await self.upstreams.run_in_thread(self._find_tools, caller, [id])
        if id in tools:
            return tools[id]
        definition = self._find_waiting(caller, self._load_catalogue()[0], id) if waiting else None
        if definition is not None and definition.tool.source in self.upstreams.servers:
            return definition.tool
        raise NotFound(missing[id])

    async def _write_call(self, caller: Caller, id: str, ok: bool, search: str | None, ms: float) -> None:
        """Write a call to the journal. It belongs to a search only if the caller made that search."""
        if not self.scout.settings.journal:
            return

        def write() -> None:
            event = self.scout.journal.search(search) if search else None
            is_own = event and event["caller"] == caller.name and not self.scout.journal.is_full(event["search_id"])
            tool = show.clip(id if self._catalogue and id in self._catalogue[1] else redact(id), 500)
            self.scout.called(tool, ok=ok, ms=round(ms, 3), caller=caller.name, search_id=search if is_own else None)

        try:
            await self.upstreams.run_in_thread(write)
        except ToolscoutError as error:
            self.say(f"a call could not be written to the journal: {error}")


def _make_result(answer: dict[str, Any], text: str, *, is_error: bool = False) -> CallToolResult:
    from mcp_types import CallToolResult, TextContent

    return CallToolResult(content=[TextContent(text=text)], structured_content=answer, is_error=is_error)


def _refuse(message: str, **fields: Any) -> CallToolResult:
    return _make_result({"error": message, **fields}, message, is_error=True)
