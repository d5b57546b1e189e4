"""What a home contains: the catalogue, the journal, the models, who may use them, and the databases of all four."""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """Return what was in the module `toolscout.home` of version 0.2, with a warning."""
    from toolscout import location

    if name.startswith("_") or not hasattr(location, name):
        raise AttributeError(f"module 'toolscout.home' has no attribute {name!r}")
    warnings.warn(f"toolscout.home.{name} is now toolscout.location.{name}", DeprecationWarning, stacklevel=2)
    return getattr(location, name)
