"""BM25 beside a recipe that learned, joined as `hybrid` joins it with an encoder that did not.

A tuned encoder knows what queries mean in its field; rare words, names and numbers stay the business of BM25. How much
the learned ranking weighs is chosen on dev (`fusion.words_and_meaning`).
"""

from __future__ import annotations

import functools
from typing import Final

import msgspec

from toolscout.catalogue.store import Catalogue
from toolscout.methods import Artifacts, BaseRule, zero_shot
from toolscout.methods.lesson import Lesson
from toolscout.methods.shared.tuning import Positive
from toolscout.models.model_store import Model
from toolscout.search.fusion import DEPTH, words_and_meaning
from toolscout.search.pipeline import Fuse, Ranking, Stage
from toolscout.types import Search
from toolscout.workspace import Workspace

__all__ = ["HybridDpr", "Options"]

FUSION_WEIGHT_GRID: Final = (2.5, 5.0, 10.0, 20.0, 40.0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit.

    Attributes:
        base: the recipe that learned; the weights on offer are meant for one that ranks by cosines.
        weight: the most that it may add to a BM25 score; None: the best on dev.
    """

    base: str = "dpr"
    weight: Positive | None = None


def _ranking(search: Search) -> Ranking:
    return [(hit.id, hit.score) for hit in search.hits]


class HybridDpr:
    """Joins BM25 with a recipe that learned."""

    options_type = Options
    needs_usage = True
    transfers = True
    abstains = False
    base: BaseRule | None = None

    def fit(self, workspace: Workspace, lesson: Lesson, options: Options) -> Artifacts:
        """Rank the dev queries both ways, and choose the weight; nothing is trained beyond the base."""
        assert lesson.base is not None
        words = zero_shot.search_words(Catalogue.of(lesson.tools))
        asked = [Search(query=lesson.texts[query], k=DEPTH) for query in lesson.dev]
        both = [stage(asked) for stage in (words, lesson.base.stage)]
        pairs = [[_ranking(one), _ranking(other)] for one, other in zip(*both, strict=True)]

        def figures(weight: float) -> dict[str, float]:
            rankings = {}
            for query, search, pair in zip(lesson.dev, asked, pairs, strict=True):
                scores = words_and_meaning(pair, search, weight=weight)
                rankings[query] = sorted(scores, key=lambda tool, scores=scores: (-scores[tool], tool))  # type: ignore[misc]
            return lesson.evaluate(rankings).means()

        found = {
            weight: figures(weight) for weight in (FUSION_WEIGHT_GRID if options.weight is None else (options.weight,))
        }
        weight = max(found, key=lambda each: found[each]["ndcg@5"] + found[each]["comp@5"])
        return Artifacts(
            {},
            metrics=found[weight],
            chosen={"weight": weight} if options.weight is None else {},
            values={"by_weight": {str(each): figures for each, figures in found.items()}},
            files=lesson.base.save,
        )

    def build(self, workspace: Workspace, catalogue: Catalogue, model: Model) -> Stage:
        """BM25 and the base's ranking, joined."""
        weight = model.manifest.settings["weight"].value
        joined = functools.partial(words_and_meaning, weight=weight)
        return Fuse(zero_shot.search_words(catalogue), workspace.build_base(catalogue, model), by=joined)
