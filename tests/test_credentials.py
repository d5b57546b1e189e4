"""Credentials are covered wherever they are echoed, and ordinary texts are left alone."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from toolscout.trust.redaction import Cover, find_environment_credentials, looks_secret

SECRETS = st.text(st.characters(codec="utf-8"), min_size=8, max_size=40)


@given(SECRETS, st.text(max_size=10), st.text(max_size=10))
def test_a_credential_is_covered_in_every_usual_form(secret: str, before: str, after: str) -> None:
    cover = Cover([secret])
    forms = [secret, json.dumps(secret), quote(secret, safe=""), secret.encode().hex()]
    assert all(cover.finds(f"{before}{form}{after}") for form in forms)
    assert secret not in cover.text(f"{before}{secret}{after}").replace("[credential]", "")


@given(st.text(st.characters(codec="ascii"), min_size=12, max_size=40), st.binary(max_size=5), st.binary(max_size=5))
def test_a_credential_is_covered_inside_base64_wherever_it_begins(secret: str, before: bytes, after: bytes) -> None:
    text = base64.b64encode(before + secret.encode() + after).decode()
    covered = Cover([secret]).text(text)
    assert "[credential]" in covered


def test_values_of_json_are_covered_keys_and_all() -> None:
    cover = Cover(["hunter2-hunter2"])
    value = {"a": ["x hunter2-hunter2 y", 7, None], "hunter2-hunter2": {"b": True}}
    assert cover.value(value) == {"a": ["x [credential] y", 7, None], "[credential]": {"b": True}}


def test_short_values_do_not_wreck_texts() -> None:
    cover = Cover(["true", "debug", "1234567", ""])
    assert not cover and cover.text("debug is true") == "debug is true"


def test_settings_are_no_secrets_and_keys_are() -> None:
    assert looks_secret("API_KEY", "abcdefgh") and looks_secret("GITHUB_TOKEN", "ghp_abcdefgh")
    assert looks_secret("DATABASE", "postgres://me:password@host/db") and looks_secret("X", "a8f7e6d5c4b3a2f1e0")
    for name, value in [
        ("LOG_LEVEL", "debug"),
        ("ROOT", "/home/me/projects/toolscout1"),
        ("BASE_URL", "https://api.example.com/v2/with/a/long/path"),
        ("AWS_REGION", "eu-central-1"),
        ("NODE_ENV", "production"),
        ("API_KEY", "short"),
    ]:
        assert not looks_secret(name, value), name


def test_credentials_of_the_environment_are_found() -> None:
    environ = {"TOOLSCOUT_CREDENTIAL_SHOP_KEY": "abcdefgh", "TOOLSCOUT_LLM_KEY": "ijklmnop", "HOME": "/root"}
    assert find_environment_credentials(environ) == {"abcdefgh", "ijklmnop"}
