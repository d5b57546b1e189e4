"""Serves the resources of all servers under their own URIs, and passes on that they changed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from toolscout.errors import Unavailable
from toolscout.trust.policy import Caller
from toolscout_gateway.offers import APART, Offers, cut_page, qualify, qualify_uri
from toolscout_gateway.sessions.exchange import Exchange
from toolscout_gateway.skills import OfferedSkills
from toolscout_gateway.text import clean_words

if TYPE_CHECKING:
    import anyio
    from mcp.server.context import ServerRequestContext
    from mcp.server.subscriptions import ListenHandler, SubscriptionBus
    from mcp_types import (
        EmptyResult,
        InputRequiredResult,
        ListResourcesResult,
        ListResourceTemplatesResult,
        PaginatedRequestParams,
        ReadResourceRequestParams,
        ReadResourceResult,
        SubscribeRequestParams,
        SubscriptionsListenRequestParams,
        SubscriptionsListenResult,
        UnsubscribeRequestParams,
    )

    from toolscout.sources.mcp import McpConnection
    from toolscout_gateway.sessions.exchange import ServerSession
    from toolscout_gateway.sessions.relay import OpenClient

__all__ = ["OfferedResources", "Subscriptions"]

MAX_SUBSCRIPTIONS: Final = 1_000  # of one client
GOODBYE_S: Final = 5.0  # time that a server has to hear that a stream ends; nobody waits for its answer


class _Resource(NamedTuple):
    """A resource that clients follow: key of the session with its server (`Upstream.key`), and its URI there."""

    session_key: str
    uri: str


class OfferedResources:
    """Handlers of the requests for resources."""

    def __init__(self, offers: Offers, skills: OfferedSkills, identify: Callable[[Any], Caller]) -> None:
        """Serve resources. `identify` returns the caller of a request, or raises an error if they ask too often."""
        self.offers, self.skills, self.identify = offers, skills, identify

    async def list_resources(
        self, context: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        """List the resources of all servers."""
        from mcp_types import ListResourcesResult

        lists = await self.offers.list(self.identify(context), "resources")
        page, cursor = cut_page(qualify(lists), params)
        resources = [item if item.uri == uri else item.model_copy(update={"uri": uri}) for uri, item in page]
        return ListResourcesResult(resources=resources, next_cursor=cursor)

    async def list_templates(
        self, context: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        """List the resource templates of all servers."""
        from mcp_types import ListResourceTemplatesResult

        lists = await self.offers.list(self.identify(context), "templates")
        page, cursor = cut_page([template for items in lists.values() for template in items], params)
        return ListResourceTemplatesResult(resource_templates=page, next_cursor=cursor)

    async def read_resource(
        self, context: ServerRequestContext[Any, Any], params: ReadResourceRequestParams
    ) -> ReadResourceResult | InputRequiredResult:
        """Read a resource of a server."""
        exchange = Exchange(self.identify(context), context, params)
        return await self.offers.upstreams.host.relay.run(exchange, partial(self._read, exchange, params.uri))

    async def _read(self, exchange: Exchange, uri: str) -> Any:
        """Read a resource from its server. A page or skill gets the URI by which the client asked for it."""
        from mcp_types import ReadResourceRequest, ReadResourceRequestParams, ReadResourceResult

        upstream, own_uri = await self.offers.locate(exchange.caller, uri)
        await self.skills.require_approved(upstream.name, own_uri)
        own = ReadResourceRequestParams(uri=own_uri, _meta=exchange.meta)
        result = await self.offers.send(upstream, exchange, ReadResourceRequest(params=own), ReadResourceResult)
        if not isinstance(result, ReadResourceResult):
            return result
        result.contents = await self.skills.check_content(upstream, own_uri, result.contents)
        if uri.startswith(APART):
            for content in result.contents:
                if content.uri == own_uri:
                    content.uri = uri
        return result


class Subscriptions:
    """Passes on that resources changed, to the clients that subscribed to them.

    One subscription at a server serves all clients. It is renewed when the server's session begins again.
    """

    def __init__(self, offers: Offers, identify: Callable[[Any], Caller], bus: SubscriptionBus) -> None:
        """Serve subscriptions. `bus`: tells clients of protocol 2026-07-28 and later."""
        from mcp.server.subscriptions import ListenHandler

        self.offers, self.identify, self.bus = offers, identify, bus
        self._listen: ListenHandler = ListenHandler(bus)
        self._uses: Counter[_Resource] = Counter()
        self._scopes: dict[_Resource, anyio.CancelScope] = {}  # of the streams at servers of protocol 2026-07-28
        self._clients: dict[OpenClient, dict[_Resource, str]] = {}  # resource → its URI as the client gave it

    # --- clients

    async def subscribe(self, context: ServerRequestContext[Any, Any], params: SubscribeRequestParams) -> EmptyResult:
        """Subscribe a client with a session to a resource. Clients of newer protocols have none, and use `listen`."""
        from mcp_types import EmptyResult

        upstream, own_uri = await self.offers.locate(self.identify(context), params.uri)
        client = self.offers.upstreams.host.relay.find_client(context.session)
        if client is None:
            return EmptyResult()
        if client not in self._clients:
            self._clients[client] = {}
            client.cleanup.push_async_callback(self._forget, client)
        resources, resource = self._clients[client], _Resource(upstream.key, own_uri)
        if resource not in resources and len(resources) < MAX_SUBSCRIPTIONS:
            resources[resource] = params.uri
            await self._add(resource)
        return EmptyResult()

    async def unsubscribe(
        self, context: ServerRequestContext[Any, Any], params: UnsubscribeRequestParams
    ) -> EmptyResult:
        """End the subscription of a client with a session. Clients without one use `listen`, and close its stream."""
        from mcp_types import EmptyResult

        client = self.offers.upstreams.host.relay.find_client(context.session)
        if client is not None:
            resources = self._clients.get(client, {})
            for resource, asked_uri in list(resources.items()):
                if asked_uri == params.uri:
                    del resources[resource]
                    await self._remove(resource)
        return EmptyResult()

    async def _forget(self, client: OpenClient) -> None:
        """End all subscriptions of a client whose connection has ended."""
        for resource in self._clients.pop(client, {}):
            await self._remove(resource)

    async def listen(
        self, context: ServerRequestContext[Any, Any], params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Serve a stream of changes until its client closes it. Resources that the caller may not read are left out."""
        import anyio
        from mcp.shared.exceptions import MCPError

        caller, resources = self.identify(context), {}
        for uri in (params.notifications.resource_subscriptions or ())[:MAX_SUBSCRIPTIONS]:
            with contextlib.suppress(MCPError):
                upstream, own_uri = await self.offers.locate(caller, uri)
                resources[uri] = _Resource(upstream.key, own_uri)
        notifications = params.notifications.model_copy(update={"resource_subscriptions": list(resources) or None})
        try:
            for resource in resources.values():
                await self._add(resource)
            return await self._listen(context, params.model_copy(update={"notifications": notifications}))
        finally:
            with anyio.move_on_after(GOODBYE_S, shield=True):  # the servers are told although the stream was cancelled
                for resource in resources.values():
                    await self._remove(resource)

    async def pass_update(self, session_key: str, uri: str) -> None:
        """Tell the clients that a resource changed if they subscribed to it, or to one that has it as a part."""
        from mcp.server.subscriptions import ResourceUpdated

        for client, resources in list(self._clients.items()):
            for resource, asked_uri in list(resources.items()):
                if resource.session_key == session_key and uri.startswith(resource.uri):
                    is_part = resource.uri != uri
                    # A part's URI comes from the server, so one with hidden characters is not passed on.
                    is_clean = clean_words(uri) == uri
                    await client.session.send_resource_updated(uri if is_part and is_clean else asked_uri)
        # Clients of `listen` get the changes of exactly the URIs that they asked for: the server's own, or the one with
        # the name of the source.
        await self.bus.publish(ResourceUpdated(uri))
        source = session_key.partition("\n")[0]  # the key of a caller's own session names the caller after it
        await self.bus.publish(ResourceUpdated(qualify_uri(source, uri)))

    # --- servers

    async def _add(self, resource: _Resource) -> None:
        """Count one more use of a resource. The first use subscribes at the server, if it can be reached."""
        self._uses[resource] += 1
        self.offers.upstreams.host.followed[resource.session_key] += 1
        upstream = self.offers.upstreams.find_session(resource.session_key)
        if self._uses[resource] == 1 and upstream is not None:
            with contextlib.suppress(Unavailable):
                await self._open(upstream, await upstream.wait_ready(), resource.uri)

    async def _remove(self, resource: _Resource) -> None:
        """End one use of a resource that is followed. With the last use, the server is told to send no more changes."""
        self._uses[resource] -= 1
        self.offers.upstreams.host.followed[resource.session_key] -= 1
        if self._uses[resource] > 0:
            return
        del self._uses[resource]
        if scope := self._scopes.pop(resource, None):
            scope.cancel()  # ends the stream by which a server of protocol 2026-07-28 tells of changes
        # A server without a session follows nothing, and is not started only to be told.
        upstream = self.offers.upstreams.find_session(resource.session_key)
        if upstream is not None and upstream.is_in_catalogue:
            with contextlib.suppress(Unavailable):
                await self._close(await upstream.wait_ready(), resource.uri)

    async def renew(self, upstream: ServerSession, connection: McpConnection) -> None:
        """Subscribe again at a server whose session has just begun."""
        for resource in list(self._uses):
            if resource.session_key == upstream.key:
                await self._open(upstream, connection, resource.uri)

    async def _open(self, upstream: ServerSession, connection: McpConnection, uri: str) -> None:
        """Subscribe to a resource at its server. A server that has no subscriptions is left alone."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import EmptyResult, SubscribeRequest, SubscribeRequestParams
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        capability = connection.client.server_capabilities.resources
        if capability is None or not capability.subscribe:
            return
        group = self.offers.upstreams.host.relay.group
        if connection.client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            if group is not None:
                group.start_soon(self._follow, upstream.key, connection, uri)
            return
        with contextlib.suppress(MCPError):
            request = SubscribeRequest(params=SubscribeRequestParams(uri=uri))
            await connection.client.session.send_request(request, EmptyResult)

    async def _follow(self, session_key: str, connection: McpConnection, uri: str) -> None:
        """Keep a stream of changes of a resource open, until `_remove` cancels its scope."""
        import anyio
        from mcp.client.subscriptions import SubscriptionLost
        from mcp.shared.exceptions import MCPError

        with (
            anyio.CancelScope() as self._scopes[_Resource(session_key, uri)],
            contextlib.suppress(MCPError, SubscriptionLost),
        ):
            async with connection.client.listen(resource_subscriptions=[uri]) as changes:
                async for _ in changes:
                    pass  # the session's handler of messages gets the change too, and passes it on

    async def _close(self, connection: McpConnection, uri: str) -> None:
        """Unsubscribe from a resource at an older server. At newer ones the end of the stream does that (`_follow`)."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import EmptyResult, UnsubscribeRequest, UnsubscribeRequestParams
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        if connection.client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            with contextlib.suppress(MCPError):
                request = UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri))
                await connection.client.session.send_request(request, EmptyResult)
