"""Models outside of a home: checks those that come from elsewhere, and packs them as zip files.

What comes from elsewhere is untrusted. It is unpacked into a temporary folder, checked, and only then renamed. Its
files are data: arrays as safetensors, graphs as ONNX, JSON and text. Pickles and programs are refused by name and never
opened. Digests show damage. They do not show who made a model.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import stat
import sys
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, NamedTuple

import msgspec

from toolscout.errors import ConfigError, Denied, NotFound, StoreError, Unavailable, require
from toolscout.home.models import model_store
from toolscout.home.models.model_store import Manifest
from toolscout.trust import private_files

__all__ = [
    "HUB_PREFIX",
    "HubAddress",
    "Package",
    "check_names",
    "check_package",
    "install_package",
    "pack_zip",
    "pull_from_hub",
    "push_to_hub",
    "suggest_name",
    "unpack_zip",
]

ALLOWED_SUFFIXES: Final = frozenset({".json", ".md", ".model", ".onnx", ".safetensors", ".txt"})
MAX_PACKAGE_FILES: Final = 1_000
MAX_PACKAGE_BYTES: Final = 8_000_000_000
MAX_SETTINGS_BYTES: Final = 50_000_000  # of a file of settings
ENCODER_FORMAT: Final = "toolscout-onnx/1"
ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)  # equal models give equal files
PIECE_BYTES: Final = 1 << 20


@dataclasses.dataclass(frozen=True)
class Package:
    """A folder that was checked: a fitted model, or an encoder.

    Attributes:
        kind: model or encoder.
        label: the recipe of the model, or the source of the encoder.
        digest: digest of the manifest.
        n_tools: number of tools that the model was fitted on; 0 for an encoder.
    """

    kind: Literal["model", "encoder"]
    label: str
    digest: str
    n_tools: int = 0


class _EncoderManifest(msgspec.Struct):
    """The fields of an encoder's manifest that are checked here; the encoder checks the others when it is loaded."""

    format: str
    source: str
    files: dict[str, str]
    fingerprint: str


# --- checks -----------------------------------------------------------------------------------------------------------


def check_package(folder: Path) -> Package:
    """Check the files of a model or encoder: names, kinds, digests, and that none asks to run a program.

    Raises:
        NotFound: if the folder contains neither.
        StoreError: if a file is damaged, missing, unknown or forbidden; the message names it.
    """
    check_names((name, (folder / name).stat().st_size) for name in _list_names(folder))
    package = _check_encoder(folder) if _is_encoder(folder) else _check_model(folder)
    for path in folder.rglob("*.json"):
        _check_settings(path, folder)
    return package


def check_names(sizes: Iterable[tuple[str, int]]) -> None:
    """Check the path and size, in bytes, of each file before the files are fetched or unpacked.

    Raises:
        StoreError: for a path that leads elsewhere or occurs twice, a file of a kind that models do not need, or too
            many or too large files.
    """
    seen: set[str] = set()
    total = 0
    for name, size in sizes:
        path = PurePosixPath(name)
        # Some file systems take two names for the same that differ only in case, or in how accents are written.
        key = unicodedata.normalize("NFC", name).casefold()
        if _may_lead_out(name) or key in seen:
            raise StoreError(f"The model holds a path that leads out of its folder, or twice: {name!r:.200}.")
        if path.suffix.lower() not in ALLOWED_SUFFIXES:
            raise StoreError(
                f"The model holds {name!r:.200}. Only {', '.join(sorted(ALLOWED_SUFFIXES))} are allowed: other files "
                "could run programs."
            )
        seen.add(key)
        total += size
        if len(seen) > MAX_PACKAGE_FILES or total > MAX_PACKAGE_BYTES:
            raise StoreError(
                f"The model is too large: at most {MAX_PACKAGE_FILES:,} files with {MAX_PACKAGE_BYTES / 1e9:g} GB "
                "are allowed."
            )


def _may_lead_out(name: str) -> bool:
    """Return whether a path could lead out of the folder of its model, on any operating system."""
    separates_on_windows = "\\" in name or ":" in name  # folders and drives
    leads_upwards = any(folder in (".", "..") for folder in name.split("/"))
    return separates_on_windows or leads_upwards or name.startswith("/") or "\0" in name  # NUL ends a name in C


def _list_names(folder: Path) -> list[str]:
    """List the files below a folder without hidden ones, as sorted paths. A link is refused: it could lead anywhere."""
    names = []
    for path in folder.rglob("*"):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise StoreError(f"{path}: a model holds files and folders only.")
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            names.append(relative.as_posix())
    return sorted(names)


def _is_encoder(folder: Path) -> bool:
    """Return whether the manifest of a folder names the format of encoders. It is not checked any further."""
    try:
        return f'"{ENCODER_FORMAT}"'.encode() in private_files.read_plain_file(folder / model_store.MANIFEST)
    except OSError:
        return False


def _check_model(folder: Path) -> Package:
    """Check that a folder is a fitted model whose files have the digests in its manifest."""
    manifest = model_store.verify(folder)
    return Package("model", manifest.recipe, manifest.digest, manifest.n_tools)


def _check_encoder(folder: Path) -> Package:
    """Check that a folder is an encoder whose files have the digests in its manifest."""
    try:
        content = private_files.read_plain_file(folder / model_store.MANIFEST)
        manifest = msgspec.json.decode(content, type=_EncoderManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(f"{folder}: this is no encoder: {error}") from None
    if manifest.format != ENCODER_FORMAT or not manifest.files:
        raise StoreError(f"{folder}: this is no encoder in the format {ENCODER_FORMAT}.")
    names = set(_list_names(folder))
    for name, expected in manifest.files.items():
        if name not in names:
            raise StoreError(f"{folder}: the encoder is damaged: {name!r:.200} is missing.")
        if (actual := model_store.digest_file(folder / name)) != expected:
            raise StoreError(f"{folder / name}: the file was changed: its digest is {actual}, not {expected}.")
    return Package("encoder", manifest.source, manifest.fingerprint)


def _check_settings(path: Path, folder: Path) -> None:
    """Refuse settings of a transformer that would import a program when it is loaded.

    Raises:
        StoreError: for such settings, and for a file that cannot be checked.
    """
    if path.name not in ("config.json", "modules.json"):
        return
    if path.stat().st_size > MAX_SETTINGS_BYTES:
        raise StoreError(f"{path.relative_to(folder)} is too large for settings of a model.")
    try:
        content: Any = json.loads(path.read_bytes())  # the parser of the libraries that read it: it takes NaN, too
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path.relative_to(folder)} cannot be read: {error}") from None
    entries = content if isinstance(content, list) else [content]
    for entry in entries:
        fields = entry if isinstance(entry, Mapping) else {}
        is_foreign = path.name == "modules.json" and not str(fields.get("type")).startswith("sentence_transformers.")
        if is_foreign or "auto_map" in fields:  # `auto_map` names programs of the model that transformers would import
            raise StoreError(f"{path.relative_to(folder)} asks to run a program that is not part of a known package.")


# --- folders ----------------------------------------------------------------------------------------------------------


def install_package(
    folder: Path, fill: Callable[[Path], None], *, check: Callable[[Path], Manifest] = model_store.verify
) -> Package:
    """Let `fill` write a package into an empty folder, check it, and rename it, so that all of it is there or nothing.

    Args:
        folder: its final folder.
        fill: writes the package into the folder that it gets.
        check: raises StoreError for a model that cannot serve: `recipes.registry.check_model`.

    Raises:
        StoreError: if the package is not sound, or the folder has another one.
        NotFound: if what was written is neither a model nor an encoder.
    """
    partial = folder.with_name(f".{folder.name}.pulled")
    private_files.refuse_links(folder)
    shutil.rmtree(partial, ignore_errors=True)
    private_files.make_private_folder(partial)
    try:
        fill(partial)
        package = check_package(partial)
        if package.kind == "model":
            check(partial)
        private_files.protect_tree(partial)
        if folder.exists():
            if _read_digest(folder) == package.digest:
                return package  # it is installed already
            raise StoreError(f"{folder} holds another model. Choose another name with --name.")
        private_files.sync_tree(partial)
        partial.rename(folder)
        private_files.sync_folder(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return package


def _read_digest(folder: Path) -> str | None:
    """Return the digest of the package in a folder; None: there is none, or it is damaged."""
    try:
        return check_package(folder).digest
    except (NotFound, StoreError):
        return None


def suggest_name(text: str) -> str:
    """Turn the name of a repository or file into the name of a model.

    Raises:
        ConfigError: if it has no letters and digits.
    """
    name = re.sub(r"[^\w.-]+", "-", text).strip("-.")
    if not name:
        raise ConfigError(f"expected a name with letters or digits, found {text!r:.100}. Choose one with --name.")
    return name


# --- zip files --------------------------------------------------------------------------------------------------------


def pack_zip(folder: Path, file: Path) -> Package:
    """Pack a model or encoder into a zip file, completely or not at all. Equal folders give equal files.

    Raises:
        NotFound, StoreError: if the folder contains no sound model.
    """
    package = check_package(folder)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for name in _list_names(folder):
                info = zipfile.ZipInfo(name, ZIP_TIME)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = (stat.S_IFREG | 0o644) << 16  # mode of the unpacked file
                with (folder / name).open("rb") as source, archive.open(info, "w", force_zip64=True) as target:
                    shutil.copyfileobj(source, target, PIECE_BYTES)
        partial.replace(file)
    except OSError as error:
        raise StoreError(f"{file} cannot be written: {error.strerror}. Choose another file.") from None
    finally:
        partial.unlink(missing_ok=True)
    return package


def unpack_zip(file: Path, folder: Path) -> None:
    """Unpack a zip file into an empty folder. Names and sizes are checked before anything is written.

    Raises:
        NotFound: if there is no file.
        StoreError: if it is damaged, or contains what models do not need.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = [info for info in archive.infolist() if not info.is_dir()]
            for info in entries:
                file_type = stat.S_IFMT(info.external_attr >> 16)  # 0 if it was not packed on Unix
                is_encrypted = info.flag_bits & 0x1
                if file_type not in (0, stat.S_IFREG) or is_encrypted:
                    raise StoreError(f"{file}: {info.orig_filename!r:.200} is a link, a device or encrypted.")
            check_names((info.orig_filename, info.file_size) for info in entries)
            for info in entries:
                _write_entry(archive, info, folder / info.orig_filename)
    except FileNotFoundError:
        raise NotFound(f"expected a zip file, found none at {file}. Check its path.") from None
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, ValueError) as error:
        raise StoreError(f"{file}: this zip file cannot be read: {str(error) or type(error).__name__}.") from None


def _write_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> None:
    """Write one file. `zipfile` never unpacks more than the size in the header, which `check_names` has limited."""
    private_files.make_private_folder(path.parent)
    with archive.open(info) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target, PIECE_BYTES)


HUB_PREFIX: Final = "hf://"


class HubAddress(NamedTuple):
    """A repository of models, and a branch, tag or commit of it; None: its main branch."""

    repository: str
    revision: str | None

    @classmethod
    def parse(cls, text: str) -> HubAddress:
        """Parse `hf://owner/name` or `hf://owner/name@revision`.

        Raises:
            ConfigError: for another form.
        """
        match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?/?", text)
        if match is None:
            raise ConfigError(f"expected hf://owner/name or hf://owner/name@revision, found {text!r:.200}.")
        return cls(match[1], match[2])

    @property
    def name(self) -> str:
        """The name of the repository without its owner."""
        return self.repository.partition("/")[2]


def push_to_hub(folder: Path, address: HubAddress, *, public: bool) -> str:
    """Push a checked model or encoder as one commit. A repository that is missing is made, private unless `public`.

    Returns:
        The address of the commit.

    Raises:
        NotFound, StoreError: if the folder contains no sound model; then nothing is sent.
        Unavailable, Denied: if the hub cannot be reached, or refuses.
    """
    package = check_package(folder)
    with _explain_errors(address):
        api = _open_api()
        api.create_repo(address.repository, repo_type="model", private=not public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=address.repository,
            folder_path=folder,
            revision=address.revision,
            commit_message=f"{package.kind}: {package.label}",
            ignore_patterns=[".*", "**/.*"],
            delete_patterns=["*"],  # files of an earlier model
        )
    return str(commit.commit_url)


def pull_from_hub(address: HubAddress, folder: Path) -> str:
    """Fetch the files of a repository into an empty folder, after their names and sizes were checked.

    Returns:
        The commit that was fetched.

    Raises:
        NotFound: if the hub has no such repository or revision.
        StoreError: if it contains files that models do not need.
        Unavailable, Denied: if the hub cannot be reached, or refuses.
    """
    with _explain_errors(address):
        api = _open_api()
        info = api.model_info(address.repository, revision=address.revision, files_metadata=True)
    files = [(file.rfilename, file.size or 0) for file in info.siblings or () if not _is_hidden(file.rfilename)]
    check_names(files)
    with _explain_errors(address):
        api.snapshot_download(
            address.repository,
            revision=info.sha,
            local_dir=folder,
            allow_patterns=[f"*{suffix}" for suffix in ALLOWED_SUFFIXES],
            ignore_patterns=[".*", "**/.*"],
            etag_timeout=30,
        )
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # bookkeeping of the library
    return str(info.sha)


def _is_hidden(name: str) -> bool:
    """Return whether a file or a folder of a path begins with a dot."""
    return any(part.startswith(".") for part in name.split("/"))


def _open_api() -> Any:
    """Return the client of the hub. Progress bars are switched off."""
    hub = require("huggingface_hub", "hub")
    require("huggingface_hub.utils", "hub").disable_progress_bars()
    return hub.HfApi(library_name="toolscout")


def _list_transport_errors() -> list[type[Exception]]:
    """List the errors of the HTTP clients that are imported, because the hub's library uses one of several."""
    clients = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    return [client.HTTPError for client in clients]


@contextmanager
def _explain_errors(address: HubAddress) -> Iterator[None]:
    """Turn errors of the hub's library into one sentence each."""
    errors: Any = require("huggingface_hub.errors", "hub")
    name = f"{HUB_PREFIX}{address.repository}"
    try:
        yield
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise NotFound(f"{name}: the hub shows no such model or revision. Check it, or run  hf auth login") from None
    except (errors.HfHubHTTPError, errors.LocalTokenNotFoundError) as error:
        has_no_token = isinstance(error, errors.LocalTokenNotFoundError)
        status = getattr(getattr(error, "response", None), "status_code", None)
        if has_no_token or status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise Denied(f"{name}: the hub refuses access. Run  hf auth login  with a token that may write.") from None
        raise Unavailable(f"{name}: the hub failed: {' '.join(str(error).split())[:200]}. Try again.") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, OSError, *_list_transport_errors()) as error:
        if "/xet-" in str(error):  # hf_xet asks every hub for a token of this storage
            raise Unavailable(f"{name}: the hub has no Xet storage. Set HF_HUB_DISABLE_XET=1 and try again.") from None
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise Unavailable(f"{name}: the hub cannot be reached ({reason}). Check the network and HF_ENDPOINT.") from None
    except RuntimeError as error:  # the library wraps what went wrong with one file
        reason = " ".join(str(error.__cause__ or error).split())[:160]
        raise Unavailable(f"{name}: a file was not sent ({reason}). Try again.") from None
