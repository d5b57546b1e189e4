"""What is asked of a language model and what it answers, as values; and the shape that a reply must have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from toolscout.types import digest

__all__ = ["Backend", "Completion", "Message", "Request", "ToolCall", "decode", "schema_of"]

Message = Mapping[str, Any]
_FENCE: Final = re.compile(r"^\s*```\w*\s*\n(.*?)\n?\s*```\s*$", re.S)


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model asks for: its id, the function's name, the arguments as the JSON text that it wrote."""

    id: str
    name: str
    arguments: str


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One chat completion.

    Attributes:
        model: name of the model.
        messages: role and content, as the endpoint takes them.
        max_tokens: the most that the reply may have.
        temperature: 0 for the likeliest answer.
        schema: JSON Schema of the reply; None: free text.
        tools: functions that the model may call, as the endpoint takes them.
        sample: the same request again, for another answer.
    """

    model: str
    messages: tuple[Message, ...]
    max_tokens: int = 1024
    temperature: float = 0.0
    schema: dict[str, Any] | None = None
    tools: tuple[dict[str, Any], ...] = ()
    sample: int = 0

    def key(self, address: str) -> str:
        """The content's own name: equal requests to one address share it."""
        return digest("llm/1", [address, msgspec.structs.asdict(self)])


class Completion(msgspec.Struct, frozen=True):
    """One answer: text or tool calls, what it cost in tokens, and why it ended (`stop`, `length`, `tool_calls`)."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    tokens_in: int = 0
    tokens_out: int = 0
    finish: str = "stop"


class Backend(Protocol):
    """Whoever answers requests: an endpoint, or a fake."""

    @property
    def address(self) -> str:
        """Part of the identity of an answer; no secret."""
        ...

    @property
    def model(self) -> str:
        """Name of the model."""
        ...

    def __call__(self, request: Request, *, seconds: float | None = None) -> Completion:
        """Answer, within `seconds` if they are given.

        Raises:
            Unavailable: if there is no answer.
            BadReply: if this request is refused.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """JSON Schema of a struct, its root written out; `title` is the struct's name."""
    found: dict[str, Any] = msgspec.json.schema(kind)
    parts = found.pop("$defs", {})
    if "$ref" in found:
        found = parts.pop(found["$ref"].rpartition("/")[2])
    return {**found, **({"$defs": parts} if parts else {})}


def decode(text: str, kind: type[Any]) -> Any:
    """The JSON object in a reply, checked against its struct; a fence or words around it are passed over.

    Raises:
        msgspec.MsgspecError: naming what is wrong and where.
    """
    fenced = _FENCE.match(text)
    body = fenced[1] if fenced else text
    starts, ends = body.find("{"), body.rfind("}")
    if 0 <= starts < ends:
        body = body[starts : ends + 1]
    return msgspec.json.decode(body, type=kind)


def content(messages: Sequence[Message]) -> str:
    """All texts of messages, for counting."""
    parts = []
    for message in messages:
        parts.append(str(message.get("content") or ""))
        parts += [call["function"]["name"] + call["function"]["arguments"] for call in message.get("tool_calls", ())]
    return "\n".join(parts)
