"""Opposite tools of one source stand in the order of the request's action; no other tool moves."""

from __future__ import annotations

import functools
import itertools

import pytest

from toolscout.home.catalogue.store import Catalogue
from toolscout.recipes import registry
from toolscout.search.home_resources import HomeResources
from toolscout.search.opposites import (
    MIN_HEAD,
    ActionEvidence,
    OrderActions,
    _read_pairs,
    are_opposites,
    find_verb,
    get_cues,
    get_effects,
    has_more_words,
    read_request,
)
from toolscout.search.pipeline import Stage
from toolscout.settings import Settings
from toolscout.testing import check_stage
from toolscout.types import Hit, Search, Tool

NAMES = (
    "mail/add_label", "mail/remove_label", "mail/list_labels", "mail/send_email", "disk/uploadFile",
    "disk/downloadFile", "chat/followUser", "chat/unfollowUser", "home/set-light", "home/get-light",
)  # fmt: skip


def make_catalogue(*, path_of: str = "") -> Catalogue:
    return Catalogue.of(
        Tool(id=name, name=name.split("/")[1], path=(name,) if name == path_of else (name.split("/")[0],))
        for name in NAMES
    )


def order_hits(query: str, *ids: str, path_of: str = "") -> list[str]:
    search = Search(query=query, hits=tuple(Hit(id, 9.0 - rank, "words") for rank, id in enumerate(ids)))
    stage = OrderActions(make_catalogue(path_of=path_of))
    check_stage(stage, [search])
    [result] = stage([search])
    assert [hit.score for hit in result.hits] == [hit.score for hit in search.hits]
    return list(result.ids)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("take the label work away from this mail", "mail/remove_label"),
        ("put a label on this mail", "mail/add_label"),
        ("stick the label work on it", "mail/add_label"),
        ("get rid of the label", "mail/remove_label"),
        ("I saved the report in the bucket, grab it onto my laptop", "disk/downloadFile"),
        ("here is the contract, put it into the bucket", "disk/uploadFile"),
        ("I no longer want to see her posts", "chat/unfollowUser"),
        ("stop following her", "chat/unfollowUser"),
        ("what colour does the light have?", "home/get-light"),
        ("make it red from now on", "home/set-light"),
        ("the label is obsolete", "mail/remove_label"),
        ("the label was obsolete, put it on again", "mail/add_label"),
        ("he must not get this label any longer", "mail/remove_label"),
        ("do not erase the label, it needs another one", "mail/add_label"),
        ("strip the text off without deleting the label", "mail/remove_label"),
        ("there are too many labels on it", "mail/remove_label"),
        ("I have to find this mail under its own label", "mail/add_label"),
        ("ich will das Etikett nicht mehr", "mail/remove_label"),
        ("quita la etiqueta de este correo", "mail/remove_label"),
        ("给这封邮件新建一个标签", "mail/add_label"),
        ("我想把报告上传到服务器", "disk/uploadFile"),
        ('the mail "remove me, throw me out" gets a label', "mail/add_label"),
        ("put no label on this mail", "mail/remove_label"),
        ("do not erase the label", "mail/add_label"),
        ("lade den großen neuen langen Bericht auf den Server hoch", "disk/uploadFile"),
    ],
)
def test_the_asked_one_of_two_opposites_comes_first_whichever_led(query: str, first: str) -> None:
    [pair] = [pair for pair in itertools.pairwise(NAMES) if first in pair and _are_siblings(*pair)]
    assert order_hits(query, *pair)[0] == first
    assert order_hits(query, *reversed(pair))[0] == first


@pytest.mark.parametrize(
    "query",
    [
        "do not erase the label, just rename it",
        "rename the label and do not erase it",
        "do not erase the label, tell me where it is",
    ],
)
def test_a_negated_verb_does_not_speak_for_its_opposite_where_the_request_asks_for_more(query: str) -> None:
    evidence = ActionEvidence(query)
    assert not evidence.prefers("remove", "add") and not evidence.prefers("add", "remove")


def test_a_negated_cue_counts_against_its_verb_as_much_as_it_would_for_it() -> None:
    for cue in ("delete it", "throw it away", "wipe it"):
        asked, forbidden = (get_cues()["delete"].weigh(read_request(text)) for text in (cue, f"please do not {cue}"))
        assert asked.weight == forbidden.against > 0 == asked.against == forbidden.weight


def test_a_reason_beside_a_negated_verb_asks_for_nothing() -> None:
    for reason in ("because it is pretty", "it is pretty", "please"):
        ids = ["mail/remove_label", "mail/list_labels", "mail/add_label"]
        assert order_hits(f"do not erase the label, {reason}", *ids) == ids[::-1]


def _are_siblings(one: str, other: str) -> bool:
    verbs = [name.split("/")[1].split("_")[0].split("-")[0].removesuffix("File").removesuffix("User")
             for name in (one, other)]  # fmt: skip
    return are_opposites(*verbs)


def test_three_siblings_stand_in_the_order_of_all_their_evidence() -> None:
    names = ("reset_layout", "get_layout", "set_layout")
    stage = OrderActions(Catalogue.of(Tool(id=f"cms/{name}", name=name) for name in names))
    for order in itertools.permutations(names):
        hits = tuple(Hit(f"cms/{name}", 1.0, "words") for name in order)
        [result] = stage([Search(query="show me the layout", hits=hits)])
        assert result.ids.index("cms/get_layout") < result.ids.index("cms/set_layout")
        assert all(hit.why.count("action word") <= 1 for hit in result.hits)


def test_only_siblings_change_places() -> None:
    ids = ["mail/send_email", "mail/add_label", "mail/list_labels", "mail/remove_label", "disk/uploadFile"]
    found = order_hits("throw the label out", *ids)
    assert found == ["mail/send_email", "mail/remove_label", "mail/list_labels", "mail/add_label", "disk/uploadFile"]


def test_nothing_moves_without_evidence_in_long_requests_or_between_paths() -> None:
    pair = ["mail/add_label", "mail/remove_label"]
    assert order_hits("the label of this mail", *pair) == pair
    assert order_hits("remove the label" + " of the mail that came from the landlord" * 6, *pair) == pair
    assert order_hits("remove the label", *pair, path_of="mail/add_label") == pair
    assert order_hits("remove the label", *pair)[0] == "mail/remove_label"


def test_siblings_far_down_keep_their_places() -> None:
    others = [f"mail/list_{number}" for number in range(MIN_HEAD)]
    deep = [*others, "mail/add_label", "mail/remove_label"]
    assert order_hits("throw the label out", *deep) == deep
    half = [*others[:-1], "mail/add_label", others[-1], "mail/remove_label"]
    assert order_hits("throw the label out", *half)[MIN_HEAD - 1] == "mail/remove_label"


def test_the_words_of_a_quotation_do_not_make_a_request_long() -> None:
    assert not has_more_words("put it on " * 5, 15)
    assert has_more_words("put it on " * 5, 14)
    assert not has_more_words('put "this long name" on', 3)
    quotation = '"remove me, ' + "and so on, " * 15 + '"'
    assert order_hits(f"put the label {quotation} on it", "mail/remove_label", "mail/add_label")[0] == "mail/add_label"


def test_a_verb_in_the_request_keeps_its_place_unless_its_reverse_is_meant() -> None:
    assert order_hits("add what I need to get rid of as a label", "mail/add_label", "mail/remove_label")[0] == (
        "mail/add_label"
    )
    assert order_hits("do not follow her any more, I no longer care", "chat/followUser", "chat/unfollowUser")[0] == (
        "chat/unfollowUser"
    )


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("the others may work on it again", "unlock_page"),
        ("it is over, the others want to work on it", "unlock_page"),
        ("nobody should work on it", "lock_page"),
    ],
)
def test_the_verb_that_undoes_another_is_asked_by_what_is_over(query: str, first: str) -> None:
    catalogue = Catalogue.of(Tool(id=f"wiki/{name}", name=name) for name in ("lock_page", "unlock_page"))
    for ids in (("wiki/lock_page", "wiki/unlock_page"), ("wiki/unlock_page", "wiki/lock_page")):
        hits = tuple(Hit(id, 1.0, "words") for id in ids)
        [result] = OrderActions(catalogue)([Search(query=query, hits=hits)])
        assert result.ids[0] == f"wiki/{first}"


def test_verbs_of_a_pair_have_different_effects_or_none_is_known() -> None:
    effects, pairs = get_effects(), _read_pairs()
    assert set(effects) <= set(get_cues())
    assert (
        effects["unlock"] == "+" != effects["lock"] and ("lock", "unlock") in pairs and ("unlock", "lock") not in pairs
    )
    assert {("close", "reopen"), ("reopen", "close")} <= pairs


def test_every_verb_of_a_pair_has_cues() -> None:
    verbs = {verb for pair in _read_pairs() for verb in pair}
    assert all(one != other for one, other in _read_pairs())
    assert sorted(verbs - set(get_cues())) == []


def test_hybrid_runs_it_and_explains_the_new_rank() -> None:
    catalogue = make_catalogue()
    stage = registry.build("hybrid", catalogue, HomeResources())
    search = Search(query="take the label away", k=10)
    [found] = stage([search])
    assert found.ids.index("mail/remove_label") < found.ids.index("mail/add_label")
    [moved] = [step for step in found.trace if step.stage == "actions"]
    explained = stage.explain(search, "mail/remove_label")
    assert explained is not None and explained.rank == found.ids.index("mail/remove_label") + 1
    assert moved.note.endswith("siblings by their action")


def test_names_with_forms_of_opposite_verbs_are_siblings() -> None:
    assert [find_verb(word) for word in ("booking", "cancelling", "deletion", "archived", "imports")] == [
        "book", "cancel", "delete", "archive", "import"
    ]  # fmt: skip
    assert find_verb("ring") is None and find_verb("session") is None
    catalogue = Catalogue.of(Tool(id=f"hotel/{name}", name=name) for name in ("room_booking", "room_cancelling"))
    hits = tuple(Hit(f"hotel/{name}", 1.0, "words") for name in ("room_booking", "room_cancelling"))
    [result] = OrderActions(catalogue)([Search(query="call off the room", hits=hits)])
    assert result.ids[0] == "hotel/room_cancelling"


def test_words_that_only_join_others_and_deeper_paths_keep_no_siblings_apart() -> None:
    tools = [
        Tool(id="shop/add_to_the_cart", name="add_to_the_cart", path=("shop", "cart", "add")),
        Tool(id="shop/cart_remove", name="cart_remove", path=("shop", "cart")),
    ]
    hits = tuple(Hit(tool.id, 1.0, "words") for tool in tools)
    [result] = OrderActions(Catalogue.of(tools))([Search(query="throw the item out of the cart", hits=hits)])
    assert result.ids[0] == "shop/cart_remove"


def test_both_sides_of_a_pair_of_groups_are_combined() -> None:
    assert are_opposites("book", "cancel") and are_opposites("publish", "remove")
    assert ("publish", "cancel") in _read_pairs() and ("cancel", "publish") not in _read_pairs()
    assert find_verb("cancellation") == "cancel" and find_verb("removal") == "remove"


APPLICATIONS = {
    "zoom": {"create_meeting": "Create a meeting.", "list_meetings": "List the meetings."},
    "google_calendar": {"create_event": "Create an event in the calendar.", "list_events": "List the events of a day."},
    "linear": {
        "create_issue": "Create an issue.",
        "close_issue": "Close an issue.",
        "reopen_issue": "Reopen an issue.",
    },
    "github": {
        "create_issue": "Create a new issue in a repository.",
        "list_issues": "List issues of a repository.",
        "close_issue": "Close an issue in a repository.",
        "reopen_issue": "Reopen a closed issue in a repository.",
        "star_repository": "Star a repository.",
        "unstar_repository": "Unstar a repository.",
    },
    "desk": {
        "list_tickets": "List tickets with their state.",
        "reopen_ticket": "Reopen a ticket that was closed.",
        "close_ticket": "Close a ticket.",
        "open_ticket": "Open a ticket.",
    },
    "things": {"complete_todo": "Mark a to-do as done.", "create_todo": "Create a to-do."},
    "slack": {
        "post_message": "Post a message to a channel.",
        "pin_message": "Pin a message.",
        "unpin_message": "Unpin a message.",
        "mute_channel": "Mute a channel.",
        "unmute_channel": "Unmute a channel.",
    },
    "home": {
        "water_plants": "Water the plants.",
        "start_watering": "Start watering.",
        "stop_watering": "Stop watering.",
    },
    "spotify": {"save_album": "Save an album.", "remove_album": "Remove a saved album."},
    "budget": {"review_budget": "Review the budget of a month."},
}


@functools.cache
def build_applications(*rules_off: str) -> Stage:
    tools = [
        Tool(id=f"{source}/{name}", name=name, description=text)
        for source, some in APPLICATIONS.items()
        for name, text in some.items()
    ]
    resources = HomeResources("static", settings=Settings(rules_off=rules_off))
    return registry.build("scout", Catalogue.of(tools), resources)


@pytest.mark.parametrize(
    ("query", "rule", "first"),
    [
        ("new issue in linear, the login fails", "sources", "linear/create_issue"),
        ("linear: new issue, the login fails", "sources", "linear/create_issue"),
        ("tick off 'water the plants'", "quotations", "things/complete_todo"),
        ('mark "water the plants" as done', "quotations", "things/complete_todo"),
        ("add an event 'Budget review' on Thursday at 9", "quotations", "google_calendar/create_event"),
        ("post 'star the repository' in #general", "quotations", "slack/post_message"),
        ('create a to-do "close the github issue"', "quotations", "things/create_todo"),
        ("any open tickets?", "opposites", "desk/list_tickets"),
        ("are there open tickets", "opposites", "desk/list_tickets"),
        ("any closed tickets this week?", "opposites", "desk/list_tickets"),
        ("un-star the repository", "opposites", "github/unstar_repository"),
        ("un pin the message", "opposites", "slack/unpin_message"),
        ("stop muting the channel", "opposites", "slack/unmute_channel"),
        ("stop saving this album", "opposites", "spotify/remove_album"),
    ],
)
def test_the_application_and_the_action_that_are_meant_come_first(query: str, rule: str, first: str) -> None:
    [answer], [without] = (build_applications(*off)([Search(query=query)]) for off in ((), (rule,)))
    assert answer.ids[0] == first != without.ids[0]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("stop watering", "home/stop_watering"),
        ("open a ticket", "desk/open_ticket"),
        ("which ticket should i close", "desk/close_ticket"),
        ("what do i do to reopen a ticket", "desk/reopen_ticket"),
        ("pin the message", "slack/pin_message"),
        ('search for "reopen the ticket"', "desk/reopen_ticket"),
        ("the github repository gets a star", "github/star_repository"),
    ],
)
def test_what_only_looks_like_it_keeps_its_order(query: str, first: str) -> None:
    [answer] = build_applications()([Search(query=query)])
    assert answer.ids[0] == first
