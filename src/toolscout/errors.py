"""Every error that toolscout raises on purpose.

::

    ToolscoutError
    ├── UserError                  somebody can fix it: expected, found, what to do (exit code 1)
    │   ├── ConfigError            a setting or a configuration file is wrong
    │   │   └── CheckpointError    an interrupted training cannot go on from what it left
    │   ├── MissingExtra           a package of an optional extra is not installed
    │   ├── SourceError            a whole source cannot be read
    │   │   └── BadEntry           one entry of a source cannot be read; the others go on
    │   ├── NotFound               no such tool, source, recipe, model
    │   ├── Denied                 a credential is not valid, or its caller may not do this
    │   ├── StoreError             the store is locked, damaged or from a newer version
    │   │   └── Changed            somebody else changed meanwhile what was to be changed
    │   ├── Unavailable            a service does not answer now; a way without it is taken where there is one, and said
    │   │   └── TimedOut           what was sent to it was not answered in time, and may have to be paid for
    │   ├── BadReply               a language model's reply is not what it was asked for, after asking again
    │   └── OverBudget             what was allowed to be spent is spent
    └── PipelineError              stages that do not fit together, or a stage that broke its contract
"""

from __future__ import annotations

import importlib
from types import ModuleType

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
    "require",
]


class ToolscoutError(Exception):
    """Root of the tree."""


class UserError(ToolscoutError):
    """Something that the reader of the message can fix.

    The message is one sentence or two: what was expected, what was found, what to do.
    """


class ConfigError(UserError):
    """A setting or a configuration file is wrong."""


class CheckpointError(ConfigError):
    """What an interrupted training left is damaged, or of another training."""


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
    """Somebody else changed meanwhile what was to be changed: look again."""


class Unavailable(UserError):
    """A service does not answer now. Where there is a way without it, it is taken, and the answer says so."""


class TimedOut(Unavailable):
    """What was sent to a service was not answered in time; it may have to be paid for all the same."""


class BadReply(UserError):
    """A language model's reply is not what it was asked for, even after it was asked again.

    Attributes:
        reason: one word: `malformed`, or what the check of the reply begins with, before its colon.
    """

    def __init__(self, message: str, reason: str = "malformed") -> None:
        super().__init__(message)
        self.reason = reason


class OverBudget(UserError):
    """What was allowed to be spent is spent; the call was not made."""


class PipelineError(ToolscoutError):
    """Stages that cannot be composed, or a stage that broke its contract."""


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or say which extra brings it.

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
            raise
        raise MissingExtra(
            f"this needs the package {module.split('.')[0]!r}, which is not installed: "
            f"run  pip install 'toolscout[{extra}]'"
        ) from None
