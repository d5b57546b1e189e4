"""A home is where the catalogue, the journal and the models live: a folder, or the address of a PostgreSQL database."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import platformdirs

from toolscout.errors import ConfigError, NotFound, name_nearest

__all__ = [
    "DEFAULT_TENANT",
    "TENANTS_FOLDER",
    "TENANT_FILE",
    "Address",
    "Home",
    "check_tenant_name",
    "describe_home",
    "find_root",
    "is_address",
    "local_folder",
    "parse_home",
    "place_tenant",
    "require_folder",
]

SCHEMES: Final = ("postgresql", "postgres")
DEFAULT_SCHEMA: Final = "toolscout"
DEFAULT_TENANT: Final = "default"  # of a home without tenants, and of one that was made before there were any
TENANTS_FOLDER: Final = "tenants"  # in a home that is a folder: holds the homes of the other tenants
TENANT_FILE: Final = "tenant.json"  # in the folder of a tenant; a folder without it is none
EXAMPLE: Final = "postgresql://user@host/database"
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_TENANT: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_DATABASE_SCHEME: Final = re.compile(rf"({'|'.join(SCHEMES)}):", re.IGNORECASE)
_HOST_AND_PORT: Final = re.compile(r"[\w.-]+:\d{2,5}(/|$)")
_ANY_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Address:
    """The address of a home in a PostgreSQL database.

    Attributes:
        conninfo: what libpq connects with. It may contain a password, so it is never shown.
        schema: the schema that holds the tables of this home. Several homes may share a database.
        label: the address without a password, for people.
        tenant: whose catalogue it is. The database hides the rows of all others.
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
            ConfigError: if it cannot be an address. The message does not repeat it, because it may hold a password.
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
        libpq = [(name, value) for name, value in options if name not in ("schema", "tenant")]
        shown = [(name, value) for name, value in options if name != "tenant" and not name.endswith("password")]
        host, user = parts.netloc.rpartition("@")[2], parts.netloc.rpartition("@")[0].partition(":")[0]
        shown_netloc = f"{user}@{host}" if user else host
        return cls(_join(parts.netloc, parts.path, libpq), schema, _join(shown_netloc, parts.path, shown), tenant)

    @property
    def folder(self) -> Path:
        """The folder of this machine for the home: caches, unpacked models, and journal lines that wait."""
        mark = hashlib.blake2b(f"{self.label} {self.schema}".encode(), digest_size=8).hexdigest()
        folder = Path(platformdirs.user_data_dir("toolscout", appauthor=False)) / "databases" / mark
        return folder if self.tenant == DEFAULT_TENANT else folder / TENANTS_FOLDER / self.tenant

    def __str__(self) -> str:
        return self.label


Home = Path | Address


def is_address(home: object) -> bool:
    """Return whether a home is given as the address of a database rather than as a folder."""
    return isinstance(home, Address) or bool(_DATABASE_SCHEME.match(str(home)))


def parse_home(text: str) -> Home:
    """Return the home that a text names: the address of a database, or a folder.

    Raises:
        ConfigError: for an address that toolscout cannot open.
    """
    if is_address(text):
        return Address.parse(text)
    if _ANY_SCHEME.match(text):  # it would be made as a folder
        raise ConfigError(f"home: expected a folder or an address such as {EXAMPLE}, found one of another kind.")
    if _HOST_AND_PORT.match(text):  # so would this
        raise ConfigError(f"home: {text.partition('/')[0]} looks like a host with a port. An address is {EXAMPLE}")
    return Path(text).expanduser()


def local_folder(home: Home) -> Path:
    """Return the folder of a home on this machine: the home itself, or the folder beside its database."""
    return home.folder if isinstance(home, Address) else home


def describe_home(home: Home) -> str:
    """Return the home as a person would type it, without a password."""
    if not isinstance(home, Address):
        return str(home)
    mark = "&" if "?" in home.label else "?"
    return home.label if home.tenant == DEFAULT_TENANT else f"{home.label}{mark}tenant={home.tenant}"


def check_tenant_name(name: str) -> str:
    """Return the name of a tenant.

    Raises:
        ConfigError: if it cannot be one.
    """
    if not _TENANT.fullmatch(name):
        raise ConfigError(
            f"tenant: expected small letters, digits, hyphens and underscores, at most 48, found {name!r:.80}. Choose "
            "another name."
        )
    return name


def place_tenant(root: Home, tenant: str) -> Home:
    """Return the home of a tenant: the same address with another tenant, or a folder below that of the root.

    Args:
        root: the home of the tenant `default`, or an address with any tenant.
        tenant: a name.
    """
    check_tenant_name(tenant)
    if isinstance(root, Address):
        return dataclasses.replace(root, tenant=tenant)
    return root if tenant == DEFAULT_TENANT else root / TENANTS_FOLDER / tenant


def find_root(home: Home, tenant: str) -> Home:
    """Return the home of the tenant `default`, of which `home` is the part of `tenant`."""
    if isinstance(home, Address):
        return dataclasses.replace(home, tenant=DEFAULT_TENANT)
    return home if tenant == DEFAULT_TENANT else home.parent.parent


def require_folder(root: Home, tenant: str) -> None:
    """Check that a home that is a folder has a tenant. A database checks it when it is opened.

    Raises:
        NotFound: if it has none of this name.
    """
    if (
        isinstance(root, Path)
        and tenant != DEFAULT_TENANT
        and not (root / TENANTS_FOLDER / tenant / TENANT_FILE).exists()
    ):
        names = [file.parent.name for file in (root / TENANTS_FOLDER).glob(f"*/{TENANT_FILE}")]
        advice = name_nearest(tenant, names, f"Add it with  toolscout tenant add {tenant}")
        raise NotFound(f"{root} has no tenant {tenant!r}. {advice}")


def _join(netloc: str, path: str, options: list[tuple[str, str]]) -> str:
    query = urlencode(options, quote_via=quote)
    return f"postgresql://{netloc}{path}" + (f"?{query}" if query else "")
