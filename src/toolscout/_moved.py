"""Keeps the module names of version 0.2 importable, with a warning that says the new name.

For example, `import toolscout.config` gives `toolscout.settings`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["MOVED_MODULES", "install"]

#: Old name → new name. The longest old name that a module begins with decides.
MOVED_MODULES = {
    "toolscout.abstain": "toolscout.search.abstain",
    "toolscout.access": "toolscout.home.access",
    "toolscout.access.policy": "toolscout.trust.policy",
    "toolscout.catalogue": "toolscout.home.catalogue",
    "toolscout.config": "toolscout.settings",
    "toolscout.database": "toolscout.home.database",
    "toolscout.gateway": "toolscout_gateway",
    "toolscout.indexes.sparse": "toolscout.indexes.bm25",
    "toolscout.journal": "toolscout.home.journal",
    "toolscout.lab": "toolscout_lab",
    "toolscout.llm": "toolscout_lab.llm",
    "toolscout.methods": "toolscout.rankers",
    "toolscout.models": "toolscout.home.models",
    "toolscout.privacy": "toolscout.trust",
    "toolscout.recipes.fit": "toolscout.learn.fit",
    "toolscout.sandbox": "toolscout.sources.sandbox",
    "toolscout.server": "toolscout_server",
    "toolscout.training": "toolscout_lab.training",
    "toolscout.workspace": "toolscout.search.home_resources",
    **{
        f"toolscout.catalogue.{name}": f"toolscout.trust.{name}"
        for name in ("confusables", "injection", "invisible", "screening", "stuffing")
    },
    **{
        f"toolscout.methods.{name}": f"toolscout_lab.rankers.{name}"
        for name in ("colt", "crossencoder", "dpr", "feedback", "masstool", "mlc", "toolrefiner", "toolrerank")
    },
}


class _MovedModules:
    """Finds a module of version 0.2 under its new name. It is asked before the files, which would be read twice."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how to load a module that has moved; None for every other one."""
        if not name.startswith("toolscout."):
            return None
        parts = name.split(".")
        for end in range(len(parts), 1, -1):
            if new := MOVED_MODULES.get(".".join(parts[:end])):
                new = ".".join([new, *parts[end:]])
                warnings.warn(f"{name} is now {new}", DeprecationWarning, stacklevel=2)
                return ModuleSpec(name, _NewName(new))  # type: ignore[arg-type]
        return None


class _NewName:
    """Loads a module under its new name, so that both names are one module."""

    def __init__(self, new: str) -> None:
        self.new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module under its new name."""
        self.module = importlib.import_module(self.new)
        self.spec = self.module.__spec__
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back: it has run, and keeps its new name."""
        module.__spec__ = self.spec


def install() -> None:
    """Let imports of moved modules find them."""
    sys.meta_path.insert(0, _MovedModules)
