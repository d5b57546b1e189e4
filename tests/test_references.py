"""Names in pins, settings, policies, profiles and sandboxes that nothing in the catalogue has are said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import fill

from tests_cli import run
from toolscout.checks.references import (
    Reference,
    check_home,
    explain_unknown,
    list_policy_names,
    list_profile_names,
)
from toolscout.home.access.profiles import Profile
from toolscout.scout import Scout
from toolscout.trust.policy import Caller, Rules

POLICY = 'default = "bob"\n[[caller]]\nname = "bob"\nallow = ["mail/**"]\ndeny = ["mial/**"]\n'
PROFILES = '[[profile]]\nname = "office"\nallow = ["mail/**", "mail/send_emial"]\npins = ["mail/send_emial"]\n'


@pytest.fixture
def toy_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLSCOUT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TOOLSCOUT_RECIPE", "bm25")
    with Scout(tmp_path / "home", recipe="bm25") as scout:
        fill(scout)
    return tmp_path


def test_each_kind_of_name_is_looked_up(toy_home: Path) -> None:
    with Scout(toy_home / "home", recipe="bm25") as scout:
        known = [
            Reference("It has", "mail/send_email", "tool"),
            Reference("It has", "mail", "source"),
            Reference("It has", "mail/send_email", "allowed"),
            Reference("It has", "MAIL/send_email", "denied"),  # a denial is read in other spellings too
            Reference("It has", "MAIL/**", "denied"),
            Reference("It has", "ma*/no_such", "allowed"),
            Reference("It has", "**", "allowed"),
        ]
        assert explain_unknown(scout, known) == []
        for name, kind, expected in (
            ("mail/send_emial", "tool", "no tool has this id. Did you mean 'mail/send_email'?"),
            ("mail", "tool", "no tool has this id. See  toolscout list"),
            ("mial", "source", "no source has this name. Did you mean 'mail'?"),
            ("mail/send_emial", "allowed", "no tool matches this pattern. Did you mean 'mail/send_email'?"),
            ("mail/send_emial", "denied", "no tool matches this pattern. Did you mean 'mail/send_email'?"),
            ("MAIL/**", "allowed", "no tool matches this pattern. Did you mean 'mail'?"),
            ("mial/**", "denied", "no tool matches this pattern. Did you mean 'mail'?"),
        ):
            reference = Reference("It has", name, kind)  # type: ignore[arg-type]
            assert explain_unknown(scout, [reference]) == [f"It has {name!r}, but {expected}"]
        awaited = Reference("It has", "mial/send_email", "tool")
        assert explain_unknown(scout, [awaited], awaited=["mial"]) == [] != explain_unknown(scout, [awaited])


def test_of_many_names_the_first_are_said(toy_home: Path) -> None:
    with Scout(toy_home / "home", recipe="bm25") as scout:
        said = explain_unknown(scout, [Reference("It has", f"nonesuch{n}", "source") for n in range(8)])
    assert len(said) == 6 and said[-1] == "3 more such names are in  toolscout doctor"


def test_the_names_of_callers_and_profiles_are_listed() -> None:
    caller = Caller("bob", Rules(frozenset({"mail/**"}), frozenset({"mail/send"})))
    assert [(name, kind) for _, name, kind in list_policy_names([caller, Caller("local")])] == [
        ("mail/**", "allowed"), ("mail/send", "denied"),
    ]  # fmt: skip
    profile = Profile("office", allow=frozenset({"a/**"}), deny=frozenset({"b/**"}), pins=("c/d",))
    assert [(name, kind) for _, name, kind in list_profile_names([profile])] == [
        ("a/**", "allowed"), ("b/**", "denied"), ("c/d", "tool"),
    ]  # fmt: skip


def test_policy_and_profiles_name_what_matches_nothing(toy_home: Path) -> None:
    (toy_home / "policy.toml").write_text(POLICY)
    (toy_home / "profiles.toml").write_text(PROFILES)
    set_policy, set_profiles = run("policy", "policy.toml"), run("profiles", "profiles.toml")
    assert set_policy.exit_code == set_profiles.exit_code == 0
    assert set_policy.stderr == (
        "note: The policy of 'bob' denies 'mial/**', but no tool matches this pattern. Did you mean 'mail'?\n"
    )
    pattern, pin = set_profiles.stderr.splitlines()
    assert "allows 'mail/send_emial', but no tool matches" in pattern and "pins 'mail/send_emial', but no tool" in pin


def test_a_policy_is_noted_for_callers_whom_nobody_can_be_and_who_see_nothing(toy_home: Path) -> None:
    callers = {
        "guest": 'deny = ["mail/**"]',
        "ann": f'key = "sha256:{"0" * 64}"\nallow = ["mail/**"]',
        "team": 'subjects = ["staff"]\nallow = ["mail/**"]',
        "me": 'allow = ["**"]\ndeny = ["mail/send_email"]',
        "chart": f'key = "sha256:{"1" * 64}"\noperator = true',  # reads figures, needs no tool
    }
    tokens = '[tokens]\nissuer = "https://a.example"\naudience = "b"\njwks = "https://a.example/keys"\n'
    tables = "".join(f'[[caller]]\nname = "{name}"\n{rules}\n' for name, rules in callers.items())
    (toy_home / "policy.toml").write_text(f'default = "guest"\n{tables}{tokens}')
    done = run("policy", "policy.toml")
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "note: The policy of 'guest' allows nothing, so this caller sees no tool. "
        "Write  allow = ['**']  to allow everything that it does not deny",
        "note: Nobody can be the caller 'me': it has no key and no subjects, and is not the default. "
        "Write  default = 'me'  at the top of the file, or add a key with  toolscout key NAME",
    ]
    with Scout(toy_home / "home", recipe="bm25") as scout:
        assert [f"note: {sentence}" for sentence in check_home(scout)] == done.stderr.splitlines()


def test_doctor_names_them_all(toy_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = toy_home / "home"
    assert json.loads(run("doctor", "--json").stdout)["unknown_names"] == []
    (home / "policy.toml").write_text(POLICY)
    (home / "profiles.toml").write_text(PROFILES)
    (home / "sandbox.toml").write_text("[mial]\nnetwork = true\n")
    for name, value in {
        "PINS": "mail/send_emial",
        "PREFERRED_SOURCES": "mial",
        "SHARED_SESSIONS": "mial",
        "DEPENDENCIES": "mail/send_email=mail/find_contcat",
    }.items():
        monkeypatch.setenv(f"TOOLSCOUT_{name}", value)
    checked = run("doctor")
    names = [line.partition(", but no")[0] for line in checked.stdout.splitlines() if ", but no" in line]
    assert names == [
        "  A pin names 'mail/send_emial'",
        "  The setting dependencies has 'mail/find_contcat'",
        "  The setting preferred_sources has 'mial'",
        "  The setting shared_sessions has 'mial'",
        "  sandbox.toml has 'mial'",
        "  The policy of 'bob' denies 'mial/**'",
        "  The profile 'office' allows 'mail/send_emial'",
        "  The profile 'office' pins 'mail/send_emial'",
    ]
    (home / "policy.toml").write_text("nonsense")
    with Scout(home, recipe="bm25") as scout:
        [reason] = check_home(scout)
    assert "policy.toml" in reason


def test_the_entry_of_a_gateway_is_printed_with_a_word_about_a_wrong_pin(toy_home: Path) -> None:
    printed = run("gateway", "--pin", "nonesuch", "--pin", "mail/send_emial", "--print-config", "claude")
    assert printed.exit_code == 0 and "nonesuch" in printed.stdout
    first, second = printed.stderr.splitlines()
    assert first == "toolscout: A pin names 'nonesuch', but no tool has this id. See  toolscout list"
    assert second.endswith("Did you mean 'mail/send_email'?")
    (toy_home / "mcp.json").write_text('{"mcpServers": {"later": {"command": "true"}}}')
    line = ("gateway", "--config", "mcp.json", "--pin", "later/tool", "--pin", "mail/x", "--print-config", "claude")
    assert [text[:29] for text in run(*line).stderr.splitlines()] == ["toolscout: A pin names 'mail/"]
