"""Reads JSON piece by piece, and takes chosen values out of it without keeping them in memory.

A usual parser has a value in memory as bytes, as text and as objects at once. `JsonSplitter` has one piece of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["ENTER", "KEEP", "TAKE", "JsonPath", "JsonSplitter", "Sink"]

JsonPath = tuple[str | int, ...]  # keys and positions from the root to a value
#: What is done with a value. The rest is the JSON that remains when the taken values are out of it.
KEEP: Final = "keep"  # copy the value into the rest
ENTER: Final = "enter"  # copy an object or a list into the rest, and choose again for each of its values
TAKE: Final = "take"  # hand the value to the sink; an empty value of its kind stays in the rest

NOT_JSON: Final = -1  # returned by a state instead of a position
MAX_PENDING_BYTES: Final = 2**20  # of a key, or of anything else that must be read at once
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_OBJECT_KEY: Final = re.compile(rb'(?P<key>"(?:[^"\\]|\\.)*")[ \t\r\n]*:', re.DOTALL)
_STRING_BODY: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_QUOTED: Final = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_LEAF: Final = rb'[{\[][^"{}\[\]]*(?:' + _QUOTED + rb'[^"{}\[\]]*)*[}\]]'  # an object or a list without another inside
_FLAT: Final = re.compile(rb'(?:[^"{}\[\]]+|' + _QUOTED + b"|" + _LEAF + b")*", re.DOTALL)
_SCALAR: Final = re.compile(rb"[-+.0-9eEtrufalsn]*")
_HIGH: Final = rb"u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
#: A run of text in which no escape is cut; a high surrogate is complete with what follows it.
_TEXT: Final = re.compile(
    rb'[^"\\]*(?:\\(?:[^u]|u(?![dD][89abAB])[0-9a-fA-F]{4}|' + _HIGH + rb"(?:" + _LOW
    + rb'|(?=[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F])))[^"\\]*)*',
    re.DOTALL,
)  # fmt: skip
_CUT_CHARACTER: Final = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,2}\Z")  # in UTF-8; its last bytes may follow
MAX_ESCAPE_BYTES: Final = 12  # two halves of a surrogate pair, such as \ud83d\ude00
_QUOTE: Final = ord('"')
_EMPTY_VALUES: Final = {ord("{"): b"{}", ord("["): b"[]"}
_CLOSING_BRACKETS: Final = {ord("{"): ord("}"), ord("["): ord("]")}


class Sink(Protocol):
    """Receives the values that are taken, one after the other."""

    def begin(self, path: JsonPath, is_text: bool) -> None:
        """Begin a value. `is_text`: it is a string and comes without quotes and escapes, in UTF-8."""

    def write(self, data: bytes) -> None:
        """Receive the next bytes of the value."""


class JsonSplitter:
    """Splits one JSON value into taken values and the rest.

    ::

        splitter = JsonSplitter(choose, sink, rest.append)
        for piece in pieces:
            splitter.feed(piece)
        splitter.finish()

    Attributes:
        path: keys and positions from the root to the value that is read now.
        skipped: bytes of white space between values. They are dropped: neither the sink nor the rest gets them.
    """

    def __init__(self, choose: Callable[[JsonPath], str], sink: Sink, keep: Callable[[bytes], object]) -> None:
        """Split by `choose`, which maps a path to `KEEP`, `ENTER` or `TAKE`. `keep` receives the rest."""
        self.path: list[str | int] = []
        self.skipped = 0
        self._choose, self._sink, self._keep = choose, sink, keep
        self._containers = bytearray()  # brackets that are open around the value
        self._state: Callable[[bytes, int], int] = self._read_value  # the method that reads what comes next
        self._pending = b""  # the end of the last piece, which needs the next one to be read
        self._write: Callable[[bytes], object] = keep  # receives the value that is copied: the sink or the rest
        self._depth = 0  # brackets that are open inside the value that is copied
        self._in_string = False  # whether the end of the copied bytes is inside a string
        self._may_close = False  # right after a bracket: an empty object or list may end here

    def feed(self, piece: bytes) -> None:
        """Read the next piece. Raises ValueError if it is not JSON."""
        data = self._pending + piece if self._pending else piece
        position = 0
        while position < len(data):
            state_before, position_before = self._state, position
            position = self._state(data, position)
            if position == NOT_JSON:
                raise ValueError("expected JSON, found something else")
            if position == position_before and self._state == state_before:
                break  # it needs more bytes
        self._pending = data[position:]
        if len(self._pending) > MAX_PENDING_BYTES:
            raise ValueError("expected a shorter key in JSON")

    def finish(self) -> None:
        """End the value. Raises ValueError if it is not complete."""
        # A number, true, false or null has no closing character: it ends where the JSON ends.
        is_scalar = self._state == self._copy and not (self._depth or self._in_string)
        is_complete = is_scalar or self._state in (self._read_next, self._read_end)
        if self._containers or not is_complete or self._pending.strip():
            raise ValueError("expected JSON to the end, found a part of it")

    # Each of these reads from `data[position:]`, returns the position after what it read, and sets the next state. The
    # same position with the same state asks for more bytes.

    def _skip_space(self, data: bytes, position: int) -> int:
        """Return the position after the white space at `position`, and count it."""
        end = _end_of(_SPACE, data, position)
        self.skipped += end - position
        return end

    def _read_value(self, data: bytes, position: int) -> int:
        """Begin a value, or close an empty list. What happens to the value is chosen here."""
        start = self._skip_space(data, position)
        if start == len(data):
            return start
        first = data[start]
        if first == ord("]") and self._may_close:
            return self._close(data, start)
        if first in b",]}:":
            return NOT_JSON
        self._may_close = False
        chosen = self._choose(tuple(self.path))
        if chosen == ENTER and first in b"{[":
            self._enter(first)
            return start + 1
        if chosen == TAKE and first == _QUOTE:
            self._keep(b'""')
            self._sink.begin(tuple(self.path), is_text=True)
            self._state = self._read_text
            return start + 1
        return self._begin_copy(data, start, is_taken=chosen == TAKE)

    def _enter(self, bracket: int) -> None:
        """Begin an object or a list. Where each of its values goes is chosen when that value begins."""
        self._keep(bytes([bracket]))
        self._containers.append(bracket)
        self._may_close = True  # it may be empty
        if bracket == ord("{"):
            self.path.append("")  # until the key is read
            self._state = self._read_key
        else:
            self.path.append(0)
            self._state = self._read_value

    def _begin_copy(self, data: bytes, start: int, is_taken: bool) -> int:
        """Begin to copy a value: to the sink if it is taken, else to the rest."""
        first = data[start]
        if is_taken:
            self._keep(_EMPTY_VALUES.get(first, b"null"))
            self._sink.begin(tuple(self.path), is_text=False)
        self._write = self._sink.write if is_taken else self._keep
        self._state = self._copy
        self._depth = 1 if first in b"{[" else 0
        self._in_string = first == _QUOTE
        is_scalar = not (self._depth or self._in_string)
        if is_scalar:
            return start  # it has no opening character to copy
        self._write(data[start : start + 1])
        return start + 1

    def _copy(self, data: bytes, position: int) -> int:
        """Copy a value as it is, up to its end or the end of `data`. Brackets inside are counted, not checked."""
        start = position
        is_scalar = not (self._depth or self._in_string)
        if is_scalar:
            return self._copy_scalar(data, position)
        while position < len(data):
            position = _end_of(_STRING_BODY if self._in_string else _FLAT, data, position)
            if position == len(data):
                break
            byte = data[position]
            if byte == _QUOTE:
                self._in_string = not self._in_string
            elif self._in_string:
                break  # the backslash of an escape that is not complete
            else:
                self._depth += 1 if byte in b"{[" else -1
            position += 1
            has_ended = not (self._depth or self._in_string)
            if has_ended:
                self._state = self._read_next
                break
        self._write(data[start:position])
        return position

    def _copy_scalar(self, data: bytes, position: int) -> int:
        """Copy a number, true, false or null. `NOT_JSON` if a character follows that cannot be behind one."""
        end = _end_of(_SCALAR, data, position)
        if end < len(data):
            if data[end] not in b",]} \t\r\n":
                return NOT_JSON
            self._state = self._read_next
        self._write(data[position:end])
        return end

    def _read_text(self, data: bytes, position: int) -> int:
        """Hand the text of a string to the sink, with its escapes resolved.

        An escape or a character that is cut at the end of `data` is left for the next piece.
        """
        end = _end_of(_TEXT, data, position)
        cut_character = _CUT_CHARACTER.search(data, max(position, end - 3)) if end == len(data) else None
        if cut_character is not None:
            end = cut_character.start()
        if end > position:
            self._sink.write(_unescape(data[position:end]))
        if end < len(data) and data[end] == _QUOTE:
            self._state = self._read_next
            return end + 1
        may_be_cut = len(data) - end <= MAX_ESCAPE_BYTES
        return end if may_be_cut else NOT_JSON

    def _read_key(self, data: bytes, position: int) -> int:
        """Read the key of the next value with its colon, or close an empty object."""
        start = self._skip_space(data, position)
        if start == len(data):
            return start
        if data[start] == ord("}") and self._may_close:
            return self._close(data, start)
        match = _OBJECT_KEY.match(data, start)
        if match is None:
            may_be_cut = data[start] == _QUOTE  # then the key goes on in the next piece
            return start if may_be_cut else NOT_JSON
        self.path[-1] = json.loads(match["key"])
        self._keep(match.group())
        self._state, self._may_close = self._read_value, False
        return match.end()

    def _read_next(self, data: bytes, position: int) -> int:
        """Read the comma or the bracket after a value."""
        if not self._containers:
            self._state = self._read_end
            return position
        start = self._skip_space(data, position)
        if start == len(data):
            return start
        if data[start] != ord(","):
            return self._close(data, start)
        self._keep(b",")
        key = self.path[-1]
        if isinstance(key, int):  # the position in a list
            self.path[-1] = key + 1
            self._state = self._read_value
        else:
            self._state = self._read_key
        self._may_close = False
        return start + 1

    def _close(self, data: bytes, position: int) -> int:
        """Close the object or list that is open around the position. `NOT_JSON` if its closing bracket is not there."""
        opened = self._containers.pop()
        if data[position] != _CLOSING_BRACKETS[opened]:
            return NOT_JSON
        self._keep(data[position : position + 1])
        self.path.pop()
        self._state, self._may_close = self._read_next, False
        return position + 1

    def _read_end(self, data: bytes, position: int) -> int:
        """Read the white space after the whole JSON value. `NOT_JSON` if anything else follows."""
        end = self._skip_space(data, position)
        return end if end == len(data) else NOT_JSON


def _end_of(pattern: re.Pattern[bytes], data: bytes, position: int) -> int:
    """Return where the bytes that match a pattern end; `position` itself if none match."""
    match = pattern.match(data, position)
    return position if match is None else match.end()


def _unescape(text: bytes) -> bytes:
    """Return a part of a JSON string with its escapes resolved. Half of a surrogate pair becomes U+FFFD."""
    if b"\\" not in text:
        return text
    plain: str = json.loads(f'"{text.decode("utf-8", "replace")}"', strict=False)
    try:
        return plain.encode("utf-8")
    except UnicodeEncodeError:
        return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode("utf-8")
