"""The house: which rooms the core has, who may import whom, and what no file may do.

The core imports no package of `packages/`, and no package imports another. What the core needs of a package it finds by
entry point. Of all files, `toolscout_gateway/sandbox/child.py` alone may execute text: an agent's program, in a process
without rights.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ROOT = REPOSITORY / "src" / "toolscout"
PACKAGES = {
    f"toolscout_{folder.name}": folder / "src" / f"toolscout_{folder.name}"
    for folder in sorted((REPOSITORY / "packages").iterdir())
    if folder.name != "compact"
}
FLOORS = [
    {"types", "errors", "arrays", "plugins", "location", "metrics", "dataset", "vocabulary"},
    {"trust", "settings"},
    {"sources", "encoders"},
    {"indexes"},
    {"home"},
    {"search"},
    {"rankers", "recipes", "scout"},
    {"checks", "learn", "adapters", "testing"},
    {"cli"},
]
MAX_ROOMS, MAX_FLOORS, MAX_FILES_IN_FOLDER = 12, 9, 20
RANK = {name: rank for rank, floor in enumerate(FLOORS) for name in floor}
#: Pairs on one floor of which the first may import the second.
WITHIN = {
    *((name, "errors") for name in FLOORS[0] - {"errors"}),
    *((name, "types") for name in ("dataset", "plugins")),
    ("metrics", "arrays"),
    ("location", "plugins"),
    ("settings", "trust"),
    ("recipes", "rankers"),
    ("scout", "recipes"),
    ("checks", "learn"),
    ("testing", "checks"),
}
DOORS = {("scout", "learn"): "scout.py"}  # `Scout.learn` calls it when it is called
EXECUTES = PACKAGES["toolscout_gateway"] / "sandbox" / "child.py"
PICKLERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


@functools.cache
def parse_files() -> dict[Path, ast.Module]:
    """The tree of every file of the core and of the packages."""
    paths = [path for root in (ROOT, *PACKAGES.values()) for path in sorted(root.rglob("*.py"))]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def list_core_files() -> list[Path]:
    return [path for path in parse_files() if path.is_relative_to(ROOT)]


def module_of(path: Path) -> str:
    """The room a file belongs to: its folder, or its own name at the top."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


@functools.cache
def imports(path: Path) -> set[tuple[str, ...]]:
    """The toolscout modules that a file names in its imports, wherever in the file they stand."""
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(parse_files()[path]):
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


def list_imports(name: str, tree: ast.Module, modules: Collection[str]) -> Iterator[str]:
    """The modules that a module imports: lazily, and for its types alone, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                target = submodule if submodule in modules else node.module
                if target != name:
                    yield target


def find_circle(trees: dict[str, ast.Module]) -> list[str]:
    """Modules that import each other in a circle, in that order. Empty if there is none."""
    try:
        TopologicalSorter({name: set(list_imports(name, tree, trees)) for name, tree in trees.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def may_import(path: Path, room: str) -> bool:
    own = module_of(path)
    if own in ("__init__", "__main__", "_moved", room) or (own, room) in WITHIN:
        return True
    if DOORS.get((own, room)) == path.relative_to(ROOT).as_posix():
        return True
    return RANK[room] < RANK[own]


def test_a_room_imports_only_from_the_floors_below() -> None:
    named = {(path, target[0]) for path in list_core_files() for target in imports(path)}
    assert len(named) > len(list_core_files())
    assert sorted({room for _, room in named} - {*RANK, "_moved"}) == [], "these have no place in the house"
    assert sorted(f"{path} imports {room}" for path, room in named if not may_import(path, room)) == []


def list_packages(path: Path) -> set[str]:
    """The packages of this repository that a file names in its imports, wherever in the file they stand."""
    names = {
        name
        for node in ast.walk(parse_files()[path])
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    return {name.split(".")[0] for name in names if name.startswith("toolscout")}


def test_the_core_imports_no_package_and_no_package_imports_another() -> None:
    wrong = [
        f"{path}: {other}"
        for path in parse_files()
        for other in list_packages(path) - {"toolscout"}
        if other != next((name for name, root in PACKAGES.items() if path.is_relative_to(root)), "")
    ]
    assert wrong == []
    assert set(PACKAGES) >= {"toolscout_gateway", "toolscout_lab", "toolscout_postgres", "toolscout_server"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    trees = {}
    for path, tree in parse_files().items():
        root = next(root for root in (ROOT, *PACKAGES.values()) if path.is_relative_to(root))
        parts = path.relative_to(root.parent).with_suffix("").parts
        trees[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = tree
    assert "toolscout_gateway.server" in trees
    del trees["toolscout_postgres.address"]  # a home's face: its methods import what they open
    del trees["toolscout"]  # the package's face hands names on, and everything may read its version
    assert find_circle(trees) == []


@pytest.mark.parametrize(
    "back",
    [
        "from a import b",
        "import a.b",
        "def load():\n    from a.b import c",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.b import C",
    ],
)
def test_a_circle_is_found_however_it_is_hidden(back: str) -> None:
    texts = {"a": "", "a.b": "from a.c import d", "a.c": back}
    circle = find_circle({name: ast.parse(text) for name, text in texts.items()})
    assert set(circle) == {"a.b", "a.c"}


def test_the_house_has_few_rooms_on_few_floors() -> None:
    rooms = {path.relative_to(ROOT).parts[0] for path in list_core_files() if path.parent != ROOT}
    assert "search" in rooms and len(rooms) <= MAX_ROOMS, sorted(rooms)
    assert len(FLOORS) <= MAX_FLOORS


def test_a_folder_has_few_files() -> None:
    counts = {folder: len([*folder.glob("*.py")]) for folder in {path.parent for path in parse_files()}}
    crowded = {str(folder): count for folder, count in counts.items() if count > MAX_FILES_IN_FOLDER + 1}
    assert crowded == {}, "__init__.py aside, at most 20 modules"


def test_the_library_s_door_to_learning_is_lazy() -> None:
    tree = ast.parse((ROOT / "scout.py").read_text())
    at_import = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert "toolscout.learn.loop" not in {node.module for node in at_import}


def is_banned(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return bool(PICKLERS & {alias.name.split(".")[0] for alias in node.names})
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in PICKLERS
    if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
        return not (isinstance(node.value, ast.Constant) and node.value.value is False)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec", "print"}


def test_nothing_is_pickled_evaluated_or_printed() -> None:
    for text in ("import pickle", "from joblib import load", "f(allow_pickle=True)", "print(1)"):
        assert any(map(is_banned, ast.walk(ast.parse(text))))
    places = [
        f"{path}:{getattr(node, 'lineno', 0)}"
        for path in parse_files()
        for node in ast.walk(parse_files()[path])
        if is_banned(node)
    ]
    [execution] = [place for place in places if place.startswith(f"{EXECUTES}:")]
    assert places == [execution]


def test_every_file_has_a_place_in_the_house() -> None:
    rooms = {module_of(path) for path in list_core_files()} - {"__init__", "__main__", "_moved"}
    assert rooms == set(RANK)


def test_the_page_on_concepts_shows_the_floors() -> None:
    page = (REPOSITORY / "docs" / "understand" / "concepts.md").read_text()
    shown = page.partition("## Layers")[2].partition("```\n")[2].partition("```")[0]
    assert [set(line.split(", ")) for line in shown.splitlines()] == FLOORS
