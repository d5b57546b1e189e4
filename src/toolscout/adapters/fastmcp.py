"""FastMCP: a transform that searches a server's tools with toolscout.

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
    """Create `ToolscoutTransform` at its first use, because its base class comes from FastMCP."""
    if name != "ToolscoutTransform":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = transform = _make_transform()
    return transform


def _make_transform() -> type:
    """Make the class `ToolscoutTransform`."""
    bm25: Any = require("fastmcp.server.transforms.search", "adapters").BM25SearchTransform

    class ToolscoutTransform(bm25):  # type: ignore[misc]
        """FastMCP's `search_tools` and `call_tool` with the search of toolscout."""

        def __init__(self, scout: Scout, *, source: str = "fastmcp", caller: str | None = None, **options: Any) -> None:
            """Search with toolscout.

            Args:
                scout: provides the catalogue and the journal.
                source: name of the source under which the server's tools are in the catalogue.
                caller: name of the caller for the journal.
                options: of FastMCP's `BM25SearchTransform`, such as `max_results`.
            """
            super().__init__(**options)
            self._chooser = Chooser(scout, source, k=self._max_results, caller=caller)

        async def _search(self, tools: Sequence[Any], query: str) -> Sequence[Any]:
            """Return the tools that fit a query, best first; FastMCP calls it."""
            by_name = {tool.name: tool for tool in tools}
            offered = [
                {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters}
                for tool in tools
            ]
            names = await asyncio.to_thread(self._chooser.choose, [query], offered)
            return [by_name[name] for name in names]

    return ToolscoutTransform
