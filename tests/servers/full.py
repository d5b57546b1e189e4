"""An MCP server that uses all of the protocol, at one of its two ages: `modern` (2026-07-28) or `legacy` (before).

Over standard input, or over HTTP on the port that the second argument names.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPError, UrlElicitationRequiredError

AGE = sys.argv[1]
MODERN = AGE == "modern"
ICON = types.Icon(src="https://example.com/icon.png", mime_type="image/png", sizes=["48x48"])
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
MEMO = "memo://notes/1"
bus = InMemorySubscriptionBus()
state: dict[str, Any] = {"cancelled": 0, "memo": "a memo", "sessions": [], "opened": []}
Context = ServerRequestContext[Any, Any]


def tool(name: str, **properties: str) -> types.Tool:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return types.Tool(name=name, title=name.title(), description=f"The tool {name}.", input_schema=schema, icons=[ICON])


TOOLS = [
    tool("ask", twice="boolean"),
    tool("ask_url"),
    tool("need_url", key="string"),
    tool("log"),
    tool("meta"),
    tool("progress"),
    tool("hang"),
    tool("cancelled"),
    tool("links"),
    tool("structured", number="integer"),
    tool("fail"),
    tool("refuse"),
    tool("change", text="string"),
    tool("capabilities"),
    tool("picture"),
    tool("big"),
]


def text(value: Any, **fields: Any) -> types.CallToolResult:
    shown = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return types.CallToolResult(content=[types.TextContent(text=shown)], **fields)


async def ask(context: Context, params: types.CallToolRequestParams) -> Any:
    """Ask for a name, and with `twice` for another one."""
    rounds = 2 if (params.arguments or {}).get("twice") else 1
    if not MODERN:
        answers = [await context.session.elicit_form(f"Name {n}?", FORM, context.request_id) for n in range(rounds)]
        return text([answer.model_dump(mode="json", exclude_none=True) for answer in answers])
    known = json.loads(params.request_state or "[]")
    if params.input_responses:
        known.append(params.input_responses["name"].model_dump(mode="json", exclude_none=True))
    if len(known) == rounds:
        return text([{key: value for key, value in each.items() if key != "result_type"} for each in known])
    question = types.ElicitRequestFormParams(message=f"Name {len(known)}?", requested_schema=FORM)
    requests: Any = {"name": types.ElicitRequest(params=question)}
    return types.InputRequiredResult(input_requests=requests, request_state=json.dumps(known))


async def ask_url(context: Context, params: types.CallToolRequestParams) -> Any:
    if not MODERN:
        answer = await context.session.elicit_url("Sign in.", "https://example.com/in", "one", context.request_id)
        await context.session.send_elicit_complete("one", context.request_id)
        return text(answer.action)
    if params.input_responses:
        answer = params.input_responses["url"]  # type: ignore[assignment]
        return text(answer.action)
    question = types.ElicitRequestURLParams(message="Sign in.", url="https://example.com/in")
    return types.InputRequiredResult(input_requests={"url": types.ElicitRequest(params=question)})


async def call_tool(context: Context, params: types.CallToolRequestParams) -> Any:
    name, arguments = params.name, params.arguments or {}
    if name == "ask":
        return await ask(context, params)
    if name == "ask_url":
        return await ask_url(context, params)
    if name == "need_url":
        if arguments.get("key") in state["opened"]:
            return text("opened")
        state["opened"].append(arguments.get("key"))
        url = types.ElicitRequestURLParams(message="Sign in first.", url="https://example.com/in", elicitation_id="two")
        raise UrlElicitationRequiredError([url])
    if name == "log":
        for level in ("debug", "error"):
            entry = types.LoggingMessageNotificationParams(level=level, logger="full", data={"said": level})
            notification = types.LoggingMessageNotification(params=entry)
            if not MODERN or level == (context.meta or {}).get("io.modelcontextprotocol/logLevel"):
                await context.session.send_notification(notification, context.request_id)
        return text("logged")
    if name == "meta":
        meta = {key: value for key, value in (context.meta or {}).items() if "/" not in key and key != "progress_token"}
        return text(meta, _meta={"example.com/trace": "kept"})
    if name == "progress":
        for step in (1, 2, 3):
            await context.session.report_progress(step, 3, f"step {step}")
        return text("done")
    if name == "hang":
        try:
            await anyio.sleep_forever()
        finally:
            state["cancelled"] += 1
    if name == "cancelled":
        return text(state["cancelled"])
    if name == "links":
        link = types.ResourceLink(uri="hidden://1", name="hidden", icons=[ICON], description="Not in the list.")
        embedded = types.TextResourceContents(uri=MEMO, text="a memo", mime_type="text/plain")
        note = types.Annotations(audience=["user"], priority=0.5)
        parts = [link, types.EmbeddedResource(resource=embedded), types.TextContent(text="x", annotations=note)]
        return types.CallToolResult(content=parts)
    if name == "structured":
        return text("a number", structured_content={"number": arguments.get("number"), "none": None, "deep": [{}]})
    if name == "fail":
        return text("it did not work", is_error=True)
    if name == "refuse":
        raise MCPError(-32000, "no licence", {"until": "tomorrow"})
    if name == "change":
        state["memo"] = arguments["text"]
        await changed()
        return text("changed")
    if name == "capabilities":
        capabilities = context.session.client_capabilities
        return text(capabilities.model_dump(mode="json", exclude_none=True) if capabilities else {})
    if name == "picture":
        parts = [types.ImageContent(data="aGVsbG8=", mime_type="image/png")]
        return types.CallToolResult(content=[*parts, types.AudioContent(data="aGVsbG8=", mime_type="audio/wav")])
    return text("x" * 20_000)


async def changed() -> None:
    await bus.publish(ResourceUpdated(MEMO))
    await bus.publish(ResourcesListChanged())
    for connection in state["sessions"]:
        await connection.send_resource_updated(MEMO)
        await connection.send_resource_list_changed()


async def list_tools(*_: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=TOOLS)


async def list_resources(_: Any, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
    memo = types.Resource(uri=MEMO, name="memo", title="A memo", mime_type="text/plain", icons=[ICON], size=6)
    other = types.Resource(uri="memo://notes/2", name="picture", mime_type="image/png", _meta={"example.com/a": 1})
    first = params is None or params.cursor is None
    return types.ListResourcesResult(resources=[memo] if first else [other], next_cursor="more" if first else None)


async def list_templates(*_: Any) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(uri_template="page://{book}/{number}", name="page", icons=[ICON])
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def ask_once(context: Context, params: Any) -> Any:
    """Ask for a name in the way of this age. Returns it, or the question that ends the round."""
    if not MODERN:
        return (await context.session.elicit_form("Name?", FORM, context.request_id)).content["name"]
    if params.input_responses:
        return params.input_responses["name"].content["name"]
    question = types.ElicitRequestFormParams(message="Name?", requested_schema=FORM)
    return types.InputRequiredResult(input_requests={"name": types.ElicitRequest(params=question)}, request_state="s")


async def read_resource(context: Context, params: types.ReadResourceRequestParams) -> Any:
    uri = str(params.uri)
    if uri == "page://url/1" and uri not in state["opened"]:
        state["opened"].append(uri)
        url = types.ElicitRequestURLParams(message="Sign in first.", url="https://example.com/in", elicitation_id="two")
        raise UrlElicitationRequiredError([url])
    if uri == "page://ask/1":
        name = await ask_once(context, params)
        if not isinstance(name, str):
            return name
        uri = f"page://{name}/1"
    if uri == "memo://notes/2":
        content: Any = types.BlobResourceContents(uri=uri, blob="aGVsbG8=", mime_type="image/png")
    elif uri == MEMO or uri.startswith(("page://", "hidden://")):
        shown = state["memo"] if uri == MEMO else f"the text of {uri}"
        content = types.TextResourceContents(uri=uri, text=shown, mime_type="text/plain", _meta={"example.com/b": 2})
    else:
        raise MCPError(types.INVALID_PARAMS, f"Resource not found: {uri}", {"uri": uri})
    return types.ReadResourceResult(contents=[content])


async def list_prompts(*_: Any) -> types.ListPromptsResult:
    arguments = [types.PromptArgument(name="city", description="Which city.", required=True)]
    return types.ListPromptsResult(
        prompts=[
            types.Prompt(name="greet", title="Greet", description="Greets.", arguments=arguments, icons=[ICON]),
            types.Prompt(name="team/report"),
        ]
    )


async def get_prompt(context: Context, params: types.GetPromptRequestParams) -> Any:
    city: Any = (params.arguments or {}).get("city")
    if city == "ask" and not isinstance(city := await ask_once(context, params), str):
        return city
    if params.name not in ("greet", "team/report"):
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    link = types.ResourceLink(uri=MEMO, name="memo")
    said = types.TextContent(text=f"Hello {city}")
    messages = [types.PromptMessage(role="user", content=said), types.PromptMessage(role="assistant", content=link)]
    return types.GetPromptResult(description="A greeting.", messages=messages)


async def complete(_: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    known = ["Oslo", "Osaka", "Lima"] if isinstance(params.ref, types.PromptReference) else ["book-1", "book-2"]
    values = [value for value in known if value.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))


async def subscribe(*_: Any) -> types.EmptyResult:
    return types.EmptyResult()


async def note_session(context: Context, _: Any) -> None:
    state["sessions"].append(context.session._connection)


def make_server() -> Server[Any]:
    server = Server(
        "full",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=subscribe,
        on_subscriptions_listen=ListenHandler(bus),
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, subscribe)
    server.add_notification_handler("notifications/initialized", types.NotificationParams, note_session)
    return server


async def main() -> None:
    server = make_server()
    async with stdio_server() as (reading, writing):
        if MODERN:
            await server.run(reading, writing, server.create_initialization_options())
        else:
            await serve_loop(server, reading, writing, lifespan_state={})


if __name__ == "__main__":
    if len(sys.argv) > 2:
        import uvicorn

        uvicorn.run(make_server().streamable_http_app(), port=int(sys.argv[2]), log_level="error")
    else:
        anyio.run(main)
