"""Loads documents that refer to each other from files or URLs, and follows their `$ref`.

Documents are untrusted. A reference in a document from a URL stays on its origin. A reference in a file names another
.json or .yaml file relative to it, in the folder of the first document or below; symbolic links do not lead out of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urljoin, urlsplit

from toolscout.errors import BadEntry, SourceError
from toolscout.sources.parsing import MAX_DOCUMENT_BYTES, MAX_DOCUMENT_VALUES, parse_counted, read_text
from toolscout.sources.reading import describe_value

if TYPE_CHECKING:
    from toolscout.sources.addresses import Downloader

__all__ = ["MAX_CHAIN", "Library", "hide_credentials", "is_openapi_address", "is_remote", "join_server", "split_server"]

MAX_DOCUMENTS: Final = 5_000
MAX_TOTAL_BYTES: Final = 2 * MAX_DOCUMENT_BYTES  # of a document and all to which it refers
MAX_CHAIN: Final = 64  # references, each of which leads to the next
MAX_REFERENCE_STEPS: Final = 1_000_000  # of the pointers of all references together
SERVER_MARK: Final = "#server="  # in a locator, before the address that replaces the document's servers
MAX_LOOK_S: Final = 3.0  # to see whether a document is at an address
MAX_LOOK_BYTES: Final = 5_000_000
TOTAL_TIMEOUTS: Final = 10  # time for all documents of a source, in timeouts of one answer


class Library:
    """The root document and those to which it refers. Each is read once. A location is an absolute path or a URL."""

    def __init__(self, locator: str, timeout: float, private_hosts: Iterable[str] = ()) -> None:
        self._timeout, self._private_hosts = timeout, tuple(private_hosts)
        self._downloader: Downloader | None = None  # inside `with`, if the root is remote
        self._opened: dict[str, object] = {}  # location → document, or the error of reading it
        self._bytes_left, self._steps_left = MAX_TOTAL_BYTES, MAX_REFERENCE_STEPS
        self._values_left = MAX_DOCUMENT_VALUES
        self.remote = is_remote(locator)
        self.root = locator if self.remote else os.path.abspath(os.path.expanduser(locator))

    def __enter__(self) -> Library:
        if self.remote:
            from toolscout.sources.addresses import Downloader, Reach

            reach = Reach.of(self.root, self._private_hosts)
            downloader = Downloader(reach, timeout=self._timeout, total=TOTAL_TIMEOUTS * self._timeout)
            self._downloader = downloader.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._downloader is not None:
            self._downloader.__exit__()

    @property
    def bytes_read(self) -> int:
        """The size of all documents read so far."""
        return MAX_TOTAL_BYTES - self._bytes_left

    def open_root(self) -> object:
        """Load the root document. If it is redirected, later documents must have the origin of the redirect's target.

        Raises SourceError if it cannot be fetched or parsed.
        """
        document = self._read(self.root)  # not `_open`: it sets `self.root` to the target of a redirect
        self._opened[self.root] = document
        if self._downloader is not None:
            self._downloader.check_url = self._require_same_origin  # also for redirects of later documents
        return document

    def _open(self, location: str) -> object:
        """Return a document, read at most once. A second attempt at an unreadable one raises the same error."""
        if location not in self._opened:
            if len(self._opened) >= MAX_DOCUMENTS:
                raise SourceError(f"expected references to at most {MAX_DOCUMENTS:,} documents, found more")
            try:
                self._opened[location] = self._read(location)
            except SourceError as error:
                self._opened[location] = error
        opened = self._opened[location]
        if isinstance(opened, SourceError):
            raise SourceError(str(opened))  # a new one, because each raise adds a traceback
        return opened

    def _read(self, location: str) -> object:
        """Read and parse a document. The root may be redirected; its final address then replaces `root`."""
        where = hide_credentials(location)
        if self._downloader is not None:
            text = self._fetch(location, where, self._downloader)
        else:
            if not os.path.isfile(location):
                raise SourceError(f"{where}: expected a file, found none: check the name")
            self._spend_bytes(os.path.getsize(location), where)
            text = read_text(Path(location))
        value, count = parse_counted(text, where, self._values_left)
        self._values_left -= count
        return value

    def _spend_bytes(self, count: int, where: str) -> None:
        """Count the bytes of a document. Raises SourceError, which begins with `where`, if all have too many."""
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise SourceError(f"{where}: the documents of this source hold more than {MAX_TOTAL_BYTES / 1e6:g} MB")

    def _fetch(self, url: str, where: str, downloader: Downloader) -> str:
        """Download a document, and set `self.root` to the final address of a redirected root.

        Raises a SourceError that begins with `where`, whatever goes wrong.
        """
        import httpx

        from toolscout.sources.addresses import PrivateAddress

        try:
            download = downloader.get(url, MAX_DOCUMENT_BYTES)
            if download.status != 200:
                raise ValueError(f"HTTP status {download.status}: check the address")
            if download.is_cut:
                limit = f"{MAX_DOCUMENT_BYTES / 1e6:g} MB"
                raise SourceError(f"{where}: expected at most {limit}, found more: download it and add the file")
            self._spend_bytes(len(download.content), where)
            if url == self.root:
                self.root = download.url
            return download.content.decode("utf-8-sig")
        except PrivateAddress as error:
            raise SourceError(f"{where}: {error}") from None
        except httpx.TimeoutException:
            limits = f"within {self._timeout:g} s, and all documents within {TOTAL_TIMEOUTS * self._timeout:g} s"
            raise SourceError(f"{where}: expected an answer {limits}, found none") from None
        except httpx.ConnectError as error:
            advice = "Check the address, and that the server runs."
            raise SourceError(f"{where}: it cannot be reached ({str(error)[:120] or 'no answer'}). {advice}") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            reason = (str(error) or type(error).__name__)[:200]
            raise SourceError(f"{where}: expected a readable document, found: {reason}") from None

    def follow(self, node: object, base: str, hops: int = MAX_CHAIN) -> tuple[object, str]:
        """Follow the `$ref` of a node, and of its target, until there is none. Returns target and its location.

        `base` is the location of the document with the node. More references than `hops` count as a circle.

        Raises:
            BadEntry: for a reference to nothing, in a circle, or to a document that may not be read.
        """
        while isinstance(node, Mapping) and isinstance(node.get("$ref"), str):
            if hops <= 0:
                raise BadEntry(
                    f"expected $ref {describe_value(node['$ref'])} to end within {MAX_CHAIN} steps, found a circle"
                )
            hops -= 1
            node, base = self._find_target(node["$ref"], base, hops)
        return node, base

    def _find_target(self, ref: str, base: str, hops: int) -> tuple[object, str]:
        """Follow one `$ref`: find its document, then step through its JSON pointer. Returns target and location.

        Arguments and BadEntry as in `follow`. Raises SourceError if all references together take too many steps.
        """
        document_name, _, fragment = ref.partition("#")
        pointer = unquote(fragment)
        self._count_steps(1 + pointer.count("/") + len(ref) // 100)  # a long text takes time even without a step
        try:
            location = self._locate(base, document_name) if document_name else base
            node = self._open(location)
        except SourceError as error:
            raise BadEntry(f"$ref {describe_value(ref)}: {error}") from None
        except ValueError as error:
            raise BadEntry(f"expected the name of a document in $ref {describe_value(ref)}, found: {error}") from None
        before_slash, *escaped_tokens = pointer.split("/")
        if before_slash:
            raise BadEntry(f"expected a $ref with a JSON pointer (#/…), found {describe_value(ref)}")
        for escaped in escaped_tokens:
            token = escaped.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and token not in node:  # the node may itself be a reference
                node, location = self.follow(node, location, hops - 1)
            node = _step_into(node, token)
            if node is _NO_VALUE:
                raise BadEntry(
                    f"expected something at $ref {describe_value(ref)}, found nothing: add it or correct the $ref"
                )
        return node, location

    def _count_steps(self, count: int) -> None:
        """Raise SourceError if all references take too many steps: each can double the work of the one before."""
        self._steps_left -= count
        if self._steps_left < 0:
            raise SourceError(f"{hide_credentials(self.root)}: following its references takes too long: write them out")

    def _locate(self, base: str, name: str) -> str:
        """Return the location of a document that the document at `base` names. Raises SourceError if it may not."""
        if self.remote:
            return self._require_same_origin(urljoin(base, name))
        parts = urlsplit(name)
        path = unquote(parts.path)
        if parts.scheme or parts.netloc or os.path.isabs(path):
            raise SourceError("expected a file named relative to the document, found a URL or an absolute path")
        is_hidden = re.search(r"(^|/)\.[^./]", path) is not None  # the file or a folder, such as `.git/x.json`
        if is_hidden or not path.lower().endswith((".json", ".yaml", ".yml")):
            raise SourceError("expected a .json or .yaml file that is not hidden, found another")
        location = os.path.abspath(os.path.join(os.path.dirname(base), path))
        folder = os.path.realpath(os.path.dirname(self.root))
        if os.path.commonpath([os.path.realpath(location), folder]) != folder:
            raise SourceError("expected a file in the folder of the document or below, found one outside")
        return location

    def _require_same_origin(self, url: str) -> str:
        """Return a URL if it has the origin of the root: a document must not make us read from another host."""
        if _parse_origin(url) != _parse_origin(self.root):
            raise SourceError(
                f"expected a document of the same origin as {hide_credentials(self.root)}, "
                f"found {hide_credentials(url)}"
            )
        return url


_NO_VALUE: Final = object()


def _step_into(node: object, token: str) -> object:
    """Return the part of an object or list that a token of a JSON pointer names. `_NO_VALUE` if there is none."""
    if isinstance(node, Mapping) and token in node:
        return node[token]
    if not re.fullmatch(r"[0-9]{1,9}", token):
        return _NO_VALUE
    number = int(token)
    if isinstance(node, Mapping):
        return node.get(number, _NO_VALUE)  # in YAML, a key such as 200 is a number
    return node[number] if isinstance(node, list) and number < len(node) else _NO_VALUE


def is_remote(locator: str) -> bool:
    """Return whether a locator is an http(s) URL, whose document somebody else may change."""
    return locator.lower().startswith(("http://", "https://"))


def _parse_origin(url: str) -> tuple[str, str | None, int | None]:
    """Return the scheme, host and port of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def is_openapi_address(url: str) -> bool:
    """Request a URL, and return whether it answers within 3 s with what looks like an OpenAPI document."""
    import httpx

    from toolscout.errors import UserError
    from toolscout.sources.addresses import Downloader, Reach, UnsupportedEncoding

    try:
        with Downloader(Reach.of(url, ()), timeout=MAX_LOOK_S, total=MAX_LOOK_S) as downloader:
            content = downloader.get(url, MAX_LOOK_BYTES).content
    except (UserError, httpx.HTTPError, httpx.InvalidURL, UnsupportedEncoding):
        return False
    names_version = re.search(rb"""["']?(openapi|swagger)["']?\s*:\s*["']?[23]\.""", content) is not None
    return names_version and b"paths" in content


def join_server(locator: str, server: str) -> str:
    """Return the locator of a document with the address of its API, which replaces the servers in the document."""
    document, _ = split_server(locator)
    return f"{document}{SERVER_MARK}{server}"


def split_server(locator: str) -> tuple[str, str]:
    """Split what `join_server` returned into the document's locator and the address of the API, empty if none."""
    document, _, server = locator.partition(SERVER_MARK)
    return document, server


def hide_credentials(locator: str) -> str:
    """Remove credentials and query from a URL, for messages. Other locators are unchanged."""
    if not is_remote(locator):
        return locator
    return re.sub(r"(?<=://)[^/?#]*@|[?#].*", "", locator, flags=re.DOTALL)
