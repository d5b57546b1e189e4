"""The documentation is up to date: it shows the program's own help and settings, snippets run, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scripts_loader import load_script
from toolscout.cli.main import COMMANDS, LAB_COMMANDS
from toolscout.recipes.registry import list_user_recipes
from toolscout.settings import Settings, list_settings, load_settings, read_settings_file

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "examples" / "README.md", *(ROOT / "docs").glob("**/*.md")])
REFERENCE = ROOT / "docs" / "reference"
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.S | re.M)
COMMENT = re.compile(r"<!--.*?-->", re.S)
MADE_TABLE = re.compile(r"<!-- (table|settings) .*?<!-- end of \1 -->", re.S)
MAX_PAGE_WORDS = 1_200
#: Per 1,000 words of docs/use and docs/understand outside of code: at least, at most.
MIN_YOU, MIN_CONTRACTIONS, MIN_CODE_BLOCKS, MAX_METAPHORS = 10, 2, 9, 0.5
YOU = re.compile(r"\byou(r|rs|rself)?\b", re.I)
CONTRACTION = re.compile(r"\w(n't|'re|'ll|'ve|'d)\b|\b(it|that|what|there|here|who)'s\b", re.I)
METAPHOR = re.compile(r"\b(lies?|stands?|holds?|speaks?|tells?)\b", re.I)
MAX_README_WORDS = 600
MAX_LINE_CHARS = 120


def snippets(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.relative_to(ROOT)}-{number}", match[2])
        for page in PAGES
        for number, match in enumerate(FENCE.finditer(page.read_text()))
        if match[1] == language
    ]


def is_run_with_its_page(name: str) -> bool:
    """Whether `test_documented_commands` runs this snippet, with the ones before it on its page."""
    return name.startswith(("docs/use/", "docs/understand/"))


def test_the_command_line_page_is_the_programs_own_help() -> None:
    module = load_script("scripts/make_cli_docs.py")
    pages = module.make_pages()
    for name, text in pages.items():
        assert (REFERENCE / name).read_text() == text, f"{name} is out of date: run  python scripts/make_cli_docs.py"
    assert {f"cli/{path.name}" for path in (REFERENCE / "cli").iterdir()} == set(pages) - {module.INDEX}
    shown = "\n".join(pages.values())
    for command in (*COMMANDS, *(f"lab {name}" for name in LAB_COMMANDS)):
        assert shown.count(f"## `toolscout {command}`\n") == 1, command


def test_the_settings_page_is_made_from_the_settings(tmp_path: Path) -> None:
    page = (REFERENCE / "settings.md").read_text()
    assert load_script("scripts/make_cli_docs.py").make_settings_page(page) == page, (
        "run  python scripts/make_cli_docs.py"
    )
    assert [name for name in list_settings() if f"`{name}`" not in page] == []


def test_the_file_to_copy_sets_every_setting_to_its_default(tmp_path: Path) -> None:
    (code,) = (code for name, code in snippets("toml") if "settings.md" in name)
    file = tmp_path / "toolscout.toml"
    file.write_text(code)
    _, values = read_settings_file(file)
    assert set(list_settings()) - set(values) == {"home", "model", "encoder"}, "these differ from machine to machine"
    assert load_settings(file=file, environ={}) == Settings()


def test_the_page_on_search_lists_every_recipe_with_when_to_take_it() -> None:
    page = (ROOT / "docs" / "understand" / "search.md").read_text()
    shown = dict(re.findall(r"^\| `([\w-]+)` \| (.+) \|$", page, re.M))
    assert list(shown) == list(list_user_recipes())
    for name, when in shown.items():
        words = [set(re.findall(r"\w+", text.lower())) for text in (when, list_user_recipes()[name].when)]
        assert words[0] == words[1], name


def find_sized_pages() -> list[Path]:
    """The pages in the folders of docs/README.md whose size is limited."""
    folders = ("use", "understand", "extend", "results", "reference", "methods")
    sized = [page for page in PAGES if page.relative_to(ROOT).parts[1:2] in [(folder,) for folder in folders]]
    return [page for page in sized if page.parent.name != "cli"]  # the program's own help, to look things up


@pytest.mark.parametrize("page", find_sized_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short_and_so_are_its_lines(page: Path) -> None:
    words = count_words(FENCE.sub("", MADE_TABLE.sub("", page.read_text())))
    assert words <= MAX_PAGE_WORDS, (
        f"{page.name} has {words} words outside of code and made tables, of at most {MAX_PAGE_WORDS}: "
        "shorten it, or make two pages of it"
    )
    assert_short_lines(page)


def test_pages_talk_to_their_reader_and_show_examples() -> None:
    """The ratchet of `Write documentation` in CONTRIBUTING.md. It is a mirror: read the page aloud, too."""
    texts = {page: page.read_text() for folder in ("use", "understand") for page in (ROOT / "docs" / folder).glob("*")}
    prose = {page: FENCE.sub("", COMMENT.sub("", text)) for page, text in texts.items()}
    thousands = sum(map(count_words, prose.values())) / 1000

    def measure(pattern: re.Pattern[str], found: dict[Path, str]) -> float:
        return sum(len(pattern.findall(text)) for text in found.values()) / thousands

    metaphors = {str(page.relative_to(ROOT)): METAPHOR.findall(text) for page, text in prose.items()}
    assert measure(YOU, prose) >= MIN_YOU, "write to the reader: `you`"
    assert measure(CONTRACTION, prose) >= MIN_CONTRACTIONS, "write as people talk: it's, don't"
    assert measure(FENCE, texts) >= MIN_CODE_BLOCKS, "show a command and what it prints"
    assert measure(METAPHOR, prose) <= MAX_METAPHORS, {page: words for page, words in metaphors.items() if words}


def test_the_readme_is_short() -> None:
    assert count_words((ROOT / "README.md").read_text()) <= MAX_README_WORDS
    assert len((ROOT / "README.md").read_text().splitlines()) <= 80
    for name in ("README.md", "CONTRIBUTING.md", "docs/README.md", "examples/README.md"):
        assert_short_lines(ROOT / name)


def count_words(text: str) -> int:
    """Words as a reader counts them: without comments and the signs that draw tables."""
    return sum(bool(re.search(r"\w", word)) for word in COMMENT.sub("", text).split())


def assert_short_lines(page: Path) -> None:
    """Lines are short, except those of tables that scripts write, whose rows cannot be broken."""
    text = MADE_TABLE.sub("", page.read_text())
    assert not [line for line in text.splitlines() if len(line) > MAX_LINE_CHARS], page


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a snippet may leave its home open
@pytest.mark.parametrize(
    ("name", "code"),
    [(name, code) for name, code in snippets("python") if not is_run_with_its_page(name)],
    ids=lambda value: value if "\n" not in value else "",
)
def test_a_python_snippet_runs(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # a program for each takes a second to start
    program = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", program)  # some snippet looks its own functions up
    exec(compile(code, name, "exec", dont_inherit=True), program.__dict__)
    assert capsys.readouterr().out.strip(), f"{name} shows nothing"


@pytest.mark.parametrize(
    ("name", "code"), [*snippets("sh"), *snippets("console")], ids=lambda value: value if "\n" not in value else ""
)
def test_a_shell_snippet_names_real_commands_and_options(name: str, code: str) -> None:
    import click

    from toolscout.cli.main import program

    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line.partition(" | ")[0], comments=True)
        if words and words[0].startswith("scripts/"):
            assert (ROOT / words[0]).exists(), name
        if not words or words[0] != "toolscout":
            continue
        group: click.Group = program
        while words[1].startswith("--"):  # an option of the program and its value, such as `--home FOLDER`
            assert words.pop(1) in {option for parameter in program.params for option in parameter.opts}, name
            del words[1]
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


def test_start_here_names_ten_places_that_are_there_and_a_picture_of_them() -> None:
    script = load_script("scripts/draw_pictures.py")
    page = (ROOT / "docs" / "understand" / "start-here.md").read_text()
    places = script.read_places(page)
    assert len(places) == 10 and count_words(page.partition("## Where")[0]) <= 600
    for place in places:
        source = (ROOT / "src" / "toolscout" / place.file).read_text()
        assert re.search(rf"^(class|def) {place.name}\b", source, re.M), place


def test_each_concept_page_has_its_picture_made_by_the_script() -> None:
    script = load_script("scripts/draw_pictures.py")
    for name, picture in script.draw_all().items():
        assert (script.IMAGES / f"{name}.svg").read_text() == picture, "run  python scripts/draw_pictures.py"
    for page in [*(ROOT / "docs" / "understand").glob("*.md"), ROOT / "docs" / "use" / "gateway.md"]:
        assert f"](../images/{page.stem}.svg)" in page.read_text(), page


def test_start_here_says_where_new_things_go() -> None:
    page = (ROOT / "docs" / "understand" / "start-here.md").read_text()
    rows = dict(re.findall(r"^\| ([a-z `]+) \| (.+) \|$", page.partition("| new |")[2], re.M | re.I))
    assert [name.lower() for name in rows] == [
        "kind of source", "layout of a known kind of source", "way to reach an mcp server", "encoder", "ranking rule",
        "ranking method from a paper", "word of a language", "everyday phrase for words of tools",
        "check of untrusted text", "form of a secret", "limit", "limit for each caller", "limit for running programs",
        "section of `doctor`", "setting", "command", "column on the page of the service", "page of the documentation",
        "benchmark", "rival to compare with",
    ]  # fmt: skip
    named = {path for text in rows.values() for path in re.findall(r"`((?:\w+/)+[\w./]*\w|mkdocs.yml)`", text)}
    assert len(named) >= 12
    assert [
        path for path in named if not any((root / path).exists() for root in (ROOT, ROOT / "src" / "toolscout"))
    ] == []
    code = "".join(path.read_text() for path in (ROOT / "src" / "toolscout").rglob("*.py"))
    for name in ("KIND_TABLE", "COMMAND_GROUPS", "EXAMPLES", "class Settings", "def scan", "class Stage", "def load("):
        assert name in code, name
