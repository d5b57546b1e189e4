"""Writes and reads run files (rankings as gzipped TREC lines) and detect files (the estimated need of each query)."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import numpy as np

from toolscout.dataset import read_lines
from toolscout.errors import SourceError

__all__ = ["read_detect", "read_run", "write_detect", "write_run"]

RUN_DEPTH: Final = 20


def write_run(path: str | Path, label: str, run: Mapping[str, Sequence[tuple[str, float]]]) -> None:
    """Write rankings as gzipped TREC lines `query-id Q0 tool-id rank score label`; equal runs give equal bytes.

    The given order is the ranking. Programs that score run files may sort by score instead, and must get the same
    order. So scores are written in single precision, and a score that is not below the one before it is written as the
    next smaller number. These programs split lines at white space. So white space in ids is percent-encoded, and a
    percent sign before two hexadecimal digits too.

    Args:
        path: file to write, usually `<label>.run.gz`; replaced atomically.
        label: the last column of each line.
        run: query id → (tool id, score), best first; the first 20 of each query are written.

    Raises:
        ValueError: for a score that is not a finite single-precision number.
    """
    _write_gzip(
        path,
        (
            f"{_escape(query)} Q0 {_escape(tool)} {rank} {score!s} {_escape(label)}"
            for query in sorted(run)
            for rank, (tool, score) in enumerate(_make_descending(query, run[query][:RUN_DEPTH]), 1)
        ),
    )


def _make_descending(query: str, hits: Iterable[tuple[str, float]]) -> Iterator[tuple[str, np.float32]]:
    """Yield the tools with scores in single precision, each below the one before."""
    last = np.float32(np.inf)
    for tool, score in hits:
        with np.errstate(over="ignore"):
            value = np.float32(score)
        if not np.isfinite(value):
            raise ValueError(f"expected a finite score for query {query!r} and tool {tool!r}, found {score}")
        last = min(value, np.nextafter(last, np.float32(-np.inf)))
        yield tool, last


def read_run(path: str | Path) -> dict[str, list[tuple[str, float]]]:
    """Read a TREC run, gzipped or not: query id → (tool id, score) in the order of the rank column.

    Raises:
        SourceError: for a line that is not a TREC line or ranks a tool again; the message names file and line.
    """
    file = Path(path)
    ranked: dict[str, dict[str, tuple[int, float]]] = {}
    for number, line in read_lines(file):
        try:
            query, _, tool, rank, score, _ = line.decode().split()
            entry = int(rank), float(score)
        except ValueError:
            start = line[:80].decode(errors="replace")
            raise SourceError(
                f"{file}, line {number}: expected query-id Q0 tool-id rank score label, found {start!r}"
            ) from None
        tools = ranked.setdefault(unquote(query), {})
        if unquote(tool) in tools:
            raise SourceError(f"{file}, line {number}: expected each tool once a query, found {unquote(tool)!r} again")
        tools[unquote(tool)] = entry
    return {
        query: [(tool, score) for tool, (_, score) in sorted(tools.items(), key=lambda item: item[1][0])]
        for query, tools in ranked.items()
    }


def write_detect(path: str | Path, rows: Iterable[tuple[str, int, float]]) -> None:
    """Write `query-id label need` lines, gzipped, in the given order; ids are encoded as in `write_run`.

    Args:
        path: file to write, usually `<label>.detect.gz`; replaced atomically.
        rows: query id, 1 if it needs a tool or 0 if not, estimated probability that it needs one.
    """
    _write_gzip(path, (f"{_escape(query)} {int(label)} {float(need)!r}" for query, label, need in rows))


def read_detect(path: str | Path) -> list[tuple[str, int, float]]:
    """Read a file of `write_detect`, gzipped or not: query id, label and need, in the order of the file.

    Raises:
        SourceError: for an invalid line; the message names file and line.
    """
    file, rows = Path(path), []
    for number, line in read_lines(file):
        try:
            query, label, need = line.decode().split()
            row = unquote(query), int(label), float(need)
        except ValueError:
            start = line[:80].decode(errors="replace")
            raise SourceError(f"{file}, line {number}: expected query-id label need, found {start!r}") from None
        if row[1] not in (0, 1) or not 0 <= row[2] <= 1:
            raise SourceError(
                f"{file}, line {number}: expected label 0 or 1 and a need in [0, 1], found {line.decode()!r}"
            )
        rows.append(row)
    return rows


def _escape(text: str) -> str:
    """Percent-encode white space, and what `unquote` would otherwise decode."""
    return re.sub(r"\s|%(?=[0-9A-Fa-f]{2})", lambda match: quote(match[0]), text)


def _write_gzip(path: str | Path, lines: Iterable[str]) -> None:
    """Write a file in one step. The same lines give the same bytes: gzip gets no name and no time."""
    data = "".join(f"{line}\n" for line in lines).encode()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    try:
        with partial.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as compressed:
            compressed.write(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
