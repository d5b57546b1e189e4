"""Reads skills (folders with a SKILL.md) and A2A agent cards. Both are found beside tools, and never called.

`describe_tools` shows the instructions of a skill. Nothing in its folder is run.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from toolscout.errors import BadEntry, SourceError
from toolscout.settings import Settings
from toolscout.sources.documents import Library, is_remote
from toolscout.sources.parsing import parse_document
from toolscout.sources.reading import (
    RawTool,
    Reading,
    Schema,
    as_list,
    as_object,
    as_text,
    build_tool,
    collect,
    source_name,
)
from toolscout.types import Tool

__all__ = [
    "MAX_SKILL_BYTES",
    "SKILL_FILE",
    "build_skill",
    "find_skills",
    "is_card",
    "read_agents",
    "read_skills",
    "split_document",
]

SKILL_FILE: Final = "SKILL.md"
MAX_SKILL_BYTES: Final = 1_000_000  # of one SKILL.md
MAX_SKILL_FOLDERS: Final = 10_000  # that are looked into
MAX_SKILL_DEPTH: Final = 4  # folders below the one that is added
MAX_LISTED_FILES: Final = 100  # files of a skill that are named
CARD_PATH: Final = "/.well-known/agent-card.json"
MAX_AGENT_SKILLS: Final = 200  # of one card
MAX_CARD_NAME_CHARS: Final = 200  # in the names of problems
FENCE: Final = "---"
MAX_MENTIONS: Final = 8  # tools in the text of a skill that a search brings with it
_TOOL_IN_BACKTICKS: Final = re.compile(r"`([\w.:/-]{1,128})[`(]")
WHEN_KEYS: Final = ("when_to_use", "when-to-use", "whenToUse", "when")


def find_skills(folder: Path) -> Iterator[Path]:
    """Yield each SKILL.md in a folder and the folders below, in the order of their paths. Links are not followed.

    The search ends silently after 10,000 folders, and four levels down.
    """
    for count, (parent, subfolders, files) in enumerate(os.walk(folder)):
        # `os.walk` goes on with the folders that are left in this list.
        subfolders[:] = sorted(name for name in subfolders if not name.startswith(".") and name != "node_modules")
        if count >= MAX_SKILL_FOLDERS:
            return
        if SKILL_FILE in files:
            yield Path(parent) / SKILL_FILE
            subfolders.clear()  # they belong to this skill
        elif len(Path(parent).relative_to(folder).parts) >= MAX_SKILL_DEPTH:
            subfolders.clear()


def read_skills(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Read the skills in a folder: its own, or those of the folders below.

    Args:
        locator: the folder.
        name: the source's name. By default the folder's name.
        settings: not used.

    Raises:
        SourceError: if the folder contains no skill.
    """
    folder = Path(locator).expanduser()
    source = name or source_name(folder.resolve().name)
    files = list(find_skills(folder))
    if not files:
        raise SourceError(f"{folder}: expected a folder with {SKILL_FILE}, found none: see docs/use/sources.md")
    entries = ((str(path.parent.name), functools.partial(_build_skill, source, path)) for path in files)
    return [collect(source, "skills", entries)]


def _build_skill(source: str, path: Path) -> Tool:
    """Build the record of a skill in a folder; see `build_skill`."""
    location = {"folder": str(path.parent.absolute()), "files": _list_files(path.parent)}
    return build_skill(source, _read_skill(path), path.parent.name, location)


def build_skill(
    source: str,
    document: str,
    name: str,
    location: Mapping[str, Any],
    tools: Collection[str] | None = None,
    distinct_id: str = "",
) -> Tool:
    """Build the record of one skill. A search that finds the skill adds the tools that it requires.

    Args:
        source: the name of its source.
        document: the text of its SKILL.md.
        name: its name if the document gives none.
        location: where the skill is; these keys are added to `meta`.
        tools: for a skill of a server: names of the server's tools. The skill requires those of them that
            `allowed-tools` names, or else those in backticks in its text. None: the skill is in a folder of the user,
            and requires the tools of any server that `allowed-tools` names, such as `mcp__clock__get_time`.
        distinct_id: its id within the source if its name cannot be the id, because a tool has that id. Empty: the name.

    Raises:
        BadEntry: if it does not say what it is for.
    """
    fields, text = split_document(document)
    description = fields.get("description")
    if not isinstance(description, str) or not description.strip():
        raise BadEntry(f'expected "description" at the top of {SKILL_FILE}, found none')
    when = next((fields[key] for key in WHEN_KEYS if isinstance(fields.get(key), str)), "")
    raw = RawTool(
        id=distinct_id or fields.get("name") or name,
        name=fields.get("name") or name,
        description=f"{description.strip()} Use it when: {when.strip()}" if when else description,
        path=("skills",),
        tags=as_list(fields.get("tags")),
        meta={"instructions": text, "when_to_use": str(when), **location},
        requires=_read_allowed(fields.get("allowed-tools"), tools) or _find_mentions(text, tools or ()),
    )
    return msgspec.structs.replace(build_tool(source, raw), kind="skill")


def _read_allowed(value: object, tools: Collection[str] | None) -> list[str]:
    """Return the tools that the field `allowed-tools` of a skill names.

    Args:
        value: a list, or words with spaces or commas between them, such as `Bash(git:*), mcp__clock__get_time`.
        tools: names of tools. Only these are returned. None: tools of any server are returned as `clock/get_time`.
    """
    words = re.split(r"[,\s]+", value) if isinstance(value, str) else as_list(value)
    allowed = list(dict.fromkeys(word.partition("(")[0] for word in words if isinstance(word, str)))
    if tools is None:
        matches = (re.fullmatch(r"mcp__(.+?)__(.+)", word) for word in allowed)
        return [f"{match[1]}/{match[2]}" for match in matches if match]
    names = dict.fromkeys(word.rpartition("__")[2] for word in allowed)
    return [name for name in names if name in tools]


def _find_mentions(text: str, tools: Collection[str]) -> list[str]:
    """Return the first 8 of `tools` that a text has in backticks: `get_time`, or a call such as `get_time(zone)`."""
    words = (match[1].rpartition("__")[2] for match in _TOOL_IN_BACKTICKS.finditer(text))
    return list(dict.fromkeys(word for word in words if word in tools))[:MAX_MENTIONS]


def _read_skill(path: Path) -> str:
    """Return the text of a SKILL.md of at most 1 MB."""
    if path.is_symlink():  # it could lead out of the folder
        raise BadEntry(f"expected {SKILL_FILE} as a file, found a link: copy the file here")
    try:
        if path.stat().st_size > MAX_SKILL_BYTES:
            raise BadEntry(f"expected at most {MAX_SKILL_BYTES:,} bytes in {SKILL_FILE}, found more")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadEntry(f"{SKILL_FILE} cannot be read: {error}") from None


def split_document(text: str) -> tuple[Schema, str]:
    """Split a SKILL.md into the fields at its top and the instructions below.

    Raises:
        BadEntry: if there are no fields, or they are no YAML.
    """
    lines = text.splitlines()
    fences = [number for number, line in enumerate(lines) if line.strip() == FENCE]
    begins_with_fields = len(fences) >= 2 and fences[0] == 0
    if not begins_with_fields:
        raise BadEntry(f"expected name and description between lines of {FENCE} at the top of {SKILL_FILE}, found none")
    closing = fences[1]
    try:
        fields = parse_document("\n".join(lines[1:closing]), SKILL_FILE)
    except SourceError as error:
        raise BadEntry(str(error)) from None
    if not isinstance(fields, dict):
        raise BadEntry(f"expected fields at the top of {SKILL_FILE}, found something else")
    return fields, "\n".join(lines[closing + 1 :]).strip()


def _list_files(folder: Path) -> list[str]:
    """List up to 100 files of a skill beside its SKILL.md, as paths relative to its folder."""
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
        locator: the file or URL. A URL without a path is the address of an agent: the path of its card is added.
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
    first = next(filter(is_card, cards), None)
    if first is None:
        raise SourceError(f"{locator}: expected an A2A agent card, found something else")
    source = name or source_name(str(as_object(first).get("name") or "agents"))
    entries = []
    for number, card in enumerate(cards, 1):
        entry_name = as_text(as_object(card).get("name"))[:MAX_CARD_NAME_CHARS] or f"card {number}"
        entries.append((entry_name, functools.partial(_build_agent, source, card)))
    return [collect(source, "agents", entries)]


def _build_agent(source: str, card: object) -> Tool:
    """Build the record of one agent. Raises BadEntry if `card` is no agent card, or has no name."""
    if not is_card(card):
        raise BadEntry("expected an agent card with skills, capabilities and a url, found something else")
    fields = as_object(card)
    skills = [skill for skill in as_list(fields.get("skills"))[:MAX_AGENT_SKILLS] if isinstance(skill, Mapping)]
    abilities = [f"{as_text(skill.get('name'))}: {as_text(skill.get('description'))}".strip(": ") for skill in skills]
    description = as_text(fields.get("description"))
    if abilities:
        description = f"{description} Skills: {'; '.join(filter(None, abilities))}".strip()
    tags = dict.fromkeys(tag for skill in skills for tag in as_list(skill.get("tags")) if isinstance(tag, str))
    # Later versions of the protocol have the URL in a list of interfaces.
    interfaces = [fields, *map(as_object, as_list(fields.get("supportedInterfaces")))]
    raw = RawTool(
        id=fields.get("name"),
        description=description,
        path=("agents",),
        tags=tuple(tags),
        meta={
            "url": next(filter(None, (as_text(interface.get("url")) for interface in interfaces)), ""),
            "version": as_text(fields.get("version")),
            "protocol": as_text(fields.get("protocolVersion")),
            "provider": as_text(as_object(fields.get("provider")).get("organization")),
            "skills": [{key: as_text(skill.get(key)) for key in ("id", "name", "description")} for skill in skills],
        },
    )
    return msgspec.structs.replace(build_tool(source, raw), kind="agent")
