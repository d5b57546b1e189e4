"""The house of docs/understand/concepts.md: who may import whom, how many rooms there are, what a file may not do.

The search engine lies in `recipes`, not in `search`: it builds recipes and their abstention, which lie above `search`.
`plugins` lies below all that plug-ins add to, and imports only errors. `home`, the address of a home, lies beside it:
settings name it, and the database connects to it. So does `sandbox`, which sources and the gateway use alike. Its file
`child.py` alone may execute text: an agent's program, in a process without rights.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import toolscout

ROOT = Path(toolscout.__file__).parent
LAYERS = [
    {"types", "errors", "arrays"},
    {"privacy", "plugins", "home", "sandbox"},
    {"config", "database", "metrics", "dataset"},
    {"sources", "llm", "encoders", "models", "access", "journal"},
    {"indexes"},
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
EXECUTES = ROOT / "sandbox" / "child.py"
PICKLERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
MAX_ROOMS = 36  # folders and files at the top that hold code
TESTING_MAY = RANK["search"]
# Pairs of a layer that may: values raise errors, and packages bring homes.
WITHIN = {("types", "errors"), ("home", "plugins")}
DOORS = {
    ("scout", "learn"): "scout.py",  # `Scout.learn` is a lazy call to its right
    ("testing", "recipes"): "testing/methods.py",  # `check_method` fits, saves and loads
    ("testing", "methods"): "testing/methods.py",
    ("testing", "workspace"): "testing/methods.py",
}


@functools.cache
def parse_files() -> dict[Path, ast.Module]:
    """The tree of every file; parsing takes too long for processes that only collect the tests."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}


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
    if own in ("__init__", "__main__", room) or (own, room) in WITHIN:
        return True
    if DOORS.get((own, room)) == path.relative_to(ROOT).as_posix():
        return True
    if own == "testing":
        return RANK[room] <= TESTING_MAY
    return room != "testing" and RANK[room] < RANK[own]


def test_a_module_imports_only_from_layers_to_its_left() -> None:
    named = {(path, target[0]) for path in parse_files() for target in imports(path)}
    assert len(named) > len(parse_files())
    assert sorted({room for _, room in named} - RANK.keys() - {"testing"}) == [], "these have no place in the house"
    assert sorted(f"{path} imports {room}" for path, room in named if not may_import(path, room)) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    trees = {}
    for path, tree in parse_files().items():
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        trees[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = tree
    assert "toolscout.gateway.server" in trees
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


def test_the_house_has_few_rooms() -> None:
    code = {path.relative_to(ROOT).parts[0] for suffix in ("py", "js") for path in ROOT.rglob(f"*.{suffix}")}
    assert {"scout.py", "gateway"} <= code and len(code) <= MAX_ROOMS, sorted(code)


def test_only_commands_import_the_laboratory() -> None:
    importing = {path for path in parse_files() if "lab" in {target[0] for target in imports(path)}}
    assert importing and sorted(path for path in importing if module_of(path) not in ("lab", "cli")) == []


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
    rooms = {module_of(path) for path in parse_files()} - {"__init__", "__main__", "testing"}
    assert rooms <= set(RANK)


def test_the_page_on_concepts_shows_the_layers() -> None:
    page = (ROOT.parent.parent / "docs" / "understand" / "concepts.md").read_text()
    shown = page.partition("## Layers")[2].partition("```text\n")[2].partition("```")[0]
    assert [set(line.split(", ")) for line in shown.splitlines()] == LAYERS
