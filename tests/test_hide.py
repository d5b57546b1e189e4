"""A hidden tool leaves the catalogue and stays away until it is shown again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from homes_in_postgres import name_home
from tests_cli import run
from toolscout.errors import NotFound
from toolscout.location import Home
from toolscout.scout import Scout


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A source of two tools."""
    path = tmp_path / "desk.json"
    path.write_text(json.dumps([{"name": name, "description": f"{name} a letter"} for name in ("send", "shred")]))
    return path


@pytest.fixture
def scout(place: Home) -> Iterator[Scout]:
    """An empty catalogue in a folder, and one in a database."""
    with Scout(name_home(place), recipe="bm25") as opened:
        yield opened


def list_ids(scout: Scout) -> list[str]:
    return list(scout.store.catalogue().ids)


def test_no_sync_brings_a_hidden_tool_back_and_show_does(scout: Scout, file: Path) -> None:
    scout.add(file)
    generation = scout.store.generation()
    scout.hide(["desk/shred"])
    assert list_ids(scout) == ["desk/send"] and scout.store.generation() > generation
    [change] = scout.sync()
    assert (change.new, change.gone, change.same) == (0, 0, 1)
    file.write_text(json.dumps([{"name": "shred", "description": "shreds another thing"}]))
    [change] = scout.sync()
    assert (change.new, change.gone) == (0, 1) and list_ids(scout) == []
    assert [hit.id for hit in scout.search("shred a letter").hits] == []
    [change] = scout.show(["desk/shred"])
    assert change.new == 1 and list_ids(scout) == ["desk/shred"] and scout.store.hidden() == []


def test_it_stays_hidden_when_its_source_is_removed_and_added_again(scout: Scout, file: Path) -> None:
    scout.add(file)
    scout.hide(["desk/shred"])
    scout.remove(["desk"])
    scout.add(file)
    assert list_ids(scout) == ["desk/send"]


def test_a_tool_that_is_not_there_is_not_hidden_and_then_nothing_is(scout: Scout, file: Path) -> None:
    scout.add(file)
    with pytest.raises(NotFound, match="'desk/nonesuch'"):
        scout.hide(["desk/send", "desk/nonesuch"])
    assert len(list_ids(scout)) == 2 and scout.store.hidden() == []
    scout.hide(["desk/send"])
    scout.hide(["desk/send"])
    with pytest.raises(NotFound, match=r"Did you mean 'desk/send'\?"):
        scout.show(["desk/sned"])
    assert scout.store.hidden() == ["desk/send"]


def test_the_command_hides_lists_and_undoes(file: Path) -> None:
    assert run("add", str(file)).exit_code == 0
    assert (
        run("hide", "desk/shred", "desk/send").stdout == "2 tools hidden; show again with  toolscout hide --undo ID…\n"
    )
    assert run("hide", "--list").stdout == "desk/send\ndesk/shred\n"
    assert json.loads(run("hide", "--list", "--json").stdout) == {"hidden": ["desk/send", "desk/shred"]}
    assert run("hide", "--undo", "desk/send").stdout == "1 tool shown again\n"
    assert "desk/send" in run("list", "--tools").stdout
    assert run("hide", "--list").stdout == "desk/shred\n"


def test_showing_a_tool_says_nothing_of_other_servers_of_its_file(tmp_path: Path) -> None:
    server = {"command": sys.executable, "args": [str(Path(__file__).parent / "servers" / "busy.py")]}
    broken = {"command": "no-such-program"}
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"busy": server, "broken": broken}}))
    home = ("--home", str(tmp_path / "home"))
    assert run(*home, "add", str(config)).exit_code == 3
    assert run(*home, "hide", "busy/echo").exit_code == 0
    shown = run(*home, "hide", "--undo", "busy/echo")
    assert shown.exit_code == 0 and "broken" not in shown.output
    assert run(*home, "show", "busy/echo").exit_code == 0
