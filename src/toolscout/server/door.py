"""Checks the host name, the page and the caller of each request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from toolscout.access.http import CHALLENGE, MARK, credential_of, origins_of
from toolscout.access.live_policy import LivePolicies
from toolscout.access.policy import Caller, Policies
from toolscout.errors import Denied
from toolscout.server.service import RequestRefused

__all__ = ["Door"]


class Door:
    """Refuses requests for other hosts and from other pages (DNS rebinding), and authenticates callers."""

    def __init__(self, policies: Policies | LivePolicies, names: Iterable[str]) -> None:
        """Check requests against the policies and the host names of the service."""
        self.policies = policies
        self._hosts = frozenset(host.casefold() for host in origins_of(names)[0])

    def check_sender(self, headers: Headers) -> None:
        """Refuse requests from a gateway: an OpenAPI document must not lead an agent's call to this service.

        Raises:
            RequestRefused: 403.
        """
        if MARK in headers:
            raise RequestRefused(403, "This request comes from a toolscout gateway, which may not use this service.")

    def check_place(self, headers: Headers) -> None:
        """Check the sender, the host name and the page of a request.

        Raises:
            RequestRefused: 421 or 403.
        """
        self.check_sender(headers)
        if _without_port(headers.get("host", "")) not in self._hosts:
            raise RequestRefused(
                421, "The request names a host that this service does not answer for. Add it with --allow-host."
            )
        origin = headers.get("origin")
        if origin is not None and _host_of(origin) not in self._hosts:
            raise RequestRefused(
                403, "The request comes from a page of another site. Only this service's own pages may send requests."
            )

    async def caller(self, headers: Headers) -> Caller:
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
            challenge = CHALLENGE + (', error="invalid_token"' if credential else "")
            raise RequestRefused(401, str(error), {"WWW-Authenticate": challenge}) from None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and (port.isdigit() or not port) and "]" not in port else host).casefold()


def _host_of(origin: str) -> str:
    try:
        return _without_port(urlsplit(origin).netloc)
    except ValueError:
        return ""
