"""Counts everyday questions over Python's standard library with a right function among the first three.

    python benchmarks/stdlib.py          prints each question that has none, and the count
    python benchmarks/stdlib.py --all    prints the answers of all questions

The questions are `suites/stdlib.jsonl` and `suites/stdlib_second.jsonl`; the catalogue is `py:stdlib`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Final

import click

from toolscout.scout import Scout

SUITES: Final = Path(__file__).resolve().parent / "suites"
SUITE: Final = SUITES / "stdlib.jsonl"
NAMES: Final = (SUITE.name, "stdlib_second.jsonl")
MAX_RANK: Final = 3


def is_right(tool_id: str, ends: list[str]) -> bool:
    """Tell whether an id is one of the right functions, or ends with one behind a dot."""
    name = tool_id.partition("/")[2]
    return any(name == end or name.endswith(f".{end}") for end in ends)


def count_right(scout: Scout, lines: list[str], *, show_all: bool = False) -> int:
    """Search each question, print the answers that have no right function, and return how many have one."""
    count = 0
    for line in lines:
        entry = json.loads(line)
        ids = scout.search(entry["text"], MAX_RANK).ids
        right = any(is_right(tool_id, entry["gold"]) for tool_id in ids)
        count += right
        if show_all or not right:
            click.echo(f"{'+' if right else '-'} {entry['text']:45} {', '.join(id.partition('/')[2] for id in ids)}")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="print every answer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, Scout(home, journal=False) as scout:
        scout.add("py:stdlib")
        for name in NAMES:
            lines = (SUITES / name).read_text(encoding="utf-8").splitlines()
            click.echo(
                f"{name}: {count_right(scout, lines, show_all=options.all)} of {len(lines)} in the first {MAX_RANK}"
            )


if __name__ == "__main__":
    main()
