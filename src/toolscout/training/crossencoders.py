"""A cross-encoder (Nogueira and Cho, 2019) and its task: a query and a tool in one text, one logit a pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from toolscout.encoders import split_identifiers
from toolscout.encoders.onnx_pairs import LETTERS
from toolscout.encoders.transformer import cut
from toolscout.errors import ConfigError
from toolscout.training import Task
from toolscout.training.losses import binary, list_softmax
from toolscout.training.towers import Tower, chunks

__all__ = ["CrossEncoder", "Pair", "Reading"]

Pair = tuple[list[int], list[int]]
"""Pieces of a query and a tool, and which of the two each belongs to."""

Places = npt.NDArray[np.intp]
HELD: Final = 4_096  # tokens, padding included, that are held with their graph


class CrossEncoder(torch.nn.Module):
    """An encoder that reads a query and a tool together; the mean of what it makes of them is one logit."""

    def __init__(self, tower: Tower, *, length: int, layers: int = 0, seed: int = 0) -> None:
        """Put a new layer on the encoder of a tower.

        Args:
            tower: its encoder.
            length: pieces that are read of a pair.
            layers: keep the first so many alone; 0: all.
            seed: of the new layer's first weights.

        Raises:
            ConfigError: for layers that the encoder does not have.
        """
        super().__init__()
        encoder = tower.model[0].auto_model
        there = int(encoder.config.num_hidden_layers)
        if layers > there or (layers and not hasattr(encoder, "encoder")):
            raise ConfigError(f"layers: expected at most {there}, found {layers}: set fewer, or 0 for all")
        if layers:
            cut(tower.model, layers)
        self.tower, self.encoder, self.length = tower, encoder, length
        self.typed = getattr(encoder.config, "type_vocab_size", 0) > 1
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.score = torch.nn.Linear(encoder.config.hidden_size, 1)
        self.to(tower.device)

    def pairs(self, queries: Sequence[str], tools: Sequence[str]) -> list[Pair]:
        """Each tool behind its query, cut where the longer of both is too long."""
        most = LETTERS * self.length
        texts = [[split_identifiers(text[:most]) for text in side] for side in (queries, tools)]
        found = self.tower.model.tokenizer(
            *texts, truncation="longest_first", max_length=self.length, return_token_type_ids=True
        )
        return list(zip(found["input_ids"], found["token_type_ids"], strict=True))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """(n, pieces) each → (n,) logits."""
        kinds = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **kinds).last_hidden_state
        read = attention_mask.unsqueeze(2).to(states.dtype)
        mean = (states * read).sum(dim=1) / read.sum(dim=1)
        logits: Tensor = self.score(mean).squeeze(1)
        return logits

    def of(self, pairs: Sequence[Pair]) -> Tensor:
        """(n,) float32 logits, with a graph unless gradients are off."""
        longest, place = max(len(ids) for ids, _ in pairs), self.tower.device
        ids = torch.full((len(pairs), longest), int(self.tower.model.tokenizer.pad_token_id or 0))
        mask, kinds = torch.zeros_like(ids), torch.zeros_like(ids)
        for row, (pieces, types) in enumerate(pairs):
            ids[row, : len(pieces)], kinds[row, : len(pieces)] = torch.tensor(pieces), torch.tensor(types)
            mask[row, : len(pieces)] = 1
        with torch.autocast(place.type, torch.bfloat16, enabled=self.tower.half):
            logits: Tensor = self(ids.to(place), mask.to(place), kinds.to(place) if self.typed else None)
        return logits.float()

    def logits(self, pairs: Sequence[Pair]) -> npt.NDArray[np.float64]:
        """(n,), some pairs at a time and without gradients."""
        found = np.empty(len(pairs))
        with torch.no_grad():
            for group in chunks([len(ids) for ids, _ in pairs]):
                found[group] = self.of([pairs[place] for place in group]).double().cpu().numpy()
        return found


class Reading(Task):
    """Queries, each with its gold tools and some hard negatives → which of these each needs."""

    def __init__(
        self,
        net: CrossEncoder,
        *,
        queries: Sequence[str],
        tools: Sequence[str],
        gold: Sequence[Places],
        wrong: Sequence[Places],
        negatives: int,
        loss: Literal["binary", "joint"],
        fast: float,
        judge: Callable[[], dict[str, float]],
        identity: str,
    ) -> None:
        """Describe the task.

        Args:
            net: what is trained.
            queries: texts of the training queries.
            tools: texts of all tools.
            gold: places of the tools that each query needs; one at least.
            wrong: places of those that it does not need and that look like it.
            negatives: how many of these are drawn for a query at each step.
            loss: yes or no for each pair (`binary`), or this and a list-wise softmax over the pairs of a query.
            fast: the new layer learns so many times as fast as the encoder.
            judge: → the figures on dev of the module as it is.
            identity: see `Task`.
        """
        self.module = self.net = net
        self.queries, self.tools, self.gold, self.wrong = queries, tools, gold, wrong
        self.negatives, self.loss, self.fast = negatives, loss, fast
        self.judge, self.identity, self.size = judge, identity, len(queries)
        self.lengths = [len(text) for text in queries]

    def groups(self, decay: float) -> list[dict[str, Any]]:
        """The encoder's parameters, and the new layer's with a higher rate."""
        return self.faster(decay, self.net.score, self.fast)

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """One step on some queries: the mean over them, some of them at a time."""
        drawn = [random.permutation(self.wrong[row])[: self.negatives] for row in rows]
        columns = [np.concatenate([self.gold[row], some]) for row, some in zip(rows, drawn, strict=True)]
        pairs = self.net.pairs(
            [self.queries[row] for row, some in zip(rows, columns, strict=True) for _ in some],
            [self.tools[tool] for some in columns for tool in some],
        )
        begins = np.cumsum([0, *map(len, columns)])
        total = 0.0
        for group in chunks([self.net.length * len(some) for some in columns], HELD):
            inside = [pairs[begins[each] : begins[each + 1]] for each in group]
            logits = self.net.of([pair for some in inside for pair in some])
            lists = torch.nn.utils.rnn.pad_sequence(
                list(torch.split(logits, [len(some) for some in inside])), batch_first=True
            )
            sizes = [(len(self.gold[rows[each]]), len(columns[each])) for each in group]
            loss = self._loss(lists, sizes) * len(group) / len(rows)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total

    def _loss(self, lists: Tensor, sizes: Sequence[tuple[int, int]]) -> Tensor:
        """Of (n, longest) logits, the gold ones of each row first; how many are gold, and how many there are."""
        place = torch.arange(lists.shape[1])
        gold = torch.stack([place < right for right, _ in sizes]).to(lists.device)
        listed = torch.stack([place < all_ for _, all_ in sizes]).to(lists.device)
        rows = [binary(row[there], right[there]) for row, there, right in zip(lists, listed, gold, strict=True)]
        loss = torch.stack(rows).mean()
        return loss if self.loss == "binary" else loss + list_softmax(lists, gold, listed)

    def figures(self) -> dict[str, float]:
        """What the judge says."""
        return self.judge()
