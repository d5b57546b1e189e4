from __future__ import annotations

import dataclasses
import enum
import json
import os
import re
import subprocess
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pytest

from toolscout.errors import BadEntry, SourceError
from toolscout.settings import Settings
from toolscout.sources import Reading, detect
from toolscout.sources.callables import build_type_schema
from toolscout.sources.python import describe_callable, read
from toolscout.types import Tool


def read_one(locator: str) -> Reading:
    (reading,) = read(locator, name=None, settings=Settings())
    return reading


@pytest.fixture(scope="module")
def stdlib() -> Reading:
    return read_one("py:stdlib")


def by_name(reading: Reading) -> dict[str, Tool]:
    return {tool.name: tool for tool in reading.tools}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Write a package of the given files into a folder on sys.path; forgotten afterwards."""
    names: list[str] = []

    def make(name: str, **files: str) -> str:
        names.append(name)
        for file, text in {"__init__": "", **files}.items():
            path = tmp_path / name / f"{file.replace('__slash__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        return f"py:{name}"

    monkeypatch.syspath_prepend(str(tmp_path))
    yield make
    for module in [module for module in sys.modules if module.partition(".")[0] in names]:
        del sys.modules[module]


# --- one callable -----------------------------------------------------------------------------------------------------


def test_a_default_with_a_memory_address_is_the_same_in_every_run() -> None:
    def connect(mark: str = str(object())) -> None:
        """Connect."""

    tool = describe_callable("s", connect)
    assert (tool.parameters, tool.meta["signature"]) == (
        {"type": "object", "properties": {"mark": {"type": "string"}}},
        "connect(mark: str = ...) -> None",
    )


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(TypedDict):
    x: int


class Pixel(Point, total=False):
    colour: Colour


@dataclasses.dataclass
class Box:
    width: int
    label: str = "box"
    parent: Optional[Box] = None  # noqa: UP045


STYLES = {
    "google": """Move a thing.

        It may take a while.

        Args:
            thing: what to move.
            steps: how far.

        Returns:
            Whether it moved.
        """,
    "numpy": """Move a thing.

        It may take a while.

        Parameters
        ----------
        thing : str
            what to move.
        steps : int, optional
            how far.

        Returns
        -------
        bool
            Whether it moved.
        """,
    "sphinx": """Move a thing.

        It may take a while.

        :param thing: what to move.
        :param steps: how far.
        :returns: Whether it moved.
        """,
    "epydoc": """Move a thing.

        It may take a while.

        @param thing: what to move.
        @param steps: how far.
        @return: Whether it moved.
        """,
}


@pytest.mark.parametrize("style", STYLES)
def test_each_docstring_style_describes_the_parameters(style: str) -> None:
    def move(thing: str, steps: int = 1) -> bool:
        raise AssertionError("nothing is called")

    move.__doc__ = STYLES[style]
    tool = describe_callable("s", move)
    assert tool.id == "s/move"
    assert tool.description == "Move a thing.\nIt may take a while."
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "thing": {"type": "string", "description": "what to move."},
            "steps": {"type": "integer", "description": "how far.", "default": 1},
        },
        "required": ["thing"],
    }
    assert tool.returns["type"] == "boolean"
    assert "Whether it moved." in tool.returns["description"]
    assert tool.meta["signature"] == "move(thing: str, steps: int = 1) -> bool"
    assert not tool.callable


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (tuple[int, str], {"type": "array"}),
        (typing.List, {"type": "array"}),  # noqa: UP006
        (dict, {"type": "object"}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Optional[int], {"type": ["integer", "null"]}),  # noqa: UP045
        (int | str, {"type": ["integer", "string"]}),
        ("list[int] | None", {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Colour, {"enum": ["red", "blue"]}),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (Any, {}),
        (bytes, {}),
        (int | bytes, {}),
        ("no such name", {}),
        ("Unknown | None", {}),
    ],
)
def test_annotations_become_json_schema(annotation: Any, schema: dict[str, Any]) -> None:
    assert build_type_schema(annotation) == schema


def test_records_become_objects_and_recursion_ends() -> None:
    pixel = build_type_schema(Pixel)
    assert pixel["properties"] == {"x": {"type": "integer"}, "colour": {"enum": ["red", "blue"]}}
    assert pixel["required"] == ["x"]
    box = build_type_schema(Box)
    assert box["required"] == ["width"]
    assert box["properties"]["label"] == {"type": "string", "default": "box"}
    assert len(json.dumps(box)) < 5_000


def test_stars_defaults_and_unknown_types_are_said() -> None:
    def mix(first, *rest: int, path="/usr/lib/x", when: bytes = b"", kind=object(), **options):  # type: ignore[no-untyped-def]  # noqa: B008
        """Mix it."""

    tool = describe_callable("s", mix)
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "first": {},
            "rest": {"type": "array", "items": {"type": "integer"}},
            "path": {},
            "when": {"description": "(bytes)"},
            "kind": {},
        },
        "additionalProperties": True,
        "required": ["first"],
    }
    assert "object object" not in tool.meta["signature"]


def test_builtins_without_a_signature_are_read_from_their_docstring() -> None:
    tool = describe_callable("s", max)
    assert tool.description.startswith("With a single iterable argument, return its biggest item.")
    assert tool.parameters is not None
    assert set(tool.parameters["properties"]) == {"iterable", "default", "key"}
    assert tool.parameters["required"] == ["iterable"]
    assert describe_callable("s", dict.fromkeys).description


@pytest.mark.parametrize(
    ("docstring", "description"),
    [
        ("AnnAssign(expr target, expr? value, int simple)", ""),
        ("gmtime([seconds]) -> (tm_year, tm_mon,\n   tm_wday)\n\nConvert seconds.", "Convert seconds."),
        ("allocate() -> lock\n(an obsolete synonym)\n\nCreate a lock.", "Create a lock."),
        ("aclose() -> raise GeneratorExit inside generator.", "raise GeneratorExit inside generator."),
        ("date(year, month) --> date object", "date object"),
        ("D.insert(index, object) -- insert object before index", "insert object before index"),
        ("enable(file=sys.stderr): enable the\nfault handler", "enable the fault handler"),
        ("dict() -> new dictionary\ndict(mapping) -> from a mapping", "new dictionary"),
        ("open(path) is what you need.", "open(path) is what you need."),
    ],
)
def test_a_leading_call_is_no_description(docstring: str, description: str) -> None:
    def function() -> None: ...

    function.__doc__ = docstring
    assert describe_callable("s", function).description == description


@pytest.mark.parametrize("function", [lambda x: x, 5])
def test_what_has_no_name_is_refused(function: Any) -> None:
    with pytest.raises(BadEntry, match="expected a function with a name"):
        describe_callable("s", function)


def test_an_object_that_breaks_when_looked_at_is_refused() -> None:
    class Hostile:
        @property
        def __name__(self) -> str:  # type: ignore[override]
            raise RuntimeError("boo")

        def __call__(self) -> None: ...

    with pytest.raises(BadEntry, match="found RuntimeError: boo"):
        describe_callable("s", Hostile())


# --- modules ----------------------------------------------------------------------------------------------------------


def test_a_package_gives_each_public_function_once_under_its_shortest_path(package: Callable[..., str]) -> None:
    locator = package(
        "ts_pack",
        __init__="""
            import os
            from os.path import join
            from ts_pack.inner import work
            def _hidden(): ...
            """,
        inner="""
            from ts_pack.other import helper
            def work(): "Do it."
            def more(): "Do more."
            class Thing:
                "A thing."
                def method(self): ...
            class Trouble(Exception): "No tool."
            """,
        other='def helper(): "Help."',
        _private="def never(): ...",
        test_inner="raise AssertionError('tests are not imported')",
        tests__slash____init__="raise AssertionError('tests are not imported')",
        conftest="raise AssertionError('tests are not imported')",
        __main__="raise AssertionError('programs are not imported')",
    )
    reading = read_one(locator)
    assert reading.problems == []
    assert reading.message == "imported ts_pack"
    assert detect(locator) == "python"
    tools = by_name(reading)
    assert list(tools) == ["ts_pack.inner.Thing", "ts_pack.inner.more", "ts_pack.other.helper", "ts_pack.work"]
    assert tools["ts_pack.inner.more"].path == ("ts_pack", "ts_pack.inner")
    assert tools["ts_pack.work"].id == "ts_pack/ts_pack.work"
    assert tools["ts_pack.work"].meta == {"module": "ts_pack", "qualname": "work", "signature": "work()"}


def test_a_package_gives_the_documented_methods_and_properties_of_its_classes(package: Callable[..., str]) -> None:
    locator = package(
        "ts_classes",
        __init__="""
            import functools
            from ts_classes._base import Base
            from ts_classes.shape import Shape, Square
            """,
        _base="""
            import functools
            class Base:
                "Internal, and not public below this package's name."
                def grow(self, by: int) -> None: "Grow."
            class Words:
                "Words of a shape."
                def upper(self): "In capitals."
                class Deeper:
                    "Too deep."
                    def sink(self): "Sink."
            class Accessor:
                def __init__(self, gives): self.gives = gives
                def __get__(self, owner, kind): return self.gives
            """,
        shape="""
            import functools
            from collections import UserDict
            from ts_classes._base import Accessor, Words
            __all__ = ["Shape", "Square"]
            class _Hidden:
                def scale(self, by: float): "Scale it."
            class Shape(_Hidden, UserDict):
                "A shape."
                words = Accessor(Words)
                colour = "red"
                @property
                def area(self) -> float:
                    "The area.\\n\\nReturns:\\n    In square metres."
                @functools.cached_property
                def edges(self): "The edges."
                @property
                def undocumented(self): ...
                @classmethod
                def unit(cls, size: int): "Of size one."
                @staticmethod
                def sort(shapes: list): "Sort them."
                def bare(self): ...
                def _private(self): "Not public."
            class Square(Shape):
                "A square."
                def unit_square(self): "Only here."
                def scale(self, by: float): "Scale a square."
            """,
        testing='def assert_same(): "A helper of tests."',
        f2py='def compile(): "A helper of builds."',
    )
    reading = read_one(locator)
    tools = by_name(reading)
    assert reading.problems == []
    shape = ("area", "edges", "scale", "sort", "unit", "words.upper")
    assert list(tools) == [
        *("ts_classes.Base", "ts_classes.Base.grow"),
        *("ts_classes.Shape", *(f"ts_classes.Shape.{name}" for name in shape)),
        *("ts_classes.Square", "ts_classes.Square.scale", "ts_classes.Square.unit_square"),
    ]
    area = tools["ts_classes.Shape.area"]
    assert (area.path, area.parameters) == (("ts_classes", "ts_classes.Shape"), {"type": "object", "properties": {}})
    assert area.meta == {
        "module": "ts_classes",
        "qualname": "Shape.area",
        "signature": "area",
        "member": "property",
    }
    assert area.description == "The area." and area.returns["type"] == "number"
    assert (tools["ts_classes.Shape.scale"].parameters or {})["required"] == ["by"]
    assert (tools["ts_classes.Shape.unit"].parameters or {})["required"] == ["size"]
    assert (tools["ts_classes.Shape.sort"].parameters or {})["required"] == ["shapes"]
    assert list(by_name(read_one("py:ts_classes.testing"))) == ["ts_classes.testing.assert_same"]
    one = by_name(read_one("py:ts_classes:Shape"))
    assert {"ts_classes.Shape.area", "ts_classes.Shape.scale", "ts_classes.Shape.bare"} <= set(one)


def test_doctests_are_kept_as_examples() -> None:
    def add(a: int) -> int:
        """Add one.

        >>> add(1)
        2

        Words between.
        >>> for number in range(2):
        ...     add(number)
        1
        2

        No example any more.
        """
        raise AssertionError("nothing is called")

    tool = describe_callable("s", add)
    assert tool.meta["examples"] == ">>> add(1)\n2\n\n>>> for number in range(2):\n...     add(number)\n1\n2"
    long = "\n".join(f">>> add({number})" for number in range(500))
    add.__doc__ = f"Add.\n\n{long}"
    examples = describe_callable("s", add).meta["examples"]
    assert 1_900 < len(examples) <= 2_000 and long.startswith(examples + "\n")


def test_a_package_that_declares_its_names_shows_only_those(package: Callable[..., str]) -> None:
    locator = package(
        "ts_declared",
        __init__="""
            __all__ = ["listed", "open_", "gone"]
            from os.path import join as open_
            def listed(): ...
            def unlisted(): ...
            """,
        core="def internal(): ...",
        extra="__all__ = ['offered']\ndef offered(): ...\ndef other(): ...",
    )
    reading = read_one(locator)
    assert list(by_name(reading)) == ["ts_declared.extra.offered", "ts_declared.listed", "ts_declared.open_"]
    assert [problem.entry for problem in reading.problems] == ["ts_declared.gone"]


def test_what_a_submodule_does_when_imported_is_contained_and_named(
    package: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    reading = read_one(
        package(
            "ts_rough",
            __init__='def fine(): "Fine."',
            absent="import no_such_module_anywhere",
            aborts="raise BaseException('stop')",
            exits="import sys; sys.exit(3)",
            loud="import warnings; print('noise'); warnings.warn('noise')\ndef heard(): ...",
            wrong="def (",
        )
    )
    assert list(by_name(reading)) == ["ts_rough.fine", "ts_rough.loud.heard"]
    assert [problem.entry for problem in reading.problems] == [
        f"ts_rough.{name}" for name in ("aborts", "absent", "exits", "wrong")
    ]
    assert "SystemExit" in reading.problems[2].message
    assert capsys.readouterr().out == ""


def test_an_interrupt_during_an_import_is_not_swallowed(package: Callable[..., str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        read_one(package("ts_interrupt", __init__="raise KeyboardInterrupt"))


@pytest.mark.parametrize(
    ("locator", "message"),
    [
        ("py:no_such_module_anywhere", "no module of that name here: install it"),
        ("py:json.no_such", "no module of that name here"),
        ("py:", "expected py:module or py:module:name"),
        ("py:../json", "expected py:module or py:module:name"),
        ("py:json:dunps", "did you mean 'dumps'"),
        ("py:json:__name__", "expected a function or a class, found a str"),
    ],
)
def test_a_locator_that_leads_nowhere_is_one_sentence(locator: str, message: str) -> None:
    with pytest.raises(SourceError, match=re.escape(message)):
        read_one(locator)


def test_one_function_or_the_methods_of_one_class_can_be_asked_for() -> None:
    (tool,) = read_one("py:json:dumps").tools
    assert (tool.id, tool.name, tool.path) == ("json.dumps/json.dumps", "json.dumps", ("python", "json"))
    reading = read_one("py:pathlib:Path")
    tools = by_name(reading)
    assert reading.source == "pathlib.Path"
    assert {"pathlib.Path.glob", "pathlib.Path.with_suffix", "pathlib.Path.home"} <= set(tools)
    glob = tools["pathlib.Path.glob"]
    assert glob.path == ("python", "pathlib.Path")
    assert "self" not in (glob.parameters or {})["properties"]
    assert glob.meta["module"] == "pathlib" and glob.meta["qualname"] == "Path.glob"


def test_the_standard_library_gives_thousands_of_documented_tools(stdlib: Reading) -> None:
    tools = by_name(stdlib)
    assert len(tools) >= 3_000
    assert stdlib.problems == []
    assert re.match(r"imported \d+ modules of Python 3\.", stdlib.message)
    assert stdlib.message.count(",") < 3  # on Linux a dozen modules of Windows are absent
    assert {"json.dumps", "os.path.join", "math.gcd", "pathlib.Path.glob", "builtins.str.split"} <= set(tools)
    assert tools["math.gcd"].path == ("python", "math")
    assert not {"typing.Text", "antigravity", "posix.getcwd"} & set(tools)
    assert not any(part.startswith("_") for name in tools for part in name.split("."))
    assert sum(1 for tool in tools.values() if tool.description) > 0.97 * len(tools)  # nodes of ast have none
    assert not [name for name, tool in tools.items() if re.match(r"[\w.]+\([^()]*\)\s*(->|$)", tool.description)]
    assert sum(1 for tool in tools.values() if tool.parameters is not None) > 0.9 * len(tools)
    assert not {"antigravity", "this", "idlelib", "turtle", "tkinter"} & set(sys.modules)


def test_numpy_functions_carry_the_types_and_words_of_their_docstrings() -> None:
    numpy = pytest.importorskip("numpy")
    reading = read_one("py:numpy")
    tools = by_name(reading)
    assert reading.problems == []
    assert reading.message == f"imported numpy {numpy.__version__}"
    norm = tools["numpy.linalg.norm"]
    assert norm.path == ("numpy", "numpy.linalg")
    assert norm.description.startswith("Matrix or vector norm.")
    assert (norm.parameters or {})["properties"]["x"]["description"].startswith("(array_like)")
    add = tools["numpy.add"].parameters or {}
    assert {"x1", "x2", "out"} <= set(add["properties"])
    assert "numpy.mean" in tools and "numpy._core.add" not in tools


def test_pandas_functions_and_the_methods_of_its_table_are_there() -> None:
    pytest.importorskip("pandas", reason="needs pandas")
    functions = by_name(read_one("py:pandas"))
    assert {"pandas.read_csv", "pandas.merge", "pandas.DataFrame"} <= set(functions)
    assert not any(name.startswith("pandas.core") for name in functions)
    assert {"pandas.DataFrame.size", "pandas.Series.size", "pandas.DataFrame.head", "pandas.Series.str.upper"} <= set(
        functions
    )
    assert len(functions) >= 1_200 and not any(name.startswith("pandas.testing") for name in functions)
    assert ">>> df" in functions["pandas.DataFrame.head"].meta["examples"]
    methods = by_name(read_one("py:pandas:DataFrame"))
    assert len(methods) > 150
    merge = methods["pandas.DataFrame.merge"]
    assert merge.path == ("pandas", "pandas.DataFrame")
    assert "right" in (merge.parameters or {})["required"]
    assert "self" not in (merge.parameters or {})["properties"]


PRINT_FINGERPRINTS = """
import sys
from toolscout.settings import Settings
from toolscout.sources.python import read
for locator in sys.argv[1:]:
    (reading,) = read(locator, name=None, settings=Settings())
    print(*(tool.fingerprint for tool in reading.tools), sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "least"),
    [
        pytest.param(["py:statistics", "py:typing", "py:asyncio", "py:numpy"], 500, id="some"),
        pytest.param(["py:stdlib", "py:numpy"], 3_000, marks=pytest.mark.full, id="all"),
    ],
)
def test_two_processes_read_the_same_fingerprints(tmp_path: Path, wanted: list[str], least: int) -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PRINT_FINGERPRINTS, *wanted],
            env={**os.environ, "PYTHONHASHSEED": seed, "HOME": str(tmp_path / seed)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert len(outputs[0].splitlines()) > least
    assert outputs[0] == outputs[1]


def test_no_memory_address_reaches_a_tool(stdlib: Reading) -> None:
    for tool in stdlib.tools:
        texts = msgspec.json.encode([tool.description, tool.parameters, tool.meta])
        assert not re.search(rb" at 0x[0-9a-f]{6}", texts), tool.id
