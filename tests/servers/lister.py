"""An MCP server whose skills are listed by the extension io.modelcontextprotocol/skills (SEP-2640), on pages of one.

python lister.py FILE     # FILE: JSON; read again for each request, but for "declared"
                          # "files": URI → text; "skills": URIs of each SKILL.md that is listed; "unlisted": others
                          # "dynamic": URIs of those without digests; "lies": URI → text that is read instead
                          # "frontmatter": URI → what is listed as such; "declared": whether the extension is
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import anyio
import yaml
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    ListResourcesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    TextResourceContents,
    Tool,
)


def load() -> dict[str, Any]:
    said: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    return said


def describe(uri: str) -> dict[str, Any]:
    said = load()
    folder, text = uri.removesuffix("SKILL.md"), said["files"][uri]
    files = {name: text.encode() for name, text in said["files"].items() if name.startswith(folder)}
    listed = [
        {"uri": name, "digest": f"sha256:{hashlib.sha256(content).hexdigest()}", "size": len(content)}
        for name, content in files.items()
    ]
    front = said.get("frontmatter", {}).get(uri) or yaml.safe_load(text.split("---\n")[1])
    return {"uri": uri, "frontmatter": front, "resources": "dynamic" if uri in said.get("dynamic", ()) else listed}


async def list_skills(context: Any, params: PaginatedRequestParams) -> dict[str, Any]:
    uris, place = load()["skills"], int(params.cursor or 0)
    more = {"nextCursor": str(place + 1)} if place + 1 < len(uris) else {}
    return {"skills": [describe(uri) for uri in uris[place : place + 1]], **more, "ttlMs": 0, "cacheScope": "public"}


async def get_skill(context: Any, params: ReadResourceRequestParams) -> dict[str, Any]:
    if params.uri not in [*load()["skills"], *load().get("unlisted", ())]:
        raise MCPError(INVALID_PARAMS, f"No skill is served at {params.uri}")
    return {"skill": describe(params.uri), "ttlMs": 0, "cacheScope": "public"}


async def list_tools(context: Any, params: Any) -> ListToolsResult:
    return ListToolsResult(
        tools=[Tool(name="stamp", description="Applies a stencil.", input_schema={"type": "object"})]
    )


async def list_resources(context: Any, params: Any) -> ListResourcesResult:
    said = load()
    return ListResourcesResult(resources=[Resource(uri=uri, name=uri) for uri in said["files"]])


async def read_resource(context: Any, params: ReadResourceRequestParams) -> ReadResourceResult:
    said = load()
    text = said.get("lies", {}).get(params.uri) or said["files"].get(params.uri)
    if text is None:
        raise MCPError(INVALID_PARAMS, "Unknown resource")
    return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, mime_type="text/markdown", text=text)])


server: Server[Any] = Server(
    "lister", on_list_tools=list_tools, on_list_resources=list_resources, on_read_resource=read_resource
)
if load().get("declared", True):
    server.extensions = {"io.modelcontextprotocol/skills": {}}
    server.add_request_handler("skills/list", PaginatedRequestParams, list_skills)
    server.add_request_handler("skills/get", ReadResourceRequestParams, get_skill)


async def main() -> None:
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
