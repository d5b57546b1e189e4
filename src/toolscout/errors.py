"""Every error that toolscout raises on purpose.

::

    ToolscoutError
    ├── UserError                  the user can fix it: the message says what happened and what to do (exit code 1)
    │   ├── ConfigError            a setting or a configuration file is wrong
    │   │   └── CheckpointError    a training cannot resume from its checkpoint
    │   ├── MissingExtra           a package of an optional extra is not installed
    │   ├── SourceError            a whole source cannot be read
    │   │   └── BadEntry           one entry of a source cannot be read; the others are not affected
    │   ├── NotFound               no such tool, source, recipe, model
    │   ├── Denied                 a credential is not valid, or its caller may not do this
    │   ├── StoreError             the store is locked, damaged or from a newer version
    │   │   └── Changed            another process changed the same object in the meantime
    │   ├── Unavailable            a service does not answer; the caller continues without it where possible and says so
    │   │   └── TimedOut           a request was sent but not answered in time; it may have been billed
    │   ├── BadReply               a language model's reply is still invalid after further attempts
    │   └── OverBudget             the budget is used up
    └── PipelineError              stages that do not fit together, or a stage that broke its contract
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from types import ModuleType
from typing import Final

__all__ = [
    "BadEntry",
    "BadReply",
    "Changed",
    "CheckpointError",
    "ConfigError",
    "Denied",
    "MissingExtra",
    "NotFound",
    "OverBudget",
    "PipelineError",
    "SourceError",
    "StoreError",
    "TimedOut",
    "ToolscoutError",
    "Unavailable",
    "UserError",
    "advise_install",
    "describe_invalid",
    "explain_unknown_field",
    "find_close",
    "find_nearest",
    "install_line",
    "name_nearest",
    "require",
]

MAX_NAME_CHARS = 200  # of a name that is compared with others
MAX_COMPARED_PRODUCTS = 2_000_000  # the products of the lengths of all names that are compared
_UNKNOWN_STRUCT_FIELD = re.compile(r"Object contains unknown field `([^`]*)`(?: - at `([^`]*)`)?")  # as msgspec says it
_LIST_PLACE = re.compile(r"\[(\d+)\]")
#: Program → what to install to get it, and where that is described.
_INSTALLERS: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(("uvx", "uv"), ("uv", "https://docs.astral.sh/uv/getting-started/installation/")),
    **dict.fromkeys(("npx", "node", "npm"), ("Node.js", "https://nodejs.org/en/download")),
    **dict.fromkeys(("pnpm", "pnpx"), ("pnpm", "https://pnpm.io/installation")),
    **dict.fromkeys(("bun", "bunx"), ("Bun", "https://bun.sh/docs/installation")),
    "deno": ("Deno", "https://docs.deno.com/runtime/getting_started/installation/"),
    "docker": ("Docker", "https://docs.docker.com/get-started/get-docker/"),
    "podman": ("Podman", "https://podman.io/docs/installation"),
    "pipx": ("pipx", "https://pipx.pypa.io/stable/installation/"),
    **dict.fromkeys(("python", "python3"), ("Python", "https://www.python.org/downloads/")),
}


class ToolscoutError(Exception):
    """Base class of all errors that toolscout raises on purpose."""


class UserError(ToolscoutError):
    """An error that the user can fix. The message says what happened and what to do, in one or two sentences."""


class ConfigError(UserError):
    """A setting or a configuration file is wrong."""


class CheckpointError(ConfigError):
    """The checkpoint of a training is damaged, or belongs to another training."""


class MissingExtra(UserError):
    """A package that belongs to an optional extra is not installed."""


class SourceError(UserError):
    """A whole source cannot be read."""


class BadEntry(SourceError):
    """One entry of a source cannot be read; the reader names it and goes on with the next."""


class NotFound(UserError):
    """There is no tool, source, recipe or model of that name."""


class Denied(UserError):
    """A credential is not valid, or its caller may not do this; the message says nothing of what the policy hides."""


class StoreError(UserError):
    """The store cannot be used: locked, damaged, or written by a newer version."""


class Changed(StoreError):
    """Another process changed the same object in the meantime; read it again."""


class Unavailable(UserError):
    """A service does not answer. Callers continue without it where possible, and the answer says so."""


class TimedOut(Unavailable):
    """A request was sent but not answered in time; it may have been billed."""


class BadReply(UserError):
    """A language model's reply is still invalid after further attempts.

    Attributes:
        reason: what is wrong in one word, for counts: `malformed`, `cut_off`, `late`, or what the check of a reply
            returned before its first colon, such as `unknown_tool` for "unknown_tool: a is not …".
    """

    def __init__(self, message: str, reason: str = "malformed") -> None:
        super().__init__(message)
        self.reason = reason


class OverBudget(UserError):
    """The budget is used up; the call was not made."""


class PipelineError(ToolscoutError):
    """Stages that cannot be composed, or a stage that broke its contract."""


def describe_invalid(error: Exception) -> str:
    """Describe an unknown field in a document, with its place in words: "caller 2 has the unknown field 'keyhash'".

    Other errors keep their text. Entries of a list are counted from 1 there, and from 0 by msgspec.
    """
    if isinstance(error, UnicodeDecodeError):
        return f"expected UTF-8 text, found byte 0x{error.object[error.start]:02x} at {error.start}: save it as UTF-8"
    match = _UNKNOWN_STRUCT_FIELD.fullmatch(str(error))
    if match is None:
        return str(error).rstrip(".")
    field, path = match.groups(default="")
    place = _LIST_PLACE.sub(lambda index: f" {int(index[1]) + 1}", path.replace("$.", ""))
    return f"{place or 'it'} has the unknown field {field!r}"


def find_close(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return a list with the known name that is most like `name`, for "Did you mean …?"; empty if none is like it.

    Names may be untrusted. So long ones are not compared, and the comparisons end after some milliseconds of work.

    Args:
        name: what somebody typed.
        known: names to choose from.
        cutoff: least similarity, 0 to 1, as difflib measures it.
    """
    if len(name) > MAX_NAME_CHARS:
        return []
    compared: list[str] = []
    work_left = MAX_COMPARED_PRODUCTS
    for known_name in known:
        is_short = len(known_name) <= MAX_NAME_CHARS
        work_left -= len(known_name) * len(name) if is_short else 1  # passing over a name takes a little time, too
        if work_left < 0:
            break
        if is_short:
            compared.append(known_name)
    return difflib.get_close_matches(name, compared, n=1, cutoff=cutoff)


def find_nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like a misspelled one, whatever the case of both. None: none is like it."""
    names = {known_name.casefold(): known_name for known_name in known}
    near = find_close(name.casefold(), names)  # at most one
    return names[near[0]] if near else None


def name_nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return "Did you mean NAME?" with the known name that is most like `name`, or `otherwise` if none is like it."""
    nearest = find_nearest(name, known)
    return otherwise if nearest is None else f"Did you mean {nearest!r}?"


def explain_unknown_field(error: Exception, *structs: type) -> str:
    """Describe why a document is invalid. For an unknown field, also propose the most similar field of the structs."""
    from msgspec.structs import fields

    match = re.search(r"unknown field `(.+?)`", str(error))
    if not match:
        return describe_invalid(error)
    names = list(dict.fromkeys(field.encode_name for struct in structs for field in fields(struct)))
    advice = name_nearest(match[1], names, otherwise=f"There are: {', '.join(names)}")
    return f"{describe_invalid(error)}. {advice}"


#: Extra that installs one of our packages → the folder of the package in a clone, with the package's own extra.
PACKAGE_FOLDERS: Final = {
    **{name: name for name in ("compact", "gateway", "lab", "postgres", "scale", "server")},
    "identity": "gateway[identity]",
    **{extra: f"lab[{extra}]" for extra in ("llm", "synth", "train")},
    "milvus": "postgres[milvus]",
}


def install_line(extra: str) -> str:
    """Return the command that installs an extra; for one of our packages also the command in a clone."""
    line = f"pip install 'toolscout[{extra}]'"
    folder = PACKAGE_FOLDERS.get(extra)
    return f"{line}  or, in a clone,  pip install './packages/{folder}'" if folder else line


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or say which extra installs it.

    Args:
        module: dotted name of the module to import.
        extra: the extra of toolscout that installs it.

    Raises:
        MissingExtra: if the package is absent, with the exact install line.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # the package is there, and something that it imports is not
        raise MissingExtra(
            f"This needs the package {module.split('.')[0]!r}, which is not installed. Run  {install_line(extra)}"
        ) from None


def advise_install(command: str) -> str:
    """Say that a program is missing, and how to get it. The advice for one program is the same for every server."""
    program = PurePath(command).name
    is_path = program != command
    if is_path:
        return "there is no such file. Correct the path"
    advice = "install it, or write its full path"
    if program in _INSTALLERS:
        product, address = _INSTALLERS[program]
        advice = f"install {product} ({address}), or write the full path of {program}"
    return f"this program is not installed, or not on the PATH. To get it, {advice}"
