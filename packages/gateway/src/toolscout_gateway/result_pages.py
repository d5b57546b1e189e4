"""Reads stored results for an agent: a page from an offset, the value at a path, or the lines with some words."""

from __future__ import annotations

import os
import re
import tempfile
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
MAX_GAP_BYTES: Final = 400  # that `.*` may stand for
MAX_GREP_CHARS: Final = 200
MAX_ALTERNATIVES: Final = 8


class _View(NamedTuple):
    """A value in a file."""

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
) -> tuple[dict[str, Any], str]:
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
        UserError: for an offset after the end.
    """
    stored = results.load(caller, handle)
    with ExitStack() as stack:
        file = stack.enter_context(results.open(handle))
        view, rest = _find_part(stored, file, _split_path(path), offset)
        if rest:
            extracted = stack.enter_context(tempfile.TemporaryFile(dir=results.folder))
            view = _extract(view, rest, extracted)
        offset -= 0 if path else _offset_of(stored, view)
        if offset > view.size or offset < 0:
            raise UserError(f"offset: expected at most {view.size}, the size of {view.path} in bytes, found {offset}")
        base = 0 if path else _offset_of(stored, view)
        total = view.size if path else stored.size
        answer: dict[str, Any] = {"handle": handle, "path": view.path if path else "", "bytes": total}
        if grep:
            return _answer_grep(answer, view, base, offset, grep, results.budget)
        return _answer_page(answer, view, base, offset, results.budget)


# --- where a value is -------------------------------------------------------------------------------------------------


def _split_path(path: str) -> list[str]:
    """Split `a.b[0].c`, `$.a` or `/a/b` into segments."""
    path = path.strip()
    if path.startswith("/"):
        return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
    path = re.sub(r"\[['\"]?([^\[\]]*?)['\"]?\]", r".\1", path)
    return [part for part in path.removeprefix("$").split(".") if part]


def _offset_of(stored: StoredResult, view: _View) -> int:
    """Return how many bytes of other parts stand before a part."""
    return sum(part.size for part in stored.parts if part.start < view.start)


def _find_part(stored: StoredResult, file: IO[bytes], segments: list[str], offset: int) -> tuple[_View, list[str]]:
    """Find the part that a path or an offset leads to, and the segments that lead on inside it."""
    parts = [part for part in stored.parts if part.size] or stored.parts
    if not segments:
        return _view(_find_part_at(parts, offset), file), []
    for part in stored.parts:
        names = part.path.split(".")
        if segments[: len(names)] == names:
            return _view(part, file), segments[len(names) :]
    structured = [part for part in stored.parts if not part.is_text]
    for part in [*structured, *parts]:
        if not part.is_text or _view(part, file).read(0, 200).lstrip()[:1] in (b"{", b"["):
            return _view(part, file), segments
    names = [part.path for part in stored.parts[:MAX_NAMED_KEYS]]
    raise NotFound(f"path: this result is no JSON; expected one of its parts ({', '.join(names)}), or no path")


def _find_part_at(parts: Sequence[StoredPart], offset: int) -> StoredPart:
    """Return the part that holds an offset of the whole; the last one if it lies behind."""
    before = 0
    for part in parts:
        if offset < before + part.size:
            break
        before += part.size
    return part


def _view(part: StoredPart, file: IO[bytes]) -> _View:
    return _View(part.path, file, part.start, part.size)


class _Extraction:
    """Writes the value at a path to a file, and notes the keys beside it."""

    def __init__(self, segments: list[str], file: IO[bytes]) -> None:
        self.has_value = False
        self.matched, self.near = 0, [""]
        self._segments, self._file = segments, file

    def choose(self, path: JsonPath) -> str:
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


def _extract(view: _View, segments: list[str], file: IO[bytes]) -> _View:
    """Copy the value at a path inside a JSON part to a file.

    Raises:
        NotFound: if there is none. The message names the keys that are there.
    """
    extraction = _Extraction(segments, file)
    splitter = JsonSplitter(extraction.choose, extraction, lambda data: None)
    position = 0
    try:
        while position < view.size and not (extraction.has_value and len(splitter.path) < len(segments)):
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
    return _View(".".join(segments), file, 0, file.seek(0, os.SEEK_END))


# --- pages ------------------------------------------------------------------------------------------------------------


def _answer_page(
    answer: dict[str, Any], view: _View, base: int, offset: int, budget: int
) -> tuple[dict[str, Any], str]:
    """Build a page of a value. It ends with the value, also if other parts follow."""
    count = (budget - NOTE_TOKENS) * BYTES_PER_TOKEN
    while True:
        data = view.read(offset, count)
        is_last = offset + len(data) >= view.size
        text = decode_head(data, is_whole=is_last)
        end = base + (offset + len(data) if is_last else offset + len(text.encode()))
        page = {**answer, "offset": base + offset, "text": text}
        if end < answer["bytes"]:
            page["next_offset"] = end
        if count_tokens(page) <= budget or count <= NOTE_TOKENS:
            break
        count //= 2  # its escapes take more room in JSON
    where = f" of {view.path}" if answer["path"] else f" (in {view.path})"
    note = f"[toolscout: bytes {base + offset} to {end} of {answer['bytes']}{where}"
    note += f"; read on with offset={end}]" if "next_offset" in page else "; this is the end]"
    return page, f"{text}\n{note}"


def _compile_grep(grep: str) -> re.Pattern[bytes]:
    """Compile a search for literal texts: `|` separates alternatives, `.*` stands for anything in a line.

    No other sign has a meaning, so that the time of a search is bounded.
    """
    if len(grep) > MAX_GREP_CHARS or grep.count("|") >= MAX_ALTERNATIVES:
        raise UserError(
            f"grep: expected at most {MAX_GREP_CHARS} characters and {MAX_ALTERNATIVES} alternatives, found more: "
            "search for fewer words at once"
        )
    alternatives = []
    for alternative in filter(str.strip, grep.split("|")):
        texts = [b"".join(map(_match_letter, text)) for text in alternative.strip().split(".*")]
        alternatives.append((b"[^\n]{0,%d}?" % MAX_GAP_BYTES).join(text for text in texts if text))
    if not any(alternatives):
        raise UserError("grep: expected words to look for, found none")
    return re.compile(b"|".join(text for text in alternatives if text), re.IGNORECASE)


def _match_letter(letter: str) -> bytes:
    if letter.isascii():
        return re.escape(letter.encode())
    forms = dict.fromkeys(form.encode("utf-8", "replace") for form in (letter, letter.lower(), letter.upper()))
    return b"(?:" + b"|".join(map(re.escape, forms)) + b")"


def _answer_grep(
    answer: dict[str, Any], view: _View, base: int, offset: int, grep: str, budget: int
) -> tuple[dict[str, Any], str]:
    """Build an answer with the lines that match, each with its offset."""
    matches: list[dict[str, Any]] = []
    room = budget - NOTE_TOKENS
    for start, line in _find_lines(view, _compile_grep(grep), offset):
        match = {"offset": base + start, "text": line}
        room -= count_tokens(match) + 1
        if room < 0 and matches:
            answer["next_offset"] = base + start
            break
        matches.append(match)
    page = {**answer, "grep": grep, "matches": matches}
    lines = [f"{match['offset']}: {match['text']}" for match in matches]
    end = base + view.size
    if "next_offset" in page:
        lines.append(f"[toolscout: more lines match; go on with offset={page['next_offset']}]")
    elif end < answer["bytes"]:
        page["next_offset"] = end
        lines.append(f"[toolscout: this was {view.path}; the next part begins at offset={end}]")
    else:
        lines.append(f"[toolscout: {'these are all lines' if matches else 'no line matches'} from offset {offset} on]")
    return page, "\n".join(lines)


def _find_lines(view: _View, pattern: re.Pattern[bytes], offset: int) -> Iterator[tuple[int, str]]:
    """Yield offset and text of each line that matches. Of a long line only the surroundings of a match count."""
    overlap = MAX_GAP_BYTES * MAX_ALTERNATIVES + 2 * LINE_EDGE_BYTES
    reported = offset  # what stands before was shown
    while offset < view.size:
        data = view.read(offset, READ_BYTES)
        is_last = offset + len(data) >= view.size
        safe = len(data) if is_last else len(data) - overlap  # a later match is found again in the next piece
        position = max(0, reported - offset)
        while (found := pattern.search(data, position)) and found.start() < safe:
            start = max(data.rfind(b"\n", 0, found.start()) + 1, found.start() - LINE_EDGE_BYTES, reported - offset)
            end = data.find(b"\n", found.end())
            end = min(len(data) if end < 0 else end, found.end() + LINE_EDGE_BYTES)
            yield offset + start, data[start:end].decode("utf-8", "ignore").strip()
            position = max(end, position + 1)
            reported = offset + position
        offset += len(data) if is_last else max(1, safe - LINE_EDGE_BYTES)
