"""ToolRefiner's network and its task: a query's tokens and the vectors of its candidates through one encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from toolscout.errors import ConfigError
from toolscout.training import Task
from toolscout.training.classifiers import thin
from toolscout.training.losses import list_softmax
from toolscout.training.towers import Tokens, Tower

__all__ = ["Refine", "Refiner"]

Rows = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]
STEP = 64  # queries that are scored at once
SPOT = 1  # the position of every tool; at position 0 all of them pass for [CLS], and end as one and the same vector


class Refiner(torch.nn.Module):
    """An encoder that reads a query's tokens and then tools, each as one vector; one logit a tool.

    All tools stand at the same position, so that their order has no meaning.
    """

    def __init__(self, tower: Tower, vectors: Rows, seed: int = 0) -> None:
        """Put new layers around the encoder of a tower.

        Args:
            tower: its encoder is `BertModel` or the like: it must take `inputs_embeds` and `position_ids`.
            vectors: (tools, dim): one a tool.
            seed: of the new layers' first weights.

        Raises:
            ConfigError: for an encoder that cannot give all tools the same position.
        """
        super().__init__()
        encoder = tower.model[0].auto_model
        if getattr(encoder.config, "position_embedding_type", "absolute") != "absolute":
            raise ConfigError(
                "expected an encoder with absolute positions, such as BERT's (tools must all have the same one), found "
                f"{encoder.config.model_type} with others: give another --encoder"
            )
        width = encoder.config.hidden_size
        self.tower, self.encoder = tower, encoder
        size = encoder.get_input_embeddings().weight.detach().norm(dim=1).mean().item()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.project, self.score = torch.nn.Linear(vectors.shape[1], width), torch.nn.Linear(width, 1)
            torch.nn.init.orthogonal_(self.project.weight, gain=size)  # a tool begins as long as a word
            torch.nn.init.zeros_(self.project.bias)
        self.vectors = torch.from_numpy(vectors).to(tower.device)
        self.to(tower.device)

    def forward(self, tokens: Tokens, candidates: Places) -> Tensor:
        """The logits, (n, N); -inf where there is no tool.

        Args:
            tokens: the n queries.
            candidates: (n, N) places of tools; -1 where a query has fewer.
        """
        place, longest = self.tower.device, max(map(len, tokens))
        numbers = torch.from_numpy(candidates).to(place)
        there, tools = numbers >= 0, self.vectors[numbers.clamp(min=0)]
        ids = torch.full((len(tokens), longest), int(self.tower.model.tokenizer.pad_token_id or 0))
        read = torch.zeros((len(tokens), longest), dtype=torch.bool)
        for row, each in enumerate(tokens):
            ids[row, : len(each)], read[row, : len(each)] = torch.tensor(each), True
        words = self.encoder.get_input_embeddings()(ids.to(place))
        shape = there.shape
        kinds = torch.cat([torch.zeros_like(ids), torch.ones(shape, dtype=torch.long)], dim=1).to(place)
        spots = torch.cat([torch.arange(longest).expand(len(tokens), -1), torch.full(shape, SPOT)], dim=1)
        with torch.autocast(place.type, torch.bfloat16, enabled=self.tower.half):
            logits = self._read(words, tools, read.to(place), there, spots.to(place), kinds)
        return logits.float().masked_fill(~there, -torch.inf)

    def _read(self, words: Tensor, tools: Tensor, read: Tensor, there: Tensor, spots: Tensor, kinds: Tensor) -> Tensor:
        found = self.encoder(
            inputs_embeds=torch.cat([words, self.project(tools).to(words.dtype)], dim=1),
            attention_mask=torch.cat([read, there], dim=1).long(),
            position_ids=spots,
            **({"token_type_ids": kinds} if getattr(self.encoder.config, "type_vocab_size", 0) > 1 else {}),
        ).last_hidden_state
        logits: Tensor = self.score(found[:, words.shape[1] :]).squeeze(2)
        return logits

    def shares(self, tokens: Tokens, candidates: Places) -> npt.NDArray[np.float64]:
        """The logarithms of the candidates' shares, (n, N), some queries at a time and without gradients."""
        with torch.no_grad():
            found = [
                self(tokens[at : at + STEP], candidates[at : at + STEP]).double().log_softmax(dim=1).cpu().numpy()
                for at in range(0, len(tokens), STEP)
            ]
        return np.concatenate(found) if found else np.empty(candidates.shape)


class Refine(Task):
    """Queries with their candidates → which of these each needs."""

    def __init__(
        self,
        refiner: Refiner,
        *,
        queries: Tokens,
        candidates: Places,
        gold: npt.NDArray[np.bool_],
        judge: Callable[[], dict[str, float]],
        identity: str,
        fast: float = 1.0,
        thinned: float = 0.0,
    ) -> None:
        """Describe the task.

        Args:
            refiner: what is trained.
            queries: the training queries, in tokens.
            candidates: (queries, N): places of tools; -1 where a query has fewer.
            gold: (queries, N): which of them the query needs; one a query at least.
            judge: → the figures on dev of the module as it is.
            identity: see `Task`.
            fast: the new layers learn so many times as fast as the encoder.
            thinned: share of a query's tokens that are left out at random at each step.
        """
        self.module = self.refiner = refiner
        self.queries, self.candidates, self.gold, self.judge = queries, candidates, gold, judge
        self.identity, self.size, self.lengths = identity, len(queries), [len(each) for each in queries]
        self.fast, self.thinned = fast, thinned

    def groups(self, decay: float) -> list[dict[str, Any]]:
        """The encoder's parameters, and the new layers' with a higher rate."""
        return self.faster(decay, torch.nn.ModuleList([self.refiner.project, self.refiner.score]), self.fast)

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """One step on some queries, the candidates of each in an order of their own."""
        tokens = [thin(self.queries[row], self.thinned, random) for row in rows]
        order = np.argsort(random.random(self.candidates[rows].shape), axis=1)
        candidates = np.take_along_axis(self.candidates[rows], order, axis=1)
        gold = torch.from_numpy(np.take_along_axis(self.gold[rows], order, axis=1))
        loss = list_softmax(self.refiner(tokens, candidates), gold.to(self.refiner.tower.device))
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.item())

    def figures(self) -> dict[str, float]:
        """What the judge says."""
        return self.judge()
