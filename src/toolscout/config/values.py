"""Turns the texts of the environment and the values of settings files into values of the right type."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolscout.errors import ConfigError
from toolscout.home import parse_home

__all__ = ["convert_value", "convert_values"]

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
