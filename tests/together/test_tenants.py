"""Tenants: several catalogues in one home, of which none reaches another, in a folder and in PostgreSQL."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psycopg
import pytest
from conftest import fill
from psycopg import sql

from homes_in_postgres import find_place
from postgres_server import ROLE, describe
from tests_cli import run
from toolscout.errors import ConfigError, Denied, NotFound, StoreError
from toolscout.home.access import tenants
from toolscout.home.access.live_policy import find_policy, put_policy
from toolscout.home.access.tenants import TenantApp, TenantKeys
from toolscout.home.catalogue.store import CATALOGUE_MIGRATIONS, Origin, Store
from toolscout.home.database import hold_lock, open_home
from toolscout.home.models import champion
from toolscout.location import Home, local_folder, place_tenant
from toolscout.scout import Scout
from toolscout.settings import Settings, load_settings
from toolscout.trust.policy import hashed_key
from toolscout.types import Tool
from toolscout_postgres import database as postgres
from toolscout_postgres.address import Address
from toolscout_postgres.engines.contract import CollectionState, identify_home
from toolscout_postgres.engines.search import close_engine, open_engine
from toolscout_postgres.schema import Migration, adapt_steps, translate_schema

KEYS = {"default": "tsk_of_default", "a": "tsk_of_a", "b": "tsk_of_b"}


def write_policy(folder: Path, tenant: str) -> Path:
    """A policy file with the one key of a tenant."""
    file = folder / f"{tenant}.toml"
    key = hashed_key(KEYS[tenant])
    file.write_text(f'[[caller]]\nname = "ann"\nkey = "{key}"\nallow = ["**"]\noperator = true\n')
    return file


def name_home(home: Home) -> str:
    return describe(home) if isinstance(home, Address) else str(home)


@pytest.fixture
def two(place: Home, tmp_path: Path) -> Home:
    """A home with the tenants `a` and `b`, each with one tool, one event and a policy, and the toy tools in none."""
    for name in ("a", "b"):
        open_home(place).add_tenant(name)
        with Scout(name_home(place), tenant=name, recipe="bm25") as scout:
            tool = Tool(id="crm/find", name="find", description=f"Finds the customers of {name}.")
            scout.store.put_source(Origin("x", "objects"), "crm", kind="objects", tools=[tool])
            scout.called("crm/find", ok=True, ms=1.0 if name == "a" else 2.0)
            open_home(scout.settings.place).write_document(champion.CHAMPION_FILE, b'{"history": []}')
        put_policy(place_tenant(place, name), write_policy(tmp_path, name))
    return place


def test_each_tenant_has_its_own_catalogue_journal_models_policy_and_locks(two: Home) -> None:
    for name, ms in (("a", 1.0), ("b", 2.0)):
        home = place_tenant(two, name)
        with Scout(name_home(two), tenant=name, recipe="bm25") as scout:
            assert [hit.tool.description for hit in scout.search("customers").hits if hit.tool] == [
                f"Finds the customers of {name}."
            ]
            assert [event["ms"] for event in scout.journal.read(event="call")] == [ms]
            assert scout.store.generation() == 1 and scout.journal.last()
            assert scout.settings.home == local_folder(home)
        policy = find_policy(home)
        assert policy is not None and hashed_key(KEYS[name]) in policy.read_text()
    with Scout(name_home(two), recipe="bm25") as scout:
        assert scout.sources() == [] and list(scout.journal.read()) == [] and find_policy(two) is None
    with hold_lock(place_tenant(two, "a"), "x", "busy"), hold_lock(place_tenant(two, "b"), "x", "busy"):
        pass


def test_a_removed_tenant_leaves_nothing_and_the_others_stay(two: Home) -> None:
    open_home(two).remove_tenant("a")
    assert [tenant.name for tenant in open_home(two).list_tenants()] == ["default", "b"]
    with pytest.raises(NotFound, match="has no tenant 'a'"):
        Scout(name_home(two), tenant="a")
    with pytest.raises(NotFound, match="has no tenant 'a'"):
        open_home(two).remove_tenant("a")
    assert not local_folder(place_tenant(two, "a")).exists()
    with Scout(name_home(two), tenant="b", recipe="bm25") as scout:
        assert scout.search("customers").ids == ("crm/find",)
    if isinstance(two, Address):
        with contextlib.closing(connect_as_owner(two)) as connection:
            for table in list_tables(connection, two.schema):
                query = sql.SQL("SELECT count(*) FROM {} WHERE tenant = 'a'").format(sql.Identifier(two.schema, table))
                assert connection.execute(query).fetchone() == (0,), table
        with pytest.raises(ConfigError, match="so choose another name"):
            open_home(two).add_tenant("a")


@pytest.mark.parametrize("name", ["", "A", "../x", "*", "a/b", "-a", "x" * 49, "a'b"])
def test_a_name_that_could_mean_something_else_is_refused(place: Home, name: str) -> None:
    with pytest.raises(ConfigError, match="tenant: expected small letters"):
        open_home(place).add_tenant(name)


def test_a_tenant_is_added_once_and_the_first_cannot_be_removed(two: Home) -> None:
    for name in ("a", "default"):
        with pytest.raises(ConfigError, match=f"already has a tenant '{name}'"):
            open_home(two).add_tenant(name)
    with pytest.raises(ConfigError, match="is the home itself"):
        open_home(two).remove_tenant("default")


def test_the_command_line_takes_the_tenant_as_option_and_from_the_environment(
    two: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = name_home(two)
    assert json.loads(run("--home", home, "tenant", "list", "--json").stdout)[1]["name"] == "a"
    for line in (("--tenant", "a", "list", "--json"), ("list", "--tenant", "a", "--json")):
        assert json.loads(run("--home", home, *line).stdout)[0]["tools"] == 1
    assert "crm" not in run("--home", home, "list").output
    assert hashed_key(KEYS["b"]) in run("--home", home, "--tenant", "b", "policy").stdout
    monkeypatch.setenv("TOOLSCOUT_TENANT", "b")
    assert "customers of b" in run("--home", home, "show", "crm/find").stdout
    assert "customers of a" in run("--home", home, "--tenant", "a", "show", "crm/find").stdout
    assert run("--home", home, "tenant", "remove", "a", input="n\n").exit_code != 0
    assert run("--home", home, "tenant", "remove", "b", "--yes").exit_code == 0
    assert "has no tenant 'b'" in run("--home", home, "list").output


def test_an_address_may_name_its_tenant_and_shows_it(two: Home) -> None:
    if isinstance(two, Address):
        named = f"{describe(two)}&tenant=b"
        settings = load_settings(home=named)
        assert settings.tenant == "b" and settings.database == place_tenant(two, "b")
        assert load_settings(home=named, tenant="a").database == place_tenant(two, "a")
        assert "tenant" not in two.label


# --- one address for all


def test_a_key_belongs_to_one_tenant_or_to_nobody(two: Home, tmp_path: Path) -> None:
    said: list[str] = []
    keys = TenantKeys(two, said.append)
    assert keys.find(None) == "default"
    assert keys.find(KEYS["a"]) == "a" and keys.find(KEYS["b"]) == "b"
    with pytest.raises(Denied):  # there is no policy, but a key never makes somebody the local user
        keys.find("tsk_of_nobody")
    put_policy(place_tenant(two, "b"), write_policy(tmp_path, "a"))
    keys.refresh()
    with pytest.raises(Denied):
        keys.find(KEYS["a"])
    assert [line for line in said if "several tenants" in line] == [
        "One key is in the policies of several tenants, and opens none: a, b"
    ]
    open_home(two).remove_tenant("b")
    keys.refresh()
    assert keys.find(KEYS["a"]) == "a" and "b" not in keys.policies


def as_caller(tenant: str, **headers: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[tenant]}", **headers}


@pytest.fixture
def service(two: Home) -> Iterator[Any]:
    """The HTTP service over all tenants, and a client at it."""
    pytest.importorskip("starlette", reason="needs the extra `server`")
    import starlette.testclient
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from toolscout_server.app import serve_tenants
    from toolscout_server.service import Service

    with Scout(name_home(two), recipe="bm25") as scout:
        fill(scout)
        application = serve_tenants(scout, TenantKeys(two, lambda text: None), Service, ["localhost"])
        outer = Starlette(routes=[Mount("/", application)], lifespan=lambda app: application.running())
        with starlette.testclient.TestClient(outer, base_url="http://localhost") as client:
            yield client


def test_the_service_takes_the_tenant_from_the_key_and_from_nothing_else(two: Home, service: Any) -> None:
    for name in ("a", "b"):
        other = "b" if name == "a" else "a"
        for headers in ({}, {"x-tenant": other}, {"toolscout-tenant": other}, {"x-toolscout-tenant": other}):
            found = service.post("/v1/search", json={"query": "customers"}, headers=as_caller(name, **headers)).json()
            assert f"customers of {name}" in str(found) and f"customers of {other}" not in str(found)
        assert service.get(f"/v1/tools?tenant={other}", headers=as_caller(name)).status_code == 422
        events = service.get("/v1/journal", headers=as_caller(name)).text
        assert events.count('"event":"call"') == 1 and f'"ms":{1.0 if name == "a" else 2.0}' in events
    assert "crm" not in service.post("/v1/search", json={"query": "customers"}).text, "without a key: the default one"
    refused = service.post("/v1/search", json={"query": "x"}, headers={"authorization": "Bearer tsk_wrong"})
    assert refused.status_code == 401 and refused.json()["error"] == "expected a valid key or token, found none: " + (
        "ask whoever runs this service for one"
    )


def test_a_tenant_that_is_removed_is_served_no_longer_and_a_new_one_is(two: Home, service: Any, tmp_path: Path) -> None:
    KEYS["c"] = "tsk_of_c"
    open_home(two).remove_tenant("a")
    open_home(two).add_tenant("c")
    put_policy(place_tenant(two, "c"), write_policy(tmp_path, "c"))
    deadline = time.monotonic() + 30
    while service.get("/v1/me", headers=as_caller("c")).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert service.get("/v1/me", headers=as_caller("a")).status_code == 401
    assert service.get("/v1/me", headers=as_caller("b")).json()["tools"] == 1


@pytest.mark.net
@pytest.mark.parametrize("is_opened_late", [False, True])
def test_a_look_for_new_tenants_during_the_end_opens_none_that_stays(
    is_opened_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look waits for the database, and the tenants that were served have ended before it answers."""
    monkeypatch.setattr(tenants, "LOOK_AGAIN_S", 0.001)
    looks, ended, opened = threading.Event(), threading.Event(), list[str]()

    class Keys:
        policies = dict.fromkeys(["default"])

        def refresh(self) -> None:
            self.policies = dict.fromkeys(["default", *["new"] * is_opened_late])
            looks.set()
            assert is_opened_late or ended.wait(10)

    async def serve_lifespan(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})

    @contextlib.asynccontextmanager
    async def open_tenant(name: str, policies: Any) -> AsyncIterator[Any]:
        opened.append(name)
        if name == "new":
            await anyio.to_thread.run_sync(ended.wait)
        yield serve_lifespan
        ended.set()

    async def serve() -> None:
        with anyio.fail_after(20):
            async with TenantApp(Keys(), open_tenant).running():  # type: ignore[arg-type]
                await anyio.to_thread.run_sync(looks.wait)
                while is_opened_late and len(opened) == 1:
                    await anyio.sleep(0.001)

    anyio.run(serve)
    assert opened == ["default", *["new"] * is_opened_late]


def test_the_gateway_takes_the_tenant_from_the_key_and_a_session_from_no_other(two: Home) -> None:
    pytest.importorskip("mcp", reason="needs the extra `mcp`")
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.testclient import TestClient

    from toolscout_gateway import Options
    from toolscout_gateway.access.http import serve_tenants

    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    search = {"name": "search_tools", "arguments": {"queries": ["customers"]}}
    accept = {"accept": "application/json, text/event-stream"}

    def post(client: Any, tenant: str, method: str, params: Any, **headers: str) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return client.post("/mcp", json=body, headers=as_caller(tenant, **accept, **headers))

    with Scout(name_home(two), recipe="bm25") as scout:
        keys = TenantKeys(two, lambda text: None)
        application = serve_tenants(scout, keys, Options(), ["localhost"], "http://localhost")
        outer = Starlette(routes=[Mount("/", application)], lifespan=lambda app: application.running())
        with TestClient(outer, base_url="http://localhost") as client:
            session = {}
            for name in ("a", "b"):
                session[name] = post(client, name, "initialize", hello).headers["mcp-session-id"]
                for headers in ({}, {"x-tenant": "a" if name == "b" else "b"}):
                    text = post(client, name, "tools/call", search, **headers, **{"mcp-session-id": session[name]}).text
                    assert f"customers of {name}" in text and "customers of" not in text.replace(f"of {name}", "")
            assert post(client, "b", "tools/call", search, **{"mcp-session-id": session["a"]}).status_code == 404
            assert client.post("/mcp", headers={"authorization": "Bearer tsk_wrong"}).status_code == 401
            assert client.get("/status", headers=as_caller("a")).json()["servers"] == []


# --- vectors in an engine


@pytest.fixture(params=["pgvector", "pgvector elsewhere", "milvus"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Home, str]:
    """A home, and the setting `index` of an engine that all its tenants share."""
    if request.param == "pgvector":
        return request.getfixturevalue("postgres"), "pgvector"
    home = find_place(tmp_path / "home")
    if request.param == "milvus":
        pytest.importorskip("milvus_lite")
        return home, f"milvus:{tmp_path / 'vectors.db'}"
    return home, f"pgvector:{describe(request.getfixturevalue('postgres_server').new_home())}"


def test_each_tenant_has_its_own_vectors_and_a_removed_one_leaves_none(
    engine: tuple[Home, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, index = engine
    identities, settings = {}, {}
    for name in ("a", "b"):
        open_home(root).add_tenant(name)
        with Scout(name_home(root), tenant=name, index=index, recipe="hybrid") as scout:
            scout.add([{"name": name, "description": f"Finds the customers of {name}."}], name="crm")
            scout.embed()
            assert scout.search("find customers").ids == (f"crm/{name}",)
            identities[name], settings[name] = identify_home(scout.settings.place), scout.settings
    keys = {name: [state.key for state in list_vectors(settings[name], identities[name])] for name in ("a", "b")}
    assert [key.tenant for key in [*keys["a"], *keys["b"]]] == ["a", "b"]
    if index.startswith("pgvector"):  # row-level security: not even the name of the other one's collection is seen
        assert list_vectors(settings["b"], identities["a"]) == []
    monkeypatch.setenv("TOOLSCOUT_INDEX", index)
    refused = run("--home", name_home(root), "tenant", "remove", "default", "--yes")
    assert refused.exit_code == 1 and list_vectors(settings["a"], identities["a"])
    removed = run("--home", name_home(root), "tenant", "remove", "a", "--yes")
    assert removed.exit_code == 0, removed.output
    if index != "pgvector":  # there the database itself refuses a tenant that is gone
        assert list_vectors(settings["a"], identities["a"]) == []
    else:
        with contextlib.closing(connect_as_owner(root)) as owner:
            query = f"SELECT DISTINCT tenant FROM {root.schema}.tool_vectors"
            assert owner.execute(query).fetchall() == [("b",)]
            indexes = "SELECT count(*) FROM pg_indexes WHERE schemaname = %s AND indexdef LIKE '%%hnsw%%'"
            assert owner.execute(indexes, (root.schema,)).fetchone() == (1,)
    with Scout(name_home(root), tenant="b", recipe="hybrid") as scout:
        assert scout.search("find customers").ids == ("crm/b",)


def list_vectors(settings: Settings, identity: str) -> list[CollectionState]:
    """The collections that a tenant can list under an identity."""
    try:
        return open_engine(settings).list_collections(identity)
    finally:
        close_engine(settings)


def test_a_tenant_whose_vectors_cannot_be_deleted_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = find_place(tmp_path)
    open_home(home).add_tenant("a")
    monkeypatch.setenv("TOOLSCOUT_INDEX", "pgvector:postgresql://nobody@/tools?host=/nowhere")
    refused = run("--home", name_home(home), "tenant", "remove", "a", "--yes")
    assert refused.exit_code == 1 and "does not answer" in refused.output
    assert [tenant.name for tenant in open_home(home).list_tenants()] == ["default", "a"]


# --- PostgreSQL itself


def connect_as_owner(home: Address) -> psycopg.Connection[Any]:
    """A connection of the superuser, who sees every row."""
    return psycopg.connect(home.conninfo.replace(f"//{ROLE}@", "//postgres@"), autocommit=True)


def list_tables(connection: psycopg.Connection[Any], schema_name: str) -> list[str]:
    """The tables whose rows belong to tenants: all but the few that say what the home is."""
    rows = connection.execute(
        "SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE nspname = %s AND relkind IN ('r', 'p') ORDER BY relname",
        (schema_name,),
    ).fetchall()
    return [name for (name,) in rows if name not in ("versions", "tenants", "removed_tenants")]


def test_every_table_hides_the_rows_of_other_tenants_from_the_role_of_the_program(postgres: Address) -> None:
    for name in ("a", "b"):
        open_home(postgres).add_tenant(name)
        with Scout(describe(postgres), tenant=name, index="pgvector") as scout:
            scout.journal.append("call", tool="x/y", ok=True)
            open_home(scout.settings.place).write_document("policy.toml", name.encode())
            fill(scout)
            scout.embed()
    with contextlib.closing(connect_as_owner(postgres)) as owner:
        tables = list_tables(owner, postgres.schema)
        rights = owner.execute(
            "SELECT relname, relrowsecurity, relforcerowsecurity FROM pg_class JOIN pg_namespace "
            "ON pg_namespace.oid = relnamespace WHERE nspname = %s AND relkind = 'r' AND relname <> 'versions'",
            (postgres.schema,),
        ).fetchall()
        assert {(True, True)} == {tuple(row[1:]) for row in rights}, "a new table belongs to tenants too"
        assert {"tools", "events", "documents", "model_files", "vector_collections", "vector_marks"} <= set(tables)
        assert owner.execute(
            f"SELECT tenant, count(*) FROM {postgres.schema}.tool_vectors GROUP BY tenant ORDER BY tenant"
        ).fetchall() == [("a", 10), ("b", 10)]
    own = place_tenant(postgres, "a")
    assert isinstance(own, Address)
    with contextlib.closing(postgres_connection(own)) as connection:
        for table in tables:
            query = sql.SQL("SELECT count(*) FROM {} WHERE tenant <> 'a'").format(sql.Identifier(table))
            assert connection.execute(query).fetchone() == (0,), table
            for statement in ("UPDATE {} SET tenant = 'a' WHERE tenant = 'b'", "DELETE FROM {} WHERE tenant = 'b'"):
                assert connection.execute(sql.SQL(statement).format(sql.Identifier(table))).rowcount == 0, table
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            connection.execute("UPDATE tools SET tenant = 'b'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            connection.execute("INSERT INTO hidden VALUES ('x/y', 'now', 'b')")
        with pytest.raises(psycopg.errors.ForeignKeyViolation):  # its source belongs to b as well
            connection.execute("INSERT INTO problems VALUES ('nobody', 'x', 'y')")
        assert connection.execute("SELECT name FROM tenants").fetchall() == [("a",)]
        assert connection.execute("DELETE FROM tenants WHERE name = 'b'").rowcount == 0
        connection.execute("RESET toolscout.tenant")
        connection.execute("SET search_path TO " + postgres.schema)
        assert connection.execute("SELECT count(*) FROM tools").fetchone() == (0,), "without a tenant: nothing"
    for name, count in (("a", 10), ("b", 10)):
        with Scout(describe(postgres), tenant=name) as scout:
            assert sum(source.tools for source in scout.sources()) == count
            assert open_home(scout.settings.place).read_document("policy.toml") == name.encode()


def postgres_connection(home: Address) -> psycopg.Connection[Any]:
    return postgres.connect(home)


def test_a_role_that_sees_everything_is_refused_when_there_are_several_tenants(postgres: Address) -> None:
    as_superuser = describe(postgres).replace(f"//{ROLE}@", "//postgres@")
    with Scout(as_superuser, recipe="bm25") as scout:
        fill(scout)
        with pytest.raises(ConfigError, match="This role sees the rows of every tenant"):
            open_home(scout.settings.place).add_tenant("a")
        assert scout.search("rain tomorrow").ids
        with contextlib.closing(connect_as_owner(postgres)) as owner:
            owner.execute(f"GRANT USAGE ON SCHEMA {postgres.schema} TO {ROLE}")
            owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {postgres.schema} TO {ROLE}")
        open_home(postgres).add_tenant("a")
        with pytest.raises(StoreError, match="Use a role without SUPERUSER and BYPASSRLS"):
            scout.search("rain tomorrow")
        with pytest.raises(StoreError, match="Use a role without SUPERUSER and BYPASSRLS"):
            scout.store.tools(["weather/get_forecast"])
    with pytest.raises(StoreError, match="Use a role without SUPERUSER and BYPASSRLS"):
        Scout(as_superuser).sources()


def test_a_home_from_before_tenants_becomes_the_tenant_default(postgres: Address) -> None:
    steps = adapt_steps("catalogue", CATALOGUE_MIGRATIONS)
    former = [step for step in steps if not (isinstance(step, Migration) and step.first_rows)]
    assert len(former) == len(CATALOGUE_MIGRATIONS) - 1
    tool = Tool(id="mail/send", name="send")
    with contextlib.closing(postgres_connection(postgres)) as connection:  # as the version before wrote it
        connection.execute(f"CREATE SCHEMA {postgres.schema}")
        connection.execute("CREATE TABLE versions (part TEXT PRIMARY KEY, version BIGINT NOT NULL)")
        for step in former:
            connection.execute(translate_schema(step.postgres if isinstance(step, Migration) else step).encode())
        connection.execute("INSERT INTO versions VALUES ('catalogue', %s)", (len(former),))
        connection.execute("INSERT INTO origins VALUES (7, 'x', 'objects', NULL, '')")
        connection.execute("INSERT INTO sources VALUES ('mail', 7, 'objects', 'ok', '', true, '')")
        row = (tool.id, "mail", tool.name, tool.fingerprint, msgspec.json.encode(tool))
        connection.execute("INSERT INTO tools VALUES (%s, %s, %s, %s, %s)", row)
        connection.execute("UPDATE meta SET value = 3")
    open_home(postgres).add_tenant("a")
    with contextlib.closing(Store(place_tenant(postgres, "a"))) as store:  # the first to open it is another tenant
        assert store.sources() == [] and store.generation() == 0
    with contextlib.closing(Store(postgres)) as store:
        assert [source.name for source in store.sources()] == ["mail"] and store.generation() == 3
        assert store.tool("mail/send") == tool
        store.put_source(Origin("y", "objects"), "crm", kind="objects", tools=[Tool(id="crm/find", name="find")])
        assert store.remove_source("mail") == 1
