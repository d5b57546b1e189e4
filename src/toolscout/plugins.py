"""Finds what other installed packages add to toolscout: sources, encoders, rankers, indexes, homes and commands.

A package declares an entry point in one of these groups. Its name is what users write; nothing of it is imported before
somebody uses that name or runs `toolscout doctor`. docs/extend/ says what the object of each group must be.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from toolscout.errors import ConfigError

__all__ = [
    "BUILT_IN_NAMES",
    "COMMAND_PLUGINS",
    "ENCODER_PLUGINS",
    "HOME_PLUGINS",
    "INDEX_PLUGINS",
    "METHOD_PLUGINS",
    "PLUGIN_GROUPS",
    "REPORT_PLUGINS",
    "SOURCE_PLUGINS",
    "Plugin",
    "explain_refusal",
    "find_plugin",
    "is_own",
    "list_plugins",
    "load_function",
    "load_plugin",
]

SOURCE_PLUGINS: Final = "toolscout.sources"
ENCODER_PLUGINS: Final = "toolscout.encoders"
METHOD_PLUGINS: Final = "toolscout.methods"
INDEX_PLUGINS: Final = "toolscout.indexes"
HOME_PLUGINS: Final = "toolscout.homes"
REPORT_PLUGINS: Final = "toolscout.reports"  # parts of what `toolscout doctor` says
COMMAND_PLUGINS: Final = "toolscout.commands"
PLUGIN_GROUPS: Final = (SOURCE_PLUGINS, ENCODER_PLUGINS, METHOD_PLUGINS, INDEX_PLUGINS, HOME_PLUGINS, COMMAND_PLUGINS)
#: The distributions of this repository. What they bring may bear names that belong to toolscout.
OWN_PACKAGES: Final = frozenset(
    {"toolscout", *(f"toolscout-{name}" for name in ("server", "gateway", "lab", "postgres", "scale", "compact"))}
)
PLUGIN_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MIN_NAME_CHARS: Final = 2  # `c:` begins a path on Windows
#: Names that belong to toolscout, which no plug-in may take. The names of recipes are in their registry.
BUILT_IN_NAMES: Final = {
    SOURCE_PLUGINS: frozenset(
        {"mcp", "openapi", "schemas", "python", "folder", "skills", "agents"}
        | {"objects", "py", "http", "https", "file"}
    ),
    ENCODER_PLUGINS: frozenset({"static", "compact", "minilm", "onnx", "http", "https"}),
    METHOD_PLUGINS: frozenset[str](),
    INDEX_PLUGINS: frozenset({"exact"}),
    HOME_PLUGINS: frozenset({"file"}),
    COMMAND_PLUGINS: frozenset[str](),
}


@dataclasses.dataclass(frozen=True)
class Plugin:
    """An entry point of an installed package.

    Attributes:
        group: one of `PLUGIN_GROUPS`.
        name: what users write.
        package: the distribution that declares it.
        version: of the distribution.
        target: what it names: `module:attribute`.
    """

    group: str
    name: str
    package: str
    version: str
    target: str

    def __str__(self) -> str:
        return f"the plug-in {self.name!r} of {self.package} {self.version}"


@functools.cache
def list_plugins(group: str) -> tuple[Plugin, ...]:
    """Return the plug-ins of a group by name, without importing any; a process looks once."""
    plugins = {
        Plugin(
            group=group,
            name=entry.name,
            package=entry.dist.name if entry.dist else "unknown",
            version=entry.dist.version if entry.dist else "unknown",
            target=entry.value,
        )
        for entry in importlib.metadata.entry_points(group=group)
    }
    return tuple(sorted(plugins, key=lambda plugin: (plugin.name, plugin.package, plugin.version)))


def is_own(plugin: Plugin) -> bool:
    """Return whether toolscout itself, or a package of this repository, brings the plug-in."""
    return plugin.package in OWN_PACKAGES


def find_plugin(group: str, name: str) -> Plugin | None:
    """Return the plug-in of that name. None: there is none, or no plug-in may have that name (`explain_refusal`).

    Raises:
        ConfigError: if several packages declare a plug-in of that name.
    """
    if name in BUILT_IN_NAMES[group] or not _is_valid_name(name):
        return None
    plugins = [plugin for plugin in list_plugins(group) if plugin.name == name]
    if len(plugins) > 1:
        packages = " and ".join(f"{plugin.package} {plugin.version}" for plugin in plugins)
        raise ConfigError(f"Both {packages} bring {name!r} to {group}. Uninstall one of them.")
    return plugins[0] if plugins else None


def _is_valid_name(name: str) -> bool:
    return len(name) >= MIN_NAME_CHARS and PLUGIN_NAME.fullmatch(name) is not None


def load_plugin(plugin: Plugin) -> Any:
    """Import what a plug-in names.

    Raises:
        ConfigError: if that fails, for whatever reason; the message names the package.
    """
    entry = importlib.metadata.EntryPoint(plugin.name, plugin.target, plugin.group)
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(
            f"The plug-in {plugin.name!r} of {plugin.package} {plugin.version} cannot be loaded ({plugin.target}): "
            f"{reason}. Update the package, or uninstall it."
        ) from error


def load_function(plugin: Plugin) -> Callable[..., Any]:
    """Import the function that a source, an encoder or an index names.

    Raises:
        ConfigError: if that fails, or it is no function.
    """
    function: Callable[..., Any] = load_plugin(plugin)
    if not callable(function):
        raise ConfigError(
            f"{plugin.target} of {plugin.package} {plugin.version} is no function, so {plugin.group} cannot use it. "
            "Update the package, or uninstall it."
        )
    return function


def explain_refusal(plugin: Plugin, taken: Iterable[str] = ()) -> str | None:
    """Return why a plug-in's name cannot be used. None: it can.

    Args:
        plugin: any.
        taken: names of toolscout itself in that group, besides `BUILT_IN_NAMES`.
    """
    if plugin.name in BUILT_IN_NAMES[plugin.group] or plugin.name in taken:
        return f"The name {plugin.name!r} belongs to toolscout, which never uses {plugin.package} for it."
    if not _is_valid_name(plugin.name):
        return (
            f"The name {plugin.name!r} cannot be used. A name has at least {MIN_NAME_CHARS} lower-case letters or "
            "digits, begins with a letter, and may join words with '-'."
        )
    try:
        find_plugin(plugin.group, plugin.name)
    except ConfigError as error:  # several packages declare it
        return str(error)
    return None
