"""Sends the requests that an untrusted document causes, to checked addresses only, and bounds what comes back.

They may go to public addresses, and to private ones that the user allowed. A name is resolved once, its addresses are
checked, and the request goes to a checked address. DNS rebinding is not possible, because there is no second look-up.
The resolved address is checked and not its text, so spellings such as `0x7f.1` or `2130706433` and IPv4 inside IPv6
make no difference.

Bodies are counted while they are decoded. A zstd body of 91 kB can hold 4.4 GB, and a library that decodes chunk by
chunk produces them before anybody can count. Therefore requests ask for no encoding (`IDENTITY`). Some servers send
gzip and deflate nevertheless; both are decoded here in bounded steps. Every other encoding, and more than one, is
refused unread.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx
from anyio.from_thread import start_blocking_portal

from toolscout.errors import UserError

__all__ = [
    "IDENTITY",
    "Download",
    "Downloader",
    "LimitedBody",
    "PrivateAddress",
    "Reach",
    "UnsupportedEncoding",
    "is_header_name",
    "is_public_address",
    "is_reserved_header",
    "open_async_client",
    "split_origin",
]

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
MAX_PORT: Final = 65_535
#: Ends of names that the public DNS does not have.
_LOCAL_SUFFIXES: Final = (
    ".localhost", ".local", ".internal", ".lan", ".home.arpa", ".intranet", ".corp", ".home", ".test",
)  # fmt: skip
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_IPV4_COMPATIBLE: Final = ipaddress.ip_network("::/96")
IDENTITY: Final[Mapping[str, str]] = {"accept-encoding": "identity"}  # headers for every request to a stranger
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # as zlib takes them: 31 is gzip, 15 zlib
_BARE_WINDOW_BITS: Final = -15  # deflate without the header of zlib
_HEADER_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")  # RFC 9110, 5.6.2
_FRAMING: Final = ("host", "content-length", "transfer-encoding", "te", "trailer", "connection", "keep-alive")
_ROUTING: Final = ("upgrade", "expect", "http2-settings", "forwarded", "via", "cookie", "cookie2", "set-cookie")
_CODING: Final = ("accept-encoding", "content-encoding")
_RESERVED_HEADERS: Final = frozenset((*_FRAMING, *_ROUTING, *_CODING))
_RESERVED_PREFIXES: Final = ("proxy-", "x-forwarded-", "sec-")


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
        parsed, second = httpx.URL(url), urlsplit(url)
        second_host, second_port = second.hostname or "", second.port
    except (httpx.InvalidURL, ValueError, TypeError):
        raise ValueError("an address that cannot be understood") from None
    if parsed.scheme not in DEFAULT_PORTS or not parsed.host:
        raise ValueError("an address that does not begin with http:// or https:// and a host")
    if parsed.userinfo or "@" in second.netloc:
        raise ValueError("an address with a user or password")
    host, default_port = parsed.raw_host.decode("ascii").lower(), DEFAULT_PORTS[parsed.scheme]
    if second_host.isascii() and second_host.lower() != host:  # `urlsplit` does not encode international names
        raise ValueError("an address whose host is ambiguous")
    port = parsed.port or default_port
    if port != (second_port or default_port):
        raise ValueError("an address whose port is ambiguous")
    return parsed.scheme, host, port


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

    A public name that resolves to a private address is not local, because a stranger decides to which address.
    """
    try:
        return not is_public_address(host)
    except ValueError:
        name = host.rstrip(".").lower()
        is_single_word = "." not in name
        return is_single_word or name.endswith(_LOCAL_SUFFIXES)


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
        """Build the reach of the document at `locator`: public addresses, its own host, and `private_hosts`."""
        without_origin = cls(None, tuple(private_hosts))
        try:
            parsed = httpx.URL(locator)
            host, port = parsed.raw_host.decode("ascii").lower(), parsed.port or DEFAULT_PORTS.get(parsed.scheme)
        except (httpx.InvalidURL, ValueError):  # the document is a file
            return without_origin
        if not host or not port or not _is_local_host(host):
            return without_origin
        return without_origin._replace(local_origin=(host, port))

    def allows(self, host: str, port: int, address: str) -> bool:
        """Return whether a connection for `host` and `port` may go to the IP address."""
        host = host.lower()
        if is_public_address(address) or (host, port) == self.local_origin:
            return True
        ip = ipaddress.ip_address(address.partition("%")[0])  # without the zone of "fe80::1%eth0"
        for entry in self.private_hosts:
            if entry.lower() in (host, f"{host}:{port}", f"[{host}]:{port}"):
                return True
            try:
                if ip in ipaddress.ip_network(entry, strict=False):
                    return True
            except ValueError:  # the entry is a name, not a network
                continue
        return False

    def choose(self, host: str, port: int, entries: Iterable[Any]) -> list[str]:
        """Return the IP addresses of a host, each once. `entries`: what getaddrinfo returned for the host.

        Raises:
            PrivateAddress: if one of the addresses is not allowed.
        """
        addresses = list(dict.fromkeys(str(ip) for *_, (ip, *_) in entries))  # each entry ends with (IP, port, …)
        for address in addresses:
            if not self.allows(host, port, address):
                raise PrivateAddress(
                    f"{host}:{port} has a private address, and a document from elsewhere names it. Nothing was sent. "
                    f'If you trust it, add "{host}:{port}" to the setting private_hosts'
                )
        return addresses


# --- headers and bodies -----------------------------------------------------------------------------------------------


def is_header_name(name: str) -> bool:
    """Return whether a text is a valid name of a header."""
    return _HEADER_TOKEN.fullmatch(name) is not None


def is_reserved_header(name: str) -> bool:
    """Return whether a header frames or routes the message. No document and no argument may set it."""
    lowered = name.strip().lower()
    return lowered in _RESERVED_HEADERS or lowered.startswith(_RESERVED_PREFIXES)


class UnsupportedEncoding(ValueError):
    """A body is damaged, or in an encoding other than gzip and deflate."""


class LimitedBody:
    """Collects a body from raw chunks, decodes it, and stops at a bound.

    ::

        body = LimitedBody(response.headers.get("content-encoding"), MAX_BYTES)
        for chunk in response.iter_raw():  # not iter_bytes, which decodes without a bound
            if not body.feed(chunk):
                break

    Attributes:
        content: the decoded bytes, at most `max_bytes`.
        is_cut: whether the body is longer.
    """

    def __init__(self, encoding: str | None, max_bytes: int) -> None:
        """Prepare to decode as the header `content-encoding` says.

        Raises:
            UnsupportedEncoding: for an encoding other than identity, gzip and deflate.
        """
        encoding = encoding or ""
        names = [name.strip().lower() for name in encoding.split(",")]
        names = [name for name in names if name not in ("", "identity")] or ["identity"]
        name = names[0]
        if len(names) > 1 or name not in ("identity", *_WINDOW_BITS):
            raise UnsupportedEncoding(f"a body in the encoding {encoding[:60]!r}, which was not asked for")
        self.content, self.is_cut = bytearray(), False
        self._max_bytes = max_bytes
        self._decoder = None if name == "identity" else zlib.decompressobj(_WINDOW_BITS[name])
        self._may_be_bare = name == "deflate"  # many servers send deflate without the header of zlib
        self._first_byte = b""  # of deflate: whether there is a header can be seen only with the second byte

    def feed(self, chunk: bytes) -> bool:
        """Decode a raw chunk. Returns whether more bytes are wanted.

        Raises:
            UnsupportedEncoding: if the chunk is not in the encoding that the header names.
        """
        if self._may_be_bare:
            chunk = self._first_byte + chunk
            if len(chunk) < 2:
                self._first_byte = chunk
                return True
        limit = self._max_bytes - len(self.content) + 1  # one byte too many shows that the body is cut
        try:
            piece = chunk[:limit] if self._decoder is None else self._decoder.decompress(chunk, limit)
        except zlib.error:
            if not self._may_be_bare:
                raise UnsupportedEncoding("a compressed body that is damaged") from None
            self._may_be_bare, self._decoder = False, zlib.decompressobj(_BARE_WINDOW_BITS)
            return self.feed(chunk)
        self._may_be_bare = False
        self.content += piece
        if len(self.content) > self._max_bytes:
            del self.content[self._max_bytes :]
            self.is_cut = True
        is_complete = self._decoder is not None and self._decoder.eof
        return not self.is_cut and not is_complete


# --- connections ------------------------------------------------------------------------------------------------------


def _find_proxy(url: httpx.URL, reach: Reach) -> str | None:
    """Return the proxy that the environment names for an address.

    A proxy may be in the private network and reach what the document may not. So the host is checked here.

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
        return proxy  # only the proxy can resolve the name, so there is no address to check
    reach.choose(host, port, addresses)
    return proxy


class _CheckedTransport(httpx.AsyncBaseTransport):
    """Sends requests to addresses that `reach` allows, through the proxy of the environment if there is one.

    A request goes to a checked address, and names its host in the header and in the TLS handshake. Each origin has
    connections of its own, because TLS has verified only that host.
    """

    def __init__(self, reach: Reach) -> None:
        self._reach, self._context = reach, httpx.create_ssl_context()
        self._transports: dict[str, httpx.AsyncHTTPTransport] = {}  # by proxy or origin

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to an address that the program may reach, and to no other.

        The name is looked up once, here, and the request goes to the addresses that passed the check: a second look-up
        could give another one (DNS rebinding).
        """
        url, scheme = request.url, request.url.scheme
        if scheme not in DEFAULT_PORTS:  # a redirect may lead to another scheme
            raise httpx.UnsupportedProtocol(f"the address begins with {scheme}://, not http:// or https://")
        proxy = await anyio.to_thread.run_sync(_find_proxy, url, self._reach) if getproxies() else None
        if proxy is not None:
            return await self._open_transport(proxy, proxy).handle_async_request(request)
        host, port = url.raw_host.decode("ascii"), url.port or DEFAULT_PORTS[scheme]
        if port > MAX_PORT:  # the look-up would raise an OverflowError, which no caller handles
            raise httpx.ConnectError(f"there is no port {port}")
        transport = self._open_transport(f"{scheme}://{host}:{port}", None)
        try:
            entries = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(str(error)) from error
        failure: httpx.TransportError = httpx.ConnectError("no address")
        for address in self._reach.choose(host, port, entries):
            to_address = httpx.Request(
                request.method,
                url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
            try:
                return await transport.handle_async_request(to_address)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
        raise failure

    def _open_transport(self, key: str, proxy: str | None) -> httpx.AsyncHTTPTransport:
        """Return the transport for a proxy or an origin (`key`), which keeps its connections."""
        if key not in self._transports:
            self._transports[key] = httpx.AsyncHTTPTransport(verify=self._context, proxy=proxy)
        return self._transports[key]

    async def aclose(self) -> None:
        for transport in self._transports.values():
            await transport.aclose()


def open_async_client(reach: Reach | None, *, timeout: float, follow_redirects: bool = False) -> httpx.AsyncClient:
    """Open an HTTP client for requests of untrusted origin. It keeps no cookies.

    Args:
        reach: the addresses that it may connect to. None: every address.
        timeout: seconds for each of connecting, reading and writing.
        follow_redirects: whether it follows redirects, each of which must lead to an address in `reach`.
    """
    return httpx.AsyncClient(
        transport=None if reach is None else _CheckedTransport(reach),
        timeout=timeout,
        headers=dict(IDENTITY),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # callers must not share a session
        follow_redirects=follow_redirects,
    )


class Download(NamedTuple):
    """An answer: its status, its address after redirects, and its body if the status is 200.

    `is_cut` says that the body is longer than was allowed.
    """

    status: int
    url: str
    content: bytes = b""
    is_cut: bool = False


class Downloader:
    """Downloads documents. Use it in a `with` block; its event loop runs in a thread.

    Attributes:
        check_url: is called with the address of each request, also after a redirect, and raises to refuse it.
    """

    def __init__(self, reach: Reach, *, timeout: float, total: float) -> None:
        """Prepare to download what `reach` allows. `timeout`: seconds of one step; `total`: of all downloads."""
        self.check_url: Callable[[str], object] | None = None
        self._deadline_s = time.monotonic() + total
        self._client = open_async_client(reach, timeout=timeout, follow_redirects=True)
        self._client.event_hooks = {"request": [self._check_request]}
        self._exit = ExitStack()

    def __enter__(self) -> Downloader:
        self._portal = self._exit.enter_context(start_blocking_portal())
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.call(self._client.aclose)
        self._exit.close()

    def get(self, url: str, max_bytes: int) -> Download:
        """Download at most `max_bytes` from an address.

        Raises:
            PrivateAddress: if the address, or one to which it leads, is not allowed.
            httpx.HTTPError, httpx.InvalidURL: if there is no answer in time, or it breaks off.
            UnsupportedEncoding: if the body cannot be decoded.
        """
        return self._portal.call(self._get, url, max_bytes)

    async def _get(self, url: str, max_bytes: int) -> Download:
        """Download for `get`. The content is empty for a status other than 200, and for an endless stream of events."""
        try:
            with anyio.fail_after(max(0.0, self._deadline_s - time.monotonic())):
                async with self._client.stream("GET", url) as response:
                    is_endless = response.headers.get("content-type", "").startswith("text/event-stream")
                    if response.status_code != HTTPStatus.OK or is_endless:
                        return Download(response.status_code, str(response.url))
                    body = LimitedBody(response.headers.get("content-encoding"), max_bytes)
                    async for chunk in response.aiter_raw():
                        if not body.feed(chunk):
                            break
                    return Download(response.status_code, str(response.url), bytes(body.content), body.is_cut)
        except TimeoutError:
            raise httpx.ReadTimeout("the time for the document is over") from None

    async def _check_request(self, request: httpx.Request) -> None:
        if self.check_url is not None:
            self.check_url(str(request.url))
