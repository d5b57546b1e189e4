"""The task that tunes a sentence encoder under linear layers over tools, and over sets of tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from toolscout.encoders import Vectors, unit_rows
from toolscout.training import Task
from toolscout.training.losses import binary, list_softmax
from toolscout.training.towers import Tokens, Tower

__all__ = ["Classifier", "Heads"]

Places = npt.NDArray[np.intp]


class Heads(torch.nn.Module):
    """Linear layers over the unit rows of an encoder, by name: logits of `tools`, and of `sets` of tools."""

    def __init__(self, dim: int, classes: Mapping[str, int], scale: float) -> None:
        """Make them of zeros; `scale` is what a cosine is worth as a logit, one over a temperature."""
        super().__init__()
        self.scale = scale
        self.layers = torch.nn.ModuleDict({name: torch.nn.Linear(dim, size) for name, size in classes.items()})
        for values in self.parameters():
            torch.nn.init.zeros_(values)

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        """(n, dim) unit rows → name of each layer → logits, (n, classes)."""
        return {name: self.scale * layer(rows) for name, layer in self.layers.items()}

    def start(self, rows: Vectors, gold: npt.NDArray[np.bool_], name: str) -> None:
        """Start a layer at the mean of the queries of each class (Tool2Vec), its bias at how frequent the class is.

        Args:
            rows: (n, dim) unit rows of the training queries.
            gold: (n, classes): which classes each has.
            name: of the layer.
        """
        means = unit_rows(gold.T.astype(np.float32) @ rows)
        often = np.log((gold.sum(axis=0) + 1) / (len(gold) + 1)) / self.scale
        bias = often - (means * rows.mean(axis=0)).sum(axis=1)
        with torch.no_grad():
            layer = self.layers.get_submodule(name)
            layer.load_state_dict(
                {"weight": torch.from_numpy(means), "bias": torch.from_numpy(bias.astype(np.float32))}
            )


class Classifier(Task):
    """Queries → which tools, and which set of tools, each needs; the encoder is tuned with both layers."""

    def __init__(
        self,
        tower: Tower,
        heads: Heads,
        *,
        queries: Tokens,
        gold: npt.NDArray[np.bool_],
        set_of: Places | None,
        judge: Callable[[], dict[str, float]],
        identity: str,
        loss: Literal["softmax", "binary"],
        fast: float,
        thinned: float,
        hold: int,
    ) -> None:
        """Describe the task.

        Args:
            tower: the encoder.
            heads: the layers over it.
            queries: the training queries, in tokens.
            gold: (queries, tools): which tools each needs.
            set_of: the set of each query, (queries,); None: there are no sets.
            judge: → the figures on dev of the module as it is.
            identity: see `Task`.
            loss: of the tools: list-wise softmax, or a yes or no for each. Of the sets it is a softmax.
            fast: the layers learn so many times as fast as the encoder.
            thinned: share of a query's tokens that are left out at random at each step.
            hold: so many tokens of a batch are held with their graph.
        """
        self.tower, self.heads = tower, heads.to(tower.device)
        self.module = torch.nn.ModuleDict({"encoder": tower.model, "heads": self.heads})
        self.queries, self.gold, self.set_of, self.judge = queries, gold, set_of, judge
        self.identity, self.size, self.lengths = identity, len(queries), [len(each) for each in queries]
        self.loss, self.fast, self.thinned, self.hold = loss, fast, thinned, hold

    def groups(self, decay: float) -> list[dict[str, Any]]:
        """The encoder's parameters, and the layers' with a higher rate."""
        return self.faster(decay, self.heads, self.fast)

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """One step on some queries."""
        tokens = [thin(self.queries[row], self.thinned, random) for row in rows]
        gold = torch.from_numpy(self.gold[rows]).to(self.tower.device)
        sets = None if self.set_of is None else torch.from_numpy(self.set_of[rows]).to(self.tower.device)

        def of_rows(vectors: Tensor) -> Tensor:
            logits = self.heads(vectors)
            tools = logits["tools"]
            value = list_softmax(tools, gold) if self.loss == "softmax" else binary(tools, gold) * tools.shape[1]
            return value if sets is None else value + torch.nn.functional.cross_entropy(logits["sets"], sets)

        return self.tower.backward(tokens, of_rows, self.hold)

    def figures(self) -> dict[str, float]:
        """What the judge says."""
        return self.judge()

    def shares(self, tokens: Tokens) -> dict[str, npt.NDArray[np.float64]]:
        """How likely each query needs each tool, and each set of tools, by the name of the layer; rows sum to 1."""
        with torch.no_grad():
            logits = self.heads(torch.from_numpy(self.tower.vectors(tokens)).to(self.tower.device))
            found = {name: each.double().softmax(dim=1) for name, each in logits.items()}
            if self.loss == "binary":
                each = logits["tools"].double().sigmoid()
                found["tools"] = each / each.sum(dim=1, keepdim=True)
        return {name: each.cpu().numpy() for name, each in found.items()}


def thin(tokens: Sequence[int], share: float, random: np.random.Generator) -> list[int]:
    """A text without some of its tokens; the first and the last, which mark where it begins and ends, stay."""
    if not share or len(tokens) < 3:
        return list(tokens)
    kept = random.random(len(tokens)) >= share
    kept[[0, -1]] = True
    return [token for token, keep in zip(tokens, kept, strict=True) if keep]
