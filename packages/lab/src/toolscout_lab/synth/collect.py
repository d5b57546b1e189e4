"""Collects the tools to write queries for: every source that `add` reads, and AWS services as botocore describes them.

From numpy and pandas it leaves out the same modules as ToolBank (Tool2Vec paper, appendix B).
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from toolscout import sources
from toolscout.errors import SourceError, require
from toolscout.settings import Settings
from toolscout.types import Tool

__all__ = ["DEFAULT_SERVICES", "EXCLUDED_MODULES", "collect"]

EXCLUDED_MODULES: Final = {
    "numpy": ("ctypeslib", "dtypes", "emath", "rec", "version"),
    "pandas": ("core", "compat", "util"),
}
DEFAULT_SERVICES: Final = ("ec2", "rds", "iam", "s3", "sns")
MAX_SHAPE_DEPTH: Final = 2
MAX_SHAPE_DESCRIPTION_CHARS: Final = 1_000
SHAPE_TYPES: Final = {
    "string": "string",
    "character": "string",
    "blob": "string",
    "timestamp": "string",
    "boolean": "boolean",
    "integer": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
}


def collect(locators: Sequence[str], settings: Settings) -> list[Tool]:
    """Read the tools behind locators, each tool once. A locator is what `add` takes, `boto3` or `boto3:s3,sns`.

    Raises:
        SourceError: for a locator that cannot be read.
    """
    tools: dict[str, Tool] = {}
    for locator in locators:
        if locator.partition(":")[0] == "boto3":
            new_tools = list(_read_boto3(locator.partition(":")[2]))
        else:
            new_tools = [
                tool for reading in _readings(locator, settings) for tool in reading.tools if not _is_excluded(tool)
            ]
        tools |= {tool.id: tool for tool in new_tools}
    return list(tools.values())


def _readings(locator: str, settings: Settings) -> list[sources.Reading]:
    return sources.read(locator, name=None, kind=sources.detect(locator), settings=settings)


def _is_excluded(tool: Tool) -> bool:
    top, _, rest = (tool.path[-1] if tool.path else "").partition(".")
    return rest.partition(".")[0] in EXCLUDED_MODULES.get(top, ())


def _read_boto3(names: str) -> Iterator[Tool]:
    """Turn each operation of the services into a tool. Their models are read from files, without a connection."""
    session = require("botocore.session", "synth").get_session()
    for service in filter(None, names.split(",")) if names else DEFAULT_SERVICES:
        try:
            model = session.get_service_model(service.strip())
        except Exception as error:  # botocore has no one root for "unknown" and "unreadable"
            if type(error).__module__.partition(".")[0] != "botocore":
                raise
            raise SourceError(f"boto3:{service}: botocore knows no such service. Check its name.") from None
        xform = require("botocore", "synth").xform_name
        for operation in model.operation_names:
            shape = model.operation_model(operation)
            yield Tool(
                id=f"boto3/{service}.{xform(operation)}",
                name=f"{service}.{xform(operation)}",
                description=_plain(shape.documentation)[:MAX_SHAPE_DESCRIPTION_CHARS],
                parameters=_build_schema(shape.input_shape)
                if shape.input_shape
                else {"type": "object", "properties": {}},
                path=("aws", service),
            )


def _build_schema(shape: Any, depth: int = MAX_SHAPE_DEPTH) -> dict[str, Any]:
    """Convert a shape of botocore to a JSON Schema, `depth` levels deep."""
    about = {"description": text} if (text := _plain(shape.documentation)[:200]) else {}
    if shape.type_name == "structure":
        inner = {name: _build_schema(part, depth - 1) for name, part in shape.members.items()} if depth else {}
        required = {"required": list(shape.required_members)} if depth and shape.required_members else {}
        return {"type": "object", "properties": inner, **required, **about}
    if shape.type_name == "list":
        return {"type": "array", "items": _build_schema(shape.member, depth - 1) if depth else {}, **about}
    if shape.type_name == "map":
        return {"type": "object", **about}
    return {"type": SHAPE_TYPES.get(shape.type_name, "string"), **about}


def _plain(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text or "")).split())
