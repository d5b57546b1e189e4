"""The list of what the papers contain (benchmarks/papers.toml), and the measurements that are still to be made."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import toolscout
import toolscout_lab
from toolscout.learn.fit import resolve_with_base
from toolscout.recipes import registry
from toolscout.settings import parse_pairs
from toolscout_lab.commands.sweep import parse_values

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (Path(toolscout.__file__).parent, Path(toolscout_lab.__file__).parent, ROOT)
STATES = {"present", "partly", "absent", "not comparable"}
PAPERS: dict[str, Any] = tomllib.loads((ROOT / "benchmarks" / "papers.toml").read_text())
ROWS = [(name, number, row) for name, paper in PAPERS.items() for number, row in enumerate(paper["rows"], 1)]


@pytest.fixture(scope="module")
def papers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("papers", ROOT / "benchmarks" / "papers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_cell_is_empty_and_each_item_has_a_state() -> None:
    assert len(ROWS) >= 90
    for name, number, row in ROWS:
        assert len(row) == 6 and all(cell.strip() for cell in row), (name, number)
        assert row[1] in STATES, (name, number, row[1])


def test_each_place_exists() -> None:
    for name, number, row in ROWS:
        paths = re.findall(r"`((?:[\w.-]+/)*[\w-]+(?:\.\w+)?)`", row[2])
        assert paths, (name, number)
        found = [path for path in paths if any((source / path).exists() for source in SOURCES)]
        assert found, (name, number, row[2])


def test_recipes_in_brackets_and_rows_that_are_named_exist() -> None:
    for name, number, row in ROWS:
        if row[2].startswith("`recipes.py` (`") and re.search(r"\(`([a-z0-9]+-?[\w-]*)`\)$", row[2]):
            recipe = re.findall(r"\(`([\w-]+)`\)$", row[2])[0]
            assert registry.is_known(recipe), (name, number, recipe)
        for other in re.findall(r"rows? (\d+)(?: (?:and|to) (\d+))?", row[4]):
            assert all(int(place) <= len(PAPERS[name]["rows"]) for place in other if place), (name, number)


def test_what_is_absent_claims_no_figure() -> None:
    for name, number, row in ROWS:
        assert row[1] != "absent" or "{" not in row[4], (name, number)


def test_what_was_not_measured_gives_its_cost_and_its_command(papers: ModuleType, tmp_path: Path) -> None:
    """No row rests on a promise: it has a figure or a reason, and where only time is missing, hours and a command."""
    hours = {each.name: each.hours for each in papers.list_measurements(tmp_path)}
    costs = 0
    for name, number, row in ROWS:
        assert not re.search("queued|later|to come|not yet|no measured run", " ".join(row)), (name, number)
        commands = re.findall(r"`scripts/bench papers --only ([\w-]+)`", row[5])
        stated = re.findall(r"([\d.]+) h[:,] `scripts/bench papers --only ([\w-]+)`", row[5])
        assert [measurement for _, measurement in stated] == commands, (name, number)
        assert all(float(cost) == hours[measurement] for cost, measurement in stated), (name, number)
        assert "`scripts/bench` (papers)" not in row[2] or stated, (name, number)
        costs += len(stated)
    assert costs


def values_of(command: list[str], option: str) -> list[str]:
    return [command[place + 1] for place, word in enumerate(command) if word == option]


def test_each_queued_measurement_has_a_recipe_that_takes_its_settings(papers: ModuleType, tmp_path: Path) -> None:
    planned = papers.list_measurements(tmp_path)
    assert len({each.name for each in planned}) == len(planned) and all(each.hours > 0 for each in planned)
    count = 0
    for command in (command for each in planned for command in each.commands):
        if command[0].endswith(".py"):
            assert (ROOT / command[0]).exists()
            continue
        assert "--resume" in command, command
        settings = parse_pairs(values_of(command, "--set"), "--set")
        recipes = [*values_of(command, "--recipe"), *values_of(command, "-r")]
        for recipe in recipes or [command[1]]:
            count += 1
            resolve_with_base(recipe, settings)
            for name, values in parse_values(values_of(command, "--over")).items():
                for value in values:
                    resolve_with_base(recipe, {**settings, name: value})
    assert count > 30


def test_the_page_of_benchmarks_lists_each_measurement_with_its_hours(papers: ModuleType, tmp_path: Path) -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text()
    planned = papers.list_measurements(tmp_path)
    for each in planned:
        assert re.search(rf"^\| `{each.name}` \|.*\| {each.hours:g} \|$", page, re.M), each.name
    assert f"| {sum(each.hours for each in planned):.0f} hours |" in page


def test_a_step_that_fails_is_named_and_the_next_one_runs(
    papers: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from click.testing import CliRunner

    ran: list[list[str]] = []

    def run(command: list[str], data: str | None, out: str) -> int:
        ran.append(command)
        return int("colt-minilm-2" in command)

    monkeypatch.setattr(papers, "run_command", run)
    done = CliRunner().invoke(papers.main, ["--only", "colt-size", "--only", "mlc"])
    assert done.exit_code == 1 and len(ran) == 3 and done.output.count("failed: ") == 1
    assert CliRunner().invoke(papers.main, ["--plan"]).exit_code == 0 and len(ran) == 3
    assert CliRunner().invoke(papers.main, ["--only", "nonsense"]).exit_code == 2
