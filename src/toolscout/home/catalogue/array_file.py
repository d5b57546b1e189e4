"""Files of named arrays that every process of a machine maps and shares, in the format of safetensors.

Any reader of safetensors reads them; the values of the caller and three checksums are in the metadata of the header. A
file is written under another name and renamed, so there is never half a file. Only its owner may read it.

A file is the length of its header (8 bytes, little endian), the header (JSON), and the arrays without gaps. A small
file is checked as a whole when it is opened. Of a large one, the header, the size and 64 blocks are checked, so that
opening it does not read a gigabyte; `check_file` reads it all.
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

from toolscout.arrays import Array, Arrays
from toolscout.errors import StoreError
from toolscout.trust.private_files import open_plain_file

__all__ = ["Arrays", "RowFile", "check_file", "open_arrays", "write_arrays"]

ALIGNMENT: Final = 64  # of the first array; the others follow without gaps, those with the largest items first
BLOCK_BYTES: Final = 1 << 16
MAX_SAMPLED_BLOCKS: Final = 64  # a file with at most so many blocks is checked as a whole
MAX_HEADER_BYTES: Final = 1 << 24
DIGEST_BYTES: Final = 16
NO_DIGEST: Final = "0" * 2 * DIGEST_BYTES  # as long as the hexadecimal digest that replaces it
WRITE_BYTES: Final = 1 << 24  # read or written at a time
#: Type of safetensors → type of numpy.
DTYPES: Final = {
    "U8": "uint8", "I8": "int8", "I32": "int32", "I64": "int64", "U64": "uint64", "F32": "float32", "F64": "float64",
}  # fmt: skip
TENSOR_TYPES: Final = {name: tensor_type for tensor_type, name in DTYPES.items()}


class _Entry(msgspec.Struct, frozen=True):
    """One array of a file: its type, its shape, and its first byte and its end, counted from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Metadata(msgspec.Struct, frozen=True):
    """What a header says besides the arrays: the caller's values, and the checksums.

    Attributes:
        values: of the caller, as JSON.
        sampled: CRC-32 of the blocks that are checked when a file is opened; see `_sum_samples`.
        whole: digest of the arrays.
        header: digest of the header with `NO_DIGEST` in the place of this field.
    """

    values: str
    sampled: str = "0" * 8
    whole: str = NO_DIGEST
    header: str = NO_DIGEST


class RowFile:
    """Reads single rows of one array of a file without mapping it, so that they do not count as memory in use."""

    def __init__(self, path: Path, start: int, shape: tuple[int, int]) -> None:
        """Read rows of a float32 array of this shape, `(rows, width)`, that begins at byte `start` of the file."""
        self.shape = shape
        self._start, self._file = start, os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        _disable_readahead(self._file)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # AttributeError: the file was never opened
            os.close(self._file)

    def __call__(self, positions: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
        """Return the rows at some positions, `(len(positions), width)`."""
        row_bytes = 4 * self.shape[1]
        rows = b"".join([os.pread(self._file, row_bytes, self._start + row_bytes * row) for row in positions.tolist()])
        return np.frombuffer(rows, dtype="<f4").reshape(-1, self.shape[1])


def write_arrays(path: Path, arrays: Arrays, meta: Mapping[str, object]) -> None:
    """Write a file, or replace it in one step.

    Args:
        path: of the file. Its folder must exist.
        arrays: name → array of a type in `DTYPES`.
        meta: the caller's values, as JSON can express them.

    Raises:
        StoreError: if the file cannot be written.
    """
    names = sorted(arrays, key=lambda name: -arrays[name].itemsize)  # so that each array is aligned without gaps
    entries, n_bytes = {}, 0
    for name in names:
        array = arrays[name]
        if array.dtype.name not in TENSOR_TYPES:
            raise ValueError(f"{name}: expected one of {', '.join(sorted(TENSOR_TYPES))}, found {array.dtype.name}")
        entries[name] = _Entry(TENSOR_TYPES[array.dtype.name], array.shape, (n_bytes, n_bytes + array.nbytes))
        n_bytes += array.nbytes
    entries = {name: entries[name] for name in arrays}  # in the caller's order, which readers get back
    metadata = _Metadata(msgspec.json.encode(meta).decode())
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:
            file.write(_encode_header(entries, metadata))  # of the final length; the checksums are not known yet
            data_start, digest = file.tell(), hashlib.blake2b(digest_size=DIGEST_BYTES)
            for name in names:
                for part in _split_bytes(arrays[name]):
                    digest.update(part)
                    file.write(part)
            file.flush()
            sampled = f"{_sum_samples(file, data_start, n_bytes):08x}"
            metadata = msgspec.structs.replace(metadata, sampled=sampled, whole=digest.hexdigest())
            file.seek(0)
            file.write(_encode_header(entries, metadata))
            file.flush()
            if n_bytes > BLOCK_BYTES * MAX_SAMPLED_BLOCKS:  # opening a smaller one finds what a crash has damaged
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


def _split_bytes(array: Array) -> Iterator[memoryview]:
    """Yield the bytes of an array, little endian, about `WRITE_BYTES` at a time."""
    step = max(1, WRITE_BYTES // max(1, array[:1].nbytes))  # rows
    for start in range(0, len(array) if array.size else 0, step):
        part = np.ascontiguousarray(array[start : start + step])
        yield part.astype(part.dtype.newbyteorder("<"), copy=False).data.cast("B")


def _encode_header(entries: Mapping[str, _Entry], metadata: _Metadata) -> bytes:
    """Return the first bytes of a file: the length of its header, and the header with its digest.

    Their number does not depend on the checksums.
    """
    text = msgspec.json.encode({"__metadata__": metadata, **entries})
    n_bytes = -(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT  # rounded up, so that the first array is aligned
    text = text.ljust(n_bytes - 8)
    digest = hashlib.blake2b(text, digest_size=DIGEST_BYTES).hexdigest()
    start = text.index(b'"header":"') + len(b'"header":"')  # of `NO_DIGEST`, which the digest replaces
    return len(text).to_bytes(8, "little") + text[:start] + digest.encode() + text[start + len(digest) :]


def _sum_samples(file: BinaryIO, data_start: int, n_bytes: int) -> int:
    """Return the CRC-32 of at most `MAX_SAMPLED_BLOCKS` evenly spaced blocks of the arrays.

    Args:
        file: open for reading.
        data_start: byte where the arrays begin.
        n_bytes: of all arrays.
    """
    last_block = max(0, -(-n_bytes // BLOCK_BYTES) - 1)
    checksum = 0
    for block in sorted(set(np.linspace(0, last_block, MAX_SAMPLED_BLOCKS).astype(np.int64).tolist())):
        length = min(BLOCK_BYTES, n_bytes - block * BLOCK_BYTES)
        file.seek(data_start + block * BLOCK_BYTES)
        checksum = zlib.crc32(file.read(length), checksum)
    return checksum


def _disable_readahead(file: int) -> None:
    """Ask the system to read only what is asked for: otherwise some disks read megabytes for each block."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)


def _read_header(path: Path) -> tuple[dict[str, _Entry], _Metadata, int]:
    """Return the checked header (its arrays by name, and its metadata), and the byte where the arrays begin.

    Raises:
        OSError, ValueError, msgspec.MsgspecError: if the file cannot be read or is damaged.
    """
    with open_plain_file(path) as file:
        _disable_readahead(file.fileno())
        size = int.from_bytes(file.read(8), "little")  # of the header
        if size > MAX_HEADER_BYTES:
            raise ValueError("it has another format")
        text = file.read(size)
        values = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(values.pop("__metadata__", b"{}"), type=_Metadata)
        entries = {name: msgspec.json.decode(value, type=_Entry) for name, value in values.items()}
        digested = text.replace(metadata.header.encode(), NO_DIGEST.encode(), 1)  # see `_encode_header`
        if hashlib.blake2b(digested, digest_size=DIGEST_BYTES).hexdigest() != metadata.header:
            raise ValueError("its header is damaged")
        n_bytes = max((entry.data_offsets[1] for entry in entries.values()), default=0)
        if os.fstat(file.fileno()).st_size != 8 + size + n_bytes:
            raise ValueError("it has another length than its header says")
        for name, entry in entries.items():
            start, end = entry.data_offsets
            if min((start, *entry.shape)) < 0 or end - start != _count_bytes(entry):
                raise ValueError(f"its array {name} is not inside the file")
        if f"{_sum_samples(file, 8 + size, n_bytes):08x}" != metadata.sampled:
            raise ValueError("its content is damaged")
    return entries, metadata, 8 + size


def _count_bytes(entry: _Entry) -> int:
    """Return the number of bytes that the shape and the type of an array need."""
    if entry.dtype not in DTYPES:
        raise ValueError(f"its type {entry.dtype} is not known")
    return int(np.prod(entry.shape, dtype=np.int64)) * np.dtype(DTYPES[entry.dtype]).itemsize


def open_arrays(path: Path) -> tuple[dict[str, Array], dict[str, object], dict[str, RowFile]]:
    """Map the arrays of a file, read only.

    Returns:
        Name → array; the values that the caller wrote; and name → reader of single rows, of each float32 matrix.

    Raises:
        StoreError: if the file is not there, cannot be read, or is damaged.
    """
    try:
        entries, metadata, data_start = _read_header(path)
        content = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))  # a plain array: slices of a memmap are slow
        arrays, readers = {}, {}
        for name, entry in entries.items():
            start, end = (data_start + offset for offset in entry.data_offsets)
            arrays[name] = content[start:end].view(np.dtype(DTYPES[entry.dtype]).newbyteorder("<")).reshape(entry.shape)
            if entry.dtype == "F32" and len(entry.shape) == 2 and hasattr(os, "pread"):
                readers[name] = RowFile(path, start, (entry.shape[0], entry.shape[1]))
        return arrays, msgspec.json.decode(metadata.values, type=dict[str, Any]), readers
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from None


def check_file(path: Path) -> str | None:
    """Read a whole file, and return what is wrong with it. None: it is sound."""
    try:
        _, metadata, data_start = _read_header(path)
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        with path.open("rb") as file:
            file.seek(data_start)
            while part := file.read(WRITE_BYTES):
                digest.update(part)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        return str(error)
    return None if digest.hexdigest() == metadata.whole else "its content is damaged"
