"""The types of requests and answers. Requests are validated against them; the OpenAPI document shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from toolscout.checks.history import CheckRun
from toolscout.home.catalogue.store import Changes
from toolscout.home.journal.trends import DayCounts, Unanswered
from toolscout.home.models.champion import Promotion
from toolscout.learn.loop import Report
from toolscout.search.why import Trial
from toolscout.types import Answer, Explanation, Hints, Kind, Role

__all__ = ["MAX_PASTED_TOOLS", "MAX_QUERIES_PER_BATCH", "REQUEST_RECIPES"]

MAX_PASTED_TOOLS = 2_000
MAX_QUERIES_PER_BATCH = 64
REQUEST_RECIPES = ("bm25", "dense", "hybrid", "scout")  # that a request may name: they need no fit and load fast

Query = Annotated[
    str, Meta(max_length=20_000, description="What the caller wants to do, in words; `select:name` searches by name.")
]
Count = Annotated[
    int, Meta(ge=1, le=100, description="Maximum number of tools; by default the setting `k`. `auto`: see `coverage`.")
]
Id = Annotated[str, Meta(min_length=1, max_length=1_000)]
SearchId = Annotated[str, Meta(min_length=1, max_length=200, description="From the answer of a search.")]
Text = Annotated[str, Meta(max_length=200)]
SourceText = Annotated[str, Meta(max_length=200, description="The name of a source.")]
INSTANT_PATTERN = r"^\d{4}(-\d\d){0,2}([T ].*)?$"
Instant = Annotated[
    str,
    Meta(max_length=40, pattern=INSTANT_PATTERN, description="ISO 8601, UTC; a prefix such as 2026-05 is enough."),
]
Page = Annotated[int, Meta(ge=1, le=500, description="Number of entries.")]
Deadline = Annotated[float, Meta(gt=0, le=600, description="Seconds until the answer is wanted.")] | None
Recipe = Annotated[
    Literal["bm25", "dense", "hybrid", "scout"] | None,
    Meta(description="By default the recipe of the model, or the setting `recipe`."),
]


# --- requests ---------------------------------------------------------------------------------------------------------


class Nothing(Struct, forbid_unknown_fields=True):
    """No parameters."""


class SearchRequest(Struct, forbid_unknown_fields=True):
    """One search."""

    query: Query
    k: Count | Literal["auto"] | None = None
    recipe: Recipe = None
    trace: bool = False
    kind: Kind | None = None
    deadline: Deadline = None
    preview: Annotated[bool, Meta(description="Not written to the journal: for a person who is still typing.")] = False
    matched: Annotated[bool, Meta(description="Also list the words of each tool that match the query.")] = False


class BatchRequest(Struct, forbid_unknown_fields=True):
    """Several searches on one state of the catalogue."""

    queries: Annotated[list[Query], Meta(min_length=1, max_length=MAX_QUERIES_PER_BATCH)]
    k: Count | Literal["auto"] | None = None
    recipe: Recipe = None
    trace: bool = False
    kind: Kind | None = None
    deadline: Deadline = None


class WhyRequest(Struct, forbid_unknown_fields=True):
    """A query, a tool, and whether to try words that would lift the tool (this takes seconds)."""

    query: Query
    tool: Id
    k: Count | None = None
    recipe: Recipe = None
    cures: bool = False
    words: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=80)]],
        Meta(max_length=10, description="Words to try out in the description of the tool, instead of `cures`."),
    ] = []


class CallRequest(Struct, forbid_unknown_fields=True):
    """A tool was called."""

    tool: Id
    ok: bool
    search_id: SearchId | None = None
    ms: Annotated[float, Meta(ge=0, le=1e12)] | None = None


class FeedbackRequest(Struct, forbid_unknown_fields=True):
    """Which tools of an answer were right and which were wrong."""

    search_id: SearchId
    good: Annotated[list[Id], Meta(max_length=100)] = []
    bad: Annotated[list[Id], Meta(max_length=100)] = []
    withdrawn: Annotated[
        list[Id], Meta(max_length=100, description="Tools whose earlier feedback on this search no longer counts.")
    ] = []


NodeKey = Annotated[str, Meta(max_length=4_000, description="The `key` of a node of the tree.")]
FilterWords = Annotated[str, Meta(max_length=200, description="Words that the id or the description contains.")]
ToolState = Annotated[
    Literal["searched", "waiting", "disabled", "hidden"],
    Meta(
        description="Whether tools are searched, or why not. All but `searched` are for operators who see everything."
    ),
]


class ToolsRequest(Struct, forbid_unknown_fields=True):
    """A page of the catalogue."""

    within: NodeKey | None = None
    text: FilterWords | None = None
    source: SourceText | None = None
    kind: Kind | None = None
    parent: NodeKey | None = None
    state: ToolState = "searched"
    offset: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    limit: Page = 100


class FacetsRequest(Struct, forbid_unknown_fields=True):
    """The filters of a list of tools, for which the values of each facet are counted."""

    text: FilterWords | None = None
    source: SourceText | None = None
    kind: Kind | None = None
    parent: NodeKey | None = None
    state: ToolState = "searched"
    limit: Page = 200


class ExamplesRequest(Struct, forbid_unknown_fields=True):
    """The number of examples."""

    most: Annotated[int, Meta(ge=1, le=12)] = 5


class TreeRequest(Struct, forbid_unknown_fields=True):
    """A node of the path tree; without a key, its root."""

    within: Annotated[str, Meta(max_length=4_000, description="The `key` of a node.")] | None = None
    offset: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    limit: Page = 200


class ToolRequest(Struct, forbid_unknown_fields=True):
    """One tool."""

    id: Id


class LintRequest(Struct, forbid_unknown_fields=True):
    """The number of tools to check, a sample if the catalogue holds more."""

    most: Annotated[int, Meta(ge=1, le=1_000)] = 300


class PromoteRequest(Struct, forbid_unknown_fields=True):
    """A fitted model in the home."""

    model: Annotated[str, Meta(min_length=1, max_length=200)]


class RollbackRequest(Struct, forbid_unknown_fields=True):
    """The champion to roll back. Nothing happens if another was promoted in the meantime."""

    champion: Annotated[str, Meta(min_length=1, max_length=200)]


class JournalRequest(Struct, forbid_unknown_fields=True):
    """Filters of the journal; the newest come first."""

    event: Literal["search", "call", "feedback"] | None = None
    caller: Text | None = None
    search_id: SearchId | None = None
    text: (
        Annotated[
            str,
            Meta(max_length=200, description="Text in a query; for callers who see everything, also in the called id."),
        ]
        | None
    ) = None
    since: Instant | None = None
    until: Instant | None = None
    before: Annotated[int, Meta(ge=0, le=2**53, description="The `next` of the previous page.")] | None = None
    limit: Page = 50


SourceName = Annotated[str, Meta(min_length=1, max_length=200)]
Days = Annotated[int, Meta(ge=1, le=400, description="Days back from now.")]


class AddRequest(Struct, forbid_unknown_fields=True):
    """A source: the address of an MCP server, an OpenAPI document or an agent card, or the tools themselves."""

    locator: Annotated[str, Meta(max_length=2_000, description="An address that begins with http:// or https://.")] = ""
    tools: Annotated[
        list[dict[str, Any]], Meta(max_length=MAX_PASTED_TOOLS, description="Function schemas. They need a `name`.")
    ] = []
    name: Annotated[str, Meta(max_length=200, description="Name of the source; by default derived.")] = ""
    kind: Literal["mcp", "openapi", "agents"] | None = None


class SyncRequest(Struct, forbid_unknown_fields=True):
    """Names of sources; empty: all."""

    sources: Annotated[list[SourceName], Meta(max_length=1_000)] = []


class EnableRequest(Struct, forbid_unknown_fields=True):
    """Whether a source is searched."""

    source: SourceName
    enabled: bool


class Approval(Struct, forbid_unknown_fields=True):
    """A definition that was read. It is approved only if it is still the one that waits."""

    id: Id
    fingerprint: Annotated[str, Meta(min_length=1, max_length=100)]


class ApproveRequest(Struct, forbid_unknown_fields=True):
    """Definitions to approve."""

    approvals: Annotated[list[Approval], Meta(min_length=1, max_length=500)]


class ApprovalsRequest(Struct, forbid_unknown_fields=True):
    """A page of the definitions that wait."""

    source: SourceName | None = None
    offset: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class TrendsRequest(Struct, forbid_unknown_fields=True):
    """A span of the journal."""

    days: Days = 30


class UnansweredRequest(Struct, forbid_unknown_fields=True):
    """Which queries without a tool are listed."""

    days: Days = 30
    abstained: Annotated[bool, Meta(description="Those turned away on purpose, instead of those without a result.")] = (
        False
    )
    limit: Page = 20


class SelftestRequest(Struct, forbid_unknown_fields=True):
    """The maximum number of synthetic queries."""

    most: Annotated[int, Meta(ge=10, le=1_000)] = 200


# --- answers ----------------------------------------------------------------------------------------------------------


class Failure(Struct):
    """The message of an error: what happened and what to do."""

    error: str


class Done(Struct):
    """The event was recorded."""

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
    step: str | None = None
    role: Role = "match"
    similar: list[str] = []
    kind: Kind = "tool"
    matched: list[str] = []


class Step(Struct):
    """What one stage did."""

    stage: str
    ms: float
    note: str


class SearchAnswer(Struct):
    """The answer to one search. `trace` is filled only on request. Only the recipe `scout` estimates `coverage`."""

    query: str
    search_id: str | None
    need: float | None
    answer: Answer | None
    reason: str | None
    coverage: float | None
    hits: list[FoundTool]
    ms: dict[str, float]
    degraded: str | None = None
    steps: list[str] = []
    uncovered: list[str] = []
    trace: list[Step] = []


class BatchAnswer(Struct):
    """One answer for each query, in order."""

    results: list[SearchAnswer]


class WhyAnswer(Struct):
    """The rank of a tool for a query, the reasons, and what would lift it."""

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
    trial: Trial | None = None
    step: str | None = None
    step_rank: int | None = None
    stands_for_it: str | None = None


class Row(Struct):
    """One line of a list of tools."""

    id: str
    name: str
    path: list[str]
    description: str
    kind: Kind = "tool"


class Facet(Struct):
    """One value of a facet: what to show, what to filter by, and the number of tools."""

    name: str
    key: str
    tools: int


class FacetsAnswer(Struct):
    """The values of each facet, the most frequent first. `states` is empty for callers who do not see everything."""

    sources: list[Facet]
    kinds: list[Facet]
    parents: list[Facet]
    states: list[Facet]


class ExamplesAnswer(Struct):
    """Queries made from the catalogue's own descriptions. Each finds its tools."""

    queries: list[str]


class ToolsAnswer(Struct):
    """A page of tools and their total number."""

    tools: list[Row]
    total: int
    offset: int
    generation: int


class Node(Struct):
    """A node of the path tree: its name, its key, and the number of tools below it."""

    name: str
    key: str
    tools: int
    leaf: bool


class TreeAnswer(Struct):
    """The nodes directly below a node."""

    path: list[str]
    tools: int
    nodes: list[Node]
    total: int
    generation: int


class ToolAnswer(Struct):
    """The complete definition of one tool."""

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
    """One source and its number of visible tools. State and messages are for callers who see everything."""

    name: str
    kind: str
    state: str
    message: str
    read_at: str
    tools: int
    problems: int
    waiting: int


class SourcesAnswer(Struct):
    """All sources with tools that the caller may see."""

    sources: list[SourceRow]
    generation: int


class JournalAnswer(Struct):
    """Events, newest first. `next` is the `before` of the following page."""

    events: list[dict[str, Any]]
    next: int | None


class Stats(Struct):
    """Counts of the journal."""

    events: dict[str, int]
    first: str | None
    last: str | None
    callers: int
    searches_followed_by_a_successful_call: int


class LineProblem(Struct):
    """A line of an import that is not an event."""

    entry: str
    message: str


class ImportAnswer(Struct):
    """The number of new events, and the first hundred bad lines."""

    new: int
    problems: list[LineProblem]
    bad_lines: int


class ModelRow(Struct):
    """A fitted model, or the problem that prevents its use."""

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
    """The serving recipe and model, a notice if the champion cannot serve, and all fitted models."""

    recipe: str
    model: str | None
    notice: str | None
    models: list[ModelRow]


class Serving(Struct):
    """The champion, the recipe that now serves by default, and a notice if the champion cannot serve."""

    champion: str | None
    recipe: str
    notice: str | None


class LearningAnswer(Struct):
    """The promotions, newest last, whether a setting overrules them, and the report of the last learn run."""

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
    """All results of the folder, and the files that could not be read."""

    results: list[ResultRow]
    problems: list[LineProblem]


class Me(Struct):
    """The caller, and what they may see and do."""

    caller: str
    operator: bool
    version: str
    generation: int
    tools: int
    recipe: str
    k: int
    journal: bool
    results: bool
    manages: bool


class Health(Struct):
    """The process answers."""

    status: Literal["ok"]


class Ready(Struct):
    """Whether searches are answered without a wait."""

    ready: bool
    reason: str | None


class ChangesAnswer(Struct):
    """What each source changed, and the number of tools that are searched now."""

    sources: list[Changes]
    tools: int
    generation: int


class Enabled(Struct):
    """The state of a source."""

    source: str
    enabled: bool


class WaitingRow(Struct):
    """A definition that waits for approval. `changes` is a unified diff; `cut` tells whether lines are missing."""

    id: str
    fingerprint: str
    since: str
    why: str
    new: bool
    changes: list[str]
    cut: bool
    findings: list[str]


class ApprovalsAnswer(Struct):
    """A page of waiting definitions and their total number."""

    waiting: list[WaitingRow]
    total: int


class Approved(Struct):
    """How many definitions were approved. Those that changed in the meantime still wait."""

    approved: int


class TrendsAnswer(Struct):
    """The events of each day that has any, the oldest first, and the first day of the span."""

    since: str
    days: list[DayCounts]


class UnansweredAnswer(Struct):
    """Queries without a tool, the most frequent first."""

    queries: list[Unanswered]


class HistoryAnswer(Struct):
    """Former checks, the oldest first."""

    runs: list[CheckRun]
