"""What a journal must not keep, and what it must not spoil. Every secret here is made up, and split in the source."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolscout.trust.redaction import MAX_REDACTED_CHARS, is_card, is_iban, redact

_random = random.Random(7)


def letters(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    """Made-up characters: the same in every run, with a digit and a capital among them."""
    return "".join(_random.choice(alphabet) for _ in range(count - 3)) + "Q7x"


def hexes(count: int) -> str:
    return "".join(_random.choice("0123456789abcdef") for _ in range(count))


WORD = "hunter" + "2" + "Zebra"
PEM = "-----BEGIN {0}PRIVATE KEY-----\nMIIE" + letters(60) + "\n-----END {0}PRIVATE KEY-----"
JWT = "eyJ" + letters(20) + "." + "eyJ" + letters(40) + "." + letters(40)

#: What must not remain → the text that it stands in, with {} for it.
NAMED = {
    "environment, password": ("DB_PASSWORD={}", WORD),
    "environment, short": ("export DB_PASS={}", WORD),
    "environment, key": ("OPENAI_API_KEY={} python run.py", letters(24)),
    "environment, AWS secret": ("AWS_SECRET_ACCESS_KEY={}", letters(40)),
    "environment, AWS id": ("AWS_ACCESS_KEY_ID={}", letters(20)),
    "environment, key alone": ("STRIPE_KEY={}", letters(20)),
    "environment, personal access": ("GH_PAT={}", letters(20)),
    "environment, postgres": ("PGPASSWORD={} psql -h db", WORD),
    "environment, quoted": ("SECRET_KEY='{}'", "correct horse battery"),
    "form, client secret": ("grant_type=client_credentials&client_secret={}&scope=x", letters(20)),
    "JSON, password with a space": ('{{"password": "{}"}}', "correct horse"),
    "JSON, camel case": ('{{"clientSecret":"{}", "a": 1}}', letters(20)),
    "JSON, access token": ('{{"access_token": "{}"}}', letters(20)),
    "JSON, refresh token": ('{{"refreshToken": "{}"}}', letters(20)),
    "Python": ("connect(user='me', passwd='{}')", WORD),
    "Ruby": ("config = {{ :api_key => '{}' }}", letters(16)),
    "YAML": ("db:\n  password: {}\n  host: x", WORD),
    "YAML, token": ("auth_token: {}", letters(16)),
    "TOML": ('private_key = "{}"', letters(30)),
    "URL, query": ("https://api.example.org/v1?api_key={}&q=rain", letters(16)),
    "URL, key": ("https://maps.example.org/?key={}", letters(16)),
    "URL, signature": ("https://x.blob.example.net/c?sv=2024&sig={}", letters(30)),
    "URL, access token": ("https://graph.example.org/me?access_token={}", letters(30)),
    "URL, user and password": ("postgres://bob:{}@db.example.org/x", WORD),
    "URL, password with an at": ("mysql://bob:{}@db/x", "p@ss" + "w0rd"),
    "URL, password alone": ("redis://:{}@cache:6379/0", WORD),
    "URL, token as user": ("git clone https://{}@git.example.org/a/b", letters(24)),
    "header, bearer": ("Authorization: Bearer {}", letters(20)),
    "header, basic": ("Authorization: Basic {}", "Ym9i" + "Omh1bnRlcjI="),
    "header, own": ("curl -H 'X-Api-Key: {}' https://x", letters(16)),
    "header, cookie": ("Cookie: {}", "session=" + letters(20)),
    "prose, bearer": ("use bearer {} now", letters(20)),
    "prose, with a space": ("my API key: {}", letters(16)),
    "prose, is": ("log in as bob, the password is {}", WORD),
    "option": ("mysqldump --password {} db", WORD),
    "option, curl": ("curl -u bob:{} https://x", WORD),
    "connection string": ("Server=db;User Id=sa;Password={};Encrypt=yes", WORD),
    "Azure, storage": ("AccountName=a;AccountKey={};EndpointSuffix=x", letters(83) + "abc=="),
    "Slack, hook": ("https://hooks.slack.com/services/{}", "T" + hexes(8) + "/B" + hexes(8) + "/" + letters(24)),
    "Discord, hook": ("https://discord.com/api/webhooks/{}", "1234567890/" + letters(60)),
    "Telegram, address": ("https://api.telegram.org/bot{}/getMe", "1234567890:" + "A" + letters(34)),
    "several lines": ("first line\nTOKEN={}\nlast", letters(12)),
}
TOKENS = {
    "GitHub": "gh" + "p_" + letters(36),
    "GitHub, server": "gh" + "s_" + letters(36),
    "GitHub, fine-grained": "github" + "_pat_" + letters(22) + "_" + letters(59),
    "GitLab": "gl" + "pat-" + letters(20),
    "GitLab, runner": "gl" + "rt-" + letters(20),
    "npm": "np" + "m_" + letters(36),
    "PyPI": "pyp" + "i-AgEIcHlwaS5vcmc" + letters(70),
    "Hugging Face": "h" + "f_" + letters(34, string.ascii_letters),
    "SendGrid": "S" + "G." + letters(22) + "." + letters(43),
    "Mailgun": "ke" + "y-" + hexes(32),
    "Mailchimp": hexes(32) + "-us" + "12",
    "Telegram": "123456789:" + "A" + letters(34),
    "Discord": "M" + letters(24) + "." + letters(6) + "." + letters(30),
    "AWS": "AKI" + "A" + "ABCDEFGH" + "IJKLMNOP",
    "AWS, temporary": "ASI" + "A" + "ABCDEFGH" + "IJKL2345",
    "Azure, client secret": "abc" + "8Q" + "~" + letters(34),
    "Slack, bot": "xox" + "b-" + "123456789012-" + letters(24),
    "Slack, app": "xap" + "p-1-" + "A0123-456-" + hexes(40),
    "Stripe": "sk" + "_live_" + letters(24),
    "Stripe, restricted": "rk" + "_test_" + letters(24),
    "Stripe, hook": "whse" + "c_" + letters(32),
    "Google": "AIz" + "a" + letters(35),
    "Google, client secret": "GOC" + "SPX-" + letters(28),
    "Google, access": "ya2" + "9." + letters(60),
    "OpenAI": "sk" + "-" + letters(20) + "T3Bl" + "bkFJ" + letters(20),
    "OpenAI, project": "sk" + "-proj-" + letters(40),
    "Anthropic": "sk" + "-ant-api03-" + letters(80),
    "Groq": "gs" + "k_" + letters(48),
    "DigitalOcean": "do" + "p_v1_" + hexes(64),
    "Twilio": "S" + "K" + hexes(32),
    "Square": "sq0" + "csp-" + letters(43),
    "Shopify": "shp" + "at_" + hexes(32),
    "Linear": "lin" + "_api_" + letters(40),
    "Databricks": "dap" + "i" + hexes(32),
    "HashiCorp Vault": "hv" + "s." + letters(90),
    "Docker": "dck" + "r_pat_" + letters(27),
    "New Relic": "NRA" + "K-" + letters(24, string.ascii_uppercase).upper() + "ABC",
    "Postman": "PMA" + "K-" + hexes(24) + "-" + hexes(34),
    "JWT": JWT,
    "toolscout": "ts" + "k_" + letters(43),
    "private key": PEM.format("RSA "),
    "private key, PKCS 8": PEM.format(""),
    "private key, OpenSSH": PEM.format("OPENSSH "),
    "private key, cut off": "-----BEGIN EC PRIVATE KEY-----\nMIIE" + letters(60),
    "card, Visa": "4111 1111" + " 1111 1111",
    "card, Mastercard": "5555555555" + "554444",
    "card, American Express": "3782-822463" + "-10005",
    "IBAN": "DE89 3704 0044 " + "0532 0130 00",
    "IBAN, packed": "GB82WEST1234" + "5698765432",
}
BENIGN = [
    "Will it rain in Oslo tomorrow?",
    "what is a token?",
    "reset my password",
    "I forgot my password, how do I change it",
    "rotate the API key of the billing service",
    "How long is the password allowed to be?",
    "the password is wrong",
    "the token is expired",
    "password: required",
    "count the tokens: they cost money",
    "explain token: what does it mean in NLP",
    "compass: north by northwest",
    "bypass: true",
    "secretary: call Ms Jones",
    "basic authentication against the proxy",
    "basic functionality of the calculator",
    "bearer of good news",
    "bearer authentication for the API",
    "digest authentication explained",
    "show commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "revert da39a3e and rebase",
    "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "open 550e8400-e29b-41d4-a716-446655440000",
    "track order 4012-7781-22",
    "order number 20261122000417",
    "invoice INV-2026-000123 over 1,250.00 EUR",
    "ISBN 978-3-16-148410-0",
    "ISBN 9783161484100",
    "EAN 4006381333931",
    "parcel 1Z999AA10123456784",
    "timestamp 1700000000000",
    "call +49 30 901820 tomorrow at 9:30",
    "mail ann@example.org about the meeting at 10:00",
    "select:mail/send,calendar/create_event",
    "github/create_pull_request_review",
    "use mcp_server_github__list_pull_requests",
    "run skimage.filters.threshold_adaptive on the picture",
    "pk_customers_archive joins sk_orders_history",
    "npm_package_config_registry_mirror_setting",
    "pypi-attestations-verification is a package",
    "git clone https://github.com/org/repo.git",
    "GET https://api.example.org/v1/users?limit=10&offset=20&sort=name",
    "http://localhost:8080/health",
    "ssh deploy@build-01.example.org:22",
    "image_0f343b0931126a20f133d67c2b018a3b.png",
    "data/iVBORw0KGgo.png",
    "convert 2026-11-22T21:43:34.123Z to Oslo time",
    "price: 4111 euros, quantity: 1111",
    "version 10.2.1-rc.4+build.20261122",
    "x = y + z; a := b",
    "password=${DB_PASSWORD}",
    "Authorization: Bearer <token>",
    "api_key=$API_KEY",
    "find flights LH 2084 and LH 2085 on 2026-12-01",
    "monitor kubernetes-deployment-controller-manager",
    "keyboard: qwerty layout",
    "hockey: results of yesterday",
    "東京の天気は？ パスワードを忘れました",
    "translate 'Geheimnis' into English: secret",
    "GB is a country code, DE89 is not an account",
    "1234 5678 9012 3456",
]


@pytest.mark.parametrize("shape", NAMED, ids=str)
def test_a_value_with_the_name_of_a_secret_is_covered(shape: str) -> None:
    frame, secret = NAMED[shape]
    text = frame.format(secret)
    covered = redact(text)
    assert secret not in covered and "***" in covered
    for part in secret.replace("/", " ").replace("@", " ").split():
        assert len(part) < 4 or part not in covered, covered
    assert covered.startswith(text[: text.index(secret)].rstrip("'\"")), "what stands before stays"


@pytest.mark.parametrize("shape", TOKENS, ids=str)
@pytest.mark.parametrize("frame", ["{}", "use {} for this", "deploy({})", "a,{},b"])
def test_a_secret_of_known_shape_is_covered_without_a_name(shape: str, frame: str) -> None:
    assert redact(frame.format(TOKENS[shape])) == frame.split("{}")[0] + "***" + (
        "" if "cut off" in shape else frame.split("{}")[1]
    )


def test_the_tables_hold_what_was_promised() -> None:
    assert len(NAMED) + len(TOKENS) >= 43 and len(BENIGN) >= 40 and len(set(BENIGN)) == len(BENIGN)


@pytest.mark.parametrize("text", BENIGN)
def test_a_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_people_are_covered_when_that_is_asked_for() -> None:
    text = "mail ann.b+x@mail.example.org or call +49 30 9018 2000, (030) 123-4567 or 555-123-4567, order 20261122"
    assert redact(text) == text
    assert redact(text, personal=True) == "mail *** or call ***, *** or ***, order 20261122"


def test_card_and_account_numbers_are_told_by_their_check_digits() -> None:
    assert is_card("4111 1111" + " 1111 1111") and not is_card("4111 1111 1111 1112")
    assert not is_card("9783161484100") and not is_card("0000000000000000")
    assert is_iban("DE89370400440" + "532013000") and not is_iban("DE89370400440532013001")
    assert redact("pay DE89 3704 0044 " + "0532 0130 00 NOW PLEASE") == "pay *** NOW PLEASE"
    assert redact("card 4111 1111 1111" + " 1111 12/27") == "card *** 12/27"


def test_what_is_too_long_to_be_looked_at_is_not_kept() -> None:
    assert len(redact("a " * MAX_REDACTED_CHARS)) == MAX_REDACTED_CHARS


@given(st.text(max_size=300))
def test_any_text_can_be_covered_and_covering_twice_changes_nothing_more(text: str) -> None:
    once = redact(text, personal=True)
    assert redact(once, personal=True) == once


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "piece", ["a", "1 ", "A1", "password", "x.", "eyJ", "a-", "://", "Bearer ", "key=", "@a", "-----BEGIN "]
)
def test_no_text_takes_long(piece: str) -> None:
    redact(piece * (MAX_REDACTED_CHARS // 4 // len(piece)), personal=True)
