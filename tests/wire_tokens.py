"""Tokens of what was sent, counted by a real vocabulary."""

from __future__ import annotations

import json
from typing import Any

import pytest


def counted(bodies: list[dict[str, Any]]) -> int:
    """Tokens of requests: texts, calls, functions, and the shape of the reply; without what frames a message."""
    encoding = pytest.importorskip("bpe_openai").get_encoding("o200k_base")
    texts: list[str] = []
    for body in bodies:
        for message in body["messages"]:
            texts.append(message.get("content") or "")
            texts += [
                call["function"]["name"] + call["function"]["arguments"] for call in message.get("tool_calls", ())
            ]
        shape = body.get("response_format", {}).get("json_schema", {}).get("schema")
        texts += [json.dumps(each, separators=(",", ":")) for each in (*body.get("tools", ()), shape) if each]
    return sum(len(encoding.encode(text)) for text in texts)
