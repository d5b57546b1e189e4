"""Waits for the tasks of MCP servers: a server answers a call with a task, and has the result later.

Since 2026-07-28, tasks are an extension of the protocol (SEP-2663). In 2025-11-25 the list of tools says which ones run
only as tasks, a call asks for the task itself, and `tasks/result` gives the result and brings the task's questions.
Imported when a session is opened, because it needs the SDK.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import anyio
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    InputRequiredResult,
    Request,
    RequestParams,
    Result,
)
from pydantic import TypeAdapter

from toolscout.sources.reading import as_object

if TYPE_CHECKING:
    from mcp.client.session import ClientSession

__all__ = [
    "TASKS_EXTENSION",
    "OlderTask",
    "RunningTask",
    "StartedTask",
    "TasksExtension",
    "wants_task",
]

TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"
TASK_PREFIX: Final = "toolscout/task:"  # of the state that a question of a task has, before the id of the task
FIRST_POLL_S: Final = 0.05  # doubled after each poll, up to what the server asks for
DEFAULT_POLL_S: Final = 1.0  # at most between two polls, if the server asks for nothing
MAX_POLL_S: Final = 10.0
CANCEL_TASK_S: Final = 2.0  # to tell a server that nobody waits for its task any more
Report = Callable[[float, "float | None", "str | None"], Awaitable[None]]


class StartedTask(Result):
    """The answer to a call that runs as a task."""

    result_type: Literal["task"]
    task_id: str
    poll_interval_ms: float | None = None


class OlderTask(Result):
    """The answer of a server of 2025-11-25 to a call that runs as a task."""

    task: dict[str, Any]


class TaskState(Result):
    """The answer to `tasks/get`. Its `result` is that of the call."""

    status: str  # working, input_required, completed, failed or cancelled
    status_message: str | None = None
    poll_interval_ms: float | None = None
    poll_interval: float | None = None  # the same, in 2025-11-25
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    input_requests: dict[str, Any] | None = None


class TaskParams(RequestParams):
    """Names a task. `input_responses`: answers to its questions, for `tasks/update`."""

    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(Request[TaskParams, Literal["tasks/get", "tasks/result", "tasks/update", "tasks/cancel"]]):
    """A request about a task."""

    name_param: ClassVar[str | None] = "taskId"  # in the HTTP header `Mcp-Name`


class TasksExtension(ClientExtension):
    """Declares in sessions that the client can wait for tasks, and waits for those of `Client.call_tool`."""

    identifier = TASKS_EXTENSION

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Return how the client goes on after a result of the type `task`."""
        return [ResultClaim(result_type="task", model=StartedTask, resolve=_wait_without_user)]


async def _wait_without_user(started: StartedTask, context: ClaimContext) -> CallToolResult:
    """Wait for the result of a task whose questions nobody can answer."""
    task = RunningTask(context.session)
    try:
        result = await task.wait(started)
        if isinstance(result, InputRequiredResult):
            raise MCPError(INTERNAL_ERROR, "the task asks a question, which nobody can answer here")
        return result
    finally:
        await task.cancel()


class RunningTask:
    """The task of one call, if its server runs the call as one.

    Attributes:
        id: of the task, from its start until the server says that it has ended. Empty: there is no task.
    """

    def __init__(self, session: ClientSession) -> None:
        self.id = ""
        self._session = session
        self._is_older = False  # whether it is a task of 2025-11-25
        self._answered: set[str] = set()  # keys of questions, which the server may show until it has read the answers

    async def wait(
        self, started: StartedTask | OlderTask, report: Report | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Wait for the result of a task, or for its next question. `report` gets what the server says of its progress.

        Raises:
            MCPError: if the task failed or was cancelled, or the server does not know it.
        """
        if isinstance(started, OlderTask):
            self.id, self._is_older = str(started.task.get("taskId")), True
            return await self._poll(report, None)
        self.id = started.task_id
        return await self._poll(report, started.poll_interval_ms)

    async def answer(
        self, state: str, responses: Mapping[str, Any], report: Report | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Answer the question of a task that `state` names, and wait as `wait` does."""
        self.id = state.removeprefix(TASK_PREFIX)
        self._answered |= responses.keys()
        answers = {key: answer.model_dump(mode="json", by_alias=True, exclude_none=True)
                   for key, answer in responses.items()}  # fmt: skip
        await self._send("tasks/update", Result, input_responses=answers)
        return await self._poll(report, None)

    async def cancel(self) -> None:
        """Tell the server that nobody waits for its task any more, if it has not ended."""
        if self.id:
            with anyio.move_on_after(CANCEL_TASK_S, shield=True), suppress(MCPError):
                await self._send("tasks/cancel", Result)
            self.id = ""

    async def _poll(self, report: Report | None, interval_ms: float | None) -> CallToolResult | InputRequiredResult:
        """Ask for the state of the task until it has a result or a question. Short tasks are asked for more often."""
        pause, n_reports, said = FIRST_POLL_S, 0, None
        while True:
            await anyio.sleep(pause)
            state = await self._send("tasks/get", TaskState)
            if report is not None and state.status_message not in (None, said):
                n_reports, said = n_reports + 1, state.status_message
                await report(n_reports, None, said)
            if self._is_older and state.status in ("completed", "failed", "input_required"):
                return await self._fetch_result()
            outcome = self._read(state)
            if outcome is not None:
                return outcome
            for asked_ms in (state.poll_interval, state.poll_interval_ms):
                interval_ms = interval_ms if asked_ms is None else asked_ms
            asked_s = DEFAULT_POLL_S if interval_ms is None else interval_ms / 1000
            pause = min(2 * pause, MAX_POLL_S, max(FIRST_POLL_S, asked_s))

    async def _fetch_result(self) -> CallToolResult:
        """Return the result of a task of 2025-11-25. Its server asks the task's questions before it answers."""
        result = await self._send("tasks/result", TypeAdapter(dict[str, Any]))
        self.id = ""
        return CallToolResult.model_validate({"content": [], **result})

    def _read(self, state: TaskState) -> CallToolResult | InputRequiredResult | None:
        """Return the result or the question in the state of the task. None: it goes on.

        Raises:
            MCPError: if it failed or was cancelled.
        """
        if state.status == "input_required" and state.input_requests and state.input_requests.keys() - self._answered:
            question = {"resultType": "input_required", "inputRequests": state.input_requests}
            return InputRequiredResult.model_validate({**question, "requestState": TASK_PREFIX + self.id})
        if state.status not in ("completed", "failed", "cancelled"):
            return None
        self.id = ""
        if state.status == "completed":
            return CallToolResult.model_validate({"content": [], **(state.result or {})})
        error, words = as_object(state.error), state.status_message or f"the task of this call was {state.status}"
        code, message = error.get("code"), error.get("message")
        raise MCPError(
            code if isinstance(code, int) else INTERNAL_ERROR, message if isinstance(message, str) else words,
            error.get("data"),
        )  # fmt: skip

    async def _send(self, method: Any, result_type: Any, **fields: Any) -> Any:
        """Send a request about the task."""
        request = TaskRequest(method=method, params=TaskParams(task_id=self.id, **fields))
        return await self._session.send_request(request, result_type)


def wants_task(error: MCPError) -> bool:
    """Return whether a server refused a call because it runs it only as a task."""
    required = as_object(as_object(error.data).get("requiredCapabilities")).get("extensions")
    return error.code == MISSING_REQUIRED_CLIENT_CAPABILITY and TASKS_EXTENSION in as_object(required)
