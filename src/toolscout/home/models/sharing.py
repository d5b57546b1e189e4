"""Models of a shared home: stored in the home, unpacked and verified on each machine that uses them.

In a folder there is nothing to share, and every function here returns at once.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from toolscout.errors import NotFound, StoreError
from toolscout.home.database import BUSY_SECONDS, alone
from toolscout.home.database.folder import open_home
from toolscout.home.models import model_store
from toolscout.location import Home, SharedHome, find_shared
from toolscout.trust.private_files import make_private_folder, sync_folder, sync_tree

__all__ = ["fetch_model", "forget_model", "publish_model"]


def publish_model(home: Home, folder: Path) -> None:
    """Store a fitted model in the database of the home, so that other machines can use it.

    Raises:
        NotFound, StoreError: if there is no sound model in the folder.
    """
    if shared := find_shared(home):
        shared.write_model(folder.name, model_store.verify(folder).digest, folder)


def fetch_model(home: Home, folder: Path) -> None:
    """Bring the folder of a model up to date with the database, if the database has a model of its name.

    It is written beside its place, verified, and renamed. So another process sees the old or the new one.

    Raises:
        StoreError: if what the database holds is damaged.
    """
    shared = find_shared(home)
    digest = shared.list_models().get(folder.name) if shared else None
    if shared is None or digest is None or _read_digest(folder) == digest:
        return
    refusal = f"{folder}: another process is unpacking models. Try again."
    with alone(folder.parent / "fetch.db", refusal, wait=BUSY_SECONDS):
        if _read_digest(folder) != digest:
            _unpack(shared, folder, digest)


def _unpack(home: SharedHome, folder: Path, digest: str) -> None:
    aside = folder.with_name(f".{folder.name}.fetched")
    shutil.rmtree(aside, ignore_errors=True)
    make_private_folder(aside)
    home.read_model(folder.name, aside)
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
    open_home(home).delete_model(name)


def _read_digest(folder: Path) -> str | None:
    try:
        return model_store.read_manifest(folder).digest
    except (NotFound, StoreError):
        return None
