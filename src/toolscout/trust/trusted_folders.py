"""Remembers which folders the user trusts, with digests of the files that were trusted.

::

    <home>/trusted-folders.json     {"format": …, "folders": {resolved path: {"digest": …, "at": …, "files": {…}}}}

Trust belongs to a path and to the content of its files: the settings file, and the MCP configurations from which
`--discover` starts servers. If a file changes, for example by `git pull`, the folder must be trusted again. Otherwise
everybody who can write to the repository could choose where queries are sent and which programs run. A copy of the
folder must be trusted as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from toolscout.errors import ConfigError
from toolscout.trust.private_files import make_private_folder, read_plain_file, replace_file

__all__ = [
    "MCP_CONFIGURATIONS",
    "TrustedFolder",
    "digest_settings",
    "forget_folder",
    "is_configuration_trusted",
    "is_trusted",
    "list_configurations",
    "read_trusted",
    "remember_folder",
]

TRUSTED_FILE_NAME: Final = "trusted-folders.json"
TRUSTED_FORMAT: Final = "toolscout-trusted-folders/1"
MCP_CONFIGURATIONS: Final = (
    ".amazonq/mcp.json",
    ".amp/settings.json",
    ".codex/config.toml",
    ".continue/mcpServers/*",
    ".crush.json",
    ".cursor/mcp.json",
    ".devcontainer/devcontainer.json",
    ".gemini/settings.json",
    ".github/mcp.json",
    ".junie/mcp/mcp.json",
    ".kilocode/mcp.json",
    ".kiro/settings/mcp.json",
    ".mcp.json",
    ".qwen/settings.json",
    ".roo/mcp.json",
    ".vscode/mcp.json",
    ".vscode/settings.json",
    ".windsurf/mcp_config.json",
    ".zed/settings.json",
    "crush.json",
    "opencode.json",
    "opencode.jsonc",
)
"""Patterns of the files in a project's folder in which editors and agents keep its MCP servers."""


def list_configurations(folder: Path) -> list[str]:
    """List the MCP configurations in a folder, as paths relative to it."""
    files = {file for pattern in MCP_CONFIGURATIONS for file in folder.glob(pattern) if file.is_file()}
    return sorted(file.relative_to(folder).as_posix() for file in files)


class TrustedFolder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One trusted folder.

    Attributes:
        digest: digest of its settings file, or of no bytes if it had none.
        at: when it was trusted.
        files: path of each MCP configuration in the folder → its digest.
    """

    digest: str
    at: str
    files: dict[str, str] = {}


class _TrustedFoldersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. `folders`: resolved path → entry."""

    folders: dict[str, TrustedFolder]
    format: str = TRUSTED_FORMAT


def digest_settings(content: bytes) -> str:
    """Compute the digest of a settings file or an MCP configuration."""
    return hashlib.blake2b(content, digest_size=32, person=b"toolscout-trust").hexdigest()


def read_trusted(home: Path) -> Mapping[str, TrustedFolder]:
    """Read the trusted folders: resolved path → entry. Empty if no folder was trusted yet.

    Raises:
        ConfigError: if the file is damaged.
    """
    file = home / TRUSTED_FILE_NAME
    try:
        content = msgspec.json.decode(read_plain_file(file), type=_TrustedFoldersFile)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error}. Remove it, and trust your folders again with  toolscout trust DIR"
        ) from None
    if content.format != TRUSTED_FORMAT:
        raise ConfigError(
            f"{file} has the format {content.format!r:.40}, which this version does not know. Upgrade it."
        )
    return content.folders


def is_trusted(home: Path, folder: Path, content: bytes) -> bool:
    """Return whether the user trusted a folder with exactly this content of its settings file.

    If the list of trusted folders is damaged, no folder is trusted.
    """
    try:
        entry = read_trusted(home).get(str(folder.resolve()))
    except ConfigError:
        return False
    return entry is not None and entry.digest == digest_settings(content)


def is_configuration_trusted(home: Path, folder: Path, name: str) -> bool:
    """Return whether the user trusted a folder with the present content of an MCP configuration, `folder / name`.

    If the list of trusted folders is damaged, or the file cannot be read, it is not trusted.
    """
    try:
        entry = read_trusted(home).get(str(folder.resolve()))
        return entry is not None and entry.files.get(name) == digest_settings((folder / name).read_bytes())
    except (ConfigError, OSError):
        return False


def remember_folder(home: Path, folder: Path, content: bytes, at: str) -> None:
    """Trust a folder with the present content of its MCP configurations.

    Args:
        home: has the list.
        folder: the folder.
        content: of its settings file, as the user has seen it; empty if it has none.
        at: the present time.

    Raises:
        ConfigError: if the list cannot be written, or is damaged.
        OSError: if a configuration cannot be read.
    """
    files = {name: digest_settings((folder / name).read_bytes()) for name in list_configurations(folder)}
    entry = TrustedFolder(digest_settings(content), at, files)
    _write_list(home, {**read_trusted(home), str(folder.resolve()): entry})


def forget_folder(home: Path, folder: Path) -> bool:
    """Stop trusting a folder. Returns whether it was trusted.

    Raises:
        ConfigError: see `remember_folder`.
    """
    entries = dict(read_trusted(home))
    was_trusted = entries.pop(str(folder.resolve()), None) is not None
    if was_trusted:
        _write_list(home, entries)
    return was_trusted


def _write_list(home: Path, folders: Mapping[str, TrustedFolder]) -> None:
    """Write the list of trusted folders as a whole, readable by this user alone."""
    try:
        make_private_folder(home)
        content = msgspec.json.encode(_TrustedFoldersFile(dict(folders)))
        replace_file(home / TRUSTED_FILE_NAME, msgspec.json.format(content, indent=1) + b"\n")
    except OSError as error:
        raise ConfigError(
            f"{home / TRUSTED_FILE_NAME} cannot be written: {error.strerror}. Check its permissions."
        ) from None
