"""Turns what somebody else published (bundles, entries of a registry) into an mcpServers file in the home.

Then it is read like other files of that kind. Nothing is installed or started here; versions are exact. A server that
runs as a program is started only if the user trusts the folder of its file (`toolscout trust`), as with the MCP
configurations of a project.

Values that the user must give become environment variables in the file: `${PREFIX_NAME}`, with a prefix for each
source. So a published entry cannot name, and thus read, any other variable.
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
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote

import msgspec

from toolscout.errors import SourceError
from toolscout.settings import Settings
from toolscout.sources.mcp_transport import is_private, origin_of
from toolscout.sources.parsing import MAX_DOCUMENT_BYTES, parse_document
from toolscout.sources.reading import Schema, as_list, as_object, source_name
from toolscout.trust.private_files import make_private_folder, replace_file
from toolscout.trust.redaction import CREDENTIAL_PREFIX
from toolscout.trust.trusted_folders import is_configuration_trusted

__all__ = ["PublishedServer", "describe_bundle", "is_published", "prepare", "unpack"]

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
_REGISTRY_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z0-9_.-]+)\}")

BUNDLE_SUFFIXES: Final = (".mcpb", ".dxt")
MANIFEST_FILE: Final = "manifest.json"
MAX_BUNDLE_FILES: Final = 50_000
MAX_BUNDLE_BYTES: Final = 1_000_000_000  # unpacked
MAX_BUNDLE_RATIO: Final = 200  # unpacked to packed, above `MIN_RATIO_BYTES`
MIN_RATIO_BYTES: Final = 10_000_000
MAX_MANIFEST_BYTES: Final = 5_000_000
UNPACK_PIECE_BYTES: Final = 1_000_000
UNIX_MODE_SHIFT: Final = 16  # of the Unix mode in the `external_attr` of a zip file's entry
ENCRYPTED_FLAG: Final = 0x1  # in the `flag_bits` of a zip file's entry
PLATFORMS: Final = ("linux", "darwin", "win32")
_MANIFEST_PLACEHOLDER: Final = re.compile(r"\$\{([^{}]*)\}")


def is_published(locator: str) -> bool:
    """Return whether a locator names a bundle or an entry of a registry."""
    if locator.startswith(REGISTRY_PREFIX):
        return True
    return locator.lower().endswith(BUNDLE_SUFFIXES) and not locator.startswith(("http://", "https://"))


def prepare(locator: str, name: str | None, settings: Settings) -> Path:
    """Write the mcpServers file of a bundle or a registry's entry, and return its path.

    Raises:
        SourceError: if it cannot be read, or would start a program that the user does not trust yet.
    """
    bundles = settings.home / BUNDLES_FOLDER
    if locator.startswith(REGISTRY_PREFIX):
        title, version, kind = split_locator(locator)
        source = name or source_name(title.rpartition("/")[2])
        published = fetch_server(title, version, settings)
        entry = published.build_entry(_make_prefix(source), kind)
        _check_remote(str(entry.get("url") or ""), settings)
        if "registryType" in entry:  # the package of a bundle, which `build_entry` cannot download
            folder = unpack(fetch_bundle(entry, bundles, settings), bundles)
            _, _, entry = describe_bundle(folder, _make_prefix(source))
        label = f"{published.name} {published.version}"
    else:
        folder = unpack(Path(locator).expanduser(), bundles)
        title, version, _ = describe_bundle(folder, "")  # the entry needs a prefix, which depends on the title
        source = name or source_name(title)
        _, _, entry = describe_bundle(folder, _make_prefix(source))
        label = f"{title} {version}".strip()
    return _write_entry(settings, source, label, entry)


def _check_remote(url: str, settings: Settings) -> None:
    """Refuse a remote server in a private network, or without https, if the registry itself is a public one."""
    is_public_registry = settings.registry.startswith("https://")
    if url and is_public_registry and (not url.startswith("https://") or is_private(origin_of(url))):
        raise SourceError(f"{url[:200]}: a public registry may only lead to public https addresses")


def _make_prefix(source: str) -> str:
    """Return the common prefix of the environment variables with the values of a source."""
    return f"{CREDENTIAL_PREFIX}{re.sub(r'[^A-Za-z0-9]', '_', source).upper()}_"


def _write_entry(settings: Settings, source: str, label: str, entry: Schema) -> Path:
    """Write the entry of a published server as a configuration file of the home. Returns its path.

    Raises SourceError, which shows the command, if the entry runs a program that the user has not trusted.
    """
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


class PublishedServer:
    """One version of a server as a registry publishes it.

    Attributes:
        name: its name in the registry.
        version: the version, also where the latest one was asked for.
        document: the `server.json`.
    """

    def __init__(self, document: object) -> None:
        """Check a `server.json`. Raises SourceError if it has no name or no exact version."""
        self.document = as_object(document)
        if not isinstance(self.document.get("name"), str):
            raise SourceError("expected a server.json with a name, found something else")
        self.name, self.version = str(self.document["name"]), str(self.document.get("version") or "")
        if not _EXACT_VERSION.fullmatch(self.version) or self.version == "latest":
            raise SourceError(f"{self.name}: expected an exact version in its server.json, found {self.version[:60]!r}")

    def build_entry(self, prefix: str, wanted_kind: str = "") -> Schema:
        """Build the entry of an mcpServers file: of a remote server, or of a package that runs on this machine.

        A package of the kind mcpb is returned as it is, because it must be downloaded first.

        Args:
            prefix: of the environment variables for the values that the user must give.
            wanted_kind: `remote`, npm, pypi, oci or mcpb. Empty: `remote` if there is one, or the first package.

        Raises:
            SourceError: if there is nothing of that kind, or its version is not exact.
        """
        remotes = _list_objects(self.document.get("remotes"))
        packages = self._find_packages()
        kinds = ["remote"] if remotes else []
        kinds += [kind for kind in packages if kind in LAUNCHERS or kind == "mcpb"]
        kind = wanted_kind or next(iter(kinds), "")
        if kind not in kinds:
            offered = ", ".join((["remote"] if remotes else []) + list(packages)) or "nothing"
            raise SourceError(f"{self.name}: expected something that toolscout can start, found {offered}")
        if kind == "remote":
            return _build_remote(remotes[0], prefix)
        return dict(packages[kind]) if kind == "mcpb" else _build_package(kind, packages[kind], prefix)

    def _find_packages(self) -> dict[str, Mapping[str, object]]:
        """Return the first package of each kind that is a server of stdio."""
        packages: dict[str, Mapping[str, object]] = {}
        for package in _list_objects(self.document.get("packages")):
            if as_object(package.get("transport")).get("type", "stdio") == "stdio":
                packages.setdefault(str(package.get("registryType")), package)
        return packages


def split_locator(locator: str) -> tuple[str, str, str]:
    """Split `registry:NAME@VERSION#KIND` into name, version and kind. Version and kind may be missing.

    Raises:
        SourceError: if the name or the version is not written as registries write them.
    """
    text, _, kind = locator.removeprefix(REGISTRY_PREFIX).partition("#")
    name, _, version = text.partition("@")
    if not _REGISTRY_NAME.fullmatch(name) or (version and not _EXACT_VERSION.fullmatch(version)):
        raise SourceError(
            f"{locator[:200]}: expected registry:NAMESPACE/NAME or registry:NAMESPACE/NAME@VERSION, such as "
            "registry:io.github.example/weather@1.2.0"
        )
    return name, version, kind


def fetch_server(name: str, version: str, settings: Settings) -> PublishedServer:
    """Fetch one version of a server from the registry of the settings. Without a version, the latest."""
    base = settings.registry.rstrip("/")
    path = f"servers/{quote(name, safe='')}/versions/{quote(version or 'latest', safe='')}"
    contents = (_download(f"{base}/{api}/{path}", MAX_DOCUMENT_BYTES, settings) for api in API_VERSIONS)
    content = next((content for content in contents if content is not None), None)
    if content is None:
        server = f"{name} in version {version}" if version else name
        raise SourceError(f"{base} has no server {server}. Check its name and version there.")
    document = as_object(parse_document(content.decode("utf-8", "replace"), name))
    published = PublishedServer(document.get("server", document))
    is_wanted_version = not version or published.version == version
    if published.name != name or not is_wanted_version:
        raise SourceError(f"{base} answered with {published.name} {published.version} instead of {name} {version}")
    return published


def fetch_bundle(package: Mapping[str, object], folder: Path, settings: Settings) -> Path:
    """Download the bundle that a `server.json` names. Raises SourceError if its digest differs from the one there."""
    address, expected = str(package.get("identifier") or ""), str(package.get("fileSha256") or "").lower()
    if not re.fullmatch(r"[0-9a-f]{64}", expected):
        raise SourceError(f"{address[:200]}: expected fileSha256 beside a bundle, found none: it cannot be checked")
    content = _download(address, MAX_BUNDLE_DOWNLOAD_BYTES, settings)
    if content is None:
        raise SourceError(f"{address[:200]}: there is no such bundle")
    if hashlib.sha256(content).hexdigest() != expected:
        raise SourceError(f"{address[:200]}: this bundle is not the one that was published: its digest differs")
    make_private_folder(folder)
    path = folder / f"{expected[:32]}.mcpb"
    replace_file(path, content)
    return path


def _download(url: str, limit: int, settings: Settings) -> bytes | None:
    """Return what is at an address that the user configured or a registry names. None if its status is 404."""
    import httpx

    from toolscout.sources.addresses import Downloader, Reach, UnsupportedEncoding

    reach, seconds = Reach.of(settings.registry, settings.private_hosts), settings.http_timeout
    try:
        with Downloader(reach, timeout=seconds, total=FETCH_TIMEOUTS * seconds) as downloader:
            download = downloader.get(url, limit)
    except (httpx.HTTPError, httpx.InvalidURL, UnsupportedEncoding, OSError) as error:
        raise SourceError(f"{url}: expected an answer, found: {str(error)[:200]}") from None
    if download.status not in (200, 404):
        raise SourceError(f"{url}: expected an answer, found HTTP status {download.status}")
    if download.is_cut:
        raise SourceError(f"{url}: expected at most {limit:,} bytes, found more")
    return download.content if download.status == 200 else None


def _build_remote(remote: Mapping[str, object], prefix: str) -> Schema:
    """Build the entry of a server that is reached by HTTP, with variables for what the user must fill in."""
    kind, url = REMOTE_TYPES.get(str(remote.get("type"))), remote.get("url")
    if kind is None or not isinstance(url, str):
        raise SourceError("expected a remote of the type streamable-http or sse with a url, found something else")
    headers = _fill_named(remote.get("headers"), prefix)
    entry: Schema = {"type": kind, "url": _fill(url, remote.get("variables"), prefix)}
    return {**entry, "headers": headers} if headers else entry


def _build_package(kind: str, package: Mapping[str, object], prefix: str) -> Schema:
    """Build the entry of a package: the command that runs exactly the version that was published."""
    pinned, env = _pin_package(kind, package), _fill_named(package.get("environmentVariables"), prefix)
    program, *words = LAUNCHERS[kind]
    if kind == "oci":
        words += ["-i", "--rm", *(word for name in env for word in ("-e", name))]
    words += [*_list_arguments(package.get("runtimeArguments"), prefix), pinned]
    words += _list_arguments(package.get("packageArguments"), prefix)
    entry: Schema = {"command": program, "args": words}
    return {**entry, "env": env} if env else entry


def _pin_package(kind: str, package: Mapping[str, object]) -> str:
    """Return the package with its version, as its launcher writes it: `name@1.2.3`, `name==1.2.3`, `image:1.2.3`.

    Raises SourceError if the version is not an exact one, or the launcher could read the name as an option.
    """
    identifier, version = str(package.get("identifier") or ""), str(package.get("version") or "")
    if kind == "oci":
        image, _, tag = identifier.rpartition("/")[2].partition(":")
        is_pinned = tag or "@sha256:" in identifier
        pinned = identifier if is_pinned else f"{identifier}:{version}"
        is_exact = bool(image) and not pinned.endswith((":latest", ":"))
    else:
        separator = "@" if kind == "npm" else "=="
        pinned = identifier + separator + version
        is_exact = bool(_EXACT_VERSION.fullmatch(version)) and version != "latest"
    if not is_exact or identifier.startswith("-") or re.search(r"\s", identifier):
        raise SourceError(f"{identifier[:100]!r}: expected a package with an exact version, found {version[:60]!r}")
    return pinned


def _list_arguments(arguments: object, prefix: str) -> list[str]:
    """Return the words of the command line that a server needs, with variables for the values that it asks for.

    A named argument becomes its name and its value; a switch, which has no value, its name; a positional one its value.
    """
    words: list[str] = []
    for argument in filter(_is_needed, _list_objects(arguments)):
        is_named = argument.get("type") == "named"
        has_value = any(argument.get(key) is not None for key in ("value", "default", "valueHint"))
        if is_named and argument.get("name"):
            words.append(str(argument["name"]))
        if has_value or not is_named:
            words.append(_fill_input(argument, prefix))
    return words


def _fill_named(inputs: object, prefix: str) -> dict[str, str]:
    """Fill in headers or environment variables, by name. An optional one without a value is left out."""
    needed = (entry for entry in _list_objects(inputs) if entry.get("name") and _is_needed(entry))
    return {str(entry["name"]): _fill_input(entry, prefix) for entry in needed}


def _is_needed(entry: Mapping[str, object]) -> bool:
    """Return whether an argument, a header or a variable must be given, or has a value."""
    return bool(entry.get("isRequired")) or any(entry.get(key) is not None for key in ("value", "default"))


def _fill_input(entry: Mapping[str, object], prefix: str) -> str:
    """Return the value of an argument, a header or a variable: its text, or an environment variable of the user."""
    value = entry.get("value")
    if isinstance(value, str):
        return _fill(value, entry.get("variables"), prefix)
    name = entry.get("name") or entry.get("valueHint") or "VALUE"
    return _write_variable(prefix, str(name), entry.get("default"))


def _fill(text: str, variables: object, prefix: str) -> str:
    """Replace `{name}` in a text by an environment variable, with the default that `variables` gives for it.

    Raises:
        SourceError: if the text names environment variables itself: a registry could then read any of them.
    """
    if "${" in text:
        raise SourceError(f"it asks for {text[:80]!r}, but a registry may not name environment variables")

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        variable = as_object(as_object(variables).get(name))
        return _write_variable(prefix, name, variable.get("default"))

    return _REGISTRY_PLACEHOLDER.sub(replace, text)


def _write_variable(prefix: str, name: str, default: object) -> str:
    """Return `${VARIABLE:-default}`. A default that could name a variable itself, or is no text, is left out."""
    variable = prefix + re.sub(r"\W", "_", name).upper().strip("_")
    if isinstance(default, str) and not re.search(r"[${}]", default):
        return "${" + variable + ":-" + default + "}"
    return "${" + variable + "}"


def _list_objects(value: object) -> list[Mapping[str, object]]:
    return [item for item in as_list(value) if isinstance(item, Mapping)]


# --- bundles ----------------------------------------------------------------------------------------------------------


def unpack(bundle: Path, folder: Path) -> Path:
    """Unpack a bundle into a subfolder of `folder` named by the bundle's digest, unless it exists. Returns its path.

    Raises:
        SourceError: if it is no bundle, or could do harm when it is unpacked: paths that lead out of it, links, sizes
            that nobody needs. No unpacked file is left then.
    """
    digest = _hash_bundle(bundle)[:32]
    target, partial = folder / digest, folder / f".{digest}.{os.getpid()}.partial"
    if target.is_dir():
        return target
    make_private_folder(folder)
    shutil.rmtree(partial, ignore_errors=True)
    make_private_folder(partial)
    try:
        with zipfile.ZipFile(bundle) as archive:
            files = _check_files(archive)
            _check_sizes(archive, bundle.stat().st_size)
            _extract(archive, files, partial)
        partial.replace(target)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise SourceError(
            f"{bundle}: this bundle cannot be unpacked: {str(error)[:200]}. Pack or download it again."
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _hash_bundle(bundle: Path) -> str:
    hashed = hashlib.sha256()
    try:
        with bundle.open("rb") as stream:
            while piece := stream.read(UNPACK_PIECE_BYTES):
                hashed.update(piece)
    except OSError as error:
        raise SourceError(f"{bundle}: this bundle cannot be read: {error.strerror}") from None
    return hashed.hexdigest()


def _check_files(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the files of an archive by their paths. Raises SourceError for files that could do harm."""
    files: dict[str, zipfile.ZipInfo] = {}
    folded_paths: set[str] = set()  # as a file system that ignores case and Unicode forms compares them
    if len(archive.infolist()) > MAX_BUNDLE_FILES:
        raise SourceError(f"expected a bundle of at most {MAX_BUNDLE_FILES:,} files, found more")
    for info in archive.infolist():
        name = info.orig_filename  # zipfile cuts `filename` at a NUL, and turns backslashes around on Windows
        path = PurePosixPath(name)
        folded = unicodedata.normalize("NFC", path.as_posix()).casefold()
        has_drive = ":" in name.partition("/")[0]
        if "\\" in name or "\0" in name or path.is_absolute() or ".." in path.parts or has_drive:
            raise SourceError(f"the bundle holds a path that leads out of its folder: {name[:200]!r}")
        file_type = stat.S_IFMT(info.external_attr >> UNIX_MODE_SHIFT)  # 0: the archive gives none
        if file_type not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise SourceError(f"the bundle holds a link or a device, which bundles do not need: {name[:200]!r}")
        if info.flag_bits & ENCRYPTED_FLAG:
            raise SourceError(f"the bundle holds an encrypted file: {name[:200]!r}")
        if not info.is_dir():
            if folded in folded_paths or not path.parts:
                raise SourceError(f"the bundle holds a path twice, or one without a name: {name[:200]!r}")
            folded_paths.add(folded)
            files[path.as_posix()] = info
    return files


def _check_sizes(archive: zipfile.ZipFile, packed_bytes: int) -> None:
    """Refuse a bundle that would unpack to more than 1 GB, or to more than 200 times its own size."""
    total = sum(info.file_size for info in archive.infolist())
    max_bytes = max(MIN_RATIO_BYTES, MAX_BUNDLE_RATIO * max(1, packed_bytes))
    if total > min(MAX_BUNDLE_BYTES, max_bytes):
        raise SourceError(
            f"the bundle would unpack to {total:,} bytes; at most {MAX_BUNDLE_BYTES:,} are allowed, and "
            f"{MAX_BUNDLE_RATIO} times its own size"
        )


def _extract(archive: zipfile.ZipFile, files: Mapping[str, zipfile.ZipInfo], folder: Path) -> None:
    """Write the files of an archive, at most 1 GB.

    `_check_sizes` bounds the sizes in the headers. The bytes are counted again, because `zipfile` does not promise to
    read no more of a file than its header says.
    """
    bytes_left = MAX_BUNDLE_BYTES
    for name, info in files.items():
        path = folder / name
        make_private_folder(path.parent)
        mode = 0o700 if (info.external_attr >> UNIX_MODE_SHIFT) & stat.S_IXUSR else 0o600
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as target, archive.open(info) as packed:
            while piece := packed.read(UNPACK_PIECE_BYTES):
                bytes_left -= len(piece)
                if bytes_left < 0:
                    raise SourceError(f"the bundle holds more than {MAX_BUNDLE_BYTES:,} bytes")
                target.write(piece)


def describe_bundle(folder: Path, prefix: str) -> tuple[str, str, Schema]:
    """Return name, version and the entry of an mcpServers file that starts the bundle unpacked in `folder`.

    `prefix` is common to the environment variables for values that the user must give.

    Raises:
        SourceError: if its manifest is missing or does not say what to start.
    """
    manifest = _read_manifest(folder)
    config = _choose_config(as_object(manifest.get("server")))
    filler = _ManifestFiller(folder, prefix, as_object(manifest.get("user_config")))
    command, args, env = config.get("command"), config.get("args") or [], config.get("env") or {}
    if not isinstance(args, list) or not isinstance(env, Mapping) or not isinstance(command, str):
        raise SourceError(f"{MANIFEST_FILE}: expected a command, args and env in server.mcp_config, found others")
    words = [word for value in args for word in filler.fill_argument(str(value))]
    entry: Schema = {"command": filler.fill(command), "args": words, "cwd": str(folder)}
    if env:
        entry["env"] = {str(key): filler.fill(str(value)) for key, value in env.items()}
    return str(manifest.get("name") or "bundle"), str(manifest.get("version") or ""), entry


def _read_manifest(folder: Path) -> Mapping[str, object]:
    """Read the manifest of an unpacked bundle."""
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


def _choose_config(server: Mapping[str, object]) -> Schema:
    """Return the command, args and env of a manifest's server for this platform.

    Without a command, the server's `entry_point` is run by the program for its type: node, python, or itself.
    """
    config = dict(as_object(server.get("mcp_config")))
    overrides = as_object(config.pop("platform_overrides", None))
    if sys.platform in PLATFORMS:
        config |= as_object(overrides.get(sys.platform))
    entry_point = server.get("entry_point")
    if "command" not in config and isinstance(entry_point, str):
        path = "${__dirname}/" + entry_point
        program = {"node": "node", "python": "python3"}.get(str(server.get("type")))
        if program is None:
            config["command"] = path
        else:
            config |= {"command": program, "args": [path]}
    return config


class _ManifestFiller:
    """Fills in the placeholders `${name}` of a manifest. Unknown names are refused: they could be any variable."""

    def __init__(self, folder: Path, prefix: str, options: Mapping[str, object]) -> None:
        """`prefix`: of the environment variables for the values of `options`, the `user_config` of the manifest."""
        self._options, self._prefix = options, prefix
        home = Path.home()
        self._values = {
            "__dirname": str(folder), "HOME": str(home), "/": os.sep, "pathSeparator": os.sep,
            "DESKTOP": str(home / "Desktop"), "DOCUMENTS": str(home / "Documents"),
            "DOWNLOADS": str(home / "Downloads"),
        }  # fmt: skip

    def fill(self, text: str) -> str:
        """Replace all placeholders in a text."""
        return _MANIFEST_PLACEHOLDER.sub(self._replace, text)

    def fill_argument(self, text: str) -> list[str]:
        """Fill in one argument. An option with a list as its default becomes an argument for each item."""
        match = _MANIFEST_PLACEHOLDER.fullmatch(text)
        option = self._find_option(match[1]) if match else None
        default = as_object(option).get("default")
        return [str(value) for value in default] if isinstance(default, list) else [self.fill(text)]

    def _find_option(self, placeholder: str) -> Mapping[str, object] | None:
        """Return the option that a placeholder `user_config.NAME` names. None if it names none."""
        if not placeholder.startswith("user_config."):
            return None
        option = self._options.get(placeholder.removeprefix("user_config."))
        return option if isinstance(option, Mapping) else None

    def _replace(self, match: re.Match[str]) -> str:
        """Return the text for one placeholder.

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
        if isinstance(default, bool):
            default = str(default).lower()  # as JSON writes it
        if isinstance(default, (str, int, float)):
            text = self.fill(str(default))
            if not re.search("[{}]", text):  # a brace would end the placeholder early
                return "${" + variable + ":-" + text + "}"
        return "${" + variable + "}" if option.get("required") else "${" + variable + ":-}"
