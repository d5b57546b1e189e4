"""The routes of the service in one table, and the OpenAPI document that is made from it.

The types of parameters, bodies and answers are those that the handlers declare.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Final, Literal, get_args, get_type_hints

import msgspec
from starlette.responses import Response

import toolscout
from toolscout_server import catalogue, quality, search, service, shapes, usage
from toolscout_server.shapes import Failure, Nothing

__all__ = ["JSON", "JSON_LINES", "ROUTES", "Route", "build_document"]

COST_OF_WHY: Final = 5.0  # searches, of the caller's rate
COST_OF_CURES: Final = 50.0
JSON: Final = "application/json"
JSON_LINES: Final = "application/x-ndjson"
PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclasses.dataclass(frozen=True)
class Route:
    """One path with one method.

    Attributes:
        method: GET or POST.
        path: the path.
        handler: answers an `ApiRequest`. One that blocks is no coroutine function and runs in a thread. The first line
            of its docstring is the summary in the OpenAPI document.
        group: its tag in the OpenAPI document.
        answers: the type of the answer, of a handler that returns a dictionary or a response.
        open: whether callers need no credential.
        operators_only: whether only operators may use it.
        managers_may: what only operators from whom the policy hides nothing may do, for the refusal. Empty: no limit.
        lock: of the service. Requests with the same lock run one at a time.
        cost: how many queries it counts for in the caller's rate limit.
        body_media: media type of the body.
        answer_media: media type of the answer.
    """

    method: Literal["GET", "POST"]
    path: str
    handler: Callable[[Any], Any]
    group: str
    answers: type | None = None
    open: bool = False
    operators_only: bool = False
    managers_may: str = ""
    lock: str = ""
    cost: Callable[[Any], float] = lambda parameters: 1.0
    body_media: str = JSON
    answer_media: str = JSON

    @functools.cached_property
    def request_type(self) -> Any:
        """The type of the parameters (GET) or of the body (POST)."""
        [request_type] = get_args(get_type_hints(self.handler)["request"])
        return request_type

    @functools.cached_property
    def answer_type(self) -> Any:
        """The type of the answer. None if it is not JSON."""
        returned = self.answers or get_type_hints(self.handler)["return"]
        return None if returned is Response else returned


def _cost_of_why(parameters: shapes.WhyRequest) -> float:
    """Return what an explanation costs, in searches: cures and words are found by searching again without each."""
    return COST_OF_CURES if parameters.cures or parameters.words else COST_OF_WHY


_OperatorRoute: Final = functools.partial(Route, operators_only=True)
_SourceRoute: Final = functools.partial(
    Route, group="catalogue", operators_only=True, managers_may="change sources", lock="catalogue"
)
ROUTES: Final = (
    Route("POST", "/v1/search", search.search, "search", shapes.SearchAnswer),
    Route(
        "POST",
        "/v1/search/batch",
        search.search_batch,
        "search",
        shapes.BatchAnswer,
        cost=lambda batch: float(len(batch.queries)),
    ),
    Route("POST", "/v1/why", search.explain_missing, "search", lock="slow", cost=_cost_of_why),
    Route("GET", "/v1/sources", catalogue.list_sources, "catalogue"),
    Route("GET", "/v1/tree", catalogue.read_tree, "catalogue"),
    Route("GET", "/v1/tools", catalogue.list_tools, "catalogue"),
    Route("GET", "/v1/facets", catalogue.count_facets, "catalogue"),
    Route("GET", "/v1/examples", search.list_examples, "search", cost=lambda examples: 3.0 * examples.most),
    Route("GET", "/v1/tool", catalogue.read_tool, "catalogue", shapes.ToolAnswer),
    _SourceRoute("POST", "/v1/sources/add", catalogue.add_source),
    _SourceRoute("POST", "/v1/sources/sync", catalogue.sync_sources),
    _SourceRoute("POST", "/v1/sources/enable", catalogue.enable_source),
    _SourceRoute("GET", "/v1/approvals", catalogue.list_approvals, lock=""),
    _SourceRoute("POST", "/v1/approvals", catalogue.approve),
    Route("POST", "/v1/calls", usage.report_call, "usage"),
    Route("POST", "/v1/feedback", usage.report_feedback, "usage"),
    _OperatorRoute("GET", "/v1/journal", usage.read_journal, "usage"),
    _OperatorRoute("GET", "/v1/journal/stats", usage.read_stats, "usage", shapes.Stats),
    _OperatorRoute("GET", "/v1/journal/trends", usage.read_trends, "usage"),
    _OperatorRoute("GET", "/v1/journal/unanswered", usage.list_unanswered_queries, "usage"),
    _OperatorRoute("GET", "/v1/journal/export", usage.export_lines, "usage", answer_media=JSON_LINES),
    _OperatorRoute("POST", "/v1/journal/import", usage.import_lines, "usage", body_media=JSON_LINES),
    _OperatorRoute(
        "GET", "/v1/lint", quality.check_findability, "catalogue", lock="slow", cost=lambda lint: 3.0 * lint.most
    ),
    _OperatorRoute(
        "POST",
        "/v1/selftest",
        quality.run_selftest_now,
        "catalogue",
        managers_may="run this check",
        lock="slow",
        cost=lambda selftest: 4.0 * selftest.most,
    ),
    _OperatorRoute("GET", "/v1/checks", quality.read_check_history, "catalogue"),
    _OperatorRoute("GET", "/v1/models", quality.list_models, "learning", lock="models"),
    _OperatorRoute("GET", "/v1/learning", quality.read_learning, "learning"),
    _OperatorRoute("GET", "/v1/drift", quality.read_drift, "learning"),
    _OperatorRoute("POST", "/v1/promote", quality.promote, "learning", lock="models"),
    _OperatorRoute("POST", "/v1/rollback", quality.rollback, "learning", lock="models"),
    _OperatorRoute("GET", "/v1/results", quality.read_results, "learning"),
    Route("GET", "/v1/me", service.read_caller, "state"),
    Route("GET", "/health", service.check_health, "state", open=True),
    Route("GET", "/ready", service.check_ready, "state", shapes.Ready, open=True),
    _OperatorRoute("GET", "/metrics", service.read_metrics, "state", answer_media=PROMETHEUS_TEXT),
)


# --- the OpenAPI document ---------------------------------------------------------------------------------------------

FAILURE_TEXTS: Final = {
    400: "The request cannot be parsed.",
    401: "The request has no valid key or token.",
    403: "The caller or the page may not do this.",
    404: "It does not exist, or this caller may not see it.",
    408: "The request took too long to arrive.",
    409: "It was changed in the meantime.",
    413: "The request is too large.",
    415: "The body has an unsupported type.",
    421: "The service does not answer for this host name.",
    422: "The request is invalid; the message says why.",
    429: "The caller exceeded its rate limit; `Retry-After` says when to try again.",
    503: "The service cannot answer now; `Retry-After` may say when to try again.",
}
BODY_FAILURES: Final = (408, 413, 415)


@functools.cache
def build_document() -> bytes:
    """Build the document as JSON."""
    types = {route.request_type for route in ROUTES} | {route.answer_type for route in ROUTES} - {None}
    ordered = sorted(types | {Failure}, key=lambda shape: str(shape.__name__))
    _, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _describe_operation(route, components)
    for route in ROUTES:
        if route.method == "GET":
            components.pop(route.request_type.__name__, None)  # it is listed as parameters
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "toolscout",
                "version": toolscout.__version__,
                "description": "Finds the tools that a request needs, among thousands.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "tags": [{"name": name} for name in dict.fromkeys(route.group for route in ROUTES)],
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                },
            },
        },
        order="sorted",
    )


def _describe_operation(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    """Describe one route: its parameters or body, its answers and its errors."""
    if route.answer_type is None:
        answer: dict[str, Any] = {"type": "string"}
    else:
        answer = {"$ref": f"#/components/schemas/{route.answer_type.__name__}"}
    operation: dict[str, Any] = {
        "operationId": route.path.strip("/").replace("/", "_") + ("_" + route.method.lower()),
        "summary": (route.handler.__doc__ or "").partition("\n")[0],
        "tags": [route.group],
        "security": [] if route.open else [{"bearer": []}, {"key": []}, {}],
        "responses": {
            "200": {"description": "Done.", "content": {route.answer_media.partition(";")[0]: {"schema": answer}}}
        },
    }
    if route.operators_only:
        operation["description"] = "Only operators may use this."
    if route.method == "POST" and route.request_type is not Nothing:
        schema: dict[str, Any] = {"$ref": f"#/components/schemas/{route.request_type.__name__}"}
        operation["requestBody"] = {"required": True, "content": {route.body_media: {"schema": schema}}}
    elif route.method == "POST":
        operation["requestBody"] = {"required": True, "content": {route.body_media: {}}}
    else:
        operation["parameters"] = _describe_parameters(route, components)
    for status, what in FAILURE_TEXTS.items():
        if _can_answer(route, status):
            failure = {"$ref": "#/components/schemas/Failure"}
            operation["responses"][str(status)] = {"description": what, "content": {JSON: {"schema": failure}}}
    if route.path == "/ready":
        operation["responses"]["503"] = {**operation["responses"]["200"], "description": "The index is not open yet."}
    return operation


def _can_answer(route: Route, status: int) -> bool:
    """Return whether a route may answer with this status of 400 or more."""
    if status == 409:
        return route.path == "/v1/rollback"
    if status in BODY_FAILURES:
        return route.method == "POST"
    return not route.open or status == 422


def _describe_parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    """Describe the query parameters of a GET route, without null among types and defaults: a URL cannot say it."""
    shape = components[route.request_type.__name__]
    parameters = []
    for name, schema in shape["properties"].items():
        plain = {key: value for key, value in schema.items() if key != "default" or value is not None}
        if "anyOf" in plain:  # a query parameter is left out instead of null
            [one] = [choice for choice in plain.pop("anyOf") if choice != {"type": "null"}]
            plain = {**one, **plain}
        if None in plain.get("enum", ()):
            plain["enum"] = [choice for choice in plain["enum"] if choice is not None]
        what = plain.pop("description", None)
        entry = {"name": name, "in": "query", "required": name in shape.get("required", ()), "schema": plain}
        parameters.append(entry | ({"description": what} if what else {}))
    return parameters
