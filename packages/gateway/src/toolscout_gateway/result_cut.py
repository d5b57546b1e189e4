"""Shortens the parts of a result: texts to their beginning, lists to their first values, objects to small values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from toolscout.sources.json_stream import JsonPath
from toolscout_gateway.text import clip

__all__ = ["NOTE_TOKENS", "BlockCutter", "decode_head", "prune_value"]

NOTE_TOKENS: Final = 300  # kept free for the sentence that says what was left out
MIN_TEXT_BYTES: Final = 16  # a shorter beginning of a text says nothing
MAX_PRUNE_DEPTH: Final = 100
MAX_SHOWN_PATH_CHARS: Final = 80
ReadValue = Callable[[JsonPath, int], tuple[bytes, int]]  # (path, most bytes) → the value's beginning, its entire size


def decode_head(head: bytes, *, is_whole: bool) -> str:
    """Decode the beginning of a text. A letter that is cut is left out."""
    return head.decode("utf-8", "replace") if is_whole else head.decode("utf-8", "ignore")


class BlockCutter:
    """Cuts the content of a result, block by block.

    Attributes:
        left_out: for each part that is not whole, what is missing.
    """

    def __init__(self, room: int, media_room: int, read: ReadValue) -> None:
        """Cut to `room` bytes of text and `media_room` bytes of pictures and sounds. `read` reads the values."""
        self.left_out: list[str] = []
        self._room, self._media_room, self._read = room, media_room, read  # bytes that are left

    def cut(self, index: int, block: Any) -> object:
        """Return block number `index` of the content, cut to the room that is left; None if nothing of it fits."""
        value_path = _find_value_path(block)
        if value_path is None:
            size = len(block.model_dump_json(by_alias=True, exclude_none=True).encode())
            if size > self._room:
                self.left_out.append(f"content.{index} ({size:,} bytes)")
                return None
            self._room -= size
            return block
        path: JsonPath = ("content", index, *value_path)
        shown = ".".join(map(str, path))
        if block.type in ("image", "audio"):
            data, size = self._read(path, self._media_room)
            if len(data) < size:  # a part of a picture or sound cannot be shown
                self.left_out.append(f"{shown} ({block.mime_type[:40]}, {size:,} bytes of base64)")
                return None
            self._media_room -= size
            return _set_value(block, value_path, data.decode())
        head, size = self._read(path, self._room)
        if len(head) == size:
            self._room -= size
            return _set_value(block, value_path, decode_head(head, is_whole=True))
        text = decode_head(head, is_whole=False)
        is_binary = value_path[-1] == "blob"
        if is_binary or self._room < MIN_TEXT_BYTES:
            self.left_out.append(f"{shown} ({size:,} bytes)")
            return None
        self._room = 0
        self.left_out.append(f"{shown} from offset {len(text.encode())} of {size:,} bytes")
        return _set_value(block, value_path, text)

    def fill(self, index: int, block: object) -> object:
        """Return block number `index` of the content with its large value read whole, uncut."""
        value_path = _find_value_path(block)
        if value_path is None:
            return block
        data, _ = self._read(("content", index, *value_path), self._room)
        return _set_value(block, value_path, decode_head(data, is_whole=True))


def _find_value_path(block: Any) -> tuple[str, ...] | None:
    """Return the path of a block's large value (a text, a picture, a file) in the block; None if it has none."""
    if block.type == "resource":
        return ("resource", "text" if hasattr(block.resource, "text") else "blob")
    return {"text": ("text",), "image": ("data",), "audio": ("data",)}.get(block.type)


def _set_value(block: Any, value_path: tuple[str, ...], value: str) -> Any:
    field = value_path[-1]
    if block.type == "resource":
        return block.model_copy(update={"resource": block.resource.model_copy(update={field: value})})
    return block.model_copy(update={field: value})


def prune_value(value: object, room: int, path: str, left_out: list[str], depth: int = 0) -> object:
    """Return a JSON value shortened to about `room` bytes of JSON. `left_out` receives a phrase for what is missing.

    `path` is the place of the value in the result, and `depth` how many objects and lists are around it.
    """
    if _measure(value) <= room:
        return value
    if isinstance(value, str):
        return _prune_text(value, room, path, left_out)
    if depth >= MAX_PRUNE_DEPTH or not isinstance(value, (dict, list)):
        left_out.append(_shorten_path(path))
        return None
    if isinstance(value, list):
        return _prune_list(value, room, path, left_out, depth)
    return _prune_object(value, room, path, left_out, depth)


def _shorten_path(path: str) -> str:
    return clip(path, MAX_SHOWN_PATH_CHARS)


def _prune_text(text: str, room: int, path: str, left_out: list[str]) -> str:
    """Return the beginning of a text that fits, and note from which offset the rest is left out."""
    data = text.encode("utf-8", "replace")
    head = decode_head(data[: max(0, room - 2)], is_whole=False)  # two bytes for the quotes
    while head and _measure(head) > room:  # escapes take more bytes in JSON
        head = head[: len(head) * 3 // 4]
    left_out.append(f"{_shorten_path(path)} from offset {len(head.encode())} of {len(data):,} bytes")
    return head


def _prune_list(values: list[object], room: int, path: str, left_out: list[str], depth: int) -> list[object]:
    """Keep the first values. The first one is shortened if it alone is too large."""
    kept: list[object] = []
    room -= 2  # for the brackets
    for index, value in enumerate(values):
        size = _measure(value) + 1  # with its comma
        if size > room and kept:
            break
        kept.append(prune_value(value, room - 1, f"{path}.{index}", left_out, depth + 1))
        room -= size  # if the first value was shortened, this is less than 0, and the loop ends
    if len(kept) < len(values):
        left_out.append(f"{_shorten_path(path)} ({len(values) - len(kept):,} of {len(values):,} values)")
    return kept


def _prune_object(
    fields: dict[str, object], room: int, path: str, left_out: list[str], depth: int
) -> dict[str, object]:
    """Keep the small values whole, and divide the room that is left among the large ones."""
    sizes = {key: _measure(value) for key, value in fields.items()}
    value_rooms: dict[str, int] = {}  # key → most bytes of its value
    room -= 2  # for the braces
    for n_done, key in enumerate(sorted(fields, key=lambda key: sizes[key])):
        key_size = _measure(key) + 2  # with its colon and its comma
        value_room = room // (len(fields) - n_done) - key_size
        if value_room < MIN_TEXT_BYTES and sizes[key] > value_room:
            break  # neither this value nor a larger one fits
        value_rooms[key] = min(sizes[key], value_room)
        room -= value_rooms[key] + key_size
    if len(value_rooms) < len(fields):
        left_out.append(f"{_shorten_path(path)} ({len(fields) - len(value_rooms):,} of {len(fields):,} keys)")
    return {
        key: prune_value(value, value_rooms[key], f"{path}.{key}", left_out, depth + 1)
        for key, value in fields.items()
        if key in value_rooms
    }


def _measure(value: object) -> int:
    """Return the bytes of a value as JSON."""
    try:
        return len(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return len(repr(value).encode("utf-8", "replace"))
