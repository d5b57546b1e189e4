"""Fakes and conformance checks for our tests and for people who write their own stages, indexes or encoders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolscout.testing.conformance import (
    TOY_TOOLS,
    HashEncoder,
    check_encoder,
    check_index,
    check_source,
    check_stage,
    toy_tools,
)
from toolscout.testing.scripted import Faults, ScriptedLLM
from toolscout.testing.server import ScriptedServer

if TYPE_CHECKING:
    from toolscout.testing.methods import check_method as check_method
    from toolscout.testing.methods import toy_lesson as toy_lesson

__all__ = [
    "TOY_TOOLS",
    "Faults",
    "HashEncoder",
    "ScriptedLLM",
    "ScriptedServer",
    "check_encoder",
    "check_index",
    "check_method",
    "check_source",
    "check_stage",
    "toy_lesson",
    "toy_tools",
]


def __getattr__(name: str) -> Any:
    """Load what checks methods when it is first used, because it imports every method."""
    if name not in ("check_method", "toy_lesson"):
        raise AttributeError(f"module 'toolscout.testing' has no attribute {name!r}")
    from toolscout.testing import methods

    return getattr(methods, name)
