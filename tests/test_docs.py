"""Documents cannot rot: the CLI page is the program's own help, snippets run, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from toolscout.cli.main import COMMANDS, LAB_COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)


def snippets(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.relative_to(ROOT)}-{number}", match[2])
        for page in PAGES
        for number, match in enumerate(FENCE.finditer(page.read_text()))
        if match[1] == language
    ]


def test_the_command_line_page_is_the_programs_own_help() -> None:
    spec = importlib.util.spec_from_file_location("make_cli_docs", ROOT / "scripts" / "make_cli_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "cli.md").read_text() == module.text(), "run  python scripts/make_cli_docs.py"


@pytest.mark.parametrize(("name", "code"), snippets("python"), ids=lambda value: value if "\n" not in value else "")
def test_a_python_snippet_runs(name: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), f"{name} shows nothing"


@pytest.mark.parametrize(("name", "code"), snippets("sh"), ids=lambda value: value if "\n" not in value else "")
def test_a_shell_snippet_names_real_commands_and_options(name: str, code: str) -> None:
    import click

    from toolscout.cli.main import program

    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0].startswith("scripts/"):
            assert (ROOT / words[0]).exists(), name
        if not words or words[0] != "toolscout":
            continue
        group: click.Group = program
        if words[1] == "lab":
            group = program.get_command(click.Context(program), words.pop(1))  # type: ignore[assignment]
        assert words[1] in (COMMANDS if group is program else LAB_COMMANDS), f"{name}: {line}"
        command = group.get_command(click.Context(group), words[1])
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words[2:] if word.startswith("-") and word != "-"} <= known, f"{name}: {line}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_project_names_no_place_of_the_machine_that_it_lies_on() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or len(ROOT.parts) < 3:
        pytest.skip("needs a git checkout that lies at a telling place")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and path.suffix not in (".gz", ".png", ".safetensors"):
            content = path.read_text(errors="replace")
            assert str(ROOT) not in content and str(ROOT.parent / "shared") not in content, name


def test_the_tables_are_those_of_the_results() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "tables.py"), "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
