"""Opposite tools of one server are siblings or pairs by their names alone."""

from __future__ import annotations

import pytest

from toolscout.home.catalogue.store import Catalogue
from toolscout.search.actions import families as action_families
from toolscout.search.actions.families import find_families
from toolscout.search.actions.words import find_verb, get_opposites, get_reversals
from toolscout.types import Tool


def list_pairs(*names: str) -> set[frozenset[str]]:
    catalogue = Catalogue.of(Tool(id=f"app/{name}", name=name, path=("app",)) for name in names)
    families = find_families(catalogue, "families")
    return {frozenset(tool_id.partition("/")[2] for tool_id in family) for family in families}


def is_pair(one: str, other: str) -> bool:
    return frozenset((one, other)) in list_pairs(one, other)


def test_names_that_share_half_of_the_other_words_are_a_pair() -> None:
    assert is_pair("hideCommunityPost", "restoreHiddenCommunityPost")
    assert is_pair("bookFlightTicket", "cancelFlightBooking")
    assert is_pair("insert_blank_slide", "delete_slide")
    assert is_pair("add_blank_page", "delete_hidden_page_id")
    assert is_pair("recordMeeting", "stopRecording")
    assert not is_pair("book_hotel_room", "cancel_train_ticket")


def test_only_the_nearest_opposite_is_a_pair() -> None:
    found = list_pairs("create_order", "delete_order", "delete_order_note")
    assert frozenset(("create_order", "delete_order")) in found
    assert frozenset(("create_order", "delete_order_note")) in found
    found = list_pairs("create_order", "delete_order", "create_order_note", "delete_order_note")
    assert found == {frozenset(("create_order", "delete_order")), frozenset(("create_order_note", "delete_order_note"))}


def test_verbs_that_do_not_act_make_no_pair() -> None:
    assert not is_pair("transition_issue", "return_issue")
    assert not is_pair("get_board_issues", "delete_issue")
    assert not is_pair("shop.main.bookHotel", "shop.main.cancelTaxi")


def test_large_servers_have_siblings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("hideCommunityPost", "restoreHiddenCommunityPost", "add_label", "remove_label")
    monkeypatch.setattr(action_families, "MAX_PAIRED_TOOLS", 4)
    assert len(list_pairs(*names)) == 2
    monkeypatch.setattr(action_families, "MAX_PAIRED_TOOLS", 3)
    assert list_pairs(*names) == {frozenset(("add_label", "remove_label"))}


def test_words_of_most_tools_make_no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_families, "MAX_SHARING", 1)
    assert not is_pair("hideCommunityPost", "restoreHiddenCommunityPost")


def test_both_sides_of_a_pair_of_groups_are_combined() -> None:
    assert {frozenset(("book", "cancel")), frozenset(("publish", "remove"))} <= get_opposites()
    assert ("cancel", "publish") in get_reversals()
    assert find_verb("cancellation") == "cancel" and find_verb("removal") == "remove"


def test_a_split_verb_is_one() -> None:
    assert is_pair("diskUploadFiles", "diskDownLoadFiles")
