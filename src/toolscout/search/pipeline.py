"""Stages of a search, `>>` to compose them into pipelines, and the seven stages that all recipes are built from.

A stage takes a batch of `Answer` and returns one changed `Answer` for each, in the same order::

    pipeline = Fuse(Retrieve(bm25), Retrieve(vectors, encode=encode)) >> Cut() >> Decide()
    [answer] = pipeline([Search(query="will it rain in Oslo?")])

A fitted stage is pure: the same input gives the same output, and ties are broken by tool id. A stage that fails raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np

from toolscout.arrays import Mask
from toolscout.errors import PipelineError
from toolscout.search.steps.merge import end_answer
from toolscout.types import Answer, AnswerKind, Explanation, Hit, Request, Tool, Trace

__all__ = [
    "DEPTH",
    "STANDARD_WEIGHT",
    "WEIGHT",
    "Cut",
    "Decide",
    "Detect",
    "Floors",
    "Fuse",
    "Index",
    "Pipeline",
    "Rerank",
    "Retrieve",
    "Rewrite",
    "Stage",
    "Verdict",
    "add_standard_scores",
    "begin_answer",
    "newest",
    "order",
    "reciprocal_rank",
    "weigh_meaning",
    "words_and_meaning",
]

Visible = Callable[[Tool], bool]
Ranking = Sequence[tuple[str, float]]
"""(tool id, score), best first."""
DEPTH: Final = 100  # candidates of each ranking that are fused
WEIGHT: Final = 5.0  # what the nearest tool gets, in units of a BM25 score; see `words_and_meaning`
STANDARD_WEIGHT: Final = 1.0  # BM25 score that equals one standard deviation; chosen on train and dev (LAB.md)
MAX_SHORT_WORDS: Final = 15  # words of a short request, which shares few words with its tool
GIVEN: Final = frozenset({"query", "k", "visible"})  # fields that every search has before the first stage


class Stage:
    """One step of a search. Subclasses declare what they read and write; callers call the stage.

    A subclass implements `run`, or `change` if it treats each search by itself.

    A stage also reads an `Answer`: the request, with what the stages before it have found out. While stages work on
    it, it is called a search.

    `reads` and `writes` name fields of `Answer`; `query`, `k` and `visible` are always available. `asks` says whether
    the stage asks a language model: its answers cost money, come from a cache, and may be missing. `name` is for traces
    and messages; by default it is the name of the class in lower case.
    """

    reads: frozenset[str] = frozenset({"query"})
    writes: frozenset[str] = frozenset()
    asks: bool = False
    name: str = "stage"

    def __init_subclass__(cls) -> None:
        """Name the stage after its class, unless the class names it."""
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        """Do the work of the stage, without timing or checks."""
        return [self.change(search) for search in searches]

    def change(self, search: Answer) -> Answer:
        """Do the work of the stage for one search. A search that comes back as it was gets no note."""
        raise NotImplementedError

    def note(self, search: Answer) -> str:
        """Return a remark on what the stage did to this search, for its trace."""
        return ""

    def __call__(self, requests: Sequence[Request]) -> list[Answer]:
        """Run on requests, or on answers of earlier stages, and add an entry to the trace of each.

        The entry contains the wall seconds of the batch, divided by its searches.
        """
        started = time.perf_counter()
        searches = [request if isinstance(request, Answer) else begin_answer(request) for request in requests]
        results = self.run(searches)
        if len(results) != len(searches):
            raise PipelineError(f"{self.name}: expected {len(searches)} searches back, found {len(results)}")
        seconds = (time.perf_counter() - started) / max(1, len(searches))
        finished = []
        for search, result in zip(searches, results, strict=True):
            # Stages inside this one have entries of their own, so their seconds are not counted twice.
            inner_seconds = sum([entry.seconds for entry in result.trace[len(search.trace) :]])
            has_no_note = result is search and type(self).run is Stage.run  # see `change`
            note = "" if has_no_note else self.note(result)
            trace = (*result.trace, Trace(self.name, seconds - inner_seconds, note))
            finished.append(msgspec.structs.replace(result, trace=trace))
        return finished

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return the exact rank of `tool_id` in this stage, also beyond k; None if the stage does not rank it.

        `search` is as the previous stage left it.
        """
        return None

    def __rshift__(self, other: Stage) -> Pipeline:
        return Pipeline((self, other))


def begin_answer(request: Request) -> Answer:
    """Return the request as an answer that no stage has worked on yet."""
    return Answer(**msgspec.structs.asdict(request))


class Pipeline(Stage):
    """Runs stages one after the other. Construction fails if a stage reads a field that no earlier stage writes."""

    stages: tuple[Stage, ...]

    def __init__(self, stages: Iterable[Stage]) -> None:
        flat: list[Stage] = []
        for stage in stages:
            flat.extend(stage.stages if isinstance(stage, Pipeline) else (stage,))
        if not flat:
            raise PipelineError("expected at least one stage, found none")
        available = set(GIVEN)
        for stage in flat:
            missing = sorted(stage.reads - available)
            if missing:
                raise PipelineError(
                    f"{stage.name} reads {', '.join(missing)}, which no stage before it writes "
                    f"(there: {' >> '.join(other.name for other in flat)})"
                )
            available |= stage.writes
        self.stages = tuple(flat)
        self.reads = frozenset({"query"})
        self.writes = frozenset(available - GIVEN)
        self.asks = any(stage.asks for stage in flat)
        self.name = " >> ".join(stage.name for stage in flat)

    def __call__(self, requests: Sequence[Request]) -> list[Answer]:
        """Run the stages. Each adds its own entry to the traces, the pipeline adds none."""
        searches = [request if isinstance(request, Answer) else begin_answer(request) for request in requests]
        for stage in self.stages:
            searches = stage(searches)
        return searches

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return each stage's explanation in `parts`; rank and score are those of the last stage that ranks."""
        parts: list[Explanation] = []
        for number, stage in enumerate(self.stages, 1):
            part = stage.explain(search, tool_id)
            if part is not None:
                parts.append(part)
            if number < len(self.stages):
                [search] = stage([search])  # the input of the next stage
        if not parts:
            return None
        last = parts[-1]
        return Explanation(self.name, last.rank, last.score, last.note, parts=tuple(parts))


def order(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Return the hits with the best first; ties are broken by tool id."""
    return tuple(sorted(hits, key=lambda hit: (-hit.score, hit.id)))


# --- the seven stages -------------------------------------------------------------------------------------------------


class Floors(msgspec.Struct, frozen=True):
    """Thresholds of abstention, for several false-abstention budgets.

    Attributes:
        budgets: shares of the answerable requests that may be turned away; ascending from 0.
        need: for each budget, the threshold of the probability that a tool is needed.
        fit: for each budget, the threshold of the probability that a tool fits; empty: fit is not judged.
    """

    budgets: tuple[float, ...]
    need: tuple[float, ...]
    fit: tuple[float, ...] = ()

    def need_at(self, budget: float) -> float:
        """Return the threshold of the need for a budget, by linear interpolation."""
        return float(np.interp(budget, self.budgets, self.need))

    def fit_at(self, budget: float) -> float:
        """Return the threshold of the fit for a budget, by linear interpolation; 0 if the fit is not judged."""
        return float(np.interp(budget, self.budgets, self.fit)) if self.fit else 0.0


class Detect(Stage):
    """Estimates the probability that the request needs any tool."""

    writes = frozenset({"need"})

    def __init__(self, judge: Callable[[list[str]], Sequence[float]], floors: Floors | None = None) -> None:
        """Estimate with `judge`, queries → one probability each. `floors`: its thresholds, if they are known."""
        self.judge, self.floors = judge, floors

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        needs = self.judge([search.query for search in searches])
        return [msgspec.structs.replace(search, need=float(need)) for search, need in zip(searches, needs, strict=True)]


class Rewrite(Stage):
    """Adds a wording of the query, from the query and its hits so far; the original stays in `query`."""

    writes = frozenset({"rewrites"})

    def __init__(self, rewriter: Callable[[Sequence[Answer]], Sequence[str | None]]) -> None:
        """Rewrite with `rewriter`: a batch → one new wording each, or None to leave the query as it is."""
        self.rewriter = rewriter

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        texts = self.rewriter(searches)
        return [
            msgspec.structs.replace(search, rewrites=(*search.rewrites, text)) if text else search
            for search, text in zip(searches, texts, strict=True)
        ]


class Index(Protocol):
    """The methods of an index that Retrieve uses; see `toolscout.indexes` for the full contract."""

    @property
    def ids(self) -> Sequence[str]:
        """Tool ids, ascending; masks are over this order."""

    def search(
        self, queries: Any, k: int, visible: Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[np.ndarray[Any, Any]]]:
        """Return ids and scores, best first, at most `k` for each query, only of tools that the masks allow."""
        ...

    def explain(self, query: Any, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Return the exact rank and score of one tool, beyond any k."""
        ...


def newest(search: Answer) -> str:
    """Return the newest wording of the query."""
    return search.rewrites[-1] if search.rewrites else search.query


class Retrieve(Stage):
    """Searches one index for the query."""

    writes = frozenset({"hits"})

    def __init__(
        self,
        index: Index,
        *,
        label: str = "retrieve",
        encode: Callable[[list[str]], Any] | None = None,
        mask: Callable[[Visible | None], Mask | None] | None = None,
        depth: int = 50,
        wording: Callable[[Answer], str] = newest,
    ) -> None:
        """Search an index, with functions that turn queries and visibility into its inputs.

        Args:
            index: a sparse index (takes texts) or a vector index (takes rows).
            label: name in traces and in each hit's `why`.
            encode: queries → rows, shape (n, d); None: the index takes the texts.
            mask: `Request.visible` → boolean mask over `index.ids`, or None for everything.
            depth: minimum number of candidates, however small k is.
            wording: search → the text to search for.
        """
        self.index, self.label, self.encode, self.mask, self.depth = index, label, encode, mask, depth
        self.wording, self.name = wording, label

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        if not searches:
            return []
        texts = [self.wording(search) for search in searches]
        masks = [None if search.visible is None else self._mask(search.visible) for search in searches]
        k = max(self.depth, *(search.k for search in searches))  # the index has one k for a batch
        queries = self.encode(texts) if self.encode else texts
        all_ids, all_scores = self.index.search(queries, k, masks)
        results = []
        for search, ids, scores in zip(searches, all_ids, all_scores, strict=True):
            hits = tuple([Hit(id, score, self.label) for id, score in zip(ids, scores.tolist(), strict=True)])
            results.append(msgspec.structs.replace(search, hits=hits))
        return results

    def _mask(self, visible: Visible) -> Mask | None:
        """Return the mask for what a search may see."""
        if self.mask is None:
            raise PipelineError(
                f"{self.name}: a search limits what is visible, but this stage was built without a mask"
            )
        return self.mask(visible)

    def note(self, search: Answer) -> str:
        return f"{len(search.hits)} candidates"

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        text = self.wording(search)
        query = self.encode([text])[0] if self.encode else text
        mask = None if search.visible is None else self._mask(search.visible)
        explanation = self.index.explain(query, tool_id, mask)
        return msgspec.structs.replace(explanation, stage=self.name)


Fusion = Callable[[Sequence[Ranking], Answer], Mapping[str, float]]
"""(rankings of the branches, search) → tool id → score."""


def reciprocal_rank(rankings: Sequence[Ranking], search: Answer, constant: float = 60.0) -> dict[str, float]:
    """Return the sum of 1 / (constant + rank) over the rankings that contain the tool (Cormack et al., 2009).

    Args:
        rankings: (id, score), best first. The scores do not count.
        search: not used.
        constant: 60 in the paper. The larger it is, the less the first ranks count more than those after them.
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, (tool_id, _) in enumerate(ranking, 1):
            scores[tool_id] = scores.get(tool_id, 0.0) + 1.0 / (constant + rank)
    return scores


def weigh_meaning(query: str, short_weight: float) -> float:
    """Return the weight of standard scores for a query: `short_weight`, the encoder's, if the query is short.

    Words are what spaces part, and quotations count. So a text in Chinese is short: with tools in English, it shares
    no words with them anyway.
    """
    words = query.split(None, MAX_SHORT_WORDS)
    return short_weight if len(words) <= MAX_SHORT_WORDS else STANDARD_WEIGHT


def add_standard_scores(
    rankings: Sequence[Ranking], search: Answer, *, short_weight: float = STANDARD_WEIGHT
) -> dict[str, float]:
    """Score each tool by BM25 + weight · standard score, over the tools of either ranking.

    A standard score says how many standard deviations a tool is nearer to the query than the average tool
    (`indexes.exact.StandardScores`). The balance between the two follows the query. If rare words match, the BM25
    score is high and decides. If the query has other words than the tool, it is low, and the encoder decides. A
    standard score is high only where few tools are as near as this one, so a query that is near to everything leaves
    the decision to the words. A tool below the average gains and loses nothing.

    Args:
        rankings: the BM25 ranking and the encoder's standard scores, best first, each cut at `DEPTH`.
        search: has the query, whose length decides the weight (`weigh_meaning`).
        short_weight: BM25 score that equals one standard deviation if the query is short. For others it is
            `STANDARD_WEIGHT`, where 0.2 more or less change little.
    """
    words, meaning = rankings
    weight = weigh_meaning(search.query, short_weight)
    scores = dict(words)
    for tool_id, standard_score in meaning:
        scores[tool_id] = scores.get(tool_id, 0.0) + weight * max(0.0, standard_score)
    return scores


def words_and_meaning(rankings: Sequence[Ranking], search: Answer, *, weight: float = WEIGHT) -> dict[str, float]:
    """Score each tool by BM25 + `weight` · (cosine - lowest) / (highest - lowest), over the tools of either ranking.

    The balance between the two follows the query. If rare words match, the BM25 score is high and decides. If the query
    has other words than the tool, it is low, and the encoder decides, which adds at most `weight`. Only the order and
    the spacing of the cosines count, so encoders with narrow and with wide ranges are treated alike. A ranking adds
    nothing to a tool that it lacks.

    The default was chosen on validation queries of eight datasets; values between 4 and 6 change little.

    Args:
        rankings: the BM25 ranking and the encoder's, best first, each cut at `DEPTH`.
        search: not used.
        weight: what the nearest tool gets; an encoder fitted on such queries may deserve more.
    """
    words, meaning = rankings
    scores = dict(words)
    if meaning:
        (_, highest), (_, lowest) = meaning[0], meaning[-1]
        scale = weight / (highest - lowest) if highest > lowest else 0.0
        for tool_id, cosine in meaning:
            scores[tool_id] = scores.get(tool_id, 0.0) + scale * (cosine - lowest)
    return scores


class Fuse(Stage):
    """Combines the rankings of several branches. Each branch gets the same searches."""

    writes = frozenset({"hits"})

    def __init__(self, *branches: Stage, by: Fusion = reciprocal_rank) -> None:
        """Combine two or more branches that write hits, with the formula for their rankings."""
        if len(branches) < 2:
            raise PipelineError(f"fuse: expected two branches or more, found {len(branches)}")
        for branch in branches:
            if "hits" not in branch.writes:
                raise PipelineError(f"fuse: expected branches that write hits, but {branch.name} does not")
            if branch.reads - GIVEN:
                raise PipelineError(
                    f"fuse: {branch.name} reads {', '.join(sorted(branch.reads - GIVEN))} and cannot begin"
                )
        self.branches, self.by = branches, by
        self.asks = any(branch.asks for branch in branches)
        self.name = f"fuse({', '.join(branch.name for branch in branches)})"

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        by_branch = [branch(searches) for branch in self.branches]
        fused = []
        for search, *results in zip(searches, *by_branch, strict=True):
            scores = self.by([[(hit.id, hit.score) for hit in result.hits] for result in results], search)
            why: dict[str, str] = {}  # tool id → what the branches say of it, joined
            for result in results:
                for hit in result.hits:
                    why[hit.id] = f"{why[hit.id]} + {hit.why}" if hit.id in why else hit.why
            # The same order as by `order`, which would take longer: highest score first, ties by tool id.
            ranked = sorted([(-float(score), tool_id) for tool_id, score in scores.items()])
            hits = tuple([Hit(tool_id, -negated_score, why[tool_id]) for negated_score, tool_id in ranked])
            n_before = len(search.trace)  # entries of earlier stages, which the trace of every branch begins with
            branch_entries = [entry for result in results for entry in result.trace[n_before:]]
            fused.append(msgspec.structs.replace(search, hits=hits, trace=(*search.trace, *branch_entries)))
        return fused

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return the tool's rank and score, None if it is no candidate, and each branch's explanation."""
        explanations = [branch.explain(search, tool_id) for branch in self.branches]
        parts = tuple(part for part in explanations if part is not None)
        [fused] = self.run([search])
        for rank, hit in enumerate(fused.hits, 1):
            if hit.id == tool_id:
                return Explanation(self.name, rank, hit.score, f"found by {hit.why}", parts=parts)
        return Explanation(self.name, None, None, "in no branch's candidates", parts=parts)


class Rerank(Stage):
    """Orders the first `depth` hits anew; the other hits follow in the old order."""

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits"})

    def __init__(
        self,
        scorer: Callable[[Sequence[Answer]], Sequence[Sequence[float]]],
        *,
        label: str = "rerank",
        depth: int = 50,
    ) -> None:
        """Score with `scorer`: a batch with hits cut to `depth` → a score for each hit of each search.

        For a search with a deadline it may return fewer scores, for the first hits only.
        """
        self.scorer, self.label, self.name, self.depth = scorer, label, label, depth

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        heads = [msgspec.structs.replace(search, hits=search.hits[: self.depth]) for search in searches]
        scores = self.scorer(heads)
        return [
            msgspec.structs.replace(search, hits=self._reorder(search, head.hits, head_scores))
            for search, head, head_scores in zip(searches, heads, scores, strict=True)
        ]

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return rank and score among the hits; None for a tool that is not among them."""
        if tool_id not in search.ids:
            return None
        [result] = self.run([search])
        rank = result.ids.index(tool_id)
        note = f"{search.ids.index(tool_id) + 1} before" if rank < self.depth else f"beyond the first {self.depth}"
        return Explanation(self.name, rank + 1, result.hits[rank].score, note)

    def note(self, search: Answer) -> str:
        if search.deadline is None:
            return ""
        scored, total = self.read(search), min(self.depth, len(search.hits))
        return f"the deadline left {total - scored} of {total} candidates as they were" if scored < total else ""

    def read(self, search: Answer) -> int:
        """Return how many hits of a finished search were scored before its deadline; `_reorder` labels these hits."""
        return sum(self.label in hit.why.split(", ") for hit in search.hits)

    def _reorder(self, search: Answer, head: tuple[Hit, ...], scores: Sequence[float]) -> tuple[Hit, ...]:
        """Order the scored hits by score. The others follow in the old order, with scores just below the lowest.

        `head` are the hits that the scorer got, and `scores` are the scores of the first of them.
        """
        is_complete = len(scores) == len(head)
        is_cut_off = search.deadline is not None and len(scores) < len(head)
        if not is_complete and not is_cut_off:
            raise PipelineError(f"{self.name}: expected {len(head)} scores, found {len(scores)}")
        ranked = order(
            Hit(hit.id, float(score), f"{hit.why}, {self.label}") for hit, score in zip(head, scores, strict=False)
        )
        if not ranked:
            return search.hits
        lowest = ranked[-1].score
        rest = search.hits[len(scores) :]
        return ranked + tuple(Hit(hit.id, lowest - 1e-6 * number, hit.why) for number, hit in enumerate(rest, 1))


class Cut(Stage):
    """Keeps at most k hits, and none with a score below the floor.

    A search may have an `aim`: a coverage that is enough. It keeps only the hits that it needs for this coverage.
    """

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits", "coverage"})

    def __init__(self, k: int | None = None, *, floor: float | None = None) -> None:
        """Keep at most `k` hits (by default each search's own k) with a score of at least `floor`."""
        self.k, self.floor = k, floor

    def change(self, search: Answer) -> Answer:
        hits, k = search.hits, search.k if self.k is None else self.k
        if self.floor is not None:
            hits = tuple(hit for hit in hits if hit.score >= self.floor)
        hits, coverage = hits[:k], None
        if search.aim is not None:  # else no coverage is shown: it is too uncertain if it decides nothing
            hits, coverage = end_answer(hits, search.aim)
        return msgspec.structs.replace(search, hits=hits, coverage=coverage)


class Verdict(NamedTuple):
    """The decision on one search.

    Attributes:
        need: probability that any tool is needed.
        fit: probability that one of the visible tools fits, if one is needed.
        kind: `no_tool_needed` or `no_tool_fits` if the search must abstain.
        reason: one sentence that says why.
        is_sure: whether the search abstains even if the setting `refuse` is off, as small talk does.
    """

    need: float
    fit: float
    kind: AnswerKind | None = None
    reason: str = ""
    is_sure: bool = False


class Decide(Stage):
    """Decides from need and hits whether to answer, to answer with low confidence, or to abstain and drop the hits."""

    reads = frozenset({"query", "hits"})
    writes = frozenset({"hits", "weak", "doubt", "need", "kind", "reason", "coverage"})

    def __init__(
        self,
        why_empty: Callable[[Answer], str] | None = None,
        judge: Callable[[Sequence[Answer]], Sequence[Verdict | None]] | None = None,
        *,
        refuse: bool = True,
    ) -> None:
        """Decide with these functions.

        Args:
            why_empty: a search without hits → one sentence that says why.
            judge: a batch → a verdict each, or None if it cannot judge a search; see `search.abstain.decision`.
            refuse: the setting. Whether a search loses its hits if the verdict is to abstain. If it is off, only a sure
                verdict drops them.
        """
        self.why_empty, self.judge, self.refuse = why_empty, judge, refuse

    def run(self, searches: Sequence[Answer]) -> list[Answer]:
        # A request with several steps is answered without a verdict if a tool fits one of them.
        to_judge = [number for number, search in enumerate(searches) if not search.serves_a_step]
        judged = self.judge([searches[number] for number in to_judge]) if self.judge else [None] * len(to_judge)
        verdicts = dict(zip(to_judge, judged, strict=True))
        decided = []
        for number, search in enumerate(searches):
            verdict = verdicts.get(number)
            if verdict is not None and search.need is None:
                search = msgspec.structs.replace(search, need=verdict.need)
            if verdict is not None and verdict.kind is not None:
                search = self._abstain(search, verdict)
            elif search.hits:
                search = msgspec.structs.replace(search, kind="tools")
            else:
                reason = search.reason or (self.why_empty(search) if self.why_empty else "No tool matches the query.")
                search = msgspec.structs.replace(search, kind="no_tool_fits", reason=reason)
            decided.append(search)
        return decided

    def _abstain(self, search: Answer, verdict: Verdict) -> Answer:
        """Move the hits to `weak`; or keep them, with the doubt, if the verdict is not sure and `refuse` is off."""
        reason = f"{search.reason.rstrip('.')}. {verdict.reason}" if search.reason else verdict.reason
        search = msgspec.structs.replace(search, reason=reason, doubt=verdict.reason)
        if search.hits and not (self.refuse or verdict.is_sure):
            return msgspec.structs.replace(search, kind="tools")
        return msgspec.structs.replace(search, kind=verdict.kind, hits=(), weak=search.hits, coverage=None)

    def note(self, search: Answer) -> str:
        return "" if search.need is None else f"need {search.need:.2f}"
