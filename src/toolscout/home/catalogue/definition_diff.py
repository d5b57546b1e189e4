"""Says how a definition that waits for approval differs from the approved one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from toolscout.home.catalogue.approvals import Waiting
from toolscout.trust.screening import spelled_out
from toolscout.types import Tool

__all__ = ["describe_change"]

_LINE_BREAKING: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def describe_change(waiting: Waiting) -> list[str]:
    """List the lines of a unified diff from the approved definition, or from nothing if the tool is new."""
    before = list(_format_definition(waiting.approved)) if waiting.approved else []
    after = list(_format_definition(waiting.tool))
    return list(difflib.unified_diff(before, after, "approved", "now", n=1, lineterm=""))


def _format_definition(tool: Tool) -> Iterator[str]:
    """Yield the lines of a definition, one for each sentence of the description. Hidden characters are spelled out."""
    yield f"name: {_spell_line(tool.name)}"
    if "server" in tool.meta:
        yield f"sent to: {_spell_line(str(tool.meta['server']))}"
        for name, scheme in tool.meta.get("security_schemes", {}).items():
            parts = " ".join(str(scheme[key]) for key in ("type", "scheme", "in", "name") if key in scheme)
            yield f"with the credential: {_spell_line(name)} ({_spell_line(parts)})"
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", tool.description):
        yield f"description: {spelled_out(sentence)}"
    rest = msgspec.to_builtins(tool)
    for field in ("path", "hints", "tags", "parameters", "returns", "meta"):
        if field in rest:
            text = msgspec.json.format(msgspec.json.encode(rest[field], order="deterministic"), indent=2).decode()
            yield from (f"{field}: {spelled_out(line)}" for line in text.split("\n"))


def _spell_line(text: str) -> str:
    """Spell out hidden characters and line ends, so that the text stays on its line."""
    return spelled_out(_LINE_BREAKING.sub(lambda match: f"\\x{ord(match[0]):02x}", text))
