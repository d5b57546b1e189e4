"""An MCP server whose prompts, resources and templates are those in a file, which is read at each request.

python offering.py FILE      # {"prompts": […], "resources": […], "templates": […]}, as the protocol has them;
                             # "links": URIs to which its tool links
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

FILE = Path(sys.argv[1])


def read(kind: str) -> list[Any]:
    offered: list[Any] = json.loads(FILE.read_text(encoding="utf-8")).get(kind, [])
    return offered


async def list_tools(*_: Any) -> types.ListToolsResult:
    tool = types.Tool(name="ping", description="Answers.", input_schema={"type": "object"})
    return types.ListToolsResult(tools=[tool])


async def call_tool(*_: Any) -> types.CallToolResult:
    """Link to the URIs that are `links` of the file."""
    links = [types.ResourceLink(type="resource_link", name="link", uri=uri) for uri in read("links")]
    return types.CallToolResult(content=[types.TextContent(text="pong"), *links])


async def list_prompts(*_: Any) -> types.ListPromptsResult:
    return types.ListPromptsResult(prompts=[types.Prompt.model_validate(each) for each in read("prompts")])


async def list_resources(*_: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=[types.Resource.model_validate(each) for each in read("resources")])


async def list_templates(*_: Any) -> types.ListResourceTemplatesResult:
    templates = [types.ResourceTemplate.model_validate(each) for each in read("templates")]
    return types.ListResourceTemplatesResult(resource_templates=templates)


async def get_prompt(_: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    message = types.PromptMessage(role="user", content=types.TextContent(text=f"the words of {params.name}"))
    return types.GetPromptResult(messages=[message])


async def read_resource(_: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=f"at {params.uri}")])


async def complete(_: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
    return types.CompleteResult(completion=types.Completion(values=["Oslo"]))


async def main() -> None:
    server: Server[Any] = Server(
        "offering",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
    )
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
