"""Defines the values Tool, Hit, Request and Answer, canonical JSON, fingerprints, and the text of a tool."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import itertools
import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal
from urllib.parse import unquote

import msgspec

from toolscout.errors import BadEntry

__all__ = [
    "KINDS",
    "STYLES",
    "Answer",
    "AnswerKind",
    "Count",
    "Explanation",
    "Hints",
    "Hit",
    "Kind",
    "OfKind",
    "Request",
    "Role",
    "Search",
    "Tool",
    "Trace",
    "as_json",
    "canonical_json",
    "clean",
    "digest",
    "follow_reference",
    "gather_properties",
    "keep_kind",
    "parameter_names",
    "render",
]

Kind = Literal["tool", "skill", "agent"]
KINDS: Final[tuple[Kind, ...]] = ("tool", "skill", "agent")
Count = int | Literal["auto"]
"""How many tools are wanted; `auto`: as many as the coverage needs."""
AnswerKind = Literal["tools", "no_tool_needed", "no_tool_fits"]
Role = Literal["match", "prerequisite"]
MAX_JSON_DEPTH: Final = 64
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


class Hints(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool's claims about its behaviour (MCP annotations). None means no claim. Never trust them for security.

    Attributes:
        read_only: a call changes nothing.
        destructive: a call may delete or overwrite, not only add.
        idempotent: a second call with the same arguments changes nothing more.
        open_world: a call reaches systems outside the server.
    """

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

        Otherwise the fingerprint of a new tool would differ from the fingerprint of the same tool when it is read back.
        """
        for name in ("path", "tags", "requires"):
            if getattr(self, name) == ():
                msgspec.structs.force_setattr(self, name, ())

    @functools.cached_property
    def source(self) -> str:
        """Name of the source: the id up to the first slash."""
        return self.id.partition("/")[0]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Tagged hash of the definition's canonical JSON; it changes with any part of the definition."""
        return digest("tool/1", self)

    @property
    def is_for_model(self) -> bool:
        """Whether a model may use the tool. The page of a tool (MCP Apps) can say that only the page uses it."""
        page = self.meta.get("ui")
        users = page.get("visibility") if isinstance(page, dict) else None
        return "model" in users if isinstance(users, list) else True

    def __hash__(self) -> int:
        return hash(self.id)


@dataclasses.dataclass(frozen=True)
class OfKind:
    """A predicate for `Request.visible`: true for visible tools of one kind.

    Attributes:
        kind: the kind.
        visible: what the caller may discover. None: everything.
    """

    kind: Kind
    visible: Callable[[Tool], bool] | None = None

    def __call__(self, tool: Tool) -> bool:
        """Tell whether a search may return the tool."""
        return tool.kind == self.kind and (self.visible is None or self.visible(tool))


def keep_kind(kind: Kind | None, visible: Callable[[Tool], bool] | None = None) -> Callable[[Tool], bool] | None:
    """Return the predicate for visible tools of a kind; if `kind` is None, `visible` itself."""
    return visible if kind is None else OfKind(kind, visible)


class Hit(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One tool in an answer.

    A search makes hundreds of them. None is ever part of a cycle, so the garbage collector need not look at them.

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
    """What one stage did for a search: its name, wall seconds (of a batch, an equal share), and a note."""

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


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks for.

    Attributes:
        query: the request as given.
        k: maximum number of tools.
        aim: coverage at which the answer may end with fewer than k tools (`k="auto"` sets it); None: it has k.
        visible: which tools the caller may discover; None for all. Hashable, so that its mask is compiled once.
        deadline: on the clock of `time.monotonic`; a slow stage then returns its result so far, and its trace says so.
        split: whether the query may be split into steps.
        caller: the caller's name for the journal; None: the setting `caller`.
    """

    query: str
    k: int = 5
    aim: float | None = None
    visible: Callable[[Tool], bool] | None = None
    deadline: float | None = None
    split: bool = True
    caller: str | None = None


class Answer(Request, frozen=True, kw_only=True):
    """A request with what the stages of a pipeline have found out; each stage returns a changed copy.

    Attributes:
        hits: best first; ties broken by tool id.
        kind: tools, no_tool_needed or no_tool_fits; None until a stage decides.
        reason: one sentence for an empty answer.
        steps: the steps of a compound request; empty: it is one need.
        uncovered: steps that no tool seems to fit; their nearest tools may still be among the hits.
        trace: the work of each stage.
        need: probability that the query needs a tool, or None if no stage estimated it.
        coverage: with an `aim`: estimated probability that the answer has every tool that the request needs. It decides
            where the answer ends, and is too high in catalogues of many sources. None: no aim, or not estimated.
        rewrites: further wordings of the query, newest last.
        weak: the hits of a search that abstained, for callers who know that they need a tool.
        doubt: the sentence at the end of `reason` on why the search abstained, or why its hits are of low confidence;
            None: there is no such reason.
        search_id: id of this search in the journal.
        degraded: what could not be done for the answer or beside it: a language model that did not help, a journal that
            cannot be written.
    """

    hits: tuple[Hit, ...] = ()
    kind: AnswerKind | None = None
    reason: str | None = None
    steps: tuple[str, ...] = ()
    uncovered: tuple[str, ...] = ()
    trace: tuple[Trace, ...] = ()
    need: float | None = None
    coverage: float | None = None
    rewrites: tuple[str, ...] = ()
    weak: tuple[Hit, ...] = ()
    doubt: str | None = None
    search_id: str | None = None
    degraded: str | None = None

    @property
    def answer(self) -> AnswerKind | None:
        """The kind, under its name in version 0.2; the JSON keeps that name."""
        warnings.warn("Search.answer is now Answer.kind", DeprecationWarning, stacklevel=2)
        return self.kind

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the hits, best first."""
        return tuple(hit.id for hit in self.hits)

    @property
    def serves_a_step(self) -> bool:
        """Whether the request has several steps, and a tool fits one of them."""
        return bool(self.hits) and any(step not in self.uncovered for step in self.steps)

    @property
    def is_doubtful(self) -> bool:
        """Whether the hits are of low confidence."""
        return bool(self.hits) and self.doubt is not None

    @property
    def seconds(self) -> float:
        """Wall seconds of all stages together."""
        return sum(work.seconds for work in self.trace)


Search = Answer
"""The name of `Answer` in version 0.2, when one record was both the request and its answer."""


def as_json(search: Answer) -> dict[str, Any]:
    """Convert an answer to the JSON of command line and service (docs/reference/formats.md, `search --json`)."""
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
    stage_ms: dict[str, float] = {}
    for work in search.trace:  # a stage may have worked several times
        stage_ms[work.stage] = round(stage_ms.get(work.stage, 0.0) + work.seconds * 1000, 3)
    return {
        "query": search.query,
        "search_id": search.search_id,
        "need": search.need,
        "answer": search.kind,
        "reason": search.reason,
        "low_confidence": search.is_doubtful,
        "coverage": search.coverage,
        "degraded": search.degraded,
        "steps": search.steps,
        "uncovered": search.uncovered,
        "hits": hits,
        "ms": {"total": round(search.seconds * 1000, 3), **stage_ms},
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
        return str(value) if value.isascii() else _SURROGATES.sub("\ufffd", str(value))  # of a subclass too
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    if isinstance(value, (int, float)):
        with contextlib.suppress(OverflowError):  # of an integer that no float can be
            return float(value) if math.isfinite(value) else None
        return None
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


def canonical_json(value: object) -> bytes:
    """Encode as UTF-8 JSON with sorted keys and no spaces, so that equal values give equal bytes.

    Raises:
        BadEntry: if the value cannot be JSON.
    """
    try:
        return msgspec.json.encode(value, order="deterministic")
    except (TypeError, ValueError, OverflowError, RecursionError):  # few values need the copy that `clean` makes
        return msgspec.json.encode(clean(value), order="deterministic")


def digest(tag: str, value: Any) -> str:
    """Hash `tag` and the canonical JSON of `value`: BLAKE2b, 32 hex digits. The tag separates kinds of values."""
    hashed = hashlib.blake2b(digest_size=16, person=b"toolscout")
    hashed.update(canonical_json([tag, value]))
    return hashed.hexdigest()


# --- the text form ----------------------------------------------------------------------------------------------------

STYLES: Final = (
    "name", "description", "sentence", "parameters", "parameter_descriptions", "path", "short", "full", "raw",
)  # fmt: skip
MAX_RENDERED_CHARS: Final = 20_000
MAX_BODY_WORDS: Final = 30  # of the instructions of a skill that are searched; chosen on dev (LAB.md, 2026-11-27)
_BODY_WORD: Final = re.compile(r"[^\W\d_]{4,}|[\u3040-\u9fff]{2,}")
MAX_REFERENCES: Final = 20  # that are followed, each leading to the next
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s")


def follow_reference(schema: object, root: object) -> Mapping[str, object]:
    """Replace the reference of a schema (`"$ref": "#/…"`) by the part of `root` that it names.

    Keywords beside the reference are kept; if it leads nowhere, only these. Returns {} if `schema` is no object.
    """
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target = _find_target(reference, root)
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        if not isinstance(target, Mapping) or target is schema:  # the reference leads nowhere, or to itself
            return beside
        schema = {**target, **beside}  # if the target has a reference too, the next round follows it
    return {}


def _find_target(reference: str, root: object) -> object:
    """Return the part of `root` that a reference such as `#/$defs/Name` names (RFC 6901). None: there is none."""
    if not reference.startswith("#"):  # it names another document
        return None
    target = root
    _, *names = unquote(reference).split("/")
    for name in names:
        target = _step_into(target, name.replace("~1", "/").replace("~0", "~"))
    return target


def _step_into(node: object, name: str) -> object:
    """Return the value of an object under `name`, or the entry of a list at that number. None: there is none."""
    if isinstance(node, list) and name.isdecimal() and len(name) < 5:  # no list of schemas has 10,000 entries
        return node[int(name)] if int(name) < len(node) else None
    return node.get(name) if isinstance(node, Mapping) else None


def _follow_once(schema: object, root: object, followed: set[str]) -> Mapping[str, object]:
    """Return `follow_reference` of a schema, and note its reference in `followed`. Empty if that was noted before."""
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    if isinstance(reference, str):
        if reference in followed:
            return {}
        followed.add(reference)
    return follow_reference(schema, root)


def gather_properties(schema: object, root: object = None) -> tuple[dict[str, object], list[str]]:
    """Return the properties of a schema of arguments, also those of its alternatives, and the required names.

    A name is required if the schema, a part of its `allOf`, or each of its alternatives requires it. References are
    followed into `root`, by default the schema itself; each once.
    """
    return _gather(schema, schema if root is None else root, set())


def _gather(schema: object, root: object, followed: set[str]) -> tuple[dict[str, object], list[str]]:
    """Do what `gather_properties` says, except for references in `followed`; add those that are followed now."""
    schema = _follow_once(schema, root, followed)
    own_properties, own_names = schema.get("properties"), schema.get("required")
    properties = dict(own_properties) if isinstance(own_properties, Mapping) else {}
    required = [name for name in own_names if isinstance(name, str)] if isinstance(own_names, (list, tuple)) else []
    for key in ("allOf", "anyOf", "oneOf"):
        branches = schema.get(key)
        if not isinstance(branches, list):
            continue
        gathered = [_gather(branch, root, followed) for branch in branches]
        for branch_properties, _ in gathered:
            for name, inner in branch_properties.items():
                properties.setdefault(name, inner)
        names_by_branch = [names for _, names in gathered]
        # All branches of `allOf` apply at once, but only one of the others.
        required += itertools.chain(*names_by_branch) if key == "allOf" else _intersect(names_by_branch)
    return properties, list(dict.fromkeys(required))


def _intersect(lists: list[list[str]]) -> list[str]:
    """Return the names that are in each list, in the order of the first."""
    if not lists:
        return []
    first, *others = lists
    common = set(first).intersection(*others)
    return [name for name in first if name in common]


def parameter_names(schema: object, depth: int = 3) -> Iterator[str]:
    """Yield the property names of a JSON Schema, outer before inner, at most `depth` levels deep.

    References within the schema are followed, each once. A name may come several times.
    """
    if isinstance(schema, Mapping) and schema.keys() & {"$ref", "allOf", "anyOf", "oneOf"}:
        # The outermost names of all alternatives come first. The walk of the whole schema yields them again.
        properties, _ = gather_properties(schema)
        yield from _walk_names({"properties": properties}, schema, depth, set())
    yield from _walk_names(schema, schema, depth, set())


def _walk_names(schema: object, root: object, depth: int, followed: set[str]) -> Iterator[str]:
    """Do what `parameter_names` says for a part of `root`, except for references in `followed`."""
    if depth == 0 or not isinstance(schema, Mapping):
        return
    schema = _follow_once(schema, root, followed)
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        yield from (str(name) for name in properties)
        for inner in properties.values():
            yield from _walk_names(inner, root, depth - 1, followed)
    for key in ("items", "additionalProperties"):
        yield from _walk_names(schema.get(key), root, depth - 1, followed)
    for key in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(key)
        if isinstance(branches, list):
            for branch in branches:
                yield from _walk_names(branch, root, depth - 1, followed)


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
        text = _describe(tool)
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


def _describe(tool: Tool) -> str:
    """Return the description of a tool; for a skill, with the most frequent words of its instructions.

    All words of the instructions would be too many: a long text shares some with any request.
    """
    if tool.kind != "skill":
        return tool.description
    words = _BODY_WORD.findall(str(tool.meta.get("instructions", ""))[:MAX_RENDERED_CHARS].casefold())
    return " ".join([tool.description, *(word for word, _ in Counter(words).most_common(MAX_BODY_WORDS))]).strip()


def _render_sentence(tool: Tool, *, with_descriptions: bool) -> str:
    """Return a tool as "path > name: description (parameters)", for encoders and rankers."""
    parts = [" > ".join((*tool.path, tool.name)) + ":", _describe(tool)]
    names = list(dict.fromkeys(parameter_names(tool.parameters)))
    if names:
        parts.append(f"({', '.join(names)})")
    if with_descriptions:
        parts += [f"{name}: {text}" for name, text in _join_parameter_descriptions(tool).items()]
    return " ".join(part for part in parts if part)


def _join_parameter_descriptions(tool: Tool) -> dict[str, str]:
    """Collect the descriptions of the outermost parameters, by name."""
    properties, _ = gather_properties(tool.parameters)
    descriptions = {}
    for name, schema in properties.items():
        text = follow_reference(schema, tool.parameters).get("description")
        if isinstance(text, str) and text:
            descriptions[name] = text
    return descriptions
