"""Saves, loads, verifies and lists fitted models; each is a folder with a manifest.

::

    <folder>/manifest.json         what it is: recipe, settings with their origins, fingerprints, figures, digests
             model.safetensors     its arrays
             tools.json            [id within the source, name] of each tool that it was fitted on
             README.md             the card: what it was trained on, and how well it did
             …                     what the method adds, such as the folder of a tuned encoder

A folder is written aside and renamed: it is whole or not there. The digest of every file stands in the manifest, and
the manifest's own in itself, so that what was damaged or put there by somebody else is refused. Nothing is unpickled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np

import toolscout
from toolscout.arrays import Arrays, Places
from toolscout.errors import ConfigError, NotFound, StoreError
from toolscout.privacy import private_files
from toolscout.types import Tool, digest, render

__all__ = [
    "Data",
    "Draft",
    "Manifest",
    "Model",
    "Setting",
    "catalogue_mark",
    "keys",
    "list_models",
    "load",
    "nest",
    "places",
    "read_manifest",
    "refuse_other",
    "save",
    "stamp",
    "verify",
]

MODEL_FORMAT: Final = "toolscout-model/1"
MANIFEST, ARRAYS, TOOLS, CARD = "manifest.json", "model.safetensors", "tools.json", "README.md"
Key = tuple[str, str]


class Encodes(Protocol):
    """What a manifest says of an encoder."""

    name: str
    dim: int
    fingerprint: str


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One setting of the fit: its value, and where that came from (default, recipe, argument, dev)."""

    value: Any
    origin: str


class EncoderMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The encoder that a model was fitted on."""

    name: str
    dim: int
    fingerprint: str


class Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model was fitted on.

    Attributes:
        name: of the dataset.
        fingerprint: of the texts and gold tools, train and dev.
        n_train: queries to train on, dev and leaks not among them.
        n_dev: queries to choose on.
        dropped_leaks: queries left out of train because their text is that of a test query.
        refit: whether, after choosing on dev, the model was fitted on train and dev together.
    """

    name: str
    fingerprint: str
    n_train: int
    n_dev: int
    dropped_leaks: int = 0
    refit: bool = False


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model folder says of itself.

    Attributes:
        recipe: which recipe it belongs to.
        job: identity of the fit: equal jobs give equal models.
        settings: every setting of the fit, with its origin.
        seed: of everything random.
        encoder: what the queries must be encoded with; None: the model needs no encoder, or brings its own.
        data: what it was fitted on.
        catalogue: fingerprint of the tools that it was fitted on.
        n_tools: how many these were.
        metrics: figures on dev, before any refit.
        values: what the method wants to know again; JSON values.
        fit_seconds: wall time of the fit.
        version: of toolscout.
        files: name → digest of every other file of the folder.
        digest: of all of the above.
    """

    recipe: str
    job: str
    settings: dict[str, Setting]
    seed: int
    encoder: EncoderMark | None
    data: Data
    catalogue: str
    n_tools: int
    metrics: dict[str, float]
    values: dict[str, Any]
    fit_seconds: float
    version: str
    files: dict[str, str]
    format: str = MODEL_FORMAT
    digest: str = ""

    def seal(self) -> Manifest:
        """The same with the digest that belongs to it."""
        return msgspec.structs.replace(
            self, digest=digest(MODEL_FORMAT, {**msgspec.structs.asdict(self), "digest": ""})
        )


@dataclasses.dataclass(frozen=True)
class Model:
    """A model folder, checked.

    Attributes:
        folder: where it lies.
        manifest: what it says of itself.
        tools: (id within the source, name) of each tool that it was fitted on; its arrays are in this order.
        arrays: name → array.
    """

    folder: Path
    manifest: Manifest
    tools: tuple[Key, ...]
    arrays: Arrays

    def places(self, tools: Sequence[Tool]) -> Places:
        """Where each of `tools` stands in the model, `(len(tools),)`; -1: it was not fitted on that one."""
        return places(self.tools, tools)

    def check_encoder(self, encoder: Encodes) -> None:
        """Refuse an encoder other than the one that the model was fitted on.

        Raises:
            ConfigError: naming both sides.
        """
        fitted_on = self.manifest.encoder
        if fitted_on is None or fitted_on.fingerprint != encoder.fingerprint:
            expected = f"{fitted_on.name} ({fitted_on.fingerprint})" if fitted_on else "no encoder"
            raise ConfigError(
                f"{self.folder}: this model was fitted on {expected}, not on the encoder {encoder.name} "
                f"({encoder.fingerprint}). Use that encoder, or fit again"
            )

    def check_catalogue(self, tools: Sequence[Tool]) -> None:
        """Refuse a catalogue of which the model knows no tool, for methods that know single tools.

        Raises:
            ConfigError: naming both sides.
        """
        if (self.places(tools) < 0).all():
            raise ConfigError(
                f"{self.folder}: this model was fitted on {self.manifest.data.name} ({self.manifest.n_tools:,} tools, "
                f"{self.manifest.catalogue}), which shares no tool with this catalogue ({len(tools):,} tools, "
                f"{catalogue_mark(tools)}). Fit {self.manifest.recipe} on this catalogue"
            )


@dataclasses.dataclass(frozen=True)
class Draft:
    """What a model folder is written from; all but the following is as in `Manifest`.

    Attributes:
        arrays: name → array.
        tools: what the model was fitted on; rows of its arrays are in this order.
        card: Markdown, below the heading of README.md.
        files: writes the other files of the model into the folder that it is given.
    """

    recipe: str
    job: str
    arrays: Arrays
    tools: Sequence[Tool]
    settings: Mapping[str, Setting]
    seed: int
    data: Data
    metrics: Mapping[str, float]
    fit_seconds: float
    encoder: Encodes | None = None
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    card: str = ""
    files: Callable[[Path], None] | None = None


# --- which tool is which ----------------------------------------------------------------------------------------------


def keys(tools: Sequence[Tool]) -> list[Key]:
    """(id within the source, name) of each tool: what a model knows it by, whatever the source is called elsewhere."""
    return [(tool.id.partition("/")[2], tool.name) for tool in tools]


def places(known: Sequence[Key], tools: Sequence[Tool]) -> Places:
    """Position in `known` of each tool, `(len(tools),)`; -1 where it is none of them.

    Dataset folders written from a catalogue hold whole ids, so an id fits as a whole or without its source.
    """
    row = {key: position for position, key in enumerate(known)}
    return np.array(
        [row.get((tool.id, tool.name), row.get(key, -1)) for tool, key in zip(tools, keys(tools), strict=True)],
        dtype=np.intp,
    )


def catalogue_mark(tools: Sequence[Tool]) -> str:
    """Fingerprint of a catalogue: which tools, and what they say; the names of the sources do not matter."""
    return digest(
        "catalogue/1", sorted([*key, render(tool, "full")] for key, tool in zip(keys(tools), tools, strict=True))
    )


# --- writing ----------------------------------------------------------------------------------------------------------


def save(folder: Path, draft: Draft) -> Model:
    """Write a model folder, completely or not at all; a model that stands there is replaced.

    Args:
        folder: where; its parents are made.
        draft: what it holds.
    """
    from safetensors.numpy import save_file

    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    if draft.files is not None:
        draft.files(aside)
    save_file({name: np.ascontiguousarray(array) for name, array in draft.arrays.items()}, aside / ARRAYS)
    (aside / TOOLS).write_bytes(msgspec.json.encode(keys(draft.tools)))
    (aside / CARD).write_text(f"# {draft.recipe}\n\n{draft.card}".rstrip() + "\n", encoding="utf-8")
    encoder = draft.encoder
    manifest = Manifest(
        recipe=draft.recipe,
        job=draft.job,
        settings=dict(draft.settings),
        seed=draft.seed,
        encoder=EncoderMark(encoder.name, encoder.dim, encoder.fingerprint) if encoder else None,
        data=draft.data,
        catalogue=catalogue_mark(draft.tools),
        n_tools=len(draft.tools),
        metrics=dict(draft.metrics),
        values=dict(draft.values),
        fit_seconds=round(draft.fit_seconds, 3),
        version=toolscout.__version__,
        files={name: _digest(aside / name) for name in _files(aside)},
    )
    _write(aside / MANIFEST, manifest)
    if not folder.parent.stat().st_mode & private_files.OTHERS:  # the shelf of a home: a copy of it stays private too
        private_files.protect_tree(aside)
    private_files.sync_tree(aside)
    former = folder.with_name(f".{folder.name}.former")
    shutil.rmtree(former, ignore_errors=True)
    if folder.exists():
        folder.replace(former)
    aside.replace(folder)
    private_files.sync_folder(folder.parent)
    shutil.rmtree(former, ignore_errors=True)
    return load(folder)


def note(folder: Path, **values: Any) -> None:
    """Add values to the manifest of a model that stands, in one step: what was found out after it was fitted.

    Raises:
        NotFound: if there is no model.
        StoreError: if its manifest is damaged.
    """
    manifest = read_manifest(folder)
    aside = folder / f".{MANIFEST}.partial"
    _write(aside, msgspec.structs.replace(manifest, values={**manifest.values, **values}))
    aside.chmod(stat.S_IMODE((folder / MANIFEST).stat().st_mode))
    private_files.sync_file(aside)
    aside.replace(folder / MANIFEST)
    private_files.sync_folder(folder)


def nest(folder: Path, into: Path) -> None:
    """Put a model into another's folder, as `into`, which must be free.

    Its files are hard links where that is possible: no file of a model is ever written again, only replaced, so what
    happens to one folder does not change the other, and a base that many models go on from lies on the disk once.
    """
    shutil.copytree(folder, into, copy_function=_link)


def _link(file: str, to: str) -> None:
    try:
        os.link(file, to)
    except OSError:  # another disk, a file system without links, or somebody else's file
        shutil.copy2(file, to)


def _write(file: Path, manifest: Manifest) -> None:
    sealed = msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest).seal()
    file.write_bytes(msgspec.json.format(msgspec.json.encode(sealed), indent=1) + b"\n")


def _files(folder: Path) -> list[str]:
    """Every file below a folder but the manifest and hidden ones, as paths with slashes, sorted."""
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(
        path.as_posix() for path in paths if path.as_posix() != MANIFEST and not any(p[0] == "." for p in path.parts)
    )


def _digest(file: Path) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            hashed.update(block)
    return hashed.hexdigest()


# --- reading ----------------------------------------------------------------------------------------------------------


def verify(folder: Path) -> Manifest:
    """Compare every file of a model folder with its digest; return the manifest.

    Raises:
        NotFound: if there is no model.
        StoreError: if it is damaged, or not one of ours; naming the file.
    """
    manifest = read_manifest(folder)
    if sorted(manifest.files) != _files(folder):
        odd = sorted(set(manifest.files) ^ set(_files(folder)))[0]
        state = "missing" if odd in manifest.files else "one more"
        raise StoreError(
            f"{folder}: expected the files that {MANIFEST} lists, found {odd} {state}: fit the model again"
        )
    for name, expected in manifest.files.items():
        actual = _digest(folder / name)
        if actual != expected:
            raise StoreError(f"{folder / name}: expected digest {expected}, found {actual}: fit the model again")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a model folder, without checking the other files.

    Raises:
        NotFound: if there is none.
        StoreError: if it is damaged or of another format.
    """
    try:
        data = (folder / MANIFEST).read_bytes()
    except OSError:
        raise NotFound(f"{folder}: expected the folder of a fitted model, found no {MANIFEST} there") from None
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(
            f"{folder / MANIFEST}: expected a manifest of format {MODEL_FORMAT}, found something else: {error}"
        ) from None
    if manifest.format != MODEL_FORMAT:
        raise StoreError(
            f"{folder}: expected a model of format {MODEL_FORMAT}, found {manifest.format!r}: fit it again"
        )
    if manifest.seal().digest != manifest.digest:
        raise StoreError(
            f"{folder / MANIFEST}: expected digest {manifest.seal().digest}, found {manifest.digest}: "
            "fit the model again"
        )
    return manifest


def stamp(folder: Path | None) -> tuple[int, int, int] | None:
    """Changes when another model is put into the folder, and costs next to nothing; None: there is none."""
    if folder is None:
        return None
    try:
        status = (folder / MANIFEST).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def refuse_other(folder: Path, manifest: Manifest, recipe: str) -> None:
    """Refuse a model that does not belong to a recipe.

    Raises:
        ConfigError: naming both sides.
    """
    if manifest.recipe != recipe:
        raise ConfigError(
            f"{folder}: expected a model of {recipe}, found one of {manifest.recipe}: name that recipe or none, or "
            "give another model"
        )


def load(folder: Path, *, recipe: str | None = None) -> Model:
    """Check and read a model folder.

    Args:
        folder: where.
        recipe: which recipe it must belong to.

    Raises:
        NotFound: if there is no model.
        StoreError: if it is damaged.
        ConfigError: if it belongs to another recipe.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    manifest = verify(folder)
    if recipe is not None:
        refuse_other(folder, manifest, recipe)
    try:
        tools = msgspec.json.decode((folder / TOOLS).read_bytes(), type=tuple[Key, ...])
        arrays = load_file(folder / ARRAYS)
    except (OSError, SafetensorError, msgspec.MsgspecError) as error:
        raise StoreError(f"{folder}: the model is damaged: {error}. Fit it again") from None
    return Model(folder, manifest, tools, arrays)


def list_models(shelf: Path) -> list[tuple[Path, Manifest | str]]:
    """The models in a folder, by name: each with its manifest, or with what is wrong with it.

    Every file is compared with its digest. Folders that hold neither a manifest nor arrays are no models.
    """
    models: list[tuple[Path, Manifest | str]] = []
    for folder in sorted(path for path in shelf.glob("*") if path.is_dir() and path.name[0] != "."):
        if not any((folder / name).exists() for name in (MANIFEST, ARRAYS)):
            continue
        try:
            models.append((folder, verify(folder)))
        except (NotFound, StoreError) as error:
            models.append((folder, str(error)))
    return models
