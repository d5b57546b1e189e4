"""Joins BM25 with a fitted recipe, as `hybrid` joins it with an untrained encoder.

A tuned encoder knows the meaning of queries in its field. BM25 matches rare words, names and numbers. The weight of the
fitted ranking is chosen on dev (`fusion.words_and_meaning`).
"""

from __future__ import annotations

import functools
from typing import Final

import msgspec

from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.rankers import Artifacts, Positive, zero_shot
from toolscout.rankers.lesson import Lesson
from toolscout.search.pipeline import DEPTH, Fuse, Ranking, Stage, words_and_meaning
from toolscout.search.resources import Resources
from toolscout.types import Search
from toolscout_lab.rankers import LabMethod

__all__ = ["HybridDpr", "HybridDprOptions"]

FUSION_WEIGHT_GRID: Final = (2.5, 5.0, 10.0, 20.0, 40.0)


class HybridDprOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit.

    Attributes:
        base: the fitted recipe; the weights in the grid suit one that ranks by cosines.
        weight: the maximum that it adds to a BM25 score; None: the best on dev.
    """

    base: str = "dpr"
    weight: Positive | None = None


def _list_scores(search: Search) -> Ranking:
    return [(hit.id, hit.score) for hit in search.hits]


class HybridDpr(LabMethod):
    """Joins BM25 with a fitted recipe."""

    options_type = HybridDprOptions

    def fit(self, resources: Resources, lesson: Lesson, options: HybridDprOptions) -> Artifacts:
        """Rank the dev queries by words and by the base, then choose the weight. Only the base is trained."""
        assert lesson.base is not None
        words = zero_shot.search_words(Catalogue.of(lesson.tools))
        searches = [Search(query=lesson.texts[query], k=DEPTH) for query in lesson.dev]
        results = [stage(searches) for stage in (words, lesson.base.stage)]
        pairs = [[_list_scores(by_words), _list_scores(by_base)] for by_words, by_base in zip(*results, strict=True)]

        def evaluate_weight(weight: float) -> dict[str, float]:
            rankings = {}
            for query, search, pair in zip(lesson.dev, searches, pairs, strict=True):
                scores = words_and_meaning(pair, search, weight=weight)
                rankings[query] = [tool for tool, _ in sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))]
            return lesson.evaluate(rankings).means()

        weights = FUSION_WEIGHT_GRID if options.weight is None else (options.weight,)
        figures = {weight: evaluate_weight(weight) for weight in weights}
        weight = max(figures, key=lambda tried: figures[tried]["ndcg@5"] + figures[tried]["comp@5"])
        return Artifacts(
            {},
            metrics=figures[weight],
            chosen={"weight": weight} if options.weight is None else {},
            values={"by_weight": {str(tried): means for tried, means in figures.items()}},
            files=lesson.base.save,
        )

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build BM25, the base, and their fusion."""
        weight = model.manifest.settings["weight"].value
        join = functools.partial(words_and_meaning, weight=weight)
        return Fuse(zero_shot.search_words(catalogue), resources.build_base(catalogue, model), by=join)
