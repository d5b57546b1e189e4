"""New tools beside those that training knew, by the cosines of a tuned encoder.

Training brought the tools that it used near to their queries, and so a new tool near it wins only by chance; but where
few of the tools are new, those that come near by chance cost the others more than they bring. A new tool must be
nearer by a margin: calibrated stacking (Chao et al., arXiv:1605.04253), the other way round. A catalogue of new
tools alone is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from toolscout.arrays import Mask, Vectors
from toolscout.catalogue.store import Catalogue
from toolscout.indexes import top_k
from toolscout.methods.lesson import Lesson
from toolscout.models.model_store import Model
from toolscout.search.fusion import DEPTH
from toolscout.search.pipeline import Rerank, Stage
from toolscout.types import Search, Tool

__all__ = ["MARGINS", "choose_margin", "set_new_tools_back"]

MARGINS: Final = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05)  # more of them would hide new tools: benchmarks/LAB.md
MARGIN_CUTOFF: Final = 10


def choose_margin(lesson: Lesson, cosines: Vectors, used: Mask, fixed: float | None) -> tuple[float, dict[str, float]]:
    """The margin that is best on dev, the smallest of equals, and the figures with it.

    Args:
        lesson: the fit's.
        cosines: (dev, tools).
        used: (tools,): those that training queries need.
        fixed: the margin, if it is set.
    """

    def figures(each: float) -> dict[str, float]:
        rows = cosines - np.float32(each) * ~used
        found = zip(lesson.dev, rows, strict=True)
        return lesson.evaluate(
            {query: [lesson.tools[number].id for number in top_k(row, MARGIN_CUTOFF)] for query, row in found}
        ).means()

    tried = {each: figures(each) for each in (MARGINS if fixed is None else (fixed,))}
    chosen = max(tried, key=lambda each: (tried[each]["ndcg@5"] + tried[each]["comp@5"], -each))
    return chosen, tried[chosen]


def set_new_tools_back(stage: Stage, catalogue: Catalogue, model: Model) -> Stage:
    """The stage, new tools set back by the model's margin; `used` and `margin` are the model's."""
    step = model.manifest.settings["margin"].value
    tools: list[Tool] = catalogue.tools()
    places = model.places(tools)
    used = np.append(model.arrays["used"], False)  # place -1: not in the model
    new = frozenset(tool.id for tool, place in zip(tools, places, strict=True) if not used[place])
    if not step or not new or len(new) == len(tools):
        return stage

    def scores(searches: Sequence[Search]) -> list[list[float]]:
        return [[hit.score - step * (hit.id in new) for hit in search.hits] for search in searches]

    return stage >> Rerank(scores, label="novelty", depth=DEPTH)
