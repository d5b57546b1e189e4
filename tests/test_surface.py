"""What is public is declared, sorted and there."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import toolscout

MODULES = sorted(
    info.name for info in pkgutil.walk_packages(toolscout.__path__, "toolscout.") if not info.name.endswith("__main__")
)


def test_the_public_names_are_sorted_and_each_loads() -> None:
    names = [name for name in toolscout.__all__ if name != "__version__"]
    assert names == sorted(names)
    for name in toolscout.__all__:
        assert getattr(toolscout, name) is not None
    assert dir(toolscout) == sorted(toolscout.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Scot'"):
        _ = toolscout.Scot


def test_a_module_that_declares_names_has_them_all_and_each_once() -> None:
    wrong = []
    for name in (name for name in MODULES if not name.startswith("toolscout.cli")):
        module = importlib.import_module(name)
        declared = getattr(module, "__all__", ())
        if len(set(declared)) < len(declared) or not all(hasattr(module, each) for each in declared):
            wrong.append(name)
    assert len(MODULES) > 100 and wrong == []


def test_public_functions_and_classes_are_documented() -> None:
    for name in toolscout.__all__:
        value = getattr(toolscout, name)
        assert isinstance(value, str) or (value.__doc__ or "").strip(), name
