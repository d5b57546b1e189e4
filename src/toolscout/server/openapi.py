"""Builds the OpenAPI document from the table of routes and the types of requests and answers."""

from __future__ import annotations

import functools
from typing import Any, Final

import msgspec

import toolscout
from toolscout.server.routes import JSON, ROUTES, Route
from toolscout.server.shapes import Failure, Nothing

__all__ = ["build_document"]

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
    """Describe the query parameters of a GET route. None, which a URL cannot say, is left out of types and defaults."""
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
