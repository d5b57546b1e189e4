"""What an MCP server may send: lines that are cut while they are read, messages that nobody asked for, origins."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCRequest

from toolscout.errors import SourceError
from toolscout.sources import mcp_oauth
from toolscout.sources.mcp_config import Server
from toolscout.sources.mcp_limits import LineSplitter, LongLine, find_request_id
from toolscout.sources.mcp_oauth import TokenFile, approve_origin
from toolscout.sources.mcp_transport import (
    MAX_OPEN_QUESTIONS,
    MAX_UNASKED_AT_ONCE,
    RAW_PAGE,
    HttpGuard,
    MessageFilter,
    RawPage,
    filter_transport,
    is_private,
    origin_of,
)

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

    async def body() -> None:
        to_us, coming_in = anyio.create_memory_object_stream[Any](1000)
        going_out, to_server = anyio.create_memory_object_stream[Any](1000)
        messages = MessageFilter()
        for number in range(2 * MAX_OPEN_QUESTIONS):
            to_us.send_nowait(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=number, method="roots/list")))
        async with (
            to_us,
            going_out,
            to_server,
            filter_transport(nullcontext((coming_in, going_out)), messages) as (reading, _),
        ):
            taken = [item async for item in reading]
        assert len(taken) == MAX_OPEN_QUESTIONS and messages.gave_up and messages.is_closed
        coming_in.close()

    anyio.run(body)


def test_messages_that_nobody_asked_for_are_taken_at_a_bounded_rate() -> None:
    messages = MessageFilter()
    assert not any(messages.delay_unasked() for _ in range(int(MAX_UNASKED_AT_ONCE)))
    for _ in range(100):
        delay = messages.delay_unasked()
    assert 0.5 < delay <= 1.0


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

        guard = HttpGuard("https://a.example/mcp", never, lambda response: None)
        request = httpx2.Request("GET", "https://a.example/other", headers={"accept-encoding": "zstd"})
        await guard._check_request(request)
        assert request.headers["accept-encoding"] == "identity"
        for address in ("http://a.example/mcp", "https://a.example:8443/mcp", "https://b.example/mcp"):
            with pytest.raises(SourceError, match="nobody has approved"):
                await guard._check_request(httpx2.Request("GET", address))

    anyio.run(body)


# --- lists ------------------------------------------------------------------------------------------------------------


def test_a_page_reaches_the_sdk_without_its_invalid_tools_and_us_as_it_was_sent() -> None:
    good, bad = {"name": "good", "inputSchema": {"type": "object"}}, {"name": 5}
    messages = MessageFilter()
    messages.version = "2025-11-25"
    page = messages.filter_page({"tools": [good, bad], "nextCursor": "next", "_meta": {RAW_PAGE: "forged"}})
    assert page["tools"] == [good] and page["nextCursor"] == "next"
    raw = page["_meta"][RAW_PAGE]
    assert isinstance(raw, RawPage) and (raw.tools, raw.cursor) == ([good, bad], "next")
    assert messages.filter_page({"tools": [good, bad]})["tools"] == [good], "sent again"
    assert messages.filter_page({"tools": [{**good, "inputSchema": None}, bad]})["tools"] == [], "another one"
    page = messages.filter_page({"tools": "none"})
    assert page["tools"] == [] and page["_meta"][RAW_PAGE].tools == "none"
