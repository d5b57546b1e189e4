"""toolscout.search.steps.splitter and step_search: a request is split into its steps, and every step is served."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from toolscout.errors import StoreError
from toolscout.home.catalogue.store import Catalogue
from toolscout.recipes.registry import build
from toolscout.scout import Scout
from toolscout.search.coverage import load_coverage, rate_split
from toolscout.search.pipeline import Decide, Stage, Verdict
from toolscout.search.steps.merge import (
    BestChance,
    end_answer,
    estimate_coverage,
    find_best_chances,
    find_chances,
    merge_steps,
)
from toolscout.search.steps.splitter import describe_cuts, find_cuts, load_splitter
from toolscout.search.steps.stage import MAX_UNCOVERED_CHANCE, StepSearch, _is_likely
from toolscout.types import Explanation, Hit, Search, Tool, as_json

SUITES = Path(__file__).parent.parent / "benchmarks" / "suites"
SPLITTER = load_splitter()


def read_dev(name: str) -> list[dict[str, object]]:
    lines = map(json.loads, (SUITES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["split"] == "dev"]


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("Translate this page to French, then post it on Slack.", 2),
        ("1. stop my timer\n2. tell the team that I am off\n3. book a table for two", 3),
        ("list my unread mails; archive the newsletters; remind me at 5", 3),
        ("- book a room\n- send the invites\n- order lunch", 3),
        ("Busca un vuelo a Lima y después reserva una mesa para dos", 2),
        ("Buche einen Tisch für zwei und danach schreib Lena eine Mail", 2),
        ("先查一下北京的天气，然后给王芳发邮件", 2),
        ("How warm is it in Oslo? Apart from that, the latest scores of the league.", 2),
        ("Convert 20 dollars to yen; once you have finished, the stock price of Apple", 2),
        ("How long is the drive to Bonn? If not too far, book a room there. If so, tell Anna.", 3),
        ("Find a plumber near me (and also remind me to call my landlord)", 2),
        ("Is there a table for two tonight? Oh, and before I forget: my order from last week.", 2),
        ("Book a room in Bonn. My second request is: send Anna the minutes.", 2),
        ("How warm is it in Oslo? Besides all of that, the latest scores of the league.", 2),
        ("[1] Book a room in Bonn [2] send Anna the minutes [3] order lunch for six", 3),
        ("Question 1: how warm is it in Oslo? Question 2: when does the bank open?", 2),
        ("(i) book a room in Bonn (ii) send Anna the minutes", 2),
        ("book a room in Bonn + send Anna the minutes", 2),
        ("book a room in Bonn // send Anna the minutes", 2),
        ("Wie warm ist es in Oslo? Übrigens, buche einen Tisch für zwei", 2),
        ("Wie warm ist es in Oslo? Zweitens: buche einen Tisch für zwei", 2),
        ("1️⃣ book a room in Bonn 2️⃣ send Anna the minutes 3️⃣ order lunch for six", 3),
        ("book a room in Bonn ~ send Anna the minutes", 2),
        ("a. book a room in Bonn b. send Anna the minutes c. order lunch", 3),
        ("How warm is it in Oslo? That reminds me: send Anna the minutes.", 2),
        ("Book a room in Bonn. With a bit of luck, send Anna the address.", 2),
    ],
)
def test_a_request_is_split_into_its_steps(text: str, steps: int) -> None:
    assert len(SPLITTER.split(text)) == steps


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("I need to (1) mute the group and (2) book a table", ("mute the group", "book a table")),
        ("I want you to: 1) mute the group 2) book a table", ("mute the group", "book a table")),
        ("Can you please: a) mute the group b) book a table", ("mute the group", "book a table")),
        ("Tasks: 1. mute the group. 2. book a table", ("mute the group", "book a table")),
        ("Could you do the following?\nmute the group\nbook a table", ("mute the group", "book a table")),
        ("Quick zorbs:\n- mute the group\n- book a table", ("mute the group", "book a table")),
        ("Tasks for Anna\n1. mute the group\n2. book a table", ("mute the group", "book a table")),
        ("1. mute the group\n2. book a table", ("mute the group", "book a table")),
    ],
    ids=["open end", "colon", "question", "noun", "lines", "unknown noun", "heading", "mark alone"],
)
def test_a_lead_in_before_a_list_is_no_step_and_its_marks_stay_in_none(text: str, steps: tuple[str, ...]) -> None:
    assert SPLITTER.split(text) == steps


@pytest.mark.parametrize(
    "first",
    [
        "What time is it?\n- ",
        "I want it again\n",
        "List them\n1. ",
        "I need you to remind Anna to: 1. ",
        "Check the weather in Oslo\n1. ",
    ],
)
def test_what_asks_for_something_before_a_list_is_a_step(first: str) -> None:
    mark = first.rpartition("\n")[2] if "\n" in first else " 2. "
    text = f"{first}mute the group\n{mark.replace('1', '2').strip()} book a table"
    assert SPLITTER.split(text)[0] == first.rstrip(" 1.-\n:?")


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("Book a room. Before all of that, call Bob.", {"lead"}),
        ("Book a room. My last request is: call Bob.", {"lead"}),
        ("Book a room. And one more small thing: call Bob.", {"joint", "lead"}),
        ("Book a room. That's it, call Bob.", {"lead"}),
        ("Book a room. My request, call Bob.", set()),
        ("Book a room. Before all cats, call Bob.", set()),
    ],
    ids=["comma", "colon", "and", "apostrophe", "a wish before a comma", "another word"],
)
def test_a_lead_in_belongs_to_the_mark_before_it(text: str, links: set[str]) -> None:
    first = find_cuts(text)[0]
    assert first.links == links
    assert ("lead" in links) == (text[first.end :] == "call Bob.")


@pytest.mark.parametrize("label", ["EMAIL: ", "Context: "])
def test_text_pasted_before_a_query_has_no_cuts(label: str) -> None:
    text = f"{label}Dear team, please call Bob. Then go home; thanks! query: set an alarm for the time he names"
    assert find_cuts(text) == []
    longer = f"{text}; order lunch"
    assert [longer[cut.end :] for cut in find_cuts(longer)] == ["order lunch"]
    assert find_cuts(text.replace(" query:", " so"))


def test_a_noun_in_brackets_is_no_cut() -> None:
    assert find_cuts("list the members of the team (and the guests)") == []
    assert len(find_cuts("list the members of the team (and remind the guests)")) == 1


@pytest.mark.parametrize(
    "text", ["please come  and look at the camera", "Wait and see what it says", "try and find it"]
)
def test_and_between_two_verbs_of_one_action_is_no_cut(text: str) -> None:
    assert find_cuts(text) == []


def test_a_mark_of_a_list_is_found_at_the_start_of_a_word_alone() -> None:
    assert [cut.marks for cut in find_cuts("b) pay the rent c) call Bob about plan-c) today")] == [{"item"}]


def test_letters_with_dots_are_marks_if_they_are_in_order() -> None:
    assert [sorted(cut.marks) for cut in find_cuts("a. pay the rent b. call Bob")] == [["end", "item"]]
    for text in ("add vitamin b. call Bob", "meet Adam B. with Carl A. about the rent"):
        assert all("item" not in cut.marks for cut in find_cuts(text))


def test_a_sign_that_stands_alone_is_a_mark() -> None:
    for sign in ("~", "»", "//", "+", "¦"):
        assert [cut.marks for cut in find_cuts(f"pay the rent {sign} call Bob")] == [{"slash"}]
    for sign in ("=", "$", "%", "'"):
        assert find_cuts(f"pay the rent {sign} call Bob") == []


def test_a_cut_tells_whether_a_lead_in_of_any_words_stands_behind_it() -> None:
    def name_features(text: str) -> list[set[str]]:
        lead_ins = {
            "leads_to_active",
            "short_before_active",
            "short_before_comma",
            "short_before_colon",
            "behind_short",
        }
        return [{name.partition(".")[2] for name in row} & lead_ins for row in describe_cuts(text, find_cuts(text))]

    assert name_features("Pay the rent. Zorb flim: call Bob") == [
        {"leads_to_active", "short_before_active", "short_before_colon"},
        {"behind_short"},
    ]
    assert name_features("Pay the rent. Call Bob: zorb flim") == [{"short_before_colon"}, set()]
    assert name_features(f"Pay the rent. {'Zorb ' * 9}: call Bob") == [set(), set()]


@pytest.mark.parametrize(
    "text",
    [
        "turn this into a black and white photo",
        "show my buy and sell orders",
        "find Tom and Jerry episodes",
        "list the members of the team (and the guests)",
        'create a task called "buy milk, then call Bob and pay the rent"',
        "",
        " , and then ",
        "?!",
    ],
)
def test_one_need_is_left_as_it_is(text: str) -> None:
    assert SPLITTER.split(text) == (text,)


def test_nearly_all_single_needs_of_the_dev_suite_stay_whole() -> None:
    lines = read_dev("one_need")
    assert sum(len(SPLITTER.split(str(line["text"]))) == 1 for line in lines) / len(lines) >= 0.97


def test_nothing_inside_quotes_or_brackets_is_a_cut() -> None:
    for text in ('say "go, then stop; and wait"', "run (first, then second. third)", "open `a; b`, please"):
        assert all(text[cut.end - 1 :].count(mark) != 1 for cut in find_cuts(text) for mark in '"`)')


def test_a_document_is_not_split() -> None:
    text = "Book a room. Then send the invites. " * 100
    assert SPLITTER.split(text) == (text,)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    for content in ("{", '{"format": "steps/0", "about": {}, "weights": {}}'):
        file.write_text(content)
        with pytest.raises(StoreError, match="damaged"):
            load_splitter.__wrapped__(file)


# --- merging


def hits(*pairs: tuple[str, float]) -> tuple[Hit, ...]:
    return tuple(Hit(tool_id, score, "bm25") for tool_id, score in pairs)


def test_every_list_is_served_before_any_gets_a_second_place() -> None:
    merged = merge_steps(
        (),
        [hits(("s/a", 90), ("s/b", 89), ("s/c", 88)), hits(("t/x", 9), ("t/y", 8)), hits(("u/z", 8))],
        ["one", "two", "three"],
        50,
    )
    assert {hit.id for hit in merged[:3]} == {"s/a", "t/x", "u/z"}
    assert {hit.id: hit.step for hit in merged[:3]} == {"s/a": "one", "t/x": "two", "u/z": "three"}
    assert len({hit.id for hit in merged}) == len(merged) == 6
    assert [hit.score for hit in merged] == sorted((hit.score for hit in merged), reverse=True)


def test_a_clear_step_leaves_places_to_an_uncertain_one() -> None:
    clear = hits(("s/a", 30), ("s/b", 5), ("s/c", 4))
    uncertain = hits(("s/x", 16), ("s/y", 16), ("s/z", 16))
    assert [hit.id for hit in merge_steps((), [clear, uncertain], ["one", "two"], 4)[:4]] == [
        "s/a",
        "s/x",
        "s/y",
        "s/z",
    ]


def test_a_tool_of_two_steps_takes_one_place() -> None:
    merged = merge_steps((), [hits(("s/a", 9), ("s/b", 1)), hits(("s/a", 9), ("s/c", 1))], ["one", "two"], 50)
    assert [hit.id for hit in merged] == ["s/a", "s/b", "s/c"]


def test_the_whole_request_competes_with_its_steps() -> None:
    merged = merge_steps(hits(("s/w", 20)), [hits(("s/a", 9)), hits(("s/b", 9))], ["one", "two"], 50)
    assert merged[0].id == "s/w"
    assert merged[0].step is None and {hit.step for hit in merged[1:]} == {"one", "two"}


def test_an_unclear_step_prefers_the_source_of_the_others() -> None:
    clear, unclear = hits(("todoist/due", 20)), hits(("chat/mark", 6), ("todoist/complete", 5))
    merged = merge_steps((), [clear, unclear], ["what is due in Todoist", "mark it"], 5)
    assert [hit.id for hit in merged] == ["todoist/due", "todoist/complete", "chat/mark"]
    elsewhere = merge_steps((), [hits(("mail/due", 20)), unclear], ["what is due", "mark it"], 5)
    assert [hit.id for hit in elsewhere] == ["mail/due", "chat/mark", "todoist/complete"]


def test_chances_follow_the_scores_and_leave_some_to_no_tool() -> None:
    strong, weak = find_chances(hits(("s/a", 20), ("s/b", 5))), find_chances(hits(("s/a", 4), ("s/b", 3)))
    assert strong[0] > 0.99 and strong[0] > strong[1]
    assert sum(weak) < 0.7 and find_chances(()) == []


def test_coverage_grows_with_the_answer() -> None:
    single = estimate_coverage(hits(("s/a", 8), ("s/b", 7), ("s/c", 6)))
    both = merge_steps((), [hits(("s/a", 8), ("s/b", 7)), hits(("t/x", 8), ("t/y", 7))], ["one", "two"], 5)
    for some in (single, both):
        coverages = [hit.coverage for hit in some]
        assert coverages == sorted(coverages) and 0 <= coverages[0] < coverages[-1] <= 1
    assert both[0].coverage == pytest.approx(0)  # the other step has no tool yet


def test_an_unclear_step_prefers_what_the_unsplit_request_points_to() -> None:
    clear, unclear = hits(("t/weather", 20)), hits(("s/cancel_alarm", 5.2), ("s/cancel_rental", 4.0))
    merged = merge_steps(hits(("s/cancel_rental", 20)), [clear, unclear], ["one", "two"], 5)
    assert {hit.id for hit in merged[:2]} == {"t/weather", "s/cancel_rental"}
    by_the_step_alone = find_chances(clear)[0] * find_chances(unclear)[1]
    assert (merged[1].coverage or 0) > 3 * by_the_step_alone


def test_few_hits_of_each_list_are_merged_unless_all_are_asked_for() -> None:
    many = hits(*((f"s/{number:03}", 300.0 - number) for number in range(200)))
    assert len(merge_steps((), [many, ()], ["one", "two"], 5)) < 100
    assert len(merge_steps((), [many, ()], ["one", "two"], 90)) >= 90
    assert len(merge_steps((), [many, ()], ["one", "two"], None)) == 200


@pytest.mark.parametrize(
    ("aim", "count"),
    [(0.5, 1), (0.55, 2), (0.85, 2), (0.9, 4), (1.0, 5)],
    ids=["reached at once", "reached", "the rest is not worth it", "worth more to a higher aim", "all"],
)
def test_an_answer_ends_at_its_aim_or_where_more_tools_bring_little(aim: float, count: int) -> None:
    answer = tuple(
        Hit(f"s/{number}", 1.0, "", coverage=value) for number, value in enumerate((0.5, 0.7, 0.72, 0.74, 0.741))
    )
    kept, coverage = end_answer(answer, aim)
    assert len(kept) == count and coverage == answer[count - 1].coverage


def test_an_answer_without_coverage_keeps_all_hits() -> None:
    answer = hits(("s/a", 3), ("s/b", 2))
    assert end_answer(answer, 0.9) == (answer, None)


def test_the_coverage_grows_with_the_merged_estimate_and_the_tools_and_falls_with_missed_steps() -> None:
    model = load_coverage()
    assert model.about["command"] == "python benchmarks/coverage.py --write"
    assert 0 < model.estimate(0.3, 2) < model.estimate(0.6, 2) < model.estimate(0.6, 5) < 1
    assert model.estimate(0.6, 5, missed=1.0) < model.estimate(0.6, 5, missed=0.2)
    assert model.estimate(0.0, 1) == 0.0 and model.estimate(1.0, 1) < 1
    assert model.estimate(0.6, 5, share=0.2) < model.estimate(0.6, 5) < model.estimate(0.6, 5, share=0.9)


def test_each_tool_tells_the_coverage_of_the_answer_that_ends_with_it() -> None:
    model = load_coverage()
    some = estimate_coverage(hits(("s/a", 8), ("s/b", 7), ("s/c", 6)))
    merged = [hit.coverage or 0.0 for hit in some]
    corrected = model.correct((*some, Hit("s/d", 1.0, "")), 0.3, [0.2, 0.4])
    expected = [model.estimate(merged[n], n + 1, 0.3, (0.2, 0.4, 0.4)[n]) for n in range(3)]
    assert [hit.coverage for hit in corrected] == [*expected, None]
    assert [hit.coverage for hit in model.correct(some)] == [model.estimate(merged[n], n + 1) for n in range(3)]


def test_a_split_is_rated_by_the_probabilities_of_its_cuts() -> None:
    steps = SPLITTER.split(COMPOUND)
    rated = rate_split(SPLITTER, COMPOUND, steps)
    assert rated.steps.keys() == set(steps) and min(rated.steps.values()) >= SPLITTER.threshold
    unsplit = rate_split(SPLITTER, COMPOUND, ())
    assert not unsplit.steps and unsplit.missed > rated.missed
    assert rate_split(SPLITTER, "weather in Oslo", ()) == ({}, 0.0)
    assert rate_split(SPLITTER, f"{COMPOUND} " * 200, ()) == ({}, 0.0)


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"format": "coverage/1", "about": {}, "constant": 0, "merged": 1, "places": 0, "missed": 0, "words": 0}',
        '{"format": "coverage/2", "about": {}, "constant": 0, "merged": -1, "places": 0, "missed": 0, "words": 0}',
        '{"format": "coverage/2", "about": {}, "constant": 0, "merged": 1, "places": -1, "missed": 0, "words": 0}',
        '{"format": "coverage/2", "about": {}, "constant": 0, "merged": 1, "places": 0, "missed": 0, "words": -1}',
    ],
    ids=["empty", "another format", "falls with the estimate", "falls with the tools", "falls with the words"],
)
def test_a_damaged_coverage_model_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "coverage.json"
    file.write_text(content)
    with pytest.raises(StoreError, match="damaged"):
        load_coverage.__wrapped__(file)


TOOLS = [
    Tool(id="travel/find_flights", name="find_flights", description="Search flights between two airports."),
    Tool(id="travel/flight_status", name="flight_status", description="The status of flights and airports."),
    Tool(id="weather/forecast", name="forecast", description="Weather forecast of a city."),
    Tool(id="mail/send_mail", name="send_mail", description="Send a mail to a person."),
    Tool(id="music/play", name="play", description="Play a song."),
]
COMPOUND = "Find flights to Rome. Then send a mail to Anna."


def search(query: str, **fields: object) -> Search:
    [found] = build("scout", Catalogue.of(TOOLS))([Search(query=query, **fields)])  # type: ignore[arg-type]
    return found


def test_each_step_is_served_and_named() -> None:
    found = search(COMPOUND, k=2)
    assert found.steps == ("Find flights to Rome", "send a mail to Anna.")
    assert set(found.ids[:2]) == {"travel/find_flights", "mail/send_mail"}
    assert {hit.id: hit.step for hit in found.hits}["mail/send_mail"] == "send a mail to Anna."
    assert as_json(found)["steps"] == found.steps


def test_one_need_is_answered_as_by_hybrid() -> None:
    catalogue = Catalogue.of(TOOLS)
    queries = [Search(query="find Tom and Jerry songs"), Search(query="weather in Oslo"), Search(query="")]
    plain, split = build("hybrid", catalogue)(queries), build("scout", catalogue)(queries)
    ranked = [[[(hit.id, hit.score, hit.why) for hit in found.hits] for found in batch] for batch in (plain, split)]
    assert ranked[0] == ranked[1]
    assert all(found.steps == () and found.uncovered == () for found in split)


def test_words_that_no_tool_has_lower_the_coverage() -> None:
    stage = build("scout", Catalogue.of(TOOLS))
    assert isinstance(stage, StepSearch)
    known, unknown = Search(query="weather forecast of a city"), Search(query="weather by sundial, gnomon, astrolabe")
    read = [found.hits[0].coverage or 0.0 for found in stage([known, unknown])]
    stage.words = None
    unread = [found.hits[0].coverage or 0.0 for found in stage([known, unknown])]
    assert read[0] > unread[0] and read[1] < unread[1]


def test_a_caller_may_ask_for_no_split() -> None:
    assert search(COMPOUND, split=False).steps == ()
    assert search("select:find_flights, send_mail").steps == ()


def test_a_batch_keeps_its_order() -> None:
    queries = ["weather in Oslo", COMPOUND, "play a song"]
    together = build("scout", Catalogue.of(TOOLS))([Search(query=query, k=3) for query in queries])
    assert [found.query for found in together] == queries
    assert [found.ids for found in together] == [search(query, k=3).ids for query in queries]


def test_a_step_never_shows_what_the_caller_may_not_see() -> None:
    found = search(COMPOUND, visible=is_no_mail)
    assert found.hits and "mail/send_mail" not in found.ids


def is_no_mail(tool: Tool) -> bool:
    return tool.source != "mail"


class _Base(Stage):
    """Ranks two tools for every text."""

    writes = frozenset({"hits"})

    def run(self, searches: Sequence[Search]) -> list[Search]:
        ranked = [hits((f"s/{found.query[:4].strip()}", 3.0), ("s/other", 1.0)) for found in searches]
        return [
            Search(query=found.query, hits=hit, trace=found.trace) for found, hit in zip(searches, ranked, strict=True)
        ]

    def explain(self, search: Search, tool_id: str) -> Explanation | None:
        return Explanation("base", 1, 3.0)


def judge_steps(searches: Sequence[Search]) -> list[Verdict | None]:
    return [
        Verdict(0.9, 0.1, "no_tool_fits", "r") if "lead" in found.query else Verdict(0.8, 0.9) for found in searches
    ]


def test_a_step_without_a_fitting_tool_is_named_and_stands_behind() -> None:
    text = "Send the mail to Anna. Then turn lead into gold."
    [found] = (StepSearch(_Base(), SPLITTER, judge_steps) >> Decide())([Search(query=text)])
    assert found.uncovered == ("turn lead into gold.",)
    assert found.kind == "tools" and found.need == 0.8
    assert found.ids == ("s/Send", "s/turn", "s/other")
    assert {hit.id: hit.step for hit in found.hits}["s/turn"] == "turn lead into gold."
    assert "steps" in {entry.stage for entry in found.trace}


class _Servers(Stage):
    """Ranks forty tools; "brew" points to the tool of a server, to which the rest of the request points too."""

    writes = frozenset({"hits"})

    def run(self, searches: Sequence[Search]) -> list[Search]:
        others = [(f"o{number}/x", 2.0) for number in range(40)]
        ranked = [
            hits(("cafe/brew", 2.6), *others) if found.query.startswith("brew") else hits(("cafe/order", 9.0), *others)
            for found in searches
        ]
        return [msgspec.structs.replace(found, hits=some) for found, some in zip(searches, ranked, strict=True)]


def test_steps_with_one_best_tool_are_served_apart_if_one_is_refused() -> None:
    text = "send the mail to Anna. Then send lead to the gold smith."
    [found] = (StepSearch(_Base(), SPLITTER, judge_steps) >> Decide())([Search(query=text)])
    assert found.uncovered == ("send lead to the gold smith.",)
    [served] = (StepSearch(_Base(), SPLITTER, judge_steps) >> Decide())([Search(query=text.replace("lead", "tin"))])
    assert served.steps == () and served.uncovered == (), "one need after all"


@pytest.mark.parametrize(("alone", "together", "likely"), [(0.1, 0.3, True), (0.2, 0.3, False), (0.39, 0.41, True)])
def test_a_step_that_gains_much_by_the_others_has_a_likely_tool(alone: float, together: float, likely: bool) -> None:
    assert _is_likely(BestChance(alone, together)) is likely


@pytest.mark.parametrize(
    "text",
    [
        "send a text to Mum: buy milk, then call grandpa",
        "Post this message: book a room; send the invites; order lunch",
        "Send Anna a message: I am home. call me later, then buy milk",
    ],
)
def test_the_words_of_a_message_are_no_steps(text: str) -> None:
    assert SPLITTER.split(text) == (text,)
    assert len(SPLITTER.split(f"{text}. Then, book a table for two.")) == 2, "what follows the message is one"


def test_a_request_of_more_than_eight_steps_is_a_document() -> None:
    steps = [f"{n}. send the report to team {n}" for n in range(1, 10)]
    assert len(SPLITTER.split("\n".join(steps[:8]))) == 8
    assert len(SPLITTER.split("\n".join(steps))) == 1


def test_a_refused_step_is_not_named_if_the_other_steps_point_to_its_tool() -> None:
    def doubt(searches: Sequence[Search]) -> list[Verdict | None]:
        unfit = Verdict(0.9, 0.1, "no_tool_fits", "r")
        return [unfit if "brew" in found.query or "lead" in found.query else Verdict(0.8, 0.9) for found in searches]

    [found] = StepSearch(_Servers(), SPLITTER, doubt)([Search(query="Order the beans at the café. Then brew a cup.")])
    assert len(found.steps) == 2 and found.uncovered == ()
    assert found.ids[:2] == ("cafe/order", "cafe/brew")
    [chance] = find_best_chances((), [hits(("cafe/brew", 2.6), *((f"o{number}/x", 2.0) for number in range(40)))])
    assert chance.together == chance.alone < MAX_UNCOVERED_CHANCE
    assert find_best_chances((), [hits(("cafe/brew", 9.0))]) == [(0.0, 0.0)]  # too few tools to be compared


@pytest.mark.parametrize(("need", "has_place"), [(0.01, False), (0.1, True)])
def test_only_what_is_surely_chat_takes_no_place(need: float, has_place: bool) -> None:
    def call_chat(searches: Sequence[Search]) -> list[Verdict | None]:
        chat = Verdict(need, 0.1, "no_tool_needed", "This looks like chat.")
        return [chat if "joke" in found.query else Verdict(0.8, 0.9) for found in searches]

    text = "Send the mail to Anna. Then tell me a joke."
    [found] = (StepSearch(_Base(), SPLITTER, call_chat) >> Decide())([Search(query=text)])
    assert found.uncovered == ("tell me a joke.",)
    assert found.ids == (("s/Send", "s/tell", "s/other") if has_place else ("s/Send", "s/other"))


def test_what_is_chat_as_a_whole_is_not_split() -> None:
    text = "Send the mail to Anna. Then turn lead into gold."
    for is_chat in (True, False):
        stage = StepSearch(
            _Base(), SPLITTER, is_chat=lambda query, steps, visible, value=is_chat: value and query == text
        )
        [found] = stage([Search(query=text)])
        assert len(found.steps) == (0 if is_chat else 2)


def test_a_request_abstains_only_if_no_step_is_served() -> None:
    def reject(searches: Sequence[Search]) -> list[Verdict | None]:
        return [Verdict(0.9, 0.1, "no_tool_fits", "Nothing fits.") for _ in searches]

    text = "Send the mail to Anna. Then turn lead into gold."
    [found] = (StepSearch(_Base(), SPLITTER, reject) >> Decide(judge=reject))([Search(query=text)])
    assert (found.kind, found.hits, len(found.uncovered)) == ("no_tool_fits", (), 2)


def test_why_names_the_step_that_ranks_a_tool_best() -> None:
    stage = build("scout", Catalogue.of(TOOLS))
    explained = stage.explain(Search(query=COMPOUND), "mail/send_mail")
    assert explained is not None and explained.rank is not None and "send a mail to Anna" in explained.note
    plain = stage.explain(Search(query="weather in Oslo"), "weather/forecast")
    assert plain is not None and plain.rank == 1


def test_the_library_splits_by_default(tmp_path: Path) -> None:
    with Scout(tmp_path, false_rejects=0.0) as scout:
        scout.add([{"name": tool.name, "description": tool.description} for tool in TOOLS], name="all")
        assert len(scout.search(COMPOUND).steps) == 2
        assert scout.search(COMPOUND, split=False).steps == ()
        assert scout.search(COMPOUND, recipe="hybrid").steps == ()


def test_auto_ends_the_answer_at_the_coverage_that_is_asked_for(tmp_path: Path) -> None:
    with Scout(tmp_path, false_rejects=0.0) as scout:
        scout.add([{"name": tool.name, "description": tool.description} for tool in TOOLS], name="all")
        query = "status of flights and airports"
        every = scout.search(query, 10)
        reached = [hit.coverage for hit in every.hits]
        assert every.coverage is None, "it decides nothing, and is too uncertain to be shown"
        assert len(every.hits) > 2
        aim = reached[0]
    with Scout(tmp_path, false_rejects=0.0, coverage_aim=aim) as scout:
        short = scout.search(query, "auto")
        assert short.ids == every.ids[:1] and short.coverage == reached[0]
        assert scout.search(query, 10, recipe="hybrid").coverage is None
        assert scout.search(query, "auto", recipe="hybrid").ids == scout.search(query, 10, recipe="hybrid").ids
    with Scout(tmp_path, false_rejects=0.0, coverage_aim=1.0) as scout:
        assert scout.search(query, "auto").ids == every.ids


@pytest.mark.parametrize(
    "request_text",
    [
        "Write a mail to the team: the demo went well, and book nothing for Friday.",
        "Set an alarm for six, and make it loud.",
        "Sort the table by date, then by name.",
        "Search for a flat with a balcony; three rooms; no ground floor.",
        "Could you, if it's no trouble, look up the opening hours of the library?",
        "When you get a chance, pull up the contract with Meyer.",
        "Could you check, when you have a minute, if the invoice for May was paid?",
        "Show import and export figures of Chile",
        "How many customers signed up and then cancelled within a month?",
        "Change my address, please. My user ID is 12345.",
        "Get me a quote for car insurance. I drive a 2019 Golf.",
        "I'm writing a paper on whales. Give me recent articles.",
        "please be so kind and open the garage",
        "Use the photo to identify and authenticate the visitor.",
        "Calculate the balance between cut and fill volumes of the road.",
    ],
)
def test_messages_qualities_and_polite_openings_belong_to_their_step(request_text: str) -> None:
    assert load_splitter().split(request_text) == (request_text,)


def test_what_tells_of_a_wish_is_a_step_of_its_own() -> None:
    text = "Show me images of the northern lights. I'm in the mood for a podcast. Book a table."
    assert len(load_splitter().split(text)) == 3


def test_thanks_are_no_step() -> None:
    steps = load_splitter().split("Find flights to Rome, then email the plan to Anna. Thanks!")
    assert len(steps) == 2 and not any(step.startswith("Thanks") for step in steps)


def test_a_list_keeps_its_lines_whatever_they_begin_with() -> None:
    assert len(load_splitter().split("Send a mail to:\n- find flights to Rome\n- check the weather in Oslo")) >= 2
