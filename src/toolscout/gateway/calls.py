"""What happens between an agent's call and a tool: arguments are checked, the right machinery is chosen and timed."""

from __future__ import annotations

import asyncio
import difflib
import functools
import importlib
import inspect
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolscout.errors import BadEntry, Unavailable, UserError
from toolscout.gateway import openapi
from toolscout.gateway.text import clip, plain, quoted
from toolscout.gateway.upstream import Upstreams
from toolscout.privacy.credentials import Cover, find_environment_credentials
from toolscout.sources.documents import is_remote
from toolscout.types import Tool, clean

if TYPE_CHECKING:
    import httpx
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult

    from toolscout.sources.addresses import Reach
    from toolscout.sources.mcp import Connection

__all__ = ["Calls", "advice"]

MAX_ADVICE: Final = 5
MOST_CHECKERS: Final = 1024
PYTHON_AT_ONCE: Final = 8
MOST_STEPS: Final = 20_000  # of one check: a schema may say a thing in a line that takes years to look at


class Calls:
    """Calls tools of every kind that can be called."""

    def __init__(self, upstreams: Upstreams, *, allow_python: bool, timeout: float) -> None:
        """Take the servers, whether Python functions may run, and the seconds that a call may take."""
        self.upstreams, self.allow_python, self.timeout = upstreams, allow_python, timeout
        self._clients: dict[Reach | None, httpx.AsyncClient] = {}
        self._python = asyncio.Semaphore(PYTHON_AT_ONCE)

    def why_not(self, tool: Tool) -> str:
        """Empty if the tool can be called here, else a sentence that says why not."""
        if tool.callable and "method" in tool.meta:
            return ""
        if tool.callable:
            known = tool.source in self.upstreams.servers
            return (
                ""
                if known
                else self.upstreams.skipped.get(tool.source, f"no server of {tool.source!r} is configured here")
            )
        if tool.meta.get("module"):
            return (
                "" if self.allow_python else "Python functions run only if the gateway was started with --allow-python"
            )
        if "method" in tool.meta:
            return "its document names no server with an absolute address"
        return "only its schema is known, not how to call it"

    def seconds(self, tool: Tool) -> float:
        """How long a call of the tool may take."""
        upstream = self.upstreams.servers.get(tool.source)
        return upstream.server.timeout if upstream is not None and upstream.server.timeout else self.timeout

    async def call(
        self, tool: Tool, arguments: dict[str, Any], progress: ProgressFnT | None, session: Connection | None
    ) -> CallToolResult:
        """Call a tool with checked arguments, within its time; one of a server in the session that was looked at.

        Credentials that this program sent are covered in the result, and in the error, whatever they come from.

        Raises:
            UserError: one sentence on why there is no result.
            MCPError: the server of the tool answered with an error.
        """
        from mcp.shared.exceptions import MCPError

        cover = self.cover(tool)
        try:
            result = await self._call(tool, arguments, progress, session)
        except MCPError as error:
            raise MCPError(error.code, cover.text(error.message)) from None
        except UserError as error:
            raise type(error)(cover.text(str(error))) from None
        return cover_result(cover, result)

    def cover(self, tool: Tool) -> Cover:
        """Covers what this program sends with a call of the tool."""
        upstream = self.upstreams.servers.get(tool.source)
        return upstream.cover if upstream is not None else Cover(find_environment_credentials())

    async def _call(
        self, tool: Tool, arguments: dict[str, Any], progress: ProgressFnT | None, session: Connection | None
    ) -> CallToolResult:
        import anyio

        seconds, upstream = self.seconds(tool), self.upstreams.servers.get(tool.source)
        try:
            with anyio.fail_after(seconds):
                if "method" in tool.meta:
                    return await openapi.call(await self._http(tool.source), tool, arguments)
                if upstream is not None and session is not None:
                    return await upstream.call(session, tool.name, arguments, progress)
                return await self._call_python(tool, arguments)
        except TimeoutError:
            whose = f"server {tool.source!r}" if upstream else repr(tool.id)
            raise Unavailable(
                f"expected an answer of {whose} within {seconds:g} s, found none: the call is given up"
            ) from None

    async def close(self) -> None:
        """Close what calls have opened."""
        for client in self._clients.values():
            await client.aclose()

    async def _http(self, source: str) -> httpx.AsyncClient:
        """The client for the operations of a source: a document at a URL may lead to public addresses only.

        Each reach has connections of its own: one that was opened for whom it is allowed serves nobody else.
        """
        from toolscout.sources.addresses import Reach, open_async_client

        scout = self.upstreams.scout
        origin = await self.upstreams.thread(scout.store.owner, source)
        reach = None
        if origin is None or is_remote(origin.locator):
            reach = Reach.of(origin.locator if origin else "", scout.settings.private_hosts)
        if reach not in self._clients:
            self._clients[reach] = open_async_client(reach, timeout=self.timeout)
        return self._clients[reach]

    async def _call_python(self, tool: Tool, arguments: dict[str, Any]) -> CallToolResult:
        from mcp_types import CallToolResult, TextContent

        async with self._python:
            value = await _in_thread(functools.partial(_run, tool, arguments))
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        return CallToolResult(content=[TextContent(text=text)], structured_content={"result": value})


def cover_result(cover: Cover, result: CallToolResult) -> CallToolResult:
    """A result without the credentials of `cover`; the very same if it holds none."""
    if not cover or not cover.finds(result.model_dump_json(by_alias=True)):
        return result
    return type(result).model_validate(cover.value(result.model_dump(mode="json", by_alias=True, exclude_unset=True)))


async def _in_thread(function: Any) -> Any:
    """Run foreign code in a thread that nobody waits for once its time is over, not even the end of the program."""
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
            found = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            outcome = None, UserError(f"the function raised {found}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True, name="toolscout call").start()
    return await done


def _run(tool: Tool, arguments: Mapping[str, Any]) -> Any:
    """Import the function that a tool stands for, call it, and make JSON of what it returns."""
    value: Any = importlib.import_module(tool.meta["module"])
    owner = None
    for part in str(tool.meta["qualname"]).split("."):
        owner, value = value, getattr(value, part)
    name = str(tool.meta["qualname"]).rpartition(".")[2]
    raw = inspect.getattr_static(owner, name)
    bound = isinstance(raw, (staticmethod, classmethod)) or type(raw).__name__ == "classmethod_descriptor"
    if inspect.isclass(owner) and inspect.isroutine(raw) and not bound:
        raise UserError(f"expected a function, found {tool.name!r}, a method that needs an object of its class")
    positional, named = _bound(value, arguments)
    result = value(*positional, **named)
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    try:
        return clean(msgspec.to_builtins(result))
    except (BadEntry, TypeError, ValueError, RecursionError, NotImplementedError):
        return clip(repr(result), 100_000)


def _bound(function: Any, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments, for functions that take some by position only."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return list(arguments.values()), {}  # written in C, without a signature: in the order of its documentation
    first: list[Any] = []
    named = dict(arguments)
    by_position = any(each.kind is each.VAR_POSITIONAL and each.name in named for each in parameters.values())
    for name, each in parameters.items():
        if each.kind is each.VAR_POSITIONAL:
            first += named.pop(name, [])
        elif name in named and (
            each.kind is each.POSITIONAL_ONLY or (by_position and each.kind is each.POSITIONAL_OR_KEYWORD)
        ):
            first.append(named.pop(name))
    return first, named


# --- arguments --------------------------------------------------------------------------------------------------------

_checkers: OrderedDict[str, Any] = OrderedDict()
_lock: Final = threading.Lock()
_work: Final = threading.local()


def advice(tool: Tool, arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the arguments: a sentence for each of the first five faults, or nothing.

    A schema that is no valid JSON Schema, or that cannot be evaluated, stops nobody. Patterns are left to the tool: an
    evil one could keep us busy for ever.
    """
    checker = _checker(tool)
    if checker is None:
        return []
    _work.left = MOST_STEPS
    try:
        errors = [error for _, error in zip(range(MAX_ADVICE), checker.iter_errors(dict(arguments)), strict=False)]
    except Exception:  # whatever an untrusted schema provokes: it does not block
        return []
    known = list((tool.parameters or {}).get("properties") or ())
    return list(dict.fromkeys(_sentence(error, known, arguments) for error in errors))


def _checker(tool: Tool) -> Any:
    """The compiled schema of a tool; None if it has none that can be used."""
    mark = tool.fingerprint
    with _lock:
        if mark in _checkers:
            _checkers.move_to_end(mark)
            return _checkers[mark]
    checker = _compiled(tool.parameters)
    with _lock:
        _checkers[mark] = checker
        while len(_checkers) > MOST_CHECKERS:
            _checkers.popitem(last=False)
    return checker


def _compiled(schema: dict[str, Any] | None) -> Any:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    from jsonschema.validators import extend, validator_for  # type: ignore[import-untyped]
    from referencing import Registry

    if not schema:
        return None

    def skipped(*_: object) -> None:
        return None

    try:
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema)
        changed = {"pattern": skipped, "patternProperties": skipped}
        if b'"patternProperties"' in msgspec.json.encode(schema):
            changed["additionalProperties"] = changed["unevaluatedProperties"] = skipped
        counted = {name: _counted(check) for name, check in {**kind.VALIDATORS, **changed}.items()}
        return extend(kind, counted)(schema, registry=Registry())
    except Exception:  # as above
        return None


def _counted(check: Any) -> Any:
    """A keyword of JSON Schema whose every use counts as a step."""

    def step(*given: Any) -> Any:
        _work.left -= 1
        if _work.left < 0:
            raise ValueError("too many steps")
        return check(*given)

    return step


def _sentence(error: Any, known: list[str], arguments: Mapping[str, Any]) -> str:
    """One fault as advice: which parameter, what was expected, what was found, the nearest name."""
    where = ".".join(map(str, error.absolute_path))
    at = f"parameter {where!r}" if where else "the arguments"
    if error.validator == "required":
        names = [name for name in error.validator_value if name not in error.instance]
        spare = [name for name in error.instance if name not in error.schema.get("properties", {})]
        parts = []
        for name in names[:MAX_ADVICE]:
            near = difflib.get_close_matches(name, spare, n=1)
            parts.append(f"{name!r}" + (f" (is that what {near[0]!r} means?)" if near else ""))
        inside = f" in {where!r}" if where else ""
        return f"expected the required {', '.join(parts)}{inside}, found none"
    if error.validator in ("additionalProperties", "unevaluatedProperties"):
        allowed = list(error.schema.get("properties", {}))
        extra = [name for name in error.instance if name not in allowed]
        parts = []
        for name in extra[:MAX_ADVICE]:
            near = difflib.get_close_matches(str(name), allowed, n=1)
            parts.append(f"{name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
        return f"{at}: expected one of {', '.join(map(str, allowed[:24])) or 'no names'}, found {', '.join(parts)}"
    found = clip(plain(quoted(error.instance) if isinstance(error.instance, str) else _json(error.instance)), 80)
    if error.validator == "type":
        return f"{at}: expected {_either(error.validator_value)}, found {found}"
    if error.validator == "enum":
        near = difflib.get_close_matches(str(error.instance), [str(each) for each in error.validator_value], n=1)
        choices = clip(", ".join(_json(each) for each in error.validator_value[:24]), 400)
        return f"{at}: expected one of {choices}, found {found}" + (f": did you mean {near[0]!r}?" if near else "")
    return f"{at}: expected {error.validator} {clip(plain(_json(error.validator_value)), 120)}, found {found}"


def _either(value: object) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return repr(value)
