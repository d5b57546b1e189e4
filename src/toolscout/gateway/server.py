"""One MCP server in front of all tools: an agent searches, reads what it needs to know, and calls.

The agent sees three tools, `search_tools`, `describe_tools` and `call_tool`, and those that were pinned. What it may
find and call depends on the caller, is looked up afresh at each call, and goes by the raw id alone.
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
from toolscout.gateway.calls import Calls, advice
from toolscout.gateway.http import CALLER
from toolscout.gateway.upstream import NAME, Upstreams
from toolscout.journal.journal import redact
from toolscout.scout import Scout
from toolscout.types import Search, Tool

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult

__all__ = ["Gateway", "Options"]

THREADS: Final = 8
MAX_NEAR: Final = 2_000  # ids of a source that are compared with a mistyped one
MAX_ID_CHARS: Final = 500
TTL_MS: Final = 300_000  # so long a client may keep the list of tools


@dataclasses.dataclass(frozen=True)
class Options:
    """How a gateway behaves.

    Attributes:
        configs: mcpServers files to bring into the catalogue.
        pins: ids of tools that are shown beside the three.
        allow_python: whether Python functions of the catalogue may be called.
        call_timeout: seconds for one call; a server's own `timeout` comes before it.
        budget: about how many tokens an answer of search_tools or describe_tools may have.
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
        server: the server of the MCP SDK; it can be served in any way that the SDK knows.
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
        """Take the catalogue and what may be done with it.

        Args:
            scout: catalogue, search and journal.
            options: see `Options`.
            policies: who may do what; by default everybody everything.
            credential: of whoever speaks over stdio.
            say: where to report what happens, a sentence at a time.

        Raises:
            MissingExtra: without the extra `mcp`.
        """
        require("mcp", "mcp")
        self.scout, self.options, self.say = scout, options, say
        self.policies = policies or Policies.load(None)
        self._credential = credential
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="toolscout")
        self.upstreams = Upstreams(scout, self._threads, say)
        self.calls = Calls(self.upstreams, allow_python=options.allow_python, timeout=options.call_timeout)
        self._buckets = Buckets(scout.settings.gateway_rate or None)
        self._catalogue: tuple[Catalogue, frozenset[str]] | None = None
        self._lock = threading.Lock()
        self._reading: set[str] = set()
        self._pins = show.shown_names(options.pins)
        self.server = self._server()

    def _server(self) -> Server[Any]:
        from mcp.server import Server

        return Server(
            NAME,
            version=version("toolscout"),
            instructions=show.INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While inside, the servers behind the gateway are started and the catalogue is kept in step with them."""
        import anyio

        self._behind, self._stopped = anyio.CancelScope(), anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep_in_step)
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self.stop()
                    end = functools.partial(self._threads.shutdown, cancel_futures=True)
                    await anyio.to_thread.run_sync(end)  # until then nobody may close the store under them

    async def stop(self) -> None:
        """End every server behind the gateway, with the processes that it started."""
        self._behind.cancel()
        await self._stopped.wait()
        await self.calls.close()

    async def _keep_in_step(self) -> None:
        import anyio

        def origins() -> list[Origin]:
            kept = self.scout.store.origins()
            known = {(origin.locator, origin.name) for origin in kept}
            files = dict.fromkeys(str(path.expanduser().absolute()) for path in self.options.configs)
            return [*kept, *(Origin(file, "mcp") for file in files if (file, None) not in known)]

        try:
            with self._behind:
                found = await self.upstreams.thread(origins)
                async with anyio.create_task_group() as group:
                    group.start_soon(self.upstreams.run, [origin for origin in found if origin.kind == "mcp"])
                    group.start_soon(self._read_others)
        finally:
            self._stopped.set()

    async def _read_others(self) -> None:
        """Read what is no MCP server again: documents and files, and modules if their code may run."""
        kinds = {"openapi", "schemas", "folder"} | ({"python"} if self.options.allow_python else set())
        sources = await self.upstreams.thread(self.scout.sources)
        self._reading = {source.name for source in sources if source.kind in kinds}
        for name in sorted(self._reading):
            try:
                for changes in await self.upstreams.thread(lambda name=name: list(self.scout.sync([name]))):
                    if changes.state == "error":
                        self.say(f"{changes.source}: {changes.message}")
            except UserError as error:
                self.say(f"{name}: {error}")
            self._reading.discard(name)

    async def serve_stdio(self) -> None:
        """Speak MCP over standard input and output until the other side hangs up."""
        from mcp.server.stdio import stdio_server

        async with stdio_server() as (reading, writing):
            await self.server.run(reading, writing, self.server.create_initialization_options())

    # --- who asks, and what there is

    def _caller(self, context: ServerRequestContext[Any, Any]) -> Caller:
        scope = getattr(context.request, "scope", None)
        if isinstance(scope, dict) and CALLER in scope:
            caller: Caller = scope[CALLER]
            return caller
        return self.speaker

    @functools.cached_property
    def speaker(self) -> Caller:
        """Who speaks over stdio.

        Raises:
            Denied: if the credential is nobody's.
        """
        return self.policies.caller(self._credential)

    def _present(self) -> tuple[Catalogue, frozenset[str]]:
        """The catalogue as it is now, and its ids."""
        with self._lock:
            held = self._catalogue
            if held is None or held[0].generation != self.scout.store.generation():
                catalogue = self.scout.store.catalogue()
                held = self._catalogue = catalogue, frozenset(catalogue.ids)
            return held

    def _find(self, caller: Caller, ids: Iterable[str]) -> tuple[dict[str, Tool], dict[str, str]]:
        """Tools that the caller may see now, and for each other id a sentence that does not say whether it exists."""
        catalogue, present = self._present()
        found: dict[str, Tool] = {}
        missing: dict[str, str] = {}
        for id in ids:
            tool = next(iter(catalogue.tools([id])), None) if id in present else None
            if tool is not None and caller.sees(tool):
                found[id] = tool
            else:
                missing[id] = self._missing(caller, catalogue, id)
        return found, missing

    def _missing(self, caller: Caller, catalogue: Catalogue, id: str) -> str:
        """Why a caller cannot have a tool; everything in it comes from tools that the caller may see."""
        what = f"expected the id of a tool that is there for you, found {show.clip(show.plain(id), 200)!r}"
        if waiting := self._waiting(caller, catalogue, id):
            return f"{what}: it waits for approval ( toolscout approve ), because {waiting.why}"
        source = id.partition("/")[0]
        mask = catalogue.mask(caller.visible)
        seen = catalogue.ids if mask is None else [each for each, sees in zip(catalogue.ids, mask, strict=True) if sees]
        first = bisect.bisect_left(seen, f"{source}/")
        beside = list(itertools.takewhile(lambda each: each.startswith(f"{source}/"), seen[first : first + MAX_NEAR]))
        if near := difflib.get_close_matches(id[:MAX_ID_CHARS], beside, n=1, cutoff=0.75):
            return f"{what}: did you mean {near[0]!r}?"
        states = [note for note in self._notes(caller) if repr(source) in note]
        why, names = catalogue.disabled.get(source, ("", {}))
        if caller.rules is None and why:
            states.append(f"source {source!r} is {why}")
        elif any(caller.sees(tool) for tool in catalogue.tools([names.get(id.casefold(), "")])):
            states.append(f"source {source!r} is disabled")
        return ": ".join([what, *states, "take an id from search_tools, unchanged"])

    def _waiting(self, caller: Caller, catalogue: Catalogue, id: str) -> Waiting | None:
        """The definition of that id that waits for approval, if the caller may see it."""
        held = catalogue.waiting.get(id.casefold(), ())
        return next((each for each in held if each.id == id and caller.sees(each.tool)), None)

    def _notes(self, caller: Caller) -> list[str]:
        """What a caller should know of servers that are not well; their names only for who sees everything."""
        upstreams = self.upstreams.servers.values()
        starting = sorted({each.name for each in upstreams if each.state == "starting"} | self._reading)
        failed = sorted((each.name, each.message) for each in upstreams if each.state == "error")
        if caller.rules is not None:
            notes = [f"{len(starting)} servers are still starting"] if starting else []
            return notes + ([f"{len(failed)} servers do not answer"] if failed else [])
        notes = [f"server {name!r} is still starting: its newest tools may be missing" for name in starting[:10]]
        notes += [f"server {name!r} does not answer: {show.clip(show.plain(why), 200)}" for name, why in failed[:10]]
        more = len(starting) + len(failed) - len(notes)
        return notes + ([f"and {more} more servers"] if more else [])

    # --- the list of tools

    async def _list_tools(self, context: ServerRequestContext[Any, Any], _: object) -> ListToolsResult:
        from mcp_types import ListToolsResult, ToolAnnotations
        from mcp_types import Tool as Listed

        tools = [
            Listed(name=name, description=text, input_schema=schema, annotations=ToolAnnotations(read_only_hint=reads))
            for name, (text, schema, reads) in show.META.items()
        ]
        pinned = await self.upstreams.thread(self._pinned, self._caller(context))
        for name, tool in pinned.items():
            hints = ToolAnnotations(
                read_only_hint=tool.hints.read_only,
                destructive_hint=tool.hints.destructive,
                idempotent_hint=tool.hints.idempotent,
                open_world_hint=tool.hints.open_world,
            )
            schema = show.tidy({"type": "object", **(tool.parameters or {})})
            text = show.clip(show.plain(tool.description), 2_000)
            tools.append(Listed(name=name, description=text, input_schema=schema, annotations=hints))
        open_to_all = self.policies.default is LOCAL
        return ListToolsResult(tools=tools, ttl_ms=TTL_MS, cache_scope="public" if open_to_all else "private")

    def _pinned(self, caller: Caller) -> dict[str, Tool]:
        """Name to show → pinned tool, in the order of the pins. Names are for show: what counts is the id behind."""
        found, _ = self._find(caller, self._pins)
        return {self._pins[id]: tool for id, tool in found.items() if caller.may_call(tool)}

    # --- the three

    async def _call_tool(
        self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams
    ) -> CallToolResult:
        caller = self._caller(context)
        given = params.arguments or {}
        if refusal := self._too_much(caller, params.name, given):
            return _refused(refusal)
        if params.name not in show.META:
            pinned = await self.upstreams.thread(self._pinned, caller)
            tool = pinned.get(params.name)
            id = tool.id if tool else params.name
            return await self._call(context, caller, id, given, None)
        if wrong := advice(show.AS_TOOLS[params.name], given):
            return _refused("; ".join(wrong))
        try:
            if params.name == "search_tools":
                return await self._search(caller, given["queries"], given.get("limit"), given.get("detail", "compact"))
            if params.name == "describe_tools":
                return await self._describe(caller, list(dict.fromkeys(given["ids"])))
        except ToolscoutError as error:
            return _refused(str(error))
        return await self._call(context, caller, given["id"], given["arguments"], given.get("search_id"))

    def _too_much(self, caller: Caller, name: str, given: dict[str, Any]) -> str:
        """Empty, or a sentence that says what is too much, and when to ask again."""
        settings = self.scout.settings
        size = len(msgspec.json.encode(given))
        if size > settings.gateway_argument_bytes:
            return (
                f"expected arguments of at most {settings.gateway_argument_bytes:,} bytes, found {size:,}: "
                "send less at once"
            )
        queries = given.get("queries") if name == "search_tools" else None
        queries = [each for each in queries if isinstance(each, str)] if isinstance(queries, list) else []
        longest = max(map(len, queries), default=0)
        if longest > settings.gateway_query_chars:
            return (
                f"expected a query of at most {settings.gateway_query_chars:,} characters, found {longest:,}: "
                "say in one sentence what the tool must do"
            )
        if wait := self._buckets.take(caller.name, max(1, len(queries))):
            return (
                f"You have asked more than {settings.gateway_rate:g} times a second: ask again in {math.ceil(wait)} s."
            )
        return ""

    async def _search(self, caller: Caller, queries: Sequence[str], limit: int | None, detail: str) -> CallToolResult:
        searches = await self.upstreams.thread(
            self.scout.search_many, queries, limit, visible=caller.visible, caller=caller.name
        )
        answer, text = await self.upstreams.thread(self._found, caller, searches, detail)
        return _result(answer, text)

    def _found(self, caller: Caller, searches: Sequence[Search], detail: str) -> tuple[dict[str, Any], str]:
        """What searches have found, as the agent gets it."""
        results: list[dict[str, Any]] = []
        for search in searches:
            tools = []
            for hit in search.hits:
                if hit.tool is None:
                    continue
                why_not = self._why_not(caller, hit.tool)
                if detail == "full":
                    shown = show.describe(hit.tool, why_not, max(200, self.options.budget // 3))
                else:
                    shown = {"id": hit.id, "signature": show.signature(hit.tool), "callable": not why_not}
                    shown["description"] = show.sentence(hit.tool.description)
                    if why_not:
                        shown["not_callable"] = why_not
                tools.append(shown)
            results.append(
                {
                    "query": search.query,
                    "search_id": search.search_id,
                    "answer": search.answer,
                    "reason": search.reason and show.plain(search.reason),
                    "tools": tools,
                }
            )
        return show.found(results, self._notes(caller), self.options.budget)

    def _why_not(self, caller: Caller, tool: Tool) -> str:
        return self.calls.why_not(tool) if caller.may_call(tool) else "you may see it, but not call it"

    async def _describe(self, caller: Caller, ids: list[str]) -> CallToolResult:
        answer, text = await self.upstreams.thread(self._described, caller, ids)
        return _result(answer, text, is_error=not answer["tools"])

    def _described(self, caller: Caller, ids: list[str]) -> tuple[dict[str, Any], str]:
        found, missing = self._find(caller, ids)
        share = self.options.budget // max(1, len(found))
        tools = [show.describe(tool, self._why_not(caller, tool), max(100, share)) for tool in found.values()]
        answer: dict[str, Any] = {"tools": tools} | ({"missing": missing} if missing else {})
        return answer, show.described(answer)

    async def _call(
        self,
        context: ServerRequestContext[Any, Any],
        caller: Caller,
        id: str,
        given: dict[str, Any],
        search: str | None,
    ) -> CallToolResult:
        """Call a tool for a caller; whatever comes of it is in the journal before it is answered."""
        import anyio
        from mcp.shared.exceptions import MCPError

        started, result = time.perf_counter(), None
        try:
            try:
                result = await self._called(context, caller, id, given)
            except UserError as error:
                result = _refused(str(error), id=id)
            except MCPError as error:
                said = show.quoted(show.clip(show.plain(error.message), 2_000))
                result = _refused(f"the tool's server answered with the error {said} (code {error.code})", id=id)
        finally:
            with anyio.CancelScope(shield=True):
                ok = result is not None and not result.is_error
                await self._note(caller, id, ok, search, (time.perf_counter() - started) * 1000)
        return result

    async def _called(
        self, context: ServerRequestContext[Any, Any], caller: Caller, id: str, given: dict[str, Any]
    ) -> CallToolResult:
        import anyio

        tool = await self._allowed(caller, id, waiting=True)
        if why_not := self._why_not(caller, tool):
            return _refused(f"{tool.id} cannot be called: {why_not}", id=id, callable=False)
        upstream, session = self.upstreams.servers.get(tool.source), None
        if upstream is not None:
            seconds = self.calls.seconds(tool)
            try:
                with anyio.move_on_after(seconds):
                    session = await upstream.look()
            except Unavailable as error:
                why = upstream.message if caller.rules is None else ""  # it may name files of whoever runs the service
                raise Unavailable(f"{error}{': ' if why else ''}{why}") from None
            if session is None:
                doing = "starting" if upstream.state == "starting" else "silent"
                raise Unavailable(f"server {tool.source!r} is still {doing} after {seconds:g} s: try again in a while")
            tool = await self._allowed(caller, id)  # as the server defines it now
        if wrong := await self.upstreams.thread(advice, tool, given):
            raise UserError(f"wrong arguments for {tool.id}: {'; '.join(wrong)}")
        return await self.calls.call(tool, given, context.session.report_progress, session)  # heard by who asked for it

    async def _allowed(self, caller: Caller, id: str, *, waiting: bool = False) -> Tool:
        """The tool, if the caller may have it; `waiting`: also one that waits, for it may have changed back."""
        found, missing = await self.upstreams.thread(self._find, caller, [id])
        if id in found:
            return found[id]
        held = self._waiting(caller, self._present()[0], id) if waiting else None
        if held is not None and held.tool.source in self.upstreams.servers:
            return held.tool
        raise NotFound(missing[id])

    async def _note(self, caller: Caller, id: str, ok: bool, search: str | None, ms: float) -> None:
        if not self.scout.settings.journal:
            return

        def note() -> None:
            asked = self.scout.journal.search(search) if search else None
            own = asked and asked["caller"] == caller.name and not self.scout.journal.is_full(asked["search_id"])
            tool = show.clip(id if id in self._present()[1] else redact(id), 500)
            self.scout.called(tool, ok=ok, ms=round(ms, 3), caller=caller.name, search_id=search if own else None)

        try:
            await self.upstreams.thread(note)
        except ToolscoutError as error:
            self.say(f"a call is missing in the journal: {error}")


def _result(answer: dict[str, Any], text: str, *, is_error: bool = False) -> CallToolResult:
    from mcp_types import CallToolResult, TextContent

    return CallToolResult(content=[TextContent(text=text)], structured_content=answer, is_error=is_error)


def _refused(message: str, **more: Any) -> CallToolResult:
    return _result({"error": message, **more}, message, is_error=True)
