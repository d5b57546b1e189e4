"""The answer of a user to a request that another replica works on, while the home's database or the server fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
import pytest
from mcp_types import CallToolResult, ElicitResult, TextContent

from toolscout.errors import StoreError
from toolscout.trust.policy import Caller
from toolscout_gateway.sessions import handover
from toolscout_gateway.sessions.handover import Handover

ANSWER = ElicitResult(action="accept", content={})
DONE = CallToolResult(content=[TextContent(type="text", text="done")])


class Questions:
    """A question that another replica has answered, in a database that fails some of the times."""

    def __init__(self, **failures: int) -> None:
        self.failures, self.outcomes, self.renewals = failures, list[bytes](), 0

    def fail(self, what: str) -> None:
        self.failures[what] = self.failures.get(what, 0) - 1
        if self.failures[what] >= 0:
            raise StoreError("The database does not answer.")

    def offer(self, handle: str, caller: str) -> None:
        self.fail("offer")

    def renew(self, handle: str) -> bytes:
        self.renewals += 1
        if self.renewals > 1:
            self.fail("renew")
        return ANSWER.model_dump_json().encode()

    def finish(self, handle: str, outcome: bytes) -> None:
        self.fail("finish")
        self.outcomes.append(outcome)


def wait(questions: Questions, go_on: Callable[[Any], Awaitable[Any]]) -> bool:
    """Wait for the answer in a group with another task. Returns whether that task could end."""
    ended = []

    async def run_in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
        await anyio.sleep(0)
        return function(*arguments)

    async def work_on() -> None:
        await anyio.sleep(0.2)
        ended.append(True)

    async def body() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(work_on)
            shared = Handover(questions, run_in_thread)  # type: ignore[arg-type]
            await group.start(shared.wait, "handle", Caller("ann"), lambda: True, go_on)

    anyio.run(body)
    return bool(ended)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HANDOVER_POLL_S", "RENEWAL_PAUSE_S"):
        monkeypatch.setattr(handover, name, 0.001)
    monkeypatch.setattr(handover, "FINISH_PAUSES_S", (0.001, 0.001))


@pytest.mark.parametrize("failures", [{"renew": 3}, {"finish": 2}, {"finish": 99}, {"offer": 1}])
def test_a_database_that_fails_ends_no_other_request(failures: dict[str, int]) -> None:
    async def go_on(answer: ElicitResult) -> CallToolResult:
        await anyio.sleep(0.05)
        return DONE

    questions = Questions(**failures)
    assert wait(questions, go_on)
    is_lost = failures in ({"finish": 99}, {"offer": 1})
    assert [handover._read_outcome(msgspec.json.decode(one, type=handover._Outcome)) for one in questions.outcomes] == (
        [] if is_lost else [DONE]
    )


def test_an_unexpected_error_reaches_the_caller_and_ends_no_other_request(caplog: pytest.LogCaptureFixture) -> None:
    from mcp.shared.exceptions import MCPError

    async def go_on(answer: ElicitResult) -> CallToolResult:
        raise RuntimeError("secret-of-the-server")

    questions = Questions()
    assert wait(questions, go_on)
    [outcome] = questions.outcomes
    with pytest.raises(MCPError, match="call the tool again") as error:
        handover._read_outcome(msgspec.json.decode(outcome, type=handover._Outcome))
    assert "secret" not in str(error.value) and "secret" in caplog.text
