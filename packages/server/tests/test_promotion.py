"""A promotion while a program serves: the former champion answers until the new one is ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import traffic
from toolscout.home.models import champion
from toolscout.recipes import select as champion_switch
from toolscout.recipes.engine import SearchEngine
from toolscout.recipes.select import Selection, SelectionKey
from toolscout.scout import Scout
from toolscout.settings import load_settings

QUERY = traffic.requests(1, 9)[0][0]


def search(scout: Scout) -> list[tuple[str, float]]:
    return [(hit.id, hit.score) for hit in scout.search(QUERY, 3).hits]


class Builds:
    """The builds of the recipe `scout`, which wait until they are let go, and then may fail."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.count = 0

    def wait(self) -> None:
        self.count += 1
        self.begun.set()
        assert self.may_go_on.wait(60)
        if self.error is not None:
            raise self.error


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Builds]:
    """Holds the builds of the recipe that serves after the champion was rolled back."""
    builds, build = Builds(), SearchEngine._build_ready

    def build_slowly(self: SearchEngine, selection: Selection, **options: Any) -> Any:
        if selection.recipe == "scout":
            builds.wait()
        return build(self, selection, **options)

    monkeypatch.setattr(SearchEngine, "_build_ready", build_slowly)
    yield builds
    builds.may_go_on.set()


def test_the_former_champion_answers_until_the_new_pipeline_is_ready(taught: Scout, builds: Builds) -> None:
    taught.engine.switch_in_background()
    learned, [entry] = search(taught), champion.history(taught.settings.place)
    champion.rollback(taught.settings.place)
    assert builds.begun.wait(60), "the build begins without a search"
    assert [search(taught) for _ in range(3)] == [learned] * 3
    builds.may_go_on.set()
    assert taught.engine.await_champion()[0].recipe == "scout"
    assert search(taught) != learned
    champion.promote(taught.settings.place, entry.model, "again")
    assert taught.engine.await_champion()[0].recipe == "neighbours" and search(taught) == learned
    assert builds.count == 1, "its pipeline was still there"
    taught.engine.stop_switching()


def test_without_the_background_the_next_search_uses_the_new_champion(taught: Scout, builds: Builds) -> None:
    learned = search(taught)
    champion.rollback(taught.settings.place)
    builds.may_go_on.set()
    assert search(taught) != learned


def test_a_replica_without_searches_switches_too_and_frees_the_former_pipeline(
    taught: Scout, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(champion_switch, "KEEP_FORMER_S", 0.0)
    taught.engine.switch_in_background()
    search(taught)
    assert len(taught.engine._ready) == 1
    champion.rollback(taught.settings.place)
    builds.may_go_on.set()
    while {key[0] for key in taught.engine._ready} != {"scout"}:
        time.sleep(0.05)
    taught.engine.stop_switching()


class Promoted:
    """Decides that the model named last serves."""

    model = Path("a")

    def champion(self) -> Path:
        return self.model

    def select(self, *_: object, **options: object) -> tuple[Selection, str]:
        return Selection("neighbours", self.model, None, promoted=True), ""


def test_promotions_soon_after_each_other_free_every_former_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, forgotten, promoted = [100.0], list[str](), Promoted()
    monkeypatch.setattr(champion_switch.time, "monotonic", lambda: clock[0])

    def forget(key: SelectionKey) -> None:
        forgotten.append(str(key[1]))

    switch = champion_switch.ChampionSwitch(
        load_settings(home=tmp_path / "home"),
        promoted,  # type: ignore[arg-type]
        lambda: 1,
        forget,
    )
    for seconds, model in ((0.0, "a"), (1.0, "b"), (1.0, "c"), (1.0, "b"), (1.0, "d")):
        clock[0] += seconds
        promoted.model = Path(model)
        switch._decide(lambda selection: None)  # type: ignore[arg-type, return-value]
        switch._free_retired()
    assert forgotten == [], "searches may still run on them"
    clock[0] = 101.0 + champion_switch.KEEP_FORMER_S
    switch._free_retired()
    assert forgotten == ["a"]
    clock[0] += 3
    switch._free_retired()
    assert forgotten == ["a", "c", "b"] and switch.select()[0].model == Path("d")


def test_a_removed_tool_is_never_returned_while_a_champion_is_built(taught: Scout, builds: Builds) -> None:
    taught.engine.switch_in_background()
    [(best, _), *_] = search(taught)
    champion.rollback(taught.settings.place)
    assert builds.begun.wait(60)
    taught.remove([best])
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(search, taught)
        builds.may_go_on.set()
        assert best not in dict(found.result(60))
    taught.engine.stop_switching()


def test_a_search_that_has_to_build_does_not_wait_for_the_champion(taught: Scout, builds: Builds) -> None:
    taught.engine.switch_in_background()
    search(taught)
    champion.rollback(taught.settings.place)
    assert builds.begun.wait(60)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(taught.search, QUERY, 3, recipe="bm25").result(20).query == QUERY
    builds.may_go_on.set()
    taught.engine.stop_switching()


def test_a_new_champion_that_cannot_be_built_leaves_the_former_one(
    taught: Scout, builds: Builds, caplog: pytest.LogCaptureFixture
) -> None:
    taught.engine.switch_in_background()
    learned = search(taught)
    builds.error = RuntimeError("out of memory")
    builds.may_go_on.set()
    champion.rollback(taught.settings.place)
    while "The former one goes on" not in caplog.text:
        assert search(taught) == learned
    assert [search(taught) for _ in range(3)] == [learned] * 3
    taught.engine.stop_switching()
    assert builds.count == 1, "it is not tried again at once"


def test_the_service_answers_searches_while_a_promotion_builds(taught: Scout, start: Any, builds: Builds) -> None:
    client, query = start(scout=taught), {"query": QUERY, "k": 3}

    def ask() -> list[tuple[str, float]]:
        return [(hit["id"], hit["score"]) for hit in client.post("/v1/search", json=query).json()["hits"]]

    learned, [entry] = ask(), champion.history(taught.settings.place)
    with ThreadPoolExecutor(1) as pool:
        rollback = pool.submit(client.post, "/v1/rollback", json={"champion": entry.model})
        assert builds.begun.wait(60)
        assert [ask() for _ in range(3)] == [learned] * 3 and not rollback.done()
        builds.may_go_on.set()
        assert rollback.result(60).json() == {"champion": None, "recipe": "scout", "notice": None}
    assert ask() != learned
