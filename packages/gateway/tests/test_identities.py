"""Everybody's own identity: callers sign in at servers with OAuth, and nobody acts under the token of another."""

from __future__ import annotations

import logging
import re
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.auth import OAuthToken

from gateway.tests.oauth_gateway import KEYS, Caller, Site, bank, issuer, open_site, running, sealing_key
from homes_in_postgres import find_place, name_home
from servers.oauth import Bank, Browser, Issuer
from toolscout.errors import ConfigError, Denied, StoreError
from toolscout.home.access.vault import Vault
from toolscout.location import local_folder, parse_home
from toolscout.trust.sealing import SEALING_VARIABLE, Sealer, make_sealing_key

__all__ = ["bank", "issuer", "running", "sealing_key"]  # the fixtures
pytestmark = [
    pytest.mark.net,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]
CALLS = 500


def find_link(text: str) -> str:
    found = re.search(r"http://\S+/oauth/sign-in\?id=[\w-]+", text)
    assert found, text
    return found[0]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_caller_is_asked_to_sign_in_and_acts_as_themselves(
    issuer: Issuer, bank: Bank, tmp_path: Path, home: Any, mode: str
) -> None:
    async def body() -> None:
        async with open_site(tmp_path, {"bank": {"url": bank.url}}, home=home) as site:
            async with site.client(KEYS["ann"], Browser("ann@upstream"), mode=mode) as ann:
                found = await ann.client.call_tool("search_tools", {"queries": ["who am I"]})
                assert "call the tool 'bank/sign_in'" in found.content[0].text
                assert "You can use server 'bank' now" in await ann.text("bank/sign_in")
                assert await ann.text("bank/whoami", note="1") == "ann@upstream 1"
                assert len(ann.asked) == 1 and ann.asked[0].mode == "url"
                assert issuer.port.url in ann.asked[0].message
            async with site.client(KEYS["bob"], Browser("bob@upstream"), mode=mode) as bob:
                assert await bob.text("bank/whoami") == "bob@upstream "
            async with site.client(KEYS["ann"]) as again:
                assert await again.text("bank/whoami") == "ann@upstream "
        assert issuer.registrations == 1  # the gateway is one client, whoever calls

    anyio.run(body)


def test_a_client_that_shows_no_links_gets_one_in_words(issuer: Issuer, bank: Bank, tmp_path: Path) -> None:
    async def body() -> None:
        async with open_site(tmp_path, {"bank": {"url": bank.url}}) as site, site.client(KEYS["ann"]) as ann:
            answer = await ann.call("bank/sign_in")
            assert answer.is_error
            link = find_link(answer.content[0].text)
            page = await anyio.to_thread.run_sync(Browser("ann@upstream").get, link)
            assert "'ann'" in page.text.replace("&#x27;", "'") and issuer.port.url in page.text
            done = await anyio.to_thread.run_sync(Browser("ann@upstream").open, link)
            assert "Signed in" in done.text
            assert not (await ann.call("bank/sign_in")).is_error
            assert await ann.text("bank/whoami") == "ann@upstream "
            gone = await anyio.to_thread.run_sync(Browser("bob@upstream").open, link)
            assert gone.status_code == 404

    anyio.run(body)


def test_only_the_browser_that_opened_the_link_may_come_back(issuer: Issuer, bank: Bank, tmp_path: Path) -> None:
    async def body() -> None:
        async with open_site(tmp_path, {"bank": {"url": bank.url}}) as site, site.client(KEYS["ann"]) as ann:
            link = find_link(await ann.text("bank/sign_in"))
            [sign_in] = site.gateway.identities.sign_ins.pending.values()
            browser = Browser("mallory@upstream")
            direct = await anyio.to_thread.run_sync(browser.get, sign_in.url)  # without the gateway's page
            assert direct.status_code == 403 and "Another browser" in direct.text
            assert not sign_in.done.is_set()
            await anyio.to_thread.run_sync(Browser("ann@upstream").open, link)
            assert await ann.text("bank/sign_in") and await ann.text("bank/whoami") == "ann@upstream "

    anyio.run(body)


def test_a_user_who_declines_or_is_refused_is_not_signed_in(issuer: Issuer, bank: Bank, tmp_path: Path) -> None:
    async def body() -> None:
        async with open_site(tmp_path, {"bank": {"url": bank.url}}) as site:
            async with site.client(KEYS["ann"], Browser("ann"), action="decline") as ann:
                answer = await ann.call("bank/sign_in")
                assert answer.is_error and "the user declined" in answer.content[0].text
            async with site.client(KEYS["bob"], Browser("refuses")) as bob:
                answer = await bob.call("bank/sign_in")
                assert answer.is_error and "did not accept" in answer.content[0].text
        assert bank.seen == []

    anyio.run(body)


def test_two_callers_500_calls_and_a_restart(
    issuer: Issuer, bank: Bank, tmp_path: Path, home: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """No call goes out under the token of the other, and no token lies open anywhere."""
    caplog.set_level(logging.DEBUG)
    answers: list[str] = []
    said: list[str] = []

    async def use(site: Site, name: str, browser: Browser | None, numbers: range) -> None:
        async with site.client(KEYS[name], browser) as caller:
            signed_in = await caller.call("bank/sign_in")
            assert not signed_in.is_error, signed_in.content[0].text
            limiter = anyio.CapacityLimiter(8)

            async def one(number: int) -> None:
                async with limiter:
                    answer = await caller.text("bank/whoami", note=f"{name}-{number}")
                    assert answer == f"{name}@upstream {name}-{number}", answer
                    answers.append(answer)

            async with anyio.create_task_group() as group:
                for number in numbers:
                    group.start_soon(one, number)
            answers.append(await caller.text("bank/leak"))

    async def run_half(numbers: range, with_browser: bool) -> None:
        async with open_site(tmp_path, {"bank": {"url": bank.url}}, home=home) as site, anyio.create_task_group() as g:
            for name in KEYS:
                g.start_soon(use, site, name, Browser(f"{name}@upstream") if with_browser else None, numbers)
            said.extend(site.said)

    anyio.run(run_half, range(CALLS // 4), True)
    anyio.run(run_half, range(CALLS // 4, CALLS // 2), False)  # after a restart nobody has to sign in again
    assert len(bank.seen) == CALLS and len(set(bank.seen)) == CALLS
    assert all(person == f"{note.partition('-')[0]}@upstream" for person, note in bank.seen)
    assert sum("[credential]" in answer for answer in answers) == 4  # a server that shows the token is covered
    spoken = "\n".join([*answers, *said, caplog.text, *map(repr, caplog.records)])
    stored = read_everything(home, tmp_path)
    assert len(issuer.issued) >= 4
    for token in issuer.issued:
        assert token not in spoken and token.encode() not in stored
        assert token.split(".")[-1] not in spoken  # nor its signature
    for key in KEYS.values():
        assert key not in spoken and key.encode() not in stored


def read_everything(home: Any, folder: Path) -> bytes:
    """Every byte that a gateway wrote: the files of its folders, and the rows of its database."""
    contents = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    if not isinstance(home, (str, Path)) or str(home).startswith("postgresql"):
        address: Any = parse_home(str(home)) if isinstance(home, (str, Path)) else home
        names = [name for (name,) in address.open_files().ask("SELECT name FROM documents ORDER BY name")]
        contents += [address.read_document(name) for name in names]
    return b"\n".join(contents)


def test_a_stolen_home_opens_for_nobody_without_the_key(
    issuer: Issuer, bank: Bank, tmp_path: Path, home: Any, sealing_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sign_in() -> None:
        async with (
            open_site(tmp_path, {"bank": {"url": bank.url}}, home=home) as site,
            site.client(KEYS["ann"], Browser("ann@upstream")) as ann,
        ):
            await ann.call("bank/sign_in")

    anyio.run(sign_in)
    from toolscout.settings import load_settings

    place = load_settings(home=home).place
    assert Vault(place, Sealer([sealing_key])).has_tokens("ann", bank.url)
    assert not Vault(place, Sealer([sealing_key])).has_tokens("bob", bank.url)
    thief = Vault(place, Sealer([make_sealing_key()]))
    assert thief.count() == 2 and list(thief.list_entries()) == [] and thief.read("ann", bank.url) == {}
    rotated = Vault(place, Sealer([make_sealing_key(), sealing_key]))
    assert rotated.has_tokens("ann", bank.url)
    monkeypatch.delenv(SEALING_VARIABLE)
    with pytest.raises(Denied, match="has no key"):
        Vault(place).read("ann", bank.url)


def test_an_entry_opens_under_its_own_name_only(sealing_key: str) -> None:
    sealer = Sealer([sealing_key])
    sealed = sealer.seal("identities/ann", b"secret")
    assert sealer.open("identities/ann", sealed) == b"secret" and b"secret" not in sealed
    for name, content in (("identities/bob", sealed), ("identities/ann", sealed[:-1]), ("identities/ann", b"")):
        with pytest.raises(StoreError, match="cannot be opened"):
            sealer.open(name, content)
    with pytest.raises(ConfigError, match="32 bytes") as refused:
        Sealer(["hunter2hunter2"])
    assert "hunter2" not in str(refused.value)


def test_without_a_key_nobody_can_sign_in(
    issuer: Issuer, bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SEALING_VARIABLE)

    async def body() -> None:
        async with open_site(tmp_path, {"bank": {"url": bank.url}}) as site, site.client(KEYS["ann"]) as ann:
            assert "toolscout identity key" in await ann.text("bank/sign_in")

    anyio.run(body)


def test_a_server_may_ask_for_further_rights_in_the_middle(issuer: Issuer, bank: Bank, tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            open_site(tmp_path, {"bank": {"url": bank.url}}) as site,
            site.client(KEYS["ann"], Browser("ann@upstream")) as ann,
        ):
            await ann.call("bank/sign_in")
            assert await ann.text("bank/close_account") == "closed ann@upstream"
            assert len(ann.asked) == 2  # to sign in, and for the further right
            assert await ann.text("bank/whoami") == "ann@upstream "
        vault = Vault(find_place(tmp_path / "home"))
        assert set(vault.read("ann", bank.url)["tokens"]["scope"].split()) == {"use", "delete"}

    anyio.run(body)


def expire_token(site: Site, bank: Bank) -> str:
    """Make the token of Ann's session expired, in memory and in the vault. Returns it."""
    context = site.gateway.upstreams.servers["bank"].own_sessions["ann"].identity.context  # type: ignore[attr-defined]
    context.token_expiry_time = 1.0
    entry = site.gateway.identities.vault.read("ann", bank.url)
    site.gateway.identities.vault.write("ann", bank.url, {**entry, "expires": 1.0})
    return str(context.current_tokens.access_token)


def test_expired_tokens_are_renewed_without_the_person(issuer: Issuer, bank: Bank, tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            open_site(tmp_path, {"bank": {"url": bank.url}}) as site,
            site.client(KEYS["ann"], Browser("ann@upstream")) as ann,
        ):
            await ann.call("bank/sign_in")
            expire_token(site, bank)
            assert await ann.text("bank/whoami") == "ann@upstream "
            assert len(ann.asked) == 1 and issuer.refreshed == 1

    anyio.run(body)


@pytest.mark.parametrize("shown", ["old", "new"])
def test_a_token_that_is_renewed_during_a_call_is_covered_in_its_result(
    issuer: Issuer, bank: Bank, tmp_path: Path, shown: str
) -> None:
    async def body() -> None:
        async with (
            open_site(tmp_path, {"bank": {"url": bank.url}}) as site,
            site.client(KEYS["ann"], Browser("ann@upstream")) as ann,
        ):
            await ann.call("bank/sign_in")
            old = expire_token(site, bank)
            answer = await (ann.text("bank/leak") if shown == "new" else ann.text("bank/whoami", note=old))
            assert issuer.refreshed == 1 and not [token for token in issuer.issued if token in answer]

    anyio.run(body)


def test_a_shared_session_is_refused_unless_it_is_declared(issuer: Issuer, bank: Bank, tmp_path: Path) -> None:
    """The session of whoever ran `toolscout add` is nobody else's, until the settings say so."""
    from toolscout.sources.mcp_oauth import TokenFile

    tokens = TokenFile(local_folder(find_place(tmp_path / "home")), bank.url)
    access = issuer.make_token("owner@upstream", bank.url, ["use"])
    tokens._save(tokens={"access_token": access, "token_type": "Bearer"}, expires=None)
    assert access.encode() not in tokens.path.read_bytes()

    async def body(shared: tuple[str, ...], expected: str) -> None:
        async with (
            open_site(tmp_path, {"bank": {"url": bank.url}}, shared_sessions=shared) as site,
            site.client(KEYS["ann"]) as ann,
        ):
            assert expected in await ann.text("bank/whoami")

    anyio.run(body, (), "")
    assert bank.seen == []
    anyio.run(body, ("bank",), "owner@upstream")


def test_a_policy_that_appears_ends_the_session_of_the_owner(issuer: Issuer, bank: Bank, tmp_path: Path) -> None:
    from gateway.tests.conftest import open_agent
    from gateway.tests.oauth_gateway import write_policy
    from toolscout.home.access.live_policy import LivePolicies
    from toolscout.sources.mcp_oauth import TokenFile

    tokens = TokenFile(local_folder(find_place(tmp_path / "home")), bank.url)
    access = issuer.make_token("owner@upstream", bank.url, ["use"])
    tokens._save(tokens={"access_token": access, "token_type": "Bearer"}, expires=None)

    async def body() -> None:
        policies = LivePolicies(tmp_path / "policy.toml", is_required=False)
        entries = {"bank": {"url": bank.url}}
        async with open_agent(tmp_path, entries, home=name_home(tmp_path / "home"), policies=policies) as agent:
            assert await agent.text("bank/whoami") == "owner@upstream "
            write_policy(tmp_path)
            policies.refresh(lambda text: None)
            agent.gateway.permissions.credential = KEYS["ann"]
            assert "owner@upstream" not in await agent.text("bank/whoami")
            answer = await agent.text("bank/whoami")
            assert "wants you to sign in" in answer
            done = await anyio.to_thread.run_sync(Browser("ann@upstream").open, find_link(answer))
            assert "Signed in" in done.text  # over a port of this machine, as the gateway serves no HTTP
            assert await agent.text("bank/whoami") == "ann@upstream "
        assert [person for person, _ in bank.seen] == ["owner@upstream", "ann@upstream"]

    anyio.run(body)


def test_forgetting_a_caller_ends_their_session_and_no_other(
    issuer: Issuer, bank: Bank, tmp_path: Path, home: Any
) -> None:
    async def body() -> None:
        async with open_site(tmp_path, {"bank": {"url": bank.url}}, home=home) as site:
            async with (
                site.client(KEYS["ann"], Browser("ann@upstream")) as ann,
                site.client(KEYS["bob"], Browser("bob@upstream")) as bob,
            ):
                assert await use(ann) == "ann@upstream " and await use(bob) == "bob@upstream "
                sessions = site.gateway.upstreams.servers["bank"].own_sessions
                forgotten, kept = sessions["ann"], sessions["bob"]
                vault = site.gateway.identities.vault
                await anyio.to_thread.run_sync(vault.forget, "ann", bank.url)
                with anyio.fail_after(30):
                    while "ann" in sessions:
                        await anyio.sleep(0.05)
                await forgotten.identity._storage.set_tokens(  # type: ignore[attr-defined]
                    OAuthToken(access_token="late")
                )
                assert not await anyio.to_thread.run_sync(vault.has_tokens, "ann", bank.url), (
                    "a late answer changes nothing"
                )
                assert sessions == {"bob": kept} and await bob.text("bank/whoami") == "bob@upstream "
            async with site.client(KEYS["ann"]) as ann:
                assert "wants you to sign in" in await ann.text("bank/whoami")

    anyio.run(body)


async def use(caller: Caller) -> str:
    await caller.call("bank/sign_in")
    return await caller.text("bank/whoami")


@pytest.mark.folder_only("its databases are files")
def test_a_home_has_no_plain_token_in_its_databases(issuer: Issuer, bank: Bank, tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            open_site(tmp_path, {"bank": {"url": bank.url}}) as site,
            site.client(KEYS["ann"], Browser("ann@upstream")) as ann,
        ):
            assert await use(ann) == "ann@upstream "

    anyio.run(body)
    for database in (tmp_path / "home").glob("*.db"):
        with sqlite3.connect(database) as connection:
            dump = "\n".join(connection.iterdump())
        assert dump and not any(token in dump for token in issuer.issued)
