"""The documentation is up to date: it shows the program's own help and settings, snippets run, links lead somewhere."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from toolscout.cli.main import COMMANDS, LAB_COMMANDS
from toolscout.recipes.registry import list_user_recipes
from toolscout.settings import FILE_MAY_SET, RECORD_FIELDS, Between, Settings

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "examples" / "README.md", *(ROOT / "docs").glob("**/*.md")])
REFERENCE = ROOT / "docs" / "reference"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
COMMENT = re.compile(r"<!--.*?-->", re.S)
RESULT_TABLE = re.compile(r"<!-- table .*?<!-- end of table -->", re.S)
MAX_PAGE_WORDS = 1_500
MAX_README_WORDS = 600
MAX_LINE_CHARS = 120


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
    pages = module.make_pages()
    for name, text in pages.items():
        assert (REFERENCE / name).read_text() == text, f"{name} is out of date: run  python scripts/make_cli_docs.py"
    assert {f"cli/{path.name}" for path in (REFERENCE / "cli").iterdir()} == set(pages) - {module.INDEX}
    shown = "\n".join(pages.values())
    for command in (*COMMANDS, *(f"lab {name}" for name in LAB_COMMANDS)):
        assert shown.count(f"## `toolscout {command}`\n") == 1, command


def test_the_settings_page_lists_every_setting_with_its_default() -> None:
    rows = [line.split("|")[1:-1] for line in (REFERENCE / "settings.md").read_text().splitlines() if line[:3] == "| `"]
    shown = {cells[0].strip(" `"): (cells[1].strip(" `"), cells[-1].strip()) for cells in rows if len(cells) == 4}
    expected = {}
    for field in dataclasses.fields(Settings):
        if field.name in RECORD_FIELDS:
            continue
        rule = FILE_MAY_SET[field.name]
        allowed = f"{rule.low:,} to {rule.high:,}" if isinstance(rule, Between) else "yes" if rule else "no"
        expected[field.name] = (format_default(getattr(Settings(), field.name)), allowed)
    expected["home"] = ("the platform's data folder", "no")
    assert shown == expected


def format_default(value: object) -> str:
    """A default as the page shows it."""
    if value in (None, "", ()):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def test_the_page_on_search_lists_every_recipe_with_when_to_take_it() -> None:
    page = (ROOT / "docs" / "understand" / "search.md").read_text()
    shown = dict(re.findall(r"^\| `([\w-]+)` \| (.+) \|$", page, re.M))
    assert list(shown) == list(list_user_recipes())
    for name, when in shown.items():
        words = [set(re.findall(r"\w+", text.lower())) for text in (when, list_user_recipes()[name].when)]
        assert words[0] == words[1], name


def find_sized_pages() -> list[Path]:
    """The pages in the folders of docs/README.md whose size is limited."""
    folders = ("use", "understand", "extend", "results", "reference")
    return [page for page in PAGES if page.relative_to(ROOT).parts[1:2] in [(folder,) for folder in folders]]


@pytest.mark.parametrize("page", find_sized_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short_and_so_are_its_lines(page: Path) -> None:
    text = page.read_text()
    assert count_words(text) <= MAX_PAGE_WORDS
    assert_short_lines(page)


def test_the_readme_is_short() -> None:
    assert count_words((ROOT / "README.md").read_text()) <= MAX_README_WORDS
    for name in ("README.md", "CONTRIBUTING.md", "docs/README.md", "examples/README.md"):
        assert_short_lines(ROOT / name)


def count_words(text: str) -> int:
    """Words as a reader counts them: without comments and the signs that draw tables."""
    return sum(bool(re.search(r"\w", word)) for word in COMMENT.sub("", text).split())


def assert_short_lines(page: Path) -> None:
    """Lines are short, except those of tables that scripts/tables.py writes, whose rows cannot be broken."""
    text = RESULT_TABLE.sub("", page.read_text())
    assert not [line for line in text.splitlines() if len(line) > MAX_LINE_CHARS], page


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a snippet may leave its home open
@pytest.mark.parametrize(("name", "code"), snippets("python"), ids=lambda value: value if "\n" not in value else "")
def test_a_python_snippet_runs(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # a program for each takes a second to start
    exec(compile(code, name, "exec", dont_inherit=True), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip(), f"{name} shows nothing"


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
        if isinstance(command, click.Group) and len(words) > 2 and words[2] in command.commands:
            command = command.commands[words[2]]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words[2:] if word.startswith("-") and word != "-"} <= known, f"{name}: {line}"


def find_anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
            path = page.parent / target if target else page
            assert path.exists(), f"{page.relative_to(ROOT)} links to {target}"
            if anchor:
                assert anchor in find_anchors(path), f"{page.relative_to(ROOT)} links to {target}#{anchor}"


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


def test_the_files_that_pages_name_exist() -> None:
    roots = [ROOT, ROOT / "src" / "toolscout", *ROOT.glob("packages/*/src/toolscout_*")]
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    paths = {(page, path) for page in pages for path in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text())}
    assert len(paths) > 30
    assert [(str(page), path) for page, path in paths if not any((root / path).exists() for root in roots)] == []
