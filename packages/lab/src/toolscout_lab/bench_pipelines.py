"""The pipelines of a benchmark job: built, fitted once or once for each fold, and described in the result."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from toolscout.dataset import Fold, Qrels
from toolscout.errors import ConfigError
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models import model_store
from toolscout.home.models.model_store import Manifest, Model
from toolscout.learn.fit import (
    BASE_PREFIX,
    Lesson,
    fit,
    make_lesson,
    on_shelf,
    plan_fit,
    rehearse_fit,
    rehearse_searches,
    resolve_with_base,
)
from toolscout.recipes import registry
from toolscout.recipes.builder import build_decision, guard
from toolscout.recipes.select import Selection
from toolscout.search.pipeline import Cut, Stage
from toolscout.search.prerequisites import bring_prerequisites
from toolscout.search.resources import BASE_FOLDER
from toolscout.types import Tool
from toolscout_lab.bench_jobs import Job, load_tools, shares_tools
from toolscout_lab.encoders.pair_cache import PairCache
from toolscout_lab.machine import Record
from toolscout_lab.progress import Say, ignore
from toolscout_lab.resources import Workspace

__all__ = ["RANKING_DEPTH", "JobPart", "build_parts", "describe_fits", "find_other_defaults", "rehearse"]

RANKING_DEPTH: Final = 20


class JobPart(NamedTuple):
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
    say: Say,
) -> Iterator[JobPart]:
    """Build the pipelines of a job, one after the other: one for each fold, if the recipe is fitted.

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
    recipe, catalogue = registry.recipe(job.recipe), Catalogue.of(tools)
    workspace = _open_workspace(job, say, pairs=pairs, resume=resume)
    if recipe.encodes and (recipe.is_fitted or (job.encoder and recipe.encoder)):
        workspace = dataclasses.replace(workspace, encoder=workspace.load_encoder())  # all parts share it
    if {**recipe.settings, **job.changes}.get("hierarchy") == "oracle":
        gold = {job.dataset.queries[query]: [f"d/{tool}" for tool in tools] for query, tools in qrels.items()}
        workspace = dataclasses.replace(workspace, gold=gold.__getitem__)
    if not recipe.is_fitted:
        workspace.say(f"indexing {len(tools):,} tools")
        started = time.perf_counter()
        stage = registry.build(job.recipe, catalogue, workspace, settings=job.changes)
        stage = _finish(job, stage, catalogue, workspace, Selection(job.recipe))
        yield JobPart(stage, list(qrels), time.perf_counter() - started, None)
        return
    for scored, train in [(fold.test, fold.train) for fold in folds] if folds else [(list(qrels), None)]:
        lesson = _make_lesson(job, catalogue, scored, train)
        model = fit(on_shelf(plan_fit(job.recipe, lesson, workspace, job.settings.home, job.changes)))
        stage = registry.build(job.recipe, catalogue, workspace, model=model.folder)
        stage = _finish(job, stage, catalogue, workspace, Selection(job.recipe, model.folder, model.manifest))
        yield JobPart(stage, scored, model.manifest.fit_seconds, model)


def _open_workspace(job: Job, say: Say, **fields: object) -> Workspace:
    """Open the workspace of a job; its lines of progress name the job."""

    def report(text: str) -> None:
        say(f"{job.dataset.name}: {job.label}: {text}")

    return Workspace.open(
        job.encoder or registry.recipe(job.recipe).encoder or job.settings.encoder,
        job.settings,
        progress=lambda done, total: report(f"embedding {done:,} of {total:,} tools"),
        say=report,
        seed=job.seed,
        shared_llm=job.llm,
        **fields,
    )


def rehearse(job: Job, tools: Sequence[Tool], qrels: Qrels, folds: Sequence[Fold] | None) -> None:
    """Ask the language model of a job all that its fits and searches ask at most. Nothing is fitted or written.

    Raises:
        UserError: if the job cannot be run.
    """
    workspace, catalogue, texts = _open_workspace(job, ignore), Catalogue.of(tools), job.dataset.queries
    if not registry.recipe(job.recipe).is_fitted:
        stage = registry.build(job.recipe, catalogue, workspace, settings=job.changes)
        rehearse_searches(stage, [texts[query] for query in qrels])
        return
    for scored, train in [(fold.test, fold.train) for fold in folds] if folds else [(list(qrels), None)]:
        lesson = _make_lesson(job, catalogue, scored, train)
        rehearse_fit(job.recipe, lesson, workspace, job.changes, [texts[query] for query in scored])


def _finish(job: Job, stage: Stage, catalogue: Catalogue, workspace: Workspace, selection: Selection) -> Stage:
    """Return the pipeline with prerequisites and with the cut at the depth of the ranking.

    A paper's method, which has no `when` because users do not choose it, is measured without prerequisites. A job with
    `installed` gets all that a user's search has: exact names, prerequisites, demotion, folding, and abstention.

    Raises:
        ConfigError: if the job needs abstention and the pipeline does not abstain.
    """
    if job.no_tool is not None and "need" not in stage.writes:
        raise ConfigError(
            f"--no-tool: {job.recipe} does not estimate whether a query needs a tool. Use a recipe that does, such as "
            "masstool."
        )
    if job.installed:
        guarded = guard(stage, catalogue, workspace, k=RANKING_DEPTH)
        return guarded >> build_decision(selection, catalogue, workspace, stage)
    if registry.recipe(job.recipe).when:
        stage = stage >> bring_prerequisites(catalogue, job.settings)
    return stage >> Cut(RANKING_DEPTH)


def _make_lesson(job: Job, catalogue: Catalogue, scored: list[str], train: list[str] | None) -> Lesson:
    """Make the lesson of a fit.

    Args:
        job: what to measure.
        catalogue: the tools of the dataset that is scored.
        scored: ids of the queries to score. The fit sees neither them nor queries of the same text.
        train: ids of the queries to learn from; None: the dataset's own train and dev.
    """
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


def describe_fits(fits: Sequence[Model]) -> Record:
    """Describe the models of a result, one for each fold.

    Returns:
        `fitted`: for each model the `revision` of its recipe, its `settings` with their origins, `data`, figures on
        `dev`, the plain `values` of its manifest (such as the best epoch), and `base`, the model that the fit builds
        on, if any: recipe, settings, seed, identity, and its own `base`.
        `dropped_leaks`: training queries left out of all fits.
    """
    return {
        "fitted": [
            {
                "revision": registry.recipe(model.manifest.recipe).revision,
                "settings": _describe_settings(model.manifest),
                "data": model.manifest.data,
                "dev": model.manifest.metrics,
                "values": {
                    name: value for name, value in model.manifest.values.items() if isinstance(value, (int, float, str))
                },
                **_describe_base(model),
            }
            for model in fits
        ],
        "dropped_leaks": sum(model.manifest.data.dropped_leaks for model in fits),
    }


def find_other_defaults(recipe: str, changes: Record, result: Record) -> dict[str, tuple[object, object]]:
    """Find what the same job would do differently now: settings of its fits, and the recipe's revision.

    Old results record neither `base` nor `revision`, so such changes are not found in them.

    Args:
        recipe: its name.
        changes: settings that the job changes.
        result: the content of the result file.

    Returns:
        Setting, or "revision" → its value in the result, and its value now.
    """
    if not registry.recipe(recipe).is_fitted or not result.get("fitted"):
        return {}
    recorded = _flatten_settings(result["fitted"][0])
    changed = {}
    revision = registry.recipe(recipe).revision
    fitted_revision = result["fitted"][0].get("revision", revision)
    if fitted_revision != revision:
        changed["revision"] = (fitted_revision, revision)
    now = msgspec.json.decode(msgspec.json.encode(resolve_with_base(recipe, changes)))
    fixed = {name: value for name, value in now.items() if value is not None}
    return changed | {
        name: (recorded[name], value) for name, value in fixed.items() if recorded.get(name, value) != value
    }


def _flatten_settings(fitted: Record) -> Record:
    """Return setting → value; names of the fits below begin with `base.`, as in `resolve_with_base`."""
    values = {name: setting["value"] for name, setting in fitted["settings"].items()}
    if fitted.get("base"):
        values |= {BASE_PREFIX + name: value for name, value in _flatten_settings(fitted["base"]).items()}
    return values


def _describe_settings(manifest: Manifest) -> Record:
    return {name: {"value": setting.value, "origin": setting.origin} for name, setting in manifest.settings.items()}


def _describe_base(model: Model) -> Record:
    """Return the entry `base` for the model inside a model's folder; nothing if there is none."""
    folder = model.folder / BASE_FOLDER
    if not (folder / model_store.MANIFEST).is_file():
        return {}
    base = model_store.load(folder)
    return {
        "base": {
            "recipe": base.manifest.recipe,
            "settings": _describe_settings(base.manifest),
            "seed": base.manifest.seed,
            "job": base.manifest.job,
            **_describe_base(base),
        }
    }
