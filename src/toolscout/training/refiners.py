"""ToolRefiner: one encoder reads a query's tokens and the vectors of its candidates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from toolscout.errors import ConfigError
from toolscout.training import Task
from toolscout.training.classifiers import drop_tokens
from toolscout.training.losses import list_softmax
from toolscout.training.towers import Tokens, Tower

__all__ = ["Refine", "Refiner"]

Rows = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]
SCORE_BATCH = 64
TOOL_POSITION = 1  # shared by all tools; at position 0 the encoder takes them for [CLS] and gives them equal vectors


class Refiner(torch.nn.Module):
    """An encoder that reads a query's tokens and then one vector per tool, and gives one logit per tool.

    All tools have the same position, so their order has no meaning.
    """

    def __init__(self, tower: Tower, vectors: Rows, seed: int = 0) -> None:
        """Put new layers around the encoder of a tower.

        Args:
            tower: its encoder must accept `inputs_embeds` and `position_ids`, as `BertModel` does.
            vectors: (tools, dim), one per tool.
            seed: seed of the new layers' initial weights.

        Raises:
            ConfigError: if the encoder cannot give all tools the same position.
        """
        super().__init__()
        encoder = tower.model[0].auto_model
        if getattr(encoder.config, "position_embedding_type", "absolute") != "absolute":
            raise ConfigError(
                f"ToolRefiner needs an encoder with absolute positions, such as BERT, because all tools share one. "
                f"{encoder.config.model_type} has none here. Give another --encoder."
            )
        width = encoder.config.hidden_size
        self.tower, self.encoder = tower, encoder
        size = encoder.get_input_embeddings().weight.detach().norm(dim=1).mean().item()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.project, self.score = torch.nn.Linear(vectors.shape[1], width), torch.nn.Linear(width, 1)
            torch.nn.init.orthogonal_(self.project.weight, gain=size)  # tools start as long as word vectors
            torch.nn.init.zeros_(self.project.bias)
        self.vectors = torch.from_numpy(vectors).to(tower.device)
        self.to(tower.device)

    def forward(self, tokens: Tokens, candidates: Places) -> Tensor:
        """Compute the logits, (n, N); -inf where there is no tool.

        Args:
            tokens: the n queries.
            candidates: (n, N) places of tools; -1 where a query has fewer.
        """
        device, longest = self.tower.device, max(map(len, tokens))
        places = torch.from_numpy(candidates).to(device)
        is_tool, tools = places >= 0, self.vectors[places.clamp(min=0)]
        ids = torch.full((len(tokens), longest), int(self.tower.model.tokenizer.pad_token_id or 0))
        is_token = torch.zeros((len(tokens), longest), dtype=torch.bool)
        for row, query in enumerate(tokens):
            ids[row, : len(query)], is_token[row, : len(query)] = torch.tensor(query), True
        words = self.encoder.get_input_embeddings()(ids.to(device))
        shape = is_tool.shape
        kinds = torch.cat([torch.zeros_like(ids), torch.ones(shape, dtype=torch.long)], dim=1).to(device)
        positions = torch.cat([torch.arange(longest).expand(len(tokens), -1), torch.full(shape, TOOL_POSITION)], dim=1)
        mask = torch.cat([is_token.to(device), is_tool], dim=1)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.tower.half):
            logits = self._score_tools(words, tools, mask, positions.to(device), kinds)
        return logits.float().masked_fill(~is_tool, -torch.inf)

    def _score_tools(self, words: Tensor, tools: Tensor, mask: Tensor, positions: Tensor, kinds: Tensor) -> Tensor:
        states = self.encoder(
            inputs_embeds=torch.cat([words, self.project(tools).to(words.dtype)], dim=1),
            attention_mask=mask.long(),
            position_ids=positions,
            **({"token_type_ids": kinds} if getattr(self.encoder.config, "type_vocab_size", 0) > 1 else {}),
        ).last_hidden_state
        logits: Tensor = self.score(states[:, words.shape[1] :]).squeeze(2)
        return logits

    def shares(self, tokens: Tokens, candidates: Places) -> npt.NDArray[np.float64]:
        """Compute the log-softmax over each query's candidates, (n, N), in batches and without gradients."""
        parts = []
        with torch.no_grad():
            for start in range(0, len(tokens), SCORE_BATCH):
                end = start + SCORE_BATCH
                parts.append(self(tokens[start:end], candidates[start:end]).double().log_softmax(dim=1).cpu().numpy())
        return np.concatenate(parts) if parts else np.empty(candidates.shape)


class Refine(Task):
    """Learns which of its candidates each query needs."""

    def __init__(
        self,
        refiner: Refiner,
        *,
        queries: Tokens,
        candidates: Places,
        gold: npt.NDArray[np.bool_],
        evaluate: Callable[[], dict[str, float]],
        identity: str,
        fast: float = 1.0,
        thinned: float = 0.0,
    ) -> None:
        """Describe the task.

        Args:
            refiner: the module to train.
            queries: tokens of the training queries.
            candidates: (queries, N): places of tools; -1 where a query has fewer.
            gold: (queries, N): the candidates that the query needs, at least one per query.
            evaluate: returns the dev figures of the current module.
            identity: see `Task`.
            fast: the new layers' learning rate, as a multiple of the encoder's.
            thinned: share of a query's tokens that each step drops at random.
        """
        self.module = self.refiner = refiner
        self.queries, self.candidates, self.gold, self.evaluate = queries, candidates, gold, evaluate
        self.identity, self.size, self.lengths = identity, len(queries), [len(query) for query in queries]
        self.fast, self.thinned = fast, thinned

    def groups(self, decay: float) -> list[dict[str, Any]]:
        """Return the parameter groups; the new layers learn faster than the encoder."""
        layers = torch.nn.ModuleList([self.refiner.project, self.refiner.score])
        return self.scale_layer_rates(decay, layers, self.fast)

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """Accumulate the gradients of some queries, the candidates of each in random order."""
        tokens = [drop_tokens(self.queries[row], self.thinned, random) for row in rows]
        order = np.argsort(random.random(self.candidates[rows].shape), axis=1)
        candidates = np.take_along_axis(self.candidates[rows], order, axis=1)
        gold = torch.from_numpy(np.take_along_axis(self.gold[rows], order, axis=1))
        loss = list_softmax(self.refiner(tokens, candidates), gold.to(self.refiner.tower.device))
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.item())

    def figures(self) -> dict[str, float]:
        """Evaluate the current weights on dev."""
        return self.evaluate()
