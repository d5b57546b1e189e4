"""BM25 beside a recipe that learned, joined as `hybrid` joins it with an encoder that did not.

A tuned encoder knows what queries mean in its field; rare words, names and numbers stay the business of BM25. How much
the learned ranking weighs is chosen on dev (`fusion.words_and_meaning`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from toolscout.catalogue.store import Catalogue
from toolscout.methods import Fitting, Parts, zero_shot
from toolscout.methods.shared.tuning import Positive
from toolscout.search.fusion import DEPTH, words_and_meaning
from toolscout.search.pipeline import Fuse, Ranking, Stage
from toolscout.types import Search

__all__ = ["Options", "fit", "make"]

WEIGHTS: Final = (2.5, 5.0, 10.0, 20.0, 40.0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit.

    Attributes:
        base: the recipe that learned; the weights on offer are meant for one that ranks by cosines.
        weight: the most that it may add to a BM25 score; None: the best on dev.
    """

    base: str = "dpr"
    weight: Positive | None = None


def fit(job: Fitting) -> None:
    """Rank the dev queries both ways, and choose the weight; nothing is trained beyond the base."""
    assert job.base is not None
    parts = Parts(Catalogue.of(job.tools))
    asked = [Search(query=job.texts[query], k=DEPTH) for query in job.dev]
    both = [stage(asked) for stage in (zero_shot.bm25(parts, {}), job.base.stage)]
    pairs = [[_ranking(one), _ranking(other)] for one, other in zip(*both, strict=True)]

    def figures(weight: float) -> dict[str, float]:
        rankings = {}
        for query, search, pair in zip(job.dev, asked, pairs, strict=True):
            scores = words_and_meaning(pair, search, weight=weight)
            rankings[query] = sorted(scores, key=lambda tool, scores=scores: (-scores[tool], tool))  # type: ignore[misc]
        return job.judge(rankings)

    found = {weight: figures(weight) for weight in (WEIGHTS if job.options.weight is None else (job.options.weight,))}
    weight = max(found, key=lambda each: found[each]["ndcg@5"] + found[each]["comp@5"])
    job.save(
        {},
        metrics=found[weight],
        chosen={"weight": weight} if job.options.weight is None else {},
        values={"by_weight": {str(each): figures for each, figures in found.items()}},
        files=job.base.save,
    )


def _ranking(search: Search) -> Ranking:
    return [(hit.id, hit.score) for hit in search.hits]


def make(parts: Parts, settings: Mapping[str, Any]) -> Stage:
    """BM25 and the base's ranking, joined."""
    model = parts.load(bound=False)
    weight = model.manifest.settings["weight"].value
    joined = functools.partial(words_and_meaning, weight=weight)
    return Fuse(zero_shot.bm25(parts, {}), parts.base(model), by=joined)
