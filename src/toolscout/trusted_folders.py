"""Folders whose settings file the user trusts: remembered in the home, with the file as it was read then.

::

    <home>/trusted-folders.json     {"format": …, "folders": {resolved path: {"digest": …, "at": …}}}

Trust belongs to a path and to the content of its file. A later `git pull` that changes the file asks again, because
whoever writes to the repository would otherwise choose where queries are sent. A copy elsewhere asks as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from toolscout.errors import ConfigError
from toolscout.private_files import make_private_folder, replace_file

__all__ = ["TrustedFolder", "digest_settings", "forget_folder", "is_trusted", "read_trusted", "remember_folder"]

FILE_NAME: Final = "trusted-folders.json"
FORMAT: Final = "toolscout-trusted-folders/1"


class TrustedFolder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings file of a folder as it was trusted: its digest, and when."""

    digest: str
    at: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folders: dict[str, TrustedFolder]
    format: str = FORMAT


def digest_settings(content: bytes) -> str:
    """Digest of a settings file."""
    return hashlib.blake2b(content, digest_size=32, person=b"toolscout-trust").hexdigest()


def read_trusted(home: Path) -> Mapping[str, TrustedFolder]:
    """Resolved path → what was trusted there; empty: nothing was yet.

    Raises:
        ConfigError: if the file is damaged.
    """
    file = home / FILE_NAME
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_File)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error}. Remove it, and trust your folders again with  toolscout trust DIR"
        ) from None
    if found.format != FORMAT:
        raise ConfigError(f"{file} has the format {found.format!r:.40}, which this version does not know. Upgrade it.")
    return found.folders


def is_trusted(home: Path, folder: Path, content: bytes) -> bool:
    """Whether the user trusted that folder with a settings file of exactly this content.

    A damaged list trusts nothing.
    """
    try:
        entry = read_trusted(home).get(str(folder.resolve()))
    except ConfigError:
        return False
    return entry is not None and entry.digest == digest_settings(content)


def remember_folder(home: Path, folder: Path, content: bytes, at: str) -> None:
    """Trust a folder with the settings file that it has now.

    Raises:
        ConfigError: if that cannot be written, or the list is damaged.
    """
    _write(home, {**read_trusted(home), str(folder.resolve()): TrustedFolder(digest_settings(content), at)})


def forget_folder(home: Path, folder: Path) -> bool:
    """Trust a folder no longer. Returns whether it was trusted.

    Raises:
        ConfigError: see `remember_folder`.
    """
    entries = dict(read_trusted(home))
    gone = entries.pop(str(folder.resolve()), None)
    if gone is not None:
        _write(home, entries)
    return gone is not None


def _write(home: Path, folders: Mapping[str, TrustedFolder]) -> None:
    try:
        make_private_folder(home)
        replace_file(home / FILE_NAME, msgspec.json.format(msgspec.json.encode(_File(dict(folders))), indent=1) + b"\n")
    except OSError as error:
        raise ConfigError(f"{home / FILE_NAME} cannot be written: {error.strerror}. Check its permissions.") from None
