"""One request of a caller while a server works on it. It passes progress, log messages and questions to the caller.

A caller of protocol 2025-11-25 or older is asked in the middle of its request. A later protocol has no such questions:
the request ends with `InputRequiredResult`, and the caller sends it again with the answers. `Exchange` hides the
difference from the servers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from toolscout.sources.mcp_session import UI_EXTENSION
from toolscout.trust.policy import Caller
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
    """A question of a server to the user. `answered` is set together with the answer."""

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
        """Return the session if the catalogue, now in this generation, has a list of its tools that is new enough."""

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
        resends_with_answers: whether the caller gets a question as the result of its request, and then sends the
            request again with the user's answer. Otherwise it is asked in the middle of the request.
        elicitation: what the caller's client declares about questions to its user. None if it cannot ask.
        notes: what was read differently from what the caller sent.
        tool_id: the tool that is called, if the caller named it differently.
        upstream: the session in which a server works on it, if a server does.
        wants_everything: whether its result is not cut to the budget.
        meta: the `_meta` of the request, without what belongs to the caller's connection.
        may_write: whether it may call any tool. Otherwise only those that say they are read-only.
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
        self.may_write = True
        meta = {key: value for key, value in (context.meta or {}).items() if key not in CONNECTION_META}
        self.meta: Any = meta or None
        self._question_lock = anyio.Lock()  # the user gets one question at a time
        self._first_context = context  # `context` changes when the caller sends the request again
        self.resends_with_answers = context.session.protocol_version in MODERN_PROTOCOL_VERSIONS
        self.elicitation: dict[str, object] | None = None
        capabilities = context.session.client_capabilities
        if capabilities is not None and capabilities.elicitation is not None:
            self.elicitation = capabilities.elicitation.model_dump(by_alias=True, mode="json", exclude_none=True)

    @property
    def declared(self) -> dict[str, Any]:
        """The capabilities of the caller's client that are passed on to servers."""
        declared: dict[str, Any] = {}
        if self.elicitation is not None:
            declared["elicitation"] = self.elicitation
        extensions = getattr(self._first_context.session.client_capabilities, "extensions", None) or {}
        passed = {name: extensions[name] for name in PASSED_EXTENSIONS if name in extensions}
        if passed:
            declared["extensions"] = passed
        return declared

    def can_ask(self, mode: str) -> bool:
        """Return whether the caller's client can show a question of this mode, `form` or `url`."""
        if self.elicitation is None:
            return False
        shown_modes = self.elicitation or ["form"]  # a client that names no mode shows forms
        return mode in shown_modes

    def trim(self, result: T) -> T:
        """Remove the server's name from a result for a caller of an older protocol, where results have none."""
        meta = getattr(result, "meta", None) or {}
        if SERVER_INFO_META not in meta:
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
        ask = self._ask_later if self.resends_with_answers else self._ask_now
        async with self._question_lock:
            with self._pause_limit(), anyio.move_on_after(ANSWER_TIMEOUT_S):
                try:
                    answer = await ask(params)
                except MCPError as error:
                    return error.error
        return answer or ElicitResult(action="cancel")

    async def _ask_now(self, params: ElicitRequestParams) -> ElicitResult | None:
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
        """Suspend the time limit of the call, because the time that a user takes is not the server's."""
        import anyio

        limit = self.limit or anyio.CancelScope()
        began, deadline = anyio.current_time(), limit.deadline
        limit.deadline = math.inf
        try:
            yield
        finally:
            asked_s = anyio.current_time() - began
            self.asked_s += asked_s
            limit.deadline = deadline + asked_s


def name_asker(source: str, params: ElicitRequestParams) -> ElicitRequestParams:
    """Put the server's name before its question, because the user's client only knows the gateway."""
    return params.model_copy(update={"message": f"[{source}] {clean_words(params.message)}"})
