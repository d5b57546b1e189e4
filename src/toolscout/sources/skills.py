"""Reads skills (folders with a SKILL.md) and A2A agent cards. Both are found beside tools, and never called.

`describe_tools` shows the instructions of a skill. Nothing in its folder is run.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from toolscout.errors import BadEntry, SourceError
from toolscout.settings import Settings
from toolscout.sources.documents import Library, is_remote
from toolscout.sources.parsing import parse_document
from toolscout.sources.reading import RawTool, Reading, build_tool, collect, source_name
from toolscout.types import Tool

__all__ = ["find_skills", "is_card", "read_agents", "read_skills"]

SKILL_FILE: Final = "SKILL.md"
MAX_SKILL_BYTES: Final = 1_000_000  # of one SKILL.md
MAX_SKILL_FOLDERS: Final = 10_000  # that are looked into
MAX_SKILL_DEPTH: Final = 4  # folders below the one that is added
MAX_LISTED_FILES: Final = 100  # files of a skill that are named
CARD_PATH: Final = "/.well-known/agent-card.json"
MAX_AGENT_SKILLS: Final = 200  # of one card
FENCE: Final = "---"
WHEN_KEYS: Final = ("when_to_use", "when-to-use", "whenToUse", "when")


def find_skills(folder: Path) -> Iterator[Path]:
    """Yield each SKILL.md in a folder and the folders below, in the order of their paths. Links are not followed."""
    for count, (parent, names, files) in enumerate(os.walk(folder)):
        names[:] = sorted(name for name in names if not name.startswith(".") and name != "node_modules")
        if count >= MAX_SKILL_FOLDERS:
            return
        if SKILL_FILE in files:
            yield Path(parent) / SKILL_FILE
            names.clear()  # what lies below belongs to this skill
        elif len(Path(parent).relative_to(folder).parts) >= MAX_SKILL_DEPTH:
            names.clear()


def read_skills(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Read the skills in a folder: its own, or those of the folders below.

    Args:
        locator: the folder.
        name: the source's name. By default the folder's name.
        settings: not used.

    Raises:
        SourceError: if the folder holds no skill.
    """
    folder = Path(locator).expanduser()
    source = name or source_name(folder.resolve().name)
    files = list(find_skills(folder))
    if not files:
        raise SourceError(f"{folder}: expected a folder with {SKILL_FILE}, found none: see docs/use/sources.md")
    entries = ((str(path.parent.name), functools.partial(_build_skill, source, path)) for path in files)
    return [collect(source, "skills", entries)]


def _build_skill(source: str, path: Path) -> Tool:
    """Build the record of one skill.

    Raises:
        BadEntry: if its file cannot be read, or does not say what the skill is for.
    """
    fields, text = _split_document(_read_skill(path))
    description = fields.get("description")
    if not isinstance(description, str) or not description.strip():
        raise BadEntry(f'expected "description" at the top of {SKILL_FILE}, found none')
    when = next((fields[key] for key in WHEN_KEYS if isinstance(fields.get(key), str)), "")
    name = fields.get("name") or path.parent.name
    tags = fields.get("tags")
    raw = RawTool(
        id=name,
        description=f"{description.strip()} Use it when: {when.strip()}" if when else description,
        path=("skills",),
        tags=tags if isinstance(tags, list) else (),
        meta={
            "instructions": text,
            "when_to_use": str(when),
            "folder": str(path.parent.absolute()),
            "files": _list_files(path.parent),
        },
    )
    return msgspec.structs.replace(build_tool(source, raw), kind="skill")


def _read_skill(path: Path) -> str:
    if path.is_symlink():
        raise BadEntry(f"expected {SKILL_FILE} as a file, found a link: copy the file here")
    try:
        if path.stat().st_size > MAX_SKILL_BYTES:
            raise BadEntry(f"expected at most {MAX_SKILL_BYTES:,} bytes in {SKILL_FILE}, found more")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadEntry(f"{SKILL_FILE} cannot be read: {error}") from None


def _split_document(text: str) -> tuple[dict[str, Any], str]:
    """Split a SKILL.md into the fields at its top and the instructions below.

    Raises:
        BadEntry: if there are no fields, or they are no YAML.
    """
    lines = text.splitlines()
    if not lines or lines[0].strip() != FENCE or FENCE not in [line.strip() for line in lines[1:]]:
        raise BadEntry(f"expected name and description between lines of {FENCE} at the top of {SKILL_FILE}, found none")
    end = next(number for number, line in enumerate(lines[1:], 1) if line.strip() == FENCE)
    try:
        fields = parse_document("\n".join(lines[1:end]), SKILL_FILE)
    except SourceError as error:
        raise BadEntry(str(error)) from None
    if not isinstance(fields, dict):
        raise BadEntry(f"expected fields at the top of {SKILL_FILE}, found something else")
    return fields, "\n".join(lines[end + 1 :]).strip()


def _list_files(folder: Path) -> list[str]:
    """Name the other files of a skill, relative to its folder."""
    names: list[str] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        relative = Path(parent).relative_to(folder)
        names += [(relative / name).as_posix() for name in sorted(files) if not name.startswith(".")]
        if len(names) > MAX_LISTED_FILES:
            break
    return [name for name in names if name != SKILL_FILE][:MAX_LISTED_FILES]


# --- agent cards ------------------------------------------------------------------------------------------------------


def is_card(document: object) -> bool:
    """Return whether a document looks like an agent card."""
    if not isinstance(document, Mapping) or not isinstance(document.get("skills"), list):
        return False
    return "capabilities" in document and any(key in document for key in ("url", "supportedInterfaces"))


def read_agents(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Read an agent card, or a list of cards, from a file or a URL.

    Args:
        locator: the file or URL. A URL without a path is the address of an agent, whose card has a fixed place.
        name: the source's name. By default the agent's name.
        settings: `http_timeout` and `private_hosts`.

    Raises:
        SourceError: if there is no card.
    """
    if is_remote(locator) and urlsplit(locator).path in ("", "/"):
        locator = locator.rstrip("/") + CARD_PATH
    with Library(locator, settings.http_timeout, settings.private_hosts) as library:
        document = library.open_root()
    cards = document if isinstance(document, list) else [document]
    if not any(map(is_card, cards)):
        raise SourceError(f"{locator}: expected an A2A agent card, found something else")
    first = next(card for card in cards if is_card(card))
    source = name or source_name(str(first.get("name") or "agents"))
    entries = (
        (_name_card(card, number), functools.partial(_build_agent, source, card))
        for number, card in enumerate(cards, 1)
    )
    return [collect(source, "agents", entries)]


def _name_card(card: object, number: int) -> str:
    name = card.get("name") if isinstance(card, Mapping) else None
    return name[:200] if isinstance(name, str) and name.strip() else f"card {number}"


def _build_agent(source: str, card: Any) -> Tool:
    """Build the record of one agent.

    Raises:
        BadEntry: if it is no card, or has no name.
    """
    if not is_card(card):
        raise BadEntry("expected an agent card with skills, capabilities and a url, found something else")
    skills = [skill for skill in card["skills"][:MAX_AGENT_SKILLS] if isinstance(skill, Mapping)]
    abilities = [f"{_get_text(skill, 'name')}: {_get_text(skill, 'description')}".strip(": ") for skill in skills]
    description = _get_text(card, "description")
    if abilities:
        description = f"{description} Skills: {'; '.join(filter(None, abilities))}".strip()
    tags = dict.fromkeys(str(tag) for skill in skills for tag in skill.get("tags") or () if isinstance(tag, str))
    provider = card.get("provider")
    raw = RawTool(
        id=card.get("name"),
        description=description,
        path=("agents",),
        tags=tuple(tags),
        meta={
            "url": _find_url(card),
            "version": _get_text(card, "version"),
            "protocol": _get_text(card, "protocolVersion"),
            "provider": _get_text(provider, "organization") if isinstance(provider, Mapping) else "",
            "skills": [{key: _get_text(skill, key) for key in ("id", "name", "description")} for skill in skills],
        },
    )
    return msgspec.structs.replace(build_tool(source, raw), kind="agent")


def _find_url(card: Mapping[str, Any]) -> str:
    """Return the address of an agent. Later versions of the protocol list interfaces."""
    interfaces = card.get("supportedInterfaces")
    places = [card, *(interfaces if isinstance(interfaces, list) else [])]
    return next(
        (_get_text(place, "url") for place in places if isinstance(place, Mapping) and _get_text(place, "url")), ""
    )


def _get_text(holder: Mapping[str, Any], key: str) -> str:
    value = holder.get(key)
    return value.strip() if isinstance(value, str) else ""
