"""The task that tunes one sentence encoder on requests of many domains at once, in few steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from toolscout.arrays import Places
from toolscout_lab.training import Task
from toolscout_lab.training.losses import each_gold
from toolscout_lab.training.towers import Tokens, Tower

if TYPE_CHECKING:
    from toolscout_lab.encoder_data import RequestOptions

__all__ = ["RequestTexts", "Requests"]


@dataclasses.dataclass(frozen=True)
class RequestTexts:
    """Tokenised requests, and the tools of all their catalogues as one list (`wordings`).

    A *place* is the place of a tool in this list.

    Attributes:
        queries: texts of the requests.
        mistyped: the same, each with one typing error.
        wordings: for each tool, its text in several wordings; the first is the one that a search encodes.
        gold: places of each request's gold tools.
        examples_of: source → place of a tool → the requests whose first gold tool it is.
        shares: source → how many of its requests are drawn in each training step.
    """

    queries: Tokens
    mistyped: Tokens
    wordings: Sequence[Tokens]
    gold: Sequence[Places]
    examples_of: Mapping[str, Mapping[int, Sequence[int]]]
    shares: Mapping[str, int]


class Requests(Task):
    """Learns to place requests near their tools among the tools of all catalogues, a share of each source in a step.

    Within a source a step draws tools uniformly and one request of each. The loss has two parts. Each request is
    compared with all tools as the encoder placed them *before* the training, so that the list is long and costs
    nothing, and with some gold tools of the batch as the encoder places them *now*, so that the tools' side learns too.
    Tools whose cosine with a gold tool was at least `near` before are no negatives: sources share needs.
    More than some hundred steps make the encoder worse on other catalogues. There are no dev figures.
    """

    def __init__(self, tower: Tower, texts: RequestTexts, identity: str, settings: RequestOptions) -> None:
        """Describe the task. One step counts as one example of the loop."""
        self.tower, self.texts, self.module, self.identity = tower, texts, tower.model, identity
        self.settings, self.size = settings, settings.steps
        self.before = torch.empty(0)
        self.n_examples, self.n_queries = len(texts.queries), sum(texts.shares.values())
        self.n_listed = len(texts.wordings)

    def begin(self, epoch: int, random: np.random.Generator) -> None:
        """Encode all tools as the encoder is at the start."""
        self.before = torch.from_numpy(self.tower.vectors([wordings[0] for wordings in self.texts.wordings]))

    def state(self) -> dict[str, Tensor]:
        """Return the vectors of the tools at the start."""
        return {"before": self.before}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take the vectors of an interrupted training."""
        self.before = state["before"]

    def draw_examples(self, random: np.random.Generator) -> list[int]:
        """Draw the requests of a step: from each source its share, each for another tool."""
        drawn: list[int] = []
        for source, share in self.texts.shares.items():
            examples_of = self.texts.examples_of.get(source, {})
            tools = random.permutation(sorted(examples_of))[:share]
            drawn += [int(random.choice(examples_of[tool])) for tool in tools.tolist()]
        return list(dict.fromkeys(drawn))

    def choose_words(self, tool: int, random: np.random.Generator) -> list[int]:
        """Choose a wording of a tool: half of the time the first."""
        wordings = self.texts.wordings[tool]
        return wordings[0 if random.random() < 0.5 else int(random.integers(len(wordings)))]

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """Accumulate the gradients of some steps and return their mean loss."""
        return sum(self._descend(len(rows), random) for _ in rows) / len(rows)

    def _descend(self, n_steps: int, random: np.random.Generator) -> float:
        """Accumulate the gradients of one step, divided by the number of steps at once."""
        texts, settings = self.texts, self.settings
        examples = self.draw_examples(random)
        drawn = [int(random.choice(texts.gold[example])) for example in random.permutation(examples).tolist()]
        fresh = list(dict.fromkeys(drawn))[: settings.tools]
        is_mistyped = random.random(len(examples)) < settings.mistyped
        tokens: Tokens = [
            *((texts.mistyped if wrong else texts.queries)[e] for e, wrong in zip(examples, is_mistyped, strict=True)),
            *(self.choose_words(tool, random) for tool in fresh),
        ]
        before = self.before.to(self.tower.device)
        gold = torch.zeros(len(examples), len(before), dtype=torch.bool, device=self.tower.device)
        for row, example in enumerate(examples):
            gold[row, texts.gold[example]] = True
        nearest = [(before @ before[texts.gold[example]].T).amax(dim=1) for example in examples]
        excluded = (torch.stack(nearest) >= settings.near) & ~gold

        def compute_loss(vectors: Tensor) -> Tensor:
            """Compute the loss of a part: against all tools as they were, and against some that are encoded anew."""
            requests, tools = vectors[: len(examples)], vectors[len(examples) :]
            value = each_gold(requests @ before.T / settings.temperature, gold, excluded)
            if fresh:
                now = requests @ tools.T / settings.temperature
                value = value + settings.tool_weight * each_gold(now, gold[:, fresh], excluded[:, fresh])
            return value / n_steps

        return n_steps * self.tower.backward(tokens, compute_loss, settings.hold)
