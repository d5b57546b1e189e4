"""Reads entries of an MCP registry (`server.json`), and turns them into entries of an mcpServers file.

The versions of the server and of its package are pinned. Nothing is installed or started here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from toolscout.config import Settings
from toolscout.errors import SourceError
from toolscout.privacy.private_files import make_private_folder, replace_file
from toolscout.sources.parsing import MAX_DOCUMENT_BYTES, parse_document

if TYPE_CHECKING:
    import httpx

__all__ = ["Published", "fetch_bundle", "fetch_server", "split_locator"]

REGISTRY_PREFIX: Final = "registry:"
MAX_BUNDLE_DOWNLOAD_BYTES: Final = 500_000_000
API_VERSIONS: Final = ("v0.1", "v0")  # of the registry's API, the newest first
FETCH_TIMEOUTS: Final = 10  # time for a download, in timeouts of one answer
LAUNCHERS: Final[Mapping[str, tuple[str, ...]]] = {"npm": ("npx", "-y"), "pypi": ("uvx",), "oci": ("docker", "run")}
REMOTE_TYPES: Final = {"streamable-http": "http", "sse": "sse"}
_REGISTRY_NAME: Final = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+")
_EXACT_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]*")
_VARIABLE_MARK: Final = re.compile(r"\{([A-Za-z0-9_.-]+)\}")


class Published:
    """One version of a server as a registry publishes it.

    Attributes:
        name: its name in the registry.
        version: the version, also where the latest one was asked for.
        document: the `server.json`.
    """

    def __init__(self, document: Any) -> None:
        """Check a `server.json`.

        Raises:
            SourceError: if it has no name or no exact version.
        """
        if not isinstance(document, Mapping) or not isinstance(document.get("name"), str):
            raise SourceError("expected a server.json with a name, found something else")
        self.document = document
        self.name, self.version = str(document["name"]), str(document.get("version") or "")
        if not _EXACT_VERSION.fullmatch(self.version) or self.version == "latest":
            raise SourceError(f"{self.name}: expected an exact version in its server.json, found {self.version[:60]!r}")

    @property
    def remotes(self) -> list[Mapping[str, Any]]:
        """Where the server runs already."""
        return [*_list_objects(self.document.get("remotes"))]

    @property
    def packages(self) -> list[Mapping[str, Any]]:
        """The packages that can be run on this machine, over standard input and output."""
        return [
            package
            for package in _list_objects(self.document.get("packages"))
            if _read_object(package.get("transport")).get("type", "stdio") == "stdio"
        ]

    def build_entry(self, prefix: str, wish: str = "") -> dict[str, Any] | Mapping[str, Any]:
        """Build the entry of an mcpServers file: of a remote server, or else of a package.

        Args:
            prefix: of the environment variables from which values come that the user must give.
            wish: `remote`, or the kind of package: npm, pypi, oci, mcpb. By default the first that there is.

        Returns:
            The entry. A package of the kind mcpb is returned as it is, because it must be downloaded first.

        Raises:
            SourceError: if there is nothing of that kind, or it is not pinned.
        """
        kinds = [str(package.get("registryType")) for package in self.packages]
        known = [kind for kind in kinds if kind in LAUNCHERS or kind == "mcpb"]
        if self.remotes and wish in ("", "remote"):
            return _build_remote(self.remotes[0], prefix)
        if wish not in ("", *known) or not known:
            offered = ", ".join([*(["remote"] if self.remotes else []), *dict.fromkeys(kinds)]) or "nothing"
            raise SourceError(f"{self.name}: expected something that toolscout can start, found {offered}")
        package = self.packages[kinds.index(wish or known[0])]
        return package if package.get("registryType") == "mcpb" else _build_package(package, prefix)


def split_locator(locator: str) -> tuple[str, str, str]:
    """Split `registry:NAME@VERSION#KIND` into name, version and kind. Version and kind may be missing.

    Raises:
        SourceError: if the name is none of a registry.
    """
    text, _, wish = locator.removeprefix(REGISTRY_PREFIX).partition("#")
    name, _, version = text.partition("@")
    if not _REGISTRY_NAME.fullmatch(name) or (version and not _EXACT_VERSION.fullmatch(version)):
        raise SourceError(
            f"{locator[:200]}: expected registry:NAMESPACE/NAME or registry:NAMESPACE/NAME@VERSION, such as "
            "registry:io.github.example/weather@1.2.0"
        )
    return name, version, wish


def fetch_server(name: str, version: str, settings: Settings) -> Published:
    """Fetch one version of a server from the registry of the settings. Without a version, the latest.

    Raises:
        SourceError: if the registry does not answer, or has no such server.
    """
    base = settings.registry.rstrip("/")
    path = f"servers/{quote(name, safe='')}/versions/{quote(version or 'latest', safe='')}"
    with _open_client(base, settings) as client:
        for api in API_VERSIONS:
            content = _download(client, f"{base}/{api}/{path}", MAX_DOCUMENT_BYTES)
            if content is not None:
                break
        else:
            what = f"{name} in version {version}" if version else name
            raise SourceError(f"{base} has no server {what}. Check its name and version there.")
    document = parse_document(content.decode("utf-8", "replace"), name)
    inner = document.get("server") if isinstance(document, Mapping) else None
    published = Published(inner if isinstance(inner, Mapping) else document)
    if published.name != name or version not in ("", published.version):
        raise SourceError(f"{base} answered with {published.name} {published.version} instead of {name} {version}")
    return published


def fetch_bundle(package: Mapping[str, Any], folder: Path, settings: Settings) -> Path:
    """Download the bundle that a `server.json` names, and compare it with the digest there.

    Raises:
        SourceError: if it cannot be downloaded, or is not the one that was published.
    """
    address, expected = str(package.get("identifier") or ""), str(package.get("fileSha256") or "").lower()
    if not re.fullmatch(r"[0-9a-f]{64}", expected):
        raise SourceError(f"{address[:200]}: expected fileSha256 beside a bundle, found none: it cannot be checked")
    with _open_client(address, settings) as client:
        content = _download(client, address, MAX_BUNDLE_DOWNLOAD_BYTES)
    if content is None:
        raise SourceError(f"{address[:200]}: there is no such bundle")
    if hashlib.sha256(content).hexdigest() != expected:
        raise SourceError(f"{address[:200]}: this bundle is not the one that was published: its digest differs")
    make_private_folder(folder)
    path = folder / f"{expected[:32]}.mcpb"
    replace_file(path, content)
    return path


def _open_client(address: str, settings: Settings) -> httpx.Client:
    """Open a client for an address that the user configured, or that a registry names."""
    from toolscout.sources.addresses import Reach, open_client

    reach = Reach.of(settings.registry, settings.private_hosts)
    timeout = settings.http_timeout
    return open_client(reach, timeout=timeout, total=FETCH_TIMEOUTS * timeout)


def _download(client: httpx.Client, url: str, limit: int) -> bytes | None:
    """Return what lies at an address; None: nothing does.

    Raises:
        SourceError: if it cannot be read, or is too long.
    """
    import httpx

    from toolscout.sources.wire_limits import LimitedBody, UnsupportedEncoding

    try:
        with client.stream("GET", url) as response:
            if response.status_code == 404:
                return None
            if response.status_code != 200:
                raise SourceError(f"{url}: expected an answer, found HTTP status {response.status_code}")
            body = LimitedBody(response.headers.get("content-encoding"), limit)
            for chunk in response.iter_raw():
                if not body.feed(chunk):
                    break
    except (httpx.HTTPError, httpx.InvalidURL, UnsupportedEncoding, OSError) as error:
        raise SourceError(f"{url}: expected an answer, found: {str(error)[:200]}") from None
    if body.is_cut:
        raise SourceError(f"{url}: expected at most {limit:,} bytes, found more")
    return bytes(body.content)


# --- entries ---


def _build_remote(remote: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    kind = REMOTE_TYPES.get(str(remote.get("type")))
    if kind is None or not isinstance(remote.get("url"), str):
        raise SourceError("expected a remote of the type streamable-http or sse with a url, found something else")
    entry: dict[str, Any] = {"type": kind, "url": _fill(remote["url"], remote.get("variables"), prefix)}
    headers = {
        str(header["name"]): _fill_input(header, prefix)
        for header in _list_objects(remote.get("headers"))
        if header.get("name") and _is_needed(header)
    }
    return {**entry, "headers": headers} if headers else entry


def _build_package(package: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Build the command that runs exactly the version of a package that was published."""
    kind, pinned = str(package["registryType"]), _pin_package(package)
    launcher = [*LAUNCHERS[kind]]
    env = {
        str(variable["name"]): _fill_input(variable, prefix)
        for variable in _list_objects(package.get("environmentVariables"))
        if variable.get("name") and _is_needed(variable)
    }
    if kind == "oci":
        launcher += ["-i", "--rm", *(word for name in env for word in ("-e", name))]
    arguments = [*_list_arguments(package.get("runtimeArguments"), prefix), pinned]
    arguments += _list_arguments(package.get("packageArguments"), prefix)
    entry: dict[str, Any] = {"command": launcher[0], "args": [*launcher[1:], *arguments]}
    return {**entry, "env": env} if env else entry


def _pin_package(package: Mapping[str, Any]) -> str:
    """Return the package with its version, as its launcher writes it: `name@1.2.3`, `name==1.2.3`, `image:1.2.3`.

    Raises:
        SourceError: if the version is not an exact one, or the name cannot be a package's.
    """
    identifier, version = str(package.get("identifier") or ""), str(package.get("version") or "")
    if package["registryType"] == "oci":
        image, _, tag = identifier.rpartition("/")[2].partition(":")
        pinned = identifier if tag or "@sha256:" in identifier else f"{identifier}:{version}"
        is_exact = bool(image) and not pinned.endswith((":latest", ":"))
    else:
        pinned = f"{identifier}{'@' if package['registryType'] == 'npm' else '=='}{version}"
        is_exact = bool(_EXACT_VERSION.fullmatch(version)) and version != "latest"
    if not is_exact or identifier.startswith("-") or re.search(r"\s", identifier):
        raise SourceError(f"{identifier[:100]!r}: expected a package with an exact version, found {version[:60]!r}")
    return pinned


def _list_arguments(arguments: object, prefix: str) -> list[str]:
    words: list[str] = []
    for argument in _list_objects(arguments):
        if not _is_needed(argument):
            continue
        name, is_named = str(argument.get("name") or ""), argument.get("type") == "named"
        has_value = any(argument.get(key) is not None for key in ("value", "default", "valueHint"))
        words += [name] if is_named and name else []
        words += [_fill_input(argument, prefix)] if has_value or not is_named else []
    return words


def _is_needed(given: Mapping[str, Any]) -> bool:
    return bool(given.get("isRequired")) or any(given.get(key) is not None for key in ("value", "default"))


def _fill_input(given: Mapping[str, Any], prefix: str) -> str:
    """Return the text of a value: as it is written, or a variable that the user sets."""
    value = given.get("value")
    if isinstance(value, str):
        return _fill(value, given.get("variables"), prefix)
    name = str(given.get("name") or given.get("valueHint") or "VALUE")
    return _write_variable(name, given, prefix)


def _fill(text: str, variables: object, prefix: str) -> str:
    """Replace `{name}` in a text by an environment variable.

    Raises:
        SourceError: if the text names environment variables itself: a registry could then read any of them.
    """
    if "${" in text:
        raise SourceError(f"it asks for {text[:80]!r}, but a registry may not name environment variables")
    known = _read_object(variables)
    return _VARIABLE_MARK.sub(lambda match: _write_variable(match[1], _read_object(known.get(match[1])), prefix), text)


def _write_variable(name: str, given: Mapping[str, Any], prefix: str) -> str:
    variable = prefix + re.sub(r"\W", "_", name).upper().strip("_")
    default = given.get("default")
    if isinstance(default, str) and not set(default) & set("${}"):
        return f"${{{variable}:-{default}}}"
    return f"${{{variable}}}"


def _list_objects(value: object) -> Sequence[Mapping[str, Any]]:
    items: Iterable[object] = value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, Mapping)]


def _read_object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
