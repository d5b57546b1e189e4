"""Runs the MCP servers behind the gateway, with one shared session each.

A server starts at its first call, or at once if the catalogue does not hold its tools. Its task opens the session,
writes the tools to the catalogue, follows changes, restarts the session when it fails, and ends it when nobody uses it.
A failing server is reported and does not affect the others.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from toolscout.errors import SourceError, Unavailable
from toolscout.home.catalogue.store import Origin
from toolscout.sources import mcp
from toolscout.sources.mcp import Connection, Server, SignInRequired, connect
from toolscout.sources.mcp_limits import find_refusal
from toolscout.trust.redaction import Cover, find_environment_credentials
from toolscout_gateway.definition_checks import DefinitionChecks
from toolscout_gateway.lifecycle import GATEWAY_NAME, Breaker, Contact, Refused
from toolscout_gateway.relay import allow_questions

if TYPE_CHECKING:
    import anyio
    from mcp_types import ClientRequest, InputRequiredResult, InputResponses
    from pydantic import TypeAdapter

    from toolscout.settings import Settings
    from toolscout.sources.mcp_session import ListRequest
    from toolscout_gateway.exchange import Exchange
    from toolscout_gateway.session_host import SessionHost

__all__ = ["Upstream"]

FIRST_RESTART_DELAY_S: Final = 0.5  # doubled after each failure
MAX_RESTART_DELAY_S: Final = 60.0
HEALTHY_AFTER_S: Final = 30.0
RELIST_PAUSE_S: Final = 1.0
RETIRE_POLL_S: Final = 0.1
SESSION_END_MESSAGES: Final = ("Connection closed", "Session terminated")
T = TypeVar("T")


class Upstream:
    """One MCP server: its state, its session, and the calls that wait for the session.

    Attributes:
        name: the source in the catalogue.
        key: names this session among all. Sessions of one caller have a key of their own.
        state: idle (not running; its tools are served from the catalogue), starting, ok, error, or sign-in (it wants
            its callers to sign in).
        message: what is wrong now.
        contact: when it answered last, and its last error.
        is_listed: whether the catalogue holds its tools.
        in_flight: calls that are under way.
        last_used: when the last call began or ended, on the monotonic clock.
        calls: calls since the gateway started; `failed_calls` of them got no answer.
        starts: sessions that were opened.
        breaker: refuses calls after several failures.
    """

    def __init__(
        self, name: str, origin: Origin, server: Server, host: SessionHost, *, is_listed: bool = False
    ) -> None:
        import anyio

        self.name, self.origin, self.server = name, origin, server
        self.key = name
        self.own_sessions: dict[str, Upstream] = {}  # of callers who signed in, by person
        self.wants_identity = self.is_owned = False  # whether callers sign in; whether the session is its adder's
        self.state, self.message = ("idle" if is_listed else "starting"), ""
        self.is_listed, self.breaker, self.contact = is_listed, Breaker(), Contact()
        self.in_flight = self.calls = self.failed_calls = self.starts = 0
        self.last_used = time.monotonic()
        self._demand = anyio.Event()  # set when the server shall start
        self._shall_stop = self._is_retired = False
        self._host = host
        self._connection: Connection | None = None
        self._cover = Cover(find_environment_credentials())
        self._settled = anyio.Event()  # set while the session's tools are in the catalogue, or after an error
        self._wake = anyio.Event()  # set when the tools changed or the session ended
        self._end_error: Exception | None = None
        self._retry_at = 0.0
        self._was_served = self._has_notified = False
        self._checks = DefinitionChecks(self)
        self._stored_list: list[Any] = []  # the list of tools in the catalogue
        self._generation = -1  # of the catalogue when that list was stored

    async def run(self, start_limit: anyio.CapacityLimiter) -> None:
        """Keep a session open while it is used, until cancelled or retired. Restart it with growing delays."""
        import anyio

        failures = 0
        while not self._is_retired:
            if (self.is_listed and self.state in ("idle", "error")) or self.state == "sign-in":
                await self._demand.wait()
            if self._is_retired:
                break
            self.state, began = "starting", time.monotonic()
            try:
                await self._run_in_slot(start_limit)
                self.state, self.message, failures = "idle", "", 0  # nobody needed it any more
                continue
            except SignInRequired:
                self.wants_identity = True
                self.state, self.message, self._demand = "sign-in", "", anyio.Event()
                self._settled.set()
                continue
            except SourceError as error:
                message = str(error)
            except Exception as error:  # an error of this server must not reach the others
                message = f"{self.name}: the session failed with {type(error).__name__}: {str(error)[:200]}"
                message = self.cover.text(message)
            failures = 1 if time.monotonic() - began >= HEALTHY_AFTER_S else failures + 1
            self.contact.note_error(message, self._host.say)
            if failures == 1 and self._was_served:  # it worked until now, so calls wait for the restart
                self.state, self.message = "starting", message
                self._hold_new_calls()
                continue
            delay = min(MAX_RESTART_DELAY_S, FIRST_RESTART_DELAY_S * 2 ** (failures - 1))
            self.state, self.message, self._retry_at = "error", message, time.monotonic() + delay
            self._demand = anyio.Event()
            self._settled.set()
            await anyio.sleep(delay)

    async def _run_in_slot(self, start_limit: anyio.CapacityLimiter) -> None:
        """Run one session. A server that is a process takes a slot for it."""
        if self.server.transport != "stdio":
            await self._run_session(start_limit)
            return
        slots = self._host.slots
        await slots.take(self)
        try:
            await self._run_session(start_limit)
        finally:
            slots.release(self)

    @property
    def is_free(self) -> bool:
        """Whether the server runs and nobody uses it."""
        return self._connection is not None and self.in_flight == 0

    @property
    def is_followed(self) -> bool:
        """Whether clients are subscribed to its resources. Then it is never idle."""
        return self._host.followed[self.key] > 0

    def start(self) -> None:
        """Let the server start, unless it runs, or failed so recently that it has to pause."""
        if self._connection is not None or (self.state == "error" and time.monotonic() < self._retry_at):
            return
        self._demand.set()
        if self.state in ("idle", "error", "sign-in"):
            self.state = "starting"
            self._hold_new_calls()

    def stop(self) -> None:
        """End the session as soon as no call is under way."""
        self._shall_stop = True
        self._wake.set()

    def retire(self) -> None:
        """End the session and the task as soon as no call is under way. A new entry has taken its place."""
        self._is_retired = True
        self._demand.set()
        self.stop()
        for session in self.own_sessions.values():
            session.retire()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[None]:
        """Count a call, and keep the session open during it.

        Raises:
            Refused: if the server failed several times in a row and is left alone for a while.
        """
        from mcp.shared.exceptions import MCPError

        if self.state != "error" and (seconds := self.breaker.check()):  # after an error it has a pause of its own
            await self.breaker.slow_down()
            raise self.breaker.refuse(self.name, seconds)
        began = time.monotonic()
        self.calls += 1
        try:
            with self.hold():
                yield
        except Unavailable as error:
            self.failed_calls += 1
            if self.state not in ("error", "sign-in"):
                self.breaker.note_failure(began)
            if isinstance(error, Refused):
                await self.breaker.slow_down()
            else:
                self.contact.note_error(str(error))
            raise
        except MCPError:  # it answered
            self._note_answer()
            raise
        else:
            self._note_answer()

    def _note_answer(self) -> None:
        self.breaker.note_success()
        self.contact.note_answer()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the session open inside this context."""
        self.last_used = time.monotonic()
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self.last_used = time.monotonic()

    async def _run_session(self, start_limit: anyio.CapacityLimiter) -> None:
        """Run one session from its start until nobody needs it. A session that ends by itself raises."""
        import anyio

        self._end_error, self._wake, self._was_served = None, anyio.Event(), False
        self._shall_stop = self._is_retired
        self.starts += 1
        self.last_used = time.monotonic()
        try:
            async with AsyncExitStack() as turn:
                await turn.enter_async_context(start_limit)
                async with self._connect() as connection:
                    if connection.about.get("name") == GATEWAY_NAME:
                        raise SourceError("this server is a toolscout gateway; a gateway does not call another one")
                    connection.handle_messages(self._receive_message)
                    self._host.relay.attach(self.key, connection)
                    await self._update_list(connection)
                    await turn.aclose()
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._subscribe, connection)
                        if self._host.on_session is not None:
                            group.start_soon(self._host.on_session, self, connection)
                        await self._follow_changes(connection)
                        group.cancel_scope.cancel()
        finally:
            self._connection = None

    def _connect(self) -> AbstractAsyncContextManager[Connection]:
        """Open a session that all callers share."""
        settings, spills = self._host.scout.settings, self._host.spills
        identity = self._host.choose_identity(self)
        self.is_owned = identity is None
        return connect(self.server, settings=settings, spills=spills, identity=identity)

    async def _follow_changes(self, connection: Connection) -> None:
        """Read the list of tools again after each change, until nobody needs the session."""
        import anyio

        while await self._wait_for_event():
            if self._end_error is not None:
                raise self._end_error
            self._wake = anyio.Event()
            has_notified, self._has_notified = self._has_notified, False
            await self._update_list(connection)
            if has_notified:
                await anyio.sleep(RELIST_PAUSE_S)  # a server that notifies all the time is read once a second

    async def _wait_for_event(self) -> bool:
        """Wait until the tools changed or the session broke.

        Returns False if the session shall end, or nobody used it for a while. From then on calls wait for the next.
        """
        import anyio

        while self.in_flight > 0 or (not self._shall_stop and self._seconds_left() > 0):
            with anyio.move_on_after(RETIRE_POLL_S if self._shall_stop else max(RETIRE_POLL_S, self._seconds_left())):
                await self._wake.wait()
                if not self._shall_stop or self._end_error is not None:
                    return True
                await anyio.sleep(RETIRE_POLL_S)
        self._connection, self._demand = None, anyio.Event()
        self._hold_new_calls()
        return False

    def _seconds_left(self) -> float:
        """Return how long the session stays open if nobody uses it from now on."""
        idle = self._host.scout.settings.gateway_idle
        if self.is_followed:
            self.last_used = time.monotonic()
        return self.last_used + idle - time.monotonic() if idle else float("inf")

    async def _subscribe(self, connection: Connection) -> None:
        """Subscribe to changes. Servers of protocol 2026-07-28 and later send them only to subscribers."""
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
        from mcp.shared.exceptions import MCPError

        with suppress(ListenNotSupportedError, SubscriptionLost, MCPError):
            async with connection.client.listen(
                tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
            ) as changes:
                self._request_list()  # tools may have changed between the list and the subscription
                async for _ in changes:
                    pass  # `_receive_message` gets them too

    async def _update_list(self, connection: Connection) -> None:
        async with self._checks.list_lock:
            self._checks.note_list()
            await self.store_list(connection, await connection.list_tools(self._host.scout.settings.max_tools))
        self._connection, self.state, self.message, self._was_served = connection, "ok", "", True
        self.is_listed = True
        self.contact.note_answer()
        self._host.listed.add(self.name, self.server)
        if not self._wake.is_set():  # otherwise they changed again, and calls wait for the next list
            self._settled.set()

    async def store_list(self, connection: Connection, raw: list[Any]) -> None:
        """Write a list of tools to the catalogue.

        Raises:
            SourceError: if it cannot be stored.
        """
        self._stored_list = raw
        reading = mcp.build_reading(self.name, self.server, (raw, connection.about))
        changes, self._generation = await self._host.store_reading(self.origin, reading)
        if changes.state == "error":
            raise SourceError(changes.message)

    async def _receive_message(self, message: object) -> None:
        """Handle a notification of the server."""
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._handle_tools_changed()
        if self._host.on_notification is not None:
            await self._host.on_notification(self.key, message)

    def _handle_tools_changed(self) -> None:
        """Handle the notification that the tools changed."""
        self._has_notified = True
        self._request_list()

    def _request_list(self) -> None:
        """Wake the task, and let calls wait until it has read the list again."""
        self._hold_new_calls()
        self._wake.set()

    def _hold_new_calls(self) -> None:
        """Let new calls wait. Calls that wait already keep waiting."""
        import anyio

        if self._settled.is_set():
            self._settled = anyio.Event()

    @property
    def cover(self) -> Cover:
        """The cover for the credentials that the server was given."""
        if self._connection is not None:
            self._cover = self._connection.cover
        return self._cover

    def end_session(self, error: Exception) -> None:
        """End a broken session. The task then opens another."""
        if self._end_error is None and self._connection is not None:
            self._end_error, self._connection, self.state = error, None, "starting"
            self._request_list()

    @property
    def was_refused(self) -> bool:
        """Whether the server's last answer refused the caller."""
        return self._connection is not None and self._connection.was_refused

    @property
    def is_unlisted(self) -> bool:
        """Whether the server starts and the catalogue does not hold its tools yet."""
        return self.state == "starting" and not self.is_listed

    @property
    def settings(self) -> Settings:
        """The settings of the gateway."""
        return self._host.scout.settings

    @property
    def settled(self) -> bool:
        """Whether there is a session and the catalogue holds its current tools."""
        return self.settled_connection is not None

    @property
    def settled_connection(self) -> Connection | None:
        """The open session, if the catalogue holds its current tools."""
        connection = self._connection
        return None if connection is None or not self._settled.is_set() or connection.is_closed else connection

    async def is_stored(self, tools: list[Any]) -> bool:
        """Return whether the catalogue holds this list of the server now."""
        return tools == self._stored_list and await self._host.read_generation() == self._generation

    async def wait_ready(self) -> Connection:
        """Wait until the catalogue holds the current tools, and return the session.

        Raises:
            Unavailable: with the name of the server and the time of the next attempt.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        connection = self._connection
        if connection is not None and connection.is_closed:
            self.end_session(MCPError(CONNECTION_CLOSED, "Connection closed"))
        self.start()
        await self._settled.wait()
        if self.state == "sign-in":
            raise Unavailable(f"server {self.name!r} wants you to sign in")
        if self._connection is None:
            seconds = max(0.0, self._retry_at - time.monotonic())
            when = f"in {seconds:.0f} s" if seconds else "just now"
            raise Refused(f"server {self.name!r} is down; it is tried again {when}")
        return self._connection

    async def begin_check(self) -> ListRequest | None:
        """Ask the server for its list of tools at once, for `check_definitions`. None: that would have to wait."""
        return None if self.breaker.failures else await self._checks.begin()

    async def check_definitions(self, begun: ListRequest | None = None) -> Connection:
        """Read the server's list of tools before a call, store what changed, and return the session.

        A server can change a tool without a notification, so its list is read before each call. Calls that wait for
        the same check share it. With the setting `trust = "off"` notifications are enough.

        Args:
            begun: what `begin_check` returned to this call.

        Raises:
            Unavailable: as `wait_ready`, or because the server gave no list.
            SourceError: if its list cannot be stored.
        """
        return await self._checks.run(begun)

    async def send(
        self,
        connection: Connection,
        exchange: Exchange,
        request: ClientRequest,
        result_type: type[T],
    ) -> T | InputRequiredResult:
        """Send a request of a caller in an open session. The server's answer is not changed.

        Args:
            connection: the session.
            exchange: the caller's request. Progress, questions and log messages go to it.
            request: what the server gets.
            result_type: type of the result.

        Raises:
            Unavailable: the server ended, or broke the protocol.
            MCPError: the server answered with an error.
        """
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        accepted: Any = result_type
        send = functools.partial(self._send_round, connection, exchange, request, allow_questions(accepted))
        try:
            with self._host.relay.follow(self.key, exchange):
                result = await self._host.relay.drive(self.name, connection, exchange, send)
                return exchange.trim(result)
        except ValidationError:
            kind = request.method.partition("/")[0].removesuffix("s")  # tool, resource, prompt, completion
            raise Unavailable(
                f"server {self.name!r} answered with something that is not the result of a {kind}"
            ) from None
        except MCPError as error:
            if refusal := find_refusal(error.message):
                raise Unavailable(f"server {self.name!r} was called, but {refusal}") from None
            if not (connection.is_closed or error.message in SESSION_END_MESSAGES):
                raise
            self.end_session(error)
            raise Unavailable(f"server {self.name!r} ended during the call and is being restarted") from None

    async def _send_round(
        self,
        connection: Connection,
        exchange: Exchange,
        request: ClientRequest,
        result_type: TypeAdapter[Any],
        responses: InputResponses | None,
        state: str | None,
    ) -> Any:
        """Send a request, with the answers to the questions of the round before."""
        cover = connection.cover

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            await exchange.report_progress(progress, total, None if message is None else cover.text(message))

        if responses is not None or state is not None:
            params: Any = request.params
            params = params.model_copy(update={"input_responses": responses, "request_state": state})
            request = request.model_copy(update={"params": params})
        return await connection.client.session.send_request(request, result_type, progress_callback=tell)
