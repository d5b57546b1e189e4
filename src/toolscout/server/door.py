"""The door: under which names the service is asked for, from which pages, and by whom."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from toolscout.access.http import CHALLENGE, MARK, credential_of, origins_of
from toolscout.access.policy import Caller, Policies
from toolscout.errors import Denied
from toolscout.server.service import Refused

__all__ = ["Door"]


class Door:
    """Refuses requests for other names and from pages of others, whatever names they were resolved by."""

    def __init__(self, policies: Policies, names: Iterable[str]) -> None:
        """Take who may come in, and the names under which the service may be asked for."""
        self.policies = policies
        self._hosts = frozenset(host.casefold() for host in origins_of(names)[0])

    def check_sender(self, headers: Headers) -> None:
        """Refuse what a gateway sends for an agent: a document that names this service must not lead it here.

        Raises:
            Refused: 403.
        """
        if MARK in headers:
            raise Refused(403, "this request comes through a toolscout gateway, which may not ask this service")

    def check_place(self, headers: Headers) -> None:
        """Check who sends, the name asked for, and the page that asks.

        Raises:
            Refused: 421 or 403.
        """
        self.check_sender(headers)
        if _without_port(headers.get("host", "")) not in self._hosts:
            raise Refused(421, "expected a name of this service as host, found another: --allow-host adds one")
        origin = headers.get("origin")
        if origin is not None and _host_of(origin) not in self._hosts:
            raise Refused(403, "expected a request of this service's own pages, found one of others")

    async def caller(self, headers: Headers) -> Caller:
        """Who asks.

        Raises:
            Refused: 401, if nobody whom the policies know.
        """
        credential = credential_of(headers)
        try:
            if self.policies.waits:
                return await asyncio.to_thread(self.policies.caller, credential)
            return self.policies.caller(credential)
        except Denied as error:
            challenge = CHALLENGE + (', error="invalid_token"' if credential else "")
            raise Refused(401, str(error), {"WWW-Authenticate": challenge}) from None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and (port.isdigit() or not port) and "]" not in port else host).casefold()


def _host_of(origin: str) -> str:
    try:
        return _without_port(urlsplit(origin).netloc)
    except ValueError:
        return ""
