"""The list of mutants does not rot: the text that a mutant changes is found, also where the code has moved."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scripts_loader import load_script

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    return load_script("scripts/mutants")


def test_every_mutant_can_be_made_and_names_tests_that_are_there(mutants: ModuleType) -> None:
    table = mutants.read_table()
    assert mutants.find_faults(table) == []
    assert len(table["mutant"]) >= 40 and table["allowed"] <= 2
    for mutant in table["mutant"]:
        assert mutant["reason"] and mutant["tests"]
        for test in mutant["tests"]:
            file, _, name = test.partition("::")
            assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), test


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"old": "none"}, "m: its text must be once in src/a.py, or once in all modules; found: nowhere: "),
        ({"old": "twice"}, "m: its text must be once in src/a.py, or once in all modules; found: src/a.py 2 times: "),
        ({"old": "both"}, ""),
        ({"old": "both", "file": "src/c.py"}, "m: its text must be once in src/c.py, or once in all modules; found: "),
        ({"new": "once"}, "m: it changes nothing"),
        ({"file": "src/moved.py"}, ""),
        ({"tests": ["tests/b.py::test_it"]}, "m: there is no tests/b.py"),
    ],
)
def test_a_mutant_that_cannot_be_made_is_refused(
    mutants: ModuleType, tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "src" / "a.py").write_text("once twice twice both")
    (tmp_path / "src" / "b.py").write_text("both")
    (tmp_path / "tests" / "a.py").write_text("def test_it(): ...")
    mutant = {
        "name": "m",
        "file": "src/a.py",
        "old": "once",
        "new": "never",
        "tests": ["tests/a.py::test_it"],
        "reason": "r",
    }
    assert mutants.find_faults({"mutant": [mutant]}, tmp_path) == []
    faults = mutants.find_faults({"mutant": [{**mutant, **changes}]}, tmp_path)
    assert len(faults) == bool(fault) and "".join(faults).startswith(fault)
    moved = {**mutant, "file": "src/moved.py"}
    assert mutants.locate(moved, tmp_path) == "src/a.py" == mutants.locate(mutant, tmp_path)
