"""The folder of a home: whom it is open to, what of it may break, and what a full disk or a read-only one leaves."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import toolscout
from homes_in_postgres import find_place
from tests_cli import run
from toolscout.errors import StoreError
from toolscout.home.catalogue.store import Store
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.home.database import CacheDatabase, Database, SqliteDatabase
from toolscout.home.journal.journal import Journal
from toolscout.home.models import champion, model_store
from toolscout.location import local_folder
from toolscout.scout import Scout
from toolscout.testing import HashEncoder
from toolscout.trust import private_files
from toolscout.trust.private_files import list_exposed
from toolscout_lab.encoders.pair_cache import PairCache
from toolscout_lab.llm.cache import Replies
from toolscout_lab.llm.wire import Completion

TOOLS = [{"name": f"rain{number}", "description": f"Will it rain in town {number}?"} for number in range(300)]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> HashEncoder:
    """An encoder whose vectors are worth keeping, and too many tools to embed them unasked."""
    encoder = HashEncoder(cheap=False)
    monkeypatch.setattr("toolscout.encoders.load", lambda name, settings: encoder)
    return encoder


def fill(home: Path) -> None:
    """A home with tools, their vectors and a search."""
    with Scout(home) as scout:
        scout.add(TOOLS, name="s")
        scout.embed()
        assert scout.search("rain").ids


# --- damaged caches ---------------------------------------------------------------------------------------------------


def cut_off(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2 + 100])


def spoil_header(file: Path) -> None:
    file.write_bytes(b"garbage!" * 64 + file.read_bytes()[512:])


def spoil_pages(file: Path) -> None:
    content = bytearray(file.read_bytes())
    for start in range(4096, len(content) - 4096, 4096):
        content[start : start + 4096] = b"\xa5" * 4096
    file.write_bytes(content)


def change_tables(file: Path) -> None:
    file.unlink()
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE vectors (other TEXT)")
        connection.execute("PRAGMA user_version = 1")
    connection.close()


def make_empty(file: Path) -> None:
    file.write_bytes(b"")


def make_folder(file: Path) -> None:
    file.unlink()
    (file / "inside").mkdir(parents=True)


DAMAGES = [cut_off, spoil_header, spoil_pages, change_tables, make_empty, make_folder]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_search_over_damaged_vectors_makes_them_again_with_one_warning(
    damage: Callable[[Path], None], slow: HashEncoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    fill(home)
    files = local_folder(find_place(home))
    with Scout(home, recipe="dense") as scout:
        right = [scout.search(f"town {number}").ids for number in (7, 8)]
    damage(files / "vectors.db")
    with Scout(home, recipe="dense") as scout, caplog.at_level(logging.WARNING):
        scout.enable("s")  # a change, after which the index is built from the vectors again
        assert [scout.search(f"town {number}").ids for number in (7, 8)] == right
        assert scout.engine.builder.vectors.check() == []
        assert dict(scout.engine.builder.vectors.encoders())["hash"] >= 300
    assert len(caplog.records) == 1, caplog.text
    asides = [path for path in files.glob("vectors.db.damaged-*") if not path.name.endswith(("-wal", "-shm"))]
    assert len(asides) == (0 if damage is make_empty else 1), "nothing is thrown away"


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_doctor_names_damaged_vectors_and_repair_makes_them_again(
    damage: Callable[[Path], None], slow: HashEncoder, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    fill(home)
    files = local_folder(find_place(home))
    kept = VectorStore(files)
    before = kept.encoders()
    kept.close()
    assert before[0][1] >= 300
    damage(files / "vectors.db")
    found = run("--home", str(home), "doctor", "--json")
    report = json.loads(found.stdout)
    assert found.exit_code == 1 and not report["healthy"]
    assert any(line.startswith("vectors.db: ") for line in report["findings"]), report["findings"]
    assert list(files.glob("*.damaged-*")) == [], "doctor alone changes nothing"
    mended = run("--home", str(home), "doctor", "--repair", "--json")
    assert mended.exit_code == 0, mended.output
    assert any("vectors.db" in line and "begun anew" in line for line in json.loads(mended.stdout)["repaired"])
    again = VectorStore(files, repair=False)
    assert again.encoders() == before, "the vectors are there again"
    again.close()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_other_caches_are_begun_anew_too(damage: Callable[[Path], None], tmp_path: Path) -> None:
    reply = Completion(text="yes", tokens_in=1, tokens_out=1)
    for opened, name in ((PairCache, "readings.db"), (Replies, "llm.db")):
        cache = opened(tmp_path)
        cache.put("one", {b"%d" % n: 0.5 for n in range(3000)} if name == "readings.db" else reply)  # type: ignore[arg-type]
        for number in range(0 if name == "readings.db" else 200):
            cache.put(f"key {number} {'x' * 200}", reply)  # type: ignore[arg-type]
        cache.close()
        damage(tmp_path / name)
        again = opened(tmp_path)
        if isinstance(again, PairCache):
            again.put("one", {b"a": 1.5})
            assert again.get("one", [b"a"]) == {b"a": 1.5}
        else:
            again.put("late", reply)
            assert again.get("late") == reply
        again.close()


def test_a_vector_whose_bytes_changed_on_the_disk_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, encoder = VectorStore(tmp_path), HashEncoder()
    right = kept.rows(encoder.fingerprint, ["a", "b"], encoder.encode)
    with kept.writing() as connection:
        connection.execute("UPDATE vectors SET value = zeroblob(length(value))")
    assert kept.check() == ["2 vectors do not match their checksums"]
    assert (kept.rows(encoder.fingerprint, ["a", "b"], encoder.encode) == right).all()
    assert encoder.encoded == 4 and "2 vectors were damaged" in caplog.text
    assert kept.check() == []


def test_two_that_find_the_same_damage_set_it_aside_once(tmp_path: Path) -> None:
    fill(tmp_path)
    one, other = VectorStore(tmp_path), VectorStore(tmp_path)
    one.encoders(), other.encoders()
    spoil_pages(tmp_path / "vectors.db")
    encoder = HashEncoder()
    one.rows(encoder.fingerprint, ["a"], encoder.encode)
    other.set_aside(StoreError("found by the other one as well"))
    assert other.missing(encoder.fingerprint, ["a", "b"]) == ["b"], "what the first has made since is kept"


@pytest.mark.folder_only("a damaged file")
def test_the_catalogue_and_the_journal_are_never_dropped(tmp_path: Path) -> None:
    home = tmp_path / "home"
    fill(home)
    for name in ("catalogue.db", "journal.db"):
        good = (home / name).read_bytes()
        spoil_header(home / name)
        bad = (home / name).read_bytes()
        done = run("--home", str(home), "doctor")
        assert done.exit_code == 1 and "never deleted" in done.output and "Traceback" not in done.output
        assert (home / name).read_bytes() == bad and not list(home.glob(f"{name}.damaged*"))
        assert run("--home", str(home), "doctor", "--repair").exit_code == 0
        [aside] = home.glob(f"{name}.damaged-*Z")
        assert aside.read_bytes() == bad
        (home / name).write_bytes(good)
    assert run("--home", str(home), "doctor").exit_code == 0


# --- whom it is open to -----------------------------------------------------------------------------------------------


@pytest.mark.folder_only("modes of files")
def test_everything_in_a_home_is_for_its_owner_alone(tmp_path: Path) -> None:
    former = os.umask(0o022)
    try:
        home = tmp_path / "new" / "home"
        with Scout(home) as scout:
            scout.add(TOOLS, name="s")
            scout.embed()
            scout.search("rain")
            assert {mode(path) for path in home.rglob("*") if path.is_file()} == {0o600}, (
                "with what SQLite puts beside them"
            )
            assert len(list(home.glob("*-wal"))) == 3
        Replies(home).close()
        VectorStore(home / "bench").close()
        with champion.changing(home):
            pass
        assert mode(home) == mode(home / "models") == mode(home / "bench") == 0o700
        assert {mode(path) for path in home.rglob("*") if path.is_file()} == {0o600}
        assert list_exposed(home) == []
    finally:
        os.umask(former)


@pytest.mark.folder_only("modes of files")
def test_files_of_an_older_home_are_tightened_and_its_folder_is_reported(tmp_path: Path) -> None:
    home = tmp_path / "home"
    fill(home)
    home.chmod(0o755)
    for path in home.iterdir():
        if path.is_file():
            path.chmod(0o644)
    (home / "models").mkdir(mode=0o755)
    with Scout(home) as scout:
        scout.search("rain")
        assert {mode(home / name) for name in ("catalogue.db", "journal.db", "vectors.db")} == {0o600}
    assert mode(home) == 0o755, "somebody may share it on purpose"
    report = json.loads(run("--home", str(home), "doctor", "--json").stdout)
    assert report["healthy"] and [line.split(" ")[0] for line in report["exposed"]] == [str(home), str(home / "models")]
    assert "(mode 0755)" in report["exposed"][0] and "doctor --repair" in report["exposed"][0]
    assert run("--home", str(home), "doctor", "--repair").exit_code == 0
    assert mode(home) == mode(home / "models") == 0o700 and list_exposed(home) == []


# --- what cannot be written -------------------------------------------------------------------------------------------


def in_namespace(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script as root of mounts of its own, which go with it."""
    if os.geteuid() != 0 or not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"]).returncode:
        pytest.skip("needs to mount: run as root")
    source = str(Path(toolscout.__file__).parent.parent)
    return subprocess.run(
        ["unshare", "-m", "sh", "-ec", script, "sh", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": source},
    )


@pytest.mark.folder_only("a read-only folder")
def test_a_read_only_home_is_searched_listed_shown_explained_and_examined(tmp_path: Path) -> None:
    home = tmp_path / "home"
    fill(home)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    script = textwrap.dedent(
        """
        import contextlib, os, sys
        from toolscout.cli.main import main
        os.chdir("/")
        for line in ("list", "show s/rain7", "why rain s/rain7", "doctor", "journal stats", "search --json rain"):
            with contextlib.redirect_stdout(sys.stdout if line.startswith("search") else sys.stderr):
                try:
                    main(["--home", sys.argv[1], *line.split(" ")])
                except SystemExit as end:
                    assert end.code == 0, (line, end.code)
        """
    )
    done = in_namespace(
        f'mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"; exec {sys.executable} - "$1" <<"END"\n{script}\nEND\n',
        str(home),
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["hits"][0]["id"].startswith("s/rain")
    assert (
        answer["degraded"].startswith("this search is not in the journal: ")
        and "cannot be written" in answer["degraded"]
    )
    assert "Traceback" not in done.stderr and "the home cannot be written" in done.stderr
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


@pytest.mark.folder_only("a full disk below the home")
def test_a_full_disk_leaves_the_search_and_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        from toolscout.scout import Scout
        from toolscout.home.journal.journal import Journal
        home = Path(sys.argv[1]) / "home"
        with Scout(home) as scout:
            scout.add([{"name": f"rain{n}", "description": f"Will it rain in town {n}?"} for n in range(40)], name="s")
            scout.embed()
            assert scout.search("rain in town 7").degraded is None
            with open(home.parent / "ballast", "wb", buffering=0) as ballast:
                try:
                    while ballast.write(bytes(4096)):
                        pass
                except OSError:
                    pass
            degraded = [scout.search("rain in town 7 " + "x" * 4000) for _ in range(20)][-1]
            assert degraded.ids[0] == "s/rain7" and "disk" in degraded.degraded, degraded.degraded
            os.unlink(home.parent / "ballast")
            assert scout.search("rain in town 7").degraded is None
            assert scout.journal.check() == [] and scout.store.check() == []
        with open(home.parent / "ballast", "wb", buffering=0) as ballast:
            try:
                while ballast.write(bytes(4096)):
                    pass
            except OSError:
                pass
        with Scout(home) as scout:
            found = scout.search("rain in town 7")
            assert found.ids[0] == "s/rain7" and found.degraded, found
        """
    )
    done = in_namespace(
        f'mount -t tmpfs -o size=4m tmpfs "$1"; exec {sys.executable} - "$1" <<"END"\n{script}\nEND\n', str(disk)
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.folder_only("SQLite cannot write; tests/together/test_postgres.py has a server that is away")
@pytest.mark.parametrize("words", ["attempt to write a readonly database", "database or disk is full"])
def test_a_journal_that_cannot_be_written_degrades_the_answer(
    words: str, toy: Scout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        with toy.journal.errors():
            raise sqlite3.OperationalError(words)

    monkeypatch.setattr(toy.journal, "append_all", refuse)
    first, second = toy.search("weather"), toy.search("weather")
    assert first.ids and first.degraded == second.degraded
    assert words in str(first.degraded) and first.degraded.startswith("this search is not in the journal: ")
    assert len(caplog.records) == 1, "the same reason is logged once"
    hidden = toy.search("weather", visible=lambda tool: True)
    assert hidden.degraded == "this search is not in the journal", "no path for those who may not see everything"


@pytest.mark.folder_only("a damaged file")
def test_a_journal_that_cannot_be_opened_degrades_the_answer(toy: Scout) -> None:
    (toy.settings.home / "journal.db").write_bytes(b"no database at all" * 100)
    found = toy.search("weather")
    assert found.ids and "journal.db" in str(found.degraded)


def test_a_commit_that_fails_leaves_no_transaction_open(tmp_path: Path) -> None:
    class Fails(sqlite3.Connection):
        failing = False

        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:  # type: ignore[override]
            if sql == "COMMIT" and Fails.failing:
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, *parameters)

    database = SqliteDatabase(tmp_path / "a.db", ("CREATE TABLE t (x)",))
    connection = sqlite3.connect(database.path, isolation_level=None, factory=Fails)
    database._local.connection = connection
    Fails.failing = True
    with pytest.raises(StoreError, match="cannot be written: database or disk is full"), database.writing() as writer:
        writer.execute("INSERT INTO t VALUES (1)")
    Fails.failing = False
    assert not connection.in_transaction
    with database.writing() as writer:
        writer.execute("INSERT INTO t VALUES (2)")
    assert connection.execute("SELECT x FROM t").fetchall() == [(2,)]
    connection.close()
    database.close()


# --- what a loss of power leaves --------------------------------------------------------------------------------------


@pytest.mark.folder_only("pragmas of SQLite")
@pytest.mark.parametrize("opened", [Store, Journal, VectorStore, PairCache, Replies], ids=lambda each: each.__name__)
def test_every_connection_asks_for_the_same_durability(
    opened: Callable[[Path], Database | CacheDatabase], tmp_path: Path
) -> None:
    database = opened(tmp_path)
    found: list[tuple[int, str, int]] = []

    def look() -> None:
        values = (
            database.connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "journal_mode", "foreign_keys")
        )
        found.append(tuple(values))  # type: ignore[arg-type]

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [(1, "wal", 1)] * 2, "NORMAL: synced at checkpoints; a crash of the process loses nothing"
    database.close()


def test_a_promotion_is_on_the_disk_before_it_takes_the_place_of_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = record_steps(monkeypatch)
    (tmp_path / "models").mkdir()
    champion._write(tmp_path, [champion.Promotion("m", "now", "why")])
    partial = next(name for kind, name in steps if kind == "sync")
    assert steps == [("sync", partial), ("rename", "champion.json"), ("sync", "models")]
    assert partial.startswith(".champion.json") and mode(tmp_path / "models" / "champion.json") == 0o600


def test_a_model_is_on_the_disk_in_full_before_its_folder_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    shelf = tmp_path / "models"
    shelf.mkdir(mode=0o700)
    steps = record_steps(monkeypatch)
    model_store.save(
        shelf / "m",
        model_store.Draft(
            recipe="r",
            job="j",
            arrays={"a": np.zeros(3, dtype=np.float32)},
            tools=[],
            settings={},
            seed=0,
            data=model_store.Data(name="d", fingerprint="f", n_train=1, n_dev=1),
            metrics={},
            fit_seconds=0.0,
        ),
    )
    at = steps.index(("rename", "m"))
    synced = {name for kind, name in steps[:at] if kind == "sync"}
    assert synced >= {model_store.MANIFEST, model_store.ARRAYS, model_store.TOOLS, model_store.CARD, ".m.partial"}
    assert ("sync", "models") in steps[at:]
    assert {mode(path) for path in (shelf / "m").iterdir()} == {0o600} and mode(shelf / "m") == 0o700
    steps.clear()
    model_store.note(shelf / "m", figure=1)
    assert [kind for kind, _ in steps] == ["sync", "rename", "sync"]
    model_store.verify(shelf / "m")


def record_steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(`sync` or `rename`, name of the file), in order."""
    steps: list[tuple[str, str]] = []
    sync, replace = os.fsync, Path.replace

    def note_sync(opened: int) -> None:
        steps.append(("sync", Path(os.readlink(f"/proc/self/fd/{opened}")).name))
        sync(opened)

    def note_replace(self: Path, target: Path) -> Path:
        steps.append(("rename", Path(target).name))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    return steps


def test_a_relative_home_stays_where_it_was_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Scout("home") as scout:
        scout.add([{"name": "rain", "description": "Will it rain?"}], name="s")
        monkeypatch.chdir(tmp_path / "elsewhere")
        scout.search("rain")  # opens the journal
    assert (tmp_path / "home" / "journal.db").is_file() and not list((tmp_path / "elsewhere").iterdir())


def test_threads_that_write_one_file_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Several servers that start each bring the list of origins up to date."""
    path, opened, barrier = tmp_path / "origins.json", private_files.open_private, threading.Barrier(4, timeout=30)

    def open_together(partial: Path, flags: int) -> int:
        file = opened(partial, flags)
        barrier.wait()
        return file

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as threads:
        patch.setattr(private_files, "open_private", open_together)
        contents = [bytes([letter]) * 100_000 for letter in b"abcd"]
        list(threads.map(lambda content: private_files.replace_file(path, content), contents))
    assert path.read_bytes() in contents and list(tmp_path.iterdir()) == [path]
