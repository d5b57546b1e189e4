"""Every address of the service, in one table: what it takes, what it gives, who may use it, what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, Final

from toolscout.checks.lint import Lint
from toolscout.server import catalogue, learning, search, shapes, state, usage

__all__ = ["JSON", "LINES", "ROUTES", "Route"]

JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclasses.dataclass(frozen=True)
class Route:
    """One address and method.

    Attributes:
        method: GET or POST.
        path: where.
        handler: answers an `Ask`; its first line says what it does.
        asks: the type of the parameters (GET) or of the body (POST).
        answers: the type of the answer; None: it is no JSON.
        group: under which heading it stands in the document.
        open: whether anybody may come in, without a credential.
        operators: whether it is for operators alone.
        cost: how much it takes out of the caller's bucket.
        takes: media type of the body.
        gives: media type of the answer.
    """

    method: str
    path: str
    handler: Callable[[Any], Awaitable[Any]]
    asks: type
    answers: Any
    group: str
    open: bool = False
    operators: bool = False
    cost: Callable[[Any], float] = lambda asked: 1.0
    takes: str = JSON
    gives: str = JSON


def _queries(asked: shapes.BatchRequest) -> float:
    return float(len(asked.queries))


def _trials(asked: shapes.WhyRequest) -> float:
    return 50.0 if asked.cures else 5.0


def _probes(asked: shapes.LintRequest) -> float:
    return 3.0 * asked.most


ROUTES: Final = (
    Route("POST", "/v1/search", search.search, shapes.SearchRequest, shapes.SearchAnswer, "search"),
    Route("POST", "/v1/search/batch", search.batch, shapes.BatchRequest, shapes.BatchAnswer, "search", cost=_queries),
    Route("POST", "/v1/why", search.why, shapes.WhyRequest, shapes.WhyAnswer, "search", cost=_trials),
    Route("GET", "/v1/sources", catalogue.sources, shapes.Nothing, shapes.SourcesAnswer, "catalogue"),
    Route("GET", "/v1/tree", catalogue.tree, shapes.TreeRequest, shapes.TreeAnswer, "catalogue"),
    Route("GET", "/v1/tools", catalogue.tools, shapes.ToolsRequest, shapes.ToolsAnswer, "catalogue"),
    Route("GET", "/v1/tool", catalogue.tool, shapes.ToolRequest, shapes.ToolAnswer, "catalogue"),
    Route("POST", "/v1/calls", usage.called, shapes.CallRequest, shapes.Done, "usage"),
    Route("POST", "/v1/feedback", usage.feedback, shapes.FeedbackRequest, shapes.Done, "usage"),
    Route("GET", "/v1/journal", usage.read, shapes.JournalRequest, shapes.JournalAnswer, "usage", operators=True),
    Route("GET", "/v1/journal/stats", usage.stats, shapes.Nothing, shapes.Stats, "usage", operators=True),
    Route("GET", "/v1/journal/export", usage.export_lines, shapes.Nothing, None, "usage", operators=True, gives=LINES),
    Route(
        "POST",
        "/v1/journal/import",
        usage.import_lines,
        shapes.Nothing,
        shapes.ImportAnswer,
        "usage",
        operators=True,
        takes=LINES,
    ),
    Route(
        "GET", "/v1/lint", catalogue.findability, shapes.LintRequest, Lint, "catalogue", operators=True, cost=_probes
    ),
    Route("GET", "/v1/models", learning.shelf, shapes.Nothing, shapes.ModelsAnswer, "learning", operators=True),
    Route("GET", "/v1/learning", learning.told, shapes.Nothing, shapes.LearningAnswer, "learning", operators=True),
    Route("POST", "/v1/promote", learning.promote, shapes.PromoteRequest, shapes.Serving, "learning", operators=True),
    Route(
        "POST", "/v1/rollback", learning.rollback, shapes.RollbackRequest, shapes.Serving, "learning", operators=True
    ),
    Route("GET", "/v1/results", learning.results, shapes.Nothing, shapes.ResultsAnswer, "learning", operators=True),
    Route("GET", "/v1/me", state.me, shapes.Nothing, shapes.Me, "state"),
    Route("GET", "/health", state.health, shapes.Nothing, shapes.Health, "state", open=True),
    Route("GET", "/ready", state.ready, shapes.Nothing, shapes.Ready, "state", open=True),
    Route("GET", "/metrics", state.metrics, shapes.Nothing, None, "state", operators=True, gives=TEXT),
)
