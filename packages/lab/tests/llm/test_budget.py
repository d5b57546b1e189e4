from __future__ import annotations

import base64
import json
import random
import string
import threading
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolscout.errors import ConfigError, OverBudget
from toolscout.settings import Settings
from toolscout.sources import read
from toolscout.sources.folder import read_tools
from toolscout_lab.llm import Budget, Prices, card, estimate, quote
from toolscout_lab.llm.budget import Pace, bound

bpe_openai = pytest.importorskip("bpe_openai")


@pytest.fixture(scope="module", params=["o200k_base", "cl100k_base"])
def tokens(request: pytest.FixtureRequest) -> object:
    encoding = bpe_openai.get_encoding(request.param)
    return lambda text: len(encoding.encode(text))


def near(text: str, tokens: object) -> bool:
    return abs(estimate(text) / tokens(text) - 1) <= 0.2  # type: ignore[operator]


def test_estimates_of_our_prompts_are_within_a_fifth_of_two_vocabularies(tokens: object) -> None:
    folder = resources.files("toolscout_lab.llm") / "prompts"
    for file in (file for place in (folder, folder / "paper") for file in place.iterdir() if file.is_file()):
        assert near(file.read_text(encoding="utf-8"), tokens), file.name


@pytest.mark.parametrize("module", ["json", "statistics", "shutil", "zipfile"])
def test_estimates_of_real_tools_are_within_a_fifth(module: str, tokens: object) -> None:
    [reading] = read(f"py:{module}", name=None, kind=None, settings=Settings())
    assert near(quote("tools", [card(tool) for tool in reading.tools]), tokens)


@pytest.mark.parametrize("name", ["toollens", "metatool", "numpybank", "bfcl", "livemcpbench", "ultratool"])
def test_estimates_of_benchmark_tools_and_queries_are_within_a_fifth(data: Path, name: str, tokens: object) -> None:
    tools = read_tools(data / name, "d").tools[:100]
    assert near(quote("tools", [card(tool) for tool in tools]), tokens)
    texts = [json.loads(line)["text"] for line in (data / name / "queries.jsonl").read_text().splitlines()[:50]]
    assert near("\n".join(text for text in texts if len(text) < 2_000), tokens)  # one of them holds an image


LANGUAGES = {
    "Chinese": "我想查一下明天北京的天气怎么样，适不适合去公园野餐，另外帮我预订一家离会议中心不远的酒店。",
    "Japanese": "明日の東京の天気を調べて、公園でピクニックができるかどうか教えてください。",
    "Korean": "내일 서울 날씨가 어떤지 알려 주시고, 비가 오지 않으면 한강 근처에서 소풍하기 좋은 장소를 추천해 주세요.",
    "Russian": "Подскажите, пожалуйста, какая погода будет завтра в Москве и стоит ли ехать на пикник за город.",
    "Polish": "Sprawdź proszę, jaka pogoda będzie jutro w Krakowie i czy warto jechać na piknik za miasto.",
    "German": "Bitte prüfen Sie, wie das Wetter morgen in München wird, und buchen Sie ein Hotel, das günstig ist.",
    "Spanish": "Averigua qué tiempo hará mañana en Málaga y reserva una habitación cerca del palacio de congresos.",
    "Arabic": "أخبرني من فضلك كيف سيكون الطقس غدا في القاهرة، واحجز لي فندقا قريبا من مركز المؤتمرات.",
    "Hindi": "कृपया बताइए कि कल दिल्ली में मौसम कैसा रहेगा और सम्मेलन केंद्र के पास एक सस्ता होटल बुक कर दीजिए।",
    "Greek": "Πες μου σε παρακαλώ τι καιρό θα κάνει αύριο στην Αθήνα και κλείσε μου ένα φτηνό ξενοδοχείο.",
    "pictures": "Great trip 🎉🎉 to the beach 🏖️ with pizza 🍕, see you 👋🏽 ❤️ 🇩🇪 🚀✨🔥",
}
CHANCE = random.Random(1)
KEYS = {
    "base64": base64.b64encode(CHANCE.randbytes(3000)).decode(),
    "hexadecimal": CHANCE.randbytes(2000).hex(),
    "letters": "".join(CHANCE.choices(string.ascii_lowercase, k=3000)),
    "letters and digits": "".join(CHANCE.choices(string.ascii_letters + string.digits, k=3000)),
    "marks": "".join(CHANCE.choices(string.punctuation, k=2000)),
    "rare signs": "".join(chr(CHANCE.randrange(0x20000, 0x2A6D0)) for _ in range(300)),
}


@pytest.mark.parametrize("name", [*LANGUAGES, *KEYS])
def test_estimates_of_other_languages_and_of_keys_are_within_a_third(name: str) -> None:
    text = {**LANGUAGES, **KEYS}[name]
    assert 0.75 <= estimate(text) / len(bpe_openai.get_encoding("o200k_base").encode(text)) <= 1.33


def test_letters_after_a_mark_are_no_marks() -> None:
    assert estimate("(погода)" * 10) >= 10 * estimate("погода")


@pytest.mark.parametrize("name", [*LANGUAGES, *KEYS])
def test_what_is_booked_for_a_text_is_never_below_the_truth(name: str, tokens: Any) -> None:
    text = {**LANGUAGES, **KEYS}[name]
    assert bound(text) >= tokens(text)
    assert bound(quote("tools", [text, "Reads a file", text])) >= tokens(quote("tools", [text, "Reads a file", text]))


def test_nothing_is_no_token() -> None:
    assert estimate("") == 0 and estimate("a") == 1


def test_a_call_that_could_overrun_the_budget_is_not_made() -> None:
    budget = Budget(tokens=1000)
    booked = budget.book(400, 300)
    with pytest.raises(OverBudget, match="budget of 1,000 tokens"):
        budget.book(400, 300)
    budget.settle(booked, (390, 20))
    assert (budget.spent.calls, budget.spent.tokens) == (1, 410)
    budget.settle(budget.book(200, 100), None)
    assert budget.spent.calls == 1


def test_a_budget_in_money_needs_prices_and_stops_too() -> None:
    with pytest.raises(ConfigError, match="Set llm_price_in and llm_price_out"):
        Budget(dollars=1.0)
    budget = Budget(dollars=0.009, prices=Prices(10.0, 40.0))
    budget.settle(budget.book(100, 100), (100, 100))
    assert budget.spent.dollars == pytest.approx(0.005)
    with pytest.raises(OverBudget, match="dollars"):
        budget.book(100, 100)


@pytest.mark.parametrize("limit", [{"tokens": 1_000}, {"dollars": 1_000.0}])
def test_a_budget_holds_whoever_asks_at_once(limit: dict[str, Any]) -> None:
    budget, made = Budget(**limit, prices=Prices(1e6, 1e6)), []
    everybody = threading.Barrier(8)

    def spend() -> None:
        for _ in range(4):
            try:
                booked = budget.book(50, 50)
            except OverBudget:
                booked = None
            everybody.wait(5)  # all have asked, nobody was answered
            if booked is not None:
                budget.settle(booked, (50, 50))
                made.append(1)
            everybody.wait(5)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == budget.spent.calls == 10 and budget.spent.tokens == 1_000


def test_calls_keep_their_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves only while somebody sleeps."""
    clock = [100.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr("toolscout_lab.llm.budget.time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    pace = Pace(6000)
    for _ in range(11):
        assert pace.wait()
    assert clock[0] == pytest.approx(100.1)
    slow = Pace(1)
    assert slow.wait(0.0) and not slow.wait(1.0)
    assert clock[0] == pytest.approx(100.1), "who is not willing to wait has not waited"
    assert slow.wait(60.0) and clock[0] == pytest.approx(160.1)
