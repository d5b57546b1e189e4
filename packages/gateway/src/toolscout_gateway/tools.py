"""Answers the tools that an agent sees: the meta-tools, and those that are pinned."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolscout.adapters.providers import MCP_CLIENT, translate
from toolscout.errors import ToolscoutError, Unavailable
from toolscout.home.access.profiles import profile_of
from toolscout.home.access.telemetry import record_searches
from toolscout.trust.policy import LOCAL, Caller
from toolscout.types import Search, Tool, keep_kind
from toolscout_gateway import text as show
from toolscout_gateway.access.permissions import Permissions
from toolscout_gateway.calls.arguments import Validators
from toolscout_gateway.calls.kinds import Calls
from toolscout_gateway.calls.repairs import add_notes, read_request
from toolscout_gateway.calls.router import Router
from toolscout_gateway.lookup import Lookup
from toolscout_gateway.offers import show_page
from toolscout_gateway.options import Options
from toolscout_gateway.programs import Programs
from toolscout_gateway.result_pages import read_result
from toolscout_gateway.results import DETAIL
from toolscout_gateway.sessions.exchange import Exchange
from toolscout_gateway.text import META_TOOL_RECORDS, make_result, refuse

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams, CallToolResult, InputRequiredResult, ListToolsResult

__all__ = ["AgentTools"]

TOOL_LIST_TTL_MS: Final = 300_000  # how long a client may cache the list of tools
MAX_PINNED_TEXT_CHARS: Final = 2_000
MAX_SOURCES_CHARS: Final = 120  # of the names of sources in the text of search_tools, some 40 tokens
MAX_SOURCE_CHARS: Final = 40
MIN_FULL_HIT_TOKENS: Final = 200  # of a hit with its complete definition, however small the budget is
MIN_DESCRIPTION_TOKENS: Final = 100  # of one of several tools that are described
SOURCES_KEPT_S: Final = 3_600.0
MAX_NAMED_CALLERS: Final = 1_000


class AgentTools:
    """The tools that an agent sees. Answers use only what the caller may see."""

    def __init__(
        self,
        options: Options,
        permissions: Permissions,
        lookup: Lookup,
        calls: Calls,
        router: Router,
        validators: Validators,
        programs: Programs | None,
    ) -> None:
        """Answer with these parts of the gateway.

        Args:
            options: pins and budgets.
            permissions: who is calling, and what they may do.
            lookup: searches, for `search_tools`.
            calls: the ways to call a tool.
            router: decides about a call, makes it and records it.
            validators: of the schemas, for repairs of arguments.
            programs: runs programs; None: there is no `run_code`.
        """
        self._options, self._permissions, self._lookup = options, permissions, lookup
        self._calls, self._router, self._validators, self._programs = calls, router, validators, programs
        self._upstreams = calls.upstreams
        self._meta_tools = show.META_TOOLS | (show.RUN_CODE_TOOL if programs else {})
        self._sources: dict[object, tuple[float, str]] = {}  # what a caller may see → when it was named, and the text
        self._format_signature: Callable[[Tool], str] = programs.format_signature if programs else show.format_signature

    # --- the list

    async def list_tools(self, context: ServerRequestContext[Any, Any], _: object) -> ListToolsResult:
        """List the meta-tools and the pinned tools that the caller may call."""
        from mcp_types import ListToolsResult, ToolAnnotations
        from mcp_types import Tool as Listed

        caller, run = self._permissions.get_caller(context), self._upstreams.host.run_in_thread
        await self._upstreams.wait_planned()  # clients ask for this list first of all
        sources = await run(self._recall_sources, caller)
        tools = []
        for name, (text, schema, is_read_only) in self._meta_tools.items():
            description = text + sources if name == "search_tools" else text
            hints = ToolAnnotations(read_only_hint=is_read_only)
            tools.append(Listed(name=name, description=description, input_schema=schema, annotations=hints))
        pinned = await run(self._find_pinned, caller)
        for name, tool in pinned.items():
            hints = ToolAnnotations(
                read_only_hint=tool.hints.read_only,
                destructive_hint=tool.hints.destructive,
                idempotent_hint=tool.hints.idempotent,
                open_world_hint=tool.hints.open_world,
            )
            offered = translate(tool, MCP_CLIENT)
            schema = show.clean_schema(offered.schema)
            text = show.clip(show.make_plain(offered.description), MAX_PINNED_TEXT_CHARS)
            title = show.read_title(tool)
            listed = Listed(name=name, title=title, description=text, input_schema=schema, annotations=hints)
            tools.append(listed.model_copy(update={"meta": show_page(tool) or None}))
        is_open = self._permissions.policies.default is LOCAL
        return ListToolsResult(tools=tools, ttl_ms=TOOL_LIST_TTL_MS, cache_scope="public" if is_open else "private")

    def _recall_sources(self, caller: Caller) -> str:
        """Name the sources behind the gateway. The text stays for an hour, so that a client can cache its prompt."""
        named_at, text = self._sources.get(caller.visible, (-math.inf, ""))
        if time.monotonic() - named_at > SOURCES_KEPT_S:
            text = self._name_sources(caller)
            if not self._upstreams.list_unlisted():
                if len(self._sources) >= MAX_NAMED_CALLERS:
                    self._sources.clear()
                self._sources[caller.visible] = time.monotonic(), text
        return text

    def _name_sources(self, caller: Caller) -> str:
        """Name the sources whose tools the caller may reach, those with most tools first; empty if there are none.

        An agent that knows no name behind the gateway does not search. A caller who may see everything also reads the
        names of servers that are still starting for the first time, such as "Has tools of: github, slack."
        """
        catalogue, _ = self._lookup.load_catalogue()
        mask = catalogue.mask(self._calls.keep_runnable(caller.visible))
        reachable = [id for id, sees in zip(catalogue.ids, mask, strict=True) if sees] if mask is not None else []
        counts = collections.Counter(id.partition("/")[0] for id in reachable)
        if caller.visible is None:
            counts.update(dict.fromkeys(self._upstreams.list_unlisted(), 0))
        names = [show.clip(show.make_plain(source), MAX_SOURCE_CHARS) for source, _ in counts.most_common()]
        shown = [name for name, size in zip(names, itertools.accumulate(len(name) + 2 for name in names), strict=True)
                 if size <= MAX_SOURCES_CHARS]  # fmt: skip
        more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
        return f" Has tools of: {', '.join(shown)}{more}." if shown else ""

    def list_all_pins(self) -> set[str]:
        """List the ids of the tools that are pinned for somebody."""
        return set(self._options.pins).union(*(profile.pins for profile in self._permissions.profiles.all))

    def _find_pinned(self, caller: Caller) -> dict[str, Tool]:
        """Map shown names to the pinned tools that the caller may call, in the order of the pins.

        A name is for display only. Permissions apply to the id behind it.
        """
        profile = profile_of(caller)
        names = show.name_pinned_tools(self._options.pins if profile is None else profile.pins)
        if not names:
            return {}
        tools, _ = self._lookup.find_tools(caller, names)
        return {names[id]: tool for id, tool in tools.items() if caller.may_call(tool)}

    # --- calls

    async def call_tool(
        self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Answer a call of a meta-tool, a pinned tool, or a tool by its id."""
        caller = self._permissions.get_caller(context)
        exchange = Exchange(caller, context, params)
        name, arguments = params.name, params.arguments or {}
        if refusal := self._permissions.check_size(arguments):  # before any work on them
            return refuse(refusal)
        faults: list[str] = []
        if name in self._meta_tools and not self._validators.accepts_at_once(META_TOOL_RECORDS[name], arguments):
            read = functools.partial(read_request, self._validators, name, arguments)
            arguments, exchange.notes, faults = await self._upstreams.host.run_in_thread(read)
        meta: Any = params.meta or {}
        exchange.wants_everything = "full" in (name == "call_tool" and arguments.get("detail"), meta.get(DETAIL))
        queries = arguments.get("queries") if name == "search_tools" else None
        permissions, n_queries = self._permissions, len(queries) if isinstance(queries, list) else 1
        refusal = permissions.check_queries(queries) if queries else ""
        if refusal := refusal or permissions.check_rate(caller, max(1, n_queries)):
            return refuse(refusal)
        if name not in self._meta_tools:
            exchange.may_be_app = True
            pinned = await self._upstreams.host.run_in_thread(self._find_pinned, caller)
            if tool := pinned.get(name):
                name, arguments = tool.id, translate(tool, MCP_CLIENT).restore(arguments)
            arguments = {"id": name, "arguments": arguments}
        elif faults:
            return refuse("; ".join(faults))
        elif name != "call_tool":
            try:
                return await self._answer(exchange, name, arguments)
            except ToolscoutError as error:
                return refuse(str(error))
        id, search_id = arguments["id"], arguments.get("search_id")
        work = functools.partial(self._router.answer_call, exchange, id, arguments["arguments"], search_id)
        try:
            return await self._upstreams.host.relay.run(exchange, work)
        except Unavailable as error:
            return refuse(str(error), id=id)

    async def _answer(
        self, exchange: Exchange, name: str, arguments: dict[str, Any]
    ) -> CallToolResult | InputRequiredResult:
        """Answer a call of a meta-tool other than `call_tool`."""
        run, caller = self._upstreams.host.run_in_thread, exchange.caller
        if name == "search_tools":
            return await self._search(exchange, arguments["queries"], arguments.get("limit"), arguments)
        if name == "describe_tools":
            ids = list(dict.fromkeys(arguments["ids"]))
            described, text = await run(self._build_descriptions, exchange, ids)
            return make_result(described, text, is_error=not described["tools"])
        if name == "read_result":
            results = self._router.choose_results(caller)
            page = await results.threads.run(read_result, results, caller.person, **arguments)
            result: CallToolResult = add_notes(make_result(*page), exchange.notes)
            return result
        assert self._programs is not None  # otherwise run_code is no meta-tool
        return await self._programs.answer(exchange, arguments["code"], arguments.get("search_id"))

    async def _search(
        self, exchange: Exchange, queries: Sequence[str], limit: int | None, options: dict[str, Any]
    ) -> CallToolResult:
        """Search for several requests at once, in the tools that the caller may see."""
        caller, ends = exchange.caller, time.monotonic() + self._options.call_timeout
        await self._upstreams.wait_listed()
        is_one = len(queries) == 1  # several: the agent has split the request itself
        visible = keep_kind(options.get("kind"), caller.visible)

        def search() -> tuple[list[Search], tuple[dict[str, Any], str]]:
            """Search among the visible tools.

            If only some can be called here, these are searched; the others take no place of theirs (`_add_unrunnable`).
            """
            runnable = self._calls.keep_runnable(visible)
            is_mixed = self._lookup.is_mixed(visible, runnable)
            preferred = runnable if is_mixed else visible
            scout = self._upstreams.host.scout
            searches = scout.search_many(
                queries, limit, visible=preferred, split=is_one, deadline=ends, caller=caller.name
            )
            if is_mixed:
                others = scout.preview_many(queries, limit, visible=visible)
                searches = [_add_unrunnable(search, other) for search, other in zip(searches, others, strict=True)]
            return searches, self._build_search(exchange, searches, options.get("detail", "compact"))

        searches, answer = await self._upstreams.host.run_in_thread(search)
        record_searches(searches)
        return make_result(*answer)

    def _choose_budget(self, caller: Caller) -> int:
        """Return the tokens that an answer may have: those of the caller's profile, or else of the gateway."""
        profile = profile_of(caller)
        return (profile.budget if profile else None) or self._options.budget

    def _build_search(self, exchange: Exchange, searches: Sequence[Search], detail: str) -> tuple[dict[str, Any], str]:
        """Build the structured content and the text of a search answer.

        Args:
            exchange: the caller's request.
            searches: the answers to its queries.
            detail: "compact", or "full" with the schema of each tool as far as the budget allows.
        """
        caller, budget = exchange.caller, self._choose_budget(exchange.caller)
        hit_budget = max(MIN_FULL_HIT_TOKENS, budget // 3) if detail == "full" else None  # so the best three fit
        results: list[dict[str, Any]] = []
        for search in searches:
            tools = []
            # If the search abstained, `weak` has the hits that it held back. They are shown, because an agent that
            # searches has decided that it needs a tool.
            for hit in search.hits or search.weak:
                if hit.tool is None:  # for the type checker: hits of a finished search have their tools
                    continue
                refusal = self._calls.explain_refusal(caller, hit.tool)
                tools.append(show.describe_hit(hit, refusal, hit_budget, self._format_signature))
            results.append(
                {
                    "query": search.query,
                    "search_id": search.search_id,
                    **show.describe_outcome(search, is_weak=bool(tools) and (search.is_doubtful or not search.hits)),
                    **show.describe_steps(search),
                    "tools": tools,
                }
            )
        return show.fill_search_answer(results, [*exchange.notes, *self._lookup.collect_notes(caller)], budget)

    def _build_descriptions(self, exchange: Exchange, ids: list[str]) -> tuple[dict[str, object], str]:
        """Build the structured content and the text of descriptions. An id that is read as another gets a note."""
        caller = exchange.caller
        visible, missing = self._lookup.find_tools(caller, ids)
        meant = {id: self._lookup.resolve_id(caller, id) for id in missing}
        for id, meant_id in meant.items():
            if meant_id:
                del missing[id]
                meant_tools, _ = self._lookup.find_tools(caller, [meant_id])
                visible |= meant_tools
                exchange.notes.append(
                    f"{show.clip(show.make_plain(id), show.MAX_NOTED_ID_CHARS)!r} was read as {meant_id!r}"
                )
        budget = max(MIN_DESCRIPTION_TOKENS, self._choose_budget(caller) // max(1, len(visible)))
        tools = [
            show.describe_tool(tool, self._calls.explain_refusal(caller, tool), budget, self._format_signature)
            for tool in visible.values()
        ]
        skills = self._lookup.find_skills(caller, visible)
        for shown in tools:
            if skill_ids := skills.get(str(shown["id"])):
                shown["skills"] = skill_ids
        answer: dict[str, object] = {"tools": tools} | ({"missing": missing} if missing else {})
        text = show.render_descriptions(answer)
        if exchange.notes:
            answer["notes"] = exchange.notes
            text = "\n".join([text, *(f"Note: {note}" for note in exchange.notes)])
        return answer, text


def _add_unrunnable(runnable: Search, visible: Search) -> Search:
    """Add tools that cannot be called here to the search among those that can.

    A tool that the query names comes first, as everywhere. Others are shown only where none fits that can be called.

    Args:
        runnable: the search among the tools that can be called. It is in the journal, so its `search_id` stays.
        visible: the same search among all tools that the caller may see.
    """
    named = [
        hit
        for hit in visible.hits
        if hit.tool is not None and hit.id not in runnable.ids and _is_named(hit.tool, runnable.query)
    ]
    if not named and runnable.hits:
        return runnable
    hits = (*named, *runnable.hits) or visible.hits
    return msgspec.structs.replace(visible, search_id=runnable.search_id, hits=hits)


def _is_named(tool: Tool, query: str) -> bool:
    """Return whether a query contains the id of a tool, or its name if that is no mere word."""
    is_word = re.fullmatch(r"[A-Za-z]?[a-z]*", tool.name) is not None
    return tool.id in query or (tool.name in query and not is_word)
