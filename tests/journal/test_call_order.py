"""Which tools are called before others, as the journal shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolscout.home.journal.journal import Journal
from toolscout.search import prerequisites
from toolscout.search.prerequisites import MIN_ORDERED_TASKS, CallOrder


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path)
    yield opened
    opened.close()


def write_task(
    journal: Journal, hour: int, *tools: str, caller: str = "local", ok: bool = True, pause: int = 1
) -> None:
    """Write the calls of one task, `pause` minutes apart. Hours count from the start of a month."""
    for number, tool in enumerate(tools):
        at = f"2026-03-{1 + hour // 24:02}T{hour % 24:02}:{number * pause:02}:00+00:00"
        journal.append("call", caller=caller, at=at, tool=tool, ok=ok, search_id=None)


def test_a_tool_that_is_usually_called_before_another_is_found(journal: Journal) -> None:
    for hour in range(MIN_ORDERED_TASKS):
        write_task(journal, hour, "s/login", "s/pay", "s/login")
    orders = CallOrder(lambda: journal, trusted={"local"})()
    assert orders == {"s/pay": {"s/login": 1.0}}


def test_too_few_tasks_teach_nothing(journal: Journal) -> None:
    for hour in range(MIN_ORDERED_TASKS - 1):
        write_task(journal, hour, "s/login", "s/pay")
    assert CallOrder(lambda: journal, trusted={"local"})() == {}


def test_a_rare_order_and_one_that_is_as_often_reversed_teach_nothing(journal: Journal) -> None:
    for hour in range(0, 20, 2):
        write_task(journal, hour, "s/a", "s/b")
        write_task(journal, hour + 1, "s/b", "s/a")
    for hour in range(20, 26):
        write_task(journal, hour, "s/rare", "s/c")
    for hour in range(26, 40):
        write_task(journal, hour, "s/c")
    assert CallOrder(lambda: journal, trusted={"local"})() == {}


def test_a_long_pause_ends_a_task_and_failed_calls_do_not_count(journal: Journal) -> None:
    for hour in range(8):
        write_task(journal, hour, "s/a", "s/b", pause=20)
        write_task(journal, hour + 8, "s/c", ok=False)
        write_task(journal, hour + 8, "s/d")
    assert CallOrder(lambda: journal, trusted={"local"})() == {}


def test_calls_of_different_callers_are_different_tasks(journal: Journal) -> None:
    for hour in range(8):
        write_task(journal, hour, "s/a", caller="one")
        write_task(journal, hour, "s/b", caller="two")
    assert CallOrder(lambda: journal, trusted={"one", "two"})() == {}


def test_one_caller_alone_teaches_nothing_unless_it_is_trusted(journal: Journal) -> None:
    for hour in range(8):
        write_task(journal, hour, "evil/spy", "s/pay", caller="stranger")
    assert CallOrder(lambda: journal)() == {}
    assert CallOrder(lambda: journal, trusted={"stranger"})() == {"s/pay": {"evil/spy": 1.0}}
    write_task(journal, 9, "evil/spy", "s/pay", caller="another")
    assert CallOrder(lambda: journal)() == {"s/pay": {"evil/spy": 1.0}}


def test_new_calls_count_after_a_while(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = CallOrder(lambda: journal, trusted={"local"})
    assert orders() == {}
    for hour in range(MIN_ORDERED_TASKS):
        write_task(journal, hour, "s/login", "s/pay")
    assert orders() == {}
    monkeypatch.setattr(prerequisites, "REFRESH_AFTER_S", 0.0)
    assert orders() == {"s/pay": {"s/login": 1.0}}


def test_an_event_without_a_readable_time_is_skipped(journal: Journal) -> None:
    journal.append("call", caller="local", at="some day", tool="s/a", ok=True, search_id=None)
    assert CallOrder(lambda: journal, trusted={"local"})() == {}
