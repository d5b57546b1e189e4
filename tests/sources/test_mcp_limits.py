"""What an MCP server may send: lines that are cut while they are read, messages that nobody asked for, origins."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCRequest

from toolscout.config import Settings
from toolscout.errors import SourceError
from toolscout.sources import mcp_oauth, mcp_wire
from toolscout.sources.mcp_config import Server, parse_server
from toolscout.sources.mcp_direct import DirectLists
from toolscout.sources.mcp_guard import Guard, is_private, origin_of
from toolscout.sources.mcp_limits import LineSplitter, LongLine, find_request_id
from toolscout.sources.mcp_oauth import TokenFile, approve_origin
from toolscout.sources.mcp_session import connect
from toolscout.sources.mcp_wire import MAX_OPEN_QUESTIONS, MAX_UNASKED_AT_ONCE, Wire, tap_transport

BUSY = Path(__file__).parents[1] / "servers" / "busy.py"


@given(st.lists(st.binary(max_size=40)), st.integers(1, 20))
def test_lines_are_those_of_the_stream_however_it_is_cut(chunks: list[bytes], limit: int) -> None:
    splitter = LineSplitter(limit)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    whole = b"".join(chunks).split(b"\n")[:-1]
    assert len(lines) == len(whole)
    for line, expected in zip(lines, whole, strict=True):
        assert line == expected if len(expected) <= limit else isinstance(line, LongLine)


def test_a_line_without_an_end_keeps_no_more_than_its_edges() -> None:
    splitter = LineSplitter(1000)
    for _ in range(1000):
        assert not list(splitter.feed(b"x" * 1000))
    assert splitter.discarded == 1_000_000
    assert not splitter._parts and len(splitter._head) <= 4096 and len(splitter._tail) <= 4096
    assert [type(line) for line in splitter.feed(b"\n")] == [LongLine]
    assert list(splitter.feed(b"next\n")) == [b"next"]


@pytest.mark.parametrize(
    ("line", "number"),
    [
        (LongLine(b'{"jsonrpc": "2.0", "id": 7, "result": {"id": 8', b'"}]}}'), 7),
        (LongLine(b'{"jsonrpc": "2.0", "result": {"id": 8, "x": "', b'"}]}, "id": 9}'), 9),
        (LongLine(b'{"result": {"content": [{"id": 5, "text": "', b'xxxx"}], "id": 6}}'), None),
        (LongLine(b"xxxx", b"xxxx"), None),
    ],
)
def test_the_request_that_a_long_line_answers_is_read_off_its_ends(line: LongLine, number: int | None) -> None:
    assert find_request_id(line) == number


def test_a_server_that_asks_without_reading_the_answers_is_ended() -> None:
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCRequest

    async def body() -> None:
        to_us, coming_in = anyio.create_memory_object_stream[Any](1000)
        going_out, to_server = anyio.create_memory_object_stream[Any](1000)
        wire = Wire()
        for number in range(2 * MAX_OPEN_QUESTIONS):
            to_us.send_nowait(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=number, method="roots/list")))
        async with (
            to_us,
            going_out,
            to_server,
            tap_transport(nullcontext((coming_in, going_out)), wire) as (reading, _),
        ):
            taken = [item async for item in reading]
        assert len(taken) == MAX_OPEN_QUESTIONS and wire.gave_up
        coming_in.close()

    anyio.run(body)


def test_messages_that_nobody_asked_for_are_taken_at_a_bounded_rate() -> None:
    wire = Wire()
    assert not any(wire.delay_unasked() for _ in range(int(MAX_UNASKED_AT_ONCE)))
    for _ in range(100):
        delay = wire.delay_unasked()
    assert 0.5 < delay <= 1.0


def test_only_lists_that_were_asked_for_are_put_aside() -> None:
    wire = Wire()
    wire.expect_list(3)
    assert wire.take_list("3") and not wire.take_list(3) and not wire.take_list(4)


# --- origins ----------------------------------------------------------------------------------------------------------


def server(url: str) -> Server:
    return Server(name="far", origin="mcp.json", folder=Path(), transport="http", url=url)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://A.example/x?y#z", "https://a.example:443"),
        ("http://u:p@a.example:8080", "http://a.example:8080"),
        ("http://[::1]/", "http://[::1]:80"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:80", "http://169.254.169.254:80", "http://10.0.0.1:80", "http://[::1]:80"]
)
def test_places_on_this_machine_and_in_its_networks_are_private(address: str) -> None:
    assert is_private(address)
    assert not is_private("http://1.1.1.1:80")


@pytest.mark.parametrize(
    ("home", "target", "person", "answer", "approved", "asked"),
    [
        ("https://1.1.1.1/mcp", "https://8.8.8.8:443", False, True, False, 0),
        ("https://1.1.1.1/mcp", "https://8.8.8.8:443", True, False, False, 1),
        ("https://1.1.1.1/mcp", "https://8.8.8.8:443", True, True, True, 1),
        ("https://1.1.1.1/mcp", "http://169.254.169.254:80", True, True, False, 0),
        ("http://127.0.0.1/mcp", "http://127.0.0.1:9000", True, True, True, 1),
    ],
)
def test_a_request_to_another_origin_needs_a_person(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    home: str,
    target: str,
    person: bool,
    answer: bool,
    approved: bool,
    asked: int,
) -> None:
    questions: list[str] = []
    monkeypatch.setattr(mcp_oauth, "ask_person", lambda question: questions.append(question) or answer)

    async def ask() -> bool:
        tokens = TokenFile(tmp_path, home)
        return await approve_origin(server(home), tokens, person, nullcontext, target)

    assert anyio.run(ask) == approved
    assert len(questions) == asked and all(target in question for question in questions)
    monkeypatch.setattr(mcp_oauth, "ask_person", lambda question: pytest.fail("asked twice"))
    assert not approved or anyio.run(ask)


def test_where_a_person_has_signed_in_before_tokens_are_renewed(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path, "https://1.1.1.1/mcp")
    tokens._save(metadata={"token_endpoint": "https://login.example/token"}, tokens={"access_token": "abcdefgh1"})
    again = TokenFile(tmp_path, "https://1.1.1.1/mcp")
    assert again.origins() == {"https://login.example:443"}
    assert again.secrets() == {"abcdefgh1"}


def test_the_guard_refuses_a_request_to_another_origin() -> None:
    import httpx2

    async def body() -> None:
        async def never(origin: str) -> bool:
            return False

        guard = Guard("https://a.example/mcp", never, lambda response: None)
        request = httpx2.Request("GET", "https://a.example/other", headers={"accept-encoding": "zstd"})
        await guard._check_request(request)
        assert request.headers["accept-encoding"] == "identity"
        for address in ("http://a.example/mcp", "https://a.example:8443/mcp", "https://b.example/mcp"):
            with pytest.raises(SourceError, match="nobody has approved"):
                await guard._check_request(httpx2.Request("GET", address))

    anyio.run(body)


# --- lists that repeat ------------------------------------------------------------------------------------------------


def test_a_list_that_repeats_is_validated_once_and_a_changed_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated: list[str] = []
    validate = mcp_wire.Wire._is_valid

    def note(self: Any, page: dict[str, Any]) -> bool:
        validated.append(page["tools"][0]["name"])
        return validate(self, page)

    async def body() -> None:
        busy = parse_server("busy", {"command": sys.executable, "args": [str(BUSY)]}, tmp_path / "mcp.json")
        async with connect(busy, settings=Settings(home=tmp_path)) as connection:
            session = connection.client.session
            first = await connection.list_tools(100)
            schemas, count = dict(session._tool_output_schemas), len(validated)
            assert len(first) == len(schemas) == count > 10
            assert await connection.list_tools(100) == first
            assert len(validated) == count and session._tool_output_schemas == schemas, "the SDK keeps what it knows"
            assert len((await connection.client.list_tools()).tools) == count, "its own lists are whole"
            await connection.client.call_tool("change", {})
            count = len(validated)
            changed = await connection.list_tools(100)
            assert changed != first and len(validated) > count
            assert set(session._tool_output_schemas) == {tool["name"] for tool in changed}

    monkeypatch.setattr(mcp_wire.Wire, "_is_valid", note)
    anyio.run(body)


def test_a_list_asked_for_past_the_sdk_is_parsed_only_if_it_changed(tmp_path: Path) -> None:
    async def body() -> None:
        busy = parse_server("busy", {"command": sys.executable, "args": [str(BUSY)]}, tmp_path / "mcp.json")
        async with connect(busy, settings=Settings(home=tmp_path)) as connection:
            assert await connection.begin_list() is None, "the SDK has to ask first"
            first = await connection.list_tools(100)

            async def read() -> list[Any]:
                begun = await connection.begin_list()
                assert begun is not None
                return await connection.list_tools(100, begun=begun)

            second = await read()
            assert second == first and await read() is second
            await connection.client.call_tool("change", {})
            changed = await read()
            assert changed != first and changed == await connection.list_tools(100)
            assert set(connection.client.session._tool_output_schemas) == {tool["name"] for tool in changed}
            begun = await connection.begin_list()
            assert begun is not None
            begun.answer.cancel()
            assert await read() is changed, "an answer that nobody waits for is not taken for another"
        assert await connection.begin_list() is None

    anyio.run(body)


def request_list(direct: DirectLists, written: list[bytes], meta: dict[str, Any]) -> None:
    async def write(line: bytes) -> None:
        written.append(line)

    direct.write = write
    for cursor in (None, "next"):
        params = {"_meta": meta} | ({"cursor": cursor} if cursor else {})
        direct.note_request(JSONRPCRequest(jsonrpc="2.0", id=7, method="tools/list", params=params))


def test_what_is_sent_past_the_sdk_is_its_own_request_without_the_trace_of_another_call() -> None:
    async def body() -> None:
        direct, written, meta = DirectLists(), list[bytes](), {"io.modelcontextprotocol/protocolVersion": "x"}
        request_list(direct, written, {**meta, "traceparent": "00-1-2-01"})
        numbers = []
        for trace in ({"traceparent": "00-3-4-00"}, {}):
            await direct.ask(trace)
            sent = json.loads(written.pop())
            numbers.append(sent.pop("id"))
            assert sent == {"jsonrpc": "2.0", "method": "tools/list", "params": {"_meta": meta | trace}}
        assert len(set(numbers)) == 2 and min(numbers) >= 10**9, "no id of the SDK"

    anyio.run(body)


@pytest.mark.parametrize("id", [10**9, str(10**9)])
def test_only_the_awaited_answer_is_taken_and_a_lost_one_is_asked_for_by_the_sdk(id: object) -> None:
    async def body() -> None:
        direct, written = DirectLists(), list[bytes]()
        request_list(direct, written, {})
        answer = await direct.ask()
        for other in ({"id": 3, "result": {}}, {"id": id, "method": "ping"}, {"method": "notifications/message"}):
            assert not direct.take(json.dumps({"jsonrpc": "2.0", **other}).encode())
        assert not answer.done()
        line = json.dumps({"jsonrpc": "2.0", "id": id, "result": {"tools": [1]}}).encode()
        assert direct.take(line) and answer.result() == b'{"tools": [1]}' and not direct.take(line)
        for lost in (b'{"id": 3, "result": "\\ud800"}', b"junk", LongLine(b"", b"")):
            answer = await direct.ask()
            assert not direct.take(lost) and answer.result() is None
        answer = await direct.ask()
        direct.close()
        assert answer.result() is None and not direct.is_ready

    anyio.run(body)
