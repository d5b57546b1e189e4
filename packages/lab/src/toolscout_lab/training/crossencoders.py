"""Trains a cross-encoder (Nogueira and Cho, 2019): it reads query and tool in one text and gives one logit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from toolscout.arrays import Places
from toolscout.encoders import split_identifiers
from toolscout.errors import ConfigError
from toolscout_lab.encoders.onnx_pairs import MAX_CHARS_PER_PIECE
from toolscout_lab.encoders.transformer import keep_first_layers
from toolscout_lab.training import Task
from toolscout_lab.training.losses import binary, list_softmax
from toolscout_lab.training.towers import Tower, chunks

__all__ = ["CrossEncoder", "Pair", "PairData", "PairTask"]

Pair = tuple[list[int], list[int]]
"""Token ids of a query and a tool, and the token types that tell the two apart."""

MAX_GRAPH_TOKENS: Final = 4_096  # tokens, padding included, whose graph is held at once


class CrossEncoder(torch.nn.Module):
    """An encoder that reads a query and a tool together; a linear layer maps the mean state to one logit."""

    def __init__(self, tower: Tower, *, length: int, layers: int = 0, seed: int = 0) -> None:
        """Put a new layer on the encoder of a tower.

        Args:
            tower: provides the encoder.
            length: maximum tokens of a pair.
            layers: keep only the first layers, this many; 0 keeps all.
            seed: seed of the new layer's initial weights.

        Raises:
            ConfigError: if the encoder has fewer layers.
        """
        super().__init__()
        encoder = tower.model[0].auto_model
        available = int(encoder.config.num_hidden_layers)
        if layers > available or (layers and not hasattr(encoder, "encoder")):
            raise ConfigError(f"layers: expected at most {available}, found {layers}: set fewer, or 0 for all")
        if layers:
            keep_first_layers(tower.model, layers)
        self.tower, self.encoder, self.length = tower, encoder, length
        self.typed = getattr(encoder.config, "type_vocab_size", 0) > 1
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.score = torch.nn.Linear(encoder.config.hidden_size, 1)
        self.to(tower.device)

    def pairs(self, queries: Sequence[str], tools: Sequence[str]) -> list[Pair]:
        """Tokenise each query with its tool; a pair that is too long loses tokens of the longer text."""
        max_chars = MAX_CHARS_PER_PIECE * self.length
        texts = [[split_identifiers(text[:max_chars]) for text in side] for side in (queries, tools)]
        encoding = self.tower.model.tokenizer(
            *texts, truncation="longest_first", max_length=self.length, return_token_type_ids=True
        )
        return list(zip(encoding["input_ids"], encoding["token_type_ids"], strict=True))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Map (n, tokens) inputs to (n,) logits."""
        kinds = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **kinds).last_hidden_state
        weights = attention_mask.unsqueeze(2).to(states.dtype)
        mean = (states * weights).sum(dim=1) / weights.sum(dim=1)
        logits: Tensor = self.score(mean).squeeze(1)
        return logits

    def score_pairs(self, pairs: Sequence[Pair]) -> Tensor:
        """Compute the (n,) float32 logits of pairs, with a graph unless gradients are off."""
        ids, mask = self.tower.pad([pieces for pieces, _ in pairs])
        kinds = self.tower.pad([types for _, types in pairs])[0] * mask if self.typed else None
        with torch.autocast(self.tower.device.type, torch.bfloat16, enabled=self.tower.half):
            logits: Tensor = self(ids, mask, kinds)
        return logits.float()

    def logits(self, pairs: Sequence[Pair]) -> npt.NDArray[np.float64]:
        """Compute the (n,) logits of pairs, in chunks and without gradients."""
        logits = np.empty(len(pairs))
        with torch.no_grad():
            for group in chunks([len(ids) for ids, _ in pairs]):
                logits[group] = self.score_pairs([pairs[position] for position in group]).double().cpu().numpy()
        return logits


@dataclasses.dataclass(frozen=True)
class PairData:
    """The texts that a `PairTask` learns from.

    Attributes:
        queries: texts of the training queries.
        tools: texts of all tools.
        gold: places of the tools that each query needs, at least one.
        wrong: places of the hard negatives of each query.
    """

    queries: Sequence[str]
    tools: Sequence[str]
    gold: Sequence[Places]
    wrong: Sequence[Places]


class PairTask(Task):
    """Learns to tell the gold tools of a query from its hard negatives."""

    def __init__(
        self,
        net: CrossEncoder,
        data: PairData,
        *,
        negatives: int,
        loss: Literal["binary", "joint"],
        fast: float,
        evaluate: Callable[[], dict[str, float]],
        identity: str,
    ) -> None:
        """Describe the task.

        Args:
            net: the module to train.
            data: the texts to learn from.
            negatives: hard negatives drawn per query and step.
            loss: `binary` for each pair, or `joint`: this plus a list-wise softmax over the pairs of a query.
            fast: the new layer's learning rate, as a multiple of the encoder's.
            evaluate: returns the dev figures of the current module.
            identity: see `Task`.
        """
        self.module = self.net = net
        self.data, self.negatives, self.loss, self.fast = data, negatives, loss, fast
        self.evaluate, self.identity, self.size = evaluate, identity, len(data.queries)
        self.lengths = [len(text) for text in data.queries]

    def groups(self, decay: float) -> list[dict[str, object]]:
        """Return the parameter groups; the new layer learns faster than the encoder."""
        return self.scale_layer_rates(decay, self.net.score, self.fast)

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """Accumulate the gradients of the mean loss of some queries, a group of queries at a time."""
        columns = [self._draw_tools(row, random) for row in rows]
        pair_lists = self._pair_up(rows, columns)
        total = 0.0
        for group in chunks([self.net.length * len(tools) for tools in columns], MAX_GRAPH_TOKENS):
            lists = self._pad_logits([pair_lists[position] for position in group])
            sizes = [(len(self.data.gold[rows[position]]), len(columns[position])) for position in group]
            loss = self._compute_loss(lists, sizes) * len(group) / len(rows)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total

    def _draw_tools(self, row: int, random: np.random.Generator) -> Places:
        """Return the gold tools of a query, followed by hard negatives drawn at random."""
        wrong = random.permutation(self.data.wrong[row])[: self.negatives]
        return np.concatenate([self.data.gold[row], wrong])

    def _pair_up(self, rows: Places, columns: Sequence[Places]) -> list[list[Pair]]:
        """Tokenise each query with each of its tools, all in one call."""
        pairs = self.net.pairs(
            [self.data.queries[row] for row, tools in zip(rows, columns, strict=True) for _ in tools],
            [self.data.tools[tool] for tools in columns for tool in tools],
        )
        ends = np.cumsum([len(tools) for tools in columns])
        return [pairs[end - len(tools) : end] for end, tools in zip(ends, columns, strict=True)]

    def _pad_logits(self, pair_lists: Sequence[list[Pair]]) -> Tensor:
        """Compute the logits of several queries' pairs at once, (queries, longest), padded with 0."""
        logits = self.net.score_pairs([pair for pair_list in pair_lists for pair in pair_list])
        rows = torch.split(logits, [len(pair_list) for pair_list in pair_lists])
        return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)

    def _compute_loss(self, lists: Tensor, sizes: Sequence[tuple[int, int]]) -> Tensor:
        """Compute the loss of (n, longest) logits.

        Args:
            lists: one row per query, the logits of its gold tools first.
            sizes: how many logits of each row are gold, and how many there are.
        """
        position = torch.arange(lists.shape[1])
        gold = torch.stack([position < n_gold for n_gold, _ in sizes]).to(lists.device)
        listed = torch.stack([position < n_pairs for _, n_pairs in sizes]).to(lists.device)
        rows = [binary(row[mask], is_gold[mask]) for row, mask, is_gold in zip(lists, listed, gold, strict=True)]
        loss = torch.stack(rows).mean()
        return loss if self.loss == "binary" else loss + list_softmax(lists, gold, listed)
