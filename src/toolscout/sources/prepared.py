"""Turns what somebody else published (bundles, entries of a registry) into an mcpServers file in the home.

From then on it is a source like others. A server that runs as a program is started only if the user trusts the folder
of its file (`toolscout trust`), as with the MCP configurations of a project.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Final

import msgspec

from toolscout.config import Settings
from toolscout.errors import SourceError
from toolscout.privacy.credentials import CREDENTIAL_PREFIX
from toolscout.privacy.private_files import make_private_folder, replace_file
from toolscout.privacy.trusted_folders import is_configuration_trusted
from toolscout.sources.bundles import BUNDLE_SUFFIXES, describe_entry, unpack
from toolscout.sources.mcp_guard import is_private, origin_of
from toolscout.sources.reading import source_name
from toolscout.sources.registry import REGISTRY_PREFIX, fetch_bundle, fetch_server, split_locator

__all__ = ["is_published", "prepare"]

PUBLISHED_FOLDER: Final = "published"  # in the home
BUNDLES_FOLDER: Final = "bundles"  # in the home
ENTRY_FILE: Final = ".mcp.json"


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
            _, _, entry = describe_entry(folder, _make_prefix(source))
        label = f"{published.name} {published.version}"
    else:
        folder = unpack(Path(locator).expanduser(), bundles)
        title, version, _ = describe_entry(folder, "")
        source = name or source_name(title)
        _, _, entry = describe_entry(folder, _make_prefix(source))
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
