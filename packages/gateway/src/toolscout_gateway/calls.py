"""Calls tools for an agent: checks the arguments, chooses the transport, and limits the time."""

from __future__ import annotations

import asyncio
import difflib
import functools
import importlib
import inspect
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from toolscout.errors import BadEntry, Unavailable, UserError
from toolscout.home.access import telemetry
from toolscout.sources.documents import is_remote
from toolscout.sources.mcp import TASK_ONLY
from toolscout.trust.redaction import Cover, find_environment_credentials
from toolscout.types import Tool, clean
from toolscout_gateway import openapi
from toolscout_gateway.relay import is_question
from toolscout_gateway.text import clip, make_plain, quote
from toolscout_gateway.upstreams import Upstreams

if TYPE_CHECKING:
    import httpx
    from mcp_types import CallToolResult, InputRequiredResult
    from pydantic import BaseModel

    from toolscout.sources.addresses import Reach
    from toolscout.sources.mcp import Connection
    from toolscout_gateway.exchange import Exchange, ServerSession

__all__ = ["Calls", "accepts_at_once", "explain_faults"]

Result = TypeVar("Result", bound="BaseModel")
MAX_FAULTS: Final = 5
REFUSALS_BY_KIND: Final = {
    "skill": "it is a skill: read its instructions with describe_tools, and follow them with other tools",
    "agent": "it is another agent, which this gateway only finds",
}
MAX_CACHED_VALIDATORS: Final = 1024
MAX_PYTHON_CALLS: Final = 8
MAX_VALIDATION_STEPS: Final = 20_000  # of one validation: a short schema can take years to evaluate
MAX_QUICK_STEPS: Final = 200  # of a validation for which all other requests wait
MAX_QUICK_SCHEMA_CHARS: Final = 4_096
MAX_QUICK_ARGUMENT_CHARS: Final = 2_048
#: Keywords whose one step can take long, or can lead to further steps that are not counted.
SLOW_KEYWORDS: Final = ('"uniqueItems"', '"unevaluated', '"$ref"', '"$dynamicRef"', '"$recursiveRef"')


class Calls:
    """Calls tools of MCP servers, operations of HTTP APIs and Python functions."""

    def __init__(self, upstreams: Upstreams, *, allow_python: bool, timeout: float) -> None:
        """Call through these servers. `timeout`: seconds for one call; `allow_python`: whether functions may run."""
        self.upstreams, self.allow_python, self.timeout = upstreams, allow_python, timeout
        self._clients: dict[Reach | None, httpx.AsyncClient] = {}
        self._python = asyncio.Semaphore(MAX_PYTHON_CALLS)

    def explain_refusal(self, tool: Tool) -> str:
        """Say in a sentence why the tool cannot be called here. Empty if it can."""
        if tool.kind != "tool":
            return REFUSALS_BY_KIND[tool.kind]
        if tool.meta.get(TASK_ONLY):
            return "its server runs it only as a task, and tasks are not passed on: look for another tool"
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
            return "its OpenAPI document names no server with an absolute address"
        return "the catalogue holds only its schema, not how to call it"

    def timeout_of(self, tool: Tool) -> float:
        """Return the seconds that a call of the tool may take."""
        upstream = self.upstreams.servers.get(tool.source)
        return upstream.server.timeout if upstream is not None and upstream.server.timeout else self.timeout

    async def call(
        self,
        tool: Tool,
        arguments: dict[str, Any],
        exchange: Exchange,
        session: Connection | None,
    ) -> Any:
        """Call a tool with checked arguments, within its time limit.

        The tool of an MCP server is called in `session`, in which its definition was just checked. Credentials that
        this program sent are covered in the result and in errors.

        Raises:
            UserError: a sentence on why there is no result.
            MCPError: the tool's server answered with an error.
        """
        from mcp.shared.exceptions import MCPError

        cover = self.cover(exchange)
        try:
            with telemetry.record_call(tool.source, tool.id) as outcome:
                result = await self._dispatch(tool, arguments, exchange, session)
                outcome.ok = is_question(result) or not result.is_error
        except MCPError as error:
            raise MCPError(error.code, cover.text(error.message), cover.value(error.data)) from None
        except UserError as error:
            raise type(error)(cover.text(str(error))) from None
        return result if is_question(result) else cover_result(cover, result)

    def cover(self, exchange: Exchange) -> Cover:
        """Return the cover for the credentials that this program sends with a call."""
        upstream = exchange.upstream
        return upstream.cover if upstream is not None else Cover(find_environment_credentials())

    async def _dispatch(
        self, tool: Tool, arguments: dict[str, Any], exchange: Exchange, session: Connection | None
    ) -> Any:
        """Call the tool by its kind: HTTP operation, tool of an MCP server, or Python function."""
        import anyio

        seconds, upstream = self.timeout_of(tool), exchange.upstream
        try:
            with anyio.fail_after(seconds) as exchange.limit:
                if "method" in tool.meta:
                    return await openapi.call(await self._open_client(tool.source), tool, arguments)
                if upstream is not None and session is not None:
                    return await _call_server(upstream, session, exchange, tool.name, arguments)
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

        A document read from a URL may send calls to public addresses only. Sources with different reach share no
        connections.
        """
        from toolscout.sources.addresses import Reach, open_async_client

        scout = self.upstreams.scout
        origin = await self.upstreams.run_in_thread(scout.store.owner, source)
        reach = None
        if origin is None or is_remote(origin.locator):
            reach = Reach.of(origin.locator if origin else "", scout.settings.private_hosts)
        if reach not in self._clients:
            self._clients[reach] = open_async_client(reach, timeout=self.timeout)
        return self._clients[reach]

    async def _call_python(self, tool: Tool, arguments: dict[str, Any]) -> CallToolResult:
        from mcp_types import CallToolResult, TextContent

        async with self._python:
            value = await _run_in_thread(functools.partial(_run_function, tool, arguments))
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        return CallToolResult(content=[TextContent(text=text)], structured_content={"result": value})


async def _call_server(
    upstream: ServerSession, session: Connection, exchange: Exchange, name: str, arguments: dict[str, Any]
) -> CallToolResult | InputRequiredResult:
    """Call the tool of an MCP server, with the `_meta` of the caller."""
    from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

    params = CallToolRequestParams(name=name, arguments=arguments, _meta=exchange.meta)
    return await upstream.send(session, exchange, CallToolRequest(params=params), CallToolResult)


def cover_result(cover: Cover, result: Result) -> Result:
    """Cover credentials in a result. Returns the same object if it holds none."""
    if not cover or not cover.finds(result.model_dump_json(by_alias=True)):
        return result
    return type(result).model_validate(cover.value(result.model_dump(mode="json", by_alias=True, exclude_unset=True)))


async def _run_in_thread(function: Any) -> Any:
    """Run foreign code in a daemon thread, which is abandoned after a timeout and does not delay the exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
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
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            outcome = None, UserError(f"the function raised {reason}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True, name="toolscout call").start()
    return await done


def _run_function(tool: Tool, arguments: Mapping[str, Any]) -> Any:
    """Import the function of a tool, call it, and convert the result to JSON values."""
    value: Any = importlib.import_module(tool.meta["module"])
    owner = None
    for part in str(tool.meta["qualname"]).split("."):
        owner, value = value, getattr(value, part)
    name = str(tool.meta["qualname"]).rpartition(".")[2]
    raw = inspect.getattr_static(owner, name)
    bound = isinstance(raw, (staticmethod, classmethod)) or type(raw).__name__ == "classmethod_descriptor"
    is_property = inspect.isdatadescriptor(raw)
    if inspect.isclass(owner) and not bound and (inspect.isroutine(raw) or is_property):
        kind = "property" if is_property else "method"
        raise UserError(f"{tool.name!r} is a {kind} and needs an object of its class: it cannot be called as a tool")
    positional, named = _bind_arguments(value, arguments)
    result = value(*positional, **named)
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    try:
        return clean(msgspec.to_builtins(result))
    except (BadEntry, TypeError, ValueError, RecursionError, NotImplementedError):
        return clip(repr(result), 100_000)


def _bind_arguments(function: Any, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Split arguments into positional and named ones, for functions that take some by position only."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return list(arguments.values()), {}  # written in C, without a signature: keep the order of its documentation
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


# --- arguments --------------------------------------------------------------------------------------------------------


class _Validator(NamedTuple):
    """A compiled schema, None if it is not usable, and whether one step of it is quick."""

    schema: Any
    is_quick: bool


_validators: OrderedDict[str, _Validator] = OrderedDict()
_lock: Final = threading.Lock()
_validation: Final = threading.local()


def accepts_at_once(tool: Tool, arguments: Mapping[str, Any]) -> bool:
    """Return whether a validation of few steps finds no fault. False also means that it would take more.

    It needs no thread. Arguments that it does not accept are checked in one by `explain_faults`.
    """
    with _lock:
        validator = _validators.get(tool.fingerprint)
    if validator is None or not validator.is_quick or len(_encode_json(arguments)) > MAX_QUICK_ARGUMENT_CHARS:
        return False
    if validator.schema is None:
        return True
    _validation.left = MAX_QUICK_STEPS
    try:
        return next(iter(validator.schema.iter_errors(dict(arguments))), None) is None
    except Exception:  # an untrusted schema may raise anything, and too many steps do
        return False


def explain_faults(tool: Tool, arguments: Mapping[str, Any]) -> list[str]:
    """Explain the first five faults of the arguments, a sentence each. Empty if there are none.

    An invalid schema, or one that cannot be evaluated, does not block the call. Patterns are left to the tool, because
    a malicious pattern could run for ever.
    """
    validator = _get_validator(tool)
    if validator.schema is None:
        return []
    _validation.left = MAX_VALIDATION_STEPS
    try:
        checks = validator.schema.iter_errors(dict(arguments))
        errors = [error for _, error in zip(range(MAX_FAULTS), checks, strict=False)]
    except Exception:  # an untrusted schema may raise anything; it must not block the call
        return []
    return list(dict.fromkeys(_explain_fault(error) for error in errors))


def _get_validator(tool: Tool) -> _Validator:
    """Return the compiled schema of a tool."""
    fingerprint = tool.fingerprint
    with _lock:
        if fingerprint in _validators:
            _validators.move_to_end(fingerprint)
            return _validators[fingerprint]
    encoded = _encode_json(tool.parameters)
    is_quick = len(encoded) <= MAX_QUICK_SCHEMA_CHARS and not any(word in encoded for word in SLOW_KEYWORDS)
    validator = _Validator(_compile_validator(tool.parameters), is_quick)
    with _lock:
        _validators[fingerprint] = validator
        while len(_validators) > MAX_CACHED_VALIDATORS:
            _validators.popitem(last=False)
    return validator


def _compile_validator(schema: dict[str, Any] | None) -> Any:
    """Compile a schema without patterns, which could run for ever. None if there is no usable schema."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    from jsonschema.validators import extend, validator_for  # type: ignore[import-untyped]
    from referencing import Registry

    if not schema:
        return None

    def skip_keyword(*_: object) -> None:
        return None

    try:
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema)
        changes = {"pattern": skip_keyword, "patternProperties": skip_keyword}
        if b'"patternProperties"' in msgspec.json.encode(schema):
            changes["additionalProperties"] = changes["unevaluatedProperties"] = skip_keyword
        keywords = {name: _count_steps(check) for name, check in {**kind.VALIDATORS, **changes}.items()}
        return extend(kind, keywords)(schema, registry=Registry())
    except Exception:  # the schema is untrusted here too
        return None


def _count_steps(check: Any) -> Any:
    """Wrap the check of a JSON Schema keyword so that each use counts as a step."""

    def step(*arguments: Any) -> Any:
        _validation.left -= 1
        if _validation.left < 0:
            raise ValueError("too many steps")
        return check(*arguments)

    return step


def _explain_fault(error: Any) -> str:
    """Explain one fault: the parameter, what was expected, what was found, and the nearest valid name."""
    where = ".".join(map(str, error.absolute_path))
    subject = f"parameter {where!r}" if where else "the arguments"
    if error.validator == "required":
        return _explain_missing(error, where)
    if error.validator in ("additionalProperties", "unevaluatedProperties"):
        return f"{subject}: {_explain_extra(error)}"
    value = quote(error.instance) if isinstance(error.instance, str) else _encode_json(error.instance)
    value = clip(make_plain(value), 80)
    if error.validator == "type":
        return f"{subject}: expected {_join_types(error.validator_value)}, found {value}"
    if error.validator == "enum":
        near = difflib.get_close_matches(str(error.instance), [str(choice) for choice in error.validator_value], n=1)
        choices = clip(", ".join(_encode_json(choice) for choice in error.validator_value[:24]), 400)
        hint = f": did you mean {near[0]!r}?" if near else ""
        return f"{subject}: expected one of {choices}, found {value}{hint}"
    limit = clip(make_plain(_encode_json(error.validator_value)), 120)
    return f"{subject}: expected {error.validator} {limit}, found {value}"


def _explain_missing(error: Any, where: str) -> str:
    missing = [name for name in error.validator_value if name not in error.instance]
    unused = [name for name in error.instance if name not in error.schema.get("properties", {})]
    parts = []
    for name in missing[:MAX_FAULTS]:
        near = difflib.get_close_matches(name, unused, n=1)
        parts.append(f"{name!r}" + (f" (is that what {near[0]!r} means?)" if near else ""))
    inside = f" in {where!r}" if where else ""
    return f"expected the required {', '.join(parts)}{inside}, found none"


def _explain_extra(error: Any) -> str:
    """Name the arguments that the tool's schema does not allow, each with the nearest allowed name."""
    allowed = list(error.schema.get("properties", {}))
    extra = [name for name in error.instance if name not in allowed]
    parts = []
    for name in extra[:MAX_FAULTS]:
        near = difflib.get_close_matches(str(name), allowed, n=1)
        parts.append(f"{name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    return f"expected one of {', '.join(map(str, allowed[:24])) or 'no names'}, found {', '.join(parts)}"


def _join_types(value: object) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)


def _encode_json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return repr(value)
