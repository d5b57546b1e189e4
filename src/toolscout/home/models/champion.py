"""The champion is the fitted model used by searches that name no model.

Promotion is atomic and keeps a history for rollback.

::

    <home>/models/champion.json     promotions with time and reason, the present one last; absent before the first
                  lock.db           locks changes across all processes
                  <name>/           the fitted models (`toolscout.home.models.model_store`)

In a PostgreSQL home the list and the models are rows, and the lock is one of the database. The folder of this machine
then has copies of the models that it has used (`fetch_model`).

Before the first promotion, and after everything was rolled back, searches use the setting `recipe`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from toolscout.errors import Changed, NotFound, StoreError, name_nearest
from toolscout.home.database import BUSY_SECONDS, hold_file_lock, hold_lock, now
from toolscout.home.database.folder import open_home
from toolscout.home.models import model_store
from toolscout.home.models.model_store import Manifest
from toolscout.location import Home, SharedHome, Stamp, describe_home, find_shared, local_folder
from toolscout.trust.private_files import make_private_folder

__all__ = [
    "Promotion",
    "Stamp",
    "changing",
    "current",
    "fetch_model",
    "find_model",
    "forget_model",
    "history",
    "list_models",
    "promote",
    "publish_model",
    "rollback",
    "shelf",
    "stamp",
]


def publish_model(home: Home, folder: Path) -> None:
    """Store a fitted model in the database of a shared home, so that other machines can use it.

    Raises:
        NotFound, StoreError: if there is no sound model in the folder.
    """
    shared = find_shared(home)
    if shared is not None:
        shared.write_model(folder.name, model_store.verify(folder).digest, folder)


def fetch_model(home: Home, folder: Path) -> None:
    """Bring the folder of a model up to date with the database, if the database has a model of its name.

    The model is written under another name, verified, and renamed. So another process sees the old or the new one.

    Raises:
        StoreError: if the model in the database is damaged.
    """
    shared = find_shared(home)
    if shared is None:  # models of other homes are only in folders
        return
    digest = shared.list_models().get(folder.name)
    if digest is None or _read_digest(folder) == digest:
        return
    refusal = f"{folder}: another process is unpacking models. Try again."
    with hold_file_lock(folder.parent / "fetch.db", refusal, wait=BUSY_SECONDS):
        if _read_digest(folder) != digest:  # another process may have fetched it meanwhile
            _unpack(shared, folder, digest)


def _unpack(home: SharedHome, folder: Path, digest: str) -> None:
    """Fetch a model from a shared home into a folder. It replaces a former model there only if it is sound.

    Raises:
        StoreError: if its digest is not `digest`, the one that the database has for it.
    """
    partial = folder.with_name(f".{folder.name}.fetched")
    shutil.rmtree(partial, ignore_errors=True)
    make_private_folder(partial)
    home.read_model(folder.name, partial)
    try:
        actual = model_store.verify(partial).digest
    except NotFound:
        actual = "none"
    if actual != digest:
        shutil.rmtree(partial)
        raise StoreError(
            f"{home.label}: the model {folder.name} is damaged: its digest is {actual}, not {digest}. Fit it again."
        )
    model_store.put_folder(partial, folder)


def forget_model(home: Home, name: str) -> None:
    """Delete a model from the database of the home. Its folder stays."""
    open_home(home).delete_model(name)


def _read_digest(folder: Path) -> str | None:
    """Return the digest in the manifest of a folder; None: it has no valid manifest."""
    try:
        return model_store.read_manifest(folder).digest
    except (NotFound, StoreError):
        return None


CHAMPION_FILE: Final = "models/champion.json"
CHAMPION_FORMAT: Final = "toolscout-champion/1"
MAX_PROMOTIONS_KEPT: Final = 20


class Promotion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the history: the name of a model, when it was promoted, and why."""

    model: Annotated[str, msgspec.Meta(pattern=r"^[^/\x00]+$", max_length=255)]  # the name of a folder
    at: str
    why: str


class _ChampionFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `CHAMPION_FILE`: the promotions, the present one last."""

    history: list[Promotion]
    format: str = CHAMPION_FORMAT


def shelf(home: Home) -> Path:
    """Return the folder of the models of a home on this machine."""
    return local_folder(home) / "models"


def list_models(home: Home) -> list[tuple[Path, Manifest | str]]:
    """List the models of a home, as `model_store.list_models` does. From a database, all of them are fetched first."""
    for name in open_home(home).list_models():
        fetch_model(home, shelf(home) / name)
    return model_store.list_models(shelf(home))


def find_model(home: Home, name: str) -> Path:
    """Return the folder of a model by its name.

    Raises:
        NotFound: if there is none; the message lists the models.
        StoreError: if its folder has no manifest.
    """
    folder = shelf(home) / name
    if Path(name).name == name:  # otherwise it is a path, which could lead out of the folder
        fetch_model(home, folder)
        if (folder / model_store.MANIFEST).is_file():
            return folder
        if folder.is_dir():
            raise StoreError(f"{folder}: the model is damaged: {model_store.MANIFEST} is missing. Fit the model again.")
    names = [path.name for path, _ in list_models(home)]
    advice = name_nearest(name, names, "See  toolscout models" if names else "Fit one with  toolscout learn")
    raise NotFound(f"expected the name of a model in {shelf(home)}, found {name!r}. {advice}")


def stamp(home: Home) -> Stamp | None:
    """Return a cheap stamp that changes with every promotion. None before the first."""
    return open_home(home).stamp_document(CHAMPION_FILE)


def history(home: Home) -> list[Promotion]:
    """Return the promotions, the present champion last. Empty before the first.

    Raises:
        StoreError: if the file is damaged.
    """
    file = f"{describe_home(home)}/{CHAMPION_FILE}"
    try:
        return msgspec.json.decode(open_home(home).read_document(CHAMPION_FILE), type=_ChampionFile).history
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{file}: this is not a list of champions in format {CHAMPION_FORMAT}: {error}. Remove the file, and "
            "searches use the setting `recipe` again"
        ) from None


def current(home: Home) -> Path | None:
    """Return the folder of the champion, even if it does not exist any more. None before the first promotion."""
    promotions = history(home)
    if not promotions:
        return None
    folder = shelf(home) / promotions[-1].model
    fetch_model(home, folder)
    return folder


def changing(home: Home) -> AbstractContextManager[None]:
    """Lock the champion and its models across all processes.

    Raises:
        StoreError: if another process has the lock for too long.
    """
    refusal = f"{shelf(home)}: another process is changing the champion. Try again."
    return hold_lock(home, "models/lock.db", refusal, wait=BUSY_SECONDS)


def promote(
    home: Home,
    name: str,
    why: str,
    *,
    over: Stamp | Literal["any"] | None = "any",
    check: Callable[[Path], Manifest] = model_store.verify,
) -> Promotion:
    """Make a model of the home the champion.

    Args:
        home: the home.
        name: name of the model.
        why: a sentence for the history.
        over: the `stamp` that the caller has read, None before the first promotion. The champion is replaced only if
            the stamp is still the same. By default any champion is replaced.
        check: raises StoreError for a model that cannot serve: `recipes.registry.check_model`.

    Raises:
        NotFound: if the home has no model of that name.
        StoreError: if the model is damaged.
        Changed: if another process changed the champion since `over`.
    """
    folder = find_model(home, name)  # before `changing`, which would make a lock file even if there is no such model
    with changing(home):
        if over != "any" and over != stamp(home):
            raise Changed("The champion was changed meanwhile. Look at it again, then promote.")
        check(folder)
        publish_model(home, folder)
        entry = Promotion(name, now(), why)
        _write(home, [*history(home)[-MAX_PROMOTIONS_KEPT + 1 :], entry])
    return entry


def rollback(home: Home, *, of: str | None = None) -> Promotion | None:
    """Undo the last promotion: the latest earlier champion that still exists becomes the champion again.

    Args:
        home: the home.
        of: name of the model that the caller takes for the champion; by default the promotion of any model is undone.

    Returns:
        The entry of the new champion; None: the setting `recipe` serves again.

    Raises:
        NotFound: if there was no promotion.
        Changed: if another model than the named one is the champion.
    """
    no_promotion = NotFound("Nothing to roll back: no model has been promoted.")
    if not history(home):  # before `changing`, which would make a lock file even in a home without models
        raise no_promotion
    with changing(home):
        promotions = history(home)
        if not promotions:
            raise no_promotion
        champion = promotions.pop().model
        if of is not None and of != champion:
            raise Changed(f"The champion is now {champion}, not {of!r:.200}. Look at it again, then roll back.")
        while promotions and not _has_model(home, promotions[-1].model):
            promotions.pop()
        _write(home, promotions)
    return promotions[-1] if promotions else None


def _has_model(home: Home, name: str) -> bool:
    """Return whether a model is still there: in the database of a shared home, else in its folder."""
    shared = find_shared(home)
    if shared is not None:
        return name in shared.list_models()
    return (shelf(home) / name / model_store.MANIFEST).is_file()


def _write(home: Home, promotions: list[Promotion]) -> None:
    """Replace the list of promotions."""
    content = msgspec.json.format(msgspec.json.encode(_ChampionFile(promotions)), indent=1) + b"\n"
    open_home(home).write_document(CHAMPION_FILE, content)
