"""Files of named arrays that every process of a machine maps and shares.

A file begins with a header: a mark, the length and the digest of a JSON text, and the text, which lists the arrays and
carries the caller's values. The arrays follow, each at a multiple of 64 bytes. A file is written under another name and
renamed, so there is never half a file. Only its owner may read it. Nothing in it is executed.

A small file is checked as a whole when it is opened. Of a large one, the header, the size and 64 blocks are checked, so
that opening it does not read a gigabyte; `check_file` reads it all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.errors import StoreError

__all__ = ["Arrays", "RowFile", "check_file", "open_arrays", "write_arrays"]

FILE_MARK: Final = b"toolscout arrays 1\n"
ALIGNMENT: Final = 64
BLOCK_BYTES: Final = 1 << 16
MAX_SAMPLED_BLOCKS: Final = 64  # a file with at most so many blocks is checked as a whole
MAX_HEADER_BYTES: Final = 1 << 24
DIGEST_BYTES: Final = 16
WRITE_BYTES: Final = 1 << 24
PREFIX_BYTES: Final = len(FILE_MARK) + 8 + DIGEST_BYTES  # before the text of the header: mark, length, digest
DTYPES: Final = frozenset(("uint8", "int8", "int32", "int64", "uint64", "float32", "float64"))

Arrays = Mapping[str, npt.NDArray[Any]]


class _ArrayEntry(msgspec.Struct, frozen=True, array_like=True):
    """One array of a file: its name, type and shape, and the byte behind the header where it begins."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class _FileHeader(msgspec.Struct, frozen=True):
    """What a file says of itself: its arrays, the caller's values, the bytes behind the header, and two checksums."""

    arrays: tuple[_ArrayEntry, ...]
    meta: dict[str, Any]
    n_bytes: int
    sampled: int
    whole: str


class RowFile:
    """Reads single rows of one array of a file without mapping them, so that they do not count as memory."""

    def __init__(self, path: Path, start: int, shape: tuple[int, int]) -> None:
        """Read rows of a float32 array that begins at a byte of the file."""
        self.shape = shape
        self._start, self._file = start, os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        _read_without_more(self._file)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._file)

    def __call__(self, positions: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
        """Return the rows at some positions, `(len(positions), d)`."""
        n_bytes = 4 * self.shape[1]
        rows = b"".join([os.pread(self._file, n_bytes, self._start + n_bytes * row) for row in positions.tolist()])
        return np.frombuffer(rows, dtype="<f4").reshape(-1, self.shape[1])


def write_arrays(path: Path, arrays: Arrays, meta: Mapping[str, Any]) -> None:
    """Write a file, or replace it in one step.

    Args:
        path: of the file. Its folder must exist.
        arrays: of the types in `DTYPES`.
        meta: JSON values.

    Raises:
        StoreError: if the file cannot be written.
    """
    entries, start = [], 0
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise ValueError(f"{name}: expected one of {', '.join(sorted(DTYPES))}, found {array.dtype.name}")
        entries.append(_ArrayEntry(name, array.dtype.name, array.shape, start))
        start += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:
            room = _write_header(file, _FileHeader(tuple(entries), dict(meta), start, 0, "0" * 2 * DIGEST_BYTES))
            digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
            for entry, array in zip(entries, arrays.values(), strict=True):
                file.seek(room + entry.start)
                for part in _pad(_list_parts(array)):
                    digest.update(part)
                    file.write(part)
            file.flush()
            sampled = _sum_samples(file, room, start)
            file.seek(0)
            _write_header(file, _FileHeader(tuple(entries), dict(meta), start, sampled, digest.hexdigest()))
            file.flush()
            if start > BLOCK_BYTES * MAX_SAMPLED_BLOCKS:  # a smaller one is checked as a whole
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(f"{path} cannot be written: {error}") from error


def _list_parts(array: npt.NDArray[Any]) -> Iterator[memoryview]:
    """Yield the bytes of an array, some at a time, little endian."""
    step = max(1, WRITE_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array) if array.size else 0, step):
        part = np.ascontiguousarray(array[start : start + step])
        yield part.astype(part.dtype.newbyteorder("<"), copy=False).data.cast("B")


def _pad(parts: Iterator[memoryview]) -> Iterator[memoryview | bytes]:
    """Yield the parts, and the zeros up to the next multiple of `ALIGNMENT`."""
    count = 0
    for part in parts:
        count += len(part)
        yield part
    yield b"\0" * (-count % ALIGNMENT)


def _write_header(file: Any, header: _FileHeader) -> int:
    """Write the header, padded so that its length does not depend on the checksums. Returns where the arrays begin."""
    fixed = msgspec.json.encode(msgspec.structs.replace(header, sampled=0, whole=""))
    size = _find_room(len(fixed) + ALIGNMENT) - PREFIX_BYTES
    text = msgspec.json.encode(header).ljust(size)
    file.write(FILE_MARK + size.to_bytes(8, "little") + hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest() + text)
    return _find_room(size)


def _find_room(size: int) -> int:
    """Return the byte where the arrays begin, behind a header text of this size."""
    return -(-(PREFIX_BYTES + size) // ALIGNMENT) * ALIGNMENT


def _sum_samples(file: BinaryIO, room: int, n_bytes: int) -> int:
    """Return the checksum of the blocks that are checked when a file is opened."""
    last = max(0, -(-n_bytes // BLOCK_BYTES) - 1)
    checksum = 0
    for number in sorted(set(np.linspace(0, last, MAX_SAMPLED_BLOCKS).astype(np.int64).tolist())):
        length = min(BLOCK_BYTES, n_bytes - number * BLOCK_BYTES)
        file.seek(room + number * BLOCK_BYTES)
        checksum = zlib.crc32(file.read(length), checksum)
    return checksum


def _read_without_more(file: int) -> None:
    """Ask the system not to read ahead of what is asked for: some disks read megabytes for each block."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)


def _read_header(path: Path) -> tuple[_FileHeader, int]:
    """Return the checked header, and the byte where the arrays begin.

    Raises:
        OSError, ValueError, msgspec.MsgspecError
    """
    with path.open("rb") as file:
        _read_without_more(file.fileno())
        start = file.read(PREFIX_BYTES)
        size = int.from_bytes(start[len(FILE_MARK) : len(FILE_MARK) + 8], "little")
        if not start.startswith(FILE_MARK) or size > MAX_HEADER_BYTES:
            raise ValueError("it has another format")
        text = file.read(size)
        if hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest() != start[len(FILE_MARK) + 8 :]:
            raise ValueError("its header is damaged")
        header, room = msgspec.json.decode(text, type=_FileHeader), _find_room(size)
        if os.fstat(file.fileno()).st_size != room + header.n_bytes:
            raise ValueError("it has another length than its header says")
        for entry in header.arrays:
            is_inside = entry.dtype in DTYPES and entry.start >= 0 and min(entry.shape, default=0) >= 0
            if not is_inside or entry.start + entry.n_bytes > header.n_bytes:
                raise ValueError(f"its array {entry.name} is not inside the file")
        if _sum_samples(file, room, header.n_bytes) != header.sampled:
            raise ValueError("its content is damaged")
    return header, room


def open_arrays(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any], dict[str, RowFile]]:
    """Map the arrays of a file, read only.

    Returns:
        The arrays, the values that the caller wrote, and a reader of rows for each two-dimensional float32 array.

    Raises:
        StoreError: if the file is not there, cannot be read, or is damaged.
    """
    try:
        header, room = _read_header(path)
        whole = np.memmap(path, dtype=np.uint8, mode="r") if header.n_bytes else np.zeros(room, dtype=np.uint8)
        content = np.asarray(whole)[room:]  # a plain array: slices of a memmap are slow
        arrays, readers = {}, {}
        for entry in header.arrays:
            part = content[entry.start : entry.start + entry.n_bytes]
            dtype = np.dtype(entry.dtype).newbyteorder("<")
            arrays[entry.name] = part.view(dtype).reshape(entry.shape)
            if entry.dtype == "float32" and len(entry.shape) == 2 and hasattr(os, "pread"):
                readers[entry.name] = RowFile(path, room + entry.start, (entry.shape[0], entry.shape[1]))
        return arrays, header.meta, readers
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from None


def check_file(path: Path) -> str | None:
    """Read a whole file. Returns what is wrong with it, or None."""
    try:
        header, room = _read_header(path)
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        with path.open("rb") as file:
            file.seek(room)
            while part := file.read(WRITE_BYTES):
                digest.update(part)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        return str(error)
    return None if digest.hexdigest() == header.whole else "its content is damaged"
