"""The gateway as an OAuth resource and client: metadata, audience, scopes, token exchange, a client with a document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from gateway.tests.oauth_gateway import KEYS, bank, issuer, open_site, running, sealing_key, write_policy
from homes_in_postgres import find_place, name_home
from servers.oauth import Bank, Browser, Issuer
from tests_cli import run
from toolscout.home.access.vault import Vault
from toolscout.scout import Scout
from toolscout.trust.sealing import Sealer

__all__ = ["bank", "issuer", "running", "sealing_key"]  # the fixtures
pytestmark = [pytest.mark.net, pytest.mark.slow, pytest.mark.timeout(180)]
AUDIENCE = "https://tools.example.com/mcp"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
HEADERS = {"accept": "application/json, text/event-stream"}


def write_token_policy(folder: Path, issuer: Issuer, more: str = "") -> Path:
    """A policy whose callers also come with tokens of the issuer. Two people share the caller `staff`."""
    (folder / "keys.json").write_text(issuer.make_jwks())
    return write_policy(
        folder,
        '[[caller]]\nname = "staff"\nsubjects = ["carl", "dora"]\nallow = ["**"]\n'
        f'[tokens]\nissuer = "{issuer.url}"\naudience = "{AUDIENCE}"\njwks = "keys.json"\n'
        f'algorithms = ["ES256"]\n{more}',
    )


def ask(url: str, token: str | None = None, message: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    bearer = {} if token is None else {"authorization": f"Bearer {token}"}
    return httpx.post(url, json=message or HELLO, headers={**HEADERS, **bearer, **headers}, timeout=30)


def test_the_gateway_says_who_issues_its_tokens_and_takes_no_others(bank: Bank, tmp_path: Path) -> None:
    issuer = bank.issuer
    policy = write_token_policy(tmp_path, issuer, 'scopes = ["tools:call"]\nstep_up = {"tools:delete" = ["**/delete"]}')

    async def body() -> None:
        async with open_site(tmp_path, {"bank": {"url": bank.url}}, policy=policy) as site:
            get = anyio.to_thread.run_sync
            base = site.url.removesuffix("/mcp")
            for path in ("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"):
                metadata = (await get(httpx.get, base + path)).json()
                assert metadata["resource"] == AUDIENCE and metadata["authorization_servers"] == [issuer.url]
                assert metadata["scopes_supported"] == ["tools:call", "tools:delete"]
            where = 'resource_metadata="https://tools.example.com/.well-known/oauth-protected-resource/mcp"'
            nobody = await get(ask, site.url)
            assert nobody.status_code == 401 and where in nobody.headers["www-authenticate"]
            other = await get(ask, site.url, issuer.make_token("carl", "https://other.example/mcp", ["tools:call"]))
            assert other.status_code == 401 and 'error="invalid_token"' in other.headers["www-authenticate"]
            weak = await get(ask, site.url, issuer.make_token("carl", AUDIENCE, ["use"]))
            assert weak.status_code == 403
            challenge = weak.headers["www-authenticate"]
            assert (
                'error="insufficient_scope"' in challenge and 'scope="tools:call"' in challenge and where in challenge
            )
            good = await get(ask, site.url, issuer.make_token("carl", AUDIENCE, ["tools:call"]))
            assert good.status_code == 200

    anyio.run(body)


def test_a_call_that_needs_a_further_scope_says_which(bank: Bank, tmp_path: Path) -> None:
    issuer = bank.issuer
    policy = write_token_policy(tmp_path, issuer, 'step_up = {"money" = ["bank/close_account"]}')
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
    close = {"name": "call_tool", "arguments": {"id": "bank/close_account", "arguments": {}}}
    slip = {"name": "call_tool", "arguments": {"id": "close_account", "arguments": {}}}

    async def body() -> None:
        async with open_site(tmp_path, {"bank": {"url": bank.url}}, policy=policy) as site:
            async with site.client(KEYS["ann"], Browser("ann@upstream")) as ann:
                await ann.call("bank/sign_in")
                assert await ann.text("bank/close_account") == "closed ann@upstream"  # a key has every scope
            token = issuer.make_token("carl", AUDIENCE, ["use"])
            version = {"mcp-protocol-version": "2025-06-18"}
            session = (await anyio.to_thread.run_sync(ask, site.url, token)).headers["mcp-session-id"]

            def send(params: dict[str, Any]) -> httpx.Response:
                return ask(site.url, token, {**call, "params": params}, **version, **{"mcp-session-id": session})

            refused = await anyio.to_thread.run_sync(send, close)
            assert refused.status_code == 403 and 'scope="money"' in refused.headers["www-authenticate"]
            bare = await anyio.to_thread.run_sync(send, slip)  # without the exact id the rule holds all the same
            assert bare.status_code == 200 and "lacks the scope" in bare.text

    anyio.run(body)


def test_the_issuer_exchanges_a_callers_token_and_people_who_share_a_name_stay_apart(
    bank: Bank, tmp_path: Path
) -> None:
    issuer = bank.issuer
    policy = write_token_policy(tmp_path, issuer)

    async def body() -> None:
        async with open_site(tmp_path, {"bank": {"url": bank.url}}, policy=policy) as site:
            for person in ("carl", "dora", "carl"):
                token = issuer.make_token(person, AUDIENCE, ["use"])
                async with site.client(token) as client:  # it can show no links, and need not
                    assert "You can use" in await client.text("bank/sign_in")
                    assert await client.text("bank/whoami") == f"{person} "
                    assert "[credential]" in await client.text("bank/leak")
        assert issuer.exchanged == 2
        assert [person for person, _ in bank.seen] == ["carl", "dora", "carl"]

    anyio.run(body)


def test_a_callers_token_goes_to_no_other_issuer(bank: Bank, tmp_path: Path) -> None:
    """A server names its issuer itself, so it could name one that collects tokens."""
    with Issuer(exchanges=True).running() as evil, Bank(evil).running() as trap:
        policy = write_token_policy(tmp_path, bank.issuer)
        token = bank.issuer.make_token("carl", AUDIENCE, ["use"])

        async def body() -> None:
            async with (
                open_site(tmp_path, {"trap": {"url": trap.url}}, policy=policy) as site,
                site.client(token) as carl,
            ):
                assert "Show the user this link" in await carl.text("trap/sign_in")

        anyio.run(body)
        assert evil.offered == [] and trap.seen == []


def test_a_client_with_a_document_registers_nowhere(bank: Bank, tmp_path: Path) -> None:
    issuer, public = bank.issuer, "https://tools.example.com"

    async def body() -> None:
        async with open_site(tmp_path, {"bank": {"url": bank.url}}, public_url=public) as site:
            base = site.url.removesuffix("/mcp")
            document = (await anyio.to_thread.run_sync(httpx.get, f"{base}/oauth/client.json")).json()
            assert document["client_id"] == f"{public}/oauth/client.json"
            assert document["redirect_uris"] == [f"{public}/oauth/callback"]
            issuer.documents[document["client_id"]] = document
            async with site.client(KEYS["ann"]) as ann:
                assert f"{public}/oauth/sign-in?id=" in await ann.text("bank/sign_in")
            [sign_in] = site.gateway.identities.sign_ins.pending.values()
            assert "client_id=https%3A%2F%2Ftools.example.com%2Foauth%2Fclient.json" in sign_in.url
        assert issuer.registrations == 0

    anyio.run(body)


def dump(result: Any) -> str:
    """A result as it is on the wire, apart from the name of the server that the SDK puts into `_meta`."""
    content = result.model_dump(mode="json", by_alias=True)
    (content["_meta"] or {}).pop("io.modelcontextprotocol/serverInfo", None)
    return json.dumps(content, sort_keys=True)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_answers_of_a_server_with_oauth_are_byte_equal_to_direct_ones(bank: Bank, tmp_path: Path, mode: str) -> None:
    """The cases of the matrix, for a server that the matrix cannot start: it needs a person."""
    cases: list[tuple[str, dict[str, Any]]] = [
        ("whoami", {}),
        ("whoami", {"note": "ünïcödé \u2028 \U0001f9ed"}),
        ("whoami", {"note": "x" * 20_000}),
        ("close_account", {}),
    ]
    token = bank.issuer.make_token("ann@upstream", bank.url, ["use", "delete"])

    async def body() -> None:
        direct: list[str] = []
        async with (
            httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http,
            Client(streamable_http_client(bank.url, http_client=http), mode=mode) as client,
        ):
            direct += [dump(await client.call_tool(name, arguments)) for name, arguments in cases]
        async with (
            open_site(tmp_path, {"bank": {"url": bank.url}}) as site,
            site.client(KEYS["ann"], Browser("ann@upstream"), mode=mode) as ann,
        ):
            await ann.call("bank/sign_in")
            through = [dump(await ann.call(f"bank/{name}", **arguments)) for name, arguments in cases]
        assert through == direct

    anyio.run(body)


def test_callers_without_a_key_cannot_sign_in(bank: Bank, tmp_path: Path) -> None:
    policy = write_policy(tmp_path, '[[caller]]\nname = "guest"\nallow = ["**"]\n')
    policy.write_text('default = "guest"\n' + policy.read_text())

    async def body() -> None:
        async with open_site(tmp_path, {"bank": {"url": bank.url}}, policy=policy) as site:
            reply = await anyio.to_thread.run_sync(ask, site.url)
            session = {"mcp-session-id": reply.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
            call = {"name": "call_tool", "arguments": {"id": "bank/sign_in", "arguments": {}}}
            message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
            answer = await anyio.to_thread.run_sync(lambda: ask(site.url, None, message, **session))
            assert "you came without a key" in answer.text

    anyio.run(body)


def test_sign_ins_are_listed_and_removed_on_the_command_line(tmp_path: Path, sealing_key: str) -> None:
    home = tmp_path / "home"
    vault = Vault(find_place(home), Sealer([sealing_key]))
    vault.write("ann", "https://mcp.example.com", {"issuer": "https://login", "tokens": {"access_token": "at_secret"}})
    vault.write("staff\ncarl", "https://mcp.example.com", {"tokens": {"access_token": "at_other"}})
    listed = run("--home", str(home), "identity", "list", "--json")
    rows = json.loads(listed.stdout)["sign_ins"]
    assert sorted((row["caller"], row["subject"]) for row in rows) == [("ann", ""), ("staff", "carl")]
    assert "at_secret" not in listed.output
    assert "1 sign-in of ann removed" in run("--home", str(home), "identity", "forget", "ann").output
    assert not vault.has_tokens("ann", "https://mcp.example.com") and vault.has_tokens(
        "staff\ncarl", "https://mcp.example.com"
    )
    assert run("--home", str(home), "identity", "forget", "ann").exit_code == 1
    made = run("identity", "key").output.split()[0]
    assert Sealer([made]).open("n", Sealer([made]).seal("n", b"x")) == b"x"


def test_sign_ins_move_with_their_home(tmp_path: Path, sealing_key: str) -> None:
    source, target = tmp_path / "home", tmp_path / "other"
    with Scout(source) as scout:
        scout.add([{"name": "pay", "description": "Pays a bill.", "parameters": {}}], name="bank")
    Vault(find_place(source), Sealer([sealing_key])).write(
        "ann", "https://mcp.example.com", {"tokens": {"access_token": "at"}}
    )
    pytest.importorskip("toolscout_postgres", reason="`toolscout migrate` is in toolscout-postgres")
    moved = run("migrate", name_home(source), name_home(target))
    assert moved.exit_code == 0, moved.output
    assert Vault(find_place(target), Sealer([sealing_key])).has_tokens("ann", "https://mcp.example.com")
