"""The values that travel: Tool, Hit, Search; canonical JSON, fingerprint, and `render`, the one text form of a tool."""

from __future__ import annotations

import datetime
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from toolscout.errors import BadEntry

__all__ = [
    "STYLES",
    "Answer",
    "Explanation",
    "Hints",
    "Hit",
    "Search",
    "Tool",
    "Trace",
    "as_json",
    "canonical_json",
    "clean",
    "digest",
    "parameter_names",
    "render",
]

Answer = Literal["tools", "no_tool_needed", "no_tool_fits"]
MAX_DEPTH: Final = 64
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


class Hints(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a tool says of its own behaviour (MCP annotations). None: it says nothing; never trusted as a promise."""

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """One tool, wherever it came from.

    Attributes:
        id: `<source>/<id within the source>`: the identity; never shown to change.
        name: the raw name as its source spells it.
        description: what the tool says of itself; untrusted text.
        parameters: JSON Schema of the arguments (an object), or None if the source gives none.
        path: broad → narrow, ending with the tool's *parent*, never with the tool itself.
        parent: what ToolRerank calls the tool of an API: the whole path unless the source says otherwise.
        returns: JSON Schema or free text of the result, or None.
        tags: free labels.
        hints: read-only, destructive, idempotent, open-world.
        callable: whether toolscout knows how to call it.
        meta: whatever else the source gives; JSON values only.
    """

    id: str
    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    path: tuple[str, ...] = ()
    parent: tuple[str, ...] | None = None
    returns: Any = None
    tags: tuple[str, ...] = ()
    hints: Hints = Hints()
    callable: bool = False
    meta: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if self.parent is None:
            msgspec.structs.force_setattr(self, "parent", self.path)

    @property
    def source(self) -> str:
        """Name of the source: the id up to the first slash."""
        return self.id.partition("/")[0]

    @property
    def fingerprint(self) -> str:
        """Tagged hash of the canonical JSON of the whole definition; changes when anything in it does."""
        found = self.__dict__.get("_fingerprint")
        if found is None:
            found = self.__dict__["_fingerprint"] = digest("tool/1", self)
        return str(found)

    def __hash__(self) -> int:
        return hash(self.id)


class Hit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool in an answer: its id, its score (higher is better), why it is there, and, once filled in, the tool."""

    id: str
    score: float
    why: str = ""
    tool: Tool | None = None


class Trace(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one stage did: its name, wall seconds (shared evenly by a batch), and a note."""

    stage: str
    seconds: float
    note: str = ""


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where one tool stands for one query in one stage.

    Attributes:
        stage: whose view this is.
        rank: from 1; None: the stage cannot reach the tool.
        score: the stage's score for it.
        note: one remark.
        terms: what each shared word brings to the score, greatest first; only from sparse indexes.
        missing: words of the query that the tool lacks.
        parts: the views of inner stages.
    """

    stage: str
    rank: int | None
    score: float | None
    note: str = ""
    terms: dict[str, float] = {}
    missing: tuple[str, ...] = ()
    parts: tuple[Explanation, ...] = ()


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The record that travels through a pipeline; each stage returns a changed copy.

    Attributes:
        query: the request as given.
        k: how many tools are wanted at most.
        visible: which tools this caller may discover; None: all. Hashable, so that its mask is compiled once.
        rewrites: further wordings of the query, newest last.
        need: probability that any tool is needed, or None if nobody judged it.
        hits: best first; ties broken by tool id.
        answer: tools, no_tool_needed or no_tool_fits; None until a stage decides.
        reason: one sentence for an empty answer.
        coverage: estimated probability that the set is complete, or None.
        trace: what each stage did.
        search_id: the name of this search in the journal.
        deadline: on the clock of `time.monotonic`; a slow stage then returns what it has, and its trace says so.
        degraded: one sentence on what could not be done beside the answer, such as writing the journal.
    """

    query: str
    k: int = 5
    visible: Callable[[Tool], bool] | None = None
    rewrites: tuple[str, ...] = ()
    need: float | None = None
    hits: tuple[Hit, ...] = ()
    answer: Answer | None = None
    reason: str | None = None
    coverage: float | None = None
    trace: tuple[Trace, ...] = ()
    search_id: str | None = None
    deadline: float | None = None
    degraded: str | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the hits, best first."""
        return tuple(hit.id for hit in self.hits)

    @property
    def seconds(self) -> float:
        """Wall seconds of all stages together."""
        return sum(step.seconds for step in self.trace)


def as_json(search: Search) -> dict[str, Any]:
    """A search as the command line and the service print it (docs/formats.md, `search --json`)."""
    hits = []
    for hit in search.hits:
        tool = hit.tool or Tool(id=hit.id, name=hit.id.partition("/")[2])
        hits.append(
            {
                "id": hit.id,
                "name": tool.name,
                "path": tool.path,
                "score": hit.score,
                "description": tool.description,
                "parameters": tool.parameters,
                "callable": tool.callable,
                "why": hit.why,
            }
        )
    stages: dict[str, float] = {}
    for step in search.trace:
        stages[step.stage] = round(stages.get(step.stage, 0.0) + step.seconds * 1000, 3)
    return {
        "query": search.query,
        "search_id": search.search_id,
        "need": search.need,
        "answer": search.answer,
        "reason": search.reason,
        "coverage": search.coverage,
        "degraded": search.degraded,
        "hits": hits,
        "ms": {"total": round(search.seconds * 1000, 3), **stages},
    }


def clean(value: Any, depth: int = 0) -> Any:
    """A copy of `value` that JSON, SQLite and every encoder can carry.

    Lone surrogates become U+FFFD, non-finite numbers None, integers beyond 64 bits floats, keys text, dates ISO text.

    Raises:
        BadEntry: nested deeper than 64 levels, or of a type that JSON does not know.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", str(value))
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else clean(_as_float(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth >= MAX_DEPTH:
        raise BadEntry(f"expected at most {MAX_DEPTH} levels of nesting, found more: flatten the entry")
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        return {clean(str(key)): clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item, depth + 1) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    raise BadEntry(f"expected JSON values, found a {type(value).__name__}: leave it out or write it as text")


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces: equal values give equal bytes, whatever their key order.

    Raises:
        BadEntry: if the value cannot be JSON.
    """
    try:
        return msgspec.json.encode(value, order="deterministic")
    except (TypeError, ValueError, OverflowError, RecursionError):
        return msgspec.json.encode(clean(value), order="deterministic")


def digest(tag: str, value: Any) -> str:
    """32 hex digits of BLAKE2b over `tag` and the canonical JSON of `value`; the tag keeps kinds of things apart."""
    hashed = hashlib.blake2b(digest_size=16, person=b"toolscout")
    hashed.update(canonical_json([tag, value]))
    return hashed.hexdigest()


# --- the text form ----------------------------------------------------------------------------------------------------

STYLES: Final = ("name", "description", "parameters", "parameter_descriptions", "path", "short", "full", "raw")
MAX_TEXT: Final = 20_000


def parameter_names(schema: Any, depth: int = 3) -> Iterator[str]:
    """Names of the properties of a JSON Schema, outer before inner, at most `depth` levels down."""
    if depth == 0 or not isinstance(schema, Mapping):
        return
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        yield from (str(name) for name in properties)
        for inner in properties.values():
            yield from parameter_names(inner, depth - 1)
    for key in ("items", "additionalProperties"):
        yield from parameter_names(schema.get(key), depth - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(key)
        if isinstance(branches, list):
            for branch in branches:
                yield from parameter_names(branch, depth - 1)


def render(tool: Tool, style: str = "full") -> str:
    """The text of a tool. Every text that is embedded, indexed or trained on comes from here.

    Styles: `name`, `description`, `parameters` (their names), `parameter_descriptions`, `path` give one field; `short`
    is path, name, description and parameter names in one line; `full` adds the parameters' descriptions; `raw` is the
    source's own wording (title and text of a dataset entry), for comparison with published figures.

    Raises:
        ValueError: for a style that does not exist.
    """
    if style == "name":
        text = tool.name
    elif style == "description":
        text = tool.description
    elif style == "parameters":
        text = " ".join(dict.fromkeys(parameter_names(tool.parameters)))
    elif style == "parameter_descriptions":
        text = " ".join(_parameter_descriptions(tool).values())
    elif style == "path":
        text = " ".join(tool.path)
    elif style in ("short", "full"):
        text = _sentence(tool, with_descriptions=style == "full")
    elif style == "raw":
        title = tool.meta.get("title", tool.name)
        text = f"{title} {tool.meta.get('text', tool.description)}".strip()
    else:
        raise ValueError(f"expected a style of {', '.join(STYLES)}, found {style!r}")
    return text[:MAX_TEXT]


def _sentence(tool: Tool, *, with_descriptions: bool) -> str:
    parts = [" > ".join((*tool.path, tool.name)) + ":", tool.description]
    names = list(dict.fromkeys(parameter_names(tool.parameters)))
    if names:
        parts.append(f"({', '.join(names)})")
    if with_descriptions:
        parts += [f"{name}: {text}" for name, text in _parameter_descriptions(tool).items()]
    return " ".join(part for part in parts if part)


def _parameter_descriptions(tool: Tool) -> dict[str, str]:
    """Outermost parameter → its description, where it has one."""
    properties = (tool.parameters or {}).get("properties")
    found = {}
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        text = schema.get("description") if isinstance(schema, Mapping) else None
        if isinstance(text, str) and text:
            found[name] = text
    return found
