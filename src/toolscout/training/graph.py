"""Propagation over bipartite graphs (LightGCN, arXiv:2002.02126), as COLT and MassTool use it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Bipartite", "mean_of"]

Places = npt.NDArray[np.intp]


class Bipartite:
    """Edges between a left and a right side, each once.

    Attributes:
        left: the left end of each edge, `(edges,)`.
        right: the right end of each edge, `(edges,)`.
        shape: how many nodes the sides have.
    """

    def __init__(self, left: Places, right: Places, shape: tuple[int, int], device: Any = "cpu") -> None:
        """Take the edges; the matrices lie on the device."""
        self.left, self.right, self.shape, self.device = left, right, shape, device
        degrees = [np.bincount(side, minlength=size) for side, size in zip((left, right), shape, strict=True)]
        weights = 1 / np.sqrt(degrees[0][left] * degrees[1][right])
        self._across = _matrix(left, right, weights, shape).to(device)
        self._back = _matrix(right, left, weights, shape[::-1]).to(device)

    def thinned(self, share: float, random: np.random.Generator) -> Bipartite:
        """The graph without a share of its edges; degrees are those of what is left."""
        kept = random.random(len(self.left)) >= share
        return Bipartite(self.left[kept], self.right[kept], self.shape, self.device) if share else self

    def propagate(
        self, left: Tensor, right: Tensor, layers: int, *, scaled: bool = False, wanted: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The sums over layers 0 … `layers` of both sides (COLT eqs. 1, 3-5; MassTool eqs. 4, 5).

        `l^(i) = Σ_{r∈N(l)} r^(i-1) / (√|N(l)| √|N(r)|)`, and the other way round; a node without edges has layer 0
        alone.

        Args:
            left: (n_left, d) layer 0.
            right: (n_right, d) layer 0.
            layers: how many beyond layer 0.
            scaled: divide layer i by i + 1, which later layers inherit, and add its unit rows; this is what COLT's
                released code does, and the paper does not say.
            wanted: (n,) places of the left nodes whose sums are asked for; None: all of them. The last layer is then
                worked out for these alone, which is most of a step's time where the left side is large.
        """

        def picked(rows: Tensor) -> Tensor:
            return rows if wanted is None else rows.index_select(0, wanted)

        sums, last = [picked(left), right], (left, right)
        for layer in range(1, layers + 1):
            final = layer == layers
            across = picked(self._across) if final else self._across
            last = torch.sparse.mm(across, last[1]), torch.sparse.mm(self._back, last[0])
            if scaled:
                last = last[0] / (layer + 1), last[1] / (layer + 1)
            for side, found in enumerate((last[0] if final else picked(last[0]), last[1])):
                sums[side] = sums[side] + (functional.normalize(found, dim=1) if scaled else found)
        return sums[0], sums[1]


def mean_of(groups: Places, members: Places, n_groups: int, rows: Tensor) -> Tensor:
    """The mean row of the members of each group (COLT eqs. 2, 6), `(n_groups, d)`; zeros for an empty one.

    Args:
        groups: the group of each membership.
        members: the row of each membership.
        n_groups: how many groups.
        rows: (n, d).
    """
    sizes = np.bincount(groups, minlength=n_groups)
    shares = _matrix(groups, members, 1 / sizes[groups], (n_groups, len(rows)))
    means: Tensor = torch.sparse.mm(shares.to(rows.device), rows)
    return means


def _matrix(rows: Places, columns: Places, values: npt.NDArray[Any], shape: tuple[int, ...]) -> Tensor:
    places = torch.from_numpy(np.stack([rows, columns]).astype(np.int64))
    return torch.sparse_coo_tensor(
        places, torch.from_numpy(values.astype(np.float32)), shape, check_invariants=True
    ).coalesce()
