"""The house of docs/concepts.md: who may import whom, how long a file may be, what a file may not do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import toolscout

ROOT = Path(toolscout.__file__).parent
LAYERS = [
    {"types", "errors"},
    {"private_files", "redaction"},
    {"trusted_folders"},
    {"config", "credentials", "pipeline", "metrics", "dataset", "database", "pins", "invisible"},
    {"store", "vectors", "readings", "confusables"},
    {
        "llm",
        "encoders",
        "fusion",
        "sources",
        "indexes",
        "journal",
        "models",
        "policy",
        "names",
        "injection",
        "stuffing",
    },
    {"training", "trust", "similar", "why", "champion", "buckets", "evidence", "listening", "probes", "signals"},
    {"lint"},
    {"methods"},
    {"recipes"},
    {"ways", "decision", "inventory", "demote"},
    {"scout"},
    {"lab"},
    {"learn", "selftest"},
    {"server", "gateway", "adapters"},
    {"cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
TESTING_MAY = max(RANK["models"], RANK["names"])
WITHIN = {("types", "errors")}  # the one pair of a layer that may: values raise errors
DOOR = ("scout", "learn")  # `Scout.learn` is a lazy call to its right: the one exception
FILES = sorted(ROOT.rglob("*.py"))


def module_of(path: Path) -> str:
    """The room a file belongs to: its folder, or its own name at the top."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def imports(path: Path) -> set[tuple[str, ...]]:
    """The toolscout modules that a file names in its imports, wherever in the file they stand."""
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "toolscout":
                found |= {
                    (alias.name,)
                    for alias in node.names
                    if (ROOT / f"{alias.name}.py").exists() or (ROOT / alias.name).is_dir()
                }
            elif node.module and node.module.startswith("toolscout."):
                found.add(tuple(node.module.split(".")[1:]))
        elif isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")[1:]) for alias in node.names if alias.name.startswith("toolscout.")}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_layers_to_its_left(path: Path) -> None:
    own = module_of(path)
    if own in ("__init__", "__main__"):
        return
    for target in imports(path):
        room = target[0]
        assert room in RANK or room == "testing", f"{path.name} imports {room}, which has no place in the house"
        if room == own or (own, room) in WITHIN or (own, *target) == DOOR:
            continue
        if own == "testing":
            assert RANK[room] <= TESTING_MAY, f"testing may not import {room}"
        else:
            assert room != "testing" and RANK[room] < RANK[own], f"{own} may not import {room} ({path})"


def test_the_library_s_door_to_learning_is_lazy() -> None:
    tree = ast.parse((ROOT / "scout.py").read_text())
    at_import = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert "toolscout.learn.loop" not in {node.module for node in at_import}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_longer_than_six_hundred_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 600


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_pickled_evaluated_or_printed(path: Path) -> None:
    tree = ast.parse(path.read_text())
    banned = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not banned & {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in banned
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant) and node.value.value is False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec", "print"}


def test_every_file_has_a_place_in_the_house() -> None:
    rooms = {module_of(path) for path in FILES} - {"__init__", "__main__", "testing"}
    assert rooms <= set(RANK)
