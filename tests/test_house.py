"""The house in numbers: names that say something, one meaning for a constant, files and lines that can be read."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import toolscout

ROOT = Path(toolscout.__file__).parent
MAX_TOP_MODULES = 14
MAX_FILE_LINES = 1000
MAX_LINE_CHARS = 120
MAX_SHARE = 0.01
MAX_BRANCHES = 12
MAX_BRANCHY_FUNCTIONS = 10  # of more branches than that
MAX_PARAMETERS = 8
PARTICIPLES = {
    *("found", "held", "told", "said", "kept", "known", "drawn", "shown", "bent", "spoken", "made", "seen", "put"),
    *("written", "taken", "given", "done"),
}
FILLERS = {
    *("found", "held", "given", "wanted", "each", "asked", "kept", "known", "said", "told", "whole", "some", "here"),
    *("there", "want", "more", "most", "other", "others", "own", "both", "such"),
}
VERBS = {"embed", "seed", "feed", "need"}
BRANCHES = (
    *(ast.If, ast.For, ast.While, ast.AsyncFor, ast.ExceptHandler, ast.IfExp, ast.Assert, ast.comprehension),
    ast.match_case,
)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@functools.cache
def parse_files() -> dict[Path, ast.Module]:
    """The tree of every file; parsing takes too long for processes that only collect the tests."""
    paths = sorted(ROOT.rglob("*.py"))
    return {path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@functools.cache
def functions() -> list[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    return [
        (path, node)
        for path, tree in parse_files().items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def is_bare_participle(name: str) -> bool:
    name = name.strip("_")
    return name in PARTICIPLES or (bool(re.fullmatch(r"[a-z]+ed", name)) and name not in VERBS)


def count_branches(function: ast.AST) -> int:
    """One, and one more for each place where the flow may part; functions inside count by themselves."""
    count, inside = 1, list(ast.iter_child_nodes(function))
    while inside:
        node = inside.pop()
        if not isinstance(node, SCOPES):
            count += isinstance(node, BRANCHES) + (len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0)
            inside += ast.iter_child_nodes(node)
    return count


def is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether click calls it: with an argument for each option."""
    return any("command(" in ast.unparse(decorator) for decorator in function.decorator_list)


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Names that statements bind; those of comprehensions are read in one line and may be short."""
    nodes = list(ast.walk(tree))
    targets = [generator.target for node in nodes if isinstance(node, COMPREHENSIONS) for generator in node.generators]
    inside = {id(name) for target in targets for name in ast.walk(target)}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in inside:
            yield node.id


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, (ast.AnnAssign, ast.Assign)) and node.value is not None:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id.isupper() and len(target.id) > 1:
                yield target.id, ast.unparse(node.value)


def test_few_modules_stand_at_the_top_of_the_package() -> None:
    modules = sorted(path.name for path in ROOT.glob("*.py"))
    assert len(modules) <= MAX_TOP_MODULES, (
        f"{len(modules)} modules at the top of src/toolscout, at most {MAX_TOP_MODULES}: move the new one into a room "
        f"(CONTRIBUTING.md lists them): {modules}"
    )


def test_functions_are_verbs_with_objects() -> None:
    names = [
        f"{path}:{node.name}"
        for path, node in functions()
        if is_bare_participle(node.name) and not any("property" in ast.unparse(each) for each in node.decorator_list)
    ]
    most = int(MAX_SHARE * len(functions()))
    assert len(names) <= most, (
        f"{len(names)} functions are named by a participle alone, at most {most}: name yours by a verb and "
        f"its object, such as `collect_evidence`: {names}"
    )


def test_variables_say_what_they_hold() -> None:
    bound = [f"{path}:{name}" for path, tree in parse_files().items() for name in bound_names(tree)]
    fillers = [each for each in bound if each.rpartition(":")[2] in FILLERS]
    most = int(MAX_SHARE * len(bound))
    assert len(fillers) <= most, (
        f"{len(fillers)} variables say nothing of what they contain, at most {most}: rename yours, "
        f"such as `found` to `hits`: {fillers}"
    )


def test_a_constant_has_one_meaning_in_the_whole_package() -> None:
    meanings: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for path, tree in parse_files().items():
        for name, value in constants(tree):
            meanings[name][str(path)] = value
    several = {name: where for name, where in meanings.items() if len(set(where.values())) > 1}
    assert several == {}, f"constants with several values: rename all but one, by what they bound: {several}"


def test_few_functions_have_many_branches() -> None:
    branchy = [
        f"{path}:{node.name} ({count_branches(node)})"
        for path, node in functions()
        if count_branches(node) > MAX_BRANCHES
    ]
    assert len(branchy) <= MAX_BRANCHY_FUNCTIONS, (
        f"{len(branchy)} functions have more than {MAX_BRANCHES} branches, at most {MAX_BRANCHY_FUNCTIONS} may: "
        f"move a part of yours into a function with a name of its own: {branchy}"
    )


def test_no_function_takes_many_arguments() -> None:
    long = []
    for path, node in functions():
        arguments = {each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        if len(arguments - {"self", "cls"}) > MAX_PARAMETERS and not is_command(node):
            long.append(f"{path}:{node.name}")
    assert long == [], f"more than {MAX_PARAMETERS} parameters: put those that belong together into a class: {long}"


def test_a_file_can_be_read_in_one_sitting() -> None:
    lines = {path: (ROOT / path).read_text(encoding="utf-8").splitlines() for path in parse_files()}
    large = [f"{path} ({len(lines[path]):,} lines)" for path in lines if len(lines[path]) > MAX_FILE_LINES]
    assert large == [], f"more than {MAX_FILE_LINES:,} lines: part the file where its ideas part: {large}"
    long = [f"{path}:{n}" for path in lines for n, line in enumerate(lines[path], 1) if len(line) > MAX_LINE_CHARS]
    assert long == [], f"more than {MAX_LINE_CHARS} characters: break the line: {long}"
