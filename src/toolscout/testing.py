"""Fakes and conformance checks for our tests and for people who write their own stages, indexes or encoders."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

from toolscout.checks.conformance import (
    TOY_TOOLS,
    HashEncoder,
    check_encoder,
    check_index,
    check_source,
    check_stage,
    toy_tools,
)
from toolscout.errors import require

if TYPE_CHECKING:
    from toolscout.checks.ranker_conformance import check_method as check_method
    from toolscout.checks.ranker_conformance import toy_lesson as toy_lesson

__all__ = [
    "TOY_TOOLS",
    "HashEncoder",
    "check_encoder",
    "check_index",
    "check_method",
    "check_source",
    "check_stage",
    "toy_lesson",
    "toy_tools",
]

MOVED_TO_LAB: Final = ("Faults", "ScriptedLLM", "ScriptedServer")


def __getattr__(name: str) -> Any:
    """Load what is imported only on demand, because the module of `check_method` imports every method."""
    if name in MOVED_TO_LAB:  # an old name, which still works with a warning
        warnings.warn(f"import {name} from toolscout_lab.testing", DeprecationWarning, stacklevel=2)
        return getattr(require("toolscout_lab.testing", "lab"), name)
    if name not in ("check_method", "toy_lesson"):
        raise AttributeError(f"module 'toolscout.testing' has no attribute {name!r}")
    from toolscout.checks import ranker_conformance

    return getattr(ranker_conformance, name)
