"""A definition that changed and changed back is what it was; one that goes to and fro waits for a person."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolscout.home.catalogue import approvals
from toolscout.home.catalogue.approvals import ALTERNATES, CHANGED
from toolscout.home.catalogue.store import Origin, Store
from toolscout.types import Tool

A, B = "Sends a message.", "Sends a message, and a copy to somebody else."


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path)
    yield opened
    opened.close()


def read(store: Store, description: str | None) -> str:
    """Read the source with that definition of its tool, and say what becomes of it: served, or why it waits."""
    tools = [] if description is None else [Tool(id="mail/send", name="send", description=description)]
    store.put_source(Origin("mail server", "mcp"), "mail", kind="mcp", tools=tools)
    waiting = {each.id: each.why for each in store.waiting()}
    return waiting.get("mail/send") or ("served" if store.page("mail") else "gone")


def test_once_changed_and_changed_back_is_served_again(store: Store) -> None:
    assert [read(store, each) for each in (A, B, A, A, A)] == ["served", CHANGED, "served", "served", "served"]


def test_a_definition_that_goes_to_and_fro_waits_even_when_it_is_the_approved_one(store: Store) -> None:
    assert [read(store, each) for each in (A, B, A, B, A, A)] == [
        "served", CHANGED, "served", ALTERNATES, ALTERNATES, ALTERNATES,
    ]  # fmt: skip
    assert not store.tools(["mail/send"])


def test_approval_lifts_it_and_the_count_begins_anew(store: Store) -> None:
    for each in (A, B, A, B, A):
        read(store, each)
    assert store.approve(store.waiting()) == 1
    assert [read(store, each) for each in (A, B, A)] == ["served", CHANGED, "served"]


def test_flips_of_yesterday_do_not_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (A, B, A):
        read(store, each)
    with store.writing() as connection:
        connection.execute("UPDATE flips SET at = '2020-01-01T00:00:00.000Z'")
    assert [read(store, each) for each in (B, A)] == [CHANGED, "served"]


def test_whoever_alternates_does_not_wait_for_a_day_to_pass(store: Store) -> None:
    for each in (A, B, A, B):
        read(store, each)
    with store.writing() as connection:
        connection.execute("DELETE FROM flips")
    assert read(store, A) == ALTERNATES


def test_to_go_away_in_between_is_no_way_round(store: Store) -> None:
    found = [read(store, each) for each in (A, B, None, B, A, None, B, None, A)]
    assert found == ["served", CHANGED, "gone", CHANGED, "served", "gone", ALTERNATES, "gone", ALTERNATES]


def test_what_alternates_leaves_no_growing_trace(store: Store) -> None:
    for number in range(60):
        read(store, (A, B)[number % 2])
    with store.reading() as connection:
        (count,) = connection.execute("SELECT count(*) FROM flips").fetchone()
    assert count == approvals.MAX_FLIPS + 1


def test_other_tools_of_the_source_are_served(store: Store) -> None:
    other = Tool(id="mail/read", name="read", description="Reads.")
    for number in range(6):
        tool = Tool(id="mail/send", name="send", description=(A, B)[number % 2])
        store.put_source(Origin("mail server", "mcp"), "mail", kind="mcp", tools=[tool, other])
    assert [id for id, _ in store.page("mail")] == ["mail/read"]
