"""Tunes a sentence encoder together with linear classifiers over tools and over sets of tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from toolscout.arrays import Places
from toolscout.encoders import Vectors, unit_rows
from toolscout_lab.training import Task
from toolscout_lab.training.losses import binary, list_softmax
from toolscout_lab.training.towers import Tokens, Tower

if TYPE_CHECKING:
    from toolscout_lab.rankers.shared.tuning import MlcOptions

__all__ = ["Classifier", "Heads", "drop_tokens"]


class Heads(torch.nn.Module):
    """Linear layers over the unit rows of an encoder: logits of `tools`, and of `sets` of tools."""

    def __init__(self, dim: int, classes: Mapping[str, int], scale: float) -> None:
        """Create layers of zeros; `scale` turns a cosine into a logit (the inverse of a temperature)."""
        super().__init__()
        self.scale = scale
        self.layers = torch.nn.ModuleDict({name: torch.nn.Linear(dim, size) for name, size in classes.items()})
        for values in self.parameters():
            torch.nn.init.zeros_(values)

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        """Map (n, dim) unit rows to the logits of each layer, layer name → (n, classes)."""
        return {name: self.scale * layer(rows) for name, layer in self.layers.items()}

    def start(self, rows: Vectors, gold: npt.NDArray[np.bool_], name: str) -> None:
        """Initialise a layer with the mean query of each class (Tool2Vec), and its bias with the class frequency.

        Args:
            rows: (n, dim) unit rows of the training queries.
            gold: (n, classes): the classes of each query.
            name: name of the layer.
        """
        means = unit_rows(gold.T.astype(np.float32) @ rows)
        log_frequency = np.log((gold.sum(axis=0) + 1) / (len(gold) + 1)) / self.scale
        bias = log_frequency - (means * rows.mean(axis=0)).sum(axis=1)
        with torch.no_grad():
            layer = self.layers.get_submodule(name)
            layer.load_state_dict(
                {"weight": torch.from_numpy(means), "bias": torch.from_numpy(bias.astype(np.float32))}
            )


class Classifier(Task):
    """Learns which tools, and which set of tools, a query needs; tunes the encoder and both layers."""

    def __init__(
        self,
        tower: Tower,
        heads: Heads,
        *,
        queries: Tokens,
        gold: npt.NDArray[np.bool_],
        set_of: Places | None,
        evaluate: Callable[[], dict[str, float]],
        identity: str,
        tuning: MlcOptions,
    ) -> None:
        """Describe the task.

        Args:
            tower: the encoder.
            heads: the layers on top of it.
            queries: tokens of the training queries.
            gold: (queries, tools): the tools that each query needs.
            set_of: the set of each query, (queries,); None if there are no sets.
            evaluate: returns the dev figures of the current module.
            identity: see `Task`.
            tuning: settings of the fit.
        """
        self.tower, self.heads = tower, heads.to(tower.device)
        self.module = torch.nn.ModuleDict({"encoder": tower.model, "heads": self.heads})
        self.queries, self.gold, self.set_of, self.evaluate = queries, gold, set_of, evaluate
        self.identity, self.size, self.lengths = identity, len(queries), [len(query) for query in queries]
        self.tuning = tuning

    def groups(self, decay: float) -> list[dict[str, object]]:
        """Return the parameter groups; the layers learn faster than the encoder."""
        return self.scale_layer_rates(decay, self.heads, self.tuning.fast)

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """Accumulate the gradients of some queries."""
        tokens = [drop_tokens(self.queries[row], self.tuning.thinned, random) for row in rows]
        gold = torch.from_numpy(self.gold[rows]).to(self.tower.device)
        sets = None if self.set_of is None else torch.from_numpy(self.set_of[rows]).to(self.tower.device)

        def compute_loss(vectors: Tensor) -> Tensor:
            logits = self.heads(vectors)
            tools = logits["tools"]
            softmax = self.tuning.loss == "softmax"
            value = list_softmax(tools, gold) if softmax else binary(tools, gold) * tools.shape[1]
            return value if sets is None else value + torch.nn.functional.cross_entropy(logits["sets"], sets)

        return self.tower.backward(tokens, compute_loss, self.tuning.hold)

    def probabilities(self, tokens: Tokens) -> dict[str, npt.NDArray[np.float64]]:
        """Estimate how likely each query needs each tool and each set: layer name → (n, classes), rows sum to 1."""
        with torch.no_grad():
            logits = self.heads(torch.from_numpy(self.tower.vectors(tokens)).to(self.tower.device))
            probabilities = {name: values.double().softmax(dim=1) for name, values in logits.items()}
            if self.tuning.loss == "binary":
                by_tool = logits["tools"].double().sigmoid()
                probabilities["tools"] = by_tool / by_tool.sum(dim=1, keepdim=True)
        return {name: values.cpu().numpy() for name, values in probabilities.items()}


def drop_tokens(tokens: Sequence[int], share: float, random: np.random.Generator) -> list[int]:
    """Drop a random share of a text's tokens; the first and the last mark its ends and stay."""
    if not share or len(tokens) < 3:
        return list(tokens)
    stays = random.random(len(tokens)) >= share
    stays[[0, -1]] = True
    return [token for token, stay in zip(tokens, stays, strict=True) if stay]
