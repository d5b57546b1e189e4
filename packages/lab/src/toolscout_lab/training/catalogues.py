"""The task that tunes one sentence encoder on requests and tools of several catalogues."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from toolscout.arrays import Places
from toolscout_lab.training import Task
from toolscout_lab.training.losses import list_softmax
from toolscout_lab.training.towers import Tokens, Tower

if TYPE_CHECKING:
    from toolscout_lab.encoder_data import EncoderOptions

__all__ = ["CatalogueTexts", "Catalogues", "average_weights"]


@dataclasses.dataclass(frozen=True)
class CatalogueTexts:
    """The tokenised examples and tools of one catalogue.

    Attributes:
        queries: texts of the examples.
        tools: texts of all tools.
        gold: places of each example's gold tools.
        rivals: places of tools that resemble each example's gold tools and do not serve it; may be empty.
        masked: example → text of its only gold tool without the field that the example was taken from.
        steps: number of training steps on this catalogue.
    """

    queries: Tokens
    tools: Tokens
    gold: Sequence[Places]
    rivals: Sequence[Places]
    masked: Mapping[int, Sequence[int]]
    steps: int

    def group_examples(self) -> dict[int, list[int]]:
        """Map each tool that some example uses to these examples."""
        examples_of: dict[int, list[int]] = {}
        for example, tools in enumerate(self.gold):
            for tool in tools.tolist():
                examples_of.setdefault(tool, []).append(example)
        return examples_of


class Catalogues(Task):
    """Learns all gold tools of examples against a list of tools, in one catalogue at each step.

    A step draws tools uniformly and one example of each, so that a tool with many requests counts no more than others.
    Its list holds the gold tools of these examples, some of their rivals, and further tools up to `columns`
    (`losses.list_softmax`). Large lists matter more than many steps: with lists of 200 tools the encoder gains little
    on other catalogues. A tool that no example uses is never a negative, as in `biencoders.Lists`.
    There are no dev figures, because the number of steps is fixed.
    """

    def __init__(
        self, tower: Tower, catalogues: Sequence[CatalogueTexts], identity: str, settings: EncoderOptions
    ) -> None:
        """Describe the task. One step counts as one example of the loop."""
        self.tower, self.catalogues, self.module, self.identity = tower, catalogues, tower.model, identity
        self.settings = settings
        self.examples_of = [catalogue.group_examples() for catalogue in catalogues]
        self.turns = [number for number, catalogue in enumerate(catalogues) for _ in range(catalogue.steps)]
        self.size = len(self.turns)
        self.n_examples = sum(len(catalogue.queries) for catalogue in catalogues)
        self.n_queries, self.n_listed = settings.queries, settings.columns

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """Accumulate the gradients of some steps and return their mean loss."""
        losses = [self._descend(self.turns[row], len(rows), random) for row in rows]
        return sum(losses) / len(losses)

    def draw_examples(self, number: int, random: np.random.Generator) -> list[int]:
        """Draw up to `queries` tools of catalogue `number`, and one example for each; no example is drawn twice."""
        examples_of = self.examples_of[number]
        tools = random.permutation(sorted(examples_of))[: self.settings.queries]
        return list(dict.fromkeys(int(random.choice(examples_of[tool])) for tool in tools.tolist()))

    def choose_columns(self, number: int, examples: Sequence[int], random: np.random.Generator) -> Places:
        """Choose the tools that the examples of a step are compared with, ascending."""
        catalogue = self.catalogues[number]
        chosen = [catalogue.gold[example] for example in examples]
        chosen += [random.permutation(catalogue.rivals[example])[: self.settings.rivals] for example in examples]
        listed = np.unique(np.concatenate(chosen)).astype(np.intp)
        others = np.setdiff1d(np.array(sorted(self.examples_of[number]), dtype=np.intp), listed)
        return np.sort(
            np.concatenate([listed, random.permutation(others)[: max(0, self.settings.columns - len(listed))]])
        )

    def _descend(self, number: int, n_steps: int, random: np.random.Generator) -> float:
        """Accumulate the gradients of one step in a catalogue, divided by the number of steps at once."""
        catalogue = self.catalogues[number]
        examples = self.draw_examples(number, random)
        columns = self.choose_columns(number, examples, random)
        gold = torch.from_numpy(np.stack([np.isin(columns, catalogue.gold[example]) for example in examples]))
        masked = {
            int(catalogue.gold[example][0]): catalogue.masked[example]
            for example in examples
            if example in catalogue.masked
        }
        tokens: Tokens = [
            *(catalogue.queries[example] for example in examples),
            *(list(masked.get(tool, catalogue.tools[tool])) for tool in columns.tolist()),
        ]
        gold = gold.to(self.tower.device)

        def compute_loss(rows: Tensor) -> Tensor:
            scores = rows[: len(examples)] @ rows[len(examples) :].T / self.settings.temperature
            return list_softmax(scores, gold) / n_steps

        return n_steps * self.tower.backward(tokens, compute_loss, self.settings.hold)


def average_weights(module: torch.nn.Module, start: Mapping[str, Tensor], share: float) -> None:
    """Set each weight to `share` of its trained value plus the rest of its value at the start.

    Weights between the two keep more of what the encoder knew before (Wortsman et al., 2022, WiSE-FT).

    Args:
        module: after the training.
        start: its `state_dict` before the training, copied.
        share: 0 … 1.
    """
    trained = module.state_dict()
    mixed = {
        name: start[name] + share * (value - start[name]) if value.is_floating_point() else value
        for name, value in trained.items()
    }
    module.load_state_dict(mixed)
