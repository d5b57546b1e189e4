"""Builds the answers of `search_tools` and `describe_tools`, and results of the gateway's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from toolscout.home.access.profiles import profile_of
from toolscout.trust.policy import Caller
from toolscout.types import Search, Tool
from toolscout_gateway import text as show
from toolscout_gateway.calls import Calls
from toolscout_gateway.exchange import Exchange
from toolscout_gateway.lookup import Lookup

if TYPE_CHECKING:
    from mcp_types import CallToolResult

__all__ = ["Answers", "make_result", "refuse"]


class Answers:
    """Builds answers about tools. They show what the caller may see."""

    def __init__(self, lookup: Lookup, calls: Calls, collect_notes: Callable[[Caller], list[str]], budget: int) -> None:
        """Build answers of about `budget` tokens.

        Args:
            lookup: finds tools by their ids.
            calls: knows which tools can be called.
            collect_notes: returns notes for a caller on servers that start or fail.
            budget: approximate number of tokens for one answer.
        """
        self.lookup, self.calls, self.collect_notes, self.budget = lookup, calls, collect_notes, budget
        self.sign: Callable[[Tool], str] = show.format_signature

    def explain_refusal(self, caller: Caller, tool: Tool) -> str:
        """Explain why a caller cannot call a tool. Empty if they can."""
        if caller.may_call(tool):
            return self.calls.explain_refusal(tool)
        if scope := caller.find_missing_scope(tool):
            return f"your token lacks the scope {scope!r}: ask your issuer for a token with it"
        return "you may see this tool, but not call it"

    def _choose_budget(self, caller: Caller) -> int:
        profile = profile_of(caller)
        return (profile.budget if profile else None) or self.budget

    def build_search(self, exchange: Exchange, searches: Sequence[Search], detail: str) -> tuple[dict[str, Any], str]:
        """Build the structured content and the text of a search answer."""
        caller, budget = exchange.caller, self._choose_budget(exchange.caller)
        hit_budget = max(200, budget // 3) if detail == "full" else None
        results: list[dict[str, Any]] = []
        for search in searches:
            tools = []
            for hit in search.hits or search.weak:  # the agent has decided that it needs a tool
                if hit.tool is None:
                    continue
                refusal = self.explain_refusal(caller, hit.tool)
                tools.append(show.describe_hit(hit, refusal, hit_budget, self.sign))
            results.append(
                {
                    "query": search.query,
                    "search_id": search.search_id,
                    **show.describe_outcome(search, is_weak=bool(tools and not search.hits)),
                    **show.describe_steps(search),
                    "tools": tools,
                }
            )
        return show.fill_search_answer(results, [*exchange.notes, *self.collect_notes(caller)], budget)

    def build_descriptions(self, exchange: Exchange, ids: list[str]) -> tuple[dict[str, Any], str]:
        """Build the structured content and the text of descriptions. An id that was misspelt gets a note."""
        caller = exchange.caller
        visible, missing = self.lookup.find_tools(caller, ids)
        meant = {id: self.lookup.resolve_id(caller, id) for id in missing}
        for id, other in meant.items():
            if other:
                del missing[id]
                visible |= self.lookup.find_tools(caller, [other])[0]
                exchange.notes.append(f"{show.clip(show.make_plain(id), 80)!r} was read as {other!r}")
        budget = max(100, self._choose_budget(caller) // max(1, len(visible)))
        tools = [
            show.describe_tool(tool, self.explain_refusal(caller, tool), budget, self.sign) for tool in visible.values()
        ]
        answer: dict[str, Any] = {"tools": tools} | ({"missing": missing} if missing else {})
        text = show.render_descriptions(answer)
        if exchange.notes:
            answer["notes"] = exchange.notes
            text = "\n".join([text, *(f"Note: {note}" for note in exchange.notes)])
        return answer, text


def make_result(answer: dict[str, Any], text: str, *, is_error: bool = False) -> CallToolResult:
    """Make a result of a structured content and its text."""
    from mcp_types import CallToolResult, TextContent

    return CallToolResult(content=[TextContent(text=text)], structured_content=answer, is_error=is_error)


def refuse(message: str, **fields: Any) -> CallToolResult:
    """Make the result of a call that cannot be answered, with a sentence on why."""
    return make_result({"error": message, **fields}, message, is_error=True)
