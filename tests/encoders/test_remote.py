from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from toolscout.encoders import load
from toolscout.errors import ConfigError, UserError
from toolscout.settings import Settings
from toolscout.types import digest

pytestmark = pytest.mark.net


class Endpoint(ThreadingHTTPServer):
    """Answers each text with (its length, 1), last text first; `reply` overrides status and body."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply: tuple[int, Any] | None = None
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/embeddings"


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        self.server.keys.append(self.headers.get("Authorization"))
        rows = [{"index": i, "embedding": [float(len(text)), 1.0]} for i, text in enumerate(asked["input"])]
        status, body = self.server.reply or (200, {"data": rows[::-1]})
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_vectors_come_back_as_unit_rows_in_the_order_of_the_texts(endpoint: Endpoint) -> None:
    encoder = load(f"{endpoint.address}#small", Settings())
    texts = ["x" * (i % 7) for i in range(300)]
    expected = np.array([[max(1, len(text)), 1.0] for text in texts])
    assert encoder.encode(texts) == pytest.approx(expected / np.linalg.norm(expected, axis=1, keepdims=True))
    assert [len(asked["input"]) for asked in endpoint.asked] == [1, 128, 128, 44]
    assert {asked["model"] for asked in endpoint.asked} == {"small"}


def test_no_texts_give_no_rows_of_the_right_length(endpoint: Endpoint) -> None:
    assert load(f"{endpoint.address}#small", Settings()).encode([]).shape == (0, 2)


def test_the_key_is_sent_only_if_there_is_one(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    load(f"{endpoint.address}#small", Settings())
    monkeypatch.setenv("TOOLSCOUT_EMBEDDINGS_KEY", "secret")
    load(f"{endpoint.address}#small", Settings())
    assert endpoint.keys == [None, "Bearer secret"]


def test_another_model_has_another_fingerprint(endpoint: Endpoint) -> None:
    first, again, other = (load(f"{endpoint.address}#{name}", Settings()).fingerprint for name in ("a", "a", "b"))
    assert first == again != other


def test_a_model_that_wants_prompts_gets_them_and_what_the_user_writes_comes_first(endpoint: Endpoint) -> None:
    known = load(f"{endpoint.address}#intfloat/multilingual-e5-small", Settings())
    known.encode(["rain"])
    known.encode(["rain", "mail"])
    known.encode(["rain"], "tool")
    assert [asked["input"] for asked in endpoint.asked[1:]] == [
        ["query: rain"],
        ["query: rain", "query: mail"],
        ["passage: rain"],
    ]
    assert {asked["model"] for asked in endpoint.asked} == {"intfloat/multilingual-e5-small"}
    name = f"{endpoint.address}#e5-small?query_prompt=find%20a%20tool:+&tool_prompt="
    written = load(name, Settings())
    assert written.name == name and endpoint.asked[-1]["model"] == "e5-small"
    written.encode(["rain"])
    written.encode(["rain"], "tool")
    assert [asked["input"] for asked in endpoint.asked[-2:]] == [["find a tool: rain"], ["rain"]]


def test_an_endpoint_that_adds_prompts_itself_is_told_the_kind_and_gets_none(endpoint: Endpoint) -> None:
    name = f"{endpoint.address}#e5-small?query_input_type=query&tool_input_type=passage"
    encoder = load(name, Settings())
    encoder.encode(["rain"])
    encoder.encode(["rain"], "tool")
    sent = [(asked["input"], asked.get("input_type")) for asked in endpoint.asked[-2:]]
    assert sent == [(["rain"], "query"), (["rain"], "passage")]
    assert encoder.fingerprint != load(f"{endpoint.address}#e5-small", Settings()).fingerprint
    assert "input_type" not in endpoint.asked[-1]


def test_other_prompts_give_another_fingerprint_and_none_leave_it_as_it_was(endpoint: Endpoint) -> None:
    behind = ("", "?query_prompt=a", "?query_prompt=b", "?tool_prompt=a", "?query_prompt=")
    marks = [load(f"{endpoint.address}#m{prompts}", Settings()).fingerprint for prompts in behind]
    assert len(set(marks)) == 4 and marks[0] == marks[4]
    assert marks[0] == digest("remote/1", [endpoint.address, "m", 2])


def test_an_unknown_or_repeated_key_behind_the_model_is_refused(endpoint: Endpoint) -> None:
    for behind in ("?query_prompt=a&passage=b", "?tool_prompt=a&tool_prompt=b"):
        with pytest.raises(ConfigError, match=r"expected \?query_prompt=….* behind the model"):
            load(f"{endpoint.address}#m{behind}", Settings())


def test_a_long_text_is_cut_behind_its_prompt(endpoint: Endpoint) -> None:
    load(f"{endpoint.address}#m?query_prompt=q:", Settings()).encode(["x" * 9_000])
    [sent] = endpoint.asked[-1]["input"]
    assert sent.startswith("q:x") and len(sent) == 8_000


@pytest.mark.parametrize(
    "reply",
    [
        (401, {}),
        (200, {"data": []}),
        (200, {"data": [{"index": 0, "embedding": []}, {"index": 1, "embedding": [1.0]}]}),
        (200, {"data": "none"}),
        (200, {"data": [{"index": 0, "embedding": [None, 1.0]}]}),
        (200, []),
    ],
)
def test_an_answer_of_another_shape_is_one_sentence(endpoint: Endpoint, reply: tuple[int, Any]) -> None:
    endpoint.reply = reply
    with pytest.raises(UserError, match="did not return embeddings of the model 'small': "):
        load(f"{endpoint.address}#small", Settings())


def test_an_endpoint_that_is_not_there_and_an_address_without_model_are_said() -> None:
    with pytest.raises(UserError, match="did not return embeddings of the model"):
        load("http://127.0.0.1:9/v1/embeddings#small", Settings())
    with pytest.raises(ConfigError, match="found no model"):
        load("http://127.0.0.1:9/v1/embeddings", Settings())


def test_a_busy_endpoint_is_asked_again_and_a_wrong_request_is_not(endpoint: Endpoint) -> None:
    encoder = load(f"{endpoint.address}#m", Settings())
    asked = len(endpoint.asked)

    def recover() -> None:
        endpoint.reply = None

    endpoint.reply = (503, {})
    threading.Timer(0.3, recover).start()
    assert encoder.encode(["text"], "tool").shape == (1, 2)
    assert len(endpoint.asked) - asked >= 2
    endpoint.reply = (400, {})
    asked = len(endpoint.asked)
    with pytest.raises(UserError, match="status 400"):
        encoder.encode(["text"], "tool")
    assert len(endpoint.asked) - asked == 1


def test_a_query_that_comes_again_is_not_asked_again(endpoint: Endpoint) -> None:
    encoder = load(f"{endpoint.address}#m", Settings())
    first = encoder.encode(["the same"])
    asked = len(endpoint.asked)
    assert np.array_equal(encoder.encode(["the same"]), first)
    assert len(endpoint.asked) == asked


def test_an_outage_leaves_search_by_words_and_is_not_waited_for_twice(endpoint: Endpoint, tmp_path: Any) -> None:
    from toolscout.scout import Scout

    with Scout(tmp_path, encoder=f"{endpoint.address}#m", recipe="hybrid") as scout:
        scout.add(
            [{"name": "rain", "description": "Will it rain?"}, {"name": "mail", "description": "Send."}], name="s"
        )
        assert scout.search("rain").reason is None
        endpoint.reply = (503, {})
        found = scout.search("will it rain tomorrow?")
        assert found.ids == ("s/rain",)
        assert found.reason is not None and found.reason.startswith("searched with bm25 alone:")
        asked = len(endpoint.asked)
        assert scout.search("rain or mail").reason == found.reason
        assert len(endpoint.asked) == asked
