"""Reads stored results for an agent: a page from an offset, the value at a path, or the lines with some words."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any, Final, NamedTuple

from toolscout.errors import NotFound, UserError
from toolscout.sources.json_stream import ENTER, KEEP, TAKE, JsonPath, JsonSplitter
from toolscout_gateway.result_cut import NOTE_TOKENS, decode_head
from toolscout_gateway.results import Results, StoredPart, StoredResult
from toolscout_gateway.text import BYTES_PER_TOKEN, clip, count_tokens, make_plain

__all__ = ["read_result"]

READ_BYTES: Final = 2**18
MAX_NAMED_KEYS: Final = 20
MAX_SHOWN_KEY_CHARS: Final = 60
LINE_EDGE_BYTES: Final = 240  # shown of a long line on each side of a match
MAX_SHOWN_GAP_BYTES: Final = 2_000  # of a match; the middle of a longer one is left out
MAX_LETTER_BYTES: Final = 4
MAX_SEARCH_S: Final = 2.0
MAX_PATH_CHARS: Final = 1_000
MAX_GREP_CHARS: Final = 200
MAX_ALTERNATIVES: Final = 8


class _Value(NamedTuple):
    """A value in a file: its path, by which the agent knows it, and the `size` bytes from `start` on."""

    path: str
    file: IO[bytes]
    start: int
    size: int

    def read(self, offset: int, count: int) -> bytes:
        """Read `count` bytes of the value from an offset, fewer at its end."""
        self.file.seek(self.start + offset)
        return self.file.read(max(0, min(count, self.size - offset)))


def read_result(
    results: Results, caller: str, handle: str, *, offset: int = 0, path: str = "", grep: str = ""
) -> tuple[dict[str, object], str]:
    """Read a stored result, within the budget of `results`. Returns the structured content and the text.

    `offset` is in bytes. `path` leads to a part (`content.0.text`) or a value in JSON (`items.3.name`,
    `/items/3/name`); without it, the parts follow each other. With `grep`, only lines with this text are shown: `|`
    separates alternatives and `.*` stands for anything.

    Raises:
        NotFound: for an unknown handle, a path that leads nowhere, or the handle of another caller.
        UserError: for an offset after the end, a path that is too long, or a `grep` without words.
    """
    stored = results.load(caller, handle)
    with ExitStack() as stack:
        file = stack.enter_context(results.open(handle))
        part, inner_segments = _find_part(stored, file, _split_path(path), offset)
        value = part
        if inner_segments:
            extracted = stack.enter_context(tempfile.TemporaryFile(dir=results.folder))
            inner_value, searched = _extract(part, inner_segments, extracted)
            if inner_value is None:
                return _answer_unfinished(handle, part, inner_segments, searched)
            value = inner_value
        if path:
            base, shown_path, total = 0, value.path, value.size
        else:  # offsets count from the beginning of the entire result
            base = sum(earlier.size for earlier in stored.parts if earlier.start < part.start)
            shown_path, total = "", stored.size
        if not 0 <= offset <= total:
            shown = shown_path or "the result"
            raise UserError(f"offset: expected at most {total}, the size of {shown} in bytes, found {offset}")
        answer: dict[str, object] = {"handle": handle, "path": shown_path, "bytes": total}
        if grep:
            return _answer_grep(answer, value, base, offset - base, grep, results.budget)
        return _answer_page(answer, value, base, offset - base, results.budget)


# --- where a value is -------------------------------------------------------------------------------------------------


def _split_path(path: str) -> list[str]:
    """Split `a.b[0].c`, `$.a` or `/a/b` into segments."""
    path = path.strip()
    if len(path) > MAX_PATH_CHARS:
        raise UserError(f"path: expected at most {MAX_PATH_CHARS:,} characters, found {len(path):,}")
    if path.startswith("/"):
        return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
    path = re.sub(r"\[['\"]?([^\[\]]*?)['\"]?\]", r".\1", path)  # a[0]['b'] → a.0.b
    return [part for part in path.removeprefix("$").split(".") if part]


def _find_part(stored: StoredResult, file: IO[bytes], segments: list[str], offset: int) -> tuple[_Value, list[str]]:
    """Find the part that a path or an offset leads to, and the segments of the path inside this part."""
    parts = [part for part in stored.parts if part.size] or stored.parts
    if not segments:
        return _make_value(_find_part_at(parts, offset), file), []
    for part in stored.parts:
        part_segments = part.path.split(".")
        if segments[: len(part_segments)] == part_segments:
            return _make_value(part, file), segments[len(part_segments) :]
    # The path names no part, so it leads into the first one that is JSON, or a text that begins like JSON.
    for part in stored.parts:
        if not part.is_text:
            return _make_value(part, file), segments
    for part in parts:
        if _make_value(part, file).read(0, 200).lstrip().startswith((b"{", b"[")):
            return _make_value(part, file), segments
    part_paths = ", ".join(part.path for part in stored.parts[:MAX_NAMED_KEYS])
    raise NotFound(f"path: this result is no JSON; expected one of its parts ({part_paths}), or no path")


def _find_part_at(parts: Sequence[StoredPart], offset: int) -> StoredPart:
    """Return the part that contains an offset of the entire result; the last part if the offset is after its end."""
    part_end = 0
    for part in parts:
        part_end += part.size
        if offset < part_end:
            break
    return part


def _make_value(part: StoredPart, file: IO[bytes]) -> _Value:
    return _Value(part.path, file, part.start, part.size)


class _Extraction:
    """Writes the value at a path to a file, and notes the keys beside it.

    Attributes:
        has_value: whether the value was there.
        matched: how many segments of the path were found.
        near: keys beside the first segment that was not found, for the message.
    """

    def __init__(self, segments: list[str], file: IO[bytes]) -> None:
        self.has_value = False
        self.matched, self.near = 0, list[str]()
        self._segments, self._file = segments, file

    def choose(self, path: JsonPath) -> str:
        """Choose for the splitter: ENTER what is on the path, TAKE its end, KEEP the rest, which `_extract` ignores."""
        if not path:
            return ENTER
        if len(path) != self.matched + 1:
            return KEEP  # it is not beside the segment that is looked for
        key = str(path[-1])
        if len(self.near) < MAX_NAMED_KEYS:
            self.near.append(key)
        if self.has_value or key != self._segments[self.matched]:
            return KEEP
        self.matched, self.near = self.matched + 1, []
        return TAKE if self.matched == len(self._segments) else ENTER

    def begin(self, path: JsonPath, is_text: bool) -> None:
        self.has_value = True

    def write(self, data: bytes) -> None:
        self._file.write(data)


def _extract(value: _Value, segments: list[str], file: IO[bytes]) -> tuple[_Value | None, int]:
    """Copy the value at a path inside a JSON part to a file.

    Returns:
        The value, and how many bytes were searched. No value if the search took too long.

    Raises:
        NotFound: if there is none. The message names the keys that are there.
    """
    extraction = _Extraction(segments, file)
    splitter = JsonSplitter(extraction.choose, extraction, lambda data: None)
    position, deadline = 0, time.monotonic() + MAX_SEARCH_S
    try:
        while position < value.size:
            has_left_value = extraction.has_value and len(splitter.path) < len(segments)
            if has_left_value:
                break
            if time.monotonic() > deadline:
                return None, position
            splitter.feed(value.read(position, READ_BYTES))
            position += READ_BYTES
    except ValueError:
        raise NotFound(f"path: {value.path} is no JSON, so no path leads into it") from None
    if not extraction.has_value:
        missing = clip(make_plain(segments[extraction.matched]), MAX_SHOWN_KEY_CHARS)
        keys = ", ".join(clip(make_plain(key), MAX_SHOWN_KEY_CHARS) for key in extraction.near if key) or "no values"
        where = ".".join(segments[: extraction.matched]) or value.path
        raise NotFound(f"path: there is no {missing!r} in {where}, which has {keys}")
    file.flush()
    return _Value(".".join(segments), file, 0, file.seek(0, os.SEEK_END)), position


def _answer_unfinished(handle: str, value: _Value, segments: list[str], searched: int) -> tuple[dict[str, object], str]:
    """Build the answer of a search for a path that took too long: where to read or search on in the part."""
    page = {"handle": handle, "path": value.path, "bytes": value.size, "text": "", "next_offset": searched}
    wanted = clip(make_plain(".".join(segments)), MAX_SHOWN_KEY_CHARS)
    note = f"[toolscout: searched for {MAX_SEARCH_S:g} s, as far as offset {searched} of {value.size}, and did not "
    note += f"come to the end of {wanted!r}; go on with path={value.path} and offset={searched}, or with grep]"
    return page, note


# --- pages ------------------------------------------------------------------------------------------------------------


def _answer_page(
    answer: dict[str, Any], value: _Value, base: int, offset: int, budget: int
) -> tuple[dict[str, object], str]:
    """Build a page of a value from an offset in it. It ends with the value, also if other parts follow.

    The agent's offsets are larger by `base`. `answer` has the fields of every answer, `budget` is in tokens.
    """
    count = (budget - NOTE_TOKENS) * BYTES_PER_TOKEN
    while True:
        data = value.read(offset, count)
        is_last = offset + len(data) >= value.size
        text = decode_head(data, is_whole=is_last)
        n_shown = len(data) if is_last else len(text.encode())
        end = base + offset + n_shown
        page = {**answer, "offset": base + offset, "text": text}
        if end < answer["bytes"]:
            page["next_offset"] = end
        if count_tokens(page) <= budget or count <= NOTE_TOKENS:  # a page of so few bytes is sent in any case
            break
        count //= 2  # escapes in JSON made the page too large
    where = f" of {value.path}" if answer["path"] else f" (in {value.path})"
    note = f"[toolscout: bytes {base + offset} to {end} of {answer['bytes']}{where}"
    note += f"; read on with offset={end}]" if "next_offset" in page else "; this is the end]"
    return page, f"{text}\n{note}"


def _split_grep(grep: str) -> list[list[bytes]]:
    """Split `a.*b|c` into alternatives, here [[a, b], [c]]. No other character has a special meaning."""
    if len(grep) > MAX_GREP_CHARS or grep.count("|") >= MAX_ALTERNATIVES:
        raise UserError(
            f"grep: expected at most {MAX_GREP_CHARS} characters and {MAX_ALTERNATIVES} alternatives, found more: "
            "search for fewer words at once"
        )
    split = (alternative.strip().split(".*") for alternative in grep.split("|"))
    alternatives = [[_fold(text.encode("utf-8", "replace")) for text in texts if text] for texts in split]
    if not any(alternatives):
        raise UserError("grep: expected words to look for, found none")
    return [texts for texts in alternatives if texts]


def _fold(data: bytes) -> bytes:
    """Make upper and lower case the same. Every letter keeps its number of bytes, so that offsets stay right."""
    if data.isascii():
        return data.lower()
    text = data.decode("utf-8", "surrogateescape")
    folded = {ord(letter): _fold_letter(letter) for letter in set(text)}
    return text.translate(folded).encode("utf-8", "surrogateescape")


def _fold_letter(letter: str) -> str:
    folded = letter.casefold()
    has_same_size = len(folded.encode("utf-8", "replace")) == len(letter.encode("utf-8", "replace"))
    return folded if has_same_size else letter


def _answer_grep(
    answer: dict[str, Any], value: _Value, base: int, offset: int, grep: str, budget: int
) -> tuple[dict[str, object], str]:
    """Build an answer with the lines that match, each with its offset. `base`, `offset`: as in `_answer_page`."""
    search = _Search(value, _split_grep(grep), offset)
    matches, left_offset = _collect_matches(search, base, budget - NOTE_TOKENS)
    page = {**answer, "grep": grep, "matches": matches}
    searched, end = base + search.position, base + value.size
    if left_offset is not None:
        page["next_offset"], note = left_offset, f"more lines match; go on with offset={left_offset}"
    elif searched < end:
        page["next_offset"], note = searched, f"searched for {MAX_SEARCH_S:g} s; go on with offset={searched}"
    elif end < answer["bytes"]:
        page["next_offset"], note = end, f"this was {value.path}; the next part begins at offset={end}"
    else:
        note = f"{'these are all lines' if matches else 'no line matches'} from offset {base + offset} on"
    lines = [f"{match['offset']}: {match['text']}" for match in matches]
    return page, "\n".join([*lines, f"[toolscout: {note}]"])


def _collect_matches(search: _Search, base: int, room: int) -> tuple[list[dict[str, object]], int | None]:
    """Return the matches that fit into `room` tokens, and the offset of the first one that does not fit, or None."""
    matches: list[dict[str, object]] = []
    for start, line in search.find_lines():
        match: dict[str, object] = {"offset": base + start, "text": line}
        room -= count_tokens(match) + 1
        if room < 0 and matches:
            return matches, base + start
        matches.append(match)
    return matches, None


class _TextSequence:
    """Looks for literal texts that follow each other in a line. Each byte is searched once.

    Attributes:
        found: offsets of the start and end of the next match. None: there is none in what was searched.
        texts: what must follow, in lower case.
    """

    def __init__(self, texts: list[bytes], offset: int) -> None:
        self.texts = texts
        self.restart(offset)

    def restart(self, offset: int) -> None:
        """Forget what was found, and begin at an offset."""
        self.found: tuple[int, int] | None = None
        self._n_found = 0  # how many of the texts were found
        self._start = offset  # of the first text, once it was found
        self._position = offset  # where to look for the next text

    def starts_before(self, offset: int) -> bool:
        """Return whether the match, or the part of one that was found so far, begins before an offset."""
        return (self._start if self._n_found else self._position) < offset

    def search(self, data: bytes, base: int, end: int) -> None:
        """Search on in the bytes from offset `base`. A text that begins at `end` or later is left to the next bytes."""
        line_end = -1
        while self.found is None:
            text, position = self.texts[self._n_found], self._position - base
            limit = len(data)  # the first text may be in any line; the others must be in the same line
            if self._n_found:
                if line_end < position:
                    newline = data.find(b"\n", position)
                    line_end = newline if newline >= 0 else len(data)
                limit = line_end
            text_start = data.find(text, position, limit)
            if 0 <= text_start < end - base:
                if not self._n_found:
                    self._start = base + text_start
                self._n_found, self._position = self._n_found + 1, base + text_start + len(text)
                if self._n_found == len(self.texts):
                    self.found = self._start, self._position
            elif text_start < 0 and limit < len(data):
                self._n_found, self._position = 0, base + limit + 1  # begin again in the next line
            else:
                self._position = max(self._position, end)  # go on in the next bytes
                return


class _Search:
    """Searches a value for lines, in time that grows with its size alone.

    Attributes:
        position: how far it was searched.
    """

    def __init__(self, value: _Value, alternatives: list[list[bytes]], offset: int) -> None:
        self.position = offset
        self._value, self._reported = value, offset  # lines before this offset have been returned
        self._alternatives = [_TextSequence(texts, offset) for texts in alternatives]
        # So many bytes are read twice, because a text may begin in one read and end in the next.
        self._overlap = max(len(text) for texts in alternatives for text in texts) + MAX_LETTER_BYTES

    def find_lines(self) -> Iterator[tuple[int, str]]:
        """Yield offset and text of each line that matches. Of a long line it gives only what is near a match."""
        deadline = time.monotonic() + MAX_SEARCH_S
        while self.position < self._value.size and time.monotonic() < deadline:
            data = _fold(self._value.read(self.position, READ_BYTES))
            end = self.position + len(data)
            if end < self._value.size:
                end -= self._overlap
            match = self._find_first(data, end)
            while match is not None:
                yield self._show(*match)
                match = self._find_first(data, end)
            self.position = end

    def _find_first(self, data: bytes, end: int) -> tuple[int, int] | None:
        """Return start and end of the first match of any alternative. None if these bytes have no more."""
        for alternative in self._alternatives:
            alternative.search(data, self.position, end)
        return min((texts.found for texts in self._alternatives if texts.found is not None), default=None)

    def _show(self, start: int, end: int) -> tuple[int, str]:
        """Return the line of a match, or its surroundings, and go on after it."""
        shown_start = max(start - LINE_EDGE_BYTES, self._reported)
        before = self._value.read(shown_start, start - shown_start)
        shown_start += before.rfind(b"\n") + 1  # begin after the newline before the match, if it is so near
        after, _, _ = self._value.read(end, LINE_EDGE_BYTES).partition(b"\n")
        shown_end = self._reported = end + len(after)
        for alternative in self._alternatives:
            if alternative.starts_before(shown_end):
                alternative.restart(shown_end)
        if end - start <= MAX_SHOWN_GAP_BYTES:
            line = self._value.read(shown_start, shown_end - shown_start)
        else:  # leave out the middle of the match
            head_end, tail_start = start + MAX_SHOWN_GAP_BYTES // 2, end - MAX_SHOWN_GAP_BYTES // 2
            head = self._value.read(shown_start, head_end - shown_start)
            line = head + " … ".encode() + self._value.read(tail_start, shown_end - tail_start)
        return shown_start, line.decode("utf-8", "ignore").strip()
