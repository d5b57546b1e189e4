"""Reads the list of tools in a session with an MCP server: all pages, as they were sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from toolscout.errors import SourceError
from toolscout.privacy.credentials import Cover
from toolscout.sources.mcp_direct import parse_page
from toolscout.sources.mcp_limits import MAX_LIST_BYTES
from toolscout.sources.mcp_wire import PAGE, Page, Wire

if TYPE_CHECKING:
    import asyncio

    from mcp import Client
    from mcp_types import ListToolsResult

__all__ = ["ListReader", "ListRequest"]

MAX_LIST_PAGES: Final = 1000


class ListRequest(NamedTuple):
    """A request for the list of tools that was sent past the SDK: by which reader and when, and its answer."""

    reader: ListReader
    began: float
    answer: asyncio.Future[bytes | None]


class ListReader:
    """Reads the list of tools of one session."""

    def __init__(self, client: Client, wire: Wire, get_cover: Callable[[], Cover]) -> None:
        """Read by the SDK's client, or past it. `get_cover`: returns what covers credentials in the list."""
        self._client, self._wire, self._get_cover = client, wire, get_cover
        self._last: tuple[bytes, Cover, list[Any]] | None = None  # a list of one page as it was sent, and its tools

    async def begin(self, trace: Mapping[str, str] | None) -> ListRequest | None:
        """Ask for the list of tools at once, past the SDK; see `Connection.begin_list`."""
        import anyio

        began, direct = time.monotonic(), self._wire.direct
        if not direct.is_ready:
            return None
        try:
            return ListRequest(self, began, await direct.ask(trace))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            return None

    async def read(self, limit: int, begun: ListRequest | None) -> list[Any]:
        """Read all pages of the list; see `Connection.list_tools`."""
        answer = await begun.answer if begun is not None and begun.reader is self else None
        cover = self._get_cover()
        if answer is not None and self._last is not None and self._last[:2] == (answer, cover):
            return self._last[2]
        first = None if answer is None else self._parse_page(answer)
        tools = await self._join_pages(limit, first, cover)
        if answer is not None and first is not None and not first.cursor:
            self._last = answer, cover, tools
        return tools

    async def _join_pages(self, limit: int, first: Page | None, cover: Cover) -> list[Any]:
        """Read the pages that are not here yet, and join their tools."""
        tools: list[Any] = []
        cursors: set[str] = set()
        cursor: str | None = None
        size = 0
        for _ in range(MAX_LIST_PAGES):
            page = first or await self._read_page(cursor)
            first = None
            if page is None or not isinstance(page.tools, list):
                raise SourceError("expected a list of tools, found something else")
            raw_tools, encoded = page.tools, page.encoded
            size += len(encoded)
            if size > MAX_LIST_BYTES:
                raise SourceError(
                    f"expected a list of tools of at most {MAX_LIST_BYTES // 2**20} MiB, found a larger one"
                )
            tools += cover.value(raw_tools) if cover.finds(encoded) else raw_tools
            if len(tools) > limit:
                raise SourceError(f"expected at most {limit:,} tools, found more: raise max_tools to read them")
            if not page.cursor:
                return tools
            cursor = page.cursor if isinstance(page.cursor, str) else ""
            if not cursor or cursor in cursors:
                raise SourceError("expected a new nextCursor on each page, found an old one or no text")
            cursors.add(cursor)
        raise SourceError(f"expected a list of tools that ends, found more than {MAX_LIST_PAGES:,} pages")

    async def _read_page(self, cursor: str | None) -> Page | None:
        """Read one page of the list of tools, as the server sent it. None if the answer is no page.

        The SDK derives from each list which arguments of a call become headers. `Client.list_tools` would let a
        repeated page, of which the SDK sees no tools, remove that; so it is told of new pages only.
        """
        from mcp_types import ListToolsRequest, ListToolsResult, PaginatedRequestParams

        session, wire = self._client.session, self._wire
        request = ListToolsRequest(params=PaginatedRequestParams(cursor=cursor))
        wire.spares_repeats = True
        try:
            result = await session.send_request(request, ListToolsResult)
        finally:
            wire.spares_repeats = False
        return self._take_page(result, is_first=cursor is None)

    def _parse_page(self, answer: bytes) -> Page | None:
        """Parse the first page of the list of tools. None if it is no page."""
        from mcp_types import ListToolsResult

        raw, wire = parse_page(answer), self._wire
        if raw is None:
            return None
        wire.spares_repeats = True
        try:
            result = ListToolsResult.model_validate(wire.filter_result(raw), by_name=False)
        finally:
            wire.spares_repeats = False
        return self._take_page(result, is_first=True)

    def _take_page(self, result: ListToolsResult, *, is_first: bool) -> Page | None:
        """Take the raw page that belongs to a result, and tell the SDK of it if it is new."""
        wire = self._wire
        page = wire.pages.pop((result.meta or {}).get(PAGE), None)
        if page is not None and not page.is_repeated:
            self._client.session._absorb_tool_listing(result, complete=is_first and not page.cursor)
            wire.validated = page.encoded
        return page
