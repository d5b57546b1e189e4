"""What the journal says: odd events harm nobody, and what counts at once is what counts after a restart."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import traffic
from homes_in_postgres import copy_home
from toolscout.home.journal import evidence
from toolscout.home.journal.evidence import (
    LiveEvidence,
    collect_evidence,
    limit_per_caller,
    read_example,
    weigh_rank,
)
from toolscout.home.journal.journal import Journal, Trail
from toolscout.learn.loop import learn
from toolscout.scout import Scout

CALLERS = [f"c{number}" for number in range(10)]
TOOL = "office/music/play"
ODD: list[Any] = [None, 0, -1.5, True, "", "x", [], [None], [["a"]], [{"id": "a"}], [1, TOOL], {}, {"id": "a"}]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    held = Journal(tmp_path)
    yield held
    held.close()


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose champion looks at what was used since it was fitted: do not change it, copy it."""
    home = tmp_path_factory.mktemp("learned") / "home"
    with Scout(home, journal=False) as scout:
        traffic.catalogue(scout)
        traffic.replay(scout, traffic.requests(200, 1), CALLERS)
        assert learn(scout, recipes=["neighbours"]).outcome == "promoted"
    return home


@pytest.fixture
def neighbours(learned: Path, tmp_path: Path) -> Iterator[Scout]:
    copy_home(learned, tmp_path / "home")
    with Scout(tmp_path / "home", journal=False) as scout:
        yield scout


def test_a_call_from_further_down_weighs_the_inverse_of_its_propensity() -> None:
    assert [weigh_rank(rank) for rank in (None, 0, 1, 4, 9)] == [1.0, 1.0, 1.0, 2.0, 3.0]


def test_only_calls_of_the_caller_who_searched_are_an_example() -> None:
    search = {"event": "search", "caller": "ann", "at": "now", "query": "rain", "shown": ["a", "b", "c", "d"]}
    call = {"event": "call", "caller": "ann", "ok": True, "tool": "d"}
    others = {**call, "caller": "bob", "tool": "a"}
    found = read_example(Trail(1, [search, others, call, {**call, "ok": False, "tool": "b"}]))
    assert found is not None and (found.caller, found.tools) == ("ann", {"d": 2.0})
    assert read_example(Trail(1, [search, others])) is None


@pytest.mark.parametrize(
    ("counts", "cap"),
    [
        ({"ann": 900}, 900),  # alone: no limit
        ({"ann": 900, "bob": 100}, 100),  # of two, half: as many as the other
        ({"ann": 900, "bob": 20}, 50),  # fifty in any case
        ({"ann": 9_000, **{f"c{n}": 100 for n in range(99)}}, 521),  # of many, a twentieth of all that are taken
    ],
)
def test_no_caller_brings_more_than_its_share(counts: dict[str, int], cap: int) -> None:
    assert limit_per_caller(counts) == cap


def oddities() -> list[dict[str, Any]]:
    """Events of every kind, each with one field of another shape than it should have, each followed by a good call."""
    sound: dict[str, dict[str, Any]] = {
        "search": {"query": "umbrella", "shown": [TOOL], "recipe": "hybrid", "model": None, "generation": 1},
        "call": {"tool": TOOL, "ok": True, "ms": 1.0, "rank": 1},
        "feedback": {"good": [TOOL], "bad": []},
    }
    found: list[dict[str, Any]] = []
    for event, fields in sound.items():
        for key in (*fields, "search_id", "at", "caller", "uid", "more"):
            for odd in ODD:
                search = f"odd-{len(found)}"
                common = {"schema": 1, "at": "2026-01-01T00:00:00.000Z", "caller": "c1", "search_id": search}
                if event != "search":
                    found.append({**common, "event": "search", **sound["search"]})
                found.append({**common, "event": event, **fields, key: odd})
                found.append({**common, "event": "call", **sound["call"]})
    return found


# --- odd events -------------------------------------------------------------------------------------------------------


def test_oddly_shaped_events_of_every_kind_do_not_keep_anybody_from_searching_or_learning(
    neighbours: Scout, tmp_path: Path
) -> None:
    before = neighbours.search("guitar and karaoke", 1).ids
    neighbours.journal.import_lines(json.dumps(each).encode() for each in oddities())
    assert neighbours.search("guitar and karaoke", 1).ids == before == (TOOL,)
    with Scout(tmp_path / "home", journal=False) as again:
        assert again.search("guitar and karaoke", 1).ids == before
    assert learn(neighbours).outcome in {"promoted", "refused"}


def test_what_an_older_version_let_into_the_journal_is_passed_over(neighbours: Scout) -> None:
    for number, odd in enumerate(ODD):
        for search, shown in ((f"a{number}", odd), (f"b{number}", [TOOL])):
            neighbours.journal.append("search", caller="c1", search_id=search, query=f"umbrella {search}", shown=shown)
            neighbours.journal.append("feedback", caller="c1", search_id=search, good=odd, bad=odd)
            neighbours.called(TOOL, ok=True, search_id=search, caller="c1")
    assert neighbours.search("guitar and karaoke", 1).ids == (TOOL,)
    assert learn(neighbours).outcome == "refused"


# --- at once, and after a restart -------------------------------------------------------------------------------------


def used(journal: Journal, search: str, query: str = "play", caller: str = "ann", tool: str = TOOL) -> None:
    journal.append("search", caller=caller, search_id=search, query=query, shown=[TOOL])
    journal.append("call", caller=caller, search_id=search, tool=tool, ok=True)


def test_a_call_that_is_taken_back_counts_no_more_at_once(journal: Journal) -> None:
    live = LiveEvidence(journal, 0, 1_000)
    used(journal, "s")
    version, found = live()
    assert [each.tools for each in found] == [{TOOL: 1.0}]
    journal.append("feedback", caller="ann", search_id="s", bad=[TOOL])
    assert live()[1] == () and live()[0] != version


def test_of_equal_requests_the_newest_counts_whichever_call_comes_last(journal: Journal) -> None:
    live = LiveEvidence(journal, 0, 1_000)
    journal.append("search", caller="ann", search_id="old", query="play", shown=[])
    used(journal, "new", tool="b")
    assert [each.tools for each in live()[1]] == [{"b": 1.0}]
    journal.append("call", caller="ann", search_id="old", tool="a", ok=True)
    assert (
        [each.tools for each in live()[1]]
        == [{"b": 1.0}]
        == [each.tools for each in LiveEvidence(journal, 0, 1_000)()[1]]
    )
    journal.append("feedback", caller="ann", search_id="new", bad=["b"])
    assert [each.tools for each in live()[1]] == [{"a": 1.0}]


def test_what_was_left_out_of_one_callers_share_comes_in_when_another_example_goes(journal: Journal) -> None:
    live = LiveEvidence(journal, 0, 0)
    for number in range(25):
        used(journal, f"s{number}", query=f"play {number}")
    assert [each.query for each in live()[1]] == [f"play {number}" for number in range(5, 25)]
    journal.append("feedback", caller="ann", search_id="s24", bad=[TOOL])
    assert [each.query for each in live()[1]] == [f"play {number}" for number in range(4, 24)]


def test_what_was_pruned_counts_no_more_and_stops_no_search(journal: Journal) -> None:
    """The limit of a caller has left some examples out; one that counts is judged bad after the others were pruned."""
    live, long_ago = LiveEvidence(journal, 0, 0), "2020-01-01T00:00:00+00:00"
    for number in range(25):
        at = long_ago if number < 7 else None
        journal.append("search", caller="ann", search_id=f"s{number}", query=f"play {number}", shown=[TOOL], at=at)
        journal.append("call", caller="ann", search_id=f"s{number}", tool=TOOL, ok=True, at=at)
    assert live()[1][0].query == "play 5"
    journal.prune(1)
    assert [each.query for each in live()[1]] == [f"play {number}" for number in range(7, 25)]
    journal.append("feedback", caller="ann", search_id="s24", bad=[TOOL])
    assert live()[1] == LiveEvidence(journal, 0, 0)()[1] and len(live()[1]) == 17


def test_an_example_that_another_process_removed_between_two_looks_is_left_out(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveEvidence(journal, 0, 0)
    for number in range(25):
        used(journal, f"s{number}", query=f"play {number}")
    assert len(live()[1]) == 20
    journal.append("feedback", caller="ann", search_id="s24", bad=[TOOL])
    monkeypatch.setattr(Journal, "trails_at", lambda *_, **__: iter(()))  # what would come in has gone
    assert [each.query for each in live()[1]] == [f"play {number}" for number in range(5, 24)]


def test_a_call_that_was_judged_bad_during_a_burst_counts_no_more(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "MAX_UPDATED_TRAILS", 3)
    live = LiveEvidence(journal, 0, 1_000)
    used(journal, "s", tool="a")
    journal.append("call", caller="ann", search_id="s", tool="b", ok=True)
    assert set(live()[1][0].tools) == {"a", "b"}
    journal.append("feedback", caller="ann", search_id="s", bad=["a"])
    for number in range(5):
        used(journal, f"later{number}", query=f"stop {number}")
    assert live()[1] == LiveEvidence(journal, 0, 1_000)()[1] and set(live()[1][0].tools) == {"b"}


def test_marks_do_not_make_one_request_many(journal: Journal) -> None:
    for number in range(5):
        used(journal, f"s{number}", query=" Play" + "." * number + "?")
    assert len(LiveEvidence(journal, 0, 1_000)()[1]) == 1
    for number in range(2):
        used(journal, f"m{number}", query="?" * (number + 1))  # without a word, the marks are the request
    assert len(LiveEvidence(journal, 0, 1_000)()[1]) == 3


SEARCHES = st.integers(0, 5).map(str)
EVENTS = st.one_of(
    st.tuples(st.just("search"), SEARCHES, st.sampled_from(["play", "Play ", "stop", "blake2b:0f", ""])),
    st.tuples(st.just("call"), SEARCHES, st.tuples(st.sampled_from("ab"), st.booleans())),
    st.tuples(
        st.just("feedback"), SEARCHES, st.tuples(*(2 * [st.lists(st.sampled_from("ab"), max_size=2, unique=True)]))
    ),
)


def written(journal: Journal, event: str, caller: str, search: str, value: Any) -> None:
    if event == "search":
        fields: dict[str, Any] = {"query": value, "shown": ["b", "a"]}
    elif event == "call":
        fields = {"tool": value[0], "ok": value[1]}
    else:
        fields = {"good": value[0], "bad": value[1]}
    journal.append(event, caller=caller, search_id=search, **fields)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a few events reach."""
    monkeypatch.setattr(evidence, "LIVE_PER_CALLER_RANGE", (2, 2))
    monkeypatch.setattr(evidence, "MAX_LIVE_EXAMPLES", 3)
    monkeypatch.setattr(evidence, "MAX_LIVE_EVENTS", 15)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.lists(st.tuples(EVENTS, st.sampled_from(["ann", "bob"])), min_size=1, max_size=4), max_size=12),
    trusted=st.sampled_from([(), ("ann",)]),
)
def test_what_counts_at_once_is_what_counts_after_a_restart(
    narrow: None, steps: list[list[tuple[tuple[str, str, Any], str]]], trusted: tuple[str, ...]
) -> None:
    with tempfile.TemporaryDirectory() as home:
        journal = Journal(Path(home))
        live, former = LiveEvidence(journal, 2, 0, trusted=trusted), None
        for step in steps:
            for (event, search, value), caller in step:
                written(journal, event, caller, search, value)
            version, found = live()
            assert found == LiveEvidence(journal, 2, 0, trusted=trusted)()[1]
            assert former is None or (former[0] == version) == (former[1] == found)
            former = version, found
        journal.close()


def test_what_counts_at_once_is_what_the_next_run_learns_from(journal: Journal) -> None:
    for number in range(5):
        used(journal, f"s{number}", query=f"play {number}", tool="ab"[number % 2])
    assert LiveEvidence(journal, 0, 1_000)()[1] == collect_evidence(journal, until=journal.last()).examples
