"""Completes the pipeline of a recipe with the stages that every search of the product runs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from toolscout.arrays import Vectors
from toolscout.catalogue.duplicates import Duplicates
from toolscout.catalogue.screening import suspects
from toolscout.catalogue.similar import find_rivals
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import unit_rows
from toolscout.encoders.static import load_static
from toolscout.search.demote import Demote
from toolscout.search.exact_names import Names
from toolscout.search.fold import Fold
from toolscout.search.pipeline import Cut, Pipeline, Stage
from toolscout.search.prerequisites import Orders, bring_prerequisites
from toolscout.types import Tool
from toolscout.workspace import Workspace

__all__ = ["encode_for_rivals", "guard"]


def guard(
    retrieve: Stage,
    catalogue: Catalogue,
    workspace: Workspace | None = None,
    *,
    scan: bool = True,
    duplicates: Duplicates | None = None,
    k: int | None = None,
    orders: Orders | None = None,
) -> Pipeline:
    """Add exact names, prerequisites, the demotion of hostile tools, the fold of duplicates, and the cut to a recipe.

    Args:
        retrieve: ranks the tools.
        catalogue: the snapshot that it was built over.
        workspace: settings, and caches for the vectors that reveal near-duplicates; None: the defaults, no caches.
        scan: whether suspicious and rival tools are demoted.
        duplicates: the same tools of several sources, which one hit shows; None: every tool has its own hit.
        k: number of hits to keep; None: the k of each search.
        orders: what the journal says of the order of calls; None: nothing.
    """
    workspace = workspace or Workspace()
    demotion: Demote | None = None
    excluded: AbstractSet[str] = frozenset()
    if scan:
        rivals = find_rivals(catalogue, functools.partial(encode_for_rivals, workspace))
        demotion = Demote(suspects(catalogue), rivals, catalogue)
        excluded = demotion.behind
    stages: list[Stage] = [retrieve, Names(catalogue, demotion.find_doubted if demotion else None)]
    stages.append(bring_prerequisites(catalogue, workspace.settings, excluded=excluded, orders=orders))
    stages += [demotion] if demotion else []
    if duplicates is not None:
        stages.append(Fold(catalogue, duplicates))
    return Pipeline([*stages, Cut(k)])


def encode_for_rivals(workspace: Workspace, tools: Sequence[Tool]) -> Vectors:
    """Encode tools as 0.7 of their text and 0.3 of their name, `(tools, d)`, for which the bounds were chosen.

    A first sentence that all tools of a source share must not make them look related.
    """
    encoder = load_static()
    texts, names = (workspace.encode_tools(encoder, tools, style) for style in ("short", "name"))
    return unit_rows(0.7 * texts + 0.3 * names)
