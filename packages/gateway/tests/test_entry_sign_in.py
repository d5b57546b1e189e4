"""Entries that sign in themselves: with client credentials, or with an assertion of a company (ID-JAG)."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.tests.oauth_gateway import KEYS, open_site, sealing_key
from servers.oauth import Bank, Issuer
from toolscout.settings import Settings
from toolscout.sources import Reading, mcp

__all__ = ["sealing_key"]  # the fixture
pytestmark = [pytest.mark.net, pytest.mark.slow, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[3]
SECRET = "s3cret_of_toolscout_0123456789"
COMPANY = ec.generate_private_key(ec.SECP256R1())
both_grants = pytest.mark.parametrize("grant", ["client_credentials", "id_jag"])


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    """A server whose issuer knows the client `toolscout` and trusts a company."""
    monkeypatch.setenv("BANK_SECRET", SECRET)
    with Issuer().running() as issuer, Bank(issuer).running() as bank:
        issuer.add_machine("toolscout", SECRET, COMPANY.public_key())
        yield bank


def assert_person(bank: Bank, folder: Path, person: str) -> None:
    """Write what the company says about a person into a file, as its program does."""
    now = int(time.time())
    claims = {"iss": "https://company.example", "sub": person, "aud": bank.issuer.url, "resource": bank.url}
    claims |= {"client_id": "toolscout", "iat": now, "exp": now + 300, "jti": secrets.token_hex(8)}
    text = jwt.encode(claims, COMPANY, "ES256", headers={"typ": "oauth-id-jag+jwt"})
    (folder / "id-jag").write_text(text)


def make_entry(bank: Bank, folder: Path, grant: str, **changes: str) -> dict[str, Any]:
    """An entry that signs in."""
    sign_in = {"grant": grant, "issuer": bank.issuer.url, "clientId": "toolscout", "clientSecret": "${BANK_SECRET}"}
    sign_in["scope"] = "use"
    if grant == "id_jag":
        sign_in["assertion"] = f"${{file:{folder / 'id-jag'}}}"
        assert_person(bank, folder, "ann@company")
    return {"url": bank.url, "signIn": sign_in | changes}


def read(folder: Path, entry: dict[str, Any]) -> Reading:
    path = folder / "servers.json"
    path.write_text(json.dumps({"mcpServers": {"bank": entry}}))
    (reading,) = mcp.read(str(path), name=None, settings=Settings(home=folder / "home", mcp_timeout=20))
    return reading


@both_grants
def test_all_callers_use_the_token_that_the_entry_gets(bank: Bank, tmp_path: Path, grant: str) -> None:
    said: list[str] = []

    async def body() -> None:
        async with open_site(tmp_path, {"bank": make_entry(bank, tmp_path, grant)}) as site:
            for name in KEYS:
                async with site.client(KEYS[name]) as caller:
                    who = "toolscout" if grant == "client_credentials" else "ann@company"
                    assert await caller.text("bank/whoami", note=name) == f"{who} {name}"
                    assert await caller.text("bank/leak") == "your token is [credential]"
            said.extend(site.said)

    anyio.run(body)
    assert bank.issuer.granted == [grant], "one token for both callers"
    written = b"\n".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    for token in [*bank.issuer.issued, SECRET]:
        assert token not in "\n".join(said) and token.encode() not in written


@both_grants
def test_a_token_that_has_expired_is_fetched_anew(bank: Bank, tmp_path: Path, grant: str) -> None:
    bank.issuer.lifetime = 4

    async def body() -> None:
        entry = make_entry(bank, tmp_path, grant)
        async with open_site(tmp_path, {"bank": entry}) as site, site.client(KEYS["ann"]) as caller:
            first = await caller.text("bank/whoami")
            assert_person(bank, tmp_path, "bob@company")
            bank.issuer.lifetime = 3600
            await anyio.sleep(5)
            second = await caller.text("bank/whoami")
        people = ["toolscout ", "toolscout "] if grant == "client_credentials" else ["ann@company ", "bob@company "]
        assert [first, second] == people
        assert len(bank.issuer.granted) >= 2 and set(bank.issuer.granted) == {grant}

    anyio.run(body)


@both_grants
def test_add_needs_nobody_at_a_terminal(bank: Bank, tmp_path: Path, grant: str) -> None:
    reading = read(tmp_path, make_entry(bank, tmp_path, grant))
    assert sorted(tool.name for tool in reading.tools) == ["close_account", "leak", "whoami"], reading.message
    assert not (tmp_path / "home" / "oauth").exists()


@both_grants
def test_a_wrong_secret_is_said_in_a_sentence_without_it(bank: Bank, tmp_path: Path, grant: str) -> None:
    reading = read(tmp_path, make_entry(bank, tmp_path, grant, clientSecret="wrong_secret_0123456789"))
    assert reading.state == "error" and 'check "signIn" in its entry' in reading.message, reading.message
    assert "wrong_secret" not in reading.message


@both_grants
def test_the_secret_goes_to_no_issuer_that_only_the_server_names(bank: Bank, tmp_path: Path, grant: str) -> None:
    with Issuer().running() as own:
        own.add_machine("toolscout", SECRET, COMPANY.public_key())
        reading = read(tmp_path, make_entry(bank, tmp_path, grant, issuer=own.url))
        assert reading.state == "error", "the server takes only tokens of its own issuer"
    assert bank.issuer.granted == [] and bank.issuer.token_requests == 0


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"command": "server", "signIn": {"grant": "client_credentials"}}, "only with a url"),
        ({"url": "https://x.example/mcp", "headers": {"Authorization": "x"}, "signIn": {"grant": "id_jag"}}, "without"),
        ({"url": "https://x.example/mcp", "signIn": {"grant": "password"}}, "one of client_credentials, id_jag"),
        ({"url": "https://x.example/mcp", "signIn": {"grant": "client_credentials", "issuer": "x"}}, "no clientId"),
        (
            {
                "url": "https://x.example/mcp",
                "signIn": {
                    "grant": "client_credentials",
                    "issuer": "https://i.example",
                    "clientId": "a",
                    "clientSecret": "b",
                    "colour": "c",
                },
            },
            "'colour'",
        ),
    ],
)
def test_what_is_wrong_with_a_sign_in_is_said(tmp_path: Path, entry: dict[str, Any], expected: str) -> None:
    reading = read(tmp_path, entry)
    assert reading.state == "error" and expected in reading.message


def test_each_sign_in_of_the_page_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "use" / "entry-sign-in.md").read_text()
    rows = re.findall(r"^\| (?!sign-in|---)(.+?) \| `(.+?)` \| `(test_\w+)` \|$", page, re.M)
    assert len(rows) == len(re.findall(r"^\| .*test_", page, re.M)) >= 9
    files = [*ROOT.glob("packages/gateway/tests/test_*.py"), *ROOT.glob("tests/sources/test_*.py")]
    sources = {path.name: path.read_text() for path in files}
    for _, server, test in rows:
        assert (ROOT / "tests" / "servers" / server).is_file()
        found = [name for name, source in sources.items() if f"def {test}(" in source]
        assert len(found) == 1, test
