"""Runs the command of an MCP server in a sandbox: bubblewrap, or a container command of the operator.

`sandbox.toml` in the home says which servers, by the name of their source. The system is read-only for them, `/tmp` is
their own, credentials in the usual places are hidden, and so is the home of toolscout.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from toolscout.errors import ConfigError, SourceError, Unavailable
from toolscout.sources.sandbox.bubblewrap import find_bubblewrap

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["SANDBOX_FILE", "Sandbox", "find_sandbox", "read_sandboxes", "wrap_command"]

SANDBOX_FILE: Final = "sandbox.toml"  # in the home, where only the owner writes
ANY_SOURCE: Final = "*"
PRIVATE_FOLDERS: Final = ("/tmp", "/run")  # each server has its own, which is empty when it starts
#: What is hidden unless a table has a `hide` of its own.
HIDDEN_PATHS: Final = (
    *("~/.ssh", "~/.gnupg", "~/.aws", "~/.azure", "~/.kube", "~/.docker", "~/.config/gcloud", "~/.config/gh"),
    *("~/.netrc", "~/.git-credentials", "~/.npmrc", "~/.pypirc"),
)
NAME_SERVICE: Final = "/run/systemd/resolve"  # /etc/resolv.conf is a link into it on many systems


class Sandbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the file.

    Attributes:
        write: folders that the server may write. They must exist.
        network: whether it has the network.
        hide: files and folders that it cannot see, besides the home of toolscout.
        command: a container command that runs in place of bubblewrap. The server's own command is appended to it.
    """

    write: tuple[str, ...] = ()
    network: bool = False
    hide: tuple[str, ...] = HIDDEN_PATHS
    command: tuple[str, ...] = ()


def read_sandboxes(home: Path) -> dict[str, Sandbox]:
    """Read the file of a home. Returns the name of each source → its sandbox; empty if there is no such file.

    Raises:
        ConfigError: if the file is invalid. No server then starts, because it could be without its sandbox.
    """
    file = home / SANDBOX_FILE
    try:
        sandboxes = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), dict[str, Sandbox])
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: the sandboxes of servers cannot be read: {reason}") from None
    for source, sandbox in sandboxes.items():
        _check_sandbox(f"{file}: [{source}]", sandbox)
    return sandboxes


def _check_sandbox(where: str, sandbox: Sandbox) -> None:
    """Raise ConfigError, which begins with `where`, if a command has other rules beside it, or a path is relative."""
    has_other_rules = sandbox != Sandbox(command=sandbox.command)
    if sandbox.command and has_other_rules:
        raise ConfigError(f"{where} has a command, which makes rules of its own: remove write, network and hide")
    for path in (*sandbox.write, *sandbox.hide):
        if not Path(path).expanduser().is_absolute():
            raise ConfigError(f"{where}: expected an absolute path, found {path!r}")


def find_sandbox(sandboxes: Mapping[str, Sandbox], source: str) -> Sandbox | None:
    """Return the sandbox of a source: its own, or the one for all. None if it has none."""
    return sandboxes.get(source, sandboxes.get(ANY_SOURCE))


def wrap_command(sandbox: Sandbox, command: list[str], folder: str, home: Path) -> list[str]:
    """Return the command that runs a server's command in its sandbox.

    Args:
        sandbox: its rules.
        command: command and arguments of the server.
        folder: its working directory. Empty: the present one.
        home: the folder of toolscout's home, which the server never sees: it contains keys and the catalogue.

    Raises:
        SourceError: if the sandbox cannot be made here. The server does not run without it.
    """
    if sandbox.command:
        if shutil.which(sandbox.command[0]) is None:
            raise SourceError(
                f"its sandbox needs the command {sandbox.command[0]!r}, which is not installed: install it"
            )
        return [*sandbox.command, *command]
    try:
        bubblewrap = find_bubblewrap()
    except Unavailable as error:
        raise SourceError(
            f"its sandbox cannot be made, because {error}; or give a container command. It was not started"
        ) from None
    return [bubblewrap, *_build_options(sandbox, home), "--chdir", folder or _find_folder(sandbox), "--", *command]


def _build_options(sandbox: Sandbox, home: Path) -> list[str]:
    """Build the options of bubblewrap.

    If two options name the same path, bubblewrap applies the later one. The hidden paths come last, so that they stay
    hidden inside folders that the server may write.
    """
    words = ["--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev"]
    words += ["--proc", "/proc"]
    for folder in PRIVATE_FOLDERS:
        words += ["--tmpfs", folder]
    if sandbox.network:
        words += ["--share-net", "--ro-bind-try", NAME_SERVICE, NAME_SERVICE]
    for path in _resolve_paths(sandbox.write):
        if not path.is_dir():
            raise SourceError(f"its sandbox lets it write {path}, which is no folder: make it, or edit {SANDBOX_FILE}")
        words += ["--bind", str(path), str(path)]
    for path in _resolve_paths((*sandbox.hide, str(home))):
        if path.is_dir():
            words += ["--tmpfs", str(path), "--remount-ro", str(path)]
        elif path.exists():
            words += ["--ro-bind", "/dev/null", str(path)]
    return words


def _find_folder(sandbox: Sandbox) -> str:
    """Return the present working directory if the server can see it, else `/`."""
    folder = Path.cwd()
    is_replaced = any(folder.is_relative_to(parent) for parent in (*PRIVATE_FOLDERS, "/dev", "/proc"))
    is_writable = any(folder.is_relative_to(path) for path in _resolve_paths(sandbox.write))
    is_visible = is_writable or not is_replaced
    return str(folder) if is_visible else "/"


def _resolve_paths(paths: Iterable[str]) -> list[Path]:
    return [Path(path).expanduser().resolve() for path in paths]
