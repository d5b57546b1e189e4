"""JSON that is read piece by piece: what is taken and the rest are the whole, wherever the pieces are cut."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolscout.sources.json_stream import ENTER, KEEP, TAKE, JsonPath, JsonSplitter
from toolscout.sources.mcp_limits import (
    MAX_DISCARDED_BYTES,
    MAX_MESSAGE_BYTES,
    SPILL,
    SPLIT_BYTES,
    LineSplitter,
    LongLine,
    Spills,
)
from toolscout.sources.mcp_transport import _split_body, _split_events

TEXTS = st.text(st.sampled_from('a\n"\\é😀\ud83d\udc00\x01/ud83d{]'), max_size=30)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


class Taken:
    """Keeps what is taken, by path."""

    def __init__(self) -> None:
        self.values: dict[JsonPath, tuple[bool, bytearray]] = {}
        self._last = bytearray()

    def begin(self, path: JsonPath, is_text: bool) -> None:
        self._last = bytearray()
        self.values[path] = is_text, self._last

    def write(self, data: bytes) -> None:
        self._last += data


def choose(path: JsonPath) -> str:
    return TAKE if path and path[-1] in ("text", "data") else ENTER if len(path) < 3 else KEEP


def split(raw: bytes, sizes: list[int]) -> tuple[bytes, Taken]:
    taken, rest, position = Taken(), bytearray(), 0
    splitter = JsonSplitter(choose, taken, rest.extend)
    for size in sizes * len(raw):
        if position >= len(raw):
            break
        splitter.feed(raw[position : position + size])
        position += size
    splitter.finish()
    return bytes(rest), taken


def whole_letters(text: str) -> str:
    """A text in which a surrogate without its half is U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@settings(max_examples=150, deadline=None)
@given(
    text=TEXTS,
    data=VALUES,
    other=VALUES,
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    indent=st.sampled_from([None, 2]),
)
def test_the_taken_values_and_the_rest_are_the_whole(
    text: str, data: Any, other: Any, sizes: list[int], indent: int | None
) -> None:
    raw = json.dumps({"a": [{"text": text, "o": other}, {}], "data": data, "b": [], "n": -1.5e3}, indent=indent)
    rest, taken = split(raw.encode(), sizes)
    expected = json.loads(raw)
    restored = json.loads(rest)
    is_text, value = taken.values["a", 0, "text"]
    assert is_text and value.decode() == whole_letters(text) and restored["a"][0]["text"] == ""
    is_text, value = taken.values["data",]
    if isinstance(data, str):
        assert is_text and value.decode() == whole_letters(data)
    else:
        assert json.loads(bytes(value)) == expected["data"] and not restored["data"]
    restored["a"][0]["text"], restored["data"] = expected["a"][0]["text"], expected["data"]
    assert restored == expected


@pytest.mark.parametrize(
    "raw", [b"", b"x" * 10, b"{]", b'{"a" 1}', b"[1,]x", b'{"a":1}}', b'{"a":1', b"[1", b'"ab', b'{"text": "\\q\\u12"}']
)
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        split(raw, [3])


def make_answer(text: str) -> bytes:
    answer = {"jsonrpc": "2.0", "result": {"content": [{"type": "text", "text": text}], "_meta": {"x": 1}}, "id": 7}
    return json.dumps(answer).encode()


def check_message(message: bytes, spills: Spills, text: str) -> None:
    answer = json.loads(message)
    assert answer["id"] == 7 and answer["result"]["content"] == [{"type": "text", "text": ""}]
    assert answer["result"]["_meta"]["x"] == 1
    spill = spills.take(answer["result"]["_meta"])
    assert spill is not None and spill.file.read_text() == text and SPILL in answer["result"]["_meta"]
    assert spill.file.stat().st_mode & 0o777 == 0o600
    assert spills.take(answer["result"]["_meta"]) is None, "it is taken once"


def test_the_text_of_a_long_line_goes_to_a_file(tmp_path: Path) -> None:
    spills, text = Spills(tmp_path / "results"), "é line\n" * (SPLIT_BYTES // 6)
    splitter, raw = LineSplitter(spills=spills), b'{"short": 1}\n' + make_answer(text) + b"\n[2]\n"
    lines = [line for start in range(0, len(raw), 65536) for line in splitter.feed(raw[start : start + 65536])]
    assert (lines[0], lines[2]) == (b'{"short": 1}', b"[2]")
    assert isinstance(lines[1], bytes) and len(lines[1]) < 300
    check_message(lines[1], spills, text)


@pytest.mark.parametrize("cut", ["in the text", "no JSON"])
def test_of_a_long_line_that_is_no_answer_no_file_stays(tmp_path: Path, cut: str) -> None:
    spills = Spills(tmp_path / "results")
    splitter = LineSplitter(spills=spills)
    raw = make_answer("x" * SPLIT_BYTES * 2)[:-20] if cut == "in the text" else b"x" * SPLIT_BYTES * 2
    assert [type(line) for line in splitter.feed(raw + b"\n")] == [LongLine]
    assert not list(tmp_path.glob("results/*"))
    assert list(splitter.feed(b"next\n")) == [b"next"]


@pytest.mark.parametrize("head", [b"", b'{"result": {', b'{"result": {"content": [', b"[1", b"{}"])
def test_white_space_counts_as_a_part_of_the_message(tmp_path: Path, head: bytes) -> None:
    writer = Spills(tmp_path / "results").open()
    writer.feed(head)
    with pytest.raises(ValueError, match="smaller"):
        for _ in range(MAX_MESSAGE_BYTES // 2**20 + 1):
            writer.feed(b" " * 2**20)


def test_a_result_over_http_goes_to_a_file_too(tmp_path: Path) -> None:
    spills, text = Spills(tmp_path / "results"), "word " * (SPLIT_BYTES // 4)

    async def stream(raw: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(raw), 50_000):
            yield raw[start : start + 50_000]

    async def main() -> None:
        body = b"".join([piece async for piece in _split_body(spills, stream(make_answer(text)), OSError)])
        check_message(body, spills, text)
        events = b": comment\r\nevent: message\ndata: " + make_answer(text) + b"\n\n"
        lines = b"".join([piece async for piece in _split_events(spills, stream(events), OSError)]).split(b"\n")
        assert lines[:2] == [b": comment\r", b"event: message"] and lines[3:] == [b"", b""]
        check_message(lines[2].removeprefix(b"data:"), spills, text)
        with pytest.raises(OSError, match="larger than"):
            [piece async for piece in _split_body(spills, stream(b" " * SPLIT_BYTES * 2), OSError)]

    anyio.run(main)
    assert MAX_DISCARDED_BYTES > SPLIT_BYTES
