"""Finds the tools of a snapshot that every search holds back, from their texts alone.

`suspects` give orders to the model or are stuffed: their text is written for the search. `claimants` mostly address
the reader or claim a rank (`toolscout.search.claims`). Tools that have not changed since the snapshot before are not
screened again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from toolscout.home.catalogue.snapshot import Catalogue
from toolscout.search.claims import find_claimants
from toolscout.trust.screening import scan
from toolscout.types import Tool

__all__ = ["claimants", "screen_change", "suspects"]

_DEMOTED_KINDS: Final = ("instructions", "stuffing")
SUSPECTS_FORMAT: Final = "suspects/3"  # raise it whenever the screening of an unchanged tool changes
CLAIMANTS_FORMAT: Final = "claimants/1"


def suspects(catalogue: Catalogue) -> frozenset[str]:
    """Return the ids of tools that give orders to the model or are stuffed."""
    return _list_screened(catalogue, SUSPECTS_FORMAT)


def claimants(catalogue: Catalogue) -> frozenset[str]:
    """Return the ids of tools that mostly address the reader or claim a rank."""
    return _list_screened(catalogue, CLAIMANTS_FORMAT)


def screen_change(before: Catalogue, after: Catalogue, tool: Tool) -> None:
    """Screen the snapshot `after`, which differs from `before` in one tool, without screening the other tools again."""
    for key, screen in _SCREENS.items():
        ids = (_list_screened(before, key) - {tool.id}) | screen([tool])
        after.pending[key] = msgspec.json.encode(sorted(ids))


def _find_suspects(tools: Sequence[Tool]) -> set[str]:
    """Return the ids of the tools that screening demotes."""
    return {tool.id for tool in tools if any(finding.kind in _DEMOTED_KINDS for finding in scan(tool))}


_SCREENS: Final[dict[str, Callable[[Sequence[Tool]], set[str]]]] = {
    SUSPECTS_FORMAT: _find_suspects,
    CLAIMANTS_FORMAT: find_claimants,
}


def _list_screened(catalogue: Catalogue, key: str) -> frozenset[str]:
    """Return the ids that one of the two screens finds; `key`: its format, under which the result is stored."""
    encoded = catalogue.load_or_build(key, lambda: msgspec.json.encode(_screen_new(catalogue, key)))
    return frozenset(msgspec.json.decode(encoded, type=list[str]))


def _screen_new(catalogue: Catalogue, key: str) -> list[str]:
    """Screen the new and changed tools, and add those of the others that the snapshot before found. Returns ids."""
    ids: set[str] = set()
    positions = None  # of the tools to screen; None: all
    earlier = catalogue.earlier
    encoded = earlier.load_value(key) if earlier else None
    if earlier and encoded:
        positions = earlier.new_positions
        kept_ids = {catalogue.ids[position] for position in earlier.kept_positions.tolist()}
        ids = kept_ids & set(msgspec.json.decode(encoded, type=list[str]))
    for batch in catalogue.batches(positions):
        ids |= _SCREENS[key](batch)
    return sorted(ids)
