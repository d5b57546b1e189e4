"""ToolRefiner: one encoder reads a query's tokens and the vectors of its candidates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from toolscout.arrays import Places, Vectors
from toolscout.errors import ConfigError
from toolscout_lab.training import Task
from toolscout_lab.training.classifiers import drop_tokens
from toolscout_lab.training.losses import list_softmax
from toolscout_lab.training.towers import Tokens, Tower

__all__ = ["Refine", "Refiner", "check_order", "find_first_position"]

SCORE_BATCH = 64
TOOL_POSITION = 1
"""The position of all tools, counted from that of the first token. At the first token's own position, the encoder takes
them for [CLS] and gives them equal vectors."""
CHECKED_TOKENS: Final = 16
CHECKED_TOOLS: Final = 128  # as many as a refiner may rerank; a local attention window shows only in a long list
MAX_ORDER_EFFECT: Final = 1e-7  # of the greatest state: rounding gives 1e-15, a DeBERTa of random weights 7e-7


def find_first_position(encoder: object) -> int:
    """Return the position of the first token of a text: 2 in RoBERTa, whose table begins with padding; 0 in BERT."""
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def check_order(encoder: Any, first_position: int | None = None) -> int:
    """Check that an encoder gives a tool the same state wherever it stands among the tools.

    The encoder reads random rows in two orders. Double precision makes sure that only positions can make a difference.
    The configuration does not tell: DeBERTa and MPNet compare places within the input, whatever positions they get.

    Args:
        encoder: the transformer below a sentence encoder.
        first_position: of the query's first token; None: that of the encoder (`find_first_position`).

    Returns:
        The position of the query's first token.

    Raises:
        ConfigError: if the states depend on the order.
    """
    first = find_first_position(encoder) if first_position is None else first_position
    exact = copy.deepcopy(encoder).double().eval()
    table = exact.get_input_embeddings().weight
    random = torch.Generator().manual_seed(0)
    shape = (1, CHECKED_TOKENS + CHECKED_TOOLS, table.shape[1])
    rows = torch.randn(shape, generator=random, dtype=torch.float64).to(table.device)
    order = torch.randperm(CHECKED_TOOLS, generator=random).to(table.device)
    tokens, tools = rows[:, :CHECKED_TOKENS], rows[:, CHECKED_TOKENS:]
    both = torch.cat([rows, torch.cat([tokens, tools[:, order]], dim=1)])
    mask = torch.ones(both.shape[:2], dtype=torch.bool, device=table.device)
    with torch.no_grad():
        straight, turned = _read_tools(exact, both, mask, CHECKED_TOKENS, first)
    if (straight[order] - turned).abs().max() > MAX_ORDER_EFFECT * straight.abs().max():
        raise ConfigError(
            f"ToolRefiner cannot use an encoder of the family {encoder.config.model_type}, because there the score of "
            "a tool depends on its place in the list. Give another --encoder, such as one of BERT or RoBERTa."
        )
    return first


def _read_tools(encoder: Any, rows: Tensor, mask: Tensor, n_tokens: int, first_position: int) -> Tensor:
    """Return an encoder's states of the tools, (n, N, width).

    Args:
        encoder: the transformer.
        rows: (n, n_tokens + N, width) input embeddings: a query's tokens, then its tools.
        mask: (n, n_tokens + N): False for padding.
        n_tokens: number of tokens.
        first_position: of the first token.
    """
    n, length, _ = rows.shape
    is_tool = torch.arange(length, device=rows.device).expand(n, -1) >= n_tokens
    places = torch.arange(length, device=rows.device).expand(n, -1)
    has_kinds = getattr(encoder.config, "type_vocab_size", 0) > 1
    states: Tensor = encoder(
        inputs_embeds=rows,
        attention_mask=mask.long(),
        position_ids=first_position + places.masked_fill(is_tool, TOOL_POSITION),
        **({"token_type_ids": is_tool.long()} if has_kinds else {}),
    ).last_hidden_state
    return states[:, n_tokens:]


class Refiner(torch.nn.Module):
    """An encoder that reads a query's tokens and then one vector per tool, and gives one logit per tool.

    All tools have the same position, so their order has no meaning.
    """

    def __init__(self, tower: Tower, vectors: Vectors, seed: int = 0, first_position: int | None = None) -> None:
        """Put new layers around the encoder of a tower.

        Args:
            tower: its encoder must accept `inputs_embeds` and `position_ids`, as `BertModel` does.
            vectors: (tools, dim), one per tool.
            seed: seed of the new layers' initial weights.
            first_position: what `check_order` returned for the encoder; None: it is checked now.

        Raises:
            ConfigError: if the order of the tools matters to the encoder.
        """
        super().__init__()
        encoder = tower.model[0].auto_model
        self.first_position = check_order(encoder) if first_position is None else first_position
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
        places = torch.from_numpy(candidates).to(self.tower.device)
        is_tool, tools = places >= 0, self.vectors[places.clamp(min=0)]
        ids, token_mask = self.tower.pad(tokens)
        words = self.encoder.get_input_embeddings()(ids)
        mask = torch.cat([token_mask.bool(), is_tool], dim=1)
        with torch.autocast(self.tower.device.type, torch.bfloat16, enabled=self.tower.half):
            rows = torch.cat([words, self.project(tools).to(words.dtype)], dim=1)
            states = _read_tools(self.encoder, rows, mask, ids.shape[1], self.first_position)
            logits: Tensor = self.score(states).squeeze(2)
        return logits.float().masked_fill(~is_tool, -torch.inf)

    def log_probabilities(self, tokens: Tokens, candidates: Places) -> npt.NDArray[np.float64]:
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

    def groups(self, decay: float) -> list[dict[str, object]]:
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
