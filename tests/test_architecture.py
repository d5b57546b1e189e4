"""The house of docs/understand/concepts.md: who may import whom, how long a file may be, what a file may not do.

The search engine lies in `recipes`, not in `search`: it builds recipes and their abstention, which lie above `search`.
`plugins` lies below all that plug-ins add to, and imports only errors.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import toolscout

ROOT = Path(toolscout.__file__).parent
LAYERS = [
    {"types", "errors", "arrays"},
    {"privacy", "plugins"},
    {"config", "database", "metrics", "dataset"},
    {"sources", "llm", "encoders", "indexes", "models", "access", "journal"},
    {"catalogue"},
    {"search", "training"},
    {"workspace"},
    {"abstain"},
    {"methods"},
    {"recipes"},
    {"scout"},
    {"checks"},
    {"learn"},
    {"server", "gateway", "adapters"},
    {"lab"},
    {"cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
TESTING_MAY = RANK["search"]
WITHIN = {("types", "errors")}  # the one pair of a layer that may: values raise errors
DOORS = {
    ("scout", "learn"): "scout.py",  # `Scout.learn` is a lazy call to its right
    ("testing", "recipes"): "testing/methods.py",  # `check_method` fits, saves and loads
    ("testing", "methods"): "testing/methods.py",
    ("testing", "workspace"): "testing/methods.py",
}
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
        if room == own or (own, room) in WITHIN:
            continue
        if DOORS.get((own, room)) == path.relative_to(ROOT).as_posix():
            continue
        if own == "testing":
            assert RANK[room] <= TESTING_MAY, f"testing may not import {room}"
        else:
            assert room != "testing" and RANK[room] < RANK[own], f"{own} may not import {room} ({path})"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_commands_import_the_laboratory(path: Path) -> None:
    if module_of(path) not in ("lab", "cli"):
        assert "lab" not in {target[0] for target in imports(path)}


def test_the_library_s_door_to_learning_is_lazy() -> None:
    tree = ast.parse((ROOT / "scout.py").read_text())
    at_import = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert "toolscout.learn.loop" not in {node.module for node in at_import}


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


def test_the_page_on_concepts_shows_the_layers() -> None:
    page = (ROOT.parent.parent / "docs" / "understand" / "concepts.md").read_text()
    shown = page.partition("## Layers")[2].partition("```text\n")[2].partition("```")[0]
    assert [set(line.split(", ")) for line in shown.splitlines()] == LAYERS
