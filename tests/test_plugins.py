"""What other packages add: found by entry points, loaded when used, harmless when broken."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests_cli import run
from toolscout import encoders, plugins, sources
from toolscout.errors import ConfigError, NotFound, SourceError
from toolscout.location import describe_home
from toolscout.recipes import registry
from toolscout.scout import Scout
from toolscout.settings import Settings
from toolscout.testing import check_source

ROOT = Path(__file__).parent.parent
EXTRAS = ROOT / "examples" / "extend"
PATIENCE_S = 300  # some ten processes one after the other, on a machine that may be busy
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a package with entry points on the path, as an installer would."""
    site = tmp_path / "site"
    before = set(sys.modules)

    def put(package: str, entry_points: str, code: str = "") -> None:
        place = site / f"{package}-1.0.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (place / "entry_points.txt").write_text(textwrap.dedent(entry_points))
        (site / f"{package}.py").write_text(textwrap.dedent(code))
        monkeypatch.syspath_prepend(str(site))
        plugins.list_plugins.cache_clear()

    yield put
    monkeypatch.undo()
    plugins.list_plugins.cache_clear()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(site)):
            del sys.modules[name]


def doctor(home: str) -> dict[str, dict[str, object]]:
    result = run("--home", home, "doctor", "--json")
    assert result.exit_code == 0, result.output
    return {row["name"]: row for row in json.loads(result.stdout)["plugins"]}


def test_a_repair_does_not_claim_to_have_mended_a_broken_report(install: Install, toy: Scout) -> None:
    install("broken", "[toolscout.reports]\nodd = broken", "raise RuntimeError('no libfoo')")
    repaired = run("--home", describe_home(toy.settings.place), "doctor", "--repair", "--json")
    report = json.loads(repaired.stdout)
    assert repaired.exit_code == 1 and any("no libfoo" in line for line in report["findings"])
    assert not any("no libfoo" in line for line in report["repaired"])


def test_a_broken_plug_in_is_one_warning_and_disturbs_no_search(install: Install, toy: Scout) -> None:
    install(
        "broken",
        """
        [toolscout.sources]
        odd = broken:read
        [toolscout.encoders]
        odd = broken:load
        [toolscout.methods]
        odd = broken:RECIPE
        [toolscout.indexes]
        odd = broken:make
        """,
        "raise RuntimeError('no libfoo')",
    )
    assert toy.search("will it rain?", recipe="hybrid").ids
    assert registry.is_known("odd") and "broken" not in sys.modules
    rows = doctor(describe_home(toy.settings.place))
    assert (rows["odd"]["package"], rows["odd"]["version"], rows["odd"]["loads"]) == ("broken", "1.0", False)
    lines = [
        line
        for line in run("--home", describe_home(toy.settings.place), "doctor").stdout.splitlines()
        if "warning" in line
    ]
    assert len(lines) == 4
    assert all("cannot be loaded" in line and "RuntimeError: no libfoo" in line for line in lines)
    with pytest.raises(SourceError, match=r"the plug-in 'odd' of broken 1.0 cannot be loaded|no libfoo"):
        toy.add("odd:x")
    for settings in ({"encoder": "odd"}, {"index": "odd"}):
        scout = Scout(describe_home(toy.settings.place), recipe="dense", **settings)
        with scout, pytest.raises(ConfigError, match="no libfoo"):
            scout.search("rain")
    with pytest.raises(ConfigError, match="no libfoo"):
        toy.search("rain", recipe="odd")


def test_a_plug_in_cannot_take_a_name_of_toolscout(install: Install, scout: Scout) -> None:
    install(
        "thief",
        """
        [toolscout.sources]
        openapi = thief:steal
        [toolscout.encoders]
        static = thief:steal
        [toolscout.methods]
        colt = thief:steal
        [toolscout.indexes]
        exact = thief:steal
        Bad Name = thief:steal
        """,
        "def steal(*args, **kwargs): raise AssertionError('used')",
    )
    assert encoders.load("static", Settings()).name == "static"
    assert registry.recipe("colt").name == "colt"
    assert plugins.find_plugin(plugins.SOURCE_PLUGINS, "openapi") is None
    rows = doctor(describe_home(scout.settings.place))
    for name in ("openapi", "static", "colt", "exact"):
        assert rows[name]["loads"] is False
        assert f"The name {name!r} belongs to toolscout" in str(rows[name]["problem"])
    assert "cannot be used" in str(rows["Bad Name"]["problem"])


def test_a_source_that_yields_tools_and_problems_is_a_plug_in(install: Install, scout: Scout) -> None:
    install(
        "lister",
        "[toolscout.sources]\nlister = lister:SOURCE\n",
        """
        from toolscout.sources import Problem, RawTool, build_tool

        class Lister:
            def read(self, locator):
                yield build_tool("any", RawTool(id=locator, description="Lists."))
                yield Problem("second", "it has no name")

        SOURCE = Lister()
        """,
    )
    [reading] = sources.read("lister:pets", name="mine", settings=Settings())
    assert [tool.id for tool in reading.tools] == ["mine/pets"] and reading.kind == "lister"
    assert [problem.entry for problem in reading.problems] == ["second"]
    [reading] = sources.read("lister:pets", settings=Settings())
    assert reading.source == "any"


def test_two_packages_with_one_name_are_both_named(install: Install, scout: Scout) -> None:
    for package in ("first", "second"):
        install(package, f"[toolscout.encoders]\ntwin = {package}:load\n", "def load(argument, settings): ...")
    with pytest.raises(ConfigError, match=r"Both first 1.0 and second 1.0 bring 'twin' to toolscout.encoders"):
        encoders.load("twin", Settings())
    assert doctor(describe_home(scout.settings.place))["twin"]["loads"] is False


def test_what_a_plug_in_does_wrong_is_said_with_its_package(install: Install, scout: Scout, tmp_path: Path) -> None:
    install(
        "wrong",
        """
        [toolscout.sources]
        outside = wrong:read
        crash = wrong:crash
        [toolscout.encoders]
        renamed = wrong:load
        text = wrong:TEXT
        [toolscout.methods]
        other = wrong:RECIPE
        [toolscout.indexes]
        forgets = wrong:make
        """,
        """
        from toolscout.indexes.exact import Exact
        from toolscout.rankers.zero_shot import Bm25
        from toolscout.rankers import Recipe
        from toolscout.sources import Reading
        from toolscout.testing import HashEncoder
        from toolscout.types import Tool

        TEXT = "no function"
        RECIPE = Recipe("another", "Another.", Bm25())

        def read(locator, *, name, settings):
            return [Reading(source="mine", kind="folder", tools=[Tool(id="mail/send", name="send")])]

        def crash(locator, *, name, settings):
            raise ZeroDivisionError("oh")

        def load(argument, settings):
            return HashEncoder()

        def make(dim, argument, settings):
            index = Exact(dim)
            index.upsert = lambda ids, vectors: None
            return index
        """,
    )
    with pytest.raises(SourceError, match="returned 'mail/send', which does not begin with mine/"):
        scout.add("outside:x")
    with pytest.raises(SourceError, match=r"the plug-in 'crash' of wrong 1.0 failed: ZeroDivisionError: oh"):
        scout.add("crash:x")
    with pytest.raises(ConfigError, match="an encoder called 'hash'.*must be 'renamed'"):
        encoders.load("renamed", Settings())
    with pytest.raises(ConfigError, match="wrong:TEXT of wrong 1.0 is no function"):
        encoders.load("text", Settings())
    with pytest.raises(
        ConfigError, match="is a recipe called 'another', but toolscout needs a `Recipe` called 'other'"
    ):
        registry.recipe("other")
    with Scout(tmp_path / "home", recipe="dense", index="forgets") as other:
        other.add([{"name": "rain", "description": "Will it rain?"}], name="weather")
        with pytest.raises(ConfigError, match="index forgets: it does not hold the ids"):
            other.search("rain")
        assert other.search("rain", recipe="bm25").ids == ("weather/rain",)


def test_names_that_nobody_brings_are_refused_with_those_that_exist(scout: Scout, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected a kind of source, found 'nothing'. There are python, folder"):
        sources.read("x", kind="nothing", settings=Settings())
    with pytest.raises(NotFound, match="expected the name of a recipe, found 'hybird': did you mean 'hybrid'"):
        registry.recipe("hybird")
    scout.add([{"name": "rain"}], name="weather")
    with (
        Scout(describe_home(scout.settings.place), recipe="dense", index="nothing") as other,
        pytest.raises(
            ConfigError,
            match="index: expected the name of an index of auto, exact, ann, pgvector, milvus, found 'nothing'",
        ),
    ):
        other.search("rain")


def test_changed_tools_of_a_plug_in_wait_for_approval(install: Install, scout: Scout, tmp_path: Path) -> None:
    install(
        "remote",
        "[toolscout.sources]\nremote = remote:read\n",
        """
        from pathlib import Path
        from toolscout.sources import RawTool, Reading, build_tool

        def read(locator, *, name, settings):
            tool = build_tool("far", RawTool(id="pay", description=Path(locator).read_text()))
            return [Reading(source="far", kind="folder", tools=[tool])]
        """,
    )
    text = tmp_path / "text"
    text.write_text("Pay a bill.")
    [added] = scout.add(f"remote:{text}")
    assert (added.kind, added.new) == ("remote", 1)
    text.write_text("Pay any bill.")
    [changed] = scout.sync()
    assert (changed.kind, [each.id for each in scout.waiting()]) == ("remote", ["far/pay"])


ROWS = """
    import csv
    from pathlib import Path
    from toolscout.errors import SourceError
    from toolscout.sources import RawTool, build_tool, collect

    def read(locator, *, name, settings):
        path = Path(locator)
        if not path.is_file():
            raise SourceError(f"{path}: There is no such file. Check the path.")
        rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
        build = lambda row: build_tool("office", RawTool(id=row[0], description=row[1]))
        return [collect("office", "rows", [(f"line {n}", lambda row=row: build(row)) for n, row in enumerate(rows, 2)])]
    """


@pytest.fixture
def office(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plug-in `rows` for CSV files, and a file of it in the present folder."""
    install("rows", "[toolscout.sources]\nrows = rows:read\n", ROWS)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "office.csv"
    file.write_text("name,description\nprint,Print a page.\nbook,Book a room.\n")
    return file


def test_sync_never_says_no_change_of_tools_that_changed_and_wait(office: Path, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "home"))
    waits = "for approval: see  toolscout approve"
    assert "office: 2 new" in run(*home, "add", "rows:office.csv").stdout.splitlines()
    assert "office: no change (2 tools)" in run(*home, "sync").stdout.splitlines()
    office.write_text("name,description\nprint,Print two pages.\nbook,Book a room.\n")
    changed = run(*home, "sync").stdout.splitlines()
    assert f"office: 1 tool unchanged; 1 new or changed definition waits {waits}" in changed
    assert f"office: no change (1 tool); 1 definition still waits {waits}" in run(*home, "sync").stdout.splitlines()
    office.write_text("name,description\nprint,Print a book.\nbook,Book a hall.\n")
    assert f"office: 2 new or changed definitions wait {waits}" in run(*home, "sync").stdout.splitlines()
    assert f"office: no change (0 tools); 2 definitions still wait {waits}" in run(*home, "sync").stdout.splitlines()


def test_a_source_without_tools_is_said_to_have_none(office: Path, tmp_path: Path) -> None:
    office.write_text("name,description\n")
    assert "office: no tools" in run("--home", str(tmp_path / "home"), "add", "rows:office.csv").stdout.splitlines()


def test_a_file_that_only_a_plug_in_may_read_is_refused_with_its_name(office: Path, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "home"))
    office.with_name("colons.csv").write_text('name,description\nprint,"a: b": c\n- d\n')
    office.with_name("bad.json").write_text("{")
    office.with_name("folder").mkdir()
    for name in ("office.csv", "colons.csv", "folder"):
        refused = run(*home, "add", name)
        assert refused.exit_code == 1
        [hint] = [line for line in refused.stderr.splitlines() if line.startswith("hint: ")]
        assert hint.startswith("hint: A plug-in may read it: toolscout add rows:") and hint.endswith(name), hint
    assert "plug-in" not in run(*home, "add", "bad.json").stderr
    office.with_name("desk.rows").write_text("name,description\n")
    assert "hint: The plug-in rows reads it: toolscout add rows:" in run(*home, "add", "desk.rows").stderr


def test_a_failure_of_a_plug_in_names_its_file_once(office: Path, tmp_path: Path, scout: Scout) -> None:
    home = ("--home", str(tmp_path / "home"))
    (tmp_path / "folder").mkdir()  # a path that exists is made absolute
    for locator in ("rows:nope.csv", f"rows:{tmp_path}/nope.csv", "rows:./nope.csv", "rows:folder"):
        lines = run(*home, "add", locator).stderr.splitlines()
        assert f"error: {locator}: There is no such file." in lines and "hint: Check the path." in lines
    run(*home, "add", "rows:office.csv")
    office.unlink()
    assert f"error: office: rows:{office}: There is no such file." in run(*home, "sync").stderr.splitlines()
    with pytest.raises(SourceError, match=r"^rows:nope\.csv: There is no such file\. Check the path\.$"):
        scout.add("rows:nope.csv")


def test_a_repeated_id_names_the_entry_that_has_it(office: Path) -> None:
    office.write_text("name,description\nprint,Print a page.\nbook,Book a room.\nprint,Print again.\n")
    [reading] = sources.read("rows:office.csv", settings=Settings())
    [problem] = reading.problems
    assert problem.entry == "line 4"
    assert problem.message == "another entry, line 2, has the id 'office/print' already. The first one is kept."


@pytest.mark.parametrize(
    ("meta", "problem"),
    [
        ({"qualname": "run"}, None),
        ({"qualname": "run", "arguments": {"tool": "print"}}, None),
        ({"qualname": "anything"}, None),  # from the module's `__getattr__`
        ({"qualname": "_missing"}, "module 'scripts' has no function '_missing'"),
        ({}, "`meta` names the module 'scripts', but no function in it"),
        ({"qualname": "TABLE"}, "'TABLE' in module 'scripts' is no function: it is of type dict"),
        ({"module": "no_such", "qualname": "run"}, "module 'no_such' cannot be imported: ModuleNotFoundError"),
        ({"qualname": "run", "arguments": ["tool"]}, "expected an object as fixed arguments"),
        ({"qualname": "run", "arguments": {"page": "7"}}, "`meta` fixes page, which must not be in `parameters` too"),
    ],
)
def test_check_source_finds_functions_that_no_call_would_find(
    install: Install, meta: dict[str, object], problem: str | None
) -> None:
    install(
        "scripts",
        "",
        """
        TABLE = {}
        def run(**arguments): ...
        def __getattr__(name):
            if name.startswith("_"):
                raise AttributeError(name)
            return run
        """,
    )
    schema = {"type": "object", "properties": {"page": {"type": "string"}}}
    raw = sources.RawTool(id="print", parameters=schema, meta={"module": "scripts", **meta})
    reading = sources.Reading(source="office", kind="rows", tools=[sources.build_tool("office", raw)])
    if problem is None:
        assert check_source(lambda: [reading]) == [reading]
    else:
        with pytest.raises(AssertionError, match=f"office/print: .*{re.escape(problem)}"):
            check_source(lambda: [reading])


def test_show_says_that_a_function_needs_an_option_to_be_called(tmp_path: Path) -> None:
    home, folder = ("--home", str(tmp_path / "home")), tmp_path / "data"
    folder.mkdir()
    line = {"_id": "here", "title": "here", "text": "Folder.", "metadata": {"module": "os", "qualname": "getcwd"}}
    (folder / "corpus.jsonl").write_text(json.dumps(line))
    run(*home, "add", "py:textwrap:shorten", str(folder))
    [function] = json.loads(run(*home, "list", "textwrap.shorten", "--tools", "--json").stdout)
    assert "callable: with --allow-python" in run(*home, "show", function["id"]).stdout.splitlines()
    assert "callable: no" in run(*home, "show", "data/here").stdout.splitlines(), "a document names no function"


def test_a_path_behind_a_prefix_is_kept_as_absolute(
    install: Install, scout: Scout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        "here",
        "[toolscout.sources]\nhere = here:read\n",
        """
        from toolscout.sources import Reading

        def read(locator, *, name, settings):
            return [Reading(source="s", kind="here", message=locator)]
        """,
    )
    (tmp_path / "tools.csv").write_text("")
    monkeypatch.chdir(tmp_path)
    scout.add("here:tools.csv")
    assert [origin.locator for origin in scout.store.origins()] == [f"here:{tmp_path / 'tools.csv'}"]


# --- a package of somebody else ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with toolscout and a wheel of examples/extend; the folder of its programs."""
    folder = tmp_path_factory.mktemp("stranger")
    shutil.copytree(EXTRAS, folder / "project", ignore=shutil.ignore_patterns("__pycache__"))
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(  # as an installer calls the backend
        [sys.executable, "-c", build, folder / "dist"], cwd=folder / "project", check=True, capture_output=True
    )
    [wheel] = (folder / "dist").glob("*.whl")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    [packages] = (folder / "env" / "lib").glob("python*/site-packages")
    shared = [path for path in sys.path if path.endswith("site-packages")]
    sources = [ROOT / "src", *sorted((ROOT / "packages").glob("*/src"))]
    (packages / "toolscout.pth").write_text("\n".join([*map(str, sources), *shared]))
    return python


def call(python: Path, *arguments: str | Path, home: Path, **environment: str) -> str:
    """Run the program of the fresh environment."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLSCOUT_", "PYTHON"))}
    done = subprocess.run(
        [python, "-W", "ignore", *arguments],
        env={**settings, **environment, "TOOLSCOUT_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_office(folder: Path) -> None:
    """Write a small dataset: each tool is asked for in words that it does not have."""
    tasks = {
        "print_page": ("put ink on a sheet", "hard copy of my thesis"),
        "book_room": ("somewhere to meet", "space for the team"),
        "send_letter": ("drop grandma a line", "tell the landlord"),
    }
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": tool, "title": tool, "text": tool.replace("_", " ")}) + "\n" for tool in tasks)
    )
    queries, train, dev = [], ["query-id\tcorpus-id\tscore"], ["query-id\tcorpus-id\tscore"]
    for tool, wordings in tasks.items():
        for number, wording in enumerate(wordings):
            for split, lines, text in ((0, train, wording), (1, dev, f"please {wording}")):
                queries.append({"_id": f"{tool}{number}{split}", "text": text})
                lines.append(f"{tool}{number}{split}\t{tool}\t1")
    (folder / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    (folder / "qrels" / "train.tsv").write_text("\n".join(train) + "\n")
    (folder / "qrels" / "dev.tsv").write_text("\n".join(dev) + "\n")


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
def test_a_package_of_somebody_else_adds_one_of_each(stranger: Path, tmp_path: Path) -> None:
    home, program = tmp_path / "home", ("-m", "toolscout")
    rows = json.loads(call(stranger, *program, "doctor", "--json", home=home))["plugins"]
    rows = [row for row in rows if not row["package"].startswith("toolscout-postgres")]
    assert {(row["group"], row["name"], row["package"], row["version"], row["loads"]) for row in rows} >= {
        ("toolscout.sources", "csv", "toolscout-extras", "1.0", True),
        ("toolscout.encoders", "pieces", "toolscout-extras", "1.0", True),
        ("toolscout.indexes", "int8", "toolscout-extras", "1.0", True),
        ("toolscout.methods", "logged-words", "toolscout-extras", "1.0", True),
    }
    file = tmp_path / "office.csv"
    file.write_text("name,description,arguments\nprint_page,Print a page on paper.,page\nbook_room,Book a room.,day\n")
    added = json.loads(call(stranger, *program, "add", f"csv:{file}", "--json", home=home))
    assert [(source["kind"], source["new"]) for source in added["sources"]] == [("csv", 2)]
    search = (*program, "search", "--json", "--recipe", "dense", "--encoder", "pieces:256", "prining a paeg")
    [answer] = json.loads(f"[{call(stranger, *search, home=home, TOOLSCOUT_INDEX='int8')}]")
    assert answer["hits"][0]["id"] == "office/print_page"
    why = call(stranger, *program, "why", "--recipe", "dense", "prining", "office/print_page", home=home,
               TOOLSCOUT_INDEX="int8", TOOLSCOUT_ENCODER="pieces")  # fmt: skip
    assert "cosine about" in why
    ask = (ROOT / "examples" / "ask_gateway.py", "call_tool", '{"id": "office/print_page", "arguments": {"page": "7"}}')
    assert "print_page runs with {'page': '7'}" in call(stranger, *ask, "--", "--allow-python", home=home)
    assert "--allow-python" in call(stranger, *ask, home=home)


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
def test_a_method_of_somebody_else_is_trained_and_serves(stranger: Path, tmp_path: Path) -> None:
    home, program, data = tmp_path / "home", ("-m", "toolscout"), tmp_path / "data"
    write_office(data)
    model = tmp_path / "model"
    call(stranger, *program, "train", "logged-words", "--data", data, "--out", model, home=home)
    call(stranger, *program, "add", data, "--name", "office", home=home)
    text = call(stranger, *program, "search", "--json", "--model", model, "put ink on a sheet", home=home)
    assert [hit["id"] for hit in json.loads(text)["hits"]][:1] == ["office/print_page"]


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S)
def test_each_example_passes_its_conformance_check(stranger: Path, tmp_path: Path) -> None:
    code = (
        "import runpy, sys\nfor name in sys.argv[1:]: "
        "runpy.run_module('toolscout_extras.' + name, run_name='__main__', alter_sys=True)"
    )
    lines = call(stranger, "-c", code, "source", "encoder", "index", "method", home=tmp_path).splitlines()
    assert len(lines) == 4, lines


@pytest.mark.parametrize("name", ["source", "encoder", "index", "method"])
def test_the_page_shows_the_example_as_it_is(name: str) -> None:
    page = (ROOT / "docs" / "extend" / f"{name}.md").read_text()
    code = (EXTRAS / "toolscout_extras" / f"{name}.py").read_text()
    assert f"```python\n{code}```" in page
    assert len(page.split()) <= 1500


def test_the_overview_shows_the_project_file_as_it_is() -> None:
    page = (ROOT / "docs" / "extend" / "README.md").read_text()
    assert f"```toml\n{(EXTRAS / 'pyproject.toml').read_text()}```" in page
    assert len(page.split()) <= 1500
