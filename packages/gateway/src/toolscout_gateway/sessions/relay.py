"""Relays the questions and log messages of servers, which are neither a request nor its answer, to callers.

A server of protocol 2025-11-25 or older does not say which request a question or a log message belongs to. All callers
share its session, so such a message is passed on only if the requests under way are all of one caller.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

from toolscout.errors import Unavailable, UserError
from toolscout.trust.policy import Caller
from toolscout_gateway.sessions.exchange import ANSWER_TIMEOUT_S, Exchange, name_asker
from toolscout_gateway.sessions.handover import CLOSED, Handover
from toolscout_gateway.text import clean_words

if TYPE_CHECKING:
    import anyio.abc
    from mcp.server.context import ServerRequestContext
    from mcp.server.session import ServerSession
    from mcp.shared.exceptions import MCPError
    from mcp_types import (
        ElicitRequestParams,
        ElicitRequestURLParams,
        ElicitResult,
        ErrorData,
        InputRequiredResult,
        InputResponses,
        LoggingLevel,
        LoggingMessageNotificationParams,
        ServerNotification,
    )
    from pydantic import TypeAdapter

    from toolscout.sources.mcp import McpConnection

__all__ = ["OpenClient", "Relay", "allow_questions", "ask_to_open"]

MAX_ROUNDS: Final = 10  # of questions in one request, as the SDK's client
MAX_OPEN_REQUESTS: Final = 256  # requests that wait for the answer of a user
MAX_OPEN_OF_PERSON: Final = 64  # such requests of one person, so that there is room for others
FIRST_ROUND_PAUSE_S: Final = 0.05  # for a server that asks nothing and only wants the request again; it doubles
MAX_ROUND_PAUSE_S: Final = 0.25
OPEN: Final = "open:"  # before the handle of a request that waits for an answer
SERVERS_STATE: Final = "state:"  # before the state that a server wants back
QUESTION_KEY: Final = "question"
URL_KEY: Final = "url-"
MAX_URL_CHARS: Final = 8_192  # of each text in a question, which may be an address of an issuer
CLEANUP_S: Final = 5.0  # after the end of a client's connection
Result = TypeVar("Result")


@dataclasses.dataclass(eq=False)
class OpenClient:
    """A client with an open session, from its notification that it is ready until its connection ends."""

    session: ServerSession  # sends it messages that belong to no request
    person: str  # who calls
    log_level: LoggingLevel | None = None  # the lowest level of log messages that it wants; None: it has not said
    cleanup: contextlib.AsyncExitStack = dataclasses.field(default_factory=contextlib.AsyncExitStack)  # at its end

    def wants(self, level: LoggingLevel) -> bool:
        """Return whether the client wants log messages of a level. By default it wants all."""
        return self.log_level is None or rank_log_level(level) >= rank_log_level(self.log_level)


@dataclasses.dataclass(eq=False)
class _Work:
    """A request that goes on in a task of its own, and its outcome."""

    exchange: Exchange
    scope: anyio.CancelScope
    result: Any = None
    error: BaseException | None = None
    ended: bool = False


class Relay:
    """Knows the requests under way at each server, the requests that wait for a user, and the clients' connections.

    `source` is the key of a session everywhere here: the source, and for a caller's own session also the caller.
    """

    def __init__(self, handover: Handover | None = None) -> None:
        self.handover = handover  # None: no other gateway shares the home
        self.group: anyio.abc.TaskGroup | None = None  # for requests that outlive their first answer
        self.clients: list[OpenClient] = []
        self._under_way: defaultdict[str, list[Exchange]] = defaultdict(list)  # server → its requests, the newest last
        self._callers: defaultdict[str, set[str]] = defaultdict(set)  # who has used the session of a server
        self._open: dict[str, _Work] = {}  # handle → a request that waits for its user
        # (server, its id of a question) → the client that was asked, and the id that it knows
        self._url_questions: dict[tuple[str, str], tuple[ServerSession, str]] = {}

    # --- a server's session

    def attach(self, source: str, connection: McpConnection) -> None:
        """Listen to the questions and log messages that come in a new session of a server."""
        self._callers.pop(source, None)  # nobody has used this session yet
        connection.listen(
            partial(self._answer_question, source, connection), partial(self._pass_log, source, connection)
        )

    def _find_exchange(self, source: str) -> Exchange | str:
        """Find the newest request under way if all are of one caller. Otherwise return why nobody can be asked."""
        exchanges = self._under_way[source]
        if not exchanges:
            return "No request is under way, so nobody can be asked."
        if len({exchange.caller.person for exchange in exchanges}) > 1:
            return "Several callers use this server now, and the question does not say whom it is for. Ask later."
        return exchanges[-1]

    async def _answer_question(
        self, source: str, connection: McpConnection, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        """Answer a question that a server asks in the middle of a request."""
        from mcp_types import INVALID_REQUEST, ErrorData

        exchange = self._find_exchange(source)
        if isinstance(exchange, str):
            return ErrorData(code=INVALID_REQUEST, message=exchange)
        if params.mode == "url" and params.elicitation_id and exchange.context is not None:
            params = self._register_url_question(source, params, exchange.context.session)
        return await exchange.ask(_prepare_question(source, connection, params))

    def _register_url_question(
        self, source: str, params: ElicitRequestURLParams, session: ServerSession
    ) -> ElicitRequestURLParams:
        """Return a question to open a URL with a new id, and note which client to tell when its user has finished.

        Each server chooses its own ids, so the questions of two servers may have the same one.
        """
        id = secrets.token_urlsafe(16)
        self._url_questions[source, params.elicitation_id or ""] = session, id
        while len(self._url_questions) > MAX_OPEN_REQUESTS:
            oldest = next(iter(self._url_questions))
            del self._url_questions[oldest]
        return params.model_copy(update={"elicitation_id": id})

    async def _pass_log(self, source: str, connection: McpConnection, params: LoggingMessageNotificationParams) -> None:
        """Pass a log message of a server on to the one caller whom it can concern."""
        from mcp_types import LoggingMessageNotification, LoggingMessageNotificationParams

        words = {"logger": params.logger or _name_source(source), "data": params.data}
        texts = clean_words(words, connection.credential_cover)
        params = LoggingMessageNotificationParams(level=params.level, **texts)
        exchange = self._find_exchange(source)
        if isinstance(exchange, Exchange) and exchange.context is not None:
            client = self.find_client(exchange.context.session)
            if client is None or client.wants(params.level):
                await exchange.write_log(params)
            return
        callers = self._callers[source]
        if self._under_way[source] or len(callers) != 1:
            return  # the message may be for another caller, so nobody gets it
        for client in list(self.clients):
            if client.person in callers and client.wants(params.level):
                await client.session.send_notification(LoggingMessageNotification(params=params))

    async def pass_completion(self, source: str, elicitation_id: str) -> None:
        """Tell the client that its user has finished what a question of a session asked them to do at a URL."""
        asked = self._url_questions.pop((source, elicitation_id), None)
        if asked is not None:
            session, client_id = asked
            await session.send_elicit_complete(client_id)

    # --- requests of callers

    async def run(self, exchange: Exchange, work: Callable[[], Awaitable[Result]]) -> Result | InputRequiredResult:
        """Run a request, or go on with one that waited for an answer.

        A server may ask in the middle of its work, while the caller's protocol wants an answer to its request first.
        Then the work goes on in a task of its own until the caller sends the request again, and a later call of this
        function returns its outcome.

        Raises:
            Unavailable: if the question is no longer open, or too many are.
        """
        import anyio

        outcome: Result | InputRequiredResult
        may_outlive_round = exchange.resends_with_answers and exchange.elicitation is not None
        if exchange.state is not None and exchange.state.startswith(OPEN):
            outcome = await self._resume(exchange, exchange.state.removeprefix(OPEN))
        elif may_outlive_round and self.group is not None:
            running = _Work(exchange, anyio.CancelScope())
            self.group.start_soon(self._run_work, running, work)
            outcome = await self._await_work(running)
        else:
            outcome = await work()
        return outcome

    async def _run_work(self, running: _Work, work: Callable[[], Awaitable[Any]]) -> None:
        """Do a request in a task of its own, and keep its outcome."""
        try:
            with running.scope:
                running.result = await work()
        except Exception as error:  # raised again where the caller waits
            running.error = error
        finally:
            running.ended = True
            running.exchange.changed.set()

    async def _await_work(self, running: _Work) -> Any:
        """Wait for the outcome of a request, or for its next question."""
        import anyio

        try:
            await running.exchange.changed.wait()
        except anyio.get_cancelled_exc_class():
            running.scope.cancel()  # the caller gave the request up
            raise
        if running.error is not None:
            raise running.error
        if not running.ended:
            return await self._keep_open(running)
        if running.result is None:
            raise Unavailable("the request was given up: send it again")
        return running.result

    async def _keep_open(self, running: _Work) -> InputRequiredResult:
        """Keep a request until its question is answered. Returns the question, as the result for the caller."""
        from mcp_types import ElicitRequest, InputRequiredResult

        exchange = running.exchange
        n_open_of_person = sum(other.exchange.caller.person == exchange.caller.person for other in self._open.values())
        if len(self._open) >= MAX_OPEN_REQUESTS or n_open_of_person >= MAX_OPEN_OF_PERSON:
            running.scope.cancel()
            raise Unavailable("too many requests wait for the answers of users: try again later")
        handle = secrets.token_urlsafe(16)
        self._open[handle] = running
        exchange.context = None
        assert self.group is not None and exchange.question is not None
        self.group.start_soon(self._expire, handle, running)
        if self.handover is not None:
            is_open, go_on = partial(self._open.__contains__, handle), partial(self._go_on, handle, None)
            await self.group.start(self.handover.wait, handle, exchange.caller, is_open, go_on)
        question = ElicitRequest(params=exchange.question.params)
        return InputRequiredResult(input_requests={QUESTION_KEY: question}, request_state=OPEN + handle)

    async def _expire(self, handle: str, running: _Work) -> None:
        """Give up a request whose caller does not answer in time, which is when `Exchange.ask` cancels the question."""
        import anyio

        question = running.exchange.question
        assert question is not None
        with anyio.move_on_after(ANSWER_TIMEOUT_S):
            await question.answered.wait()
            return
        if self._open.pop(handle, None) is not None:
            running.scope.cancel()

    async def _resume(self, exchange: Exchange, handle: str) -> Any:
        """Go on with a request that waited for an answer, here or in another gateway of the home."""
        from mcp_types import ElicitResult

        answer = (exchange.responses or {}).get(QUESTION_KEY)
        answer = answer if isinstance(answer, ElicitResult) else ElicitResult(action="cancel")
        running = self._open.get(handle)
        if running is None and self.handover is not None:
            return await self.handover.pass_on(handle, exchange.caller, answer)
        if running is None or not _is_same(running.exchange.caller, exchange.caller):
            raise Unavailable(CLOSED)
        return await self._go_on(handle, exchange.context, answer)

    async def _go_on(self, handle: str, context: ServerRequestContext[Any, Any] | None, answer: ElicitResult) -> Any:
        """Go on with an open request. `context`: the request that brought the answer; None at another gateway."""
        import anyio

        running = self._open.pop(handle, None)
        if running is None:
            raise Unavailable(CLOSED)
        exchange = running.exchange
        question = exchange.question
        assert question is not None
        exchange.context, exchange.question = context, None
        if not running.ended:  # otherwise the old event stays set, and the outcome is returned at once
            exchange.changed = anyio.Event()
        question.answer = answer
        question.answered.set()
        return await self._await_work(running)

    async def drive(
        self,
        source: str,
        connection: McpConnection,
        exchange: Exchange,
        send: Callable[[InputResponses | None, str | None], Awaitable[Result | InputRequiredResult]],
    ) -> Result | InputRequiredResult:
        """Send a request to a server, and send it again with the answers if the server's result is questions.

        Until the end of it, the server's other questions and log messages go to this caller, if no other has requests.
        A caller of a protocol with such results gets the questions, and sends the request again. Others are asked here.

        Raises:
            UserError: if the server asks what the caller's client cannot show, or its user did not open a page.
            Unavailable: if the server asks without end.
        """
        import anyio
        from mcp_types import InputRequiredResult
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        state = exchange.state.removeprefix(SERVERS_STATE) if exchange.state is not None else None
        responses = exchange.responses
        if connection.client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            # An older server takes no answers: `ask_to_open` asked the user to open its pages.
            if any(getattr(answer, "action", "") != "accept" for answer in (responses or {}).values()):
                raise UserError("the user did not open the page that the tool needs: ask them before you call it again")
            responses = None
        self._under_way[source].append(exchange)
        self._callers[source].add(exchange.caller.person)
        try:
            result = await send(responses, state)
            pause = FIRST_ROUND_PAUSE_S
            for _ in range(MAX_ROUNDS):
                if not isinstance(result, InputRequiredResult):
                    return result
                questions = _prepare_questions(_name_source(source), connection, exchange, result)
                if exchange.resends_with_answers:
                    return _replace_questions(result, questions)
                answers = await _ask_all(_name_source(source), exchange, questions)
                if not questions:
                    await anyio.sleep(pause)
                    pause = min(2 * pause, MAX_ROUND_PAUSE_S)
                result = await send(answers or None, result.request_state)
        finally:
            self._under_way[source].remove(exchange)
        raise Unavailable(f"server {_name_source(source)!r} asked more than {MAX_ROUNDS} times and was not satisfied")

    def close(self) -> None:
        """Give up every request that outlived its first answer."""
        if self.group is not None:
            self.group.cancel_scope.cancel()

    # --- clients

    @contextlib.asynccontextmanager
    async def keep_client(self, session: ServerSession, person: str) -> AsyncIterator[None]:
        """Count a client as connected inside the block. `session`: where it said that it is ready."""
        import anyio

        client = OpenClient(session, person)
        self.clients.append(client)
        try:
            yield
        finally:
            self.clients.remove(client)
            with anyio.move_on_after(CLEANUP_S, shield=True):
                await client.cleanup.aclose()

    def find_client(self, session: ServerSession) -> OpenClient | None:
        """Find the client that a request came from. All sessions of a client have the same `client_params` object."""
        params = session.client_params
        return next((client for client in self.clients if client.session.client_params is params), None)

    async def tell_clients(self, notification: ServerNotification) -> None:
        """Send a notification to every client that has a session."""
        for client in list(self.clients):
            await client.session.send_notification(notification)


def rank_log_level(level: LoggingLevel) -> int:
    """Return the severity of a log level: 0 for the lowest, `debug`."""
    from mcp_types import LoggingLevel

    return get_args(LoggingLevel).index(level)


def _is_same(caller: Caller, other: Caller) -> bool:
    """Return whether two requests come from one person with the same rights. Their tokens may differ."""
    return (caller.person, caller.rules) == (other.person, other.rules)


@cache
def allow_questions(result_type: Any) -> TypeAdapter[Any]:
    """Return the validator of answers that are a result of this type, or in its place a question or a task."""
    from mcp_types import CallToolResult, InputRequiredResult
    from pydantic import TypeAdapter

    from toolscout_gateway.sessions.tasks import OlderTask, StartedTask

    answers = result_type | InputRequiredResult  # pydantic takes the first type that fits as well as any
    return TypeAdapter(OlderTask | StartedTask | answers if result_type is CallToolResult else answers)


def ask_to_open(error: MCPError, exchange: Exchange, source: str) -> InputRequiredResult | None:
    """Turn an error that names URLs to open into a question to the user. None: the agent gets the error instead.

    Raises:
        MCPError: the error itself, for a caller of protocol 2025-11-25, whose client asks the user.
    """
    from mcp.shared.exceptions import UrlElicitationRequiredError
    from mcp_types import URL_ELICITATION_REQUIRED, ElicitRequest, InputRequiredResult
    from pydantic import ValidationError

    if error.code != URL_ELICITATION_REQUIRED or not exchange.can_ask("url"):
        return None
    if not exchange.resends_with_answers:
        raise error
    try:
        urls = UrlElicitationRequiredError.from_error(error.error).elicitations
    except ValidationError:
        return None
    questions = (ElicitRequest(params=name_asker(source, url)) for url in urls)
    return InputRequiredResult(input_requests={f"{URL_KEY}{n}": question for n, question in enumerate(questions)})


def _prepare_questions(
    source: str, connection: McpConnection, exchange: Exchange, result: InputRequiredResult
) -> dict[str, ElicitRequestParams]:
    """Return the questions of a round, as the caller's user gets them.

    Raises:
        UserError: if the caller's client cannot show one.
    """
    from mcp_types import ElicitRequest

    questions: dict[str, ElicitRequestParams] = {}
    for key, request in (result.input_requests or {}).items():
        if clean_words(key) != key:
            raise UserError(f"server {source!r} asked under a name that hides characters")
        if not isinstance(request, ElicitRequest) or not exchange.can_ask(request.params.mode):
            raise UserError(
                f"server {source!r} needs an answer ({request.method}) that your client cannot give: use a "
                "client that shows questions to its user (elicitation)"
            )
        questions[key] = _prepare_question(source, connection, request.params)
    return questions


def _replace_questions(result: InputRequiredResult, questions: dict[str, ElicitRequestParams]) -> InputRequiredResult:
    """Return a server's result with prepared questions, and with its state marked as the server's."""
    from mcp_types import ElicitRequest

    requests = {key: ElicitRequest(params=params) for key, params in questions.items()}
    state = None if result.request_state is None else SERVERS_STATE + result.request_state
    return result.model_copy(update={"input_requests": requests or None, "request_state": state})


async def _ask_all(source: str, exchange: Exchange, questions: dict[str, ElicitRequestParams]) -> dict[str, Any]:
    """Ask the caller's user one question after the other. Returns the answers.

    Raises:
        UserError: if the caller's client refuses.
    """
    from mcp_types import ErrorData

    answers: dict[str, Any] = {}
    for key, params in questions.items():
        answer = await exchange.ask(params)
        if isinstance(answer, ErrorData):
            raise UserError(f"server {source!r} asked, and your client answered: {answer.message}")
        answers[key] = answer
    return answers


def _prepare_question(source: str, connection: McpConnection, params: ElicitRequestParams) -> ElicitRequestParams:
    """Name the server in its question, and clean all texts of it."""
    fields = params.model_dump(by_alias=True, mode="json", exclude_unset=True)
    cleaned = type(params).model_validate(clean_words(fields, connection.credential_cover, MAX_URL_CHARS))
    return name_asker(_name_source(source), cleaned)


def _name_source(key: str) -> str:
    """Return the source in the key of a session, which may name a caller too."""
    return key.partition("\n")[0]
