"""The routes of the service in one table: request and answer types, permission and cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, Final

from toolscout.checks.lint import Lint
from toolscout.checks.selftest import Selftest
from toolscout.learn.drift_report import DriftReport
from toolscout.server import (
    catalogue,
    examples,
    learning,
    quality,
    search,
    shapes,
    sources,
    state,
    usage,
)
from toolscout.server import operator_shapes as operations

__all__ = ["JSON", "JSON_LINES", "ROUTES", "Route"]

JSON: Final = "application/json"
JSON_LINES: Final = "application/x-ndjson"
PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclasses.dataclass(frozen=True)
class Route:
    """One path with one method.

    Attributes:
        method: GET or POST.
        path: the path.
        handler: answers an `ApiRequest`. The first line of its docstring is the summary in the OpenAPI document.
        request_type: the type of the parameters (GET) or of the body (POST).
        answer_type: the type of the answer. None if it is not JSON.
        group: its tag in the OpenAPI document.
        open: whether callers need no credential.
        operators_only: whether only operators may use it.
        cost: how many queries it counts for in the caller's rate limit.
        body_media: media type of the body.
        answer_media: media type of the answer.
    """

    method: str
    path: str
    handler: Callable[[Any], Awaitable[Any]]
    request_type: type
    answer_type: Any
    group: str
    open: bool = False
    operators_only: bool = False
    cost: Callable[[Any], float] = lambda parameters: 1.0
    body_media: str = JSON
    answer_media: str = JSON


def _cost_of_batch(parameters: shapes.BatchRequest) -> float:
    return float(len(parameters.queries))


def _cost_of_why(parameters: shapes.WhyRequest) -> float:
    return 50.0 if parameters.cures or parameters.words else 5.0


def _cost_of_lint(parameters: shapes.LintRequest) -> float:
    return 3.0 * parameters.most


def _cost_of_selftest(parameters: operations.SelftestRequest) -> float:
    return 4.0 * parameters.most


def _cost_of_examples(parameters: shapes.ExamplesRequest) -> float:
    return 3.0 * parameters.most


ROUTES: Final = (
    Route("POST", "/v1/search", search.search, shapes.SearchRequest, shapes.SearchAnswer, "search"),
    Route(
        "POST",
        "/v1/search/batch",
        search.search_batch,
        shapes.BatchRequest,
        shapes.BatchAnswer,
        "search",
        cost=_cost_of_batch,
    ),
    Route("POST", "/v1/why", search.explain_missing, shapes.WhyRequest, shapes.WhyAnswer, "search", cost=_cost_of_why),
    Route("GET", "/v1/sources", catalogue.list_sources, shapes.Nothing, shapes.SourcesAnswer, "catalogue"),
    Route("GET", "/v1/tree", catalogue.read_tree, shapes.TreeRequest, shapes.TreeAnswer, "catalogue"),
    Route("GET", "/v1/tools", catalogue.list_tools, shapes.ToolsRequest, shapes.ToolsAnswer, "catalogue"),
    Route("GET", "/v1/facets", catalogue.count_facets, shapes.FacetsRequest, shapes.FacetsAnswer, "catalogue"),
    Route(
        "GET",
        "/v1/examples",
        examples.list_examples,
        shapes.ExamplesRequest,
        shapes.ExamplesAnswer,
        "search",
        cost=_cost_of_examples,
    ),
    Route("GET", "/v1/tool", catalogue.read_tool, shapes.ToolRequest, shapes.ToolAnswer, "catalogue"),
    Route(
        "POST",
        "/v1/sources/add",
        sources.add_source,
        operations.AddRequest,
        operations.ChangesAnswer,
        "catalogue",
        operators_only=True,
    ),
    Route(
        "POST",
        "/v1/sources/sync",
        sources.sync_sources,
        operations.SyncRequest,
        operations.ChangesAnswer,
        "catalogue",
        operators_only=True,
    ),
    Route(
        "POST",
        "/v1/sources/enable",
        sources.enable_source,
        operations.EnableRequest,
        operations.Enabled,
        "catalogue",
        operators_only=True,
    ),
    Route(
        "GET",
        "/v1/approvals",
        sources.list_approvals,
        operations.ApprovalsRequest,
        operations.ApprovalsAnswer,
        "catalogue",
        operators_only=True,
    ),
    Route(
        "POST",
        "/v1/approvals",
        sources.approve,
        operations.ApproveRequest,
        operations.Approved,
        "catalogue",
        operators_only=True,
    ),
    Route("POST", "/v1/calls", usage.report_call, shapes.CallRequest, shapes.Done, "usage"),
    Route("POST", "/v1/feedback", usage.report_feedback, shapes.FeedbackRequest, shapes.Done, "usage"),
    Route(
        "GET",
        "/v1/journal",
        usage.read_journal,
        shapes.JournalRequest,
        shapes.JournalAnswer,
        "usage",
        operators_only=True,
    ),
    Route("GET", "/v1/journal/stats", usage.read_stats, shapes.Nothing, shapes.Stats, "usage", operators_only=True),
    Route(
        "GET",
        "/v1/journal/trends",
        usage.read_trends,
        operations.TrendsRequest,
        operations.TrendsAnswer,
        "usage",
        operators_only=True,
    ),
    Route(
        "GET",
        "/v1/journal/unanswered",
        usage.list_unanswered_queries,
        operations.UnansweredRequest,
        operations.UnansweredAnswer,
        "usage",
        operators_only=True,
    ),
    Route(
        "GET",
        "/v1/journal/export",
        usage.export_lines,
        shapes.Nothing,
        None,
        "usage",
        operators_only=True,
        answer_media=JSON_LINES,
    ),
    Route(
        "POST",
        "/v1/journal/import",
        usage.import_lines,
        shapes.Nothing,
        shapes.ImportAnswer,
        "usage",
        operators_only=True,
        body_media=JSON_LINES,
    ),
    Route(
        "GET",
        "/v1/lint",
        quality.check_findability,
        shapes.LintRequest,
        Lint,
        "catalogue",
        operators_only=True,
        cost=_cost_of_lint,
    ),
    Route(
        "POST",
        "/v1/selftest",
        quality.run_selftest_now,
        operations.SelftestRequest,
        Selftest,
        "catalogue",
        operators_only=True,
        cost=_cost_of_selftest,
    ),
    Route(
        "GET",
        "/v1/checks",
        quality.read_check_history,
        shapes.Nothing,
        operations.HistoryAnswer,
        "catalogue",
        operators_only=True,
    ),
    Route(
        "GET", "/v1/models", learning.list_models, shapes.Nothing, shapes.ModelsAnswer, "learning", operators_only=True
    ),
    Route(
        "GET",
        "/v1/learning",
        learning.read_learning,
        shapes.Nothing,
        shapes.LearningAnswer,
        "learning",
        operators_only=True,
    ),
    Route("GET", "/v1/drift", learning.read_drift, shapes.Nothing, DriftReport, "learning", operators_only=True),
    Route(
        "POST", "/v1/promote", learning.promote, shapes.PromoteRequest, shapes.Serving, "learning", operators_only=True
    ),
    Route(
        "POST",
        "/v1/rollback",
        learning.rollback,
        shapes.RollbackRequest,
        shapes.Serving,
        "learning",
        operators_only=True,
    ),
    Route(
        "GET",
        "/v1/results",
        learning.read_results,
        shapes.Nothing,
        shapes.ResultsAnswer,
        "learning",
        operators_only=True,
    ),
    Route("GET", "/v1/me", state.read_caller, shapes.Nothing, shapes.Me, "state"),
    Route("GET", "/health", state.check_health, shapes.Nothing, shapes.Health, "state", open=True),
    Route("GET", "/ready", state.check_ready, shapes.Nothing, shapes.Ready, "state", open=True),
    Route(
        "GET",
        "/metrics",
        state.read_metrics,
        shapes.Nothing,
        None,
        "state",
        operators_only=True,
        answer_media=PROMETHEUS_TEXT,
    ),
)
