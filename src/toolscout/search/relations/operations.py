"""Infers from the operations of an API which of them supply the ids that others need.

`GET /orders/{orderId}` needs the id of an order, which no person knows: a *want*. Its *noun* is "order".
`GET /orders/search` returns orders, so it supplies the id. Three things tell what an operation supplies: the words of
its path, the words of its name, and the schema of its result. If there is a schema, it decides whether the id can be in
the result: `GET /genre/movie/list` with `{"genres": [{"id": …}]}` supplies no movie. Names that people know
(`username`, `branch`, `city`) are not ids, so they need no supplier. An operation that changes something supplies
nothing.

Most tools of MCP servers have neither path nor result schema, so their names decide: `update_todo` with `todoId` needs
a todo, and `list_todos` and `search_todos` supply it.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from toolscout.encoders import split_identifiers
from toolscout.indexes.words import tokenize
from toolscout.types import Tool, follow_reference, gather_properties
from toolscout.vocabulary import list_words, read_pairs

__all__ = ["Operation", "Suppliers", "Want", "read_operation"]

MAX_SUPPLIERS: Final = 12  # alternatives kept for one id
MAX_READ_CHOICES: Final = 12  # listed values (`enum`) of one argument that are read
MAX_RESULT_NODES: Final = 500  # parts of a result's schema that are read, the outer ones first
MAX_PATH_SEGMENTS: Final = 40
_IRREGULAR: Final = read_pairs("operations.singulars")  # stem of a plural → stem of its singular


def _stem_words(text: str) -> list[str]:
    """Split a text into stems. A plural has the same stem as its singular."""
    return [_IRREGULAR.get(word, word) for word in tokenize(text)]


_PATH_VARIABLE: Final = re.compile(r"\{([^{}/]+)\}")
_ID_SUFFIX: Final = re.compile(
    r"(?:(?:^|[_.-])(?:id|gid|uid|uuid|guid|uri|urn)s?|(?<=[a-z])(?:Id|ID|Gid|GID|Uid|UID|Uuid|UUID|Uri|URI)s?)$"
)
_NUMBER_SUFFIX: Final = re.compile(r"(?:[_-]number|(?<=[a-z])Number)$")
_SAYS_ID: Final = re.compile(r"\b(?:[Ii]d|ID|[Ii]dentifier|uuid|UUID)s?\b")
_NAME_WORD: Final = re.compile(r"[^\W_]+")
_LISTING: Final = frozenset(list_words("operations.listing"))
_GETTING: Final = frozenset(list_words("operations.getting"))
_ACTIONS: Final = frozenset(list_words("steps.verbs"))
_ID_PROPERTIES: Final = frozenset(list_words("operations.ids"))
_FINDING: Final = frozenset(_stem_words(" ".join(list_words("operations.finding"))))
_PERSON_NOUNS: Final = frozenset(_stem_words(" ".join(list_words("operations.persons"))))
_SELF: Final = frozenset(list_words("operations.self"))
_WRAPPERS: Final = frozenset(list_words("operations.wrappers"))
COST_OF_WANT: Final = 0.15  # for each id that the supplier needs itself


class Want(NamedTuple):
    """One id that an operation needs.

    Attributes:
        parameter: name of the argument.
        noun: stem of what it identifies, such as `movi` of `movie_id`.
        collection: segments of the path before the argument; None: the argument is not in the path.
    """

    parameter: str
    noun: str
    collection: tuple[str, ...] | None


class Operation(NamedTuple):
    """An operation of an API as the inference reads it. All words are stems.

    Attributes:
        tool_id: id of its tool.
        reads: whether it changes nothing.
        finds: whether its path or its name says that it searches.
        segments: segments of its path; empty: it has none.
        wants: the ids that it needs.
        tail: words of each segment after the last variable of its path. Without a path, one element: `words`.
        words: words of its name.
        text: words of its description and of the values that its arguments may have.
        head: what its name is about: `track` of `get-users-saved-tracks`.
        results: nouns of the ids in its result.
        holders: for each id in the result the nouns around it, the outer ones first: `(playlist, owner)` of
            `{"playlists": [{"owner": {"id": …}}]}`. None: no schema tells what is in the result.
    """

    tool_id: str
    reads: bool
    finds: bool
    segments: tuple[str, ...]
    wants: tuple[Want, ...]
    tail: tuple[frozenset[str], ...]
    words: frozenset[str]
    text: frozenset[str]
    head: str
    results: frozenset[str]
    holders: frozenset[tuple[str, ...]] | None

    @property
    def last_words(self) -> frozenset[str]:
        """Words of the last segment of the path; none if it is a variable."""
        return self.tail[-1] if self.tail else frozenset()

    @property
    def path_words(self) -> frozenset[str]:
        """Words of the path after its last variable."""
        return frozenset().union(*self.tail)


def read_operation(tool: Tool) -> Operation | None:
    """Read the operation of a tool from its method and path if it has them, or else from its name.

    None: the tool has no path, and by its name it neither finds nor needs an id.
    """
    method, path = _read_endpoint(tool)
    if not path.startswith("/"):
        return _read_named(tool)
    segments = tuple(filter(None, path.split("/")))[:MAX_PATH_SEGMENTS]
    tail: list[frozenset[str]] = []
    for segment in segments:
        if "{" in segment:
            tail = []  # it begins behind the last variable
        else:
            tail.append(frozenset(_stem_words(segment)))
    words = frozenset(_stem_words(tool.name))
    finds = bool(_FINDING & words.union(*tail))
    results = _read_result(tool.returns)
    return Operation(
        tool_id=tool.id,
        reads=method == "GET" or (method == "POST" and finds),
        finds=finds,
        segments=segments,
        wants=(*_find_path_wants(segments), *_find_argument_wants(tool.parameters, segments)),
        tail=tuple(tail),
        words=words,
        text=frozenset((*_stem_words(tool.description), *_read_choices(tool.parameters))),
        head=_find_head(tool.name),
        results=results.nouns,
        holders=results.holders,
    )


def _read_endpoint(tool: Tool) -> tuple[str, str]:
    """Return the method in capitals and the path of a tool's HTTP request; empty if it has none.

    Tools of an OpenAPI document have `method` and `path`. Others may have an `endpoint`: `GET /orders/{orderId}`.
    """
    method, path, endpoint = (tool.meta.get(key) for key in ("method", "path", "endpoint"))
    if isinstance(method, str) and isinstance(path, str):
        return method.upper(), path.strip()
    if not isinstance(endpoint, str):
        return "", ""
    method, _, path = endpoint.strip().partition(" ")
    return method.upper(), path.strip()


def _read_named(tool: Tool) -> Operation | None:
    """Return the operation of a tool without a path, by its name; None if it neither finds nor needs an id."""
    words = _NAME_WORD.findall(split_identifiers(tool.name).casefold())
    if words and words[0] in _NAME_WORD.findall(tool.source.casefold()):  # `slack_list_users` of slack
        words = words[1:]
    finds = _is_finder(words)
    stems = _stem_words(words[-1]) if words else []
    wants = tuple(_find_named_wants(tool, stems[0] if stems else ""))
    if tool.kind != "tool" or not (finds or wants):
        return None
    head = _find_head(" ".join(_drop_verb(words)))
    nouns = frozenset({head} if head and head not in _FINDING else ())
    results = _read_result(tool.returns)
    return Operation(
        tool_id=tool.id,
        reads=finds,
        finds=finds,
        segments=(),
        wants=wants,
        tail=(nouns,),
        words=nouns,
        text=frozenset(),
        head=head,
        results=results.nouns,
        holders=results.holders,
    )


def _is_finder(words: Sequence[str]) -> bool:
    """Tell whether the words of a name say that it lists or searches: `search_notes`, `get_notes`, `note_list`."""
    if not words:
        return False
    first, last = words[0], words[-1]
    if first in _LISTING:
        return True
    if first in _GETTING:  # `get_notes` lists, `get_note` and `get_status` do not
        is_plural = last.endswith("s") and not last.endswith(("ss", "us", "is", "ics"))
        return is_plural and "by" not in words
    return len(words) > 1 and last in _LISTING and first not in _ACTIONS


def _drop_verb(words: Sequence[str]) -> Sequence[str]:
    """Return the words of a name without the verb that begins or ends it."""
    if words and words[0] in _LISTING | _GETTING:
        words = words[1:]
    if len(words) > 1 and words[-1] in _LISTING:
        words = words[:-1]
    return words


def _find_named_wants(tool: Tool, head: str) -> Iterator[Want]:
    """Yield the ids among the required arguments: `todo_id`, or `chat` described as "id of a chat".

    `head` is what the name of the tool is about. The argument `id` of `delete_todo` is the id of a todo.
    """
    properties, required = _gather_arguments(tool.parameters)
    for name in required:
        field = properties.get(name)
        if not isinstance(field, Mapping) or field.get("enum"):
            continue
        text = field.get("description")
        is_id = _ID_SUFFIX.search(name) or (isinstance(text, str) and _SAYS_ID.search(text))
        noun = _find_noun(name) or head
        if is_id and noun and noun not in _PERSON_NOUNS:  # a person is the caller, or is named in the request
            yield Want(name, noun, None)


def _gather_arguments(schema: Mapping[str, object] | None) -> tuple[dict[str, object], list[str]]:
    """Return the properties of the arguments and the required names.

    A single required argument that is an object, as in `update_note(args: NoteUpdate)`, only wraps the arguments.
    """
    properties, required = gather_properties(schema)
    if len(properties) == len(required) == 1:
        inner = gather_properties(properties.get(required[0]), schema)
        return inner if inner[0] else (properties, required)
    return properties, required


# --- what an operation needs ------------------------------------------------------------------------------------------


def _find_path_wants(segments: Sequence[str]) -> Iterator[Want]:
    """Yield the ids in a path. In `/orders/{id}`, the segment before the variable says what it identifies."""
    fixed_before = ""  # the last segment without a variable
    for place, segment in enumerate(segments):
        for name in _PATH_VARIABLE.findall(segment):
            noun = _find_noun(name) or _find_noun(fixed_before)
            is_id = _ID_SUFFIX.search(name) or _NUMBER_SUFFIX.search(name)
            if noun and is_id:
                yield Want(name, noun, tuple(segments[:place]))
        if "{" not in segment:
            fixed_before = segment


def _find_argument_wants(schema: Mapping[str, object] | None, segments: Sequence[str]) -> Iterator[Want]:
    """Yield the ids among the required arguments outside the path."""
    required = (schema or {}).get("required")
    if not isinstance(required, (list, tuple)):
        return
    variables = set(_PATH_VARIABLE.findall("/".join(segments)))
    last_fixed = next((segment for segment in reversed(segments) if "{" not in segment), "")
    for name in required:
        if not isinstance(name, str) or name in variables or not _ID_SUFFIX.search(name):
            continue
        field = _get_properties(schema).get(name)
        has_choices = isinstance(field, Mapping) and field.get("enum")  # an argument with listed values is no id
        noun = _find_noun(name) or _find_noun(last_fixed)
        if noun and not has_choices:
            yield Want(name, noun, None)


def _get_properties(schema: object) -> Mapping[Any, Any]:
    """Return the properties of a schema, name → schema; empty if it has none."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _find_noun(name: str) -> str:
    """Return the stem of the last word of a name, without its ending such as `_id`. Empty if nothing is left."""
    words = _stem_words(_NUMBER_SUFFIX.sub("", _ID_SUFFIX.sub("", name)))
    return words[-1] if words else ""


# --- what an operation supplies ---------------------------------------------------------------------------------------


def _read_choices(schema: Mapping[str, object] | None) -> Iterator[str]:
    """Yield the stems of the values that the outermost arguments, or the items in them, may have."""
    fields = [field for field in _get_properties(schema).values() if isinstance(field, Mapping)]
    items = [field["items"] for field in fields if isinstance(field.get("items"), Mapping)]
    for field in (*fields, *items):
        choices = field.get("enum")
        if isinstance(choices, list):
            for choice in choices[:MAX_READ_CHOICES]:
                yield from _stem_words(str(choice))


class _Result(NamedTuple):
    """What the schema of a result tells: `results` and `holders` of an `Operation`."""

    nouns: frozenset[str]
    holders: frozenset[tuple[str, ...]] | None


def _read_result(schema: object) -> _Result:
    """Find the ids in the schema of a result, as in `{"albums": {"items": [{"id": …}]}}` and `{"album_id": …}`."""
    nouns: set[str] = set()
    holders: set[tuple[str, ...]] = set()
    has_properties = False
    waiting: deque[tuple[object, tuple[str, ...]]] = deque([(schema, ())])  # parts, and the nouns around each
    for _ in range(MAX_RESULT_NODES):
        if not waiting:
            break
        node, around = waiting.popleft()  # the outer parts are read first
        if not isinstance(node, Mapping):
            continue
        if "$ref" in node:
            node = follow_reference(node, schema) or {"type": "object"}  # what leads nowhere may be anything
        around = around or _read_title(node)
        has_properties = has_properties or isinstance(node.get("properties"), Mapping)
        id_holders = list(_list_id_holders(node, around))
        holders.update(id_holders)
        nouns.update(holder[-1] for holder in id_holders if holder)
        inner = list(_list_inner_schemas(node, around))
        if node.get("type") in ("object", "array") and not inner:
            holders.add(around)  # the schema says nothing of its content, so an id may be in it
        waiting += inner
    is_read = has_properties and not waiting
    # A schema that is too large to be read to its end cannot tell which ids are not in the result.
    return _Result(frozenset(filter(None, nouns)), frozenset(holders) if is_read else None)


def _read_title(node: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return the noun of a schema's title, or nothing if it has no title."""
    title = node.get("title")
    noun = _find_noun(title) if isinstance(title, str) else ""
    return (noun,) if noun else ()


def _list_id_holders(node: Mapping[Any, Any], around: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield for each id among the properties of a schema the nouns around it: `around` for `id`, one for `order_id`."""
    for name in _get_properties(node):
        if name in _ID_PROPERTIES:
            yield around
        elif _ID_SUFFIX.search(str(name)):
            yield (_find_noun(str(name)),)


def _list_inner_schemas(node: Mapping[Any, Any], around: tuple[str, ...]) -> Iterator[tuple[object, tuple[str, ...]]]:
    """Yield the schemas inside a schema, each with the nouns around it. The last noun is the name of its property.

    A property such as `data` or `items` only wraps others, and adds no noun.
    """
    for name, inner in _get_properties(node).items():
        noun = "" if name in _WRAPPERS else _find_noun(str(name))
        yield inner, (*around, noun) if noun else around
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), Mapping):
            yield node[key], around
    for key in ("allOf", "anyOf", "oneOf"):
        branches = node.get(key)
        if isinstance(branches, list):
            yield from ((branch, around) for branch in branches)


def _find_head(name: str) -> str:
    """Return the stem of what the name of an operation is about: its last word, or the last before `by` or `for`."""
    start, *_ = re.split(r"\b(?:by|for|from|with)\b", split_identifiers(name).casefold().replace("_", " "))
    stems = _stem_words(start)
    return stems[-1] if stems else ""


#: How well an operation supplies an id, 0 to 1, and a condition for it. The first condition that is true counts.
SIGNS: Final[tuple[tuple[float, Callable[[Want, Operation], bool]], ...]] = (
    # GET /search/movie
    (1.0, lambda want, other: other.finds and want.noun in other.path_words | other.words),
    # GET /me for /users/{user_id}
    (0.9, lambda want, other: want.noun in _PERSON_NOUNS and _ends_in_self(other)),
    # GET /orders for /orders/{orderId}
    (0.9, lambda want, other: other.segments == want.collection and want.noun in other.last_words),
    # GET /search, whose description or result names albums
    (0.8, lambda want, other: other.finds and want.noun in other.results | other.text),
    # GET /users/me/orders
    (0.7, lambda want, other: want.noun in other.last_words),
    # GET /cart for /cart/items/{itemId}
    (0.6, lambda want, other: bool(want.collection) and other.segments in _list_parents(want)),
    # GET /movies/popular
    (0.5, lambda want, other: want.noun in other.path_words),
    # an order_id in the result, or the name get_order, unless the path ends in a variable
    (0.4, lambda want, other: want.noun in other.results or (bool(other.tail) and want.noun in other.words)),
    # GET /search, which does not say what it finds
    (0.3, lambda want, other: other.finds and other.path_words <= _FINDING),
)


def _ends_in_self(operation: Operation) -> bool:
    """Tell whether an operation is about the caller: `GET /me`."""
    return bool(operation.segments) and operation.segments[-1] in _SELF


def _list_parents(want: Want) -> tuple[tuple[str, ...], ...]:
    """Return the path before the variable of an id, and the path one segment shorter, unless they are empty."""
    collection = want.collection or ()
    return tuple(path for path in (collection, collection[:-1]) if path)


def _list_nouns(operation: Operation) -> set[str]:
    """Return the nouns that are things of the API: in the operation's path, and of the ids that it needs."""
    fixed_segments = (segment for segment in operation.segments if "{" not in segment)
    return {want.noun for want in operation.wants}.union(*map(_stem_words, fixed_segments))


class Suppliers:
    """Finds the operations of one API that supply an id."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        """Index the operations that change nothing; the others only tell which nouns the API has."""
        operations = list(operations)
        self._nouns = frozenset().union(*map(_list_nouns, operations))
        self._by_word: dict[str, list[Operation]] = defaultdict(list)  # word → operations that may supply it
        self._by_path: dict[tuple[str, ...], list[Operation]] = defaultdict(list)  # segments of the path → operations
        self._general: list[Operation] = []  # searches and operations on the caller itself, which may supply anything
        for operation in operations:
            if not operation.reads:
                continue
            self._by_path[operation.segments].append(operation)
            words = operation.path_words | operation.words | operation.results
            if operation.finds:  # the description of a search says what it finds
                words |= operation.text
            for word in words:
                self._by_word[word].append(operation)
            if operation.finds or _ends_in_self(operation):
                self._general.append(operation)

    def rank(self, want: Want, needed_by: Operation) -> list[tuple[float, str]]:
        """Return (fit, tool id) of the operations that supply an id, the best first. The fit tells how well, 0 to 1.

        `needed_by` is the operation that needs the id.
        """
        candidates = {other.tool_id: other for other in (*self._by_word[want.noun], *self._general)}
        for path in _list_parents(want):
            candidates.update((other.tool_id, other) for other in self._by_path[path])
        candidates.pop(needed_by.tool_id, None)
        rated = [
            (_rate_supplier(want, other), other.tool_id)
            for other in candidates.values()
            if want.noun not in {own_want.noun for own_want in other.wants}  # it would need such an id itself
            and self._may_hold(other, want.noun)
        ]
        suppliers = [(fit, tool_id) for fit, tool_id in rated if fit > 0]
        return sorted(suppliers, key=lambda supplier: (-supplier[0], supplier[1]))[:MAX_SUPPLIERS]

    def _may_hold(self, other: Operation, noun: str) -> bool:
        """Tell whether the id of a noun may be in the result of an operation, as far as its schema tells."""
        if other.holders is None:
            return True  # no schema tells what is in the result
        if noun in {around[-1] for around in other.holders if around}:
            return True  # an id belongs to the noun right around it
        if all(self._nouns.intersection(around) for around in other.holders):
            return False  # all ids belong to other things of the API, or there are none
        # There is an id in something that is not a thing of the API, such as `cast`. It belongs to what the path or the
        # name is about. An id without nouns around it may also belong to the caller, or to what a search finds.
        if noun in other.path_words or noun == other.head:
            return True
        is_general = other.finds and other.path_words <= _FINDING  # it does not say what it finds
        return () in other.holders and (is_general or (noun in _PERSON_NOUNS and _ends_in_self(other)))


def _rate_supplier(want: Want, other: Operation) -> float:
    """Rate how well an operation supplies an id; 0: it does not. Each id that it needs itself lowers the rating."""
    fit = next((fit for fit, is_true in SIGNS if is_true(want, other)), 0.0)
    return max(fit - COST_OF_WANT * len(other.wants), 0.0)
