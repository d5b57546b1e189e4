"""The learning loop: what is promoted and what is refused, what serves then, and what nobody can do to it."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import msgspec
import numpy as np
import pytest

import traffic
from homes_in_postgres import copy_home, name_home
from tests_cli import run
from toolscout import metrics
from toolscout.checks.selftest import run_selftest
from toolscout.dataset import Dataset
from toolscout.errors import Changed, ConfigError, NotFound, StoreError
from toolscout.home.catalogue.store import Origin
from toolscout.home.database import open_home
from toolscout.home.journal.evidence import LiveEvidence, collect_evidence
from toolscout.home.models import champion, model_store
from toolscout.learn import loop
from toolscout.learn.fit import SHELF_FOLDER
from toolscout.learn.loop import last, learn
from toolscout.learn.synthetic_queries import CHAT_QUERIES
from toolscout.location import Home, describe_home
from toolscout.rankers.scout_light import ONLY_NEAR
from toolscout.rankers.shared.mixture import find_usual_likeness, know_only_near
from toolscout.rankers.shared.usage import FittedUsage
from toolscout.recipes.registry import check_model
from toolscout.scout import Scout
from toolscout.types import Tool

CALLERS = [f"c{number}" for number in range(10)]
CLEAN = traffic.requests(400, 1)


def has_unfinished_run(home: Home) -> bool:
    try:
        open_home(home).read_document("learn/run.json")
    except FileNotFoundError:
        return False
    return True


@pytest.fixture
def office(empty_home: str) -> Iterator[Scout]:
    with Scout(empty_home, journal=False, refuse=True) as scout:
        traffic.catalogue(scout)
        yield scout


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that has learned once: do not change it, copy it."""
    home = tmp_path_factory.mktemp("learned") / "home"
    with Scout(home, journal=False) as scout:
        traffic.catalogue(scout)
        traffic.replay(scout, CLEAN, CALLERS)
        assert learn(scout).outcome == "promoted"
    return home


@pytest.fixture
def taught(learned: Path, tmp_path: Path) -> Iterator[Scout]:
    copy_home(learned, tmp_path / "home")
    with Scout(tmp_path / "home", journal=False) as scout:
        yield scout


# --- what is promoted -------------------------------------------------------------------------------------------------


def test_what_callers_used_is_learned_and_serves_every_search_that_names_nothing(office: Scout) -> None:
    before = traffic.right(office, seed=9)
    traffic.replay(office, CLEAN, CALLERS)
    report = learn(office)
    assert report.outcome == "promoted", report.reason
    assert report.evidence["repeated"] == 9
    assert (report.champion, report.splits) == ("scout", {"train": 274, "dev": 39, "test": 78})
    assert traffic.right(office, seed=9) >= 0.9 > 0.7 > before
    assert traffic.right(office, seed=9, recipe="hybrid") == before
    assert last(office.settings.place) == report
    [entry] = champion.history(office.settings.place)
    assert entry.model == report.candidate and "is better than scout" in entry.why


@pytest.mark.folder_only("a folder inside the home")
def test_the_dataset_folder_that_it_learned_from_can_be_read(taught: Scout) -> None:
    dataset = Dataset.load(taught.settings.home / "learn" / "dataset")
    assert {split: len(qrels) for split, qrels in dataset.qrels.items()} == {"train": 274, "dev": 39, "test": 78}
    grades = {grade for gold in dataset.qrels["test"].values() for grade in gold.values()}
    assert grades == {round(rank**0.5, 4) for rank in range(1, 7)}  # each tool was always shown at one rank


def test_nothing_new_promotes_nothing(taught: Scout) -> None:
    before = champion.history(taught.settings.place)
    report = learn(taught)
    assert (report.outcome, report.reason) == ("refused", "there is nothing new since the champion was fitted")
    traffic.replay(taught, traffic.requests(10, 2), CALLERS)
    assert learn(taught).outcome == "refused"
    assert champion.history(taught.settings.place) == before


def test_a_candidate_that_is_not_better_is_refused_with_the_figures(taught: Scout) -> None:
    traffic.replay(taught, traffic.requests(200, 3), CALLERS)
    report = learn(taught)
    assert report.outcome == "refused" and report.verdict is not None
    assert "it is not better: ndcg@5" in report.reason and "95 % interval" in report.reason
    assert report.candidate is not None  # it stays, so that it can be promoted by hand
    assert model_store.verify(champion.find_model(taught.settings.place, report.candidate)).recipe


def test_every_look_at_a_champions_place_takes_more_and_a_restart_forgets_none(taught: Scout) -> None:
    home, looks = taught.settings.place, []
    for seed, runs in ((3, (True, False)), (4, (False,))):  # a dry run and the real one are the same look
        traffic.replay(taught, traffic.requests(200, seed), CALLERS)
        for dry_run in runs:
            with Scout(name_home(home), journal=False) as scout:
                report = learn(scout, recipes=["neighbours"], dry_run=dry_run)
            assert report.verdict is not None and report.outcome in ("refused", "would-refuse")
            assert f"comparison {report.verdict.look} with this champion" in report.reason
            looks.append((report.verdict.look, round(report.verdict.level, 4)))
    assert looks == [(1, 0.0304), (1, 0.0304), (2, 0.0076)]
    assert report.candidate is not None
    champion.promote(home, report.candidate, "by hand")
    traffic.replay(taught, traffic.requests(200, 5), CALLERS)
    shown = run("--home", name_home(home), "learn", "--recipe", "neighbours", "--nice", "0").stdout
    assert f"comparison 1 with {report.candidate}: a better candidate needs p < 0.03" in shown


def test_the_gate_asks_only_for_requests_that_the_champion_was_not_fitted_on(taught: Scout) -> None:
    """Of those held out, some are older than the last search that the champion knows; they do not count."""
    traffic.replay(taught, traffic.requests(200, 3), CALLERS)
    before = learn(taught, recipes=["neighbours"], dry_run=True)
    assert before.verdict is not None and before.verdict.n == before.splits["test"]
    newest = collect_evidence(taught.journal, until=10**9).examples[-before.splits["test"] :]
    known = newest[len(newest) // 2]
    [entry] = champion.history(taught.settings.place)
    folder = champion.find_model(taught.settings.place, entry.model)
    noted = model_store.read_manifest(folder).values["journal"]
    model_store.note(folder, journal={**noted, "through": known.row})
    after = learn(taught, recipes=["neighbours"], dry_run=True)
    assert after.verdict is not None and after.splits == before.splits
    assert after.verdict.n == sum(each.row > known.row for each in newest) < after.splits["test"]


def test_a_dry_run_says_what_would_happen_and_changes_nothing(office: Scout) -> None:
    traffic.replay(office, CLEAN, CALLERS)
    report = learn(office, recipes=["neighbours"], dry_run=True)
    assert report.outcome == "would-promote" and champion.history(office.settings.place) == []
    assert learn(office, recipes=["neighbours"]).candidate == report.candidate
    assert len(champion.history(office.settings.place)) == 1


def test_what_was_used_since_is_looked_for_among_the_newest_events_alone(
    office: Scout, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = traffic.requests(60, 1)
    traffic.replay(office, asked, CALLERS)
    assert len(LiveEvidence(office.journal, 0, 1_000)()[1]) > 50
    monkeypatch.setattr(
        "toolscout.home.journal.evidence.MAX_LIVE_EVENTS", 20
    )  # a start must not take longer as a journal grows
    _, found = LiveEvidence(office.journal, 0, 1_000)()
    assert {each.query for each in found} == {text for text, _ in asked[-10:]}


def test_a_budget_of_time_that_is_exceeded_refuses(office: Scout) -> None:
    traffic.replay(office, CLEAN, CALLERS)
    report = learn(office, recipes=["neighbours"], budget_ms=1e-6)
    assert report.outcome == "refused" and "ms are allowed" in report.reason


def test_too_little_failed_hidden_and_unknown_teach_nothing_and_are_counted(office: Scout) -> None:
    assert "too little to learn from" in learn(office).reason
    common = {"query": "umbrella", "shown": ["office/music/play"]}
    for number in range(200):
        search = f"s{number}"
        text = {**common, "query": "blake2b:0f"} if number < 50 else {**common, "query": f"umbrella {number}"}
        office.journal.append("search", caller=CALLERS[number % 10], search_id=search, **text)
        tool, ok = ("gone/tool" if number < 100 else "office/music/play"), number < 150
        office.journal.append("call", caller=CALLERS[number % 10], search_id=search, tool=tool, ok=ok)
        office.journal.append("call", caller="other", search_id=search, tool="office/weather/forecast", ok=True)
    report = learn(office)
    assert report.outcome == "refused" and "too little to learn from" in report.reason
    told = report.evidence
    assert (told["searches"], told["unused"], told["hidden"], told["unknown_tools"]) == (200, 50, 50, 50)


def test_calls_that_name_no_search_do_not_count_and_learn_says_so(office: Scout) -> None:
    assert "search_id" not in learn(office).reason
    for number in range(7):
        office.called("office/music/play", ok=number > 1, caller="ann")
    report = learn(office)
    assert report.outcome == "refused" and report.evidence["unnamed"] == 5
    assert "; 5 successful calls do not count, because they name no search: pass the search_id" in report.reason


def test_feedback_teaches_what_calls_do_not(office: Scout) -> None:
    for number, (text, tool) in enumerate(CLEAN):
        caller, search = CALLERS[number % 10], f"s{number}"
        office.journal.append("search", caller=caller, search_id=search, query=text, shown=[])
        office.journal.append("call", caller=caller, search_id=search, tool="office/music/play", ok=True)
        bad = [] if tool == "office/music/play" else ["office/music/play"]
        office.journal.append("feedback", caller=caller, search_id=search, good=[tool], bad=bad)
    assert learn(office, recipes=["neighbours"]).outcome == "promoted"
    assert traffic.right(office, seed=9) >= 0.9


def test_recipes_can_be_asked_for_and_others_are_refused(office: Scout) -> None:
    traffic.replay(office, CLEAN, CALLERS)
    with pytest.raises(ConfigError, match="expected recipes that are fitted, found bm25"):
        learn(office, recipes=["bm25"])
    report = learn(office, recipes=["tool2vec"])
    assert [each.recipe for each in report.candidates] == ["tool2vec"]


# --- nobody decides alone ---------------------------------------------------------------------------------------------


def flood(scout: Scout, count: int, tool: str = "office/music/play") -> None:
    asked = [(f"{text} {number}", tool) for number, (text, _) in enumerate(traffic.requests(count, 7))]
    traffic.replay(scout, asked, ["mallory"])


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.full)])
def test_one_callers_flood_of_false_calls_promotes_nothing(taught: Scout, count: int) -> None:
    before, answers = champion.history(taught.settings.place), traffic.right(taught, seed=9)
    flood(taught, count)
    report = learn(taught)
    assert report.outcome == "refused", report.reason
    assert champion.history(taught.settings.place) == before
    assert report.evidence["capped"] > count / 2
    assert traffic.right(taught, seed=9) >= answers - 0.05


def test_a_flood_after_good_traffic_promotes_nothing_though_there_is_more_to_train_on(office: Scout) -> None:
    """The flood moves the requests of others from those held out to those trained on; that alone is no reason."""
    traffic.replay(office, traffic.requests(150, 1), CALLERS)
    assert learn(office).outcome == "promoted"
    traffic.replay(office, [(f"{text} {number}", tool) for number, (text, tool) in enumerate(CLEAN)], ["flood"])
    report = learn(office)
    assert report.outcome == "refused"
    assert "all that is new since the champion comes from one caller (flood)" in report.reason
    traffic.replay(office, traffic.requests(300, 5), [*CALLERS, "flood"])
    report = learn(office, dry_run=True)
    assert "one caller" not in report.reason
    new = [each for each in collect_evidence(office.journal, until=10**9, since=500).examples if each.row > 500]
    assert 0 < sum(each.caller == "flood" for each in new) <= 0.2 * len(new)


def test_a_flood_does_not_keep_others_from_learning(office: Scout) -> None:
    flood(office, 2_000)
    assert learn(office).outcome == "refused"
    traffic.replay(office, CLEAN, CALLERS)
    assert learn(office).outcome == "promoted"
    assert traffic.right(office, seed=9) >= 0.85


def test_a_stranger_alone_teaches_nothing_unless_trusted_but_the_owner_does(tmp_path: Path) -> None:
    for name, trust, outcome in (
        ("stranger", (), "refused"),
        ("agent", ("agent",), "promoted"),
        ("local", (), "promoted"),
    ):
        with Scout(tmp_path / name, journal=False, learn_trust=trust) as scout:
            traffic.catalogue(scout)
            traffic.replay(scout, CLEAN, [name])
            report = learn(scout, recipes=["neighbours"])
            assert report.outcome == outcome, report.reason
            assert outcome == "promoted" or "all evidence comes from one caller (stranger)" in report.reason


@pytest.mark.parametrize("seed", [0, 12, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 20) if n != 12)])
def test_random_labels_never_promote_what_is_worse(taught: Scout, seed: int) -> None:
    """With 30 % of the labels drawn at random, whoever is promoted is not significantly worse on clean requests.

    Seed 12 once was: its gain in ndcg@5 came from random labels further down, while what it put first was worse.
    """
    clean = traffic.requests(400, 99)

    def values() -> list[float]:
        found = taught.search_many([text for text, _ in clean], 1)
        return [float(tool in each.ids) for (_, tool), each in zip(clean, found, strict=True)]

    before = values()
    traffic.replay(taught, traffic.requests(400, 100 + seed, noise=0.3), CALLERS)
    report = learn(taught)
    assert (report.outcome == "promoted") == (len(champion.history(taught.settings.place)) == 2)
    test = metrics.paired_test(values(), before)
    assert report.outcome == "refused" or test.difference >= 0 or test.p >= 0.05
    assert test.difference >= -0.02


@pytest.mark.parametrize(("recipe", "least"), [("tool2vec", 0.0), ("mlc-light", 0.3), ("neighbours", 0.0)])
def test_a_champion_does_not_turn_away_what_it_is_sure_of(office: Scout, recipe: str, least: float) -> None:
    """Requests that the model knows are not turned away; where chat scores as high, it knows none.

    Words out of any order may be of another language, about which there is no verdict. So the requests begin with ones
    that only English has.
    """
    traffic.replay(office, CLEAN, CALLERS)
    assert learn(office, recipes=[recipe]).outcome == "promoted"
    [entry] = champion.history(office.settings.place)
    folder = champion.find_model(office.settings.place, entry.model)
    sure = model_store.read_manifest(folder).values["sure"]
    texts = [f"could you please: {text}" for text, _ in traffic.requests(100, 77)]

    def kept(asked: Sequence[str]) -> set[str]:
        return {text for text, found in zip(asked, office.search_many(asked), strict=True) if found.hits}

    firsts = {text: found.hits for text, found in zip(texts, office.search_many(texts), strict=True)}
    known = {text for text, hits in firsts.items() if hits and hits[0].score >= sure}
    assert len(known) >= least * len(firsts)
    always = {"budgets": [0.0, 0.02], "need": [1.1, 1.1], "fit": [1.1, 1.1]}
    model_store.note(folder, floors=always)
    assert kept(texts) == known and not kept(CHAT_QUERIES)
    model_store.note(folder, sure=None)
    assert not kept(texts)


@pytest.mark.folder_only("copies the folder of a home that is open")
@pytest.mark.parametrize(
    ("few", "first", "seeds", "least"),
    [
        (105, 1, (13,), 0),
        (100, 3, (1, 3, 6, 7), 1),
        pytest.param(105, 1, range(20), 0, marks=pytest.mark.full),
        pytest.param(100, 3, range(20), 1, marks=pytest.mark.full),
    ],
)
def test_random_labels_promote_over_a_weak_champion_only_what_is_not_worse(
    office: Scout, tmp_path: Path, few: int, first: int, seeds: Sequence[int], least: int
) -> None:
    """A champion fitted on few requests leaves room: some are promoted, none of them significantly worse on clean ones.

    Against the champion of 105 requests, the candidate of seed 13 is 11 points worse, significantly. Against that of
    100, four of 20 candidates are promoted, 8 to 14 points better.
    """
    clean = traffic.requests(400, 99)
    traffic.replay(office, traffic.requests(few, first, noise=0.3), CALLERS)
    weak = learn(office, recipes=["mlc-light"], dry_run=True).candidate
    assert weak is not None
    champion.promote(office.settings.place, weak, "by hand")
    promoted = []
    for seed in seeds:
        shutil.copytree(office.settings.home, tmp_path / str(seed))
        with Scout(tmp_path / str(seed), journal=False) as scout:

            def values(scout: Scout = scout) -> list[float]:
                found = scout.search_many([text for text, _ in clean], 1)
                return [float(tool in each.ids) for (_, tool), each in zip(clean, found, strict=True)]

            traffic.replay(scout, traffic.requests(400, 100 + seed, noise=0.3), CALLERS)
            before = values()
            assert 0.85 < sum(before) / len(before) < 0.96
            report = learn(scout)
            assert report.verdict is not None and report.champion == weak
            if report.outcome == "promoted":
                test = metrics.paired_test(values(), before)
                assert test.difference >= 0 or test.p >= 0.05, seed
                promoted.append(seed)
    assert len(promoted) >= least


@pytest.mark.folder_only("changes the files of a model by hand")
def test_floors_are_of_no_use_once_the_catalogue_is_another_one(office: Scout) -> None:
    traffic.replay(office, CLEAN, CALLERS)
    assert learn(office, recipes=["neighbours"]).outcome == "promoted"
    [entry] = champion.history(office.settings.place)
    always = {"budgets": [0.0, 0.02], "need": [1.1, 1.1], "fit": [1.1, 1.1]}
    model_store.note(champion.find_model(office.settings.place, entry.model), floors=always, sure=None)
    assert office.search("what about an umbrella or raincoat today").kind != "tools"
    more = [{"name": f"tool_{number}", "description": f"Does task {number}."} for number in range(7)]
    office.add(more[:6], name="few")  # twelve where there were six
    assert office.search("what about an umbrella or raincoat today").kind != "tools"
    office.add(more, name="few")
    assert office.search("what about an umbrella or raincoat today").ids[0] == "office/weather/forecast"


# --- champions --------------------------------------------------------------------------------------------------------


def test_rollback_restores_the_former_answers_exactly(taught: Scout) -> None:
    asked = [text for text, _ in traffic.requests(50, 5)]

    def answers() -> list[tuple[tuple[str, float], ...]]:
        return [tuple((hit.id, hit.score) for hit in each.hits) for each in taught.search_many(asked)]

    first, home = answers(), taught.settings.place
    report = learn(taught, recipes=["tool2vec"], dry_run=True)
    assert report.candidate is None  # nothing new
    traffic.replay(taught, traffic.requests(200, 3), CALLERS)
    report = learn(taught, recipes=["tool2vec"])
    assert report.outcome == "refused" and report.candidate is not None
    with_evidence = answers()
    champion.promote(home, report.candidate, "by hand")
    assert answers() != with_evidence
    left = champion.rollback(home)
    assert left is not None and answers() == with_evidence
    assert champion.rollback(home) is None
    plain = answers()
    assert plain == [
        tuple((hit.id, hit.score) for hit in each.hits) for each in taught.search_many(asked, recipe="hybrid")
    ]
    assert first != plain
    with pytest.raises(NotFound, match="Nothing to roll back"):
        champion.rollback(home)


def test_a_rollback_takes_back_the_one_it_names_or_nothing(taught: Scout) -> None:
    home = taught.settings.place
    [entry] = champion.history(home)
    with pytest.raises(Changed, match=f"The champion is now {entry.model}, not 'another'"):
        champion.rollback(home, of="another")
    assert champion.history(home) == [entry]
    assert champion.rollback(home, of=entry.model) is None
    with pytest.raises(NotFound, match="Nothing to roll back"):
        champion.rollback(home, of=entry.model)


@pytest.mark.folder_only("changes the files of a model by hand")
def test_another_process_takes_a_new_champion_at_its_next_search(office: Scout, learned: Path) -> None:
    assert office.search("drizzle parasol please", 1).ids != ("office/weather/forecast",)
    shutil.copytree(learned / "models", office.settings.home / "models")
    assert office.search("drizzle parasol please", 1).ids == ("office/weather/forecast",)
    (office.settings.home / "models" / "champion.json").unlink()
    assert office.search("drizzle parasol please", 1).ids != ("office/weather/forecast",)


def test_a_named_recipe_or_model_comes_before_the_champion(taught: Scout, tmp_path: Path) -> None:
    name = model_store.read_manifest(champion.current(taught.settings.place) or tmp_path).recipe
    with Scout(name_home(taught.settings.place)) as scout:
        for how, recipe in (({}, name), ({"recipe": "bm25"}, "bm25"), ({"recipe": name}, name)):
            scout.search("umbrella", **how)
            event = list(scout.journal.read(event="search"))[-1]
            assert (event["recipe"], event["model"] is not None) == (recipe, recipe == name)
    with Scout(name_home(taught.settings.place), recipe="bm25") as scout:
        assert scout.engine.selector.find(None, None).recipe == "bm25"


@pytest.mark.folder_only("in a database a damaged copy is fetched again")
@pytest.mark.parametrize("harm", ["gone", "damaged", "foreign catalogue", "pointer"])
def test_a_champion_that_cannot_serve_is_passed_over_and_that_is_said(taught: Scout, harm: str) -> None:
    folder = champion.current(taught.settings.place)
    assert folder is not None
    if harm == "gone":
        shutil.rmtree(folder)
    elif harm == "damaged":
        (folder / model_store.ARRAYS).write_bytes(b"x")
    elif harm == "pointer":
        (folder.parent / "champion.json").write_text("{")
    else:
        taught.remove(["office"])
        taught.add([{"name": "umbrella_stand", "description": "Order an umbrella stand."}], name="shop")
    found = taught.search("deliver a letter or order an umbrella stand")
    assert found.hits and "searched with scout instead of the promoted model" in (found.reason or "")
    assert taught.search("deliver a letter or order an umbrella stand", recipe="hybrid").reason is None
    assert describe_home(taught.settings.place) in (taught.search("letter").reason or "") or harm == "foreign catalogue"


@pytest.mark.folder_only("in a database a damaged copy is fetched again")
@pytest.mark.parametrize("harm", ["damaged", "pointer"])
def test_who_may_not_see_everything_hears_no_path_of_a_champion_that_cannot_serve(
    taught: Scout, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = champion.current(taught.settings.place)
    assert folder is not None
    file = folder / model_store.ARRAYS if harm == "damaged" else folder.parent / "champion.json"
    file.write_bytes(b"{")
    for _ in range(2):
        found = taught.search("deliver a letter", visible=everything, caller="bob")
        assert found.reason == "searched with scout: the promoted model cannot serve"
    assert [str(file) in record.getMessage() for record in caplog.records] == [True], "once, in full"


def everything(tool: Tool) -> bool:
    return True


def test_what_is_used_counts_at_once_and_after_a_restart(office: Scout) -> None:
    traffic.replay(office, CLEAN, CALLERS)
    stories = {
        "neighbours": ("zebra crossing", "Holds things upright."),
        "tool2vec": ("quantum banjo", "Tunes a string."),
        "scout-light": ("silent courier", "Paints a wall."),
    }
    for recipe, (asked, work) in stories.items():
        report = learn(office, recipes=[recipe], dry_run=True)
        assert report.candidate
        champion.promote(office.settings.place, report.candidate, "by hand")
        office.add([{"name": f"stand_{recipe}", "description": work}], name=f"shop-{recipe}")
        tool = f"shop-{recipe}/stand_{recipe}"
        assert tool not in office.search(asked, 1).ids
        for number in range(12):
            search = f"{recipe}{number}"
            office.journal.append("search", search_id=search, query=f"{asked} {number}", shown=[])
            office.journal.append("call", search_id=search, tool=tool, ok=True)
        assert office.search(asked, 1).ids == (tool,)
        with Scout(name_home(office.settings.place), journal=False) as again:
            assert again.search(asked, 1).ids == (tool,)
            assert "by usage" in again.why(asked, tool).stages[0].note


def test_bases_that_were_fitted_for_a_run_leave_the_shelf_with_it(office: Scout) -> None:
    traffic.replay(office, CLEAN, CALLERS)
    report = learn(office, recipes=["neighbours"], dry_run=True)
    assert report.candidate
    fitted, bases = champion.shelf(office.settings.place) / report.candidate, office.settings.home / SHELF_FOLDER
    shutil.copytree(fitted, bases / "neighbours-of-this-run")
    for name in ("neighbours-damaged", "neighbours-of-others"):
        shutil.copytree(fitted, bases / name)
    manifest = model_store.read_manifest(fitted)
    other = msgspec.structs.replace(manifest, data=msgspec.structs.replace(manifest.data, fingerprint="another"))
    (bases / "neighbours-of-others" / model_store.MANIFEST).write_bytes(msgspec.json.encode(other.seal()))
    (bases / "neighbours-damaged" / model_store.MANIFEST).write_text("{")
    learn(office, recipes=["neighbours"], dry_run=True)
    assert sorted(folder.name for folder in bases.iterdir()) == ["neighbours-damaged", "neighbours-of-others"]


def test_full_fits_the_recipe_that_tunes_encoders(office: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []

    def refuse(scout: Scout, *, recipes: Sequence[str], **settings: object) -> None:
        asked.append(recipes)
        raise ConfigError("enough")

    monkeypatch.setattr("toolscout.cli.learn.learn", refuse)
    home = name_home(office.settings.place)
    for options in (["--full"], ["--full", "--recipe", "scout-light"], []):
        run("--home", home, "learn", "--nice", "0", *options)
    assert asked == [("scout-full",), ("scout-light", "scout-full"), ()]


# --- kills, and others beside it --------------------------------------------------------------------------------------


def test_a_killed_run_goes_on_with_the_same_requests_and_keeps_what_was_fitted(office: Scout, tmp_path: Path) -> None:
    traffic.replay(office, traffic.requests(1_000, 1), CALLERS)
    home = name_home(office.settings.place)
    shelf = champion.shelf(office.settings.place)
    recipes = ["neighbours", "tool2vec"]
    command = [sys.executable, "-m", "toolscout", "--home", home, "learn", *(f"--recipe={name}" for name in recipes)]
    started = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not list(shelf.glob("neighbours-*/manifest.json")) and started.poll() is None:
        time.sleep(0.01)
    started.kill()
    started.wait()
    fitted = {path: path.stat().st_mtime_ns for path in shelf.glob("neighbours-*/manifest.json")}
    assert fitted and has_unfinished_run(office.settings.place)
    traffic.replay(office, traffic.requests(200, 2), CALLERS)
    said: list[str] = []
    report = learn(office, recipes=recipes, say=said.append)
    assert report.outcome == "promoted" and sum(report.splits.values()) <= 1_000
    assert any("continuing the interrupted run of" in line for line in said)
    assert any("neighbours: " in line and "already finished" in line for line in said)
    assert not has_unfinished_run(office.settings.place)


@pytest.mark.slow
@pytest.mark.timeout(3_000)
@pytest.mark.folder_only("a copy of the folder")
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.full)])
def test_a_run_killed_at_any_instant_leaves_a_sound_home_and_the_next_one_ends(
    kills: int, office: Scout, tmp_path: Path
) -> None:
    chance = random.Random(kills)
    traffic.replay(office, traffic.requests(1_000, 1), CALLERS)
    whole_home = shutil.copytree(office.settings.home, tmp_path / "whole")
    words = ["learn", "--recipe=neighbours", "--recipe=tool2vec"]
    started = time.monotonic()
    assert start_program(whole_home, words).wait() == 0
    duration, n_struck = time.monotonic() - started, 0
    for number in range(kills):
        home = Path(shutil.copytree(office.settings.home, tmp_path / str(number)))
        process = start_program(home, words)
        time.sleep(chance.uniform(0.1, 1.0) * duration)
        process.kill()
        n_struck += process.wait() < 0
        with Scout(home, journal=False) as scout:
            assert scout.store.check() == [] and scout.journal.check() == []
            assert scout.journal.last() == office.journal.last()
            for promotion in champion.history(home):
                check_model(champion.find_model(home, promotion.model))
            assert scout.search("blanket or lobby today").hits
            if number % 3 == 0:  # takes as long as a run
                report = learn(scout, recipes=["neighbours", "tool2vec"])
                assert report.outcome == "promoted" or champion.history(home), report.reason
                assert not has_unfinished_run(home) and not list(home.rglob("*.partial"))
        shutil.rmtree(home)
    assert n_struck >= kills // 3


def start_program(home: object, words: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "toolscout", "--home", str(home), *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_two_runs_at_once_are_refused(office: Scout) -> None:
    traffic.replay(office, CLEAN, CALLERS)

    def second(text: str) -> None:
        with pytest.raises(StoreError, match="Another `toolscout learn` is running"):
            learn(office)

    learn(office, recipes=["neighbours"], say=second)


def test_former_champions_stay_and_other_candidates_go(taught: Scout) -> None:
    home = taught.settings.place
    first = champion.history(home)[-1].model
    assert [path.name for path, _ in model_store.list_models(champion.shelf(home))] == [first]
    traffic.replay(taught, traffic.requests(200, 3), CALLERS)
    report = learn(taught)
    assert {path.name for path, _ in model_store.list_models(champion.shelf(home))} == {first, report.candidate}


def test_a_model_that_a_setting_names_stays(taught: Scout) -> None:
    home = taught.settings.place
    pinned = champion.current(home)
    assert pinned is not None and champion.rollback(home) is None
    with Scout(name_home(home), journal=False, model=pinned) as scout:
        traffic.replay(scout, traffic.requests(200, 3), CALLERS)
        assert learn(scout, recipes=["tool2vec"]).candidate is not None
        assert scout.search("drizzle parasol please", 1).ids == ("office/weather/forecast",)


def test_a_rollback_passes_over_those_whose_models_are_gone(taught: Scout) -> None:
    home = taught.settings.place
    first = champion.history(home)[-1].model
    for number in range(7):
        shutil.copytree(champion.find_model(home, first), champion.shelf(home) / f"later-{number}")
        champion.promote(home, f"later-{number}", "by hand")
    traffic.replay(taught, traffic.requests(200, 3), CALLERS)
    candidate = learn(taught).candidate
    there = {path.name for path, _ in model_store.list_models(champion.shelf(home))}
    assert there == {candidate, *(f"later-{number}" for number in range(2, 7))}
    left = [champion.rollback(home) for _ in range(5)]
    assert [each and each.model for each in left] == ["later-5", "later-4", "later-3", "later-2", None]
    assert champion.history(home) == []


def test_a_champion_that_changed_meanwhile_is_not_overruled(taught: Scout) -> None:
    home = taught.settings.place
    champion.rollback(home)
    traffic.replay(taught, traffic.requests(200, 3), CALLERS)
    [(other, _)] = model_store.list_models(champion.shelf(home))

    def meanwhile(text: str) -> None:
        if text.startswith("comparing"):
            champion.promote(home, other.name, "by hand")

    report = learn(taught, recipes=["neighbours"], say=meanwhile)
    assert report.outcome == "refused" and "because somebody changed the champion. Run it again" in report.reason
    assert [each.why for each in champion.history(home)] == ["by hand"]
    assert learn(taught, recipes=["neighbours"]).champion == other.name


HOLD = """
import sys
from pathlib import Path
from toolscout.location import is_address, parse_home
from toolscout.home.models import champion
home = sys.argv[1]
with champion.changing(parse_home(home) if is_address(home) else Path(home)):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_whoever_promotes_waits_for_others_but_not_for_the_dead(taught: Scout) -> None:
    home = taught.settings.place
    before = champion.history(home)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, name_home(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder, ThreadPoolExecutor() as pool:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        waiting = [pool.submit(champion.promote, home, before[-1].model, str(number)) for number in range(3)]
        assert wait(waiting, timeout=0.3).done == set() and champion.history(home) == before
        holder.kill()
    assert {each.result().why for each in waiting} == {"0", "1", "2"}
    assert sorted(each.why for each in champion.history(home)[1:]) == ["0", "1", "2"]


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_command_line_learns_lists_promotes_and_rolls_back(office: Scout) -> None:
    home = ("--home", name_home(office.settings.place))
    assert "refused: there is too little" in run(*home, "learn", "--nice", "0").stdout
    traffic.replay(office, CLEAN, CALLERS)
    dry = json.loads(run(*home, "learn", "--dry-run", "--json", "--nice", "0").stdout)
    assert dry["outcome"] == "would-promote"
    done = run(*home, "learn", "--nice", "0")
    assert done.exit_code == 0 and "promoted: " in done.stdout and "chosen" in done.stdout
    [model] = json.loads(run(*home, "models", "--json").stdout)
    assert model["champion"] and model["name"] == dry["candidate"]
    assert "(champion)" in run(*home, "models").stdout
    assert json.loads(run(*home, "search", "umbrella and raincoat", "--json").stdout)["hits"][0]["name"] == "forecast"
    assert "scout serves again" in run(*home, "rollback").stdout
    assert run(*home, "rollback").exit_code == 1
    assert run(*home, "promote", model["name"]).exit_code == 0
    refused = run(*home, "promote", "../models")
    assert refused.exit_code == 1 and "expected the name of a model" in refused.stderr


@pytest.mark.skipif(not hasattr(os, "nice"), reason="this system has no niceness")
@pytest.mark.parametrize(("given", "expected"), [([], 10), (["--nice", "3"], 5), (["--nice", "0"], 5)])
def test_it_stands_back_behind_those_who_search(
    office: Scout, monkeypatch: pytest.MonkeyPatch, given: list[str], expected: int
) -> None:
    held = [5]

    def nice(more: int) -> int:
        held[0] += more
        return held[0]

    monkeypatch.setattr(os, "nice", nice)
    run("--home", name_home(office.settings.place), "learn", *given)
    assert held == [expected]


# --- requests outside the traffic -------------------------------------------------------------------------------------

NOUNS = ("invoice", "parcel", "orchard", "bridge", "lantern", "violin", "glacier", "harbour", "ticket", "museum")
VERBS = ("archive", "measure", "paint", "rent", "repair", "sell")


def add_tools_that_nobody_uses(scout: Scout) -> list[tuple[str, str]]:
    """Add a source with 60 tools, and return requests for them."""
    tools = [
        Tool(id=f"shed/{verb}_{noun}", name=f"{verb}_{noun}", description=f"{verb.title()} a {noun} of the village.")
        for verb in VERBS
        for noun in NOUNS
    ]
    scout.store.put_source(Origin("objects:shed", "objects"), "shed", kind="objects", tools=tools)
    return [(f"please {tool.name.replace('_', ' the ')} today", tool.id) for tool in tools]


def test_a_promotion_costs_requests_outside_the_traffic_at_most_one_of_sixty(office: Scout) -> None:
    asked = add_tools_that_nobody_uses(office)
    traffic.replay(office, CLEAN, CALLERS)

    def count_found() -> int:
        answers = office.search_many([text for text, _ in asked], 5)
        return sum(tool in answer.ids for (_, tool), answer in zip(asked, answers, strict=True))

    before = count_found()
    report = learn(office)
    assert report.outcome == "promoted" and report.verdict is not None and report.verdict.outside is not None
    assert report.verdict.outside["n"] == len(asked)
    assert before - count_found() <= 1
    assert traffic.right(office, seed=9) >= 0.85
    assert run_selftest(office).recommended == "champion", "the gate and the selftest give one verdict"


def test_a_model_that_would_cost_other_requests_is_used_only_near_the_logged_ones(
    office: Scout, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_tools_that_nobody_uses(office)
    traffic.replay(office, CLEAN, CALLERS)
    losses = iter([["it would lose"], []])
    monkeypatch.setattr(loop, "explain_outside_loss", lambda _: next(losses))
    report = learn(office)
    assert report.outcome == "promoted" and report.candidate is not None, report.reason
    manifest = model_store.read_manifest(champion.shelf(office.settings.place) / report.candidate)
    assert manifest.values[ONLY_NEAR] is True


def test_usage_that_knows_only_near_queries_knows_no_other_one() -> None:
    rows = np.eye(3, dtype=np.float32)
    learned = know_only_near(FittedUsage(lambda text, row: np.array([0.2, 0.8])), rows, 0.6)
    assert learned.usage("near", np.array([0.8, 0.6, 0.0])).tolist() == [0.2, 0.8]
    assert not learned.usage("far", np.array([0.577, 0.577, 0.577])).any()
    assert find_usual_likeness(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [1.0, 0.0]])) == pytest.approx(
        0.75, abs=0.06
    )
