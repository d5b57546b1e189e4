"""A home in PostgreSQL: what all machines share, and what happens when the server goes away."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import fill

import traffic
from postgres_server import PostgresServer, describe
from toolscout.cli.main import main
from toolscout.errors import ConfigError, MissingExtra, StoreError
from toolscout.home.catalogue.store import Origin, Store
from toolscout.home.database import hold_lock
from toolscout.home.journal.journal import Journal
from toolscout.home.models import champion, model_store
from toolscout.learn.loop import learn
from toolscout.scout import Scout
from toolscout.types import Tool
from toolscout_postgres.address import Address
from toolscout_postgres.database import LISTEN_AFTER_QUESTIONS
from toolscout_postgres.journal import Spool

CALLERS = [f"c{number}" for number in range(10)]


# --- the address


def test_an_address_is_shown_without_its_password_and_connects_with_it() -> None:
    address = Address.parse(
        "postgresql://ann:hunter%402@db.example:5433/tools?sslmode=require&schema=team_a&password=x"
    )
    assert address.label == "postgresql://ann@db.example:5433/tools?sslmode=require&schema=team_a"
    assert address.conninfo == "postgresql://ann:hunter%402@db.example:5433/tools?sslmode=require&password=x"
    assert address.schema == "team_a"
    assert "hunter" not in repr(address) + str(address)


@pytest.mark.parametrize("text", ["postgresql:/host/db", "postgresql://h/db?schema=A-B", "postgresql://[h/db"])
def test_an_address_that_is_none_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^home: "):
        Address.parse(text)


def test_a_path_of_an_address_is_refused_because_it_lost_a_slash() -> None:
    with pytest.raises(ConfigError, match="a Path loses one of its slashes"):
        Scout(Path("postgresql://host/database"))


@pytest.mark.parametrize("home", ["mysql://host/tools", "sqlite:///tools.db", "file:///tmp/tools"])
def test_an_address_of_another_kind_is_refused_and_makes_no_folder(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="expected a folder or an address such as postgresql://"):
        Scout(home)
    assert not list(tmp_path.iterdir())


def test_doctor_advises_no_repair_of_a_database_that_is_not_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["doctor", "--home", f"postgresql:///tools?host={tmp_path}"])
    printed = capsys.readouterr()
    assert "the database could not be opened: mend what is named above" in printed.out
    assert "the catalogue was not read" in printed.out and "None" not in printed.out
    assert "--repair" not in printed.out + printed.err


def test_a_server_that_is_not_there_is_named_without_the_password(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not answer") as caught:
        Scout(f"postgresql://ann:hunter2@/tools?host={tmp_path}")
    assert "hunter2" not in str(caught.value) and f"ann@/tools?host={tmp_path}".replace("/", "%2F")[-8:] in str(
        caught.value
    )


def test_an_address_with_an_unknown_parameter_is_told_from_a_role_without_rights(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r'refused: invalid URI query parameter: "shema"\. Check the address\.'):
        Scout(f"postgresql:///tools?host={tmp_path}&shema=x")


def test_a_server_that_refuses_the_role_is_told_from_one_that_does_not_run(postgres_server: PostgresServer) -> None:
    with pytest.raises(StoreError, match='refuses the connection: role "stranger" does not exist. Check the address'):
        Scout(postgres_server.url("stranger"))


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[postgres\]'"):
        Scout("postgresql://host/database")


# --- what machines share


@pytest.fixture
def other_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> contextlib.AbstractContextManager[None]:
    """A context in which the folder of this machine is another one."""

    @contextlib.contextmanager
    def switch() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setenv("XDG_DATA_HOME", str(tmp_path / "other machine"))
            yield

    return switch()


def test_two_machines_search_one_catalogue_and_write_one_journal(
    postgres: Address, other_machine: contextlib.AbstractContextManager[None]
) -> None:
    with Scout(describe(postgres), caller="a") as first:
        fill(first)
        assert first.search("rain tomorrow").ids[0] == "weather/get_forecast"
        with other_machine, Scout(describe(postgres), caller="b") as second:
            assert second.settings.home != first.settings.home
            assert second.search("rain tomorrow").ids == first.search("rain tomorrow").ids
            second.enable("weather", False)
            assert "weather/get_forecast" not in second.search("rain tomorrow").ids
        assert "weather/get_forecast" not in first.search("rain tomorrow").ids
        assert [event["caller"] for event in first.journal.read()] == ["a", "b", "a", "b", "a"]


@pytest.mark.slow
def test_what_one_machine_learns_serves_on_another_from_its_next_search(
    postgres: Address, other_machine: contextlib.AbstractContextManager[None]
) -> None:
    url = describe(postgres)
    with Scout(url, journal=False) as first:
        traffic.catalogue(first)
        traffic.replay(first, traffic.requests(200, 1), CALLERS)
        report = learn(first, recipes=["neighbours"])
        assert report.outcome == "promoted", report.reason
        with hold_lock(postgres, "learn/lock.db", "busy"), pytest.raises(StoreError, match="Another `toolscout learn`"):
            learn(first)
        serving = first.engine.serving()[0]
        with other_machine, Scout(url, journal=False) as second:
            assert second.engine.serving()[0].manifest == serving.manifest
            folder = champion.shelf(postgres) / str(report.candidate)
            assert model_store.verify(folder).digest == serving.manifest.digest
            assert [path.name for path, _ in champion.list_models(postgres)] == [report.candidate]
            next(folder.glob("*.safetensors")).write_bytes(b"damaged")
            (folder / "manifest.json").unlink()
            with Scout(url, journal=False) as third:
                assert third.engine.serving()[0].manifest == serving.manifest, "it is fetched again"
            assert model_store.verify(folder).digest == serving.manifest.digest
            assert champion.rollback(postgres) is None
        assert first.engine.serving()[0].model is None


def test_a_lock_ends_with_its_holder_and_excludes_everybody_else(postgres: Address) -> None:
    with hold_lock(postgres, "x", "busy"), pytest.raises(StoreError, match="busy"), hold_lock(postgres, "x", "busy"):
        pass
    with hold_lock(postgres, "x", "busy"), hold_lock(postgres, "y", "busy"):
        pass
    elsewhere = dataclasses.replace(postgres, schema="elsewhere")
    with hold_lock(postgres, "x", "busy"), hold_lock(elsewhere, "x", "busy"):
        pass


def test_a_lock_is_given_back_before_the_server_sees_that_the_connection_closed(
    postgres: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = pytest.importorskip("psycopg").Connection
    unclosed: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(connection, "close", lambda self: unclosed.append(self))
        with hold_lock(postgres, "x", "busy"):
            pass
        with hold_lock(postgres, "x", "busy"):
            pass
    assert len(unclosed) == 2
    for each in unclosed:
        connection.close(each)


# --- when the server goes away


@pytest.mark.slow
def test_a_restart_between_transactions_is_not_noticed(own_server: PostgresServer) -> None:
    address = own_server.new_home()
    with Scout(describe(address), recipe="bm25") as scout:
        fill(scout)
        before = scout.search("rain tomorrow").ids
        own_server.stop()
        own_server.start()
        assert scout.search("rain tomorrow").ids == before
        assert len(list(scout.journal.read())) == 2


@pytest.mark.slow
def test_no_journal_event_is_lost_or_doubled_while_the_server_is_away(
    own_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    address = own_server.new_home()
    with Scout(describe(address), recipe="bm25") as scout:
        fill(scout)
        search = scout.search("rain tomorrow")
        own_server.stop()
        for number in range(5):
            scout.called("weather/get_forecast", ok=True, search_id=search.search_id, ms=number)
        with pytest.raises(StoreError, match="does not answer"):
            scout.search("rain tomorrow")
    with contextlib.closing(Spool(address.folder)) as spool:
        _, rows = spool.read()
        assert len(rows) == 5
        own_server.start()
        with Scout(describe(address), recipe="bm25") as scout:  # the next process writes what waits
            assert [event.get("rank") for event in scout.journal.find(search.search_id)] == [None, 1, 1, 1, 1, 1]
            assert spool.is_empty()
            spool.add(rows)  # as if the process had been killed between the commit and the removal
            scout.called("weather/get_forecast", ok=True, search_id=search.search_id)
            assert len(scout.journal.find(search.search_id)) == 7 and spool.is_empty()
    assert sum("are kept on this machine" in record.message for record in caplog.records) == 1


def test_a_process_that_ends_in_order_writes_what_it_kept(own_server: PostgresServer) -> None:
    address = own_server.new_home()
    with Scout(describe(address), recipe="bm25") as scout:
        fill(scout)
        scout.search("rain tomorrow")
        own_server.stop()
        scout.called("weather/get_forecast", ok=True)
        own_server.start()
    with contextlib.closing(Spool(address.folder)) as spool:
        assert spool.is_empty()
    with Scout(describe(address), recipe="bm25") as scout:
        assert [event["event"] for event in scout.journal.read()] == ["search", "call"]


def test_ready_says_that_the_database_does_not_answer(own_server: PostgresServer) -> None:
    from starlette.testclient import TestClient

    from toolscout_server import Service, app

    with Scout(describe(own_server.new_home()), recipe="bm25") as scout:
        fill(scout)
        service = Service(scout)
        with TestClient(app(service, ["localhost"]), base_url="http://localhost") as client:
            wait_for(lambda: client.get("/ready").status_code == 200)
            own_server.stop()
            answer = client.get("/ready")
            assert answer.status_code == 503 and answer.json()["reason"] == "the database does not answer"
            assert client.get("/health").status_code == 200
            own_server.start()
            wait_for(lambda: client.get("/ready").status_code == 200)


def test_a_full_spool_says_so_and_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolscout_postgres.journal.MAX_SPOOLED_EVENTS", 2)
    with contextlib.closing(Spool(tmp_path)) as spool:
        rows = [(f"u{number}", "2026-01-01", "call", "c", None, "{}") for number in range(3)]
        spool.add(rows[:2])
        with pytest.raises(StoreError, match=r"^2 events wait .* Make the database answer again"):
            spool.add(rows[2:])
        assert spool.read()[1] == rows[:2]


# --- kills

WRITE = """
import sys
from toolscout_postgres.address import Address
from toolscout.home.journal.journal import Journal
from toolscout.home.catalogue.store import Origin, Store
from toolscout.types import Tool
home = Address.parse(sys.argv[1])
journal, store = Journal(home), Store(home)
for step in range(10**6):
    journal.append("call", caller=sys.argv[2], tool=f"t{step}", ok=True)
    tools = [Tool(id=f"{sys.argv[2]}/{name}", name=name, description=str(step)) for name in "ab"]
    store.put_source(Origin(sys.argv[2], "x"), sys.argv[2], kind="objects", tools=tools)
    print(step, flush=True)
"""


def start_writer(address: Address, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITE, describe(address), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_writer(address: Address, name: str, acknowledged: int) -> None:
    """Everything up to the last acknowledged step is there, once, and the tools of a source belong to one step."""
    with contextlib.closing(Journal(address)) as journal, contextlib.closing(Store(address)) as store:
        steps = [event["tool"] for event in journal.read(event="call") if event["caller"] == name]
        assert steps == [f"t{step}" for step in range(len(steps))] and len(steps) > acknowledged
        written = {tool.description for tool in store.tools([f"{name}/a", f"{name}/b"])}
        assert len(written) == 1 and int(written.pop()) >= acknowledged
        assert store.check() == []


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=pytest.mark.full)])
def test_killed_clients_lose_nothing_that_was_acknowledged(postgres: Address, kills: int) -> None:
    for number in range(kills):
        writer = start_writer(postgres, f"w{number}")
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(3 + number % 5)]
        writer.kill()
        lines += writer.communicate()[0].splitlines(keepends=True)
        check_writer(postgres, f"w{number}", int([line for line in lines if line.endswith("\n")][-1]))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.full)])
def test_a_killed_server_loses_nothing_that_was_acknowledged(own_server: PostgresServer, kills: int) -> None:
    address = own_server.new_home()
    for number in range(kills):
        writer = start_writer(address, f"w{number}")
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(3)]
        own_server.stop(signal.SIGKILL)
        output, error = writer.communicate(timeout=30)
        assert "does not answer" in error, error
        own_server.start()
        check_writer(address, f"w{number}", int([*lines, *output.splitlines()][-1]))


# --- announcements


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for another thread; only a hang reaches the end."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_changes_are_heard_and_a_restart_of_the_server_only_costs_queries(own_server: PostgresServer) -> None:
    address = own_server.new_home()
    with contextlib.closing(Store(address)) as store, contextlib.closing(Store(address)) as other:
        start = [store.generation() for _ in range(LISTEN_AFTER_QUESTIONS)][-1]
        assert store._listener is not None
        wait_for(lambda: store._listener.generation == start)
        other.put_source(Origin("x", "x"), "x", kind="objects", tools=[Tool(id="x/t", name="t")])
        wait_for(lambda: store._listener.generation == start + 1)
        store.set_enabled("x", False)
        assert store.generation() == start + 2, "what this process wrote counts at once"
        own_server.stop()
        wait_for(lambda: store._listener.generation is None)
        own_server.start()
        other.set_enabled("x", True)
        assert store.generation() == start + 3
        wait_for(lambda: store._listener.generation == start + 3)


def test_a_stale_announcement_gives_no_wrong_answer(postgres: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scout(describe(postgres), recipe="bm25", journal=False) as scout, Scout(describe(postgres)) as other:
        fill(scout)
        for _ in range(LISTEN_AFTER_QUESTIONS + 1):
            scout.search("rain tomorrow")
        listener = scout.store._listener
        assert listener is not None
        wait_for(lambda: listener.generation is not None)
        monkeypatch.setattr("toolscout_postgres.database.LISTEN_POLL_S", 1000.0)
        listener.close()
        listener._is_connected = True  # it believes what it heard last
        other.enable("weather", False)
        assert not {id for id in scout.search("rain tomorrow").ids if id.startswith("weather/")}
