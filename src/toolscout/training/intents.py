"""MassTool's two towers as a task, over frozen vectors: does a query need a tool, and which (arXiv:2507.00487)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from toolscout.encoders import Vectors
from toolscout.training.collaboration import Collaboration, Shape

__all__ = ["IntentShape", "Intents", "Towers"]

Places = npt.NDArray[np.intp]
Transfer = Literal["gate", "attention", "concatenation", "addition", "none"]


@dataclasses.dataclass(frozen=True)
class IntentShape(Shape):
    """What the towers are made of; see `methods.masstool.Options`."""

    seen: Literal["graph", "new"]
    search: bool
    transfer: Transfer
    need: float


class Towers(torch.nn.Module):
    """What is learned beside the vectors: W of the attention, the detection tower, the transfer between the two."""

    def __init__(self, dim: int, *, search: bool, transfer: Transfer, seed: int = 0) -> None:
        """Make the layers; the attention starts as plain likeness, W = 1."""
        super().__init__()
        self.transfer = transfer
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.project, self.need = torch.nn.Linear(dim, dim), torch.nn.Linear(dim, 1)
            self.attend = torch.nn.Parameter(torch.eye(dim)) if search else None
            sizes = {"gate": [(dim, dim)], "attention": [(dim, dim)] * 3, "concatenation": [(2 * dim, dim), (dim, dim)]}
            self.join = torch.nn.ModuleList(torch.nn.Linear(*size) for size in sizes.get(transfer, ()))

    def forward(self, rows: Tensor, graph: Tensor, near: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Queries → their vectors (eq. 6) and the logits of their need (eq. 2).

        Args:
            rows: (n, d) of the frozen encoder.
            graph: (n, d) `e_q^graph`.
            near: (n, K, d) `e_q'^graph` of the neighbours.
            there: (n, K) bool: which of them passed the filter.

        Returns:
            (n, d), a sum of three unit rows, or of fewer where there is no neighbour or no transfer; and (n,).
        """
        hidden = functional.relu(self.project(rows))
        logits = self.asked(hidden)
        total = functional.normalize(graph, dim=1)
        found, some = graph, torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        if self.attend is not None:
            some = there.any(dim=1)
            fit = torch.einsum("nd,nkd->nk", graph @ self.attend, near).masked_fill(~there, -torch.inf)
            weights = fit.masked_fill(~some[:, None], 0.0).softmax(dim=1) * there
            found = torch.einsum("nk,nkd->nd", weights, near)
            total = total + functional.normalize(found, dim=1) * some[:, None]
        if self.transfer != "none":
            total = total + functional.normalize(self._joined(hidden, found), dim=1) * some[:, None]
        return total, logits

    def asked(self, hidden: Tensor) -> Tensor:
        """The logits of the need (eq. 2), (n,); what comes of unit rows is brought to a mean square of about 1."""
        logits: Tensor = self.need(hidden * hidden.shape[1] ** 0.5).squeeze(1)
        return logits

    def _joined(self, hidden: Tensor, found: Tensor) -> Tensor:
        """`e_q^joint`: what detection knows, passed on (section 4.2.3, appendix B.2)."""
        if self.transfer == "gate":
            return torch.sigmoid(self.join[0](hidden)) * found
        if self.transfer == "addition":
            return hidden + found
        if self.transfer == "concatenation":
            joined: Tensor = self.join[1](functional.relu(self.join[0](torch.cat([hidden, found], dim=1))))
            return joined
        both = torch.stack([hidden, found], dim=1)
        asked, offered, values = (layer(both) for layer in self.join)
        weights = (asked @ offered.transpose(1, 2) / both.shape[2] ** 0.5).softmax(dim=2)
        summed: Tensor = (weights @ values).sum(dim=1)
        return summed


class Intents(Collaboration):
    """Training queries with their scenes, tools and neighbours; and queries that need no tool."""

    shape: IntentShape

    def __init__(
        self,
        *,
        queries: Vectors,
        tools: Vectors,
        gold: Sequence[Places],
        scene_of: Places,
        near: Places,
        chat: Vectors,
        judge: Callable[[Mapping[str, Vectors]], dict[str, float]],
        shape: IntentShape,
        identity: str,
        seed: int = 0,
    ) -> None:
        """Describe the task.

        Args:
            queries: (n, d) vectors of the training queries.
            tools: (m, d) those of the tools.
            gold: the tools of each query.
            scene_of: see `Collaboration`.
            near: (n, K) the neighbours of each query among the others, nearest first; -1 where there are fewer.
            chat: (o, d) queries that need no tool; none: the need is not learned.
            judge: `arrays()` → figures on dev.
            shape: what the towers are made of.
            identity: see `Task`.
            seed: of the layers' first weights.
        """
        super().__init__(
            queries=queries,
            tools=tools,
            gold=gold,
            scene_of=scene_of,
            judge=lambda rows: {},
            shape=shape,
            identity=identity,
        )
        self.towers = Towers(queries.shape[1], search=shape.search, transfer=shape.transfer, seed=seed).to(self.device)
        self.module = torch.nn.ModuleDict({"vectors": self.module, "towers": self.towers})
        self.rows, self.chat = (torch.from_numpy(each).to(self.device) for each in (queries, chat))
        self.near, self.of_arrays = near, judge

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """One step on some queries that need tools, and as great a share of those that need none."""
        in_scene, scenes, in_tool, tools, pooled = self.views(*self.thinned)
        graph, places = in_scene + in_tool, torch.from_numpy(rows)
        own = graph[places] if self.shape.seen == "graph" else 2 * self.rows[places]
        near = torch.from_numpy(self.near[rows]).to(self.device)
        vectors, logits = self.towers(self.rows[places], own, graph[near.clamp(min=0)], near >= 0)
        columns, listed, gold = self.lists(rows, random)
        unit = functional.normalize(tools[torch.from_numpy(columns)], dim=1)
        value = self.listwise(vectors @ unit.T, listed, gold)
        if self.shape.contrast:
            value = value + self.shape.contrast * self.contrast(
                rows, (in_scene[places], in_tool[places]), (scenes, pooled)
            )
        if self.shape.need and len(self.chat):
            value = value + self.shape.need * self._need(logits, random)
        value.backward()  # type: ignore[no-untyped-call]
        return float(value.item())

    def _need(self, logits: Tensor, random: np.random.Generator) -> Tensor:
        """Binary cross-entropy (eq. 3, with its minus sign); both kinds of queries count alike."""
        count = max(1, round(len(self.chat) * len(logits) / self.size))
        drawn = torch.from_numpy(random.choice(len(self.chat), size=count, replace=False))
        others = self.towers.asked(functional.relu(self.towers.project(self.chat[drawn])))
        return (functional.softplus(-logits).mean() + functional.softplus(others).mean()) / 2

    def arrays(self) -> dict[str, Vectors]:
        """What later queries need: the pool's graph vectors, the tools' vectors, the layers; over all edges."""
        with torch.no_grad():
            in_scene, _, in_tool, tools, _ = self.views(self.query_scene, self.query_tool)
            found: dict[str, Any] = {"pool": in_scene + in_tool, "tools": tools}
            found |= {f"towers.{name}": values for name, values in self.towers.state_dict().items()}
            return {name: values.detach().cpu().numpy() for name, values in found.items()}

    def figures(self) -> dict[str, float]:
        """What the judge says."""
        return self.of_arrays(self.arrays())
