"""MassTool (arXiv:2507.00487): detects whether a query needs a tool, and represents it by similar training queries.

It works over the frozen encoder of another recipe (`base`). Graphs join queries, tools and scenes as in COLT
(`training.collaboration`). The vector of a query is the sum of three unit rows (eq. 6): its own vector; the mean of the
graph vectors of its nearest training queries, weighted by attention; and that mean joined with the hidden layer of the
detection tower (AdaKT). A later query has no edges: its own part is the encoder's vector. The pool of neighbours can
grow without training (`Pool.extend`). A tool that no training query used keeps the encoder's vector of its text.

Differences from the paper: its threshold of 1.0 for "no filtering" is -1 here, a cosine that all neighbours pass. A
query without neighbours has only its own part. The contrast compares cosines, like the released code and unlike eq.
11. The need is calibrated on queries outside the training set. The epoch is chosen on dev. Three parts gained nothing
on dev and are off by default: a query that sees its own edges in training (`seen`), COLT's list-wise loss over ten
tools (`loss`, `length`), and the gate of AdaKT (`transfer`). Self-attention, another of the paper's four variants,
replaces the gate.

Detection and AdaKT read the encoder's rows scaled by √d, to a mean square of 1, like the raw vectors of the released
code. In towers of version 1 (see `TOWERS_VERSION`) AdaKT read rows of length 1, and its gate varied about √d times less
at the start of training. Such models keep their answers (`_convert_towers_1`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from toolscout.arrays import Arrays, Floats, Mask, Places, Vectors
from toolscout.encoders import Encoder, unit_rows
from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.journal.evidence import Example
from toolscout.home.models.model_store import Model
from toolscout.rankers import Artifacts
from toolscout.rankers.lesson import Lesson
from toolscout.rankers.shared.usage import softmax
from toolscout.search.abstain.calibration import floors, platt
from toolscout.search.pipeline import DEPTH, Detect, Floors, Retrieve, Stage
from toolscout.search.resources import LiveEvidence, Resources
from toolscout.types import digest
from toolscout_lab.rankers import LabMethod, dpr
from toolscout_lab.rankers.dpr import FittedEncoder
from toolscout_lab.rankers.shared.tool_rows import EncodedLesson, index_rows, load_tool_rows
from toolscout_lab.rankers.shared.tuning import (
    ENCODER_FOLDER,
    MassToolOptions,
    describe_training,
    save_encoder,
    train_task,
)
from toolscout_lab.statistics import detection

__all__ = ["ArrayTowers", "MassTool", "Pool", "compute_query_parts"]

TOWERS_VERSION: Final = 2
"""What the arrays `towers.*` of a model mean; `values["towers"]` of its manifest. Without it they have version 1."""
NEIGHBOUR_BLOCK: Final = 1024
MAX_QUERIES_ENCODED_BY_SEARCH: Final = 32  # live queries that one search encodes besides its own


def _encode_no_tool(resources: Resources, lesson: Lesson, encoder: Encoder) -> tuple[Vectors, Vectors]:
    """Encode the queries that need no tool: those for training, and those for calibration."""
    parts = (lesson.no_tool.train, lesson.no_tool.calibrate) if lesson.no_tool else ((), ())
    train_rows, calibration_rows = (resources.encode_queries(encoder, [query.text for query in part]) for part in parts)
    return train_rows, calibration_rows


# --- neighbours -------------------------------------------------------------------------------------------------------


def nearest(pool: Vectors, rows: Vectors, k: int) -> tuple[Places, Vectors]:
    """Find the `k` nearest rows of the pool for each row, `(n, k)`, with cosines; place -1 where there are fewer."""
    near = np.full((len(rows), k), -1, dtype=np.intp)
    similarities = np.full((len(rows), k), -1.0, dtype=np.float32)
    size = min(k, len(pool))
    for start in range(0, len(rows), NEIGHBOUR_BLOCK):
        cosines = rows[start : start + NEIGHBOUR_BLOCK] @ pool.T
        candidates = np.argpartition(-cosines, size - 1, axis=1)[:, :size]
        values = np.take_along_axis(cosines, candidates, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        near[start : start + NEIGHBOUR_BLOCK, :size] = np.take_along_axis(candidates, order, axis=1)
        similarities[start : start + NEIGHBOUR_BLOCK, :size] = np.take_along_axis(values, order, axis=1)
    return near, similarities


def _drop_self(near: Places, similarities: Vectors, n: int, k: int) -> tuple[Places, Vectors]:
    """Keep the first `k` neighbours. The first `n` rows belong to the pool; none may be its own neighbour."""
    first_near, first_similarities = near[:, :k].copy(), similarities[:, :k].copy()
    for row in range(n):
        is_other = near[row] != row
        first_near[row], first_similarities[row] = near[row][is_other][:k], similarities[row][is_other][:k]
    return first_near, first_similarities


class Pool:
    """Queries with known tools, among which later queries find their neighbours.

    Attributes:
        keys: (n, d) vectors from the encoder, unit rows.
        values: (n, d) graph vectors.
    """

    def __init__(self, keys: Vectors, values: Vectors) -> None:
        self.keys, self.values = keys, values

    def near(self, rows: Vectors, k: int, floor: float) -> Places:
        """Return (n, k) places of the nearest queries above the floor; -1 where there are fewer."""
        places, similarities = nearest(self.keys, rows, k)
        return np.where(similarities > floor, places, -1)

    def extend(self, rows: Vectors, tools: Sequence[Vectors]) -> Pool:
        """Return a pool with more queries, without training.

        A graph vector is the sum over two views, scenes and tools. In each view, the part of a new query is its own
        vector plus the mean of its tools' vectors. One layer of propagation would give this result if it were the only
        query of its tools. Graph vectors of the fit may be longer, and so weigh more in a mean of neighbours: 1.6 times
        as much in a model of ToolLens.

        Args:
            rows: (n, d) from the encoder.
            tools: the final vectors of each query's tools, (≥ 1, d).
        """
        if not len(rows):
            return self
        # twice: both views give the same part
        values = (2 * (rows + unit_rows(np.stack([vectors.mean(axis=0) for vectors in tools])))).astype(np.float32)
        return Pool(np.concatenate([self.keys, rows]), np.concatenate([self.values, values]))


# --- serving ----------------------------------------------------------------------------------------------------------


def _convert_towers_1(layers: Arrays, transfer: str) -> Arrays:
    """Convert the layers of version 1 to those that give the same results by the rules of `TOWERS_VERSION`.

    Version 1 computed h of unit rows, gave √d · h to detection, and h and `e_q^search` to AdaKT. With the bias of
    `project` times √d, h of scaled rows is √d · h of unit rows. So detection reads the same as before, and AdaKT reads
    √d times as much, by which the weights of the layers that read it are divided.
    """
    scale = np.float32(layers["project.bias"].size ** 0.5)
    readers = {"gate": 1, "concatenation": 1, "attention": 3}.get(transfer, 0)
    return {
        **layers,
        "project.bias": layers["project.bias"] * scale,
        **{name: layers[name] / scale for name in (f"join.{number}.weight" for number in range(readers))},
    }


class ArrayTowers:
    """Computes the towers from arrays, without torch; see `training.intents.Towers`."""

    def __init__(self, arrays: Arrays, transfer: str, version: int = TOWERS_VERSION) -> None:
        """Load the layers from the arrays `towers.*` of a model, which have this version."""
        layers = {name.removeprefix("towers."): array for name, array in arrays.items() if name[:7] == "towers."}
        self._layers = layers if version == TOWERS_VERSION else _convert_towers_1(layers, transfer)
        self.transfer = transfer

    @classmethod
    def load(cls, model: Model) -> ArrayTowers:
        """Take the towers of a model; one of version 1 keeps its answers.

        Raises:
            ConfigError: if a later version of toolscout fitted the model.
        """
        manifest = model.manifest
        version = manifest.values.get("towers", 1)
        if version not in (1, TOWERS_VERSION):
            raise ConfigError(
                f"{model.folder}: toolscout {manifest.version} fitted this model by rules that this version does not "
                "know. Use that version, or fit again."
            )
        return cls(model.arrays, manifest.settings["transfer"].value, version)

    def logits(self, rows: Vectors) -> Floats:
        """Return (n,) logits of the need for a tool, before calibration."""
        return self._need_logits(self.compute_hidden(rows))

    def read(self, rows: Vectors, values: Vectors, near: Places) -> tuple[Vectors, Floats]:
        """Return the vectors of queries (eq. 6), `(n, d)`, and the logits of their need for a tool, `(n,)`."""
        hidden = self.compute_hidden(rows)
        total: Vectors = np.sum(list(self.parts(rows, values, near, hidden).values()), axis=0)
        return total.astype(np.float32), self._need_logits(hidden)

    def parts(self, rows: Vectors, values: Vectors, near: Places, hidden: Vectors | None = None) -> dict[str, Vectors]:
        """Return the parts `graph`, `search` and `joint` of queries: unit rows, `(n, d)`; zero without neighbours.

        Args:
            rows: (n, d) from the encoder.
            values: graph vectors of the pool.
            near: (n, K) places in it; -1: none.
            hidden: (n, d) h that AdaKT reads; None: that of the rows (`compute_hidden`).

        Returns:
            The parts that the model has.
        """
        hidden = self.compute_hidden(rows) if hidden is None else hidden
        graph = neighbours = 2 * rows
        has_neighbour: Mask = np.ones(len(rows), dtype=np.bool_)
        parts = {"graph": unit_rows(graph)}
        if "attend" in self._layers:
            present = near >= 0
            has_neighbour = np.asarray(present.any(axis=1))
            near_values = values[np.maximum(near, 0)]
            attention = np.einsum("nd,nkd->nk", self._multiply(graph, self._layers["attend"].T), near_values)
            weights = np.where(present, softmax(np.where(present | ~has_neighbour[:, None], attention, -np.inf)), 0.0)
            neighbours = np.einsum("nk,nkd->nd", weights, near_values)
            parts["search"] = unit_rows(neighbours) * has_neighbour[:, None]
        if self.transfer != "none":
            joint = self._join(hidden, neighbours * np.float32(rows.shape[1] ** 0.5))
            parts["joint"] = unit_rows(joint) * has_neighbour[:, None]
        return parts

    def _join(self, hidden: Vectors, neighbours: Vectors) -> Vectors:
        """Transfer the detection tower's knowledge to retrieval (section 4.2.3, appendix B.2), by the chosen way."""
        if self.transfer == "gate":
            gated: Vectors = neighbours / (1 + np.exp(-self._linear("join.0", hidden)))
            return gated
        if self.transfer == "addition":
            return hidden + neighbours
        if self.transfer == "concatenation":
            joined = self._linear("join.0", np.concatenate([hidden, neighbours], axis=1))
            return self._linear("join.1", np.maximum(joined, 0))
        queries, keys, values = (
            np.stack([self._linear(f"join.{number}", rows) for rows in (hidden, neighbours)], axis=1)
            for number in range(3)
        )
        attention = np.einsum("nid,njd->nij", queries, keys) / hidden.shape[1] ** 0.5
        summed: Vectors = np.einsum("nij,njd->nd", softmax(attention), values)
        return summed

    def compute_hidden(self, rows: Vectors) -> Vectors:
        """Return h, the hidden layer that detection and AdaKT share (eq. 2), `(n, d)`."""
        return np.maximum(self._linear("project", rows * np.float32(rows.shape[1] ** 0.5)), 0)

    def _need_logits(self, hidden: Vectors) -> Floats:
        return np.asarray(self._linear("need", hidden)[:, 0], dtype=np.float64)

    def _linear(self, name: str, rows: Vectors) -> Vectors:
        return self._multiply(rows, self._layers[f"{name}.weight"]) + self._layers[f"{name}.bias"]

    @staticmethod
    def _multiply(rows: Vectors, weights: Vectors) -> Vectors:
        """Multiply rows by weightsᵀ, row by row, so that a query gets the same result alone and in a batch."""
        return np.stack([weights @ row for row in rows]) if len(rows) else np.empty((0, len(weights)), dtype=np.float32)


def needs(logits: Floats, by: Mapping[str, float]) -> Floats:
    """Turn logits of need into probabilities; see `platt`."""
    probabilities: Floats = 1 / (1 + np.exp(-np.clip(by["slope"] * logits + by["shift"], -40, 40)))
    return probabilities


def _score_detection(tool: Floats, chat: Floats) -> dict[str, float]:
    labels = np.repeat([1, 0], [len(tool), len(chat)])
    probabilities = 1 / (1 + np.exp(-np.clip(np.concatenate([tool, chat]), -40, 40)))
    return {"detect_auroc": detection(labels, probabilities)["detect_auroc"]}


class _EncodeOnce:
    """Keeps the last batch of rows, because detection and retrieval encode the same texts in turn."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._last: tuple[list[str], Vectors] = [], np.empty((0, encoder.dim), dtype=np.float32)

    def __call__(self, texts: list[str]) -> Vectors:
        last_texts, rows = self._last
        if last_texts != texts:
            rows = self._encoder.encode(texts, "query")
            self._last = list(texts), rows
        return rows


class _GrowingPool:
    """The pool of a model, extended with the queries used since the fit.

    A search encodes only a few new queries, the newest first, so that nobody waits long.
    """

    def __init__(
        self,
        fitted: Pool,
        encoder: Encoder,
        tools: Mapping[str, Vectors],
        live: LiveEvidence | None,
    ) -> None:
        self._fitted, self._encoder, self._tools, self._live = fitted, encoder, tools, live
        self._rows: dict[str, Vectors] = {}  # query since the fit → its vector
        self._latest: tuple[int, int, Pool] = -1, 0, fitted  # version, queries still to encode, pool

    def __call__(self) -> Pool:
        """Return the pool with all queries since the fit that are encoded. Some wait for a later search."""
        if self._live is None:
            return self._fitted
        version, examples = self._live()
        latest_version, waiting, pool = self._latest
        if latest_version == version and not waiting:
            return pool
        used = self._collect_vectors(examples)
        waiting = self._encode_new([query for query, _ in used])
        ready = [(query, vectors) for query, vectors in used if query in self._rows]
        pool = self._fitted
        if ready:
            rows = np.stack([self._rows[query] for query, _ in ready])
            pool = pool.extend(rows, [vectors for _, vectors in ready])
        self._latest = version, waiting, pool
        return pool

    def _collect_vectors(self, examples: Sequence[Example]) -> list[tuple[str, Vectors]]:
        """Return the queries that used a tool of the catalogue, with the vectors of these tools."""
        tools = [
            (example.query, [self._tools[id] for id in example.tools if id in self._tools]) for example in examples
        ]
        return [(query, np.stack(vectors)) for query, vectors in tools if vectors]

    def _encode_new(self, queries: Sequence[str]) -> int:
        """Encode the newest queries without a row, forget rows of other queries; return how many still wait."""
        current = set(queries)
        self._rows = {query: row for query, row in self._rows.items() if query in current}
        new = [query for query in reversed(queries) if query not in self._rows]
        batch = new[:MAX_QUERIES_ENCODED_BY_SEARCH]
        self._rows |= dict(zip(batch, self._encoder.encode(batch, "query"), strict=True)) if batch else {}
        return len(new) - len(batch)


def compute_query_parts(model: Model, texts: Sequence[str]) -> dict[str, Vectors]:
    """Return the parts of queries' vectors in a fitted model (`ArrayTowers.parts`), for queries with a neighbour."""
    options = model.manifest.settings
    rows = FittedEncoder(model.folder / ENCODER_FOLDER, model.manifest.values["tool_length"]).encode(texts, "query")
    pool = Pool(model.arrays["keys"], model.arrays["pool"])
    near = pool.near(rows, options["k"].value, options["floor"].value)
    has_neighbour = (near >= 0).any(axis=1)
    return ArrayTowers.load(model).parts(rows[has_neighbour], pool.values, near[has_neighbour])


class MassTool(LabMethod):
    """Represents a query by similar queries, and detects whether it needs a tool."""

    options_type = MassToolOptions
    abstains = True
    base = dpr.TUNES_ENCODER

    def fit(self, resources: Resources, lesson: Lesson, options: MassToolOptions) -> Artifacts:
        """Train both towers over the base's encoder; calibrate the need if there are queries that need no tool.

        Raises:
            MissingExtra: without torch.
            ConfigError: if there is nothing to train on.
        """
        from toolscout_lab.training.intents import IntentQueries, Intents

        assert lesson.base is not None
        encoder = dpr.load_base_encoder(lesson.base)
        data = EncodedLesson.encode(resources, lesson, encoder)
        n = len(data.train)
        chat_rows, calibration_rows = _encode_no_tool(resources, lesson, encoder)
        near, similarities = nearest(data.train, np.concatenate([data.train, data.dev]), options.k + 1)
        near, similarities = _drop_self(near, similarities, n, options.k)
        passed = np.where(similarities > options.floor, near, -1)

        detects = bool(options.need and len(calibration_rows))
        fingerprints = [lesson.fingerprint, *([lesson.no_tool.fingerprint] if lesson.no_tool else [])]

        def evaluate(arrays: Arrays) -> dict[str, float]:
            """Measure the arrays on dev: ranking, and detection if the model has it."""
            towers = ArrayTowers(arrays, options.transfer)
            vectors, logits = towers.read(data.dev, arrays["pool"], passed[n:])
            tool_rows = unit_rows(np.where(data.used[:, None], arrays["tools"], data.tools))
            rankings = dpr.rank_nearest(vectors @ tool_rows.T, lesson.dev, lesson.tools)
            figures = lesson.evaluate(rankings).means()
            return {**figures, **_score_detection(logits, towers.logits(calibration_rows))} if detects else figures

        task = Intents(
            queries=IntentQueries(data.train, data.gold, data.scene_of, near=passed[:n], chat=chat_rows),
            tools=data.tools,
            evaluate=evaluate,
            shape=options,
            identity=digest("masstool/3", [encoder.fingerprint, *fingerprints, options]),
            seed=resources.run.seed,
        )
        targets = ("ndcg@5", "detect_auroc") if detects and options.epoch_by == "both" else ("ndcg@5",)
        done = train_task(resources, options, task, warmup=0.0, schedule="constant", clip=float("inf"), targets=targets)
        arrays = task.arrays()
        values: dict[str, Any] = {
            "towers": TOWERS_VERSION,
            "tool_length": encoder.tool_length,
            **describe_training(done),
        }
        if detects:
            towers = ArrayTowers(arrays, options.transfer)
            logits = towers.read(data.dev, arrays["pool"], passed[n:])[1]
            values["need"] = platt(logits, towers.logits(calibration_rows))
            values["need_floors"] = msgspec.to_builtins(floors(needs(logits, values["need"])))
        return Artifacts(
            {
                **arrays,
                "keys": data.train,
                "tools": data.replace_used(arrays["tools"]),
            },
            metrics=evaluate(arrays),
            values=values,
            seconds_before=done.earlier,
            files=save_encoder(encoder.model),
        )

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the detection of need, if the model learned it, and the search for the nearest tools."""
        settings, values = model.manifest.settings, model.manifest.values
        encoder = FittedEncoder(model.folder / ENCODER_FOLDER, values["tool_length"])
        rows = load_tool_rows(catalogue, model, encoder)
        index = index_rows(catalogue, rows)
        fitted = Pool(model.arrays["keys"], model.arrays["pool"])
        towers = ArrayTowers.load(model)
        encode = _EncodeOnce(encoder)
        grow = _GrowingPool(fitted, encoder, dict(zip(catalogue.ids, rows, strict=True)), resources.live)

        def encode_meaning(texts: list[str]) -> Vectors:
            """Encode queries as the query tower reads them, with their nearest tools of the live pool."""
            query_rows, pool = encode(texts), grow()
            return unit_rows(
                towers.read(
                    query_rows, pool.values, pool.near(query_rows, settings["k"].value, settings["floor"].value)
                )[0]
            )

        retrieve = Retrieve(index, label="masstool", encode=encode_meaning, mask=catalogue.mask, depth=DEPTH)
        if "need" not in values:
            return retrieve
        low = msgspec.convert(values["need_floors"], Floors) if "need_floors" in values else None
        return Detect(lambda texts: needs(towers.logits(encode(texts)), values["need"]).tolist(), low) >> retrieve
