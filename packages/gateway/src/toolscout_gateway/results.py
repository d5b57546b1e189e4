"""Cuts results to a budget of tokens. The entire result stays in a file for a day, and a handle reads it.

The answer says what was left out. Only the caller who made the call can read its handle.
"""

from __future__ import annotations

import copy
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from toolscout.errors import NotFound, StoreError, Unavailable
from toolscout.location import Home, find_shared
from toolscout.sources.json_stream import JsonPath
from toolscout.sources.mcp_limits import PARTIAL, SPILL, SPLIT_BYTES, Spill, SpilledPart
from toolscout.trust.private_files import make_private_folder, open_private, replace_file, tighten
from toolscout.trust.redaction import Cover
from toolscout_gateway.result_cut import NOTE_TOKENS, BlockCutter, prune_value
from toolscout_gateway.text import BYTES_PER_TOKEN, count_tokens
from toolscout_gateway.threads import FairThreads

if TYPE_CHECKING:
    from mcp_types import CallToolResult

__all__ = ["DETAIL", "HANDLE", "LEFT_OUT", "Results", "StoredPart", "StoredResult"]

KEEP_RESULTS_S: Final = 86_400.0
MAX_RESULTS_BYTES: Final = 4 * 2**30  # of all results in the home; the oldest are removed first
MAX_ENTIRE_BYTES: Final = 16 * 2**20  # of a result that is sent whole to a caller who asks for that
MAX_MEDIA_BYTES: Final = 5 * 2**20  # of a picture or a sound, as base64
RESULT_THREADS: Final = 2
PURGE_PAUSE_S: Final = 60.0
COPY_BYTES: Final = 2**18
MAX_NAMED_PARTS: Final = 5
MAX_LISTED_PARTS: Final = 50
DETAIL: Final = "toolscout/detail"  # key in `_meta` of a call; `full` asks for the entire result
HANDLE: Final = "toolscout/result"  # key in `_meta` of a result that was cut
LEFT_OUT: Final = "toolscout_left_out"  # key in structured content that was cut
_log: Final = logging.getLogger("toolscout.gateway.results")
_HANDLE: Final = re.compile(r"[A-Za-z0-9_-]{16}")


class StoredPart(msgspec.Struct, frozen=True):
    """One value of a stored result: its path, whether it is a text or JSON, and the `size` bytes from `start` on."""

    path: str
    is_text: bool
    start: int
    size: int


class StoredResult(msgspec.Struct, frozen=True):
    """Describes a stored result, in a file of its own beside the bytes of all its values."""

    caller: str
    tool: str
    at: float  # when the call ended, in seconds since the epoch
    parts: list[StoredPart]

    @property
    def size(self) -> int:
        """The bytes of all parts."""
        return sum(part.size for part in self.parts)


class Results:
    """The results of calls: cut for the answer, and stored for a day.

    Attributes:
        folder: where they are stored. Only its owner can enter it.
        budget: tokens of an answer. Its content and its structured content each keep to it.
        threads: in which results are cut and read, one at a time for each caller.
    """

    def __init__(self, folder: Path, budget: int, home: Home | None = None) -> None:
        self.folder, self.budget = folder, budget
        shared = find_shared(home) if home is not None else None
        self._shared = shared.open_handles() if shared else None  # where other replicas find the results too
        self.threads = FairThreads(RESULT_THREADS, 1)
        self._purged_at = float("-inf")  # monotonic seconds of the last look for results that are too old

    def within(self, budget: int | None) -> Results:
        """Return these results with another budget for answers. None: the same budget."""
        other = copy.copy(self)
        other.budget = budget or self.budget
        return other

    def fits(self, result: CallToolResult) -> bool:
        """Return whether a result is within the budget, so that it can be passed on unchanged."""
        if result.structured_content is not None and _count(result.structured_content) > self.budget:
            return False
        spent = media = 0  # tokens of texts, and characters of pictures and sounds in base64
        for block in result.content:
            if block.type in ("image", "audio"):
                media += len(block.data)
            else:
                spent += count_tokens(block.text) if block.type == "text" else _count(_dump(block))
        return spent <= self.budget and media <= MAX_MEDIA_BYTES

    def fit(
        self, result: CallToolResult, spill: Spill | None, *, caller: str, tool: str, cover: Cover, everything: bool
    ) -> CallToolResult:
        """Cut a result to the budget and store it. This reads and writes files.

        Args:
            result: as the server gave it. Values that are in a file are empty in it.
            spill: the file with its large values, or None. It is moved or removed.
            caller: name of the caller.
            tool: id of the tool.
            cover: covers credentials in the file. In `result` they are covered already.
            everything: whether the caller wants the entire result. It comes back whole if it has at most 16 MiB.

        Raises:
            Unavailable: if the result cannot be stored.
        """
        if spill is None and (everything or self.fits(result)):
            return result
        if spill is not None:  # the key of the file in `_meta` is for the gateway alone
            meta = {key: value for key, value in (result.meta or {}).items() if key != SPILL}
            result = result.model_copy(update={"meta": meta or None})
        try:
            handle, stored = self._store(result, spill, caller, tool, cover)
            with open(self.folder / f"{handle}.data", "rb") as data:
                if everything and stored.size <= MAX_ENTIRE_BYTES:
                    entire = _fill_in(result, stored, data)
                    self._remove(handle)
                    return entire
                self._share_with_replicas(handle)
                return self._cut(result, handle, stored, data, everything)
        except OSError as error:
            raise Unavailable(
                f"{tool} was called, but its result is too large for one answer and cannot be written to "
                f"{self.folder}: {error.strerror}. Make room there, or raise gateway_result_budget"
            ) from None
        finally:
            if spill is not None:
                spill.file.unlink(missing_ok=True)

    def load(self, caller: str, handle: str) -> StoredResult:
        """Return what is known of a stored result, for the caller who made the call.

        Raises:
            NotFound: for every other handle. The message reveals nothing.
        """
        if _HANDLE.fullmatch(handle):
            self._fetch_from_replica(handle)
            with suppress(OSError, msgspec.MsgspecError):
                stored = msgspec.json.decode((self.folder / f"{handle}.json").read_bytes(), type=StoredResult)
                if stored.caller == caller and time.time() - stored.at < KEEP_RESULTS_S:
                    return stored
        raise NotFound(
            "You have no result under this handle. A result is kept for a day, for the caller who made the call: "
            "call the tool again"
        )

    def _share_with_replicas(self, handle: str) -> None:
        """Store a result in a shared home, so that every replica can read it."""
        if self._shared is None:
            return
        description = (self.folder / f"{handle}.json").read_bytes()
        try:
            self._shared.put_result(handle, description, self.folder / f"{handle}.data", KEEP_RESULTS_S)
        except StoreError as error:
            _log.warning("A result can be read from this machine only: %s", error)

    def _fetch_from_replica(self, handle: str) -> None:
        """Copy a result of another replica to this machine, if there is one.

        Raises:
            StoreError: if the database does not answer.
        """
        if self._shared is None or (self.folder / f"{handle}.json").exists():
            return
        partial = self.folder / f"{secrets.token_urlsafe(12)}{PARTIAL}"
        try:
            description = self._shared.fetch_result(handle, partial)
            if description is not None:
                partial.replace(self.folder / f"{handle}.data")
                replace_file(self.folder / f"{handle}.json", description)
        finally:
            partial.unlink(missing_ok=True)

    def open(self, handle: str) -> IO[bytes]:
        """Open the bytes of a stored result."""
        return open(self.folder / f"{handle}.data", "rb")

    def purge_if_due(self) -> None:
        """Remove old results, at most once a minute."""
        if time.monotonic() - self._purged_at > PURGE_PAUSE_S:
            self.purge()

    def purge(self) -> None:
        """Remove results that are a day old, and the oldest ones if all take too much room."""
        self._purged_at = time.monotonic()
        if not self.folder.is_dir():
            return
        now, kept_bytes = time.time(), 0
        newest_first = sorted(self._list_files(), key=lambda entry: entry.stat().st_mtime, reverse=True)
        for entry in newest_first:
            kept_bytes += entry.stat().st_size
            is_old = now - entry.stat().st_mtime >= KEEP_RESULTS_S
            if is_old or kept_bytes > MAX_RESULTS_BYTES:
                Path(entry.path).unlink(missing_ok=True)

    def _list_files(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self.folder) as entries:
            yield from (entry for entry in entries if entry.name.endswith((".data", ".json", PARTIAL)))

    # --- storing

    def _store(
        self, result: CallToolResult, spill: Spill | None, caller: str, tool: str, cover: Cover
    ) -> tuple[str, StoredResult]:
        """Write the values of a result under a new handle. Returns the handle, and where each value is."""
        make_private_folder(self.folder)
        tighten(self.folder)
        self.purge_if_due()
        handle = secrets.token_urlsafe(12)
        path = self.folder / f"{handle}.data"
        parts: list[StoredPart] = []
        if spill is not None and not cover:  # no credentials have to be covered, so the file itself is kept
            spill.file.replace(path)
            parts = [StoredPart(_show_path(part.path), part.is_text, part.start, part.size) for part in spill.parts]
        else:
            values = _list_values(result) if spill is None else _cover_file(spill, cover)
            with open(open_private(path, os.O_WRONLY | os.O_EXCL), "wb") as file:
                for value_path, is_text, pieces in values:
                    start = file.tell()
                    for piece in pieces:
                        file.write(piece)
                    parts.append(StoredPart(_show_path(value_path), is_text, start, file.tell() - start))
        stored = StoredResult(caller, tool, time.time(), parts)
        with open(open_private(self.folder / f"{handle}.json", os.O_WRONLY | os.O_EXCL), "wb") as file:
            file.write(msgspec.json.encode(stored))
        return handle, stored

    def _remove(self, handle: str) -> None:
        for suffix in ("data", "json"):
            (self.folder / f"{handle}.{suffix}").unlink(missing_ok=True)

    # --- cutting

    def _cut(
        self, result: CallToolResult, handle: str, stored: StoredResult, data: IO[bytes], everything: bool
    ) -> CallToolResult:
        """Build the answer: the beginning of each part within the budget, and a note on the rest."""
        from mcp_types import TextContent

        parts = {part.path: part for part in stored.parts}
        room = (self.budget - NOTE_TOKENS) * BYTES_PER_TOKEN
        cutter = BlockCutter(room, MAX_MEDIA_BYTES, _make_reader(parts, data))
        blocks = [cutter.cut(index, block) for index, block in enumerate(result.content)]
        content = [block for block in blocks if block is not None]
        structured, left_out_values = self._cut_structured(result, parts.get("structuredContent"), data, room)
        left_out = [*cutter.left_out, *left_out_values]
        note = _write_note(handle, left_out, self.budget, everything)
        if left_out_values and isinstance(structured, dict):
            structured = {**structured, LEFT_OUT: {"handle": handle, "note": note}}
        listed = [{"path": part.path, "bytes": part.size} for part in stored.parts[:MAX_LISTED_PARTS]]
        meta = {**(result.meta or {}), HANDLE: {"handle": handle, "parts": listed, "kept_seconds": int(KEEP_RESULTS_S)}}
        if left_out:
            content.append(TextContent(text=note))
        changes = {"content": content, "structured_content": structured, "meta": meta}
        return result.model_copy(update=changes)

    @staticmethod
    def _cut_structured(
        result: CallToolResult, part: StoredPart | None, data: IO[bytes], room: int
    ) -> tuple[object, list[str]]:
        """Return the structured content within `room` bytes, and what was left out."""
        if part is None:
            return result.structured_content, []
        if part.size > SPLIT_BYTES:  # too large to be decoded here
            return {}, [f"structuredContent ({part.size:,} bytes)"]
        value = result.structured_content
        if not value:  # its values are in the file
            data.seek(part.start)
            value = msgspec.json.decode(data.read(part.size))
        left_out: list[str] = []
        return prune_value(value, room, "structuredContent", left_out), left_out


def _count(value: object) -> int:
    """Estimate the tokens of a value, also of one that cannot be encoded as JSON."""
    try:
        return count_tokens(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return count_tokens(repr(value))  # it has numbers beyond 64 bits, or is too deep


def _dump(block: Any) -> dict[str, object]:
    dumped: dict[str, Any] = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped


def _show_path(path: JsonPath) -> str:
    return ".".join(map(str, path))


def _list_values(result: CallToolResult) -> Iterator[tuple[JsonPath, bool, Sequence[bytes]]]:
    """Yield the values of a result in memory: path, whether it is a text, and its bytes."""
    for index, block in enumerate(result.content):
        fields: dict[JsonPath, object] = {(field,): getattr(block, field, None) for field in ("text", "data")}
        if block.type == "resource":
            fields |= {("resource", field): getattr(block.resource, field, None) for field in ("text", "blob")}
        for path, text in fields.items():
            if isinstance(text, str):
                yield ("content", index, *path), True, [text.encode("utf-8", "replace")]
    if result.structured_content is not None:
        yield ("structuredContent",), False, [_encode(result.structured_content)]


def _encode(value: object) -> bytes:
    """Encode a value as JSON. What msgspec refuses is encoded by the slower standard library."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        import json

        return json.dumps(value).encode("utf-8", "replace")  # it holds numbers beyond 64 bits, or lone surrogates


def _cover_file(spill: Spill, cover: Cover) -> Iterator[tuple[JsonPath, bool, Iterator[bytes]]]:
    """Yield the values of a result in a file, with credentials covered."""
    with open(spill.file, "rb") as file:
        for part in spill.parts:
            yield part.path, part.is_text, _cover_part(file, part, cover)


def _cover_part(file: IO[bytes], part: SpilledPart, cover: Cover) -> Iterator[bytes]:
    """Read one value in pieces. An end that may be the beginning of a credential waits for the next piece."""
    file.seek(part.start)
    bytes_left, text = part.size, ""
    while bytes_left:
        piece = file.read(min(bytes_left, COPY_BYTES))
        bytes_left -= len(piece)
        text = cover.text(text + piece.decode("utf-8", "surrogateescape"))
        waiting_chars = cover.max_chars if bytes_left else 0
        end = max(0, len(text) - waiting_chars)
        yield text[:end].encode("utf-8", "surrogateescape")
        text = text[end:]


def _make_reader(parts: dict[str, StoredPart], data: IO[bytes]) -> Callable[[JsonPath, int], tuple[bytes, int]]:
    """Return the function with which `BlockCutter` reads the beginning of a value, and the value's entire size."""

    def read(path: JsonPath, max_bytes: int) -> tuple[bytes, int]:
        part = parts[_show_path(path)]
        data.seek(part.start)
        return data.read(min(part.size, max(0, max_bytes))), part.size

    return read


def _fill_in(result: CallToolResult, stored: StoredResult, data: IO[bytes]) -> CallToolResult:
    """Return a result with the values of its file."""
    parts = {part.path: part for part in stored.parts}
    cutter = BlockCutter(MAX_ENTIRE_BYTES, MAX_ENTIRE_BYTES, _make_reader(parts, data))
    content = [cutter.fill(index, block) for index, block in enumerate(result.content)]
    structured, part = result.structured_content, parts.get("structuredContent")
    if part is not None:
        data.seek(part.start)
        structured = msgspec.json.decode(data.read(part.size))
    return result.model_copy(update={"content": content, "structured_content": structured})


def _write_note(handle: str, left_out: Sequence[str], budget: int, everything: bool) -> str:
    """Say to the agent what was left out of a result, why, and how to read on."""
    named = "; ".join(left_out[:MAX_NAMED_PARTS])
    if len(left_out) > MAX_NAMED_PARTS:
        named += f"; and {len(left_out) - MAX_NAMED_PARTS:,} more parts"
    why = f"cut to {MAX_ENTIRE_BYTES // 2**20} MiB at once" if everything else f"cut to {budget:,} tokens"
    return (
        f"[toolscout: this result is {why}. Left out: {named}. "
        f'Read on with read_result(handle="{handle}", path=…, offset=…), or find lines with grep="words". '
        "It is kept for a day.]"
    )
