"""Calls, feedback and the journal over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.tests.conftest import as_caller
from toolscout.errors import OverBudget
from toolscout.home.journal import journal
from toolscout.scout import Scout

LINES = {"content-type": "application/x-ndjson"}


def searched(client: Any, query: str = "send a message") -> dict[str, Any]:
    found: dict[str, Any] = client.post("/v1/search", json={"query": query}).json()
    return found


def test_a_call_is_journaled_with_the_rank_at_which_it_was_shown(client: Any, toy: Scout) -> None:
    found = searched(client)
    second = found["hits"][1]["id"]
    body = {"tool": second, "ok": False, "ms": 12.5, "search_id": found["search_id"]}
    assert client.post("/v1/calls", json=body).json() == {"recorded": True}
    assert client.post("/v1/calls", json={"tool": "files/copy", "ok": True}).status_code == 200
    first, other = toy.journal.read(event="call")
    assert (first["tool"], first["ok"], first["ms"], first["rank"]) == (second, False, 12.5, 2)
    assert other["search_id"] is None and other["rank"] is None


def test_feedback_is_journaled(client: Any, toy: Scout) -> None:
    found = searched(client)
    body = {"search_id": found["search_id"], "good": ["mail/send_email"], "bad": ["mail/search"]}
    assert client.post("/v1/feedback", json=body).json() == {"recorded": True}
    [event] = toy.journal.read(event="feedback")
    assert (event["good"], event["bad"]) == (["mail/send_email"], ["mail/search"])


def test_one_search_can_have_so_many_events_and_no_more(client: Any, toy: Scout) -> None:
    search_id = searched(client)["search_id"]
    call = {"tool": "mail/search", "ok": True, "search_id": search_id}
    given = {"search_id": search_id, "good": ["mail/search"]}
    toy.journal.append_all([("feedback", "local", given)] * 197)
    assert client.post("/v1/feedback", json=given).status_code == 200
    assert client.post("/v1/calls", json=call).status_code == 200
    for path, body in (("/v1/calls", call), ("/v1/feedback", given)):
        answer = client.post(path, json=body)
        assert answer.status_code == 422 and "This search has 200 events" in answer.json()["error"]
    with pytest.raises(OverBudget, match="Search again"):
        toy.called("mail/search", ok=True, search_id=search_id)
    with pytest.raises(OverBudget, match="Search again"):
        toy.feedback(search_id, good=["mail/search"])
    assert len(toy.journal.find(search_id)) == 200
    assert client.post("/v1/calls", json={"tool": "mail/search", "ok": True}).status_code == 200


def test_what_followed_a_search_already_is_not_read_again(client: Any, toy: Scout, monkeypatch: Any) -> None:
    search_id = searched(client)["search_id"]
    given = {"search_id": search_id, "good": ["mail/search"]}
    toy.journal.append_all([("feedback", "local", given)] * 150)
    read: list[str] = []
    monkeypatch.setattr(journal, "build_line", lambda *row, line=journal.build_line: read.append(row[2]) or line(*row))
    assert client.post("/v1/feedback", json=given).status_code == 200
    assert client.post("/v1/calls", json={"tool": "mail/search", "ok": True, "search_id": search_id}).status_code == 200
    assert set(read) <= {"search"} and len(read) <= 4  # from a database not even that: it is in memory


def test_the_journal_is_read_by_pages_newest_first(client: Any) -> None:
    for number in range(7):
        searched(client, f"query {number}")
    seen: list[str] = []
    before: dict[str, Any] = {}
    while before is not None:
        page = client.get("/v1/journal", params={"limit": 3, **before}).json()
        seen += [event["query"] for event in page["events"]]
        before = {"before": page["next"]} if page["next"] is not None else None  # type: ignore[assignment]
    assert seen == [f"query {number}" for number in reversed(range(7))]


def test_filters_of_the_journal_leave_what_was_asked_for(client: Any, toy: Scout) -> None:
    old, new = "2026-01-01T00:00:00.000Z", "2026-02-01T00:00:00.000Z"
    toy.journal.append("search", caller="ann", at=old, search_id="s1", query="100% rain_", shown=[])
    toy.journal.append("search", caller="bob", at=new, search_id="s2", query="100 rainy days", shown=[])
    toy.journal.append("call", caller="bob", at=new, search_id="s2", tool="weather/get_forecast", ok=True)

    def found(**filters: str) -> list[str]:
        events = client.get("/v1/journal", params=filters).json()["events"]
        return [event["event"][0] + event["search_id"] for event in events]

    assert found() == ["cs2", "ss2", "ss1"]
    assert found(event="call") == ["cs2"] and found(caller="ann") == ["ss1"] and found(search_id="s2") == ["cs2", "ss2"]
    assert found(since="2026-01-15") == ["cs2", "ss2"] and found(until="2026-01-15") == ["ss1"]
    assert found(text="RAIN") == ["ss2", "ss1"] and found(text="100% rain_") == ["ss1"]
    assert found(text="get_fore") == ["cs2"] and found(text="nothing") == []
    assert found(event="search", caller="bob", text="rain") == ["ss2"]


def test_the_word_null_is_no_filter_unless_a_text_may_say_so(client: Any, toy: Scout) -> None:
    toy.journal.append("search", caller="null", search_id="null", query="is it null?", shown=[])
    for name in ("event", "before", "limit"):
        assert client.get("/v1/journal", params={name: "null"}).status_code == 422, name
    for name in ("caller", "search_id", "text"):
        assert len(client.get("/v1/journal", params={name: "null"}).json()["events"]) == 1, name


def test_an_export_taken_in_elsewhere_gives_the_same_journal(client: Any, toy: Scout) -> None:
    for number in range(1_203):  # more than one piece
        toy.journal.append("search", search_id=str(number), query=f"q{number}", shown=[])
    exported = client.get("/v1/journal/export")
    assert exported.headers["content-type"].startswith("application/x-ndjson")
    assert exported.content == b"".join(toy.journal.export())
    again = client.post("/v1/journal/import", content=exported.content, headers=LINES).json()
    assert again == {"new": 0, "problems": [], "bad_lines": 0}


def test_bad_lines_of_an_import_are_named_and_the_others_taken(client: Any, toy: Scout) -> None:
    good = json.dumps({"schema": 1, "at": "2026-01-01", "event": "call", "caller": "x", "tool": "a/b", "ok": True})
    content = f"{good}\nnonsense\n{{}}\n" + "[]\n" * 200
    answer = client.post("/v1/journal/import", content=content.encode(), headers=LINES).json()
    assert answer["new"] == 1 and answer["bad_lines"] == 202 and len(answer["problems"]) == 100
    assert answer["problems"][0]["entry"] == "line 2"
    assert [event["tool"] for event in toy.journal.read()] == ["a/b"]


def test_statistics_count(client: Any) -> None:
    found = searched(client)
    client.post("/v1/calls", json={"tool": "mail/search", "ok": True, "search_id": found["search_id"]})
    stats = client.get("/v1/journal/stats").json()
    assert stats["events"] == {"search": 1, "call": 1, "feedback": 0}
    assert stats["searches_followed_by_a_successful_call"] == 1


@pytest.fixture
def postmaster(start: Any, tmp_path: Any) -> Any:
    """A service whose operator sees mail alone."""
    from toolscout.trust.policy import Policies, hashed_key

    path = tmp_path / "p.toml"
    path.write_text(
        f'[[caller]]\nname = "ann"\nkey = "{hashed_key("tsk_of_ann")}"\nallow = ["mail/**"]\noperator = true\n'
    )
    return start(policies=Policies.load(path))


def test_a_filter_finds_no_ids_that_rules_hide(postmaster: Any, client: Any, toy: Scout) -> None:
    toy.journal.append("search", search_id="s", query="copy that", shown=["files/copy"])
    toy.journal.append("call", search_id="s", tool="files/copy", ok=True)

    def found(client: Any, text: str, **how: Any) -> list[str]:
        events = client.get("/v1/journal", params={"text": text}, **how).json()["events"]
        return [event["event"] for event in events]

    for text in ("files/c", "copy"):
        assert found(client, text) == ["call", "search"][: 1 + (text == "copy")]
        assert found(postmaster, text, headers=as_caller("ann")) == ["search"][: text == "copy"]


def test_an_operator_with_rules_reads_no_ids_that_they_hide(postmaster: Any, toy: Scout) -> None:
    toy.journal.append("search", search_id="s", query="q", shown=["files/copy", "mail/search"])
    toy.journal.append("call", search_id="s", tool="files/copy", ok=True)
    toy.journal.append("feedback", search_id="s", good=["files/copy"], bad=["mail/search"])
    read = postmaster.get("/v1/journal", headers=as_caller("ann")).text
    export = postmaster.get("/v1/journal/export", headers=as_caller("ann")).text
    for told in (read, export):
        assert "files/copy" not in told and told.count("mail/search") == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/calls", {"tool": "mail/search"}),
        ("/v1/calls", {"tool": "mail/search", "ok": "yes"}),
        ("/v1/calls", {"tool": "mail/search", "ok": True, "ms": -1}),
        ("/v1/calls", {"tool": "", "ok": True}),
        ("/v1/feedback", {"good": []}),
        ("/v1/feedback", {"search_id": "x", "good": ["a"] * 101}),
    ],
)
def test_what_is_no_report_is_refused_and_not_written(client: Any, toy: Scout, path: str, body: dict[str, Any]) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 422 and answer.json()["error"].startswith("expected ")
    assert not list(toy.journal.read())
