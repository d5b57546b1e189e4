"""Counts how many functions in how many files of toolscout one warm search enters.

    python benchmarks/journey.py [--query TEXT] [--list] [--json]

The catalogue is a part of Python's standard library, so the count needs no data. `--list` names the functions in the
order in which they are entered first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import click

import toolscout
from toolscout import Scout

ROOT = Path(toolscout.__file__).parent
MODULES = ("json", "csv", "tempfile", "shutil", "zipfile")
QUERY = "make a temporary directory"
#: Names that Python gives to bodies without one: they're part of the function around them.
PARTS = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>"}


def trace_calls(call: Callable[[], object]) -> list[CodeType]:
    """Return the code of every call of a function of toolscout, in order."""
    codes: list[CodeType] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{ROOT}/") and code.co_name not in PARTS:
            codes.append(code)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return codes


def describe_journey(codes: list[CodeType]) -> dict[str, Any]:
    """Count the functions and files of a call, and how often it goes on in another folder."""
    files = [Path(code.co_filename).relative_to(ROOT) for code in codes]
    functions = dict.fromkeys(
        f"{file}:{code.co_firstlineno} {code.co_name}" for file, code in zip(files, codes, strict=True)
    )
    changes = sum(before.parent != after.parent for before, after in itertools.pairwise(files))
    return {
        "functions": len(functions),
        "files": len(set(files)),
        "folder_changes": changes,
        "names": list(functions),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--query", default=QUERY, help="the request [default: %(default)s]")
    parser.add_argument("--list", action="store_true", help="name the functions")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Scout(folder, encoder="static") as scout:
        for name in MODULES:
            list(scout.add(f"py:{name}"))
        for _ in range(3):  # the third is warm
            journey = describe_journey(trace_calls(lambda: scout.search(options.query)))
    names = journey.pop("names")
    if options.json:
        click.echo(json.dumps({**journey, "names": names}, indent=1))
        return
    click.echo(f"{options.query!r}: {journey}")
    if options.list:
        click.echo("\n".join(names))


if __name__ == "__main__":
    main()
