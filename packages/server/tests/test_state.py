"""Health, readiness, counters, models, results, and the document that describes it all."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

from toolscout.errors import ConfigError
from toolscout.scout import Scout

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def test_it_is_ready_once_the_index_is_open(client: Any) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    for _ in range(400):
        answer = client.get("/ready")
        if answer.status_code == 200:
            break
        assert answer.status_code == 503 and not answer.json()["ready"]
        time.sleep(0.01)
    assert answer.json() == {"ready": True, "reason": None}


def test_what_cannot_be_opened_is_not_ready_until_a_search_succeeds(start: Any, toy: Scout, monkeypatch: Any) -> None:
    def broken(**_: Any) -> None:
        raise ConfigError("expected a secret place, found none")

    monkeypatch.setattr(toy, "embed", broken)
    client = start()
    answer = client.get("/ready")
    assert answer.status_code == 503 and "secret" not in answer.text
    assert client.post("/v1/search", json={"query": "rain"}).status_code == 200
    assert client.get("/ready").status_code == 200


def test_what_could_not_be_opened_is_tried_again_when_somebody_asks(start: Any, toy: Scout, monkeypatch: Any) -> None:
    real, tries = toy.embed, []

    def broken(**_: Any) -> None:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise ConfigError("expected a disk, found none")
        real()

    monkeypatch.setattr(toy, "embed", broken)
    monkeypatch.setattr("toolscout_server.service.REOPEN_INTERVAL_S", 0.2)
    client = start()
    for _ in range(400):
        if client.get("/ready").status_code == 200:
            break
        time.sleep(0.01)
    assert client.get("/ready").json() == {"ready": True, "reason": None} and len(tries) == 3
    assert min(after - before for before, after in itertools.pairwise(tries)) >= 0.2


def test_a_fault_while_it_opens_is_survived_and_logged_without_its_words(
    start: Any, toy: Scout, monkeypatch: Any, caplog: Any
) -> None:
    words = "unhashable: words of a tool"

    def broken(*_: Any, **__: Any) -> None:
        raise TypeError(words)

    with monkeypatch.context() as patched:
        patched.setattr(toy, "pipeline", broken)
        client = start()
        while "not ready: TypeError at" not in caplog.text:
            time.sleep(0.01)
    assert client.get("/ready").status_code == 503 and words not in caplog.text
    assert client.post("/v1/search", json={"query": "rain"}).status_code == 200
    assert client.get("/ready").status_code == 200


def test_counters_say_what_was_answered_and_name_nobody(client: Any) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    client.post("/v1/search/batch", json={"queries": ["rain at night", "xyzzy"]})
    client.get("/v1/wp-login.php")
    client.post("/v1/search", json={})
    text = client.get("/metrics").text
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["toolscout_requests_total", "/v1/search/batch", "200", "POST"] == 1
    assert found["toolscout_requests_total", "/v1/search", "422", "POST"] == 1
    assert found["toolscout_requests_total", "404", "GET", "other"] == 1
    assert found["toolscout_searches_total", "tools"] == 1 and found["toolscout_searches_total", "no_tool_fits"] == 1
    assert found["toolscout_batch_queries_sum",] == 2 and found["toolscout_catalogue_tools",] == 10
    assert found["toolscout_request_seconds_count", "/v1/search/batch"] == 1
    assert "night" not in text and "wp-login" not in text and "local" not in text


def test_models_on_the_shelf_are_listed_and_damaged_ones_named(client: Any, toy: Scout) -> None:
    broken = toy.settings.home / "models" / "broken"
    broken.mkdir(parents=True)
    (broken / "manifest.json").write_text("{}")
    told = client.get("/v1/models").json()
    assert told["recipe"] == "bm25" and told["model"] is None
    [row] = told["models"]
    assert row["name"] == "broken" and row["problem"] and not row["serving"]


def test_results_of_benchmarks_are_read_from_the_folder_given(start: Any) -> None:
    told = start(results=RESULTS).get("/v1/results").json()
    assert told["results"] and not told["problems"]
    one = told["results"][0]
    low, high = one["ci95"]["ndcg@5"]
    assert low <= one["metrics"]["ndcg@5"] <= high
    assert start().get("/v1/results").json() == {"results": [], "problems": []}


def test_the_document_is_openapi_and_names_every_route(client: Any) -> None:
    from openapi_spec_validator import OpenAPIV31SpecValidator

    from toolscout_server.routes import ROUTES

    document = client.get("/openapi.json").json()
    OpenAPIV31SpecValidator(document).validate()
    named = {(method.upper(), path) for path, held in document["paths"].items() for method in held}
    assert named == {(route.method, route.path) for route in ROUTES}
    for held in document["paths"].values():
        for operation in held.values():
            assert operation["summary"].endswith(".") and "200" in operation["responses"]


def test_a_file_that_did_not_change_is_not_sent_again(client: Any) -> None:
    first = client.get("/")
    again = client.get("/", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content
