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

    Args:
        results: the stored results.
        caller: name of the caller, who must have made the call.
        handle: the handle of the result.
        offset: bytes to leave out at the beginning.
        path: path of a part (`content.0.text`) or of a value in JSON (`items.3.name`, `/items/3/name`). Empty: the
            parts one after the other.
        grep: shows only lines with this text. `|` separates alternatives and `.*` stands for anything.

    Raises:
        NotFound: for an unknown handle, a path that leads nowhere, or the handle of another caller.
        UserError: for an offset after the end, a path that is too long, or a `grep` without words.
    """
    stored = results.load(caller, handle)
    with ExitStack() as stack:
        file = stack.enter_context(results.open(handle))
        view, inner_segments = _find_part(stored, file, _split_path(path), offset)
        if inner_segments:
            extracted = stack.enter_context(tempfile.TemporaryFile(dir=results.folder))
            value, searched = _extract(view, inner_segments, extracted)
            if value is None:
                return _answer_unfinished(handle, view, inner_segments, searched)
            view = value
        base = 0 if path else _offset_of(stored, view)  # without a path, offsets count from the first part on
        offset -= base
        if offset > view.size or offset < 0:
            raise UserError(f"offset: expected at most {view.size}, the size of {view.path} in bytes, found {offset}")
        total = view.size if path else stored.size
        answer: dict[str, object] = {"handle": handle, "path": view.path if path else "", "bytes": total}
        if grep:
            return _answer_grep(answer, view, base, offset, grep, results.budget)
        return _answer_page(answer, view, base, offset, results.budget)


# --- where a value is -------------------------------------------------------------------------------------------------


def _split_path(path: str) -> list[str]:
    """Split `a.b[0].c`, `$.a` or `/a/b` into segments."""
    path = path.strip()
    if len(path) > MAX_PATH_CHARS:
        raise UserError(f"path: expected at most {MAX_PATH_CHARS:,} characters, found {len(path):,}")
    if path.startswith("/"):
        return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
    path = re.sub(r"\[['\"]?([^\[\]]*?)['\"]?\]", r".\1", path)
    return [part for part in path.removeprefix("$").split(".") if part]


def _offset_of(stored: StoredResult, view: _Value) -> int:
    """Return how many bytes the parts before a part have."""
    return sum(part.size for part in stored.parts if part.start < view.start)


def _find_part(stored: StoredResult, file: IO[bytes], segments: list[str], offset: int) -> tuple[_Value, list[str]]:
    """Find the part that a path or an offset leads to, and the segments that lead on inside it."""
    parts = [part for part in stored.parts if part.size] or stored.parts
    if not segments:
        return _make_value(_find_part_at(parts, offset), file), []
    for part in stored.parts:
        names = part.path.split(".")
        if segments[: len(names)] == names:
            return _make_value(part, file), segments[len(names) :]
    structured = [part for part in stored.parts if not part.is_text]
    for part in [*structured, *parts]:  # the first that is JSON, or a text that begins like JSON
        if not part.is_text or _make_value(part, file).read(0, 200).lstrip()[:1] in (b"{", b"["):
            return _make_value(part, file), segments
    names = [part.path for part in stored.parts[:MAX_NAMED_KEYS]]
    raise NotFound(f"path: this result is no JSON; expected one of its parts ({', '.join(names)}), or no path")


def _find_part_at(parts: Sequence[StoredPart], offset: int) -> StoredPart:
    """Return the part that contains an offset of the entire result; the last part if the offset is behind its end."""
    start = 0
    for part in parts:
        if offset < start + part.size:
            break
        start += part.size
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
        depth = len(path)
        if depth > self.matched + 1:
            return KEEP
        if depth == self.matched + 1:
            if len(self.near) < MAX_NAMED_KEYS:
                self.near.append(str(path[-1]))
            if str(path[-1]) != self._segments[depth - 1] or self.has_value:
                return KEEP
            self.matched, self.near = depth, []
            return TAKE if depth == len(self._segments) else ENTER
        return KEEP

    def begin(self, path: JsonPath, is_text: bool) -> None:
        self.has_value = True

    def write(self, data: bytes) -> None:
        self._file.write(data)


def _extract(view: _Value, segments: list[str], file: IO[bytes]) -> tuple[_Value | None, int]:
    """Copy the value at a path inside a JSON part to a file.

    Returns:
        The value, and how many bytes were searched. No value if the search took too long.

    Raises:
        NotFound: if there is none. The message names the keys that are there.
    """
    extraction = _Extraction(segments, file)
    splitter = JsonSplitter(extraction.choose, extraction, lambda data: None)
    position, ends = 0, time.monotonic() + MAX_SEARCH_S
    try:
        # The value has ended once the splitter is on a shorter path than the value's.
        while position < view.size and not (extraction.has_value and len(splitter.path) < len(segments)):
            if time.monotonic() > ends:
                return None, position
            splitter.feed(view.read(position, READ_BYTES))
            position += READ_BYTES
    except ValueError:
        raise NotFound(f"path: {view.path} is no JSON, so no path leads into it") from None
    if not extraction.has_value:
        missing = clip(make_plain(segments[extraction.matched]), MAX_SHOWN_KEY_CHARS)
        keys = ", ".join(clip(make_plain(key), MAX_SHOWN_KEY_CHARS) for key in extraction.near if key) or "no values"
        where = ".".join(segments[: extraction.matched]) or view.path
        raise NotFound(f"path: there is no {missing!r} in {where}, which has {keys}")
    file.flush()
    return _Value(".".join(segments), file, 0, file.seek(0, os.SEEK_END)), position


def _answer_unfinished(handle: str, view: _Value, segments: list[str], searched: int) -> tuple[dict[str, object], str]:
    """Build the answer of a search for a path that took too long: where to read or search on in the part."""
    page = {"handle": handle, "path": view.path, "bytes": view.size, "text": "", "next_offset": searched}
    wanted = clip(make_plain(".".join(segments)), MAX_SHOWN_KEY_CHARS)
    note = f"[toolscout: searched for {MAX_SEARCH_S:g} s, as far as offset {searched} of {view.size}, and did not come "
    note += f"to the end of {wanted!r}; go on with path={view.path} and offset={searched}, or with grep]"
    return page, note


# --- pages ------------------------------------------------------------------------------------------------------------


def _answer_page(
    answer: dict[str, Any], view: _Value, base: int, offset: int, budget: int
) -> tuple[dict[str, object], str]:
    """Build a page of a value. It ends with the value, also if other parts follow.

    Args:
        answer: the fields that every answer has.
        view: the value.
        base: what is added to an offset in the value for the agent: where the value is in the entire result, or 0.
        offset: where the page begins in the value.
        budget: tokens.
    """
    count = (budget - NOTE_TOKENS) * BYTES_PER_TOKEN
    while True:
        data = view.read(offset, count)
        is_last = offset + len(data) >= view.size
        text = decode_head(data, is_whole=is_last)
        end = base + (offset + len(data) if is_last else offset + len(text.encode()))
        page = {**answer, "offset": base + offset, "text": text}
        if end < answer["bytes"]:
            page["next_offset"] = end
        if count_tokens(page) <= budget or count <= NOTE_TOKENS:  # so few bytes are sent anyway
            break
        count //= 2  # its escapes take more room in JSON
    where = f" of {view.path}" if answer["path"] else f" (in {view.path})"
    note = f"[toolscout: bytes {base + offset} to {end} of {answer['bytes']}{where}"
    note += f"; read on with offset={end}]" if "next_offset" in page else "; this is the end]"
    return page, f"{text}\n{note}"


def _split_grep(grep: str) -> list[list[bytes]]:
    """Split a search into alternatives (`|`), each of which is a list of literal texts in order (`.*`).

    No other sign has a meaning.
    """
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
    """Make upper and lower case the same. Every letter keeps its number of bytes, so that offsets stay."""
    if data.isascii():
        return data.lower()
    text = data.decode("utf-8", "surrogateescape")
    folded = {ord(letter): letter.casefold() for letter in set(text) if _keeps_size(letter.casefold(), letter)}
    return text.translate(folded).encode("utf-8", "surrogateescape")


def _keeps_size(folded: str, letter: str) -> bool:
    return folded != letter and len(folded.encode("utf-8", "replace")) == len(letter.encode("utf-8", "replace"))


def _answer_grep(
    answer: dict[str, Any], view: _Value, base: int, offset: int, grep: str, budget: int
) -> tuple[dict[str, object], str]:
    """Build an answer with the lines that match, each with its offset. `base`, `offset`: as in `_answer_page`."""
    matches: list[dict[str, object]] = []
    room = budget - NOTE_TOKENS
    search = _Search(view, _split_grep(grep), offset)
    for start, line in search.find_lines():
        match = {"offset": base + start, "text": line}
        room -= count_tokens(match) + 1
        if room < 0 and matches:
            answer["next_offset"] = base + start
            break
        matches.append(match)
    else:
        if search.position < view.size:
            answer["next_offset"] = base + search.position
    page = {**answer, "grep": grep, "matches": matches}
    lines = [f"{match['offset']}: {match['text']}" for match in matches]
    end = base + view.size
    if "next_offset" in page:
        why = "more lines match" if search.position >= view.size else f"searched for {MAX_SEARCH_S:g} s"
        lines.append(f"[toolscout: {why}; go on with offset={page['next_offset']}]")
    elif end < answer["bytes"]:
        page["next_offset"] = end
        lines.append(f"[toolscout: this was {view.path}; the next part begins at offset={end}]")
    else:
        lines.append(f"[toolscout: {'these are all lines' if matches else 'no line matches'} from offset {offset} on]")
    return page, "\n".join(lines)


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
        self._next = 0  # index of the text that is looked for
        self._start = self._position = offset  # where the first text was found, and where to go on

    def starts_before(self, offset: int) -> bool:
        """Return whether the match, or the part of one that was found so far, begins before an offset."""
        return (self._start if self._next else self._position) < offset

    def search(self, data: bytes, base: int, end: int) -> None:
        """Search on in the bytes from offset `base`. A text that begins at `end` or later is left to the next bytes."""
        line_end = -1
        while self.found is None:
            text, position = self.texts[self._next], self._position - base
            if self._next and line_end < position:
                line_end = data.find(b"\n", position)
                line_end = len(data) if line_end < 0 else line_end
            text_start = data.find(text, position, line_end if self._next else len(data))
            if 0 <= text_start < end - base:
                self._start = self._start if self._next else base + text_start
                self._next, self._position = self._next + 1, base + text_start + len(text)
                if self._next == len(self.texts):
                    self.found = self._start, self._position
            elif text_start < 0 and self._next and line_end < len(data):
                self._next, self._position = 0, base + line_end + 1  # not in this line: begin again in the next one
            else:  # not in these bytes
                self._position = max(self._position, end)
                return


class _Search:
    """Searches a value for lines, in time that grows with its size alone.

    Attributes:
        position: how far it was searched.
    """

    def __init__(self, view: _Value, alternatives: list[list[bytes]], offset: int) -> None:
        self.position = offset
        self._view, self._reported = view, offset  # lines before this offset have been returned
        self._alternatives = [_TextSequence(texts, offset) for texts in alternatives]
        # Bytes that are read twice: a text may begin in one read and end in the next.
        self._overlap = max(len(text) for texts in alternatives for text in texts) + MAX_LETTER_BYTES

    def find_lines(self) -> Iterator[tuple[int, str]]:
        """Yield offset and text of each line that matches. Of a long line only the surroundings of a match count."""
        ends = time.monotonic() + MAX_SEARCH_S
        while self.position < self._view.size and time.monotonic() < ends:
            data = _fold(self._view.read(self.position, READ_BYTES))
            is_last = self.position + len(data) >= self._view.size
            end = self.position + len(data) - (0 if is_last else self._overlap)
            while (found := self._find_first(data, end)) is not None:
                yield self._show(*found)
            self.position = end

    def _find_first(self, data: bytes, end: int) -> tuple[int, int] | None:
        """Return start and end of the first match of any alternative. None if these bytes have no more."""
        for alternative in self._alternatives:
            alternative.search(data, self.position, end)
        return min((texts.found for texts in self._alternatives if texts.found is not None), default=None)

    def _show(self, start: int, end: int) -> tuple[int, str]:
        """Return the line of a match, or its surroundings, and go on after it."""
        shown_start = max(start - LINE_EDGE_BYTES, self._reported)
        shown_start += self._view.read(shown_start, start - shown_start).rfind(b"\n") + 1  # not before the line
        after, _, _ = self._view.read(end, LINE_EDGE_BYTES).partition(b"\n")
        self._reported = end + len(after)
        for alternative in self._alternatives:
            if alternative.starts_before(self._reported):
                alternative.restart(self._reported)
        pieces = [self._view.read(shown_start, self._reported - shown_start)]
        if end - start > MAX_SHOWN_GAP_BYTES:  # show the beginning and the end of the match only
            tail_start = self._reported - MAX_SHOWN_GAP_BYTES // 2 - len(after)
            head_bytes = start - shown_start + MAX_SHOWN_GAP_BYTES // 2
            pieces = [self._view.read(shown_start, head_bytes), " … ".encode()]
            pieces.append(self._view.read(tail_start, self._reported - tail_start))
        return shown_start, b"".join(pieces).decode("utf-8", "ignore").strip()
