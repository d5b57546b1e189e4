"""An index: vectors as whole numbers of 8 bits, a quarter of the memory of float32; scores are near the cosine."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from toolscout.errors import ConfigError
from toolscout.indexes import Mask, VectorIndex, masks, place, rank, top_k
from toolscout.settings import Settings
from toolscout.types import Explanation

LEVELS = 127


def quantise(vectors: Any) -> Any:
    """Round `(n, d)` unit rows to whole numbers from -127 to 127."""
    return np.rint(np.asarray(vectors) * LEVELS).astype(np.int8)


class Int8Index:
    """Compares a query with every tool in whole numbers, so the order of the sum does not matter."""

    def __init__(self, dim: int) -> None:
        """Make an empty index for vectors of length `dim`."""
        self.ids: tuple[str, ...] = ()
        self.rows = np.empty((0, dim), dtype=np.int8)

    def upsert(self, ids: Sequence[str], vectors: Any) -> None:
        """Add tools, or replace their vectors."""
        rows = dict(zip(self.ids, self.rows, strict=True)) | dict(zip(ids, quantise(vectors), strict=True))
        self.ids = tuple(sorted(rows))
        self.rows = np.array([rows[tool_id] for tool_id in self.ids], dtype=np.int8).reshape(-1, self.rows.shape[1])

    def score_tools(self, query: Any) -> Any:
        """Return the score of every tool, `(len(ids),)` float32."""
        products = np.einsum("nd,d->n", self.rows, quantise(query), dtype=np.int32)
        return (products / LEVELS**2).astype(np.float32)

    def search(self, queries: Any, k: int, visible: Mask | Sequence[Mask | None] | None = None) -> tuple[Any, Any]:
        """Find the nearest visible tools of each query; a row of zeros finds nothing."""
        ids, values = [], []
        for query, mask in zip(queries, masks(visible, len(queries)), strict=True):
            scores = self.score_tools(query)
            best = top_k(scores, k if np.any(query) else 0, mask)
            ids.append([self.ids[position] for position in best])
            values.append(scores[best])
        return ids, values

    def explain(self, query: Any, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Say which rank and score a tool has, whether it is visible or not."""
        position, scores = place(self.ids, tool_id), self.score_tools(query)
        score = float(scores[position])
        return Explanation("int8", rank(scores, position, visible), score, f"cosine about {score:.3f}")


def make_index(dim: int, argument: str, settings: Settings) -> VectorIndex:
    """Make the index of the setting `index = "int8"`."""
    if argument:
        raise ConfigError(f"int8:{argument}: write int8 alone, without an argument")
    return Int8Index(dim)


if __name__ == "__main__":
    from toolscout.testing import HashEncoder, check_index, toy_tools

    tools, encoder = toy_tools(), HashEncoder(256)
    index = make_index(encoder.dim, "", Settings())
    index.upsert([tool.id for tool in tools], encoder.encode([tool.description for tool in tools], "tool"))
    check_index(index, encoder.encode(["weather forecast of a city", "send a message", ""]))
    print(index.search(encoder.encode(["checksum of a file"]), 1)[0])
