"""Trains MassTool's two towers over frozen vectors: does a query need a tool, and which (arXiv:2507.00487)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from toolscout.arrays import Places
from toolscout.encoders import Vectors
from toolscout_lab.training.collaboration import Collaboration

if TYPE_CHECKING:
    from toolscout_lab.rankers.shared.tuning import MassToolOptions, Transfer

__all__ = ["IntentQueries", "Intents", "Towers"]


@dataclasses.dataclass(frozen=True)
class IntentQueries:
    """The queries that `Intents` learns from.

    Attributes:
        rows: (n, d) vectors of the training queries.
        gold: the tools of each query.
        scene_of: see `Collaboration`.
        near: (n, K) neighbours of each query among the other queries, nearest first; -1 where there are fewer.
        chat: (o, d) vectors of queries that need no tool; without any, the need is not learned.
    """

    rows: Vectors
    gold: Sequence[Places]
    scene_of: Places
    near: Places
    chat: Vectors


class Towers(torch.nn.Module):
    """The layers learned besides the vectors: attention weights W, detection tower, transfer between the towers."""

    def __init__(self, dim: int, *, search: bool, transfer: Transfer, seed: int = 0) -> None:
        """Create the layers; the attention starts as plain dot products, W = 1.

        Args:
            dim: of the vectors.
            search: whether to learn the attention weights.
            transfer: how the search tower's vector enters the detection tower.
            seed: of the first weights.
        """
        super().__init__()
        self.transfer = transfer
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.project, self.need = torch.nn.Linear(dim, dim), torch.nn.Linear(dim, 1)
            self.attend = torch.nn.Parameter(torch.eye(dim)) if search else None
            sizes = {"gate": [(dim, dim)], "attention": [(dim, dim)] * 3, "concatenation": [(2 * dim, dim), (dim, dim)]}
            self.join = torch.nn.ModuleList(torch.nn.Linear(*size) for size in sizes.get(transfer, ()))

    def forward(self, rows: Tensor, graph: Tensor, near: Tensor, passed: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the vectors of queries (eq. 6) and the logits of their need (eq. 2).

        Args:
            rows: (n, d) vectors of the frozen encoder.
            graph: (n, d) `e_q^graph`.
            near: (n, K, d) `e_q'^graph` of the neighbours.
            passed: (n, K) bool: which neighbours passed the filter.

        Returns:
            (n, d), a sum of three unit rows, or of fewer without neighbours or transfer; and (n,).
        """
        hidden = self.compute_hidden(rows)
        logits = self.need_logits(hidden)
        total = functional.normalize(graph, dim=1)
        searched, has_neighbour = graph, torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        if self.attend is not None:
            has_neighbour = passed.any(dim=1)
            fit = torch.einsum("nd,nkd->nk", graph @ self.attend, near).masked_fill(~passed, -torch.inf)
            weights = fit.masked_fill(~has_neighbour[:, None], 0.0).softmax(dim=1) * passed
            searched = torch.einsum("nk,nkd->nd", weights, near)
            total = total + functional.normalize(searched, dim=1) * has_neighbour[:, None]
        if self.transfer != "none":
            joint = self._compute_transfer(hidden, searched * rows.shape[1] ** 0.5)
            total = total + functional.normalize(joint, dim=1) * has_neighbour[:, None]
        return total, logits

    def compute_hidden(self, rows: Tensor) -> Tensor:
        """Compute h, the hidden layer that detection and transfer share (eq. 2), (n, d).

        The rows, of length 1, are scaled to a mean square of 1, which is near that of the raw vectors in the released
        code. With unit rows the gate of AdaKT starts almost constant.
        """
        return functional.relu(self.project(rows * rows.shape[1] ** 0.5))

    def need_logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits of the need (eq. 2), (n,), from h."""
        logits: Tensor = self.need(hidden).squeeze(1)
        return logits

    def _compute_transfer(self, hidden: Tensor, searched: Tensor) -> Tensor:
        """Compute `e_q^joint`, the transfer from detection to retrieval (section 4.2.3, appendix B.2).

        Args:
            hidden: (n, d) h.
            searched: (n, d) `e_q^search`, scaled like the rows that h was computed from.
        """
        if self.transfer == "gate":
            return torch.sigmoid(self.join[0](hidden)) * searched
        if self.transfer == "addition":
            return hidden + searched
        if self.transfer == "concatenation":
            joint: Tensor = self.join[1](functional.relu(self.join[0](torch.cat([hidden, searched], dim=1))))
            return joint
        pair = torch.stack([hidden, searched], dim=1)
        queries, keys, values = (layer(pair) for layer in self.join)
        weights = (queries @ keys.transpose(1, 2) / pair.shape[2] ** 0.5).softmax(dim=2)
        attended: Tensor = (weights @ values).sum(dim=1)
        return attended


class Intents(Collaboration):
    """Learns from queries with their scenes, tools and neighbours, and from queries that need no tool."""

    shape: MassToolOptions

    def __init__(
        self,
        *,
        queries: IntentQueries,
        tools: Vectors,
        evaluate: Callable[[Mapping[str, Vectors]], dict[str, float]],
        shape: MassToolOptions,
        identity: str,
        seed: int = 0,
    ) -> None:
        """Describe the task.

        Args:
            queries: the queries with all that is known about them.
            tools: (m, d) vectors of the tools.
            evaluate: returns the dev figures of `arrays()`.
            shape: settings of the fit.
            identity: see `Task`.
            seed: seed of the layers' initial weights.
        """
        super().__init__(
            queries=queries.rows,
            tools=tools,
            gold=queries.gold,
            scene_of=queries.scene_of,
            evaluate=lambda rows: {},
            shape=shape,
            identity=identity,
        )
        dim = queries.rows.shape[1]
        self.towers = Towers(dim, search=shape.search, transfer=shape.transfer, seed=seed).to(self.device)
        self.module = torch.nn.ModuleDict({"vectors": self.module, "towers": self.towers})
        self.rows, self.chat = (torch.from_numpy(rows).to(self.device) for rows in (queries.rows, queries.chat))
        self.near, self.evaluate_arrays = queries.near, evaluate

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """Accumulate the gradients of some queries that need tools, and of an equal share of those that need none."""
        in_scene, scenes, in_tool, tools, pooled = self.compute_views(*self.epoch_edges)
        graph, places = in_scene + in_tool, torch.from_numpy(rows)
        query_graph = graph[places] if self.shape.seen == "graph" else 2 * self.rows[places]
        near = torch.from_numpy(self.near[rows]).to(self.device)
        vectors, logits = self.towers(self.rows[places], query_graph, graph[near.clamp(min=0)], near >= 0)
        columns, listed, gold = self.draw_lists(rows, random)
        unit = functional.normalize(tools[torch.from_numpy(columns)], dim=1)
        value = self.listwise(vectors @ unit.T, listed, gold)
        if self.shape.contrast:
            value = value + self.shape.contrast * self.contrast(
                rows, (in_scene[places], in_tool[places]), (scenes, pooled)
            )
        if self.shape.need and len(self.chat):
            value = value + self.shape.need * self._compute_need_loss(logits, random)
        value.backward()  # type: ignore[no-untyped-call]
        return float(value.item())

    def _compute_need_loss(self, logits: Tensor, random: np.random.Generator) -> Tensor:
        """Compute the binary cross-entropy (eq. 3, with its minus sign); both kinds of queries weigh the same."""
        count = max(1, round(len(self.chat) * len(logits) / self.size))
        sample = torch.from_numpy(random.choice(len(self.chat), size=count, replace=False))
        chat_logits = self.towers.need_logits(self.towers.compute_hidden(self.chat[sample]))
        return (functional.softplus(-logits).mean() + functional.softplus(chat_logits).mean()) / 2

    def arrays(self) -> dict[str, Vectors]:
        """Return the arrays that search needs: graph vectors of the pool, tool vectors, layers; over all edges."""
        with torch.no_grad():
            in_scene, _, in_tool, tools, _ = self.compute_views(self.query_scene, self.query_tool)
            arrays: dict[str, Any] = {"pool": in_scene + in_tool, "tools": tools}
            arrays |= {f"towers.{name}": values for name, values in self.towers.state_dict().items()}
            return {name: values.detach().cpu().numpy() for name, values in arrays.items()}

    def figures(self) -> dict[str, float]:
        """Evaluate the current weights on dev."""
        return self.evaluate_arrays(self.arrays())
