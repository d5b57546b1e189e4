"""Settings: arguments, then the environment, then `toolscout.toml`, then defaults; each value knows its origin."""

from __future__ import annotations

import dataclasses
import difflib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import platformdirs

from toolscout.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Settings", "load_settings", "refuse_user"]

FILE_NAME: Final = "toolscout.toml"
MIN_BUDGET: Final = 200
MOST_REJECTS: Final = 0.2
KEYS: Final = {
    "llm": "TOOLSCOUT_LLM_KEY, or a file that TOOLSCOUT_LLM_KEY_FILE names",
    "encoder": "TOOLSCOUT_EMBEDDINGS_KEY",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Every setting, with its default.

    The environment variable of a setting is `TOOLSCOUT_` and its name in capitals; in `toolscout.toml` it stands under
    its own name. `origins` says for each setting which of the four places its value came from.
    """

    home: Path = dataclasses.field(
        default_factory=lambda: Path(platformdirs.user_data_dir("toolscout", appauthor=False))
    )
    recipe: str = "hybrid"
    model: Path | None = None
    encoder: str = "static"
    k: int = 5
    mcp_timeout: float = 60.0
    http_timeout: float = 30.0
    max_tools: int = 20_000
    journal: bool = True
    journal_queries: str = "full"
    caller: str = "local"
    trust: str = "pin"
    trust_scan: bool = True
    call_timeout: float = 60.0
    gateway_budget: int = 3_000
    gateway_rate: float = 100.0
    gateway_query_chars: int = 4_000
    gateway_argument_bytes: int = 1_000_000
    pins: tuple[str, ...] = ()
    llm: str = ""
    llm_timeout: float = 60.0
    llm_concurrency: int = 4
    llm_rpm: float = 0.0
    llm_price_in: float = 0.0
    llm_price_out: float = 0.0
    learn_trust: tuple[str, ...] = ()
    false_rejects: float = 0.02
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.journal_queries not in ("full", "hash", "none"):
            raise ConfigError(
                f"journal_queries: expected full, hash or none, found {self.journal_queries!r} "
                f"({self.origins.get('journal_queries', 'argument')})"
            )
        if self.trust not in ("pin", "off"):
            raise ConfigError(
                f"trust: expected pin or off, found {self.trust!r} ({self.origins.get('trust', 'argument')})"
            )
        for name in (
            "k",
            "max_tools",
            "mcp_timeout",
            "http_timeout",
            "call_timeout",
            "llm_timeout",
            "llm_concurrency",
            "gateway_query_chars",
            "gateway_argument_bytes",
        ):
            if not getattr(self, name) > 0:
                origin = self.origins.get(name, "argument")
                raise ConfigError(f"{name}: expected a number above 0, found {getattr(self, name)} ({origin})")
        for name in ("llm_rpm", "llm_price_in", "llm_price_out", "gateway_rate"):
            if not getattr(self, name) >= 0:
                origin = self.origins.get(name, "argument")
                raise ConfigError(f"{name}: expected a number of at least 0, found {getattr(self, name)} ({origin})")
        refuse_user(self.llm, self.origins.get("llm", "argument"))
        if self.encoder.startswith(("http://", "https://")):
            refuse_user(self.encoder, self.origins.get("encoder", "argument"), name="encoder")
        if not 0 <= self.false_rejects <= MOST_REJECTS:
            origin = self.origins.get("false_rejects", "argument")
            raise ConfigError(
                f"false_rejects: expected a share from 0 (nothing is turned away) to {MOST_REJECTS}, "
                f"found {self.false_rejects} ({origin})"
            )
        if self.gateway_budget < MIN_BUDGET:
            origin = self.origins.get("gateway_budget", "argument")
            raise ConfigError(
                f"gateway_budget: expected at least {MIN_BUDGET} tokens, found {self.gateway_budget} ({origin})"
            )

    def items(self) -> list[tuple[str, Any, str]]:
        """(name, value, origin) of every setting."""
        return [
            (field.name, getattr(self, field.name), self.origins.get(field.name, "default"))
            for field in dataclasses.fields(self)
            if field.name != "origins"
        ]


def load_settings(*, file: Path | None = None, environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
    """Settings from all four places.

    Args:
        file: a settings file; by default `toolscout.toml` in the working directory, if there is one.
        environ: by default `os.environ`.
        **arguments: settings given in code or on the command line; None means not given.

    Raises:
        ConfigError: for an unknown setting or a value of the wrong type, naming the place it came from.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    kinds = {field.name: type(getattr(Settings(), field.name)) for field in dataclasses.fields(Settings)}
    kinds["home"] = kinds["model"] = Path
    del kinds["origins"]
    for origin, given in (
        (str(file or FILE_NAME), _from_file(file)),
        ("environment", {name: environ[_variable(name)] for name in kinds if environ.get(_variable(name))}),
        ("argument", {name: value for name, value in arguments.items() if value is not None}),
    ):
        for name, value in given.items():
            if name not in kinds:
                near = difflib.get_close_matches(name, kinds, n=1)
                hint = f": did you mean {near[0]!r}?" if near else f"; there are {', '.join(kinds)}"
                raise ConfigError(f"{origin}: expected a known setting, found {name!r}{hint}")
            values[name] = _convert(name, value, kinds[name], origin)
            origins[name] = origin
    return Settings(**values, origins=origins)


def refuse_user(place: str, origin: str = "argument", *, name: str = "llm") -> None:
    """Accept `https://host/v1#model`, but no address that may hold a password: it would be shown and kept.

    Raises:
        ConfigError: for an `@` before the model's name; the message does not show the address.
    """
    address, mark, rest = place.rpartition("#")
    if "@" in (address if mark else rest):
        raise ConfigError(
            f"{name}: expected an address without user and password, found one with an '@' ({origin}): put the key "
            f"into {KEYS[name]}"
        )


def _variable(name: str) -> str:
    return f"TOOLSCOUT_{name.upper()}"


def _from_file(file: Path | None) -> dict[str, Any]:
    path = file or Path(FILE_NAME)
    try:
        with path.open("rb") as stream:
            return tomllib.load(stream)
    except FileNotFoundError:
        if file is not None:
            raise ConfigError(f"{file}: expected a settings file, found none") from None
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected TOML, found something else: {error}") from None


def _convert(name: str, value: Any, kind: type, origin: str) -> Any:
    try:
        if kind is bool:
            if isinstance(value, bool):
                return value
            return {
                "1": True,
                "true": True,
                "yes": True,
                "on": True,
                "0": False,
                "false": False,
                "no": False,
                "off": False,
            }[str(value).lower()]
        if isinstance(value, bool):
            raise ValueError
        if kind is tuple:
            return _names(value)
        if kind is Path:
            if not str(value).strip():
                raise ValueError
            return Path(value).expanduser()
        if kind is str and not isinstance(value, str):
            raise ValueError
        return kind(value)
    except (KeyError, TypeError, ValueError):
        wanted = {
            bool: "true or false",
            int: "a whole number",
            float: "a number",
            Path: "a folder",
            tuple: "a list of names",
        }.get(kind, "text")
        raise ConfigError(f"{name} ({origin}): expected {wanted}, found {value!r}") from None


def _names(value: Any) -> tuple[str, ...]:
    """Names in a list, or in one text with commas between them."""
    names = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError
    return tuple(filter(None, names))
