"""Finds tools and requests of test sets in training data, so that training can leave them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from toolscout.encoders import split_identifiers
from toolscout.lab.synth.filters import NearDuplicates, normalise
from toolscout.types import Tool, digest

__all__ = ["HeldOutTools", "fingerprint_definition", "split_by_overlap"]

MIN_TELLING_CHARS: Final = 20  # shorter descriptions are alike by chance


def fingerprint_definition(tool: Tool) -> str:
    """Hash name, description and parameters: the same tool in another source has the same hash."""
    return digest("definition/1", [tool.name, tool.description, tool.parameters])


class HeldOutTools:
    """The tools that training must not see, found again by definition, by description, or by nearly the same text."""

    def __init__(self, tools: Iterable[Tool], ids: Iterable[str] = ()) -> None:
        """Index the tools that are held out. `ids`: further ones, of which only the id is known."""
        self._ids = frozenset(ids)
        self._definitions: set[str] = set()
        self._descriptions: set[str] = set()
        self._texts = NearDuplicates()
        for tool in tools:
            self._definitions.add(fingerprint_definition(tool))
            self._descriptions.add(normalise(tool.description))
            self._texts.add(_describe(tool))

    def find_reason(self, tool: Tool, tool_id: str) -> str | None:
        """Return why a tool counts as held out: `id`, `definition`, `description` or `near`. None: it does not.

        Args:
            tool: a tool of the training data.
            tool_id: its id, as the held-out ids are written.
        """
        if tool_id in self._ids:
            return "id"
        if fingerprint_definition(tool) in self._definitions:
            return "definition"
        description = normalise(tool.description)
        if len(description) >= MIN_TELLING_CHARS and description in self._descriptions:
            return "description"
        text = _describe(tool)
        return "near" if text in self._texts or self._texts.has_near_duplicate(text) else None


def _describe(tool: Tool) -> str:
    return f"{split_identifiers(tool.name)} {tool.description}"


def split_by_overlap(tools: Sequence[Tool], held_out: HeldOutTools) -> tuple[list[Tool], dict[str, Any]]:
    """Return the tools that are not held out, and a report on the others.

    The report counts `tools`, `kept`, and `dropped` by reason; `dropped_tools` maps ids without the source to reasons.
    """
    reasons: dict[str, str] = {}
    kept_tools = []
    for tool in tools:
        tool_id = tool.id.partition("/")[2]
        reason = held_out.find_reason(tool, tool_id)
        if reason is None:
            kept_tools.append(tool)
        else:
            reasons[tool_id] = reason
    report = {
        "tools": len(tools),
        "kept": len(kept_tools),
        "dropped": dict(sorted(Counter(reasons.values()).items())),
        "dropped_tools": dict(sorted(reasons.items())),
    }
    return kept_tools, report
