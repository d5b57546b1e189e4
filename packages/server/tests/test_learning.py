"""The learning loop over HTTP: what was found, promotion and rollback by operators alone, and the findability lint."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import traffic
from server.tests.conftest import POLICY, as_caller
from toolscout.errors import ConfigError, NotFound, StoreError
from toolscout.home.models import champion, model_store
from toolscout.scout import Scout
from toolscout.testing import toy_tools
from toolscout.trust.policy import Policies


def test_what_the_last_run_found_and_who_was_promoted_is_told(taught: Scout, start: Any) -> None:
    told = start(scout=taught).get("/v1/learning").json()
    [entry] = told["history"]
    assert told["last"]["outcome"] == "promoted" and told["last"]["candidate"] == entry["model"]
    assert told["last"]["verdict"]["tests"]["ndcg@5"]["ci95"][0] > 0
    assert not told["overruled"]


def test_before_any_run_there_is_nothing_to_tell(client: Any) -> None:
    assert client.get("/v1/learning").json() == {"history": [], "overruled": True, "last": None}  # a recipe is set


def test_a_promotion_is_taken_back_and_made_again_and_the_next_search_follows(taught: Scout, start: Any) -> None:
    client, query = start(scout=taught), {"query": traffic.requests(1, 9)[0][0], "k": 3}
    [name] = [each.model for each in champion.history(taught.settings.place)]

    def answer() -> list[tuple[str, float]]:
        return [(hit["id"], hit["score"]) for hit in client.post("/v1/search", json=query).json()["hits"]]

    learned = answer()
    done = client.post("/v1/rollback", json={"champion": name})
    assert done.status_code == 200 and done.json() == {"champion": None, "recipe": "scout", "notice": None}
    assert answer() != learned and client.get("/v1/models").json()["recipe"] == "scout"
    assert client.post("/v1/promote", json={"model": name}).json()["recipe"] == "neighbours"
    assert answer() == learned
    assert champion.history(taught.settings.place)[-1].why == "by hand, by local"


def test_a_rollback_of_another_champion_than_the_present_one_is_refused(taught: Scout, start: Any) -> None:
    before = champion.history(taught.settings.place)
    answer = start(scout=taught).post("/v1/rollback", json={"champion": "an-older-one"})
    assert answer.status_code == 409 and before[-1].model in answer.json()["error"]
    assert champion.history(taught.settings.place) == before


@pytest.mark.parametrize("name", ["nobody", "../home/models/x", "."])
def test_what_is_not_on_the_shelf_is_not_promoted(client: Any, toy: Scout, name: str) -> None:
    assert client.post("/v1/promote", json={"model": name}).status_code == 404
    assert client.post("/v1/rollback", json={"champion": name}).status_code == 404
    assert champion.history(toy.settings.place) == []


def test_a_damaged_model_is_not_promoted(taught: Scout, start: Any) -> None:
    [entry] = champion.history(taught.settings.place)
    for file in champion.find_model(taught.settings.place, entry.model).glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    answer = start(scout=taught).post("/v1/promote", json={"model": entry.model})
    assert answer.status_code == 503 and "was changed" in answer.json()["error"]
    assert champion.history(taught.settings.place) == [entry]


@pytest.mark.folder_only("in a database a missing copy is fetched again")
def test_a_champion_that_is_gone_is_named_and_can_be_taken_back(taught: Scout, start: Any) -> None:
    [entry] = champion.history(taught.settings.place)
    shutil.rmtree(champion.find_model(taught.settings.place, entry.model))
    client = start(scout=taught)
    assert client.get("/v1/me").json()["recipe"] == "scout"
    told = client.get("/v1/models").json()
    assert (told["recipe"], told["model"]) == ("scout", None) and "instead of the promoted model" in told["notice"]
    done = client.post("/v1/rollback", json={"champion": entry.model})
    assert done.json() == {"champion": None, "recipe": "scout", "notice": None}
    assert client.get("/v1/models").json()["notice"] is None


@pytest.mark.folder_only("in a database a damaged copy is fetched again")
@pytest.mark.parametrize("harm", ["model", "pointer"])
def test_a_champion_that_cannot_serve_is_explained_to_operators_alone(
    taught: Scout, start: Any, tmp_path: Path, harm: str
) -> None:
    home = taught.settings.place
    [entry] = champion.history(home)
    file = (
        champion.find_model(home, entry.model) / model_store.ARRAYS
        if harm == "model"
        else home / "models" / "champion.json"
    )
    file.write_bytes(b"{")
    (tmp_path / "policy.toml").write_text(POLICY.replace("mail/", "office/"))
    client = start(scout=taught, policies=Policies.load(tmp_path / "policy.toml"))
    found = client.post("/v1/search", json={"query": "rain"}, headers=as_caller("bob"))
    assert found.status_code == 200 and found.json()["reason"].startswith("searched with scout: the promoted model")
    me = client.get("/v1/me", headers=as_caller("bob"))
    assert me.json()["recipe"] == "scout" and str(tmp_path) not in me.text + found.text
    assert str(file) in client.get("/v1/models", headers=as_caller("ann")).json()["notice"]


def test_files_that_cannot_be_read_are_named_to_operators_alone(
    guarded: Any, toy: Scout, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    where = "/var/lib/toolscout"
    for error in (StoreError, ConfigError, NotFound):

        def broken(*_: Any, error: type[Exception] = error, **__: Any) -> Any:
            raise error(f"{where}: expected a model, found none")

        monkeypatch.setattr(toy, "search_many", broken)
        monkeypatch.setattr(toy, "why", broken)
        for path, body in (("/v1/search", {}), ("/v1/why", {"tool": "mail/search"})):
            caplog.clear()
            told = client_told(guarded, path, {"query": "rain", **body}, "bob")
            assert told == (503, "The service cannot read its files. Tell its operator.")
            assert where in caplog.text
            assert where in client_told(guarded, path, {"query": "rain", **body}, "ann")[1]


def client_told(client: Any, path: str, body: Any, caller: str) -> tuple[int, str]:
    answer = client.post(path, json=body, headers=as_caller(caller))
    return answer.status_code, answer.json()["error"]


def test_a_promotion_does_not_wait_for_a_lint(taught: Scout, start: Any, monkeypatch: Any) -> None:
    begun, gate = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        begun.set()
        assert gate.wait(20)
        raise NotFound("expected something, found nothing")

    monkeypatch.setattr("toolscout_server.quality.lint", slow)
    client = start(scout=taught)
    [name] = [each.model for each in champion.history(taught.settings.place)]
    with ThreadPoolExecutor(1) as pool:
        lint = pool.submit(client.get, "/v1/lint")
        assert begun.wait(20)
        assert client.get("/v1/models").json()["recipe"] == "neighbours"
        assert client.post("/v1/rollback", json={"champion": name}).status_code == 200
        assert client.post("/v1/promote", json={"model": name}).status_code == 200
        assert not lint.done()
        gate.set()
        assert lint.result(20).status_code == 404


def test_learning_is_for_operators(guarded: Any) -> None:
    for method, path, body in (
        ("GET", "/v1/learning", None),
        ("GET", "/v1/lint", None),
        ("POST", "/v1/promote", {"model": "x"}),
        ("POST", "/v1/rollback", {"champion": "x"}),
    ):
        assert guarded.request(method, path, json=body, headers=as_caller("bob")).status_code == 403
        assert guarded.request(method, path, json=body).status_code == 401
        assert guarded.request(method, path, json=body, headers=as_caller("ann")).status_code in (200, 404)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Scout]:
    with Scout(tmp_path / "shop", recipe="bm25") as scout:
        twins = [{"name": f"list_{n}", "description": "Lists all open invoices of a customer."} for n in range(8)]
        scout.add([*twins, {"name": "rain", "description": "Will it rain tomorrow in a city?"}], name="shop")
        yield scout


def test_lint_names_what_is_hard_to_find_and_a_request_that_missed_it(shop: Scout, start: Any) -> None:
    found = start(scout=shop).get("/v1/lint", params={"most": 100}).json()
    assert found["asked"] == 9 and "shop/rain" not in [each["tool"] for each in found["hidden"]]
    worst = found["hidden"][0]
    assert worst["tool"].startswith("shop/list_") and worst["missed"] and worst["causes"] and worst["fixes"]
    assert found["confused"][0]["twins"]


def test_lint_tells_an_operator_of_visible_tools_alone(start: Any, toy: Scout, tmp_path: Path) -> None:
    from toolscout.trust.policy import Policies, hashed_key

    path = tmp_path / "policy.toml"
    path.write_text(f'[[caller]]\nname = "o"\nkey = "{hashed_key("tsk_o")}"\nallow = ["mail/**"]\noperator = true\n')
    answer = start(policies=Policies.load(path)).get("/v1/lint", headers={"x-api-key": "tsk_o"})
    assert answer.status_code == 200 and answer.json()["asked"] == sum(
        tool.id.startswith("mail/") for tool in toy_tools()
    )
    assert "weather/" not in answer.text and "travel/" not in answer.text


def test_a_change_of_the_traffic_is_told_to_operators_and_counted_in_the_metrics(taught: Scout, start: Any) -> None:
    client = start(scout=taught)
    assert client.get("/v1/drift").json()["state"] == "quiet"
    texts = [f"translate contract number {number} into french" for number in range(60)]
    traffic.replay(taught, [(text, "office/mail/send") for text in texts], ["c1", "c2"])
    told = client.get("/v1/drift").json()
    assert told["state"] == "raised" and "learn" in told["advice"] and told["topics"][0]["examples"]
    assert 'toolscout_drift_alarms{what="requests"} 1.0' in client.get("/metrics").text
