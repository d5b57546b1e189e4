"""`run_code`: every call of a program is a call like any other, and the model reads only what the program prints."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from gateway.tests.conftest import Agent, Start, busy, open_agent
from gateway.tests.test_gateway import limited, run
from gateway.tests.test_relay import User, both_ages, both_callers, full
from gateway.tests.test_results import handle_of, large, text_of
from servers.large import make_lines
from tests_cli import run as run_cli
from toolscout.errors import Unavailable
from toolscout.types import Hints, Tool
from toolscout_gateway import programs
from toolscout_gateway.text import META_TOOLS, count_tokens, format_stub

pytestmark = pytest.mark.net
Body = Callable[[Agent], Awaitable[None]]


Gate = Callable[[Body], None]


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """Runs bodies with one agent, at a gateway where programs may read; fails as expected where none can be held."""
    try:
        programs.find_isolation()
    except Unavailable as error:
        pytest.xfail(str(error))
    opened = open_agent(tmp_path_factory.mktemp("gate"), {"a": busy()}, run_code=True)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened) as agent:
        yield lambda body: portal.call(body, agent)


async def run_code(agent: Agent, code: str, **arguments: Any) -> tuple[str, bool]:
    """Run a program. Returns the text of the answer, and whether it is an error."""
    answer = await agent.use("run_code", code=code, **arguments)
    assert answer.structured_content is None
    return "\n".join(block.text for block in answer.content), answer.is_error


def test_it_is_off_unless_somebody_switches_it_on(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert [tool.name for tool in (await agent.client.list_tools()).tools] == [*META_TOOLS]
        assert "run_code" not in agent.client.instructions
        answer = await agent.use("run_code", code="print(1)")
        assert answer.is_error and "expected the id of a tool" in answer.content[0].text
        [found] = (await agent.search("gives back the text", limit=1))["results"]
        assert found["tools"][0]["signature"] == "a/echo(text?: string)"

    run(start, body, {"a": busy()})


def test_a_program_makes_several_calls_and_the_model_reads_only_its_output(start: Start) -> None:
    async def body(agent: Agent) -> None:
        [tool] = [tool for tool in (await agent.client.list_tools()).tools if tool.name == "run_code"]
        assert tool.input_schema["required"] == ["code"] and "call_all(" in agent.client.instructions
        [found] = (await agent.search("give back the text it is given", limit=1))["results"]
        code = "\n".join(
            (
                "one = call('a/echo', text='secret one')",
                "others = call_all([('a/echo', {'text': str(n)}) for n in range(20)])",
                "print(len(one), others[:3])",
                "sum(int(text) for text in others)",
            )
        )
        assert await run_code(agent, code, search_id=found["search_id"]) == ("10 ['0', '1', '2']\n190", False)
        events = agent.events("call")
        assert len(events) == 21
        assert {(event["tool"], event["ok"], event["caller"]) for event in events} == {("a/echo", True, "local")}
        assert events[0]["search_id"] == found["search_id"] and events[0]["rank"] == 1

    run(start, body, {"a": busy()}, run_code=True)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "x = 1\ncall('a/echo', text=['a', 'b'])",
            "line 2: wrong arguments for a/echo: parameter 'text': expected string",
        ),
        (
            "call('a/ecko', text='x')",
            "line 1: expected the id of a tool that you may see, found 'a/ecko': did you mean",
        ),
        ("\n\ncall('a/fail')", "line 3: a/fail was not called: a program calls read-only tools only: use call_tool"),
        ("def f():\n    return {}['key']\nf()", "line 2: KeyError: 'key'"),
        ("for", "line 1: SyntaxError: invalid syntax"),
        ("print('before')\n1 / 0", "before\nline 2: ZeroDivisionError: division by zero"),
        ("import asyncio", "line 1: ModuleNotFoundError: No module named 'asyncio': call_all() calls at the same time"),
        ("open('x')", "line 1: PermissionError: [Errno 1] Operation not permitted: 'x': a program has no files"),
        ("call('a/echo', text=1e400)", "line 1: ValueError: Out of range float values are not JSON compliant"),
        ("call('a/echo', text={1})", "line 1: TypeError: Object of type set is not JSON serializable"),
        ("call_all([('a/echo', {'text': 'x'}), ('a/pid', {})])", "line 1: a/pid was not called"),
    ],
)
def test_an_error_names_the_line_of_the_program(gate: Gate, code: str, text: str) -> None:
    async def body(agent: Agent) -> None:
        answer, is_error = await run_code(agent, code)
        assert is_error and answer.startswith(text) and len(answer) < 700, answer

    gate(body)


def test_a_program_may_handle_an_error_and_a_slip_is_taken_and_said(gate: Gate) -> None:
    async def body(agent: Agent) -> None:
        code = (
            "try:\n  call('a/pid')\nexcept ToolError as error:\n  print('refused:', error)\nprint(call('echo', text=5))"
        )
        text, is_error = await run_code(agent, code)
        lines = text.splitlines()
        assert not is_error and lines[0].startswith("refused: a/pid was not called") and lines[1] == "5"
        assert lines[2].startswith("Note of the gateway: 'echo' was read as 'a/echo'")
        code = "[type(v).__name__ for v in call_all([('a/echo', {'text': ''}), ('a/pid', {})], return_errors=True)]"
        assert await run_code(agent, code) == ('["str", "ToolError"]', False)
        assert (await run_code(agent, "x = 1"))[0] == "The program printed nothing: print() what you need."
        assert await run_code(agent, "import sys\nprint(1)\nsys.exit()") == ("1", False)

    gate(body)


def test_what_a_caller_may_not_call_no_program_calls(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert await run_code(agent, "call('a/echo', text='x')") == ("x", False)
        program, is_error = await run_code(agent, "call('a/pid')")
        plain = await agent.call("a/pid")
        assert is_error and program == f"line 1: {plain.content[0].text}"
        assert [(event["tool"], event["ok"]) for event in agent.events("call")][:2] == [
            ("a/echo", True),
            ("a/pid", False),
        ]

    run(start, body, {"a": busy()}, run_code=True, run_code_writes=True, policies=limited("a/echo"))


def test_a_changed_definition_waits_for_approval_in_a_program_too(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert (await run_code(agent, "call('a/changing')"))[1] is False
        await agent.call("a/change")
        text, is_error = await run_code(agent, "call('a/changing')")
        assert is_error and "waits for approval" in text

    run(start, body, {"a": busy()}, run_code=True, run_code_writes=True)


def test_a_program_reads_a_large_result_whole_and_its_own_output_keeps_to_the_budget(start: Start) -> None:
    async def body(agent: Agent) -> None:
        code = "text = call('a/lines', size=3_000_000)\nprint(len(text), text.count('Waldo'))"
        text, is_error = await run_code(agent, code)
        size, waldos = map(int, text.split())
        entire = "".join(make_lines(3_000_000))
        assert not is_error and (size, waldos) == (len(entire), entire.count("Waldo")) and count_tokens(text) < 10
        rows = "rows = call('a/rows', size=20_000)['rows']\nprint(len(rows), rows[-1]['id'])"
        assert await run_code(agent, rows) == ("20000 19999", False)
        answer = await agent.use("run_code", code="for n in range(20_000): print(n)")
        assert count_tokens(text_of(answer)) <= 2_200
        page = await agent.use("read_result", handle=handle_of(answer), grep="19999")
        assert "19999" in text_of(page)
        text, is_error = await run_code(agent, "call('a/lines', size=20_000_000)")
        assert is_error and text == (
            "line 1: the result is too large for a program: ask for less, or use call_tool and read_result"
        )

    run(start, body, {"a": large()}, run_code=True, run_code_writes=True, result_budget=2_000)


@both_ages
@both_callers
def test_a_question_in_a_program_reaches_the_user(start: Start, server: str, mode: str) -> None:
    async def body(agent: Agent) -> None:
        user = User("Ann", "Bob")
        async with user.client(agent, mode) as client:
            code = f"first = call('{server}/ask')\nsecond = call('{server}/ask')\nprint(first, second)"
            answer = await client.call_tool("run_code", {"code": code})
        assert not answer.is_error and "Ann" in answer.content[0].text and "Bob" in answer.content[0].text
        assert len(user.asked) == 2

    run(start, body, {server: full(server)}, run_code=True, run_code_writes=True, run_code_seconds=50)


def test_the_clock_of_a_program_stands_still_while_the_user_thinks(start: Start) -> None:
    async def body(agent: Agent) -> None:
        deadlines: list[float] = []

        class Thinker(User):
            async def answer(self, context: Any, params: Any) -> Any:
                deadlines.extend(
                    scope.deadline
                    for each in agent.gateway.upstreams.host.relay._under_way["legacy"]
                    if (scope := each._outer.limit) is not None
                )
                return await super().answer(context, params)

        async with Thinker("Ann").client(agent, "legacy") as client:
            answer = await client.call_tool("run_code", {"code": "call('legacy/ask')"})
        assert not answer.is_error and deadlines == [math.inf]

    run(start, body, {"legacy": full("legacy")}, run_code=True, run_code_writes=True)


def test_what_waits_too_long_is_stopped_and_the_server_hears_it(start: Start) -> None:
    async def body(agent: Agent) -> None:
        text, is_error = await run_code(agent, "print('a')\ncall('a/hang')")
        assert is_error
        assert text == "a\nthe program was stopped after 1 s; its last call was in line 2: do less at once"
        assert [(event["tool"], event["ok"]) for event in agent.events("call")] == [("a/hang", False)]

    run(start, body, {"a": busy()}, run_code=True, run_code_writes=True, run_code_seconds=1.0)


def test_a_program_that_the_caller_gives_up_ends_with_its_calls(start: Start) -> None:
    async def body(agent: Agent) -> None:
        upstream = agent.gateway.upstreams.servers["a"]
        async with anyio.create_task_group() as group:
            group.start_soon(run_code, agent, "call('a/hang')")
            with anyio.fail_after(50):
                while not upstream.in_flight:
                    await anyio.sleep(0.02)
            group.cancel_scope.cancel()
        with anyio.fail_after(50):
            while not agent.events("call"):
                await anyio.sleep(0.02)
        assert [(event["tool"], event["ok"]) for event in agent.events("call")] == [("a/hang", False)]
        assert await run_code(agent, "1 + 1") == ("2", False)

    run(start, body, {"a": busy()}, run_code=True, run_code_writes=True)


def test_calls_of_a_program_keep_to_the_rate_of_the_caller(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(agent: Agent) -> None:
        take, waits = agent.gateway.permissions.buckets.take, []

        def take_slowly(caller: str, cost: float = 1.0) -> float:
            waits.append(0.001 if len(waits) == 2 else take(caller, cost))
            return waits[-1]

        monkeypatch.setattr(agent.gateway.permissions.buckets, "take", take_slowly)
        assert await run_code(agent, "[call('a/echo', text='x') for _ in range(3)]") == ('["x", "x", "x"]', False)
        assert len(waits) == 5 and waits[2] > 0  # run_code itself, and three calls of which one waited

    run(start, body, {"a": busy()}, run_code=True)


@pytest.mark.parametrize(("turns", "most"), [(4, 2), (3, 2), (2, 1), (1, 1)])
def test_one_caller_leaves_turns_to_others_and_callers_are_served_in_turn(turns: int, most: int) -> None:
    async def body() -> None:
        shared, begun, may_end = programs.Turns(turns), list[str](), anyio.Event()

        async def hold(caller: str) -> None:
            async with shared.take(caller):
                begun.append(caller)
                await may_end.wait()

        async with anyio.create_task_group() as group:
            for caller in [*["ann"] * (most + 3), "bob", "cat"]:
                group.start_soon(hold, caller)
                await anyio.wait_all_tasks_blocked()
            assert begun == [*["ann"] * most, "bob", "cat"][:turns]
            may_end.set()
        assert len(begun) == most + 5 and begun.index("cat") <= most + 3

    anyio.run(body)


def test_a_caller_whose_programs_wait_is_refused_one_more_and_who_gives_up_leaves_the_queue() -> None:
    async def body() -> None:
        shared = programs.Turns()

        async def hold() -> None:
            async with shared.take("ann"):
                await anyio.sleep_forever()

        async with anyio.create_task_group() as group:
            for _ in range(programs.MAX_PROGRAMS_OF_CALLER + programs.MAX_WAITING_OF_CALLER):
                group.start_soon(hold)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(Unavailable, match="8 of your programs wait for their turn, and at most 2 run"):
                await shared.take("ann").__aenter__()
            async with shared.take("bob"):
                pass
            group.cancel_scope.cancel()
        async with shared.take("ann"), shared.take("ann"):
            assert shared._running.total() == 2 and not shared._waiting

    anyio.run(body)


def test_programs_of_one_caller_are_refused_when_too_many_wait(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(agent: Agent) -> None:
        upstream, answers = agent.gateway.upstreams.servers["a"], []

        async def send() -> None:
            answers.append(await agent.use("run_code", code="call('a/hang')"))

        async with anyio.create_task_group() as group:
            for _ in range(programs.MAX_PROGRAMS_OF_CALLER + 2):
                group.start_soon(send)
            with anyio.fail_after(50):
                while not answers or upstream.in_flight < programs.MAX_PROGRAMS_OF_CALLER:
                    await anyio.sleep(0.02)
            await anyio.sleep(0.2)
            assert upstream.in_flight == programs.MAX_PROGRAMS_OF_CALLER
            group.cancel_scope.cancel()
        [answer] = answers
        assert answer.is_error and "1 of your programs wait for their turn" in answer.content[0].text

    monkeypatch.setattr(programs, "MAX_WAITING_OF_CALLER", 1)
    run(start, body, {"a": busy()}, run_code=True, run_code_writes=True)


def test_a_process_that_died_while_it_waited_is_replaced(start: Start) -> None:
    async def body(agent: Agent) -> None:
        assert agent.gateway.programs is not None
        worker = await agent.gateway.programs._take_worker()
        await worker.stop()
        assert not worker.is_alive
        taken: list[Any] = [worker]
        get = agent.gateway.programs._ready.get

        async def get_dead() -> Any:
            return taken.pop() if taken else await get()

        agent.gateway.programs._ready.get = get_dead  # type: ignore[method-assign]
        assert await run_code(agent, "1 + 1") == ("2", False)

    run(start, body, {}, run_code=True, settle=False)


def test_a_system_that_can_hold_no_program_says_so_at_the_start(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse() -> str:
        raise Unavailable("run_code cannot keep programs from files and network here")

    async def body(agent: Agent) -> None:
        raise AssertionError("the gateway started")

    monkeypatch.setattr(programs, "find_isolation", refuse)
    with pytest.raises(Unavailable):
        run(start, body, {}, run_code=True)
    outcome = run_cli("gateway", "--run-code")
    assert outcome.exit_code == 1 and "run_code cannot keep programs from files and network here" in outcome.output


def test_two_programs_share_nothing(gate: Gate) -> None:
    async def body(agent: Agent) -> None:
        await run_code(agent, "import json\njson.leak = 1\nglobals()['leak'] = 1")
        assert await run_code(agent, "import json\nprint(hasattr(json, 'leak'), 'leak' in globals())") == (
            "False False",
            False,
        )

    gate(body)


# --- signatures -------------------------------------------------------------------------------------------------------

REPORT = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "object", "properties": {
        "high": {"type": "number"}, "parts": {"type": "object", "properties": {"night": {"type": "string"}}}}}}},
    "required": ["city"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("returns", "read_only", "may_write", "stub"),
    [
        (None, True, False, "a/get(city: string)"),
        (None, False, False, "a/get(city: string) [not in run_code]"),
        (None, False, True, "a/get(city: string)"),
        (REPORT, True, False, "a/get(city: string) -> {city: string, days?: [{high?: number, parts?: object}]}"),
        ({"type": "array", "items": {"type": "integer"}}, True, False, "a/get(city: string) -> [integer]"),
        ({"type": "object", "properties": {f"n{i}": {} for i in range(14)}}, True, False, "… 2 more}"),
        ({"type": "object", "properties": {"a\nb": {"type": "string"}}}, True, False, "{a b?: string}"),
    ],
)
def test_a_stub_shows_the_result_and_what_a_program_may_not_call(
    returns: dict[str, Any] | None, read_only: bool, may_write: bool, stub: str
) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = Tool(id="a/get", name="get", parameters=parameters, returns=returns, hints=Hints(read_only=read_only))
    assert format_stub(tool, may_write=may_write).endswith(stub)


def test_answers_carry_stubs_where_programs_may_run(gate: Gate) -> None:
    async def body(agent: Agent) -> None:
        [found] = (await agent.search("gives back the text", limit=3))["results"]
        signatures = {tool["id"]: tool["signature"] for tool in found["tools"]}
        assert signatures.pop("a/echo") == "a/echo(text?: string)"
        assert signatures and all(text.endswith(" [not in run_code]") for text in signatures.values())
        described = (await agent.use("describe_tools", ids=["a/pid"])).structured_content
        assert described["tools"][0]["signature"] == "a/pid() [not in run_code]"

    gate(body)
