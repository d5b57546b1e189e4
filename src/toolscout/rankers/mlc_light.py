"""Multi-label classification without a transformer: predicts the tools, and the set of tools, that a query needs.

A query is represented by the encoder's vector and by its features: words, and pairs of words. A linear layer over them,
or over a hidden layer where enough queries train it, has two softmaxes. The first is over the tools. Its target is
uniform over the gold tools (the list-wise form of MLC in arXiv:2409.02141). The second is over the sets of tools that
training queries needed. `rankers.shared.sparse_features` joins both. Training uses AdaGrad: it updates only features
that occur in a batch, and rare features keep a high rate.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from toolscout.arrays import Arrays, Places, Scores, Vectors
from toolscout.rankers import Amount, Count, NonNegative, Positive
from toolscout.rankers.declared import ArrayRule, ModelDeclaration
from toolscout.rankers.shared.dev_choice import choose_best
from toolscout.rankers.shared.sparse_features import (
    FEATURE_RULES,
    SET_RULES,
    SET_WEIGHT_GRID,
    Bags,
    Ngrams,
    ToolSets,
    hash_features,
)
from toolscout.rankers.shared.usage import Blend, Encode, FittedUsage, Usage, softmax
from toolscout.rankers.shared.usage_fit import Estimate, FitData, UsageMethod

__all__ = ["MlcLight", "MlcLightOptions", "choose_hidden"]

MIN_EPOCH_GAIN: Final = 1e-3
MIN_HIDDEN_QUERIES: Final = 10_000  # that train a hidden layer; with fewer, it lost more often than it gained (LAB.md)
MIN_HIDDEN_TOOLS: Final = 1.5  # that such a query needs in the mean; for one tool each, it gained nothing
HIDDEN_UNITS: Final = 512
LINEAR_RATE: Final = 0.3
HIDDEN_RATE: Final = 0.02
HIDDEN_PATIENCE: Final = 3  # epochs without gain before training ends
LINEAR_PATIENCE: Final = 1  # the same without a hidden layer, where gains are smoother
DROPPED: Final = 0.3  # share of the hidden units that a training step leaves out


class MlcLightOptions(Blend, frozen=True, forbid_unknown_fields=True):
    """Settings of `mlc-light`.

    Attributes:
        hidden: units of the hidden layer, 0 for none; None: 512 if at least 10,000 queries train it, which need 1.5
            tools or more in the mean.
        rate: learning rate of AdaGrad; None: 0.3, and 0.02 with a hidden layer.
        batch: queries per step.
        epochs: number of passes over the queries; None: until one gains less than a tenth of a point on dev, with a
            hidden layer until three do.
        most_epochs: maximum number of epochs if `epochs` is None.
        sets: weight of the sets of tools; None: the best on dev.
    """

    hidden: NonNegative | None = None
    rate: Positive | None = None
    batch: Count = 256
    epochs: Count | None = None
    most_epochs: Count = 12
    sets: Amount | None = None


class Weights(NamedTuple):
    """The layers. Without a hidden layer, `sparse` and `dense` lead from a query directly to the outputs.

    Attributes:
        sparse: for the features of a query, `(features, hidden units or outputs)` float32.
        dense: for its vector, `(dim + 1, hidden units or outputs)` float32; the last row is the bias.
        out: `(hidden units + 1, outputs)` float32, the last row the bias; None without a hidden layer.
    """

    sparse: Vectors
    dense: Vectors
    out: Vectors | None = None


class Head:
    """The classifier. Its outputs are the tools and the sets of tools.

    Attributes:
        weights: its layers.
        sets: sets of tools that are classes.
        n_tools: number of tools.
    """

    def __init__(self, weights: Weights, sets: ToolSets, n_tools: int) -> None:
        self.weights, self.sets, self.n_tools = weights, sets, n_tools

    def logits(self, bags: Bags, rows: Vectors) -> Vectors:
        """Return the logits of n queries, `(n, tools + sets)`, from their n-grams and their vectors, `(n, dim)`."""
        sparse, dense, out = self.weights  # the last rows of `dense` and `out` are biases
        sums: Vectors = bags.multiply(sparse) + rows @ dense[:-1] + dense[-1]
        return sums if out is None else np.maximum(sums, 0) @ out[:-1] + out[-1]

    def usage(self, logits: Vectors, weight: float) -> Scores:
        """Return the probability of each tool, `(n, tools)`, from logits, `(n, tools + sets)`.

        `weight`: the exponent w of the sets, see `ToolSets.join`.
        """
        tools, sets = np.split(logits.astype(np.float64), [self.n_tools], axis=1)
        set_probabilities = softmax(sets) if len(self.sets) else sets  # softmax needs a column
        return self.sets.join(softmax(tools), set_probabilities, weight)


class Training:
    """Trains on the first `n` queries of a fit by AdaGrad, one epoch at a time. Equal seeds give equal weights.

    `n` is `FitData.n_train` while dev chooses, and `FitData.n_final` when the final model is fitted.
    """

    def __init__(self, data: FitData, n: int) -> None:
        self.options: MlcLightOptions = data.options
        self.rng = np.random.default_rng(data.resources.run.seed)
        n_tools = len(data.lesson.tools)
        features, self.rows, self.gold = data.features[:n], data.rows[:n], data.gold[:n]
        self.ngrams = Ngrams.of(features)
        self.bags = self.ngrams.make_bags(features)
        sets, self.set_of = ToolSets.group(self.gold)  # `set_of` has the number of each query's set
        # The size is chosen by train alone, so that the final model has the layers that dev was measured with.
        hidden = choose_hidden(self.options.hidden, data.gold[: data.n_train])
        self.rate = self.options.rate or (HIDDEN_RATE if hidden else LINEAR_RATE)
        weights = self._draw_weights(self.ngrams.keys.size, self.rows.shape[1], hidden, n_tools + len(sets))
        self.head = Head(weights, sets, n_tools)
        # For each weight, the sum of its squared gradients; above 0 from the start, since a step divides by its root.
        self._squares = Weights(*[np.full_like(layer, 1e-8) for layer in self.head.weights if layer is not None])

    def _draw_weights(self, n_features: int, dim: int, hidden: int, n_outputs: int) -> Weights:
        """Return zeros if there is no hidden layer, or else small random weights."""
        if not hidden:
            return Weights(np.zeros((n_features, n_outputs), np.float32), np.zeros((dim + 1, n_outputs), np.float32))

        def draw(rows: int, columns: int, deviation: float) -> Vectors:
            return self.rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(deviation)

        return Weights(
            draw(n_features, hidden, 0.1), draw(dim + 1, hidden, dim**-0.5), draw(hidden + 1, n_outputs, 0.01)
        )

    def run_epoch(self) -> float:
        """Train once on each query; return the mean loss of a query."""
        order = self.rng.permutation(len(self.bags))
        batches = [order[start : start + self.options.batch] for start in range(0, len(order), self.options.batch)]
        return sum(self._train_step(batch) * len(batch) for batch in batches) / len(order)

    def _train_step(self, batch: Any) -> float:
        """Take one step of AdaGrad on a batch of queries, and return its mean loss.

        `batch`: positions of the queries, `(n,)`.
        """
        weights = self.head.weights
        features, feature_weights = self.bags.take(batch).to_dense()  # the features that occur, and (n, occurring)
        rows = _add_ones(self.rows[batch])
        sums = feature_weights @ weights.sparse[features] + rows @ weights.dense
        if weights.out is None:
            loss, gradient = self._measure_loss(sums, batch)
        else:
            # ReLU and dropout. Kept units are scaled up, because a search later uses all of them.
            is_kept = (sums > 0) & (self.rng.random(sums.shape, dtype=np.float32) >= DROPPED)
            factors: Vectors = is_kept.astype(np.float32) / np.float32(1 - DROPPED)
            units = _add_ones(sums * factors)
            loss, out_gradient = self._measure_loss(units @ weights.out, batch)
            gradient = (out_gradient @ weights.out[:-1].T) * factors  # the last row is the bias
            self._step("out", slice(None), units.T @ out_gradient)
        self._step("sparse", features, feature_weights.T @ gradient)
        self._step("dense", slice(None), rows.T @ gradient)
        return loss

    def _measure_loss(self, logits: Vectors, batch: Any) -> tuple[float, Vectors]:
        """Return the mean cross-entropy of a batch, and its gradient by the logits, `(n, tools + sets)`."""
        head, n_tools = self.head, self.head.n_tools
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
        return loss, ((probabilities - targets) / len(batch)).astype(np.float32)

    def _step(self, name: str, rows: Any, gradient: Vectors) -> None:
        """Take AdaGrad's step in some rows of a layer: rate · gradient / √(sum of all squared gradients so far).

        `gradient` is overwritten, to save memory.
        """
        squares, weights = getattr(self._squares, name), getattr(self.head.weights, name)
        sums = squares[rows] + gradient * gradient
        squares[rows] = sums
        gradient *= self.rate
        gradient /= np.sqrt(sums, out=sums)
        weights[rows] -= gradient


def choose_hidden(hidden: int | None, gold: Sequence[Places]) -> int:
    """Return the number of hidden units, 0 for none: the setting, or a choice by the tools of each training query."""
    if hidden is not None:
        return hidden
    if len(gold) < MIN_HIDDEN_QUERIES:
        return 0
    tools_per_query = sum(map(len, gold)) / len(gold)
    return HIDDEN_UNITS if tools_per_query >= MIN_HIDDEN_TOOLS else 0


def _add_ones(rows: Vectors) -> Vectors:
    """Return rows with a one at the end, for the bias."""
    return np.concatenate([rows, np.ones((len(rows), 1), np.float32)], axis=1)


class _BestEpoch(NamedTuple):
    """The classifier after the epoch that was best on dev. With `refit`, `head` has the weights of the last epoch."""

    number: int
    quality: float
    set_weight: float  # the weight of the sets of tools that gave this quality
    usage_on_dev: Scores
    head: Head


def _find_best_epoch(data: FitData, training: Training) -> _BestEpoch:
    """Train until the quality on dev no longer grows, or for the number of epochs in the options."""
    options, head = data.options, training.head
    bags, rows = training.ngrams.make_bags(data.features[data.n_train :]), data.rows[data.n_train :]  # of dev
    if options.sets is not None:
        set_weights: tuple[float, ...] = (options.sets,)
    else:  # without sets, their weight changes nothing
        set_weights = SET_WEIGHT_GRID if len(head.sets) else SET_WEIGHT_GRID[:1]
    patience = LINEAR_PATIENCE if head.weights.out is None else HIDDEN_PATIENCE
    best = _BestEpoch(0, -1.0, 0.0, head.usage(head.logits(bags, rows), 0.0), head)
    for epoch in range(1, (options.epochs or options.most_epochs) + 1):
        loss = training.run_epoch()
        logits = head.logits(bags, rows)
        qualities = {weight: data.quality(head.usage(logits, weight)) for weight in set_weights}
        weight = choose_best(set_weights, qualities.__getitem__)
        quality = qualities[weight]
        data.resources.say(f"epoch {epoch}: loss {loss:.3f}, ndcg@5 and comp@5 on dev {quality:.4f}")
        is_fixed = options.epochs is not None  # then the last epoch is used, whatever its quality
        if is_fixed or quality >= best.quality + MIN_EPOCH_GAIN:
            best_head = head if options.refit else copy.deepcopy(head)
            best = _BestEpoch(epoch, quality, weight, head.usage(logits, weight), best_head)
        elif epoch - best.number >= patience:
            break
    return best


class MlcLight(UsageMethod):
    """Trains a small classifier over the bundled encoder and words."""

    options_type = MlcLightOptions
    label = "mlc-light"

    def estimate(self, data: FitData) -> Estimate:
        """Train on train, choose on dev, then train on both (without `refit`, only on train).

        With `refit`, `Estimate.usage` is by the weights of the last epoch, since no copy of the best ones is kept.
        """
        training = Training(data, data.n_train)
        best = _find_best_epoch(data, training)

        def finish() -> Arrays:
            """Return the arrays of the model. With `refit`, train on train and dev, for the epochs that dev chose."""
            ngrams, head = training.ngrams, best.head
            if data.options.refit:
                data.resources.say(f"training on train and dev, {best.number} epochs")
                final = Training(data, data.n_final)
                for _ in range(best.number):
                    final.run_epoch()
                ngrams, head = final.ngrams, final.head
            layers = {name: layer for name, layer in head.weights._asdict().items() if layer is not None}
            return {"keys": ngrams.keys, "rarity": ngrams.rarity, **layers, **head.sets.arrays()}

        return Estimate(
            dev=best.usage_on_dev,
            usage=_make_usage(best.head, training.ngrams, best.set_weight),
            chosen={"epochs": best.number, "sets": best.set_weight},
            finish=finish,
        )

    def declare_usage(self, arrays: Arrays) -> ModelDeclaration:
        """Declare the layers, with or without a hidden one, and the sets."""
        units = "hidden" if "out" in arrays else "tools+sets"
        rules = {
            **FEATURE_RULES,
            **SET_RULES,
            "sparse": ArrayRule(f"features {units}"),
            "dense": ArrayRule(f"dim+1 {units}"),
        }
        if "out" in arrays:
            rules["out"] = ArrayRule("hidden+1 tools+sets")
        return ModelDeclaration(rules, ("sets",))

    def load_usage(self, arrays: Arrays, settings: Mapping[str, Any], encode: Encode) -> FittedUsage:
        """Load the classifier of a model; it learns new queries only in the next fit."""
        weights = Weights(arrays["sparse"], arrays["dense"], arrays.get("out"))
        head = Head(weights, ToolSets.from_arrays(arrays), len(arrays["uses"]))
        return FittedUsage(_make_usage(head, Ngrams(arrays["keys"], arrays["rarity"]), settings["sets"]))


def _make_usage(head: Head, ngrams: Ngrams, weight: float) -> Usage:
    """Return a `Usage` that asks a classifier; `weight` as in `Head.usage`."""

    def usage(text: str, row: Vectors) -> Scores:
        bags = ngrams.make_bags([hash_features(text)])
        if not row.any() and not bags.indices.size:  # neither the encoder nor the classifier knows a word of it
            return np.zeros(head.n_tools)
        probabilities: Scores = head.usage(head.logits(bags, row[None]), weight)[0]
        return probabilities

    return usage
