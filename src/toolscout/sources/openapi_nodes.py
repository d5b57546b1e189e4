"""Reads single nodes of an OpenAPI document: parameters, media types, server addresses, descriptions.

The functions accept any JSON value, because documents are untrusted.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from toolscout.errors import BadEntry
from toolscout.sources.documents import describe_value
from toolscout.types import clean

__all__ = [
    "FORMS",
    "MAX_ENTRIES",
    "TEMPLATE_VARIABLE",
    "Input",
    "add_description",
    "choose_media",
    "clean_text",
    "fill_variables",
    "is_plain_object",
    "limit_list",
    "read_parameter",
]

MAX_ENTRIES: Final = 1_000  # in one list of an operation: parameters, tags, servers, security, responses
FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
#: `{name}` in a path or a server address.
TEMPLATE_VARIABLE: Final = re.compile(r"\{([^{}]+)\}")
#: `collectionFormat` of Swagger 2.0 → the style of OpenAPI 3.
_COLLECTIONS: Final[Mapping[str, dict[str, Any]]] = {
    "csv": {"explode": False},
    "multi": {"explode": True},
    "ssv": {"style": "spaceDelimited", "explode": False},
    "pipes": {"style": "pipeDelimited", "explode": False},
}


class Input(NamedTuple):
    """One argument: its name and place in the request, and its schema.

    `base` is the location of the document that holds the schema.
    """

    name: str
    place: str
    schema: Any
    base: str
    required: bool = False
    description: str = ""
    style: Mapping[str, Any] = {}


def read_parameter(node: Any, base: str) -> Input:
    """Read one parameter of OpenAPI 3 or Swagger 2.0.

    Raises:
        BadEntry: if it has no name, or no known place.
    """
    name, place = (clean_text(node.get("name")), node.get("in")) if isinstance(node, Mapping) else ("", None)
    if not name or place not in ("path", "query", "header", "cookie", "body", "formData"):
        raise BadEntry(
            f"expected a parameter with a name and a place (in: path, query, …), found {describe_value(node)}"
        )
    schema, content = node.get("schema"), node.get("content")
    style: dict[str, Any] = {}
    if schema is not None:
        style = {key: node[key] for key in ("style", "explode") if isinstance(node.get(key), (str, bool))}
    elif isinstance(content, Mapping) and content:
        style["content_type"], schema = choose_media(content)
    else:
        schema = {key: value for key, value in node.items() if key not in ("name", "in", "required", "description")}
        if node.get("type") == "array":
            style = _COLLECTIONS.get(clean_text(node.get("collectionFormat")) or "csv", {})
    required = place == "path" or node.get("required") is True
    return Input(name, str(place), schema, base, required, clean_text(node.get("description")), style)


def join_description(node: Mapping[Any, Any], item: Mapping[Any, Any]) -> str:
    """Join summary and description. A summary that begins the description is not repeated."""
    summary, text = (clean_text(node.get(key)) or clean_text(item.get(key)) for key in ("summary", "description"))
    bare = summary.rstrip(". ")
    if text.lower().startswith(bare.lower()):
        summary = ""
    elif text and bare[-1:] not in "!?:":
        summary = f"{bare}."
    deprecated = "Deprecated." if node.get("deprecated") is True else ""
    return " ".join(part for part in (summary, text, deprecated) if part)


def choose_media(content: Mapping[Any, Any]) -> tuple[str, Any]:
    """Return the content type to use (JSON, a relative of JSON, a form, or the first) and its schema."""

    def rank_media(media: object) -> int:
        kind = str(media).partition(";")[0].strip().lower()
        return 0 if kind == "application/json" else 1 if kind.endswith("json") else 2 if kind in FORMS else 3

    media = min(itertools.islice(content, MAX_ENTRIES), key=rank_media)
    schema = content[media].get("schema") if isinstance(content[media], Mapping) else None
    return str(media), {} if schema is None else schema


def add_description(schema: Any, description: str) -> Any:
    """Give a schema a description, without changing one that other nodes refer to."""
    return {"description": description, "allOf": [schema]} if description else schema


def fill_variables(server: Mapping[Any, Any]) -> str:
    """Return the URL of a server with the defaults of its variables. A variable without a default stays."""
    variables = server.get("variables")

    def find_default(match: re.Match[str]) -> str:
        variable = variables.get(match[1]) if isinstance(variables, Mapping) else None
        value = variable.get("default") if isinstance(variable, Mapping) else None
        return str(clean(value)) if isinstance(value, (str, int)) else match[0]

    return TEMPLATE_VARIABLE.sub(find_default, clean_text(server.get("url")))


def is_plain_object(schema: Any) -> bool:
    """Return whether a schema describes an object whose properties can stand beside the parameters."""
    return (
        isinstance(schema, dict) and "object" in schema.get("type", "object") and not schema.keys() & {"anyOf", "oneOf"}
    )


def clean_text(value: Any) -> str:
    """Return a text as `clean` does, without white space around it. Empty for another type."""
    return str(clean(value)).strip() if isinstance(value, str) else ""


def limit_list(value: Any) -> list[Any]:
    """Return the first entries of a list. Empty for another type."""
    return value[:MAX_ENTRIES] if isinstance(value, list) else []
