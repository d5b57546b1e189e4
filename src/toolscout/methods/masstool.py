"""MassTool (arXiv:2507.00487): whether a query needs a tool, and what it means by the queries that are like it.

Over the frozen encoder of another recipe (`base`). Queries, tools and scenes are joined by graphs as in COLT
(`training.collaboration`). A query's vector is the sum of three unit rows (eq. 6): its own; the mean of its nearest
training queries' graph vectors, by attention; and that mean again, joined with what the detection tower knows of
the query (AdaKT). A later query has no edges: its own part is the encoder's vector. The pool of neighbours can grow
without any training (`Pool.extend`). A tool that no training query used keeps the encoder's vector of its text.

Where this differs from the paper: its threshold of 1.0 for "no filtering" is -1 here, a cosine that all neighbours
pass; a query without neighbours is its own part alone; the contrast compares cosines, as the released code does and
eq. 11 does not; the need is calibrated on queries that were not trained on; the epoch is chosen on dev. Three parts
that were not worth their place on dev are settings, and not the default: a query that sees its own edges in training
(`seen`), COLT's list-wise loss over ten tools (`loss`, `length`), and the gate of AdaKT (`transfer`), for which
self-attention stands, another of the paper's four ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from toolscout import metrics
from toolscout.abstain.calibration import floors, platt
from toolscout.arrays import Arrays, Floats, Mask, Places, Vectors
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import Encoder, unit_rows
from toolscout.indexes import top_k
from toolscout.indexes.exact import Exact
from toolscout.methods import Artifacts, BaseRule, dpr
from toolscout.methods.dpr import FittedEncoder
from toolscout.methods.lesson import Lesson
from toolscout.methods.shared.tool_sets import Sets
from toolscout.methods.shared.tuning import (
    FOLDER,
    Amount,
    Count,
    Graphs,
    Positive,
    Whole,
    describe_training,
    save_encoder,
    train_task,
)
from toolscout.methods.shared.usage import softmax
from toolscout.models.model_store import Model
from toolscout.search.fusion import DEPTH
from toolscout.search.pipeline import Detect, Floors, Retrieve, Stage
from toolscout.types import Tool, digest, render
from toolscout.workspace import LiveEvidence, Workspace

__all__ = ["MassTool", "Options", "Pool", "Reader", "meanings"]

NEIGHBOUR_BLOCK: Final = 1024
MAX_QUERIES_ENCODED_BY_SEARCH: Final = 32  # new queries that a search encodes besides its own


class Options(Graphs, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit.

    Attributes:
        base: the recipe whose encoder is the backbone; it stays as it is.
        seen: a training query sees itself with its edges (`graph`), as published, or as a later query will (`new`).
        search: whether neighbours are searched (SUIM).
        k: how many at most.
        floor: cosine that a neighbour must exceed (dynamic filtering, ε); -1: all pass.
        transfer: how the detection tower's knowledge is passed on (AdaKT): `gate`, `attention`, `concatenation`,
            `addition`; `none`: it is not.
        need: λ, weight of the loss of the detection tower; it learns when there are queries that need no tool.
    """

    base: str = "dpr"
    seen: Literal["graph", "new"] = "new"
    search: bool = True
    k: Count = 20
    floor: Annotated[float, msgspec.Meta(ge=-1, lt=1)] = 0.7
    transfer: Literal["gate", "attention", "concatenation", "addition", "none"] = "attention"
    need: Amount = 0.2
    loss: Literal["colt", "softmax"] = "softmax"
    length: Whole = 0
    sharpness: Positive = 8.0
    epochs: Count = 40
    patience: Count = 10


def _encode_no_tool(workspace: Workspace, lesson: Lesson, encoder: Encoder) -> tuple[Vectors, Vectors]:
    """Rows of queries that need no tool: those to train on, and those to calibrate with."""
    parts = (lesson.no_tool.train, lesson.no_tool.calibrate) if lesson.no_tool else ((), ())
    learned, held = (workspace.encode_queries(encoder, [each.text for each in part]) for part in parts)
    return learned, held


# --- neighbours -------------------------------------------------------------------------------------------------------


def nearest(pool: Vectors, rows: Vectors, k: int) -> tuple[Places, Vectors]:
    """The `k` likest rows of the pool of each row, `(n, k)`, and their cosines; place -1 where there are fewer."""
    near = np.full((len(rows), k), -1, dtype=np.intp)
    likeness = np.full((len(rows), k), -1.0, dtype=np.float32)
    size = min(k, len(pool))
    for start in range(0, len(rows), NEIGHBOUR_BLOCK):
        cosines = rows[start : start + NEIGHBOUR_BLOCK] @ pool.T
        some = np.argpartition(-cosines, size - 1, axis=1)[:, :size]
        values = np.take_along_axis(cosines, some, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        near[start : start + NEIGHBOUR_BLOCK, :size] = np.take_along_axis(some, order, axis=1)
        likeness[start : start + NEIGHBOUR_BLOCK, :size] = np.take_along_axis(values, order, axis=1)
    return near, likeness


def _without_itself(near: Places, likeness: Vectors, n: int, k: int) -> tuple[Places, Vectors]:
    """The first `k` neighbours; the first `n` rows are the pool's own, and none is its own neighbour."""
    kept_near, kept_likeness = near[:, :k].copy(), likeness[:, :k].copy()
    for row in range(n):
        others = near[row] != row
        kept_near[row], kept_likeness[row] = near[row][others][:k], likeness[row][others][:k]
    return kept_near, kept_likeness


class Pool:
    """Queries whose tools are known: what later queries are understood by.

    Attributes:
        keys: (n, d) vectors of the encoder, unit rows.
        values: (n, d) graph vectors.
    """

    def __init__(self, keys: Vectors, values: Vectors) -> None:
        self.keys, self.values = keys, values

    def near(self, rows: Vectors, k: int, floor: float) -> Places:
        """(n, k) places of the likest queries above the floor; -1 where there are fewer."""
        places, likeness = nearest(self.keys, rows, k)
        return np.where(likeness > floor, places, -1)

    def extend(self, rows: Vectors, tools: Sequence[Vectors]) -> Pool:
        """A pool with more queries, without training.

        A query joins with its own vector and, of the same weight, the mean of its tools', in both views: what one layer
        of propagation would bring it if it were its tools' only query. What the fit saw may weigh more: 1.6
        times as much in a model of ToolLens.

        Args:
            rows: (n, d) of the encoder.
            tools: the final vectors of each query's tools, (≥ 1, d).
        """
        if not len(rows):
            return self
        values = (2 * (rows + unit_rows(np.stack([each.mean(axis=0) for each in tools])))).astype(np.float32)
        return Pool(np.concatenate([self.keys, rows]), np.concatenate([self.values, values]))


# --- serving ----------------------------------------------------------------------------------------------------------


class Reader:
    """The towers without torch: `training.intents.Towers`, over arrays."""

    def __init__(self, arrays: Arrays, transfer: str) -> None:
        """Take `towers.*` of the arrays of a model."""
        self._layers = {name.removeprefix("towers."): each for name, each in arrays.items() if name[:7] == "towers."}
        self.transfer = transfer

    def logits(self, rows: Vectors) -> Floats:
        """(n,) how much each query needs a tool, before calibration."""
        return self._need_logits(self._hidden(rows))

    def read(self, rows: Vectors, values: Vectors, near: Places) -> tuple[Vectors, Floats]:
        """Queries → their vectors (eq. 6), the sum of `parts`, `(n, d)`, and the logits of their need, `(n,)`."""
        hidden = self._hidden(rows)
        total: Vectors = np.sum(list(self._parts(rows, hidden, values, near).values()), axis=0)
        return total.astype(np.float32), self._need_logits(hidden)

    def parts(self, rows: Vectors, values: Vectors, near: Places) -> dict[str, Vectors]:
        """`graph`, `search` and `joint` of queries: unit rows, `(n, d)`; zero where there is no neighbour.

        Args:
            rows: (n, d) of the encoder.
            values: of the pool.
            near: (n, K) places in it; -1: none.

        Returns:
            Those parts that the model has.
        """
        return self._parts(rows, self._hidden(rows), values, near)

    def _parts(self, rows: Vectors, hidden: Vectors, values: Vectors, near: Places) -> dict[str, Vectors]:
        graph = found = 2 * rows
        some: Mask = np.ones(len(rows), dtype=np.bool_)
        parts = {"graph": unit_rows(graph)}
        if "attend" in self._layers:
            there = near >= 0
            some = np.asarray(there.any(axis=1))
            held = values[np.maximum(near, 0)]
            fits = np.einsum("nd,nkd->nk", self._times(graph, self._layers["attend"].T), held)
            weights = np.where(there, softmax(np.where(there | ~some[:, None], fits, -np.inf)), 0.0)
            found = np.einsum("nk,nkd->nd", weights, held)
            parts["search"] = unit_rows(found) * some[:, None]
        if self.transfer != "none":
            parts["joint"] = unit_rows(self._join(hidden, found)) * some[:, None]
        return parts

    def _join(self, hidden: Vectors, found: Vectors) -> Vectors:
        if self.transfer == "gate":
            gated: Vectors = found / (1 + np.exp(-self._linear("join.0", hidden)))
            return gated
        if self.transfer == "addition":
            return hidden + found
        if self.transfer == "concatenation":
            both = self._linear("join.0", np.concatenate([hidden, found], axis=1))
            return self._linear("join.1", np.maximum(both, 0))
        asked, offered, values = (
            np.stack([self._linear(f"join.{number}", each) for each in (hidden, found)], axis=1) for number in range(3)
        )
        fits = np.einsum("nid,njd->nij", asked, offered) / hidden.shape[1] ** 0.5
        summed: Vectors = np.einsum("nij,njd->nd", softmax(fits), values)
        return summed

    def _hidden(self, rows: Vectors) -> Vectors:
        return np.maximum(self._linear("project", rows), 0)

    def _need_logits(self, hidden: Vectors) -> Floats:
        return np.asarray(self._linear("need", hidden * np.float32(hidden.shape[1] ** 0.5))[:, 0], dtype=np.float64)

    def _linear(self, name: str, rows: Vectors) -> Vectors:
        return self._times(rows, self._layers[f"{name}.weight"]) + self._layers[f"{name}.bias"]

    @staticmethod
    def _times(rows: Vectors, weights: Vectors) -> Vectors:
        """Rows · weightsᵀ, each row by itself: a query has the same answer alone and in a batch."""
        return np.stack([weights @ row for row in rows]) if len(rows) else np.empty((0, len(weights)), dtype=np.float32)


def needs(logits: Floats, by: Mapping[str, float]) -> Floats:
    """Logits → probabilities; see `platt`."""
    probabilities: Floats = 1 / (1 + np.exp(-np.clip(by["slope"] * logits + by["shift"], -40, 40)))
    return probabilities


def _score_detection(tool: Floats, chat: Floats) -> dict[str, float]:
    labels = np.repeat([1, 0], [len(tool), len(chat)])
    shares = 1 / (1 + np.exp(-np.clip(np.concatenate([tool, chat]), -40, 40)))
    return {"detect_auroc": metrics.detection(labels, shares)["detect_auroc"]}


class _Twice:
    """An encoder that need and retrieval ask one after the other for the same texts: it encodes them once."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._last: tuple[list[str], Vectors] = [], np.empty((0, encoder.dim), dtype=np.float32)

    def __call__(self, texts: list[str]) -> Vectors:
        held, rows = self._last
        if held != texts:
            rows = self._encoder.encode(texts, "query")
            self._last = list(texts), rows
        return rows


class _Growing:
    """The pool of a model, and what was used since it was fitted.

    Of what is new, so many queries are encoded at a search, the newest first: nobody waits for more.
    """

    def __init__(
        self,
        fitted: Pool,
        encoder: Encoder,
        tools: Mapping[str, Vectors],
        live: LiveEvidence | None,
    ) -> None:
        self._fitted, self._encoder, self._tools, self._live = fitted, encoder, tools, live
        self._rows: dict[str, Vectors] = {}
        self._held: tuple[int, int, Pool] = -1, 0, fitted  # version, how many are not encoded yet, the pool

    def __call__(self) -> Pool:
        if self._live is None:
            return self._fitted
        version, examples = self._live()
        held, waiting, pool = self._held
        if held == version and not waiting:
            return pool
        of_tools = [(each.query, [self._tools[id] for id in each.tools if id in self._tools]) for each in examples]
        used = [(query, np.stack(vectors)) for query, vectors in of_tools if vectors]
        wanted = {query for query, _ in used}
        self._rows = {query: row for query, row in self._rows.items() if query in wanted}
        new = [query for query, _ in reversed(used) if query not in self._rows]
        some = new[:MAX_QUERIES_ENCODED_BY_SEARCH]
        self._rows |= dict(zip(some, self._encoder.encode(some, "query"), strict=True)) if some else {}
        ready = [(query, vectors) for query, vectors in used if query in self._rows]
        if ready:
            pool = self._fitted.extend(np.stack([self._rows[query] for query, _ in ready]), [each for _, each in ready])
        else:
            pool = self._fitted
        self._held = version, len(new) - len(some), pool
        return pool


def meanings(model: Model, texts: Sequence[str]) -> dict[str, Vectors]:
    """The parts of queries' vectors in a fitted model, see `Reader.parts`, of queries that have a neighbour in it."""
    options = model.manifest.settings
    rows = FittedEncoder(model.folder / FOLDER, model.manifest.values["tool_length"]).encode(texts, "query")
    pool = Pool(model.arrays["keys"], model.arrays["pool"])
    near = pool.near(rows, options["k"].value, options["floor"].value)
    some = (near >= 0).any(axis=1)
    return Reader(model.arrays, options["transfer"].value).parts(rows[some], pool.values, near[some])


class MassTool:
    """Understands a query by those that are like it, and judges whether it needs a tool."""

    options_type = Options
    needs_usage = True
    transfers = True
    abstains = True
    base: BaseRule | None = dpr.TUNES_ENCODER

    def fit(self, workspace: Workspace, lesson: Lesson, options: Options) -> Artifacts:
        """Train both towers over the base's encoder, and calibrate the need if there are queries that need no tool.

        Raises:
            MissingExtra: without torch.
            ConfigError: if there is nothing to train on.
        """
        from toolscout.training.intents import IntentQueries, Intents, IntentShape

        assert lesson.base is not None
        encoder = dpr.encoder_of_base(lesson.base)
        place = {tool.id: number for number, tool in enumerate(lesson.tools)}
        gold = [np.array(sorted(place[tool] for tool in tools), dtype=np.intp) for tools in lesson.train.values()]
        n = len(gold)
        workspace.say("encoding queries and tools")
        rows = workspace.encode_queries(encoder, lesson.texts_of([*lesson.train, *lesson.dev]))
        tools = workspace.encode_tools(encoder, lesson.tools, dpr.STYLE)
        used = np.zeros(len(tools), dtype=np.bool_)
        used[np.concatenate(gold)] = True
        _, scene_of = Sets.among(gold)
        learned, held = _encode_no_tool(workspace, lesson, encoder)
        near, likeness = nearest(rows[:n], rows, options.k + 1)
        near, likeness = _without_itself(near, likeness, n, options.k)
        passed = np.where(likeness > options.floor, near, -1)

        judges = bool(options.need and len(held))
        data = [lesson.fingerprint, *([lesson.no_tool.fingerprint] if lesson.no_tool else [])]

        def judge(arrays: Arrays) -> dict[str, float]:
            towers = Reader(arrays, options.transfer)
            vectors, logits = towers.read(rows[n:], arrays["pool"], passed[n:])
            kept_rows = unit_rows(np.where(used[:, None], arrays["tools"], tools))
            scores = vectors @ kept_rows.T
            found = zip(lesson.dev, scores, strict=True)
            rankings = {query: [lesson.tools[number].id for number in top_k(row, 10)] for query, row in found}
            figures = lesson.evaluate(rankings).means()
            return {**figures, **_score_detection(logits, towers.logits(held))} if judges else figures

        task = Intents(
            queries=IntentQueries(rows[:n], gold, scene_of, near=passed[:n], chat=learned),
            tools=tools,
            judge=judge,
            shape=IntentShape(**{name: getattr(options, name) for name in IntentShape.__dataclass_fields__}),
            identity=digest("masstool/2", [encoder.fingerprint, *data, options]),
            seed=workspace.seed,
        )
        targets = ("ndcg@5", "detect_auroc") if judges else ("ndcg@5",)
        done = train_task(workspace, options, task, warmup=0.0, schedule="constant", clip=float("inf"), targets=targets)
        arrays = task.arrays()
        values: dict[str, Any] = {"tool_length": encoder.tool_length, **describe_training(done)}
        if judges:
            towers = Reader(arrays, options.transfer)
            logits = towers.read(rows[n:], arrays["pool"], passed[n:])[1]
            values["need"] = platt(logits, towers.logits(held))
            values["need_floors"] = msgspec.to_builtins(floors(needs(logits, values["need"])))
        return Artifacts(
            {
                **arrays,
                "keys": rows[:n],
                "tools": np.where(used[:, None], unit_rows(arrays["tools"]), tools),
            },
            metrics=judge(arrays),
            values=values,
            seconds_before=done.earlier,
            files=save_encoder(encoder.model),
        )

    def build(self, workspace: Workspace, catalogue: Catalogue, model: Model) -> Stage:
        """Whether a tool is needed, where that was learned; and the tools nearest to what the query means."""
        settings, values = model.manifest.settings, model.manifest.values
        encoder = FittedEncoder(model.folder / FOLDER, values["tool_length"])
        tools: list[Tool] = catalogue.tools()
        places = model.places(tools)
        known, new = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
        rows = np.empty((len(tools), encoder.dim), dtype=np.float32)
        rows[known] = model.arrays["tools"][places[known]]
        rows[new] = encoder.encode([render(tools[number], dpr.STYLE) for number in new], "tool")
        index = Exact(encoder.dim)
        index.upsert(catalogue.ids, rows)
        fitted, towers = (
            Pool(model.arrays["keys"], model.arrays["pool"]),
            Reader(model.arrays, settings["transfer"].value),
        )
        encode = _Twice(encoder)
        grown = _Growing(fitted, encoder, dict(zip(catalogue.ids, rows, strict=True)), workspace.live)

        def meant(texts: list[str]) -> Vectors:
            held, pool = encode(texts), grown()
            return unit_rows(
                towers.read(held, pool.values, pool.near(held, settings["k"].value, settings["floor"].value))[0]
            )

        retrieve = Retrieve(index, label="masstool", encode=meant, mask=catalogue.mask, depth=DEPTH)
        if "need" not in values:
            return retrieve
        low = msgspec.convert(values["need_floors"], Floors) if "need_floors" in values else None
        return Detect(lambda texts: needs(towers.logits(encode(texts)), values["need"]).tolist(), low) >> retrieve
