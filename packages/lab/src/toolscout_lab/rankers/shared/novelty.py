"""Ranks new tools beside the tools that training used, by the cosines of a tuned encoder.

Training moves the tools that it uses towards their queries. A new tool that ranks above them usually does so by chance.
Where few tools are new, these accidents cost more than new tools gain. So a new tool must be nearer by a margin.
This is calibrated stacking (Chao et al., arXiv:1605.04253) in the opposite direction. A catalogue that holds only new
tools is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from toolscout.arrays import Mask, Vectors
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.indexes import top_k
from toolscout.rankers.lesson import Lesson
from toolscout.search.pipeline import DEPTH, Rerank, Stage
from toolscout.types import Search, Tool

__all__ = ["MARGINS", "choose_margin", "demote_new_tools"]

MARGINS: Final = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05)  # a larger margin would hide new tools: benchmarks/LAB.md
MARGIN_CUTOFF: Final = 10


def choose_margin(lesson: Lesson, cosines: Vectors, used: Mask, fixed: float | None) -> tuple[float, dict[str, float]]:
    """Choose the margin that is best on dev (the smallest of equals), and return it with its figures.

    Args:
        lesson: the data of the fit.
        cosines: (dev, tools).
        used: (tools,): whether a training query needs the tool.
        fixed: the margin, if it is set.
    """

    def evaluate_margin(margin: float) -> dict[str, float]:
        rows = cosines - np.float32(margin) * ~used
        rankings = {
            query: [lesson.tools[number].id for number in top_k(row, MARGIN_CUTOFF)]
            for query, row in zip(lesson.dev, rows, strict=True)
        }
        return lesson.evaluate(rankings).means()

    figures = {margin: evaluate_margin(margin) for margin in (MARGINS if fixed is None else (fixed,))}
    chosen = max(figures, key=lambda margin: (figures[margin]["ndcg@5"] + figures[margin]["comp@5"], -margin))
    return chosen, figures[chosen]


def demote_new_tools(stage: Stage, catalogue: Catalogue, model: Model) -> Stage:
    """Lower the scores of new tools by the margin of the model. Reads its array `used` and its setting `margin`."""
    margin = model.manifest.settings["margin"].value
    tools: list[Tool] = catalogue.tools()
    places = model.places(tools)
    used = np.append(model.arrays["used"], False)  # place -1: the model does not have the tool
    new = frozenset(tool.id for tool, place in zip(tools, places, strict=True) if not used[place])
    if not margin or not new or len(new) == len(tools):
        return stage

    def scores(searches: Sequence[Search]) -> list[list[float]]:
        return [[hit.score - margin * (hit.id in new) for hit in search.hits] for search in searches]

    return stage >> Rerank(scores, label="novelty", depth=DEPTH)
