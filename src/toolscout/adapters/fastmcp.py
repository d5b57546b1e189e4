"""FastMCP: a transform that puts our search in front of a server's tools, in the place of its BM25 or regex.

::

    server.add_transform(ToolscoutTransform(scout, max_results=5))
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from toolscout.adapters import Chooser
from toolscout.errors import require
from toolscout.scout import Scout


def __getattr__(name: str) -> Any:
    """`ToolscoutTransform`, made when it is first asked for: its base class is FastMCP's."""
    if name != "ToolscoutTransform":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made = _transform()
    return made


def _transform() -> type:
    bm25: Any = require("fastmcp.server.transforms.search", "adapters").BM25SearchTransform

    class ToolscoutTransform(bm25):  # type: ignore[misc]
        """`search_tools` and `call_tool` as FastMCP has them; what is found is found by toolscout."""

        def __init__(self, scout: Scout, *, source: str = "fastmcp", caller: str | None = None, **options: Any) -> None:
            super().__init__(**options)
            self._chooser = Chooser(scout, source, k=self._max_results, caller=caller)

        async def _search(self, tools: Sequence[Any], query: str) -> Sequence[Any]:
            held = {tool.name: tool for tool in tools}
            offered = [
                {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters}
                for tool in tools
            ]
            names = await asyncio.to_thread(self._chooser.choose, [query], offered)
            return [held[name] for name in names]

    return ToolscoutTransform
