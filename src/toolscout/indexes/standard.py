"""Standard scores: how many standard deviations a tool is nearer to a query than the average tool of the catalogue.

Cosines of two encoders, or of two queries, are not comparable: one encoder gives unrelated texts 0.1, another 0.7. The
standard score is, and a score far above 0 says that few tools of the catalogue are as near.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.arrays import Vectors
from toolscout.indexes import Mask, VectorIndex
from toolscout.indexes.exact import Exact
from toolscout.types import Explanation

__all__ = ["StandardScores"]

MIN_COSINE_DEVIATION: Final = 1e-4  # below it the cosines count as equal, and every standard score is 0


class StandardScores:
    """Searches an index of vectors and turns its cosines into standard scores.

    Mean and deviation are those over all tools of the catalogue, whatever is visible, and follow from the mean and the
    covariance of the tools' vectors. No cosine beyond the candidates is computed.

    Attributes:
        index: finds the candidates and their cosines.
        exact: all vectors of the same catalogue.
    """

    def __init__(self, index: VectorIndex, exact: Exact) -> None:
        """Take the index, and the vectors behind it."""
        self.index, self.exact = index, exact

    @property
    def ids(self) -> Sequence[str]:
        """The ids of the tools, ascending."""
        return self.index.ids

    def search(
        self, queries: npt.NDArray[Any], k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[Vectors]]:
        """Find the nearest tools of each query: `(ids, standard scores)`, best first; see `Exact.search`."""
        ids, cosines = self.index.search(queries, k, visible)
        scores = [self._standardise(row, part) for row, part in zip(queries, cosines, strict=True)]
        return ids, scores

    def explain(self, query: npt.NDArray[Any], tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain rank and standard score of one tool.

        Raises:
            NotFound: if the index has no such tool.
        """
        explanation = self.index.explain(query, tool_id, visible)
        if explanation.score is None:
            return explanation
        cosine = np.array([explanation.score], dtype=np.float32)
        score = float(self._standardise(np.asarray(query, dtype=np.float32).ravel(), cosine)[0])
        return msgspec.structs.replace(explanation, score=score)

    def _standardise(self, query: Vectors, cosines: Vectors) -> Vectors:
        """Return (cosine - mean) / deviation, float32; zeros where all cosines are equal."""
        mean, deviation = self.exact.describe_cosines(query)
        if deviation < MIN_COSINE_DEVIATION:
            return np.zeros_like(cosines)
        return ((cosines - mean) / deviation).astype(np.float32)
