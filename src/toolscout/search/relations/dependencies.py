"""Dependencies: which tools another tool needs first, declared by its source or inferred from its API.

A source may declare only tools of its own, since its text is untrusted. The user's settings may name any tool.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from toolscout.home.catalogue.snapshot import Catalogue
from toolscout.search.relations.operations import Operation, Suppliers, read_operation
from toolscout.types import Tool

__all__ = ["Dependencies", "Need", "add_declared", "find_dependencies"]

DEPENDENCIES_FORMAT: Final = "dependencies/4"  # raise it whenever the result for an unchanged catalogue changes

NeedOrigin = Literal["declared", "inferred", "named", "learned"]


class Need(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that a tool needs first, and the tools that provide it.

    Attributes:
        origin: how the need is known: declared by the source or by the user, inferred from the paths and results of an
            API, inferred from the names of tools alone (`named`), or learned from calls.
        tools: id of a tool → how well it provides the thing, from 0 to 1. One of the tools is enough.
        what: the argument that is provided, such as `order_id`; empty if the tool as a whole is needed.
    """

    origin: NeedOrigin
    tools: dict[str, float]
    what: str = ""


Dependencies = Mapping[str, Sequence[Need]]
"""Tool id → what the tool needs."""


def find_dependencies(catalogue: Catalogue) -> dict[str, list[Need]]:
    """Return the declared and inferred dependencies of a snapshot. They are computed once for each generation."""
    encoded = catalogue.load_or_build(DEPENDENCIES_FORMAT, lambda: msgspec.json.encode(_collect_needs(catalogue)))
    return msgspec.json.decode(encoded, type=dict[str, list[Need]])


def _collect_needs(catalogue: Catalogue) -> dict[str, list[Need]]:
    """Return tool id → its needs. The needs in sources that have not changed are those of the snapshot before."""
    needs: dict[str, list[Need]] = {}
    apis: dict[tuple[str, ...], list[Operation]] = defaultdict(list)  # name of an API → its operations
    encoded, positions = catalogue.load_earlier_value(DEPENDENCIES_FORMAT)
    for tool in itertools.chain.from_iterable(catalogue.batches(positions)):
        declared = [Need("declared", {tool_id: 1.0}) for tool_id in _resolve_declared(catalogue, tool)]
        if declared:
            needs[tool.id] = declared
        operation = read_operation(tool)
        if operation is not None:
            # Without a path, the tools may be in folders, one for each server.
            folders = () if operation.segments else tool.path
            apis[(tool.source, *folders)].append(operation)
    for operations in apis.values():
        suppliers = Suppliers(operations)
        for operation in operations:
            if operation.tool_id in needs:
                continue  # its source declares what it needs, so nothing is inferred
            inferred = _infer_needs(operation, suppliers)
            if inferred:
                needs[operation.tool_id] = inferred
    if encoded is not None and catalogue.earlier is not None:
        earlier = msgspec.json.decode(encoded, type=dict[str, list[Need]])
        unchanged = catalogue.earlier.unchanged_sources
        needs |= {tool_id: kept for tool_id, kept in earlier.items() if tool_id.partition("/")[0] in unchanged}
    return dict(sorted(needs.items()))


def add_declared(dependencies: Dependencies, pairs: Iterable[tuple[str, str]]) -> dict[str, list[Need]]:
    """Return the dependencies with those that the user declares as pairs (tool id, id of its prerequisite).

    If the user declares any for a tool, the inferred ones are dropped. Those that its source declares stay.
    """
    declared: dict[str, list[Need]] = defaultdict(list)
    for tool_id, needed in pairs:
        declared[tool_id].append(Need("declared", {needed: 1.0}))
    joined = {tool_id: list(needs) for tool_id, needs in dependencies.items()}
    for tool_id, needs in declared.items():
        declared_by_source = [need for need in joined.get(tool_id, ()) if need.origin == "declared"]
        joined[tool_id] = declared_by_source + needs
    return joined


def _resolve_declared(catalogue: Catalogue, tool: Tool) -> list[str]:
    """Return the ids of the prerequisites that a tool declares, by id or by name, and that are in its own source."""
    if tool.kind == "skill" and "folder" in tool.meta:
        return list(tool.requires)  # the user's own skill may name tools of any source, also before they are added
    own_prefix = f"{tool.source}/"
    resolved = []
    for name in tool.requires:
        candidates = [own_prefix + name, name]
        _, places = catalogue.table.find(name)
        namesakes = [catalogue.ids[place] for place in places]
        own_namesakes = [tool_id for tool_id in namesakes if tool_id.startswith(own_prefix)]
        if len(own_namesakes) == 1:  # a name that several tools have names none of them
            candidates += own_namesakes
        existing = (candidate for candidate in candidates if catalogue.position(candidate) is not None)
        tool_id = next(existing, None)
        if tool_id is not None and tool_id != tool.id and tool_id.startswith(own_prefix):
            resolved.append(tool_id)
    return list(dict.fromkeys(resolved))


def _infer_needs(operation: Operation, suppliers: Suppliers) -> list[Need]:
    """Return a need for each id that an operation needs and that other operations of its API supply."""
    needs: dict[str, Need] = {}
    for want in operation.wants:
        ranked = suppliers.rank(want, operation)
        if ranked:
            origin: NeedOrigin = "inferred" if operation.segments else "named"
            need = Need(origin, {tool_id: round(fit, 3) for fit, tool_id in ranked}, want.parameter)
            needs.setdefault(want.noun, need)
    return list(needs.values())
