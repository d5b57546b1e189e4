"""The decision of every search: two answers with reasons, a budget, and who is never turned away."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import toolscout
from toolscout.encoders.static import StaticEncoder
from toolscout.errors import ConfigError, StoreError
from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.bm25 import BM25
from toolscout.location import describe_home
from toolscout.scout import Scout
from toolscout.search.abstain import decision
from toolscout.search.abstain.decision import (
    Abstainer,
    build_abstainer,
    find_budget_share,
    fit_floors,
    read,
)
from toolscout.search.abstain.wording import is_small_talk
from toolscout.search.everyday import ExpandedWords, Thesaurus
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import Decide, Detect, Floors, Stage, Verdict
from toolscout.settings import Settings
from toolscout.testing import check_stage, toy_tools
from toolscout.types import Hit, Search, Tool

TERSE = Path(__file__).parents[1] / "benchmarks" / "suites" / "terse.jsonl"
EVERYDAY = Path(toolscout.__file__).with_name("data") / "everyday.jsonl"
CHAT = (
    "Tell me a joke about a philosopher.",
    "Write a Python function that reverses a linked list, and explain why it works.",
    "Roleplay as a dragon that guards a castle and refuses to let anybody in.",
    "Why did Napoleon lose the battle of Waterloo?",
)
ASKS = (
    "what will the weather be in Oslo tomorrow?",
    "send an email to my landlord about the broken heater",
    "convert 100 euros to dollars",
    "set a timer for ten minutes",
)


@pytest.fixture(scope="module")
def everyday(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Scout(tmp_path_factory.mktemp("everyday"), false_rejects=0.05) as scout:
        scout.add(EVERYDAY)
        yield scout


class Given(Stage):
    """Hits as given."""

    writes = frozenset({"hits"})

    def __init__(self, *hits: Hit) -> None:
        self.hits = hits

    def run(self, searches: Sequence[Search]) -> list[Search]:
        return [msgspec.structs.replace(search, hits=self.hits) for search in searches]


def judge_over(tools: Sequence[Tool] | None = None, stage: Stage | None = None, **settings: Any) -> Abstainer | None:
    workspace = HomeResources(settings=dataclasses.replace(Settings(), **settings))
    return build_abstainer(workspace, Catalogue.of(toy_tools() if tools is None else tools), stage or Given())


def over(tools: Sequence[Tool] | None = None, **settings: Any) -> Abstainer:
    found = judge_over(tools, **settings)
    assert found is not None
    return found


def strict(found: Abstainer, need: float = 0.0, fit: float = 0.0) -> Abstainer:
    """The same with floors of one's own."""
    return dataclasses.replace(found, floors=Floors((0.0, 0.02), (need, need), (fit, fit)), small_floors=None)


def ask(found: Abstainer, query: str, *hits: Hit, **fields: Any) -> Search:
    [answer] = (Given(*hits) >> Decide(judge=found))([Search(query=query, **fields)])
    return answer


def test_the_bundled_numbers_load_and_say_what_they_were_fitted_on() -> None:
    found = read()
    assert found.about["sets"] and set(found.about["sets"].values()) <= {"MIT", "Apache-2.0"}
    assert "toollens" not in found.about["sets"] and "tooldet" not in found.about["no_tool"]
    for linear in (found.need, found.fit):
        assert all(np.isfinite([*linear.means, *linear.weights, linear.shift])) and min(linear.deviations) > 0
    assert found.floors.budgets[0] == 0 and found.floors.need == tuple(sorted(found.floors.need))
    assert 0 < found.floors.need_at(0.02) < 0.5 and 0 < found.floors.fit_at(0.02) < 0.5


def test_chat_gets_hits_of_low_confidence_with_a_reason_and_requests_do_not(everyday: Scout) -> None:
    for query in CHAT:
        found = everyday.search(query)
        assert found.kind == "tools" and found.is_doubtful and found.hits, query
        assert found.need is not None and found.need < 0.5
        assert found.reason and found.reason.startswith("This looks like chat rather than a task for a tool (")
    for query in ASKS:
        found = everyday.search(query)
        assert found.kind == "tools" and found.hits and found.reason is None and not found.is_doubtful, query
        assert found.need is not None and found.need > 0.5


def test_chat_is_turned_away_where_a_setting_says_so_and_small_talk_everywhere(tmp_path: Path) -> None:
    for refuse in (True, False):
        with Scout(tmp_path, refuse=refuse) as scout:
            scout.add(EVERYDAY)
            assert [bool(scout.search(query).hits) for query in CHAT] == [not refuse] * len(CHAT)
            assert scout.search("Good morning, Anna! How are you?").kind == "no_tool_needed"


def test_what_no_tool_does_is_another_answer(everyday: Scout) -> None:
    only_files = Catalogue.of([tool for tool in toy_tools() if tool.source == "files"])
    found = ask(
        over(only_files.tools(), false_rejects=0.1),
        "reserve a hotel room in Lisbon for three nights",
        Hit("files/copy", 1.0),
    )
    assert (found.kind, found.hits) == ("no_tool_fits", ())
    assert found.reason and found.reason.startswith("None of the 2 tools seems to fit this request (")


def test_the_budget_is_a_setting_and_nothing_turns_nobody_away(everyday: Scout, tmp_path: Path) -> None:
    assert judge_over(false_rejects=0.0) is None
    with Scout(tmp_path, false_rejects=0) as scout:
        scout.add(EVERYDAY)
        found = scout.search(CHAT[0])
        assert (found.kind, found.need) == ("tools", None) and found.hits
    for wrong in (-0.1, 0.3):
        with pytest.raises(ConfigError, match="false_rejects: expected a number from 0"):
            Scout(tmp_path, false_rejects=wrong)
    lost = [ask(over(false_rejects=budget), "something for the garden").kind for budget in (0.005, 0.2)]
    assert "no_tool_fits" in lost or lost == ["no_tool_needed", "no_tool_needed"]


def test_tools_that_are_named_are_never_turned_away(toy: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
    impossible = Floors((0.0, 0.2), (1.1, 1.1), (1.1, 1.1))
    with Scout(describe_home(toy.settings.place), refuse=True) as scout:
        numbers = msgspec.structs.replace(read(), floors=impossible)
        monkeypatch.setattr(decision, "read", lambda *_: numbers)
        assert scout.search("send a message to my sister").hits == ()
        for query in ("getAirQuality", "write a poem with `sha256`", "select:copy", "sing about files/copy to me"):
            found = scout.search(query)
            assert found.kind == "tools" and found.hits, query
        missing = scout.search("select:nothing_of_the_kind")
        assert (missing.kind, missing.need) == ("no_tool_fits", None) and "is called" in (missing.reason or "")


def test_an_exact_hit_is_kept_whatever_the_floors_say() -> None:
    found = ask(strict(over(), need=1.1, fit=1.1), "tell me a story", Hit("files/copy", 1.0, "exact name"))
    assert (found.kind, found.ids, found.need) == ("tools", ("files/copy",), None)


def test_either_floor_turns_away_and_the_likelier_answer_is_given() -> None:
    hit, chat = Hit("mail/send_email", 1.0), "Tell me a story about a dragon, in the style of an old saga."
    for floors in ({"need": 1.1}, {"fit": 1.1}):
        unfit = ask(strict(over(), **floors), "send a message by e-mail", hit)
        assert (unfit.kind, unfit.hits) == ("no_tool_fits", ())
        assert unfit.reason and unfit.reason.startswith("None of the 10 tools seems to fit this request (")
        needless = ask(strict(over(), **floors), chat, hit)
        assert (needless.kind, needless.hits) == ("no_tool_needed", ())
        assert needless.need is not None and needless.reason and "% likely to need one)." in needless.reason
    assert ask(strict(over()), chat, hit).ids == ("mail/send_email",)
    single = ask(strict(over([tool for tool in toy_tools() if tool.id == hit.id]), fit=1.1), "send a message", hit)
    assert single.reason and single.reason.startswith("The only tool does not seem to fit this request (")


def test_a_first_hit_that_a_model_is_sure_of_is_never_turned_away() -> None:
    judging = dataclasses.replace(strict(over(), fit=1.1), sure=-1.5)
    for score, answer in ((-1.5, "tools"), (-1.6, "no_tool_fits")):
        found = ask(judging, "send a message by e-mail", Hit("mail/send_email", score), Hit("files/copy", score - 9))
        assert found.kind == answer and found.need is not None
    assert ask(judging, "send a message by e-mail").kind == "no_tool_fits"


def test_a_reason_that_was_there_stays() -> None:
    found = ask(strict(over(), fit=1.1), "send a message", Hit("a/b", 1.0), reason="searched with bm25 alone: down")
    assert found.reason and found.reason.startswith("searched with bm25 alone: down. None of the 10 tools")


def test_nothing_is_said_where_it_would_be_guessed() -> None:
    found = strict(over(), need=1.1, fit=1.1)
    for query in ("", "   ", "qzxv wvut plonkh", "天气预报", "переведи текст"):
        assert found([Search(query=query)]) == [None], query
    assert found([Search(query="send a message", visible=_nothing)]) == [None]
    assert strict(over([]), need=1.1)([Search(query="send a message")]) == [None]
    assert found([]) == []


@pytest.mark.parametrize(
    "query",
    [
        "Wie wird das Wetter nächste Woche?",
        "SCHICK MIR DAS WETTER",
        "pon una alarma para mañana a las siete",
        "traduis ce texte en anglais",
        "Toca jazz",
        "传送 this",
    ],
)
def test_a_request_in_a_language_that_the_encoder_does_not_know_is_never_turned_away(query: str) -> None:
    impossible = strict(over(), need=1.1, fit=1.1)
    assert ask(impossible, query, Hit("mail/send_email", 1.0)).kind == "tools"
    assert impossible([Search(query=query)]) == [None]
    every_language = dataclasses.replace(impossible, encoders={"static": Polyglot()})
    assert every_language([Search(query=query)]) != [None], "an encoder of all languages decides"


def test_no_terse_request_in_another_language_is_turned_away() -> None:
    lines = map(json.loads, TERSE.read_text(encoding="utf-8").splitlines())
    queries = [line["text"] for line in lines if line["language"] != "en"]
    verdicts = strict(over(), need=1.1, fit=1.1)([Search(query=query) for query in queries])
    assert len(queries) == 30 and [q for q, verdict in zip(queries, verdicts, strict=True) if verdict] == []


def test_few_words_use_a_part_of_the_budget() -> None:
    steep = dataclasses.replace(over(), floors=Floors((0.0, 0.02), (0.0, 1.1), (0.0, 0.0)), small_floors=None)
    hit = Hit("mail/send_email", 1.0)
    assert find_budget_share("lights off") == 0 < find_budget_share("send a message now") < 1
    assert ask(steep, "send it", hit).kind == "tools"
    assert ask(steep, "send a message to the landlord about the broken heater in my flat", hit).hits == ()


@pytest.mark.parametrize("query", ["tell me a joke", "Who was Napoleon, and why did he lose?"])
def test_few_words_that_are_clearly_chat_use_the_whole_budget(everyday: Scout, query: str) -> None:
    assert everyday.search(query).is_doubtful
    assert find_budget_share(query, -3.0) == 1 > find_budget_share(query, -2.0) > 0
    assert find_budget_share("explain gravity", -3.0) == 0, "two words are never turned away"


def test_a_tool_for_what_is_clearly_chat_is_found(tmp_path: Path) -> None:
    joke = {"name": "random_joke", "description": "Tells a random joke."}
    with Scout(tmp_path) as scout:
        scout.add(EVERYDAY)
        scout.add([joke], name="fun")
        assert scout.search("tell me a joke").ids[0] == "fun/random_joke"


def test_a_request_with_one_step_that_asks_for_a_tool_is_not_clearly_chat() -> None:
    chat, step = "Write a poem about love, tell me a joke and a story about a philosopher", "check the weather"
    assert over().is_clear_chat(f"{chat}, and {step}", (chat,))
    assert not over().is_clear_chat(f"{chat}, and {step}", (chat, step))
    assert not over().is_clear_chat("Erzähl mir bitte eine lange Geschichte von einem mutigen Drachen", ())


def test_a_request_of_several_parts_with_a_very_low_need_is_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = over(), ("Explain how a poem about love works, and why", ("check the weather in Rome",))
    wishes = found.decision.measure_wishes([asked[0]], {"static": found.encoders["static"].encode([asked[0]], "query")})
    monkeypatch.setattr(decision, "MAX_SPLIT_CHAT_WISH", wishes[0] + 0.1)
    monkeypatch.setattr(decision, "MAX_SPLIT_CHAT_NEED", 1.1)
    assert found.is_clear_chat(*asked)
    monkeypatch.setattr(decision, "MAX_SPLIT_CHAT_NEED", 0.0)
    assert not found.is_clear_chat(*asked), "its need is not low"
    monkeypatch.setattr(decision, "MAX_SPLIT_CHAT_NEED", 1.1)
    monkeypatch.setattr(decision, "MAX_SPLIT_CHAT_WISH", wishes[0] - 0.1)
    assert not found.is_clear_chat(*asked), "it does not resemble chat"


def test_chat_whose_result_a_tool_takes_on_is_no_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    found, poem = over(), "Write a poem about love, tell me a joke and explain in a story why a philosopher is sad"
    order = "email it to Anna"
    assert found.is_clear_chat(poem, (poem,))
    assert not found.is_clear_chat(f"{poem}, then {order}", (poem, order))
    monkeypatch.setattr(decision, "MIN_DEPENDENT_NEED", 1.1)
    assert found.is_clear_chat(f"{poem}, then {order}", (poem, order)), "no tool is likely to be needed for the order"
    monkeypatch.setattr(decision, "MIN_DEPENDENT_NEED", 1e-9)
    remark = "and make them rhyme nicely"
    assert found.is_clear_chat(f"{poem}, {remark}", (poem, "with a happy end"))
    assert found.is_clear_chat(poem, (order,)), "the first step takes nothing on"


def test_the_need_of_a_request_of_several_parts_counts_visible_tools_alone() -> None:
    found = over()
    vectors = {"static": found.encoders["static"].encode(["will it rain or snow"], "query")}
    texts = ["will it rain or snow"]
    [everything], [files] = (found._estimate_needs(texts, vectors, [0], mask) for mask in (None, _files))
    assert everything > files


@pytest.mark.parametrize(
    "query",
    [
        "hello",
        "Good morning, Anna! How are you?",
        "谢谢你，再见",
        "Danke, Frau Müller!",
        "¿Qué tal?",
        "नमस्ते",
        "ありがとうございます！",
        "thanks, that was great!",
        "thank you very much for your help!",
        "Vielen Dank für deine Hilfe, das war super",
        "谢谢你的帮助！",
    ],
)
def test_small_talk_is_turned_away_in_any_language(everyday: Scout, query: str) -> None:
    found = everyday.search(query)
    assert (found.kind, found.hits) == ("no_tool_needed", ())
    assert found.reason == "This is small talk rather than a task for a tool."
    assert over().is_clear_chat(query, ())


@pytest.mark.parametrize(
    "query",
    [
        "hello world",
        "Hi, what is the weather in Rome?",
        "thanks, now copy the file",
        "evening news",
        "good",
        "that was the weather",
    ],
)
def test_a_request_behind_a_greeting_is_no_small_talk(query: str) -> None:
    assert not is_small_talk(query)
    assert not is_small_talk("hello " * 40), "long texts are not read"


def test_a_tool_with_the_name_of_a_greeting_is_found(tmp_path: Path) -> None:
    with Scout(tmp_path) as scout:
        scout.add(EVERYDAY)
        scout.add([{"name": "hello", "description": "Greets somebody."}], name="greetings")
        assert scout.search("hello").ids[0] == "greetings/hello"


def test_a_short_request_that_names_the_object_of_its_best_tool_is_answered() -> None:
    never = strict(over(), need=1.1)
    hit = Hit("notes/add_note", 1.0)
    assert ask(never, "write down a note to buy milk", hit).kind == "tools"
    assert ask(never, "write down to buy milk", hit).hits == ()
    assert ask(never, "write down a note" + " for the landlord" * 4, hit).hits == ()
    assert ask(never, "write down a note", Hit("notes/note", 1.0)).hits == (), "without a verb no object is known"
    assert ask(never, "add it to us", Hit("notes/add_to", 1.0)).hits == ()
    assert ask(strict(over(), need=1.1, fit=1.1), "write down a note to buy milk", hit).hits == ()


def test_a_short_request_with_an_everyday_phrase_that_a_first_tool_serves_is_answered() -> None:
    lines = ["pack a parasol\tweather forecast", "parasol\tweather forecast", "take a coat\tweather clothes"]
    words = ExpandedWords(BM25.build(toy_tools()), lambda: Thesaurus(lines))
    never = dataclasses.replace(strict(over(), need=1.1, fit=1.1), words=words)
    weather, mail = Hit("weather/get_forecast", 1.0), Hit("mail/send_email", 2.0)
    asked = "should we pack a parasol for the trip"
    assert ask(never, asked, mail, weather).kind == "tools"
    assert ask(never, asked, mail).hits == () == ask(dataclasses.replace(never, words=None), asked, weather).hits
    assert ask(never, asked, *[Hit(f"mail/{n}", 5.0 - n) for n in range(3)], weather).hits == (), "only the first three"
    assert ask(never, "should we buy a parasol for the trip", weather).hits == (), "one word is no phrase"
    assert ask(never, "should we take a coat for the trip", weather).hits == (), "one added word may be chance"
    assert ask(never, asked + " to the sea with all of our friends", weather).hits == ()
    assert ask(never, asked, weather, need=0.1).hits == (), "a need that the pipeline estimated counts"


def test_a_phrase_keeps_no_request_that_is_clearly_chat() -> None:
    words = ExpandedWords(BM25.build(toy_tools()), lambda: Thesaurus(["tell a joke\tweather forecast"]))
    never = dataclasses.replace(strict(over(), need=1.1), words=words)
    assert ask(never, "tell me a joke about a philosopher", Hit("weather/get_forecast", 1.0)).hits == ()


def test_words_that_everyday_phrases_add_count_for_the_need() -> None:
    found = over()
    assert found.words is found.features.words
    with_phrase, plain = (found.features.rows([text], [found.encoders["static"].encode([text], "query")])
                          for text in ("do I need an umbrella", "do I need a chair"))  # fmt: skip
    top = found.features.names.index("words.top")
    assert with_phrase[0, top] > plain[0, top] == 0


def test_few_visible_tools_have_thresholds_of_their_own() -> None:
    never, always = Floors((0.0, 0.02), (0.0, 0.0), (0.0, 0.0)), Floors((0.0, 0.02), (1.1, 1.1), (1.1, 1.1))
    query = "send a message to the landlord about the broken heater"
    for tools, answer in ((toy_tools()[:5], "no_tool_fits"), (toy_tools(), "tools")):
        found = dataclasses.replace(over(tools), floors=never, small_floors=always)
        assert (ask(found, query, Hit("mail/send_email", 1.0)).kind != "tools") == (answer != "tools")


def test_no_terse_request_is_turned_away_where_a_tool_fits(tmp_path: Path) -> None:
    queries = [json.loads(line)["text"] for line in TERSE.read_text(encoding="utf-8").splitlines()]
    with Scout(tmp_path) as scout:
        scout.add(TERSE.with_name("terse_tools.jsonl"))
        answers = {query: scout.search(query) for query in queries}
    assert len(queries) == 100 and {"what's 15% of 240", "play some jazz", "brew coffee"} <= set(queries)
    assert [query for query, found in answers.items() if found.kind != "tools" and found.need is not None] == []
    unknown = [query for query, found in answers.items() if found.kind != "tools"]
    assert len(unknown) <= 2, "neither the words nor the encoder know anything in them, so there are no hits"


class Polyglot(StaticEncoder):
    """The bundled encoder, which says that it understands every language."""

    def __init__(self) -> None:
        super().__init__()
        self.languages = None


def test_floors_are_set_without_requests_in_other_languages() -> None:
    workspace, catalogue = HomeResources(), Catalogue.of(toy_tools())
    english = [*ASKS, "book a flight", "copy a file to another folder"]
    both = [*english, "reserva un vuelo para mañana", "das Wetter von morgen", "kopiere die Datei in den Ordner"]
    assert fit_floors(workspace, catalogue, both) == fit_floors(workspace, catalogue, english)


def _nothing(tool: Tool) -> bool:
    return False


def _files(tool: Tool) -> bool:
    return tool.source == "files"


def test_what_a_caller_may_not_see_is_not_weighed() -> None:
    found = over()
    [every, some] = found([Search(query="book a flight"), Search(query="book a flight", visible=_files)])
    assert every is not None and some is not None and every.fit > some.fit
    strictly = strict(found, fit=1.1)
    [told] = strictly([Search(query="book a flight", visible=_files)])
    assert told is not None and "None of the 2 tools" in told.reason


@pytest.mark.parametrize("count", [1, 2, 10])
def test_small_catalogues_and_any_k_are_judged(count: int) -> None:
    stage = Given(Hit("weather/get_forecast", 1.0)) >> Decide(judge=over(toy_tools()[:count]))
    queries = ["will it rain or snow in the coming days", "copy", "", "x" * 5_000, "weather\n" * 300]
    check_stage(stage, [Search(query=query, k=1_000) for query in queries])
    [found] = stage([Search(query="weather forecast of a city")])
    assert found.kind == "tools" and found.need is not None and found.need > 0.5


def test_a_need_that_was_judged_before_counts_by_its_own_floors() -> None:
    detect = Detect(lambda texts: [0.3] * len(texts), Floors((0.0, 0.2), (0.0, 5.0)))
    found = judge_over(stage=detect >> Given(), false_rejects=0.2)
    assert found is not None and found.pipeline_floors is detect.floors
    for need, answer in ((0.3, "no_tool_needed"), (0.99, "no_tool_fits")):
        assert ask(found, ASKS[1], Hit("mail/send_email", 1.0), need=need).kind == answer
    lenient = dataclasses.replace(
        found, pipeline_floors=Floors((0.0, 0.2), (0.0, 0.5))
    )  # half of the budget: floor 0.25
    kept = ask(lenient, ASKS[1], Hit("mail/send_email", 1.0), need=0.3)
    assert (kept.kind, kept.need) == ("tools", 0.3)
    untold = dataclasses.replace(found, pipeline_floors=None)
    assert ask(untold, ASKS[1], Hit("mail/send_email", 1.0), need=0.01).kind == "tools"


@pytest.mark.parametrize(("need", "share"), [(0.004, "less than 1 %"), (0.021, "2 %"), (0.3, "30 %")])
def test_the_reason_says_in_percent_how_likely_a_tool_is_needed(need: float, share: str) -> None:
    found = dataclasses.replace(over(), pipeline_floors=Floors((0.0, 0.2), (0.0, 5.0), (0.0, 0.0)), budget=0.2)
    turned_away = ask(found, ASKS[1], Hit("mail/send_email", 1.0), need=need)
    assert turned_away.reason == f"This looks like chat rather than a task for a tool ({share} likely to need one)."


def test_two_that_judge_have_half_of_the_budget_each_for_the_fit_too() -> None:
    """Under the whole budget the floor would lie above this request's fit, under half of it it lies below."""
    hit, detect = Hit("mail/send_email", 1.0), Detect(lambda texts: [0.9] * len(texts), Floors((0.0, 0.2), (0.0, 0.0)))
    found = judge_over(stage=detect >> Given(), false_rejects=0.2)
    assert found is not None
    [verdict] = found([Search(query=ASKS[1], hits=(hit,), need=0.9)])
    assert verdict is not None and verdict.fit > 0
    shared = dataclasses.replace(found, floors=Floors((0.0, 0.2), (0.0, 0.0), (0.0, 1.5 * verdict.fit)))
    assert ask(shared, ASKS[1], hit, need=0.9).kind == "tools"
    assert ask(shared, ASKS[1], hit).kind == "no_tool_fits", "alone it has the whole budget"


def test_floors_of_known_requests_keep_the_budget_among_them() -> None:
    texts = [f"{verb} {what}" for verb in ("please", "i want to", "can you") for what in ASKS + CHAT] * 20
    found, by = fit_floors(HomeResources(), Catalogue.of(toy_tools()), texts), over()
    verdicts = [each for each in strict(by)([Search(query=text) for text in texts]) if each is not None]
    for budget in (0.05, 0.2):
        lost = [each.need < found.need_at(budget) or each.fit < found.fit_at(budget) for each in verdicts]
        assert np.mean(lost) <= budget
    assert (
        fit_floors(HomeResources(), Catalogue.of(toy_tools()), ["天气预报"]).need_at(0.2)
        == 0.0
        == fit_floors(HomeResources(), Catalogue.of(toy_tools()), []).fit_at(0.2)
    )


def test_a_damaged_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "decision.json"
    whole = msgspec.to_builtins(read())
    short = {**whole, "need": {**whole["need"], "weights": whole["need"]["weights"][:-1]}}
    for damaged in (b"{", b"{}", msgspec.json.encode({**whole, "format": "decision/9"}), msgspec.json.encode(short)):
        file.write_bytes(damaged)
        with pytest.raises(StoreError, match="another format than decision/1"):
            read(file)
    with pytest.raises(StoreError):
        read(tmp_path / "absent.json")
    other = msgspec.structs.replace(read(), encoders={"static": "another"})
    monkeypatch.setattr(decision, "read", lambda *_: other)
    with pytest.raises(StoreError, match="not for the bundled encoder"):
        decision.load_bundled()


def test_a_verdict_of_none_leaves_the_search_as_it_is() -> None:
    def shrug(searches: Sequence[Search]) -> list[Verdict | None]:
        return [None] * len(searches)

    [found] = (Given(Hit("a/b", 1.0)) >> Decide(judge=shrug))([Search(query="x")])
    assert (found.kind, found.need, found.reason) == ("tools", None, None)


def test_why_names_the_rejection(toy: Scout, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = msgspec.structs.replace(read(), floors=Floors((0.0, 0.2), (0.0, 0.0), (1.1, 1.1)))
    monkeypatch.setattr(decision, "read", lambda *_: numbers)
    with Scout(describe_home(toy.settings.place), refuse=True) as strict_scout:
        told = strict_scout.why("find a hotel room in the city", "travel/find_hotel")
    assert (told.shown, told.rank, told.ahead) == (False, 1, ())
    assert told.causes[0].startswith("the whole request is turned away: None of the 10 tools")
    assert any("find_hotel" in fix and "refuse" in fix for fix in told.fixes)
