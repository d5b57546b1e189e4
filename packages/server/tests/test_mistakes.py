"""Typical mistakes over HTTP: each is answered by a sentence that names the mend, and never by a fault."""

from __future__ import annotations

from typing import Any

import pytest

from server.tests.conftest import KEYS, as_caller

MAX_ERROR_CHARS = 240

#: Method, address, body → status, what the answer names.
MISTAKES = {
    ("POST", "/v1/search", '{"query": "mail",\n "k": }'): (400, "line 2, column 7: invalid character"),
    ("POST", "/v1/search", '{"query": "mail"'): (400, "it ends too early"),
    ("POST", "/v1/search", ""): (400, "expected JSON"),
    ("POST", "/v1/search", "{}"): (422, "required field `query`"),
    ("POST", "/v1/search", "[]"): (422, "Expected `object`, got `array`"),
    ("POST", "/v1/search", '{"qeury": "mail"}'): (422, "Did you mean 'query'?"),
    ("POST", "/v1/search", '{"query": "mail", "nonesuch": 1}'): (422, "It takes k, recipe"),
    ("POST", "/v1/search", '{"query": 3}'): (422, "Expected `str`, got `int` - at `$.query`"),
    ("POST", "/v1/search", '{"query": "mail", "k": 0}'): (422, "Expected `int` >= 1 - at `$.k`"),
    ("POST", "/v1/search", '{"query": "mail", "k": "five"}'): (422, "at `$.k`. It is a number or one of auto"),
    ("POST", "/v1/search", '{"query": "mail", "recipe": "bm52"}'): (422, "Did you mean 'bm25'?"),
    ("POST", "/v1/search?k=3", '{"query": "mail"}'): (422, "expected all parameters in the body"),
    ("POST", "/v1/search/batch", '{"queries": "mail"}'): (422, "got `str` - at `$.queries`"),
    ("POST", "/v1/why", '{"query": "mail"}'): (422, "required field `tool`"),
    ("POST", "/v1/why", '{"query": "mail", "tool": "send_emial"}'): (404, "Did you mean 'mail/send_email'?"),
    ("POST", "/v1/why", '{"query": "mail", "tool": "nonesuch"}'): (404, "Take one from a search"),
    ("POST", "/v1/feedback", '{"search_id": "none", "good": []}'): (404, "Take it from an answer"),
    ("POST", "/v1/feedback", '{"good": []}'): (422, "required field `search_id`"),
    ("POST", "/v1/calls", '{"tool": "mail/send_email"}'): (422, "required field"),
    ("POST", "/v1/promote", '{"model": "nonesuch"}'): (404, "toolscout learn"),
    ("POST", "/v1/rollback", "{}"): (422, "required field `champion`"),
    ("GET", "/v1/serach", None): (404, "Did you mean '/v1/search'?"),
    ("GET", "/search", None): (404, "Did you mean '/v1/search'?"),
    ("GET", "/mcp", None): (404, "`toolscout gateway --http` serves MCP. /openapi.json lists all of them"),
    ("POST", "/mcp", "{}"): (404, "`toolscout gateway --http` serves MCP"),
    ("GET", "/xyzzy", None): (404, "/openapi.json lists all of them"),
    ("GET", "/v1/search", None): (405, "expected POST, found GET"),
    ("DELETE", "/v1/tool?id=x", None): (405, "expected GET, HEAD"),
    ("GET", "/v1/tool?id=mail/send_emial", None): (404, "Did you mean 'mail/send_email'?"),
    ("GET", "/v1/tool?name=x", None): (422, "It takes id"),
    ("GET", "/v1/tool?id=a&id=b", None): (422, "expected each parameter once"),
    ("GET", "/v1/tool", None): (422, "required field `id`"),
    ("GET", "/v1/journal?limit=many", None): (422, "Expected `int`, got `str` - at `$.limit`"),
    ("GET", "/v1/journal?event=serach", None): (422, "Did you mean 'search'?"),
    ("POST", "/v1/search", '{"query": "mail", "k": "many"}'): (422, "It is a number or one of auto"),
    ("POST", "/v1/search", '{"query": "mail", "k": 1000}'): (422, "Expected `int` <= 100 - at `$.k`"),
    ("POST", "/v1/search", '{"query": "mail", "kind": "tols"}'): (422, "Did you mean 'tool'?"),
    ("POST", "/v1/search", '{"query": "mail", "deadline": -1}'): (422, "Expected `float` > 0.0"),
    ("POST", "/v1/search", '{"query": "mail", "recipe": "dpr"}'): (422, "It is one of bm25, dense"),
    ("POST", "/v1/search", '"mail"'): (422, "Expected `object`, got `str`"),
    ("POST", "/v1/search", "query=mail"): (400, "line 1, column 1"),
    ("POST", "/v1/search", '{"query": NaN}'): (400, "line 1, column 11"),
    ("POST", "/v1/search", '{"query": "' + "x" * 3_000_000 + '"}'): (413, "at most 1,048,576 bytes"),
    ("PUT", "/v1/search", '{"query": "mail"}'): (405, "expected POST, found PUT"),
    ("POST", "/v1/search/", '{"query": "mail"}'): (404, "Did you mean '/v1/search'?"),
    ("POST", "/v1/search/batch", '{"queries": []}'): (422, "length >= 1 - at `$.queries`"),
    ("POST", "/v1/calls", '{"tool": "mail/send_emial", "search_id": "x", "ok": true}'): (404, "'mail/send_email'?"),
    ("POST", "/v1/sources/add", '{"locator": "/etc/passwd"}'): (422, "run  toolscout add SOURCE  on the machine"),
    ("POST", "/v1/sources/add", "{}"): (422, "expected either `locator` or `tools`"),
    ("POST", "/v1/sources/add", '{"tools": [{"name": "x"}]}'): (422, "expected a `name` for the source"),
    ("POST", "/v1/sources/sync", '{"sources": ["mial"]}'): (404, "Did you mean 'mail'?"),
    ("POST", "/v1/sources/enable", '{"source": "mial", "enabled": false}'): (404, "Did you mean 'mail'?"),
    ("GET", "/v1/approvals?source=mial", None): (404, "Did you mean 'mail'?"),
    ("GET", "/v1/tools?source=mial", None): (404, "Did you mean 'mail'?"),
    ("GET", "/v1/tools?source=mial&state=hidden", None): (404, "Did you mean 'mail'?"),
    ("GET", "/v1/facets?source=mial", None): (404, "Did you mean 'mail'?"),
    ("GET", "/v1/tools?limit=-1", None): (422, "Expected `int` >= 1 - at `$.limit`"),
    ("GET", "/v1/tree?path=mail", None): (422, "It takes within"),
    ("GET", "/v1/journal?since=yesterday", None): (422, "like 2026-05-31T12:00:00Z"),
    ("GET", "/v1/lint?most=x", None): (422, "at `$.most`"),
}


def check_answer(answer: Any, status: int, mend: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert mend in error and len(error) <= MAX_ERROR_CHARS and "\n" not in error and "Traceback" not in error


def test_a_mistake_is_answered_by_a_sentence_that_names_the_mend(client: Any) -> None:
    for (method, address, body), (status, mend) in MISTAKES.items():
        headers = {} if body is None else {"content-type": "application/json"}
        check_answer(client.request(method, address, content=body, headers=headers), status, mend)


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_another_type_is_refused_with_the_header_to_set(client: Any, media: str) -> None:
    answer = client.post("/v1/search", content='{"query": "mail"}', headers={"content-type": media})
    check_answer(answer, 415, "Set the header Content-Type")


def test_mistakes_with_keys(guarded: Any) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEYS["bob"]}):
        answer = guarded.post("/v1/search", json={"query": "mail"}, headers=headers)
        check_answer(answer, 401, "ask whoever runs this service")
    check_answer(guarded.get("/v1/journal", headers=as_caller("bob")), 403, "Ask for a key with the role `operator`")
    check_answer(guarded.get("/v1/me", headers={"host": "other.example"}), 421, "--allow-host")


def test_a_hidden_tool_is_never_suggested(guarded: Any) -> None:
    address = "/v1/tool?id=mail/send_emial"
    check_answer(guarded.get(address, headers=as_caller("ann")), 404, "Did you mean 'mail/send_email'?")
    assert "send_email" not in guarded.get(address, headers=as_caller("bob")).json()["error"].replace("send_emial", "")


def test_a_hidden_source_is_never_suggested(guarded: Any) -> None:
    address = "/v1/tools?source=fiels"
    check_answer(guarded.get(address, headers=as_caller("ann")), 404, "Did you mean 'files'?")
    hidden, absent = (guarded.get(f"/v1/tools?source={name}", headers=as_caller("bob")) for name in ("files", "fiels"))
    check_answer(absent, 404, "GET /v1/sources")
    check_answer(hidden, 404, "GET /v1/sources")
    assert guarded.get("/v1/tools?source=mail", headers=as_caller("bob")).status_code == 200
