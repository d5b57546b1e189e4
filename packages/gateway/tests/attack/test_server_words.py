"""No word of a server beside its results brings hidden characters, credentials or endless text to a caller.

Results of tools and the contents of resources are data, and stay as they are.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult, EmptyResult, PromptReference, SubscribeRequest, SubscribeRequestParams

from gateway.tests.conftest import SERVERS, Agent, open_agent

KEY = "whisper-4711-token"
ENTRIES = {"low": {"command": sys.executable, "args": [str(SERVERS / "whispering.py")], "env": {"WHISPER_TOKEN": KEY}}}
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2060\u202e\U000e0000-\U000e0fff]")
MAX_CHARS = 8_300  # of the longest text, which may be a URL


def list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            for part in pair:
                yield from list_texts(part)
    elif isinstance(value, list):
        for inner in value:
            yield from list_texts(inner)


class Listener:
    """A client of one age, and everything that reached it beside the contents of results, by kind."""

    def __init__(self) -> None:
        self.heard: dict[str, list[Any]] = {}

    def hear(self, kind: str, value: Any) -> None:
        self.heard.setdefault(kind, []).append(value)

    def check(self, *kinds: str) -> None:
        assert set(kinds) <= set(self.heard), f"nothing of {set(kinds) - set(self.heard)} came, but {set(self.heard)}"
        for kind, values in self.heard.items():
            texts = [text for value in values for text in list_texts(value)]
            assert texts, kind
            assert not any(UNSEEN.search(text) for text in texts), kind
            assert not any(KEY in text for text in texts), kind
            assert max(map(len, texts)) <= MAX_CHARS, kind

    async def answer(self, _: Any, params: Any) -> ElicitResult:
        self.hear("question", params.model_dump(mode="json", by_alias=True))
        return ElicitResult(action="accept", content={"who": "Ann"})

    async def log(self, params: Any) -> None:
        self.hear("log", params.model_dump(mode="json", by_alias=True))

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.hear("progress", message)

    async def receive(self, message: Any) -> None:
        if type(message).__name__ == "ResourceUpdatedNotification":
            self.hear("update", str(message.params.uri))

    def open(self, agent: Agent, mode: str) -> Client:
        return Client(
            agent.gateway.server,
            mode=mode,
            elicitation_callback=self.answer,
            logging_callback=self.log,
            message_handler=self.receive,
        )


def run(tmp_path: Path, mode: str, body: Callable[[Client, Listener], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        listener = Listener()
        async with open_agent(tmp_path, ENTRIES, **options) as agent, listener.open(agent, mode) as client:
            await body(client, listener)

    anyio.run(main)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_what_a_server_says_in_a_call_is_cleaned_for_clients_of_both_ages(tmp_path: Path, mode: str) -> None:
    async def body(client: Client, listener: Listener) -> None:
        if mode == "legacy":
            request = SubscribeRequest(params=SubscribeRequestParams(uri="word://one"))
            await client.session.send_request(request, EmptyResult)
        arguments = {"id": "low/go", "arguments": {}}
        result = await client.call_tool("call_tool", arguments, progress_callback=listener.progress)
        assert result.is_error
        listener.hear("error", result.model_dump(mode="json", by_alias=True))
        said = str(result.content[0].text)  # type: ignore[union-attr]
        assert "see[8mn [credential] word" in said and "-32050" in said
        if mode == "legacy":
            assert set(listener.heard["update"]) == {"word://one"}
        listener.check("question", "progress", "error", *(["log", "update"] if mode == "legacy" else []))

    run(tmp_path, mode, body)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_errors_completions_and_prompts_are_cleaned_and_contents_are_not(tmp_path: Path, mode: str) -> None:
    async def body(client: Client, listener: Listener) -> None:
        for use in (client.read_resource("word://fail"), client.get_prompt("low/fail"), complete(client, "low/fail")):
            with pytest.raises(MCPError) as caught:
                await use
            quoted = "server 'low' answered with the error \"no[8mne. Ignore"
            assert caught.value.code == -32051 and quoted in caught.value.message, "it gives orders"
            listener.hear("error", [caught.value.message, caught.value.data])
        values = (await complete(client, "low/say")).completion.values
        assert len(values) == 100
        listener.hear("completion", values)
        prompt = await client.get_prompt("low/say")
        text = prompt.messages[0].content.text  # type: ignore[union-attr]
        assert len(text) > 10_000, "a prompt is not cut"
        assert not UNSEEN.search(text) and KEY not in text
        parts = [part for message in prompt.messages for part in list_texts(message.model_dump(mode="json"))]
        assert len(parts) > 20 and not any(UNSEEN.search(part) or KEY in part for part in parts)
        listener.hear("prompt", [prompt.description, prompt.meta])
        listener.check("error", "completion", "prompt")
        read = await client.read_resource("word://one")
        assert UNSEEN.search(read.contents[0].text), "data stays as it is"  # type: ignore[union-attr]

    run(tmp_path, mode, body)


def complete(client: Client, name: str) -> Any:
    return client.complete(PromptReference(name=name), {"name": "who", "value": "O"})


def test_what_a_program_prints_steers_no_terminal(tmp_path: Path) -> None:
    async def body(client: Client, listener: Listener) -> None:
        code = "print('a\\u200b\\U000e0041\\x1b[8mb'); raise ValueError('c\\u202e\\x07d')"
        result = await client.call_tool("run_code", {"code": code})
        listener.hear("output", [part.text for part in result.content])  # type: ignore[union-attr]
        assert "a[8mb" in json.dumps(listener.heard)
        listener.check("output")

    run(tmp_path, "auto", body, run_code=True)
