"""The files under deploy/ name the program as it is."""

from __future__ import annotations

import configparser
import json
import shlex
from pathlib import Path

import click
import pytest

from toolscout.server import Limits

DEPLOY = Path(__file__).parents[2] / "deploy"


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
