"""Benchmark: one recipe on one dataset, fitted on train, chosen on dev, scored once on test.

Writes `<dataset>/<label>.json` and `<label>.run.gz` as docs/reference/formats.md describes, so that any scorer can
check the figures. Exact-name answers are off here: the benchmark measures the recipe alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from toolscout import metrics
from toolscout.checks.results import write_json
from toolscout.dataset import NoTool, Qrels
from toolscout.errors import ConfigError, OverBudget, Unavailable, UserError
from toolscout.home.models.model_store import Model
from toolscout.learn.fit import resolve_with_base
from toolscout.recipes import registry
from toolscout.search.pipeline import Stage
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
from toolscout_lab.machine import Record, peak_mb, provenance, refuse_dirty, reset_peak
from toolscout_lab.progress import Say, ignore
from toolscout_lab.resources import CACHE_FOLDER, SEARCH_BATCH, search_all, time_searches
from toolscout_lab.run_files import write_detect, write_run
from toolscout_lab.statistics import detection, detection_ci

__all__ = ["Job", "JobOutcome", "groups", "label_of", "load_dataset", "rehearse", "run", "shares_tools"]

MAX_COUNTS: Final = 10  # lines of progress while the queries of one part are searched


@dataclasses.dataclass(frozen=True)
class JobOutcome:
    """One finished job: its result, and whether an earlier run had written it already."""

    result: Record
    kept: bool = False


@dataclasses.dataclass
class _Scored:
    """The outcome of the parts of a job so far.

    Attributes:
        ranking: query id → (tool id, score), best first.
        needs: query id → estimated probability that it needs a tool, where the recipe estimates it.
        problems: why the language model of the recipe gave no answer, for each query without one.
        search_seconds: wall time of the searches.
        fit_seconds: wall time of the fits and builds.
        models: the fitted models, one for each fold.
    """

    ranking: dict[str, list[tuple[str, float]]] = dataclasses.field(default_factory=dict)
    needs: dict[str, float] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    search_seconds: float = 0.0
    fit_seconds: float = 0.0
    models: list[Model] = dataclasses.field(default_factory=list)


def run(
    job: Job,
    *,
    resume: bool = False,
    force: bool = False,
    reuse_model: bool = False,
    allow_dirty: bool = False,
    say: Say = ignore,
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
    scored, used_pair_cache = _Scored(), False
    folds = make_folds(job.dataset, job.split, job.folds, tools)
    pairs = PairCache(job.settings.home / CACHE_FOLDER)
    for part in build_parts(job, tools, qrels, folds, pairs, resume or reuse_model, say):
        reused = pairs.reused
        _score_part(job, part, scored, say)
        used_pair_cache = used_pair_cache or pairs.reused > reused
        stage = part.stage
    _refuse_partial(job)
    write_run(job.run_path, job.label, scored.ranking)
    with pairs.pause():
        texts = [job.dataset.queries[query] for query in qrels]
        latency = {} if stage.asks else metrics.percentiles([ms for _, ms in time_searches(stage, texts)])
    rankings = {query: [tool for tool, _ in hits] for query, hits in scored.ranking.items()}
    measured = figures(qrels, rankings, groups(job.dataset, job.split, tools, job.folds, job.train_on), job.seed)
    if job.no_tool is not None:
        say(f"{job.dataset.name}: {job.label}: judging {len(job.no_tool.test):,} queries that need no tool")
        for name, values in _score_detection(job, job.no_tool, stage, scored.needs).items():
            measured[name] |= values
    speed_means_something = not stage.asks and not used_pair_cache
    result = {
        **job.identity(),
        "n_queries": len(qrels),
        "n_tools": len(tools),
        **measured,
        **(describe_fits(scored.models) if scored.models else {}),
        "fit_seconds": round(scored.fit_seconds, 3),
        **({"degraded": len(scored.problems)} if stage.asks else {}),
        **_describe_llm(job),
        "latency_ms": latency,
        "batch_qps": round(len(qrels) / scored.search_seconds, 1) if speed_means_something else None,
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


def _describe_llm(job: Job) -> Record:
    """Name the language model that was asked, and what all answers cost at first, also those from the cache.

    Jobs that share a language model count together.
    """
    opened = job.llm.opened if job.llm else None
    if opened is None:
        return {}
    answered = opened.answered
    counts = {"calls": answered.calls, "tokens_in": answered.tokens_in, "tokens_out": answered.tokens_out}
    troubles = {"repaired": opened.repaired, "skipped": dict(sorted(opened.skipped.items()))}
    return {"llm": {"model": opened.backend.model, **counts, **troubles}}


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


def figures(
    qrels: Qrels, ranking: Mapping[str, Sequence[str]], slice_labels: Mapping[str, Mapping[str, str]], seed: int
) -> Record:
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


def _is_current(job: Job, earlier: Record, say: Say) -> bool:
    """Return whether an earlier result has its rankings, and its recipe has the same defaults and revision as now."""
    if not job.run_path.exists():
        return False
    changed = find_other_defaults(job.recipe, job.changes, earlier)
    if changed:
        say(f"{job.dataset.name}: {job.label}: measuring again, because the recipe has changed: {_describe(changed)}")
    return not changed


def _check_options(job: Job) -> None:
    """Refuse options that exclude each other.

    Raises:
        ConfigError: if there are such options.
    """
    if job.folds and job.no_tool:
        raise ConfigError("--no-tool and --folds cannot be used together. Leave one of them out.")
    if (
        job.no_tool
        and registry.recipe(job.recipe).abstains
        and resolve_with_base(job.recipe, job.changes).get("need") == 0
    ):
        raise ConfigError("--no-tool and need=0 cannot be used together: need=0 switches the estimate of the need off.")


def _read_earlier_result(job: Job, force: bool) -> Record | None:
    """Return the result of the same job that was written under its label; None if there is none.

    Raises:
        UserError: if the label holds a damaged file or the result of another job, unless `force`.
    """
    try:
        earlier: Record = msgspec.json.decode(job.json_path.read_bytes())
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


def _describe(changed: Mapping[str, tuple[object, object]]) -> str:
    return ", ".join(f"{key} {before!r} (now {after!r})" for key, (before, after) in changed.items())


# --- scoring ----------------------------------------------------------------------------------------------------------


def _score_part(job: Job, part: JobPart, scored: _Scored, say: Say) -> None:
    """Search the queries of one part, and add the outcome to `scored`.

    Raises:
        Unavailable: if the language model answered no query of the first batch. The result would describe another
            recipe.
    """
    scored.fit_seconds += part.seconds
    scored.models += [part.model] if part.model else []
    n_problems, refined = 0, False
    started = time.perf_counter()
    texts = {query: job.dataset.queries[query] for query in part.queries}
    searching = f"{job.dataset.name}: {job.label}: searching,"
    step = max(SEARCH_BATCH, -(-len(texts) // MAX_COUNTS))
    say(f"{searching} 0 of {len(texts):,} queries")
    for number, (query, search) in enumerate(search_all(part.stage, texts, RANKING_DEPTH), 1):
        if number % step == 0:
            say(f"{searching} {number:,} of {len(texts):,} queries")
        scored.ranking[query] = [(strip_source(hit.id), hit.score) for hit in search.hits]
        if search.need is not None:
            scored.needs[query] = search.need
        refined = refined or bool(search.rewrites)
        if part.stage.asks and search.degraded:
            scored.problems.append(search.degraded)
            n_problems += 1
        if n_problems == number and not refined and number in (SEARCH_BATCH, len(texts)):
            raise Unavailable(
                f"None of the first {number:,} queries got a language model's help. The last: {search.degraded} "
                "No result is written."
            )
    scored.search_seconds += time.perf_counter() - started


def _score_detection(job: Job, no_tool: NoTool, stage: Stage, needs: Mapping[str, float]) -> Record:
    """Search the no-tool queries too, write the detect file, and score the estimated needs.

    Returns:
        `metrics`, `ci95` and `slices` of the decision whether a query needs a tool.
    """
    rows = [(query, 1, need) for query, need in needs.items()]
    kinds = {prompt.id: prompt.kind for prompt in no_tool.test}
    needs_by_kind: dict[str, list[float]] = {}
    for query, search in search_all(stage, {prompt.id: prompt.text for prompt in no_tool.test}, 1):
        assert search.need is not None
        rows.append((query, 0, search.need))
        needs_by_kind.setdefault(kinds[query], []).append(search.need)
    write_detect(job.detect_path, rows)
    labels, values = [label for _, label, _ in rows], [need for _, _, need in rows]
    tool_needs = list(needs.values())
    return {
        "metrics": detection(labels, values),
        "ci95": {name: list(pair) for name, pair in detection_ci(labels, values, seed=job.seed).items()},
        "slices": {
            "no_tool_kind": {
                kind: {
                    "n": len(values),
                    **detection([1] * len(tool_needs) + [0] * len(values), [*tool_needs, *values]),
                }
                for kind, values in sorted(needs_by_kind.items())
            }
        },
    }
