"""Damaged files of a home end in clear sentences, are repaired from what is left, and no approval is made up."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import lessons
from tests_cli import run
from toolscout.errors import ConfigError, SourceError
from toolscout.home.catalogue.approvals import LOST_APPROVAL
from toolscout.home.catalogue.store import Origin, Store
from toolscout.home.database import SqliteDatabase, salvage_file
from toolscout.home.models import champion
from toolscout.learn.fit import fit
from toolscout.scout import Scout
from toolscout.sources import Reading
from toolscout.sources.parsing import load_document
from toolscout.trust import private_files
from toolscout.trust.policy import Policies
from toolscout.trust.trusted_folders import TRUSTED_FILE_NAME, read_trusted
from toolscout.types import Tool

pytestmark = pytest.mark.folder_only("files of a folder")
QUERY = "duplicate a document"
REMOTE = Origin("http://127.0.0.1:1/mcp", "mcp", "remote")
COMMANDS = (
    ("search", QUERY, "--json"),
    ("sync",),
    ("approve",),
    ("journal", "stats"),
    ("models",),
    ("doctor",),
    ("doctor", "--repair"),
    ("doctor",),
)


def make_remote_tools(changed: int | None = None) -> list[Tool]:
    """Tools of another person; `changed`: the number of one whose definition is not the first one."""
    texts = {number: "Something else" if number == changed else f"Remote tool {number}" for number in range(4)}
    return [Tool(id=f"remote/t{number}", name=f"t{number}", description=text) for number, text in texts.items()]


@pytest.fixture(scope="module")
def sound_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with all kinds of content: approvals, a definition that waits, events, a hidden tool, a champion."""
    folder = tmp_path_factory.mktemp("sound")
    data = lessons.write(folder)
    with Scout(folder / "home") as scout:
        scout.add(data)
        for changed in (None, 0):
            scout.store.put_source(REMOTE, "remote", kind="mcp", tools=make_remote_tools(changed))
        answer = scout.search("start a song")
        scout.called(answer.ids[0], ok=True, search_id=answer.search_id)
        scout.hide(["slang/music/play"])
        fit(lessons.plan("neighbours", lessons.load(data), champion.shelf(scout.settings.place) / "n"))
        champion.promote(scout.settings.place, "n", "to have one")
        scout.search(QUERY)
    return folder / "home"


@pytest.fixture
def home(sound_home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound_home, tmp_path / "home"))


def say(home: Path, *words: str) -> str:
    """What a command says, which must not be a traceback."""
    done = run("--home", str(home), *words)
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
    assert "Traceback" not in done.output + done.stderr
    return f"exit {done.exit_code}\n{done.stdout}{done.stderr}"


def damage(path: Path, chance: random.Random) -> str:
    """Damage a file in one of five ways; returns which."""
    content, way = bytearray(path.read_bytes()), chance.choice(["flip", "flip", "cut", "empty", "zeros", "noise"])
    if way == "flip" and content:
        for _ in range(chance.choice([1, 10, 100, 400])):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif way == "zeros" and content:
        start = chance.randrange(len(content))
        content[start : start + 512] = bytes(len(content[start : start + 512]))
    elif way == "noise":
        content = bytearray(chance.randbytes(max(1, len(content))))
    else:
        content = content[: 0 if way == "empty" else chance.randrange(len(content) + 1)]
    path.write_bytes(content)
    return way


def check_healed(said: str, file: Path) -> None:
    """Check what `doctor` says after a repair. A damaged model can't be repaired: what to do is said instead."""
    if file.parts[0] == "models" and said.startswith("exit 1"):
        assert "Fit the model again. Or run  toolscout rollback" in said, (file, said)
    else:
        assert said.startswith("exit 0") and "the store is healthy" in said, (file, said)


def put_in_the_place_of(path: Path, kind: str) -> None:
    """Put something that is no such file in a file's place."""
    path.unlink()
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link to itself":
            path.symlink_to(path.name)
        case "link to nowhere":
            path.symlink_to(path.parent.parent / "nowhere")
        case "link to the null device":
            path.symlink_to("/dev/null")
        case _:
            path.write_bytes({"null": b"null", "list": b'[[], {"a": 1}]', "not UTF-8": b'{"\xe4": NaN}'}[kind])


REPLACED = (
    "folder",
    "pipe",
    "link to itself",
    "link to nowhere",
    "link to the null device",
    "null",
    "list",
    "not UTF-8",
)
FILES = ("catalogue.db", "journal.db", "vectors.db", "origins.json")


@pytest.mark.parametrize("kind", REPLACED)
@pytest.mark.parametrize("file", [*FILES, pytest.param("", marks=[pytest.mark.full, pytest.mark.timeout(600)])])
def test_what_is_no_such_file_is_named_and_repaired(file: str, kind: str, sound_home: Path, tmp_path: Path) -> None:
    """Without the name of a file: every file of the home in its turn."""
    files = sorted(path.relative_to(sound_home) for path in sound_home.rglob("*") if path.is_file())
    for number, one in enumerate([Path(file)] if file else files):
        home = Path(shutil.copytree(sound_home, tmp_path / str(number) / "home"))
        put_in_the_place_of(home / one, kind)
        for words in COMMANDS:
            said = say(home, *words)
            if words == ("search", QUERY, "--json") and one.name == "catalogue.db":
                assert said.startswith("exit 1") and "catalogue.db: expected a healthy store" in said, said
        check_healed(said, one)
        assert "slang/files/copy" in say(home, "search", QUERY), one
        assert not (home.parent / "nowhere").exists(), "nothing is written through the link"


@pytest.mark.parametrize("rounds", [6, pytest.param(400, marks=pytest.mark.full)])
def test_whatever_is_damaged_every_command_says_clear_sentences(rounds: int, sound_home: Path, tmp_path: Path) -> None:
    chance = random.Random(rounds)
    files = sorted(path.relative_to(sound_home) for path in sound_home.rglob("*") if path.is_file())
    files += [Path("catalogue.db")] * len(files) + [Path("journal.db")] * (len(files) // 2)
    right = json.loads(run("--home", str(sound_home), *COMMANDS[0]).stdout)
    for number in range(rounds):
        home = Path(shutil.copytree(sound_home, tmp_path / str(number)))
        file = chance.choice(files)
        what = file, damage(home / file, chance)
        for words in COMMANDS:
            said = say(home, *words)
            if words[0] == "search" and said.startswith("exit 0"):
                answer = json.loads(run("--home", str(home), *words).stdout)
                is_told = answer.get("reason") or answer.get("degraded") or "damaged" in said
                assert is_told or [hit["id"] for hit in answer["hits"]] == [hit["id"] for hit in right["hits"]], what
        check_healed(said, file)
        shutil.rmtree(home)


def test_a_catalogue_cut_to_nothing_is_named_and_read_again_from_its_sources(home: Path) -> None:
    (home / "catalogue.db").write_bytes(b"")
    assert "catalogue.db: expected a healthy store, found an empty file; run  toolscout doctor --repair" in say(
        home, "search", QUERY
    )
    said = say(home, "doctor", "--repair")
    assert "0 tools, 0 approvals and 0 hidden tools could be read; other approvals are lost" in said
    assert "slang: read again: 6 new" in said and "remote: it is not read again: " in said
    assert "slang/files/copy" in say(home, "search", QUERY)
    assert list(home.glob("catalogue.db.damaged-*"))


def test_tools_of_a_lost_server_that_is_reached_later_wait_for_approval(home: Path) -> None:
    (home / "catalogue.db").unlink()
    assert "remote: it is not read again: " in say(home, "doctor", "--repair")
    with Scout(home) as scout:
        assert "remote" in {source.name for source in scout.store.sources()}
        scout.store.put_source(REMOTE, "remote", kind="mcp", tools=make_remote_tools())
        assert len(scout.store.waiting()) == 4


def test_a_pipe_in_the_place_of_a_snapshot_does_not_hold_a_search(home: Path) -> None:
    for file in list((home / "snapshots").rglob("*.arrays")):
        file.unlink()
        os.mkfifo(file)
    assert "slang/files/copy" in say(home, "search", QUERY)


@pytest.mark.parametrize("read", [Policies.load, lambda file: read_trusted(file.parent)])
def test_a_pipe_in_the_place_of_a_policy_or_of_the_trusted_folders_is_refused(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    for name in ("policy.toml", TRUSTED_FILE_NAME):
        os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot be read: .*expected a plain file"):
        read(tmp_path / "policy.toml")


def test_a_full_disk_ends_in_a_sentence_and_leaves_no_part_of_a_file(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('default = "g"\n[[caller]]\nname = "g"\nallow = ["**"]\n')

    def fill_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(private_files.os, "fsync", fill_disk)
    said = say(home, "policy", str(policy))
    assert said.startswith("exit 1") and "policy.toml cannot be written: No space left on device" in said
    assert not list(home.glob(".*.partial")) and not (home / "policy.toml").exists()


def test_a_repair_counts_what_is_gone_and_names_a_file_once(tmp_path: Path) -> None:
    home, kept, lost = tmp_path / "home", tmp_path / "kept.json", tmp_path / "lost.json"
    for file in (kept, lost):
        file.write_text(json.dumps([{"name": name, "description": name} for name in ("copy", "move", "print")]))
        say(home, "add", str(file))
    kept.write_text(json.dumps([{"name": "copy", "description": "copy"}]))
    with contextlib.closing(sqlite3.connect(home / "catalogue.db")) as connection, connection:
        connection.execute("UPDATE tools SET body = x'00' WHERE id = 'kept/copy'")
    assert "kept: read again: 1 new, 2 gone" in say(home, "doctor", "--repair")
    lost.unlink()
    (home / "catalogue.db").write_bytes(b"")
    assert f"{lost}: it is not read again: expected a readable file, found: No such file or directory" in say(
        home, "doctor", "--repair"
    )


def test_a_journal_cut_to_nothing_is_named_too(home: Path) -> None:
    (home / "journal.db").write_bytes(b"")
    assert "journal.db: expected a healthy store, found an empty file" in say(home, "search", QUERY)
    assert "begun anew with the 0 events that could be read" in say(home, "doctor", "--repair")
    assert "not in the journal" not in say(home, "search", QUERY)


def test_lost_approvals_are_never_made_up(home: Path) -> None:
    """A changed definition that waited must not become the approved one because its approval was lost."""
    content = bytearray((home / "catalogue.db").read_bytes())
    with contextlib.closing(Store(home)) as store:  # the pages of the table of approvals
        [(root,)] = store.ask("SELECT rootpage FROM sqlite_master WHERE name = 'pins'")
        [(size,)] = store.ask("PRAGMA page_size")
    content[(root - 1) * size : root * size] = bytes(size)
    (home / "catalogue.db").write_bytes(content)
    said = say(home, "doctor", "--repair")
    assert "0 approvals" in said and "approvals are lost" in said
    with Scout(home) as scout:
        before = scout.store.sources()
        assert {source.name for source in before} == {"remote", "slang"}
        scout.put_reading(REMOTE, Reading(source="remote", kind="mcp", tools=make_remote_tools(0)))
        waiting = {definition.id: definition.why for definition in scout.waiting()}
        assert waiting == dict.fromkeys((f"remote/t{number}" for number in range(4)), LOST_APPROVAL)
        assert not any(id.startswith("remote/") for id in scout.store.catalogue().ids)
        scout.approve(scout.waiting(["remote/t1"]))
        scout.put_reading(REMOTE, Reading(source="remote", kind="mcp", tools=[*make_remote_tools(0), NEW]))
        assert {definition.id for definition in scout.waiting()} == {"remote/t0", "remote/t2", "remote/t3"}
        assert NEW.id in scout.store.catalogue().ids, "a tool that is new after that is trusted as any first one"


NEW = Tool(id="remote/new", name="new", description="A new tool")


def test_a_damaged_approval_is_dropped_and_its_tool_waits(home: Path) -> None:
    with contextlib.closing(Store(home)) as store, store.writing() as connection:
        connection.execute("UPDATE pins SET body = ? WHERE id = 'remote/t1'", (b"{",))
    assert "found: catalogue: approved definition remote/t1: its definition cannot be read" in say(home, "doctor")
    assert "dropped the damaged approved definition remote/t1: it must be approved again" in say(
        home, "doctor", "--repair"
    )
    with Scout(home) as scout:
        scout.put_reading(REMOTE, Reading(source="remote", kind="mcp", tools=make_remote_tools()))
        assert [definition.id for definition in scout.waiting()] == ["remote/t1"]


@pytest.mark.parametrize(
    ("file", "column", "row"),
    [
        ("catalogue.db", "tools.fingerprint", "id = 'slang/files/copy'"),
        ("catalogue.db", "tools.name", "id = 'slang/files/copy'"),
        ("catalogue.db", "pins.fingerprint", "id = 'remote/t1'"),
        ("journal.db", "events.body", "event = 'call'"),
    ],
)
def test_a_text_that_cannot_be_decoded_is_found_and_repaired(home: Path, file: str, column: str, row: str) -> None:
    table, _, name = column.partition(".")
    with contextlib.closing(sqlite3.connect(home / file)) as connection, connection:
        connection.execute(f"UPDATE {table} SET {name} = CAST(x'7bff7d' AS TEXT) WHERE {row}")
    assert "Could not decode to UTF-8" in say(home, "doctor")
    assert "set aside as" in say(home, "doctor", "--repair")
    said = say(home, "doctor")
    assert said.startswith("exit 0") and "the store is healthy" in said
    assert "slang/files/copy" in say(home, "search", QUERY)


def test_numbers_with_a_fraction_are_saved_too(tmp_path: Path) -> None:
    path, migrations = tmp_path / "part.db", ["CREATE TABLE logits (pair TEXT, logit REAL)"]
    with contextlib.closing(SqliteDatabase(path, migrations)) as database, database.writing() as connection:
        connection.execute("INSERT INTO logits VALUES ('a', 0.5)")
    assert salvage_file(path, migrations).rows == {"logits": 1}


def test_a_hit_whose_definition_was_altered_is_left_out_and_named(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.closing(Store(home)) as store, store.writing() as connection:
        [(body,)] = connection.execute("SELECT body FROM tools WHERE id = 'slang/files/copy'").fetchall()
        altered = bytes(body).replace(b"Duplicate", b"Duqlicate")
        connection.execute("UPDATE tools SET body = ? WHERE id = 'slang/files/copy'", (altered,))
    with Scout(home) as scout:
        assert "slang/files/copy" not in scout.search(QUERY, recipe="bm25").ids
    assert "the tool slang/files/copy is left out: its content does not match its fingerprint" in caplog.text


@pytest.mark.parametrize("name", ["snapshots", "models", "learn", "tenants"])
def test_a_folder_that_is_a_link_is_not_written_through(name: str, home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept.arrays").write_text("of somebody else")
    (elsewhere / "kept.arrays").chmod(0o644)
    shutil.rmtree(home / name, ignore_errors=True)
    (home / name).symlink_to(elsewhere)
    for words in (*COMMANDS, ("promote", "n"), ("learn",), ("tenant", "add", "acme"), ("hide", "slang/mail/send")):
        said = say(home, *words)
        assert words[0] != "tenant" or name != "tenants" or f"{home / name} is a link to another place" in said
        say(home, "search", QUERY)
    assert [path.name for path in elsewhere.iterdir()] == ["kept.arrays"]
    assert (elsewhere / "kept.arrays").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere"])
def test_a_home_that_cannot_be_made_gets_advice_that_helps(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / place
    for words in COMMANDS[:4]:
        assert "Choose another folder with --home" in say(home, *words)
    for words in (("doctor",), ("doctor", "--repair")):
        said = say(home, *words)
        assert "cannot be written" in said and "Choose another folder with --home" in said
        assert "doctor --repair" not in said and "mend what is named above" in said


def test_a_folder_in_the_place_of_a_snapshot_is_removed(home: Path) -> None:
    file = sorted((home / "snapshots").iterdir())[0]
    file.unlink()
    file.mkdir()
    (file / "odd").write_text("")
    assert f"snapshots/{file.name}: " in say(home, "doctor", "--repair")
    assert "the store is healthy" in say(home, "doctor") and "slang/files/copy" in say(home, "search", QUERY)


def test_a_file_of_toml_has_a_bound(tmp_path: Path) -> None:
    """Its parser took 12 s for six megabytes."""
    file = tmp_path / "config.toml"
    file.write_text("a = 1\n" + "# x\n" * 250_000)
    with pytest.raises(SourceError, match="at most 1,000,000 characters of TOML"):
        load_document(file)
