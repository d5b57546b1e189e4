"""Models of a home in PostgreSQL: stored in the database, unpacked and verified on each machine that uses them.

In a folder there is nothing to share, and every function here returns at once.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from toolscout.database import BUSY_SECONDS, alone
from toolscout.database.documents import open_files, read_tree, write_tree
from toolscout.errors import NotFound, StoreError
from toolscout.home import Address, Home
from toolscout.models import model_store
from toolscout.privacy.private_files import make_private_folder, sync_folder, sync_tree

__all__ = ["fetch_model", "forget_model", "list_shared", "publish_model"]


def publish_model(home: Home, folder: Path) -> None:
    """Store a fitted model in the database of the home, so that other machines can use it.

    Raises:
        NotFound, StoreError: if there is no sound model in the folder.
    """
    if isinstance(home, Address):
        write_tree(home, folder.name, model_store.verify(folder).digest, folder)


def list_shared(address: Address) -> dict[str, str]:
    """Return name → digest of the manifest, for the models in the database."""
    return dict(open_files(address).ask("SELECT name, digest FROM models ORDER BY name"))


def fetch_model(home: Home, folder: Path) -> None:
    """Bring the folder of a model up to date with the database, if the database has a model of its name.

    It is written beside its place, verified, and renamed. So another process sees the old or the new one.

    Raises:
        StoreError: if what the database holds is damaged.
    """
    if not isinstance(home, Address):
        return
    rows = open_files(home).ask("SELECT digest FROM models WHERE name = ?", (folder.name,))
    if not rows or _read_digest(folder) == rows[0][0]:
        return
    refusal = f"{folder}: another process is unpacking models. Try again."
    with alone(folder.parent / "fetch.db", refusal, wait=BUSY_SECONDS):
        if _read_digest(folder) != rows[0][0]:
            _unpack(home, folder, rows[0][0])


def _unpack(home: Address, folder: Path, digest: str) -> None:
    aside = folder.with_name(f".{folder.name}.fetched")
    shutil.rmtree(aside, ignore_errors=True)
    make_private_folder(aside)
    read_tree(home, folder.name, aside)
    try:
        actual = model_store.verify(aside).digest
    except NotFound:
        actual = "none"
    if actual != digest:
        shutil.rmtree(aside)
        raise StoreError(
            f"{home.label}: the model {folder.name} is damaged: its digest is {actual}, not {digest}. Fit it again."
        )
    sync_tree(aside)
    former = folder.with_name(f".{folder.name}.former")
    shutil.rmtree(former, ignore_errors=True)
    if folder.exists():
        folder.replace(former)
    aside.replace(folder)
    sync_folder(folder.parent)
    shutil.rmtree(former, ignore_errors=True)


def forget_model(home: Home, name: str) -> None:
    """Delete a model from the database of the home. Its folder stays."""
    if isinstance(home, Address):
        with open_files(home).writing() as connection:
            connection.execute("DELETE FROM models WHERE name = ?", (name,))


def _read_digest(folder: Path) -> str | None:
    try:
        return model_store.read_manifest(folder).digest
    except (NotFound, StoreError):
        return None
