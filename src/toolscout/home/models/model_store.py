"""Saves, loads, verifies and lists fitted models; each is a folder with a manifest.

::

    <folder>/manifest.json         recipe, settings with their origins, fingerprints, figures, digests
             model.safetensors     arrays
             tools.json            [id within the source, name] of each tool of the fit
             README.md             model card: training data and figures
             …                     further files of the method, such as the folder of a tuned encoder

A folder is written under another name and then renamed, so it is complete or absent. The manifest contains the digest
of every file and its own. Damaged or replaced files are refused. Nothing is unpickled.
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
from toolscout.trust import private_files
from toolscout.types import Tool, digest, render

__all__ = [
    "Data",
    "Draft",
    "Manifest",
    "Model",
    "ModelSetting",
    "check_recipe",
    "digest_file",
    "fingerprint_catalogue",
    "keys",
    "list_models",
    "load",
    "nest",
    "places",
    "put_folder",
    "read_manifest",
    "save",
    "stamp",
    "verify",
]

MODEL_FORMAT: Final = "toolscout-model/1"
MANIFEST, ARRAYS, TOOLS, CARD = "manifest.json", "model.safetensors", "tools.json", "README.md"
Key = tuple[str, str]  # of a tool: (id within the source, name); see `keys`


class Encodes(Protocol):
    """The fields of an encoder that a manifest records."""

    name: str
    dim: int
    fingerprint: str


class ModelSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One setting of the fit: its value, and the origin of the value (default, recipe, argument, dev)."""

    value: Any
    origin: str


class EncoderMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The encoder that a model was fitted on: its name, its dimension, and the fingerprint of its vectors.

    Another encoder, or the same one with other prompts, has another fingerprint and is refused.
    """

    name: str
    dim: int
    fingerprint: str


class Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data of a fit.

    Attributes:
        name: name of the dataset.
        fingerprint: fingerprint of the texts and gold tools of train and dev.
        n_train: number of training queries, without dev and leaks.
        n_dev: number of dev queries, on which choices were made.
        dropped_leaks: number of training queries left out because they repeat the text of a test query.
        refit: whether the model was fitted on train and dev together after the choices.
    """

    name: str
    fingerprint: str
    n_train: int
    n_dev: int
    dropped_leaks: int = 0
    refit: bool = False


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The description of a model in its folder.

    Attributes:
        recipe: name of the recipe.
        job: identity of the fit; equal jobs give equal models.
        settings: every setting of the fit, with its origin.
        seed: seed of everything random.
        encoder: the encoder of the queries; None: the model needs no encoder, or brings its own.
        data: the data of the fit.
        catalogue: fingerprint of the tools of the fit.
        n_tools: number of these tools.
        metrics: figures on dev, before any refit.
        values: JSON values that the method reads when it builds the pipeline.
        fit_seconds: wall time of the fit.
        version: version of toolscout.
        files: name → digest of every other file of the folder.
        format: name and number of this format.
        digest: digest of all other fields.
    """

    recipe: str
    job: str
    settings: dict[str, ModelSetting]
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
        """Return the manifest with the digest of its other fields in the field `digest`."""
        return msgspec.structs.replace(
            self, digest=digest(MODEL_FORMAT, {**msgspec.structs.asdict(self), "digest": ""})
        )


@dataclasses.dataclass(frozen=True)
class Model:
    """A model that was read from its folder and verified.

    Attributes:
        folder: the folder.
        manifest: its description.
        tools: (id within the source, name) of each tool of the fit; rows of the arrays have this order.
        arrays: name → array.
    """

    folder: Path
    manifest: Manifest
    tools: tuple[Key, ...]
    arrays: Arrays

    def places(self, tools: Sequence[Tool]) -> Places:
        """Return the position of each tool in the model, `(len(tools),)`; -1: it is no tool of the fit."""
        return places(self.tools, tools)

    def check_encoder(self, encoder: Encodes) -> None:
        """Check that an encoder is the one of the fit.

        Raises:
            ConfigError: if it is another one; the message names both.
        """
        fitted_on = self.manifest.encoder
        if fitted_on is None or fitted_on.fingerprint != encoder.fingerprint:
            expected = f"{fitted_on.name} ({fitted_on.fingerprint})" if fitted_on else "no encoder"
            raise ConfigError(
                f"{self.folder}: this model was fitted on {expected}, not on the encoder {encoder.name} "
                f"({encoder.fingerprint}). Use that encoder, or fit again."
            )

    def check_catalogue(self, tools: Sequence[Tool]) -> None:
        """Check that the model knows at least one tool of a catalogue, for methods that learn single tools.

        Raises:
            ConfigError: if it knows none; the message names the data of the fit.
        """
        if (self.places(tools) < 0).all():
            raise ConfigError(
                f"{self.folder}: this model was fitted on {self.manifest.data.name} ({self.manifest.n_tools:,} tools), "
                f"which shares no tool with this catalogue. Add those tools, or fit {self.manifest.recipe} here."
            )


@dataclasses.dataclass(frozen=True)
class Draft:
    """The content of a model folder that is to be written. Other fields go into its `Manifest` unchanged.

    Attributes:
        job: digest of everything that determines the fit: equal jobs give equal models.
        arrays: name → array.
        tools: the tools of the fit; rows of the arrays have this order.
        metrics: measure → figure on dev, 0 to 1.
        values: JSON values that the method reads when it builds the pipeline.
        card: Markdown below the heading of README.md.
        files: writes the further files of the model into a folder.
    """

    recipe: str
    job: str
    arrays: Arrays
    tools: Sequence[Tool]
    settings: Mapping[str, ModelSetting]
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
    """Return (id within the source, name) of each tool. A model recognises tools by these, whatever the source."""
    return [(tool.id.partition("/")[2], tool.name) for tool in tools]


def places(known: Sequence[Key], tools: Sequence[Tool]) -> Places:
    """Return the position of each tool in `known`, `(len(tools),)`; -1 if it is not there.

    An id matches with or without its source, because dataset folders written from a catalogue contain whole ids.
    """
    position_of = {key: position for position, key in enumerate(known)}
    positions = []
    for tool, key in zip(tools, keys(tools), strict=True):
        without_source = position_of.get(key, -1)
        positions.append(position_of.get((tool.id, tool.name), without_source))
    return np.array(positions, dtype=np.intp)


def fingerprint_catalogue(tools: Sequence[Tool]) -> str:
    """Return the fingerprint of the tools of a catalogue and their texts. It does not depend on names of sources."""
    texts = (render(tool, "full") for tool in tools)
    return digest("catalogue/1", sorted([*key, text] for key, text in zip(keys(tools), texts, strict=True)))


# --- writing ----------------------------------------------------------------------------------------------------------


def save(folder: Path, draft: Draft) -> Model:
    """Write a model folder completely or not at all; it replaces an earlier model. Missing parent folders are made."""
    from safetensors.numpy import save_file

    partial = folder.with_name(f".{folder.name}.partial")
    private_files.refuse_links(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if draft.files is not None:
        draft.files(partial)
    save_file({name: np.ascontiguousarray(array) for name, array in draft.arrays.items()}, partial / ARRAYS)
    (partial / TOOLS).write_bytes(msgspec.json.encode(keys(draft.tools)))
    (partial / CARD).write_text(_write_card(draft), encoding="utf-8")
    encoder = draft.encoder
    manifest = Manifest(
        recipe=draft.recipe,
        job=draft.job,
        settings=dict(draft.settings),
        seed=draft.seed,
        encoder=EncoderMark(encoder.name, encoder.dim, encoder.fingerprint) if encoder else None,
        data=draft.data,
        catalogue=fingerprint_catalogue(draft.tools),
        n_tools=len(draft.tools),
        metrics=dict(draft.metrics),
        values=dict(draft.values),
        fit_seconds=round(draft.fit_seconds, 3),
        version=toolscout.__version__,
        files={name: digest_file(partial / name) for name in _list_files(partial)},
    )
    _write_manifest(partial / MANIFEST, manifest)
    is_private = not folder.parent.stat().st_mode & private_files.OTHERS
    if is_private:  # protect the files too, so that a copy of the model stays private
        private_files.protect_tree(partial)
    put_folder(partial, folder)
    return load(folder)


def put_folder(partial: Path, folder: Path) -> None:
    """Rename a completely written folder to its final name, durably. It replaces a former folder of that name."""
    private_files.sync_tree(partial)
    former = folder.with_name(f".{folder.name}.former")
    shutil.rmtree(former, ignore_errors=True)
    if folder.exists():  # a folder with content cannot be replaced in one step
        folder.replace(former)
    partial.replace(folder)
    private_files.sync_folder(folder.parent)
    shutil.rmtree(former, ignore_errors=True)


def _write_card(draft: Draft) -> str:
    """Return the model card, with a head that hubs of models read."""
    head = f"---\nlibrary_name: toolscout\ntags:\n- tool-retrieval\n- {draft.recipe}\n---\n\n"
    return f"{head}# {draft.recipe}\n\n{draft.card}".rstrip() + "\n"


def note(folder: Path, **values: object) -> None:
    """Add values to the manifest of a saved model, atomically, for facts that became known after the fit.

    Raises:
        NotFound: if there is no model.
        StoreError: if its manifest is damaged.
    """
    manifest = read_manifest(folder)
    partial = folder / f".{MANIFEST}.partial"
    _write_manifest(partial, msgspec.structs.replace(manifest, values={**manifest.values, **values}))
    partial.chmod(stat.S_IMODE((folder / MANIFEST).stat().st_mode))
    private_files.sync_file(partial)
    partial.replace(folder / MANIFEST)
    private_files.sync_folder(folder)


def nest(folder: Path, into: Path) -> None:
    """Put a copy of a model at `into`, inside the folder of a model that builds on it.

    Files are hard links where possible, so a base of many models takes its space once. This is safe because files of a
    model are replaced, never rewritten: a change in one folder does not reach the other.
    """
    shutil.copytree(folder, into, copy_function=_link)


def _link(file: str, to: str) -> None:
    """Make a hard link to a file, or a copy of it if that is impossible."""
    try:
        os.link(file, to)
    except OSError:  # another disk, a file system without links, or a file of another user
        shutil.copy2(file, to)


def _write_manifest(file: Path, manifest: Manifest) -> None:
    """Write a manifest with its digest."""
    # A reader gets lists where the manifest has tuples. It is decoded here as well, so that the digests are equal.
    decoded = msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(decoded.seal()), indent=1) + b"\n")


def _list_files(folder: Path) -> list[str]:
    """List the files below a folder without the manifest and hidden files, as sorted paths with slashes."""
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    visible_paths = [path for path in paths if not any(name.startswith(".") for name in path.parts)]
    return sorted(path.as_posix() for path in visible_paths if path.as_posix() != MANIFEST)


def digest_file(file: Path) -> str:
    """Hash the content of a file: BLAKE2b, 32 hex digits."""
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
        StoreError: if a file is damaged, missing or unknown; the message names it.
    """
    manifest = read_manifest(folder)
    missing_or_unknown = manifest.files.keys() ^ set(_list_files(folder))
    if missing_or_unknown:
        name = min(missing_or_unknown)
        state = "is missing" if name in manifest.files else "does not belong to it"
        raise StoreError(f"{folder}: the model is damaged: {name} {state}. Fit the model again.")
    for name, expected in manifest.files.items():
        actual = digest_file(folder / name)
        if actual != expected:
            raise StoreError(
                f"{folder / name}: the file was changed: its digest is {actual}, not {expected}. Fit the model again."
            )
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a model folder, without checking the other files.

    Raises:
        NotFound: if there is none.
        StoreError: if it is damaged or of another format.
    """
    try:
        content = private_files.read_plain_file(folder / MANIFEST)
    except OSError:
        raise NotFound(f"{folder}: expected the folder of a fitted model, found no {MANIFEST} there") from None
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(
            f"{folder / MANIFEST}: this is no manifest of format {MODEL_FORMAT}: {error}. Fit the model again."
        ) from None
    if manifest.format != MODEL_FORMAT:
        raise StoreError(f"{folder}: this model has format {manifest.format!r}, not {MODEL_FORMAT}. Fit it again.")
    if manifest.seal().digest != manifest.digest:
        raise StoreError(
            f"{folder / MANIFEST}: the manifest was changed: its digest is {manifest.seal().digest}, not "
            f"{manifest.digest}. Fit the model again."
        )
    return manifest


def stamp(folder: Path | None) -> tuple[int, int, int] | None:
    """Return a cheap stamp that changes when another model is put into the folder; None if there is no model."""
    if folder is None:
        return None
    try:
        status = (folder / MANIFEST).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def check_recipe(folder: Path, manifest: Manifest, recipe: str) -> None:
    """Check that a fitted model belongs to a recipe.

    Raises:
        ConfigError: if it belongs to another one. The message names both.
    """
    if manifest.recipe != recipe:
        raise ConfigError(
            f"{folder}: expected a model of {recipe}, found one of {manifest.recipe}: name that recipe or none, or "
            "give another model"
        )


def load(folder: Path, *, recipe: str | None = None) -> Model:
    """Verify and read a model folder. If `recipe` is given, the model must belong to that recipe.

    Raises:
        NotFound: if there is no model.
        StoreError: if it is damaged.
        ConfigError: if it belongs to another recipe.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    manifest = verify(folder)
    if recipe is not None:
        check_recipe(folder, manifest, recipe)
    try:
        tools = msgspec.json.decode(private_files.read_plain_file(folder / TOOLS), type=tuple[Key, ...])
        arrays = load_file(folder / ARRAYS)
    except (
        OSError,
        SafetensorError,
        msgspec.MsgspecError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,  # numpy has no such type of number
    ) as error:
        raise StoreError(f"{folder}: the model is damaged: {error}. Fit it again") from None
    return Model(folder, manifest, tools, arrays)


def list_models(shelf: Path) -> list[tuple[Path, Manifest | str]]:
    """List the models in `shelf` by name, each with its manifest or with the reason why it cannot be used.

    Every file is compared with its digest. A folder with neither a manifest nor arrays is no model.
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
