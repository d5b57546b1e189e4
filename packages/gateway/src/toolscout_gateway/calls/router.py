"""Answers calls of tools: checks that the caller may call the tool and that it has not changed, and calls it.

Permissions apply to the raw id and are checked at each call. The outcome of a call is in the journal before the caller
gets the answer.
"""

from __future__ import annotations

import functools
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mcp_types import InputRequiredResult

from toolscout.errors import NotFound, StoreError, ToolscoutError, Unavailable, UserError
from toolscout.home.access.profiles import profile_of
from toolscout.sources.mcp import PAGE
from toolscout.trust.policy import Caller
from toolscout.trust.redaction import COVER, redact
from toolscout.types import Tool
from toolscout_gateway.access.identities import Identities
from toolscout_gateway.calls.arguments import Validators
from toolscout_gateway.calls.kinds import Calls
from toolscout_gateway.calls.repairs import add_notes, check_arguments
from toolscout_gateway.lookup import Lookup
from toolscout_gateway.offers import Offers, show_page
from toolscout_gateway.results import Results
from toolscout_gateway.sessions.relay import ask_to_open
from toolscout_gateway.text import MAX_NOTED_ID_CHARS, clip, make_plain, quote_error, reads_only, refuse

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from toolscout.sources.mcp import McpConnection
    from toolscout_gateway.sessions.exchange import Exchange, ServerSession

__all__ = ["Router"]

CALLS_PER_CHECKPOINT: Final = 256  # after about so many writes SQLite moves its log into the file, which takes longer
MAX_LOGGED_ID_CHARS: Final = 500
LINKS: Final = ("resource", "resource_link")  # types of the parts of a result that the caller may read later


class Router:
    """Calls tools for callers."""

    def __init__(
        self,
        lookup: Lookup,
        identities: Identities,
        offers: Offers,
        calls: Calls,
        validators: Validators,
        results: Results,
    ) -> None:
        """Route calls. `identities` choose as whom a server is called, `offers` remember the links in results."""
        self._lookup, self._identities, self._offers = lookup, identities, offers
        self._calls, self._validators, self._results = calls, validators, results
        self._upstreams = calls.upstreams
        self._n_logged = 0  # calls so far; every few of them are logged in a thread

    async def answer_call(self, exchange: Exchange, id: str, arguments: dict[str, Any], search_id: str | None) -> Any:
        """Call a tool for a caller. The outcome is in the journal before the agent gets the answer.

        The journal notes that the search `search_id` led to the call.

        Returns:
            The result, or the question that has to be answered first.
        """
        from mcp.shared.exceptions import MCPError

        started = time.perf_counter()
        result: Any = None
        try:
            try:
                result = await self._call(exchange, id, arguments)
            except UserError as error:
                result = refuse(str(error), id=id)
            except MCPError as error:
                source, _, _ = (exchange.tool_id or id).partition("/")
                question = ask_to_open(error, exchange, source)
                if question is not None:
                    return question  # this call has failed; the client makes a new one after its user opened the page
                result = refuse(f"the tool's server {quote_error(error)}", id=id)
        finally:
            if not isinstance(result, InputRequiredResult):
                ok = result is not None and not result.is_error  # None: the call failed or was cancelled
                seconds = time.perf_counter() - started - exchange.asked_s
                await self._write_call(exchange.caller, exchange.tool_id or id, ok, search_id, seconds * 1000)
        if isinstance(result, InputRequiredResult):
            return result
        result = await self.fit_result(exchange, exchange.tool_id or id, result)
        return add_notes(result, exchange.notes) if exchange.notes else result

    # --- before the call

    async def _call(
        self, exchange: Exchange, id: str, arguments: dict[str, Any]
    ) -> CallToolResult | InputRequiredResult:
        """Check that the caller may call the tool, and call it."""
        if not self._upstreams.is_planned:
            await self._upstreams.wait_planned()
        caller = exchange.caller
        try:
            # A definition that waits is enough: the list that is read before the call may have the approved one again.
            tool = self._lookup.recall(caller, id) or await self._find_tool(exchange, id, waiting=True)
        except NotFound:
            sign_in_answer = await self._identities.answer_sign_in(exchange, id)
            if sign_in_answer is not None:
                return sign_in_answer
            meant_id = await self._upstreams.host.run_in_thread(self._lookup.resolve_id, caller, id)
            if not meant_id:
                raise
            exchange.notes.append(f"{clip(make_plain(id), MAX_NOTED_ID_CHARS)!r} was read as {meant_id!r}")
            exchange.tool_id = meant_id
            tool = await self._find_tool(exchange, meant_id, waiting=True)
        if refusal := self._calls.explain_refusal(caller, tool):
            return refuse(f"{tool.id} cannot be called: {refusal}", id=id, callable=False)
        work = functools.partial(self._call_checked, exchange, tool, arguments)
        return await self._identities.run(exchange, tool.source, work)

    async def _call_checked(
        self, exchange: Exchange, tool: Tool, arguments: dict[str, Any]
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool, if its definition in the newest list of its server is one that the caller may call."""
        caller, upstream, session = exchange.caller, exchange.upstream, None
        generation = self._lookup.scout.store.generation_now()
        if upstream is not None:
            session = upstream.find_listed_session(generation)
            if session is None:
                session = await self._wait_for_session(upstream, caller, tool)
                generation = self._lookup.scout.store.generation_now()  # a new list may have changed the catalogue
        tool = self._lookup.find_now(caller, tool.id, generation) or await self._find_tool(exchange, tool.id)
        refusal = self._calls.explain_refusal(caller, tool)
        if not refusal and not exchange.may_write and not reads_only(tool):
            refusal = "a program calls read-only tools only: use call_tool"
        if refusal:
            return refuse(f"{tool.id} was not called: {refusal}", id=tool.id)
        if not self._validators.accepts_at_once(tool, arguments):
            check = functools.partial(check_arguments, self._validators, tool, arguments, exchange.notes)
            arguments = await self._upstreams.host.run_in_thread(check)
        result: CallToolResult | InputRequiredResult = await self._calls.call(tool, arguments, exchange, session)
        if any(block.type in LINKS for block in getattr(result, "content", ())):
            self._offers.remember_links(caller, tool.source, result)
        is_answer = not isinstance(result, InputRequiredResult)
        if PAGE in tool.meta and is_answer:  # a client only knows `call_tool`, and not the tool's page
            result = result.model_copy(update={"meta": {**(result.meta or {}), **show_page(tool)}})
        return result

    async def _wait_for_session(self, upstream: ServerSession, caller: Caller, tool: Tool) -> McpConnection:
        """Wait for the session of a server, with a list of tools that is new enough.

        Raises:
            Unavailable: if there is none within the time of the call.
        """
        import anyio

        seconds = upstream.server.timeout or self._calls.timeout
        try:
            with anyio.move_on_after(seconds):
                return await upstream.check_definitions()
        except Unavailable as error:
            if caller.rules is not None or not upstream.message:
                raise  # without the message, which may name files of the operator
            raise type(error)(f"{error}: {upstream.message}") from None
        state = "starting" if upstream.state == "starting" else "silent"
        raise Unavailable(f"server {tool.source!r} is still {state} after {seconds:g} s: try again later")

    async def _find_tool(self, exchange: Exchange, id: str, *, waiting: bool = False) -> Tool:
        """Return the tool if the caller may see it.

        With `waiting`, a tool of a server is found too if its definition waits for approval. A tool that only the page
        of an MCP app may use is found by a call that such a page may have made.

        Raises:
            NotFound: if the caller may not see it.
        """
        caller, run = exchange.caller, self._upstreams.host.run_in_thread
        tools, missing = await run(self._lookup.find_tools, caller, [id])
        if id in tools:
            return tools[id]
        if exchange.may_be_app and (tool := await run(self._lookup.find_for_app, caller, id)) is not None:
            exchange.tool_id = tool.id
            return tool
        if waiting:
            definition = self._lookup.find_waiting(caller, self._lookup.load_catalogue().catalogue, id)
            if definition is not None and definition.tool.source in self._upstreams.servers:
                return definition.tool
        raise NotFound(missing[id])

    # --- after the call

    def choose_results(self, caller: Caller) -> Results:
        """Return the store of results, with the budget of a caller's profile."""
        profile = profile_of(caller)
        return self._results.within(profile.result_budget) if profile else self._results

    async def fit_result(self, exchange: Exchange, id: str, result: CallToolResult) -> CallToolResult:
        """Cut a result to the budget, unless the caller asks for everything. The agent reads the rest by its handle."""
        results, everything = self.choose_results(exchange.caller), exchange.wants_everything
        spill = self._upstreams.host.spills.take(result.meta) if result.meta else None  # a file of its large values
        if spill is None and (everything or results.fits(result)):
            return result
        cover, person = self._calls.find_cover(exchange), exchange.caller.person
        fit = functools.partial(results.fit, caller=person, tool=id, cover=cover, everything=everything)
        try:
            return await results.threads.run(fit, result, spill)
        except Unavailable as error:
            return refuse(str(error), id=id)

    async def _write_call(self, caller: Caller, id: str, ok: bool, search_id: str | None, ms: float) -> None:
        """Write a call to the journal. It belongs to a search only if the caller made that search.

        In a folder the event loop writes, because a change of thread takes longer than the write. A thread does the
        writes that take longer: the first one, which opens the journal, one in `CALLS_PER_CHECKPOINT`, and any while
        another program writes. If a call cannot be written, it does not fail; the gateway's log says why.
        """
        import anyio

        host = self._upstreams.host
        if not host.scout.settings.journal:
            return
        is_slow = host.scout.settings.database is not None or self._n_logged % CALLS_PER_CHECKPOINT == 0
        self._n_logged += 1
        try:
            if not is_slow:
                with suppress(StoreError):  # another program writes
                    self._append_call(caller, id, ok, search_id, ms, wait=False)
                    return
            with anyio.CancelScope(shield=True):
                await host.run_in_thread(self._append_call, caller, id, ok, search_id, ms)
        except ToolscoutError as error:
            host.say(f"a call could not be written to the journal: {error}")

    def _append_call(
        self, caller: Caller, id: str, ok: bool, search_id: str | None, ms: float, *, wait: bool = True
    ) -> None:
        """Append a call to the journal. The id of a tool that was never listed may be a secret, and is covered."""
        journal = self._upstreams.host.scout.journal
        search = journal.search(search_id) if search_id else None
        if search is not None and (search["caller"] != caller.name or journal.is_full(search["search_id"])):
            search = None  # the call is written without it
        shown = search["shown"] if search is not None and isinstance(search["shown"], list) else []
        was_listed = id in self._lookup.known_ids
        if len(id) <= MAX_LOGGED_ID_CHARS:
            tool = id if was_listed else redact(id)
        elif was_listed:
            tool = clip(id, MAX_LOGGED_ID_CHARS)
        else:
            tool = COVER  # `redact` would not recognise a secret in an id that was cut
        rank = shown.index(tool) + 1 if tool in shown else None
        own_id = search_id if search is not None else None
        fields = {"search_id": own_id, "tool": tool, "ok": ok, "ms": round(ms, 3), "rank": rank}
        journal.append_all([("call", caller.name, fields)], wait=wait)
