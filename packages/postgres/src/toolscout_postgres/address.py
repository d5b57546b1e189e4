"""The address of a home in a PostgreSQL database, and what such a home offers."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import platformdirs

from toolscout.errors import ConfigError
from toolscout.location import DEFAULT_TENANT, TENANTS_FOLDER, Stamp, Tenant, check_tenant_name

if TYPE_CHECKING:
    from toolscout.home.database import Database
    from toolscout_postgres.database import PostgresDatabase, PostgresListener
    from toolscout_postgres.handles import PostgresHandles
    from toolscout_postgres.journal import SharedWriter

__all__ = ["Address"]

SCHEMES: Final = ("postgresql", "postgres")
DEFAULT_SCHEMA: Final = "toolscout"
EXAMPLE: Final = "postgresql://user@host/database"
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")


@dataclasses.dataclass(frozen=True)
class Address:
    """The address of a home in a PostgreSQL database.

    Attributes:
        conninfo: what libpq connects with. It may contain a password, so it is never shown.
        schema: the schema with the tables of this home. Several homes may share a database.
        label: the address for people, without a password and without the tenant.
        tenant: the tenant whose part of the home this is. The database hides the rows of other tenants.
    """

    conninfo: str = dataclasses.field(repr=False)
    schema: str
    label: str
    tenant: str = DEFAULT_TENANT

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address such as `postgresql://user@host/database?schema=team_a`.

        All parameters of libpq may follow the question mark. `schema` and `tenant` are our own.

        Raises:
            ConfigError: if it cannot be an address. The message does not repeat it, since it may contain a password.
        """
        try:
            parts = urlsplit(text)
            options = parse_qsl(parts.query, keep_blank_values=True)
        except ValueError:
            raise ConfigError(f"home: this is not an address of a database. An address looks like {EXAMPLE}") from None
        if parts.scheme.lower() not in SCHEMES or not text.partition(":")[2].startswith("//"):
            raise ConfigError(
                f"home: this address has no // after the colon. Write {EXAMPLE}  (in Python as text: a Path loses one "
                "of its slashes)."
            )
        schema = dict(options).get("schema", DEFAULT_SCHEMA)
        if not _SCHEMA.fullmatch(schema):
            raise ConfigError(
                "home: expected a schema of small letters, digits and underscores, at most 48, "
                f"found {schema!r:.80}. Name it in the address: {EXAMPLE}?schema=team_a"
            )
        tenant = check_tenant_name(dict(options).get("tenant", DEFAULT_TENANT))
        libpq_options = [(name, value) for name, value in options if name not in ("schema", "tenant")]
        shown_options = [(name, value) for name, value in options if name != "tenant" and not name.endswith("password")]
        credentials, _, host = parts.netloc.rpartition("@")
        user, _, _ = credentials.partition(":")
        shown_netloc = f"{user}@{host}" if user else host
        conninfo = _write_address(parts.netloc, parts.path, libpq_options)
        return cls(conninfo, schema, _write_address(shown_netloc, parts.path, shown_options), tenant)

    @property
    def folder(self) -> Path:
        """The folder of this machine for the home: caches, unpacked models, and journal lines that wait."""
        home_hash = hashlib.blake2b(f"{self.label} {self.schema}".encode(), digest_size=8).hexdigest()
        folder = Path(platformdirs.user_data_dir("toolscout", appauthor=False)) / "databases" / home_hash
        return folder if self.tenant == DEFAULT_TENANT else folder / TENANTS_FOLDER / self.tenant

    def __str__(self) -> str:
        return self.label

    @property
    def is_shared(self) -> bool:
        """True: several machines may use the home."""
        return True

    def with_tenant(self, tenant: str) -> Address:
        """Return the same home for another tenant."""
        return dataclasses.replace(self, tenant=tenant)

    def describe(self) -> str:
        """Return the address as a person would type it, without a password."""
        if self.tenant == DEFAULT_TENANT:
            return self.label
        separator = "&" if "?" in self.label else "?"
        return f"{self.label}{separator}tenant={self.tenant}"

    def open_database(self, part: str, migrations: Sequence[str], *, pragmas: Sequence[str] = ()) -> PostgresDatabase:
        """Open a part of the home. `pragmas` are for SQLite alone."""
        from toolscout_postgres.database import PostgresDatabase

        return PostgresDatabase(self, part, migrations)

    def hold_lock(self, name: str, refusal: str, *, wait: float = 0.0) -> AbstractContextManager[None]:
        """Hold a lock that excludes all machines; see `toolscout.home.database.hold_lock`."""
        from toolscout_postgres.database import hold_lock

        return hold_lock(self, name, refusal, wait=wait)

    def listen(self) -> PostgresListener:
        """Return a listener that hears of changes of the catalogue."""
        from toolscout_postgres.database import PostgresListener

        return PostgresListener(self)

    def open_journal_writer(self, journal: Database) -> SharedWriter:
        """Return the writer that keeps events on this machine while the database does not answer."""
        from toolscout_postgres.journal import SharedWriter

        return SharedWriter(journal, self)

    def open_files(self) -> PostgresDatabase:
        """Return the part `files`: documents (small files) and models."""
        from toolscout_postgres import files

        return files.open_files(self)

    def open_handles(self) -> PostgresHandles:
        """Return the store of results of calls, and of questions to users, which clients name by handles."""
        from toolscout_postgres.handles import PostgresHandles

        return PostgresHandles(self)

    def close(self) -> None:
        """Close the connections for documents and models. The next use opens them again."""
        from toolscout_postgres import files

        files.close_files(self)

    def read_document(self, name: str) -> bytes:
        """Return the content of a small file.

        Raises:
            FileNotFoundError: if there is none.
            StoreError: if the database does not answer.
        """
        rows = self.open_files().ask("SELECT body FROM documents WHERE name = ?", (name,))
        if not rows:
            raise FileNotFoundError(2, "No such file", f"{name} in {self.label}")
        return bytes(rows[0][0])

    def write_document(self, name: str, content: bytes) -> None:
        """Replace or create a small file, atomically and durably."""
        with self.open_files().writing() as connection:
            connection.execute(
                "INSERT INTO documents VALUES (?, 1, ?) ON CONFLICT (name) DO UPDATE SET "
                "version = documents.version + 1, body = excluded.body",
                (name, content),
            )

    def delete_document(self, name: str) -> None:
        """Delete a small file, if it is there."""
        with self.open_files().writing() as connection:
            connection.execute("DELETE FROM documents WHERE name = ?", (name,))

    def list_documents(self, folder: str) -> list[str]:
        """Return the names of the small files below a folder, sorted."""
        names = [name for (name,) in self.open_files().ask("SELECT name FROM documents ORDER BY name")]
        return [name for name in names if name.startswith(f"{folder}/")]

    def stamp_document(self, name: str) -> Stamp | None:
        """Return a stamp that changes when the file is written, without reading it; None: there is no such file."""
        rows = self.open_files().ask("SELECT version, length(body) FROM documents WHERE name = ?", (name,))
        if not rows:
            return None
        [(version, size)] = rows
        return 0, int(version), int(size)  # three numbers, as for a file in a folder

    def list_models(self) -> dict[str, str]:
        """Return name → digest of the manifest, for the models in the database."""
        return dict(self.open_files().ask("SELECT name, digest FROM models ORDER BY name"))

    def write_model(self, name: str, digest: str, folder: Path) -> None:
        """Store all files of a model folder under a name; see `files.write_model`."""
        from toolscout_postgres import files

        files.write_model(self, name, digest, folder)

    def read_model(self, name: str, folder: Path) -> None:
        """Write all files of a stored model into an empty folder. Their digests are not checked here."""
        from toolscout_postgres import files

        files.read_model(self, name, folder)

    def delete_model(self, name: str) -> None:
        """Delete a model from the database."""
        with self.open_files().writing() as connection:
            connection.execute("DELETE FROM models WHERE name = ?", (name,))

    def list_tenants(self) -> list[Tenant]:
        """Return the tenants of the home."""
        from toolscout_postgres import tenants

        return tenants.list_tenants(self)

    def add_tenant(self, name: str) -> None:
        """Add a tenant with an empty catalogue."""
        from toolscout_postgres import tenants

        tenants.add_tenant(self, name)

    def remove_tenant(self, name: str) -> None:
        """Remove a tenant with everything that it has."""
        from toolscout_postgres import tenants

        tenants.remove_tenant(self, name)


def _write_address(netloc: str, path: str, options: list[tuple[str, str]]) -> str:
    """Write an address of its parts; the scheme is always `postgresql`."""
    query = urlencode(options, quote_via=quote)
    return f"postgresql://{netloc}{path}" + (f"?{query}" if query else "")
