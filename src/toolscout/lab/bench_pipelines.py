"""The pipelines of a benchmark job: built, and fitted where the recipe needs it, once or once for each fold."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from toolscout.catalogue.store import Catalogue
from toolscout.catalogue.vector_cache import VectorStore
from toolscout.dataset import Fold, Qrels
from toolscout.encoders.pair_cache import PairCache
from toolscout.errors import ConfigError
from toolscout.lab.bench_data import load_tools, shares_tools
from toolscout.lab.bench_jobs import Job
from toolscout.models.model_store import Model
from toolscout.recipes import registry
from toolscout.recipes.fit import (
    Lesson,
    fit,
    make_lesson,
    on_shelf,
    plan_fit,
    rehearse_fit,
    rehearse_searches,
)
from toolscout.search.pipeline import Cut, Stage
from toolscout.search.prerequisites import bring_prerequisites
from toolscout.types import Tool
from toolscout.workspace import Workspace

__all__ = ["RANKING_DEPTH", "Part", "build_parts", "rehearse"]

RANKING_DEPTH: Final = 20


class Part(NamedTuple):
    """A pipeline and the queries to score with it: all queries, or those of one fold.

    Attributes:
        stage: the pipeline, cut at `RANKING_DEPTH`.
        queries: ids of the queries.
        seconds: wall time of the fit, or of the build if the recipe is not fitted.
        model: the fitted model; None if the recipe is not fitted.
    """

    stage: Stage
    queries: list[str]
    seconds: float
    model: Model | None


def build_parts(
    job: Job,
    tools: Sequence[Tool],
    qrels: Qrels,
    folds: Sequence[Fold] | None,
    pairs: PairCache,
    resume: bool,
    say: Callable[[str], None],
) -> Iterator[Part]:
    """Build the pipelines of a job, one after the other.

    A recipe that is not fitted has the same pipeline for every fold, so it is built once.

    Args:
        job: what to measure.
        tools: the tools of the dataset.
        qrels: the queries to score, with their gold tools.
        folds: the folds to fit on; None: the dataset's own train and dev.
        pairs: the pair cache.
        resume: reuse models of the same fit.
        say: called with progress messages.

    Raises:
        ConfigError: if the recipe cannot do what the job asks for.
    """
    recipe = registry.recipe(job.recipe)
    catalogue = Catalogue.of(tools)
    workspace = _make_workspace(job, pairs, resume, say)
    if _encodes_with_loaded(job, recipe):
        workspace = dataclasses.replace(workspace, encoder=workspace.load_encoder())
    if {**recipe.settings, **job.changes}.get("hierarchy") == "oracle":
        workspace = _reveal_gold(workspace, job, qrels)
    if not recipe.is_fitted:
        workspace.say(f"indexing {len(tools):,} tools")
        started = time.perf_counter()
        stage = registry.build(job.recipe, catalogue, workspace, settings=job.changes)
        _check_abstains(job, stage)
        yield Part(_finish_ranking(job, stage, catalogue), list(qrels), time.perf_counter() - started, None)
    elif folds is None:
        yield _fit_part(job, workspace, catalogue, list(qrels), None)
    else:
        for fold in folds:
            yield _fit_part(job, workspace, catalogue, fold.test, fold.train)


def _make_workspace(job: Job, pairs: PairCache | None, resume: bool, say: Callable[[str], None]) -> Workspace:
    """Make the workspace of a job; its lines of progress name the job."""

    def report(text: str) -> None:
        say(f"{job.dataset.name}: {job.label}: {text}")

    return Workspace(
        job.encoder or registry.recipe(job.recipe).encoder or job.settings.encoder,
        job.settings,
        VectorStore(job.settings.home / "bench"),
        pairs,
        progress=lambda done, total: report(f"embedding {done:,} of {total:,} tools"),
        say=report,
        seed=job.seed,
        resume=resume,
        shared_llm=job.llm,
    )


def rehearse(job: Job, tools: Sequence[Tool], qrels: Qrels, folds: Sequence[Fold] | None) -> None:
    """Ask the language model of a job all that its fits and searches ask at most. Nothing is fitted or written.

    Args:
        job: what to measure; its language model is a rehearsal.
        tools: the tools of the dataset.
        qrels: the queries to score.
        folds: see `build_parts`.

    Raises:
        UserError: if the job cannot be run.
    """
    workspace = _make_workspace(job, None, False, lambda text: None)
    catalogue, texts = Catalogue.of(tools), job.dataset.queries
    if not registry.recipe(job.recipe).is_fitted:
        stage = registry.build(job.recipe, catalogue, workspace, settings=job.changes)
        rehearse_searches(stage, [texts[query] for query in qrels])
        return
    parts = [(fold.test, fold.train) for fold in folds] if folds else [(list(qrels), None)]
    for scored, train in parts:
        lesson = _make_lesson(job, catalogue, scored, train)
        rehearse_fit(job.recipe, lesson, workspace, job.changes, [texts[query] for query in scored])


def _encodes_with_loaded(job: Job, recipe: registry.Recipe) -> bool:
    """Return whether all parts share one loaded encoder: for fits, or if it replaces the recipe's own."""
    return recipe.encodes and (recipe.is_fitted or bool(job.encoder and recipe.encoder))


def _reveal_gold(workspace: Workspace, job: Job, qrels: Qrels) -> Workspace:
    """Tell the pipeline the gold tools of each query, for recipes that measure an upper bound."""
    gold_by_text = {job.dataset.queries[query]: [f"d/{tool}" for tool in gold] for query, gold in qrels.items()}
    return dataclasses.replace(workspace, gold=gold_by_text.__getitem__)


def _fit_part(
    job: Job,
    workspace: Workspace,
    catalogue: Catalogue,
    scored: list[str],
    train: list[str] | None,
) -> Part:
    """Fit, build and check one pipeline.

    Args:
        job: what to measure.
        workspace: the workspace of the fit and the build.
        catalogue: the tools of the dataset that is scored.
        scored: ids of the queries to score. The fit sees neither them nor queries of the same text.
        train: ids of the queries to learn from; None: the dataset's own train and dev.
    """
    lesson = _make_lesson(job, catalogue, scored, train)
    model = fit(on_shelf(plan_fit(job.recipe, lesson, workspace, job.settings.home, job.changes)))
    stage = registry.build(job.recipe, catalogue, workspace, model=model.folder)
    _check_abstains(job, stage)
    return Part(_finish_ranking(job, stage, catalogue), scored, model.manifest.fit_seconds, model)


def _finish_ranking(job: Job, stage: Stage, catalogue: Catalogue) -> Stage:
    """Add prerequisites, which every search of the product brings, and the cut. A paper's method stays as it is."""
    if registry.recipe(job.recipe).when:
        stage = stage >> bring_prerequisites(catalogue, job.settings)
    return stage >> Cut(RANKING_DEPTH)


def _make_lesson(job: Job, catalogue: Catalogue, scored: list[str], train: list[str] | None) -> Lesson:
    """Make the lesson of a fit; the arguments are those of `_fit_part`."""
    source = job.train_on or job.dataset
    source_tools = load_tools(source, {}) if job.train_on else catalogue.tools()
    if job.train_on and not registry.recipe(job.recipe).method.transfers and not shares_tools(source, job.dataset):
        raise ConfigError(
            f"--train-on: {job.recipe} serves only tools that it was fitted on, and {source.name} and "
            f"{job.dataset.name} share no tool. Use another recipe."
        )
    learned = {query for split in ("train", "dev") for query in source.qrels.get(split, ())}
    if train is None and source is job.dataset and learned & set(scored):
        raise ConfigError(f"--split {job.split}: {job.recipe} learns from these queries. Use --split test.")
    held_out = {**job.held_out, **{query: job.dataset.queries[query] for query in scored}}
    return dataclasses.replace(make_lesson(source, source_tools, held_out, train), no_tool=job.no_tool)


def _check_abstains(job: Job, stage: Stage) -> None:
    if job.no_tool is not None and "need" not in stage.writes:
        raise ConfigError(
            f"--no-tool: {job.recipe} does not estimate whether a query needs a tool. Use a recipe that does, such as "
            "masstool."
        )
