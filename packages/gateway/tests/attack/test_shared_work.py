"""Calls made to keep the gateway busy: the work of a check is bounded by what is compared, and programs stay inside."""

from __future__ import annotations

import sys
from typing import Any

import anyio
import pytest

from toolscout.errors import UserError
from toolscout.types import Tool
from toolscout_gateway.calls import repairs
from toolscout_gateway.calls.arguments import Validators
from toolscout_gateway.calls.repairs import check_arguments, read_request
from toolscout_gateway.sandbox import child
from toolscout_gateway.sandbox.runner import AnswerRoom, ProgramLimits, Worker

CHOICES = [f"v{number}" for number in range(2_000)]


def make_tool(name: str, **schema: Any) -> Tool:
    return Tool(id=f"e/{name}", name=name, parameters={"type": "object", **schema})


def nest(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = {"a": value}
    return value


CHAIN = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(300)} | {"d300": {"type": "string"}}
DOUBLED = {f"e{i}": {"allOf": [{"$ref": f"#/$defs/e{i + 1}"}] * 2} for i in range(40)} | {"e40": {"type": "string"}}
LISTS = {"x": {"type": "array", "uniqueItems": True}}
DEEP = {"x": {"contains": {"contains": {"contains": {"const": "z"}}}}}
OBJECTS: dict[str, Any] = {"x": {"enum": [{"a": [*range(200)], "b": i} for i in range(500)]}}
CASES: dict[str, tuple[Tool, dict[str, Any]]] = {
    "chain": (make_tool("chain", properties={"x": {"$ref": "#/$defs/d0"}}, **{"$defs": CHAIN}), {"x": 5}),
    "doubled": (make_tool("doubled", properties={"x": {"$ref": "#/$defs/e0"}}, **{"$defs": DOUBLED}), {"x": "s"}),
    "itself": (make_tool("itself", properties={"x": {"$ref": "#"}}), {"x": nest(180, {})}),
    "unique": (make_tool("unique", properties=LISTS), {"x": [{"a": i} for i in range(20_000)]}),
    "contains": (make_tool("contains", properties=DEEP), {"x": [[[1] * 30] * 30] * 30}),
    "pattern": (make_tool("pattern", properties={"x": {"pattern": "^(a+)+$"}}), {"x": "a" * 60 + "!"}),
    "patterns": (make_tool("patterns", patternProperties={"^(a+)+$": {}}, additionalProperties=False), {"a" * 60: 1}),
    "names": (make_tool("names", propertyNames={"maxLength": 2}), {f"k{i}": 1 for i in range(20_000)}),
    "unevaluated": (make_tool("un", unevaluatedProperties=False, anyOf=[{}] * 50), {f"k{i}": 1 for i in range(20_000)}),
    "objects": (make_tool("objects", properties=OBJECTS), {"x": {"a": [*range(200)], "b": -1}}),
    "number": (make_tool("number", properties={"x": {"type": "integer", "multipleOf": 3}}), {"x": 10**4_000}),
    "tiny": (make_tool("tiny", properties={"x": {"type": "number", "multipleOf": 1e-300}}), {"x": 1e300}),
    "required": (make_tool("required", required=[f"r{i}" for i in range(20_000)]), {"a": 1}),
    "remote": (make_tool("remote", properties={"x": {"$ref": "http://127.0.0.1:9/x"}}), {"x": 5}),
    "dynamic": (make_tool("dyn", **{"$dynamicAnchor": "n", "properties": {"x": {"$dynamicRef": "#n"}}}), nest(90, {})),
    "not": (make_tool("not", properties={"x": {"not": {"items": {"not": {}}}}}), {"x": [*range(20_000)]}),
    "split": (
        make_tool("split", properties={"x": {"type": "array", "items": {"type": "integer"}}}),
        {"x": "1," * 40_000},
    ),
    "json": (make_tool("json", properties={"x": {"type": "object"}}), {"x": '{"a":' * 9_000}),
    "python": (make_tool("python", properties={"x": {"type": "object"}}), {"x": "{'a': " + "(" * 4_000}),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", CASES)
def test_a_check_of_arguments_ends(name: str) -> None:
    tool, arguments = CASES[name]
    try:
        check_arguments(Validators(), tool, arguments, [])
    except UserError as error:
        assert len(str(error)) < 10_000


@pytest.mark.parametrize(
    ("name", "arguments"),
    (
        ("search_tools", {f"q{i}": 1 for i in range(50_000)}),
        ("search_tools", {"queries": [{"query": "x"}] * 50_000}),
        ("search_tools", {"queries": nest(200, "x")}),
        ("describe_tools", {"ids": ["e"] * 50_000}),
        ("call_tool", {"id": "e/x", "arguments": '{"x":' + "[" * 40_000 + "]" * 40_000 + "}"}),
        ("call_tool", {"id": "e/x", "arguments": "{'x': " + "(" * 4_000 + "1" + ")" * 4_000 + "}"}),
        ("read_result", {"handle": "../../etc/passwd", "offset": "9" * 4_000}),
        ("run_code", {"code": 7, "search_id": []}),
    ),
)
@pytest.mark.timeout(20)
def test_a_check_of_a_request_ends(name: str, arguments: dict[str, Any]) -> None:
    read_request(Validators(), name, arguments)


def test_a_long_text_is_compared_with_many_choices_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    fold = repairs._fold_name
    monkeypatch.setattr(repairs, "_fold_name", lambda name: lengths.append(len(name)) or fold(name))
    tool = make_tool("choice", properties={"x": {"enum": CHOICES}})
    with pytest.raises(UserError):
        check_arguments(Validators(), tool, {"x": "w" * 900_000}, [])
    assert sum(length > 100 for length in lengths) <= 4, "once for each reading of the arguments"


PRELUDE = "import collections\nposix = collections._sys.modules['posix']\n"
ESCAPES = (
    *("posix.open('/etc/passwd', 0)", "posix.open('.', 0)", "posix.listdir('/')", "posix.listdir('/proc')"),
    *("posix.stat('/')", "posix.readlink('/proc/self/exe')", "posix.fork()", "posix.execv('/bin/sh', ['sh'])"),
    *("posix.kill(posix.getppid(), 0)", "posix.kill(1, 9)", "posix.pipe()", "posix.dup(1)", "posix.memfd_create('x')"),
    *("posix.setuid(0)", "posix.sched_setaffinity(0, [0])", "posix.nice(-5)", "posix.uname()", "posix.getcwd()"),
    *("open('/etc/passwd')", "__import__('socket').socket()", "__import__('subprocess').run(['id'])"),
    *("__import__('json').codecs.open('/etc/passwd')", "__import__('dataclasses').sys.modules['os'].listdir('/')"),
)
FAULTS = (
    *("def f(n): return f(n + 1)\nf(0)", "x = 'a' * 600_000_000", "(" * 5_000, "-" * 100_000 + "1", "x = 1\0"),
    *("+".join(["1"] * 50_000), "raise SystemExit(5)", "raise KeyboardInterrupt", "raise GeneratorExit"),
    *("class X(Exception):\n def __str__(s): raise s\nraise X()", "call('a/b', {'x': {1: {2}}})", "call({'a': 1})"),
    *("class R:\n def __repr__(s): return 'a' * 10**8\nR()", "a = []\na.append(a)\ncall('a/b', x=a)"),
    *("v = 'x'\nfor _ in range(5_000): v = [v]\ncall('a/b', x=v)", "print('x' * 2_000_000)"),
    *("call('y' * 30_000_000)", "call('a/b', x='y' * 50_000_000)", "raise ValueError('x' * 50_000_000)"),
    *("call('a/b', x=float('nan'))", "call('a/b', x='\\ud800')", "print('\\x00\\ud800\\u202e')", "'x' * 50_000_000"),
    *("call('a/b', {str(n): n for n in range(500_000)})", "x = ['a' * 10**8 for _ in range(100)]"),
    *("v = []\nfor _ in range(100_000): v = [v]\ncall('a/b', x=v)", "import os\nos.write(1, b'x' * 100)"),
    "for _ in range(5_000):\n try: call('nope/x')\n except Exception: pass",
)
#: Programs that do not end by themselves, or refuse to.
ENDLESS = (
    *("x = 9**9**9", "import time\ntime.sleep(1000)", "while True: print('x' * 100_000)", "while True: pass"),
    "while True:\n try:\n  while True: call('a/b')\n except BaseException: pass",
    "class A:\n def __del__(self):\n  while True: pass\na = A()\ndel a",
    "class A:\n def __repr__(self):\n  while True: pass\nA()",
    "kept = []\nwhile True: kept.append(call('a/b'))",
)


@pytest.mark.skipif(sys.platform != "linux", reason="programs need Linux")
def test_programs_stay_inside_and_within_their_memory() -> None:
    if not child.read_landlock_version():
        pytest.skip("this kernel has no Landlock")

    async def answer(id: str, arguments: dict[str, Any]) -> tuple[Any, str]:
        return "ok", ""

    async def run(code: str, limits: ProgramLimits | None = None) -> Any:
        worker = await Worker.start("landlock", limits or ProgramLimits())
        return await worker.run(code, answer, room=AnswerRoom(2**27))

    async def body() -> None:
        tries = "".join(f"try: {line}; print({line!r})\nexcept (OSError, ImportError): pass\n" for line in ESCAPES)
        outcome = await run(PRELUDE + tries)
        assert (outcome.output, outcome.error) == ("", "")
        for code in FAULTS:
            outcome = await run(code)
            assert len(outcome.output) <= 1_000_000, code[:40]
            assert len(outcome.error) <= 10_000, code[:40]
        for code in ENDLESS:
            outcome = await run(code, ProgramLimits(seconds=2, cpu_s=1))
            assert outcome.error or "used up its processor time" in outcome.output, code[:40]
            assert len(outcome.output) <= 1_000_000, code[:40]
        assert (await run("print(1 + 1)")).output == "2\n", "the next program runs as before"

    anyio.run(body)
