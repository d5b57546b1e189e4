"""Multi-label classification without a transformer: predicts the tools, and the set of tools, that a query needs.

A query is represented by the encoder's vector and by its words and pairs of words. One linear layer over them has two
softmaxes. The first is over the tools. Its target is uniform over the gold tools (the list-wise form of MLC in
arXiv:2409.02141). The second is over the sets of tools that training queries needed. `methods.shared.tool_sets` joins
both. Training uses AdaGrad: it updates only features that occur in a batch, and rare features keep a high rate.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from toolscout.arrays import Arrays, Scores, Vectors
from toolscout.methods.shared.dev_choice import choose_best
from toolscout.methods.shared.ngrams import Bags, Ngrams, hash_features
from toolscout.methods.shared.tool_sets import SET_WEIGHT_GRID, ToolSets
from toolscout.methods.shared.tuning import Amount, Count, Positive
from toolscout.methods.shared.usage import Blend, Encode, Learned, Usage, softmax
from toolscout.methods.shared.usage_fit import Estimate, FitData, UsageMethod

__all__ = ["MlcLight", "Options"]

MIN_EPOCH_GAIN: Final = 1e-3


class Options(Blend, frozen=True, forbid_unknown_fields=True):
    """Settings of `mlc-light`.

    Attributes:
        rate: learning rate of AdaGrad.
        batch: queries per step.
        epochs: number of passes over the queries; None: until one gains less than a tenth of a point on dev.
        most_epochs: maximum number of epochs if `epochs` is None.
        sets: weight of the sets of tools; None: the best on dev.
    """

    rate: Positive = 0.3
    batch: Count = 256
    epochs: Count | None = None
    most_epochs: Count = 12
    sets: Amount | None = None


class Head:
    """The linear layer.

    Attributes:
        sparse: `(features, tools + sets)` float32.
        dense: `(dim + 1, tools + sets)` float32; the last row is the bias.
        sets: sets of tools that are classes.
        n_tools: number of tools.
    """

    def __init__(self, sparse: Vectors, dense: Vectors, sets: ToolSets, n_tools: int) -> None:
        self.sparse, self.dense, self.sets, self.n_tools = sparse, dense, sets, n_tools

    def logits(self, bags: Bags, rows: Vectors) -> Vectors:
        """Return the logits, `(n, tools + sets)`."""
        logits: Vectors = bags.multiply(self.sparse) + rows @ self.dense[:-1] + self.dense[-1]
        return logits

    def usage(self, logits: Vectors, weight: float) -> Scores:
        """Return the probability of each tool, `(n, tools)`."""
        tools, sets = np.split(logits.astype(np.float64), [self.n_tools], axis=1)
        return self.sets.join(softmax(tools), softmax(sets) if len(self.sets) else sets, weight)


class Training:
    """AdaGrad over the first `n` queries of a fit, one epoch at a time. Equal seeds give equal weights.

    `n` is the number of training queries while dev chooses, and that of all queries when the final model is fitted.
    """

    def __init__(self, data: FitData, n: int) -> None:
        self.options: Options = data.options
        self.rng = np.random.default_rng(data.workspace.seed)
        n_tools = len(data.lesson.tools)
        self.ngrams = Ngrams.of(data.features[:n])
        self.bags, self.rows, self.gold = self.ngrams.make_bags(data.features[:n]), data.rows[:n], data.gold[:n]
        sets, self.set_of = ToolSets.group(self.gold)
        width = n_tools + len(sets)
        sparse = np.zeros((self.ngrams.keys.size, width), dtype=np.float32)
        dense = np.zeros((self.rows.shape[1] + 1, width), dtype=np.float32)
        self.head = Head(sparse, dense, sets, n_tools)
        # the sums of squared gradients, of the sparse and of the dense weights
        self._squares = np.full_like(sparse, 1e-8), np.full_like(dense, 1e-8)

    def run_epoch(self) -> float:
        """Train once on each query; return the mean loss."""
        order = self.rng.permutation(len(self.bags))
        batches = [order[start : start + self.options.batch] for start in range(0, len(order), self.options.batch)]
        return sum(self._train_step(batch) * len(batch) for batch in batches) / len(order)

    def _train_step(self, batch: Any) -> float:
        """Take one step of AdaGrad on a batch of queries, and return the mean loss."""
        head, n_tools = self.head, self.head.n_tools
        features, to_dense = self.bags.take(batch).to_dense()
        rows: Vectors = np.concatenate([self.rows[batch], np.ones((len(batch), 1), np.float32)], axis=1)
        weights = head.sparse[features]
        logits = to_dense @ weights + rows @ head.dense
        targets = np.zeros_like(logits)
        for row, query in zip(targets, batch, strict=True):
            row[self.gold[query]] = 1 / len(self.gold[query])
        softmax_columns = [slice(0, n_tools)]
        if len(head.sets):
            targets[np.arange(len(batch)), n_tools + self.set_of[batch]] = 1
            softmax_columns.append(slice(n_tools, None))
        probabilities = np.empty_like(logits)
        for columns in softmax_columns:
            probabilities[:, columns] = softmax(logits[:, columns])
        loss = -float((targets * np.log(probabilities + 1e-9)).sum()) / len(batch)
        slope = ((probabilities - targets) / len(batch)).astype(np.float32)
        head.sparse[features] = weights - self._compute_step(self._squares[0], features, to_dense.T @ slope)
        head.dense -= self._compute_step(self._squares[1], slice(None), rows.T @ slope)
        return loss

    def _compute_step(self, squares: Vectors, places: Any, gradient: Vectors) -> Vectors:
        """Return AdaGrad's step, rate · gradient / √(sum of squares); add this gradient to the sum first."""
        sums = squares[places] + gradient * gradient
        squares[places] = sums
        gradient *= self.options.rate
        gradient /= np.sqrt(sums, out=sums)
        return gradient


class MlcLight(UsageMethod):
    """Trains a linear classifier over the bundled encoder and words."""

    options_type = Options
    label = "mlc-light"

    def estimate(self, data: FitData) -> Estimate:
        """Train on train, choose on dev, then train on both (without `refit`, only on train).

        With `refit`, the estimate for other queries is that of the last epoch, since no copy of the best one is kept.
        """
        workspace, options = data.workspace, data.options
        training = Training(data, data.n_train)
        bags, rows = training.ngrams.make_bags(data.features[data.n_train :]), data.rows[data.n_train :]
        quality, epochs, weight = -1.0, 0, 0.0
        head, usage_on_dev = training.head, training.head.usage(training.head.logits(bags, rows), 0.0)
        weights = (
            (SET_WEIGHT_GRID if len(training.head.sets) else SET_WEIGHT_GRID[:1])
            if options.sets is None
            else (options.sets,)
        )
        for epoch in range(1, (options.epochs or options.most_epochs) + 1):
            loss = training.run_epoch()
            dev_logits = training.head.logits(bags, rows)
            scored = {tried: data.quality(training.head.usage(dev_logits, tried)) for tried in weights}
            best = choose_best(weights, scored.__getitem__)
            workspace.say(f"epoch {epoch}: loss {loss:.3f}, ndcg@5 and comp@5 on dev {scored[best]:.4f}")
            if not options.epochs and scored[best] < quality + MIN_EPOCH_GAIN:
                break
            quality, epochs, weight = scored[best], epoch, best
            usage_on_dev = training.head.usage(dev_logits, best)
            if not options.refit:
                head = copy.deepcopy(training.head)

        def finish() -> Arrays:
            final, final_head = training, head
            if options.refit:
                workspace.say(f"training on train and dev, {epochs} epochs")
                final = Training(data, data.n_final)
                for _ in range(epochs):
                    final.run_epoch()
                final_head = final.head
            return {
                "keys": final.ngrams.keys,
                "rarity": final.ngrams.rarity,
                "sparse": final_head.sparse,
                "dense": final_head.dense,
                **final_head.sets.arrays(),
            }

        return Estimate(
            dev=usage_on_dev,
            usage=_make_usage(head, training.ngrams, weight),
            chosen={"epochs": epochs, "sets": weight},
            finish=finish,
        )

    def load_usage(self, arrays: Arrays, settings: Mapping[str, Any], encode: Encode) -> Learned:
        """Load the classifier of a model; it learns new queries only in the next fit."""
        head = Head(arrays["sparse"], arrays["dense"], ToolSets.from_arrays(arrays), len(arrays["uses"]))
        return Learned(_make_usage(head, Ngrams(arrays["keys"], arrays["rarity"]), settings["sets"]))


def _make_usage(head: Head, ngrams: Ngrams, weight: float) -> Usage:
    """Return the usage side of a classifier; zeros for a query without a known word or vector."""

    def usage(text: str, row: Vectors) -> Scores:
        bags = ngrams.make_bags([hash_features(text)])
        if not row.any() and not bags.indices.size:
            return np.zeros(head.n_tools)
        probabilities: Scores = head.usage(head.logits(bags, row[None]), weight)[0]
        return probabilities

    return usage
