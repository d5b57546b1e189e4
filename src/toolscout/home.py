"""A home is where the catalogue, the journal and the models live: a folder, or the address of a PostgreSQL database."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import platformdirs

from toolscout.errors import ConfigError

__all__ = ["Address", "Home", "describe_home", "is_address", "local_folder"]

SCHEMES: Final = ("postgresql", "postgres")
DEFAULT_SCHEMA: Final = "toolscout"
EXAMPLE: Final = "postgresql://user@host/database"
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_DATABASE_SCHEME: Final = re.compile(rf"({'|'.join(SCHEMES)}):", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Address:
    """The address of a home in a PostgreSQL database.

    Attributes:
        conninfo: what libpq connects with. It may contain a password, so it is never shown.
        schema: the schema that holds the tables of this home. Several homes may share a database.
        label: the address without a password, for people.
    """

    conninfo: str = dataclasses.field(repr=False)
    schema: str
    label: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address such as `postgresql://user@host/database?schema=team_a`.

        All parameters of libpq may follow the question mark. `schema` is our own.

        Raises:
            ConfigError: if it cannot be an address. The message does not repeat it, because it may hold a password.
        """
        try:
            parts = urlsplit(text)
            options = parse_qsl(parts.query, keep_blank_values=True)
        except ValueError:
            raise ConfigError(f"home: this is not an address of a database. An address looks like {EXAMPLE}") from None
        if parts.scheme.lower() not in SCHEMES or not text.partition(":")[2].startswith("//"):
            raise ConfigError(
                f"home: an address of a database looks like {EXAMPLE}, as text: a Path loses one of its slashes."
            )
        schema = dict(options).get("schema", DEFAULT_SCHEMA)
        if not _SCHEMA.fullmatch(schema):
            raise ConfigError(
                "home: expected a schema of small letters, digits and underscores, at most 48, "
                f"found {schema!r:.80}. Name it in the address: {EXAMPLE}?schema=team_a"
            )
        libpq = [(name, value) for name, value in options if name != "schema"]
        shown = [(name, value) for name, value in options if not name.endswith("password")]
        host, user = parts.netloc.rpartition("@")[2], parts.netloc.rpartition("@")[0].partition(":")[0]
        shown_netloc = f"{user}@{host}" if user else host
        return cls(_join(parts.netloc, parts.path, libpq), schema, _join(shown_netloc, parts.path, shown))

    @property
    def folder(self) -> Path:
        """The folder of this machine for the home: caches, unpacked models, and journal lines that wait."""
        mark = hashlib.blake2b(f"{self.label} {self.schema}".encode(), digest_size=8).hexdigest()
        return Path(platformdirs.user_data_dir("toolscout", appauthor=False)) / "databases" / mark

    def __str__(self) -> str:
        return self.label


Home = Path | Address


def is_address(home: object) -> bool:
    """Return whether a home is given as the address of a database rather than as a folder."""
    return isinstance(home, Address) or bool(_DATABASE_SCHEME.match(str(home)))


def local_folder(home: Home) -> Path:
    """Return the folder of a home on this machine: the home itself, or the folder beside its database."""
    return home.folder if isinstance(home, Address) else home


def describe_home(home: Home) -> str:
    """Return the home as a person would type it, without a password."""
    return home.label if isinstance(home, Address) else str(home)


def _join(netloc: str, path: str, options: list[tuple[str, str]]) -> str:
    query = urlencode(options, quote_via=quote)
    return f"postgresql://{netloc}{path}" + (f"?{query}" if query else "")
