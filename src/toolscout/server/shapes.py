"""What travels over HTTP, as types: requests are checked against them, and the OpenAPI document is made of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from toolscout.learn.loop import Report
from toolscout.models.champion import Promotion
from toolscout.types import Answer, Explanation, Hints

__all__ = ["ALONE", "MOST_QUERIES"]

MOST_QUERIES = 64
ALONE = ("bm25", "dense", "hybrid")  # recipes that a request may name: there is nothing to fit and little to load

Query = Annotated[str, Meta(max_length=20_000, description="What is wanted, in words; `select:name` asks by name.")]
Count = Annotated[int, Meta(ge=1, le=100, description="How many tools at most; by default the setting `k`.")]
Id = Annotated[str, Meta(min_length=1, max_length=1_000)]
SearchId = Annotated[str, Meta(min_length=1, max_length=200, description="As the answer of a search gave it.")]
Text = Annotated[str, Meta(max_length=200)]
Instant = Annotated[str, Meta(max_length=40, description="ISO 8601, UTC; a beginning such as 2026-05 will do.")]
Page = Annotated[int, Meta(ge=1, le=500, description="How many entries.")]
Recipe = Annotated[
    Literal["bm25", "dense", "hybrid"] | None, Meta(description="By default that of the model, or the setting.")
]


# --- requests ---------------------------------------------------------------------------------------------------------


class Nothing(Struct, forbid_unknown_fields=True):
    """No parameters."""


class SearchRequest(Struct, forbid_unknown_fields=True):
    """One search."""

    query: Query
    k: Count | None = None
    recipe: Recipe = None
    trace: bool = False


class BatchRequest(Struct, forbid_unknown_fields=True):
    """Several searches on one state of the catalogue."""

    queries: Annotated[list[Query], Meta(min_length=1, max_length=MOST_QUERIES)]
    k: Count | None = None
    recipe: Recipe = None
    trace: bool = False


class WhyRequest(Struct, forbid_unknown_fields=True):
    """A query, the tool in question, and whether to try out which words would lift it (seconds, not milliseconds)."""

    query: Query
    tool: Id
    k: Count | None = None
    recipe: Recipe = None
    cures: bool = False


class CallRequest(Struct, forbid_unknown_fields=True):
    """A tool was called."""

    tool: Id
    ok: bool
    search_id: SearchId | None = None
    ms: Annotated[float, Meta(ge=0, le=1e12)] | None = None


class FeedbackRequest(Struct, forbid_unknown_fields=True):
    """Which tools were right, and which were wrong."""

    search_id: SearchId
    good: Annotated[list[Id], Meta(max_length=100)] = []
    bad: Annotated[list[Id], Meta(max_length=100)] = []


class ToolsRequest(Struct, forbid_unknown_fields=True):
    """A page of the catalogue."""

    within: Annotated[str, Meta(max_length=4_000, description="A node of the tree, as its `key` says.")] | None = None
    text: Annotated[str, Meta(max_length=200, description="Words that id or description contain.")] | None = None
    offset: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    limit: Page = 100


class TreeRequest(Struct, forbid_unknown_fields=True):
    """A node of the path tree; without a key, its root."""

    within: Annotated[str, Meta(max_length=4_000, description="A node, as its `key` says.")] | None = None
    offset: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    limit: Page = 200


class ToolRequest(Struct, forbid_unknown_fields=True):
    """One tool."""

    id: Id


class LintRequest(Struct, forbid_unknown_fields=True):
    """How many tools to ask for, a sample of the catalogue where it holds more."""

    most: Annotated[int, Meta(ge=1, le=1_000)] = 300


class PromoteRequest(Struct, forbid_unknown_fields=True):
    """A model of the shelf."""

    model: Annotated[str, Meta(min_length=1, max_length=200)]


class RollbackRequest(Struct, forbid_unknown_fields=True):
    """The champion to take back: one that somebody else has promoted meanwhile stays."""

    champion: Annotated[str, Meta(min_length=1, max_length=200)]


class JournalRequest(Struct, forbid_unknown_fields=True):
    """Filters of the journal; the newest come first."""

    event: Literal["search", "call", "feedback"] | None = None
    caller: Text | None = None
    search_id: SearchId | None = None
    text: (
        Annotated[str, Meta(max_length=200, description="What a query contains; for who sees all, also the id called.")]
        | None
    ) = None
    since: Instant | None = None
    until: Instant | None = None
    before: Annotated[int, Meta(ge=0, le=2**53, description="The `next` of the page before.")] | None = None
    limit: Page = 50


# --- answers ----------------------------------------------------------------------------------------------------------


class Failure(Struct):
    """What was expected, what was found, what to do."""

    error: str


class Done(Struct):
    """It was written."""

    recorded: bool


class FoundTool(Struct):
    """One tool of an answer."""

    id: str
    name: str
    path: list[str]
    score: float
    description: str
    parameters: dict[str, Any] | None
    callable: bool
    why: str


class Step(Struct):
    """What one stage did."""

    stage: str
    ms: float
    note: str


class SearchAnswer(Struct):
    """The answer to one search; `trace` only if it was asked for."""

    query: str
    search_id: str | None
    need: float | None
    answer: Answer | None
    reason: str | None
    coverage: float | None
    hits: list[FoundTool]
    ms: dict[str, float]
    degraded: str | None = None
    trace: list[Step] = []


class BatchAnswer(Struct):
    """One answer for each query, in order."""

    results: list[SearchAnswer]


class WhyAnswer(Struct):
    """Where a tool stands for a query, why, and what would lift it."""

    query: str
    tool: str
    shown: bool
    rank: int | None
    k: int
    stages: list[Explanation]
    matched: dict[str, float]
    missing: list[str]
    ahead: list[tuple[str, float]]
    causes: list[str]
    fixes: list[str]


class Row(Struct):
    """One line of a list of tools."""

    id: str
    name: str
    path: list[str]
    description: str


class ToolsAnswer(Struct):
    """A page of tools, and how many there are in all."""

    tools: list[Row]
    total: int
    offset: int
    generation: int


class Node(Struct):
    """A node of the path tree: its name, the key to ask for it, and how many tools lie below it."""

    name: str
    key: str
    tools: int
    leaf: bool


class TreeAnswer(Struct):
    """The nodes right below one."""

    path: list[str]
    tools: int
    nodes: list[Node]
    total: int
    generation: int


class ToolAnswer(Struct):
    """One tool, whole."""

    id: str
    name: str
    source: str
    description: str
    parameters: dict[str, Any] | None
    path: list[str]
    parent: list[str] | None
    returns: Any
    tags: list[str]
    hints: Hints
    callable: bool
    meta: dict[str, Any]
    fingerprint: str


class SourceRow(Struct):
    """One source: how many of its tools the caller may see; more of it for operators alone."""

    name: str
    kind: str
    state: str
    message: str
    read_at: str
    tools: int
    problems: int
    waiting: int


class SourcesAnswer(Struct):
    """All sources that hold a tool for the caller."""

    sources: list[SourceRow]
    generation: int


class JournalAnswer(Struct):
    """Events, newest first; `next` is the `before` of the page that follows."""

    events: list[dict[str, Any]]
    next: int | None


class Stats(Struct):
    """What the journal holds."""

    events: dict[str, int]
    first: str | None
    last: str | None
    callers: int
    searches_followed_by_a_successful_call: int


class LineProblem(Struct):
    """A line of an import that is no event."""

    entry: str
    message: str


class ImportAnswer(Struct):
    """How many events were new, and the first hundred of the lines that were none."""

    new: int
    problems: list[LineProblem]
    bad_lines: int


class ModelRow(Struct):
    """A fitted model, or what is wrong with it."""

    name: str
    problem: str | None = None
    recipe: str | None = None
    data: str | None = None
    n_tools: int | None = None
    encoder: str | None = None
    metrics: dict[str, float] = {}
    fit_seconds: float | None = None
    version: str | None = None
    serving: bool = False


class ModelsAnswer(Struct):
    """Which recipe and model serve now, why the promoted one does not if it cannot, and what lies on the shelf."""

    recipe: str
    model: str | None
    notice: str | None
    models: list[ModelRow]


class Serving(Struct):
    """Who was promoted, by which recipe searches that name nothing are answered from now on, and why by another one
    than the champion's, if it cannot serve.
    """

    champion: str | None
    recipe: str
    notice: str | None


class LearningAnswer(Struct):
    """Who was promoted, the present champion last; whether a setting overrules it; what the last run of learn found."""

    history: list[Promotion]
    overruled: bool
    last: Report | None


class ResultRow(Struct):
    """One result of `toolscout lab bench`."""

    dataset: str
    label: str
    recipe: str
    split: str
    n_queries: int
    n_tools: int
    metrics: dict[str, float]
    ci95: dict[str, list[float]]
    latency_ms: dict[str, float]


class ResultsAnswer(Struct):
    """All results of the folder, and the files that are none."""

    results: list[ResultRow]
    problems: list[LineProblem]


class Me(Struct):
    """Who asks, and what there is for them."""

    caller: str
    operator: bool
    version: str
    generation: int
    tools: int
    recipe: str
    k: int
    journal: bool
    results: bool


class Health(Struct):
    """Whether the process answers."""

    status: Literal["ok"]


class Ready(Struct):
    """Whether searches are answered at once."""

    ready: bool
    reason: str | None
