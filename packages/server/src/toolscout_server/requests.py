"""Reads requests: the host and page that they come from, the caller, the parameters and the body."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, get_args

import anyio
import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from toolscout.errors import Denied, name_nearest
from toolscout.home.access.http import MARK, build_challenge, check_origin, credential_of, hosts_of
from toolscout.home.access.live_policy import LivePolicies
from toolscout.sources.parsing import describe_json_error
from toolscout.trust.policy import Caller, Policies
from toolscout_server.routes import JSON, Route
from toolscout_server.service import RequestRefused

__all__ = ["Door", "read_body", "read_parameters", "receive_body"]

_UNKNOWN_FIELD: Final = re.compile(r"unknown field `(.+)`")
_WRONG_INSTANT: Final = re.compile(r"Expected `str` matching regex '.*'")
_UNKNOWN_VALUE: Final = re.compile(r"Invalid enum value '(.+)' - at `\$\.(\w+)`")


class Door:
    """Checks every request before it is read: refuses other hosts and pages (DNS rebinding), and finds the caller."""

    def __init__(self, policies: Policies | LivePolicies, names: Iterable[str]) -> None:
        """Check requests against the policies and the host names of the service."""
        self.policies = policies
        self._hosts = hosts_of(names)

    def check_sender(self, headers: Headers) -> None:
        """Refuse requests from a gateway: an OpenAPI document must not lead an agent's call to this service.

        Raises:
            RequestRefused: 403.
        """
        if MARK in headers:
            raise RequestRefused(403, "This request comes from a toolscout gateway, which may not use this service.")

    def check_origin(self, headers: Headers) -> None:
        """Check the sender, the host name and the page of a request.

        Raises:
            RequestRefused: 421 or 403.
        """
        self.check_sender(headers)
        status = check_origin(headers, self._hosts)
        if status == 421:
            raise RequestRefused(
                421, "The request names a host that this service does not answer for. Add it with --allow-host."
            )
        if status:
            raise RequestRefused(
                403, "The request comes from a page of another site. Only this service's own pages may send requests."
            )

    async def find_caller(self, headers: Headers) -> Caller:
        """Authenticate the caller.

        Raises:
            RequestRefused: 401, if the policies do not know the credential.
        """
        credential = credential_of(headers)
        try:
            if self.policies.waits:
                return await asyncio.to_thread(self.policies.caller, credential)
            return self.policies.caller(credential)
        except Denied as error:
            challenge = build_challenge("invalid_token" if credential else "")
            raise RequestRefused(401, str(error), {"WWW-Authenticate": challenge}) from None


def read_parameters(route: Route, request: Request) -> Any:
    """Read the parameters in the address of a request, as `route.request_type`.

    Raises:
        RequestRefused: 422.
    """
    pairs = request.query_params.multi_items()
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise RequestRefused(422, f"expected each parameter once, found {name!r:.80} {count} times")
    try:
        parameters: Any = msgspec.convert(dict(pairs), route.request_type, strict=False)
    except msgspec.ValidationError as error:
        raise RequestRefused(422, _describe_mismatch(error, route.request_type)) from None
    for name, value in pairs:
        if getattr(parameters, name) is None:  # msgspec reads the word "null" as None
            raise RequestRefused(422, f"expected a value for {name!r}, found {value!r:.20}. Leave the parameter out.")
    return parameters


async def read_body(route: Route, request: Request, body: AsyncIterator[bytes]) -> Any:
    """Read the body of a POST request, as `route.request_type`. A body that is not JSON is left to the handler.

    Raises:
        RequestRefused: 400, 415 or 422, and those of `receive_body`.
        ClientDisconnect: if the caller closed the connection.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().casefold()
    if media != route.body_media:
        raise RequestRefused(
            415,
            f"expected a body of type {route.body_media}, found {media[:80] or 'none'}. Set the header Content-Type.",
        )
    if request.query_params:
        raise RequestRefused(422, "expected all parameters in the body, found some in the address")
    if route.body_media != JSON:
        return route.request_type()
    content = b"".join([chunk async for chunk in body])
    try:
        return msgspec.json.decode(content, type=route.request_type)
    except msgspec.ValidationError as error:
        raise RequestRefused(422, _describe_mismatch(error, route.request_type)) from None
    except msgspec.DecodeError as error:
        raise RequestRefused(400, f"expected JSON, found an error {describe_json_error(content, error)}") from None


async def receive_body(request: Request, max_bytes: int, seconds: float) -> AsyncIterator[bytes]:
    """Receive the body of a request in chunks, of at most `max_bytes` in all and within `seconds`.

    Raises:
        RequestRefused: 413 or 408.
        ClientDisconnect: if the caller closed the connection.
    """
    declared, size, deadline = request.headers.get("content-length", "0"), 0, time.monotonic() + seconds
    if declared.isdigit() and int(declared) > max_bytes:
        raise RequestRefused(413, f"expected a body of at most {max_bytes:,} bytes, found {int(declared):,}")
    has_more = True
    while has_more:
        try:
            with anyio.fail_after(max(0.0, deadline - time.monotonic())):
                message = await request.receive()
        except TimeoutError:
            raise RequestRefused(408, f"The request did not arrive within {seconds:g} s. Send it again.") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk, has_more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size > max_bytes:
            raise RequestRefused(413, f"expected a body of at most {max_bytes:,} bytes, found more")
        yield chunk


def _describe_mismatch(error: msgspec.ValidationError, request_type: type) -> str:
    """Say what the request has and what is expected, with the nearest field or value for a misspelled one."""
    message = _WRONG_INSTANT.sub("a time that is not like 2026-05-31T12:00:00Z", str(error))
    sentence = f"expected a request as described in /openapi.json, found: {message}"
    fields = {field.encode_name: field for field in msgspec.structs.fields(request_type)}
    if match := _UNKNOWN_FIELD.search(message):
        return f"{sentence}. {name_nearest(match[1], fields, f'It takes {_join(fields)}.')}"
    if match := _UNKNOWN_VALUE.search(message):
        value, name = match.groups()
        if name in fields:
            annotation = fields[name].type
            values = _list_values(annotation)
            allowed = f"It is {'a number or ' if _takes_number(annotation) else ''}one of {_join(values)}."
            return f"{sentence}. {name_nearest(value, values, allowed)}"
    return sentence


def _join(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def _list_values(annotation: object) -> list[str]:
    """List the texts that a type of literals allows."""
    if isinstance(annotation, str):
        return [annotation]
    return [value for part in get_args(annotation) for value in _list_values(part)]


def _takes_number(annotation: object) -> bool:
    """Tell whether a type allows whole numbers."""
    return annotation is int or any(_takes_number(part) for part in get_args(annotation))
