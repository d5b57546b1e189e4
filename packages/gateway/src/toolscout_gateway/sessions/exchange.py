"""One request of a caller while a server behind the gateway works on it: what can be told and asked meanwhile.

A caller of protocol 2025-11-25 or older is asked in the middle of its request. A later protocol has no such questions:
the request ends with `InputRequiredResult`, and the caller sends it again with the answers. `Exchange` hides the
difference from the servers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from toolscout.sources.mcp_session import UI_EXTENSION
from toolscout.trust.policy import Caller
from toolscout.types import Tool
from toolscout_gateway.text import clean_words

if TYPE_CHECKING:
    import anyio
    from mcp.server.context import ServerRequestContext
    from mcp_types import (
        ClientRequest,
        ElicitRequestParams,
        ElicitResult,
        ErrorData,
        InputRequiredResult,
        InputResponses,
        LoggingMessageNotificationParams,
    )

    from toolscout.sources.mcp import McpConnection, Server
    from toolscout.trust.redaction import Cover

__all__ = ["ANSWER_TIMEOUT_S", "PASSED_EXTENSIONS", "Exchange", "Question", "ServerSession", "name_asker"]

ANSWER_TIMEOUT_S: Final = 600.0  # how long a user may think about a question
#: Keys of `_meta` that belong to one connection and are not passed on.
CONNECTION_META: Final = frozenset(
    {
        "progressToken",
        "progress_token",  # the same, as the SDK names it
        "io.modelcontextprotocol/protocolVersion",
        "io.modelcontextprotocol/clientInfo",
        "io.modelcontextprotocol/clientCapabilities",
        "io.modelcontextprotocol/subscriptionId",
    }
)
PASSED_EXTENSIONS: Final = (UI_EXTENSION,)  # of the protocol, which callers and servers use through the gateway
SERVER_INFO_META: Final = "io.modelcontextprotocol/serverInfo"
T = TypeVar("T")


@dataclasses.dataclass(eq=False)
class Question:
    """A question of a server to the user.

    Attributes:
        params: the question.
        answer: the answer. None until there is one.
        answered: set with the answer.
    """

    params: ElicitRequestParams
    answered: anyio.Event
    answer: ElicitResult | None = None


class ServerSession(Protocol):
    """What requests use of a session with a server behind the gateway. `Upstream` is one."""

    name: str
    key: str
    server: Server
    state: str
    message: str

    @property
    def credential_cover(self) -> Cover:
        """The cover for the credentials that the server was given."""

    def find_listed_session(self, generation: int | None) -> McpConnection | None:
        """Return the session if the catalogue of this generation has its list of tools, and that is new enough."""

    async def check_definitions(self) -> McpConnection:
        """Return the session, with a list of tools in the catalogue that is new enough for a call."""

    async def begin_with_handshake(self) -> bool:
        """Begin a new session in the older way. Returns False if the server's entry does not allow that."""

    def doubt_list(self) -> None:
        """Read the list of tools again after an error in a call."""

    async def send(
        self, connection: McpConnection, exchange: Exchange, request: ClientRequest, result_type: type[T]
    ) -> T | InputRequiredResult:
        """Send a request of a caller in an open session."""


class Exchange:
    """A request of a caller that servers work on.

    Attributes:
        caller: who sent it.
        responses: answers that the request carries, to the questions of the round before.
        state: the text that the answer of the round before asked to get back (`request_state`).
        context: the request that waits for the answer now. None while the user thinks about a question.
        limit: the time limit of the call. It stands still while a question is open.
        question: the question that the caller must answer before the request goes on.
        changed: set when there is a question or the request has ended.
        asked_s: seconds that questions took.
        answers_again: whether the caller is asked by an answer to its request, which it then sends again.
        elicitation: what the caller's client declares about questions to its user. None if it cannot ask.
        notes: what was read differently from what the caller sent.
        tool_id: the tool that is called, if the caller named it differently.
        upstream: the session in which a server works on it, if a server does.
        wants_everything: whether its result is not cut to the budget.
        may_be_app: whether it calls a tool by the tool's own name. A model does so only with listed tools, an app with
            any of its server.
    """

    def __init__(self, caller: Caller, context: ServerRequestContext[Any, Any], params: object = None) -> None:
        """Begin with a request of a caller. `params`: its parameters, for answers to questions."""
        import anyio
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        self.caller = caller
        self.responses: InputResponses | None = getattr(params, "input_responses", None)
        self.state: str | None = getattr(params, "request_state", None)
        self.context: ServerRequestContext[Any, Any] | None = context
        self.limit: anyio.CancelScope | None = None
        self.question: Question | None = None
        self.changed = anyio.Event()
        self.asked_s = 0.0
        self.notes: list[str] = []
        self.tool_id = ""
        self.upstream: ServerSession | None = None
        self.wants_everything = self.may_be_app = False
        self._turn = anyio.Lock()  # one question at a time
        self._first = context  # of the request that began it; `context` changes
        self.answers_again = context.session.protocol_version in MODERN_PROTOCOL_VERSIONS
        self.elicitation: dict[str, object] | None = None
        capabilities = context.session.client_capabilities
        if capabilities is not None and capabilities.elicitation is not None:
            self.elicitation = capabilities.elicitation.model_dump(by_alias=True, mode="json", exclude_none=True)

    @property
    def declared(self) -> dict[str, Any]:
        """The capabilities of the caller's client that are passed on to servers."""
        capabilities = self._first.session.client_capabilities
        extensions = (capabilities.extensions if capabilities is not None else None) or {}
        passed = {name: extensions[name] for name in PASSED_EXTENSIONS if name in extensions}
        asks = self.elicitation
        return ({} if asks is None else {"elicitation": asks}) | ({"extensions": passed} if passed else {})

    def can_ask(self, mode: str) -> bool:
        """Return whether the caller's client can show a question of this mode, `form` or `url`."""
        declared = self.elicitation
        is_bare = mode == "form" and not declared  # a client that names no mode has forms
        return declared is not None and (mode in declared or is_bare)

    @property
    def meta(self) -> Any:
        """The `_meta` of the request, without what belongs to the caller's connection."""
        meta = {key: value for key, value in (self._first.meta or {}).items() if key not in CONNECTION_META}
        return meta or None

    def explain_refusal(self, tool: Tool) -> str:
        """Explain why this request may not call a tool that its caller may call. Empty if it may."""
        return ""

    def trim(self, result: T) -> T:
        """Remove the server's name from a result for a caller whose protocol has none in results."""
        meta = getattr(result, "meta", None)
        if not meta or SERVER_INFO_META not in meta or self.answers_again:
            return result
        left = {key: value for key, value in meta.items() if key != SERVER_INFO_META}
        trimmed: T = result.model_copy(update={"meta": left or None})  # type: ignore[attr-defined]
        return trimmed

    async def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Tell the caller how far the server is."""
        if self.context is not None:
            await self.context.session.report_progress(progress, total, message)

    async def write_log(self, params: LoggingMessageNotificationParams) -> None:
        """Pass a log message on if the request wants messages of its level."""
        from mcp.server.connection import allowed_log_levels
        from mcp_types import LoggingMessageNotification

        if self.context is None:
            return
        session = self.context.session
        if params.level in allowed_log_levels(session.protocol_version, self.context.meta):
            notification = LoggingMessageNotification(params=params)
            await session.send_notification(notification, related_request_id=self.context.request_id)

    async def ask(self, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Ask the caller's user. A question that nobody answers for ten minutes counts as cancelled."""
        import anyio
        from mcp.shared.exceptions import MCPError
        from mcp_types import INVALID_PARAMS, ElicitResult, ErrorData

        if not self.can_ask(params.mode):
            message = f"The caller's client cannot show its user a question ({params.mode} elicitation)."
            return ErrorData(code=INVALID_PARAMS, message=message)
        answer: ElicitResult | None = None
        async with self._turn:
            with self._pause_limit(), anyio.move_on_after(ANSWER_TIMEOUT_S):
                try:
                    answer = await (self._ask_later(params) if self.answers_again else self._ask_now(params))
                except MCPError as error:
                    return error.error
        return answer or ElicitResult(action="cancel")

    async def _ask_now(self, params: ElicitRequestParams) -> ElicitResult:
        """Ask in the middle of the request."""
        from mcp.shared.message import ServerMessageMetadata
        from mcp_types import ElicitRequest, ElicitResult

        assert self.context is not None
        if params.mode == "url" and params.elicitation_id is None:  # the older protocol requires one
            params = params.model_copy(update={"elicitation_id": secrets.token_urlsafe(16)})
        metadata = ServerMessageMetadata(related_request_id=self.context.request_id)
        return await self.context.session.send_request(ElicitRequest(params=params), ElicitResult, metadata=metadata)

    async def _ask_later(self, params: ElicitRequestParams) -> ElicitResult | None:
        """Have the request answered with the question, and wait until the caller sends it again."""
        import anyio

        question = self.question = Question(params, anyio.Event())
        self.changed.set()
        await question.answered.wait()
        return question.answer

    @contextlib.contextmanager
    def _pause_limit(self) -> Iterator[None]:
        """Stop the clock of the call: the user's time is not the server's."""
        import anyio

        began = time.monotonic()
        limit = self.limit
        left = limit.deadline - anyio.current_time() if limit is not None else math.inf
        if limit is not None:
            limit.deadline = math.inf
        try:
            yield
        finally:
            self.asked_s += time.monotonic() - began
            if limit is not None:
                limit.deadline = anyio.current_time() + left


def name_asker(source: str, params: ElicitRequestParams) -> ElicitRequestParams:
    """Put the server's name before its question, because the user's client only knows the gateway."""
    return params.model_copy(update={"message": f"[{source}] {clean_words(params.message)}"})
