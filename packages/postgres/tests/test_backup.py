"""A backup of a home in PostgreSQL, as docs/use/backup.md says: nothing acknowledged before it is lost."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest
from conftest import fill

from postgres_server import PostgresServer, describe
from toolscout.home.database import open_home
from toolscout.location import place_tenant
from toolscout.scout import Scout
from toolscout_postgres.address import Address


def follow(server: PostgresServer, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    if not (server.programs / program).exists():
        pytest.skip(f"needs {program}")
    return subprocess.run([server.programs / program, *options], capture_output=True, text=True, timeout=50)


def back_up(server: PostgresServer, address: Address, file: Path, user: str) -> Sequence[str]:
    """The lines of the documentation: save, and put back."""
    database = server.url(user=user)
    saved = follow(
        server, "pg_dump", "--format", "custom", "--schema", address.schema, "--file", str(file), f"--dbname={database}"
    )
    return [saved.stderr] if saved.returncode else []


@pytest.mark.slow
def test_a_restored_database_has_every_tenant_with_its_tools_events_and_policy(
    postgres: Address, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    open_home(postgres).add_tenant("a")
    for tenant in ("default", "a"):
        with Scout(describe(postgres), tenant=tenant, recipe="hybrid", index="pgvector") as scout:
            fill(scout)
            scout.embed()
            for number in range(20):
                scout.called(f"{tenant}/{number}", ok=True)
            open_home(scout.settings.place).write_document("policy.toml", f"# of {tenant}".encode())
    assert back_up(postgres_server, postgres, tmp_path / "dump", "postgres") == []
    with Scout(describe(postgres), recipe="hybrid", index="pgvector") as scout:
        scout.remove([scout.sources()[0].name])
        scout.called("x/later", ok=True)
    with contextlib.closing(psycopg.connect(postgres_server.url(user="postgres"), autocommit=True)) as owner:
        owner.execute(f'DROP SCHEMA "{postgres.schema}" CASCADE')
    restored = follow(
        postgres_server, "pg_restore", "--clean", "--if-exists", "--exit-on-error",
        f"--dbname={postgres_server.url(user='postgres')}", str(tmp_path / "dump"),
    )  # fmt: skip
    assert restored.returncode == 0, restored.stderr
    assert [tenant.name for tenant in open_home(postgres).list_tenants()] == ["default", "a"]
    for tenant in ("default", "a"):
        with Scout(describe(postgres), tenant=tenant, recipe="hybrid", index="pgvector") as scout:
            assert sum(source.tools for source in scout.sources()) == 10
            calls = [event["tool"] for event in scout.journal.read(event="call")]
            assert calls == [f"{tenant}/{number}" for number in range(20)]
            assert scout.search("weather forecast").ids and not scout.search("weather forecast").reason
            assert open_home(scout.settings.place).read_document("policy.toml") == f"# of {tenant}".encode()
            scout.called("x/new", ok=True)
            assert len(list(scout.journal.read(event="call"))) == 21
        open_home(place_tenant(postgres, tenant)).close()


def test_a_backup_by_the_role_of_the_program_fails_instead_of_leaving_rows_out(
    postgres: Address, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    with Scout(describe(postgres), recipe="bm25") as scout:
        fill(scout)
    [message] = back_up(postgres_server, postgres, tmp_path / "dump", "toolscout")
    assert "row-level security" in message
