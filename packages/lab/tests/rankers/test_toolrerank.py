"""toolrerank: what is read of what training saw or not, who is put before whom, and what is chosen on dev."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lessons

pytest.importorskip("torch")

from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.learn.fit import FitJob, Lesson, fit
from toolscout.recipes import registry
from toolscout.search.pipeline import Pipeline
from toolscout.settings import Settings
from toolscout.testing import check_stage
from toolscout.types import Hit, Search, Tool
from toolscout_lab.bench import run
from toolscout_lab.bench_jobs import Job
from toolscout_lab.encoders.onnx_pairs import OnnxPairs
from toolscout_lab.encoders.pair_cache import PairCache
from toolscout_lab.encoders.transformer import TransformerEncoder
from toolscout_lab.rankers.crossencoder import CrossEncoderStage
from toolscout_lab.rankers.toolrerank.stages import (
    FLAT_NOTE,
    UNUSED_NOTE,
    ChosenSettings,
    Families,
    Hierarchy,
    Truncate,
)
from toolscout_lab.resources import Workspace

BELOW = {
    f"base.{name}": value
    for name, value in {
        "base": "dense",
        "candidates": 6,
        "length": 24,
        "epochs": 2,
        "batch": 16,
        "rate": 0.01,
        "precision": "float32",
        "threads": 1,
    }.items()
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def job(slang: Lesson, bert: str, home: Path, name: str, **changes: Any) -> FitJob:
    """A fit; all of them share one cross-encoder, from the shelf."""
    return lessons.plan(
        name,
        slang,
        home / "out" / f"{name}-{'-'.join(map(str, changes.values()))}",
        encoder=TransformerEncoder(bert),
        changes={**BELOW, **changes},
        settings=Settings(home=home),
    )


def with_pairs(planned: FitJob, pairs: PairCache) -> FitJob:
    fields = {field.name: getattr(planned.workspace, field.name) for field in dataclasses.fields(planned.workspace)}
    return dataclasses.replace(planned, workspace=Workspace(**{**fields, "pairs": pairs}))


def pipeline(model: Model, tools: Sequence[Tool], bert: str, **more: Any) -> Pipeline:
    workspace = Workspace(TransformerEncoder(bert), **more)
    stage = registry.build(model.manifest.recipe, Catalogue.of(tools), workspace, model=model.folder)
    assert isinstance(stage, Pipeline)
    return stage


@pytest.fixture(scope="module")
def model(slang: Lesson, bert: str, home: Path) -> Model:
    return fit(job(slang, bert, home, "toolrerank"))


def test_everything_is_chosen_on_dev_and_the_manifest_says_so(slang: Lesson, model: Model) -> None:
    settings, values = model.manifest.settings, model.manifest.values
    for name in ("seen", "unseen", "sure", "alike", "each"):
        assert settings[name].origin == "dev", name
    assert len(values["truncation"]) == 9 and values["hierarchy"] == "on"
    best = max(values["truncation"].values(), key=lambda each: sum(each.values()))
    assert model.manifest.metrics == best
    assert values["classifier_single"] == values["classifier_majority"] == pytest.approx(20 / 23)
    assert values["classifier_accuracy"] >= values["classifier_majority"] and values["classifier_ridge"] > 0
    unused = {"d/music/play"}
    assert {tool.id for tool, seen in zip(slang.tools, model.arrays["seen"], strict=True) if not seen} == unused


def test_the_pipeline_is_deterministic_and_says_what_each_step_did(slang: Lesson, bert: str, model: Model) -> None:
    stage = pipeline(model, slang.tools, bert)
    searches = [Search(query=text) for text in slang.dataset.texts("test").values()]
    check_stage(stage, searches[:6])
    names = [each.name for each in stage.stages]
    assert names == ["dense", "truncate", "crossencoder", "hierarchy"]
    [found] = stage(searches[:1])
    assert found.trace[1].note == "6 kept, 1 of them of parents that training never saw"
    assert found.trace[3].note in (
        "predicted to need one parent",
        "predicted to need several parents",
        "order unchanged",
    )
    explained = stage.explain(searches[0], found.ids[2])
    assert explained is not None and (explained.rank, explained.score) == (3, found.hits[2].score)
    new = Tool(id="d/music/stop", name="stop", description="Stop a song", path=("musi",))
    [found] = pipeline(model, [*slang.tools[:4], new], bert)([Search(query="stop a song")])
    assert set(found.ids) <= {new.id, *(tool.id for tool in slang.tools[:4])} and new.id in found.ids


def test_rerank_m_is_the_same_cross_encoder_over_the_first_m(slang: Lesson, bert: str, home: Path) -> None:
    made = fit(job(slang, bert, home, "crossencoder-10", seen=3, unseen=3))
    assert {name: made.manifest.settings[name].value for name in ("seen", "unseen", "hierarchy")} == {
        "seen": 3,
        "unseen": 3,
        "hierarchy": "none",
    }
    assert made.manifest.encoder is None and "classifier" not in made.arrays
    stage = pipeline(made, slang.tools, bert)
    first, reranker = stage.stages[0], stage.stages[-1]
    assert isinstance(reranker, CrossEncoderStage)
    for search in first([Search(query="a bed for two"), Search(query="clone this paper")]):
        [found] = stage([Search(query=search.query)])
        logits = reranker.need_scorer.logits(search.query, search.ids[:3])
        z = reranker.need_scorer.blend.distances(np.array([hit.score for hit in search.hits]))[:3]
        shares = reranker.need_scorer.blend.probabilities(logits, z)
        assert found.ids == tuple(np.array(search.ids[:3])[np.argsort(-shares, kind="stable")])


def test_the_result_says_how_often_the_classifier_is_right(
    slang: Lesson, bert: str, home: Path, tmp_path: Path
) -> None:
    task = Job(
        slang.dataset,
        "toolrerank",
        "toolrerank",
        tmp_path,
        encoder=bert,
        changes=BELOW,
        settings=Settings(home=home),
    )
    [fitted] = run(task, reuse_model=True).result["fitted"]
    held = json.loads(task.json_path.read_text())["fitted"][0]["values"]
    assert held == fitted["values"] and held["hierarchy"] == "on"
    assert held["classifier_accuracy"] >= held["classifier_majority"] == pytest.approx(20 / 23)


def test_flat_paths_switch_the_hierarchy_off_and_it_says_so(
    slang: Lesson, bert: str, home: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = [Tool(id=tool.id, name=tool.name, description=tool.description) for tool in slang.tools]
    [found] = pipeline(model, flat, bert)([Search(query="somewhere to sleep")])
    assert found.trace[-1].note == FLAT_NOTE and len(found.hits) == 6
    base = job(slang, bert, home, "toolrerank").base  # that of the other fits: a second one would take seconds
    monkeypatch.setattr("toolscout.learn.fit._fit_base", lambda *_: base)
    made = fit(job(dataclasses.replace(slang, tools=flat), bert, home, "toolrerank", judged=23))
    assert made.manifest.values["hierarchy"] == FLAT_NOTE and made.manifest.settings["sure"].value == 0.0
    [found] = pipeline(made, slang.tools, bert)([Search(query="somewhere to sleep")])
    assert found.trace[-1].note == FLAT_NOTE


def test_a_hierarchy_that_is_not_in_use_costs_no_vectors(slang: Lesson, bert: str, home: Path) -> None:
    made = fit(job(slang, bert, home, "toolrerank", seen=6, unseen=6, sure=0.0, each=0, judged=5))
    kept = Path(made.folder)
    [plain] = pipeline(fit(job(slang, bert, home, "toolrerank-none", seen=6, unseen=6)), slang.tools, bert)(
        [Search(query="somewhere to sleep")]
    )
    stage = registry.build("toolrerank", Catalogue.of(slang.tools), Workspace(TransformerEncoder(bert)), model=kept)
    assert isinstance(stage, Pipeline)
    last = stage.stages[-1]
    assert isinstance(last, Hierarchy) and last.off == UNUSED_NOTE
    with pytest.raises(AssertionError):
        last.predict_one_parent([])  # nobody was loaded who could tell
    [found] = stage([Search(query="somewhere to sleep")])
    assert found.trace[-1].note == UNUSED_NOTE and found.hits == plain.hits


def test_the_oracle_is_told_by_bench_alone(slang: Lesson, bert: str, home: Path) -> None:
    made = fit(job(slang, bert, home, "toolrerank-oracle", seen=6, unseen=6, alike=0.9, each=1, sure=0.5))
    with pytest.raises(ConfigError, match="hierarchy=oracle needs the gold tools"):
        pipeline(made, slang.tools, bert)([Search(query="umbrella")])
    gold = {"one": ["d/travel/hotel", "d/travel/flight"], "two": ["d/travel/hotel", "d/mail/send"]}
    one, two = pipeline(made, slang.tools, bert, gold=lambda text: gold.get(text, []))(
        [Search(query=text) for text in gold]
    )
    assert (
        one.trace[-1].note == "predicted to need one parent"
        and two.trace[-1].note == "predicted to need several parents"
    )


def test_a_base_that_reads_no_pairs_is_refused(slang: Lesson, bert: str, home: Path) -> None:
    with pytest.raises(ConfigError, match="--set base: expected the recipe crossencoder, found dense"):
        fit(
            lessons.plan(
                "toolrerank",
                slang,
                home / "refused",
                encoder=TransformerEncoder(bert),
                changes={"base": "dense"},
                settings=Settings(home=home),
            )
        )


@pytest.mark.parametrize(
    "calls", [12, 25]
)  # among the candidates of the 23 dev queries, and in what their parents bring in
def test_what_was_read_before_a_kill_is_not_read_again(
    slang: Lesson, bert: str, home: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    less = {"extend": "both", "seen": 1, "unseen": 1, "hierarchy": "single", "sure": 0.0001}
    whole = fit(job(slang, bert, home, "toolrerank", **less)).manifest
    read: list[tuple[str, str]] = []
    left = [calls]
    logits = OnnxPairs.logits

    def counted(self: OnnxPairs, query: str, texts: Sequence[str], *about: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        read.extend((query, text) for text in texts)
        return logits(self, query, texts, *about)

    monkeypatch.setattr(OnnxPairs, "logits", counted)
    begun = dataclasses.replace(job(slang, bert, home, "toolrerank", **less), out=home / f"again{calls}")
    with pytest.raises(KeyboardInterrupt):
        fit(begun)
    before, left[0] = len(read), 1_000
    again = fit(lessons.resumed(begun)).manifest
    assert len(set(read)) == len(read) > before and left[0] < 1_000
    assert (again.metrics, again.settings, again.values["truncation"]) == (
        whole.metrics,
        whole.settings,
        whole.values["truncation"],
    )
    assert not begun.work.exists()


def test_what_one_fit_read_serves_the_next_and_the_searches(
    slang: Lesson, bert: str, home: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model.folder.exists(), "the base is fitted: what it reads, with a cache of its own, isn't counted below"
    read: list[tuple[str, str]] = []
    logits = OnnxPairs.logits

    def counted(self: OnnxPairs, query: str, texts: Sequence[str], *about: Any) -> Any:
        read.extend((query, text) for text in texts)
        return logits(self, query, texts, *about)

    monkeypatch.setattr(OnnxPairs, "logits", counted)
    readings = PairCache(tmp_path)
    names = ("toolrerank", "toolrerank-none", "crossencoder-10")
    tasks = {name: with_pairs(job(slang, bert, home, name), readings) for name in names}
    made = {name: fit(dataclasses.replace(task, out=tmp_path / name)) for name, task in tasks.items()}
    searches = [Search(query=slang.dataset.queries[query]) for query in slang.dev]
    for fitted in made.values():
        pipeline(fitted, slang.tools, bert, pairs=readings)(searches)
    trial = slang.tools[0].name  # the search of a build, which keeps nothing
    read = [pair for pair in read if pair[0] != trial]
    assert len(set(read)) == len(read) > 0
    [plain] = pipeline(made["toolrerank"], slang.tools, bert)(searches[:1])
    assert len(set(read)) < len(read), "a search keeps nothing"
    [same] = pipeline(made["toolrerank"], slang.tools, bert, pairs=readings)(searches[:1])
    assert same.ids == plain.ids and [h.score for h in same.hits] == pytest.approx([h.score for h in plain.hits])


# --- the stages by hand -----------------------------------------------------------------------------------------------

TOOLS = [
    Tool(id=f"s/{family}{number}", name=f"{family}{number}", path=(family,))
    for family, n in (("a", 3), ("b", 3), ("c", 2))
    for number in range(n)
]


class Reader:
    """Stands for a scorer: `score_others` gives each tool what the table says, until the deadline."""

    def __init__(self, table: dict[str, float]) -> None:
        self.table, self.asked = table, []

    def score_others(self, search: Search, ids: Sequence[str]) -> Any:
        self.asked += ids
        return np.array([self.table[each] for each in ids if search.deadline is None])


def stage(reader: Any, chosen: ChosenSettings, single: bool, **more: Any) -> Hierarchy:
    given: dict[str, Any] = {
        "predict_one_parent": lambda searches: [single] * len(searches),
        "compute_cosines": lambda ids: np.eye(len(ids)),
        "get_visibility": lambda search: lambda tool: search.visible is None or tool != "s/b2",
        **more,
    }
    return Hierarchy(
        Families(TOOLS), lambda tool: not tool.startswith("s/b"), CrossEncoderStage(reader, 50), chosen, **given
    )


def search(read: int | None = None, **more: Any) -> Search:
    ids = ["s/a0", "s/b0", "s/c0", "s/a1", "s/b1"]
    hits = [
        Hit(tool, 0.9 - 0.1 * place, "dense" + (", crossencoder" if read is None or place < read else ""))
        for place, tool in enumerate(ids)
    ]
    return Search(query="q", hits=tuple(hits), **more)


def test_for_one_parent_all_of_a_new_likely_parent_is_read() -> None:
    reader = Reader({"s/b2": 0.85})
    [found] = stage(reader, ChosenSettings(10, 50, sure=0.75), True).run([search()])
    assert reader.asked == ["s/b2"]  # a2 belongs to a likely parent too, but training saw that one
    assert found.ids == ("s/a0", "s/b2", "s/b0", "s/a1", "s/b1", "s/c0")
    assert [hit.score for hit in found.hits] == pytest.approx([0.9, 0.85, 0.8, 0.7, 0.6, 0.5]), "probabilities still"
    for extend, more in {"none": [], "seen": ["s/a2"], "both": ["s/a2", "s/b2"]}.items():
        reader = Reader(dict.fromkeys(["s/a2", "s/b2"], 0.0))
        stage(reader, ChosenSettings(10, 50, sure=0.75, extend=extend), True).run([search()])
        assert reader.asked == more


@pytest.mark.parametrize(("size", "read"), [(50, 48), (51, 0)])
def test_of_a_parent_with_very_many_tools_only_those_that_were_named_are_read(size: int, read: int) -> None:
    many = [Tool(id=f"s/b{number}", name="b", path=("b",)) for number in range(size)]
    reader = Reader(dict.fromkeys([tool.id for tool in many], 0.1))
    made = stage(reader, ChosenSettings(10, 50, sure=0.75), True)
    made.families = Families([*(tool for tool in TOOLS if tool.path != ("b",)), *many])
    [found] = made.run([search()])
    assert len(reader.asked) == read and len(found.hits) == 5 + read
    assert found.ids[:2] == ("s/a0", "s/b0")


def test_what_a_caller_may_not_see_is_not_brought_in() -> None:
    reader = Reader({"s/b2": 0.99})
    [found] = stage(reader, ChosenSettings(10, 50, sure=0.75), True).run([search(visible=bool)])
    assert reader.asked == [] and "s/b2" not in found.ids


def test_a_deadline_brings_nothing_in_and_unread_hits_stay_behind() -> None:
    chosen = ChosenSettings(10, 50, sure=0.75, alike=0.9, each=1)
    late = search(read=3, deadline=time.monotonic() - 1)
    [found] = stage(Reader({"s/b1": 0.9, "s/b2": 0.9}), chosen, True).run([late])
    assert found.ids == ("s/a0", "s/b0", "s/c0", "s/a1", "s/b1")
    [found] = stage(Reader({}), chosen, False).run([search(read=4)])
    assert found.ids == ("s/a0", "s/b0", "s/c0", "s/a1", "s/b1")
    [none] = stage(Reader({}), chosen, True).run([search(read=0)])
    assert none.hits == search(read=0).hits


def test_for_several_parents_the_best_of_each_group_come_first() -> None:
    off = ChosenSettings(10, 50)

    def alike(ids: Sequence[str]) -> Any:
        table = np.eye(len(ids))
        table[0, 2] = table[2, 0] = 0.95  # a0 and c0
        return table

    [found] = stage(Reader({}), ChosenSettings(10, 50, alike=0.9, each=1), False, compute_cosines=alike).run([search()])
    assert found.ids == ("s/a0", "s/b0", "s/c0", "s/a1", "s/b1")
    [found] = stage(Reader({}), ChosenSettings(10, 50, alike=0.9, each=2), False, compute_cosines=alike).run([search()])
    assert found.ids == ("s/a0", "s/b0", "s/c0", "s/b1", "s/a1")
    for single in (True, False):
        assert stage(Reader({}), off, single).run([search()])[0].hits == search().hits


def test_truncation_counts_places_among_all_candidates() -> None:
    seen = {"s/a0", "s/a1", "s/c0"}
    [found] = Truncate(seen.__contains__, 2, 4).run([search()])
    assert found.ids == ("s/a0", "s/b0")
    [found] = Truncate(seen.__contains__, 1, 5).run([search()])
    assert found.ids == ("s/a0", "s/b0", "s/b1")


@pytest.mark.parametrize(
    ("paths", "flat"),
    [
        ([(), (), ()], True),
        ([("a",), ("a",), ("a",)], True),
        ([("a",), ("b",), ("c",)], True),
        ([("a",), ("a",), ()], False),
    ],
)
def test_paths_are_flat_where_they_tell_no_tool_from_another(paths: list[tuple[str, ...]], flat: bool) -> None:
    tools = [Tool(id=f"s/{number}", name="x", path=path) for number, path in enumerate(paths)]
    families = Families(tools)
    assert families.flat == flat
    assert families.are_one_family(["s/0", "s/1"]) == (not flat) and not families.are_one_family(["s/0", "s/2"])


def test_limits_beyond_what_a_search_ranks_are_refused() -> None:
    for name, setting, most in (
        ("toolrerank", "unseen", 100),
        ("crossencoder", "candidates", 100),
        ("toolrefiner", "candidates", 128),
    ):
        with pytest.raises(ConfigError, match=f"{most}.*{setting}"):
            registry.resolve(name, {setting: most + 1})
    with pytest.raises(ConfigError, match="blend"):
        registry.resolve("crossencoder", {"blend": -1.0})


def test_one_parent_of_two_sources_is_two() -> None:
    families = Families([Tool(id=f"{each}", name="x", path=("mail",)) for each in ("s/1", "s/2", "t/1")])
    assert families.are_one_family(["s/1", "s/2"]) and not families.are_one_family(["s/1", "t/1"])
