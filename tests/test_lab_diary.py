"""The diary is append-only: no line that was ever committed may leave it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DIARY = "benchmarks/LAB.md"
RULE = "**The rule: this file is append-only.**"


def committed_versions() -> list[str]:
    """Every committed text of the diary among the ancestors of HEAD that are here, newest first."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout: the diary is compared with its history")
    log = ["git", "log", "--full-history", "--format=%H", "--", DIARY]
    commits = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    shows = (subprocess.run(["git", "show", f"{commit}:{DIARY}"], cwd=ROOT, capture_output=True) for commit in commits)
    return [shown.stdout.decode() for shown in shows if shown.returncode == 0]


def find_lost_lines(diary: str, versions: Sequence[str]) -> list[str]:
    """Lines of former versions that the diary no longer holds.

    Versions with the rule must still be there line by line, in order. Lines of older ones may stand anywhere, and may
    be quoted (`> `): entries were edited in place before the rule, and are quoted as they were.
    """
    lines = diary.splitlines()
    unquoted = {line.removeprefix("> ") for line in lines} | {""}
    lost: dict[str, None] = {}
    for version in versions:
        if RULE in version:
            left = iter(lines)
            lost |= dict.fromkeys(line for line in version.splitlines() if line not in left)
        else:
            lost |= dict.fromkeys(line for line in version.splitlines() if line not in unquoted)
    return list(lost)


def test_no_line_of_the_diary_was_ever_deleted_or_changed() -> None:
    diary = (ROOT / DIARY).read_text()
    assert RULE in diary
    assert find_lost_lines(diary, committed_versions()) == []


@pytest.mark.parametrize(
    ("diary", "lost"),
    [
        (f"{RULE}\nnew\none\ntwo\n> three", []),
        (f"{RULE}\none\n> three", ["two"]),  # deleted
        (f"{RULE}\none\ntwo!\n> three", ["two"]),  # softened
        (f"{RULE}\ntwo\none\n> three", ["two"]),  # moved
        (f"{RULE}\none\ntwo", ["three"]),  # an older version's line
    ],
)
def test_a_line_that_is_deleted_changed_or_moved_is_noticed(diary: str, lost: list[str]) -> None:
    assert find_lost_lines(diary, [f"{RULE}\none\ntwo", "one\nthree"]) == lost


def test_the_index_lists_every_entry_and_is_up_to_date() -> None:
    checked = subprocess.run([sys.executable, "scripts/make_lab_index.py", "--check"], cwd=ROOT, capture_output=True)
    assert checked.returncode == 0, checked.stderr.decode()
    titles = re.findall(r"^## (.+)", (ROOT / DIARY).read_text(), re.M)
    by_date = (ROOT / "benchmarks" / "LAB-index.md").read_text().split("## By method")[0]
    assert titles and re.findall(r"^\* \[(.+)\]\[\d+\]$", by_date, re.M) == titles
