"""Calls a tool by its kind, within its time: of an MCP server, an HTTP operation, or a Python function."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from toolscout.errors import BadEntry, Unavailable, UserError
from toolscout.home.access import telemetry
from toolscout.sources import DOCUMENT_KINDS
from toolscout.sources.documents import is_remote, split_server
from toolscout.sources.mcp import TASK_ONLY
from toolscout.trust.policy import Caller
from toolscout.trust.redaction import Cover, find_environment_credentials
from toolscout.types import Tool, clean
from toolscout_gateway.calls import openapi
from toolscout_gateway.sessions.upstreams import Upstreams
from toolscout_gateway.text import clip

if TYPE_CHECKING:
    import httpx
    from mcp_types import CallToolResult
    from pydantic import BaseModel

    from toolscout.sources.addresses import Reach
    from toolscout.sources.mcp import McpConnection
    from toolscout_gateway.sessions.exchange import Exchange

__all__ = ["Calls", "cover_result"]

Result = TypeVar("Result", bound="BaseModel")
REFUSALS_BY_KIND: Final = {
    "skill": "it is a skill: read its instructions with describe_tools, and follow them with other tools",
    "agent": "it is another agent, which this gateway only finds",
}
MAX_PYTHON_CALLS: Final = 8  # at the same time, each in a thread
MAX_ERROR_CHARS: Final = 500  # of what a function raised
MAX_REPR_CHARS: Final = 100_000  # of a result that is no JSON
PUSHED_QUESTION: Final = "elicitation/create"  # in the error of a server that could not push a question to its user
HANDSHAKE_REVISION: Final = "2025-11-25"


@dataclasses.dataclass(frozen=True)
class CanRun:
    """A predicate for `Scout.search`: keeps the tools that a gateway can call, and skills and agents, which are read.

    Attributes:
        sources: the MCP servers that are configured.
        allow_python: whether Python functions may run.
        visible: what the caller may discover. None: everything.
    """

    sources: frozenset[str]
    allow_python: bool
    visible: Callable[[Tool], bool] | None = None

    def __call__(self, tool: Tool) -> bool:
        """Return whether a search may return the tool."""
        if self.visible is not None and not self.visible(tool):
            return False
        if tool.kind != "tool":
            return True
        if not tool.callable:
            return bool(tool.meta.get("module")) and self.allow_python
        return "method" in tool.meta or tool.source in self.sources


class Calls:
    """Calls tools of MCP servers, operations of HTTP APIs and Python functions."""

    def __init__(self, upstreams: Upstreams, *, allow_python: bool, timeout: float) -> None:
        """Call through these servers. `timeout`: seconds for one call; `allow_python`: whether functions may run."""
        self.upstreams, self.allow_python, self.timeout = upstreams, allow_python, timeout
        self._clients: dict[Reach | None, httpx.AsyncClient] = {}  # one for each set of hosts that an API may reach
        self._python = asyncio.Semaphore(MAX_PYTHON_CALLS)

    def explain_refusal(self, caller: Caller, tool: Tool) -> str:
        """Explain why a caller cannot call a tool here. Empty if they can."""
        if scope := caller.find_missing_scope(tool):
            return f"your token lacks the scope {scope!r}: ask your issuer for a token with it"
        return self._explain_kind(tool) if caller.sees(tool) else "you may see this tool, but not call it"

    def _explain_kind(self, tool: Tool) -> str:
        """Return why a tool cannot be called here, whoever calls it; empty if it can."""
        if tool.kind != "tool":
            return REFUSALS_BY_KIND[tool.kind]
        if tool.callable and "method" in tool.meta:
            return ""
        if tool.callable:
            if tool.source in self.upstreams.servers:
                return ""
            return self.upstreams.skipped.get(tool.source, f"no server of {tool.source!r} is configured here")
        if tool.meta.get("module"):
            if self.allow_python:
                return ""
            return "Python functions run only if the gateway was started with --allow-python"
        if "method" in tool.meta:
            return "its OpenAPI document names no server with an absolute address: add it again with --server URL"
        return "the catalogue holds only its schema, not how to call it"

    def keep_runnable(self, visible: Callable[[Tool], bool] | None) -> CanRun:
        """Return the predicate for the visible tools that can be called here now."""
        return CanRun(frozenset(self.upstreams.servers), self.allow_python, visible)

    async def call(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        exchange: Exchange,
        session: McpConnection | None,
    ) -> Any:
        """Call a tool with checked arguments, within its time limit.

        The tool of an MCP server is called in `session`, in which its definition was just checked. Credentials that
        this program sent are covered in the result and in errors.

        Raises:
            UserError: a sentence on why there is no result.
            MCPError: the tool's server answered with an error.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import InputRequiredResult

        first_cover, upstream = self.find_cover(exchange), exchange.upstream
        try:
            with telemetry.record_call(tool.source, tool.id) as outcome:
                result = await self._dispatch(tool, arguments, exchange, session)
                is_answer = not isinstance(result, InputRequiredResult)
                outcome.ok = not is_answer or not result.is_error
        except MCPError as error:
            await self._look_into_error(error.message, exchange, session)
            raise
        except UserError as error:
            message = self.find_cover(exchange).text(first_cover.text(str(error)))
            raise type(error)(message) from None
        if not outcome.ok and upstream is not None:
            words = " ".join(part.text for part in result.content if part.type == "text")
            await self._look_into_error(words, exchange, session)
        if not is_answer:
            return result
        cover = self.find_cover(exchange)
        if cover is not first_cover:  # a credential was renewed during the call: neither may be in the result
            result = cover_result(first_cover, result)
        return cover_result(cover, result)

    async def _look_into_error(self, words: str, exchange: Exchange, session: McpConnection | None) -> None:
        """Read the list of a server again after an error, and restart one that cannot ask its user in this protocol.

        Servers of the newer protocol return their questions; some still push them, as in the protocol with a handshake.

        Raises:
            Unavailable: if the server could not ask the user.
        """
        upstream = exchange.upstream
        if upstream is None or session is None:
            return
        upstream.doubt_list()
        if session.is_modern and PUSHED_QUESTION in words and exchange.can_ask("form"):
            advice = "it is started anew with that protocol, so call the tool again"
            if not await upstream.begin_with_handshake():
                advice = f'write "protocol": "{HANDSHAKE_REVISION}" in its entry'
            raise Unavailable(
                f"server {upstream.name!r} asks its user in the middle of a call, which only older protocols "
                f"have: {advice}"
            )

    def find_cover(self, exchange: Exchange) -> Cover:
        """Return the cover for the credentials that this program has sent for a call, also those renewed in it."""
        upstream = exchange.upstream
        return upstream.credential_cover if upstream is not None else Cover(find_environment_credentials())

    async def _dispatch(
        self, tool: Tool, arguments: dict[str, Any], exchange: Exchange, session: McpConnection | None
    ) -> Any:
        """Call the tool by its kind: HTTP operation, tool of an MCP server, or Python function.

        `exchange` is the caller's request. Only for the tool of an MCP server it has an `upstream`, the server that the
        call goes to, and there is a `session` with this server.
        """
        import anyio
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult, TaskMetadata

        upstream = exchange.upstream
        seconds = (upstream.server.timeout if upstream is not None else None) or self.timeout
        try:
            with anyio.fail_after(seconds) as exchange.limit:  # moved while a question waits for its answer
                if tool.callable and "method" in tool.meta:  # the HTTP method of an operation
                    return await openapi.call(await self._open_client(tool.source), tool, arguments)
                if upstream is not None and session is not None:
                    is_task = tool.meta.get(TASK_ONLY) and not session.is_modern
                    task = TaskMetadata(ttl=int(seconds * 1000)) if is_task else None
                    params = CallToolRequestParams(name=tool.name, arguments=arguments, _meta=exchange.meta, task=task)
                    return await upstream.send(session, exchange, CallToolRequest(params=params), CallToolResult)
                return await self._call_python(tool, arguments)
        except TimeoutError:
            name = f"server {tool.source!r}" if upstream else repr(tool.id)
            raise Unavailable(f"{name} did not answer within {seconds:g} s; the call was given up") from None

    async def close(self) -> None:
        """Close the HTTP clients that calls have opened."""
        for client in self._clients.values():
            await client.aclose()

    async def _open_client(self, source: str) -> httpx.AsyncClient:
        """Return the HTTP client for the operations of a source.

        A document read from a URL may send calls to public addresses, and to the one that the user gave with it.
        Sources with different reach share no connections.
        """
        from toolscout.sources.addresses import Reach, open_async_client, split_origin

        scout = self.upstreams.host.scout
        origin = await self.upstreams.host.run_in_thread(scout.store.owner, source)
        reach = None  # a document of this machine: any address
        if origin is None or is_remote(origin.locator):
            document, server = split_server(origin.locator if origin else "")
            hosts = list(scout.settings.private_hosts)
            if server:
                _, host, port = split_origin(server)
                hosts.append(f"{host}:{port}")
            reach = Reach.of(document, hosts)
        if reach not in self._clients:
            self._clients[reach] = open_async_client(reach, timeout=self.timeout)
        return self._clients[reach]

    async def _check_reader(self, tool: Tool) -> None:
        """Let only readers of Python and plug-ins name a function: a document must not name any that is installed.

        Raises:
            UserError: if another reader brought the tool.
        """
        origin = await self.upstreams.host.run_in_thread(self.upstreams.host.scout.store.owner, tool.source)
        if origin is None or origin.kind in DOCUMENT_KINDS:
            raise UserError(f"{tool.id!r} comes from a document, which cannot name a Python function to run")

    async def _call_python(self, tool: Tool, arguments: dict[str, Any]) -> CallToolResult:
        """Call a Python function in a thread, since it may block.

        Its result is also the text, as JSON if it is no text.
        """
        from mcp_types import CallToolResult, TextContent

        await self._check_reader(tool)
        async with self._python:
            value = await _run_in_thread(functools.partial(_run_function, tool, arguments))
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        return CallToolResult(content=[TextContent(text=text)], structured_content={"result": value})


def cover_result(cover: Cover, result: Result) -> Result:
    """Cover credentials in a result. Returns the same object if it holds none."""
    if not cover.forms or not cover.finds(result.model_dump_json(by_alias=True)):
        return result
    return type(result).model_validate(cover.value(result.model_dump(mode="json", by_alias=True, exclude_unset=True)))


async def _run_in_thread(function: Any) -> Any:
    """Run foreign code in a daemon thread, which is abandoned after a timeout and does not delay the exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        """Give the outcome to the caller, in the event loop, unless the caller has given up."""
        if not done.done():
            if error is None:
                done.set_result(value)
            else:
                done.set_exception(error)

    def run() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = function(), None
        except UserError as error:
            outcome = None, error
        except BaseException as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_ERROR_CHARS]}"
            outcome = None, UserError(f"the function raised {reason}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True, name="toolscout call").start()
    return await done


def _run_function(tool: Tool, arguments: Mapping[str, Any]) -> Any:
    """Import the function of a tool, call it, and convert the result to JSON values.

    The fixed arguments in the tool's `meta` are added to those of the caller, who cannot change them. A value that has
    no JSON becomes its `repr`.

    Raises:
        UserError: if the function is not there, or is a method or property, which would need an object of its class.
    """
    from toolscout.sources.callables import find_function

    owner, function = find_function(tool.meta)
    if inspect.isclass(owner):
        _refuse_members(tool, owner)
    positional, named = _bind_arguments(function, {**arguments, **tool.meta.get("arguments", {})})
    result = function(*positional, **named)
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    try:
        return clean(msgspec.to_builtins(result))
    except (BadEntry, TypeError, ValueError, RecursionError, NotImplementedError):
        return clip(repr(result), MAX_REPR_CHARS)


def _refuse_members(tool: Tool, owner: type) -> None:
    """Refuse a method or property of a class.

    Raises:
        UserError: if the function of the tool needs an object of the class.
    """
    name = str(tool.meta["qualname"]).rpartition(".")[2]
    raw = inspect.getattr_static(owner, name, None)  # not bound to its class, so that its kind can be seen
    is_bound = isinstance(raw, (staticmethod, classmethod)) or type(raw).__name__ == "classmethod_descriptor"
    is_property = inspect.isdatadescriptor(raw)
    if not is_bound and (inspect.isroutine(raw) or is_property):
        kind = "property" if is_property else "method"
        raise UserError(f"{tool.name!r} is a {kind} and needs an object of its class: it cannot be called as a tool")


def _bind_arguments(function: Any, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Split arguments into positional and named ones, for functions that take some by position only.

    The items of an argument for `*args` come after all positional ones, so those before `*args` go by position too.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return list(arguments.values()), {}  # written in C, without a signature: keep the order of the arguments
    positional: list[Any] = []
    named = dict(arguments)
    by_position = any(part.kind is part.VAR_POSITIONAL and part.name in named for part in parameters.values())
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += named.pop(name, [])
        elif name in named and (
            parameter.kind is parameter.POSITIONAL_ONLY
            or (by_position and parameter.kind is parameter.POSITIONAL_OR_KEYWORD)
        ):
            positional.append(named.pop(name))
    return positional, named
