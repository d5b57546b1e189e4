"""The files under deploy/ name the program as it is."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from toolscout.home.journal.journal import Journal
from toolscout_server import Limits

DEPLOY = Path(__file__).parents[3] / "deploy"


def options(words: list[str]) -> None:
    """Check that a command line would be understood."""
    from toolscout.cli.main import program

    assert Path(words[0]).name == "toolscout" and words[1] == "serve"
    root = click.Context(program, info_name="toolscout", **program.context_settings)
    command = program.get_command(root, "serve")
    assert command is not None
    context = command.make_context("serve", words[2:], root)
    assert context.params["policy"] and 0 < context.params["port"] < 65536


def unit() -> configparser.SectionProxy:
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read_string((DEPLOY / "toolscout.service").read_text())
    return read["Service"]


def test_the_systemd_unit_starts_the_program_and_waits_for_its_end() -> None:
    options(shlex.split(unit()["ExecStart"]))
    assert int(unit()["TimeoutStopSec"]) > Limits().patience


def test_the_container_starts_the_program() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    [command] = [line for line in lines if line.startswith("CMD ")]
    options(json.loads(command.removeprefix("CMD ")))


@pytest.mark.parametrize("extra", ["mcp", "server"])
def test_the_container_installs_extras_that_exist(extra: str) -> None:
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    assert f"\n{extra} = [" in project and extra in (DEPLOY / "Containerfile").read_text()


def test_the_proxy_lets_an_import_of_the_journal_through() -> None:
    size = (DEPLOY / "nginx.conf").read_text().partition("client_max_body_size ")[2].partition("m;")[0]
    assert int(size) << 20 >= Limits().upload


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("sqlite3") is None, reason="needs Linux and sqlite3")
@pytest.mark.folder_only("files of a folder")
def test_the_steps_of_the_page_bring_the_journal_back_after_a_crash(tmp_path: Path) -> None:
    page = (DEPLOY.parent / "docs" / "use" / "backup.md").read_text()
    backup, restore = re.findall(r"^```console\n(.*?)^```", page, re.S | re.M)[:2]
    home, etc, safe, crashed = (tmp_path / name for name in ("home", "etc", "backup", "crashed"))
    for folder in (home / "models" / "m", etc, safe):
        folder.mkdir(parents=True)
    (home / "models" / "m" / "manifest.json").write_text("{}")
    (etc / "policy.toml").write_text("# of ours")

    def follow(steps: str, place: Path) -> None:
        for said, meant in (("/var/lib/toolscout", place), ("/etc/toolscout", etc), ("/backup", safe)):
            steps = steps.replace(said, str(meant))
        subprocess.run(["sh", "-e", "-c", steps], check=True)

    journal = Journal(home)
    for number in range(50):
        journal.append("call", tool=f"t{number}", ok=True, padding="x" * 500)
    follow(backup, home)
    before = list(journal.read())
    for number in range(200):
        journal.append("call", tool=f"later{number}", ok=True, padding="y" * 500)
    shutil.copytree(home, crashed)  # as a crash leaves it: the log was never written back
    journal.close()
    assert (crashed / "journal.db-wal").stat().st_size
    shutil.rmtree(crashed / "models")
    (etc / "policy.toml").unlink()
    follow(restore, crashed)
    restored = Journal(crashed)
    assert restored.check() == [] and list(restored.read()) == before
    restored.close()
    assert (crashed / "models" / "m" / "manifest.json").exists() and (etc / "policy.toml").read_text() == "# of ours"
