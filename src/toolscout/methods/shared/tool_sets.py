"""Sets of tools that were needed together: the scenes of COLT (arXiv:2405.16089), as classes of their own.

A classifier of sets knows which tools go together. What it says of a tool is the share of all sets that hold it, and
that is joined with what a classifier of tools says by a weighted geometric mean ::

    p(tool | query) ∝ (p(tool | query) · (p(a set that holds the tool | query) + ε) ^ w) ^ (1 / (1 + w))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from toolscout.arrays import Array, Arrays, Places, Scores
from toolscout.methods.shared.ngrams import Bags

__all__ = ["SET_WEIGHT_GRID", "Sets"]

SET_WEIGHT_GRID: Final = (0.0, 0.5, 1.0, 2.0)
MAX_TOOL_SETS: Final = 4_000
SET_SMOOTHING: Final = 1e-3


class Sets:
    """The distinct sets of tools that queries needed; none at all when there are more than 4,000, or each is one tool.

    Attributes:
        bags: the tools of each set, sparse rows of ones.
    """

    def __init__(self, bags: Bags) -> None:
        """Take the tools of each set."""
        self.bags = bags
        order = np.argsort(bags.indices, kind="stable")
        self._holders = np.repeat(np.arange(len(bags)), np.diff(bags.indptr))[order]
        self._held, self._starts = np.unique(bags.indices[order], return_index=True)

    def __len__(self) -> int:
        return len(self.bags)

    @classmethod
    def among(cls, gold: Sequence[Places]) -> tuple[Sets, Places]:
        """The sets of the queries, and which of them each query's is, `(queries,)`.

        Args:
            gold: the tools of each query, ascending.
        """
        numbers: dict[bytes, int] = {}
        of = np.array([numbers.setdefault(each.tobytes(), len(numbers)) for each in gold], dtype=np.intp)
        sets = [np.frombuffer(each, dtype=gold[0].dtype) for each in numbers]
        if len(sets) > MAX_TOOL_SETS or max(map(len, sets)) == 1:
            sets = []
        indptr = np.cumsum([0, *map(len, sets)])
        return cls(Bags(indptr, np.concatenate([np.empty(0, np.int64), *sets]), np.ones(indptr[-1], np.float32))), of

    def arrays(self) -> dict[str, Array]:
        """What `of_arrays` makes them from again."""
        return {f"sets.{name}": array for name, array in self.bags._asdict().items()}

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> Sets:
        """As a model holds them."""
        return cls(Bags(*(arrays[f"sets.{name}"] for name in Bags._fields)))

    def join(self, tools: Scores, sets: Scores, weight: float) -> Scores:
        """The formula above.

        Args:
            tools: the shares of the tools, `(n, tools)`.
            sets: the shares of the sets, `(n, sets)`.
            weight: w.
        """
        if not len(self) or not weight:
            return tools
        held = np.zeros_like(tools)
        held[:, self._held] = np.add.reduceat(sets[:, self._holders], self._starts, axis=1)
        joined = (tools * (held + SET_SMOOTHING) ** weight) ** (1 / (1 + weight))
        shares: Scores = joined / joined.sum(axis=1, keepdims=True)
        return shares
