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
    """A bipartite graph of unique edges.

    Attributes:
        left: the left end of each edge, `(edges,)`.
        right: the right end of each edge, `(edges,)`.
        shape: number of nodes on the left and on the right.
    """

    def __init__(self, left: Places, right: Places, shape: tuple[int, int], device: Any = "cpu") -> None:
        """Build the normalised adjacency matrices on the device."""
        self.left, self.right, self.shape, self.device = left, right, shape, device
        degrees = [np.bincount(side, minlength=size) for side, size in zip((left, right), shape, strict=True)]
        weights = 1 / np.sqrt(degrees[0][left] * degrees[1][right])
        self._across = _sparse_matrix(left, right, weights, shape).to(device)
        self._back = _sparse_matrix(right, left, weights, shape[::-1]).to(device)

    def drop_edges(self, share: float, random: np.random.Generator) -> Bipartite:
        """Return the graph without a random share of its edges; degrees count the remaining edges."""
        stays = random.random(len(self.left)) >= share
        return Bipartite(self.left[stays], self.right[stays], self.shape, self.device) if share else self

    def propagate(
        self, left: Tensor, right: Tensor, layers: int, *, scaled: bool = False, wanted: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sum layers 0 … `layers` of both sides (COLT eqs. 1, 3-5; MassTool eqs. 4, 5).

        `l^(i) = Σ_{r∈N(l)} r^(i-1) / (√|N(l)| √|N(r)|)`, and likewise for the right side. A node without edges has
        layer 0 only.

        Args:
            left: (n_left, d) layer 0.
            right: (n_right, d) layer 0.
            layers: number of layers beyond layer 0.
            scaled: divide layer i by i + 1, which later layers inherit, and add its unit rows. COLT's released code
                does this; the paper does not say so.
            wanted: (n,) places of the left nodes to compute; None for all. Computing the last layer for these alone
                saves most of a step's time where the left side is large.
        """

        def select_wanted(rows: Tensor) -> Tensor:
            return rows if wanted is None else rows.index_select(0, wanted)

        sums, last = [select_wanted(left), right], (left, right)
        for layer in range(1, layers + 1):
            final = layer == layers
            across = select_wanted(self._across) if final else self._across
            last = torch.sparse.mm(across, last[1]), torch.sparse.mm(self._back, last[0])
            if scaled:
                last = last[0] / (layer + 1), last[1] / (layer + 1)
            for side, rows in enumerate((last[0] if final else select_wanted(last[0]), last[1])):
                sums[side] = sums[side] + (functional.normalize(rows, dim=1) if scaled else rows)
        return sums[0], sums[1]


def mean_of(groups: Places, members: Places, n_groups: int, rows: Tensor) -> Tensor:
    """Average the rows of each group's members (COLT eqs. 2, 6): `(n_groups, d)`, zeros for an empty group.

    Args:
        groups: the group of each membership.
        members: the row of each membership.
        n_groups: number of groups.
        rows: (n, d).
    """
    sizes = np.bincount(groups, minlength=n_groups)
    shares = _sparse_matrix(groups, members, 1 / sizes[groups], (n_groups, len(rows)))
    means: Tensor = torch.sparse.mm(shares.to(rows.device), rows)
    return means


def _sparse_matrix(rows: Places, columns: Places, values: npt.NDArray[Any], shape: tuple[int, ...]) -> Tensor:
    places = torch.from_numpy(np.stack([rows, columns]).astype(np.int64))
    return torch.sparse_coo_tensor(
        places, torch.from_numpy(values.astype(np.float32)), shape, check_invariants=True
    ).coalesce()
