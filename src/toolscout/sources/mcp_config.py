"""Reads MCP servers from configuration files, URLs and command lines, and hides their secrets."""

from __future__ import annotations

import dataclasses
import logging
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, quote, urlsplit

from toolscout.errors import SourceError
from toolscout.sources.parsing import load_document
from toolscout.sources.sandbox.servers import Sandbox
from toolscout.trust.redaction import looks_secret
from toolscout.trust.trusted_folders import MCP_CONFIGURATIONS

__all__ = [
    "Server",
    "discover",
    "load_entries",
    "parse_server",
    "redact",
    "resolve",
    "server_from_locator",
    "show_url",
]

_log = logging.getLogger("toolscout.sources.mcp_config")
PLAIN_HEADERS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
Transport = Literal["stdio", "http", "sse"]
_TRANSPORTS: Final[Mapping[str, Transport]] = {
    "stdio": "stdio", "http": "http", "streamablehttp": "http", "sse": "sse",
}  # fmt: skip


@dataclass(frozen=True)
class Server:
    """The entry of one MCP server, with its `${…}` not yet filled in. `resolve` makes it ready to start.

    Attributes:
        name: its key in the file, or the name that `server_from_locator` derives from a URL or a command.
        origin: the file, URL or command that names the server, without secrets.
        folder: the folder for `${workspaceFolder}` and a relative `cwd`.
        transport: stdio has `command`, `args`, `env`, `cwd`. http and sse have `url` and `headers`.
        timeout: seconds to start and to list the tools, or None for the setting `mcp_timeout`.
        secrets: the values that `redact` removes from messages. `resolve` fills it.
        credentials: the secrets that are also covered in everything the server sends. `resolve` fills it.
        sandbox: the rules under which the command of a stdio server runs. None: it runs with the rights of the user.
    """

    name: str
    origin: str
    folder: Path
    transport: Transport
    command: str = field(default="", repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str = field(default="", repr=False)
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float | None = None
    disabled: bool = False
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    credentials: frozenset[str] = field(default=frozenset(), repr=False)
    sandbox: Sandbox | None = None


# --- files ---


def load_entries(path: Path) -> dict[str, Any]:
    """Read the entries of a configuration file by name, in the order of the file. They are not checked.

    Raises:
        SourceError: if the file cannot be read, or has no key for servers.
    """
    entries = _find_entries(load_document(path))
    if entries is None:
        raise SourceError(f'{path}: expected servers under "mcpServers" or "servers", found no such key')
    return entries


def _find_entries(document: object) -> dict[str, Any] | None:
    """Return the entries of servers in a document. None if it has no key for them."""
    if not isinstance(document, Mapping):
        return None
    inner = document.get("mcp")
    for holder, key in ((document, "mcpServers"), (document, "servers"), (inner, "servers")):
        entries = holder.get(key) if isinstance(holder, Mapping) else None
        if isinstance(entries, Mapping):
            return {str(name): entry for name, entry in entries.items()}
    return None


def _read_transport(entry: Mapping[str, Any]) -> tuple[Any, str, str]:
    """Return transport, command and URL of an entry.

    Raises:
        SourceError: if it lacks the command or URL that its type needs.
    """
    url = next((entry[key] for key in ("url", "httpUrl", "serverUrl") if entry.get(key)), "")
    command = entry.get("command") or ""
    if isinstance(command, list):
        raise SourceError('expected text as "command", found a list: give the first word there, the rest as "args"')
    if not (isinstance(url, str) and isinstance(command, str) and (url or command)):
        raise SourceError('expected text as "command" or as "url", found neither: give one of them')
    kind = entry.get("type") or ("stdio" if command else "http")
    transport = _TRANSPORTS.get(re.sub("[-_]", "", str(kind)).lower())
    if transport is None or (not command if transport == "stdio" else not url):
        spelled = str(kind)[:40]
        raise SourceError(f'expected "type" stdio and a command, or http or sse and a url, found {spelled!r}')
    return transport, command, url


def parse_server(name: str, entry: object, path: Path) -> Server:
    """Check one entry of a configuration file, and build its server.

    Raises:
        SourceError: saying what was expected and found. The caller adds the name.
    """
    if not isinstance(entry, Mapping):
        raise SourceError('expected an object with a "command" or a "url", found something else')
    transport, command, url = _read_transport(entry)
    cwd = entry.get("cwd") or ""
    if not isinstance(cwd, str):
        raise SourceError('expected a folder as "cwd", found something else')
    args = entry.get("args") or []
    if not isinstance(args, list):
        raise SourceError('expected a list of texts as "args", found something else')
    words = [_read_text("args", value) for value in args]
    if transport == "stdio":
        _require_subject(command, words, 'add it to "args"')
    return Server(
        name=name,
        origin=str(path),
        folder=path.parent.parent if path.parent.name.startswith(".") else path.parent,
        transport=transport,
        command=command,
        args=tuple(words),
        env=_read_texts("env", entry.get("env")),
        cwd=cwd,
        url=url,
        headers=_read_texts("headers", entry.get("headers")),
        timeout=_read_seconds(entry.get("timeout")),
        disabled=entry.get("disabled") is True or entry.get("enabled") is False,
    )


def _read_text(field: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise SourceError(f'expected text in "{field}", found something else')


def _read_texts(field: str, value: object) -> dict[str, str]:
    if value is not None and not isinstance(value, Mapping):
        raise SourceError(f'expected an object as "{field}", found something else')
    return {str(key): _read_text(field, item) for key, item in (value or {}).items()}


def _read_seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise SourceError(f'expected a number of seconds above 0 as "timeout", found {str(value)[:40]!r}')
    return value / 1000 if value >= 1000 else float(value)  # several editors write milliseconds


def discover(
    *, home: Path | None = None, cwd: Path | None = None, trusted: Callable[[Path, str], bool] | None = None
) -> list[Path]:
    """Find MCP configuration files with at least one server in the usual places of editors and agents.

    A file that cannot be read is listed too, because reading it later says why. The files of a project may come with
    a repository, and reading them starts programs. They are left out with a warning until the user trusts the folder.

    Args:
        home: by default the home folder.
        cwd: the project. By default the working directory.
        trusted: maps a folder and the name of a file in it to whether the user trusts the file. None: trust all.
    """
    home, cwd = home or Path.home(), cwd or Path.cwd()
    places: list[Path] = []
    for application in (home / "Library/Application Support", home / ".config"):
        user = application / "Code/User"
        places += [
            application / "Claude/claude_desktop_config.json",
            user / "mcp.json",
            user / "settings.json",
            user / "globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        ]
    places += [home / ".claude.json", home / ".codeium/windsurf/mcp_config.json"]
    places += [home / ".cursor/mcp.json", home / ".gemini/settings.json"]
    usable = [path for path in dict.fromkeys(places) if path.is_file() and _names_servers(path)]
    for name in MCP_CONFIGURATIONS:
        path = cwd / name
        if path in usable or not path.is_file() or not _names_servers(path):
            continue
        if trusted is None or trusted(cwd, name):
            usable.append(path)
        else:
            _log.warning(
                "toolscout: %s was not read, because you do not trust its folder. To trust it, run  toolscout trust %s",
                path,
                shlex.quote(str(cwd)),
            )
    return usable


def _names_servers(path: Path) -> bool:
    try:
        return bool(_find_entries(load_document(path)))
    except SourceError:
        return True


# --- URLs and commands ---


def server_from_locator(locator: str) -> Server:
    """Build the server of a URL or a command line.

    Raises:
        SourceError: if the locator is neither.
    """
    try:
        if urlsplit(locator).scheme in ("http", "https"):
            name, origin = _name_url(locator), show_url(locator)
            return Server(name=name, origin=origin, folder=Path.cwd(), transport="http", url=locator)
        words = shlex.split(locator)
    except ValueError as error:
        raise SourceError(f"expected the URL or the command of an MCP server, found a broken one: {error}") from None
    if not words:
        raise SourceError("expected the command or the URL of an MCP server, found nothing")
    _require_subject(words[0], words[1:], f"toolscout add '{words[0]} …'")
    return Server(
        name=_name_command(words),
        origin=words[0],
        folder=Path.cwd(),
        transport="stdio",
        command=words[0],
        args=tuple(words[1:]),
    )


_PYTHON: Final = re.compile(r"(python|pypy)[\d.]*")
_SHELLS: Final = {"sh", "bash", "zsh", "fish", "dash"}
_LAUNCHERS: Final = {
    "npx", "bunx", "pnpx", "uvx", "npm", "pnpm", "bun", "yarn", "uv", "pipx", "node", "deno", "docker",
    "podman", "env",
}  # fmt: skip
_SUBCOMMANDS: Final = {"run", "exec", "dlx", "tool", "x"}
_OPTIONS_WITH_VALUE: Final = {
    "-p", "--package", "--from", "--with", "--python", "--directory", "--project",
    "-e", "--env", "-v", "--volume", "--mount", "--name", "--network",
}  # fmt: skip


_GENERIC_WORDS: Final = {"mcp", "server", "servers"}
_GENERIC_FOLDERS: Final = {"", ".", "/", "build", "dist", "out", "src", "bin", "lib"}
_GENERIC_FILES: Final = {"index", "main", "server", "app", "cli", "run", "__main__"}
_GENERIC_LABELS: Final = {"mcp", "api", "www", "server"}


def _require_subject(command: str, arguments: Iterable[str], mend: str) -> None:
    """Refuse a launcher or an interpreter without what it shall run: it would wait for input and never answer.

    Raises:
        SourceError: naming the mend.
    """
    program = Path(command).name
    is_bare = not any(not word.startswith("-") and word not in _SUBCOMMANDS for word in arguments)
    if is_bare and (program in _LAUNCHERS | _SHELLS or _PYTHON.fullmatch(program)):
        raise SourceError(f"no package or script is named after {program}: {mend}")


def _name_command(words: list[str]) -> str:
    """Name a command as people would: by what it serves, such as `git` for `uvx mcp-server-git`."""
    program = Path(words[0]).name
    rest = iter(words[1:])
    if _PYTHON.fullmatch(program):
        for word in rest:
            if word == "-m":
                return _drop_generic_words(next(rest, program))
            if not word.startswith("-"):
                return _name_file(word)
    if program in _LAUNCHERS:
        for word in rest:
            if word in _OPTIONS_WITH_VALUE:
                next(rest, None)
            elif not (word.startswith("-") or word in _SUBCOMMANDS or re.fullmatch(r"\w+=.*", word)):
                return _name_package(word, list(rest)) or program
    return _drop_generic_words(program)


def _name_package(word: str, rest: list[str]) -> str:
    """Name a package, an image or a script. `mcp-remote URL` is named like the URL."""
    if re.search(r"\.(py|[cm]?[jt]s)$", word):
        return _name_file(word)
    scope, _, last = word.rpartition("/")
    package = re.split(r"(?<=.)@|==|:", last)[0]
    if package == "mcp-remote":
        address = next((each for each in rest if each.startswith(("http://", "https://"))), None)
        return _name_url(address) if address else package
    owner = scope.rpartition("/")[2].lstrip("@")
    return owner if package in _GENERIC_WORDS and owner else _drop_generic_words(package)


def _name_file(path: str) -> str:
    """Name a script by its file, or by its folder if the file is called `index` or the like."""
    file = Path(path)
    folders = [file.parent, *file.parent.parents]
    folder = next((part.name for part in folders if part.name not in _GENERIC_FOLDERS), "")
    return _drop_generic_words(folder if file.stem in _GENERIC_FILES and folder else file.stem)


def _drop_generic_words(name: str) -> str:
    """Drop `mcp` and `server` from the beginning and the end of a name, unless nothing else is left."""
    words = re.split(r"[-_]", name)
    while len(words) > 1 and words[0].lower() in _GENERIC_WORDS:
        del words[0]
    while len(words) > 1 and words[-1].lower() in _GENERIC_WORDS:
        del words[-1]
    return "-".join(words)


def _name_url(url: str) -> str:
    """Name a URL by its host without its ending, and its path without versions and parts that look like keys."""
    parts = urlsplit(url)
    segments = [part for part in parts.path.split("/") if part and not _is_like_key(part)]
    if segments and segments[-1] in ("mcp", "sse"):
        segments.pop()
    host = parts.netloc.rpartition("@")[2]
    labels = host.split(".")
    if len(labels) > 1 and not re.fullmatch(r"[\d.:]+", host):
        kept = [label for label in labels[:-1] if label not in _GENERIC_LABELS]
        host = "-".join(kept) or host
    return "/".join([host, *(segment for segment in segments if not re.fullmatch(r"v\d+", segment))])


def _is_like_key(segment: str) -> bool:
    return len(segment) >= 20 and any(char.isdigit() for char in segment)


def show_url(url: str) -> str:
    """Return a URL without user, query and fragment, with `***` for parts of its path that look like keys."""
    parts = urlsplit(url)
    path = "/".join("***" if _is_like_key(part) else part for part in parts.path.split("/"))
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"


# --- expansion ---


def resolve(server: Server, environ: Mapping[str, str]) -> Server:
    """Fill in every `${…}` of a server, so that it can be started. Do not keep the result after the connection.

    `${NAME}`, `${env:NAME}` and `${NAME:-default}` come from `environ`. `${workspaceFolder}` and `${userHome}` are
    folders.

    Raises:
        SourceError: if a variable is not set, or the URL is invalid. The message contains no value.
    """
    secrets: set[str] = set()
    credentials: set[str] = set()

    def find_value(match: re.Match[str]) -> str:
        reference, has_default, default = match[1].partition(":-")
        if reference == "workspaceFolder":
            return str(server.folder)
        if reference == "userHome":
            return str(Path.home())
        if reference.startswith("input:"):
            raise SourceError(
                f"expected a value, found {match[0]}, which only an editor can ask for: "
                f"write ${{env:NAME}} instead and set NAME in the environment"
            )
        variable = reference.removeprefix("env:")
        content = environ.get(variable)
        if not content and has_default:
            content = default
        if content is None:
            raise SourceError(f"expected the environment variable {variable}, found it unset: set it")
        secrets.add(content)
        if looks_secret(variable, content):
            credentials.add(content)
        return content

    def fill(text: str) -> str:
        return re.sub(r"\$\{([^{}]+)\}", find_value, text)

    env = {key: fill(item) for key, item in server.env.items()}
    headers = {key: fill(item) for key, item in server.headers.items()}
    url = fill(server.url)
    secrets.update(env.values(), headers.values(), (item.rpartition(" ")[2] for item in headers.values()))
    for key, item in (*env.items(), *headers.items()):
        if looks_secret(key, item) and key.lower() not in PLAIN_HEADERS:
            credentials |= {item, item.rpartition(" ")[2]}
    if server.transport != "stdio":
        in_url = _check_url(url)
        secrets.update(in_url)
        credentials |= in_url
    return dataclasses.replace(
        server,
        command=str(Path(fill(server.command)).expanduser()),
        args=tuple(fill(item) for item in server.args),
        env=env,
        cwd=str(server.folder / Path(fill(server.cwd)).expanduser()) if server.cwd else "",
        url=url,
        headers=headers,
        secrets=frozenset(secrets | {quote(secret, safe="") for secret in secrets}),
        credentials=frozenset(credentials),
    )


def _check_url(url: str) -> set[str]:
    """Check the URL of a server, and return the secrets in it."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1:
            raise ValueError
    except ValueError:
        raise SourceError('expected an http:// or https:// address as "url", found something else') from None
    keys = {part for part in parts.path.split("/") if _is_like_key(part)}
    return keys | {parts.username or "", parts.password or ""} | {item for _, item in parse_qsl(parts.query)}


def redact(text: str, secrets: frozenset[str]) -> str:
    """Replace every secret of at least four characters in a text with `***`."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    return text
