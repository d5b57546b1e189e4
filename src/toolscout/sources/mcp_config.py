"""Reads MCP servers from configuration files, URLs and command lines, and hides their secrets."""

from __future__ import annotations

import dataclasses
import fnmatch
import logging
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import parse_qsl, quote, urlsplit

from toolscout.errors import SourceError, find_nearest
from toolscout.location import Home
from toolscout.sources.clients import (
    Entry,
    choose_client,
    find_files,
    find_projects,
    read_configuration,
    spell_entry,
)
from toolscout.sources.own_gateway import find_own_gateways
from toolscout.sources.sandbox.servers import Sandbox
from toolscout.trust.redaction import looks_secret
from toolscout.trust.trusted_folders import list_configurations

__all__ = [
    "Server",
    "discover",
    "load_entries",
    "name_projects",
    "parse_server",
    "redact",
    "resolve",
    "server_from_locator",
    "show_url",
    "split_project",
]

_log = logging.getLogger("toolscout.sources.mcp_config")
SIGN_IN_SECRETS: Final = ("clientSecret", "assertion")  # fields of `signIn`
#: How an entry may sign in → the fields of `signIn` that it needs, beside `grant`.
SIGN_IN_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "client_credentials": ("issuer", "clientId", "clientSecret"),
    "id_jag": ("issuer", "clientId", "clientSecret", "assertion"),
}
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
        env_file: a file of variables, which `env` overrides.
        inputs: `input:ID` → the value for `${input:ID}`.
        allowed: patterns of the names of its tools that may be used. None: all.
        forbidden: patterns of the names of its tools that may not be used, even if they are allowed.
        protocol: the revision of the protocol that the entry names. Empty: negotiated.
        sign_in: how the entry itself gets tokens: `grant`, `scope`, and the fields of `SIGN_IN_FIELDS`. Empty: it does
            not.
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
    env_file: str = field(default="", repr=False)
    inputs: Mapping[str, str] = field(default_factory=dict, repr=False)
    allowed: tuple[str, ...] | None = None
    forbidden: tuple[str, ...] = ()
    protocol: str = ""
    sign_in: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    credentials: frozenset[str] = field(default=frozenset(), repr=False)
    sandbox: Sandbox | None = None

    def permits(self, tool: object) -> bool:
        """Return whether the user's configuration lets a tool of this name be used. Patterns may contain `*`."""
        name = str(tool)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.forbidden):
            return False
        return self.allowed is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.allowed)


# --- files ---


def split_project(locator: str) -> tuple[Path, str | None]:
    """Split `FILE.json#PROJECT` into the file and the project, which is None if the locator names none.

    Claude Code keeps the servers of all projects in one file.
    """
    stem, separator, project = os.path.expanduser(locator).partition(".json#")
    return (Path(f"{stem}.json"), project) if separator else (Path(stem), None)


def name_projects(locator: str, folder: Path) -> list[str]:
    """Return the locators of all servers that a configuration file has for a folder.

    In the file of Claude Code, the folder or one around it may be a project with servers: they are at `FILE#PROJECT`.
    """
    path = Path(locator)
    if path.name != ".claude.json" or not os.path.isfile(path):
        return [locator]
    projects = find_projects(path)
    project = next((str(parent) for parent in (folder, *folder.parents) if str(parent) in projects), None)
    if project is None:
        return [locator]
    project_locator = f"{locator}#{project}"
    has_shared_servers = bool(read_configuration(path))
    return [locator, project_locator] if has_shared_servers else [project_locator]


def load_entries(path: Path) -> dict[str, Entry]:
    """Read the unchecked entries of a file or `FILE#PROJECT` by name, in the order of the file.

    Raises:
        SourceError: if the file cannot be read, has no key for servers, or has servers for projects alone.
    """
    file, project = split_project(str(path))
    entries = read_configuration(file, project)
    if entries:
        return entries
    projects = find_projects(file) if project is None else []
    if projects:
        raise SourceError(f"{file}: its servers belong to projects. Run toolscout in one of {', '.join(projects[:5])}")
    if entries is None:
        raise SourceError(f'{path}: expected servers under "mcpServers" or "servers", found no such key')
    return {}


def _read_transport(entry: Mapping[str, object]) -> tuple[Transport, str, str]:
    """Return transport, command and URL. Raises SourceError if the command or URL that the type needs is missing."""
    url, command = entry.get("url") or "", entry.get("command") or ""
    if not (isinstance(url, str) and isinstance(command, str) and (url or command)):
        raise SourceError('expected text as "command" or as "url", found neither: give one of them')
    kind = entry.get("type") or ("stdio" if command else "http")
    transport = _TRANSPORTS.get(re.sub("[-_]", "", str(kind)).lower())
    target = command if transport == "stdio" else url
    if transport is None or not target:
        spelled = str(kind)[:40]
        raise SourceError(f'expected "type" stdio and a command, or http or sse and a url, found {spelled!r}')
    return transport, command, url


def parse_server(name: str, fields: object, path: Path) -> Server:
    """Check one entry of a configuration file, and build its server.

    Args:
        name: the key of the entry.
        fields: an `Entry`, or the value of the entry in the spelling of the client that `path` belongs to.
        path: the file.

    Raises:
        SourceError: saying what was expected and found. The caller adds the name.
    """
    path = split_project(str(path))[0]
    listed = fields if isinstance(fields, Entry) else Entry(fields, choose_client(path))
    entry, unused = spell_entry(listed)
    _check_unused(unused, entry, path, name)
    transport, command, url = _read_transport(entry)
    cwd, env_file, protocol = (entry.get(key) or "" for key in ("cwd", "envFile", "protocol"))
    if not (isinstance(cwd, str) and isinstance(env_file, str) and isinstance(protocol, str)):
        raise SourceError('expected text as "cwd", "envFile" and "protocol", found something else')
    words = _read_words("args", entry.get("args"))
    if transport == "stdio":
        _require_target(command, words, 'add it to "args"')
    timeout = entry.get("timeout")
    headers, sign_in = _read_texts("headers", entry.get("headers")), _read_texts("signIn", entry.get("signIn"))
    _check_sign_in(sign_in, transport, headers)
    return Server(
        name=name,
        origin=str(path),
        folder=_find_folder(path),
        transport=transport,
        command=command,
        args=tuple(words),
        env=_read_texts("env", entry.get("env")),
        env_file=env_file,
        cwd=cwd,
        url=url,
        headers=headers,
        sign_in=sign_in,
        timeout=timeout if isinstance(timeout, float) else None,
        protocol=protocol,
        disabled=entry.get("disabled") is True or entry.get("enabled") is False,
        inputs=listed.inputs,
        allowed=_read_patterns(entry["allowed"]),
        forbidden=_read_patterns(entry["forbidden"]) or (),
    )


def _check_unused(unused: Sequence[str], entry: Mapping[str, object], path: Path, name: str) -> None:
    """Warn of fields of a server's entry that are not used.

    Raises:
        SourceError: if one of them is a misspelt command or URL, and the entry has neither.
    """
    targets = ("command", "url")
    for key in unused:
        nearest = find_nearest(key, targets)
        if nearest is not None and not any(entry.get(target) for target in targets):
            raise SourceError(f'expected "command" or "url", found {key!r}. Did you mean {nearest!r}?')
    if unused:
        fields = ", ".join(sorted(unused))
        _log.warning("toolscout: %s: the entry of the server %s has fields that have no effect: %s", path, name, fields)


def _check_sign_in(sign_in: Mapping[str, str], transport: Transport, headers: Mapping[str, str]) -> None:
    """Raise SourceError if `signIn` of an entry cannot be used."""
    if not sign_in:
        return
    if transport == "stdio" or any(header.lower() == "authorization" for header in headers):
        raise SourceError('expected "signIn" only with a url and without an Authorization header')
    needed = SIGN_IN_FIELDS.get(sign_in.get("grant", ""))
    if needed is None:
        raise SourceError(f'expected "grant" of "signIn" to be one of {", ".join(SIGN_IN_FIELDS)}')
    missing = [key for key in needed if not sign_in.get(key)]
    unknown = sorted(sign_in.keys() - {"grant", "scope", *needed})
    if missing or unknown:
        found = f"no {missing[0]}" if missing else f"{unknown[0]!r:.40}"
        raise SourceError(f'expected {", ".join(needed)} and perhaps scope in "signIn", found {found}')


def _read_patterns(patterns: object) -> tuple[str, ...] | None:
    """Return patterns of tools' names as texts. None if the entry has none."""
    return tuple(str(pattern) for pattern in patterns) if isinstance(patterns, list) else None


def _find_folder(path: Path) -> Path:
    """Return the folder of the project that a configuration file belongs to: the one around `.vscode` and the like."""
    folder = path.parent
    while folder.name.startswith(".") or (folder.name == "settings" and folder.parent.name.startswith(".")):
        folder = folder.parent
    return folder


def _read_text(field: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise SourceError(f'expected text in "{field}", found something else')


def _read_words(field: str, value: object) -> list[str]:
    items = value or []
    if not isinstance(items, list):
        raise SourceError(f'expected a list of texts as "{field}", found something else')
    return [_read_text(field, item) for item in items]


def _read_texts(field: str, value: object) -> dict[str, str]:
    if value is not None and not isinstance(value, Mapping):
        raise SourceError(f'expected an object as "{field}", found something else')
    return {str(key): _read_text(field, item) for key, item in (value or {}).items()}


def discover(
    *,
    home: Path | None = None,
    cwd: Path | None = None,
    trusted: Callable[[Path, str], bool] | None = None,
    catalogue: Home | None = None,
) -> list[Path]:
    """Find MCP configuration files with at least one server in the usual places of editors and agents.

    A file that cannot be read is listed too: when it is read, the error says why. The files of a project may come with
    a repository, and reading their servers starts programs. They are left out with a warning until the user trusts the
    folder.

    Args:
        home: by default the home folder.
        cwd: the project. By default the working directory.
        trusted: maps a folder and the name of a file in it to whether the user trusts the file. None: trust all.
        catalogue: toolscout's home. A file with nothing but its gateway is left out, with a warning. None: list it.
    """
    home, cwd = home or Path.home(), cwd or Path.cwd()
    usable = [
        Path(locator)
        for path in dict.fromkeys(find_files(home))
        if _names_servers(path)
        for locator in name_projects(str(path), cwd)
    ]
    for name in list_configurations(cwd):
        path = cwd / name
        if path in usable or not _names_servers(path):
            continue
        if trusted is None or trusted(cwd, name):
            usable.append(path)
        else:
            _log.warning(
                "toolscout: %s was not read, because you do not trust its folder. To trust it, run  toolscout trust %s",
                path,
                shlex.quote(str(cwd)),
            )
    return [path for path in usable if catalogue is None or not _has_only_gateway(path, catalogue)]


def _has_only_gateway(path: Path, catalogue: Home) -> bool:
    """Return whether the only server of a file is the gateway of this home, and warn of it."""
    try:
        entries = load_entries(path)
    except SourceError:
        return False
    has_only_gateway = bool(entries) and len(find_own_gateways(entries, catalogue)) == len(entries)
    if has_only_gateway:
        _log.warning("toolscout: %s was not read: it has only toolscout's own gateway", path)
    return has_only_gateway


def _names_servers(path: Path) -> bool:
    """Return whether a file has servers, for all projects or for one. True also for one that cannot be read."""
    try:
        return bool(read_configuration(path)) or bool(find_projects(path))
    except SourceError:
        return True


# --- URLs and commands ---


def server_from_locator(locator: str) -> Server:
    """Build the server of a URL or a command line. Raises SourceError if the locator is neither."""
    try:
        if urlsplit(locator).scheme in ("http", "https"):
            name, origin = _name_url(locator), show_url(locator)
            return Server(name=name, origin=origin, folder=Path.cwd(), transport="http", url=locator)
        words = shlex.split(locator)
    except ValueError as error:
        raise SourceError(f"expected the URL or the command of an MCP server, found a broken one: {error}") from None
    if not words:
        raise SourceError("expected the command or the URL of an MCP server, found nothing")
    _require_target(words[0], words[1:], f"toolscout add '{words[0]} …'")
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
#: Programs that run another program → their subcommands, which may come before its name.
_LAUNCHERS: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(subcommands.split())
    for name, subcommands in {
        "npx": "", "bunx": "", "pnpx": "", "uvx": "", "node": "", "tsx": "", "env": "", "npm": "exec x run",
        "pnpm": "dlx exec run", "bun": "x run", "yarn": "dlx exec run", "uv": "run tool", "pipx": "run",
        "deno": "run", "docker": "run container", "podman": "run container",
    }.items()
}  # fmt: skip
_OPTIONS_WITH_VALUE: Final = {
    "-p", "--package", "--from", "--with", "--python", "--directory", "--project", "--registry", "--index",
    "--index-url", "--extra-index-url", "--prefix", "--dir", "-C", "-r", "--require", "--import", "-e", "--env",
    "--env-file", "-v", "--volume", "--mount", "--name", "--network", "-w", "--workdir", "-u", "--user",
    "--entrypoint", "--platform", "--pull", "--add-host", "-l", "--label", "--publish",
}  # fmt: skip
_BRIDGES: Final = {"mcp-remote", "mcp-proxy", "supergateway"}  # programs that connect to the URL after them
_GENERIC_WORDS: Final = {"mcp", "server", "servers"}
_GENERIC_FOLDERS: Final = {"", ".", "/", "build", "dist", "out", "src", "bin", "lib"}
_GENERIC_FILES: Final = {"index", "main", "server", "app", "cli", "run", "__main__"}
_GENERIC_LABELS: Final = {"mcp", "api", "www", "server"}


def _skip_options(program: str, words: Sequence[str]) -> list[str]:
    """Return the words after a program from the package or script that it runs. Empty: it names none.

    Options and subcommands before it are skipped, and assignments of variables (`A=1`).
    """
    words_left = list(words)
    while words_left:
        word = words_left[0]
        if word in _OPTIONS_WITH_VALUE and program in _LAUNCHERS:
            del words_left[:2]
        elif word.startswith("-") or word in _LAUNCHERS.get(program, ()) or re.fullmatch(r"\w+=.*", word):
            del words_left[0]
        else:
            break
    return words_left


def _require_target(command: str, arguments: Sequence[str], advice: str) -> None:
    """Raise SourceError for a launcher without a package or script to run: it would wait for input for ever."""
    program = Path(command).name
    runs_others = program in _LAUNCHERS or program in _SHELLS or _PYTHON.fullmatch(program)
    if runs_others and not _skip_options(program, arguments):
        raise SourceError(f"no package or script is named after {program}: {advice}")


def _name_command(words: Sequence[str]) -> str:
    """Name a command as people would: by what it serves, such as `git` for `uvx mcp-server-git`."""
    command, *arguments = words
    program = Path(command).name
    is_python = _PYTHON.fullmatch(program) is not None
    if is_python and "-m" in words[:-1]:
        module = words[words.index("-m") + 1]
        return _drop_generic_words(module)
    words_left = _skip_options(program, arguments)
    if not words_left:
        return _drop_generic_words(program)
    target, *target_arguments = words_left
    if program == "env":
        return _name_command(words_left)
    runs_line = any(re.fullmatch(r"-[a-z]*c", word) for word in arguments)  # such as bash -lc "exec uvx …"
    if program in _SHELLS and runs_line:
        return _name_shell_line(program, target)
    if program in _SHELLS or is_python:
        return _name_file(target)
    if program in _LAUNCHERS:
        return _name_package(target, target_arguments) or program
    return _drop_generic_words(program)


def _name_shell_line(shell: str, line: str) -> str:
    """Name a line of a shell by the program in it, or by the shell if there is none."""
    words = [word for word in shlex.split(line) if word not in ("exec", "cd", "&&")]
    return _name_command(words) if words else shell


def _name_package(word: str, words_after: Sequence[str]) -> str:
    """Name a package (`@scope/name@1.0`), an image or a script. A bridge to a URL is named like the URL."""
    if re.search(r"\.(py|[cm]?[jt]s)$", word):
        return _name_file(word)
    scope, _, package_and_version = word.rpartition("/")
    package, *_ = re.split(r"(?<=.)@|==|:", package_and_version)
    if package in _BRIDGES:
        address = next((item for item in words_after if item.startswith(("http://", "https://"))), None)
        return _name_url(address) if address else package
    owner = Path(scope).name.lstrip("@")
    if owner and package in _GENERIC_WORDS:
        return owner
    return _drop_generic_words(package)


def _name_file(path: str) -> str:
    """Name a script by its file, or by its folder if the file is called `index` or the like."""
    file = Path(path)
    if file.stem not in _GENERIC_FILES:
        return _drop_generic_words(file.stem)
    specific_folders = (folder.name for folder in file.parents if folder.name not in _GENERIC_FOLDERS)
    return _drop_generic_words(next(specific_folders, file.stem))


def _drop_generic_words(name: str) -> str:
    """Drop `mcp` and `server` from the beginning and the end of a name, unless nothing else is left."""
    words = re.split(r"[-_]", name)
    while len(words) > 1 and words[0].lower() in _GENERIC_WORDS:
        del words[0]
    while len(words) > 1 and words[-1].lower() in _GENERIC_WORDS:
        del words[-1]
    return "-".join(words)


def _name_url(url: str) -> str:
    """Name a URL: `https://api.example.com/v1/files/mcp` becomes `example/files`. Parts like keys are left out."""
    parts = urlsplit(url)
    segments = [part for part in parts.path.split("/") if part and not _is_like_key(part)]
    if segments and segments[-1] in ("mcp", "sse"):
        segments.pop()
    segments = [segment for segment in segments if not re.fullmatch(r"v\d+", segment)]
    _, _, host = parts.netloc.rpartition("@")
    *labels, _top_level_domain = host.split(".")
    is_ip_address = re.fullmatch(r"[\d.:]+", host) is not None
    if labels and not is_ip_address:
        host = "-".join(label for label in labels if label not in _GENERIC_LABELS) or host
    return "/".join([host, *segments])


def _is_like_key(segment: str) -> bool:
    """Return whether a part of a path may be a secret key: 20 characters or more, and a digit among them."""
    return len(segment) >= 20 and any(char.isdigit() for char in segment)


def show_url(url: str) -> str:
    """Return a URL without user, query and fragment, with `***` for parts of its path that look like keys."""
    parts = urlsplit(url)
    path = "/".join("***" if _is_like_key(part) else part for part in parts.path.split("/"))
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"


# --- expansion ---


def _find_value(server: Server, reference: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the name and the value of a variable `${reference}` in an entry.

    The reference is `NAME`, `env:NAME`, `file:PATH` or `input:ID`, and may end with `:-` and a default. Raises
    SourceError, without a value in its message, if there is none.
    """
    reference, has_default, default = reference.partition(":-")
    kind, name = reference.split(":", 1) if ":" in reference else ("env", reference)
    if kind == "env":
        value = environ.get(name)
    elif kind == "file":
        value = _read_small_file(server.folder / Path(name).expanduser()).strip()
    else:
        value = server.inputs.get(reference)
    if has_default:
        value = value or default
    if value is not None:
        return name, value
    if kind == "env":
        raise SourceError(f"expected the environment variable {name}, found it unset: set it")
    raise SourceError(
        f"expected a value, found ${{{reference}}}, which only an editor can ask for: "
        f"write ${{env:NAME}} instead and set NAME in the environment"
    )


def resolve(server: Server, environ: Mapping[str, str]) -> Server:
    """Fill in every `${…}` of a server, so that it can be started. Do not keep the result after the connection.

    `${NAME}`, `${env:NAME}` and `${NAME:-default}` come from `environ`, `${file:PATH}` from a file. Variables that the
    clients define (`_CLIENT_VARIABLES`) depend on the folder of the server.

    Raises:
        SourceError: if a variable is not set, a file cannot be read, or the URL is invalid. The message contains no
            value.
    """
    secrets: set[str] = set()
    credentials: set[str] = set()

    def fill_one(match: re.Match[str]) -> str:
        """Return the value of one variable, and remember it as a secret so that no message shows it."""
        reference = match[1]
        if reference in _CLIENT_VARIABLES:
            return _CLIENT_VARIABLES[reference](server.folder)
        variable, value = _find_value(server, reference, environ)
        secrets.add(value)
        if looks_secret(variable, value):
            credentials.add(value)
        return value

    def fill(text: str) -> str:
        return re.sub(r"\$\{([^{}]+)\}", fill_one, text)

    from_file = _read_env_file(server.folder / Path(fill(server.env_file)).expanduser()) if server.env_file else {}
    env = {**from_file, **{key: fill(item) for key, item in server.env.items()}}
    headers = {key: fill(item) for key, item in server.headers.items()}
    sign_in = {key: fill(item) for key, item in server.sign_in.items()}
    url = fill(server.url)
    # Of a header such as "Bearer TOKEN", the last word is a secret too.
    secrets.update(env.values(), headers.values(), map(_get_last_word, headers.values()))
    for key, item in (*env.items(), *headers.items()):
        if looks_secret(key, item) and key.lower() not in PLAIN_HEADERS:
            credentials |= {item, _get_last_word(item)}
    own_secrets = set(filter(None, map(sign_in.get, SIGN_IN_SECRETS)))
    secrets |= own_secrets
    credentials |= own_secrets
    if server.transport != "stdio":
        url_secrets = _check_url(url)
        secrets |= url_secrets
        credentials |= url_secrets
    return dataclasses.replace(
        server,
        command=os.path.expanduser(fill(server.command)),  # `Path` would drop the ./ of a command in this folder
        args=tuple(fill(item) for item in server.args),
        env=env,
        cwd=str(server.folder / Path(fill(server.cwd)).expanduser()) if server.cwd else "",
        url=url,
        headers=headers,
        sign_in=sign_in,
        secrets=frozenset(secrets | {quote(secret, safe="") for secret in secrets}),
        credentials=frozenset(credentials),
    )


def _get_last_word(text: str) -> str:
    return text.rpartition(" ")[2]


_CLIENT_VARIABLES: Final[Mapping[str, Callable[[Path], str]]] = {
    "workspaceFolder": str,
    "workspaceFolderBasename": lambda folder: folder.name,
    "workspacePath": str,
    "cwd": str,
    "CLAUDE_PROJECT_DIR": str,
    "CLAUDE_PLUGIN_ROOT": str,
    "extensionPath": str,
    "userHome": lambda folder: str(Path.home()),
    "pathSeparator": lambda folder: os.sep,
    "/": lambda folder: os.sep,
}
"""Variables that clients define → their values, from the folder of the server's project."""
MAX_VALUE_CHARS: Final = 100_000  # of a file whose content is a value, or of variables


def _read_small_file(path: Path) -> str:
    """Return the text of a file. Raises SourceError if it cannot be read, or has more than `MAX_VALUE_CHARS`."""
    try:
        with path.open(encoding="utf-8") as stream:
            text = stream.read(MAX_VALUE_CHARS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise SourceError(f"expected a readable file {path}, found: {reason}") from None
    if len(text) > MAX_VALUE_CHARS:
        raise SourceError(f"expected at most {MAX_VALUE_CHARS:,} characters in {path}, found more")
    return text


def _read_env_file(path: Path) -> dict[str, str]:
    """Read a file of lines `NAME=value`, with quotes and comments as in a shell."""
    variables: dict[str, str] = {}
    for line in _read_small_file(path).splitlines():
        match = re.match(r"\s*(?:export\s+)?([\w.]+)\s*=\s*(.*)$", line)
        if match is None:  # a blank line, a comment, or no assignment
            continue
        name, text = match.groups()
        quoted = re.match(r"""(["'])(?P<value>.*)\1\s*(#.*)?$""", text)
        variables[name] = quoted["value"] if quoted else re.sub(r"\s#.*", "", text).strip()
    return variables


def _check_url(url: str) -> set[str]:
    """Return the secrets in the URL of a server. Raises SourceError if it is no http or https URL with a host.

    Every value of the query may be a key, so all of them count.
    """
    try:
        parts = urlsplit(url)
        has_valid_port = parts.port != 0
    except ValueError:  # a port that is no number from 0 to 65535, or a broken address in brackets
        has_valid_port = False
    if not has_valid_port or parts.scheme not in ("http", "https") or not parts.hostname:
        raise SourceError('expected an http:// or https:// address with a host as "url", found something else')
    keys = [part for part in parts.path.split("/") if _is_like_key(part)]
    values = [value for _, value in parse_qsl(parts.query)]
    return {secret for secret in (*keys, *values, parts.username, parts.password) if secret}


def redact(text: str, secrets: frozenset[str]) -> str:
    """Replace every secret of at least four characters in a text with `***`."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    return text
