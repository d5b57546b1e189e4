"""Documents that refer to each other: loading them from files or URLs, and following `$ref`.

Shared by the readers of this folder. Documents are untrusted: a reference out of a URL
stays on its origin, a reference out of a file names another .json or .yaml file relative to it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urljoin, urlsplit

from toolscout.errors import BadEntry, SourceError
from toolscout.sources import load_document, parse_document
from toolscout.types import clean

if TYPE_CHECKING:
    import httpx

__all__ = ["MAX_CHAIN", "Library", "found", "shown"]

MAX_DOCUMENT_BYTES: Final = 50_000_000
MAX_DOCUMENTS: Final = 5_000
MAX_CHAIN: Final = 64


class Library:
    """The root document and those it refers to, each read once. A location is an absolute path or a URL."""

    def __init__(self, locator: str, timeout: float) -> None:
        self._timeout = timeout
        self._client: httpx.Client | None = None
        self._opened: dict[str, Any] = {}
        self.remote = locator.startswith(("http://", "https://"))
        self.root = locator if self.remote else os.path.abspath(os.path.expanduser(locator))

    def __enter__(self) -> Library:
        if self.remote:
            import httpx

            self._client = httpx.Client(follow_redirects=True, timeout=self._timeout)
        return self

    def __exit__(self, *error: object) -> None:
        if self._client is not None:
            self._client.close()

    def open_root(self) -> Any:
        """The value of the root document; wherever its redirects lead, later documents stay on that origin.

        Raises:
            SourceError: it cannot be fetched or parsed.
        """
        document = self._read(self.root)
        self._opened[self.root] = document
        if self._client is not None:
            self._client.event_hooks = {"request": [lambda request: self._same_origin(str(request.url))]}
        return document

    def _open(self, location: str) -> Any:
        if location not in self._opened:
            if len(self._opened) >= MAX_DOCUMENTS:
                raise SourceError(f"expected references to at most {MAX_DOCUMENTS:,} documents, found more")
            try:
                self._opened[location] = self._read(location)
            except SourceError as error:
                self._opened[location] = error
        if isinstance(self._opened[location], SourceError):
            raise self._opened[location]
        return self._opened[location]

    def _read(self, location: str) -> Any:
        return _load(Path(location)) if self._client is None else self._fetch(location, self._client)

    def _fetch(self, url: str, client: httpx.Client) -> Any:
        import httpx

        where, body, deadline = shown(url), bytearray(), time.monotonic() + 10 * self._timeout
        try:
            with client.stream("GET", url) as response:
                if response.status_code != 200:
                    status = response.status_code
                    raise SourceError(f"{where}: expected a document, found HTTP status {status}: check the address")
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > MAX_DOCUMENT_BYTES or time.monotonic() > deadline:
                        raise SourceError(
                            f"{where}: expected at most {MAX_DOCUMENT_BYTES / 1e6:g} MB within "
                            f"{10 * self._timeout:g} s, found more: download it and add the file"
                        )
                if url == self.root:
                    self.root = str(response.url)
            return parse_document(body.decode("utf-8-sig"), where)
        except httpx.TimeoutException:
            raise SourceError(f"{where}: expected an answer within {self._timeout:g} s, found none") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise SourceError(f"{where}: expected a readable document, found: {reason[:200]}") from None

    def follow(self, node: Any, base: str, hops: int = MAX_CHAIN) -> tuple[Any, str]:
        """What `node`, found in the document `base`, stands for, and the document that holds it.

        Raises:
            BadEntry: for a reference that leads nowhere, in a circle, or where it may not.
        """
        while isinstance(node, Mapping) and isinstance(node.get("$ref"), str):
            if hops <= 0:
                raise BadEntry(f"expected $ref {found(node['$ref'])} to end within {MAX_CHAIN} steps, found a circle")
            hops -= 1
            node, base = self._target(node["$ref"], base, hops)
        return node, base

    def _target(self, ref: str, base: str, hops: int) -> tuple[Any, str]:
        target, _, fragment = ref.partition("#")
        try:
            location = self._beside(base, target) if target else base
            node = self._open(location)
        except SourceError as error:
            raise BadEntry(f"$ref {found(ref)}: {error}") from None
        except ValueError as error:
            raise BadEntry(f"expected the name of a document in $ref {found(ref)}, found: {error}") from None
        pointer = unquote(fragment)
        if pointer and not pointer.startswith("/"):
            raise BadEntry(f"expected a $ref with a JSON pointer (#/…), found {found(ref)}")
        for raw in pointer.split("/")[1:]:
            token = raw.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and token not in node:
                node, location = self.follow(node, location, hops - 1)
            number = int(token) if re.fullmatch(r"[0-9]{1,9}", token) else None
            if isinstance(node, Mapping) and (token in node or number in node):
                node = node[token] if token in node else node[number]
            elif isinstance(node, list) and number is not None and number < len(node):
                node = node[number]
            else:
                raise BadEntry(f"expected something at $ref {found(ref)}, found nothing: add it or correct the $ref")
        return node, location

    def _beside(self, base: str, target: str) -> str:
        if self.remote:
            return self._same_origin(urljoin(base, target))
        parts = urlsplit(target)
        path = unquote(parts.path)
        if parts.scheme or parts.netloc or os.path.isabs(path):
            raise SourceError("expected a file named relative to the document, found a URL or an absolute path")
        if not path.lower().endswith((".json", ".yaml", ".yml")) or re.search(r"(^|/)\.[^./]", path):
            raise SourceError("expected a .json or .yaml file that is not hidden, found another")
        return os.path.abspath(os.path.join(os.path.dirname(base), path))

    def _same_origin(self, url: str) -> str:
        if _origin(url) != _origin(self.root):
            raise SourceError(f"expected a document of the same origin as {shown(self.root)}, found {shown(url)}")
        return url


def _load(path: Path) -> Any:
    if path.is_file() and path.stat().st_size > MAX_DOCUMENT_BYTES:
        raise SourceError(f"{path}: expected at most {MAX_DOCUMENT_BYTES / 1e6:g} MB, found more: split the document")
    if not path.is_file():
        raise SourceError(f"{path}: expected a file, found none: check the name")
    return load_document(path)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def shown(locator: str) -> str:
    """`locator` for messages: a URL without credentials and query."""
    if not locator.startswith(("http://", "https://")):
        return locator
    return re.sub(r"(?<=://)[^/?#]*@|[?#].*", "", locator, flags=re.DOTALL)


def found(value: object) -> str:
    """`value` for messages, short and without its parts, which may be many."""
    if isinstance(value, (str, int, float)):
        return repr(clean(str(value)[:60]))
    names = {dict: "an object", list: "a list", type(None): "nothing"}
    return names.get(type(value), f"a {type(value).__name__}")
