"""Loads a script of this repository as a module, without leaving compiled files beside it."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def load_script(path: str) -> ModuleType:
    """Load a script by its path from the root, with or without a suffix; it may import from its own folder."""
    file = ROOT / path
    loader = SourceFileLoader(f"script_{file.stem}", str(file))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    sys.path.insert(0, str(file.parent))
    try:
        loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
        sys.dont_write_bytecode = before
    return module
