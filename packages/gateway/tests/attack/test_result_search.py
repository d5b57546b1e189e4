"""A search in a kept result takes time that grows with the result alone, whatever it looks for."""

from __future__ import annotations

import functools
import json
import random
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolscout.errors import UserError
from toolscout.trust.redaction import Cover
from toolscout.types import Tool
from toolscout_gateway import result_pages
from toolscout_gateway.calls.arguments import Validators
from toolscout_gateway.calls.repairs import check_arguments
from toolscout_gateway.result_pages import read_result
from toolscout_gateway.results import Results
from toolscout_gateway.threads import WORKING_FOR, FairThreads

A, X = "a", "x"
HOSTILE = [
    ".*".join("a" * 60),
    ".*".join("a" * 60) + "b",
    ".*".join(["a"] * 60) + ".*b",
    "|".join([".*".join("a" * 8) + "b"] * 8),
    "a" * 199 + "b",
    "b" + "a" * 199,
    ".*" * 100,
    "|" * 7 + "a.*b",
    ".*a" * 60,
    "a.*" * 60 + "b",
    "aa.*aa.*aa.*aa.*ab",
    "(a+)+$",
    "(a|a)*b",
    "(a|aa)+$",
    "([a-zA-Z]+)*$",
    "(.*a){20}",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "a{1,100}{1,100}",
    "(?=(a+))a*b",
    "\\1(a)",
    "[" * 100,
    "(" * 100,
    "*" * 100,
    "?" * 100,
    "\\" * 99,
    "é.*" * 40 + "b",
    "É" * 100 + "b",
    "ß.*ß|ſ.*ſ|K.*k",
    "\x00.*\x00",
    "\n.*\n.*\n",
    "a\n.*a\nb",
    "💥.*" * 30,
    "\ud800.*a",
    "İ.*i̇",
    " .* .* .* .* .*b",
    "x.*y|y.*x|xx.*yy|yy.*xx|x.*x.*y|y.*y.*x|x.*z|z.*x",
    "a.*z" * 49,
    "aaab.*baaa|baaa.*aaab",
    "A.*" * 60 + "b",
    "\x85.*\u2028.*b",
    # Of a later attack: letters that grow when their case changes, and as much as a pattern may have.
    "ﬃ.*" * 60,
    "ﬃ" * 200,
    "ﬃ|" * 90,
    "ß" * 200,
    "İ.*" * 60,
    "İ.*i\u0307" * 30,
    "𝔞.*" * 60,
    "|".join("a" * number + "b" for number in range(1, 20)),
    "|".join([".*a" * 5] * 10),
    "needle|" + "a.*" * 60 + "Z",
    "a.*a.*a.*a.*a.*a.*a.*a.*!|b.*b.*b.*b!",
    ".*",
    "",
    " ",
    "|",
    ".*|.*",
]
DATA = {
    "one letter": "a" * 300_000,
    "short lines": "a\n" * 150_000,
    "lines that end late": ("a" * 5_000 + "\n") * 60,
    "letters of two bytes": "é" * 150_000,
    "two letters": "xy" * 150_000,
    "lines with almost everything": ("aa ab x y é 💥\n") * 20_000,
}


def keep(folder: Path, *texts: str) -> tuple[Results, str]:
    """Keep texts as the result of a call. Returns the results and its handle."""
    from mcp_types import CallToolResult, TextContent

    results = Results(folder, 2_000)
    details: dict[str, Any] = {"caller": "ann", "tool": "t", "cover": Cover(), "everything": False}
    cut = results.fit(CallToolResult(content=[TextContent(text=text) for text in texts]), None, **details)
    return results, cut.meta["toolscout/result"]["handle"]


@pytest.mark.parametrize("name", DATA)
def test_no_search_holds_a_processor(name: str, tmp_path: Path) -> None:
    """All patterns together take less than a hundredth of what one of them took before."""
    results, handle = keep(tmp_path, DATA[name])
    began = time.process_time()
    for pattern in HOSTILE:
        try:
            read_result(results, "ann", handle, grep=pattern)
        except UserError as error:
            assert "grep: expected" in str(error)
    assert time.process_time() - began < 20


def read_all(results: Results, handle: str, grep: str) -> list[tuple[int, str]]:
    """The lines of all pages."""
    found, offset = [], 0
    for _ in range(1_000):
        page, _ = read_result(results, "ann", handle, grep=grep, offset=offset)
        found += [(match["offset"], match["text"]) for match in page["matches"]]
        if "next_offset" not in page:
            return found
        assert page["next_offset"] > offset
        offset = page["next_offset"]
    raise AssertionError("the pages do not end")


@pytest.mark.parametrize(
    "forged",
    [
        "{h}x",
        "../{h}",
        "../../journal.db",
        "/etc/passwd",
        "{H}",
        "{h}\0",
        "",
        "%2e%2e/journal.db",
        "{h}/../{h}",
        "{h} ",
    ],
)
def test_no_other_handle_reads_a_result(forged: str, tmp_path: Path) -> None:
    results, handle = keep(tmp_path, "the secret of ann\n" * 500)
    assert "secret" in read_result(results, "ann", handle)[1]
    handles = {forged.format(h=handle, H=handle.swapcase())} - {handle}
    for caller, other in (*(("ann", one) for one in handles), ("bob", handle), (None, handle), ("", handle)):
        with pytest.raises(UserError) as refused:
            read_result(results, caller, other)
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("offset", [-1, 10**18, 10**9])
def test_no_offset_leads_out_of_a_result(offset: int, tmp_path: Path) -> None:
    results, handle = keep(tmp_path, "line\n" * 2_000)
    with pytest.raises(UserError, match="offset"):
        read_result(results, "ann", handle, offset=offset)


@pytest.mark.parametrize("seed", range(12))
def test_the_lines_are_those_that_a_regular_expression_finds(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = random.Random(seed)
    monkeypatch.setattr(result_pages, "READ_BYTES", generator.choice([900, 5_000, 2**18]))
    words = ["error", "Warn", "disk", "ÉTÉ", "ab", "aab", "x" * 30, "", "💥", "été"]
    lines = [" ".join(generator.choices(words, k=generator.randrange(8))) for _ in range(800)]
    results, handle = keep(tmp_path, "\n".join(lines))
    for grep in ("error", "error|disk", "ab.*disk", "été.*AB|warn.*été.*x", "xx.*xx.*error", "aab.*aab.*aab|💥.*💥"):
        pattern = re.compile(grep, re.IGNORECASE)
        expected = [line.strip() for line in lines if pattern.search(line)]
        assert [text for _, text in read_all(results, handle, grep)] == expected, grep


def test_anything_in_a_line_may_be_long_and_ends_with_the_line(tmp_path: Path) -> None:
    far = "first" + "-" * 700_000 + "last"
    results, handle = keep(tmp_path, f"first\nlast\n{far}\nfirst\n")
    [(offset, text)] = read_all(results, handle, "FIRST.*LAST")
    assert offset == len("first\nlast\n") and text.startswith("first-") and text.endswith("-last")
    assert len(text) < 5_000 and " … " in text


def test_a_search_that_takes_long_says_how_far_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, handle = keep(tmp_path, "x" * 3_000_000 + "\nend\n")
    ticks = iter(range(1_000_000))
    monkeypatch.setattr(result_pages.time, "monotonic", lambda: float(next(ticks)))
    page, text = read_result(results, "ann", handle, grep="end")
    assert page["matches"] == [] and 0 < page["next_offset"] < 3_000_000 and "searched for 2 s; go on with" in text
    assert [text for _, text in read_all(results, handle, "end")] == ["end"]


def test_a_search_says_why_it_ended_and_counts_offsets_as_the_agent_does(tmp_path: Path) -> None:
    results, handle = keep(tmp_path, "a word\n" * 2_000, "b\n" * 10_000)
    page, text = read_result(results, "ann", handle, grep="word")
    assert text.endswith(f"[toolscout: more lines match; go on with offset={page['next_offset']}]")
    _, text = read_result(results, "ann", handle, grep="word", offset=14_100)
    assert text == "[toolscout: no line matches from offset 14100 on]"
    with pytest.raises(UserError, match="at most 34000, the size of the result in bytes, found 40000"):
        read_result(results, "ann", handle, offset=40_000)


def test_a_path_that_takes_long_says_how_far_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, handle = keep(tmp_path, "[" + "1," * 1_000_000 + "1]")
    ticks = iter(range(1_000_000))
    with monkeypatch.context() as clock:
        clock.setattr(result_pages.time, "monotonic", lambda: float(next(ticks)))
        page, text = read_result(results, "ann", handle, path="99999999")
    assert page["text"] == "" and 0 < page["next_offset"] < page["bytes"] and "searched for 2 s" in text
    on, _ = read_result(results, "ann", handle, path=page["path"], offset=page["next_offset"])
    assert on["offset"] == page["next_offset"] and on["text"].startswith(("1,", ",1"))


@pytest.mark.parametrize(
    "path",
    [
        "content." + "0." * 3_000,
        "a.b.c" * 2_000,
        "/~1~0" * 500,
        "content.-1.text",
        "9" * 400,
        "content.٣",
        "\x00",
        "$..*",
        "[" * 1_000,
        "a." * 500,
        "/" * 1_000,
        "['" * 500,
        "$" * 1_000,
        "." * 1_000,
        "0" * 1_000,
        "x" * 4_000_000,
    ],
)
def test_no_path_holds_a_processor(path: str, tmp_path: Path) -> None:
    results, handle = keep(tmp_path, "[" * 60_000 + "]" * 60_000)
    began = time.process_time()
    with suppress(UserError):
        read_result(results, "ann", handle, path=path)
    assert time.process_time() - began < 10


def test_callers_take_turns_so_that_nobody_waits_for_the_work_of_another() -> None:
    """One caller sends a hundred long works. The work of a second one needs no thread that the first one has."""
    release = threading.Event()
    ended: list[str] = []

    def work(name: str, *, waits: bool) -> None:
        if waits:
            assert release.wait(30)
        ended.append(name)

    async def body() -> None:
        threads = FairThreads(3, 2)

        async def send(name: str, *, waits: bool) -> None:
            WORKING_FOR.set(name)
            await threads.run(work, name, waits=waits)

        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(functools.partial(send, "mallory", waits=True))
            await anyio.sleep(0)
            with anyio.fail_after(30):
                for name in ("ann", "bob", "ann"):
                    await send(name, waits=False)
            assert ended == ["ann", "bob", "ann"]
            release.set()
        threads.shutdown()
        assert len(ended) == 103

    anyio.run(body)


def test_while_hostile_searches_run_the_event_loop_goes_on(tmp_path: Path) -> None:
    """A second caller's request is taken up again and again while forty searches run in the threads."""
    results, handle = keep(tmp_path, DATA["one letter"])
    beats = 0

    def search(pattern: str) -> None:
        with suppress(UserError):
            read_result(results, "mallory", handle, grep=pattern)

    async def body() -> None:
        nonlocal beats
        threads = FairThreads(2, 2)
        async with anyio.create_task_group() as group:

            async def search_all() -> None:
                WORKING_FOR.set("mallory")
                async with anyio.create_task_group() as searches:
                    for pattern in HOSTILE:
                        searches.start_soon(results.threads.run, search, pattern)
                group.cancel_scope.cancel()

            group.start_soon(search_all)
            while True:
                await threads.run(int)  # as short as the work of a second caller can be
                beats += 1
        threads.shutdown()
        results.threads.shutdown()

    anyio.run(body)
    assert beats > 10


LONG = "a" * 5_000


def make_chain(form: str, links: int = 18) -> dict[str, Any]:
    """Definitions, each of which names the next one several times; `form`: one in JSON, with NEXT for the next."""
    return {str(number): json.loads(form.replace("NEXT", f'"#/$defs/{number + 1}"')) for number in range(links)} | {
        str(links): {}
    }


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [{"x": n} for n in range(20_000)]}),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [[n] if n % 2 else {"x": n} for n in range(20_000)]}),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [{"x": n % 9_999} for n in range(20_000)]}),
        ({"properties": {"a": {"enum": [f"{LONG}{n}" for n in range(1_000)]}}}, {"a": f"{LONG}x"}),
        (
            {"properties": {f"{LONG[:500]}{n}": {} for n in range(900)}, "additionalProperties": False},
            {LONG[:501]: 1},
        ),
        ({"required": [f"{LONG[:300]}{n}" for n in range(1_000)]}, {f"{LONG[:300]}{n}b": 1 for n in range(100)}),
        ({"properties": {"a": {"pattern": "(a+)+$"}}}, {"a": "a" * 50 + "b"}),
        ({"patternProperties": {"(a+)+$": {}}}, {"a" * 50 + "b": 1}),
        ({"propertyNames": {"pattern": "(a|a)*$"}}, {"a" * 50 + "b": 1}),
        ({"properties": {"a": {"items": {}, "unevaluatedItems": False}}}, {"a": [*range(60_000)]}),
        *(
            ({"properties": {"a": {keyword: False, "$ref": "#/$defs/0"}}, "$defs": make_chain(form)}, {"a": value})
            for form in (
                '{"$ref": NEXT, "$dynamicRef": NEXT}',
                '{"if": true, "then": {"$ref": NEXT}, "$ref": NEXT}',
                '{"dependentSchemas": {"x": {"$ref": NEXT}}, "$ref": NEXT}',
                '{"allOf": [{"$ref": NEXT}, {"$ref": NEXT}]}',
            )
            for keyword, value in (("unevaluatedItems", [1]), ("unevaluatedProperties", {"x": 1}))
        ),
    ],
)
def test_no_check_of_arguments_holds_a_processor(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    tool = Tool(id="s/t", name="t", parameters={"type": "object", **schema})
    began = time.process_time()
    with suppress(UserError):
        check_arguments(Validators(), tool, arguments, [])
    assert time.process_time() - began < 10
    if "uniqueItems" in str(schema):
        with pytest.raises(UserError, match="uniqueItems"):
            check_arguments(Validators(), tool, {"a": [{"b": [1, None], "c": 2}, {"c": 2, "b": [1, None]}]}, [])
