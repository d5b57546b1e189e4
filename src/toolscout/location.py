"""A home is where the catalogue, the journal and the models live: a folder, or an address that a package opens.

A package that brings homes of another kind, such as PostgreSQL, declares an entry point in the group `toolscout.homes`.
Its name is the scheme of the addresses, and it names a function that turns the text of an address into a `SharedHome`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from toolscout import plugins
from toolscout.errors import ConfigError, MissingExtra, NotFound, install_line, name_nearest

__all__ = [
    "DEFAULT_TENANT",
    "SQLITE",
    "TENANTS_FOLDER",
    "TENANT_FILE",
    "Connection",
    "Dialect",
    "GenerationListener",
    "Home",
    "JournalWriter",
    "PartDatabase",
    "Rows",
    "SharedHandles",
    "SharedHome",
    "Stamp",
    "Tenant",
    "check_tenant_name",
    "describe_home",
    "find_root",
    "find_shared",
    "is_address",
    "local_folder",
    "parse_home",
    "place_tenant",
    "refuse_default",
    "require_folder",
    "sort_tenants",
]

DEFAULT_TENANT: Final = "default"  # of a home without tenants, and of one that was made before there were any
TENANTS_FOLDER: Final = "tenants"  # in a home that is a folder: has the homes of the other tenants
TENANT_FILE: Final = "tenant.json"  # in the folder of a tenant; a folder without it is none
EXAMPLE: Final = "postgresql://user@host/database"
#: Scheme → the extra of toolscout that brings homes of it.
EXTRAS_OF_SCHEMES: Final = {"postgresql": "postgres", "postgres": "postgres"}
_TENANT: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
_HOST_AND_PORT: Final = re.compile(r"[\w.-]+:\d{2,5}(/|$)")
_ANY_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
Stamp = tuple[int, int, int]
"""Changes whenever a document is written: inode, time and size of a file, or version and size in a database."""


class Tenant(msgspec.Struct, frozen=True):
    """A tenant of a home. `added_at` is empty for the tenant `default`."""

    name: str
    added_at: str = ""


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """How many rows were written."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the remaining rows."""


class Connection(Protocol):
    """What toolscout uses of a connection, of either engine."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Rows:
        """Run one statement."""

    def executemany(self, sql: str, parameters: Any, /) -> Rows:
        """Run one statement for each row of parameters."""


@dataclasses.dataclass(frozen=True)
class Dialect:
    """SQL that engines write differently: templates of expressions, and statements.

    Attributes:
        name: of the engine.
        instant: template that turns the ISO 8601 text `{}` into a value to compare instants by; NULL if it is none.
        json_text: template for the field `{key}` of the JSON object in the column `{column}`, as text.
        json_true: template for whether that field is `true`.
        last_event: query for the row id of the newest event ever written, even if that event was removed since.
        note_last_event: statement that stores this row id before events are removed; empty: the engine stores it.
        is_file: whether the database is a file of this process, which then frees its pages and empties its log.
    """

    name: str
    instant: str
    json_text: str
    json_true: str
    last_event: str
    note_last_event: str = ""
    is_file: bool = False

    def read_text(self, column: str, key: str) -> str:
        """Return the expression for a text field of a JSON column."""
        return self.json_text.format(column=column, key=key)


SQLITE: Final = Dialect(
    name="SQLite",
    instant="julianday({})",
    json_text="json_extract({column}, '$.{key}')",
    json_true="json_extract({column}, '$.{key}') = 1",
    last_event="SELECT seq FROM sqlite_sequence WHERE name = 'events'",
    is_file=True,
)


class PartDatabase(Protocol):
    """One part of a home, such as the catalogue, on the engine of that home. Thread-safe."""

    @property
    def label(self) -> str:
        """The file or the address, for messages."""

    @property
    def dialect(self) -> Dialect:
        """Expressions that depend on the engine."""

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written. Every write then raises StoreError."""

    @property
    def connection(self) -> Connection:
        """This thread's connection."""

    @property
    def in_transaction(self) -> bool:
        """Whether this thread has a transaction open."""

    def reading(self) -> AbstractContextManager[Connection]:
        """Open a read transaction: it sees one consistent state, even while others write. Calls may be nested."""

    def writing(self, *, wait: bool = True) -> AbstractContextManager[Connection]:
        """Open a write transaction; there is one at a time. An error inside the block rolls it back.

        `wait`: whether to wait for another writer. Otherwise that is a StoreError.
        """

    def ask(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of one statement that only reads."""

    def session(self) -> AbstractContextManager[Connection]:
        """Give this thread one connection for several transactions, for temporary tables."""

    def errors(self) -> AbstractContextManager[None]:
        """Turn errors of the engine into a StoreError of one sentence, with the error as its cause."""

    def run_script(self, script: str) -> None:
        """Run statements that make or change tables, on the connection of this thread."""

    def rebuild_indexes(self) -> None:
        """Build the indexes of all tables anew."""

    def check(self) -> list[str]:
        """Return the faults that the engine finds, one sentence each. Empty if the part is sound."""

    def close(self) -> None:
        """Close the connections of all threads."""


class GenerationListener(Protocol):
    """Hears when another machine changes the catalogue: every change raises its generation, a number."""

    def hear(self) -> int | None:
        """Return the generation that the other machines have announced; None: the database must be asked."""

    def doubt(self) -> None:
        """Let `hear` return None until `learn` is called, because this process has just written."""

    def learn(self, generation: int) -> None:
        """Store a generation that was read from the database, for `hear`."""

    def close(self) -> None:
        """Stop listening."""


class JournalWriter(Protocol):
    """Writes events to the journal of a shared home, and keeps them on this machine while it does not answer."""

    def write(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write rows of events. When this returns, they will not be lost."""

    def is_waiting(self) -> bool:
        """Return whether the home did not answer a moment ago."""

    def is_absence(self, error: Exception) -> bool:
        """Return whether an error means that the home does not answer now."""

    def find_search(self, search_id: str) -> dict[str, Any] | None:
        """Return a search that this machine wrote and that the home may not have yet; None: there is none."""

    def close(self) -> None:
        """Write what waits, if the home answers."""


class SharedHandles(Protocol):
    """What handles name in a shared home: results of calls, and questions that a replica of the gateway asks users.

    The replica that asks a question offers it, renews it while it waits, and withdraws or finishes it. The user's
    answer may reach another replica, which calls `answer`, and then `take` until the request has an outcome.
    """

    def share_secret(self, name: str) -> bytes:
        """Return 32 random bytes that all replicas have under a name. The first replica that asks makes them."""

    def put_result(self, handle: str, about: bytes, file: Path, kept_s: float) -> bool:
        """Store a result for other replicas, and remove results that are older than `kept_s` seconds.

        Args:
            handle: names the result.
            about: what is known of it, as bytes that `fetch_result` returns again.
            file: has the content.
            kept_s: seconds for which results are kept.

        Returns:
            Whether it was stored; False: it is too large.
        """

    def fetch_result(self, handle: str, file: Path) -> bytes | None:
        """Write a stored result to the new file. Returns its `about`; None: there is no such result."""

    def offer(self, handle: str, caller: str) -> None:
        """Let other replicas receive the answer to a question of this replica. `caller`: identifies who may answer."""

    def renew(self, handle: str) -> bytes | None:
        """Note that this replica still waits, and return the user's answer if another replica has received it.

        None: nobody has answered, or the caller no longer waits for the outcome.
        """

    def withdraw(self, handle: str) -> bool:
        """Close a question. Returns whether no other replica answered it."""

    def answer(self, handle: str, caller: str, answer: bytes) -> bool:
        """Pass the user's answer to the replica that asked. Returns whether the question was still open."""

    def give_up(self, handle: str, caller: str) -> None:
        """Forget an answered question, because its caller no longer waits for the outcome."""

    def finish(self, handle: str, outcome: bytes) -> None:
        """Pass `outcome`, the encoded result of the request, to the replica that received the user's answer."""

    def take(self, handle: str) -> tuple[bytes | None, bool]:
        """Return the outcome of an answered question, and whether the replica that asked still runs.

        The outcome is None as long as `finish` was not called. `take` returns it once.
        """


class SharedHome(Protocol):
    """What a home that is no folder offers to the code that stores something in it. A package brings such a home."""

    @property
    def label(self) -> str:
        """The home as messages name it, without a password and without its tenant."""

    @property
    def tenant(self) -> str:
        """The tenant to which this part of the home belongs."""

    @property
    def folder(self) -> Path:
        """The folder on this machine that belongs to the home, with caches and unpacked models."""

    @property
    def is_shared(self) -> bool:
        """Whether several machines may use the home."""

    def with_tenant(self, tenant: str) -> Any:
        """Return the same home for another tenant."""

    def describe(self) -> str:
        """Return the home as a person would type it, without a password."""

    def open_database(self, part: str, migrations: Sequence[str], *, pragmas: Sequence[str] = ()) -> PartDatabase:
        """Open or create a database of the home, and run the migrations that it has not seen.

        Args:
            part: its name, such as `journal`.
            migrations: SQL, in order; the database stores how many of them ran.
            pragmas: SQL for each connection, in SQLite only.
        """

    def hold_lock(self, name: str, refusal: str, *, wait: float = 0.0) -> AbstractContextManager[None]:
        """Hold a lock; see `toolscout.home.database.hold_lock`."""

    def listen(self) -> GenerationListener | None:
        """Return a listener for changes of the catalogue; None: looking at each search costs nothing."""

    def open_journal_writer(self, journal: Any) -> JournalWriter | None:
        """Return the writer that keeps events while the database is away; None: the journal needs none."""

    def open_handles(self) -> SharedHandles:
        """Return the store of results and answers that all replicas of a gateway share. A folder has no replicas."""

    def close(self) -> None:
        """Close what is open for documents and models. The next use opens it again."""

    def read_document(self, name: str) -> bytes:
        """Return the content of a small file. Raises FileNotFoundError if there is none."""

    def write_document(self, name: str, content: bytes) -> None:
        """Replace or create a small file, atomically and durably."""

    def delete_document(self, name: str) -> None:
        """Delete a small file, if it is there."""

    def list_documents(self, folder: str) -> list[str]:
        """Return the names of the small files below a folder, sorted."""

    def stamp_document(self, name: str) -> Stamp | None:
        """Return a value that changes whenever the file is written, and costs little; None: there is no such file."""

    def list_models(self) -> dict[str, str]:
        """Return name → digest of the models that the home keeps outside of its folder."""

    def write_model(self, name: str, digest: str, folder: Path) -> None:
        """Store a model for the other machines."""

    def read_model(self, name: str, folder: Path) -> None:
        """Write all files of a stored model into an empty folder."""

    def delete_model(self, name: str) -> None:
        """Delete a stored model. Its folder stays."""

    def list_tenants(self) -> list[Tenant]:
        """Return the tenants of the home, `default` first, then by name."""

    def add_tenant(self, name: str) -> None:
        """Add a tenant with an empty catalogue."""

    def remove_tenant(self, name: str) -> None:
        """Remove a tenant with everything that it has."""


Home = Path | SharedHome


def find_shared(home: Home) -> SharedHome | None:
    """Return the home if a package brings it; None: it is a folder."""
    return None if isinstance(home, Path) else home


def is_address(text: str) -> bool:
    """Return whether a text is the address of a home that a package opens, rather than a folder."""
    scheme = text.partition(":")[0].lower()
    return scheme in EXTRAS_OF_SCHEMES or plugins.find_plugin(plugins.HOME_PLUGINS, scheme) is not None


def parse_home(text: str) -> Home:
    """Return the home that a text names: a folder, or an address that a package opens.

    Raises:
        ConfigError: for an address that toolscout cannot open.
        MissingExtra: if the package that opens it is not installed.
    """
    scheme = text.partition(":")[0].lower() if ":" in text else ""
    plugin = plugins.find_plugin(plugins.HOME_PLUGINS, scheme)
    if plugin is not None:
        home: SharedHome = plugins.load_function(plugin)(text)
        return home
    if scheme in EXTRAS_OF_SCHEMES:
        extra = EXTRAS_OF_SCHEMES[scheme]
        raise MissingExtra(f"A home in PostgreSQL needs another package. Run  {install_line(extra)}")
    # These are no folders either, and a `Path` would make folders of these names.
    if _ANY_SCHEME.match(text):
        raise ConfigError(f"home: expected a folder or an address such as {EXAMPLE}, found one of another kind.")
    if _HOST_AND_PORT.match(text):
        raise ConfigError(f"home: {text.partition('/')[0]} looks like a host with a port. An address is {EXAMPLE}")
    return Path(text).expanduser().absolute()  # stays the same folder if the process changes its working directory


def local_folder(home: Home) -> Path:
    """Return the folder of a home on this machine: the home itself, or the folder beside its database."""
    return home if isinstance(home, Path) else home.folder


def describe_home(home: Home) -> str:
    """Return the home as a person would type it, without a password."""
    return str(home) if isinstance(home, Path) else home.describe()


def check_tenant_name(name: str) -> str:
    """Return the name, if a tenant can have it.

    Raises:
        ConfigError: if none can.
    """
    if not _TENANT.fullmatch(name):
        raise ConfigError(
            f"tenant: expected small letters, digits, hyphens and underscores, at most 48, found {name!r:.80}. Choose "
            "another name."
        )
    return name


def refuse_default(name: str) -> None:
    """Refuse to remove the tenant `default`: it has everything that was in the home before there were tenants.

    Raises:
        ConfigError: for the name `default`.
    """
    if name == DEFAULT_TENANT:
        raise ConfigError("The tenant 'default' is the home itself and cannot be removed.")


def sort_tenants(tenants: Iterable[Tenant]) -> list[Tenant]:
    """Return tenants by name, `default` first."""
    return sorted(tenants, key=lambda tenant: (tenant.name != DEFAULT_TENANT, tenant.name))


def place_tenant(root: Home, tenant: str) -> Home:
    """Return the home of a tenant: the same address with another tenant, or a folder below the root's.

    `root` is the home of the tenant `default`, or an address with any tenant.
    """
    check_tenant_name(tenant)
    if not isinstance(root, Path):
        shared: SharedHome = root.with_tenant(tenant)
        return shared
    return root if tenant == DEFAULT_TENANT else root / TENANTS_FOLDER / tenant


def find_root(home: Home, tenant: str) -> Home:
    """Return the home of the tenant `default` in the same folder or database; `home` is the home of `tenant`."""
    if not isinstance(home, Path):
        return place_tenant(home, DEFAULT_TENANT)
    return home if tenant == DEFAULT_TENANT else home.parent.parent  # ROOT/tenants/TENANT


def require_folder(root: Home, tenant: str) -> None:
    """Check that a home that is a folder has this tenant. A database checks it when it is opened.

    Raises:
        NotFound: if it has none of this name.
    """
    if not isinstance(root, Path) or tenant == DEFAULT_TENANT:
        return
    tenants = root / TENANTS_FOLDER
    if not (tenants / tenant / TENANT_FILE).exists():
        names = [file.parent.name for file in tenants.glob(f"*/{TENANT_FILE}")]
        advice = name_nearest(tenant, names, f"Add it with  toolscout tenant add {tenant}")
        raise NotFound(f"{root} has no tenant {tenant!r}. {advice}")
