from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest

from homes_in_postgres import name_home
from tests_cli import run
from toolscout.home.journal.journal import JOURNAL_MIGRATIONS, Journal, redact
from toolscout.location import Home
from toolscout.scout import Scout


@pytest.fixture
def journal(place: Home) -> Iterator[Journal]:
    with contextlib.closing(Journal(place)) as opened:
        yield opened


def search(journal: Journal, search_id: str = "1", query: str = "q") -> None:
    journal.append("search", search_id=search_id, query=query, shown=["a/b"], recipe="bm25", model=None, generation=1)


def test_events_come_back_in_order_with_every_field(journal: Journal) -> None:
    search(journal)
    journal.append("call", caller="bob", search_id="1", tool="a/b", ok=True, ms=3.5, rank=1)
    journal.append("feedback", search_id="1", good=["a/b"], bad=[])
    first, second, third = journal.read()
    assert {"schema", "at", "event", "caller", "uid"} <= set(first)
    assert (first["event"], first["query"], first["shown"], first["generation"]) == ("search", "q", ["a/b"], 1)
    assert (second["caller"], second["ok"], second["rank"]) == ("bob", True, 1)
    assert third["good"] == ["a/b"]
    assert [event["event"] for event in journal.read(event="call")] == ["call"]
    assert len(list(journal.read(limit=2))) == 2
    assert [event["event"] for event in journal.find("1")] == ["search", "call", "feedback"]


def test_reading_pages_through_more_than_a_thousand_events(journal: Journal) -> None:
    journal.append_all(("call", "x", {"tool": f"t{number}", "ok": True}) for number in range(2500))
    assert [event["tool"] for event in journal.read()] == [f"t{number}" for number in range(2500)]


def test_an_export_can_be_imported_elsewhere_and_twice_is_once(journal: Journal, tmp_path: Path) -> None:
    search(journal, query="weather in 東京")
    for _ in range(3):
        journal.append("call", search_id="1", tool="a/b", ok=False, extra={"kept": 1})
    lines = list(journal.export())
    other = Journal(tmp_path / "other")
    assert other.import_lines(lines) == (4, [], 0)
    assert other.import_lines(lines) == (0, [], 0)
    assert list(other.read()) == list(journal.read())


def test_equal_lines_without_an_identity_are_all_kept_and_not_taken_twice(journal: Journal) -> None:
    line = json.dumps({"schema": 1, "at": "2026-01-01T00:00:00Z", "event": "call", "tool": "a/b", "ok": True}).encode()
    assert journal.import_lines([line, line]) == (2, [], 0)
    assert journal.import_lines([line, line]) == (0, [], 0)
    assert journal.import_lines([line, line, line]) == (1, [], 0)


def test_a_bad_line_is_named_and_the_others_are_taken(journal: Journal) -> None:
    good = b'{"schema": 1, "at": "2026-01-01T00:00:00Z", "event": "feedback", "caller": "c", "search_id": "s"}'
    lines = [
        b"{nonsense",
        b"[]",
        b'{"event": "dance", "at": "x"}',
        b'{"event": "call", "at": "x", "tool": "t"}',
        b'{"event": "feedback", "search_id": "s"}',
        b'{"event": "call", "at": "x", "tool": "t", "ok": true, "search_id": 7}',
        b'{"schema": 99, "event": "call", "at": "x"}',
        b"\xff\xfe",
        b'{"event": "search", "at": "x", "search_id": "s", "query": "q", "shown": [{"id": "a"}]}',
        b'{"event": "feedback", "at": "x", "search_id": "s", "good": [1]}',
        b'{"event": "feedback", "at": "x", "search_id": "s", "bad": "a/b"}',
        b"",
        good,
    ]
    new, problems, bad = journal.import_lines(lines)
    assert (new, bad) == (1, 11)
    assert [entry for entry, _ in problems] == [f"line {number}" for number in range(1, 12)]
    messages = [message for _, message in problems]
    assert "expected \"event\" of search, call, feedback, found 'dance'" in messages[2]
    assert 'expected "ok" (bool) in a call event' in messages[3]
    assert 'expected "at"' in messages[4]
    assert messages[8:] == [
        f'expected "{key}" to be a list of texts, found {odd}'
        for key, odd in (("shown", "[{'id': 'a'}]"), ("good", "[1]"), ("bad", "'a/b'"))
    ]


def test_an_import_of_whatever_length_takes_little_memory_and_names_the_first_bad_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    call = b'{"event": "call", "at": "2026-01-01", "caller": "c", "tool": "t%d", "ok": true}'
    tracemalloc.start()
    try:
        new, problems, bad = journal.import_lines(call % number if number % 2 else b"[]" for number in range(20_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (new, bad, len(problems)) == (10_000, 10_000, 100) and peak < 2_000_000
    assert problems[-1][0] == "line 199"
    assert [event["tool"] for event in journal.read(event="call")] == [f"t{number}" for number in range(1, 20_000, 2)]


def test_an_import_that_breaks_off_leaves_nothing_behind(journal: Journal, place: Home) -> None:
    line = b'{"event": "call", "at": "2026-01-01", "caller": "c", "tool": "%d", "ok": true}'

    def lines() -> Iterator[bytes]:
        yield from (line % number for number in range(3_000))
        with contextlib.closing(Journal(place)) as other, other.writing():  # meanwhile others write as they like
            pass
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        journal.import_lines(lines())
    assert list(journal.read()) == []
    assert journal.import_lines(line % number for number in range(3)) == (3, [], 0)


def test_imported_text_is_kept_as_given_and_own_text_is_redacted(journal: Journal) -> None:
    journal.import_lines(
        [b'{"schema":1,"at":"x","event":"search","search_id":"1","query":"token: abcdef123456","shown":[]}']
    )
    search(journal, "2", "deploy with api_key=abcdef123456 please")
    assert [event["query"] for event in journal.read()] == ["token: abcdef123456", "deploy with api_key=*** please"]


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        ("Authorization: Bearer abc.def.ghi", "Authorization: Bearer ***"),
        ("use bearer abcdefghijk now", "use bearer *** now"),
        ("postgres://bob:hunter2@db/x", "postgres://bob:***@db/x"),
        ("key sk-proj-abcdefghijklmnop1234", "key ***"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123", "***"),
        ("AKIAABCDEFGHIJKLMNOP", "***"),
        ('{"password": "correct horse"}', '{"password": "***"}'),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY----- tail", "*** tail"),
        ("what is a token?", "what is a token?"),
        ("reset my password", "reset my password"),
    ],
)
def test_what_looks_like_a_credential_is_covered(secret: str, shown: str) -> None:
    assert redact(secret) == shown


def test_queries_can_be_hashed_or_left_out(tmp_path: Path) -> None:
    hashed, silent = Journal(tmp_path / "a", queries="hash"), Journal(tmp_path / "b", queries="none")
    for journal in (hashed, silent):
        search(journal, query="my secret plan")
        search(journal, query="my secret plan")
    one, two = hashed.read()
    assert one["query"] == two["query"] and one["query"].startswith("blake2b:")
    assert [event["query"] for event in silent.read()] == ["", ""]
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"secret plan" not in path.read_bytes()


def test_stats_count_events_callers_and_searches_that_led_to_a_call(journal: Journal) -> None:
    assert journal.stats()["first"] is None
    search(journal, "1")
    search(journal, "2")
    journal.append("call", caller="bob", search_id="1", tool="a/b", ok=True)
    journal.append("call", caller="bob", search_id="2", tool="a/b", ok=False)
    stats = journal.stats()
    assert stats["events"] == {"search": 2, "call": 2, "feedback": 0}
    assert stats["callers"] == 2
    assert stats["searches_followed_by_a_successful_call"] == 1


WRITE = """
import sys
from toolscout.settings import load_settings
from toolscout.home.journal.journal import Journal
journal = Journal(load_settings(home=sys.argv[1]).place)
for step in range(100):
    journal.append("call", caller=f"p{sys.argv[2]}", tool=f"t{step}", ok=True)
"""


@pytest.mark.slow
def test_eight_processes_writing_at_once_lose_no_line(tmp_path: Path) -> None:
    home = name_home(tmp_path)
    workers = [subprocess.Popen([sys.executable, "-c", WRITE, home, str(number)]) for number in range(8)]
    assert [worker.wait() for worker in workers] == [0] * 8
    events = list(Journal(tmp_path).read())
    assert {(event["caller"], event["tool"]) for event in events} == {
        (f"p{number}", f"t{step}") for number in range(8) for step in range(100)
    }
    assert len(events) == 800 == len({event["uid"] for event in events})


def test_an_exported_line_is_what_the_formats_page_promises(journal: Journal) -> None:
    search(journal)
    [line] = journal.export()
    value = msgspec.json.decode(line)
    assert value["schema"] == 1 and value["at"].endswith("Z") and line.endswith(b"\n")
    assert {"search_id", "query", "shown", "recipe", "model", "generation", "caller", "event"} <= set(value)


# --- what goes --------------------------------------------------------------------------------------------------------

OLD = "2020-01-01T00:00:00.000Z"


def texts_in(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.iterdir() if path.name.startswith("journal.db"))


@pytest.mark.folder_only("bytes of the file")
def test_pruning_removes_old_events_and_every_trace_of_them_in_the_file(tmp_path: Path) -> None:
    with Scout(tmp_path, recipe="bm25") as scout:
        for number in range(500):
            scout.journal.append(
                "search", at=OLD, search_id=f"o{number}", query=f"zebracrossing {number}" * 20, shown=["a/b"]
            )
        search(scout.journal, "new", "a new one")
        assert b"zebracrossing" in texts_in(tmp_path)
    done = run("--home", str(tmp_path), "journal", "prune", "--older-than", "30d", "--json")
    assert json.loads(done.stdout) == {"removed": 500, "undated": 0, "compacted": True}
    assert b"zebracrossing" not in texts_in(tmp_path) and b"a new one" in texts_in(tmp_path)
    assert (tmp_path / "journal.db").stat().st_size < 100_000
    assert run("--home", str(tmp_path), "journal", "prune", "--older-than", "30d").output == "removed 0 events\n"


@pytest.mark.parametrize(("age", "left"), [("1h", ["now"]), ("36h", ["now", "day"]), ("2w", ["now", "day", "week"])])
def test_ages_are_hours_days_and_weeks(age: str, left: list[str], tmp_path: Path) -> None:
    present = datetime.now(timezone.utc)
    with Journal(tmp_path).writing():
        pass
    ages = {"now": timedelta(), "day": timedelta(days=1), "week": timedelta(days=7), "month": timedelta(days=30)}
    for name, old in ages.items():
        Journal(tmp_path).append("call", at=(present - old).isoformat(), tool=name, ok=True)
    assert run("--home", str(tmp_path), "journal", "prune", "--older-than", age).exit_code == 0
    assert [event["tool"] for event in Journal(tmp_path).read()] == left


@pytest.mark.parametrize("age", ["", "30", "d", "-1d", "3y", "999999w", "nan d", "1e3d"])
def test_an_age_that_is_none_is_refused_and_nothing_goes(age: str, tmp_path: Path) -> None:
    Journal(tmp_path).append("call", at=OLD, tool="t", ok=True)
    done = run("--home", str(tmp_path), "journal", "prune", "--older-than", age)
    assert done.exit_code == 2 and "expected an age such as 12h, 30d or 2w" in done.output
    assert len(list(Journal(tmp_path).read())) == 1


def test_times_with_an_offset_count_as_what_they_are_and_unreadable_ones_stay(journal: Journal) -> None:
    present = datetime.now(timezone.utc) - timedelta(days=10)
    far = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
    older, younger = present - timedelta(hours=1), present + timedelta(hours=1)
    for zone in far:
        journal.append("call", at=older.astimezone(zone).isoformat(), tool="older", ok=True)
        journal.append("call", at=younger.astimezone(zone).isoformat(), tool="younger", ok=True)
    journal.append("call", at="a while ago", tool="undated", ok=True)
    assert journal.prune(10) == (2, 1, True)
    assert [event["tool"] for event in journal.read()] == ["younger", "younger", "undated"]


def test_row_ids_are_never_given_twice_so_that_learning_misses_nothing(place: Home) -> None:
    journal = Journal(place)
    for _ in range(5):
        journal.append("call", at=OLD, tool="t", ok=True)
    assert journal.prune(1).removed == 5 and journal.last() == 5
    journal.close()
    journal = Journal(place)
    journal.append("call", tool="new", ok=True)
    assert [event["tool"] for event in journal.read(after=5)] == ["new"] and journal.last() == 6
    journal.close()


@pytest.mark.folder_only("bytes of the file")
def test_the_setting_removes_old_events_when_the_journal_is_opened(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append("search", at=OLD, search_id="1", query="zebracrossing", shown=[])
    journal.close()
    with Scout(tmp_path, recipe="bm25", journal_keep_days=0) as scout:
        assert len(list(scout.journal.read())) == 1, "0: for ever"
    with Scout(tmp_path, recipe="bm25", journal_keep_days=30) as scout:
        scout.search("rain")
        # many builds of SQLite do so by themselves: the connection asks for it everywhere
        assert scout.journal.connection.execute("PRAGMA secure_delete").fetchone()[0] == 1
        assert "secure_delete = ON" in scout.journal.pragmas()
        assert [event["query"] for event in scout.journal.read()] == ["rain"]
    assert b"zebracrossing" not in texts_in(tmp_path)


@pytest.mark.folder_only("the query plan of SQLite")
def test_opening_with_the_setting_reads_no_event_that_is_young(tmp_path: Path) -> None:
    Journal(tmp_path).append_all(("call", "x", {"tool": "t", "ok": True}) for _ in range(100))
    with Journal(tmp_path).reading() as connection:
        where = "at < '2020' AND julianday(at) < julianday('2020-01-01')"
        plan = connection.execute(f"EXPLAIN QUERY PLAN SELECT 1 FROM events WHERE {where} LIMIT 1").fetchall()
    assert "events_by_time" in plan[0][3]


@pytest.mark.folder_only("a file of version 0.1")
def test_a_journal_of_version_0_1_opens_with_all_its_events_and_row_ids(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "journal.db") as connection:
        connection.executescript(JOURNAL_MIGRATIONS[0])
        rows = [(n, f"u{n}", OLD, "call", "c", None, json.dumps({"tool": f"t{n}", "ok": True})) for n in (3, 7, 9)]
        connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    journal = Journal(tmp_path)
    assert [event["tool"] for event in journal.read(after=3)] == ["t7", "t9"] and journal.last() == 9
    assert journal.check() == []


def test_people_are_covered_in_the_journal_when_the_setting_says_so(tmp_path: Path) -> None:
    with Scout(tmp_path, recipe="bm25", redact_personal=True) as scout:
        scout.search("mail ann@example.org")
        assert [event["query"] for event in scout.journal.read()] == ["mail ***"]
