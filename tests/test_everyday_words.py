"""Phrases of everyday life bring the words of tools into a search; requests without them are searched as before."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from toolscout.encoders import unit_rows
from toolscout.encoders.static import load_static
from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.bm25 import BM25
from toolscout.indexes.words import tokenize
from toolscout.recipes import registry
from toolscout.search import everyday
from toolscout.search.everyday import (
    EVERYDAY_WORDS_FILE,
    LONG_VECTOR_SHARE,
    MAX_SHORT_VECTOR_REQUEST,
    PHRASE_VECTOR_SHARE,
    WORD_VECTOR_SHARE,
    ExpandedWords,
    Thesaurus,
    encode_expanded,
    list_stems,
    load_foreign_thesaurus,
    load_thesaurus,
)
from toolscout.search.home_resources import HomeResources
from toolscout.search.why import explain
from toolscout.testing import check_stage
from toolscout.types import Search, Tool

LINES = (
    "# weather",
    "",
    "umbrella\tweather forecast rain",
    "put in my calendar\tevent create",
    "how hot\tweather temperature",
    "hot topic\ttrending",
    "the pub\tbar places",
    "what's on\tevents list",
    "get rid of\tdelete remove",
    "rid\tnothing",
    "get\tfetch read",
)
TOOLS = [
    Tool(id="w/forecast", name="forecast", description="Weather forecast for a city."),
    Tool(id="w/alerts", name="alerts", description="Warnings of storms."),
    Tool(id="c/create", name="create_event", description="Creates an event."),
    Tool(id="s/find", name="find_umbrella", description="Sells things."),
    *(Tool(id=f"f/{n:03}", name=f"files_{n}", description="Reads a document of the archive.") for n in range(60)),
]


def find(request: str, *lines: str) -> list[str]:
    return [phrase.text for phrase in Thesaurus(lines or LINES).find(list_stems(request))]


def expand(tools: list[Tool], *, weight: float = 0.4) -> ExpandedWords:
    return ExpandedWords(BM25.build(tools), lambda: Thesaurus(LINES), weight)


@pytest.mark.parametrize(
    ("request_text", "phrases"),
    [
        ("Do I need an umbrella?", ["umbrella"]),
        ("Umbrellas, and how hot is it", ["umbrella", "how hot"]),
        ("put in my calendar", ["put in my calendar"]),
        ("put it in the calendar", ["put in my calendar"]),
        ("put in this very calendar", ["put in my calendar"]),
        ("put them all in my calendar", []),  # two other words stand between
        ("how very hot", []),  # one main word: nothing may stand between
        ("how hot topic", ["how hot"]),  # no word belongs to two phrases
        ("in the pub", ["the pub"]),
        ("in a pub", []),  # the article is all that makes it a phrase
        ("what is on tonight", ["what's on"]),
        ("we get rid of it", ["get rid of"]),  # the longest
        ("calendar in my put", []),
        ("", []),
    ],
)
def test_phrases_are_found_by_their_stems_in_order(request_text: str, phrases: list[str]) -> None:
    assert find(request_text) == phrases


@pytest.mark.parametrize("line", ["umbrella weather", "umbrella\t", "umbrella\t ", "\tweather", "?\tweather"])
def test_a_damaged_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="expected a phrase"):
        Thesaurus([line])


def test_every_phrase_that_ships_is_found_in_itself() -> None:
    thesaurus = load_thesaurus()
    lines = [line for line in EVERYDAY_WORDS_FILE.read_text().splitlines() if line and not line.startswith("#")]
    lost, unread = [], []
    for line in lines:
        text, _, words = line.partition("\t")
        found = thesaurus.find(list_stems(text))
        if not found or len(found[0].stems) < len(everyday._make_phrase(text, words).stems):
            lost.append(text)
        if len(words.split()) > 6 or not tokenize(words):
            unread.append(text)
    assert len(lines) > 11_000
    assert (lost, unread) == ([], [])


def test_a_damaged_file_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    from toolscout.errors import StoreError

    file = tmp_path / "everyday.txt"
    file.write_text("umbrella weather\n")
    monkeypatch.setattr(everyday, "EVERYDAY_WORDS_FILE", file)
    with pytest.raises(StoreError, match="Install toolscout again"):
        load_thesaurus.__wrapped__()


def test_words_of_no_phrase_take_no_memory() -> None:
    """A service that runs for months gets new words without end."""
    thesaurus = Thesaurus(LINES)
    thesaurus.find(["other", "words"])
    tracemalloc.start()
    for number in range(5_000):
        thesaurus.find([f"word{number}"])
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 100_000


class EmptiedByAnotherThread(dict):  # type: ignore[type-arg]
    def __setitem__(self, key: object, value: object) -> None:
        """The value is gone before this thread can read it."""


def test_additions_are_returned_although_another_thread_empties_their_cache() -> None:
    expanded = expand(TOOLS)
    expanded._additions = EmptiedByAnotherThread()
    assert [addition.phrase for addition in expanded.find_additions("an umbrella")] == ["umbrella"]


def test_an_added_word_counts_with_its_weight() -> None:
    plain, expanded = BM25.build(TOOLS), expand(TOOLS)
    query = "umbrella"
    wanted = plain.scores(query) + np.float32(0.4) * plain.scores("weather forecast rain")
    assert expanded.scores(query) == pytest.approx(wanted, rel=1e-5)
    ids, scores = expanded.search([query], 5)
    assert ids == [["s/find", "w/forecast"]]
    assert scores[0].tolist() == sorted(expanded.scores(query)[expanded.scores(query) > 0].tolist(), reverse=True)
    assert plain.search([query], 5)[0] == [["s/find"]]
    assert expand(TOOLS, weight=9).search([query], 5)[0] == [["w/forecast", "s/find"]]


def test_a_word_of_the_request_is_not_added() -> None:
    [addition] = expand(TOOLS).find_additions("umbrella for the weathers")
    assert addition.words == ("forecast", "rain")
    assert [one.words for one in expand(TOOLS).find_additions("umbrella, how hot")] == [
        ("weather", "forecast", "rain"),
        ("temperature",),
    ]


def test_a_request_without_phrases_is_answered_as_by_the_index_itself() -> None:
    plain = BM25.build(TOOLS)
    expanded = ExpandedWords(plain, lambda: Thesaurus(LINES))
    assert expanded.scores("storms in a city").tolist() == plain.scores("storms in a city").tolist()
    assert expanded.explain("storms", "w/alerts") == plain.explain("storms", "w/alerts")


def test_a_foreign_request_adds_nothing() -> None:
    assert expand(TOOLS).find_additions("umbrella please")
    assert not expand(TOOLS).find_additions("wo ist meine umbrella, und wie ist das für dich")


def test_a_file_of_another_language_is_used_once_it_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "de.everyday.txt").write_text("regnet es\tweather forecast\nmüde\tcoffee\n", encoding="utf-8")
    monkeypatch.setattr(everyday, "WORDS_FOLDER", tmp_path)
    load_foreign_thesaurus.cache_clear()
    try:
        [rain] = expand(TOOLS).find_additions("regnet es morgen bei uns, oder ist das nur für euch")
        assert rain.words == ("weather", "forecast")
        assert expand(TOOLS).find_additions("Ich bin müde und will zu dir")
        assert not expand(TOOLS).find_additions("what does the sign 'regnet es' mean, please tell me")
    finally:
        load_foreign_thesaurus.cache_clear()


def test_a_phrase_whose_words_serve_adds_nothing() -> None:
    long_request = "tell us whether anybody in our team really needs an umbrella during this sunny week"
    without = [tool for tool in TOOLS if tool.id != "s/find"]
    many = [*TOOLS, *(Tool(id=f"u/{n}", name=f"umbrella_{n}", description="Sells.") for n in range(5))]
    assert expand(TOOLS).find_additions("umbrella")  # one tool has the word, and the request is short
    assert not expand(TOOLS).find_additions(long_request)
    assert expand(without).find_additions(long_request)  # no tool has the word
    assert not expand(many).find_additions("umbrella")  # more than 3 % of the tools have it
    hot = [*without, Tool(id="t/hot", name="hot", description="Sells hot things.")]
    assert expand(hot).find_additions(long_request.replace("an umbrella", "to know how hot it is"))  # "how" is in none


def test_tools_are_counted_that_have_all_words_of_a_phrase() -> None:
    index = BM25.build(TOOLS)
    assert [index.count_tools(text) for text in ("weather", "the weather forecast", "weather storms")] == [1, 1, 0]
    assert [index.count_tools(text) for text in ("document", "of the", "", "unheard", "archived documents")] == [
        60,
        0,
        0,
        0,
        60,
    ]


def test_the_vector_of_a_request_moves_a_little_towards_the_added_words() -> None:
    encoder, words = load_static(), expand(TOOLS)
    rows = encode_expanded(["umbrella", "storms"], encoder, words)
    own, other, added = encoder.encode(["umbrella", "storms", "weather forecast rain"])
    assert rows[1].tolist() == other.tolist()
    assert rows[0] == pytest.approx(unit_rows((own + WORD_VECTOR_SHARE * 0.4 * added)[None])[0], abs=1e-6)
    assert float(rows[0] @ added) > float(own @ added) + 0.02
    assert encoder.encode(["umbrella"])[0].tolist() == own.tolist()  # the cached vector stays as it is


def test_the_vector_moves_more_in_a_short_request_and_for_a_phrase_of_several_words() -> None:
    encoder, words = load_static(), expand([tool for tool in TOOLS if tool.id != "s/find"])
    short = "umbrella" + " please" * (MAX_SHORT_VECTOR_REQUEST - 1)
    shares = {short: WORD_VECTOR_SHARE, f"{short} please": LONG_VECTOR_SHARE, "how hot is it": PHRASE_VECTOR_SHARE}
    for text, share in shares.items():
        [addition] = words.find_additions(text)
        own, added = encoder.encode([text, " ".join(addition.words)])
        moved = unit_rows((own + share * 0.4 * added)[None])[0]
        assert encode_expanded([text], encoder, words)[0] == pytest.approx(moved, abs=1e-6)


def test_an_explanation_names_the_phrase_and_its_words() -> None:
    explanation = expand(TOOLS).explain("umbrella today", "w/forecast")
    assert explanation.note == "“umbrella” also searches for weather, forecast, rain"
    assert set(explanation.terms) == {"weather (for “umbrella”)", "forecast (for “umbrella”)"}
    assert sum(explanation.terms.values()) == pytest.approx(explanation.score)
    assert explanation.missing == ("umbrella", "today")  # an added word is none of the request's
    assert explanation.rank == 2
    [addition] = expand(TOOLS).find_additions("umbrella")
    nothing = expand(TOOLS).explain("umbrella", "w/alerts")
    assert nothing.rank is None
    assert nothing.note == f"no word in common; {addition.describe()}"


def test_hybrid_and_scout_use_the_thesaurus_and_a_setting_turns_it_off() -> None:
    catalogue = Catalogue.of([tool for tool in TOOLS if tool.id != "s/find"])
    search = Search(query="do I need my umbrella", k=3)
    for recipe in ("hybrid", "scout"):
        on = registry.build(recipe, catalogue, HomeResources(load_static()))
        off = registry.build(recipe, catalogue, HomeResources(load_static()), settings={"everyday": 0})
        check_stage(on, [search])
        [with_words], [without] = on([search]), off([search])
        assert with_words.ids[0] == "w/forecast"
        assert "bm25" in with_words.hits[0].why
        assert not any("bm25" in hit.why for hit in without.hits)
        why = explain(catalogue, on, None, search, "w/forecast", with_words)
        assert any("“umbrella” also searches for" in stage.note for stage in why.stages)
        assert "forecast (for “umbrella”)" in why.matched
