"""Keeps the module names of version 0.2 importable, with a warning that says the new name.

For example, `import toolscout.config` gives `toolscout.settings`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

__all__ = ["MOVED_MODULES", "install"]

_MOVED_MODULES_FILE: Final = Path(__file__).with_name("data") / "moved_modules.txt"
#: Old name → new name. The longest old name that a module begins with decides.
MOVED_MODULES: Final = dict(
    line.split() for line in _MOVED_MODULES_FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
)


class _MovedModules:
    """Finds a module of version 0.2 under its new name.

    Python asks it before it looks for files. Otherwise it would find the file of the new name in a package that has
    moved, and run it a second time, as another module.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how to load a module that has moved; None for every other one."""
        if not name.startswith("toolscout."):
            return None
        parts = name.split(".")
        for n_parts in range(len(parts), 1, -1):  # the longest beginning of the name first
            if new_beginning := MOVED_MODULES.get(".".join(parts[:n_parts])):
                new = ".".join([new_beginning, *parts[n_parts:]])
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
        """Set the module's own spec again, because Python has set the old name's spec. The module has run already."""
        module.__spec__ = self.spec


def install() -> None:
    """Let imports of moved modules find them."""
    sys.meta_path.insert(0, _MovedModules)
