"""Tasks that tune a sentence encoder so that queries lie near their gold tools."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from toolscout.encoders import Vectors
from toolscout.training import Task
from toolscout.training.losses import info_nce, list_softmax, triplet
from toolscout.training.towers import Tokens, Tower

__all__ = ["BiEncoder", "InBatch", "Lists", "Texts", "Triplets", "Wordings"]

Places = npt.NDArray[np.intp]
POOL: Final = 30  # the nearest wrong tools of a query, from which its hard negatives are drawn


@dataclasses.dataclass(frozen=True)
class Texts:
    """What a bi-encoder learns from, in tokens.

    Attributes:
        tower: the encoder.
        queries: the training queries.
        tools: the whole catalogue.
        gold: of each training query, the places of its gold tools.
        dev: the queries to choose on; none: the last epoch is kept.
        judge: cosines (dev queries, tools) → figures.
        identity: see `Task`.
        temperature: cosines are divided by it.
        hold: so many tokens of a batch are held with their graph; of a larger batch the gradients are cached.
    """

    tower: Tower
    queries: Tokens
    tools: Tokens
    gold: Sequence[Places]
    dev: Tokens
    judge: Callable[[Vectors], dict[str, float]]
    identity: str
    temperature: float = 0.05
    hold: int = 32_768

    def cosines(self) -> Vectors:
        """(dev queries, tools), by the encoder as it is now."""
        return self.tower.vectors(self.dev) @ self.tower.vectors(self.tools).T


class BiEncoder(Task):
    """What both tasks share: each text of a batch is encoded once; dev is the nearest tools of each dev query."""

    def __init__(self, texts: Texts, size: int) -> None:
        """Take the texts and the number of examples."""
        self.texts, self.size = texts, size
        self.module, self.identity = texts.tower.model, texts.identity

    def figures(self) -> dict[str, float]:
        """What the judge says of the cosines on dev."""
        texts = self.texts
        if not texts.dev:
            return {}
        return texts.judge(texts.cosines())

    def descend(self, queries: Places, tools: Places, loss: Callable[[Tensor], Tensor]) -> float:
        """Gradients of a loss of the scores `(len(queries), len(tools))`, each text encoded once."""
        texts = self.texts
        tokens = [texts.queries[place] for place in queries] + [texts.tools[place] for place in tools]

        def of_rows(rows: Tensor) -> Tensor:
            return loss(rows[: len(queries)] @ rows[len(queries) :].T / texts.temperature)

        return texts.tower.backward(tokens, of_rows, texts.hold)


class Lists(BiEncoder):
    """All gold tools of a query against a list of tools that the whole batch shares (`losses.list_softmax`).

    The list is every tool that some query uses, or, of a large catalogue, the gold tools of the batch, hard negatives
    of each query, and tools drawn at random. A tool that no query uses is nobody's negative: nothing says that it is
    not needed, and it would only be pushed away. Hard negatives come from the `POOL` nearest wrong tools: by words in
    the first epoch, by the encoder itself afterwards.
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
            texts: what to learn from.
            sampled: how many tools a step are drawn at random; None: the list is the whole catalogue.
            hard: how many hard negatives a query.
            by_words: gives, for each training query, the nearest tools by words, best first.
        """
        super().__init__(texts, len(texts.queries))
        self.sampled, self.hard, self.by_words = sampled, hard, by_words
        self.used = np.unique(np.concatenate([np.empty(0, dtype=np.intp), *texts.gold]))

    def begin(self, epoch: int, random: np.random.Generator) -> None:
        """Mine the hard negatives of this epoch: `mined`, the places of each training query's, best first."""
        if self.sampled is None:
            return
        nearest = self.by_words() if epoch == 0 else self._by_itself()
        others = [np.setdiff1d(self.used, gold) for gold in self.texts.gold]
        self.mined = [found[np.isin(found, other)][:POOL] for found, other in zip(nearest, others, strict=True)]

    def state(self) -> dict[str, Tensor]:
        """The hard negatives, that the encoder of this epoch's beginning chose; -1 where a query has fewer."""
        if self.sampled is None:
            return {}
        table = np.full((len(self.mined), max(map(len, self.mined), default=0)), -1, dtype=np.int64)
        for row, places in zip(table, self.mined, strict=True):
            row[: len(places)] = places
        return {"mined": torch.from_numpy(table)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take them back."""
        self.mined = [row[row >= 0].astype(np.intp) for row in state["mined"].numpy()]

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """One step on some queries."""
        columns = self.listed(rows, random)
        gold = np.stack([np.isin(columns, self.texts.gold[row]) for row in rows])
        table = torch.from_numpy(gold).to(self.texts.tower.device)
        return self.descend(rows, columns, lambda scores: list_softmax(scores, table))

    def listed(self, rows: Places, random: np.random.Generator) -> Places:
        """The tools that a batch of queries is set against, ascending."""
        if self.sampled is None:
            return self.used
        hard = [random.permutation(self.mined[row])[: self.hard] for row in rows]
        drawn = random.choice(self.used, self.sampled)
        return np.unique(np.concatenate([*(self.texts.gold[row] for row in rows), *hard, drawn]))

    def _by_itself(self) -> list[Places]:
        tools, depth = self.texts.tower.vectors(self.texts.tools), POOL + max(map(len, self.texts.gold))
        found: list[Places] = []
        for start in range(0, len(self.texts.queries), 1024):
            cosines = self.texts.tower.vectors(self.texts.queries[start : start + 1024]) @ tools.T
            found.extend(np.argsort(-cosines, axis=1, kind="stable")[:, :depth])
        return found


class InBatch(BiEncoder):
    """Pairs of a query and one of its tools; the other pairs' tools are the negatives (`losses.info_nce`).

    The published recipe, with one courtesy: a tool that several pairs of a batch share is one column, so that a query's
    own positive is not also its negative. Its other gold tools in the batch are negatives, as published.
    """

    def __init__(self, texts: Texts) -> None:
        """Describe the task: a pair for each gold tool of each query."""
        pairs = [(query, tool) for query, tools in enumerate(texts.gold) for tool in tools]
        super().__init__(texts, len(pairs))
        self.pairs = np.array(pairs, dtype=np.intp).reshape(-1, 2)

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """One step on some pairs."""
        queries, of_query = np.unique(self.pairs[rows, 0], return_inverse=True)
        tools, of_tool = np.unique(self.pairs[rows, 1], return_inverse=True)
        asked, wanted = (torch.from_numpy(each).to(self.texts.tower.device) for each in (of_query, of_tool))
        return self.descend(queries, tools, lambda scores: info_nce(scores[asked], wanted))


class Wordings(InBatch):
    """The pairs of `InBatch`, for each wording that a query had, round by round (Iterative Feedback, eqs. 5 and 6).

    `L = Σ_t α^t L(q^t)`; L is `losses.info_nce` of a wording's tool against the tools of the batch and hard negatives,
    which are drawn from the wrong tools that this very wording had found. Pairs whose query had no wording in a round
    have no part in it. Ours: the sum begins with the query itself, t = 0.
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
            texts: what to learn from; its queries are all wordings, its `gold` is by query.
            wordings: of each query, the places of its wordings, by round.
            wrong: of each wording, the places of the wrong tools that it found.
            hard: hard negatives of a wording at a step.
            balance: α.
            turns: None: every step learns from all rounds together. Else the so many epochs are spent on one round
                after the other, each in its turn.
        """
        super().__init__(texts)
        self.wordings, self.wrong, self.hard, self.balance, self.turns = wordings, wrong, hard, balance, turns
        self.rounds = max(map(len, wordings), default=1)
        self.now: Sequence[int] = range(self.rounds)

    def begin(self, epoch: int, random: np.random.Generator) -> None:
        """Say which rounds this epoch learns from."""
        if self.turns is not None:
            self.now = [min(epoch * self.rounds // self.turns, self.rounds - 1)]

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """One step on some pairs."""
        pairs = self.pairs[rows]
        asked = [(t, *pair) for t in self.now for pair in pairs if t < len(self.wordings[pair[0]])]
        if not asked:
            return 0.0
        rounds, queries, positives = np.array(asked, dtype=np.intp).T
        said = np.array([self.wordings[query][t] for query, t in zip(queries, rounds, strict=True)], dtype=np.intp)
        hard = [random.permutation(self.wrong[place])[: self.hard] for place in said]
        texts, of_text = np.unique(said, return_inverse=True)
        tools = np.unique(np.concatenate([positives, *hard]))
        against = np.isin(tools, positives)[None] | np.stack([np.isin(tools, own) for own in hard])
        where = self.texts.tower.device
        of_texts, wanted = (torch.from_numpy(each).to(where) for each in (of_text, np.searchsorted(tools, positives)))
        listed, times = torch.from_numpy(against).to(where), torch.from_numpy(rounds).to(where)

        def loss(scores: Tensor) -> Tensor:
            found = scores[of_texts].masked_fill(~listed, -torch.inf)
            parts = [times == t for t in np.unique(rounds).tolist()]
            each = [info_nce(found[part], wanted[part]) for part in parts]
            weights = self.balance ** torch.tensor(np.unique(rounds), device=where)
            return (torch.stack(each) * weights).sum()

        return self.descend(texts, tools, loss)


class Triplets(Task):
    """A query, one that shares a tool with it, and one that shares none (`losses.triplet`): how Tool2Vec is tuned.

    The other two are drawn from the batch, so that each query of it is encoded once. A query that shares no tool with
    any other of its batch, or one with all, is nobody's anchor there.
    """

    def __init__(self, texts: Texts, margin: float) -> None:
        """Take the texts; of these, tools and dev are not needed."""
        self.texts, self.margin, self.size = texts, margin, len(texts.queries)
        self.module, self.identity = texts.tower.model, texts.identity

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """One step on some queries."""
        anchors, positives, negatives = self.drawn(rows, random)
        if not anchors.size:
            return 0.0

        def of_rows(found: Tensor) -> Tensor:
            one, near, far = (found[torch.from_numpy(each)] for each in (anchors, positives, negatives))
            return triplet(one, near, far, self.margin)

        tokens = [self.texts.queries[row] for row in rows]
        return self.texts.tower.backward(tokens, of_rows, self.texts.hold)

    def drawn(self, rows: Places, random: np.random.Generator) -> tuple[Places, Places, Places]:
        """Anchors, positives and negatives, as places in `rows`."""
        uses = np.zeros((len(rows), 1 + max(int(self.texts.gold[row].max()) for row in rows)), dtype=np.float32)
        for place, row in enumerate(rows):
            uses[place, self.texts.gold[row]] = 1
        shared = uses @ uses.T > 0
        other = ~np.eye(len(rows), dtype=np.bool_)
        keys = random.random(shared.shape)
        near, far = (np.where(mask, keys, -1.0) for mask in (shared & other, ~shared))
        anchors = np.flatnonzero((near.max(axis=1) >= 0) & (far.max(axis=1) >= 0))
        return anchors, near.argmax(axis=1)[anchors], far.argmax(axis=1)[anchors]

    def figures(self) -> dict[str, float]:
        """None: it is tuned for a set number of epochs, one in the paper."""
        return {}
