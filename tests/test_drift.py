"""The drift watch: what it notices, what it names, and that it stays quiet while nothing changes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import traffic
from homes_in_postgres import name_home
from tests_cli import run
from toolscout.errors import StoreError
from toolscout.home.database import open_home
from toolscout.learn import drift
from toolscout.learn.betting import ConformalTest, ShareTest, bound_share, draw_uniform
from toolscout.learn.drift import DriftWatch, read_report
from toolscout.scout import Scout

CALLERS = [f"c{number}" for number in range(10)]
REFERENCE = 200
NEW_TOPIC = ["translate the contract into {}", "say this letter in {}", "which {} word means invoice"]


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scout]:
    """A home whose first 200 searches are the champion's time.

    Ties are decided by a seed instead of the events' random ids: one watch in a hundred may raise a false alarm.
    """
    rng, drawn = random.Random(0), dict[tuple[str, ...], float]()
    monkeypatch.setattr(drift, "draw_uniform", lambda *parts: drawn.setdefault(parts, 1 - rng.random()))
    monkeypatch.setattr(drift, "FIRST_REFERENCE", REFERENCE)
    with Scout(tmp_path / "home", journal=False) as scout:
        traffic.catalogue(scout)
        traffic.replay(scout, traffic.requests(REFERENCE, 0), CALLERS)
        yield scout


def replay_new_topic(scout: Scout, count: int, seed: int = 0) -> None:
    rng = random.Random(seed)
    languages = ["french", "german", "greek", "danish", "polish"]
    texts = [rng.choice(NEW_TOPIC).format(rng.choice(languages)) for _ in range(count)]
    traffic.replay(scout, [(text, "office/mail/send") for text in texts], CALLERS)


def call(scout: Scout, tool: str, ok: bool, count: int) -> None:
    for _ in range(count):
        scout.journal.append("call", caller="c0", tool=tool, ok=ok, search_id=None, ms=1.0, rank=None)


def test_traffic_without_a_change_raises_nothing(office: Scout) -> None:
    alarms = []
    for seed in range(1, 6):
        traffic.replay(office, traffic.requests(200, seed), CALLERS)
        report = DriftWatch(office).check()
        alarms += report.alarms
    assert report.state == "quiet" and report.watched == 1_000 and alarms == [] and report.message == ""


def test_requests_of_a_new_topic_are_noticed_and_shown_with_examples(office: Scout) -> None:
    traffic.replay(office, traffic.requests(300, 1), CALLERS)
    watch = DriftWatch(office)
    assert watch.check().state == "quiet"
    replay_new_topic(office, 60)
    report = watch.check()
    assert report.state == "raised" and "requests" in {alarm.what for alarm in report.alarms}
    assert report.advice == ("learn",) and "toolscout learn" in report.message
    assert any("contract" in example for topic in report.topics for example in topic.examples)
    [alarm] = [alarm for alarm in report.alarms if alarm.what == "requests"]
    assert alarm.after > alarm.before


def test_a_new_process_sees_the_same_and_the_file_holds_no_query(office: Scout) -> None:
    replay_new_topic(office, 60)
    first = DriftWatch(office).check()
    again = DriftWatch(office).check()
    assert again.alarms == first.alarms and again.topics == first.topics
    assert b"contract" not in open_home(office.settings.place).read_document(drift.DRIFT_FILE)
    stored = read_report(office)
    assert stored is not None and stored.alarms == first.alarms


def test_a_check_that_failed_while_it_began_is_repeated(office: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = DriftWatch(office)
    with monkeypatch.context() as broken:
        broken.setattr(office.store, "catalogue", lambda: (_ for _ in ()).throw(StoreError("the disk does not answer")))
        with pytest.raises(StoreError):
            watch.check()
    assert watch.check().state == "quiet"


def test_a_server_that_begins_to_fail_is_named_and_forgotten_when_it_works_again(office: Scout) -> None:
    watch = DriftWatch(office)
    call(office, "post/letter", True, 30)
    call(office, "office/mail/send", True, 30)
    assert watch.check().alarms == ()
    call(office, "post/letter", False, 20)
    call(office, "office/mail/send", True, 20)
    report = watch.check()
    assert [alarm.name for alarm in report.alarms if alarm.what == "server"] == ["post"]
    assert report.advice == ("repair",) and "The server post fails" in report.message
    call(office, "post/letter", True, 20)
    report = watch.check()
    assert report.state == "quiet" and [alarm.over for alarm in report.alarms if alarm.name == "post"] == [True]


def test_a_short_hiccup_raises_nothing(office: Scout) -> None:
    call(office, "office/mail/send", True, 30)
    call(office, "office/mail/send", False, 2)
    call(office, "office/mail/send", True, 10)
    assert DriftWatch(office).check().alarms == ()


def test_more_answers_without_a_tool_are_noticed(office: Scout) -> None:
    texts = [text for text, _ in traffic.requests(60, 3)]
    office.journal.append_all(
        ("search", "c1", {"search_id": f"e{number}", "query": text, "shown": []}) for number, text in enumerate(texts)
    )
    report = DriftWatch(office).check()
    [alarm] = report.alarms
    assert alarm.what == "abstention" and alarm.before == 0.0 and alarm.after == 1.0


def test_a_check_after_much_traffic_leaves_no_search_out(office: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "MAX_BACKLOG_SEARCHES", 50)
    monkeypatch.setattr(drift, "SEGMENT_SEARCHES", 100)
    watch = DriftWatch(office)
    watch.check()
    traffic.replay(office, traffic.requests(130, 1), CALLERS)
    assert watch.check().watched == 130
    traffic.replay(office, traffic.requests(70, 2), CALLERS)
    assert watch.check().watched == 200
    assert watch.check().watched == 200


def test_an_alarm_outlives_its_segment(office: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "SEGMENT_SEARCHES", 100)
    replay_new_topic(office, 60)
    traffic.replay(office, traffic.requests(260, 1), CALLERS)
    report = DriftWatch(office).check()
    assert report.state == "raised" and report.watched == 320
    assert DriftWatch(office).check().alarms == report.alarms


def test_too_few_searches_are_said_to_be_too_few(tmp_path: Path) -> None:
    with Scout(tmp_path / "home", journal=False) as scout:
        traffic.catalogue(scout)
        assert DriftWatch(scout).check().state == "waiting"


def test_status_says_what_changed(office: Scout) -> None:
    replay_new_topic(office, 60)
    done = run("--home", name_home(office.settings.place), "status")
    assert "requests are unlike" in done.stdout and "toolscout learn" in done.stdout


def test_the_test_keeps_its_bound_on_false_alarms_over_many_streams() -> None:
    raised = 0
    for stream in range(200):
        rng = random.Random(stream)
        test = ConformalTest([rng.random() for _ in range(100)], both=stream % 2 == 0, block=20)
        for number in range(200):
            test.observe(rng.random(), draw_uniform(str(stream), str(number)))
        raised += test.high >= math.log(1 / 0.05)
    assert raised <= 20  # at most 10 expected; 20 or more have a probability below 0.003


def test_the_test_of_shares_keeps_its_bound_and_notices_a_failing_server_in_few_calls() -> None:
    raised = 0
    for stream in range(200):
        rng, test = random.Random(stream), ShareTest(0.1)
        for _ in range(200):
            test.observe(float(rng.random() < 0.1))
        raised += test.high >= math.log(1 / 0.05)
    assert raised <= 20
    test = ShareTest(0.1)
    for _ in range(10):
        test.observe(1.0)
    assert test.high > math.log(1e6)


def test_the_bound_of_a_share_holds_the_share_and_narrows() -> None:
    assert bound_share(0, 25, 0.01) == pytest.approx(1 - 0.01 ** (1 / 25), abs=1e-4)
    assert bound_share(5, 100, 0.01) > bound_share(50, 1_000, 0.01) > 0.05
    assert bound_share(0, 0, 0.01) == 1.0


def test_the_test_notices_a_late_change_and_says_where_it_began() -> None:
    rng = random.Random(0)
    test = ConformalTest([rng.gauss(0, 1) for _ in range(200)])
    for number in range(2_000):
        test.observe(rng.gauss(0, 1), draw_uniform("null", str(number)))
    assert test.high < math.log(100)
    for number in range(100):
        test.observe(rng.gauss(2, 1), draw_uniform("shift", str(number)))
    assert test.high > math.log(10_000) and 1_950 <= test.since <= 2_050


def test_a_number_ranks_among_those_observed_before_too() -> None:
    test = ConformalTest([])
    assert [test.observe(number, 1.0) for number in (1.0, 2.0, 3.0, 0.0)] == pytest.approx([1.0, 1 / 2, 1 / 3, 1.0])


def test_equal_numbers_are_ranked_by_chance_alone() -> None:
    test = ConformalTest([0.0] * 99)
    assert test.rank(0.0, 1.0) == 1.0 and test.rank(0.0, 0.01) == pytest.approx(0.01)
    assert test.rank(1.0, 1.0) == pytest.approx(0.01)
