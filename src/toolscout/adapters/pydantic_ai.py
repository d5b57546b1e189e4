"""Pydantic AI: a search strategy for its deferred tools.

::

    Agent(model, tools=[Tool(f, defer_loading=True), …], capabilities=[ToolSearch(strategy=strategy(scout))])
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from toolscout.adapters import Chooser
from toolscout.scout import Scout

__all__ = ["strategy"]


def strategy(
    scout: Scout, *, source: str = "pydantic-ai", k: int | None = None, caller: str | None = None
) -> Callable[[Any, Sequence[str], Sequence[Any]], Awaitable[list[str]]]:
    """Make the search function of `pydantic_ai.capabilities.ToolSearch`; see `toolscout.adapters.Chooser`."""
    chooser = Chooser(scout, source, k=k, caller=caller)

    async def search(ctx: Any, queries: Sequence[str], tools: Sequence[Any]) -> list[str]:  # `ctx` is not needed
        offered = [
            {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters_json_schema}
            for tool in tools
        ]
        return await asyncio.to_thread(chooser.choose, queries, offered)

    return search
