from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from toolscout.errors import SourceError
from toolscout.settings import Settings
from toolscout.sources import openapi

JUNK: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**30, "", "x", "#/paths", "$ref", "\x00", "é\u202e", [], [None], [[]], [1, "a"],
    {}, {"$ref": "#"}, {"$ref": "#/paths"}, {"$ref": 5}, {"$ref": "x.json"}, {"$ref": "#/a/b/c"}, {"": {}},
    {"type": []}, {"properties": 5}, {"allOf": 5},
    {"allOf": [{"$ref": "#"}]}, {"enum": {}}, {"name": "q", "in": "query"},
    "a" * 5000,
]  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below `value`."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def mutated(value: Any, chance: random.Random) -> Any:
    """A copy of `value` with one to six nodes replaced by junk, removed, renamed, wrapped or exchanged."""
    value = copy.deepcopy(value)
    for _ in range(chance.randint(1, 6)):
        spots = list(places(value))
        if not spots:
            return value
        holder, key = chance.choice(spots)
        kind = chance.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[chance.choice(["", "get", "$ref", "type", "parameters", "ünï", key + key])] = holder.pop(key)
        elif kind == 2:
            holder[key] = chance.choice([[holder[key]], {"x": holder[key]}, {"allOf": [holder[key]]}, str(holder[key])])
        elif kind == 3:
            other, there = chance.choice(spots)
            holder[key] = copy.deepcopy(other[there]) if there in range(len(other)) or there in other else None
        else:
            holder[key] = copy.deepcopy(chance.choice(JUNK))
    return value


def seeds() -> list[Any]:
    """Small real documents of each version that touch every part of the reader."""
    pet = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "id": {"type": "integer", "format": "int64", "readOnly": True},
            "name": {"type": "string", "nullable": True, "enum": ["a"]},
            "age": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "default": 1},
            "owner": {"$ref": "#/components/schemas/Owner", "description": "Who."},
        },
    }
    owner = {
        "allOf": [{"$ref": "#/components/schemas/Pet"}, {"type": "object", "additionalProperties": {"oneOf": [{}]}}]
    }
    item = {
        "parameters": [{"$ref": "#/components/parameters/Page"}],
        "servers": [{"url": "https://{at}.example", "variables": {"at": {"default": "eu", "enum": ["eu"]}}}],
        "get": {
            "operationId": "listPets",
            "summary": "List",
            "description": "All.",
            "tags": ["pets"],
            "deprecated": True,
        },
        "post": {
            "security": [{"key": []}],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
            },
            "responses": {"201": {"description": "Made.", "content": {"application/json": {"schema": pet}}}},
        },
    }
    page = {"name": "page", "in": "query", "style": "form", "explode": False, "schema": {"type": "integer"}}
    components = {
        "schemas": {"Pet": pet, "Owner": owner},
        "parameters": {"Page": page},
        "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "K"}},
    }
    new = {
        "openapi": "3.0.3",
        "info": {"title": "Pet Shop", "version": "1"},
        "paths": {"/pets/{id}": item, "/more": {"$ref": "#/paths/~1pets~1{id}"}},
        "components": components,
    }
    old = {
        "swagger": "2.0",
        "info": {"title": "Old Shop", "version": "1"},
        "paths": {
            "/pets": {
                "post": {
                    "consumes": ["multipart/form-data"],
                    "schemes": ["https"],
                    "parameters": [
                        {
                            "name": "ids",
                            "in": "query",
                            "type": "array",
                            "items": {"type": "string"},
                            "collectionFormat": "csv",
                        },
                        {"name": "file", "in": "formData", "type": "file", "required": True, "description": "It."},
                    ],
                    "responses": {"200": {"description": "", "schema": {"$ref": "#/definitions/Pet"}}},
                },
                "put": {"parameters": [{"name": "pet", "in": "body", "schema": {"$ref": "#/definitions/Pet"}}]},
            }
        },
        "definitions": {"Pet": {"type": "object", "properties": {"next": {"$ref": "#/definitions/Pet"}}}},
        "host": "shop.example",
        "basePath": "/v1",
        "securityDefinitions": {"basic": {"type": "basic"}},
        "security": [{"basic": []}],
    }
    return [new, {**new, "openapi": "3.1.0", "webhooks": {}}, old]


def test_no_malformed_document_gives_a_traceback(tmp_path: Path) -> None:
    good = 0
    for number in range(int(os.environ.get("TOOLSCOUT_FUZZ", "200"))):
        chance = random.Random(number)
        value = mutated(chance.choice(seeds()), chance)
        as_yaml = chance.random() < 0.3
        text = yaml.safe_dump(value) if as_yaml else json.dumps(value)
        if chance.random() < 0.2:
            text = text[: chance.randrange(len(text))]
        path = tmp_path / ("api.yaml" if as_yaml else "api.json")
        path.write_text(text, encoding="utf-8")
        try:
            [reading] = openapi.read(str(path), name=None, settings=Settings())
        except SourceError as error:
            assert str(error)
            continue
        good += 1
        assert reading.tools
        for problem in reading.problems:
            assert problem.entry.partition("/")[0] in ("", *(f"{method.upper()} " for method in openapi.METHODS))
            assert "expected" in problem.message
        assert len({tool.id for tool in reading.tools}) == len(reading.tools)
        msgspec.json.encode(reading)
    assert good > 0
