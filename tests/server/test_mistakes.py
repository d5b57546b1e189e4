"""Typical mistakes over HTTP: each is answered by a sentence that names the mend, and never by a fault."""

from __future__ import annotations

from typing import Any

import pytest

from server.conftest import KEYS, as_caller

MAX_ERROR_CHARS = 240

#: Method, address, body → status, what the answer names.
MISTAKES = {
    ("POST", "/v1/search", '{"query": "mail",\n "k": }'): (400, "line 2, column 7: invalid character"),
    ("POST", "/v1/search", '{"query": "mail"'): (400, "it ends too early"),
    ("POST", "/v1/search", ""): (400, "expected JSON"),
    ("POST", "/v1/search", "{}"): (422, "required field `query`"),
    ("POST", "/v1/search", "[]"): (422, "Expected `object`, got `array`"),
    ("POST", "/v1/search", '{"qeury": "mail"}'): (422, "Did you mean 'query'?"),
    ("POST", "/v1/search", '{"query": "mail", "nonesuch": 1}'): (422, "It takes query, k"),
    ("POST", "/v1/search", '{"query": 3}'): (422, "Expected `str`, got `int` - at `$.query`"),
    ("POST", "/v1/search", '{"query": "mail", "k": 0}'): (422, "Expected `int` >= 1 - at `$.k`"),
    ("POST", "/v1/search", '{"query": "mail", "k": "five"}'): (422, "at `$.k`. It is one of auto"),
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
    ("GET", "/xyzzy", None): (404, "/openapi.json lists all of them"),
    ("GET", "/v1/search", None): (405, "expected POST, found GET"),
    ("DELETE", "/v1/tool?id=x", None): (405, "expected GET, HEAD"),
    ("GET", "/v1/tool?id=mail/send_emial", None): (404, "Did you mean 'mail/send_email'?"),
    ("GET", "/v1/tool?name=x", None): (422, "It takes id"),
    ("GET", "/v1/tool?id=a&id=b", None): (422, "expected each parameter once"),
    ("GET", "/v1/tool", None): (422, "required field `id`"),
    ("GET", "/v1/journal?limit=many", None): (422, "Expected `int`, got `str` - at `$.limit`"),
    ("GET", "/v1/journal?event=serach", None): (422, "Did you mean 'search'?"),
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
