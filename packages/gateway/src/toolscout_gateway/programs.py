"""Answers `run_code`: runs a program of an agent and makes the calls in it, each like a call of `call_tool`.

Policy, approval, journal, rate and identity apply to every call. A call gives its entire result to the program; only
what the program prints goes to the agent, within the budget for results.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from toolscout.errors import ToolscoutError, Unavailable
from toolscout.trust.screening import sanitise
from toolscout_gateway import text as show
from toolscout_gateway.results import HANDLE
from toolscout_gateway.sandbox.runner import AnswerRoom, Outcome, ProgramLimits, Worker, find_isolation
from toolscout_gateway.sessions.exchange import Exchange
from toolscout_gateway.text import format_stub

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, ErrorData, InputRequiredResult

    from toolscout_gateway.access.permissions import Permissions
    from toolscout_gateway.calls.router import Router
    from toolscout_gateway.options import Options
    from toolscout_gateway.sessions.relay import Relay

__all__ = ["ProgramExchange", "Programs", "Turns"]

MAX_PROGRAMS: Final = 4  # at the same time
MAX_PROGRAMS_OF_CALLER: Final = 2  # at the same time
MAX_WAITING_OF_CALLER: Final = 8
MAX_CALLS_AT_ONCE: Final = 8  # of one program
MAX_UNREAD_BYTES_OF_ALL: Final = 128 * 2**20  # of answers to all programs
MAX_ERROR_CHARS: Final = 1_000
MAX_PROGRAM_NOTES: Final = 5
NO_OUTPUT: Final = "The program printed nothing: print() what you need."


class ProgramExchange(Exchange):
    """One call of a program. Its questions and log messages go to the caller of `run_code`."""

    def __init__(self, outer: Exchange, *, may_write: bool) -> None:
        """Begin a call in the call `outer` of run_code. `may_write`: whether it may call any tool."""
        self._outer = outer
        super().__init__(outer.caller, outer._first_context)
        self.may_write = may_write
        self.resends_with_answers = False  # a program cannot be resumed in the middle, so its calls wait for answers
        self.wants_everything = True  # the program gets whole results; only what it prints goes to the agent

    @property
    def context(self) -> Any:
        """The request of run_code that waits for the answer now. It changes when a question is answered."""
        return self._outer.context

    @context.setter
    def context(self, _: Any) -> None:
        pass  # `Exchange` sets it, but a call of a program has the context of its program

    async def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Drop the progress of a call: a client would read several calls as the progress of one program."""

    async def ask(self, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Ask the user of the caller. The time limits of the call and of its program stand still meanwhile."""
        with self._pause_limit():
            return await self._outer.ask(params)


class Turns:
    """Lets callers take turns in running programs. No caller may have all turns. It belongs to one event loop."""

    def __init__(self, turns: int = MAX_PROGRAMS) -> None:
        """Let `turns` programs run at the same time."""
        self._turns = turns
        self._most_of_caller = max(1, min(MAX_PROGRAMS_OF_CALLER, turns - 1))  # leaves a turn for other callers
        # caller → the turns that they wait for, in the order in which callers get one
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._running: Counter[str] = Counter()

    @asynccontextmanager
    async def take(self, caller: str) -> AsyncIterator[None]:
        """Wait for a turn of a caller, and hold it.

        Raises:
            Unavailable: if too many programs of the caller wait.
        """
        if len(self._waiting.get(caller, ())) >= MAX_WAITING_OF_CALLER:
            raise Unavailable(
                f"{MAX_WAITING_OF_CALLER} of your programs wait for their turn, and at most {self._most_of_caller} run "
                "at the same time: send this one again when one of them has ended"
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        self._give_next()
        try:
            await turn
            yield
        finally:
            was_given = turn.done() and not turn.cancelled()
            if was_given:
                self._running[caller] -= 1
            else:
                self._drop(caller, turn)
            self._give_next()

    def _give_next(self) -> None:
        """Give the free turns, one caller after the other."""
        while self._running.total() < self._turns:
            caller = next((name for name in self._waiting if self._running[name] < self._most_of_caller), None)
            if caller is None:
                self._running += Counter()  # this drops the callers with a count of 0
                return
            queue = self._waiting.pop(caller)
            turn = queue.popleft()
            if queue:
                self._waiting[caller] = queue  # behind the others
            if not turn.cancelled():
                self._running[caller] += 1
                turn.set_result(None)

    def _drop(self, caller: str, turn: asyncio.Future[None]) -> None:
        """Forget a turn that nobody waits for any more."""
        queue = self._waiting.get(caller, deque())
        with suppress(ValueError):
            queue.remove(turn)
        if not queue:
            self._waiting.pop(caller, None)


class Programs:
    """Runs the programs that agents give to `run_code`, each in a process that was started in advance."""

    def __init__(self, options: Options, permissions: Permissions, router: Router, relay: Relay) -> None:
        """Run programs. `permissions` bound their calls, `router` makes them, `relay` lets them wait for answers.

        Raises:
            Unavailable: if this system cannot keep a program from files and network.
        """
        self._permissions, self._router, self._relay = permissions, router, relay
        self._may_write = options.run_code_writes
        self.format_signature = functools.partial(format_stub, may_write=self._may_write)
        self._isolation = find_isolation()
        self._limits = dataclasses.replace(ProgramLimits(), seconds=options.run_code_seconds)
        self._ready: asyncio.Queue[Worker | Unavailable] = asyncio.Queue(1)  # `keep_ready` has one more
        self._turns = Turns()
        self._room = AnswerRoom(MAX_UNREAD_BYTES_OF_ALL)

    async def keep_ready(self) -> None:
        """Keep processes ready until cancelled."""
        next_one: Worker | Unavailable | None = None
        try:
            while True:
                try:
                    next_one = await Worker.start(self._isolation, self._limits)
                except Unavailable as error:
                    next_one = error  # `_take_worker` raises it
                await self._ready.put(next_one)
                next_one = None
        finally:
            unused = [next_one]
            while not self._ready.empty():
                unused.append(self._ready.get_nowait())
            for worker in unused:
                if isinstance(worker, Worker):
                    await worker.stop()

    async def _take_worker(self) -> Worker:
        """Take the process that is ready.

        Raises:
            Unavailable: if none can be started.
        """
        while True:
            worker = await self._ready.get()
            if isinstance(worker, Unavailable):
                raise worker
            if worker.is_alive:
                return worker
            await worker.stop()

    async def answer(
        self, exchange: Exchange, code: str, search_id: str | None
    ) -> CallToolResult | InputRequiredResult:
        """Run a program for a caller, or go on with one whose call waited for the answer to a question.

        The calls of the program count for the search `search_id`.

        Raises:
            Unavailable: if no process can be started, too many programs of the caller wait, or the question is no
                longer open.
        """

        async def work() -> CallToolResult:
            async with self._turns.take(exchange.caller.person):
                outcome = await self._run(exchange, code, search_id)
            return await self._router.fit_result(exchange, "toolscout/run_code", _make_answer(outcome, exchange.notes))

        return await self._relay.run(exchange, work)

    async def _run(self, exchange: Exchange, code: str, search_id: str | None) -> Outcome:
        """Run a program in a process. At most `MAX_CALLS_AT_ONCE` of its calls run at the same time."""
        import anyio

        limiter = anyio.CapacityLimiter(MAX_CALLS_AT_ONCE)

        async def answer_call(id: str, arguments: dict[str, Any]) -> tuple[Any, str]:
            async with limiter:
                return await self._call(exchange, id, arguments, search_id)

        worker = await self._take_worker()
        exchange.limit = anyio.CancelScope()  # it stands still while a question to the user is open
        return await worker.run(code, answer_call, exchange.limit, room=self._room)

    async def _call(
        self, exchange: Exchange, id: str, arguments: dict[str, Any], search_id: str | None
    ) -> tuple[Any, str]:
        """Make one call of a program. Returns its value and its error."""
        import anyio
        from mcp.shared.exceptions import MCPError

        inner = ProgramExchange(exchange, may_write=self._may_write)
        if refusal := self._permissions.check_size(arguments):
            return None, refusal
        while seconds := self._permissions.buckets.take(inner.caller.name):
            await anyio.sleep(seconds)
        try:
            result = await self._router.answer_call(inner, id, arguments, search_id)
        except ToolscoutError as error:
            return None, str(error)
        except MCPError as error:
            return None, show.clip(show.make_plain(error.message), MAX_ERROR_CHARS)
        if inner.notes:  # the last block of the result has them; they are for the agent, not for the program
            result = result.model_copy(update={"content": result.content[:-1]})
            exchange.notes += [note for note in inner.notes if note not in exchange.notes]
        return _read_value(result)


def _make_answer(outcome: Outcome, notes: list[str]) -> CallToolResult:
    """Make the answer to the agent: what the program printed, and its error."""
    from mcp_types import CallToolResult, TextContent

    printed = outcome.output.rstrip("\n")
    if not printed.strip():
        printed = "" if outcome.error else NO_OUTPUT
    texts = [sanitise(text) for text in (printed, outcome.error) if text]  # a program prints what servers sent
    texts += [f"Note of the gateway: {'; '.join(notes[:MAX_PROGRAM_NOTES])}."] if notes else []
    return CallToolResult(content=[TextContent(text=text) for text in texts], is_error=bool(outcome.error))


def _read_value(result: CallToolResult) -> tuple[Any, str]:
    """Return what a program gets for a result: its value (structured content, a text, or a list of blocks), its error.

    The program's own process decodes a text that is JSON (`sandbox.child`), because all callers would wait if megabytes
    were decoded here.
    """
    if result.is_error:
        words = " ".join(block.text for block in result.content if block.type == "text")
        return None, show.clip(show.make_plain(words), MAX_ERROR_CHARS) or "the tool failed without saying why"
    if HANDLE in (result.meta or {}):
        return None, "the result is too large for a program: ask for less, or use call_tool and read_result"
    if result.structured_content is not None:
        return result.structured_content, ""
    blocks = [
        block.text if block.type == "text" else block.model_dump(mode="json", by_alias=True) for block in result.content
    ]
    return (blocks[0] if len(blocks) == 1 else blocks), ""
