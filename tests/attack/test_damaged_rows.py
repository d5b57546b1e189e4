"""Homes whose files are damaged in ways that SQLite itself lets pass: one sentence, and `doctor --repair` helps."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests_cli import run
from toolscout.home.models import champion

pytestmark = pytest.mark.folder_only("files of a folder")
COMMANDS = (("search", "send mail"), ("doctor",), ("doctor", "--repair"), ("search", "send mail"))
PROMOTION = '{"history": [{"model": %s, "at": "x", "why": "y"}], "format": "toolscout-champion/1"}'


@pytest.fixture(scope="module")
def sound_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    tools = [{"name": f"tool_{word}", "description": f"send {word}"} for word in ("mail", "letter", "music", "money")]
    (folder / "tools.json").write_text(json.dumps(tools))
    run("add", str(folder / "tools.json"), "--name", "t", "--home", str(folder / "home"))
    run("search", "send mail", "--home", str(folder / "home"))
    return folder / "home"


def write_sql(name: str, sql: str) -> Callable[[Path], object]:
    def damage(home: Path) -> None:
        connection = sqlite3.connect(home / name)
        connection.execute(sql)
        connection.commit()
        connection.close()

    return damage


def write_champion(model: str) -> Callable[[Path], object]:
    def damage(home: Path) -> None:
        (home / "models").mkdir(exist_ok=True)
        (home / champion.CHAMPION_FILE).write_text(PROMOTION % json.dumps(model))

    return damage


def flip(name: str, seed: int, n_bits: int, first: int = 0) -> Callable[[Path], object]:
    def damage(home: Path) -> None:
        content, generator = bytearray((home / name).read_bytes()), random.Random(seed)
        for _ in range(n_bits):
            content[generator.randrange(first, len(content))] ^= 1 << generator.randrange(8)
        (home / name).write_bytes(content)

    return damage


def garble_schema(home: Path) -> None:
    """Put bytes that are no UTF-8 into the text of the schema, which SQLite then quotes in its error."""
    content = (home / "catalogue.db").read_bytes()
    place = content.index(b"CREATE TABLE")
    (home / "catalogue.db").write_bytes(content[:place] + b"CREATE T\xc5\xff(\xc3" + content[place + 12 :])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "text in place of a cache": write_sql("catalogue.db", "UPDATE caches SET value = '{'"),
    "number in place of a cache": write_sql("catalogue.db", "UPDATE caches SET value = 99999999"),
    "schema that is no text": garble_schema,
    "champion with a zero byte": write_champion("a\0b"),
    "champion with a long name": write_champion("a" * 5_000),
    "champion outside of the home": write_champion("../../etc"),
    "missing table of events": write_sql("journal.db", "DROP TABLE events"),
    "missing table of tools": write_sql("catalogue.db", "DROP TABLE tools"),
    **{f"{name}, bits {seed}": flip(name, seed, 30) for name in ("catalogue.db", "journal.db") for seed in range(2)},
    "header of vectors": flip("vectors.db", 1, 300),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("label", DAMAGE)
def test_a_damaged_home_ends_in_sentences_and_is_repaired(label: str, sound_home: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(sound_home, home)
    DAMAGE[label](home)
    for command in COMMANDS:
        result = run(*command, "--home", str(home))
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exception)
    assert result.exit_code == 0 and "tool_mail" in result.output


def test_a_missing_generation_is_repaired(sound_home: Path, tmp_path: Path) -> None:
    shutil.copytree(sound_home, tmp_path / "home")
    write_sql("catalogue.db", "DELETE FROM meta WHERE key = 'generation'")(tmp_path / "home")
    run("doctor", "--repair", "--home", str(tmp_path / "home"))
    assert run("search", "send mail", "--home", str(tmp_path / "home")).exit_code == 0


def test_a_missing_catalogue_is_read_again(sound_home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(sound_home, tmp_path / "home")
    (tmp_path / "home" / "catalogue.db").unlink()
    run("search", "send mail", "--home", str(tmp_path / "home"))
    assert "lacks a source that origins.json names; run  toolscout doctor --repair" in caplog.text
    assert "a source that origins.json names" in run("doctor", "--home", str(tmp_path / "home")).output
    run("doctor", "--repair", "--home", str(tmp_path / "home"))
    assert "tool_mail" in run("search", "send mail", "--home", str(tmp_path / "home")).output


def test_a_missing_catalogue_is_read_again_though_a_source_was_added_since(sound_home: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(sound_home, home)
    (home / "catalogue.db").unlink()
    (tmp_path / "new.json").write_text('[{"name": "rain", "description": "Will it rain?"}]')
    run("add", str(tmp_path / "new.json"), "--home", str(home))
    assert "origins.json names; run  toolscout doctor --repair" in run("doctor", "--home", str(home)).output
    run("remove", "new", "--home", str(home))
    run("doctor", "--repair", "--home", str(home))
    assert "tool_mail" in run("search", "send mail", "--home", str(home)).output
    assert "new.json" not in (home / "origins.json").read_text(), "a source that was removed came back"
    assert "origins.json" not in run("doctor", "--home", str(home)).output


def test_a_lost_source_that_cannot_be_read_now_is_kept_for_the_next_sync(sound_home: Path, tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "rain.json"
    shutil.copytree(sound_home, home)
    file.write_text('[{"name": "rain", "description": "Will it rain?"}]')
    run("add", str(file), "--home", str(home))
    (home / "catalogue.db").unlink()
    file.rename(tmp_path / "away.json")
    repaired = run("doctor", "--repair", "--home", str(home))
    assert f"{file}: it is not read again" in repaired.output and repaired.exit_code == 0
    (tmp_path / "away.json").rename(file)
    run("sync", "--home", str(home))
    assert "rain" in run("search", "Will it rain?", "--home", str(home)).output


def test_a_damaged_cache_is_built_again(sound_home: Path, tmp_path: Path) -> None:
    shutil.copytree(sound_home, tmp_path / "home")
    write_sql("catalogue.db", "UPDATE caches SET value = x'ff00ff'")(tmp_path / "home")
    result = run("search", "send mail", "--home", str(tmp_path / "home"))
    assert result.exit_code == 0 and "tool_mail" in result.output
