"""The types of requests and answers of routes that only operators use: sources, approvals, trends and checks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from toolscout.catalogue.store import Changes
from toolscout.checks.history import CheckRun
from toolscout.journal.trends import DayCounts, Unanswered
from toolscout.server.shapes import Id, Page

__all__ = ["MAX_PASTED_TOOLS"]

MAX_PASTED_TOOLS = 2_000

SourceName = Annotated[str, Meta(min_length=1, max_length=200)]
Days = Annotated[int, Meta(ge=1, le=400, description="Days back from now.")]


# --- requests ---------------------------------------------------------------------------------------------------------


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
