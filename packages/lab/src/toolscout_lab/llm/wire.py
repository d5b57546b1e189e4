"""Requests to a language model and its answers as values, and the schema that a reply must fit."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec

from toolscout.types import digest

__all__ = [
    "Backend",
    "ChatRequest",
    "Completion",
    "DecisionRequest",
    "Few",
    "Message",
    "ToolCall",
    "decode",
    "drop_thoughts",
    "narrow",
    "schema_of",
]

DEFAULT_REPLY_TOKENS: Final = 1024
MAX_TRIED_BRACES: Final = 1_000  # of a reply; further ones are ignored
TEXT_KEYWORDS: Final = ("enum", "maxLength")
MAX_LISTED: Final = 24  # items in a list of a reply; weak models list without an end
Message = Mapping[str, Any]
Item = TypeVar("Item")
Few = Annotated[list[Item], msgspec.Meta(max_length=MAX_LISTED)]
"""A list in a reply. An endpoint that keeps to the schema ends it in time."""
_THOUGHTS: Final = re.compile(r"<(think|thinking|thought|reasoning)>.*?(</\1>|\Z)", re.S | re.I)
_END_OF_THOUGHTS: Final = re.compile(r"\A.*</(?:think|thinking|thought|reasoning)>", re.S | re.I)
_JSON: Final = json.JSONDecoder()


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call by the model: its id, the function's name, and the arguments as the model's JSON text."""

    id: str
    name: str
    arguments: str


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One chat completion.

    Attributes:
        model: name of the model.
        messages: role and content, in the endpoint's format.
        max_tokens: maximum tokens of the reply.
        temperature: 0 for the most likely answer.
        schema: JSON Schema of the reply; None for free text.
        tools: functions that the model may call, in the endpoint's format.
        sample: another number gives another answer to the same request.
    """

    model: str
    messages: tuple[Message, ...]
    max_tokens: int = DEFAULT_REPLY_TOKENS
    temperature: float = 0.0
    schema: dict[str, Any] | None = None
    tools: tuple[dict[str, Any], ...] = ()
    sample: int = 0

    def key(self, address: str) -> str:
        """Hash the request; equal requests to one address share the key."""
        return digest("llm/1", [address, msgspec.structs.asdict(self)])


class DecisionRequest(ChatRequest, frozen=True, kw_only=True):
    """One question of the type `choice` to a decision model, in the "System One" format (`POST /v1/systemone`).

    The only message is what the question is about. The reply is the probability of each option as a JSON object.

    Attributes:
        instructions: the question.
        options: name → description; the model reads both.
    """

    instructions: str
    options: dict[str, str]


class Completion(msgspec.Struct, frozen=True):
    """One answer: text or tool calls, its tokens, and why it ended (`stop`, `length`, `tool_calls`)."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    tokens_in: int = 0
    tokens_out: int = 0
    finish: str = "stop"


class Backend(Protocol):
    """Answers requests: an endpoint, or a fake."""

    @property
    def address(self) -> str:
        """The address; it is part of the key of an answer and must contain no secret."""
        ...

    @property
    def model(self) -> str:
        """Name of the model."""
        ...

    def __call__(self, request: ChatRequest, *, seconds: float | None = None) -> Completion:
        """Answer a request, within `seconds` if given.

        Raises:
            Unavailable: if there is no answer.
            BadReply: if the request is refused.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def schema_of(kind: type[msgspec.Struct]) -> dict[str, object]:
    """Generate the JSON Schema of a struct with an inlined root; `title` is the struct's name."""
    schema: dict[str, Any] = msgspec.json.schema(kind)
    parts = schema.pop("$defs", {})
    if "$ref" in schema:
        schema = parts.pop(schema["$ref"].rpartition("/")[2])
    return {**schema, **({"$defs": parts} if parts else {})}


def narrow(schema: Mapping[str, Any], limits: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Add keywords to the properties of these names wherever a schema has them, such as the ids that a tool may have.

    `enum` and `maxLength` of a list limit its texts; in a list of objects they change nothing.
    """
    narrowed: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            narrowed[key] = {name: _limit(narrow(each, limits), limits.get(name, {})) for name, each in value.items()}
        else:
            narrowed[key] = narrow(value, limits) if isinstance(value, Mapping) else value
    return narrowed


def _limit(schema: dict[str, Any], limit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of one property with these keywords; those of texts limit the texts of a list."""
    if schema.get("type") == "string":
        return {**schema, **limit}
    if schema.get("type") != "array":
        return schema
    of_texts = {key: value for key, value in limit.items() if key in TEXT_KEYWORDS}
    of_list = {key: value for key, value in limit.items() if key not in TEXT_KEYWORDS}
    items = schema.get("items", {})
    return {**schema, **of_list, "items": {**items, **of_texts} if items.get("type") == "string" else items}


def decode(text: str, kind: type[Any]) -> Any:
    """Decode the JSON object of a reply into a struct. Thoughts, a code fence and text around it are ignored.

    If a reply has several objects, the last one that fits counts, because models correct themselves.

    Raises:
        msgspec.MsgspecError: naming what is wrong with the last object, or with the whole reply if it has none.
    """
    answer = drop_thoughts(text)
    objects = list(_find_objects(answer))
    for body in reversed(objects):
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.json.decode(body, type=kind)
    return msgspec.json.decode(objects[-1] if objects else answer, type=kind)


def drop_thoughts(text: str) -> str:
    """Remove what a reasoning model thought, such as `<think>…</think>`; thoughts without an end reach to the end.

    Some servers cut off the first mark, so that a reply begins with thoughts.
    """
    return _END_OF_THOUGHTS.sub("", _THOUGHTS.sub("", text)).strip()


def _find_objects(text: str) -> Iterator[str]:
    """Yield the outermost JSON objects of a text; braces that begin no object are passed over."""
    place = text.find("{")
    for _ in range(MAX_TRIED_BRACES):
        if place < 0:
            return
        try:
            _, end = _JSON.raw_decode(text, place)
        except json.JSONDecodeError:
            end = place + 1
        else:
            yield text[place:end]
        place = text.find("{", end)


def content(messages: Sequence[Message]) -> str:
    """Join all texts of messages, for counting tokens."""
    parts = []
    for message in messages:
        parts.append(str(message.get("content") or ""))
        parts += [call["function"]["name"] + call["function"]["arguments"] for call in message.get("tool_calls", ())]
    return "\n".join(parts)
