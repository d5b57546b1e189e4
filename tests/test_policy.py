from __future__ import annotations

import base64
import json
import logging
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolscout.errors import ConfigError, Denied
from toolscout.trust.policy import LOCAL, Caller, Policies, Rules, hashed_key, new_key
from toolscout.types import Hints, Tool


def tool(tool_id: str, name: str | None = None, path: tuple[str, ...] = (), **fields: Any) -> Tool:
    return Tool(id=tool_id, name=name or tool_id.partition("/")[2], path=path, **fields)


def rules(*allow: str, deny: tuple[str, ...] = (), read_only: bool = False) -> Rules:
    return Rules(frozenset(allow), frozenset(deny), read_only)


# --- patterns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "tool_id", "allowed"),
    [
        ("mail/send", "mail/send", True),
        ("mail/send", "mail/sending", False),
        ("mail/*", "mail/send", True),
        ("mail/*", "mail/folder/list", False),
        ("mail/**", "mail/folder/list", True),
        ("mail/**", "mailbox/list", False),
        ("**", "mail/send", True),
        ("**/list", "mail/folder/list", True),
        ("**/list", "mail/list_all", False),
        ("mail/**/list", "mail/list", True),
        ("mail/**/a/**/b", "mail/x/a/y/z/b", True),
        ("mail/**/a/**/b", "mail/x/b/y/z/a", False),
        ("mail/read_*", "mail/read_all", True),
        ("mail/*_all*", "mail/read_all_now", True),
        ("mail/a*a", "mail/a", False),
        ("mail/a*b*a", "mail/abba", True),
        ("*/send", "mail/send", True),
        ("Mail/send", "mail/send", False),
        ("mail/send", "mail/ｓend", False),
        ("mail/[a-z]*", "mail/send", False),
        ("mail/s.nd", "mail/send", False),
    ],
)
def test_a_pattern_allows_by_segments_and_character_by_character(pattern: str, tool_id: str, allowed: bool) -> None:
    assert rules(pattern)(tool(tool_id)) is allowed


def test_a_pattern_may_speak_of_the_path_instead_of_the_id() -> None:
    pay = tool("shop/op-17", name="refund", path=("Shop", "payments"))
    assert rules("shop/Shop/payments/*")(pay)
    assert rules("shop/op-17")(pay)
    assert not rules("other/Shop/payments/*")(pay)


@pytest.mark.parametrize(
    "name",
    [
        "delete",
        "DELETE",
        "ｄｅｌｅｔｅ",
        "de\u200blete",
        "dele\u0301te",
        "𝐝𝐞𝐥𝐞𝐭𝐞",
        "delete\ufe0f",
        "dele\u00adte",
        "de\x7flete",
    ],
)
def test_another_spelling_of_a_denied_name_is_denied_too(name: str) -> None:
    caller = rules("files/**", deny=("files/delete",))
    assert not caller(tool(f"files/{name}"))
    assert caller(tool("files/read"))


def test_a_ligature_does_not_slip_through_a_denial() -> None:
    assert not rules("**", deny=("**/find_file",))(tool("disk/ﬁnd_ﬁle"))


def test_a_slash_inside_a_name_does_not_slip_through_a_denial() -> None:
    caller = rules("files/**", deny=("files/*",))
    assert not caller(tool("files/a/b", name="a/b"))
    assert not caller(tool("files/a／b", name="a／b"))


def test_what_is_denied_is_denied_however_it_is_allowed() -> None:
    caller = rules("**", "files/delete", deny=("files/delete",))
    assert not caller(tool("files/delete"))


def test_nothing_is_allowed_that_no_pattern_allows() -> None:
    assert not Rules()(tool("files/read"))


@pytest.mark.parametrize(
    ("hints", "seen"),
    [
        (Hints(), False),
        (Hints(read_only=False), False),
        (Hints(read_only=True), True),
        (Hints(read_only=True, destructive=False), True),
        (Hints(read_only=True, destructive=True), False),
        (Hints(destructive=False), False),
    ],
)
def test_a_read_only_caller_sees_only_what_says_that_it_only_reads(hints: Hints, seen: bool) -> None:
    caller = Caller("reader", rules("**", read_only=True))
    assert caller.sees(tool("files/x", hints=hints)) is seen
    assert caller.may_call(tool("files/x", hints=hints)) is seen


segment = st.text(st.sampled_from("abAB*/_éßﬁΣк가"), min_size=1, max_size=6)


@given(st.lists(segment, min_size=1, max_size=3), st.lists(segment, min_size=1, max_size=3))
def test_a_denial_covers_all_that_the_same_pattern_would_allow(pattern: list[str], parts: list[str]) -> None:
    text = "/".join(["s", *pattern])
    if "**" in text.replace("/**/", "/") and any("**" in each and each != "**" for each in text.split("/")):
        return
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        given_tool = tool(unicodedata.normalize(form, "/".join(["s", *parts])), name=parts[-1])
        if rules(text)(given_tool):
            assert not rules("**", text, deny=(text,))(given_tool)


def test_a_hostile_name_does_not_make_matching_slow() -> None:
    """With backtracking it would take until the time limit of the tests; how it grows: tests/test_speed.py."""
    caller = rules("s/" + "a*" * 40 + "b", "s/" + "**/a/" * 40 + "b", deny=("s/" + "*a" * 40 + "b",))
    hostile = tool("s/" + "a" * 200_000, name="a" * 200_000, path=("a",) * 300)
    assert not caller(hostile)


def test_callers_of_equal_rules_share_one_mask() -> None:
    one, other = rules("a/*", "b/*", deny=("b/x",)), rules("b/*", "a/*", deny=("b/x",))
    assert one == other and hash(one) == hash(other)
    assert Caller("x", one).visible == Caller("y", other).visible
    assert Caller("x", one) != Caller("y", other)


def test_the_local_caller_sees_and_calls_everything() -> None:
    assert LOCAL.visible is None
    assert LOCAL.sees(tool("a/b")) and LOCAL.may_call(tool("a/b"))


# --- the file and the keys --------------------------------------------------------------------------------------------


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return path


def test_without_a_file_everybody_is_local() -> None:
    assert Policies.load(None).caller(None) is LOCAL
    assert Policies.load(None).caller("whatever") is LOCAL


def test_a_key_names_its_caller_and_nobody_elses(tmp_path: Path) -> None:
    ann, bob, old = new_key(), new_key(), new_key()
    path = write(
        tmp_path,
        f"""
        [[caller]]
        name = "ann"
        key = ["{hashed_key(ann)}", "{hashed_key(old)}"]
        allow = ["mail/*"]
        [[caller]]
        name = "bob"
        key = "{hashed_key(bob)}"
        read_only = true
        """,
    )
    policies = Policies.load(path)
    assert [policies.caller(key).name for key in (ann, bob, old)] == ["ann", "bob", "ann"]
    assert policies.caller(ann).sees(tool("mail/send"))
    assert not policies.caller(bob).sees(tool("mail/send"))
    for wrong in (None, "", "ann", ann[:-1], ann + "x", hashed_key(ann), "tsk_\ud800", "x" * 100_000):
        with pytest.raises(Denied, match=r"^expected a valid key or token, found none: ask") as refused:
            policies.caller(wrong)
        assert "ann" not in str(refused.value)


def test_a_default_caller_serves_those_without_a_credential_and_not_those_with_a_wrong_one(tmp_path: Path) -> None:
    policies = Policies.load(write(tmp_path, 'default = "guest"\n[[caller]]\nname = "guest"\nallow = ["docs/*"]\n'))
    assert policies.caller(None).name == "guest"
    with pytest.raises(Denied):
        policies.caller("wrong")


def test_an_empty_file_lets_nobody_in(tmp_path: Path) -> None:
    with pytest.raises(Denied):
        Policies.load(write(tmp_path, "")).caller(None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[caller]]\nname = "a"\nkey = "tsk_plain"', "caller 'a': expected a hashed key .* toolscout key NAME"),
        ('[[caller]]\nname = "a"\nkey = "sha256:abc"', "expected a hashed key"),
        ('[[caller]]\nname = "a"\n[[caller]]\nname = "a"', "expected a name of its own"),
        ('[[caller]]\nname = " "', "expected a name of its own"),
        ('[[caller]]\nname = "a"\nallow = ["mail"]', "found 'mail': write 'mail/\\*\\*' for a whole source"),
        ('[[caller]]\nname = "a"\nallow = ["mail//x"]', "expected a pattern such as"),
        ('[[caller]]\nname = "a"\ndeny = ["mail/x**"]', r"expected \*\* to stand alone"),
        ('[[caller]]\nname = "a"\nalow = ["mail/x"]', "caller 1 has the unknown field 'alow'"),
        ('default = "b"\n[[caller]]\nname = "a"', "expected the name of a caller as default, found 'b'"),
        ('[[caller]]\nname = "a"\nsubjects = ["x"]', r"expected \[tokens\] beside subjects"),
        ("caller = 3", "is no policy: Expected `array`, got `int`"),
        ("not toml", "is no policy: Expected"),
        (
            '[tokens]\nissuer = "i"\naudience = "a"\njwks = "k"\nalgorithms = ["HS256"]',
            "a secret that both sides share",
        ),
        ('[tokens]\nissuer = "i"\naudience = "a"\njwks = "k"\nalgorithms = ["none"]', "expected algorithms of"),
        ('[tokens]\nissuer = "i"\naudience = ""\njwks = "k"', "expected an issuer and an audience"),
        ('[tokens]\nissuer = "i"\naudience = "a"\njwks = "http://keys.example/k"', "expected an https address"),
        (
            '[tokens]\nissuer = "i"\naudience = "a"\njwks = "absent.json"',
            "found something else: No such file or directory$",
        ),
    ],
)
def test_what_a_policy_file_cannot_mean_is_refused_with_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        Policies.load(write(tmp_path, text))
    assert "tsk_plain" not in str(refused.value)


def test_a_key_that_stands_there_twice_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    key = hashed_key(new_key())
    text = f'[[caller]]\nname = "a"\nkey = "{key}"\n[[caller]]\nname = "b"\nkey = "{key}"'
    with pytest.raises(ConfigError, match="occurs twice"):
        Policies.load(write(tmp_path, text))
    with pytest.raises(ConfigError, match="expected a policy file, found none"):
        Policies.load(tmp_path / "absent.toml")


def test_every_new_key_is_another() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100 and all(len(key) > 40 for key in keys)


# --- tokens -----------------------------------------------------------------------------------------------------------

ISSUER, AUDIENCE = "https://login.example", "https://tools.example/mcp"
Sign = Callable[..., str]


@pytest.fixture(scope="module")
def keys() -> dict[str, Any]:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    return {
        "rsa": rsa.generate_private_key(65537, 2048),
        "ec": ec.generate_private_key(ec.SECP256R1()),
        "stranger": rsa.generate_private_key(65537, 2048),
    }


@pytest.fixture
def sign(keys: dict[str, Any], tmp_path: Path) -> Sign:
    from jwt.algorithms import ECAlgorithm, RSAAlgorithm

    public = [
        {**json.loads(RSAAlgorithm.to_jwk(keys["rsa"].public_key())), "kid": "rsa", "use": "sig"},
        {**json.loads(ECAlgorithm.to_jwk(keys["ec"].public_key())), "kid": "ec", "use": "sig"},
        {"kty": "oct", "kid": "oct", "k": base64.urlsafe_b64encode(b"0" * 32).decode(), "alg": "HS256"},
    ]
    (tmp_path / "keys.json").write_text(json.dumps({"keys": public}))

    def signed(key: str = "rsa", algorithm: str = "RS256", kid: str | None = None, **claims: Any) -> str:
        import jwt

        body = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 300, "sub": "ann@example", **claims}
        body = {name: value for name, value in body.items() if value is not None}
        headers = {"kid": key if kid is None else kid}
        return jwt.encode(body, keys.get(key, b"0" * 32), algorithm=algorithm, headers=headers)

    return signed


def tokens(tmp_path: Path, extra: str = "", caller: str = "") -> Policies:
    return Policies.load(
        write(
            tmp_path,
            f"""
            [tokens]
            issuer = "{ISSUER}"
            audience = "{AUDIENCE}"
            jwks = "keys.json"
            {extra}
            [[caller]]
            name = "ann"
            subjects = ["ann@example", "staff"]
            allow = ["mail/*"]
            {caller}
            """,
        )
    )


def test_a_token_of_the_issuer_names_its_caller(tmp_path: Path, sign: Sign) -> None:
    policies = tokens(tmp_path)
    assert policies.caller(sign()).name == "ann"
    assert policies.caller(sign("ec", "ES256")).name == "ann"
    assert policies.caller(sign(aud=["other", AUDIENCE])).name == "ann"


@pytest.mark.parametrize(
    "wrong",
    [
        {"exp": 1},
        {"exp": None},
        {"nbf": 32503680000},
        {"iss": "https://other.example"},
        {"iss": None},
        {"aud": "https://other.example"},
        {"aud": None},
        {"sub": "eve@example"},
        {"sub": None},
        {"key": "stranger", "kid": "rsa"},
        {"kid": "unknown"},
        {"algorithm": "RS512"},
        {"key": "oct", "algorithm": "HS256"},
        {"key": "oct", "algorithm": "HS256", "kid": "rsa"},
    ],
)
def test_a_token_that_is_not_right_in_everything_is_nobodys(tmp_path: Path, sign: Sign, wrong: dict[str, Any]) -> None:
    policies = tokens(tmp_path)
    with pytest.raises(Denied, match="^expected a valid key or token, found none"):
        policies.caller(sign(**wrong))


def test_a_token_without_a_signature_or_with_a_changed_one_is_nobodys(tmp_path: Path, sign: Sign) -> None:
    policies = tokens(tmp_path)
    head, body, signature = sign().split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none","kid":"rsa"}').decode().rstrip("=")
    for forged in (f"{none}.{body}.", f"{none}.{body}.{signature}", f"{head}.{body}.", f"{head}.{body}.AAAA", "a.b.c"):
        with pytest.raises(Denied):
            policies.caller(forged)


def test_scopes_are_wanted_when_the_file_says_so(tmp_path: Path, sign: Sign) -> None:
    policies = tokens(tmp_path, 'scopes = ["tools:call", "tools:read"]')
    assert policies.caller(sign(scope="tools:read tools:call other")).name == "ann"
    assert policies.caller(sign(scp=["tools:read", "tools:call"])).name == "ann"
    for scope in (None, "tools:read", ["tools:read"], 7):
        with pytest.raises(Denied):
            policies.caller(sign(scope=scope))


def test_another_claim_may_name_the_caller_and_may_hold_several_values(tmp_path: Path, sign: Sign) -> None:
    policies = tokens(tmp_path, 'claim = "groups"')
    assert policies.caller(sign(groups=["guests", "staff"])).name == "ann"
    for groups in (None, [], ["guests"], {"staff": 1}, 3):
        with pytest.raises(Denied):
            policies.caller(sign(groups=groups))


def test_two_callers_cannot_share_a_subject(tmp_path: Path, sign: Sign) -> None:
    with pytest.raises(ConfigError, match="found 'staff' at another caller too"):
        tokens(tmp_path, caller='[[caller]]\nname = "bob"\nsubjects = ["staff"]')


@pytest.mark.net
def test_keys_are_fetched_from_the_issuer_and_its_silence_lets_nobody_in(
    tmp_path: Path, sign: Sign, caplog: pytest.LogCaptureFixture
) -> None:
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    token = sign()
    keys = (tmp_path / "keys.json").read_bytes()

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(keys)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}/keys"
    text = f'[tokens]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\njwks = "{address}"\n'
    path = write(tmp_path, text + '[[caller]]\nname = "ann"\nsubjects = ["ann@example"]')
    try:
        assert Policies.load(path).caller(token).name == "ann"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    with caplog.at_level(logging.WARNING), pytest.raises(Denied, match="^expected a valid key or token"):
        Policies.load(path).caller(token)
    assert "cannot be read now" in caplog.text
