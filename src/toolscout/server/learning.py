"""Learning routes: the champion and its history, the fitted models, the last run, benchmark results."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from toolscout.access.policy import Caller
from toolscout.errors import Changed
from toolscout.learn import loop
from toolscout.learn.drift_report import DriftReport
from toolscout.models import champion
from toolscout.models.model_store import Manifest
from toolscout.server.service import ApiRequest, RequestRefused, Service
from toolscout.server.shapes import (
    LearningAnswer,
    LineProblem,
    ModelRow,
    ModelsAnswer,
    Nothing,
    PromoteRequest,
    ResultRow,
    ResultsAnswer,
    RollbackRequest,
    Serving,
)

__all__ = ["list_models", "promote", "read_drift", "read_learning", "read_results", "rollback"]

_log: Final = logging.getLogger("toolscout.server")


async def list_models(request: ApiRequest[Nothing]) -> ModelsAnswer:
    """List the fitted models in the home, and the recipe and model that serve. Every file is checked."""
    async with request.service.model_lock:
        return await request.service.run_in_thread(_list_models, request.service)


def _list_models(service: Service) -> ModelsAnswer:
    serving, notice = service.scout.serving()
    entries = champion.list_models(service.scout.settings.place)
    job = serving.manifest.job if serving.manifest else None
    serves = serving.model.resolve() if serving.model else None
    rows = [_make_row(path, entry, path.resolve() == serves) for path, entry in entries]
    return ModelsAnswer(serving.recipe, job, notice or None, rows)


def _make_row(path: Path, manifest: Manifest | str, serving: bool) -> ModelRow:
    if isinstance(manifest, str):
        return ModelRow(path.name, problem=manifest)
    return ModelRow(
        path.name,
        recipe=manifest.recipe,
        data=manifest.data.name,
        n_tools=manifest.n_tools,
        encoder=manifest.encoder.name if manifest.encoder else None,
        metrics=manifest.metrics,
        fit_seconds=manifest.fit_seconds,
        version=manifest.version,
        serving=serving,
    )


async def read_learning(request: ApiRequest[Nothing]) -> LearningAnswer:
    """Read the report of the last `toolscout learn`, and the history of promotions."""
    return await request.service.run_in_thread(_read_learning, request.service)


def _read_learning(service: Service) -> LearningAnswer:
    scout = service.scout
    home, overruled = scout.settings.place, not scout.selector.is_unnamed(None, None)
    return LearningAnswer(champion.history(home), overruled, loop.last(home))


async def read_drift(request: ApiRequest[Nothing]) -> DriftReport:
    """Read whether the traffic is still that of the champion's time, what changed, and what to do."""
    return await request.service.run_in_thread(request.service.check_drift)


async def promote(request: ApiRequest[PromoteRequest]) -> Serving:
    """Make a fitted model the champion, whatever its tests say. The next search uses it."""
    async with request.service.model_lock:
        return await request.service.run_in_thread(_promote, request.service, request.caller, request.parameters.model)


def _promote(service: Service, caller: Caller, model: str) -> Serving:
    champion.promote(service.scout.settings.place, model, f"by hand, by {caller.name}")
    _log.info("%s promoted %s", caller.name, model)
    return _read_serving(service)


async def rollback(request: ApiRequest[RollbackRequest]) -> Serving:
    """Roll back to the former champion, or to the recipe of the settings if there was none."""
    async with request.service.model_lock:
        return await request.service.run_in_thread(
            _rollback, request.service, request.caller, request.parameters.champion
        )


def _rollback(service: Service, caller: Caller, name: str) -> Serving:
    try:
        champion.rollback(service.scout.settings.place, of=name)
    except Changed as error:
        raise RequestRefused(409, str(error)) from None
    _log.info("%s rolled back %s", caller.name, name)
    return _read_serving(service)


def _read_serving(service: Service) -> Serving:
    current = champion.current(service.scout.settings.place)
    serving, notice = service.scout.engine.await_champion()
    return Serving(current.name if current else None, serving.recipe, notice or None)


async def read_results(request: ApiRequest[Nothing]) -> ResultsAnswer:
    """Read the results of `toolscout lab bench --out` in the folder of --results. Empty without that option."""
    folder = request.service.results
    return ResultsAnswer([], []) if folder is None else await request.service.run_in_thread(_read_results, folder)


def _read_results(folder: Path) -> ResultsAnswer:
    from toolscout.checks.results import read_results as read_results_folder

    results, problems = read_results_folder(folder)
    rows = [
        ResultRow(
            result.dataset,
            result.label,
            result.recipe,
            result.split,
            result.n_queries,
            result.n_tools,
            result.metrics,
            {name: list(pair) for name, pair in result.ci95.items()},
            result.latency_ms,
        )
        for result in results
    ]
    return ResultsAnswer(rows, [LineProblem(problem.entry, problem.message) for problem in problems])
