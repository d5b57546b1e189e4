"""The house of docs/understand/concepts.md: who may import whom, how long a file may be, what a file may not do.

The search engine lies in `recipes`, not in `search`: it builds recipes and their abstention, which lie above `search`.
`plugins` lies below all that plug-ins add to, and imports only errors. `home`, the address of a home, lies beside it:
settings name it, and the database connects to it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import toolscout

ROOT = Path(toolscout.__file__).parent
LAYERS = [
    {"types", "errors", "arrays"},
    {"privacy", "plugins", "home"},
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
PICKLERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
TESTING_MAY = RANK["search"]
WITHIN = {("types", "errors")}  # the one pair of a layer that may: values raise errors
DOORS = {
    ("scout", "learn"): "scout.py",  # `Scout.learn` is a lazy call to its right
    ("testing", "recipes"): "testing/methods.py",  # `check_method` fits, saves and loads
    ("testing", "methods"): "testing/methods.py",
    ("testing", "workspace"): "testing/methods.py",
}
FILES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}


def module_of(path: Path) -> str:
    """The room a file belongs to: its folder, or its own name at the top."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def imports(path: Path) -> set[tuple[str, ...]]:
    """The toolscout modules that a file names in its imports, wherever in the file they stand."""
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(FILES[path]):
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
    named = {(path, target[0]) for path in FILES for target in imports(path)}
    assert len(named) > len(FILES)
    assert sorted({room for _, room in named} - RANK.keys() - {"testing"}) == [], "these have no place in the house"
    assert sorted(f"{path} imports {room}" for path, room in named if not may_import(path, room)) == []


def test_only_commands_import_the_laboratory() -> None:
    importing = {path for path in FILES if "lab" in {target[0] for target in imports(path)}}
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
        f"{path}:{getattr(node, 'lineno', 0)}" for path in FILES for node in ast.walk(FILES[path]) if is_banned(node)
    ]
    assert places == []


def test_every_file_has_a_place_in_the_house() -> None:
    rooms = {module_of(path) for path in FILES} - {"__init__", "__main__", "testing"}
    assert rooms <= set(RANK)


def test_the_page_on_concepts_shows_the_layers() -> None:
    page = (ROOT.parent.parent / "docs" / "understand" / "concepts.md").read_text()
    shown = page.partition("## Layers")[2].partition("```text\n")[2].partition("```")[0]
    assert [set(line.split(", ")) for line in shown.splitlines()] == LAYERS
