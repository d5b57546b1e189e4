"""Serves the prompts of all servers, each named `SOURCE/name`, and completes arguments of prompts and resources."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from toolscout.errors import find_close
from toolscout.trust.policy import Caller
from toolscout_gateway.offers import Offers, cut_page, refuse_prompt
from toolscout_gateway.sessions.exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.context import ServerRequestContext
    from mcp_types import (
        CompleteRequestParams,
        CompleteResult,
        GetPromptRequestParams,
        GetPromptResult,
        InputRequiredResult,
        ListPromptsResult,
        PaginatedRequestParams,
    )

    from toolscout_gateway.sessions.upstream import Upstream

__all__ = ["OfferedPrompts"]


class OfferedPrompts:
    """Handlers of the requests for prompts and completions."""

    def __init__(self, offers: Offers, identify: Callable[[Any], Caller]) -> None:
        """Serve prompts. `identify` returns the caller of a request, or raises an error if they ask too often."""
        self.offers, self.identify = offers, identify

    async def list_prompts(
        self, context: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None
    ) -> ListPromptsResult:
        """List the prompts of all servers under the names `SOURCE/name`."""
        from mcp_types import ListPromptsResult

        lists = await self.offers.list(self.identify(context), "prompts")
        page, cursor = cut_page([(source, prompt) for source, items in lists.items() for prompt in items], params)
        prompts = [prompt.model_copy(update={"name": f"{source}/{prompt.name}"}) for source, prompt in page]
        return ListPromptsResult(prompts=prompts, next_cursor=cursor)

    async def get_prompt(
        self, context: ServerRequestContext[Any, Any], params: GetPromptRequestParams
    ) -> GetPromptResult | InputRequiredResult:
        """Get a prompt of a server."""
        exchange = Exchange(self.identify(context), context, params)
        return await self.offers.upstreams.host.relay.run(exchange, partial(self._get, exchange, params))

    async def _get(self, exchange: Exchange, params: GetPromptRequestParams) -> Any:
        """Get a prompt from its server, under the server's own name of it."""
        from mcp_types import GetPromptRequest, GetPromptRequestParams, GetPromptResult

        upstream, name = await self._locate(exchange.caller, params.name)
        own = GetPromptRequestParams(name=name, arguments=params.arguments, _meta=exchange.meta)
        return await self.offers.send(upstream, exchange, GetPromptRequest(params=own), GetPromptResult)

    async def _locate(self, caller: Caller, name: str) -> tuple[Upstream, str]:
        """Find the server of a prompt, and the prompt's name there. A name without a source must be unique.

        Raises:
            MCPError: if there is no such prompt, with the nearest one, or it waits for approval.
        """
        servers = {upstream.name: upstream for upstream in await self.offers.find_servers(caller, "prompts")}
        source, _, own_name = name.partition("/")
        if not own_name or source not in servers:
            lists = await self.offers.list(caller, "prompts", fresh=False)
            owners = [owner for owner, prompts in lists.items() if name in (prompt.name for prompt in prompts)]
            if len(owners) != 1:
                known = [f"{owner}/{prompt.name}" for owner, prompts in lists.items() for prompt in prompts]
                raise refuse_prompt(name, [f"{owner}/{name}" for owner in owners] or find_close(name, known))
            source, own_name = owners[0], name
        await self.offers.require_approved(servers[source], "prompts", own_name)
        return servers[source], own_name

    async def complete(self, context: ServerRequestContext[Any, Any], params: CompleteRequestParams) -> CompleteResult:
        """Complete an argument of a prompt, or a variable of a resource template."""
        from mcp_types import CompleteRequest, CompleteResult, PromptReference

        exchange = Exchange(self.identify(context), context)
        reference: Any = params.ref
        if isinstance(reference, PromptReference):
            upstream, name = await self._locate(exchange.caller, reference.name)
            reference = reference.model_copy(update={"name": name})
        else:
            upstream, uri = await self.offers.locate(exchange.caller, reference.uri)
            reference = reference.model_copy(update={"uri": uri})
        own = type(params)(ref=reference, argument=params.argument, context=params.context, _meta=exchange.meta)
        request = CompleteRequest(params=own)
        result: Any = await self.offers.send(upstream, exchange, request, CompleteResult)
        completed: CompleteResult = result
        return completed
