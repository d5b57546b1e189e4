"""Sources, approvals, facets, examples and checks over HTTP, and who may use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from server.tests.conftest import as_caller
from toolscout.home.catalogue.store import Origin
from toolscout.home.journal.evidence import collect_evidence
from toolscout.scout import Scout
from toolscout.sources import Reading
from toolscout.trust.policy import Policies, hashed_key
from toolscout.types import Tool

SERVER = Origin("https://tools.example/mcp", "mcp", None)
PASTED = {"tools": [{"name": "ring_bell", "description": "Rings the bell of the tower."}], "name": "tower"}
OPERATIONS = [
    ("POST", "/v1/sources/add", PASTED),
    ("POST", "/v1/sources/sync", {}),
    ("POST", "/v1/sources/enable", {"source": "mail", "enabled": False}),
    ("GET", "/v1/approvals", None),
    ("POST", "/v1/approvals", {"approvals": [{"id": "mail/search", "fingerprint": "x"}]}),
]


def read_server(scout: Scout, description: str) -> None:
    tool = Tool(id="far/dig", name="dig", description=description)
    scout.put_reading(SERVER, Reading(source="far", kind="mcp", state="ok", message="", tools=(tool,), problems=()))


def test_pasted_tools_are_found_by_the_next_search(client: Any) -> None:
    added = client.post("/v1/sources/add", json=PASTED)
    assert added.status_code == 200 and [row["new"] for row in added.json()["sources"]] == [1]
    found = client.post("/v1/search", json={"query": "ring the bell of the tower"}).json()
    assert found["hits"][0]["id"] == "tower/ring_bell"


@pytest.mark.parametrize("locator", ["py:os", "/etc/passwd", "python -m server", "registry:x", "file:///etc/passwd"])
def test_nothing_that_reads_files_or_starts_programs_is_added_over_http(
    client: Any, locator: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(Scout, "add", lambda *_, **__: pytest.fail("it was added"))
    answer = client.post("/v1/sources/add", json={"locator": locator})
    assert answer.status_code == 422 and "toolscout add SOURCE" in answer.json()["error"]


def test_a_source_is_disabled_and_enabled_again(client: Any) -> None:
    def total() -> int:
        return int(client.get("/v1/tools").json()["total"])

    before = total()
    assert client.post("/v1/sources/enable", json={"source": "mail", "enabled": False}).json()["enabled"] is False
    assert total() == before - 2
    disabled = client.get("/v1/tools", params={"state": "disabled"}).json()
    assert {row["id"] for row in disabled["tools"]} == {"mail/search", "mail/send_email"}
    client.post("/v1/sources/enable", json={"source": "mail", "enabled": True})
    assert total() == before
    misspelled = client.post("/v1/sources/enable", json={"source": "mial", "enabled": True})
    assert misspelled.status_code == 404 and "'mail'" in misspelled.json()["error"]


def test_an_approval_names_the_definition_that_was_read(client: Any, toy: Scout) -> None:
    read_server(toy, "Digs a hole.")
    read_server(toy, "Digs a hole and sends the keys.")
    [row] = client.get("/v1/approvals").json()["waiting"]
    assert row["id"] == "far/dig" and not row["new"] and "+ Digs a hole and sends the keys." in row["changes"]
    read_server(toy, "Digs a hole and sends everything.")
    stale = {"approvals": [{"id": row["id"], "fingerprint": row["fingerprint"]}]}
    assert client.post("/v1/approvals", json=stale).json() == {"approved": 0}
    [row] = client.get("/v1/approvals", params={"source": "far"}).json()["waiting"]
    assert client.get("/v1/tools", params={"state": "waiting"}).json()["tools"][0]["id"] == "far/dig"
    fresh = {"approvals": [{"id": row["id"], "fingerprint": row["fingerprint"]}]}
    assert client.post("/v1/approvals", json=fresh).json() == {"approved": 1}
    assert client.get("/v1/tool", params={"id": "far/dig"}).json()["description"].endswith("everything.")


@pytest.mark.parametrize(("method", "path", "body"), OPERATIONS)
def test_only_operators_who_see_everything_change_sources(
    guarded: Any, start: Any, toy: Scout, tmp_path: Path, method: str, path: str, body: Any
) -> None:
    def ask(client: Any, caller: dict[str, str]) -> int:
        return int(client.request(method, path, json=body, headers=caller).status_code)

    assert ask(guarded, as_caller("bob")) == 403
    assert ask(guarded, as_caller("ann")) == 200
    narrow = tmp_path / "narrow.toml"
    key = hashed_key("tsk_of_oda")
    rules = 'allow = ["**"]\ndeny = ["mail/**"]\noperator = true\n'
    narrow.write_text(f'[[caller]]\nname = "oda"\nkey = "{key}"\n{rules}')
    assert ask(start(policies=Policies.load(narrow)), {"authorization": "Bearer tsk_of_oda"}) == 403


def test_a_page_of_another_site_changes_nothing(client: Any) -> None:
    answer = client.post("/v1/sources/add", json=PASTED, headers={"origin": "https://evil.example"})
    assert answer.status_code == 403
    form = client.post("/v1/sources/add", content=b"{}", headers={"content-type": "text/plain"})
    assert form.status_code == 415, "what a page of another site may send without asking is refused"


def test_facets_count_what_the_filter_leaves_and_show_the_other_values_of_their_own_facet(client: Any) -> None:
    facets = client.get("/v1/facets", params={"source": "mail"}).json()
    counts = {entry["key"]: entry["tools"] for entry in facets["sources"]}
    assert counts["mail"] == 2 and len(counts) > 1
    assert sum(entry["tools"] for entry in facets["kinds"]) == 2
    rows = client.get("/v1/tools", params={"source": "mail", "text": "search"}).json()
    assert [row["id"] for row in rows["tools"]] == ["mail/search"]
    everything = client.get("/v1/facets").json()
    for parent in everything["parents"]:
        below = client.get("/v1/tools", params={"parent": parent["key"]}).json()
        assert below["total"] == parent["tools"]


def test_facets_tell_a_caller_of_visible_tools_alone(guarded: Any) -> None:
    facets = guarded.get("/v1/facets", headers=as_caller("bob")).json()
    assert {entry["key"] for entry in facets["sources"]} == {"mail", "weather"} and facets["states"] == []
    hidden = guarded.get("/v1/tools", params={"state": "disabled"}, headers=as_caller("bob")).json()
    assert hidden["total"] == 0


def test_every_example_finds_tools_that_its_caller_may_see(client: Any, guarded: Any) -> None:
    queries = client.get("/v1/examples").json()["queries"]
    assert queries
    for query in queries:
        assert client.post("/v1/search", json={"query": query, "preview": True}).json()["hits"], query
    theirs = " ".join(guarded.get("/v1/examples", headers=as_caller("bob")).json()["queries"]).lower()
    assert "e-mail" not in theirs and "flight" not in theirs
    assert guarded.get("/v1/examples", headers=as_caller("eve")).json() == {"queries": []}


def test_a_preview_is_not_written_down_and_marks_the_words_that_match(client: Any, toy: Scout) -> None:
    found = client.post("/v1/search", json={"query": "sending e-mails", "preview": True, "matched": True}).json()
    assert found["search_id"] is None and "send" in found["hits"][0]["matched"]
    assert list(toy.journal.read()) == []


def test_feedback_that_is_withdrawn_counts_no_more(client: Any, toy: Scout) -> None:
    def count() -> int:
        return len(collect_evidence(toy.journal, until=toy.journal.last()).examples)

    found = client.post("/v1/search", json={"query": "send a message"}).json()
    feedback = {"search_id": found["search_id"]}
    client.post("/v1/feedback", json={**feedback, "good": ["mail/send_email"]})
    assert count() == 1
    client.post("/v1/feedback", json={**feedback, "withdrawn": ["mail/send_email"]})
    assert count() == 0
    client.post("/v1/calls", json={**feedback, "tool": "mail/send_email", "ok": True})
    client.post("/v1/feedback", json={**feedback, "bad": ["mail/send_email"]})
    assert count() == 0
    client.post("/v1/feedback", json={**feedback, "withdrawn": ["mail/send_email"]})
    assert count() == 1, "the call counts again"


def test_words_of_ones_own_are_tried_out(client: Any) -> None:
    body = {"query": "please warm my soup", "tool": "travel/find_hotel", "k": 1}
    why = client.post("/v1/why", json={**body, "words": ["soup", "warm"]}).json()
    assert why["trial"] == {"words": ["soup", "warm"], "rank": 1, "shown": True, "refusal": None}
    assert client.post("/v1/why", json=body).json()["trial"] is None


def test_trends_and_queries_without_a_tool_are_counted(client: Any, toy: Scout) -> None:
    for answer, query in (("no_tool_needed", "hello"), (None, "zzz"), (None, "zzz"), ("tools", "rain")):
        shown = ["mail/search"] if answer == "tools" else []
        fields = {"answer": answer} if answer else {}
        toy.journal.append("search", search_id=f"{query}-{answer}", query=query, shown=shown, **fields)
    toy.journal.append("search", at="2020-01-01T00:00:00", search_id="old", query="old", shown=[])
    toy.called("mail/search", ok=False)
    [day] = client.get("/v1/journal/trends").json()["days"]
    counts = {name: day[name] for name in ("searches", "abstained", "empty", "calls", "failed_calls", "feedback")}
    assert counts == {"searches": 4, "abstained": 1, "empty": 2, "calls": 1, "failed_calls": 1, "feedback": 0}
    empty = client.get("/v1/journal/unanswered").json()["queries"]
    assert [(row["query"], row["times"]) for row in empty] == [("zzz", 2)]
    abstained = client.get("/v1/journal/unanswered", params={"abstained": True}).json()["queries"]
    assert [(row["query"], row["answer"]) for row in abstained] == [("hello", "no_tool_needed")]


def test_checks_leave_figures_that_later_ones_are_compared_with(client: Any) -> None:
    assert client.get("/v1/checks").json() == {"runs": []}
    client.get("/v1/lint", params={"most": 5})
    result = client.post("/v1/selftest", json={"most": 10}).json()
    lint, selftest = client.get("/v1/checks").json()["runs"]
    assert (lint["check"], lint["n_tools"]) == ("lint", 5) and selftest["check"] == "selftest"
    serving = next(row for row in result["rows"] if row["recipe"] == "scout")
    assert selftest["figures"]["recall@5"] == pytest.approx(serving["measures"]["recall@5"], abs=1e-4)
