"""The commands of the README and the quickstart run, and print what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests_cli import run as cli

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
QUICKSTART = ROOT / "docs" / "use" / "quickstart.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
FRACTION = re.compile(r"\d+\.\d+")

#: Start of a command line that is not run here → the reason.
NOT_RUN = {
    "pip install": "changes the environment that runs the tests; scripts/test itself installs from the clone",
    "toolscout add .mcp.json": "needs MCP servers of the reader",
    "toolscout add --discover": "reads the MCP configurations of whoever runs the tests",
    "toolscout sync": "reads the whole standard library once more; tests/test_cli.py runs it",
    "toolscout serve": "runs until it is stopped; packages/server/tests starts it",
}


def find_blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each block of code, in the order of the page."""
    return [(match[1], match[2]) for match in FENCE.finditer(page.read_text())]


def select_runnable(script: str) -> str:
    """The lines of a block without those of `NOT_RUN`."""
    return "\n".join(line for line in script.splitlines() if not line.startswith(tuple(NOT_RUN)))


def run_block(script: str, folder: Path) -> str:
    """What the commands of a block print, with `toolscout` from this checkout. A command that fails is an error."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    program = programs / "toolscout"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m toolscout "$@"\n')
    program.chmod(0o755)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TOOLSCOUT_")},
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "HOME": str(folder),
        "TOOLSCOUT_HOME": str(folder / "home"),
        "COLUMNS": "120",
    }
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, f"{script}\n{run.stdout}{run.stderr}"
    return run.stdout


def run_block_here(script: str) -> str:
    """What the `toolscout` commands of a block print, run in this process: starting a program for each takes longer."""
    printed = ""
    for line in script.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "toolscout", f"{line}: run this block by `run_block`"
            result = cli(*words[1:])
            assert result.exit_code == 0, f"{line}\n{result.output}"
            printed += result.stdout
    return printed


def find_missing_line(shown: str, printed: str) -> str | None:
    """The first line of `shown` that is not among the lines of `printed` in this order; None: all are there.

    Scores and times are not compared. `…` on the page stands for any text, and for any lines on a line of its own.
    """
    lines = iter(" ".join(FRACTION.sub("#", line).split()) for line in printed.splitlines())
    for line in filter(None, (" ".join(line.split()) for line in shown.splitlines())):
        if line == "…":
            continue
        pattern = ".*".join(re.escape(part) for part in FRACTION.sub("#", line).split("…"))
        if not any(re.fullmatch(pattern, printed_line) for printed_line in lines):
            return line
    return None


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_every_command_of_the_readme_runs(tmp_path: Path) -> None:
    scripts = [select_runnable(text) for language, text in find_blocks(README) if language == "sh"]
    assert sum("toolscout" in script for script in scripts) >= 1, "the README shows no command that can run"
    for script in scripts:
        run_block(script, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_quickstart_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed, compared = "", 0
    for language, text in find_blocks(QUICKSTART):
        if language == "yaml":
            (tmp_path / text.split("\n", 1)[0].removeprefix("# ")).write_text(text)
        elif language == "sh":
            printed = run_block_here(select_runnable(text))
        elif language == "python":
            run = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True)
            assert run.returncode == 0, run.stderr
            printed = run.stdout
        elif language == "text":
            missing = find_missing_line(text, printed)
            assert missing is None, f"the page shows {missing!r}, the program printed\n{printed}"
            compared += 1
    assert compared >= 5


def test_a_command_that_fails_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nonesuch"):
        run_block("toolscout remove nonesuch\ntrue", tmp_path)


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        ("1  7.00  json.loads  Deserialize …", None),
        ("…\n2  6.32  json.load  Deserialize a file", None),
        ("1  7.00  json.dumps", "1 7.00 json.dumps"),
        ("2 6.32 json.load …\n1 6.34 json.loads …", "1 6.34 json.loads …"),  # in another order
    ],
)
def test_a_page_is_compared_line_by_line_with_the_output(shown: str, missing: str | None) -> None:
    printed = " 1    6.34   json.loads   Deserialize a text\n 2    6.32   json.load    Deserialize a file\n"
    assert find_missing_line(shown, printed) == missing


def test_every_command_that_is_not_run_stands_on_a_page() -> None:
    lines = [
        line
        for page in (README, QUICKSTART)
        for language, text in find_blocks(page)
        if language == "sh"
        for line in text.splitlines()
    ]
    unused = [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)]
    assert not unused
