"""Defines the values Tool, Hit and Search, canonical JSON, fingerprints, and the text of a tool."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from toolscout.errors import BadEntry

__all__ = [
    "KINDS",
    "STYLES",
    "Answer",
    "Count",
    "Explanation",
    "Hints",
    "Hit",
    "Kind",
    "OfKind",
    "Role",
    "Search",
    "Tool",
    "Trace",
    "as_json",
    "canonical_json",
    "clean",
    "digest",
    "keep_kind",
    "parameter_names",
    "render",
]

Kind = Literal["tool", "skill", "agent"]
KINDS: Final[tuple[Kind, ...]] = ("tool", "skill", "agent")
Count = int | Literal["auto"]
"""How many tools are wanted; `auto`: as many as the coverage needs."""
Answer = Literal["tools", "no_tool_needed", "no_tool_fits"]
Role = Literal["match", "prerequisite"]
MAX_JSON_DEPTH: Final = 64
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


class Hints(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool's claims about its behaviour (MCP annotations). None means no claim. Never trust them for security."""

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """One tool, wherever it came from.

    Attributes:
        id: `<source>/<id within the source>`, the identity.
        name: the name as the source spells it.
        description: the tool's own description; untrusted text.
        parameters: JSON Schema of the arguments (an object), or None if the source gives none.
        path: broad → narrow, ending with the tool's *parent*, never with the tool itself.
        parent: ToolRerank's "tool" of an API; the entire path unless the source states another.
        returns: JSON Schema or free text of the result, or None.
        tags: free labels.
        hints: read-only, destructive, idempotent, open-world.
        callable: whether toolscout can call it.
        meta: further values of the source; JSON only.
        kind: tool, or skill (instructions to read) or agent (another agent to ask). Only tools can be called.
        requires: tools of the same source that must be called first, by name or id, as the source declares them.
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
    kind: Kind = "tool"
    requires: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.parent is None:
            msgspec.structs.force_setattr(self, "parent", self.path)
        if sys.version_info < (3, 11):  # `tuple(iterator)` may give an empty tuple that is not `()`
            self._unify_empty_tuples()

    def _unify_empty_tuples(self) -> None:
        """Make every empty tuple the default one, which is left out of the JSON by its identity.

        Otherwise the fingerprint of a new tool would differ from that of the same tool read back.
        """
        for name in ("path", "tags", "requires"):
            if getattr(self, name) == ():
                msgspec.structs.force_setattr(self, name, ())

    @property
    def source(self) -> str:
        """Name of the source: the id up to the first slash."""
        return self.id.partition("/")[0]

    @property
    def fingerprint(self) -> str:
        """Tagged hash of the definition's canonical JSON; it changes with any part of the definition."""
        fingerprint = self.__dict__.get("_fingerprint")
        if fingerprint is None:
            fingerprint = self.__dict__["_fingerprint"] = digest("tool/1", self)
        return str(fingerprint)

    def __hash__(self) -> int:
        return hash(self.id)


@dataclasses.dataclass(frozen=True)
class OfKind:
    """Which tools a search may return: those of one kind, of those that are visible. A predicate for `Search.visible`.

    Attributes:
        kind: the kind.
        visible: what the caller may discover. None: everything.
    """

    kind: Kind
    visible: Callable[[Tool], bool] | None = None

    def __call__(self, tool: Tool) -> bool:
        """Return whether a search may return the tool."""
        return tool.kind == self.kind and (self.visible is None or self.visible(tool))


def keep_kind(kind: Kind | None, visible: Callable[[Tool], bool] | None = None) -> Callable[[Tool], bool] | None:
    """Return the predicate for the visible tools of a kind; without a kind, `visible` itself."""
    return visible if kind is None else OfKind(kind, visible)


class Hit(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One tool in an answer. A search makes hundreds, and none is part of a cycle, so the collector leaves them out.

    Attributes:
        id: of the tool.
        score: higher is better.
        why: which stages found it.
        tool: the tool, once loaded.
        step: the step of a compound request that it serves; None: the whole request.
        role: `match`, or `prerequisite` if a match needs its output.
        similar: ids of tools that do the same, which this hit stands for.
        coverage: estimated coverage of the answer that ends with this hit; None: not estimated.
    """

    id: str
    score: float
    why: str = ""
    tool: Tool | None = None
    step: str | None = None
    role: Role = "match"
    similar: tuple[str, ...] = ()
    coverage: float | None = None


class Trace(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The work of one stage: its name, wall seconds (divided evenly among a batch), and a note."""

    stage: str
    seconds: float
    note: str = ""


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rank and score of one tool for one query in one stage.

    Attributes:
        stage: name of the stage.
        rank: from 1; None if the stage cannot return the tool.
        score: the stage's score for the tool.
        note: a remark.
        terms: contribution of each shared word to the score, highest first; only from sparse indexes.
        missing: words of the query that the tool lacks.
        parts: the explanations of inner stages.
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
        k: maximum number of tools.
        aim: the coverage from which the answer ends before it has k tools; None: it does not (`k="auto"` sets it).
        visible: which tools the caller may discover; None for all. Hashable, so that its mask is compiled once.
        rewrites: further wordings of the query, newest last.
        need: probability that the query needs a tool, or None if no stage estimated it.
        hits: best first; ties broken by tool id.
        answer: tools, no_tool_needed or no_tool_fits; None until a stage decides.
        reason: one sentence for an empty answer.
        coverage: estimated probability that the answer holds every tool that the request needs; None: not estimated.
        trace: the work of each stage.
        search_id: id of this search in the journal.
        deadline: on the clock of `time.monotonic`; a slow stage then returns its result so far, and its trace says so.
        degraded: what could not be done for the answer or beside it: a language model that did not help, a journal that
            cannot be written.
        split: whether the query may be split into steps.
        steps: the steps of a compound request, with references completed; empty: it is one need.
        uncovered: steps that no tool seems to fit; their nearest tools may still be among the hits.
        weak: the hits of a search that abstained, for callers who know that they need a tool.
        doubt: the sentence at the end of `reason` on why the search abstained; None: no hits were dropped for it.
    """

    query: str
    k: int = 5
    aim: float | None = None
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
    split: bool = True
    steps: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()
    weak: tuple[Hit, ...] = ()
    doubt: str | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the hits, best first."""
        return tuple(hit.id for hit in self.hits)

    @property
    def serves_a_step(self) -> bool:
        """Whether the request has several steps, and a tool fits one of them."""
        return bool(self.hits) and any(step not in self.uncovered for step in self.steps)

    @property
    def seconds(self) -> float:
        """Wall seconds of all stages together."""
        return sum(step.seconds for step in self.trace)


def as_json(search: Search) -> dict[str, Any]:
    """Convert a search to the JSON of the command line and the service (docs/reference/formats.md, `search --json`)."""
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
                "step": hit.step,
                "role": hit.role,
                "similar": hit.similar,
                "kind": tool.kind,
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
        "steps": search.steps,
        "uncovered": search.uncovered,
        "hits": hits,
        "ms": {"total": round(search.seconds * 1000, 3), **stages},
    }


def clean(value: Any, depth: int = 0) -> Any:
    """Copy `value` into a form that JSON, SQLite and every encoder accept.

    Lone surrogates become U+FFFD, non-finite numbers None, integers beyond 64 bits floats, keys text, dates ISO text.

    Raises:
        BadEntry: if it is nested deeper than 64 levels, or contains a type unknown to JSON.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value) if value.isascii() else _SURROGATES.sub("\ufffd", str(value))
    if isinstance(value, (int, float)):
        return _clean_number(value)
    if depth >= MAX_JSON_DEPTH:
        raise BadEntry(f"expected at most {MAX_JSON_DEPTH} levels of nesting, found more: flatten the entry")
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, (dict, Mapping)):
        return {clean(str(key)): clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item, depth + 1) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    raise BadEntry(f"expected JSON values, found a {type(value).__name__}: leave it out or write it as text")


def _clean_number(value: int | float) -> int | float | None:
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def canonical_json(value: Any) -> bytes:
    """Encode as UTF-8 JSON with sorted keys and no spaces, so that equal values give equal bytes.

    Raises:
        BadEntry: if the value cannot be JSON.
    """
    try:
        return msgspec.json.encode(value, order="deterministic")
    except (TypeError, ValueError, OverflowError, RecursionError):
        return msgspec.json.encode(clean(value), order="deterministic")


def digest(tag: str, value: Any) -> str:
    """Hash `tag` and the canonical JSON of `value`: BLAKE2b, 32 hex digits. The tag separates kinds of values."""
    hashed = hashlib.blake2b(digest_size=16, person=b"toolscout")
    hashed.update(canonical_json([tag, value]))
    return hashed.hexdigest()


# --- the text form ----------------------------------------------------------------------------------------------------

STYLES: Final = (
    *("name", "description", "sentence", "parameters", "parameter_descriptions", "path"),
    *("short", "full", "raw"),
)
MAX_RENDERED_CHARS: Final = 20_000
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s")


def parameter_names(schema: Any, depth: int = 3) -> Iterator[str]:
    """Yield the property names of a JSON Schema, outer before inner, at most `depth` levels deep."""
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
    """Render the text of a tool. Every text that is embedded, indexed or trained on comes from here.

    Styles: `name`, `description`, `parameters` (their names), `parameter_descriptions` and `path` give one field.
    `sentence` is the first sentence of the description, or the name where there is none.
    `short` is path, name, description and parameter names in one line. `full` adds the parameters' descriptions. `raw`
    is the source's own wording (title and text of a dataset entry), for comparison with published figures.

    Raises:
        ValueError: for an unknown style.
    """
    if style == "name":
        text = tool.name
    elif style == "description":
        text = tool.description
    elif style == "sentence":
        text = _SENTENCE_END.split(" ".join(tool.description.split()), maxsplit=1)[0] or tool.name
    elif style == "parameters":
        text = " ".join(dict.fromkeys(parameter_names(tool.parameters)))
    elif style == "parameter_descriptions":
        text = " ".join(_join_parameter_descriptions(tool).values())
    elif style == "path":
        text = " ".join(tool.path)
    elif style in ("short", "full"):
        text = _render_sentence(tool, with_descriptions=style == "full")
    elif style == "raw":
        title = tool.meta.get("title", tool.name)
        text = f"{title} {tool.meta.get('text', tool.description)}".strip()
    else:
        raise ValueError(f"expected a style of {', '.join(STYLES)}, found {style!r}")
    return text[:MAX_RENDERED_CHARS]


def _render_sentence(tool: Tool, *, with_descriptions: bool) -> str:
    parts = [" > ".join((*tool.path, tool.name)) + ":", tool.description]
    names = list(dict.fromkeys(parameter_names(tool.parameters)))
    if names:
        parts.append(f"({', '.join(names)})")
    if with_descriptions:
        parts += [f"{name}: {text}" for name, text in _join_parameter_descriptions(tool).items()]
    return " ".join(part for part in parts if part)


def _join_parameter_descriptions(tool: Tool) -> dict[str, str]:
    """Collect the descriptions of the outermost parameters, by name."""
    properties = (tool.parameters or {}).get("properties")
    descriptions = {}
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        text = schema.get("description") if isinstance(schema, Mapping) else None
        if isinstance(text, str) and text:
            descriptions[name] = text
    return descriptions
