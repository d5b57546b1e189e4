"""Trains the second stage of COLT: vectors of queries and tools as parameters, over query-scene-tool graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from toolscout.arrays import Array, Places
from toolscout.encoders import Vectors
from toolscout_lab.training import Task
from toolscout_lab.training.losses import colt_list, cross_view, list_softmax
from toolscout_lab.training.towers import device

if TYPE_CHECKING:
    from toolscout_lab.rankers.shared.tuning import Graphs

__all__ = ["Bipartite", "Collaboration", "mean_of"]


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


def _sparse_matrix(rows: Places, columns: Places, values: Array, shape: tuple[int, ...]) -> Tensor:
    places = torch.from_numpy(np.stack([rows, columns]).astype(np.int64))
    return torch.sparse_coo_tensor(
        places, torch.from_numpy(values.astype(np.float32)), shape, check_invariants=True
    ).coalesce()


class Collaboration(Task):
    """Trains the vectors of tools, and of training queries if they are free, over graphs (stage 2 of COLT).

    A scene is the set of gold tools of a query; queries with equal sets share a scene.
    """

    def __init__(
        self,
        *,
        queries: Vectors,
        tools: Vectors,
        gold: Sequence[Places],
        scene_of: Places,
        evaluate: Callable[[Vectors], dict[str, float]],
        shape: Graphs,
        identity: str,
    ) -> None:
        """Describe the task.

        Args:
            queries: (n, d) vectors of the training queries by the encoder, which stage 1 of COLT has tuned.
            tools: (m, d) vectors of the tools by the same encoder.
            gold: the tools of each query.
            scene_of: the scene of each query, counted from 0; queries of one scene have the same tools.
            evaluate: returns the dev figures of the tools' final vectors, (m, d).
            shape: settings of the fit; see `Graphs`.
            identity: see `Task`.
        """
        self.shape, self.evaluate, self.identity, self.size = shape, evaluate, identity, len(queries)
        self.device, self.gold, self.scene_of = device(), gold, scene_of
        self.queries, self.tools = (
            torch.nn.Parameter(torch.from_numpy(np.array(rows)).to(self.device)) for rows in (queries, tools)
        )
        self.queries.requires_grad = shape.queries == "free"
        self.module = torch.nn.ParameterDict({"queries": self.queries, "tools": self.tools})
        self.used = np.unique(np.concatenate(gold))
        # Edges of the graphs: query to each of its tools, and query to its scene. A scene has the tools of its first
        # query; `groups_of` and `members` are (scene, tool) in two columns.
        places = np.arange(len(gold))
        sizes = [len(tool_places) for tool_places in gold]
        self.query_tool = Bipartite(
            np.repeat(places, sizes), np.concatenate(gold), (len(gold), len(tools)), self.device
        )
        scenes, first = np.unique(scene_of, return_index=True)
        self.query_scene = Bipartite(places, scene_of, (len(gold), len(scenes)), self.device)
        self.groups_of = np.repeat(np.arange(len(scenes)), [sizes[query] for query in first])
        self.members = np.concatenate([gold[query] for query in first])
        self.n_scenes = len(scenes)

    def begin(self, epoch: int, random: np.random.Generator) -> None:
        """Draw the edges of this epoch."""
        share = self.shape.dropped
        self.epoch_edges = self.query_scene.drop_edges(share, random), self.query_tool.drop_edges(share, random)

    def compute_views(
        self, query_scene: Bipartite, query_tool: Bipartite, wanted: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Propagate the vectors in the two views: over query-scene edges and over query-tool edges (COLT eqs. 1-6).

        Args:
            query_scene: the edges of the scene view.
            query_tool: the edges of the tool view.
            wanted: positions of the queries to compute; None for all.

        Returns:
            Vectors of the queries and scenes in the scene view, then of the queries, tools and scenes in the tool view.
            In the tool view, a scene is the mean of its tools (`pooled` in the losses).
        """
        queries, tools, shape = self.queries, self.tools, self.shape
        scenes = mean_of(self.groups_of, self.members, self.n_scenes, tools)
        by_scene = query_scene.propagate(queries, scenes, shape.layers, scaled=shape.scaled, wanted=wanted)
        by_tool = query_tool.propagate(queries, tools, shape.layers, scaled=shape.scaled, wanted=wanted)
        return *by_scene, *by_tool, mean_of(self.groups_of, self.members, self.n_scenes, by_tool[1])

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """Accumulate the gradients of some queries."""
        places = torch.from_numpy(rows).to(self.device)
        in_scene, scenes, in_tool, tools, pooled = self.compute_views(*self.epoch_edges, places)
        columns, listed, gold = self.draw_lists(rows, random)
        unit = functional.normalize(tools[torch.from_numpy(columns)], dim=1)
        cosines = sum(functional.normalize(view, dim=1) @ unit.T for view in (in_scene, in_tool))
        assert isinstance(cosines, Tensor)
        value = self.listwise(cosines, listed, gold)
        if self.shape.contrast:
            value = value + self.shape.contrast * self.contrast(rows, (in_scene, in_tool), (scenes, pooled))
        value.backward()  # type: ignore[no-untyped-call]
        return float(value.item())

    def listwise(self, scores: Tensor, listed: Places | None, gold: npt.NDArray[np.bool_]) -> Tensor:
        """Compute the list-wise loss of some queries; see `draw_lists`.

        Args:
            scores: (n, m) scores of the tools that occur in any list.
            listed: (n, length) columns of `scores` that are in each list; None: each list has all columns.
            gold: (n, length) bool: which tools of a list are gold.
        """
        if listed is not None:
            scores = scores.gather(1, torch.from_numpy(listed).to(self.device))
        loss = colt_list if self.shape.loss == "colt" else list_softmax
        return loss(self.shape.sharpness * scores, torch.from_numpy(gold).to(self.device))

    def contrast(self, rows: Places, queries: tuple[Tensor, Tensor], scenes: tuple[Tensor, Tensor]) -> Tensor:
        """Contrast both views of some queries, and of their scenes (COLT eqs. 8, 9)."""
        batch_scenes = torch.from_numpy(np.unique(self.scene_of[rows]))
        temperature = self.shape.temperature
        query_loss = cross_view(*queries, temperature)
        return query_loss + cross_view(scenes[0][batch_scenes], scenes[1][batch_scenes], temperature)

    def draw_lists(
        self, rows: Places, random: np.random.Generator
    ) -> tuple[Places, Places | None, npt.NDArray[np.bool_]]:
        """Draw a list for each query: all its gold tools, and other tools at random.

        Returns:
            The tools that occur in any list, (m,); the places of each list's tools among those, (n, length), or None
            if every list holds all of them; and which tools are gold, of the same shape.
        """
        golds = [self.gold[row] for row in rows]
        lists = np.repeat(np.arange(len(rows)), [len(gold) for gold in golds])
        is_gold = np.zeros((len(rows), len(self.used)), dtype=np.bool_)
        is_gold[lists, np.searchsorted(self.used, np.concatenate(golds))] = True
        if not self.shape.length or self.shape.length >= len(self.used):
            return self.used, None, is_gold
        length = min(len(self.used), max(self.shape.length, 1 + int(is_gold.sum(axis=1).max())))
        # The smallest numbers are drawn: gold tools have -1, the others are random.
        priorities = np.where(is_gold, -1.0, random.random(is_gold.shape))
        chosen = np.argpartition(priorities, length - 1, axis=1)[:, :length]
        columns, listed = np.unique(chosen, return_inverse=True)
        listed = listed.reshape(chosen.shape)
        return self.used[columns], listed, np.take_along_axis(is_gold, chosen, axis=1)

    def tool_rows(self) -> Vectors:
        """Return the (m, d) final vectors of the tools, over all edges."""
        with torch.no_grad():
            rows: Vectors = self.compute_views(self.query_scene, self.query_tool)[3].cpu().numpy()
        return rows

    def figures(self) -> dict[str, float]:
        """Evaluate the tools' final vectors on dev."""
        return self.evaluate(self.tool_rows())
