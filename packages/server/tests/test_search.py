"""Search, batches and why over HTTP: the same answers as in Python, noted in the journal before they are given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from toolscout.errors import Unavailable
from toolscout.scout import Scout
from toolscout.testing import TOY_TOOLS
from toolscout.types import as_json
from toolscout_server import Limits


def search(client: Any, query: str, **more: Any) -> dict[str, Any]:
    answer = client.post("/v1/search", json={"query": query, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_search_gives_what_scout_gives_and_is_journaled(client: Any, toy: Scout) -> None:
    found = search(client, "will it rain in Oslo", k=2)
    [expected] = toy.search_many(["will it rain in Oslo"], 2)
    same = ("query", "answer", "reason", "hits", "need", "coverage")
    assert {key: found[key] for key in same} == {key: as_json(expected)[key] for key in same} | {
        "hits": [
            {**hit, "path": list(hit["path"]), "similar": list(hit["similar"])} for hit in as_json(expected)["hits"]
        ]
    }
    [event] = toy.journal.find(found["search_id"])
    assert event["shown"] == [hit["id"] for hit in found["hits"]] and event["caller"] == "local"


def test_a_trace_comes_when_it_is_asked_for(client: Any) -> None:
    assert "trace" not in search(client, "rain")
    steps = search(client, "rain", trace=True)["trace"]
    assert steps[0]["stage"] == "bm25" and all(step["ms"] >= 0 for step in steps)


@pytest.fixture
def slow_scout(tmp_path: Path) -> Iterator[Scout]:
    """A catalogue whose recipe asks a language model that does not finish its answer."""
    scripted = pytest.importorskip("toolscout_lab.testing").ScriptedServer
    options: dict[str, Any] = {"recipe": "feedback", "recipe_options": ("base=bm25",), "llm_timeout": 600}
    with scripted(drips=100_000) as server, Scout(tmp_path / "slow", llm=server.place, **options) as scout:
        scout.add([{"name": "get_forecast", "description": "Will it rain: the forecast of a city."}], name="weather")
        yield scout


@pytest.mark.net
def test_a_deadline_ends_a_search_that_waits_for_a_language_model(
    slow_scout: Scout, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolscout_server.batches.DEADLINE_GRACE_S", 30)
    found = search(start(scout=slow_scout), "will it rain", deadline=0.3)
    assert [hit["name"] for hit in found["hits"]] == ["get_forecast"]
    assert found["degraded"].startswith("feedback: "), "it says that the language model did not help"


def test_a_search_behind_a_slow_one_is_refused_after_its_deadline(
    client: Any, toy: Scout, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    run = toy.search_many

    def search_slowly(queries: Any, *arguments: Any, **options: Any) -> Any:
        if queries == ["slow"]:
            began.set()
            assert go_on.wait(60)
        return run(queries, *arguments, **options)

    monkeypatch.setattr(toy, "search_many", search_slowly)
    monkeypatch.setattr("toolscout_server.batches.DEADLINE_GRACE_S", 0.01)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(search, client, "slow")
        assert began.wait(60)
        refused = client.post("/v1/search", json={"query": "rain", "deadline": 0.05})
        go_on.set()
        assert first.result()["query"] == "slow"
    assert refused.status_code == 503 and "took until its deadline" in refused.text
    assert search(client, "rain", deadline=30)["hits"]
    assert client.post("/v1/search", json={"query": "rain", "deadline": 0}).status_code == 422


def test_a_query_that_no_tool_serves_gets_a_reason(client: Any) -> None:
    found = search(client, "xyzzy")
    assert found["answer"] == "no_tool_fits" and not found["hits"] and "None of the 10 tools" in found["reason"]


def test_a_batch_is_answered_in_order_with_an_id_each(client: Any, toy: Scout) -> None:
    queries = ["book a flight", "copy a file", "xyzzy", "book a flight"]
    results = client.post("/v1/search/batch", json={"queries": queries, "k": 1}).json()["results"]
    assert [each["query"] for each in results] == queries
    assert [[hit["id"] for hit in each["hits"]] for each in results] == [
        ["travel/book_flight"],
        ["files/copy"],
        [],
        ["travel/book_flight"],
    ]
    assert len({each["search_id"] for each in results}) == 4
    assert [event["query"] for event in toy.journal.read(event="search")] == queries


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"query": "x", "k": 0}, 422),
        ({"query": "x", "k": 101}, 422),
        ({"query": "x", "k": True}, 422),
        ({"query": 3}, 422),
        ({}, 422),
        ([], 422),
        ({"query": "x" * 20_001}, 422),
        ({"query": "x", "limit": 3}, 422),
        ({"query": "x", "recipe": "dpr"}, 422),
        ("{", 400),
        (b"\xff", 400),
        ('{"query": "\\ud800"}', 400),
        ('{"query": "x", "k": ' + "9" * 400 + "}", 422),
        ("[" * 100_000, 422),
        ('{"query": ' + "[" * 100_000, 422),
    ],
)
def test_what_is_no_search_is_refused_with_a_sentence(client: Any, body: Any, status: int) -> None:
    sent = {"content": body} if isinstance(body, (str, bytes)) else {"json": body}
    answer = client.post("/v1/search", headers={"content-type": "application/json"}, **sent)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"].startswith("expected ")


def test_searches_that_wait_go_together_and_each_gets_its_own_answer(start: Any, toy: Scout, monkeypatch: Any) -> None:
    client = start()
    search(client, "warm")
    sizes: list[int] = []
    real, entered, gate = toy.search_many, threading.Event(), threading.Event()

    def slow(queries: Any, *arguments: Any, **named: Any) -> Any:
        sizes.append(len(queries))
        entered.set()
        assert gate.wait(20)
        return real(queries, *arguments, **named)

    monkeypatch.setattr(toy, "search_many", slow)
    wanted = {f"{tool.partition('/')[2]} {text}": tool for tool, (text, *_) in TOY_TOOLS.items()}
    found: dict[str, str] = {}

    def one(query: str) -> None:
        found[query] = search(client, query, k=1)["hits"][0]["id"]

    threads = [threading.Thread(target=one, args=(query,)) for query in wanted]
    threads[0].start()
    assert entered.wait(20)
    for thread in threads[1:]:
        thread.start()
    service = client.service
    for _ in range(2_000):
        if len(service.batches) == len(wanted) - 1:
            break
        threading.Event().wait(0.005)
    gate.set()
    for thread in threads:
        thread.join(20)
    assert found == wanted and sizes == [1, len(wanted) - 1]


def test_one_failing_query_does_not_take_its_neighbours_down(start: Any, toy: Scout, monkeypatch: Any) -> None:
    client = start()
    real = toy.search_many

    def picky(queries: Any, *arguments: Any, **named: Any) -> Any:
        if "poison" in queries:
            raise RuntimeError("the words of a query stand here")
        return real(queries, *arguments, **named)

    monkeypatch.setattr(toy, "search_many", picky)
    codes: dict[str, int] = {}

    def one(query: str) -> None:
        codes[query] = client.post("/v1/search", json={"query": query}).status_code

    threads = [threading.Thread(target=one, args=(query,)) for query in ("rain", "poison", "copy", "hotel")]
    [thread.start() for thread in threads]
    [thread.join(20) for thread in threads]
    assert codes == {"rain": 200, "poison": 500, "copy": 200, "hotel": 200}


def test_a_fault_is_logged_without_a_word_of_the_request(
    start: Any, toy: Scout, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    words = " ".join(["secret", "words"])

    def broken(queries: list[str], *_: Any, **__: Any) -> Any:
        raise RuntimeError(*queries)

    client = start()
    monkeypatch.setattr(toy, "search_many", broken)
    answer = client.post("/v1/search", json={"query": words})
    assert answer.status_code == 500 and "secret" not in answer.text
    assert "RuntimeError" in caplog.text and words not in caplog.text


def test_what_does_not_answer_now_is_status_503(start: Any, toy: Scout, monkeypatch: Any) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        raise Unavailable("expected an answer of the encoder, found none")

    client = start()
    monkeypatch.setattr(toy, "search_many", gone)
    answer = client.post("/v1/search", json={"query": "rain"})
    assert answer.status_code == 503 and "encoder" in answer.json()["error"]


def test_why_says_where_a_tool_stands_and_tries_cures_only_when_asked(client: Any) -> None:
    asked = {"query": "teach me about the rain", "tool": "travel/find_hotel", "k": 1}
    plain = client.post("/v1/why", json=asked).json()
    assert (
        not plain["shown"] and plain["missing"] and plain["causes"] and plain["ahead"][0][0] == "weather/get_forecast"
    )
    assert not any("tried out" in fix for fix in plain["fixes"])
    tried = client.post("/v1/why", json={**asked, "cures": True}).json()
    assert any("tried out" in fix for fix in tried["fixes"])
    assert client.post("/v1/why", json={**asked, "tool": "travel/none"}).status_code == 404


def test_a_full_queue_sends_callers_away_until_there_is_room(start: Any, toy: Scout, monkeypatch: Any) -> None:
    """It is full of queries, however few requests brought them."""
    client = start(limits=Limits(waiting=10))
    search(client, "warm")
    entered, gate, real = threading.Event(), threading.Event(), toy.search_many

    def slow(*arguments: Any, **named: Any) -> Any:
        entered.set()
        assert gate.wait(20)
        return real(*arguments, **named)

    def batch(size: int) -> Any:
        return client.post("/v1/search/batch", json={"queries": ["rain"] * size})

    monkeypatch.setattr(toy, "search_many", slow)
    waiting = client.service.batches
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(batch, 3)
        assert entered.wait(20)
        second = pool.submit(batch, 8)
        for _ in range(2_000):
            if len(waiting) == 8:
                break
            threading.Event().wait(0.005)
        refused = batch(3)
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        gate.set()
        assert first.result(20).status_code == second.result(20).status_code == 200
    assert len(waiting) == 0 and batch(10).status_code == 200
