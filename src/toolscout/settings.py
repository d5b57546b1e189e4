"""Settings come from arguments, the environment, `toolscout.toml` and defaults, in this order.

Each value remembers its origin.

A `toolscout.toml` in the working directory may have come with a cloned repository. Until the user trusts that folder
(`toolscout trust DIR`), it may set only what can do no harm: see `FILE_MAY_SET`.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import logging
import math
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import platformdirs

from toolscout.errors import ConfigError
from toolscout.location import (
    DEFAULT_TENANT,
    Home,
    SharedHome,
    find_shared,
    local_folder,
    parse_home,
    place_tenant,
    require_folder,
)
from toolscout.trust import trusted_folders

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "BUDGET_UNITS",
    "FILE_MAY_SET",
    "SETTINGS_FILE_NAME",
    "Between",
    "Settings",
    "load_settings",
    "needing_trust",
    "parse_llm_budget",
    "parse_pairs",
    "read_settings_file",
    "refuse_user",
]

SETTINGS_FILE_NAME: Final = "toolscout.toml"
COMPACT_PACKAGE: Final = "toolscout_compact"  # brings the encoder `compact`
MIN_BUDGET: Final = 200
MIN_RESULT_BUDGET: Final = 1_000
MAX_FALSE_REJECTS: Final = 0.2
KEY_PLACES: Final = {
    "llm": "TOOLSCOUT_LLM_KEY, or a file that TOOLSCOUT_LLM_KEY_FILE names",
    "encoder": "TOOLSCOUT_EMBEDDINGS_KEY",
    "telemetry": "OTEL_EXPORTER_OTLP_HEADERS",
}
RECORD_FIELDS: Final = ("origins", "ignored", "database")  # fields that describe the settings and are none themselves
_log: Final = logging.getLogger("toolscout.config")
_reported: set[tuple[str, str]] = set()  # (path, digest) of files with ignored settings that were reported


@dataclasses.dataclass(frozen=True)
class Between:
    """The range, both ends included, of values that an untrusted file may choose."""

    low: float
    high: float


#: Setting → whether an untrusted file in the working directory may set it: never (False), always (True), or to a value
#: within a range. A setting that is missing here counts as False; a test holds that none is missing.
FILE_MAY_SET: Final[Mapping[str, bool | Between]] = {
    "home": False,  # moves the catalogue, its approvals and the list of trusted folders
    "tenant": False,  # the same
    "recipe": True,  # the name of a built-in recipe, which sends queries only to `llm` and `encoder`
    "recipe_options": False,  # how often a search asks `llm`
    "model": False,  # its files decide every answer
    "encoder": False,  # an address gets every query, every tool text and the key
    "index": False,  # the code of a plug-in gets every vector
    "k": Between(1, 100),
    "prerequisites": Between(0, 10),
    "dependencies": False,  # brings tools into answers
    "coverage_aim": Between(0.01, 1),
    "mcp_timeout": Between(1, 600),
    "http_timeout": Between(1, 600),
    "max_tools": Between(1, 20_000),  # above the default it takes more memory than the user allowed
    "journal": False,  # without it nobody can see later what was searched and called
    "journal_queries": False,  # decides how queries are stored
    "journal_keep_days": False,  # removes events
    "redact_personal": False,  # decides how queries are stored
    "caller": False,  # decides which callers learning trusts
    "private_hosts": False,  # lets documents at URLs reach into the network of the user
    "trust": False,  # if it is off, changed definitions are served unseen
    "trust_scan": False,  # if it is off, orders to the model are served unseen
    "fold_similar": True,  # without it the same tool of several sources takes several lines
    "preferred_sources": False,  # decides which source serves a call that several could serve
    "call_timeout": Between(1, 600),
    "gateway_budget": Between(MIN_BUDGET, 20_000),
    "gateway_result_budget": Between(MIN_RESULT_BUDGET, 100_000),
    "gateway_idle": False,  # with 0 no server is ever stopped
    "gateway_servers": False,  # how many processes run
    "run_code": False,  # lets agents run programs
    "run_code_writes": False,  # lets them call tools that change something
    "run_code_seconds": Between(1, 600),
    "gateway_rate": False,  # limits the searches of one caller
    "gateway_query_chars": Between(1, 4_000),
    "gateway_argument_bytes": Between(1, 1_000_000),
    "registry": False,  # decides what registry:NAME stands for
    "public_url": False,  # where browsers bring the codes of sign-ins
    "shared_sessions": False,  # lets all callers act as one person
    "pins": False,  # shows tools to the agent at every start
    "llm": False,  # an address gets queries, tool texts and the key
    "llm_timeout": Between(1, 600),
    "llm_concurrency": False,  # how fast money is spent
    "llm_rpm": False,  # how fast money is spent
    "llm_budget": False,  # how much money is spent
    "llm_reply_tokens": False,  # what a call may cost
    "llm_price_in": False,  # with a price of zero, a budget in dollars limits nothing
    "llm_price_out": False,
    "learn_trust": False,  # decides which callers learning trusts
    "false_rejects": False,  # decides how many requests are turned away
    "telemetry": False,  # an address gets the names of tools, servers and the times of calls
    "telemetry_share": False,  # how much is sent there
    "log_format": True,
    "ray": False,  # its workers run code, and get every tool text
    "drain_seconds": False,  # delays the end of a service
}


def choose_encoder() -> str:
    """Return the encoder of an installation without settings: `compact` if its package is there, or else `static`."""
    return "compact" if importlib.util.find_spec(COMPACT_PACKAGE) else "static"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Every setting, with its default.

    The environment variable of a setting is `TOOLSCOUT_` and its name in capitals. In `toolscout.toml` it has its own
    name. `origins` says for each setting which of the four places its value came from. `ignored` names the settings of
    a file in the working directory that were not applied, because the user does not trust its folder. If `home` was the
    address that a package opens, `database` is that home, and `home` the folder of this machine beside it. Both
    are those of the tenant.
    """

    home: Path = dataclasses.field(
        default_factory=lambda: Path(platformdirs.user_data_dir("toolscout", appauthor=False))
    )
    tenant: str = DEFAULT_TENANT
    recipe: str = "scout"
    recipe_options: tuple[str, ...] = ()
    model: Path | None = None
    encoder: str = dataclasses.field(default_factory=choose_encoder)
    index: str = "auto"
    k: int = 5
    prerequisites: int = 4
    dependencies: tuple[str, ...] = ()
    coverage_aim: float = 0.9
    mcp_timeout: float = 60.0
    http_timeout: float = 30.0
    private_hosts: tuple[str, ...] = ()
    max_tools: int = 20_000
    journal: bool = True
    journal_queries: str = "full"
    journal_keep_days: float = 0.0
    redact_personal: bool = False
    caller: str = "local"
    trust: str = "pin"
    trust_scan: bool = True
    fold_similar: bool = True
    preferred_sources: tuple[str, ...] = ()
    call_timeout: float = 60.0
    gateway_budget: int = 3_000
    gateway_result_budget: int = 10_000
    gateway_idle: float = 600.0
    gateway_servers: int = 32
    run_code: bool = False
    run_code_writes: bool = False
    run_code_seconds: float = 60.0
    gateway_rate: float = 100.0
    gateway_query_chars: int = 4_000
    gateway_argument_bytes: int = 1_000_000
    registry: str = "https://registry.modelcontextprotocol.io"
    public_url: str = ""
    shared_sessions: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    llm: str = ""
    llm_timeout: float = 60.0
    llm_concurrency: int = 4
    llm_rpm: float = 0.0
    llm_budget: str = ""
    llm_reply_tokens: int = 1024
    llm_price_in: float = 0.0
    llm_price_out: float = 0.0
    learn_trust: tuple[str, ...] = ()
    false_rejects: float = 0.02
    telemetry: str = ""
    telemetry_share: float = 0.05
    log_format: str = "text"
    drain_seconds: float = 0.0
    ray: str = ""
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    ignored: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    database: SharedHome | None = None

    @property
    def place(self) -> Home:
        """Where catalogue, journal and models live: the address of a database, or else the folder `home`."""
        return self.database or self.home

    def __post_init__(self) -> None:
        if self.journal_queries not in ("full", "hash", "none"):
            raise ConfigError(
                f"journal_queries: expected full, hash or none, found {self.journal_queries!r} "
                f"({self.origins.get('journal_queries', 'argument')})"
            )
        _check_watching(self)
        if self.trust not in ("pin", "off"):
            raise ConfigError(
                f"trust: expected pin or off, found {self.trust!r} ({self.origins.get('trust', 'argument')})"
            )
        if not 0 < self.coverage_aim <= 1:
            raise ConfigError(
                f"coverage_aim: expected a number above 0 and at most 1, found {self.coverage_aim} "
                f"({self.origins.get('coverage_aim', 'argument')})"
            )
        for name in (
            "k",
            "max_tools",
            "mcp_timeout",
            "http_timeout",
            "call_timeout",
            "llm_timeout",
            "llm_concurrency",
            "llm_reply_tokens",
            "gateway_query_chars",
            "gateway_argument_bytes",
            "gateway_servers",
            "run_code_seconds",
        ):
            if not getattr(self, name) > 0:
                origin = self.origins.get(name, "argument")
                raise ConfigError(f"{name}: expected a number above 0, found {getattr(self, name)} ({origin})")
        amounts = "llm_rpm", "llm_price_in", "llm_price_out", "journal_keep_days", "gateway_rate", "gateway_idle"
        for name in (*amounts, "prerequisites", "drain_seconds"):
            if not getattr(self, name) >= 0:
                origin = self.origins.get(name, "argument")
                raise ConfigError(f"{name}: expected a number of at least 0, found {getattr(self, name)} ({origin})")
        _check_index(self.index, self.origins.get("index", "argument"))
        _check_dependencies(self.dependencies, self.origins.get("dependencies", "argument"))
        refuse_user(self.llm, self.origins.get("llm", "argument"))
        if self.encoder.startswith(("http://", "https://")):
            refuse_user(self.encoder, self.origins.get("encoder", "argument"), name="encoder")
        if not 0 <= self.false_rejects <= MAX_FALSE_REJECTS:
            origin = self.origins.get("false_rejects", "argument")
            raise ConfigError(
                f"false_rejects: expected a share from 0 (nothing is turned away) to {MAX_FALSE_REJECTS}, "
                f"found {self.false_rejects} ({origin})"
            )
        for name, least in (("gateway_budget", MIN_BUDGET), ("gateway_result_budget", MIN_RESULT_BUDGET)):
            if getattr(self, name) < least:
                origin = self.origins.get(name, "argument")
                raise ConfigError(f"{name}: expected at least {least} tokens, found {getattr(self, name)} ({origin})")

    def items(self) -> list[tuple[str, Any, str]]:
        """Return (name, value, origin) of every setting."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {"home": self.place}
        return [
            (name, value, self.origins.get(name, "default"))
            for name, value in values.items()
            if name not in RECORD_FIELDS
        ]


def _check_watching(settings: Settings) -> None:
    """Refuse an unknown form of log lines, and an address of a collector that is none.

    Raises:
        ConfigError: naming it.
    """
    if settings.log_format not in ("text", "json"):
        raise ConfigError(
            f"log_format: expected text or json, found {settings.log_format!r} "
            f"({settings.origins.get('log_format', 'argument')})"
        )
    origin = settings.origins.get("telemetry", "argument")
    refuse_user(settings.telemetry, origin, name="telemetry")
    if settings.telemetry and not settings.telemetry.startswith(("http://", "https://")):
        raise ConfigError(
            f"telemetry: expected the address of an OTLP collector, like http://127.0.0.1:4318, found "
            f"{settings.telemetry!r} ({origin})"
        )
    if not 0 <= settings.telemetry_share <= 1:
        raise ConfigError(
            f"telemetry_share: expected a share from 0 to 1, found {settings.telemetry_share} "
            f"({settings.origins.get('telemetry_share', 'argument')})"
        )


def _check_dependencies(pairs: Sequence[str], origin: str) -> None:
    """Refuse a dependency that is not `tool=prerequisite`.

    Raises:
        ConfigError: naming it.
    """
    for pair in pairs:
        tool, _, prerequisite = pair.partition("=")
        if not (tool and prerequisite):
            raise ConfigError(f"dependencies: expected TOOL=PREREQUISITE, two ids, found {pair!r} ({origin})")


def _check_index(index: str, origin: str) -> None:
    """Refuse the address of an engine with a password, because settings are shown.

    Raises:
        ConfigError: without the address.
    """
    _, _, address = index.partition(":")
    if re.search(r"//[^/@?]*:[^/@?]*@|[?&]\w*password=", address) or ("@" in address and "postgres" not in address):
        raise ConfigError(
            f"index: expected an address without a password ({origin}). Use PGPASSWORD or ~/.pgpass for PostgreSQL, "
            "and MILVUS_TOKEN for Milvus"
        )


def load_settings(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    report: bool = True,
    **arguments: Any,
) -> Settings:
    """Load the settings from all four places.

    Args:
        file: a settings file, which is trusted because it is named. None: `toolscout.toml` in the working directory, if
            there is one. Unless the user trusts the folder, settings that could do harm are ignored, with one warning.
        environ: by default `os.environ`.
        report: whether to warn of ignored settings.
        **arguments: settings from code or the command line; None: not set.

    Raises:
        ConfigError: for an unknown setting or a value of the wrong type, naming the place it came from.
    """
    environ = os.environ if environ is None else environ
    kinds = {field.name: type(getattr(Settings(), field.name)) for field in dataclasses.fields(Settings)}
    kinds["home"] = kinds["model"] = Path
    for name in RECORD_FIELDS:
        del kinds[name]
    path = file or Path(SETTINGS_FILE_NAME)
    content = _read(path, required=file is not None)
    from_environment = {name: environ[_variable(name)] for name in kinds if environ.get(_variable(name))}
    passed = {name: value for name, value in arguments.items() if value is not None}
    from_file = convert_values(_parse(path, content), kinds, str(path))
    near = convert_values(from_environment, kinds, "environment") | convert_values(passed, kinds, "argument")
    ignored: tuple[str, ...] = ()
    if file is None and (harmful := needing_trust(from_file)):
        home = local_folder(_choose_home(near)["home"])
        if not trusted_folders.is_trusted(home, path.absolute().parent, content):
            from_file = {name: value for name, value in from_file.items() if name not in harmful}
            ignored = tuple(harmful)
            if report:
                _report_ignored(path.absolute(), content, ignored)
    origins = dict.fromkeys(from_file, str(path)) | dict.fromkeys(from_environment, "environment")
    origins |= dict.fromkeys(passed, "argument")
    values = {**from_file, **near}
    return Settings(**values | _choose_home(values), origins=origins, ignored=ignored)


def _choose_home(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings `home`, `tenant` and `database` for the home and the tenant among `values`.

    Raises:
        NotFound: if a home that is a folder has no such tenant.
    """
    root = values.get("home", Settings().home)
    tenant = values.get("tenant") or (DEFAULT_TENANT if isinstance(root, Path) else root.tenant)
    place = place_tenant(root, tenant)
    require_folder(root, tenant)
    database = find_shared(place)
    return {"home": local_folder(place), "tenant": tenant, "database": database}


def read_settings_file(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the content of a settings file, and the values in it, unchecked.

    Raises:
        ConfigError: if there is no such file, or it is not TOML.
    """
    content = _read(path, required=True)
    return content, _parse(path, content)


def needing_trust(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that a file may make only if its folder is trusted."""
    return [name for name, value in values.items() if not _is_harmless(FILE_MAY_SET.get(name, False), value)]


def _is_harmless(rule: bool | Between, value: Any) -> bool:
    if isinstance(rule, bool):
        return rule
    return isinstance(value, (int, float)) and rule.low <= value <= rule.high


def _report_ignored(path: Path, content: bytes, names: tuple[str, ...]) -> None:
    """Warn once per process and file content which settings are ignored."""
    key = str(path), trusted_folders.digest_settings(content)
    if key not in _reported:
        _reported.add(key)
        _log.warning(
            "toolscout: %s is not trusted, so these settings of it are ignored: %s. If you trust that folder, run  "
            "toolscout trust %s",
            path,
            ", ".join(names),
            shlex.quote(str(path.parent)),
        )


def refuse_user(address_and_model: str, origin: str = "argument", *, name: str = "llm") -> None:
    """Refuse an address that may contain a password, because addresses are shown and stored.

    An address looks like `https://host/v1#model`.

    Raises:
        ConfigError: for an `@` before the model's name. The message does not show the address.
    """
    address, mark, rest = address_and_model.rpartition("#")
    if "@" in (address if mark else rest):
        raise ConfigError(
            f"{name}: expected an address without user and password, found one with an '@' ({origin}). Put the key "
            f"into {KEY_PLACES[name]}"
        )


def parse_pairs(pairs: Sequence[str], name: str) -> dict[str, Any]:
    """Parse `KEY=VALUE` pairs of a setting or an option. A value that is valid JSON is decoded, any other is text.

    Raises:
        ConfigError: if one is not a pair.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"{name}: expected KEY=VALUE, found {pair!r}")
        try:
            values[key] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            values[key] = value
    return values


def _variable(name: str) -> str:
    return f"TOOLSCOUT_{name.upper()}"


def _read(path: Path, *, required: bool) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        if required:
            raise ConfigError(f"expected a settings file, found none at {path}") from None
        return b""
    except OSError as error:
        raise ConfigError(f"{path}: the settings file cannot be read: {error}") from None


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: this is not valid TOML: {error}") from None


# --- values

BUDGET_UNITS: Final = ("calls", "tokens", "dollars")
BOOLEAN_WORDS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
EXPECTED_BY_TYPE: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Path: "a folder",
    tuple: "a list of names",
}


def convert_values(raw: Mapping[str, Any], kinds: Mapping[str, type], origin: str) -> dict[str, Any]:
    """Convert values to the types of their settings."""
    values = {}
    for name, value in raw.items():
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"The settings are {', '.join(kinds)}."
            raise ConfigError(f"{origin}: expected a known setting, found {name!r}. {hint}")
        values[name] = convert_value(name, value, kinds[name], origin)
    return values


def convert_value(name: str, value: Any, kind: type, origin: str) -> Any:
    """Convert one value to the type of its setting. `origin` names its place in the error."""
    try:
        if kind is bool:
            return value if isinstance(value, bool) else BOOLEAN_WORDS[str(value).lower()]
        if isinstance(value, bool):
            raise ValueError
        if kind is tuple:
            return _split_names(value)
        if name == "home" and str(value).strip():
            return parse_home(str(value)) if isinstance(value, str | Path) else value
        if kind is Path:
            if not str(value).strip():
                raise ValueError
            return Path(value).expanduser()
        if kind is str and not isinstance(value, str):
            raise ValueError
        return kind(value)
    except (KeyError, TypeError, ValueError):
        expected = EXPECTED_BY_TYPE.get(kind, "text")
        raise ConfigError(f"{name} ({origin}): expected {expected}, found {value!r}") from None


def _split_names(value: Any) -> tuple[str, ...]:
    """Return names from a list, or from one text with commas."""
    names = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError
    return tuple(filter(None, names))


def parse_llm_budget(text: str) -> dict[str, float | None]:
    """Parse limits like `calls=500,tokens=200000,dollars=2`: unit → limit, None where the text sets none.

    Raises:
        ConfigError: for another text.
    """
    limits: dict[str, float | None] = dict.fromkeys(BUDGET_UNITS)
    for part in filter(None, text.replace(" ", "").split(",")):
        unit, _, number = part.partition("=")
        try:
            limit = float(number.replace("_", ""))
            if limits.get(unit, limit) is not None or not 0 <= limit < math.inf:
                raise ValueError
        except ValueError:
            raise ConfigError(
                f"llm_budget: expected limits like calls=500,tokens=200000,dollars=2, found {part!r}"
            ) from None
        limits[unit] = limit
    return limits
