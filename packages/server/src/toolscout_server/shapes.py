"""The types of requests and answers. Requests are validated against them; the OpenAPI document shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from toolscout.home.catalogue.store import Changes
from toolscout.home.models.champion import Promotion
from toolscout.learn.loop import Report
from toolscout.types import AnswerKind, Hints, Kind, Role
from toolscout_server.history import CheckRun
from toolscout_server.trends import DayCounts, Unanswered

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
Offset = Annotated[int, Meta(ge=0, le=10_000_000)]
Page = Annotated[int, Meta(ge=1, le=500, description="Number of entries.")]
Deadline = Annotated[float, Meta(gt=0, le=600, description="Seconds until the answer is wanted.")] | None
Recipe = Annotated[
    Literal["bm25", "dense", "hybrid", "scout"] | None,
    Meta(description="By default the recipe of the model, or the setting `recipe`."),
]


# --- requests ---------------------------------------------------------------------------------------------------------


class Body(Struct, forbid_unknown_fields=True):
    """What a caller sends. Fields that it does not have are refused."""


class Nothing(Body):
    """No parameters."""


class SearchSettings(Body):
    """How to search."""

    k: Count | Literal["auto"] | None = None
    recipe: Recipe = None
    trace: bool = False
    kind: Kind | None = None
    deadline: Deadline = None


class SearchRequest(SearchSettings, kw_only=True):
    """One search."""

    query: Query
    preview: Annotated[bool, Meta(description="Not written to the journal: for a person who is still typing.")] = False
    matched: Annotated[bool, Meta(description="Also list the words of each tool that match the query.")] = False


class BatchRequest(SearchSettings, kw_only=True):
    """Several searches on one state of the catalogue."""

    queries: Annotated[list[Query], Meta(min_length=1, max_length=MAX_QUERIES_PER_BATCH)]


class WhyRequest(Body):
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


class CallRequest(Body):
    """A tool was called."""

    tool: Id
    ok: bool
    search_id: SearchId | None = None
    ms: Annotated[float, Meta(ge=0, le=1e12)] | None = None


class FeedbackRequest(Body):
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


class ToolFilters(Body):
    """Which tools are meant."""

    text: FilterWords | None = None
    source: SourceText | None = None
    kind: Kind | None = None
    parent: NodeKey | None = None
    state: ToolState = "searched"


class ToolsRequest(ToolFilters):
    """A page of the catalogue."""

    within: NodeKey | None = None
    offset: Offset = 0
    limit: Page = 100


class FacetsRequest(ToolFilters):
    """The filters of a list of tools, for which the values of each facet are counted."""

    limit: Page = 200


class ExamplesRequest(Body):
    """The number of examples."""

    most: Annotated[int, Meta(ge=1, le=12)] = 5


class TreeRequest(Body):
    """A node of the path tree; without a key, its root."""

    within: NodeKey | None = None
    offset: Offset = 0
    limit: Page = 200


class ToolRequest(Body):
    """One tool."""

    id: Id


class LintRequest(Body):
    """The number of tools to check, a sample if the catalogue holds more."""

    most: Annotated[int, Meta(ge=1, le=1_000)] = 300


class PromoteRequest(Body):
    """A fitted model in the home."""

    model: Annotated[str, Meta(min_length=1, max_length=200)]


class RollbackRequest(Body):
    """The champion to roll back. Nothing happens if another was promoted in the meantime."""

    champion: Annotated[str, Meta(min_length=1, max_length=200)]


class JournalRequest(Body):
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


class AddRequest(Body):
    """A source: the address of an MCP server, an OpenAPI document or an agent card, or the tools themselves."""

    locator: Annotated[str, Meta(max_length=2_000, description="An address that begins with http:// or https://.")] = ""
    tools: Annotated[
        list[dict[str, Any]], Meta(max_length=MAX_PASTED_TOOLS, description="Function schemas. They need a `name`.")
    ] = []
    name: Annotated[str, Meta(max_length=200, description="Name of the source; by default derived.")] = ""
    kind: Literal["mcp", "openapi", "agents"] | None = None


class SyncRequest(Body):
    """Names of sources; empty: all."""

    sources: Annotated[list[SourceName], Meta(max_length=1_000)] = []


class EnableRequest(Body):
    """Whether a source is searched."""

    source: SourceName
    enabled: bool


class Approval(Body):
    """A definition that was read. It is approved only if it is still the one that waits."""

    id: Id
    fingerprint: Annotated[str, Meta(min_length=1, max_length=100)]


class ApproveRequest(Body):
    """Definitions to approve."""

    approvals: Annotated[list[Approval], Meta(min_length=1, max_length=500)]


class ApprovalsRequest(Body):
    """A page of the definitions that wait."""

    source: SourceName | None = None
    offset: Offset = 0
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class TrendsRequest(Body):
    """A span of the journal."""

    days: Days = 30


class UnansweredRequest(Body):
    """Which queries without a tool are listed."""

    days: Days = 30
    abstained: Annotated[bool, Meta(description="Those turned away on purpose, instead of those without a result.")] = (
        False
    )
    limit: Page = 20


class SelftestRequest(Body):
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
    """One tool of an answer.

    Attributes:
        path: where the tool is in its source, from broad to narrow.
        score: comparable only within this answer.
        parameters: JSON Schema of the arguments; None: the source gives none.
        callable: whether the gateway can call the tool.
        why: which rankers found the tool, or which tool needs it first.
        step: the step of a compound request that the tool serves; None: the request as a whole.
        role: `match`, or `prerequisite` for a tool that a match needs first.
        similar: ids of tools of other sources that do the same.
        matched: words of the tool that match the query, if the request asked for them.
    """

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
    """What one stage did, in milliseconds of wall time, with a note such as `2 steps`."""

    stage: str
    ms: float
    note: str


class SearchAnswer(Struct):
    """The answer to one search.

    Attributes:
        search_id: names this search in later calls and feedback; None: it is not in the journal.
        need: probability that the request needs a tool; None: it could not be estimated.
        answer: `tools`, `no_tool_needed` or `no_tool_fits`; None: the recipe does not decide.
        reason: why there is no tool, or why the hits may not fit.
        coverage: with `k` of `auto`, the estimate by which the answer ended: how likely the hits have a right tool for
            every step. Otherwise null.
        ms: milliseconds: `total`, and those of each stage.
        low_confidence: whether the hits probably do not fit.
        degraded: what could not be used, such as an encoder that does not answer; None: nothing.
        steps: steps of a compound request; empty if there is only one.
        uncovered: steps that no tool seems to fit.
        trace: what each stage did, if the request asked for it.
    """

    query: str
    search_id: str | None
    need: float | None
    answer: AnswerKind | None
    reason: str | None
    coverage: float | None
    hits: list[FoundTool]
    ms: dict[str, float]
    low_confidence: bool = False
    degraded: str | None = None
    steps: list[str] = []
    uncovered: list[str] = []
    trace: list[Step] = []


class BatchAnswer(Struct):
    """One answer for each query, in order."""

    results: list[SearchAnswer]


class Row(Struct):
    """One line of a list of tools."""

    id: str
    name: str
    path: list[str]
    description: str
    kind: Kind = "tool"


class Facet(Struct):
    """One value of a facet: the `name` to show, the `key` to filter by, and the number of tools."""

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
    """A page of tools from `offset` on, the `total` number on all pages, and the generation of the catalogue."""

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
    """The nodes directly below the node at `path`, how many `tools` it has, and how many nodes there are in `total`."""

    path: list[str]
    tools: int
    nodes: list[Node]
    total: int
    generation: int


class ToolAnswer(Struct):
    """The complete definition of one tool.

    Attributes:
        parameters: JSON Schema of the arguments; None: the source gives none.
        path: from broad to narrow, ending with the parent.
        parent: what groups the tool with others, such as its API; None: the whole path does.
        returns: JSON Schema or text of the result; None: unknown.
        hints: what the tool says about its behaviour: read-only, destructive and so on.
        callable: whether the gateway can call the tool.
        meta: other fields of the source.
        fingerprint: changes when anything in the definition does.
    """

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
    """One source and its number of visible tools. State and messages are for callers who see everything.

    Attributes:
        kind: such as `mcp`, `openapi` or `python`.
        state: `ok`, `error` (the tools of an earlier reading stay) or `disabled`.
        message: why the state is not `ok`.
        read_at: when the source was read last, ISO 8601.
        problems: number of entries that could not be read.
        waiting: number of definitions that wait for approval.
    """

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
    """Counts of the journal: events by kind, the instants of the `first` and `last` event (ISO 8601), and callers."""

    events: dict[str, int]
    first: str | None
    last: str | None
    callers: int
    searches_followed_by_a_successful_call: int


class LineProblem(Struct):
    """A line of an import that is not an event: its number, and what is wrong with it."""

    entry: str
    message: str


class ImportAnswer(Struct):
    """The number of new events, and the first hundred bad lines."""

    new: int
    problems: list[LineProblem]
    bad_lines: int


class ModelRow(Struct):
    """A fitted model, or the problem that prevents its use.

    Attributes:
        problem: why the model cannot be used; None: it can, and the other fields are filled.
        data: name of the dataset that it was fitted on.
        n_tools: number of tools of the fit.
        encoder: name of the encoder of the fit; None: it has none.
        metrics: measure → figure on dev, 0 to 1.
        version: of toolscout that fitted it.
        serving: whether searches use it now.
    """

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
    """The promotions as `history`, newest last; whether a setting `overruled` them; the report of the `last` run."""

    history: list[Promotion]
    overruled: bool
    last: Report | None


class ResultRow(Struct):
    """One result of `toolscout lab bench`.

    Attributes:
        label: names the run; by default the recipe.
        split: the queries that were scored, such as `test`.
        metrics: measure → figure, 0 to 1.
        ci95: measure → ends of the 95 % bootstrap interval.
        latency_ms: percentile → milliseconds of a search.
    """

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
    """The caller, and what they may see and do.

    Attributes:
        operator: whether they may read what belongs to all callers.
        version: of toolscout.
        tools: number of tools that they see.
        recipe: what searches use by default.
        k: number of tools of an answer by default.
        journal: whether searches and calls are recorded.
        results: whether the service shows results of `lab bench`.
        manages: whether they may add, sync and disable sources.
    """

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


class ServiceHealth(Struct):
    """The process answers."""

    status: Literal["ok"]


class Ready(Struct):
    """Whether searches are answered without a wait; `reason` says why not."""

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
    """A definition that waits for approval.

    Attributes:
        fingerprint: of the definition that waits; an approval names it.
        since: instant, ISO 8601.
        why: why it waits, in a sentence.
        new: whether no definition of this tool was approved before.
        changes: the name of each field that changed, then its lines, which begin with `+ `, `- ` or two spaces.
        cut: whether lines of `changes` are missing.
        findings: what the screening reports of it.
    """

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
