"""The OpenAPI document, made of the table of routes and of the types that requests are checked against."""

from __future__ import annotations

import functools
from typing import Any, Final

import msgspec

import toolscout
from toolscout.server.routes import JSON, ROUTES, Route
from toolscout.server.shapes import Failure, Nothing

__all__ = ["document"]

FAILURES: Final = {
    400: "The request cannot be read.",
    401: "No valid key or token.",
    403: "The page, or the caller, may not do this.",
    404: "It is not there, or not for this caller.",
    408: "The request took too long to come in.",
    409: "Somebody else has changed it meanwhile.",
    413: "The request is too large.",
    415: "The body is of another type.",
    421: "The service has another name.",
    422: "Something in the request is not as it must be; the sentence says what.",
    429: "More queries than this caller may ask; `Retry-After` says when to come back.",
    503: "Not now; `Retry-After` may say when to come back.",
}
BODIES: Final = (408, 413, 415)


@functools.cache
def document() -> bytes:
    """The document, as JSON."""
    types = {route.asks for route in ROUTES} | {route.answers for route in ROUTES} - {None}
    ordered = sorted(types | {Failure}, key=lambda each: str(each.__name__))
    _, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    for route in ROUTES:
        if route.method == "GET":
            components.pop(route.asks.__name__, None)  # it stands there as parameters
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


def _operation(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    if route.answers is None:
        given: dict[str, Any] = {"type": "string"}
    else:
        given = {"$ref": f"#/components/schemas/{route.answers.__name__}"}
    found: dict[str, Any] = {
        "operationId": route.path.strip("/").replace("/", "_") + ("_" + route.method.lower()),
        "summary": (route.handler.__doc__ or "").partition("\n")[0],
        "tags": [route.group],
        "security": [] if route.open else [{"bearer": []}, {"key": []}, {}],
        "responses": {"200": {"description": "Done.", "content": {route.gives.partition(";")[0]: {"schema": given}}}},
    }
    if route.operators:
        found["description"] = "For operators alone."
    if route.method == "POST" and route.asks is not Nothing:
        schema: dict[str, Any] = {"$ref": f"#/components/schemas/{route.asks.__name__}"}
        found["requestBody"] = {"required": True, "content": {route.takes: {"schema": schema}}}
    elif route.method == "POST":
        found["requestBody"] = {"required": True, "content": {route.takes: {}}}
    else:
        found["parameters"] = _parameters(route, components)
    for status, what in FAILURES.items():
        if _can(route, status):
            failure = {"$ref": "#/components/schemas/Failure"}
            found["responses"][str(status)] = {"description": what, "content": {JSON: {"schema": failure}}}
    if route.path == "/ready":
        found["responses"]["503"] = {**found["responses"]["200"], "description": "Not yet."}
    return found


def _can(route: Route, status: int) -> bool:
    if status == 409:
        return route.path == "/v1/rollback"
    if status in BODIES:
        return route.method == "POST"
    return not route.open or status == 422


def _parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    shape = components[route.asks.__name__]
    found = []
    for name, schema in shape["properties"].items():
        plain = {key: value for key, value in schema.items() if key != "default" or value is not None}
        if "anyOf" in plain:  # a parameter is left out; there is no null to be written in an address
            [one] = [each for each in plain.pop("anyOf") if each != {"type": "null"}]
            plain = {**one, **plain}
        if None in plain.get("enum", ()):
            plain["enum"] = [each for each in plain["enum"] if each is not None]
        what = plain.pop("description", None)
        entry = {"name": name, "in": "query", "required": name in shape.get("required", ()), "schema": plain}
        found.append(entry | ({"description": what} if what else {}))
    return found
