"""Runs the MCP servers behind the gateway, with one shared session each.

A server starts at its first call, or at once if the catalogue does not hold its tools. Its task opens the session,
writes the tools to the catalogue, follows changes, restarts the session when it fails, and ends it when nobody uses it.
A failing server is reported and does not affect the others.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from toolscout.errors import SourceError, Unavailable
from toolscout.home.catalogue.store import Origin
from toolscout.home.database import format_instant, now
from toolscout.sources import Reading, mcp
from toolscout.sources.mcp import McpConnection, Server, SignInRequired, connect
from toolscout.sources.mcp_limits import find_refusal
from toolscout.sources.mcp_session import remember_handshake
from toolscout.sources.mcp_transport import CALLER_META, SESSION_LOST
from toolscout.sources.own_gateway import GATEWAY_NAME
from toolscout.trust.redaction import Cover, find_environment_credentials
from toolscout_gateway.sessions.relay import MAX_URL_CHARS, allow_questions
from toolscout_gateway.text import clean_words

if TYPE_CHECKING:
    import anyio
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.shared.exceptions import MCPError
    from mcp_types import ClientRequest, InputRequiredResult, InputResponses
    from pydantic import TypeAdapter

    from toolscout.settings import Settings
    from toolscout.sources.mcp_oauth import SessionIdentity
    from toolscout_gateway.access.sign_in import Identity
    from toolscout_gateway.sessions.exchange import Exchange
    from toolscout_gateway.sessions.host import SessionHost
    from toolscout_gateway.sessions.tasks import RunningTask

__all__ = ["CallerSession", "SessionLost", "Upstream", "call_again_once"]

FIRST_RESTART_DELAY_S: Final = 0.5  # doubled after each failure
MAX_RESTART_DELAY_S: Final = 60.0
HEALTHY_AFTER_S: Final = 30.0  # a session that lasted so long was no failed start, so failures are counted anew
RELIST_PAUSE_S: Final = 1.0
MAX_LIST_AGE_S: Final = 5.0  # of the list of tools with which a call is made; a call renews an older one
RETIRE_POLL_S: Final = 0.1
SESSION_END_MESSAGES: Final = ("Connection closed", SESSION_LOST)
MAX_FAILED_CALLS: Final = 3  # in a row; then calls are refused for a while
FIRST_PAUSE_S: Final = 1.0  # doubled each time that the trial call fails too
MAX_PAUSE_S: Final = 60.0
REFUSAL_PAUSE_S: Final = 1.0  # between two refusals of one server, the first of which is told at once
MAX_REFUSAL_WAIT_S: Final = 2.0  # of one refusal
T = TypeVar("T")


class Refused(Unavailable):
    """A call that was not tried, because its server failed before."""


class SessionLost(Unavailable):
    """A request in a session that the server no longer knows. It was not worked on, so it can be sent again."""


async def call_again_once(work: Callable[[], Awaitable[T]]) -> T:
    """Do a request, and do it once more if the server did not know the session: then in a new one."""
    try:
        return await work()
    except SessionLost:
        return await work()


class Contact:
    """When a server was heard of.

    Attributes:
        answered: when it answered last, in seconds since 1970: a call, or a request for its list of tools. 0: never.
        error: what was wrong last, also if the server works again.
        error_at: when that was. Empty: never.
    """

    def __init__(self) -> None:
        self.answered = 0.0
        self.error = self.error_at = ""

    @property
    def answered_at(self) -> str:
        """When it answered last, ISO 8601. Empty: never."""
        return format_instant(datetime.fromtimestamp(self.answered, timezone.utc)) if self.answered else ""

    def note_error(self, error: str, say: Callable[[str], None] = lambda text: None) -> None:
        """Note why the server did not answer or its session failed. `say` gets an error once, until it is over."""
        has_answered_since = self.answered_at > self.error_at
        is_news = error != self.error or has_answered_since
        self.error, self.error_at = error, now()
        if is_news:
            say(error)


class Breaker:
    """Refuses calls to a server that failed several times in a row, except for one trial after each pause."""

    def __init__(self) -> None:
        self.failures = 0  # failed calls in a row; calls that failed together count once
        self._failed_at = float("-inf")  # this time and the next ones are monotonic seconds
        self._refuses_until = float("-inf")
        self._pause = FIRST_PAUSE_S  # before the next trial; it doubles with each trial that fails
        self._next_refusal = float("-inf")  # when the next refusal may be sent; see `slow_down`

    @property
    def circuit(self) -> str:
        """`closed`: calls pass; `open`: they are refused; `trial`: the next one is tried."""
        if self.failures < MAX_FAILED_CALLS:
            return "closed"
        return "open" if time.monotonic() < self._refuses_until else "trial"

    def check(self) -> float:
        """Return the seconds until the next call may try; 0 if this call may try now."""
        if self.failures < MAX_FAILED_CALLS:
            return 0.0
        clock = time.monotonic()
        if clock < self._refuses_until:
            return self._refuses_until - clock
        self._refuses_until = clock + self._pause  # this call is the trial; others are refused for another pause
        return 0.0

    def refuse(self, name: str, seconds: float) -> Refused:
        """Return the error for a call to a server of this name, which is tried again in so many seconds."""
        return Refused(
            f"server {name!r} failed {self.failures} times in a row; it is tried again in {seconds:.0f} s. "
            "Use another tool, or try again then"
        )

    async def slow_down(self) -> None:
        """Wait before a refusal, so that a client that calls in a loop does not take the time of all callers."""
        import anyio

        clock = time.monotonic()
        wait = max(0.0, self._next_refusal - clock)
        self._next_refusal = clock + min(wait + REFUSAL_PAUSE_S, MAX_REFUSAL_WAIT_S)
        await anyio.sleep(wait)

    def note_success(self) -> None:
        """Count failures anew, because a call was answered."""
        self.failures, self._pause = 0, FIRST_PAUSE_S

    def note_failure(self, began: float) -> None:
        """Count a call that got no answer. `began`: when it began, in monotonic seconds."""
        if began < self._failed_at:
            return  # it was under way at the last failure, which counts for both
        self.failures += 1
        self._failed_at = time.monotonic()
        if self.failures == MAX_FAILED_CALLS:
            self._refuses_until = self._failed_at + self._pause
        elif self.failures > MAX_FAILED_CALLS:
            self._pause = min(MAX_PAUSE_S, 2 * self._pause)
            self._refuses_until = self._failed_at + self._pause


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
        self.wants_identity = False  # whether each caller has to sign in
        self.is_owned = False  # whether all callers share the session of the person who added the server
        self.state, self.message = ("idle" if is_listed else "starting"), ""
        self.is_listed, self.breaker, self.contact = is_listed, Breaker(), Contact()
        self.in_flight = self.calls = self.failed_calls = self.starts = 0
        self.last_used = time.monotonic()
        self._demand = anyio.Event()  # set when the server shall start
        self._shall_stop = self._is_retired = False
        self._host = host
        self._connection: McpConnection | None = None  # while the session is open and its tools are known
        self._cover = Cover(find_environment_credentials())
        self._ready_or_failed = anyio.Event()  # set while the session's tools are in the catalogue, or after an error
        self._wake = anyio.Event()  # set when the tools changed or the session ended
        self._end_error: Exception | None = None
        self._retry_at = 0.0  # after an error, when the next start is tried, in monotonic seconds
        self._was_served = False  # whether calls could be made in this session
        self._has_notified = False  # whether the server said that its lists changed, and they were not read since
        self._list_lock = anyio.Lock()  # lists are stored in the order in which they were read
        self._listed_at = float("-inf")  # when the stored list was asked for, on the monotonic clock
        self._stored_list: list[Any] = []  # the list of tools in the catalogue
        self._generation = -1  # of the catalogue when that list was stored
        self._task_tools: set[str] = set()  # tools that the server runs only as tasks

    async def run(self, start_limit: anyio.CapacityLimiter) -> None:
        """Keep a session open while it is used, until cancelled or retired. Restart it with growing delays."""
        import anyio

        failures = 0  # in a row
        while not self._is_retired:
            is_served_from_catalogue = self.is_listed and self.state in ("idle", "error")
            if is_served_from_catalogue or self.state == "sign-in":
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
                self._ready_or_failed.set()
                continue
            except SourceError as error:
                if self._has_lost_session(began):
                    continue  # this is no failure of the server, so a new session begins at once
                message = str(error)
            except Exception as error:  # an error of this server must not reach the others
                message = f"{self.name}: the session failed with {type(error).__name__}: {str(error)[:200]}"
                message = self.credential_cover.text(message)
            was_healthy = time.monotonic() - began >= HEALTHY_AFTER_S
            failures = 1 if was_healthy else failures + 1
            self.contact.note_error(message, self._host.say)
            if failures == 1 and self._was_served:  # it worked until now, so calls wait for the restart
                self.state, self.message = "starting", message
                self._hold_new_calls()
                continue
            delay = min(MAX_RESTART_DELAY_S, FIRST_RESTART_DELAY_S * 2 ** (failures - 1))
            self.state, self.message, self._retry_at = "error", message, time.monotonic() + delay
            self._demand = anyio.Event()
            self._ready_or_failed.set()
            await anyio.sleep(delay)

    def _has_lost_session(self, began: float) -> bool:
        """Return whether the session that was started at `began` has worked, and the server then forgot it."""
        return getattr(self._end_error, "message", "") == SESSION_LOST and self._listed_at > began

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
        has_to_pause = self.state == "error" and time.monotonic() < self._retry_at
        if self._connection is not None or has_to_pause:
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

        if self.state != "error":  # in that state `wait_ready` refuses calls until the next start
            seconds = self.breaker.check()
            if seconds > 0:
                await self.breaker.slow_down()
                raise self.breaker.refuse(self.name, seconds)
        began, is_answered = time.monotonic(), False
        self.calls += 1
        try:
            with self.hold():
                yield
            is_answered = True
        except Unavailable as error:
            self.failed_calls += 1
            if self.state not in ("error", "sign-in"):
                self.breaker.note_failure(began)
            if isinstance(error, Refused):
                await self.breaker.slow_down()
            else:
                self.contact.note_error(str(error))
            raise
        except MCPError:  # an error is an answer too
            is_answered = True
            raise
        finally:
            if is_answered:
                self.contact.answered = time.time()
                if self.breaker.failures:
                    self.breaker.note_success()

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
        """Run one session from its start until nobody needs it. Raises the error of a session that breaks."""
        import anyio

        self._end_error, self._wake, self._was_served = None, anyio.Event(), False
        self._shall_stop = self._is_retired
        self.starts += 1
        self.last_used = time.monotonic()
        try:
            async with AsyncExitStack() as start_turn:  # closed when this server has started, for the next one
                await start_turn.enter_async_context(start_limit)
                async with self._connect() as connection:
                    if connection.about.get("name") == GATEWAY_NAME:
                        raise SourceError("this server is a toolscout gateway; a gateway does not call another one")
                    connection.handle_messages(self._receive_message)
                    self._host.relay.attach(self.key, connection)
                    await self._update_list(connection)
                    await start_turn.aclose()
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._subscribe, connection)
                        if self._host.on_session is not None:
                            group.start_soon(self._host.on_session, self, connection)
                        await self._follow_changes(connection)
                        group.cancel_scope.cancel()
        finally:
            self._connection = None

    def _connect(self) -> AbstractAsyncContextManager[McpConnection]:
        """Open a session that all callers share."""
        identity = self._host.choose_identity(self)
        self.is_owned = identity is None
        return self._connect_as(identity)

    def _connect_as(self, identity: SessionIdentity | None) -> AbstractAsyncContextManager[McpConnection]:
        """Open a session with the credentials of an identity. None: of the person who added the server."""
        from toolscout_gateway.sessions.tasks import TasksExtension

        settings, spills = self._host.scout.settings, self._host.spills
        extensions = [TasksExtension()]
        return connect(self.server, settings=settings, spills=spills, identity=identity, extensions=extensions)

    async def _follow_changes(self, connection: McpConnection) -> None:
        """Read the list of tools again after each change, until nobody needs the session."""
        import anyio

        while await self._wait_for_event():
            if self._end_error is not None:
                raise self._end_error
            self._wake = anyio.Event()
            if self._has_notified:
                self._has_notified = False
                await self._update_list(connection)
                await anyio.sleep(RELIST_PAUSE_S)  # a server that notifies all the time is read once a second
            else:  # `doubt_list` woke the task, because a call ended in an error
                with suppress(Unavailable):  # the next call reads the list too, and reports the error
                    await self._renew_list(connection, time.monotonic() - MAX_LIST_AGE_S)

    async def _wait_for_event(self) -> bool:
        """Wait until the tools changed or the session broke. Returns False if the session shall end instead.

        It ends if it was told to stop or nobody used it for a while. From then on calls wait for the next session.
        """
        import anyio

        while True:
            seconds_left = 0.0 if self._shall_stop else self._find_seconds_left()
            if seconds_left <= 0 and self.in_flight == 0:
                break
            with anyio.move_on_after(max(RETIRE_POLL_S, seconds_left)):
                await self._wake.wait()
                if not self._shall_stop or self._end_error is not None:
                    return True
                await anyio.sleep(RETIRE_POLL_S)  # `stop` has set `_wake` for good, so the calls under way are polled
        self._connection, self._demand = None, anyio.Event()
        self._hold_new_calls()
        return False

    def _find_seconds_left(self) -> float:
        """Return how long the session stays open if nobody uses it from now on."""
        if self.is_followed:
            self.last_used = time.monotonic()  # the idle time begins when the last client unsubscribes
        idle_s = self.settings.gateway_idle  # 0: sessions stay open
        return self.last_used + idle_s - time.monotonic() if idle_s else float("inf")

    async def _subscribe(self, connection: McpConnection) -> None:
        """Subscribe to changes. Servers of protocol 2026-07-28 and later send them only to subscribers."""
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
        from mcp.shared.exceptions import MCPError

        with suppress(ListenNotSupportedError, SubscriptionLost, MCPError):
            async with connection.client.listen(
                tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True
            ) as changes:
                self._handle_tools_changed()  # they may have changed between the list and the subscription
                async for _ in changes:
                    pass  # `_receive_message` gets them too

    async def _update_list(self, connection: McpConnection) -> None:
        """List the tools of the open session and store them. From then on, calls can be made in it."""
        async with self._list_lock:
            asked_at = time.monotonic()
            tools = await connection.list_tools(self.settings.max_tools)
            if connection.list_fault:
                self.contact.note_error(f"{self.name}: {connection.list_fault}", self._host.say)
            is_stored = self._was_served and await self.is_stored(tools)  # a session's first list is always stored
            if not is_stored:
                await self.store_list(connection, tools)
            self._listed_at = asked_at
        self._connection, self.state, self.message, self._was_served = connection, "ok", "", True
        self.is_listed = True
        self.contact.answered = time.time()
        self._host.listed.add(self.name, self.server)
        if not self._wake.is_set():  # if it is set, the tools changed again, and calls wait for the next list
            self._ready_or_failed.set()

    async def store_list(self, connection: McpConnection, tools: list[object]) -> None:
        """Write a list of tools to the catalogue.

        Raises:
            SourceError: if it cannot be stored.
        """
        self._stored_list = tools
        listed = mcp.ListedTools(tools, connection.about, connection.list_fault)
        reading = mcp.build_reading(self.name, self.server, listed)
        changes, self._generation = await self._host.store_reading(self.origin, await self._add_unseen(reading))
        if changes.state == "error":
            raise SourceError(changes.message)

    async def _add_unseen(self, reading: Reading) -> Reading:
        """Add the server's tools that this session is not offered. A session that callers share is offered all."""
        return reading

    async def _receive_message(self, message: object) -> None:
        """Handle a notification of the server."""
        from mcp_types import ResourceListChangedNotification, ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._handle_tools_changed()
        elif isinstance(message, ResourceListChangedNotification):
            self.doubt_skills()
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

        if self._ready_or_failed.is_set():
            self._ready_or_failed = anyio.Event()

    @property
    def credential_cover(self) -> Cover:
        """The cover for the credentials that the server was given."""
        if self._connection is not None:
            self._cover = self._connection.credential_cover
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
    def is_in_catalogue(self) -> bool:
        """Whether there is a session and the catalogue holds its current tools."""
        return self.catalogued_connection is not None

    @property
    def catalogued_connection(self) -> McpConnection | None:
        """The open session, if the catalogue holds its current tools."""
        connection = self._connection
        if connection is None or connection.messages.is_closed or not self._ready_or_failed.is_set():
            return None
        return connection

    async def is_stored(self, tools: list[object]) -> bool:
        """Return whether the catalogue holds this list of the server now."""
        return tools == self._stored_list and await self._host.read_generation() == self._generation

    async def wait_ready(self) -> McpConnection:
        """Start the server if it does not run, wait until that has succeeded or failed, and return the session.

        A server that has started has its current tools in the catalogue.

        Raises:
            Unavailable: if the server wants the user to sign in.
            Refused: if it could not be started, with the time of the next attempt. It is an Unavailable too.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        connection = self._connection
        if connection is not None and connection.messages.is_closed:
            self.end_session(MCPError(CONNECTION_CLOSED, "Connection closed"))
        self.start()
        await self._ready_or_failed.wait()
        if self.state == "sign-in":
            raise Unavailable(f"server {self.name!r} wants you to sign in")
        if self._connection is None:
            seconds = max(0.0, self._retry_at - time.monotonic())
            when = f"in {seconds:.0f} s" if seconds else "just now"
            raise Refused(f"server {self.name!r} is down; it is tried again {when}")
        return self._connection

    def find_listed_session(self, generation: int | None) -> McpConnection | None:
        """Return the session if the catalogue, now in this generation, has a list of its tools that is new enough."""
        is_current = generation == self._generation and self._listed_at >= time.monotonic() - MAX_LIST_AGE_S
        if is_current or self.settings.trust == "off":
            return self.catalogued_connection
        return None

    async def check_definitions(self) -> McpConnection:
        """Return the session, with a list of tools that is at most `MAX_LIST_AGE_S` old in the catalogue.

        A server can change a tool without a notification, so a call renews an older list. Calls that wait for the same
        list share it. With the setting `trust = "off"` notifications are enough.

        Raises:
            Unavailable: as `wait_ready`, or because the server gave no list.
            SourceError: if its list cannot be stored.
        """
        oldest = time.monotonic() - MAX_LIST_AGE_S
        was_lost = False
        while True:
            connection = await self.wait_ready()
            if self.settings.trust == "off" or await self._has_list(oldest):
                return connection
            try:
                await self._renew_list(connection, oldest)
            except SessionLost:
                if was_lost:
                    raise
                was_lost = True

    async def _has_list(self, oldest: float) -> bool:
        """Return whether the catalogue has a list of this session that was asked for at `oldest` or later."""
        return self._listed_at >= oldest and await self._host.read_generation() == self._generation

    async def _renew_list(self, connection: McpConnection, oldest: float) -> None:
        """Read the list of tools of a session and store it if it changed, unless a list since `oldest` is stored."""
        async with self._list_lock:
            has_ended = connection is not self.catalogued_connection
            if has_ended or await self._has_list(oldest):  # another call may have renewed it meanwhile
                return
            asked_at = time.monotonic()
            tools = await self._read_list(connection)
            if not await self.is_stored(tools):
                await self.store_list(connection, tools)
            self._listed_at = asked_at

    async def _read_list(self, connection: McpConnection) -> list[object]:
        """List the tools before a call.

        Raises:
            Unavailable: if the list does not come, so that nothing is called.
        """
        try:
            return await connection.list_tools(self.settings.max_tools, timed=False)
        except Exception as error:  # without a list the definition cannot be checked, whatever the error
            if getattr(error, "message", "") == SESSION_LOST:
                self.end_session(error)
                raise SessionLost(f"server {self.name!r} does not know the session any more") from None
            if connection.messages.is_closed:
                self.end_session(error)
                raise Unavailable(f"server {self.name!r} ended before the call and is being restarted") from None
            message = f"server {self.name!r} did not list its tools before the call, so nothing was called"
            raise Unavailable(message) from None

    async def begin_with_handshake(self) -> bool:
        """Begin a new session in the older way, in which a server can ask the user in the middle of a call.

        Returns False if the server's entry does not allow that.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        if not await self._host.run_in_thread(remember_handshake, self.server, self.settings):
            return False
        self.end_session(MCPError(CONNECTION_CLOSED, SESSION_LOST))
        return True

    def doubt_list(self) -> None:
        """Read the list of tools again after an error in a call: the tool may have changed. The next call waits."""
        if self.settings.trust != "off":
            self._listed_at = float("-inf")
            self._wake.set()

    def doubt_skills(self) -> None:
        """Read the skills of the server again: its resources changed, or a file is not as it was listed."""
        if self._connection is not None and self._connection.lists_skills:
            self._connection.skills = None
            self._handle_tools_changed()

    async def find_skill(self, uri: str) -> bool:
        """Read a skill that the server does not list, and store it with its tools. Returns whether there is one.

        Raises:
            MCPError: if the server does not answer.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import INTERNAL_ERROR

        try:
            with self.hold():
                connection = await self.wait_ready()
                is_found = await connection.find_skill(uri)
                if is_found:
                    self._listed_at = float("-inf")  # the stored list lacks the tools of the skill
                    await self._renew_list(connection, time.monotonic())
                return is_found
        except (SourceError, Unavailable) as error:
            raise MCPError(INTERNAL_ERROR, clean_words(str(error), self.credential_cover)) from None

    async def send(
        self,
        connection: McpConnection,
        exchange: Exchange,
        request: ClientRequest,
        result_type: type[T],
    ) -> T | InputRequiredResult:
        """Send a request of a caller in an open session. Progress, questions and log messages go to `exchange`.

        A result passes unchanged, but without the server's name for a caller of an older protocol. An error loses
        invisible characters and the credentials that the server was given.

        Raises:
            Unavailable: the server ended, or broke the protocol.
            SessionLost: the server does not know the session any more, and has not worked on the request.
            MCPError: the server answered with an error.
        """
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        tasks: list[RunningTask] = []  # the task of this call, if its server runs it as one
        accepted: Any = result_type  # `allow_questions` is cached, and the type checker takes no `type[T]` as a key
        send = functools.partial(self._send_round, connection, exchange, request, allow_questions(accepted), tasks)
        has_outcome = False
        try:
            result = await self._host.relay.drive(self.key, connection, exchange, send)
            has_outcome = True
            return result if exchange.resends_with_answers else exchange.trim(result)
        except ValidationError:
            kind = request.method.partition("/")[0].removesuffix("s")  # tool, resource, prompt, completion
            message = f"server {self.name!r} answered with something that is not the result of a {kind}"
            raise Unavailable(message) from None
        except MCPError as error:
            raise self._translate_error(connection, error) from None
        finally:
            if not has_outcome:  # the caller or the time limit gave the call up, or nobody can answer its question
                for task in tasks:
                    await task.cancel()

    def _translate_error(self, connection: McpConnection, error: MCPError) -> MCPError | Unavailable:
        """Return the error of a request for its caller, with clean words. Ends the session if the error says so."""
        from mcp.shared.exceptions import MCPError

        refusal = find_refusal(error.message)
        if refusal:
            return Unavailable(f"server {self.name!r} was called, but {refusal}")
        is_session_over = connection.messages.is_closed or error.message in SESSION_END_MESSAGES
        if not is_session_over:
            cover = connection.credential_cover
            data = clean_words(error.data, cover, MAX_URL_CHARS)
            return MCPError(error.code, clean_words(error.message, cover), data)
        self.end_session(error)
        if error.message == SESSION_LOST:
            return SessionLost(f"server {self.name!r} does not know the session any more")
        return Unavailable(f"server {self.name!r} ended during the call and is being restarted")

    async def _send_round(
        self,
        connection: McpConnection,
        exchange: Exchange,
        request: Any,
        result_type: TypeAdapter[Any],
        tasks: list[RunningTask],
        responses: InputResponses | None,
        state: str | None,
    ) -> Any:
        """Send a request, with the answers to the questions of the round before. Waits if it runs as a task."""
        import anyio

        from toolscout_gateway.sessions.tasks import TASK_PREFIX, OlderTask, RunningTask, StartedTask

        turn = anyio.Lock()  # a fair lock, so that messages on progress arrive in order and the result after them

        async def pass_progress(progress: float, total: float | None, message: str | None) -> None:
            async with turn:
                await exchange.report_progress(progress, total, clean_words(message, connection.credential_cover))

        def follow_task() -> RunningTask:
            if not tasks:
                tasks.append(RunningTask(connection.client.session))
            return tasks[0]

        if state is not None and state.startswith(TASK_PREFIX):
            return await follow_task().answer(state, responses or {}, pass_progress)
        changes: dict[str, Any] = {}
        if responses is not None or state is not None:
            changes = {"input_responses": responses, "request_state": state}
        if changes:
            request = request.model_copy(update={"params": request.params.model_copy(update=changes)})
        result = await self._send_declared(connection, exchange, request, result_type, pass_progress)
        if isinstance(result, (StartedTask, OlderTask)):
            result = await follow_task().wait(result, pass_progress)
        async with turn:
            return result

    async def _send_declared(
        self,
        connection: McpConnection,
        exchange: Exchange,
        request: Any,
        result_type: TypeAdapter[Any],
        pass_progress: ProgressFnT,
    ) -> Any:
        """Send a request that says what its caller's client can do, if the session has no handshake that says it.

        The caller's client need not know tasks, because the gateway waits for them. Tasks are declared only for tools
        that their server refuses otherwise: without a task, a server reports its progress in numbers.
        """
        from mcp.shared.exceptions import MCPError

        from toolscout_gateway.sessions.tasks import TASKS_EXTENSION, wants_task

        session, tool = connection.client.session, getattr(request.params, "name", "")
        while True:
            sent = request
            if connection.is_modern:
                declared = exchange.declared
                if tool in self._task_tools:
                    declared["extensions"] = {**declared.get("extensions", {}), TASKS_EXTENSION: {}}
                meta = {**(request.params.meta or {}), CALLER_META: declared}
                sent = request.model_copy(update={"params": request.params.model_copy(update={"meta": meta})})
            try:
                return await session.send_request(sent, result_type, progress_callback=pass_progress)
            except MCPError as error:
                if tool in self._task_tools or not wants_task(error):
                    raise
                self._task_tools.add(tool)


class CallerSession(Upstream):
    """A session with a server that belongs to one caller, who signed in. Nobody else uses it."""

    def __init__(self, shared: Upstream, identity: Identity, host: SessionHost) -> None:
        """Prepare a session. `shared`: the server as it was configured."""
        super().__init__(shared.name, shared.origin, shared.server, host, is_listed=True)
        self.identity = identity
        self.key = f"{shared.name}\n{identity.person}"

    def _connect(self) -> AbstractAsyncContextManager[McpConnection]:
        return self._connect_as(self.identity)

    async def _add_unseen(self, reading: Reading) -> Reading:
        return await self._host.run_in_thread(self._add_stored, reading)

    def _add_stored(self, reading: Reading) -> Reading:
        """Add the source's other tools in the catalogue, because a stored reading replaces all tools of its source."""
        store = self._host.scout.store
        ids = {tool.id for tool in reading.tools}
        absent = [id for id, _ in store.page(self.name, limit=None) if id not in ids]
        return msgspec.structs.replace(reading, tools=[*reading.tools, *store.tools(absent)])
