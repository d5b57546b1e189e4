"""Encrypts small files of a home with a key that is not in the home. An encrypted file is called *sealed*.

The key comes from the environment or from the keyring of the system. AES-256-GCM binds each file to its name, so that
nobody can open one person's file as another's by renaming it.
"""

from __future__ import annotations

import base64
import binascii
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolscout.errors import ConfigError, StoreError, require

__all__ = [
    "KEYRING_ENTRY",
    "SEALING_VARIABLE",
    "CannotOpen",
    "Sealer",
    "find_sealer",
    "is_sealed",
    "make_sealing_key",
    "store_in_keyring",
]

SEALING_VARIABLE: Final = "TOOLSCOUT_IDENTITY_KEY"  # one key, or several with commas: the first one encrypts
KEYRING_ENTRY: Final = ("toolscout", "identity-key")  # service and user name in the keyring of the system
SEALING_KEY_BYTES: Final = 32
SEALED_MARK: Final = b"toolscout-sealed-1\n"
NONCE_BYTES: Final = 12
_keyring_keys: dict[tuple[str, str], str | None] = {}  # no entry: this process has not asked the keyring yet
_keyring_lock = threading.Lock()


def make_sealing_key() -> str:
    """Make a key: 256 random bits in base64."""
    return base64.urlsafe_b64encode(os.urandom(SEALING_KEY_BYTES)).decode()


class CannotOpen(StoreError):
    """No key of this machine decrypts a file."""


class Sealer:
    """Encrypts with the first of several keys, and decrypts with any of them."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Take keys as `make_sealing_key` makes them.

        Raises:
            ConfigError: if one of them is no such key. The message does not show it.
            MissingExtra: without the package cryptography.
        """
        require("cryptography", "identity")
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._ciphers = [AESGCM(_decode_key(key)) for key in keys]

    def seal(self, name: str, content: bytes) -> bytes:
        """Encrypt the content of a file of this name."""
        nonce = os.urandom(NONCE_BYTES)
        return SEALED_MARK + nonce + self._ciphers[0].encrypt(nonce, content, name.encode())

    def open(self, name: str, sealed: bytes) -> bytes:
        """Decrypt the content of a file of this name.

        Raises:
            CannotOpen: if no key decrypts it, or it was changed, or it belongs to another name.
        """
        from cryptography.exceptions import InvalidTag

        body = sealed.removeprefix(SEALED_MARK)
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], name.encode())
            except (InvalidTag, ValueError):  # another of the keys may fit
                continue
        raise CannotOpen(
            f"{name} cannot be opened with this key. Set {SEALING_VARIABLE} to the key with which it was written, "
            "or sign in again."
        )


def is_sealed(content: bytes) -> bool:
    """Return whether a file was written by a `Sealer`."""
    return content.startswith(SEALED_MARK)


def find_sealer(environ: Mapping[str, str] | None = None) -> Sealer | None:
    """Return the sealer with the keys in the environment, or else in the keyring. None if there is no key.

    Raises:
        ConfigError: if one of them is no key.
    """
    environ = os.environ if environ is None else environ
    text = environ.get(SEALING_VARIABLE) or _read_keyring() or ""
    keys = [key.strip() for key in text.split(",") if key.strip()]
    return Sealer(keys) if keys else None


def store_in_keyring(key: str) -> None:
    """Put a key before those in the keyring of the system. The earlier ones stay, to decrypt what they sealed.

    Raises:
        ConfigError: if the system has no keyring that can be used.
        MissingExtra: without the package keyring.
    """
    keyring = require("keyring", "identity")
    problem = ""
    try:
        earlier_keys = keyring.get_password(*KEYRING_ENTRY)
        keys = f"{key},{earlier_keys}" if earlier_keys else key
        keyring.set_password(*KEYRING_ENTRY, keys)
        if keyring.get_password(*KEYRING_ENTRY) != keys:
            problem = "it keeps nothing"
    except Exception as error:  # each backend has errors of its own
        problem = type(error).__name__
    if problem:
        raise ConfigError(
            f"The keyring of this system cannot be used ({problem}). Make a key without --keyring, and set "
            f"{SEALING_VARIABLE} to it in the environment of the gateway."
        )
    with _keyring_lock:
        _keyring_keys[KEYRING_ENTRY] = keys


def _read_keyring() -> str | None:
    """Read the keys in the keyring, once in a process: a keyring may ask its user. None if there are none."""
    with _keyring_lock:
        if KEYRING_ENTRY not in _keyring_keys:
            _keyring_keys[KEYRING_ENTRY] = _ask_keyring()
        return _keyring_keys[KEYRING_ENTRY]


def _ask_keyring() -> str | None:
    """Return the keys in the system's keyring; None if there are none, no keyring or no package for it."""
    try:
        keyring: Any = require("keyring", "identity")
        keys: str | None = keyring.get_password(*KEYRING_ENTRY)
    except Exception:  # no such package, or no keyring on this system: then there is no key
        return None
    return keys


def _decode_key(text: str) -> bytes:
    """Decode a key in base64, in the usual alphabet or in the one for URLs (with `-` and `_`).

    Raises:
        ConfigError: if it is no key. The message does not show it.
    """
    try:
        key = base64.b64decode(text.encode("ascii").replace(b"-", b"+").replace(b"_", b"/"), validate=True)
    except (binascii.Error, ValueError):
        key = b""  # has the wrong length, so it is refused below
    if len(key) != SEALING_KEY_BYTES:
        raise ConfigError(
            f"{SEALING_VARIABLE}: expected {SEALING_KEY_BYTES} bytes in base64, found something else. "
            "Make a key with  toolscout identity key"
        )
    return key
