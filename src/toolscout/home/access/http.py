"""Serves HTTP for the service and the gateway: host names, credentials, rates of callers, and an orderly end."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from toolscout.errors import ConfigError, require
from toolscout.home.access.live_policy import LivePolicies
from toolscout.home.access.telemetry import trace_app
from toolscout.trust.policy import LOCAL, Policies

if TYPE_CHECKING:
    import uvicorn
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp

__all__ = [
    "CHALLENGE",
    "MARK",
    "RESOURCE_PATH",
    "Buckets",
    "Ending",
    "build_challenge",
    "check_origin",
    "credential_of",
    "find_metadata_url",
    "hosts_of",
    "is_loopback",
    "make_server",
    "names_of",
    "serve",
]

MARK: Final = "x-toolscout-gateway"  # header of every request that a gateway sends; such requests are refused
RESOURCE_PATH: Final = "/.well-known/oauth-protected-resource"  # RFC 9728
CHALLENGE: Final = 'Bearer realm="toolscout"'  # WWW-Authenticate of a refusal (RFC 6750)
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
MAX_CALLERS: Final = 10_000  # with a bucket; the caller who was idle longest loses it


class Ending(NamedTuple):
    """How a service ends after a signal.

    Attributes:
        patience: seconds that open requests get after the service has stopped taking new ones.
        drain: seconds in which it still takes requests, so that a balancer can notice the end.
        begin: called at the signal.
    """

    patience: int
    drain: float = 0.0
    begin: Callable[[], None] = lambda: None


def find_metadata_url(policies: Policies | LivePolicies, base: str = "") -> str:
    """Return the URL of the service's metadata as a protected resource (RFC 9728). Empty if it takes no tokens.

    Args:
        policies: name the audience of the tokens. If it is a URL, it is also the address of the resource.
        base: the address of the service, for an audience that is no URL.
    """
    resource = policies.describe_resource()
    if resource is None:
        return ""
    parts = urlsplit(str(resource["resource"]))
    if parts.scheme in ("http", "https") and parts.netloc:
        return f"{parts.scheme}://{parts.netloc}{RESOURCE_PATH}{parts.path.rstrip('/')}"
    return base + RESOURCE_PATH


def build_challenge(error: str = "", scope: str = "", metadata_url: str = "") -> str:
    """Build the header WWW-Authenticate of a refusal (RFC 6750, RFC 9728)."""
    parts = {"error": error, "scope": scope, "resource_metadata": metadata_url}
    return CHALLENGE + "".join(f', {name}="{value}"' for name, value in parts.items() if value)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a service at an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(host: str, more: Iterable[str] = ()) -> list[str]:
    """Return the host names that requests to a service on `host` may use."""
    host_names = [] if host in ("0.0.0.0", "::", "") else [host]  # these stand for all addresses of the machine
    machine_names = [] if is_loopback(host) else [socket.gethostname(), socket.getfqdn()]
    return list(dict.fromkeys(["localhost", "127.0.0.1", "::1", *host_names, *machine_names, *more]))


def hosts_of(names: Iterable[str]) -> frozenset[str]:
    """Return the names as a Host header spells them, without a port, in lower case; IPv6 addresses in brackets."""
    return frozenset(f"[{name}]" if ":" in name and not name.startswith("[") else name.casefold() for name in names)


def check_origin(headers: Headers, hosts: frozenset[str], base: str = "") -> int:
    """Check that a request names a host of the service, and that no page of another site sent it.

    A page of the service has the scheme, host and port of the request, of `base`, or of one of the hosts on the usual
    port, because a proxy may hide what the browser asked for. A page on another port of the same host is foreign.

    Args:
        headers: of the request.
        hosts: as `hosts_of` returns them.
        base: the address that browsers reach. Empty: it is not known, and with it whether they use https.

    Returns:
        0, or the status of the refusal: 421 for another host (DNS rebinding), 403 for a foreign page.
    """
    base_parts = urlsplit(base)
    host, origin = headers.get("host", ""), headers.get("origin")
    is_base = bool(host) and find_host(host) == find_host(base_parts.netloc)
    if find_host(host) not in hosts and not is_base:
        return 421
    schemes = (base_parts.scheme,) if base else ("http", "https")
    own_urls = [base, *(f"{scheme}://{name}" for scheme in schemes for name in (host, *hosts))]
    own_origins = {_read_origin(url) for url in own_urls}
    own_origins.discard(None)  # an `origin` that cannot be read must not equal a URL of ours that cannot
    # Only browsers send an Origin. They say themselves if it is a page on another port, which may look like ours.
    is_foreign = headers.get("sec-fetch-site", "same-origin") != "same-origin"
    return 0 if origin is None or (_read_origin(origin) in own_origins and not is_foreign) else 403


def _read_origin(url: str) -> tuple[str, str, int] | None:
    """Return the scheme, host and port of a URL; None if it has none of http or https, or a user name before its host.

    The caller must treat None as equal to nothing.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or "@" in parts.netloc or parts.scheme not in DEFAULT_PORTS:
        return None
    return parts.scheme, parts.hostname, DEFAULT_PORTS[parts.scheme] if port is None else port


def find_host(address: str) -> str:
    """Return the host of a header Host, or of the part of a URL after the scheme, without its port, in lower case."""
    name, colon, port = address.rpartition(":")
    has_port = colon and (port.isdigit() or not port)  # "1]", after the last colon of "[::1]", is none
    return (name if has_port else address).casefold()


def credential_of(headers: Headers) -> str | None:
    """Return the key or token of a request, from `Authorization: Bearer` or `X-API-Key`. None if there is none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return (token.strip() if kind.lower() == "bearer" else headers.get("x-api-key")) or None


class Buckets:
    """Limits the queries of each caller with a token bucket."""

    def __init__(self, rate: float | None) -> None:
        """Limit every caller to `rate` queries a second on average; None: no limit.

        A bucket is full with the queries of ten seconds. So a caller who was idle may make these at once.
        """
        self.rate = rate
        self._buckets: dict[str, tuple[float, float]] = {}  # caller → (tokens, instant)
        self._lock = threading.Lock()

    def take(self, caller: str, cost: float = 1.0) -> float:
        """Take `cost` queries out of a caller's bucket. Returns 0, or the seconds until the bucket has enough.

        A request that costs more than a full bucket passes if the bucket is full, and leaves a debt in it.
        """
        if self.rate is None:
            return 0.0
        full, now = max(1.0, self.rate * 10), time.monotonic()
        with self._lock:
            tokens, since = self._buckets.pop(caller, (full, now))
            tokens = min(full, tokens + (now - since) * self.rate)
            needed = min(cost, full)
            enough = tokens >= needed
            self._buckets[caller] = (tokens - cost if enough else tokens, now)  # the most recently used comes last
            if len(self._buckets) > MAX_CALLERS:
                del self._buckets[next(iter(self._buckets))]
        return 0.0 if enough else (needed - tokens) / self.rate


def check_host(policies: Policies | LivePolicies, host: str) -> None:
    """Refuse to listen where other machines could use a service without a policy.

    Raises:
        ConfigError: if they could.
    """
    if policies.default is LOCAL and not is_loopback(host):  # without rules, everybody counts as the local user
        raise ConfigError(
            f"expected a policy file for {host}, found none: without one only this machine may come in; "
            "give --policy FILE, or --host 127.0.0.1"
        )


async def serve(
    app: ASGIApp,
    policies: Policies | LivePolicies,
    host: str,
    port: int,
    *,
    extra: str,
    ending: Ending,
    lifespan: bool | None = None,
    ready: Callable[[int], None] | None = None,
) -> None:
    """Serve until stopped by a signal. Open requests still get their answer.

    Args:
        app: the application.
        policies: who may use the service. Without any, only this machine may.
        host: the address to listen at.
        port: the port. With 0 a free one is chosen.
        extra: name of the extra that installs the packages for this service.
        ending: how it ends after a signal. A second signal skips the drain.
        lifespan: whether the application handles events for its start and end. None: it is tried out.
        ready: called with the port as soon as connections are accepted.

    Raises:
        ConfigError: if other machines could use the service without a policy, or the port is taken.
        MissingExtra: without the packages of `extra`.
    """
    import anyio

    require("uvicorn", extra)
    import uvicorn

    check_host(policies, host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"expected a free port at {host}:{port}, found: {error.strerror}: give another --port"
            ) from None
        listener.listen(2048)  # connections are accepted from here on; the first answers wait for the start
        if ready is not None:
            ready(listener.getsockname()[1])
        config = uvicorn.Config(
            trace_app(app),
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            lifespan="auto" if lifespan is None else "on" if lifespan else "off",
            timeout_graceful_shutdown=ending.patience,
            # the program may have set handlers for all log lines (`telemetry.start_logs`)
            log_config=None if logging.getLogger().handlers else uvicorn.config.LOGGING_CONFIG,
        )
        service = make_server(config)
        async with anyio.create_task_group() as group:
            group.start_soon(_stop_at_signal, service, ending)
            await service.serve(sockets=[listener])
            group.cancel_scope.cancel()  # wait for no further signal


def make_server(config: uvicorn.Config) -> uvicorn.Server:
    """Make a server that leaves signals to the program, which ends it in order (`_stop_at_signal`)."""
    import uvicorn

    class OrderlyServer(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

    return OrderlyServer(config)


async def _stop_at_signal(service: uvicorn.Server, ending: Ending) -> None:
    """Wait for a signal. Then stop taking requests after `ending.drain` seconds, or at once at a second signal."""
    import anyio

    async def drain() -> None:
        ending.begin()
        await anyio.sleep(ending.drain)
        service.should_exit = True

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as group:
            is_draining = False
            async for _ in signals:
                if is_draining:
                    service.should_exit = True
                else:
                    group.start_soon(drain)
                is_draining = True
