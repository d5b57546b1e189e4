from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from toolscout.errors import SourceError
from toolscout.settings import Settings
from toolscout.sources import Reading, openapi
from toolscout.sources.openapi.arguments import FILE_HINT
from toolscout.types import Hints, Tool

DATA = Path(os.environ.get("TOOLSCOUT_DATA", "")) / "openapi" / "specs"
SPECS = {
    "tmdb_oas": ("tmdb", 54),
    "spotify_oas": ("spotify", 40),
    "petstore3": ("petstore", 19),
    "github_subset": ("github-rest-api-subset", 58),
    "k8s_core_v1": ("kubernetes", 248),
    "ecommerce": ("e-commerce-platform", 46),
}
SETTINGS = Settings(http_timeout=5.0)
OK = {"200": {"description": "fine"}}


def document(paths: Any = None, **more: Any) -> dict[str, Any]:
    paths = {"/pets": {"get": {"operationId": "listPets", "responses": OK}}} if paths is None else paths
    return {"openapi": "3.0.3", "info": {"title": "Pet Shop", "version": "1"}, "paths": paths, **more}


def swagger(paths: Any, **more: Any) -> dict[str, Any]:
    return {"swagger": "2.0", "info": {"title": "Old Shop", "version": "1"}, "paths": paths, **more}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Reading]:
    """Writes a document (and others beside it) and reads it."""

    def reader(value: Any, files: dict[str, Any] | None = None, *, file: str = "api.json") -> Reading:
        for name, content in {**(files or {}), file: value}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            dump = json.dumps if name.endswith("json") else yaml.safe_dump
            path.write_text(content if isinstance(content, str) else dump(content), encoding="utf-8")
        [reading] = openapi.read(str(tmp_path / file), name=None, settings=SETTINGS)
        return reading

    return reader


def only(reading: Reading) -> Tool:
    assert reading.problems == []
    [tool] = reading.tools
    return tool


def operation(schema: Any = None, **more: Any) -> dict[str, Any]:
    """Paths with one POST whose JSON body has this schema."""
    body = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}} if schema else {}
    return {"/pets": {"post": {"operationId": "addPet", **body, **more}}}


# --- the documents of the data root ---------------------------------------------------------------------------------


@pytest.mark.skipif(not DATA.is_dir(), reason="TOOLSCOUT_DATA is not set to a folder with openapi/specs")
@pytest.mark.parametrize("stem", SPECS)
def test_every_operation_of_a_published_document_is_in_or_named(stem: str) -> None:
    source, count = SPECS[stem]
    [reading] = openapi.read(str(DATA / f"{stem}.json"), name=None, settings=SETTINGS)
    raw = json.loads((DATA / f"{stem}.json").read_text(encoding="utf-8"))
    operations = {f"{m.upper()} {p}" for p, item in raw["paths"].items() for m in item if m in openapi.METHODS}
    read = {f"{tool.meta['method']} {tool.meta['path']}" for tool in reading.tools}
    assert (reading.source, len(operations)) == (source, count)
    assert read | {problem.entry for problem in reading.problems} == operations
    for tool in reading.tools:
        assert len(msgspec.json.encode(tool.parameters)) < 100_000
        assert len(msgspec.json.encode(tool.returns)) < 20_000
        assert b'"$ref"' not in msgspec.json.encode(tool.parameters)
        assert set(tool.meta["in"]) == set(tool.parameters["properties"])
        assert set(tool.parameters.get("required", [])) <= set(tool.parameters["properties"])


@pytest.mark.skipif(not DATA.is_dir(), reason="TOOLSCOUT_DATA is not set to a folder with openapi/specs")
def test_a_document_with_deeply_shared_schemas_keeps_its_inner_names() -> None:
    [reading] = openapi.read(str(DATA / "k8s_core_v1.json"), name="k8s", settings=SETTINGS)
    pod = next(tool for tool in reading.tools if tool.id == "k8s/createCoreV1NamespacedPod")
    assert "containers" in pod.parameters["properties"]["spec"]["properties"]


# --- names, texts, hints --------------------------------------------------------------------------------------------


def test_an_operation_becomes_a_tool_below_its_document_and_first_tag(read: Callable[..., Reading]) -> None:
    reading = read(document({"/pets": {"get": {"operationId": "listPets", "tags": ["pets", "public"]}}}))
    tool = only(reading)
    assert (reading.source, reading.kind, reading.state) == ("pet-shop", "openapi", "ok")
    assert (tool.id, tool.name) == ("pet-shop/listPets", "listPets")
    assert (tool.path, tool.parent, tool.tags) == (("Pet Shop", "pets"), ("Pet Shop",), ("pets", "public"))
    assert tool.parameters == {"type": "object", "properties": {}}


def test_without_a_title_the_source_is_called_after_the_file(read: Callable[..., Reading]) -> None:
    reading = read({"openapi": "3.1.0", "paths": document()["paths"]}, file="Inventory.json")
    assert reading.source == "inventory"
    assert only(reading).path == ("Inventory",)


@pytest.mark.parametrize(
    ("title", "name"),
    {
        "Swagger Petstore - OpenAPI 3.0": "petstore",
        "GitHub v3 REST API": "github",
        "Spotify Web API": "spotify",
        "The Shop": "shop",
        "Web": "web",
        "API": "inventory",
        "Öl API v2.1": "öl",
        "3scale": "3scale",
    }.items(),
)
def test_a_source_gets_the_name_that_people_would_choose(read: Callable[..., Reading], title: str, name: str) -> None:
    content = {"openapi": "3.1.0", "info": {"title": title}, "paths": document()["paths"]}
    assert read(content, file="Inventory.json").source == name


def test_missing_and_repeated_operation_ids_give_ids_of_method_and_path(read: Callable[..., Reading]) -> None:
    paths = {
        "/pets": {"get": {"operationId": "same"}, "post": {"operationId": "same"}},
        "/pets/{pet id}": {"delete": {}},
    }
    reading = read(document(paths))
    assert [tool.id for tool in reading.tools] == [
        "pet-shop/get:/pets",
        "pet-shop/post:/pets",
        "pet-shop/delete:/pets/{pet-id}",
    ]
    assert [tool.name for tool in reading.tools] == ["same", "same", "delete_pets_pet_id"]
    assert reading.problems == []


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"summary": "List pets", "description": "All of them."}, "List pets. All of them."),
        ({"summary": "List pets.", "description": "List pets, newest first."}, "List pets, newest first."),
        ({"summary": "List pets"}, "List pets"),
        ({"description": "All of them."}, "All of them."),
        ({"summary": "Really?", "description": "Yes."}, "Really? Yes."),
        ({"summary": "List pets.", "deprecated": True}, "List pets. Deprecated."),
        ({"summary": 7, "description": ["no"]}, ""),
    ],
)
def test_summary_and_description_are_joined_without_repetition(
    read: Callable[..., Reading], texts: dict[str, Any], expected: str
) -> None:
    assert only(read(document({"/pets": {"get": texts}}))).description == expected


def test_methods_give_the_hints_that_http_promises(read: Callable[..., Reading]) -> None:
    methods = ["get", "head", "options", "put", "post", "delete", "patch", "trace"]
    reading = read(document({"/pets": {method: {"operationId": method} for method in methods}}))
    hints = {tool.name: tool.hints for tool in reading.tools}
    assert hints["get"] == hints["head"] == hints["options"] == Hints(read_only=True, destructive=False)
    assert hints["put"] == Hints(idempotent=True)
    assert hints["delete"] == Hints(destructive=True, idempotent=True)
    assert hints["post"] == hints["patch"] == hints["trace"] == Hints()


def test_meta_names_security_schemes_and_never_their_values(read: Callable[..., Reading]) -> None:
    schemes = {"key": {"type": "apiKey", "in": "header", "name": "X-Key", "x-example": "hunter2"}}
    paths = {"/a": {"get": {}}, "/b": {"get": {"security": []}}, "/c": {"get": {"security": [{"oauth": ["read"]}]}}}
    reading = read(document(paths, components={"securitySchemes": schemes}, security=[{"key": []}]))
    assert [tool.meta.get("security") for tool in reading.tools] == [["key"], None, ["oauth"]]
    assert reading.tools[0].meta["security_schemes"] == {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}
    assert b"hunter2" not in msgspec.json.encode(reading.tools)


# --- servers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "server", "callable"),
    [
        ([{"url": "https://shop.example/v1/"}], "https://shop.example/v1", True),
        (
            [{"url": "https://{at}.example/{v}", "variables": {"at": {"default": "eu"}, "v": {"default": 2}}}],
            "https://eu.example/2",
            True,
        ),
        ([{"url": "https://{at}.example"}], "https://{at}.example", False),
        ([{"url": "/v1"}], "/v1", False),
        ([{"url": "ftp://shop.example"}], "ftp://shop.example", False),
        (None, None, False),
        ("junk", None, False),
    ],
)
def test_a_tool_is_callable_when_its_server_is_known(
    read: Callable[..., Reading], servers: Any, server: str | None, callable: bool
) -> None:
    tool = only(read(document(servers=servers)))
    assert (tool.meta.get("server"), tool.callable) == (server, callable)


def test_the_server_nearest_to_the_operation_wins(read: Callable[..., Reading]) -> None:
    paths = {
        "/a": {"get": {"servers": [{"url": "https://a.example"}]}, "servers": [{"url": "https://b.example"}]},
        "/b": {"get": {}, "servers": [{"url": "https://b.example"}]},
        "/c": {"get": {}},
    }
    reading = read(document(paths, servers=[{"url": "https://c.example"}]))
    assert [tool.meta["server"] for tool in reading.tools] == [f"https://{name}.example" for name in "abc"]


# --- parameters and bodies ------------------------------------------------------------------------------------------


def test_parameters_of_path_item_and_operation_are_merged_and_overridden(read: Callable[..., Reading]) -> None:
    item = {
        "parameters": [
            {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}},
            {"name": "lang", "in": "query", "schema": {"type": "string"}},
        ],
        "get": {
            "parameters": [
                {"name": "lang", "in": "query", "required": True, "schema": {"enum": ["no", "en"]}, "example": "no"},
                {"name": "X-Trace", "in": "header", "description": "For logs.", "schema": {"type": "string"}},
                {"name": "Authorization", "in": "header", "schema": {"type": "string"}},
                {"name": "seen", "in": "cookie", "content": {"application/json": {"schema": {"type": "object"}}}},
            ]
        },
    }
    tool = only(read(document({"/pets/{id}": item})))
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "lang": {"enum": ["no", "en"]},
            "X-Trace": {"type": "string", "description": "For logs."},
            "seen": {"type": "object"},
        },
        "required": ["id", "lang"],
    }
    assert tool.meta["in"] == {"id": "path", "lang": "query", "X-Trace": "header", "seen": "cookie"}
    assert tool.meta["style"] == {"seen": {"content_type": "application/json"}}


def test_a_hole_of_the_path_that_nobody_declared_is_a_required_argument(read: Callable[..., Reading]) -> None:
    tool = only(read(document({"/pets/{id}": {"get": {}}})))
    assert tool.parameters == {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}


def test_two_parameters_of_one_name_both_stay(read: Callable[..., Reading]) -> None:
    parameters = [{"name": "id", "in": place, "schema": {"type": "string"}} for place in ("path", "query")]
    tool = only(read(document({"/pets/{id}": {"get": {"parameters": parameters}}})))
    assert tool.meta["in"] == {"id": "path", "id_query": "query"}
    assert tool.meta["names"] == {"id_query": "id"}


def test_the_properties_of_an_object_body_stand_beside_the_parameters(read: Callable[..., Reading]) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name"],
    }
    paths = operation(schema, parameters=[{"name": "dry", "in": "query", "schema": {"type": "boolean"}}])
    tool = only(read(document(paths)))
    assert list(tool.parameters["properties"]) == ["dry", "name", "age"]
    assert tool.parameters["required"] == ["name"]
    assert tool.meta["in"] == {"dry": "query", "name": "body", "age": "body"}
    assert tool.meta["content_type"] == "application/json"
    assert "body" not in tool.meta


def test_an_optional_body_requires_nothing(read: Callable[..., Reading]) -> None:
    paths = operation({"properties": {"name": {"type": "string"}}, "required": ["name"]})
    paths["/pets"]["post"]["requestBody"]["required"] = False
    assert "required" not in only(read(document(paths))).parameters


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"id": {"type": "integer"}}},
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"oneOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "string"}]},
    ],
)
def test_a_body_that_cannot_stand_beside_the_parameters_is_one_property(
    read: Callable[..., Reading], schema: dict[str, Any]
) -> None:
    parameters = [{"name": "id", "in": "query", "schema": {"type": "string"}}]
    tool = only(read(document(operation(schema, parameters=parameters))))
    assert tool.parameters["properties"] == {"id": {"type": "string"}, "body": schema}
    assert tool.parameters["required"] == ["body"]
    assert tool.meta["body"] == "body"
    assert tool.meta["in"] == {"id": "query", "body": "body"}


@pytest.mark.parametrize(
    ("kinds", "chosen"),
    [
        (["text/plain", "multipart/form-data", "application/json; charset=utf-8"], "application/json; charset=utf-8"),
        (["text/plain", "application/merge-patch+json"], "application/merge-patch+json"),
        (["text/plain", "application/x-www-form-urlencoded"], "application/x-www-form-urlencoded"),
    ],
)
def test_json_is_the_preferred_content_type(read: Callable[..., Reading], kinds: list[str], chosen: str) -> None:
    content = {kind: {"schema": {"type": "object", "properties": {kind: {"type": "string"}}}} for kind in kinds}
    tool = only(read(document(operation(requestBody={"content": content}))))
    assert tool.meta["content_type"] == chosen
    assert list(tool.parameters["properties"]) == [chosen]


@pytest.mark.parametrize("kind", [5, None, ["null", "object"], {"a": 1}, "objects"])
def test_a_body_whose_type_is_odd_costs_no_operation(read: Callable[..., Reading], kind: object) -> None:
    schema = {"type": kind, "properties": {"name": {"type": "string"}}}
    tool = only(read(document(operation(requestBody={"content": {"application/json": {"schema": schema}}}))))
    assert set(tool.parameters["properties"]) == ({"body"} if kind == "objects" else {"name"})


def test_what_only_the_server_writes_is_not_asked_for(read: Callable[..., Reading]) -> None:
    pet = {
        "type": "object",
        "properties": {"id": {"type": "integer", "readOnly": True}, "pin": {"type": "string", "writeOnly": True}},
        "required": ["id", "pin"],
    }
    answer = {"201": {"description": "", "content": {"application/json": {"schema": pet}}}}
    tool = only(read(document(operation(pet, responses=answer))))
    assert (list(tool.parameters["properties"]), tool.parameters["required"]) == (["pin"], ["pin"])
    assert (list(tool.returns["properties"]), tool.returns["required"]) == (["id"], ["id"])


# --- schemas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "string", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"nullable": True, "oneOf": [{"type": "string"}]}, {"oneOf": [{"type": "string"}, {"type": "null"}]}),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": 0}),
        ({"maximum": 9, "exclusiveMaximum": False}, {"maximum": 9}),
        ({"type": ["string", "null"], "const": "a"}, {"type": ["string", "null"], "const": "a"}),
        (
            {"type": "string", "example": "x", "examples": ["x"], "xml": {}, "x-go-name": "N", "externalDocs": {}},
            {"type": "string"},
        ),
        (
            {"allOf": [{"type": "object", "properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": True}}]},
            {"type": "object", "properties": {"a": {}, "b": True}, "required": ["a"]},
        ),
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": 5, "enum": "a", "properties": [], "required": True, "items": 3}, {}),
    ],
)
def test_a_schema_is_written_in_plain_json_schema(
    read: Callable[..., Reading], given: dict[str, Any], expected: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": {"value": given}}
    tool = only(read(document(operation(schema), openapi="3.1.0")))
    assert tool.parameters["properties"]["value"] == expected


def test_references_are_found_whatever_their_escapes(read: Callable[..., Reading]) -> None:
    schemas = {"a/b~c d": {"type": "string"}, "list": {"oneOf": [{"type": "integer"}]}}
    refs = {"one": "#/components/schemas/a~1b~0c%20d", "two": "#/components/schemas/list/oneOf/0"}
    body = {"type": "object", "properties": {name: {"$ref": ref} for name, ref in refs.items()}}
    tool = only(read(document(operation(body), components={"schemas": schemas})))
    assert tool.parameters["properties"] == {"one": {"type": "string"}, "two": {"type": "integer"}}


def test_defs_and_words_beside_a_reference_are_kept_as_3_1_says(read: Callable[..., Reading]) -> None:
    pet = {
        "type": "object",
        "$defs": {"Tag": {"type": "string", "description": "Any tag."}},
        "properties": {"tag": {"$ref": "#/components/schemas/Pet/$defs/Tag", "description": "Its tag."}},
    }
    reading = read(
        document(operation({"$ref": "#/components/schemas/Pet"}), openapi="3.1.0", components={"schemas": {"Pet": pet}})
    )
    assert only(reading).parameters["properties"] == {"tag": {"type": "string", "description": "Its tag."}}


def test_a_schema_inside_itself_is_cut_where_it_repeats(read: Callable[..., Reading]) -> None:
    node = {"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#/components/schemas/Node"}}}
    tool = only(
        read(document(operation({"$ref": "#/components/schemas/Node"}), components={"schemas": {"Node": node}}))
    )
    assert tool.parameters["properties"] == {
        "name": {"type": "string"},
        "next": {"type": "object", "description": "Recursive: Node again."},
    }


def test_yaml_that_contains_itself_is_refused(read: Callable[..., Reading]) -> None:
    text = """
openapi: 3.1.0
info: {title: Loop}
paths:
  /a:
    post:
      requestBody:
        required: true
        content: {application/json: {schema: &node {type: object, properties: {next: *node}, allOf: [*node]}}}
"""
    with pytest.raises(SourceError, match="alias 'node' of a value that contains itself"):
        read(text, file="loop.yaml")


def test_an_exponential_schema_is_cut_in_depth_and_not_in_breadth(read: Callable[..., Reading]) -> None:
    levels = {
        f"L{level}": {
            "type": "object",
            "description": f"Level {level}.",
            "properties": {f"p{side}": {"$ref": f"#/components/schemas/L{level + 1}"} for side in range(8)},
        }
        for level in range(30)
    }
    schemas = {**levels, "L30": {"type": "string"}}
    tool = only(read(document(operation({"$ref": "#/components/schemas/L0"}), components={"schemas": schemas})))
    assert len(msgspec.json.encode(tool.parameters)) < 100_000
    assert list(tool.parameters["properties"]) == [f"p{side}" for side in range(8)]
    assert tool.parameters["properties"]["p7"]["description"] == "Level 1."


def test_a_list_of_values_too_long_to_show_is_left_out_before_its_tool_is(read: Callable[..., Reading]) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "enum": [f"c{n}" for n in range(30_000)]}}}
    assert only(read(document(operation(schema)))).parameters["properties"] == {"city": {"type": "string"}}


@pytest.mark.parametrize("place", ["default", "enum", "description"])
def test_a_yaml_bomb_does_not_go_off(read: Callable[..., Reading], place: str) -> None:
    bombs = "\n".join(f"  b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, 12))
    text = f"openapi: 3.0.0\ninfo: {{title: Bomb}}\nx-bombs:\n  b0: &b0 [lol]\n{bombs}\n" + (
        f"paths:\n  /a: {{get: {{summary: *b11, tags: *b11, security: *b11, parameters: "
        f"[{{name: q, in: query, style: *b11, schema: {{{place}: *b11}}}}]}}}}\n  /b: {{get: {{}}}}\n  /c: *b11\n"
    )
    with pytest.raises(SourceError, match="more than 2,000,000 values"):
        read(text, file="bomb.yaml")


# --- Swagger 2.0 ----------------------------------------------------------------------------------------------------


def test_swagger_2_parameters_are_folded_into_schemas(read: Callable[..., Reading]) -> None:
    parameters = [
        {"name": "status", "in": "query", "type": "array", "items": {"type": "string"}, "collectionFormat": "multi"},
        {"name": "ids", "in": "query", "type": "array", "items": {"type": "integer", "format": "int64"}},
        {"name": "size", "in": "query", "type": "integer", "format": "int32", "enum": [1, 2], "x-nice": True},
        {"$ref": "#/parameters/pet"},
    ]
    pet = {"name": "pet", "in": "body", "required": True, "schema": {"$ref": "#/definitions/Pet"}}
    value = swagger(
        {"/pets": {"post": {"parameters": parameters, "consumes": ["application/xml", "application/json"]}}},
        parameters={"pet": pet},
        definitions={"Pet": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
        host="shop.example",
        basePath="/v2",
        schemes=["http", "https"],
        securityDefinitions={"key": {"type": "apiKey", "in": "query", "name": "k"}},
        security=[{"key": []}],
    )
    tool = only(read(value))
    assert tool.parameters["properties"] == {
        "status": {"type": "array", "items": {"type": "string"}},
        "ids": {"type": "array", "items": {"type": "integer", "format": "int64"}},
        "size": {"type": "integer", "format": "int32", "enum": [1, 2]},
        "name": {"type": "string"},
    }
    assert tool.parameters["required"] == ["name"]
    assert tool.meta["style"] == {"status": {"explode": True}, "ids": {"explode": False}}
    assert (tool.meta["content_type"], tool.meta["server"]) == ("application/json", "https://shop.example/v2")
    assert (tool.meta["security"], tool.callable) == (["key"], True)


def test_swagger_2_forms_become_one_body(read: Callable[..., Reading]) -> None:
    parameters = [
        {"name": "file", "in": "formData", "type": "file", "required": True, "description": "The picture."},
        {"name": "note", "in": "formData", "type": "string"},
    ]
    answer = {"default": {"description": "?"}, 200: {"description": "", "schema": {"type": "string"}}}
    value = swagger({"/pets": {"post": {"parameters": parameters, "responses": answer}}}, basePath="/v2")
    tool = only(read(value, file="old.yaml"))
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "file": {"type": "string", "format": "binary", "description": f"The picture. {FILE_HINT}"},
            "note": {"type": "string"},
        },
        "required": ["file"],
    }
    assert tool.meta["in"] == {"file": "body", "note": "body"}
    assert tool.meta["parts"] == {"file": {"file": True}}
    assert (tool.meta["content_type"], tool.returns) == ("multipart/form-data", {"type": "string"})
    assert (tool.meta["server"], tool.callable) == ("/v2", False)


# --- several files --------------------------------------------------------------------------------------------------


def test_a_document_split_over_files_reads_as_one(read: Callable[..., Reading]) -> None:
    files = {
        "components/x.yaml": {
            "Pet": {"type": "object", "properties": {"owner": {"$ref": "../api.yaml#/components/schemas/Owner"}}},
        },
        "paths/pets.yaml": {
            "parameters": [{"$ref": "../api.yaml#/components/parameters/Page"}],
            "post": {
                "operationId": "addPet",
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "../components/x.yaml#/Pet"}}}},
                "responses": {201: {"$ref": "#/answer"}},
            },
            "answer": {"description": "Made."},
        },
    }
    owner = {"type": "object", "properties": {"pet": {"$ref": "./components/x.yaml#/Pet"}}}
    page = {"name": "page", "in": "query", "schema": {"type": "integer"}}
    components = {"schemas": {"Owner": owner}, "parameters": {"Page": page}}
    root = document({"/pets": {"$ref": "./paths/pets.yaml"}}, components=components)
    tool = only(read(root, files, file="api.yaml"))
    assert (tool.name, tool.returns) == ("addPet", "Made.")
    assert tool.parameters["properties"] == {
        "page": {"type": "integer"},
        "owner": {
            "type": "object",
            "properties": {"pet": {"type": "object", "description": "Recursive: Pet again."}},
        },
    }


def test_a_reference_to_a_missing_key_does_not_lead_to_an_empty_one(read: Callable[..., Reading]) -> None:
    files = {"x.yaml": "null: {type: string}\nPet: {type: integer}\n"}
    reading = read(document(operation({"$ref": "./x.yaml#/Gone"})), files)
    assert "expected something at $ref" in reading.problems[0].message


NOWHERE = """
#/components/schemas/Gone #/components/schemas/Loop #/paths/~1pets/99 #Pet ./gone.yaml#/Pet ./bad.yaml#/Pet
./.hidden/secret.json notes.txt /etc/hosts.json file:///etc/hosts.json http://127.0.0.1:9/x.json //127.0.0.1/x.json
http://[ \x00.json
"""


@pytest.mark.parametrize("ref", NOWHERE.split())
def test_a_reference_that_leads_nowhere_is_named_and_leaves_its_place_open(
    read: Callable[..., Reading], ref: str
) -> None:
    schema = {"type": "object", "properties": {"pet": {"$ref": ref, "description": "It."}, "n": {"type": "integer"}}}
    loop = {"Loop": {"$ref": "#/components/schemas/Loop"}}
    paths = {**operation(schema), "/other": {"get": {"operationId": "other"}}}
    files = {"bad.yaml": "a: [", "notes.txt": "Pet: {}", ".hidden/secret.json": {"type": "string"}}
    reading = read(document(paths, components={"schemas": loop}), files)
    assert [tool.name for tool in reading.tools] == ["addPet", "other"]
    assert reading.tools[0].parameters["properties"] == {"pet": {"description": "It."}, "n": {"type": "integer"}}
    [problem] = reading.problems
    assert problem.entry == "POST /pets" and "left open" in problem.message
    assert "expected" in problem.message


def test_a_missing_reference_in_an_answer_is_named_and_the_tool_stays(read: Callable[..., Reading]) -> None:
    reading = read(document(operation(responses={"200": {"$ref": "#/components/responses/Gone"}})))
    assert [tool.name for tool in reading.tools] == ["addPet"]
    assert reading.tools[0].returns is None
    assert [problem.entry for problem in reading.problems] == ["POST /pets"]


@pytest.mark.parametrize(
    ("paths", "entry"),
    [
        ({"/bad": {"get": "junk"}}, "GET /bad"),
        ({"/bad": {"$ref": "#/nowhere"}}, "/bad"),
        ({"x-team": "pets", "/bad": None}, "/bad"),
    ],
)
def test_a_bad_operation_is_named_and_the_others_go_on(
    read: Callable[..., Reading], paths: dict[str, Any], entry: str
) -> None:
    reading = read(document({**paths, **document()["paths"]}))
    assert [tool.name for tool in reading.tools] == ["listPets"]
    assert [problem.entry for problem in reading.problems] == [entry]


GONE = {"$ref": "#/components/gone"}


@pytest.mark.parametrize(
    ("operation", "properties"),
    [
        ({"parameters": {"q": {}}}, {}),
        ({"parameters": GONE}, {}),
        ({"parameters": [{"name": "q"}, {"name": "r", "in": "query", "schema": {}}]}, {"r": {}}),
        ({"parameters": [GONE]}, {}),
        ({"parameters": [{"name": "q", "in": "query", "schema": "text"}]}, {"q": {}}),
        ({"parameters": [{"name": "q", "in": "query", "content": GONE}]}, {}),
        ({"requestBody": []}, {"body": {}}),
        ({"requestBody": GONE}, {"body": {}}),
        ({"requestBody": {"content": GONE}}, {"body": {}}),
    ],
)
def test_a_part_that_cannot_be_read_is_named_and_its_tool_stays(
    read: Callable[..., Reading], operation: dict[str, Any], properties: dict[str, Any]
) -> None:
    reading = read(document({"/bad": {"post": operation}}))
    assert reading.tools[0].parameters["properties"] == properties
    assert [problem.entry for problem in reading.problems] == ["POST /bad"]


def test_a_reference_in_the_place_of_names_or_values_is_followed(read: Callable[..., Reading]) -> None:
    shared = {
        "fields": {"width": {"type": "integer"}, "height": {"type": "integer"}},
        "needed": ["width"],
        "colours": ["red"],
        "media": {"application/json": {"schema": {"$ref": "#/Shelf"}}},
        "keys": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}},
        "Shelf": {
            "type": "object",
            "properties": {"$ref": "#/fields", "colour": {"type": "string", "enum": {"$ref": "#/colours"}}},
            "patternProperties": {"$ref": "#/fields"},
            "required": {"$ref": "#/needed"},
        },
    }
    body = {"required": True, "content": {"$ref": "parts.json#/media"}}
    components = {"securitySchemes": {"$ref": "parts.json#/keys"}}
    paths = {"/shelves": {"post": {"requestBody": body, "security": [{"key": []}]}}}
    tool = only(read(document(paths, components=components), {"parts.json": shared}))
    assert tool.parameters["properties"] == {**shared["fields"], "colour": {"type": "string", "enum": ["red"]}}
    assert tool.parameters["required"] == ["width"]
    assert tool.meta["security_schemes"] == shared["keys"]


def test_methods_of_openapi_3_2_are_read(read: Callable[..., Reading]) -> None:
    simple = {"responses": OK}
    item = {"query": simple, "additionalOperations": {"COPY": simple, "not a method": simple}}
    where = {"name": "q", "in": "querystring", "content": {"application/x-www-form-urlencoded": {"schema": {}}}}
    item["query"] = {**simple, "parameters": [where]}
    reading = read(document({"/s": item}, openapi="3.2.0"))
    assert [tool.meta["method"] for tool in reading.tools] == ["QUERY", "COPY"]
    assert reading.tools[0].meta["in"] == {"q": "querystring"} and reading.tools[0].hints.read_only


@pytest.mark.parametrize(
    ("kinds", "schema", "chosen"),
    [
        (["application/json-patch+json", "application/merge-patch+json"], {"type": "object"}, "merge-patch+json"),
        (["application/json-patch+json", "application/strategic-merge-patch+json"], {}, "strategic-merge-patch+json"),
        (["application/merge-patch+json", "application/json-patch+json"], {"type": "array"}, "json-patch+json"),
        (["application/json-patch+json", "application/json"], {"type": "object"}, "json"),
        (["application/apply-patch+yaml", "application/json-patch+json"], {"type": "object"}, "json-patch+json"),
    ],
)
def test_the_content_type_of_a_patch_fits_its_body(
    read: Callable[..., Reading], kinds: list[str], schema: dict[str, Any], chosen: str
) -> None:
    body = {"name": "body", "in": "body", "required": True, "schema": schema}
    tool = only(read(swagger({"/pets": {"patch": {"consumes": kinds, "parameters": [body]}}})))
    assert tool.meta["content_type"] == f"application/{chosen}"
    is_list = tool.parameters["properties"]["body"].get("type") == "array"
    assert is_list == (chosen == "json-patch+json")


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "string", "format": "binary"}, {"file": True}),
        ({"type": "string", "format": "byte"}, {"file": True}),
        ({"type": "string", "contentMediaType": "image/png"}, {"file": True, "content_type": "image/png"}),
        ({"type": "string", "contentEncoding": "base64"}, {"file": True}),
        ({"type": "array", "items": {"type": "string", "format": "binary"}}, {"file": True}),
        ({"anyOf": [{"type": "string", "format": "binary"}, {"type": "null"}]}, {"file": True}),
        ({"type": "string"}, None),
        ({"type": "object"}, None),
    ],
)
def test_a_file_in_a_form_is_known_as_one(
    read: Callable[..., Reading], schema: dict[str, Any], part: dict[str, Any] | None
) -> None:
    content = {"multipart/form-data": {"schema": {"type": "object", "properties": {"it": schema}}}}
    tool = only(read(document(operation(requestBody={"content": content}))))
    assert tool.meta.get("parts", {}).get("it") == part
    assert (FILE_HINT in tool.parameters["properties"]["it"].get("description", "")) == (part is not None)


@pytest.mark.parametrize(
    ("kind", "schema", "shown", "is_file"),
    [
        ("application/octet-stream", {"type": "string", "format": "binary"}, "binary", True),
        ("image/*", {}, None, True),
        ("text/plain", {"type": "string"}, None, False),
        ("application/xml", {"type": "object", "properties": {"a": {}}}, None, False),
    ],
)
def test_a_body_of_another_type_is_a_text_or_a_file(
    read: Callable[..., Reading], kind: str, schema: dict[str, Any], shown: str | None, is_file: bool
) -> None:
    tool = only(read(document(operation(requestBody={"required": True, "content": {kind: {"schema": schema}}}))))
    body = tool.parameters["properties"]["body"]
    assert (body["type"], body.get("format")) == ("string", shown)
    assert tool.meta.get("parts", {}) == ({"": {"file": True}} if is_file else {})
    assert body.get("contentSchema") == (schema if schema.get("properties") else None)


@pytest.mark.parametrize(
    ("given", "servers", "expected"),
    [
        ("https://api.example/v2/", None, "https://api.example/v2"),
        ("https://api.example", [{"url": "/v3"}], "https://api.example/v3"),
        ("https://api.example/v2", [{"url": "/v3"}], "https://api.example/v2"),
        ("https://test.example", [{"url": "https://api.example/v1"}], "https://test.example"),
    ],
)
def test_the_address_that_the_user_gives_replaces_the_servers(
    tmp_path: Path, given: str, servers: Any, expected: str
) -> None:
    (tmp_path / "api.json").write_text(json.dumps(document(servers=servers)))
    [reading] = openapi.read(f"{tmp_path / 'api.json'}#server={given}", name=None, settings=SETTINGS)
    assert only(reading).meta["server"] == expected and reading.tools[0].callable and not reading.message
    with pytest.raises(SourceError, match="expected --server http"):
        openapi.read(f"{tmp_path / 'api.json'}#server=ftp://x", name=None, settings=SETTINGS)


def test_a_document_without_a_server_says_so(read: Callable[..., Reading]) -> None:
    assert "1 of 1 tools can be found but not called" in read(document()).message


def test_a_file_outside_the_folder_of_the_document_is_not_read(tmp_path: Path) -> None:
    inside, outside = tmp_path / "api", tmp_path / "secret.json"
    inside.mkdir()
    outside.write_text(json.dumps({"type": "string", "const": "secret"}))
    (inside / "link.json").symlink_to(outside)
    (inside / "part.json").write_text(json.dumps({"$ref": "../secret.json"}))
    (tmp_path / "through").symlink_to(inside)
    for ref in ("../secret.json", "link.json", "part.json", "x/../../secret.json"):
        (inside / "api.json").write_text(json.dumps(document(operation({"$ref": ref}))))
        for path in (inside / "api.json", tmp_path / "through" / "api.json"):
            [reading] = openapi.read(str(path), name=None, settings=SETTINGS)
            assert b"secret" not in msgspec.json.encode(reading.tools), ref
            assert [problem.entry for problem in reading.problems] == ["POST /pets"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"hello": 1}, "expected an OpenAPI document"),
        ([], "expected an OpenAPI document"),
        ({"openapi": "4.0"}, "expected OpenAPI 3.x or Swagger 2.0, found version '4.0'"),
        ({"swagger": "1.2"}, "found version '1.2'"),
        ({"openapi": ["3"]}, "found version a list"),
        ({"openapi": "3.0.0"}, "expected at least one usable operation under 'paths', found none"),
        ({"openapi": "3.0.0", "paths": {"/a": {"get": 1}}}, "found GET /a: expected an operation"),
        ("{", "expected JSON"),
    ],
)
def test_a_document_with_nothing_usable_says_what_was_expected(
    read: Callable[..., Reading], value: Any, message: str
) -> None:
    with pytest.raises(SourceError, match=r"api\.json: ") as error:
        read(value)
    assert message in str(error.value)


def test_more_operations_than_the_setting_allows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "api.json").write_text(json.dumps(document({f"/{n}": {"get": {}} for n in range(3)})))
    with pytest.raises(SourceError, match="raise max_tools"):
        openapi.read(str(tmp_path / "api.json"), name=None, settings=Settings(max_tools=2))


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected a file, found none"):
        openapi.read(str(tmp_path / "gone.yaml"), name=None, settings=SETTINGS)


def test_a_tool_without_a_part_says_which_in_one_sentence(read: Callable[..., Reading]) -> None:
    broken = {"parameters": 3, "requestBody": {"content": 3}, "responses": {"200": 3}}
    problems = read(document({"/a": {"get": broken}, "/b": {"get": {"parameters": [3]}}})).problems
    assert [problem.message.rpartition(" (")[2] for problem in problems] == [
        "the tool is kept without its parameters)",
        "the tool is kept without the schema of its body)",
        "the tool is kept without its result)",
        "the tool is kept without one parameter)",
    ]
