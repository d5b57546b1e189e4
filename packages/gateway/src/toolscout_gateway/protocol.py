"""Connects the gateway with the server of the MCP SDK: handlers, capabilities, notifications to clients.

Sampling and roots are not built, because protocol 2026-07-28 deprecates them. Tasks are not, because the SDK has their
types only; see `Calls.explain_refusal`.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, get_args

import anyio
from mcp.server import NotificationOptions, Server
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourcesListChanged,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types import (
    ElicitCompleteNotification,
    EmptyResult,
    LoggingLevel,
    NotificationParams,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    SetLevelRequest,
    SetLevelRequestParams,
    ToolListChangedNotification,
)

from toolscout.home.access.profiles import profile_of
from toolscout.trust.policy import Caller
from toolscout_gateway import text as show
from toolscout_gateway.exchange import ANSWER_TIMEOUT_S, LOG_LEVEL, ServerSession
from toolscout_gateway.handover import read_state_key
from toolscout_gateway.lifecycle import GATEWAY_NAME
from toolscout_gateway.offers import Offers, refuse
from toolscout_gateway.prompts import Prompts
from toolscout_gateway.resources import Resources, Subscriptions

if TYPE_CHECKING:
    from toolscout.sources.mcp import Connection
    from toolscout_gateway.contract import GatewayContract

__all__ = ["Protocol"]

ANNOUNCE_PAUSE_S: Final = 0.2  # changes within this time are told once
GREETINGS: Final = ("initialize", "server/discover")  # the requests whose answers hold the instructions
LOG_LEVELS: Final = get_args(LoggingLevel)
CHANGES: Final[dict[type, tuple[ServerEvent, str]]] = {
    ToolListChangedNotification: (ToolsListChanged(), "notifications/tools/list_changed"),
    PromptListChangedNotification: (PromptsListChanged(), "notifications/prompts/list_changed"),
    ResourceListChangedNotification: (ResourcesListChanged(), "notifications/resources/list_changed"),
}


class _Server(Server[Any]):
    """A server that says at the start of a session that its lists may change."""

    def create_initialization_options(self, notification_options: Any = None, *more: Any, **options: Any) -> Any:
        """Create the options of a session; see the SDK."""
        changes = notification_options or NotificationOptions(True, True, True)
        return super().create_initialization_options(changes, *more, **options)


class Protocol:
    """The gateway as a server of the MCP SDK.

    Attributes:
        server: the server, for any transport of the SDK.
        offers: resources and prompts of the servers behind it.
    """

    def __init__(self, gateway: GatewayContract) -> None:
        """Connect all handlers."""
        self.gateway = gateway
        self.upstreams, self.relay = gateway.upstreams, gateway.upstreams.relay
        self.offers = Offers(self.upstreams, gateway.lookup, gateway.options.call_timeout)
        self.bus = InMemorySubscriptionBus()
        self._resources = Resources(self.offers, self._identify)
        self._prompts = Prompts(self.offers, self._identify)
        self._subscriptions = Subscriptions(self.offers, self._identify, self.bus)
        self._announced: set[type] = set()
        self.upstreams.on_notification = self._receive
        self.upstreams.on_session = self._begin_session
        self.server = self._make_server()

    def _make_server(self) -> Server[Any]:
        server = _Server(
            GATEWAY_NAME,
            version=version("toolscout"),
            instructions=show.INSTRUCTIONS + show.RUN_CODE_INSTRUCTIONS * self.gateway.options.run_code,
            on_list_tools=self.gateway.list_tools,
            on_call_tool=self.gateway.call_tool,
            on_list_resources=self._resources.list_resources,
            on_list_resource_templates=self._resources.list_templates,
            on_read_resource=self._resources.read_resource,
            on_subscribe_resource=self._subscriptions.subscribe,
            on_unsubscribe_resource=self._subscriptions.unsubscribe,
            on_subscriptions_listen=self._subscriptions.listen,
            on_list_prompts=self._prompts.list_prompts,
            on_get_prompt=self._prompts.get_prompt,
            on_completion=self._prompts.complete,
        )
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, self._set_level)
        server.add_notification_handler("notifications/initialized", NotificationParams, self._admit)
        security = RequestStateSecurity(
            keys=[read_state_key(self.upstreams.scout.settings.place)],
            ttl=2 * ANSWER_TIMEOUT_S,
            bind_principal=lambda context: self.gateway.get_caller(context).person,
        )
        server.middleware.append(RequestStateBoundary(security, default_audience=GATEWAY_NAME))
        server.middleware.append(self._add_instructions)
        return server

    async def _add_instructions(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Put the instructions of the caller's profile before those of the gateway."""
        result = await call_next(ctx)
        if ctx.method in GREETINGS and isinstance(result, dict):
            profile = profile_of(self.gateway.get_caller(ctx))
            if profile is not None and profile.instructions:
                return {**result, "instructions": f"{profile.instructions}\n\n{result.get('instructions') or ''}"}
        return result

    def _identify(self, context: ServerRequestContext[Any, Any]) -> Caller:
        """Return the caller of a request.

        Raises:
            MCPError: if they send more requests than they may.
        """
        caller = self.gateway.get_caller(context)
        if refusal := self.gateway.check_rate(caller, 1):
            raise refuse(refusal)
        return caller

    # --- clients

    async def _admit(self, context: ServerRequestContext[Any, Any], _: NotificationParams) -> None:
        await self.relay.admit(context, self.gateway.get_caller(context).person)

    async def _set_level(self, context: ServerRequestContext[Any, Any], params: SetLevelRequestParams) -> EmptyResult:
        """Note which log messages a client wants, and have the servers send what the keenest client wants."""
        context.session._connection.state[LOG_LEVEL] = params.level
        for upstream in self.upstreams.servers.values():
            if upstream.settled:
                await self._pass_level(upstream, await upstream.wait_ready())
        return EmptyResult()

    async def _pass_level(self, upstream: ServerSession, connection: Connection) -> None:
        levels = [client.state[LOG_LEVEL] for client in self.relay.clients if LOG_LEVEL in client.state]
        if not levels or connection.client.server_capabilities.logging is None:
            return
        level: Any = min(levels, key=LOG_LEVELS.index)
        try:
            with anyio.move_on_after(5):
                request = SetLevelRequest(params=SetLevelRequestParams(level=level))
                await connection.client.session.send_request(request, EmptyResult)
        except MCPError as error:
            self.gateway.say(f"{upstream.name}: its log level could not be set: {upstream.cover.text(error.message)}")

    # --- servers

    async def _begin_session(self, upstream: ServerSession, connection: Connection) -> None:
        """Pass on what clients wanted of a server before its session began, and that it has resources and prompts."""
        await self._subscriptions.renew(upstream, connection)
        await self._pass_level(upstream, connection)
        capabilities = connection.client.server_capabilities
        if capabilities.resources is not None:
            self._announce(ResourceListChangedNotification)
        if capabilities.prompts is not None:
            self._announce(PromptListChangedNotification)

    async def _receive(self, source: str, message: object) -> None:
        """Pass on a notification of a server."""
        if isinstance(message, ResourceUpdatedNotification):
            await self._subscriptions.pass_update(source, str(message.params.uri))
        elif isinstance(message, ElicitCompleteNotification):
            await self.relay.pass_completion(source, message.params.elicitation_id)
        elif isinstance(message, ToolListChangedNotification):
            name = source.partition("\n")[0]  # the key of a caller's session names the caller too
            if any(id.partition("/")[0] == name for id in self.gateway.list_all_pins()):
                self._announce(ToolListChangedNotification)
        elif type(message) in CHANGES:
            self._announce(type(message))

    def _announce(self, change: type) -> None:
        """Tell clients of a change, once for all changes of the same kind in a short time."""
        if change not in self._announced and self.relay.group is not None:
            self._announced.add(change)
            self.relay.group.start_soon(self._tell, change)

    async def _tell(self, change: type) -> None:
        await anyio.sleep(ANNOUNCE_PAUSE_S)
        self._announced.discard(change)
        event, method = CHANGES[change]
        await self.bus.publish(event)
        await self.relay.tell_clients(method)
