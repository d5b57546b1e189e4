"""Requests made to take long: no reading of one may take more time than its length explains."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

UNITS = (
    *("a@", "@", " ", "\n", "\n ", "\t", "- ", " -", "->", " ~", ". ", "!", "?! ", ", ", "; ", "| ", "、", "1.", "1) "),
    *('"a', "'a' ", "`", "(a", "[", "{", "“a” ", "a_", "a ", "the ", "and ", "and and ", "go ", "don't ", "en "),
    *("EMAIL: ", "AB:", "context: x ", "http://", "www.", "send ", "step 1: ", "1️⃣ ", "e.g.", "once it is done "),
)
CPU_SECONDS = 20  # for all; "@" took 15 by itself, and all together take some three
CHILD = """
import json, resource, sys
from toolscout.search import why
from toolscout.search.everyday import list_stems, load_thesaurus
from toolscout.search.steps.splitter import MAX_SPLIT_CHARS, load_splitter
splitter, thesaurus = load_splitter(), load_thesaurus()
splitter.split("warm up, then go"), thesaurus.find(list_stems("warm up"))
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[1])))
for unit in json.load(sys.stdin):
    for form in ("{}", "x{}y", "x {} y"):
        long = form.format((unit * 10_000)[:9_990])
        short = form.format((unit * MAX_SPLIT_CHARS)[: MAX_SPLIT_CHARS - 10])
        splitter.split(short)
        thesaurus.find(list_stems(long))
        why._cut_clauses(long)
    print(json.dumps(unit), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the processor time of a child")
def test_no_request_takes_long_to_read() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(CPU_SECONDS)],
        input=json.dumps(UNITS),
        capture_output=True,
        text=True,
        check=False,
    )
    read = [json.loads(line) for line in done.stdout.splitlines()]
    assert read == [*UNITS], f"{UNITS[len(read)]!r} took too long: {done.stderr[-500:]}"
