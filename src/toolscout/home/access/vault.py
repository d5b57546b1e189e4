"""Keeps the tokens of each caller for each server, encrypted in the home.

An entry belongs to one person at one server. It also says which issuer made the tokens. Without the key
(`toolscout.trust.sealing`) an entry opens for nobody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from toolscout.errors import Denied
from toolscout.home.database.folder import open_home
from toolscout.location import Home
from toolscout.trust.sealing import SEALING_VARIABLE, CannotOpen, Sealer, find_sealer

__all__ = ["IDENTITIES_FOLDER", "Vault", "list_entry_names"]

IDENTITIES_FOLDER: Final = "identities"  # in the home


class Vault:
    """The tokens of all callers. The gateway's registrations at issuers are kept under the person ``""``.

    A person is a caller's name; of a caller with a token also a line break and the subject of the token.
    """

    def __init__(self, home: Home, sealer: Sealer | None = None) -> None:
        """Open the vault of a home. Without a `sealer`, the one of this machine is looked up when it is needed."""
        self.home = home
        self._sealer = sealer

    @property
    def has_key(self) -> bool:
        """Whether there is a key, so that tokens can be kept."""
        self._sealer = self._sealer or find_sealer()
        return self._sealer is not None

    @property
    def sealer(self) -> Sealer:
        """What encrypts and decrypts the entries, with the gateway's key.

        Raises:
            Denied: if there is no key.
        """
        if not self.has_key or self._sealer is None:
            raise Denied(
                "This gateway has no key with which it could keep tokens. Whoever runs it makes one with  "
                f"toolscout identity key  (--keyring keeps it in the system's keyring), sets {SEALING_VARIABLE} to it "
                "unless the keyring has it, and starts the gateway again."
            )
        return self._sealer

    def read(self, person: str, url: str) -> dict[str, object]:
        """Read the entry of a person for a server. Empty if there is none, or the key does not open it.

        Raises:
            StoreError: if the database does not answer.
        """
        name = name_entry(person, url)
        try:
            return self._open_entry(name)
        except (FileNotFoundError, CannotOpen):
            return {}

    def _open_entry(self, name: str) -> dict[str, object]:
        """Read and decrypt the entry in a file."""
        content = self.sealer.open(name, open_home(self.home).read_document(name))
        return msgspec.json.decode(content, type=dict[str, Any])

    def write(self, person: str, url: str, values: dict[str, Any]) -> None:
        """Replace the entry of a person for a server."""
        name = name_entry(person, url)
        entry = {**values, "person": person, "url": url}
        open_home(self.home).write_document(name, self.sealer.seal(name, msgspec.json.encode(entry)))

    def has_tokens(self, person: str, url: str) -> bool:
        """Return whether a person has tokens for a server."""
        return bool(self.read(person, url).get("tokens"))

    def forget(self, person: str, url: str) -> None:
        """Delete the entry of a person for a server."""
        open_home(self.home).delete_document(name_entry(person, url))

    def list_entries(self) -> Iterator[dict[str, object]]:
        """Yield all entries that the key opens."""
        for name in list_entry_names(self.home):
            try:
                yield self._open_entry(name)
            except (FileNotFoundError, CannotOpen):  # deleted meanwhile, or sealed with a former key
                continue

    def describe_sign_ins(self) -> list[dict[str, str]]:
        """Describe who is signed in where, without tokens."""
        sign_ins = []
        for entry in self.list_entries():
            if entry.get("tokens"):
                caller, _, subject = str(entry.get("person", "")).partition("\n")
                url, issuer = str(entry.get("url")), str(entry.get("issuer"))
                sign_ins.append({"caller": caller, "subject": subject, "server": url, "issuer": issuer})
        return sign_ins

    def count(self) -> int:
        """Return the number of entries, whether the key opens them or not."""
        return len(list_entry_names(self.home))


def list_entry_names(home: Home) -> list[str]:
    """Return the names of all entries of a home."""
    return [name for name in open_home(home).list_documents(IDENTITIES_FOLDER) if name.endswith(".sealed")]


def name_entry(person: str, url: str) -> str:
    """Return the name of the file of a person for a server. It is a digest, so that it reveals neither."""
    digest = hashlib.blake2b(msgspec.json.encode([person, url]), digest_size=20)
    return f"{IDENTITIES_FOLDER}/{digest.hexdigest()}.sealed"
