"""Hands the answer of a user to the replica that asked, and the outcome of the request back.

A client sends its answer to whichever replica the balancer chooses. The request itself waits at one replica, with the
session of the server that asked. The answer and the outcome pass through the home.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolscout.errors import StoreError, Unavailable, UserError
from toolscout.location import Home, SharedHandles, find_shared
from toolscout.trust.policy import Caller

if TYPE_CHECKING:
    import anyio
    from anyio.abc import TaskStatus
    from mcp_types import ElicitResult

__all__ = ["CLOSED", "Handover", "make_handover", "read_state_key"]

HANDOVER_POLL_S: Final = 0.2
RENEWAL_PAUSE_S: Final = 1.0
GIVE_UP_S: Final = 2.0  # for the database, when a caller gives a request up
FINISH_PAUSES_S: Final = (0.5, 1.0, 2.0)  # before each new attempt to store; then the other replica has given up
STATE_KEY: Final = "gateway/state.key"
RunInThread = Callable[..., Awaitable[Any]]
CLOSED: Final = "this question is no longer open: call the tool again"
_log: Final = logging.getLogger("toolscout.gateway.handover")


class _Outcome(msgspec.Struct, omit_defaults=True):
    """What came of a request: a result of a kind that `mcp_types` has, or an error."""

    kind: str = ""
    result: dict[str, Any] = {}
    refusal: str = ""
    code: int = 0
    message: str = ""
    data: Any = None


class Handover:
    """Shares the questions of this replica with the others."""

    def __init__(self, questions: SharedHandles, run_in_thread: RunInThread) -> None:
        self._questions, self._run = questions, run_in_thread

    async def wait(
        self,
        handle: str,
        caller: Caller,
        is_open: Callable[[], bool],
        go_on: Callable[[Any], Awaitable[Any]],
        *,
        task_status: TaskStatus[None] | None = None,
    ) -> None:
        """Wait until another replica has the answer to a question of this one, and go on with the request.

        Args:
            handle: of the question.
            caller: who may answer.
            is_open: whether the question waits, because nobody has answered it here or given it up.
            go_on: goes on with the answer, and returns the result of the request or its next question.
            task_status: is told when the others can see the question. The user is asked only after that, because
                the answer may come to another replica.
        """
        import anyio

        try:
            try:
                await self._run(self._questions.offer, handle, _digest_caller(caller))
            finally:
                if task_status is not None:
                    task_status.started()
            answer = await self._poll_answer(handle, is_open)
        except StoreError:
            return  # while the database does not answer, the question can be answered here alone
        if answer is None:
            return
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep_renewing, handle, group.cancel_scope)
            await self._store_outcome(handle, await _note_outcome(go_on, answer))
            group.cancel_scope.cancel()

    async def _poll_answer(self, handle: str, is_open: Callable[[], bool]) -> bytes | None:
        """Return the answer that another replica stores. None: the question closed before, and is withdrawn."""
        import anyio

        while is_open():
            answer: bytes | None = await self._run(self._questions.renew, handle)
            if answer is not None:
                return answer
            await anyio.sleep(HANDOVER_POLL_S)
        await self._run(self._questions.withdraw, handle)
        return None

    async def _keep_renewing(self, handle: str, work: anyio.CancelScope) -> None:
        """Show that this replica works on an answered question. Cancels the work if the caller gave the request up."""
        import anyio

        while True:
            await anyio.sleep(RENEWAL_PAUSE_S)
            with contextlib.suppress(StoreError):  # the next renewal may be in time
                if await self._run(self._questions.renew, handle) is None:
                    work.cancel()

    async def _store_outcome(self, handle: str, outcome: _Outcome) -> None:
        """Store an outcome for the replica that took the answer. Try again if the database does not answer."""
        import anyio

        content = msgspec.json.encode(outcome)
        for pause in (0.0, *FINISH_PAUSES_S):
            await anyio.sleep(pause)
            try:
                await self._run(self._questions.finish, handle, content)
                return
            except StoreError as error:
                reason = error
        _log.warning("The outcome of a request did not reach the gateway that got its answer: %s", reason)

    async def pass_on(self, handle: str, caller: Caller, answer: ElicitResult) -> object:
        """Give the answer to the replica that asked. Returns the result of the request, or its next question.

        If the caller gives the request up meanwhile, that replica stops working on it.

        Raises:
            Unavailable: if no replica waits for this answer of this caller.
        """
        import anyio

        body = answer.model_dump_json(by_alias=True, exclude_none=True).encode()
        try:
            if not await self._run(self._questions.answer, handle, _digest_caller(caller), body):
                raise Unavailable(CLOSED)
            while True:
                content, is_alive = await self._run(self._questions.take, handle)
                if content is not None:
                    return _read_outcome(msgspec.json.decode(content, type=_Outcome))
                if not is_alive:
                    raise Unavailable("the gateway that worked on this request has stopped: call the tool again")
                await anyio.sleep(HANDOVER_POLL_S)
        except StoreError as error:
            raise Unavailable(f"{error} Then call the tool again.") from None
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(GIVE_UP_S, shield=True), contextlib.suppress(StoreError):
                await self._run(self._questions.give_up, handle, _digest_caller(caller))
            raise


def make_handover(home: Home, run_in_thread: RunInThread) -> Handover | None:
    """Return the handover of a home that replicas share. None: the home is a folder."""
    shared = find_shared(home)
    return Handover(shared.open_handles(), run_in_thread) if shared else None


def read_state_key(home: Home) -> bytes:
    """Return the key that seals what clients bring back with an answer. All replicas of a home have the same."""
    shared = find_shared(home)
    return shared.open_handles().share_secret(STATE_KEY) if shared else secrets.token_bytes(32)


def _digest_caller(caller: Caller) -> str:
    """Return a digest that is equal for one person with the same rights, on every machine."""
    content = msgspec.json.encode([caller.person, caller.rules], order="deterministic")
    return hashlib.blake2b(content, digest_size=16).hexdigest()


async def _note_outcome(go_on: Callable[[Any], Awaitable[Any]], answer: bytes) -> _Outcome:
    """Go on with a request, and return its result or its error as plain data for another replica."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import INTERNAL_ERROR, ElicitResult

    try:
        result = await go_on(ElicitResult.model_validate_json(answer))
    except MCPError as error:
        return _Outcome(code=error.code, message=error.message, data=error.data)
    except UserError as error:
        return _Outcome(refusal=str(error))
    except Exception:  # whatever it is, the other requests of this gateway go on
        _log.exception("A request could not go on after its user had answered.")
        message = "the gateway could not go on with this request: call the tool again"
        return _Outcome(code=INTERNAL_ERROR, message=message)
    dumped = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return _Outcome(kind=type(result).__name__, result=dumped)


def _read_outcome(outcome: _Outcome) -> object:
    """Return the result that another replica sent, or raise its error."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import CallToolResult, GetPromptResult, InputRequiredResult, ReadResourceResult

    if outcome.refusal:
        raise Unavailable(outcome.refusal)
    if not outcome.kind:
        raise MCPError(outcome.code, outcome.message, outcome.data)
    kinds = (CallToolResult, GetPromptResult, InputRequiredResult, ReadResourceResult)
    kind = next(kind for kind in kinds if kind.__name__ == outcome.kind)
    return kind.model_validate(outcome.result)
