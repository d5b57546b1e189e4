"""Replicas on one home: what a client gets from one, it may bring to another; and a version beside its successor."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from conftest import fill

from gateway.tests.conftest import SERVERS, Agent, open_agent
from gateway.tests.test_results import BUDGET, handle_of, large, read
from postgres_server import describe
from tests_cli import run
from toolscout.errors import StoreError, Unavailable
from toolscout.home.database import open_home
from toolscout.home.journal import journal
from toolscout.scout import Scout
from toolscout.trust.policy import Caller
from toolscout_gateway.sessions import handover
from toolscout_gateway.sessions.handover import Handover
from toolscout_postgres import handles
from toolscout_postgres.address import Address
from toolscout_postgres.handles import PostgresHandles
from toolscout_postgres.schema import Migration

pytestmark = pytest.mark.net


@contextlib.asynccontextmanager
async def open_two(
    home: Address, folder: Path, entries: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> AsyncIterator[tuple[Agent, Agent]]:
    """Two gateways on two machines, with one home."""
    async with contextlib.AsyncExitStack() as stack:
        agents = []
        for number in range(2):
            monkeypatch.setenv("XDG_DATA_HOME", str(folder / f"machine {number}"))
            opened = open_agent(folder, entries, home=describe(home), **options)
            agents.append(await stack.enter_async_context(opened))
        assert agents[0].gateway.results.folder != agents[1].gateway.results.folder
        yield agents[0], agents[1]


@pytest.mark.slow
def test_a_result_is_read_from_a_replica_that_did_not_make_the_call(
    postgres: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with open_two(postgres, tmp_path, {"a": large()}, monkeypatch, result_budget=BUDGET) as (one, other):
            answer = await one.call("a/lines", size=200_000)
            handle = handle_of(answer)
            here, there = [await read(agent, handle, offset=150_000) for agent in (one, other)]
            assert here.content == there.content and not there.is_error and there.structured_content["bytes"] >= 200_000
            assert (await read(other, "x" * 16)).is_error
            stranger = other.gateway.results
            with pytest.raises(Exception, match="You have no result under this handle"):
                stranger.load("somebody else", handle)

    anyio.run(body)


def test_a_result_that_is_too_large_for_the_home_stays_and_old_ones_go(
    postgres: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"x" * 10_000_000)
    assert PostgresHandles(postgres).put_result("a", b"about", file, 60.0)
    fetched = tmp_path / "fetched"
    assert (
        PostgresHandles(postgres).fetch_result("a", fetched) == b"about" and fetched.read_bytes() == file.read_bytes()
    )
    file.write_bytes(b"")
    assert PostgresHandles(postgres).put_result("b", b"", file, -1.0), "every earlier one is too old now"
    assert PostgresHandles(postgres).fetch_result("a", fetched) is None
    monkeypatch.setattr(handles, "MAX_SHARED_RESULT_BYTES", 1)
    file.write_bytes(b"xx")
    assert not PostgresHandles(postgres).put_result("c", b"", file, 60.0)
    open_home(postgres).close()


@pytest.mark.slow
def test_an_answer_of_a_user_reaches_the_replica_that_asked(
    postgres: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server asks twice; the answers and the final result pass through the other replica, however fast they are."""
    offer = PostgresHandles.offer

    def offer_late(self: PostgresHandles, *arguments: Any) -> None:
        time.sleep(0.3)
        offer(self, *arguments)

    monkeypatch.setattr(PostgresHandles, "offer", offer_late)
    from mcp import Client
    from mcp_types import CallToolResult, ElicitResult, InputRequiredResult

    arguments = {"id": "legacy/ask", "arguments": {"twice": True}}
    server = {"command": sys.executable, "args": [str(SERVERS / "full.py"), "legacy"]}

    async def refuse(context: Any, params: Any) -> Any:
        raise AssertionError("the test answers itself")

    async def body() -> None:
        async with (
            open_two(postgres, tmp_path, {"legacy": server}, monkeypatch) as (one, other),
            contextlib.AsyncExitStack() as stack,
        ):
            clients = [
                await stack.enter_async_context(Client(agent.gateway.server, elicitation_callback=refuse))
                for agent in (one, other)
            ]

            async def send(client: Any, state: str | None, name: str | None) -> Any:
                answer = {"question": ElicitResult(action="accept", content={"name": name})} if name else None
                return await client.session.call_tool(
                    "call_tool", arguments, input_responses=answer, request_state=state, allow_input_required=True
                )

            first = await send(clients[0], None, None)
            assert isinstance(first, InputRequiredResult)
            second = await send(clients[1], first.request_state, "Ann")
            assert isinstance(second, InputRequiredResult) and second.request_state != first.request_state
            last = await send(clients[1], second.request_state, "Bob")
            assert isinstance(last, CallToolResult) and not last.is_error
            assert [each["content"]["name"] for each in json.loads(last.content[0].text)] == ["Ann", "Bob"]
            again = await send(clients[1], second.request_state, "Eve")
            assert again.is_error and "no longer open" in again.content[0].text
            assert [event["ok"] for event in one.events("call")] == [True]

    anyio.run(body)


def test_only_the_caller_who_was_asked_may_answer_and_a_replica_that_ended_is_noticed(
    postgres: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp_types import ElicitResult

    monkeypatch.setattr(handles, "RENEWAL_S", 0.5)
    monkeypatch.setattr(handover, "HANDOVER_POLL_S", 0.01)
    questions = PostgresHandles(postgres)
    ann, yes = Caller("ann"), ElicitResult(action="accept", content={})

    async def body() -> None:
        shared = Handover(questions, run_in_thread)
        questions.offer("h", handover._digest_caller(ann))
        for stranger in (Caller("bob"), Caller("ann", subject="other")):
            with pytest.raises(Unavailable, match="no longer open"):
                await shared.pass_on("h", stranger, yes)
        with pytest.raises(Unavailable, match="has stopped: call the tool again"):
            await shared.pass_on("h", ann, yes)  # nobody renews it
        assert questions.renew("h") is not None

    async def run_in_thread(function: Any, *arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(function, *arguments)

    anyio.run(body)
    open_home(postgres).close()


def test_a_caller_who_gives_up_at_another_replica_stops_the_work_of_the_one_that_asked(
    postgres: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp_types import ElicitResult

    for name in ("HANDOVER_POLL_S", "RENEWAL_PAUSE_S"):
        monkeypatch.setattr(handover, name, 0.01)
    questions, ann = PostgresHandles(postgres), Caller("ann")
    events: list[str] = []

    async def body() -> None:
        works = anyio.Event()

        async def go_on(answer: ElicitResult) -> Any:
            events.append("works")
            works.set()
            try:
                await anyio.sleep(3600)
            finally:
                events.append("stopped")

        asking, answering = (Handover(questions, run_in_thread) for _ in range(2))
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                await group.start(asking.wait, "h", ann, lambda: True, go_on)
                async with anyio.create_task_group() as request:
                    request.start_soon(answering.pass_on, "h", ann, ElicitResult(action="accept", content={}))
                    await works.wait()
                    questions.give_up("h", handover._digest_caller(Caller("bob")))
                    assert questions.renew("h") is not None, "nobody else can give it up"
                    request.cancel_scope.cancel()

    async def run_in_thread(function: Any, *arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(function, *arguments)

    anyio.run(body)
    assert events == ["works", "stopped"]
    open_home(postgres).close()


# --- a version beside its successor

EXPAND = Migration("", "CREATE TABLE next_thing (name TEXT)", expands=True)
EXPAND_AGAIN = Migration("", "ALTER TABLE next_thing ADD COLUMN at TEXT", expands=True)
CONTRACT = Migration("", "ALTER TABLE events RENAME COLUMN body TO content")


def test_status_says_that_gateways_of_other_machines_are_not_shown(postgres: Address) -> None:
    shown = run("--home", describe(postgres), "status")
    assert shown.exit_code == 0 and "of other machines" in shown.output and "on this home" not in shown.output


def open_newer(monkeypatch: pytest.MonkeyPatch, home: Address, *steps: Migration) -> None:
    """Let a version with further migrations open the journal."""
    with monkeypatch.context() as patch:
        patch.setattr(journal, "JOURNAL_MIGRATIONS", (*journal.JOURNAL_MIGRATIONS, *steps))
        journal.Journal(home).close()


def test_a_version_goes_on_in_a_home_that_its_successor_only_expanded(
    postgres: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Scout(describe(postgres), recipe="bm25") as running:
        fill(running)
        open_newer(monkeypatch, postgres, EXPAND, EXPAND_AGAIN)
        assert running.search("rain tomorrow").ids
        with Scout(describe(postgres), recipe="bm25") as started_later:
            assert started_later.search("rain tomorrow").ids
            assert len(list(started_later.journal.read())) == 2
        open_newer(monkeypatch, postgres, EXPAND, EXPAND_AGAIN)  # and the successor finds its own version again


def test_a_version_is_refused_in_one_sentence_where_its_successor_took_something_away(
    postgres: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.Journal(postgres).close()
    open_newer(monkeypatch, postgres, EXPAND, CONTRACT, EXPAND_AGAIN)
    with pytest.raises(StoreError) as refusal:
        journal.Journal(postgres)
    count = len(journal.JOURNAL_MIGRATIONS)
    assert str(refusal.value) == (
        f"{postgres.label}: expected a journal of version {count} or older, found version {count + 3}: it was written "
        "by a newer toolscout; upgrade this one"
    )


def test_the_handles_of_results_came_without_refusing_the_version_before(postgres: Address) -> None:
    from toolscout_postgres.database import PostgresDatabase

    open_home(postgres).write_document("x", b"1")
    with contextlib.closing(PostgresDatabase(postgres, "files", handles_before())) as before:
        assert before.check() == []
    open_home(postgres).close()


def handles_before() -> list[Any]:
    from toolscout_postgres.schema import FILE_MIGRATIONS

    assert re.search("CREATE TABLE results", FILE_MIGRATIONS[-1].postgres)  # type: ignore[union-attr]
    return list(FILE_MIGRATIONS[:-1])
