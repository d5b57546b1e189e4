"""toolscout: index every tool, and find the complete set that a request needs.

A name loads its module when it is first used, so `import toolscout` stays light.
"""

from __future__ import annotations

import importlib

from toolscout import _moved

TYPE_CHECKING = False  # `typing` takes nine tenths of the time of this import; type checkers know the name
if TYPE_CHECKING:
    from typing import Any

    from toolscout.errors import ToolscoutError as ToolscoutError
    from toolscout.errors import UserError as UserError
    from toolscout.scout import Scout as Scout
    from toolscout.search.pipeline import Cut as Cut
    from toolscout.search.pipeline import Decide as Decide
    from toolscout.search.pipeline import Detect as Detect
    from toolscout.search.pipeline import Fuse as Fuse
    from toolscout.search.pipeline import Pipeline as Pipeline
    from toolscout.search.pipeline import Rerank as Rerank
    from toolscout.search.pipeline import Retrieve as Retrieve
    from toolscout.search.pipeline import Rewrite as Rewrite
    from toolscout.search.pipeline import Stage as Stage
    from toolscout.settings import Settings as Settings
    from toolscout.types import Answer as Answer
    from toolscout.types import Hit as Hit
    from toolscout.types import Request as Request
    from toolscout.types import Search as Search
    from toolscout.types import Tool as Tool

_MODULES = {
    "Answer": "types",
    "Cut": "search.pipeline",
    "Decide": "search.pipeline",
    "Detect": "search.pipeline",
    "Fuse": "search.pipeline",
    "Hit": "types",
    "Pipeline": "search.pipeline",
    "Request": "types",
    "Rerank": "search.pipeline",
    "Retrieve": "search.pipeline",
    "Rewrite": "search.pipeline",
    "Scout": "scout",
    "Search": "types",
    "Settings": "settings",
    "Stage": "search.pipeline",
    "Tool": "types",
    "ToolscoutError": "errors",
    "UserError": "errors",
}
__version__ = "0.2.0"
__all__ = [
    "Answer",
    "Cut",
    "Decide",
    "Detect",
    "Fuse",
    "Hit",
    "Pipeline",
    "Request",
    "Rerank",
    "Retrieve",
    "Rewrite",
    "Scout",
    "Search",
    "Settings",
    "Stage",
    "Tool",
    "ToolscoutError",
    "UserError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'toolscout' has no attribute {name!r}")
    return getattr(importlib.import_module(f"toolscout.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


_moved.install()
