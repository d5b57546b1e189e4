"""Sets of tools that were needed together (the scenes of COLT, arXiv:2405.16089), as classes for a classifier.

A classifier of sets learns which tools go together. Its probability for a tool is the sum over all sets that contain
the tool. A weighted geometric mean joins it with the probability from a classifier of tools ::

    p(tool | query) ∝ (p(tool | query) · (p(a set that contains the tool | query) + ε) ^ w) ^ (1 / (1 + w))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from toolscout.arrays import Array, Arrays, Places, Scores
from toolscout.methods.shared.ngrams import Bags

__all__ = ["SET_WEIGHT_GRID", "ToolSets"]

SET_WEIGHT_GRID: Final = (0.0, 0.5, 1.0, 2.0, 4.0)
MAX_TOOL_SETS: Final = 4_000
SET_SMOOTHING: Final = 1e-3


class ToolSets:
    """The distinct sets of tools that queries needed. Empty if there are more than 4,000, or if each is one tool.

    Attributes:
        bags: the tools of each set, as sparse rows of ones.
    """

    def __init__(self, bags: Bags) -> None:
        """Index the sets by their tools, so that `join` can sum over the sets that contain a tool."""
        self.bags = bags
        order = np.argsort(bags.indices, kind="stable")
        # The sets that contain tool `_tools_in_sets[i]` begin at `_set_numbers[_starts[i]]`.
        self._set_numbers = np.repeat(np.arange(len(bags)), np.diff(bags.indptr))[order]
        self._tools_in_sets, self._starts = np.unique(bags.indices[order], return_index=True)

    def __len__(self) -> int:
        return len(self.bags)

    @classmethod
    def group(cls, gold: Sequence[Places]) -> tuple[ToolSets, Places]:
        """Group queries by their set of tools: return the sets, and the set number of each query, `(queries,)`.

        Args:
            gold: the tools of each query, ascending.
        """
        numbers: dict[bytes, int] = {}
        set_of = np.array([numbers.setdefault(tools.tobytes(), len(numbers)) for tools in gold], dtype=np.intp)
        sets = [np.frombuffer(tools, dtype=gold[0].dtype) for tools in numbers]
        if len(sets) > MAX_TOOL_SETS or max(map(len, sets)) == 1:
            sets = []
        indptr = np.cumsum([0, *map(len, sets)])
        bags = Bags(indptr, np.concatenate([np.empty(0, np.int64), *sets]), np.ones(indptr[-1], np.float32))
        return cls(bags), set_of

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that `from_arrays` reads."""
        return {f"sets.{name}": array for name, array in self.bags._asdict().items()}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> ToolSets:
        """Restore the sets from the arrays of a model."""
        return cls(Bags(*(arrays[f"sets.{name}"] for name in Bags._fields)))

    def join(self, tools: Scores, sets: Scores, weight: float) -> Scores:
        """Join the probabilities of tools and of sets; see the formula above.

        Args:
            tools: probabilities of the tools, `(n, tools)`.
            sets: probabilities of the sets, `(n, sets)`.
            weight: w.
        """
        if not len(self) or not weight:
            return tools
        by_set = np.zeros_like(tools)
        by_set[:, self._tools_in_sets] = np.add.reduceat(sets[:, self._set_numbers], self._starts, axis=1)
        joined = (tools * (by_set + SET_SMOOTHING) ** weight) ** (1 / (1 + weight))
        probabilities: Scores = joined / joined.sum(axis=1, keepdims=True)
        return probabilities
