"""Connects the gateway with the server of the MCP SDK: handlers, capabilities, notifications to clients.

Sampling and roots are not built, because protocol 2026-07-28 deprecates them. Tasks are not, because the SDK has their
types only; see `Calls.explain_refusal`.
"""

from __future__ import annotations

import contextlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

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
    PaginatedRequestParams,
    PromptListChangedNotification,
    ReadResourceRequestParams,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    SetLevelRequest,
    SetLevelRequestParams,
    ToolListChangedNotification,
)

from toolscout.errors import Denied
from toolscout.home.access.profiles import profile_of
from toolscout.sources.mcp_skills import SKILLS_EXTENSION
from toolscout.sources.own_gateway import GATEWAY_NAME
from toolscout.trust.policy import Caller
from toolscout_gateway import text as show
from toolscout_gateway.access.permissions import Permissions
from toolscout_gateway.offers import Offers, refuse
from toolscout_gateway.prompts import OfferedPrompts
from toolscout_gateway.resources import OfferedResources, Subscriptions
from toolscout_gateway.sessions.exchange import ANSWER_TIMEOUT_S, PASSED_EXTENSIONS, ServerSession
from toolscout_gateway.sessions.handover import read_state_key
from toolscout_gateway.sessions.relay import rank_log_level
from toolscout_gateway.sessions.upstreams import Upstreams
from toolscout_gateway.skills import OfferedSkills
from toolscout_gateway.threads import WORKING_FOR
from toolscout_gateway.tools import AgentTools

if TYPE_CHECKING:
    from toolscout.sources.mcp import McpConnection

__all__ = ["Protocol"]

ANNOUNCE_PAUSE_S: Final = 0.2  # clients are told once of all changes within this time
SET_LEVEL_S: Final = 5.0  # time that a server has to take a log level
GREETINGS: Final = ("initialize", "server/discover")  # the requests whose answers hold the instructions
Change = type[ToolListChangedNotification | PromptListChangedNotification | ResourceListChangedNotification]
CHANGES: Final[dict[Change, ServerEvent]] = {
    ToolListChangedNotification: ToolsListChanged(),
    PromptListChangedNotification: PromptsListChanged(),
    ResourceListChangedNotification: ResourcesListChanged(),
}


class _Server(Server[Any]):
    """A server that says at the start of a session that its lists may change."""

    def create_initialization_options(self, notification_options: Any = None, *more: Any, **options: Any) -> Any:
        """Create the options of a session; see the SDK."""
        changes = notification_options or NotificationOptions(
            prompts_changed=True, resources_changed=True, tools_changed=True
        )
        return super().create_initialization_options(changes, *more, **options)


class Protocol:
    """The gateway as a server of the MCP SDK.

    Attributes:
        server: the server, for any transport of the SDK.
    """

    def __init__(
        self, upstreams: Upstreams, permissions: Permissions, tools: AgentTools, offers: Offers, *, runs_code: bool
    ) -> None:
        """Connect the handlers of all requests. `runs_code`: whether the instructions name `run_code`."""
        self._upstreams, self._permissions, self._tools, self._offers = upstreams, permissions, tools, offers
        self._relay, self._say = upstreams.host.relay, upstreams.host.say
        self._bus = InMemorySubscriptionBus()
        self._skills = OfferedSkills(offers, self._identify)
        self._resources = OfferedResources(offers, self._skills, self._identify)
        self._prompts = OfferedPrompts(offers, self._identify)
        self._subscriptions = Subscriptions(offers, self._identify, self._bus)
        self._announced: set[Change] = set()  # kinds of changes that clients are told in a moment
        upstreams.host.on_notification = self._pass_notification
        upstreams.host.on_session = self._begin_session
        self.server = self._make_server(show.INSTRUCTIONS + (show.RUN_CODE_INSTRUCTIONS if runs_code else ""))

    def _make_server(self, instructions: str) -> Server[Any]:
        """Make the SDK's server with all handlers. Middleware seals what clients bring back with an answer."""
        server = _Server(
            GATEWAY_NAME,
            version=version("toolscout"),
            instructions=instructions,
            on_list_tools=self._tools.list_tools,
            on_call_tool=self._tools.call_tool,
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
        server.extensions = {name: {} for name in (*PASSED_EXTENSIONS, SKILLS_EXTENSION)}
        server.add_request_handler("skills/list", PaginatedRequestParams, self._skills.list_skills)
        server.add_request_handler("skills/get", ReadResourceRequestParams, self._skills.get_skill)
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, self._set_level)
        security = RequestStateSecurity(
            keys=[read_state_key(self._upstreams.host.scout.settings.place)],
            ttl=2 * ANSWER_TIMEOUT_S,
            bind_principal=lambda context: self._permissions.get_caller(context).person,
        )
        server.middleware.append(RequestStateBoundary(security, default_audience=GATEWAY_NAME))
        server.middleware.insert(0, self._receive_request)  # first, so that the SDK's trace span ends before its sleep
        return server

    async def _receive_request(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Receive a request or notification: name the caller to `FairThreads`, and add the profile's instructions.

        When a client has initialised its session, this sleeps until the SDK cancels it at the end of the connection.
        Meanwhile `Relay` tells the client of changes.
        """
        with contextlib.suppress(Denied):
            WORKING_FOR.set(self._permissions.get_caller(ctx).person)
        result = await call_next(ctx)
        if ctx.method in GREETINGS and isinstance(result, dict):
            profile = profile_of(self._permissions.get_caller(ctx))
            if profile is not None and profile.instructions:
                return {**result, "instructions": f"{profile.instructions}\n\n{result.get('instructions') or ''}"}
        has_begun = ctx.method == "notifications/initialized"
        if has_begun and self._relay.find_client(ctx.session) is None:
            async with self._relay.keep_client(ctx.session, self._permissions.get_caller(ctx).person):
                await anyio.sleep_forever()
        return result

    def _identify(self, context: ServerRequestContext[Any, Any]) -> Caller:
        """Return the caller of a request.

        Raises:
            MCPError: if they send more requests than they may.
        """
        caller = self._permissions.get_caller(context)
        if refusal := self._permissions.check_rate(caller, 1):
            raise refuse(refusal)
        return caller

    # --- clients

    async def _set_level(self, context: ServerRequestContext[Any, Any], params: SetLevelRequestParams) -> EmptyResult:
        """Note which log messages a client wants, and set the level of the servers that run; see `_pass_level`."""
        client = self._relay.find_client(context.session)
        if client is not None:
            client.log_level = params.level
        for upstream in self._upstreams.servers.values():
            if upstream.is_in_catalogue:
                await self._pass_level(upstream, await upstream.wait_ready())
        return EmptyResult()

    async def _pass_level(self, upstream: ServerSession, connection: McpConnection) -> None:
        """Ask a server for the lowest level of log messages that any client wants, since all share its session.

        A refusal is told, without the credentials that it may quote. A server that does not answer in `SET_LEVEL_S` is
        left alone without a word: it may take the level later, and its calls say whether it is down.
        """
        levels = [client.log_level for client in self._relay.clients if client.log_level is not None]
        if not levels or connection.client.server_capabilities.logging is None:
            return
        level: LoggingLevel = min(levels, key=rank_log_level)
        try:
            with anyio.move_on_after(SET_LEVEL_S):
                request = SetLevelRequest(params=SetLevelRequestParams(level=level))
                await connection.client.session.send_request(request, EmptyResult)
        except MCPError as error:
            self._say(
                f"{upstream.name}: its log level could not be set: {upstream.credential_cover.text(error.message)}"
            )

    # --- servers

    async def _begin_session(self, upstream: ServerSession, connection: McpConnection) -> None:
        """Bring a new session up to date: subscriptions and log level; tell clients that there are new lists."""
        self._offers.doubt_lists(upstream.key)
        await self._subscriptions.renew(upstream, connection)
        await self._pass_level(upstream, connection)
        capabilities = connection.client.server_capabilities
        if capabilities.resources is not None:
            self._announce(ResourceListChangedNotification)
        if capabilities.prompts is not None:
            self._announce(PromptListChangedNotification)

    async def _pass_notification(self, session_key: str, message: object) -> None:
        """Pass on a notification of a server."""
        if isinstance(message, ResourceUpdatedNotification):
            await self._subscriptions.pass_update(session_key, str(message.params.uri))
        elif isinstance(message, ElicitCompleteNotification):
            await self._relay.pass_completion(session_key, message.params.elicitation_id)
        elif isinstance(message, ToolListChangedNotification):
            source, _, _ = session_key.partition("\n")  # the key of a caller's own session names the caller after it
            if any(id.partition("/")[0] == source for id in self._tools.list_all_pins()):
                self._announce(ToolListChangedNotification)  # clients only see the tools that are pinned
        elif isinstance(message, (PromptListChangedNotification, ResourceListChangedNotification)):
            self._offers.doubt_lists(session_key)
            self._announce(type(message))

    def _announce(self, change: Change) -> None:
        """Tell clients of a change, once for all changes of the same kind in a short time."""
        if change not in self._announced and self._relay.group is not None:
            self._announced.add(change)
            self._relay.group.start_soon(self._tell_clients, change)

    async def _tell_clients(self, change: Change) -> None:
        """Wait for further changes of this kind, then tell all clients of them at once."""
        await anyio.sleep(ANNOUNCE_PAUSE_S)
        self._announced.discard(change)
        await self._bus.publish(CHANGES[change])
        await self._relay.tell_clients(change())
