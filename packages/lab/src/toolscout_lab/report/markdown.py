"""Writes tables in Markdown that are at most 120 characters wide."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

__all__ = ["MAX_LINE_CHARS", "lay_out"]

MAX_LINE_CHARS: Final = 120
Rows = Sequence[Sequence[str]]


def lay_out(heads: Sequence[str], rows: Rows, *, keys: int = 1, text_columns: int = 1) -> list[str]:
    """Return the lines of a table, or of several where one would be wider than 120 characters.

    Args:
        heads: the headings of the columns.
        rows: the cells.
        keys: number of columns at the left that each of the tables repeats.
        text_columns: number of columns at the left that are aligned to the left.
    """
    n_values = len(heads) - keys
    for n_parts in range(1, n_values + 1):
        ends = [keys + round(part * n_values / n_parts) for part in range(n_parts + 1)]
        parts = [[*range(keys), *range(start, end)] for start, end in itertools.pairwise(ends)]
        tables = [_lay_out_columns(heads, rows, columns, text_columns) for columns in parts]
        if n_parts == n_values or max(len(line) for table in tables for line in table) <= MAX_LINE_CHARS:
            break
    return [line for number, table in enumerate(tables) for line in (["", *table] if number else table)]


def _lay_out_columns(heads: Sequence[str], rows: Rows, columns: Sequence[int], text_columns: int) -> list[str]:
    rule = "|" + "".join("---|" if column < text_columns else "---:|" for column in columns)
    lines = [
        "|" + "".join(f" {row[column]} |" if row[column] else " |" for column in columns) for row in (heads, *rows)
    ]
    return [lines[0], rule, *lines[1:]]
