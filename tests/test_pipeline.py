from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from toolscout.errors import PipelineError
from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.bm25 import BM25
from toolscout.search.pipeline import (
    Cut,
    Decide,
    Detect,
    Fuse,
    Pipeline,
    Rerank,
    Retrieve,
    Rewrite,
    Stage,
    order,
    reciprocal_rank,
)
from toolscout.testing import check_stage, toy_tools
from toolscout.types import Hit, Search


class Fixed(Stage):
    """Always the same hits."""

    writes = frozenset({"hits"})

    def __init__(self, **scores: float) -> None:
        self.hits = order(Hit(tool_id, score, "fixed") for tool_id, score in scores.items())

    def run(self, searches: Sequence[Search]) -> list[Search]:
        return [msgspec.structs.replace(search, hits=self.hits) for search in searches]


@pytest.fixture
def retrieve() -> Retrieve:
    return Retrieve(BM25.build(toy_tools()), label="bm25", mask=Catalogue.of(toy_tools()).mask)


def ask(stage: Stage, query: str = "weather of a city", **fields: object) -> Search:
    [found] = stage([Search(query=query, **fields)])  # type: ignore[arg-type]
    return found


def test_a_stage_that_reads_what_nobody_writes_is_refused_and_named(retrieve: Retrieve) -> None:
    with pytest.raises(PipelineError, match=r"cut reads hits, which no stage before it writes \(there: cut >> bm25\)"):
        Cut() >> retrieve
    with pytest.raises(PipelineError, match="rerank reads hits"):
        Rerank(lambda batch: []) >> Decide()
    with pytest.raises(PipelineError, match="at least one stage"):
        Pipeline([])


def test_composition_is_flat_and_keeps_every_promise(retrieve: Retrieve) -> None:
    pipeline = retrieve >> Cut() >> Decide()
    assert [stage.name for stage in pipeline.stages] == ["bm25", "cut", "decide"]
    check_stage(pipeline, [Search(query=query, k=2) for query in ("rain in a city", "copy a file", "", "天气")])


def test_each_stage_leaves_a_trace(retrieve: Retrieve) -> None:
    found = ask(retrieve >> Cut() >> Decide())
    assert [step.stage for step in found.trace] == ["bm25", "cut", "decide"]
    assert all(step.seconds >= 0 for step in found.trace)
    assert found.trace[0].note == "4 candidates"


def test_a_stage_that_fails_raises(retrieve: Retrieve) -> None:
    def broken(batch: Sequence[Search]) -> list[list[float]]:
        raise RuntimeError("model gone")

    with pytest.raises(RuntimeError, match="model gone"):
        ask(retrieve >> Rerank(broken))


def test_a_stage_that_loses_a_search_is_an_error() -> None:
    class Loses(Stage):
        def run(self, searches: Sequence[Search]) -> list[Search]:
            return []

    with pytest.raises(PipelineError, match="loses: expected 1 searches back, found 0"):
        ask(Loses())


def test_a_mask_hides_tools_and_is_computed_once_for_each_caller() -> None:
    catalogue = Catalogue.of(toy_tools())
    stage = Retrieve(BM25.build(toy_tools()), mask=catalogue.mask)
    seen: list[str] = []

    def only_travel(tool: object) -> bool:
        seen.append(tool.id)  # type: ignore[attr-defined]
        return tool.path == ("travel",)  # type: ignore[attr-defined]

    for _ in range(3):
        assert ask(stage, "city", visible=only_travel).ids == ("travel/find_hotel",)
    assert len(seen) == len(catalogue)


def test_a_search_that_limits_visibility_never_meets_a_stage_without_a_mask() -> None:
    with pytest.raises(PipelineError, match="built without a mask"):
        ask(Retrieve(BM25.build(toy_tools())), visible=lambda tool: True)


def test_the_newest_rewrite_is_what_is_retrieved(retrieve: Retrieve) -> None:
    pipeline = Rewrite(lambda batch: ["copy a file"] * len(batch)) >> retrieve >> Cut(1)
    found = ask(pipeline, "gibberish")
    assert found.ids == ("files/copy",)
    assert (found.query, found.rewrites) == ("gibberish", ("copy a file",))
    unchanged = ask(Rewrite(lambda batch: [None] * len(batch)) >> retrieve, "gibberish")
    assert unchanged.rewrites == () == unchanged.hits


def test_detect_writes_a_probability() -> None:
    assert ask(Detect(lambda texts: [0.25] * len(texts))).need == 0.25


def test_reciprocal_rank_fusion_is_the_published_formula() -> None:
    fused = ask(Fuse(Fixed(a=3, b=2, c=1), Fixed(b=9, d=5)))
    expected = {"a": 1 / 61, "b": 1 / 62 + 1 / 61, "c": 1 / 63, "d": 1 / 62}
    assert {hit.id: hit.score for hit in fused.hits} == pytest.approx(expected)
    assert fused.ids == ("b", "a", "d", "c")
    assert fused.hits[0].why == "fixed + fixed"
    assert [step.stage for step in fused.trace] == ["fixed", "fixed", "fuse(fixed, fixed)"]


def test_ties_are_broken_by_tool_id() -> None:
    assert ask(Fuse(Fixed(z=1.0), Fixed(a=1.0))).ids == ("a", "z")
    assert reciprocal_rank([[("x", 1.0)]], Search(query="q"), constant=1.0) == {"x": 0.5}


def test_fuse_wants_two_branches_that_retrieve(retrieve: Retrieve) -> None:
    with pytest.raises(PipelineError, match="two branches or more, found 1"):
        Fuse(retrieve)
    with pytest.raises(PipelineError, match="but detect does not"):
        Fuse(retrieve, Detect(lambda texts: []))
    with pytest.raises(PipelineError, match="cut reads hits and cannot begin"):
        Fuse(retrieve, Cut())


def test_rerank_reorders_the_head_and_keeps_the_tail_behind_it() -> None:
    stage = Fixed(a=4, b=3, c=2, d=1) >> Rerank(lambda batch: [[0.1, 0.9]] * len(batch), depth=2)
    found = ask(stage)
    assert found.ids == ("b", "a", "c", "d")
    assert [hit.score for hit in found.hits] == sorted((hit.score for hit in found.hits), reverse=True)


def test_cut_keeps_k_hits_above_the_floor() -> None:
    assert ask(Fixed(a=4, b=3, c=2) >> Cut(), k=2).ids == ("a", "b")
    assert ask(Fixed(a=4, b=3, c=2) >> Cut(floor=3.0), k=5).ids == ("a", "b")


def test_decide_says_why_an_answer_is_empty() -> None:
    empty = ask(Fixed() >> Decide(lambda search: f"nothing for {search.query}"), "q")
    assert (empty.kind, empty.reason) == ("no_tool_fits", "nothing for q")
    full = ask(Fixed(a=1) >> Decide())
    assert (full.kind, full.reason) == ("tools", None)


def test_explain_is_exact_beyond_k_and_fuse_asks_its_branches(retrieve: Retrieve) -> None:
    pipeline = Fuse(retrieve, Fixed(**{"files/copy": 1.0})) >> Cut()
    told = pipeline.explain(Search(query="weather of a city", k=1), "travel/find_hotel")
    assert told is not None
    fused = told.parts[0]
    assert fused.rank is not None and fused.rank > 1
    assert [(part.stage, part.rank) for part in fused.parts] == [("bm25", 4)]
    unreachable = pipeline.explain(Search(query="weather"), "ru/perevod")
    assert unreachable is not None and unreachable.rank is None
    assert Pipeline([Detect(lambda texts: [1.0])]).explain(Search(query="q"), "x") is None


def test_explain_tells_the_rank_after_a_reordering_and_the_former_one_beyond_it() -> None:
    stage = Fixed(a=4, b=3, c=2, d=1) >> Rerank(lambda batch: [[0.1, 0.9]] * len(batch), depth=2)
    told = stage.explain(Search(query="q", k=1), "b")
    assert told is not None and (told.rank, told.score) == (1, 0.9)
    assert told.parts[-1].note == "2 before"
    beyond = stage.explain(Search(query="q", k=1), "c")
    assert beyond is not None and beyond.rank == 3 and beyond.note == "beyond the first 2"
    assert stage.explain(Search(query="q"), "x") is None
