"""What the parts of the gateway may use of it. `Gateway` is the one class that fulfils this contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from toolscout.home.access.http import Buckets
from toolscout.home.access.live_policy import LivePolicies
from toolscout.trust.policy import Caller, Policies
from toolscout_gateway.answers import Answers
from toolscout_gateway.exchange import Exchange
from toolscout_gateway.lookup import Lookup
from toolscout_gateway.options import Options
from toolscout_gateway.upstreams import Upstreams

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams, CallToolResult, InputRequiredResult, ListToolsResult

__all__ = ["GatewayContract"]


class GatewayContract(Protocol):
    """The gateway, as sign-ins, programs and the protocol see it.

    Attributes:
        upstreams: the servers behind it, and the catalogue.
        policies: who may do what.
        options: as it was started.
        lookup: finds tools for a caller.
        answers: texts that agents read.
        buckets: bounds the rate of each caller.
        credential: the key or token of the caller on stdio.
        say: receives one sentence for each event.
    """

    upstreams: Upstreams
    policies: Policies | LivePolicies
    options: Options
    lookup: Lookup
    answers: Answers
    buckets: Buckets
    credential: str | None
    say: Callable[[str], None]

    def get_caller(self, context: ServerRequestContext[Any, Any]) -> Caller:
        """Return the caller of a request."""

    def list_all_pins(self) -> set[str]:
        """List the ids of the tools that are pinned for somebody."""

    def check_size(self, arguments: dict[str, Any]) -> str:
        """Check the size of arguments. Returns a sentence on what to do, empty if all is well."""

    def check_rate(self, caller: Caller, cost: int) -> str:
        """Check the rate of a caller's requests. Returns a sentence on what to do, empty if all is well."""

    async def list_tools(self, context: ServerRequestContext[Any, Any], _: object) -> ListToolsResult:
        """List the tools that the caller may call directly."""

    async def call_tool(
        self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Answer a call of a listed tool, or of a tool by its id."""

    async def answer_call(self, exchange: Exchange, id: str, arguments: dict[str, Any], search: str | None) -> Any:
        """Call a tool for a caller."""

    async def fit_result(self, exchange: Exchange, id: str, result: CallToolResult) -> CallToolResult:
        """Cut a result to the budget, unless the caller asks for everything."""
