"""Operations are called in real applications: what a model would send arrives as frameworks parse it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ports import find_free_port
from toolscout.settings import Settings
from toolscout.sources import openapi as reader
from toolscout_gateway.calls.openapi import call

pytestmark = pytest.mark.net
Fields = dict[str, Any]


# --- the applications -------------------------------------------------------------------------------------------------


async def upload(request: Request) -> JSONResponse:
    """Take files as FastAPI does: a part without a file name is not a file."""
    async with request.form() as form:
        files = [part for name, part in form.multi_items() if name in ("file", "files")]
        if not files or not all(isinstance(part, UploadFile) for part in files):
            return JSONResponse({"detail": "Expected UploadFile"}, 422)
        described = [[part.filename, part.content_type, (await part.read()).decode()] for part in files]  # type: ignore[union-attr]
        return JSONResponse({"files": described, "note": form.get("note"), "meta": form.get("meta")})


async def store(request: Request) -> JSONResponse:
    return JSONResponse({"type": request.headers.get("content-type"), "text": (await request.body()).decode()})


async def charge(request: Request) -> JSONResponse:
    """Take a form as payment services do: `a[b]` is an object, `a[]` and `a[0]` a list."""
    if request.headers.get("content-type") != "application/x-www-form-urlencoded":
        return JSONResponse({"error": "unknown content type"}, 400)
    return JSONResponse(nest((await request.form()).multi_items()))


async def list_charges(request: Request) -> JSONResponse:
    return JSONResponse(nest(request.query_params.multi_items()))


def nest(pairs: Any) -> Fields:
    root: Fields = {}
    for name, text in pairs:
        keys = re.findall(r"[^\[\]]+|(?<=\[)(?=\])", name)
        holder = root
        for key in keys[:-1]:
            holder = holder.setdefault(key, {})
        holder[str(len(holder)) if keys[-1] == "" else keys[-1]] = text
    return root


async def patch(request: Request) -> JSONResponse:
    """Take patches as Kubernetes does: a list for JSON patch, an object for the others, no other type."""
    kind, value = request.headers.get("content-type"), json.loads(await request.body())
    expected = {"application/json-patch+json": list, "application/merge-patch+json": dict}
    if not isinstance(value, expected.get(str(kind), int)):
        return JSONResponse({"reason": "UnsupportedMediaType", "found": kind}, 415)
    return JSONResponse({"type": kind, "patch": value, "name": request.path_params["name"]})


async def echo(request: Request) -> JSONResponse:
    body = (await request.body()).decode()
    return JSONResponse(
        {
            "method": request.method,
            "path": request.url.path,
            "query": [*request.query_params.multi_items()],
            "body": body,
        }
    )


ROUTES = [
    Route("/files", upload, methods=["POST"]),
    Route("/raw", store, methods=["PUT", "POST"]),
    Route("/charges", charge, methods=["POST"]),
    Route("/charges", list_charges, methods=["GET"]),
    Route("/maps/{name}", patch, methods=["PATCH"]),
    Route("/{rest:path}", echo, methods=["GET", "POST", "QUERY", "COPY"]),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    port = find_free_port()
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=ROUTES), port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        threading.Event().wait(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


# --- the documents and calls ------------------------------------------------------------------------------------------


def form(kind: str, properties: Fields, encoding: Fields | None = None) -> Fields:
    schema = {"type": "object", "properties": properties}
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema, "encoding": encoding or {}}}}}


def whole(kind: str, schema: Fields) -> Fields:
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema}}}}


def queried(schema: Fields, **more: Any) -> Fields:
    return {"parameters": [{"name": "q", "in": "query", "schema": schema, **more}]}


MULTIPART, URLENCODED = "multipart/form-data", "application/x-www-form-urlencoded"
BINARY, TEXT, LIST = {"type": "string", "format": "binary"}, {"type": "string"}, {"type": "array", "items": {}}
DEEP = {"style": "deepObject", "explode": True}
FORM_STYLE = {"style": "form"}
DEEP_PARTS = {"meta": DEEP, "items": DEEP, "expand": DEEP}
SWAGGER_LISTS = [
    {"name": name, "in": "formData", "type": "array", "items": TEXT, **({"collectionFormat": kind} if kind else {})}
    for name, kind in (("csv", ""), ("ssv", "ssv"), ("tsv", "tsv"), ("pipes", "pipes"))
]
PATCHED = {"name": "body", "in": "body", "required": True, "schema": {"type": "object"}}
KINDS = ["application/json-patch+json", "application/merge-patch+json"]
NAMED = {"name": "name", "in": "path", "required": True, "type": "string"}
IDS = {"name": "ids", "in": "path", "required": True, "schema": LIST}

CALLS: dict[str, tuple[str, str, Fields, Fields, Fields]] = {
    "a file in base64": (
        "/files", "post", form(MULTIPART, {"file": BINARY, "note": TEXT}), {"file": "aGVsbG8=", "note": "n"},
        {"files": [["file.bin", "application/octet-stream", "hello"]], "note": "n"},
    ),
    "a file with a name and a type": (
        "/files", "post", form(MULTIPART, {"file": BINARY}), {"file": "data:text/csv;name=a%20b.csv;base64,YSxi"},
        {"files": [["a b.csv", "text/csv", "a,b"]]},
    ),
    "a file as text": (
        "/files", "post", form(MULTIPART, {"file": BINARY}), {"file": "not base64, but text"},
        {"files": [["file.txt", "text/plain", "not base64, but text"]]},
    ),
    "several files": (
        "/files", "post", form(MULTIPART, {"files": {"type": "array", "items": BINARY}}), {"files": ["YQ==", "Yg=="]},
        {"files": [["files.bin", "application/octet-stream", letter] for letter in "ab"]},
    ),
    "a file whose type the document names": (
        "/files", "post", form(MULTIPART, {"file": {}, "meta": {}}, {"file": {"contentType": "image/png, image/gif"}}),
        {"file": "aGVsbG8=", "meta": {"a": 1}},
        {"files": [["file.png", "image/png", "hello"]], "meta": '{"a":1}'},
    ),
    "an object in a form with files": (
        "/files", "post",
        form(MULTIPART, {"file": BINARY, "meta": {}, "note": {}}, dict.fromkeys(("meta", "file"), FORM_STYLE)),
        {"file": "aGVsbG8=", "meta": {"a": 1}, "note": None},
        {"files": [["file.bin", "application/octet-stream", "hello"]], "meta": '{"a":1}', "note": None},
    ),
    "null where nothing can be null": (
        "/charges", "get", queried({"type": ["integer", "null"]}), {"q": None}, {"q": None}
    ),
    "a file as the body": (
        "/raw", "put", whole("application/octet-stream", BINARY),
        {"body": "aGVsbG8="}, {"type": "application/octet-stream", "text": "hello"},
    ),
    "XML as the body": (
        "/raw", "post", whole("application/xml", {"type": "object"}),
        {"body": "<a/>"}, {"type": "application/xml", "text": "<a/>"},
    ),
    "lines of JSON": (
        "/raw", "post", whole("application/x-ndjson", LIST),
        {"body": '{"a":1}\n{"a":2}\n'}, {"type": "application/x-ndjson", "text": '{"a":1}\n{"a":2}\n'},
    ),
    "nested values in a form": (
        "/charges", "post",
        form(URLENCODED, {"n": {}, "meta": {}, "items": {}, "expand": {}}, DEEP_PARTS),
        {"n": 5, "meta": {"order": "7"}, "items": [{"price": "p1", "number": 2}], "expand": ["a", "b"]},
        {
            "n": "5", "meta": {"order": "7"}, "items": {"0": {"price": "p1", "number": "2"}},
            "expand": {"0": "a", "1": "b"},
        },
    ),
    "an object in a form without a style": (
        "/charges", "post", form(URLENCODED, {"metadata": {}}), {"metadata": {"order": 7}}, {"metadata": '{"order":7}'},
    ),
    "nested values in a query": (
        "/charges", "get", queried({"type": "object"}, **DEEP), {"q": {"gte": 5, "in": ["a", "b"]}},
        {"q": {"gte": "5", "in": {"0": "a", "1": "b"}}},
    ),
    "lists in a form of Swagger": (
        "/charges", "post", {"consumes": [URLENCODED], "parameters": SWAGGER_LISTS},
        {name: ["a", "b"] for name in ("csv", "ssv", "tsv", "pipes")},
        {"csv": "a,b", "ssv": "a b", "tsv": "a\tb", "pipes": "a|b"},
    ),
    "an object as a patch": (
        "/maps/{name}", "patch", {"consumes": KINDS, "parameters": [NAMED, PATCHED]},
        {"name": "a", "body": {"metadata": {"labels": {"k": "v"}}}},
        {"name": "a", "type": KINDS[1], "patch": {"metadata": {"labels": {"k": "v"}}}},
    ),
    "a list as a patch": (
        "/maps/{name}", "patch", {"consumes": KINDS[:1], "parameters": [NAMED, PATCHED]},
        {"name": "a", "body": [{"op": "remove", "path": "/x"}]},
        {"name": "a", "type": KINDS[0], "patch": [{"op": "remove", "path": "/x"}]},
    ),
    "the method QUERY": (
        "/s", "query", form("application/json", {"q": {}}), {"q": 1}, {"method": "QUERY", "body": '{"q":1}'},
    ),
    "a list in labels of the path": (
        "/i/{ids}", "get", {"parameters": [{**IDS, "style": "label", "explode": True}]}, {"ids": ["a", "b/c"]},
        {"path": "/i/.a.b/c"},
    ),
    "a list in matrices of the path": (
        "/i/{ids}", "get", {"parameters": [{**IDS, "style": "matrix", "explode": True}]}, {"ids": [1, 2]},
        {"path": "/i/;ids=1;ids=2"},
    ),
    "a whole query": (
        "/s", "get", {"parameters": [{"name": "q", "in": "querystring", "content": {URLENCODED: {"schema": {}}}}]},
        {"q": {"a": [1, 2], "b": "x y"}}, {"query": [["a", "1"], ["a", "2"], ["b", "x y"]]},
    ),
    "a whole query without anything": (
        "/s", "get", {"parameters": [{"name": "q", "in": "querystring", "content": {URLENCODED: {"schema": {}}}}]},
        {"q": {}}, {"query": []},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_an_application_accepts_a_call(address: str, tmp_path: Path, name: str) -> None:
    path, method, operation, arguments, expected = CALLS[name]
    is_old = "consumes" in operation
    head: Fields = {"swagger": "2.0", "host": address.removeprefix("http://"), "schemes": ["http"]}
    head = head if is_old else {"openapi": "3.2.0", "servers": [{"url": address}]}
    (tmp_path / "api").write_text(json.dumps({**head, "info": {"title": "Shop"}, "paths": {path: {method: operation}}}))
    [reading] = reader.read(str(tmp_path / "api"), name=None, settings=Settings())
    [tool] = reading.tools
    assert reading.problems == []

    async def send() -> Any:
        async with httpx.AsyncClient() as client:
            return await call(client, tool, arguments)

    answer = asyncio.run(send()).structured_content
    assert answer["status"] == 200, answer
    assert {key: answer["body"].get(key) for key in expected} == expected
