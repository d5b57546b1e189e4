"""Lists what servers offer besides tools, and sends a caller's requests for it to the right server.

Callers see resources and prompts of a server if the policy lets them see `SOURCE/resources` and `SOURCE/prompts`, as if
these were tools that only read.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote, urlsplit

from toolscout.errors import Unavailable, UserError
from toolscout.trust.policy import Caller
from toolscout.types import Hints, Tool
from toolscout_gateway.calls import cover_result

if TYPE_CHECKING:
    from mcp.shared.exceptions import MCPError
    from mcp_types import ClientRequest, InputRequiredResult, PaginatedRequestParams

    from toolscout.sources.mcp import Connection
    from toolscout_gateway.exchange import Exchange
    from toolscout_gateway.lookup import Lookup
    from toolscout_gateway.upstream import Upstream
    from toolscout_gateway.upstreams import Upstreams

__all__ = ["Offers", "cut_page", "qualify", "qualify_uri", "refuse", "split_qualified"]

FIRST_LIST_WAIT_S: Final = 4.0  # for a server that does not run when its offers are first asked for
LIST_TIMEOUT_S: Final = 10.0  # of all pages of one server's list
MAX_OFFERS: Final = 10_000  # of one kind and one server
MAX_OFFERS_PER_PAGE: Final = 1_000
MAX_LINKS: Final = 10_000  # URIs in results whose server is remembered
QUALIFIED_SCHEME: Final = "toolscout"  # of the URI of a resource that another server has too
LIST_METHODS: Final = {  # kind of offer → how the SDK's session lists it, and the field of the result
    "resources": ("list_resources", "resources"),
    "templates": ("list_resource_templates", "resource_templates"),
    "prompts": ("list_prompts", "prompts"),
}
T = TypeVar("T")


class Offers:
    """The resources, resource templates and prompts of all servers.

    Attributes:
        timeout: seconds for one request. A server's own `timeout` takes precedence.
    """

    def __init__(self, upstreams: Upstreams, lookup: Lookup, timeout: float) -> None:
        self.upstreams, self.lookup, self.timeout = upstreams, lookup, timeout
        self._lists: dict[tuple[str, str], list[Any]] = {}  # (kind, key of a session) → as it listed them last
        self._links: OrderedDict[tuple[str, str], str] = OrderedDict()  # (caller, URI in a result) → source
        self._said: set[tuple[str, str]] = set()
        self._first_asked: dict[str, float] = {}  # when a server was first asked for what it offers

    # --- lists

    async def find_servers(self, caller: Caller, kind: str) -> list[Upstream]:
        """Return the servers whose offers of a kind the caller may see, by name. Templates count as resources."""
        await self.upstreams.wait_planned()
        catalogue, _ = await self.upstreams.run_in_thread(self.lookup.load_catalogue)
        name = "prompts" if kind == "prompts" else "resources"
        servers = []
        for source, upstream in sorted(self.upstreams.servers.items()):
            path = (upstream.server.name,)
            offer = Tool(id=f"{source}/{name}", name=name, path=path, hints=Hints(read_only=True))
            session = self.upstreams.find_own(upstream, caller)
            if session is not None and source not in catalogue.disabled and caller.sees(offer):
                servers.append(session)
        return servers

    async def list(self, caller: Caller, kind: str, *, fresh: bool = True) -> dict[str, list[Any]]:
        """List the offers of a kind that the caller may see, by source.

        A server that does not answer counts with its last list. With `fresh` false, only servers are asked whose list
        is not known.
        """
        import anyio

        servers = await self.find_servers(caller, kind)
        async with anyio.create_task_group() as group:
            for upstream in servers:
                if fresh or (kind, upstream.key) not in self._lists:
                    group.start_soon(self._read_list, kind, upstream)
        return {upstream.name: self._lists.get((kind, upstream.key), []) for upstream in servers}

    async def _read_list(self, kind: str, upstream: Upstream) -> None:
        """Read the list of a server, and remember it. One that does not run is started, at the first list only."""
        import anyio
        from mcp.shared.exceptions import MCPError
        from mcp_types import METHOD_NOT_FOUND
        from pydantic import ValidationError

        with upstream.hold():
            await self._start_once(upstream)
            if not upstream.settled:
                return
            try:
                with anyio.fail_after(LIST_TIMEOUT_S):
                    connection = await upstream.wait_ready()
                    self._lists[kind, upstream.key] = await _read_pages(connection, kind)
            except (MCPError, TimeoutError, UserError, ValidationError) as error:
                if getattr(error, "code", None) != METHOD_NOT_FOUND and (kind, upstream.name) not in self._said:
                    self._said.add((kind, upstream.name))
                    self.upstreams.say(f"{upstream.name}: its list of {kind} could not be read")

    async def _start_once(self, upstream: Upstream) -> None:
        """Start a server that was never asked for what it offers, and wait a few seconds for it."""
        import anyio

        deadline = self._first_asked.setdefault(upstream.key, anyio.current_time()) + FIRST_LIST_WAIT_S
        left = deadline - anyio.current_time()
        if left > 0 and not upstream.settled:
            with anyio.move_on_after(left), contextlib.suppress(Unavailable):
                await upstream.wait_ready()

    # --- which server

    def remember_links(self, caller: Caller, source: str, result: Any) -> None:
        """Remember from which server the resources and links in a result came, so that the caller can read them."""
        for part in getattr(result, "content", ()):
            uri = getattr(part, "uri", None) or getattr(getattr(part, "resource", None), "uri", None)
            if uri is not None:
                self._links[caller.name, str(uri)] = source
        while len(self._links) > MAX_LINKS:
            self._links.popitem(last=False)

    async def locate(self, caller: Caller, uri: str) -> tuple[Upstream, str]:
        """Find the server that has a resource, and the URI that it gave it.

        In this order: a qualified URI, a link in a result, the lists, the templates, the one server that has resources
        of the URI's scheme.

        Raises:
            MCPError: if there is no such server, or it is not clear which.
        """
        servers = {upstream.name: upstream for upstream in await self.find_servers(caller, "resources")}
        source, original = split_qualified(uri)
        source = source or self._links.get((caller.name, uri), "")
        if source in servers:
            return servers[source], original
        resources = await self.list(caller, "resources", fresh=False)
        templates = await self.list(caller, "templates", fresh=False)
        owners = _find_owners(servers, resources, templates, uri)
        if not owners:
            raise refuse(f"Resource not found: {uri}", uri=uri)
        return servers[owners[0]], uri

    # --- requests

    async def send(
        self, upstream: Upstream, exchange: Exchange, request: ClientRequest, result_type: type[T]
    ) -> T | InputRequiredResult:
        """Send a request of a caller to a server, within its time limit. Credentials are covered in the answer.

        Raises:
            MCPError: the error of the server, or a sentence on why there is no answer.
        """
        from mcp.shared.exceptions import MCPError

        try:
            async with upstream.use():
                result: Any = await self._send_in_time(upstream, exchange, request, result_type)
        except MCPError as error:
            cover = upstream.cover
            raise MCPError(error.code, cover.text(error.message), cover.value(error.data)) from None
        except UserError as error:
            raise refuse(upstream.cover.text(str(error))) from None
        covered: T = cover_result(upstream.cover, result)
        return covered

    async def _send_in_time(
        self, upstream: Upstream, exchange: Exchange, request: ClientRequest, result_type: type[T]
    ) -> T | InputRequiredResult:
        """Send a request in the session of a server, which starts if it does not run.

        Raises:
            Unavailable: as `Upstream.send`, or because the server took too long.
        """
        import anyio

        seconds = upstream.server.timeout or self.timeout
        try:
            with anyio.fail_after(seconds) as exchange.limit:
                connection = await upstream.wait_ready()
                return await upstream.send(connection, exchange, request, result_type)
        except TimeoutError:
            raise Unavailable(f"server {upstream.name!r} did not answer within {seconds:g} s") from None


async def _read_pages(connection: Connection, kind: str) -> list[Any]:
    """Read all pages of a list, as far as `MAX_OFFERS`."""
    from mcp_types import PaginatedRequestParams

    method, field = LIST_METHODS[kind]
    capabilities = connection.client.server_capabilities
    if (capabilities.prompts if kind == "prompts" else capabilities.resources) is None:
        return []
    items: list[Any] = []
    cursors: set[str | None] = set()
    cursor: str | None = None
    while cursor not in cursors and len(items) < MAX_OFFERS:
        cursors.add(cursor)
        page = await getattr(connection.client.session, method)(params=PaginatedRequestParams(cursor=cursor))
        items += getattr(cover_result(connection.cover, page), field)
        cursor = page.next_cursor
    return items[:MAX_OFFERS]


def _find_owners(
    servers: Iterable[str], resources: Mapping[str, list[Any]], templates: Mapping[str, list[Any]], uri: str
) -> list[str]:
    """Find the servers that list a URI, or a template that it fits, or alone have URIs of its scheme."""
    owners = [name for name, items in resources.items() if any(item.uri == uri for item in items)]
    owners = owners or [name for name, items in templates.items() if any(_fits(item, uri) for item in items)]
    if not owners:
        scheme = urlsplit(uri).scheme
        owners = [name for name in servers if _uses_scheme(resources[name], templates[name], scheme)]
        owners = owners if len(owners) == 1 else []
    return owners


def _fits(template: Any, uri: str) -> bool:
    """Return whether a URI can come from a resource template, or is the template itself."""
    from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

    if template.uri_template == uri:
        return True
    try:
        return UriTemplate.parse(template.uri_template).match(uri) is not None
    except InvalidUriTemplate:
        return False


def _uses_scheme(resources: Sequence[Any], templates: Sequence[Any], scheme: str) -> bool:
    uris = [*(item.uri for item in resources), *(item.uri_template for item in templates)]
    return any(str(uri).partition(":")[0] == scheme for uri in uris)


def qualify(lists: Mapping[str, list[Any]]) -> list[Any]:
    """Join the resources of all servers. A URI that an earlier server has too becomes one that names its server."""
    joined: dict[str, Any] = {}
    for source, items in lists.items():
        for item in items:
            uri = item.uri
            if uri in joined:
                uri = qualify_uri(source, uri)
                item = item.model_copy(update={"uri": uri})
            joined[uri] = item
    return list(joined.values())


def qualify_uri(source: str, uri: str) -> str:
    """Build the URI that names the server of a resource."""
    return f"{QUALIFIED_SCHEME}://{source}/{quote(uri, safe='')}"


def split_qualified(uri: str) -> tuple[str, str]:
    """Split the URI of a resource into its source and its own URI. The source is empty if the URI names none."""
    parts = urlsplit(uri)
    if parts.scheme == QUALIFIED_SCHEME and parts.netloc and parts.path:
        return parts.netloc, unquote(parts.path[1:])
    return "", uri


def cut_page(items: list[Any], params: PaginatedRequestParams | None) -> tuple[list[Any], str | None]:
    """Return the page that a client asks for, and the cursor of the next.

    Raises:
        MCPError: if the cursor is not one of ours.
    """
    cursor = params.cursor if params is not None else None
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
        raise refuse("Invalid cursor: use the one of the page before, unchanged.")
    start = int(cursor or 0)
    end = start + MAX_OFFERS_PER_PAGE
    return items[start:end], str(end) if end < len(items) else None


def refuse(message: str, **data: Any) -> MCPError:
    """Build the error for a request that cannot be answered."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import INVALID_PARAMS

    return MCPError(INVALID_PARAMS, message, data or None)
