from __future__ import annotations

import datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toolscout
from toolscout.errors import BadEntry
from toolscout.search.pipeline import Cut, begin_answer
from toolscout.types import (
    STYLES,
    Answer,
    Hit,
    Request,
    Search,
    Tool,
    Trace,
    as_json,
    canonical_json,
    clean,
    digest,
    render,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=20,
)


def tool(**changes: object) -> Tool:
    return Tool(**{"id": "s/t", "name": "t", **changes})  # type: ignore[arg-type]


def test_the_parent_is_the_whole_path_unless_said_otherwise() -> None:
    assert tool(path=("a", "b")).parent == ("a", "b")
    assert tool(path=("a", "b"), parent=("a",)).parent == ("a",)


def test_the_fingerprint_ignores_the_order_of_keys_and_nothing_else() -> None:
    one = tool(parameters={"type": "object", "properties": {"a": {}, "b": {}}})
    two = tool(parameters={"properties": {"b": {}, "a": {}}, "type": "object"})
    assert one.fingerprint == two.fingerprint
    changed = [
        tool(description="x"),
        tool(path=("p",)),
        tool(callable=True),
        tool(tags=("x",)),
        tool(id="s/u"),
        tool(returns={}),
    ]
    assert len({each.fingerprint for each in (tool(), one, *changed)}) == len(changed) + 2


def test_texts_that_contain_the_separator_do_not_share_a_fingerprint() -> None:
    assert tool(path=("a", "b/c")).fingerprint != tool(path=("a/b", "c")).fingerprint
    assert tool(name="a", description="b\0c").fingerprint != tool(name="a\0b", description="c").fingerprint
    assert digest("one", ["a", "bc"]) != digest("one", ["ab", "c"]) != digest("two", ["ab", "c"])


@given(JSON)
def test_whatever_is_cleaned_can_be_written_and_read_back(value: object) -> None:
    cleaned = clean(value)
    assert msgspec.json.decode(canonical_json(cleaned)) == cleaned or "e+" in repr(cleaned) or "E" in repr(cleaned)
    assert clean(cleaned) == cleaned


def test_cleaning_replaces_what_json_cannot_carry() -> None:
    given = {"a\ud800": float("nan"), 1: 2**70, "d": datetime.date(2026, 1, 2), "t": (1, "\udfff")}
    assert clean(given) == {"a\ufffd": None, "1": float(2**70), "d": "2026-01-02", "t": [1, "\ufffd"]}


def test_what_is_too_deep_or_no_json_is_refused_in_a_sentence() -> None:
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    with pytest.raises(BadEntry, match="at most 64 levels"):
        clean(deep)
    with pytest.raises(BadEntry, match="found a object"):
        clean({"a": object()})


def test_every_style_gives_text_and_an_unknown_one_is_refused() -> None:
    full = tool(
        path=("Weather",),
        description="Rain. Snow.",
        parameters={"type": "object", "properties": {"city": {"type": "string", "description": "Which."}}},
        meta={"title": "T", "text": "as it was"},
    )
    texts = {style: render(full, style) for style in STYLES}
    assert texts == {
        "name": "t",
        "description": "Rain. Snow.",
        "sentence": "Rain.",
        "parameters": "city",
        "parameter_descriptions": "Which.",
        "path": "Weather",
        "short": "Weather > t: Rain. Snow. (city)",
        "full": "Weather > t: Rain. Snow. (city) city: Which.",
        "raw": "T as it was",
    }
    with pytest.raises(ValueError, match="expected a style"):
        render(full, "fancy")


def test_names_of_nested_parameters_are_found_and_cycles_end() -> None:
    inner = {"type": "object", "properties": {"street": {}}}
    schema = {"properties": {"address": inner, "list": {"type": "array", "items": inner}, "any": {"anyOf": [inner, 3]}}}
    assert render(tool(parameters=schema), "parameters") == "address list any street"
    assert render(tool(parameters={"properties": ["odd"]}), "parameters") == ""


def test_a_search_is_printed_as_the_formats_page_says() -> None:
    found = Search(
        query="q", hits=(Hit("s/t", 1.5, "bm25", tool(description="d")),), kind="tools", trace=(Trace("bm25", 0.001),)
    )
    assert as_json(found) == {
        "query": "q",
        "search_id": None,
        "need": None,
        "answer": "tools",
        "reason": None,
        "low_confidence": False,
        "coverage": None,
        "degraded": None,
        "steps": (),
        "uncovered": (),
        "hits": [
            {
                "id": "s/t",
                "name": "t",
                "path": (),
                "score": 1.5,
                "description": "d",
                "parameters": None,
                "callable": False,
                "why": "bm25",
                "step": None,
                "role": "match",
                "similar": (),
                "kind": "tool",
            }
        ],
        "ms": {"total": 1.0, "bm25": 1.0},
    }


def test_a_request_becomes_an_answer_and_names_of_version_0_2_still_work() -> None:
    request = Request(query="add two numbers", k=3, caller="bob")
    [answer] = Cut()([begin_answer(request)])
    assert (answer.query, answer.k, answer.caller, answer.kind) == ("add two numbers", 3, "bob", None)
    assert Cut()([request])[0].query == request.query
    assert toolscout.Search is Answer and isinstance(toolscout.Search(query="q", k=2), Request)
    with pytest.warns(DeprecationWarning, match=r"Answer\.kind"):
        assert Answer(query="q", kind="tools").answer == "tools"
