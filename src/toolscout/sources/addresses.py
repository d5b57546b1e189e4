"""Checks the addresses of requests that an untrusted document causes.

They may go to public addresses, and to private ones that the user allowed.

A name is resolved once, its addresses are checked, and the connection goes to a checked address. DNS rebinding is not
possible, because there is no second look-up. The resolved address is checked and not its text, so spellings such as
`0x7f.1` or `2130706433` and IPv4 inside IPv6 make no difference.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import httpcore
import httpx

from toolscout.errors import UserError
from toolscout.sources.wire_limits import IDENTITY

__all__ = ["PrivateAddress", "Reach", "is_public_address", "open_async_client", "open_client", "split_origin"]

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_LOCAL_NAMES: Final = ("localhost", "local", "internal", "lan", "home.arpa", "intranet", "corp", "home", "test")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_IPV4_COMPATIBLE: Final = ipaddress.ip_network("::/96")


class PrivateAddress(UserError):
    """An untrusted document names an address of this machine or of its network."""


def split_origin(url: str) -> tuple[str, str, int]:
    """Split an address into scheme, host and port, as the HTTP client that connects understands them.

    Raises:
        ValueError: for a scheme other than http and https, no host, a user or password, white space, control
            characters or backslashes, and if two parsers understand the address differently.
    """
    authority = re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]
    if re.search(r"[\s\\\x00-\x20\x7f]", authority):
        raise ValueError("an address with white space, a backslash or control characters")
    try:
        parsed, parts = httpx.URL(url), urlsplit(url)
        second_port = parts.port
    except (httpx.InvalidURL, ValueError, TypeError):
        raise ValueError("an address that cannot be understood") from None
    if parsed.scheme not in DEFAULT_PORTS or not parsed.host:
        raise ValueError("an address that does not begin with http:// or https:// and a host")
    if parsed.userinfo or "@" in parts.netloc:
        raise ValueError("an address with a user or password")
    host, default = parsed.raw_host.decode("ascii").lower(), DEFAULT_PORTS[parsed.scheme]
    _compare_hosts(host, parts.hostname or "")
    if (parsed.port or default) != (second_port or default):
        raise ValueError("an address whose port is ambiguous")
    return parsed.scheme, host, parsed.port or default


def _compare_hosts(host: str, second_host: str) -> None:
    """Refuse an address in which two parsers found different hosts. Only the first encodes international names."""
    if second_host.isascii() and second_host.lower() != host:
        raise ValueError("an address whose host is ambiguous")


def is_public_address(address: str) -> bool:
    """Return whether an IP address is public. An IPv4 address inside IPv6 counts as IPv4."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and (ip in _NAT64 or ip in _IPV4_COMPATIBLE):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public_address(str(inner))
        if ip.is_site_local or ip.teredo is not None:
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


def _is_local_host(host: str) -> bool:
    """Return whether a host is local: a private address, a single word, or a name outside the public DNS.

    A public name that resolves to a private address is not local, because its owner decides where it leads.
    """
    try:
        return not is_public_address(host)
    except ValueError:
        name = host.rstrip(".").lower()
        return "." not in name or name.endswith(tuple(f".{suffix}" for suffix in _LOCAL_NAMES))


class Reach(NamedTuple):
    """The private addresses that requests for a remote document may connect to.

    Attributes:
        local_origin: host and port that the user typed to read the document, if they are local; else None.
        private_hosts: the setting: hosts, `host:port`, and networks such as `10.0.0.0/8`.
    """

    local_origin: tuple[str, int] | None = None
    private_hosts: tuple[str, ...] = ()

    @classmethod
    def of(cls, locator: str, private_hosts: Iterable[str]) -> Reach:
        """Build the reach of the document at an address."""
        local_origin = None
        try:
            parsed = httpx.URL(locator)
            host, port = parsed.raw_host.decode("ascii").lower(), parsed.port or DEFAULT_PORTS.get(parsed.scheme)
        except (httpx.InvalidURL, ValueError):
            host, port = "", None
        if host and port and _is_local_host(host):
            local_origin = host, port
        return cls(local_origin, tuple(private_hosts))

    def allows(self, host: str, port: int, address: str) -> bool:
        """Return whether a connection for `host` and `port` may go to the IP address."""
        if is_public_address(address) or (host.lower(), port) == self.local_origin:
            return True
        ip = ipaddress.ip_address(address.partition("%")[0])
        for entry in self.private_hosts:
            if entry.lower() in (host.lower(), f"{host.lower()}:{port}", f"[{host.lower()}]:{port}"):
                return True
            try:
                if ip in ipaddress.ip_network(entry, strict=False):
                    return True
            except ValueError:
                continue
        return False

    def choose(self, host: str, port: int, entries: Iterable[Any]) -> list[str]:
        """Return the addresses in the entries of getaddrinfo.

        Raises:
            PrivateAddress: if one of them is not allowed.
        """
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        for address in addresses:
            if not self.allows(host, port, address):
                raise PrivateAddress(
                    f"{host}:{port} has a private address, and a document from elsewhere names it. Nothing was sent. "
                    f'If you trust it, add "{host}:{port}" to the setting private_hosts'
                )
        return addresses


# --- connections ------------------------------------------------------------------------------------------------------


class _Deadline:
    """The instant at which all work must be done. Without `seconds` there is no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    def limit(self, timeout: float | None, error: type[Exception]) -> float | None:
        """Return the shorter of `timeout` and the remaining time. Raises `error` if none remains."""
        if self._at is None:
            return timeout
        left = self._at - time.monotonic()
        if left <= 0:
            raise error("the time for the document is over")
        return left if timeout is None else min(timeout, left)


class _TimedStream(httpcore.NetworkStream):
    """A stream with reads and writes that end at the deadline, even if the other side sends slowly."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._inner, self._deadline = inner, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._deadline.limit(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._deadline.limit(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        timeout = self._deadline.limit(timeout, httpcore.ConnectTimeout)
        return _TimedStream(self._inner.start_tls(ssl_context, server_hostname, timeout), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _CheckedBackend(httpcore.NetworkBackend):
    """Connects to addresses that were checked."""

    def __init__(self, reach: Reach, deadline: _Deadline) -> None:
        self._reach, self._deadline, self._inner = reach, deadline, httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(str(error)) from error
        failure: Exception = httpcore.ConnectError("no address")
        for address in self._reach.choose(host, port, addresses):
            limit = self._deadline.limit(timeout, httpcore.ConnectTimeout)
            try:
                stream = self._inner.connect_tcp(address, port, limit, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                return _TimedStream(stream, self._deadline)
        raise failure


class _CheckedAsyncBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were checked."""

    def __init__(self, reach: Reach) -> None:
        self._reach, self._inner = reach, httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(str(error)) from error
        failure: Exception = httpcore.ConnectError("no address")
        for address in self._reach.choose(host, port, addresses):
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure


def _find_proxy(url: httpx.URL, reach: Reach) -> str | None:
    """Return the proxy that the environment names for an address.

    A proxy may stand in the private network, so a host name is checked before the proxy gets it.

    Raises:
        PrivateAddress: if the document may not name the host.
    """
    host = url.raw_host.decode("ascii")
    proxy = getproxies().get(url.scheme) or getproxies().get("all")
    if not proxy or _is_local_host(host) or proxy_bypass(host):
        return None
    port = url.port or DEFAULT_PORTS[url.scheme]
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return proxy  # the name resolves only at the proxy
    reach.choose(host, port, addresses)
    return proxy


class _Transport(httpx.HTTPTransport):
    """Opens connections that `reach` allows, through the proxy of the environment if there is one."""

    def __init__(self, reach: Reach, deadline: _Deadline) -> None:
        self._context = httpx.create_ssl_context()
        self._pool = httpcore.ConnectionPool(
            ssl_context=self._context, network_backend=_CheckedBackend(reach, deadline)
        )
        self._reach, self._proxies = reach, dict[str, httpx.HTTPTransport]()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        proxy = _find_proxy(request.url, self._reach)
        if proxy is None:
            return super().handle_request(request)
        if proxy not in self._proxies:
            self._proxies[proxy] = httpx.HTTPTransport(verify=self._context, proxy=proxy)
        return self._proxies[proxy].handle_request(request)

    def close(self) -> None:
        for transport in self._proxies.values():
            transport.close()
        super().close()


class _AsyncTransport(httpx.AsyncHTTPTransport):
    """Like `_Transport`, for asynchronous calls."""

    def __init__(self, reach: Reach) -> None:
        self._context = httpx.create_ssl_context()
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=self._context, network_backend=_CheckedAsyncBackend(reach)
        )
        self._reach, self._proxies = reach, dict[str, httpx.AsyncHTTPTransport]()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        proxy = await anyio.to_thread.run_sync(_find_proxy, request.url, self._reach) if getproxies() else None
        if proxy is None:
            return await super().handle_async_request(request)
        if proxy not in self._proxies:
            self._proxies[proxy] = httpx.AsyncHTTPTransport(verify=self._context, proxy=proxy)
        return await self._proxies[proxy].handle_async_request(request)

    async def aclose(self) -> None:
        for transport in self._proxies.values():
            await transport.aclose()
        await super().aclose()


def _build_options(timeout: float) -> Mapping[str, Any]:
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))  # callers must not share a session
    return {"timeout": timeout, "headers": dict(IDENTITY), "cookies": no_cookies}


def open_client(reach: Reach, *, timeout: float, total: float) -> httpx.Client:
    """Open a client that reads documents. It checks and follows redirects, and stops after `total` seconds."""
    return httpx.Client(transport=_Transport(reach, _Deadline(total)), follow_redirects=True, **_build_options(timeout))


def open_async_client(reach: Reach | None, *, timeout: float) -> httpx.AsyncClient:
    """Open a client that calls operations. It follows no redirects.

    Without `reach` it may connect to every address.
    """
    transport = None if reach is None else _AsyncTransport(reach)
    return httpx.AsyncClient(transport=transport, follow_redirects=False, **_build_options(timeout))
