"""Unpacks MCP bundles (.mcpb, formerly .dxt) and reads what they would start. Nothing of a bundle is run here."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import sys
import unicodedata
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from toolscout.errors import SourceError
from toolscout.privacy.private_files import make_private_folder
from toolscout.sources.parsing import parse_document

__all__ = ["BUNDLE_SUFFIXES", "describe_entry", "unpack"]

BUNDLE_SUFFIXES: Final = (".mcpb", ".dxt")
MANIFEST_FILE: Final = "manifest.json"
MAX_BUNDLE_FILES: Final = 50_000
MAX_BUNDLE_BYTES: Final = 1_000_000_000  # unpacked
MAX_BUNDLE_RATIO: Final = 200  # unpacked to packed, above `MIN_RATIO_BYTES`
MIN_RATIO_BYTES: Final = 10_000_000
MAX_MANIFEST_BYTES: Final = 5_000_000
UNPACK_PIECE_BYTES: Final = 1_000_000
USER_EXECUTES: Final = 0o100
PLATFORMS: Final = {"linux": "linux", "darwin": "darwin", "win32": "win32"}
_MANIFEST_VALUE: Final = re.compile(r"\$\{([^{}]*)\}")


def unpack(bundle: Path, folder: Path) -> Path:
    """Unpack a bundle below `folder`, once for each content, and return where.

    Raises:
        SourceError: if it is no bundle, or could do harm when it is unpacked: paths that lead out of it, links, sizes
            that nobody needs. Nothing of it is left then.
    """
    digest = _digest_file(bundle)
    target = folder / digest
    if target.is_dir():
        return target
    partial = folder / f".{digest}.{os.getpid()}.partial"
    make_private_folder(folder)
    shutil.rmtree(partial, ignore_errors=True)
    make_private_folder(partial)
    try:
        with zipfile.ZipFile(bundle) as archive:
            names = _check_names(archive)
            _check_sizes(archive, bundle.stat().st_size)
            _extract(archive, names, partial)
        partial.replace(target)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise SourceError(f"{bundle}: this bundle cannot be unpacked: {str(error)[:200]}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _digest_file(path: Path) -> str:
    hashed = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while piece := stream.read(UNPACK_PIECE_BYTES):
                hashed.update(piece)
    except OSError as error:
        raise SourceError(f"{path}: this bundle cannot be read: {error.strerror}") from None
    return hashed.hexdigest()[:32]


def _check_names(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the files of an archive by their paths.

    Raises:
        SourceError: for a path that leads out of the folder, a link, a device, a repeated path, an encrypted file.
    """
    entries: dict[str, zipfile.ZipInfo] = {}
    folded: set[str] = set()
    if len(archive.infolist()) > MAX_BUNDLE_FILES:
        raise SourceError(f"expected a bundle of at most {MAX_BUNDLE_FILES:,} files, found more")
    for info in archive.infolist():
        path = _check_file(info)
        if info.is_dir():
            continue
        name = info.orig_filename
        key = unicodedata.normalize("NFC", path.as_posix()).casefold()
        if key in folded or not path.parts:
            raise SourceError(f"the bundle holds a path twice, or one without a name: {name[:200]!r}")
        folded.add(key)
        entries[path.as_posix()] = info
    return entries


def _check_file(info: zipfile.ZipInfo) -> PurePosixPath:
    """Return the path of a file in an archive.

    Raises:
        SourceError: if it leads out of the folder, or the file is a link, a device or encrypted.
    """
    name = info.orig_filename  # zipfile cuts `filename` at a NUL, and turns backslashes around on Windows
    path = PurePosixPath(name)
    if set("\\\0") & set(name) or path.is_absolute() or ".." in path.parts or ":" in name.split("/")[0]:
        raise SourceError(f"the bundle holds a path that leads out of its folder: {name[:200]!r}")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise SourceError(f"the bundle holds a link or a device, which bundles do not need: {name[:200]!r}")
    if info.flag_bits & 0x1:
        raise SourceError(f"the bundle holds an encrypted file: {name[:200]!r}")
    return path


def _check_sizes(archive: zipfile.ZipFile, packed: int) -> None:
    total = sum(info.file_size for info in archive.infolist())
    if total > MAX_BUNDLE_BYTES or (total > MIN_RATIO_BYTES and total > MAX_BUNDLE_RATIO * max(1, packed)):
        raise SourceError(
            f"the bundle would unpack to {total:,} bytes; at most {MAX_BUNDLE_BYTES:,} are allowed, and "
            f"{MAX_BUNDLE_RATIO} times its own size"
        )


def _extract(archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], folder: Path) -> None:
    """Write the files. What a file really holds counts, not what its header says."""
    left = MAX_BUNDLE_BYTES
    for name, info in entries.items():
        path = folder / name
        make_private_folder(path.parent)
        mode = 0o700 if (info.external_attr >> 16) & USER_EXECUTES else 0o600
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(opened, "wb") as target, archive.open(info) as packed:
            while piece := packed.read(UNPACK_PIECE_BYTES):
                left -= len(piece)
                if left < 0:
                    raise SourceError(f"the bundle holds more than {MAX_BUNDLE_BYTES:,} bytes")
                target.write(piece)


# --- the manifest ---


def describe_entry(folder: Path, prefix: str) -> tuple[str, str, dict[str, Any]]:
    """Return name, version and the entry of an mcpServers file that starts an unpacked bundle.

    Args:
        folder: where it was unpacked.
        prefix: of the environment variables from which values come that the user must give.

    Raises:
        SourceError: if its manifest is missing or does not say what to start.
    """
    manifest = _read_manifest(folder)
    config = _choose_config(_read_object(manifest, "server"))
    fill = _Filler(folder, prefix, _read_object(manifest, "user_config"))
    args, env = config.get("args") or [], config.get("env") or {}
    if not isinstance(args, list) or not isinstance(env, Mapping) or not isinstance(config.get("command"), str):
        raise SourceError(f"{MANIFEST_FILE}: expected a command, args and env in server.mcp_config, found others")
    entry: dict[str, Any] = {
        "command": fill.text(config["command"]),
        "args": [part for value in args for part in fill.argument(str(value))],
        "cwd": str(folder),
    }
    if env:
        entry["env"] = {str(key): fill.text(str(value)) for key, value in env.items()}
    return str(manifest.get("name") or "bundle"), str(manifest.get("version") or ""), entry


def _read_object(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = holder.get(key)
    return value if isinstance(value, Mapping) else {}


def _read_manifest(folder: Path) -> Mapping[str, Any]:
    path = folder / MANIFEST_FILE
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise SourceError(f"{MANIFEST_FILE}: expected at most {MAX_MANIFEST_BYTES:,} bytes, found more")
        manifest = parse_document(path.read_text(encoding="utf-8-sig"), MANIFEST_FILE)
    except (OSError, UnicodeDecodeError):
        raise SourceError(f"expected {MANIFEST_FILE} at the top of the bundle, found none") from None
    if not isinstance(manifest, Mapping):
        raise SourceError(f"{MANIFEST_FILE}: expected an object, found something else")
    return manifest


def _choose_config(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command of a manifest for this platform. Without one it follows from the kind of program."""
    given = server.get("mcp_config")
    config: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {}
    overrides = config.pop("platform_overrides", None)
    own = overrides.get(PLATFORMS.get(sys.platform, "")) if isinstance(overrides, Mapping) else None
    config |= own if isinstance(own, Mapping) else {}
    entry_point = server.get("entry_point")
    if "command" not in config and isinstance(entry_point, str):
        place = "${__dirname}/" + entry_point
        kind = server.get("type")
        program = {"node": "node", "python": "python3"}.get(str(kind))
        config |= {"command": program, "args": [place]} if program else {"command": place}
    return config


class _Filler:
    """Fills in the placeholders of a manifest. Others are refused, because they could name any variable."""

    def __init__(self, folder: Path, prefix: str, asked: Mapping[str, Any]) -> None:
        self._asked, self._prefix = asked, prefix
        home = Path.home()
        self._values = {
            "__dirname": str(folder), "HOME": str(home), "/": os.sep, "pathSeparator": os.sep,
            "DESKTOP": str(home / "Desktop"), "DOCUMENTS": str(home / "Documents"),
            "DOWNLOADS": str(home / "Downloads"),
        }  # fmt: skip

    def text(self, text: str) -> str:
        return _MANIFEST_VALUE.sub(self._fill, text)

    def argument(self, text: str) -> list[str]:
        """Fill in one argument. A value with several parts becomes several arguments."""
        match = _MANIFEST_VALUE.fullmatch(text)
        option = self._find_option(match[1]) if match else None
        if option is not None and isinstance(option.get("default"), list):
            return [str(value) for value in option["default"]]
        return [self.text(text)]

    def _find_option(self, name: str) -> Mapping[str, Any] | None:
        option = self._asked.get(name.removeprefix("user_config.")) if name.startswith("user_config.") else None
        return option if isinstance(option, Mapping) else None

    def _fill(self, match: re.Match[str]) -> str:
        """Return what stands for one `${name}` of the manifest.

        A value that the user must choose becomes an environment variable, with the manifest's default if it has one.
        """
        name = match[1]
        if name in self._values:
            return self._values[name]
        option = self._find_option(name)
        if option is None:
            raise SourceError(f"{MANIFEST_FILE}: it asks for {match[0][:80]!r}, which a bundle may not read")
        variable = self._prefix + re.sub(r"\W", "_", name.removeprefix("user_config.")).upper()
        default = option.get("default")
        if isinstance(default, (str, int, float)):
            text = str(default).lower() if isinstance(default, bool) else str(default)
            text = _MANIFEST_VALUE.sub(self._fill, text)
            if not set(text) & set("{}"):
                return f"${{{variable}:-{text}}}"
        return f"${{{variable}{'' if option.get('required') else ':-'}}}"
