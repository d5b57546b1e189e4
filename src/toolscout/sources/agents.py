"""Reads A2A agent cards: what other agents can do, and where they are. Agents are found, and never called."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from toolscout.config import Settings
from toolscout.errors import BadEntry, SourceError
from toolscout.sources.documents import Library, is_remote
from toolscout.sources.reading import RawTool, Reading, build_tool, collect, source_name
from toolscout.types import Tool

__all__ = ["CARD_PATH", "is_card", "read"]

CARD_PATH: Final = "/.well-known/agent-card.json"
MAX_AGENT_SKILLS: Final = 200  # of one card


def is_card(document: object) -> bool:
    """Return whether a document looks like an agent card."""
    if not isinstance(document, Mapping) or not isinstance(document.get("skills"), list):
        return False
    return "capabilities" in document and any(key in document for key in ("url", "supportedInterfaces"))


def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
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
    abilities = [f"{_read(skill, 'name')}: {_read(skill, 'description')}".strip(": ") for skill in skills]
    description = _read(card, "description")
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
            "version": _read(card, "version"),
            "protocol": _read(card, "protocolVersion"),
            "provider": _read(provider, "organization") if isinstance(provider, Mapping) else "",
            "skills": [{key: _read(skill, key) for key in ("id", "name", "description")} for skill in skills],
        },
    )
    return msgspec.structs.replace(build_tool(source, raw), kind="agent")


def _find_url(card: Mapping[str, Any]) -> str:
    """Return the address of an agent. Later versions of the protocol list interfaces."""
    interfaces = card.get("supportedInterfaces")
    places = [card, *(interfaces if isinstance(interfaces, list) else [])]
    return next((_read(place, "url") for place in places if isinstance(place, Mapping) and _read(place, "url")), "")


def _read(holder: Mapping[str, Any], key: str) -> str:
    value = holder.get(key)
    return value.strip() if isinstance(value, str) else ""
