"""A home moves to a database and back, and nothing is lost on the way."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import traffic
from postgres_server import describe
from tests_cli import run
from toolscout.errors import ConfigError, StoreError
from toolscout.home.access.live_policy import find_policy
from toolscout.home.catalogue.store import Origin, Store
from toolscout.home.database import open_home
from toolscout.home.journal.journal import Journal
from toolscout.home.models import champion
from toolscout.learn.loop import learn
from toolscout.location import Home, describe_home, local_folder, place_tenant
from toolscout.scout import Scout
from toolscout.types import Tool
from toolscout_postgres import migrate
from toolscout_postgres.address import Address
from toolscout_postgres.migrate import migrate_home

pytestmark = pytest.mark.folder_only("moves homes between folders and databases, each as itself")
PROFILES = '[[profile]]\nname = "all"\nallow = ["**"]\n'
POLICY = '[[caller]]\nname = "ann"\nallow = ["**"]\n'


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with everything: a champion, approvals, a definition that waits, a policy. It is only read."""
    home = tmp_path_factory.mktemp("office") / "home"
    with Scout(home, journal=False) as scout:
        traffic.catalogue(scout)
        traffic.replay(scout, traffic.requests(200, 1), [f"c{number}" for number in range(10)])
        assert learn(scout, recipes=["neighbours"]).outcome == "promoted"
        for description in ("one", "two"):
            tools = [Tool(id="mail/send", name="send", description=description), Tool(id="mail/read", name="read")]
            scout.store.put_source(Origin("server", "mcp"), "mail", kind="mcp", tools=tools)
        scout.enable("mail", False)
        scout.hide([next(id for id, _ in scout.store.page() if not id.startswith("mail/"))])
        scout.journal.append("call", at="2020-01-01T00:00:00Z", tool="x/y", ok=True)
        scout.journal.prune(30)  # the last row id belongs to an event that is gone
    (home / "policy.toml").write_text(POLICY)
    (home / "profiles.toml").write_text(PROFILES)
    return home


def describe_content(home: Home) -> dict[str, Any]:
    """What people see of a home."""
    with Scout(describe(home) if isinstance(home, Address) else home, journal=False) as scout:
        return {
            "sources": scout.sources(),
            "origins": scout.store.origins(),
            "waiting": scout.waiting(),
            "hidden": scout.store.hidden(),
            "tools": scout.store.tools([id for id, _ in scout.store.page(limit=None)]),
            "events": list(scout.journal.read()),
            "last": scout.journal.last(),
            "champion": champion.history(home),
            "serving": scout.engine.serving()[0].manifest,
            "answer": scout.search("play some music", visible=None).ids,
        }


@pytest.mark.slow
def test_a_home_moves_to_a_database_and_back_unchanged(office: Path, postgres: Address, tmp_path: Path) -> None:
    done = run("migrate", str(office), describe(postgres))
    assert done.exit_code == 0, done.output
    assert "the digests agree" in done.stdout
    back = migrate_home(postgres, tmp_path / "back")
    content = describe_content(office)
    assert content["waiting"] and content["hidden"] and content["serving"] is not None
    assert describe_content(postgres) == content == describe_content(tmp_path / "back")
    assert (back.models, back.documents) == (1, 5)
    assert (tmp_path / "back" / "policy.toml").read_text() == POLICY
    assert (tmp_path / "back" / "profiles.toml").read_text() == PROFILES
    for home in (postgres, tmp_path / "back"):
        with contextlib.closing(Journal(home)) as journal, contextlib.closing(Store(home)) as store:
            last = journal.last()
            journal.append("call", tool="new", ok=True)
            assert [event["tool"] for event in journal.read(after=last)] == ["new"] and journal.last() > last
            store.put_source(Origin("another", "x"), "another", kind="objects")
            assert len(store.origins()) == len(content["origins"]) + 1


def break_off(number: int) -> Callable[[str], None]:
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == number:
            raise KeyboardInterrupt

    return say


@pytest.mark.slow
def test_an_interrupted_migration_continues(
    office: Path, postgres: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "COPY_BATCH_ROWS", 150)
    for number in (2, 4):
        with pytest.raises(KeyboardInterrupt):
            migrate_home(office, postgres, break_off(number))
    with pytest.raises(ConfigError, match="not an unfinished copy of"):
        other = tmp_path / "other"
        Store(other).close()
        migrate_home(other, postgres)
    lines: list[str] = []
    done = migrate_home(office, postgres, lines.append)
    assert sum("copied the events" in line for line in lines) < done.events / 150, "what was there is not copied again"
    with pytest.raises(ConfigError, match="is not empty"):
        migrate_home(office, postgres)


def test_every_table_of_a_catalogue_is_copied(tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path / "home")) as store, store.reading() as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {table: [row[1] for row in connection.execute(f"PRAGMA table_info({table})")] for table in tables}
    assert columns.pop("caches"), "caches are built again"
    assert columns == {table: list(copied) for table, copied in migrate.CATALOGUE_TABLES.items()}


def test_a_copy_that_differs_is_named(postgres: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(Journal(tmp_path / "home")) as journal:
        journal.append("call", tool="t", ok=True)
    Store(tmp_path / "home").close()
    monkeypatch.setattr(migrate, "_copy_journal", lambda *_: None)
    with pytest.raises(StoreError, match=r"^The journal in postgresql://.* differs"):
        migrate_home(tmp_path / "home", postgres)


def test_a_folder_without_a_home_is_not_made_one(tmp_path: Path, postgres: Address) -> None:
    with pytest.raises(ConfigError, match="holds no catalogue"):
        migrate_home(tmp_path / "nothing", postgres)
    assert not (tmp_path / "nothing").exists()


def test_other_tenants_are_named_with_the_commands_that_copy_them(place: Home, tmp_path: Path) -> None:
    Store(place).close()
    open_home(place).add_tenant("never_opened")
    for name in ("team_a", "team_b"):
        open_home(place).add_tenant(name)
        with contextlib.closing(Store(place_tenant(place, name))) as store:
            store.put_source(Origin(name, "x"), "s", kind="objects")
    source, target = describe(place) if isinstance(place, Address) else str(place), tmp_path / "copy"
    done = run("migrate", source, str(target))
    assert (
        done.exit_code == 0 and "other tenants were not copied: never_opened, team_a, team_b. Copy each" in done.stdout
    )
    commands = [shlex.split(line)[1:] for line in done.stdout.splitlines() if line.startswith("  toolscout ")]
    assert len(commands) == (6 if isinstance(place, Address) else 5)  # an empty folder is only added
    for command in commands:
        copied = run(*(source if word == describe_home(place) else word for word in command))
        assert copied.exit_code == 0 and "other tenants" not in copied.stdout, copied.output
    with contextlib.closing(Store(target / "tenants" / "team_b")) as store:
        assert [origin.locator for origin in store.origins()] == ["team_b"]
    names = [tenant.name for tenant in open_home(target).list_tenants()]
    assert names == ["default", "never_opened", "team_a", "team_b"]


def test_the_policy_of_a_home_is_checked_set_and_printed(place: Home, tmp_path: Path) -> None:
    home = describe(place) if isinstance(place, Address) else str(place)
    done = run("--home", home, "policy")
    assert done.exit_code == 1 and "has no policy.\nhint: Set one with  toolscout policy FILE" in done.output
    (tmp_path / "good.toml").write_text(POLICY)
    (tmp_path / "bad.toml").write_text("[[caller]]\nnmae = 1\n")
    assert run("--home", home, "policy", str(tmp_path / "bad.toml")).exit_code == 1
    assert run("--home", home, "policy", str(tmp_path / "good.toml")).exit_code == 0
    assert run("--home", home, "policy").output == POLICY
    assert find_policy(place) == local_folder(place) / "policy.toml"
