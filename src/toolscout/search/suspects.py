"""Finds the tools of a snapshot that every search demotes: they give orders to the model, or are stuffed."""

from __future__ import annotations

from typing import Final

import msgspec

from toolscout.home.catalogue.snapshot import Catalogue
from toolscout.trust.screening import scan
from toolscout.types import Tool

__all__ = ["screen_change", "suspects"]

_DEMOTED_KINDS: Final = ("instructions", "stuffing")
SUSPECTS_FORMAT: Final = "suspects/2"  # raise it whenever the screening of an unchanged tool changes


def suspects(catalogue: Catalogue) -> frozenset[str]:
    """Return the ids of tools that every search demotes: they give orders to the model or are stuffed.

    Tools that have not changed since the snapshot before are not screened again.
    """
    encoded = catalogue.load_or_build(SUSPECTS_FORMAT, lambda: msgspec.json.encode(_list_suspects(catalogue)))
    return frozenset(msgspec.json.decode(encoded, type=list[str]))


def screen_change(before: Catalogue, after: Catalogue, tool: Tool) -> None:
    """Find the suspects of a snapshot that differs from another in one tool, without screening the others again."""
    suspicious_ids = suspects(before) - {tool.id} | ({tool.id} if _is_suspicious(tool) else set())
    after.pending[SUSPECTS_FORMAT] = msgspec.json.encode(sorted(suspicious_ids))


def _is_suspicious(tool: Tool) -> bool:
    return any(finding.kind in _DEMOTED_KINDS for finding in scan(tool))


def _list_suspects(catalogue: Catalogue) -> list[str]:
    suspicious_ids: set[str] = set()
    positions = None
    if (earlier := catalogue.earlier) and (encoded := earlier.load_value(SUSPECTS_FORMAT)):
        positions = earlier.new_positions
        kept_ids = {catalogue.ids[position] for position in earlier.kept_positions.tolist()}
        suspicious_ids = kept_ids & set(msgspec.json.decode(encoded, type=list[str]))
    for batch in catalogue.batches(positions):
        suspicious_ids |= {tool.id for tool in batch if _is_suspicious(tool)}
    return sorted(suspicious_ids)
