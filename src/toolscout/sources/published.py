"""Turns what somebody else published (bundles, entries of a registry) into an mcpServers file in the home.

From then on it is a source like others. Nothing is installed or started here; versions are pinned. A server that runs
as a program is started only if the user trusts the folder of its file (`toolscout trust`), as with the MCP
configurations of a project.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
import sys
import unicodedata
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from toolscout.errors import SourceError
from toolscout.settings import Settings
from toolscout.sources.mcp_transport import is_private, origin_of
from toolscout.sources.parsing import MAX_DOCUMENT_BYTES, parse_document
from toolscout.sources.reading import source_name
from toolscout.trust.private_files import make_private_folder, replace_file
from toolscout.trust.redaction import CREDENTIAL_PREFIX
from toolscout.trust.trusted_folders import is_configuration_trusted

if TYPE_CHECKING:
    from toolscout.sources.addresses import Downloader

__all__ = ["Published", "describe_bundle", "is_published", "prepare", "unpack"]

PUBLISHED_FOLDER: Final = "published"  # in the home
BUNDLES_FOLDER: Final = "bundles"  # in the home
ENTRY_FILE: Final = ".mcp.json"

REGISTRY_PREFIX: Final = "registry:"
MAX_BUNDLE_DOWNLOAD_BYTES: Final = 500_000_000
API_VERSIONS: Final = ("v0.1", "v0")  # of the registry's API, the newest first
FETCH_TIMEOUTS: Final = 10  # time for a download, in timeouts of one answer
LAUNCHERS: Final[Mapping[str, tuple[str, ...]]] = {"npm": ("npx", "-y"), "pypi": ("uvx",), "oci": ("docker", "run")}
REMOTE_TYPES: Final = {"streamable-http": "http", "sse": "sse"}
_REGISTRY_NAME: Final = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+")
_EXACT_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]*")
_VARIABLE_MARK: Final = re.compile(r"\{([A-Za-z0-9_.-]+)\}")

BUNDLE_SUFFIXES: Final = (".mcpb", ".dxt")
MANIFEST_FILE: Final = "manifest.json"
MAX_BUNDLE_FILES: Final = 50_000
MAX_BUNDLE_BYTES: Final = 1_000_000_000  # unpacked
MAX_BUNDLE_RATIO: Final = 200  # unpacked to packed, above `MIN_RATIO_BYTES`
MIN_RATIO_BYTES: Final = 10_000_000
MAX_MANIFEST_BYTES: Final = 5_000_000
UNPACK_PIECE_BYTES: Final = 1_000_000
USER_EXECUTES: Final = 0o100
PLATFORMS: Final = {"linux": "linux", "darwin": "darwin", "win32": "win32"}
_MANIFEST_VALUE: Final = re.compile(r"\$\{([^{}]*)\}")


def is_published(locator: str) -> bool:
    """Return whether a locator names a bundle or an entry of a registry."""
    if locator.startswith(REGISTRY_PREFIX):
        return True
    return locator.lower().endswith(BUNDLE_SUFFIXES) and not locator.startswith(("http://", "https://"))


def prepare(locator: str, name: str | None, settings: Settings) -> Path:
    """Write the mcpServers file of a bundle or a registry's entry, and return it.

    Raises:
        SourceError: if it cannot be read, or would start a program that the user does not trust yet. The message says
            which, and how to trust it.
    """
    bundles = settings.home / BUNDLES_FOLDER
    if locator.startswith(REGISTRY_PREFIX):
        title, version, wish = split_locator(locator)
        source = name or source_name(title.rpartition("/")[2])
        published = fetch_server(title, version, settings)
        entry: Any = published.build_entry(_make_prefix(source), wish)
        _check_remote(str(entry.get("url") or ""), settings)
        if "registryType" in entry:
            folder = unpack(fetch_bundle(entry, bundles, settings), bundles)
            _, _, entry = describe_bundle(folder, _make_prefix(source))
        label = f"{published.name} {published.version}"
    else:
        folder = unpack(Path(locator).expanduser(), bundles)
        title, version, _ = describe_bundle(folder, "")
        source = name or source_name(title)
        _, _, entry = describe_bundle(folder, _make_prefix(source))
        label = f"{title} {version}".strip()
    return _write_entry(settings, source, label, entry)


def _check_remote(url: str, settings: Settings) -> None:
    """Refuse the address of a remote server to which a public registry may not lead."""
    if not url or not settings.registry.startswith("https://"):
        return
    if not url.startswith("https://") or is_private(origin_of(url)):
        raise SourceError(f"{url[:200]}: a public registry may only lead to public https addresses")


def _make_prefix(source: str) -> str:
    """Return the common prefix of the environment variables that hold the values of a source."""
    return f"{CREDENTIAL_PREFIX}{re.sub(r'[^A-Za-z0-9]', '_', source).upper()}_"


def _write_entry(settings: Settings, source: str, label: str, entry: dict[str, Any]) -> Path:
    folder = (settings.home / PUBLISHED_FOLDER / source).resolve()
    make_private_folder(folder)
    path = folder / ENTRY_FILE
    content = msgspec.json.format(msgspec.json.encode({"mcpServers": {source: entry}}), indent=2)
    if not path.exists() or path.read_bytes() != content:
        replace_file(path, content)
    if "command" in entry and not is_configuration_trusted(settings.home, folder, ENTRY_FILE):
        words = shlex.join([entry["command"], *entry["args"]])
        variables = sorted(set(re.findall(r"\$\{(\w+)", content.decode())))
        needs = f" It reads the variables {', '.join(variables)}." if variables else ""
        raise SourceError(
            f"{label} would run this program:  {words}.{needs} Nothing of it has run. If you trust it, run  "
            f"toolscout trust {shlex.quote(str(folder))}  and add it again."
        )
    return path


# --- entries of a registry --------------------------------------------------------------------------------------------


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
    with _open_downloader(settings) as downloader:
        for api in API_VERSIONS:
            content = _download(downloader, f"{base}/{api}/{path}", MAX_DOCUMENT_BYTES)
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
    with _open_downloader(settings) as downloader:
        content = _download(downloader, address, MAX_BUNDLE_DOWNLOAD_BYTES)
    if content is None:
        raise SourceError(f"{address[:200]}: there is no such bundle")
    if hashlib.sha256(content).hexdigest() != expected:
        raise SourceError(f"{address[:200]}: this bundle is not the one that was published: its digest differs")
    make_private_folder(folder)
    path = folder / f"{expected[:32]}.mcpb"
    replace_file(path, content)
    return path


def _open_downloader(settings: Settings) -> Downloader:
    """Open a downloader for addresses that the user configured, or that a registry names."""
    from toolscout.sources.addresses import Downloader, Reach

    reach = Reach.of(settings.registry, settings.private_hosts)
    return Downloader(reach, timeout=settings.http_timeout, total=FETCH_TIMEOUTS * settings.http_timeout)


def _download(downloader: Downloader, url: str, limit: int) -> bytes | None:
    """Return what is at an address; None: nothing is.

    Raises:
        SourceError: if it cannot be read, or is too long.
    """
    import httpx

    from toolscout.sources.addresses import UnsupportedEncoding

    try:
        download = downloader.get(url, limit)
    except (httpx.HTTPError, httpx.InvalidURL, UnsupportedEncoding, OSError) as error:
        raise SourceError(f"{url}: expected an answer, found: {str(error)[:200]}") from None
    if download.status == 404:
        return None
    if download.status != 200:
        raise SourceError(f"{url}: expected an answer, found HTTP status {download.status}")
    if download.is_cut:
        raise SourceError(f"{url}: expected at most {limit:,} bytes, found more")
    return download.content


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


# --- bundles ----------------------------------------------------------------------------------------------------------


def unpack(bundle: Path, folder: Path) -> Path:
    """Unpack a bundle below `folder`, once for each content, and return where.

    Raises:
        SourceError: if it is no bundle, or could do harm when it is unpacked: paths that lead out of it, links, sizes
            that nobody needs. Nothing of it is left then.
    """
    digest = _digest_file(bundle)
    target = folder / digest
    if target.is_dir():
        return target
    partial = folder / f".{digest}.{os.getpid()}.partial"
    make_private_folder(folder)
    shutil.rmtree(partial, ignore_errors=True)
    make_private_folder(partial)
    try:
        with zipfile.ZipFile(bundle) as archive:
            names = _check_names(archive)
            _check_sizes(archive, bundle.stat().st_size)
            _extract(archive, names, partial)
        partial.replace(target)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise SourceError(f"{bundle}: this bundle cannot be unpacked: {str(error)[:200]}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _digest_file(path: Path) -> str:
    hashed = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while piece := stream.read(UNPACK_PIECE_BYTES):
                hashed.update(piece)
    except OSError as error:
        raise SourceError(f"{path}: this bundle cannot be read: {error.strerror}") from None
    return hashed.hexdigest()[:32]


def _check_names(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the files of an archive by their paths.

    Raises:
        SourceError: for a path that leads out of the folder, a link, a device, a repeated path, an encrypted file.
    """
    entries: dict[str, zipfile.ZipInfo] = {}
    folded: set[str] = set()
    if len(archive.infolist()) > MAX_BUNDLE_FILES:
        raise SourceError(f"expected a bundle of at most {MAX_BUNDLE_FILES:,} files, found more")
    for info in archive.infolist():
        path = _check_file(info)
        if info.is_dir():
            continue
        name = info.orig_filename
        key = unicodedata.normalize("NFC", path.as_posix()).casefold()
        if key in folded or not path.parts:
            raise SourceError(f"the bundle holds a path twice, or one without a name: {name[:200]!r}")
        folded.add(key)
        entries[path.as_posix()] = info
    return entries


def _check_file(info: zipfile.ZipInfo) -> PurePosixPath:
    """Return the path of a file in an archive.

    Raises:
        SourceError: if it leads out of the folder, or the file is a link, a device or encrypted.
    """
    name = info.orig_filename  # zipfile cuts `filename` at a NUL, and turns backslashes around on Windows
    path = PurePosixPath(name)
    if set("\\\0") & set(name) or path.is_absolute() or ".." in path.parts or ":" in name.split("/")[0]:
        raise SourceError(f"the bundle holds a path that leads out of its folder: {name[:200]!r}")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise SourceError(f"the bundle holds a link or a device, which bundles do not need: {name[:200]!r}")
    if info.flag_bits & 0x1:
        raise SourceError(f"the bundle holds an encrypted file: {name[:200]!r}")
    return path


def _check_sizes(archive: zipfile.ZipFile, packed: int) -> None:
    total = sum(info.file_size for info in archive.infolist())
    if total > MAX_BUNDLE_BYTES or (total > MIN_RATIO_BYTES and total > MAX_BUNDLE_RATIO * max(1, packed)):
        raise SourceError(
            f"the bundle would unpack to {total:,} bytes; at most {MAX_BUNDLE_BYTES:,} are allowed, and "
            f"{MAX_BUNDLE_RATIO} times its own size"
        )


def _extract(archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], folder: Path) -> None:
    """Write the files. What a file really holds counts, not what its header says."""
    left = MAX_BUNDLE_BYTES
    for name, info in entries.items():
        path = folder / name
        make_private_folder(path.parent)
        mode = 0o700 if (info.external_attr >> 16) & USER_EXECUTES else 0o600
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(opened, "wb") as target, archive.open(info) as packed:
            while piece := packed.read(UNPACK_PIECE_BYTES):
                left -= len(piece)
                if left < 0:
                    raise SourceError(f"the bundle holds more than {MAX_BUNDLE_BYTES:,} bytes")
                target.write(piece)


def describe_bundle(folder: Path, prefix: str) -> tuple[str, str, dict[str, Any]]:
    """Return name, version and the entry of an mcpServers file that starts an unpacked bundle.

    Args:
        folder: where it was unpacked.
        prefix: of the environment variables from which values come that the user must give.

    Raises:
        SourceError: if its manifest is missing or does not say what to start.
    """
    manifest = _read_manifest(folder)
    config = _choose_config(_read_object(manifest.get("server")))
    fill = _ManifestFiller(folder, prefix, _read_object(manifest.get("user_config")))
    args, env = config.get("args") or [], config.get("env") or {}
    if not isinstance(args, list) or not isinstance(env, Mapping) or not isinstance(config.get("command"), str):
        raise SourceError(f"{MANIFEST_FILE}: expected a command, args and env in server.mcp_config, found others")
    entry: dict[str, Any] = {
        "command": fill.text(config["command"]),
        "args": [part for value in args for part in fill.argument(str(value))],
        "cwd": str(folder),
    }
    if env:
        entry["env"] = {str(key): fill.text(str(value)) for key, value in env.items()}
    return str(manifest.get("name") or "bundle"), str(manifest.get("version") or ""), entry


def _read_manifest(folder: Path) -> Mapping[str, Any]:
    path = folder / MANIFEST_FILE
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise SourceError(f"{MANIFEST_FILE}: expected at most {MAX_MANIFEST_BYTES:,} bytes, found more")
        manifest = parse_document(path.read_text(encoding="utf-8-sig"), MANIFEST_FILE)
    except (OSError, UnicodeDecodeError):
        raise SourceError(f"expected {MANIFEST_FILE} at the top of the bundle, found none") from None
    if not isinstance(manifest, Mapping):
        raise SourceError(f"{MANIFEST_FILE}: expected an object, found something else")
    return manifest


def _choose_config(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command of a manifest for this platform. Without one it follows from the kind of program."""
    given = server.get("mcp_config")
    config: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {}
    overrides = config.pop("platform_overrides", None)
    own = overrides.get(PLATFORMS.get(sys.platform, "")) if isinstance(overrides, Mapping) else None
    config |= own if isinstance(own, Mapping) else {}
    entry_point = server.get("entry_point")
    if "command" not in config and isinstance(entry_point, str):
        place = "${__dirname}/" + entry_point
        kind = server.get("type")
        program = {"node": "node", "python": "python3"}.get(str(kind))
        config |= {"command": program, "args": [place]} if program else {"command": place}
    return config


class _ManifestFiller:
    """Fills in the placeholders of a manifest. Others are refused, because they could name any variable."""

    def __init__(self, folder: Path, prefix: str, asked: Mapping[str, Any]) -> None:
        self._asked, self._prefix = asked, prefix
        home = Path.home()
        self._values = {
            "__dirname": str(folder), "HOME": str(home), "/": os.sep, "pathSeparator": os.sep,
            "DESKTOP": str(home / "Desktop"), "DOCUMENTS": str(home / "Documents"),
            "DOWNLOADS": str(home / "Downloads"),
        }  # fmt: skip

    def text(self, text: str) -> str:
        return _MANIFEST_VALUE.sub(self._fill, text)

    def argument(self, text: str) -> list[str]:
        """Fill in one argument. A value with several parts becomes several arguments."""
        match = _MANIFEST_VALUE.fullmatch(text)
        option = self._find_option(match[1]) if match else None
        if option is not None and isinstance(option.get("default"), list):
            return [str(value) for value in option["default"]]
        return [self.text(text)]

    def _find_option(self, name: str) -> Mapping[str, Any] | None:
        option = self._asked.get(name.removeprefix("user_config.")) if name.startswith("user_config.") else None
        return option if isinstance(option, Mapping) else None

    def _fill(self, match: re.Match[str]) -> str:
        """Return what stands for one `${name}` of the manifest.

        A value that the user must choose becomes an environment variable, with the manifest's default if it has one.
        """
        name = match[1]
        if name in self._values:
            return self._values[name]
        option = self._find_option(name)
        if option is None:
            raise SourceError(f"{MANIFEST_FILE}: it asks for {match[0][:80]!r}, which a bundle may not read")
        variable = self._prefix + re.sub(r"\W", "_", name.removeprefix("user_config.")).upper()
        default = option.get("default")
        if isinstance(default, (str, int, float)):
            text = str(default).lower() if isinstance(default, bool) else str(default)
            text = _MANIFEST_VALUE.sub(self._fill, text)
            if not set(text) & set("{}"):
                return f"${{{variable}:-{text}}}"
        return f"${{{variable}{'' if option.get('required') else ':-'}}}"
