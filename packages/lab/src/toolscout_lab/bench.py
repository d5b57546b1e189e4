"""Benchmark: one recipe on one dataset, fitted on train, chosen on dev, scored once on test.

Writes `<dataset>/<label>.json` and `<label>.run.gz` as docs/reference/formats.md describes, so that any scorer can
check the figures. Exact-name answers are off here: the benchmark measures the recipe alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from toolscout import metrics
from toolscout.checks.results import write_json
from toolscout.dataset import Qrels
from toolscout.errors import ConfigError, OverBudget, Unavailable, UserError
from toolscout.home.models.model_store import Model
from toolscout.learn.fit import resolve_with_base
from toolscout.recipes import registry
from toolscout.search.pipeline import Stage
from toolscout.types import Search
from toolscout_lab import bench_pipelines
from toolscout_lab.bench_jobs import (
    Job,
    groups,
    label_of,
    load_dataset,
    load_tools,
    make_folds,
    shares_tools,
    strip_source,
)
from toolscout_lab.bench_pipelines import (
    RANKING_DEPTH,
    JobPart,
    build_parts,
    describe_fits,
    find_other_defaults,
)
from toolscout_lab.encoders.pair_cache import PairCache
from toolscout_lab.machine import peak_mb, provenance, refuse_dirty, reset_peak
from toolscout_lab.run_files import write_detect, write_run

__all__ = ["Job", "JobOutcome", "groups", "label_of", "load_dataset", "rehearse", "run", "shares_tools"]

SEARCH_BATCH: Final = 256
MAX_TIMED_QUERIES: Final = 200
WARM_UP_QUERIES: Final = 10


@dataclasses.dataclass(frozen=True)
class JobOutcome:
    """One finished job: its result, and whether an earlier run had written it already."""

    result: dict[str, Any]
    kept: bool = False


@dataclasses.dataclass
class _Scored:
    """The outcome of the parts of a job so far.

    Attributes:
        ranking: query id → (tool id, score), best first.
        needs: query id → estimated probability that it needs a tool, where the recipe estimates it.
        degraded: number of queries for which the language model of the recipe gave no answer.
        search_seconds: wall time of the searches.
        fit_seconds: wall time of the fits and builds.
        models: the fitted models, one for each fold.
        used_pair_cache: whether a search read the pair cache, which makes its speed meaningless.
    """

    ranking: dict[str, list[tuple[str, float]]] = dataclasses.field(default_factory=dict)
    needs: dict[str, float] = dataclasses.field(default_factory=dict)
    degraded: int = 0
    search_seconds: float = 0.0
    fit_seconds: float = 0.0
    models: list[Model] = dataclasses.field(default_factory=list)
    used_pair_cache: bool = False


def run(
    job: Job,
    *,
    resume: bool = False,
    force: bool = False,
    reuse_model: bool = False,
    allow_dirty: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> JobOutcome:
    """Run one job and write its files.

    Args:
        job: what to measure.
        resume: keep a result of the same job, and models of the same fits.
        force: overwrite a result of the same label and other settings.
        reuse_model: keep models of the same fits, but measure again.
        allow_dirty: write into the repository although its code has uncommitted changes; the result says so.
        say: called with progress messages.

    Raises:
        UserError: if the label is taken by another job, or something is missing.
    """
    earlier = _read_earlier_result(job, force)
    if earlier is not None and resume and _is_current(job, earlier, say):
        return JobOutcome(earlier, kept=True)
    _check_options(job)
    refuse_dirty(job.out, allow=allow_dirty)
    origin = provenance()  # of the code as it is now; it may change while this runs
    qrels = job.dataset.split(job.split)
    tools = load_tools(job.dataset, qrels)
    reset_peak()
    scored = _Scored()
    folds = make_folds(job.dataset, job.split, job.folds, tools)
    pairs = PairCache(job.settings.home / "bench")
    for part in build_parts(job, tools, qrels, folds, pairs, resume or reuse_model, say):
        say(f"{job.dataset.name}: {job.label}: searching {len(part.queries):,} queries")
        _score_part(job, part, pairs, scored)
    _refuse_partial(job)
    write_run(job.run_path, job.label, scored.ranking)
    with pairs.pause():
        latency = {} if part.stage.asks else _measure_latency(job, part.stage, list(qrels))
    rankings = {query: [tool for tool, _ in hits] for query, hits in scored.ranking.items()}
    measured = figures(qrels, rankings, groups(job.dataset, job.split, tools, job.folds, job.train_on), job.seed)
    if job.no_tool is not None:
        say(f"{job.dataset.name}: {job.label}: judging {len(job.no_tool.test):,} queries that need no tool")
        for name, values in _score_detection(job, part.stage, scored.needs).items():
            measured[name] |= values
    result = {
        **job.identity(),
        "n_queries": len(qrels),
        "n_tools": len(tools),
        **measured,
        **_describe_work(scored, asks=part.stage.asks),
        **_describe_llm(job),
        "latency_ms": latency,
        "batch_qps": _queries_per_second(scored, len(qrels), asks=part.stage.asks),
        "peak_rss_mb": round(peak_mb(), 1),
        "selected_on": "dev",
        "run_sha256": hashlib.sha256(job.run_path.read_bytes()).hexdigest(),
        **origin,
    }
    write_json(job.json_path, result)
    return JobOutcome(result)


def rehearse(job: Job) -> None:
    """Ask the language model of a job all that it may ask, without fits and results; see `bench_pipelines.rehearse`.

    Raises:
        UserError: if the job cannot be run.
    """
    _check_options(job)
    qrels = job.dataset.split(job.split)
    tools = load_tools(job.dataset, qrels)
    bench_pipelines.rehearse(job, tools, qrels, make_folds(job.dataset, job.split, job.folds, tools))


def _describe_llm(job: Job) -> dict[str, Any]:
    """Name the language model that was asked, and what all answers cost at first, also those from the cache.

    Jobs that share a language model count together.
    """
    opened = job.llm.opened if job.llm else None
    if opened is None:
        return {}
    answered = opened.answered
    counts = {"calls": answered.calls, "tokens_in": answered.tokens_in, "tokens_out": answered.tokens_out}
    return {"llm": {"model": opened.backend.model, **counts}}


def _refuse_partial(job: Job) -> None:
    """Refuse to write a result of which some queries had no language model because its budget was used up.

    Raises:
        OverBudget: if the budget refused a call.
    """
    opened = job.llm.opened if job.llm else None
    if opened is not None and opened.is_used_up:
        raise OverBudget(
            "The budget of the language model was used up before the end, so no result is written. The answers are "
            "kept: raise --llm-budget and run this again."
        )


def _describe_work(scored: _Scored, *, asks: bool) -> dict[str, Any]:
    """Describe the fits, their time, and for a pipeline that asks a language model how often it got no answer."""
    return {
        **(describe_fits(scored.models) if scored.models else {}),
        "fit_seconds": round(scored.fit_seconds, 3),
        **({"degraded": scored.degraded} if asks else {}),
    }


def _queries_per_second(scored: _Scored, n_queries: int, *, asks: bool) -> float | None:
    """Return the speed in batches; None if it depends on a language model or on the pair cache."""
    return None if asks or scored.used_pair_cache else round(n_queries / scored.search_seconds, 1)


def figures(
    qrels: Qrels, ranking: Mapping[str, Sequence[str]], slice_labels: Mapping[str, Mapping[str, str]], seed: int
) -> dict[str, Any]:
    """Return `metrics`, `ci95` and `slices` of a ranking, as a result file holds them.

    Args:
        qrels: query id → gold tool id → grade.
        ranking: query id → tool ids, best first.
        slice_labels: slice → query id → label, from `groups`.
        seed: seed of the confidence intervals.
    """
    per_query = metrics.score(ranking, qrels)
    return {
        "metrics": per_query.means(),
        "ci95": per_query.ci95(seed),
        "slices": metrics.slices(per_query, slice_labels),
    }


# --- before a job starts ----------------------------------------------------------------------------------------------


def _is_current(job: Job, earlier: Mapping[str, Any], say: Callable[[str], None]) -> bool:
    """Return whether an earlier result of the job has its rankings and was fitted with the present defaults."""
    if not job.run_path.exists():
        return False
    changed = find_other_defaults(job.recipe, job.changes, earlier)
    if changed:
        say(f"{job.dataset.name}: {job.label}: measuring again, because defaults have changed: {_describe(changed)}")
    return not changed


def _check_options(job: Job) -> None:
    """Refuse options that exclude each other.

    Raises:
        ConfigError: naming them.
    """
    if job.folds and job.no_tool:
        raise ConfigError("--no-tool and --folds cannot be used together. Leave one of them out.")
    if (
        job.no_tool
        and registry.recipe(job.recipe).abstains
        and resolve_with_base(job.recipe, job.changes).get("need") == 0
    ):
        raise ConfigError("--no-tool and need=0 cannot be used together: need=0 switches the estimate of the need off.")


def _read_earlier_result(job: Job, force: bool) -> dict[str, Any] | None:
    """Return the result of the same job that was written under its label; None if there is none.

    Raises:
        UserError: if the label holds a damaged file or the result of another job, unless `force`.
    """
    try:
        earlier: dict[str, Any] = msgspec.json.decode(job.json_path.read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        if force:
            return None
        raise UserError(f"{job.json_path} is damaged. Use --force to overwrite it.") from None
    identity = msgspec.json.decode(msgspec.json.encode(job.identity()))
    changed = {key: (earlier.get(key), identity[key]) for key in identity if earlier.get(key) != identity[key]}
    if not changed:
        return earlier
    if force:
        return None
    raise UserError(
        f"{job.json_path} holds a result with other settings: {_describe(changed)}. Choose another --label, or use "
        "--force to overwrite it."
    )


def _describe(changed: Mapping[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{key} {before!r} (now {after!r})" for key, (before, after) in changed.items())


# --- scoring ----------------------------------------------------------------------------------------------------------


def _score_part(job: Job, part: JobPart, pairs: PairCache, scored: _Scored) -> None:
    """Search the queries of one part, and add the outcome to `scored`."""
    reused_before = pairs.reused
    ranking, needs, degraded, seconds = _rank(job, part.stage, part.queries)
    scored.degraded += degraded
    scored.used_pair_cache = scored.used_pair_cache or pairs.reused > reused_before
    scored.ranking |= ranking
    scored.needs |= needs
    scored.fit_seconds += part.seconds
    scored.search_seconds += seconds
    scored.models += [part.model] if part.model else []


def _rank(
    job: Job, stage: Stage, queries: Sequence[str]
) -> tuple[dict[str, list[tuple[str, float]]], dict[str, float], int, float]:
    """Search the queries in batches.

    Returns:
        Query id → hits; query id → need, where the recipe estimates it; number of queries for which the language model
        of the recipe gave no answer; wall seconds.

    Raises:
        Unavailable: if the language model answered no query of the first batch. The result would describe another
            recipe.
    """
    texts = job.dataset.queries
    ranking: dict[str, list[tuple[str, float]]] = {}
    needs: dict[str, float] = {}
    problems: list[str] = []
    refined = False
    started = time.perf_counter()
    for start in range(0, len(queries), SEARCH_BATCH):
        batch = queries[start : start + SEARCH_BATCH]
        searches = [Search(query=texts[query], k=RANKING_DEPTH) for query in batch]
        for query, search in zip(batch, stage(searches), strict=True):
            ranking[query] = [(strip_source(hit.id), hit.score) for hit in search.hits]
            if search.need is not None:
                needs[query] = search.need
            if stage.asks and search.degraded:
                problems.append(search.degraded)
            refined = refined or bool(search.rewrites)
        if problems and len(problems) == len(ranking) and not refined:
            raise Unavailable(
                f"None of the first {len(problems):,} queries got a language model's help. The last: {problems[-1]} "
                "No result is written."
            )
    return ranking, needs, len(problems), time.perf_counter() - started


def _score_detection(job: Job, stage: Stage, needs: Mapping[str, float]) -> dict[str, Any]:
    """Search the no-tool queries too, write the detect file, and score the estimated needs.

    Returns:
        `metrics`, `ci95` and `slices` of the decision whether a query needs a tool.
    """
    assert job.no_tool is not None
    rows = [(query, 1, need) for query, need in needs.items()]
    needs_by_kind: dict[str, list[float]] = {}
    for start in range(0, len(job.no_tool.test), SEARCH_BATCH):
        batch = job.no_tool.test[start : start + SEARCH_BATCH]
        for prompt, search in zip(batch, stage([Search(query=prompt.text, k=1) for prompt in batch]), strict=True):
            assert search.need is not None
            rows.append((prompt.id, 0, search.need))
            needs_by_kind.setdefault(prompt.kind, []).append(search.need)
    write_detect(job.detect_path, rows)
    labels, values = [label for _, label, _ in rows], [need for _, _, need in rows]
    tool_needs = list(needs.values())
    slices = {}
    for kind, kind_needs in sorted(needs_by_kind.items()):
        kind_labels = [1] * len(tool_needs) + [0] * len(kind_needs)
        slices[kind] = {"n": len(kind_needs), **metrics.detection(kind_labels, [*tool_needs, *kind_needs])}
    return {
        "metrics": metrics.detection(labels, values),
        "ci95": {name: list(pair) for name, pair in metrics.detection_ci(labels, values, seed=job.seed).items()},
        "slices": {"no_tool_kind": slices},
    }


def _measure_latency(job: Job, stage: Stage, queries: Sequence[str]) -> dict[str, float]:
    """Return p50 and p95 in ms of one query at a time on one thread, after a warm-up."""
    from threadpoolctl import threadpool_limits

    step = max(1, len(queries) // MAX_TIMED_QUERIES)
    texts = [job.dataset.queries[query] for query in queries[::step]][:MAX_TIMED_QUERIES]
    times = []
    with threadpool_limits(1):
        for text in [*texts[:WARM_UP_QUERIES], *texts]:
            started = time.perf_counter()
            stage([Search(query=text, k=5)])
            times.append((time.perf_counter() - started) * 1000)
    return metrics.percentiles(times[min(WARM_UP_QUERIES, len(texts)) :])
