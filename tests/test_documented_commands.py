"""The commands of the README, of docs/use and of docs/understand run, and print what the pages show."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import postgres_server
from scripts_loader import load_script

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted([*(ROOT / "docs" / "use").glob("*.md"), *(ROOT / "docs" / "understand").glob("*.md")])
pages = load_script("scripts/run_pages.py")

#: Page → packages that its commands need beside the core.
NEEDS = {
    **dict.fromkeys(("use/watching", "use/service", "use/deployment", "use/tenants", "use/upgrade"), "uvicorn"),
    "use/embedding-models": "torch",
}


@pytest.fixture(scope="module")
def database() -> Iterator[postgres_server.PostgresServer]:
    programs = postgres_server.find_programs()
    if programs is None:
        pytest.skip("needs PostgreSQL and toolscout-postgres")
    with postgres_server.PostgresServer(programs) as server:
        yield server


def run_page(page: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="page-", dir="/tmp") as place:  # tables cut a path longer than this
        check_page(page, Path(place))


def check_page(page: Path, folder: Path) -> None:
    assert pages.check_page(page, folder) >= 1, f"{page} shows no output: add an example (scripts/run_pages.py)"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if pages.DATABASE not in page.read_text()], ids=lambda page: f"{page.stem}"
)
def test_a_page_prints_what_it_shows(page: Path) -> None:
    if (package := NEEDS.get(f"{page.parent.name}/{page.stem}")) and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the package {package}")
    run_page(page)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if pages.DATABASE in page.read_text()], ids=lambda page: f"{page.stem}"
)
def test_a_page_on_postgresql_prints_what_it_shows(
    page: Path, database: postgres_server.PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUN_PAGES_DATABASE", database.url(schema=f"page_{page.stem.replace('-', '_')}"))
    run_page(page)


@pytest.mark.slow
@pytest.mark.timeout(600)  # the demo indexes some ten thousand tools
def test_every_command_of_the_readme_runs(tmp_path: Path) -> None:
    shell, scripts = pages.Shell(tmp_path), [block.text for block in pages.find_blocks(README)]
    commands = [line for text in scripts for line in text.splitlines() if line.startswith("toolscout")]
    assert len(commands) >= 3, "the README shows no command that can run"
    for line in commands:
        shell.run_block(line)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("toolscout remove nonesuch\ntrue", "nonesuch"),
        ("toolscout list  # exits with 1", "ended with 0"),
        ("false | true", "ended with 1"),
    ],
)
def test_a_command_that_ends_otherwise_than_the_page_says_fails_the_test(
    tmp_path: Path, script: str, message: str
) -> None:
    with pytest.raises(pages.PageError, match=message):
        pages.Shell(tmp_path).run_block(script)


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
    found = pages.find_missing_line(shown, printed)
    assert (found and " ".join(pages.FRACTION.sub("7.00", found).split())) == (
        missing and " ".join(pages.FRACTION.sub("7.00", missing).split())
    )


def test_a_page_that_shows_something_else_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\necho one\n```\n\n```text\ntwo\n```\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(pages.PageError, match="shows 'two'"):
        pages.check_page(page, folder)
    (tmp_path / "again").mkdir()
    page.write_text(page.read_text().replace("two", ""))
    pages.fill_page(page, tmp_path / "again")
    assert "```text\none\n```" in page.read_text()
