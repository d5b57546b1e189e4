"""Knows how MCP clients write down their servers: in which files, under which key, and in which spelling.

`CLIENTS` is the table of them. `read_configuration` finds the entries of a file, `spell_entry` gives one entry the
spelling that `toolscout.sources.mcp_config` reads. A client's own rules about servers and tools are carried over: a
tool that the user forbade there stays forbidden here.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from toolscout.errors import SourceError
from toolscout.sources.parsing import load_document

__all__ = [
    "CLIENTS",
    "Client",
    "Entry",
    "choose_client",
    "find_files",
    "find_projects",
    "is_file_of",
    "names_servers",
    "read_configuration",
    "spell_entry",
]


class Client(NamedTuple):
    """One kind of configuration file.

    Attributes:
        name: of the client.
        keys: the path of keys to the servers in the document.
        user: files below the home folder of the user. `{app}` is the folder in which applications keep settings, `*`
            any name.
        project: files below the folder of a project.
        unit: of `timeout`. Empty: a number from 1,000 is in milliseconds, a smaller one in seconds.
        dollars: whether `$NAME` is a variable everywhere, not only `${NAME}`.
    """

    name: str
    keys: tuple[str, ...]
    user: tuple[str, ...] = ()
    project: tuple[str, ...] = ()
    unit: Literal["", "s", "ms"] = ""
    dollars: bool = False


_SERVERS: Final = ("mcpServers",)
#: First part of a path below the home → the environment variable that can name another folder in its place.
_MOVED: Final = {".codex": "CODEX_HOME", ".copilot": "COPILOT_HOME", ".claude.json": "CLAUDE_CONFIG_DIR"}
_MANAGED_SETTINGS: Final = Path("/etc/claude-code/managed-settings.json")
_EXTENSION_DATA: Final = "{app}/Code/User/globalStorage"
CLIENTS: Final = (
    Client("Claude Desktop", _SERVERS, ("{app}/Claude/claude_desktop_config.json",)),
    Client("Claude Code", _SERVERS, (".claude.json",), (".mcp.json",)),
    Client("Claude Code plugin", _SERVERS, (), (".claude-plugin/plugin.json",)),
    Client("Cursor", _SERVERS, (".cursor/mcp.json",), (".cursor/mcp.json",)),
    Client("VS Code", ("servers",), ("{app}/Code/User/mcp.json",), (".vscode/mcp.json",)),
    Client("VS Code settings", ("mcp", "servers"), ("{app}/Code/User/settings.json",), (".vscode/settings.json",)),
    Client("Dev container", ("customizations", "vscode", "mcp", "servers"), (), (".devcontainer/devcontainer.json",)),
    Client("Codex", ("mcp_servers",), (".codex/config.toml",), (".codex/config.toml",), "s"),
    Client("Gemini CLI", _SERVERS, (".gemini/settings.json",), (".gemini/settings.json",), "ms", True),
    Client("Gemini extension", _SERVERS, (".gemini/extensions/*/gemini-extension.json",), (), "ms", True),
    Client("Qwen Code", _SERVERS, (".qwen/settings.json",), (".qwen/settings.json",), "ms", True),
    Client(
        "Cline",
        _SERVERS,
        (
            f"{_EXTENSION_DATA}/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
            ".cline/data/settings/cline_mcp_settings.json",
        ),
        unit="s",
    ),
    Client(
        "Roo Code",
        _SERVERS,
        (f"{_EXTENSION_DATA}/rooveterinaryinc.roo-cline/settings/mcp_settings.json",),
        (".roo/mcp.json",),
        "s",
    ),
    Client(
        "Kilo Code",
        _SERVERS,
        (f"{_EXTENSION_DATA}/kilocode.kilo-code/settings/mcp_settings.json",),
        (".kilocode/mcp.json",),
        "s",
    ),
    Client("Windsurf", _SERVERS, (".codeium/windsurf/mcp_config.json",), (".windsurf/mcp_config.json",)),
    Client("Zed", ("context_servers",), ("{app}/zed/settings.json",), (".zed/settings.json",)),
    Client(
        "Continue",
        _SERVERS,
        (".continue/config.yaml", ".continue/config.json", ".continue/mcpServers/*"),
        (".continue/mcpServers/*",),
        "ms",
    ),
    Client("Continue, older", ("experimental", "modelContextProtocolServers"), unit="ms"),
    Client(
        "opencode",
        ("mcp",),
        ("{app}/opencode/opencode.json", "{app}/opencode/opencode.jsonc"),
        ("opencode.json", "opencode.jsonc"),
        "ms",
    ),
    Client("Crush", ("mcp",), ("{app}/crush/crush.json",), ("crush.json", ".crush.json"), "s", True),
    Client("Amp", ("amp.mcpServers",), ("{app}/amp/settings.json",), (".amp/settings.json",), "", True),
    Client("Copilot CLI", _SERVERS, (".copilot/mcp-config.json",), (".github/mcp.json",)),
    Client("Goose", ("extensions",), ("{app}/goose/config.yaml",), (), "s", True),
    Client("Kiro", _SERVERS, (".kiro/settings/mcp.json",), (".kiro/settings/mcp.json",), "ms"),
    Client("Amazon Q", _SERVERS, (".aws/amazonq/mcp.json",), (".amazonq/mcp.json",), "ms"),
    Client("Junie", _SERVERS, (".junie/mcp/mcp.json",), (".junie/mcp/mcp.json",)),
    Client("LM Studio", _SERVERS, (".lmstudio/mcp.json",)),
)


class Entry(NamedTuple):
    """One server as a file has it, unchecked, with the rules outside of the entry: in the file or in settings.

    Attributes:
        fields: the value of the entry.
        client: the client in which this spelling is usual.
        inputs: `input:ID` → the value that an editor would propose for it.
        disabled: whether a rule switches the server off.
        forbidden: patterns of the tools that a rule forbids.
        allowed: patterns of the tools that a rule allows, if it allows no others. None: all.
    """

    fields: object
    client: Client
    inputs: Mapping[str, str] = {}
    disabled: bool = False
    forbidden: tuple[str, ...] = ()
    allowed: tuple[str, ...] | None = None


# --- files ---


def find_files(home: Path) -> Iterator[Path]:
    """Yield the files in which clients keep servers for all projects, where they exist.

    Codex, Copilot CLI and Claude Code look elsewhere if CODEX_HOME, COPILOT_HOME or CLAUDE_CONFIG_DIR is set.
    """
    app_folders = ("Library/Application Support", os.environ.get("XDG_CONFIG_HOME", ".config"), "AppData/Roaming")
    for pattern in (pattern for client in CLIENTS for pattern in client.user):
        first, _, tail = pattern.partition("/")
        moved_to = os.environ.get(_MOVED[first]) if first in _MOVED else None
        if first == "{app}":
            searches = [(folder, tail) for folder in app_folders]
        elif moved_to:
            searches = [(moved_to, tail or first)]  # without a tail, `first` is a file such as .claude.json
        else:
            searches = [("", pattern)]
        for folder, file_pattern in searches:
            yield from sorted(file for file in (home / folder).glob(file_pattern) if file.is_file())


def read_configuration(path: Path, project: str | None = None) -> dict[str, Entry] | None:
    """Read the entries of a configuration file by name, in the order of the file. They are not checked.

    Args:
        path: a JSON (comments allowed), YAML or TOML file.
        project: read only what Claude Code keeps for this project. None: what is for all projects.

    Returns None if the file has no key for servers. Raises SourceError if it cannot be read.
    """
    document = load_document(path)
    if project is not None:
        document = _get(document, "projects", project)
    listings = _find_listings(document)
    settings = list(_load_settings(path, project))
    entries: dict[str, Entry] = {}
    for keys, listing in listings:
        if isinstance(listing, str):  # a plug-in of Claude Code names a file
            return read_configuration(_find_plugin(path) / listing)
        client = choose_client(path, keys)
        for name, fields in _list_entries(listing):
            entries.setdefault(name, _apply_rules(document, settings, name, Entry(fields, client)))
    return entries if listings else None


def _load_settings(path: Path, project: str | None) -> Iterator[object]:
    """Load the files in which Claude Code keeps rules about the servers of `.mcp.json` and `.claude.json`."""
    if path.name in (".mcp.json", ".claude.json"):
        folder = Path(project) if project else path.parent
        settings = (folder / ".claude/settings.json", folder / ".claude/settings.local.json")
        for file in dict.fromkeys((*settings, Path.home() / ".claude/settings.json", _MANAGED_SETTINGS)):
            if file.is_file():
                yield load_document(file)


def _find_plugin(path: Path) -> Path:
    """Return the folder of the plug-in of Claude Code that a manifest belongs to."""
    return path.parent.parent if path.parent.name == ".claude-plugin" else path.parent


def names_servers(document: object) -> bool:
    """Return whether a document has a key for servers in the spelling of any client."""
    return bool(_find_listings(document) or _list_projects(document))


def find_projects(path: Path) -> list[str]:
    """List the projects for which a file of Claude Code has servers of their own."""
    return _list_projects(load_document(path))


def _list_projects(document: object) -> list[str]:
    """List the folders of the projects for which a document of Claude Code has servers."""
    projects = _read_mapping(_get(document, "projects"))
    return [folder for folder, fields in projects.items() if _get(fields, "mcpServers")]


def _find_listings(document: object) -> list[tuple[tuple[str, ...], object]]:
    """Return each path of keys that leads to servers in a document, with the value there.

    The file of a plug-in of Claude Code may have no key: then the document itself is the object of servers.
    """
    candidates = [(keys, _get(document, *keys)) for keys in dict.fromkeys(client.keys for client in CLIENTS)]
    listings = [(keys, value) for keys, value in candidates if _lists_servers(keys, value)]
    if not listings and isinstance(document, Mapping) and document and all(map(_is_server, document.values())):
        return [(_SERVERS, document)]
    return listings


def _lists_servers(keys: tuple[str, ...], value: object) -> bool:
    """Return whether a value under these keys has servers: an object, a list, or the name of a file with them."""
    if isinstance(value, Mapping):
        return keys not in _SHARED_KEYS or _are_servers(value)
    if isinstance(value, list):
        return bool(value) and keys[-1] in ("mcpServers", "modelContextProtocolServers")  # in Continue
    return isinstance(value, str) and bool(value) and keys == _SERVERS  # in a plug-in of Claude Code


_SHARED_KEYS: Final = (("mcp",), ("extensions",))  # other documents use these names for other things
_BUILT_IN: Final = {"builtin", "platform", "frontend", "inline_python"}  # parts of Goose itself


def _is_server(value: object) -> bool:
    """Return whether a value can only be a server: a program with arguments, or an address of a kind."""
    if not isinstance(value, Mapping):
        return False
    is_program = isinstance(value.get("command"), str) and any(key in value for key in ("args", "type", "env"))
    is_address = value.get("type") in ("http", "sse", "ws") and isinstance(value.get("url"), str)
    return is_program or is_address


def _are_servers(value: Mapping[object, object]) -> bool:
    """Return whether an object has a value that looks like a server, under a key that other documents use too."""
    fields = [item for item in value.values() if isinstance(item, Mapping)]
    return any({"type", "command", "cmd", "url", "uri"} & item.keys() for item in fields)


def _list_entries(listing: object) -> Iterator[tuple[str, object]]:
    """Yield name and fields of each entry, of an object or of a list of named objects."""
    if isinstance(listing, list):
        named = [(str(_get(fields, "name") or f"server {number}"), fields) for number, fields in enumerate(listing, 1)]
    else:
        named = list(_read_mapping(listing).items())
    for name, fields in named:
        if str(_get(fields, "type")) not in _BUILT_IN:
            yield name, fields


def choose_client(path: Path, keys: tuple[str, ...] | None = None) -> Client:
    """Return the client that has a usual file most like the path, among the clients with these keys if given."""

    def count_common(client: Client) -> int:
        return max((_count_common_parts(path, file) for file in (*client.user, *client.project)), default=0)

    return max((client for client in CLIENTS if keys is None or client.keys == keys), key=count_common)


def _count_common_parts(path: Path, usual_file: str) -> int:
    """Count how many parts at the end of a path match a usual file such as `.cursor/mcp.json`, up to 3."""
    patterns = usual_file.removeprefix("{app}/").split("/")
    count = 0
    for part, pattern in zip(reversed(path.parts), reversed(patterns), strict=False):
        if not fnmatch.fnmatchcase(part, pattern):
            break
        count += 1
    is_any_file = count == 1 and patterns[-1] == "*"  # such a match says nothing about the client
    return 0 if is_any_file else min(count, 3)


def is_file_of(name: str, path: Path) -> bool:
    """Return whether an absolute path is a usual file of a client in `CLIENTS`, in a home folder or a project."""
    usual_files = [file for client in CLIENTS if client.name == name for file in (*client.user, *client.project)]
    return any(path.as_posix().endswith("/" + file.removeprefix("{app}/")) for file in usual_files)


# --- rules elsewhere in a file ---


def _get(document: object, *keys: str) -> object:
    """Return the value at a path of keys. None if there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _get_names(document: object, *keys: str) -> list[str]:
    """Return the texts in the list at a path of keys. Empty if there is no list."""
    value = _get(document, *keys)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _apply_rules(document: object, claude_settings: Sequence[object], name: str, entry: Entry) -> Entry:
    """Return an entry with the rules about it in its own document and in the settings of Claude Code."""
    documents = (document, *claude_settings)
    enabled_names = [*_get_names(document, "mcp", "allowed"), *_get_names(document, "allowMCPServers")]  # Gemini CLI
    disabled_names = [*_get_names(document, "mcp", "excluded"), *_get_names(document, "excludeMCPServers")]
    for settings in documents:
        disabled_names += _get_names(settings, "disabledMcpServers")
        disabled_names += _get_names(settings, "disabledMcpjsonServers")
        disabled_names += [str(_get(rule, "serverName")) for rule in _as_list(_get(settings, "deniedMcpServers"))]
    allowed = _find_allowed(document, name)
    is_left_out = bool(enabled_names) and name not in enabled_names
    has_no_tool = allowed == ()
    disabled = name in disabled_names or is_left_out or has_no_tool
    forbidden = tuple(pattern for settings in documents for pattern in _find_forbidden(settings, name))
    return entry._replace(inputs=_read_inputs(document), disabled=disabled, forbidden=forbidden, allowed=allowed)


def _find_allowed(document: object, name: str) -> tuple[str, ...] | None:
    """Return patterns of the tools of a server that the file allows, if it allows no others. None: all."""
    listed = _get_names(document, "tools")  # an agent of Amazon Q or Kiro: "@server/tool", "@server" or "*"
    is_list_of_servers = any(item.startswith("@") for item in listed)
    allows_all = "*" in listed or f"@{name}" in listed
    if is_list_of_servers and not allows_all:
        return tuple(item.removeprefix(f"@{name}/") for item in listed if item.startswith(f"@{name}/"))
    profile = _get_zed_profile(document)
    if _get(profile, "enable_all_context_servers") is False:  # then only the tools that are switched on
        switches = _read_mapping(_get(profile, "context_servers", name, "tools"))
        return tuple(tool for tool, is_on in switches.items() if is_on is True)
    return None


def _get_zed_profile(document: object) -> object:
    """Return the profile of Zed that is used by default, which switches servers and tools on and off."""
    return _get(document, "agent", "profiles", str(_get(document, "agent", "default_profile") or "write"))


def _read_inputs(document: object) -> dict[str, str]:
    """Return the values that VS Code proposes for `${input:ID}`, by `input:ID`."""
    inputs = _get(document, "inputs") or _get(document, "mcp", "inputs")
    listed = [item for item in inputs if isinstance(item, Mapping)] if isinstance(inputs, list) else []
    return {f"input:{item.get('id')}": str(item["default"]) for item in listed if item.get("default") is not None}


def _find_forbidden(document: object, name: str) -> Iterator[str]:
    """Yield patterns of the tools of a server that a client's general rules about tools forbid."""
    prefix = re.sub(r"[^\w-]", "_", name)  # as clients write the server's name before the names of its tools
    permissions = _read_mapping(_get(document, "permission"))  # newer opencode: {"server_tool": "deny"}
    in_opencode = [tool for tool, action in permissions.items() if action == "deny"]
    in_opencode += _list_denied(_get(document, "tools"))  # older opencode: {"server_tool": false}
    yield from _cut_prefix(in_opencode, f"{prefix}_")
    amp_rules = _as_list(_get(document, "amp.permissions"))
    in_amp = [str(_get(rule, "tool")) for rule in amp_rules if _get(rule, "action") == "reject"]
    in_amp += _get_names(document, "amp.tools.disable")
    in_claude_code = _get_names(document, "permissions", "deny")
    yield from _cut_prefix(in_amp + in_claude_code, f"mcp__{prefix}__")
    yield from _list_denied(_get(_get_zed_profile(document), "context_servers", name, "tools"))


def _cut_prefix(patterns: list[str], prefix: str) -> Iterator[str]:
    """Turn patterns of names with a prefix for their server into patterns of this server's own names of tools.

    With the prefix `mcp__git__`: `mcp__git__push` → `push`; `mcp__git` → `*`; `mcp__*__push` → `*__push` and `push`.
    Patterns of other servers are dropped.
    """
    for pattern in patterns:
        before_star, star, after_star = pattern.partition("*")
        if pattern.startswith(prefix):
            yield pattern.removeprefix(prefix)
        elif pattern == prefix.rstrip("_"):
            yield "*"
        elif star and prefix.startswith(before_star):
            # The star may end inside the tool's own name, or right before it.
            yield from (own_name for own_name in (f"*{after_star}", after_star.lstrip("_")) if own_name)


def _list_denied(switches: object) -> list[str]:
    """Return the names that an object sets to false."""
    return [str(name) for name, is_on in switches.items() if is_on is False] if isinstance(switches, Mapping) else []


# --- the spelling of one entry ---

_FIELD_NAMES: Final = {
    "cmd": "command",
    "envs": "env",
    "environment": "env",
    "uri": "url",
    "httpUrl": "url",
    "serverUrl": "url",
    "http_headers": "headers",
    "requestHeaders": "headers",
    "workingDirectory": "cwd",
    "env_file": "envFile",
}
_TYPES: Final = {"local": "stdio", "command": "stdio", "remote": "http"}
_ALLOWING: Final = {"includetools", "enabledtools", "allowedtools", "allowtools", "availabletools", "includedtools"}
_FORBIDDING: Final = {
    "excludetools", "excludedtools", "disabledtools", "disallowedtools", "deniedtools", "denytools", "blockedtools",
    "forbiddentools", "hiddentools",
}  # fmt: skip
_FILTERS: Final = {*_ALLOWING, *_FORBIDDING, "tools"}
#: Fields that nobody misses: labels, and what the client asks its user.
_IGNORED: Final = {
    "alwaysAllow", "autoApprove", "autoStart", "bundled", "description", "dev", "display_name", "displayName",
    "gallery", "icon", "id", "label", "metadata", "name", "note", "required", "restart", "sandbox", "source",
    "supports_parallel_tool_calls", "tags", "title", "tool_timeout_sec", "trust", "version", "watchPaths", "$schema",
}  # fmt: skip
#: Fields that `mcp_config.parse_server` reads.
_READ: Final = {
    "args", "command", "cwd", "disabled", "enabled", "env", "envFile", "headers", "protocol", "signIn", "timeout",
    "type", "url",
}  # fmt: skip
_REFUSED: Final = {
    "headersHelper": 'runs a program to get headers. Put them into "headers", with ${NAME} for a secret',
    "authProviderType": 'signs in with an account of the client. Put a token into "headers", with ${NAME}',
}


def spell_entry(entry: Entry) -> tuple[dict[str, object], list[str]]:
    """Return an entry in the spelling that `mcp_config.parse_server` reads, and the names of fields that are not used.

    It has `allowed` and `forbidden` for patterns of tools, and `timeout` in seconds. An example from Goose ::

        {"cmd": "uvx", "args": ["weather"], "env_keys": ["KEY"], "available_tools": ["now"], "color": "red"}

        {"command": "uvx", "args": ["weather"], "env": {"KEY": "${env:KEY}"}, "allowed": ["now"], "forbidden": []}
        ["color"]

    Raises SourceError if the entry needs something that only the client can do.
    """
    if not isinstance(entry.fields, Mapping):
        raise SourceError('expected an object with a "command" or a "url", found something else')
    fields = _flatten(entry.fields)
    _refuse_unsupported(fields)
    renamed = {_FIELD_NAMES.get(key, key): value for key, value in fields.items() if value is not None}
    if fields.get("httpUrl") is not None:
        renamed["url"] = fields["httpUrl"]  # it wins over "url", as in Gemini CLI
    filters = {key: value for key, value in renamed.items() if _normalize_key(key) in _FILTERS}
    used = {*_READ, *_IGNORED, *_MERGED, *filters}
    unused = [key for key in renamed if key not in used]
    spelled = {key: value for key, value in renamed.items() if key in _READ}
    _merge_headers_and_variables(fields, spelled)
    _convert_command_and_type(spelled)
    if any(fields.get(key) is not None for key in ("timeout", *_TIMEOUTS)):
        spelled["timeout"] = _read_timeout(fields, entry.client)
    if entry.disabled:
        spelled["disabled"] = True
    spelled = {key: _spell_variables(value, key, entry.client) for key, value in spelled.items()}
    return spelled | _read_filters(filters, entry), unused


def _refuse_unsupported(fields: Mapping[str, object]) -> None:
    """Raise SourceError for a server that only its client can sign in to, or that has no transport of MCP."""
    for key, reason in _REFUSED.items():
        if fields.get(key):
            raise SourceError(f'"{key}" {reason}')
    if str(fields.get("type")).lower() in ("ws", "websocket"):
        raise SourceError("it speaks WebSocket, which is no transport of MCP: name its http address")


def _convert_command_and_type(spelled: dict[str, object]) -> None:
    """Split a `command` that is a list into `command` and `args`, and give `type` its name in MCP (in place)."""
    command, kind = spelled.get("command"), spelled.get("type")
    if isinstance(command, list):
        spelled["command"] = command[0] if command else ""
        spelled["args"] = [*command[1:], *_as_list(spelled.get("args"))]
    if isinstance(kind, str):
        spelled["type"] = _TYPES.get(kind.lower(), kind)


def _normalize_key(key: str) -> str:
    """Return a key in lower case without hyphens and underscores, so that all spellings of it are the same."""
    return re.sub("[-_]", "", key).lower()


def _read_filters(filters: Mapping[str, object], entry: Entry) -> dict[str, object]:
    """Return the patterns of the tools that an entry and the rules about it allow (None: all) and forbid.

    `filters`: the fields of the entry that are about tools. Each has a list of patterns, an object `{"tool_names": …}`,
    or an object that switches tools on and off.
    """
    allowed = None if entry.allowed is None else list(entry.allowed)
    denied = list(entry.forbidden)
    for key, value in filters.items():
        if isinstance(value, Mapping) and "tool_names" not in value:
            denied += _list_denied(value)
            continue
        listed = value["tool_names"] if isinstance(value, Mapping) else value
        patterns = _read_patterns(key, listed)
        plain_key = _normalize_key(key)
        means_all = plain_key == "availabletools" and not patterns  # in Goose
        if plain_key in _FORBIDDING:
            denied += patterns
        elif not means_all:
            allowed = [*(allowed or ()), *patterns]
    return {"allowed": allowed, "forbidden": denied}


def _flatten(fields: Mapping[object, object]) -> dict[str, object]:
    """Return the fields of an entry together with those of an object in it: `transport` of Continue, `command` of Zed.

    Raises SourceError if only an extension of the client can start the server.
    """
    flat = {str(key): value for key, value in fields.items()}
    transport = flat.get("transport")
    if isinstance(transport, Mapping):
        flat = {**flat, **transport}
        del flat["transport"]
    elif isinstance(transport, str):
        flat.setdefault("type", flat.pop("transport"))
    command = flat.get("command")
    if isinstance(command, Mapping):
        flat["command"] = command.get("path")
        flat |= {key: command[key] for key in ("args", "env") if key in command}
    has_only_settings = "settings" in flat and flat.keys() <= {"settings", "enabled", "source"}
    if flat.get("source") == "extension" or has_only_settings:
        raise SourceError("an extension of the client brings this server, and only the client can start it")
    flat.pop("settings", None)
    return flat


#: Fields of single clients for the time to start, and their units in seconds.
_TIMEOUTS: Final = {"startup_timeout_sec": 1.0, "startup_timeout_ms": 0.001, "connectionTimeout": 0.001}
#: Fields of single clients whose values become a part of `headers`, `env` or `timeout`.
_MERGED: Final = {
    "bearer_token_env_var", "env_http_headers", "env_vars", "env_keys", "requestOptions", "requestInit",
    *_TIMEOUTS,
}  # fmt: skip


def _merge_headers_and_variables(fields: Mapping[str, object], spelled: dict[str, object]) -> None:
    """Merge headers and variables that have fields of their own into `headers` and `env` of `spelled` (in place)."""
    headers = dict(_read_mapping(spelled.get("headers")))
    for key in ("requestOptions", "requestInit"):
        headers |= _read_mapping(_get(fields.get(key), "headers"))
    for header, variable in _read_mapping(fields.get("env_http_headers")).items():
        headers[header] = f"${{env:{variable}}}"
    if variable := fields.get("bearer_token_env_var"):
        headers["Authorization"] = f"Bearer ${{env:{variable}}}"
    env = dict(_read_mapping(spelled.get("env")))
    # In Codex (env_vars) a variable may be unset: it has an empty default. In Goose (env_keys) it must have a value.
    for key, default in (("env_vars", ":-"), ("env_keys", "")):
        for item in _as_list(fields.get(key)):
            variable = str(_get(item, "name") or item)
            env.setdefault(variable, f"${{env:{variable}{default}}}")
    for key, values in (("headers", headers), ("env", env)):
        if values and isinstance(spelled.get(key) or {}, Mapping):  # a wrong type stays: `parse_server` refuses it
            spelled[key] = values


def _read_mapping(value: object) -> Mapping[str, object]:
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _read_patterns(key: str, value: object) -> list[str]:
    """Return patterns of tools. A pattern may end with arguments in brackets, which are cut off."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise SourceError(f'expected a list of tool names as "{key}", found something else')
    return [item.partition("(")[0] for item in items]


def _read_timeout(fields: Mapping[str, object], client: Client) -> float:
    """Return the seconds that a server may take to start. Raises SourceError if they are no number above 0."""
    key = next((key for key in _TIMEOUTS if key in fields), "timeout")
    value = fields[key]
    if isinstance(value, Mapping):  # opencode: {"startup": …, "request": …}
        value = value.get("startup", value.get("request"))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise SourceError(f'expected a number above 0 as "{key}", found {str(value)[:40]!r}')
    if key in _TIMEOUTS:
        return float(value) * _TIMEOUTS[key]
    unit = client.unit or ("ms" if value >= 1000 else "s")
    return value * 0.001 if unit == "ms" else float(value)


def _spell_variables(value: object, key: str, client: Client) -> object:
    """Return a value with each variable spelled `${NAME}`.

    `$NAME` becomes `${NAME:-$NAME}`: if there is no such variable, the text stays as it was.
    """
    if isinstance(value, Mapping):
        return {name: _spell_variables(item, key, client) for name, item in value.items()}
    if isinstance(value, list):
        return [_spell_variables(item, key, client) for item in value]
    if not isinstance(value, str) or key == "type":
        return value
    if client.name == "Crush" and "$(" in value:
        raise SourceError(f'"{key}" runs a program to get a value. Put the value into a variable, and write ${{NAME}}')
    text = re.sub(r"\$\{\{\s*(?:secrets|env)\.(\w+)\s*\}\}", r"${env:\1}", value)  # Continue: ${{ secrets.NAME }}
    text = re.sub(r"(?<![$\w])\{(env|file):([^{}]+)\}", r"${\1:\2}", text)  # opencode: {env:NAME}
    if client.dollars:
        return re.sub(r"\$([A-Za-z_]\w*)", r"${\1:-$\1}", text)
    if key in ("env", "headers"):  # in any client, if the name is in capitals
        text = re.sub(r"\$([A-Z_][A-Z0-9_]*)\b", r"${\1:-$\1}", text)
        return re.sub(r"^%([A-Z_][A-Z0-9_]*)%$", r"${\1:-%\1%}", text)
    return text
