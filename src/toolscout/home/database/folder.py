"""A home in a folder of this machine: SQLite files, small files, and a folder for each tenant."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import msgspec

from toolscout.errors import ConfigError, NotFound, StoreError
from toolscout.home.database.sqlite import BUSY_SECONDS, SqliteDatabase, hold_file_lock, now
from toolscout.location import (
    DEFAULT_TENANT,
    TENANT_FILE,
    TENANTS_FOLDER,
    Home,
    SharedHandles,
    SharedHome,
    Stamp,
    Tenant,
    check_tenant_name,
    place_tenant,
    refuse_default,
    sort_tenants,
)
from toolscout.trust.private_files import make_private_folder, read_plain_file, replace_file

__all__ = ["FolderHome", "open_home"]

REMOVE_S: Final = 10.0  # time for a service to notice that a tenant is gone; it needs about two seconds
LOCK_FILE: Final = ".lock.db"


def open_home(home: Home) -> SharedHome:
    """Return the object that opens the parts of a home: for a folder a new one, the home of a package itself."""
    return FolderHome(home) if isinstance(home, Path) else home


class FolderHome:
    """The home in a folder. Methods of `SharedHome` that serve several machines do nothing here.

    Attributes:
        folder: the folder.
        label: the folder, for messages.
        tenant: always `default`, because each other tenant has a `FolderHome` of its own in a folder below.
    """

    is_shared = False
    tenant = DEFAULT_TENANT

    def __init__(self, folder: Path) -> None:
        self.folder, self.label = folder, str(folder)

    def with_tenant(self, tenant: str) -> FolderHome:
        """Return the home of a tenant, in a folder below this one, which is the home of the tenant `default`."""
        folder = place_tenant(self.folder, tenant)
        assert isinstance(folder, Path)
        return FolderHome(folder)

    def describe(self) -> str:
        """Return the folder as a person would type it."""
        return self.label

    def open_database(self, part: str, migrations: Sequence[str], *, pragmas: Sequence[str] = ()) -> SqliteDatabase:
        """Open or create the file `PART.db`; see `toolscout.location.SharedHome.open_database`."""
        return SqliteDatabase(self.folder / f"{part}.db", migrations, pragmas=pragmas)

    def hold_lock(self, name: str, refusal: str, *, wait: float = 0.0) -> AbstractContextManager[None]:
        """Lock the file `name` in the folder. If it isn't free within `wait` seconds, raise StoreError(`refusal`)."""
        return hold_file_lock(self.folder / name, refusal, wait=wait)

    def listen(self) -> None:
        """Return None: each search reads the catalogue's generation from the file, which costs nothing."""

    def open_journal_writer(self, journal: Any) -> None:
        """Return None: events go straight into the file."""

    def open_handles(self) -> SharedHandles:
        """Raise an AssertionError: only several replicas of a gateway share results, and a folder has one process."""
        raise AssertionError(f"{self.label} has no replicas")

    def close(self) -> None:
        """Do nothing: no connection is open for documents and models, because they are files."""

    def read_document(self, name: str) -> bytes:
        """Return the content of a small file.

        Raises:
            OSError: if it cannot be read; FileNotFoundError if there is none.
        """
        return read_plain_file(self.folder / name)

    def write_document(self, name: str, content: bytes) -> None:
        """Replace or create a small file, atomically and durably."""
        make_private_folder((self.folder / name).parent)
        replace_file(self.folder / name, content)

    def delete_document(self, name: str) -> None:
        """Delete a small file, if it is there."""
        (self.folder / name).unlink(missing_ok=True)

    def list_documents(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted."""
        return sorted(f"{folder}/{path.name}" for path in (self.folder / folder).glob("*") if path.is_file())

    def stamp_document(self, name: str) -> Stamp | None:
        """Return inode, time and size of a small file; None: there is none."""
        try:
            status = (self.folder / name).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def list_models(self) -> dict[str, str]:
        """Return no models, because none is outside of the folder. So the next three methods do nothing."""
        return {}

    def write_model(self, name: str, digest: str, folder: Path) -> None:
        """Do nothing: the model is in the folder."""

    def read_model(self, name: str, folder: Path) -> None:
        """Do nothing: the model is in the folder."""

    def delete_model(self, name: str) -> None:
        """Do nothing: the model is in the folder alone."""

    def list_tenants(self) -> list[Tenant]:
        """Return the tenants of the home, `default` first, then by name."""
        tenants = [Tenant(DEFAULT_TENANT)]
        for file in (self.folder / TENANTS_FOLDER).glob(f"*/{TENANT_FILE}"):
            with contextlib.suppress(OSError, msgspec.MsgspecError):  # removed at this moment, or not our file
                tenant = msgspec.json.decode(read_plain_file(file), type=Tenant)
                # a folder that somebody copied or renamed contains the name of another tenant
                if tenant.name == file.parent.name and tenant.name != DEFAULT_TENANT:
                    tenants.append(tenant)
        return sort_tenants(tenants)

    def add_tenant(self, name: str) -> None:
        """Add a tenant with an empty catalogue.

        Raises:
            ConfigError: if there is one of this name, or the name cannot be used.
        """
        check_tenant_name(name)
        refusal = f"{self.label} already has a tenant {name!r}. Choose another name."
        if name == DEFAULT_TENANT:  # the home itself; it has no file `TENANT_FILE`
            raise ConfigError(refusal)
        with self._lock_tenants():
            folder = self.folder / TENANTS_FOLDER / name
            if (folder / TENANT_FILE).exists():
                raise ConfigError(refusal)
            make_private_folder(folder)
            replace_file(folder / TENANT_FILE, msgspec.json.encode(Tenant(name, now())))

    def remove_tenant(self, name: str) -> None:
        """Remove a tenant with its folder.

        Raises:
            ConfigError: for the tenant `default`.
            NotFound: if there is none of this name.
            StoreError: if a file of it stays.
        """
        refuse_default(name)
        with self._lock_tenants():
            folder = self.folder / TENANTS_FOLDER / name
            try:
                (folder / TENANT_FILE).unlink()  # now it is no tenant any more, even if a crash leaves the rest
            except FileNotFoundError:
                raise NotFound(f"{self.label} has no tenant {name!r}.") from None
            deadline = time.monotonic() + REMOVE_S
            while folder.exists():  # a service that has its files open may write until it closes them
                shutil.rmtree(folder, ignore_errors=True)
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"{folder} cannot be removed wholly. Stop what uses it, and remove the rest by hand."
                    )
                time.sleep(0.05)

    @contextlib.contextmanager
    def _lock_tenants(self) -> Iterator[None]:
        """Exclude other threads and processes that add or remove tenants of this home."""
        file = self.folder / TENANTS_FOLDER / LOCK_FILE
        with hold_file_lock(file, f"{self.folder}: somebody else changes the tenants.", wait=BUSY_SECONDS):
            yield
