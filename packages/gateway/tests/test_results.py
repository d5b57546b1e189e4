"""Results within a budget: what is left out is said, and who made the call can read every byte of it."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult, TextContent

from gateway.tests.conftest import SERVERS, Agent, Start, busy
from gateway.tests.test_gateway import limited, run
from servers.large import make_lines, make_row
from toolscout.sources.mcp_limits import SPILL
from toolscout_gateway import result_pages
from toolscout_gateway.results import DETAIL, HANDLE, LEFT_OUT, Results
from toolscout_gateway.text import count_tokens

pytestmark = pytest.mark.net
BUDGET = 2_000


@pytest.fixture(autouse=True)
def search_without_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a search finds is tested here; `attack/test_result_search.py` tests that it ends."""
    monkeypatch.setattr(result_pages, "MAX_SEARCH_S", 600.0)


def large(**changes: Any) -> dict[str, Any]:
    """An entry for the server of `tests/servers/large.py`."""
    return {"command": sys.executable, "args": [str(SERVERS / "large.py")], **changes}


def handle_of(answer: Any) -> str:
    return str(answer.meta[HANDLE]["handle"])


def text_of(answer: Any) -> str:
    return "".join(block.text for block in answer.content if block.type == "text")


async def read(agent: Agent, handle: str, **arguments: Any) -> Any:
    return await agent.use("read_result", handle=handle, **arguments)


async def read_all(agent: Agent, handle: str, **arguments: Any) -> str:
    """The text of all pages, one after the other."""
    pages, offset = [], 0
    while True:
        answer = await read(agent, handle, offset=offset, **arguments)
        assert not answer.is_error, answer.content[0].text
        page = answer.structured_content
        assert count_tokens(page) <= BUDGET and count_tokens(text_of(answer)) <= BUDGET
        pages.append(page["text"])
        if "next_offset" not in page:
            return "".join(pages)
        assert page["next_offset"] > offset
        offset = page["next_offset"]


@pytest.mark.parametrize("size", [60_000, 3_000_000], ids=["in-memory", "in-a-file"])
def test_a_long_text_is_cut_to_the_budget_and_every_byte_is_read_by_handle(start: Start, size: int) -> None:
    async def body(agent: Agent) -> None:
        entire = "".join(make_lines(size))
        answer = await agent.call("a/lines", size=size)
        shown = text_of(answer)
        assert not answer.is_error and count_tokens(shown) <= BUDGET
        head, note = answer.content[0].text, answer.content[-1].text
        assert len(head) > 1_000 and entire.startswith(head)
        assert f"from offset {len(head.encode())} of {len(entire.encode()):,} bytes" in note
        assert f'read_result(handle="{handle_of(answer)}"' in note
        if size < 100_000:
            assert await read_all(agent, handle_of(answer)) == entire
        page = (await read(agent, handle_of(answer), offset=len(entire.encode()) - 1_000)).structured_content
        assert page["text"] == entire.encode()[-1_000:].decode() and "next_offset" not in page
        assert agent.events("call")[-1]["ok"]

    run(start, body, {"a": large()}, result_budget=BUDGET)


def test_a_result_within_the_budget_is_passed_on_as_it_is_and_not_stored(start: Start) -> None:
    async def body(agent: Agent) -> None:
        text = "x" * (BUDGET * 3)
        answer = await agent.call("a/echo", text=text)
        assert [block.text for block in answer.content] == [text] and HANDLE not in (answer.meta or {})
        assert not agent.gateway.results.folder.exists()
        assert HANDLE in (await agent.call("a/echo", text=text + "y")).meta

    run(start, body, {"a": large()}, result_budget=BUDGET)


@pytest.mark.parametrize("size", [2_000, 40_000], ids=["in-memory", "in-a-file"])
def test_structured_content_is_shortened_and_its_values_are_read_by_path(start: Start, size: int) -> None:
    async def body(agent: Agent) -> None:
        answer = await agent.call("a/rows", size=size)
        content = answer.structured_content
        assert count_tokens(content) <= BUDGET
        assert content[LEFT_OUT]["handle"] == handle_of(answer)
        if size == 2_000:
            assert content["total"] == size and content["rows"][0] == make_row(0)
            left = size - len(content["rows"])
            assert f"structuredContent.rows ({left:,} of {size:,} values)" in content[LEFT_OUT]["note"]
        handle = handle_of(answer)
        for path in (f"rows.{size - 1}.name", f"rows[{size - 1}].name", f"/rows/{size - 1}/name"):
            page = (await read(agent, handle, path=path)).structured_content
            assert page["text"] == f"row {size - 1}"
        page = (await read(agent, handle, path="structuredContent.rows.7")).structured_content
        assert json.loads(page["text"]) == make_row(7)
        assert (await read(agent, handle, path="total")).structured_content["text"] == str(size)
        wrong = await read(agent, handle, path="rows.0.nmae")
        assert wrong.is_error and "no 'nmae' in rows.0, which has id, name, tags" in wrong.content[0].text

    run(start, body, {"a": large()}, result_budget=BUDGET)


def test_text_and_structured_content_each_keep_to_the_budget(start: Start) -> None:
    async def body(agent: Agent) -> None:
        answer = await agent.call("a/both", size=1_000)
        assert count_tokens(answer.structured_content) <= BUDGET and count_tokens(text_of(answer)) <= BUDGET
        entire = json.dumps({"rows": [make_row(index) for index in range(1_000)], "total": 1_000})
        assert await read_all(agent, handle_of(answer), path="content.0.text") == entire

    run(start, body, {"a": large()}, result_budget=BUDGET)


@pytest.mark.parametrize("size", [60_000, 3_000_000], ids=["in-memory", "in-a-file"])
def test_lines_are_found_with_their_offsets(start: Start, size: int) -> None:
    async def body(agent: Agent) -> None:
        entire = "".join(make_lines(size)).encode()
        handle = handle_of(await agent.call("a/lines", size=size))
        found = (await read(agent, handle, grep="WALDO|line 17:")).structured_content["matches"]
        lines = [line for line in entire.split(b"\n") if b"Waldo" in line or line.startswith(b"line 17:")]
        assert [match["text"].encode() for match in found] == lines
        assert all(entire[match["offset"] :].startswith(match["text"].encode()) for match in found)
        some = (await read(agent, handle, grep="line 9.*fox É")).structured_content
        assert some["matches"][0]["text"].startswith("line 9:")
        pages = [*some["matches"]]
        while "next_offset" in some:
            some = (await read(agent, handle, grep="line 9.*fox é", offset=some["next_offset"])).structured_content
            assert count_tokens(some) <= BUDGET
            pages += some["matches"]
            if size > 100_000 and len(pages) > 300:
                break
        offsets = [match["offset"] for match in pages]
        assert offsets == sorted(set(offsets)) and len(offsets) > 10
        assert "no line matches" in (await read(agent, handle, grep="xyzzy")).content[0].text

    run(start, body, {"a": large()}, result_budget=BUDGET)


def test_a_program_that_asks_for_everything_gets_it_unchanged(start: Start) -> None:
    async def body(agent: Agent) -> None:
        for size in (60_000, 3_000_000):
            entire = "".join(make_lines(size))
            answer = await agent.use("call_tool", id="a/lines", arguments={"size": size}, detail="full")
            assert [block.text for block in answer.content] == [entire]
            assert not {HANDLE, SPILL} & set(answer.meta or {})
            answer = await agent.client.call_tool("a_lines", {"size": size}, meta={DETAIL: "full"})
            assert [block.text for block in answer.content] == [entire]
        answer = await agent.use("call_tool", id="a/rows", arguments={"size": 40_000}, detail="full")
        assert answer.structured_content["rows"] == [make_row(index) for index in range(40_000)]
        assert list(agent.gateway.results.folder.iterdir()) == []

    run(start, body, {"a": large()}, result_budget=BUDGET, pins=("a/lines",))


def test_a_picture_is_passed_on_whole_or_left_out_with_a_word(start: Start) -> None:
    async def body(agent: Agent) -> None:
        for size in (1_000_000, 4_000_000):
            picture, caption = (await agent.call("a/picture", size=size)).content
            assert len(picture.data) == size and caption.text == "a caption"
        answer = await agent.call("a/picture", size=8_000_000)
        assert answer.content[0].text == "a caption"
        assert "content.0.data (image/png, 8,000,000 bytes of base64)" in answer.content[1].text
        page = (await read(agent, handle_of(answer), path="content.0.data", offset=7_999_996)).structured_content
        assert page["text"] == "QUJD"

    run(start, body, {"a": large()}, result_budget=BUDGET)


def test_many_parts_and_embedded_texts_are_cut_too(start: Start) -> None:
    async def body(agent: Agent) -> None:
        answer = await agent.call("a/parts", size=5_000)
        assert count_tokens(text_of(answer)) <= BUDGET and "more parts" in answer.content[-1].text
        page = (await read(agent, handle_of(answer), path="content.4999.text")).structured_content
        assert page["text"] == "part 4999"
        answer = await agent.call("a/memo", size=60_000)
        assert count_tokens(answer.content[0].resource.text) <= BUDGET
        entire = "".join(make_lines(60_000))
        assert await read_all(agent, handle_of(answer), path="content.0.resource.text") == entire

    run(start, body, {"a": large()}, result_budget=BUDGET)


def test_credentials_are_covered_in_results_that_are_stored(start: Start) -> None:
    async def body(agent: Agent) -> None:
        for size in (5_000, 150_000):
            answer = await agent.call("a/secret", size=size)
            data = (agent.gateway.results.folder / f"{handle_of(answer)}.data").read_bytes()
            assert b"s3cret" not in data and data.count(b"[credential]") == size
            assert data.endswith(f"{size - 1} [credential]\n".encode())

    run(start, body, {"a": large(env={"API_TOKEN": "s3cret-of-the-server-0123"})}, result_budget=BUDGET)


def test_a_result_is_for_the_caller_who_made_the_call(start: Start) -> None:
    async def body(agent: Agent) -> None:
        handle = handle_of(await agent.call("a/lines", size=60_000))
        assert not (await read(agent, handle)).is_error
        results = agent.gateway.results
        [path] = results.folder.glob("*.json")
        stored = json.loads(path.read_text())
        assert stored["caller"] == "ann"
        path.write_text(json.dumps({**stored, "caller": "bob"}))
        refused = await read(agent, handle)
        absent = await read(agent, "A" * 16)
        assert refused.is_error and refused.content[0].text == absent.content[0].text
        for odd in ("../policy", "", "x" * 16 + "/..", handle + "\n"):
            assert (await read(agent, odd)).content[0].text == absent.content[0].text

    run(start, body, {"a": large()}, result_budget=BUDGET, policies=limited("a/*"))


def test_results_are_private_and_gone_after_a_day(start: Start) -> None:
    async def body(agent: Agent) -> None:
        handle = handle_of(await agent.call("a/lines", size=60_000))
        folder = agent.gateway.results.folder
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        paths = list(folder.iterdir())
        assert len(paths) == 2 and {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
        [index] = folder.glob("*.json")
        index.write_text(json.dumps({**json.loads(index.read_text()), "at": time.time() - 86_401}))
        assert (await read(agent, handle)).is_error
        for path in paths:
            os.utime(path, (time.time() - 86_401,) * 2)
        Results(folder, BUDGET).purge()
        assert list(folder.iterdir()) == []

    run(start, body, {"a": large()}, result_budget=BUDGET)


def test_a_server_cannot_name_a_result_of_others(start: Start) -> None:
    async def body(agent: Agent) -> None:
        answer = await agent.call("a/echo", text="x")
        spills = agent.gateway.upstreams.host.spills
        assert spills.take({"toolscout/spill": "guess"}) is None and spills.take({"toolscout/spill": ["x"]}) is None
        assert answer.content[0].text == "x"

    run(start, body, {"a": large()})


def test_a_result_that_cannot_be_stored_is_said(start: Start) -> None:
    async def body(agent: Agent) -> None:
        agent.gateway.results.folder.write_text("no folder")
        answer = await agent.call("a/lines", size=60_000)
        assert answer.is_error and "a/lines was called, but its result is too large" in answer.content[0].text
        assert await agent.text("b/echo", text="x") == "x"

    run(start, body, {"a": large(), "b": busy()}, result_budget=BUDGET)


def test_each_block_counts_by_its_bytes(tmp_path: Path) -> None:
    blocks = [TextContent(type="text", text="😀")] * 100  # 4 bytes each, so 2 tokens
    result = CallToolResult(content=[*blocks])
    assert Results(tmp_path, budget=200).fits(result)
    assert not Results(tmp_path, budget=199).fits(result)
