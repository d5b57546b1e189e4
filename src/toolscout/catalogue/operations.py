"""Infers from the operations of an API which of them supply the ids that others need.

`GET /orders/{orderId}` needs the id of an order, which no person knows. `GET /orders/search` returns orders, so it
supplies the id. Three things say what an operation supplies: the words of its path, the words of its name, and the
schema of its result. Names that people know (`username`, `branch`, `city`) are not ids, so they need no supplier.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from toolscout.indexes.words import tokenize
from toolscout.types import Tool

__all__ = ["Operation", "Want", "rank_suppliers", "read_operation"]

MAX_SUPPLIERS: Final = 12  # alternatives kept for one id
MAX_SCHEMA_NODES: Final = 500  # parts of a result that are read, the outer ones first
MAX_PATH_SEGMENTS: Final = 40
_VARIABLE: Final = re.compile(r"\{([^{}/]+)\}")
_ID_SUFFIX: Final = re.compile(r"(?:(?:^|[_.-])(?:id|uuid|guid|uri|urn)s?|(?<=[a-z])(?:Id|ID|Uuid|UUID|Uri|URI)s?)$")
_NUMBER_SUFFIX: Final = re.compile(r"(?:[_-]number|(?<=[a-z])Number)$")
_ID_PROPERTIES: Final = frozenset(("id", "uri", "uuid", "guid", "urn", "number", "_id"))
_FINDING: Final = frozenset(tokenize("search find lookup query"))
_PERSON: Final = frozenset(tokenize("user account owner member customer profile"))
_SELF: Final = frozenset(("me", "self", "whoami"))
_WRAPPERS: Final = frozenset(("items", "results", "data", "entries", "content", "values", "list", "elements", "records"))
SEARCH_BY_NOUN: Final = 1.0  # GET /search/movie
COLLECTION: Final = 0.9  # GET /orders for /orders/{orderId}, GET /me for /users/{user_id}
PARENT: Final = 0.6  # GET /cart for /cart/items/{itemId}
SEARCH_BY_TEXT: Final = 0.8  # GET /search, whose description or result names albums
NAMED_LAST: Final = 0.7  # GET /users/me/orders
NAMED_IN_PATH: Final = 0.5  # GET /movies/popular
NAMED_ELSEWHERE: Final = 0.4  # only the operation's name or result says it
SEARCH_OF_ALL: Final = 0.3  # GET /search, which says of nothing what it finds
COST_OF_NEED: Final = 0.15  # for each id that the supplier needs itself


class Want(NamedTuple):
    """One id that an operation needs.

    Attributes:
        parameter: name of the argument.
        noun: stem of what it identifies, such as `movi` of `movie_id`.
        collection: the path before its variable; None: it is not in the path.
    """

    parameter: str
    noun: str
    collection: tuple[str, ...] | None


class Operation(NamedTuple):
    """An operation of an API as the inference reads it.

    Attributes:
        tool_id: id of its tool.
        method: in capitals.
        segments: of its path.
        wants: the ids that it needs.
        tail: stems of each fixed segment after the last variable of its path.
        words: stems of its name.
        text: stems of its description and of the values that its arguments may have.
        results: nouns whose ids its result holds.
    """

    tool_id: str
    method: str
    segments: tuple[str, ...]
    wants: tuple[Want, ...]
    tail: tuple[frozenset[str], ...]
    words: frozenset[str]
    text: frozenset[str]
    results: frozenset[str]


def read_operation(tool: Tool) -> Operation | None:
    """Return the operation of a tool; None if the tool has no method and path.

    An OpenAPI document gives both. Other sources may say them as `endpoint`: `GET /orders/{orderId}`.
    """
    method, path = tool.meta.get("method"), tool.meta.get("path")
    if not isinstance(method, str) or not isinstance(path, str):
        endpoint = tool.meta.get("endpoint")
        method, _, path = endpoint.strip().partition(" ") if isinstance(endpoint, str) else ("", "", "")
        if not path.strip().startswith("/"):
            return None
    segments = tuple(part for part in path.strip().strip("/").split("/") if part)[:MAX_PATH_SEGMENTS]
    last = max((place for place, part in enumerate(segments) if "{" in part), default=-1)
    return Operation(
        tool_id=tool.id,
        method=method.upper(),
        segments=segments,
        wants=tuple(_find_wants(tool, segments)),
        tail=tuple(frozenset(tokenize(part)) for part in segments[last + 1 :]),
        words=frozenset(tokenize(tool.name)),
        text=frozenset(tokenize(tool.description)) | frozenset(_read_choices(tool.parameters)),
        results=frozenset(_find_result_nouns(tool.returns)),
    )


def _find_wants(tool: Tool, segments: Sequence[str]) -> Iterator[Want]:
    """Yield the ids that a call needs: in the path, and among the required arguments."""
    schema = tool.parameters or {}
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    seen = set()
    for place, part in enumerate(segments):
        for name in _VARIABLE.findall(part):
            seen.add(name)
            if _ID_SUFFIX.search(name) or _NUMBER_SUFFIX.search(name):
                before = next((fixed for fixed in reversed(segments[:place]) if "{" not in fixed), "")
                if noun := _find_noun(name) or _find_noun(before):
                    yield Want(name, noun, tuple(segments[:place]))
    required = schema.get("required")
    fixed_parts = [part for part in segments if "{" not in part]
    for name in required if isinstance(required, (list, tuple)) else ():
        if name in seen or not isinstance(name, str) or not _ID_SUFFIX.search(name) or _has_choices(properties, name):
            continue
        if noun := _find_noun(name) or (_find_noun(fixed_parts[-1]) if fixed_parts else ""):
            yield Want(name, noun, None)


def _find_noun(name: str) -> str:
    """Return the stem of the last word of a name, without its ending such as `_id`. Empty if nothing is left."""
    words = tokenize(_NUMBER_SUFFIX.sub("", _ID_SUFFIX.sub("", name)))
    return words[-1] if words else ""


def _has_choices(properties: Mapping[Any, Any], name: str) -> bool:
    schema = properties.get(name)
    return isinstance(schema, Mapping) and bool(schema.get("enum"))


def _read_choices(schema: Any) -> Iterator[str]:
    """Yield the stems of the values that the outermost arguments may have."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    for field in properties.values() if isinstance(properties, Mapping) else ():
        items = field.get("items") if isinstance(field, Mapping) else None
        for holder in (field, items):
            choices = holder.get("enum") if isinstance(holder, Mapping) else None
            for choice in choices[:MAX_SUPPLIERS] if isinstance(choices, list) else ():
                yield from tokenize(choice) if isinstance(choice, str) else ()


def _find_result_nouns(schema: Any) -> Iterator[str]:
    """Yield the nouns whose ids a result holds: `album` of `{"albums": {"items": [{"id": …}]}}` and of `album_id`."""
    waiting: deque[tuple[Any, str]] = deque([(schema, "")])
    for _ in range(MAX_SCHEMA_NODES):
        if not waiting:
            return
        node, noun = waiting.popleft()
        if not isinstance(node, Mapping):
            continue
        if isinstance(node.get("title"), str):
            noun = noun or _find_noun(node["title"])
        properties = node.get("properties")
        for name, inner in properties.items() if isinstance(properties, Mapping) else ():
            if name in _ID_PROPERTIES:
                yield from (noun,) if noun else ()
            elif _ID_SUFFIX.search(str(name)):
                yield _find_noun(str(name))
            waiting.append((inner, noun if name in _WRAPPERS else _find_noun(str(name))))
        waiting += [(node[key], noun) for key in ("items", "additionalProperties") if key in node]
        for key in ("allOf", "anyOf", "oneOf"):
            branches = node.get(key)
            waiting += [(branch, noun) for branch in branches] if isinstance(branches, list) else []


def rank_suppliers(want: Want, operation: Operation, others: Iterable[Operation]) -> list[tuple[float, str]]:
    """Return (fit, tool id) of the operations that supply an id, the best first. The fit is between 0 and 1.

    Args:
        want: the id.
        operation: the operation that needs it.
        others: all operations of the API.
    """
    fits = (
        (_rate_supplier(want, other), other.tool_id)
        for other in others
        if other.tool_id != operation.tool_id and want.noun not in {inner.noun for inner in other.wants}
    )
    ranked = sorted(((fit, tool_id) for fit, tool_id in fits if fit > 0), key=lambda pair: (-pair[0], pair[1]))
    return ranked[:MAX_SUPPLIERS]


def _rate_supplier(want: Want, other: Operation) -> float:
    """Rate how well an operation supplies an id; 0: it does not."""
    finds = bool(_FINDING & (other.words.union(*other.tail)))
    if other.method != "GET" and not (other.method == "POST" and finds):
        return 0.0  # whoever looks for an id must change nothing
    in_last = bool(other.tail) and want.noun in other.tail[-1]
    in_path = in_last or any(want.noun in words for words in other.tail)
    named = want.noun in other.words
    if finds and (in_path or named):
        fit = SEARCH_BY_NOUN
    elif want.noun in _PERSON and other.segments and other.segments[-1].casefold() in _SELF:
        fit = COLLECTION
    elif in_last and other.segments == want.collection:
        fit = COLLECTION
    elif finds and (want.noun in other.results or want.noun in other.text):
        fit = SEARCH_BY_TEXT
    elif in_last:
        fit = NAMED_LAST
    elif want.collection is not None and other.segments in (want.collection, want.collection[:-1]):
        fit = PARENT
    elif in_path:
        fit = NAMED_IN_PATH
    elif (named and other.tail) or want.noun in other.results:
        fit = NAMED_ELSEWHERE
    elif finds and all(words <= _FINDING for words in other.tail):
        fit = SEARCH_OF_ALL
    else:
        return 0.0
    return max(fit - COST_OF_NEED * len(other.wants), 0.0)

