"""Tasks that tune a sentence encoder so that queries lie near their gold tools."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from toolscout.arrays import Places
from toolscout.encoders import Vectors
from toolscout_lab.training import Task
from toolscout_lab.training.losses import info_nce, list_softmax, triplet
from toolscout_lab.training.towers import Tokens, Tower

__all__ = ["BiEncoder", "InBatch", "Lists", "MinedTriplets", "Texts", "Triplets", "WordingPairs"]

MINED_BLOCK: Final = 1024  # queries whose cosines with all are in memory
HARD_NEGATIVE_POOL: Final = 30  # hard negatives are drawn from this many nearest wrong tools


@dataclasses.dataclass(frozen=True)
class Texts:
    """The tokenised texts that a bi-encoder learns from.

    Attributes:
        tower: the encoder.
        queries: the training queries.
        tools: all tools of the catalogue.
        gold: places of each training query's gold tools.
        dev: queries for choosing the epoch; without any, the last epoch is kept.
        evaluate: returns the dev figures of cosines, (dev queries, tools).
        identity: see `Task`.
        temperature: divisor of the cosines.
        hold: maximum tokens whose graph is held at once; larger batches use cached gradients.
    """

    tower: Tower
    queries: Tokens
    tools: Tokens
    gold: Sequence[Places]
    dev: Tokens
    evaluate: Callable[[Vectors], dict[str, float]]
    identity: str
    temperature: float = 0.05
    hold: int = 32_768

    def cosines(self) -> Vectors:
        """Compute the cosines of dev queries and tools, (dev queries, tools), with the current weights."""
        return self.tower.vectors(self.dev) @ self.tower.vectors(self.tools).T


class BiEncoder(Task):
    """Base of the bi-encoder tasks: encodes each text of a batch once and evaluates on the cosines of dev."""

    def __init__(self, texts: Texts, size: int) -> None:
        """Store the texts and the number of examples."""
        self.texts, self.size = texts, size
        self.module, self.identity = texts.tower.model, texts.identity

    def figures(self) -> dict[str, float]:
        """Evaluate the cosines on dev."""
        texts = self.texts
        if not texts.dev:
            return {}
        return texts.evaluate(texts.cosines())

    def descend(self, queries: Places, tools: Places, loss: Callable[[Tensor], Tensor]) -> float:
        """Accumulate the gradients of a loss over the scores `(len(queries), len(tools))` and return the loss."""
        texts = self.texts
        tokens = [texts.queries[place] for place in queries] + [texts.tools[place] for place in tools]

        def compute_loss(rows: Tensor) -> Tensor:
            return loss(rows[: len(queries)] @ rows[len(queries) :].T / texts.temperature)

        return texts.tower.backward(tokens, compute_loss, texts.hold)


class Lists(BiEncoder):
    """Learns all gold tools of a query against one list of tools per batch (`losses.list_softmax`).

    The list holds every tool that some query uses. For a large catalogue it holds the gold tools of the batch, hard
    negatives of each query, and random tools. A tool that no query uses is never a negative: nothing says that it is
    not needed, and training would only push it away. Hard negatives come from the `HARD_NEGATIVE_POOL` nearest wrong
    tools: by words in the first epoch, by the encoder itself afterwards.
    """

    def __init__(
        self,
        texts: Texts,
        *,
        sampled: int | None = None,
        hard: int = 0,
        by_words: Callable[[], Sequence[Places]] = tuple,
    ) -> None:
        """Describe the task.

        Args:
            texts: the texts to learn from.
            sampled: random tools per step; None lists every used tool.
            hard: hard negatives per query.
            by_words: returns the nearest tools by words for each training query, best first.
        """
        super().__init__(texts, len(texts.queries))
        self.sampled, self.hard, self.by_words = sampled, hard, by_words
        self.used = np.unique(np.concatenate([np.empty(0, dtype=np.intp), *texts.gold]))

    def begin(self, epoch: int, random: np.random.Generator) -> None:
        """Mine the hard negatives of this epoch: `mined`, their places for each training query, best first."""
        if self.sampled is None:
            return
        nearest = self.by_words() if epoch == 0 else self._find_nearest()
        wrong = [np.setdiff1d(self.used, gold) for gold in self.texts.gold]
        self.mined = [
            tools[np.isin(tools, allowed)][:HARD_NEGATIVE_POOL] for tools, allowed in zip(nearest, wrong, strict=True)
        ]

    def state(self) -> dict[str, Tensor]:
        """Return the mined hard negatives; -1 where a query has fewer."""
        if self.sampled is None:
            return {}
        table = np.full((len(self.mined), max(map(len, self.mined), default=0)), -1, dtype=np.int64)
        for row, places in zip(table, self.mined, strict=True):
            row[: len(places)] = places
        return {"mined": torch.from_numpy(table)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the mined hard negatives."""
        self.mined = [row[row >= 0].astype(np.intp) for row in state["mined"].numpy()]

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """Accumulate the gradients of some queries."""
        columns = self.choose_columns(rows, random)
        gold = np.stack([np.isin(columns, self.texts.gold[row]) for row in rows])
        table = torch.from_numpy(gold).to(self.texts.tower.device)
        return self.descend(rows, columns, lambda scores: list_softmax(scores, table))

    def choose_columns(self, rows: Places, random: np.random.Generator) -> Places:
        """Choose the tools that a batch of queries is compared with, ascending."""
        if self.sampled is None:
            return self.used
        hard = [random.permutation(self.mined[row])[: self.hard] for row in rows]
        sample = random.choice(self.used, self.sampled)
        return np.unique(np.concatenate([*(self.texts.gold[row] for row in rows), *hard, sample]))

    def _find_nearest(self) -> list[Places]:
        """Find the nearest tools of each training query with the current encoder, best first."""
        tools = self.texts.tower.vectors(self.texts.tools)
        depth = HARD_NEGATIVE_POOL + max(map(len, self.texts.gold))
        nearest: list[Places] = []
        for start in range(0, len(self.texts.queries), 1024):
            cosines = self.texts.tower.vectors(self.texts.queries[start : start + 1024]) @ tools.T
            nearest.extend(np.argsort(-cosines, axis=1, kind="stable")[:, :depth])
        return nearest


class InBatch(BiEncoder):
    """Learns pairs of a query and one of its tools; the other pairs' tools are negatives (`losses.info_nce`).

    This is the published recipe with one difference. A tool that several pairs of a batch share is one column, so that
    a query's positive is not also its negative. The query's other gold tools in the batch are negatives, as published.
    """

    def __init__(self, texts: Texts) -> None:
        """Make one pair for each gold tool of each query."""
        pairs = [(query, tool) for query, tools in enumerate(texts.gold) for tool in tools]
        super().__init__(texts, len(pairs))
        self.pairs = np.array(pairs, dtype=np.intp).reshape(-1, 2)

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """Accumulate the gradients of some pairs."""
        device = self.texts.tower.device
        queries, query_of_pair = np.unique(self.pairs[rows, 0], return_inverse=True)
        tools, tool_of_pair = np.unique(self.pairs[rows, 1], return_inverse=True)
        anchors, positives = torch.from_numpy(query_of_pair).to(device), torch.from_numpy(tool_of_pair).to(device)
        return self.descend(queries, tools, lambda scores: info_nce(scores[anchors], positives))


class WordingPairs(InBatch):
    """Learns the pairs of `InBatch` for each wording of a query, by round (Iterative Feedback, eqs. 5 and 6).

    `L = Σ_t α^t L(q^t)`; L is `losses.info_nce` of a wording's tool against the tools of the batch and hard negatives.
    Hard negatives are drawn from the wrong tools that the same wording retrieved. A round skips pairs whose query has
    no wording in it. Unlike the paper, the sum starts with the query itself, t = 0.
    """

    def __init__(
        self,
        texts: Texts,
        wordings: Sequence[Places],
        wrong: Sequence[Places],
        *,
        hard: int,
        balance: float,
        turns: int | None = None,
    ) -> None:
        """Describe the task.

        Args:
            texts: the texts to learn from; `queries` holds all wordings, `gold` is by query.
            wordings: places of each query's wordings, by round.
            wrong: places of the wrong tools that each wording retrieved.
            hard: hard negatives per wording and step.
            balance: α.
            turns: number of epochs to divide among the rounds, one round after the other; None learns from all rounds
                at every step.
        """
        super().__init__(texts)
        self.wordings, self.wrong, self.hard, self.balance, self.turns = wordings, wrong, hard, balance, turns
        self.rounds = max(map(len, wordings), default=1)
        self.active_rounds: Sequence[int] = range(self.rounds)

    def begin(self, epoch: int, random: np.random.Generator) -> None:
        """Choose the rounds that this epoch learns from."""
        if self.turns is not None:
            self.active_rounds = [min(epoch * self.rounds // self.turns, self.rounds - 1)]

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """Accumulate the gradients of some pairs.

        An example is a pair in one round. Its anchor is the wording of its query in that round.
        """
        pairs = self.pairs[rows]
        examples = [(t, *pair) for t in self.active_rounds for pair in pairs if t < len(self.wordings[pair[0]])]
        if not examples:
            return 0.0
        rounds, queries, positives = np.array(examples, dtype=np.intp).T
        wordings = np.array([self.wordings[query][t] for query, t in zip(queries, rounds, strict=True)], dtype=np.intp)
        hard = [random.permutation(self.wrong[place])[: self.hard] for place in wordings]
        # Each text and each tool is encoded once. `compared`: the positive and hard negative tools of an example.
        texts, text_of_example = np.unique(wordings, return_inverse=True)
        tools = np.unique(np.concatenate([positives, *hard]))
        compared = np.isin(tools, positives)[None] | np.stack([np.isin(tools, negatives) for negatives in hard])
        device = self.texts.tower.device
        anchors = torch.from_numpy(text_of_example).to(device)
        targets = torch.from_numpy(np.searchsorted(tools, positives)).to(device)
        listed, round_of = torch.from_numpy(compared).to(device), torch.from_numpy(rounds).to(device)

        def loss(scores: Tensor) -> Tensor:
            logits = scores[anchors].masked_fill(~listed, -torch.inf)
            parts = [round_of == t for t in np.unique(rounds).tolist()]
            losses = [info_nce(logits[part], targets[part]) for part in parts]
            weights = self.balance ** torch.tensor(np.unique(rounds), device=device)
            return (torch.stack(losses) * weights).sum()

        return self.descend(texts, tools, loss)


class Triplets(Task):
    """Learns from a query, a query that shares a tool with it, and one that shares none (`losses.triplet`).

    Tool2Vec is tuned like this. Positive and negative are drawn from the batch, so that each query is encoded once. A
    query is no anchor in a batch if it shares a tool with no other query, or with every one. There are no dev figures,
    because the number of epochs is fixed, one in the paper.
    """

    def __init__(self, texts: Texts, margin: float) -> None:
        """Store the texts; `tools` and `dev` are not used."""
        self.texts, self.margin, self.size = texts, margin, len(texts.queries)
        self.module, self.identity = texts.tower.model, texts.identity

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """Accumulate the gradients of some queries."""
        anchors, positives, negatives = self.draw_triplets(rows, random)
        if not anchors.size:
            return 0.0

        def compute_loss(vectors: Tensor) -> Tensor:
            anchor, near, far = (vectors[torch.from_numpy(places)] for places in (anchors, positives, negatives))
            return triplet(anchor, near, far, self.margin)

        tokens = [self.texts.queries[row] for row in rows]
        return self.texts.tower.backward(tokens, compute_loss, self.texts.hold)

    def draw_triplets(self, rows: Places, random: np.random.Generator) -> tuple[Places, Places, Places]:
        """Draw anchors, positives and negatives, as places in `rows`."""
        uses = np.zeros((len(rows), 1 + max(int(self.texts.gold[row].max()) for row in rows)), dtype=np.float32)
        for place, row in enumerate(rows):
            uses[place, self.texts.gold[row]] = 1
        shared = uses @ uses.T > 0
        different = ~np.eye(len(rows), dtype=np.bool_)
        # The greatest of random numbers draws one query uniformly; -1 marks those that must not be drawn.
        priorities = random.random(shared.shape)
        near, far = (np.where(mask, priorities, -1.0) for mask in (shared & different, ~shared))
        anchors = np.flatnonzero((near.max(axis=1) >= 0) & (far.max(axis=1) >= 0))
        return anchors, near.argmax(axis=1)[anchors], far.argmax(axis=1)[anchors]


class MinedTriplets(Triplets):
    """Learns from triplets that are mined before each epoch, as the released code of Tool2Vec does.

    Of the nearest queries of an anchor, the nearest that share a tool with it are positives, the nearest that share
    none are negatives. Each positive is compared with each negative. A query without one of both is no anchor.

    Attributes:
        near: positives of each query, best first; -1 where there are fewer.
        far: negatives, likewise.
    """

    def __init__(self, texts: Texts, margin: float, *, nearest: int, each: int) -> None:
        """Store the texts.

        Args:
            texts: as in `Triplets`.
            margin: as in `Triplets`.
            nearest: number of nearest queries to mine among.
            each: the most positives, and the most negatives, of an anchor.
        """
        super().__init__(texts, margin)
        self.nearest, self.each = nearest, each
        self.near = self.far = np.empty((0, each), dtype=np.int64)

    def begin(self, epoch: int, random: np.random.Generator) -> None:
        """Mine the triplets with the current weights."""
        rows, gold = self.texts.tower.vectors(self.texts.queries), [set(tools.tolist()) for tools in self.texts.gold]
        self.near, self.far = (np.full((self.size, self.each), -1, dtype=np.int64) for _ in range(2))
        for start in range(0, self.size, MINED_BLOCK):
            cosines = rows[start : start + MINED_BLOCK] @ rows.T
            for query, row in enumerate(np.argsort(-cosines, axis=1, kind="stable")[:, : self.nearest + 1], start):
                others = row[row != query][: self.nearest].tolist()
                for table, is_near in ((self.near, True), (self.far, False)):
                    found = [other for other in others if gold[query].isdisjoint(gold[other]) != is_near][: self.each]
                    table[query, : len(found)] = found

    def state(self) -> dict[str, Tensor]:
        """Return the mined queries."""
        return {"near": torch.from_numpy(self.near), "far": torch.from_numpy(self.far)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the mined queries."""
        self.near, self.far = state["near"].numpy(), state["far"].numpy()

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """Accumulate the gradients of some anchors."""
        triplets = np.array(
            [
                (anchor, near, far)
                for anchor in rows
                for near in self.near[anchor]
                for far in self.far[anchor]
                if near >= 0 and far >= 0
            ],
            dtype=np.intp,
        ).reshape(-1, 3)
        if not triplets.size:
            return 0.0
        used, places = np.unique(triplets, return_inverse=True)
        anchors, nears, fars = torch.from_numpy(places.reshape(-1, 3).T.copy())

        def compute_loss(vectors: Tensor) -> Tensor:
            return triplet(vectors[anchors], vectors[nears], vectors[fars], self.margin)

        return self.texts.tower.backward([self.texts.queries[place] for place in used], compute_loss, self.texts.hold)
