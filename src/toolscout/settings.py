"""Every setting, defined once, and how its value is found.

A value comes from the arguments, the environment, `toolscout.toml` or the default, in this order, and remembers its
origin. A `toolscout.toml` in the working directory may have come with a cloned repository. Until the user trusts that
folder (`toolscout trust DIR`), it may set only what can do no harm: see `Setting.file`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib.util
import logging
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import platformdirs

from toolscout.errors import ConfigError, describe_invalid
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
    "RULES",
    "SETTINGS_FILE_NAME",
    "Between",
    "Setting",
    "Settings",
    "format_value",
    "list_settings",
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
KEY_PLACES: Final = {
    "llm": "TOOLSCOUT_LLM_KEY, or a file that TOOLSCOUT_LLM_KEY_FILE names",
    "encoder": "TOOLSCOUT_EMBEDDINGS_KEY",
    "telemetry": "OTEL_EXPORTER_OTLP_HEADERS",
}
#: Settings of earlier versions → what is true now. They are ignored, with a warning.
RETIRED: Final = {
    "gateway_query_chars": "A query to the gateway may have 4,000 characters",
    "gateway_argument_bytes": "The arguments of a call may have 1,000,000 bytes",
}
#: Rules of ranking → what they do. `rules_off` leaves them out, `why` names them, benchmarks/rules.py measures each.
RULES: Final = {
    "opposites": "Of two opposite tools the one that is asked for comes first",
    "everyday": "Everyday phrases search for words of tools",
    "quotations": "Quoted titles and messages beside a command are not searched for",
    "sources": "Tools of a source that the request names gain points",
    "glosses": "Words of other languages search for English ones",
    "steps": "Compound requests are split, and each step is served",
    "refusals": "Requests and steps that no tool fits are named, sure chat gets no place",
    "places": "Places 9 and 10 are for words that no tool before has",
    "names": "Tools that the request names come first",
    "prerequisites": "Tools that the first matches need follow them",
    "demotion": "Suspicious and copied tools come last",
    "folding": "The same tool of several sources is one hit",
}
_log: Final = logging.getLogger("toolscout.config")
_reported: set[tuple[str, str]] = set()  # reported: (path, digest) of files, and (name, "") of variables
MIN_LIKENESS: Final = 0.9  # of a misspelt variable to one of a setting, as difflib measures it


@dataclasses.dataclass(frozen=True)
class Between:
    """A range of numbers from `low` to `high`, both included; if `above`, `low` itself is outside."""

    low: float
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float):
            return False
        is_above_low = value > self.low if self.above else value >= self.low
        return is_above_low and value <= self.high

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low:,}" if self.above else f"of at least {self.low:,}"
        return f"above {self.low:,} and at most {self.high:,}" if self.above else f"from {self.low:,} to {self.high:,}"


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a setting means and which values it may have.

    Attributes:
        group: heading under which it is listed.
        help: its meaning, in a phrase.
        kind: the type of its values; `tuple` for a list of names.
        bounds: the numbers that are accepted.
        choices: the words that are accepted.
        check: raises a `ConfigError` for a value that is wrong in another way; gets the value and its origin.
        file: whether a file that nobody trusts may set it, or to which numbers.
        harm: what such a file could do with it, if it may not.
        page: the page of docs/ that says more.
        default_text: the default in words, if it differs from one machine to another.
    """

    group: str
    help: str
    kind: type
    bounds: Between | None = None
    choices: tuple[str, ...] = ()
    check: Callable[[Any, str], None] | None = None
    file: bool | Between = False
    harm: str = ""
    page: str = ""
    default_text: str = ""

    def refuse_wrong(self, name: str, value: object, origin: str) -> None:
        """Refuse a value that this setting cannot have.

        Raises:
            ConfigError: saying what is expected, what was found, and where.
        """
        if self.bounds is not None and value not in self.bounds:
            raise ConfigError(f"{name}: expected a number {self.bounds}, found {value} ({origin})")
        if self.choices and value not in self.choices:
            words = f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
            raise ConfigError(f"{name}: expected {words}, found {value!r} ({origin})")
        if self.check is not None:
            self.check(value, origin)

    def describe_file(self) -> str:
        """Say what an untrusted file may set: `yes`, `1 to 100` or `no: decides every answer`."""
        if isinstance(self.file, Between):
            return str(self.file).removeprefix("from ")
        return "yes" if self.file else f"no: {self.harm}"

    def may_come_from_file(self, value: object) -> bool:
        """Return whether a file that nobody trusts may set this value."""
        return self.file if isinstance(self.file, bool) else value in self.file


def choose_encoder() -> str:
    """Return the encoder of an installation without settings: `compact` if its package is installed, else `static`."""
    return "compact" if importlib.util.find_spec(COMPACT_PACKAGE) else "static"


def refuse_user(address_and_model: str, origin: str = "argument", *, name: str = "llm") -> None:
    """Refuse an address that may contain a password, because addresses are shown and stored.

    An address looks like `https://host/v1#model`.

    Raises:
        ConfigError: for an `@` before the model's name. The message does not show the address.
    """
    address = address_and_model.rsplit("#", maxsplit=1)[0]
    if "@" in address:
        raise ConfigError(
            f"{name}: expected an address without user and password, found one with an '@' ({origin}). Put the key "
            f"into {KEY_PLACES[name]}"
        )


def _check_encoder(encoder: str, origin: str) -> None:
    """Refuse an address with a user in it; an encoder may also be a name or a folder."""
    if encoder.startswith(("http://", "https://")):
        refuse_user(encoder, origin, name="encoder")


def _check_telemetry(address: str, origin: str) -> None:
    """Refuse an address with a user in it, since addresses are shown, and one that is no HTTP address."""
    refuse_user(address, origin, name="telemetry")
    if address and not address.startswith(("http://", "https://")):
        raise ConfigError(
            f"telemetry: expected the address of an OTLP collector, like http://127.0.0.1:4318, found {address!r} "
            f"({origin})"
        )


def _check_dependencies(pairs: Sequence[str], origin: str) -> None:
    """Refuse what is no pair of ids with an equals sign between them."""
    for pair in pairs:
        tool, _, prerequisite = pair.partition("=")
        if not (tool and prerequisite):
            raise ConfigError(f"dependencies: expected TOOL=PREREQUISITE, two ids, found {pair!r} ({origin})")


def _check_rules(rules: Sequence[str], origin: str) -> None:
    """Refuse a name that is not among `RULES`."""
    for rule in rules:
        if rule not in RULES:
            raise ConfigError(f"rules_off: expected some of {', '.join(RULES)}, found {rule!r} ({origin})")


def _check_index(index: str, origin: str) -> None:
    """Refuse the address of an engine with a password, because settings are shown.

    Raises:
        ConfigError: without the address.
    """
    _, _, address = index.partition(":")
    has_password = re.search(r"//[^/@?]*:[^/@?]*@|[?&]\w*password=", address)  # USER:PASSWORD@, or ?password=
    has_user = "@" in address and "postgres" not in address  # an address of PostgreSQL may have a user alone
    if has_password or has_user:
        raise ConfigError(
            f"index: expected an address without a password ({origin}). Use PGPASSWORD or ~/.pgpass for PostgreSQL, "
            "and MILVUS_TOKEN for Milvus"
        )


def define(default: object, group: str, help: str, *, kind: type | None = None, **field_options: Any) -> Any:
    """Make the field of `Settings` for one setting.

    `default` is its value if nobody sets it, or a function that returns the value. `kind` is the type of its values;
    None: the type of the default. The other arguments are attributes of `Setting`.
    """
    metadata = {"setting": Setting(group, help, kind or type(default), **field_options)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


ABOVE_ZERO: Final = Between(0, above=True)
NOT_NEGATIVE: Final = Between(0)
SECONDS: Final = Between(1, 600)  # what an untrusted file may choose
HOME, SEARCH, SOURCES, JOURNAL, TRUST = "Home", "Search", "Sources", "Journal and learning", "Trust"
GATEWAY, PROGRAMS, MODEL, SERVICE = "Gateway", "Programs of agents", "Language model", "Services"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Every setting, with its default.

    The environment variable of a setting is `TOOLSCOUT_` and its name in capitals. In `toolscout.toml` it has its own
    name. `origins` says for each setting which of the four places its value came from. `ignored` names the settings of
    a file in the working directory that were not applied, because the user does not trust its folder. If the setting
    `home` was an address that a package opens, `database` is that home, and `home` is its folder on this machine. Both
    belong to the tenant.
    """

    home: Path = define(
        lambda: Path(platformdirs.user_data_dir("toolscout", appauthor=False)),
        HOME,
        "folder of catalogue, journal and models, or postgresql://…",
        kind=Path,
        harm="moves the catalogue, its approvals and the list of trusted folders",
        page="use/postgres.md",
        default_text="the platform's data folder",
    )
    tenant: str = define(
        DEFAULT_TENANT, HOME, "tenant of the home", harm="moves the catalogue and its approvals", page="use/tenants.md"
    )
    recipe: str = define("scout", SEARCH, "recipe that searches use", file=True, page="understand/search.md#recipes")
    recipe_options: tuple[str, ...] = define(
        (),
        SEARCH,
        "options of that recipe, like rounds=1",
        harm="decides how often a search asks a language model",
        page="use/language-models.md#set-options-of-a-recipe",
    )
    model: Path | None = define(None, SEARCH, "fitted model that searches use", kind=Path, harm="decides every answer")
    encoder: str = define(
        choose_encoder,
        SEARCH,
        "encoder: static, compact, minilm, a folder, a name or an address",
        kind=str,
        check=_check_encoder,
        harm="an address gets every query, every tool text and the key",
        page="use/embedding-models.md",
        default_text="compact if its package is installed, else static",
    )
    index: str = define(
        "auto",
        SEARCH,
        "index over vectors: auto (by size), exact, ann, an engine or a plug-in",
        check=_check_index,
        harm="the code of a plug-in gets every vector",
        page="use/engines.md",
    )
    k: int = define(5, SEARCH, "tools in an answer", bounds=ABOVE_ZERO, file=Between(1, 100))
    prerequisites: int = define(
        4,
        SEARCH,
        "most prerequisites between two matches; 0: none",
        bounds=NOT_NEGATIVE,
        file=Between(0, 10),
        page="use/prerequisites.md",
    )
    dependencies: tuple[str, ...] = define(
        (),
        SEARCH,
        "prerequisites of tools, as tool=prerequisite, two ids",
        check=_check_dependencies,
        harm="brings tools into answers",
        page="use/prerequisites.md#declare-them",
    )
    coverage_aim: float = define(
        0.9,
        SEARCH,
        "probability of a complete answer that ends it, with -k auto",
        bounds=Between(0, 1, above=True),
        file=Between(0.01, 1),
        page="reference/glossary.md",
    )
    rules_off: tuple[str, ...] = define(
        (),
        SEARCH,
        "rules of ranking that searches leave out",
        check=_check_rules,
        harm="lets suspicious tools come first",
        page="results/rules.md#turn-a-rule-off",
    )
    fold_similar: bool = define(True, SEARCH, "whether the same tool of several sources is one hit", file=True)
    preferred_sources: tuple[str, ...] = define(
        (),
        SEARCH,
        "sources whose tools stand for the same tools of others, the most preferred first",
        harm="decides which source serves a call that several could serve",
    )
    false_rejects: float = define(
        0.02,
        SEARCH,
        "share of answerable requests that may be called doubtful; 0: none is",
        bounds=Between(0, 0.2),
        harm="decides how many requests are turned away",
        page="use/need.md#set-the-budget",
    )
    refuse: bool = define(
        False,
        SEARCH,
        "whether these requests get no tools; otherwise the nearest ones, marked as of low confidence",
        harm="decides whether requests are turned away",
        page="use/need.md#set-the-budget",
    )
    mcp_timeout: float = define(
        60.0, SOURCES, "seconds to read the list of an MCP server", bounds=ABOVE_ZERO, file=SECONDS
    )
    http_timeout: float = define(30.0, SOURCES, "seconds to fetch a document", bounds=ABOVE_ZERO, file=SECONDS)
    private_hosts: tuple[str, ...] = define(
        (),
        SOURCES,
        "private addresses that documents may lead to",
        harm="lets documents at URLs reach into the network of the user",
        page="use/sources.md#openapi-documents",
    )
    max_tools: int = define(
        20_000, SOURCES, "tools of a server, operations of a document", bounds=ABOVE_ZERO, file=Between(1, 20_000)
    )
    registry: str = define(
        "https://registry.modelcontextprotocol.io",
        SOURCES,
        "address of the MCP registry for registry:NAME",
        harm="decides what registry:NAME stands for",
    )
    journal: bool = define(
        True, JOURNAL, "whether searches and calls are recorded", harm="hides what was searched and called"
    )
    journal_queries: str = define(
        "full",
        JOURNAL,
        "how queries are recorded: full, hash or none",
        choices=("full", "hash", "none"),
        harm="decides how queries are stored",
    )
    journal_keep_days: float = define(
        0.0, JOURNAL, "days after which events are removed; 0: never", bounds=NOT_NEGATIVE, harm="removes events"
    )
    redact_personal: bool = define(
        False,
        JOURNAL,
        "whether e-mail addresses and telephone numbers are masked too",
        harm="decides how queries are stored",
    )
    caller: str = define(
        "local", JOURNAL, "name of the home's owner in the journal", harm="decides which callers learning trusts"
    )
    learn_trust: tuple[str, ...] = define(
        (),
        JOURNAL,
        "callers whose usage may promote a model alone",
        harm="decides which callers learning trusts",
        page="use/learning.md#decide-whom-to-trust",
    )
    trust: str = define(
        "pin",
        TRUST,
        "pin: changed definitions wait for approval; off: they are served",
        choices=("pin", "off"),
        harm="serves changed definitions unseen",
        page="use/security.md",
    )
    trust_scan: bool = define(
        True, TRUST, "whether suspicious and copied tools are demoted", harm="serves orders to the model unseen"
    )
    call_timeout: float = define(
        60.0, GATEWAY, "seconds of a call through the gateway", bounds=ABOVE_ZERO, file=SECONDS
    )
    gateway_budget: int = define(
        3_000,
        GATEWAY,
        "tokens of an answer of the gateway",
        bounds=Between(MIN_BUDGET),
        file=Between(MIN_BUDGET, 20_000),
    )
    gateway_result_budget: int = define(
        10_000,
        GATEWAY,
        "tokens of a call's result through the gateway",
        bounds=Between(MIN_RESULT_BUDGET),
        file=Between(MIN_RESULT_BUDGET, 100_000),
        page="use/gateway-traffic.md#long-results",
    )
    gateway_idle: float = define(
        600.0,
        GATEWAY,
        "seconds after which an unused server is stopped; 0: never",
        bounds=NOT_NEGATIVE,
        harm="keeps every server running",
    )
    gateway_servers: int = define(
        32,
        GATEWAY,
        "servers that run as processes at the same time",
        bounds=ABOVE_ZERO,
        harm="decides how many processes run",
    )
    gateway_rate: float = define(
        100.0,
        GATEWAY,
        "requests a second of one caller of the gateway; 0: no limit",
        bounds=NOT_NEGATIVE,
        harm="lets one caller take the whole gateway",
    )
    public_url: str = define(
        "",
        GATEWAY,
        "https address at which browsers reach the gateway, for sign-ins",
        harm="gets the codes of sign-ins",
        page="use/identities.md",
    )
    shared_sessions: tuple[str, ...] = define(
        (),
        GATEWAY,
        "servers with OAuth that all callers use as whoever added them",
        harm="lets all callers act as one person",
    )
    pins: tuple[str, ...] = define(
        (), GATEWAY, "ids of tools that the gateway shows beside its own", harm="shows its tools to the agent"
    )
    run_code: bool = define(
        False,
        PROGRAMS,
        "whether agents may run programs that call tools",
        harm="lets agents run programs",
        page="use/run-code.md",
    )
    run_code_writes: bool = define(
        False,
        PROGRAMS,
        "whether such programs may call tools that change something",
        harm="lets programs change something",
    )
    run_code_seconds: float = define(
        60.0, PROGRAMS, "seconds of a program, with its calls", bounds=ABOVE_ZERO, file=SECONDS
    )
    llm: str = define(
        "",
        MODEL,
        "address and model of a chat-completions endpoint, https://host/v1#model",
        check=refuse_user,
        harm="an address gets queries, tool texts and the key",
        page="use/language-models.md",
    )
    llm_timeout: float = define(
        60.0, MODEL, "seconds of a request to the language model", bounds=ABOVE_ZERO, file=SECONDS
    )
    llm_concurrency: int = define(
        4, MODEL, "requests to it at the same time", bounds=ABOVE_ZERO, harm="decides how fast money is spent"
    )
    llm_rpm: float = define(
        0.0,
        MODEL,
        "requests to it in a minute; 0: no limit",
        bounds=NOT_NEGATIVE,
        harm="decides how fast money is spent",
    )
    llm_budget: str = define(
        "",
        MODEL,
        "limits of a command or process, like calls=500,tokens=9000,dollars=2",
        harm="decides how much money is spent",
    )
    llm_reply_tokens: int = define(
        1024,
        MODEL,
        "tokens of a reply, with the thoughts of a reasoning model",
        bounds=ABOVE_ZERO,
        harm="decides what a call may cost",
    )
    llm_price_in: float = define(
        0.0, MODEL, "dollars for a million tokens sent", bounds=NOT_NEGATIVE, harm="with 0, a budget limits nothing"
    )
    llm_price_out: float = define(
        0.0, MODEL, "dollars for a million tokens received", bounds=NOT_NEGATIVE, harm="with 0, a budget limits nothing"
    )
    telemetry: str = define(
        "",
        SERVICE,
        "address of an OTLP collector for traces and metrics",
        check=_check_telemetry,
        harm="an address gets the names of tools, servers and the times of calls",
        page="use/watching.md",
    )
    telemetry_share: float = define(
        0.05,
        SERVICE,
        "share of the traces that begin here and are sent; OTEL_TRACES_SAMPLER wins",
        bounds=Between(0, 1),
        harm="decides how much is sent",
    )
    log_format: str = define(
        "text", SERVICE, "log lines of serve and gateway: text or json", choices=("text", "json"), file=True
    )
    drain_seconds: float = define(
        0.0,
        SERVICE,
        "seconds of /ready saying 503 before a stopping service takes no more requests",
        bounds=NOT_NEGATIVE,
        harm="delays the end of a service",
    )
    ray: str = define(
        "",
        SERVICE,
        "address of a Ray cluster for big jobs, or local",
        harm="its workers run code, and get every tool text",
        page="use/how-big.md",
    )
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    ignored: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    database: SharedHome | None = None

    @property
    def place(self) -> Home:
        """The home with catalogue, journal and models: `database` if it was opened from an address, else `home`."""
        return self.database or self.home

    def uses(self, rule: str) -> bool:
        """Tell whether searches follow a rule of `RULES`. Four rules can also be turned off by their own settings."""
        is_on = {
            "refusals": self.false_rejects > 0,
            "prerequisites": self.prerequisites > 0,
            "demotion": self.trust_scan,
            "folding": self.fold_similar,
        }
        return rule not in self.rules_off and is_on.get(rule, True)

    def __post_init__(self) -> None:
        for name, setting in list_settings().items():
            setting.refuse_wrong(name, getattr(self, name), self.origins.get(name, "argument"))

    def items(self) -> list[tuple[str, Any, str]]:
        """Return (name, value, origin) of every setting."""
        values = {name: getattr(self, name) for name in list_settings()} | {"home": self.place}
        return [(name, value, self.origins.get(name, "default")) for name, value in values.items()]


@functools.cache
def list_settings() -> Mapping[str, Setting]:
    """Return the name of every setting and what it means, group by group."""
    fields = {field.name: field.metadata for field in dataclasses.fields(Settings)}
    return {name: metadata["setting"] for name, metadata in fields.items() if metadata}


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
    path = file or Path(SETTINGS_FILE_NAME)
    content = _read(path, required=file is not None)
    from_file = convert_values(_parse(path, content), str(path))
    from_environment = _read_environment(environ, report)
    passed = convert_values({name: value for name, value in arguments.items() if value is not None}, "argument")
    ignored: tuple[str, ...] = ()
    harmful = needing_trust(from_file) if file is None else []
    if harmful:
        # The file cannot choose the home whose list of trusted folders counts.
        home = local_folder(_choose_home(from_environment | passed)["home"])
        if not trusted_folders.is_trusted(home, path.absolute().parent, content):
            from_file = {name: value for name, value in from_file.items() if name not in harmful}
            ignored = tuple(harmful)
            if report:
                _report_ignored(path.absolute(), content, ignored)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for place_values, place in ((from_file, str(path)), (from_environment, "environment"), (passed, "argument")):
        values |= place_values
        origins |= dict.fromkeys(place_values, place)
    return Settings(**values | _choose_home(values), origins=origins, ignored=ignored)


def _choose_home(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings `home`, `tenant` and `database` for the home and the tenant among `values`.

    Raises:
        NotFound: if a home that is a folder has no such tenant.
    """
    root = values.get("home", Settings().home)
    root_tenant = DEFAULT_TENANT if isinstance(root, Path) else root.tenant
    tenant = values.get("tenant") or root_tenant
    home = place_tenant(root, tenant)
    require_folder(root, tenant)
    return {"home": local_folder(home), "tenant": tenant, "database": find_shared(home)}


def read_settings_file(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the content of a settings file, and the values in it, unchecked.

    Raises:
        ConfigError: if there is no such file, or it is not TOML.
    """
    content = _read(path, required=True)
    return content, _parse(path, content)


def needing_trust(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that a file may set only if its folder is trusted."""
    all_settings = list_settings()
    return [
        name
        for name, value in values.items()
        if name not in all_settings or not all_settings[name].may_come_from_file(value)
    ]


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


def _read_environment(environ: Mapping[str, str], report: bool) -> dict[str, Any]:
    """Return the settings among environment variables, and warn once of variables that are like those of settings."""
    names_by_variable = {_variable(name): name for name in (*list_settings(), *RETIRED)}
    for variable in environ if report else ():
        if not variable.startswith(_variable("")) or variable in names_by_variable or (variable, "") in _reported:
            continue
        near = difflib.get_close_matches(variable, names_by_variable, n=1, cutoff=MIN_LIKENESS)
        if near:
            _reported.add((variable, ""))
            _log.warning("toolscout: the variable %s is no setting. Did you mean %s?", variable, near[0])
    texts = {name: environ.get(variable) for variable, name in names_by_variable.items()}
    return convert_values({name: text for name, text in texts.items() if text}, "environment")


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


def format_value(value: object) -> str:
    """Format a value as it is written in the environment; `none` if it is empty."""
    if value in (None, "", ()):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"TOOLSCOUT_{name.upper()}"


def _read(path: Path, *, required: bool) -> bytes:
    """Return the content of a settings file. If there is none: b"", or an error if the file is `required`."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if required:
            raise ConfigError(f"expected a settings file, found none at {path}. Name the folder of one.") from None
        return b""
    except OSError as error:
        raise ConfigError(f"{path}: the settings file cannot be read: {error.strerror}") from None


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    """Return the values in the content of a settings file, unchecked."""
    try:
        return tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: this is not valid TOML: {describe_invalid(error)}") from None


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


def convert_values(raw: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Convert values to the types of their settings.

    Args:
        raw: name → value as TOML, JSON or the environment has it.
        origin: where the values come from, for messages.

    Raises:
        ConfigError: for an unknown name, or a value of the wrong type or out of bounds.
    """
    all_settings = list_settings()
    values = {}
    for name, value in raw.items():
        if name in RETIRED:
            _log.warning("toolscout: %s (%s) is no longer a setting. %s. Remove it.", name, origin, RETIRED[name])
        elif name not in all_settings:
            near = difflib.get_close_matches(name, all_settings, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else "See  toolscout settings"
            if isinstance(value, Mapping):
                hint = f"Settings are in no table: leave out the line [{name}]"
            raise ConfigError(f"{origin}: expected a known setting, found {name!r}. {hint}")
        else:
            values[name] = convert_value(name, value, all_settings[name].kind, origin)
    return values


def convert_value(name: str, value: Any, kind: type, origin: str) -> Any:
    """Convert one value to the type of its setting. `origin` names its place in the error."""
    try:
        if kind is bool:
            return value if isinstance(value, bool) else BOOLEAN_WORDS[str(value).lower()]
        if isinstance(value, bool):  # Python would take it for the number 0 or 1
            raise ValueError
        if kind is tuple:
            return _split_names(value)
        if name == "home" and str(value).strip():
            return parse_home(str(value)) if isinstance(value, str | Path) else value  # a `SharedHome` stays as it is
        if kind is Path:
            return _convert_folder(value)
        if kind is str and not isinstance(value, str):
            raise ValueError
        return kind(value)
    except (KeyError, TypeError, ValueError):  # KeyError: not among the `BOOLEAN_WORDS`
        expected = EXPECTED_BY_TYPE.get(kind, "text")
        raise ConfigError(f"{name} ({origin}): expected {expected}, found {value!r}") from None


def _convert_folder(value: Any) -> Path:
    """Return the path of a folder, with `~` expanded. Raises ValueError for an empty text."""
    if not str(value).strip():
        raise ValueError
    return Path(value).expanduser()


def _split_names(value: Any) -> tuple[str, ...]:
    """Return names from a list, or from one text with commas. Raises ValueError for anything else."""
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
        except ValueError:
            limit = math.nan
        is_first_of_unit = unit in limits and limits[unit] is None
        if not is_first_of_unit or not 0 <= limit < math.inf:
            raise ConfigError(f"llm_budget: expected limits like calls=500,tokens=200000,dollars=2, found {part!r}")
        limits[unit] = limit
    return limits
