"""Searches words in an engine, with the weights of our own BM25.

A score is the inner product of the weights of a tool and those of a query. The engine stores the former. The latter
hold how rare each term is, and follow each change of the catalogue. The weights of a tool are written with its
vector; the mean length of all tools, which they depend on, may have moved a little since then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from toolscout.indexes.ranking import Mask, masks
from toolscout.types import Explanation
from toolscout_postgres.engines.contract import View, hash_number
from toolscout_postgres.engines.search import MIN_SPARE, WIDEN, EngineIndex

if TYPE_CHECKING:
    from toolscout.indexes.bm25 import BM25

__all__ = ["EngineWords", "number_terms"]

MAX_TERM: Final = 2**32 - 2  # the highest number of a term in Milvus
SCORE_SLACK: Final = 1e-4  # by how much the sums of two engines differ


def number_terms(weights: Mapping[str, float]) -> dict[int, float]:
    """Replace terms by numbers that follow from them; 0 is none of them."""
    return {1 + hash_number(term) % (MAX_TERM - 1): weight for term, weight in weights.items() if weight > 0}


class EngineWords:
    """The BM25 index in a collection of an engine; see `BM25.search` and `BM25.explain`.

    Attributes:
        nearest: the index over the vectors of the same collection.
        words: the BM25 index of the same snapshot, which knows how rare each term is.
    """

    def __init__(self, nearest: EngineIndex, words: BM25) -> None:
        """Take both indexes of a snapshot."""
        self.nearest, self.words = nearest, words

    def with_words(self, words: BM25) -> EngineWords:
        """Return the same search with other weights for the terms of queries."""
        return EngineWords(self.nearest, words)

    @property
    def ids(self) -> Sequence[str]:
        """Tool ids, ascending."""
        return self.nearest.ids

    def search(
        self, queries: Sequence[str], k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[npt.NDArray[np.float32]]]:
        """Find the best tools for each query that share a term with it: `(ids, scores)`, best first."""
        self.nearest.check_mark()
        ids, scores = [], []
        for query, mask in zip(queries, masks(visible, len(queries)), strict=True):
            hits = self._search_one(number_terms(self.words.weigh_query(query)), k, mask)
            ids.append([self.ids[position] for position, _ in hits])
            scores.append(np.array([score for _, score in hits], dtype=np.float32))
        return ids, scores

    def _search_one(self, query: Mapping[int, float], k: int, mask: Mask | None) -> list[tuple[int, float]]:
        """Return (position, score) of the best tools, equal scores by position, also at the cut."""
        n_visible = len(self.ids) if mask is None else int(mask.sum())
        wanted = min(k, n_visible)
        if not query or wanted <= 0:
            return []
        collection, limit = self.nearest.collection, max(2 * wanted, wanted + MIN_SPARE)
        view: View | None = None if mask is None else self.nearest.view(mask)
        while True:
            limit = min(limit, collection.max_limit)
            [scored] = collection.find_words([query], limit, view)
            hits = self._keep_visible(scored, mask)
            reached = len(hits) >= wanted and hits[wanted - 1][1] > scored[-1][1] + SCORE_SLACK
            if len(scored) < limit or reached or limit == collection.max_limit:
                return hits[:wanted]
            limit *= WIDEN

    def _keep_visible(self, scored: Sequence[tuple[str, float]], mask: Mask | None) -> list[tuple[int, float]]:
        """Return (position, score) of the tools that are visible and in the snapshot, best first."""
        hits = [(self.nearest.find_position(tool_id), score) for tool_id, score in scored]
        hits = [hit for hit in hits if hit[0] >= 0 and (mask is None or mask[hit[0]])]
        return sorted(hits, key=lambda hit: (-hit[1], hit[0]))

    def explain(self, query: str, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain rank and score of one tool by its terms, exact at any rank; see `BM25.explain`."""
        return self.words.explain(query, tool_id, visible)
