"""The key for callers' tokens in the keyring of the system, with a keyring in memory in its place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests_cli import run
from toolscout.errors import ConfigError, Denied
from toolscout.home.access.vault import Vault
from toolscout.trust import sealing
from toolscout.trust.sealing import (
    SEALING_VARIABLE,
    find_sealer,
    make_sealing_key,
    store_in_keyring,
)

keyring = pytest.importorskip("keyring", reason="needs the extra `identity`")
pytest.importorskip("cryptography", reason="needs the extra `identity`")


def make_keyring() -> object:
    """Make a keyring that lives in memory."""
    from keyring.backend import KeyringBackend

    class MemoryKeyring(KeyringBackend):
        priority = 1  # type: ignore[assignment]

        def __init__(self) -> None:
            super().__init__()
            self.entries: dict[tuple[str, str], str] = {}

        def get_password(self, service: str, username: str) -> str | None:
            return self.entries.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            self.entries[service, username] = password

        def delete_password(self, service: str, username: str) -> None:
            del self.entries[service, username]

    return MemoryKeyring()


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No key in the environment, and the keyring of the system as it was."""
    before = keyring.get_keyring()
    monkeypatch.delenv(SEALING_VARIABLE, raising=False)
    sealing._keyring_keys.clear()
    yield
    keyring.set_keyring(before)
    sealing._keyring_keys.clear()


def test_the_key_in_the_keyring_opens_what_it_sealed_in_the_next_process() -> None:
    keyring.set_keyring(make_keyring())
    done = run("identity", "key", "--keyring")
    assert done.exit_code == 0 and "holds the key now" in done.output
    sealer = find_sealer()
    assert sealer is not None
    content = sealer.seal("name", b"a token")
    [kept] = keyring.get_keyring().entries.values()
    assert b"a token" not in content and kept not in done.output
    sealing._keyring_keys.clear()  # as a new process
    again = find_sealer()
    assert again is not None and again.open("name", content) == b"a token"


def test_a_new_key_leaves_the_old_one_behind_it() -> None:
    keyring.set_keyring(make_keyring())
    store_in_keyring(make_sealing_key())
    old = find_sealer()
    assert old is not None
    content = old.seal("name", b"a token")
    store_in_keyring(make_sealing_key())
    new = find_sealer()
    assert new is not None and new.open("name", content) == b"a token"
    with pytest.raises(sealing.CannotOpen):
        old.open("name", new.seal("name", b"another"))


def test_the_key_in_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring.set_keyring(make_keyring())
    key = make_sealing_key()
    store_in_keyring(make_sealing_key())
    monkeypatch.setenv(SEALING_VARIABLE, key)
    sealer, same = find_sealer(), find_sealer({SEALING_VARIABLE: key})
    assert sealer is not None and same is not None
    assert same.open("name", sealer.seal("name", b"x")) == b"x"


@pytest.mark.parametrize("backend", ["fail", "null"])
def test_without_a_keyring_a_sentence_says_what_to_do(backend: str, tmp_path: object) -> None:
    module = pytest.importorskip(f"keyring.backends.{backend}")
    keyring.set_keyring(module.Keyring())
    with pytest.raises(ConfigError, match=f"cannot be used .* set {SEALING_VARIABLE}"):
        store_in_keyring(make_sealing_key())
    assert find_sealer() is None
    with pytest.raises(Denied, match="toolscout identity key"):
        Vault(tmp_path).sealer  # type: ignore[arg-type]  # noqa: B018
