"""Releases: the changelog and the version are written as they should be, and the files around them are valid."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

import toolscout
from scripts_loader import load_script
from toolscout.errors import PACKAGE_FOLDERS, install_line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- This.\n\n## [0.1.0] - 2026-01-01\n\n- That.\n"


@pytest.fixture(scope="module")
def release() -> ModuleType:
    return load_script("scripts/release")


def git(folder: Path, *words: str) -> str:
    line = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the files that state the version."""
    for name, text in {
        "CHANGELOG.md": CHANGELOG,
        "CITATION.cff": "version: 0.1.0\ndate-released: 2026-01-01\n",
        "pyproject.toml": '[project]\nversion = "0.1.0"\n[tool.x]\ntarget-version = "py310"\n',
        "packages/small/pyproject.toml": '[project]\nversion = "0.1.5"\n'
        'dependencies = ["toolscout==0.1.0", "x==0.1.0"]\n',
        "src/toolscout/__init__.py": '__version__ = "0.1.0"\n',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "-m", "begin")
    return tmp_path


def test_the_open_section_of_the_changelog_becomes_that_of_the_version(release: ModuleType) -> None:
    closed = release.close_changelog(CHANGELOG, "0.2.0", "2026-02-03")
    assert closed == CHANGELOG.replace("## [Unreleased]\n", "## [Unreleased]\n\n## [0.2.0] - 2026-02-03\n")
    with pytest.raises(release.Refused, match="says nothing below"):
        release.close_changelog(closed, "0.3.0", "2026-02-03")
    assert release.close_changelog(closed, "0.2.0", "2026-02-04") == closed.replace("02-03", "02-04")
    with pytest.raises(release.Refused, match=r"has a section 0\.1\.0 already"):
        release.close_changelog(CHANGELOG, "0.1.0", "2026-02-03")


def test_the_version_is_written_wherever_it_stands(release: ModuleType, repository: Path) -> None:
    release.write_version(repository, "0.2.0", "2026-02-03")
    assert 'version = "0.2.0"\n[tool.x]\ntarget-version = "py310"' in (repository / "pyproject.toml").read_text()
    package = (repository / "packages" / "small" / "pyproject.toml").read_text()
    assert 'version = "0.2.0"\ndependencies = ["toolscout==0.2.0", "x==0.1.0"]' in package
    assert (repository / "src" / "toolscout" / "__init__.py").read_text() == '__version__ = "0.2.0"\n'
    assert (repository / "CITATION.cff").read_text() == "version: 0.2.0\ndate-released: 2026-02-03\n"


@pytest.mark.parametrize("version", ["2", "0.2", "v0.2.0", "0.2.0-rc1", "0.2.0 "])
def test_a_version_that_is_none_is_refused(release: ModuleType, repository: Path, version: str) -> None:
    with pytest.raises(release.Refused, match="expected a version such as"):
        release.check_repository(repository, version)


def test_a_release_begins_from_a_clean_tree_and_a_new_tag(release: ModuleType, repository: Path) -> None:
    release.check_repository(repository, "0.2.0rc1")
    with pytest.raises(release.Refused, match=r"there is no tag v0\.2\.0"):
        release.check_repository(repository, "0.2.0", tagged=True)
    git(repository, "tag", "v0.2.0")
    release.check_repository(repository, "0.2.0", tagged=True)
    with pytest.raises(release.Refused, match=r"the tag v0\.2\.0 exists"):
        release.check_repository(repository, "0.2.0")
    (repository / "new.txt").write_text("x")
    with pytest.raises(release.Refused, match="changes that are not committed"):
        release.check_repository(repository, "0.3.0")


def test_builds_that_differ_are_refused_and_named(
    release: ModuleType, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(clone: Path, tag: str, epoch: str, python: Path, work: Path) -> Path:
        work.mkdir(parents=True)
        (work / "same.whl").write_text(epoch)
        (work / "other.whl").write_text(work.name if differ else "")
        return work

    git(repository, "tag", "v0.1.0")
    monkeypatch.setattr(release, "build_packages", build)
    differ = False
    assert release.build_twice(repository, "v0.1.0", Path("python"), tmp_path / "a") == tmp_path / "a" / "build-1"
    differ = True
    with pytest.raises(release.Refused, match=r"two builds differ in other\.whl"):
        release.build_twice(repository, "v0.1.0", Path("python"), tmp_path / "b")


def test_the_versions_of_this_tree_agree(release: ModuleType) -> None:
    found = {name: re.findall(pattern, (ROOT / name).read_text()) for name, pattern in release.VERSION_FILES.items()}
    assert all(versions == [toolscout.__version__] for versions in found.values())
    assert f"\nversion: {toolscout.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    for package in [ROOT, *(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))]:
        text = (package / "pyproject.toml").read_text()
        assert re.findall(release.VERSION_FILES["pyproject.toml"], text) == [toolscout.__version__], package
        assert {pin.rpartition("==")[2] for pin in re.findall(r'"toolscout[^"]*==[^"]+', text)} <= {
            toolscout.__version__
        }


@pytest.mark.full
def test_a_release_can_be_made(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    line = [sys.executable, str(clone / "scripts" / "release"), "99.0.0", "--dry-run", "--python", sys.executable]
    for field in ("name", "email"):
        git(clone, "config", f"user.{field}", "a@example.org")
    done = subprocess.run(line, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr
    files = {file.name for file in (clone / "dist").iterdir()}
    assert {"toolscout-99.0.0-py3-none-any.whl", "toolscout-99.0.0.tar.gz", "SHA256SUMS"} <= files
    assert git(clone, "tag", "--list") == "" and git(clone, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_the_files_for_github_follow_their_schemas(schema: str, files: str) -> None:
    from check_jsonschema import main as check

    found = [str(file) for file in ROOT.glob(files)]
    done = CliRunner().invoke(check, ["--builtin-schema", f"vendor.{schema}", *found])
    assert found and done.exit_code == 0, done.output


def test_every_script_that_a_workflow_runs_is_there() -> None:
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        for script in re.findall(r"\bscripts/[\w.]+", workflow.read_text()):
            assert (ROOT / script).is_file(), f"{workflow.name}: {script}"


def test_each_version_has_a_date_and_at_most_fifteen_highlights() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.split(r"^## ", text, flags=re.M)[1:]
    assert sections[0].startswith("[Unreleased]\n") and len(sections) >= 2
    for section in sections:
        title = section.partition("\n")[0]
        assert re.fullmatch(r"\[Unreleased\]|\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", title), title
        count = len(re.findall(r"^- ", section, re.M))
        assert (count or title == "[Unreleased]") and count <= 15, (
            f"{title} has {count} highlights: move the lesser ones to CHANGELOG-details.md"
        )


def test_a_hint_to_install_a_package_holds_in_a_clone_too() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    own = {
        extra: match.group(1, 2)
        for extra, [first, *_] in extras.items()
        if (match := re.match(r"toolscout-(\w+)(\[\w+\])?==", first))
    }
    assert set(PACKAGE_FOLDERS) == set(own) > {"gateway", "train"}
    for extra, (package, package_extra) in own.items():
        assert PACKAGE_FOLDERS[extra] == package + (package_extra or "") and (ROOT / "packages" / package).is_dir()
        assert install_line(extra).endswith(f"in a clone,  pip install './packages/{PACKAGE_FOLDERS[extra]}'")
    assert install_line("hub") == "pip install 'toolscout[hub]'"
