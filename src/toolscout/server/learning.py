"""What has been learned: who serves and who did, the models on the shelf, the last run, figures of benchmarks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from toolscout.access.policy import Caller
from toolscout.errors import Changed
from toolscout.learn import loop
from toolscout.models import champion, model_store
from toolscout.models.model_store import Manifest
from toolscout.server.service import Ask, Refused, Service
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

__all__ = ["promote", "results", "rollback", "shelf", "told"]

_log: Final = logging.getLogger("toolscout.server")


async def shelf(ask: Ask[Nothing]) -> ModelsAnswer:
    """The recipe and model that serve, and all models in the folder `models` of the home; every file is checked."""
    async with ask.service.shelf:
        return await ask.service.thread(_shelf, ask.service)


def _shelf(service: Service) -> ModelsAnswer:
    way, notice = service.scout.serving()
    found = model_store.list_models(service.scout.settings.home / "models")
    job = way.manifest.job if way.manifest else None
    serves = way.model.resolve() if way.model else None
    rows = [_row(path, each, path.resolve() == serves) for path, each in found]
    return ModelsAnswer(way.recipe, job, notice or None, rows)


def _row(path: Path, found: Manifest | str, serving: bool) -> ModelRow:
    if isinstance(found, str):
        return ModelRow(path.name, problem=found)
    return ModelRow(
        path.name,
        recipe=found.recipe,
        data=found.data.name,
        n_tools=found.n_tools,
        encoder=found.encoder.name if found.encoder else None,
        metrics=found.metrics,
        fit_seconds=found.fit_seconds,
        version=found.version,
        serving=serving,
    )


async def told(ask: Ask[Nothing]) -> LearningAnswer:
    """What the last run of `toolscout learn` found, and who was promoted."""
    return await ask.service.thread(_told, ask.service)


def _told(service: Service) -> LearningAnswer:
    scout = service.scout
    home, overruled = scout.settings.home, not scout.selector.is_unnamed(None, None)
    return LearningAnswer(champion.history(home), overruled, loop.last(home))


async def promote(ask: Ask[PromoteRequest]) -> Serving:
    """Make a model of the shelf the champion, whatever a test says; the next search is answered by it."""
    async with ask.service.shelf:
        return await ask.service.thread(_promote, ask.service, ask.caller, ask.asked.model)


def _promote(service: Service, caller: Caller, model: str) -> Serving:
    champion.promote(service.scout.settings.home, model, f"by hand, by {caller.name}")
    _log.info("%s promoted %s", caller.name, model)
    return _serving(service)


async def rollback(ask: Ask[RollbackRequest]) -> Serving:
    """Let the former champion serve again; before the first promotion that is the recipe of the settings."""
    async with ask.service.shelf:
        return await ask.service.thread(_rollback, ask.service, ask.caller, ask.asked.champion)


def _rollback(service: Service, caller: Caller, name: str) -> Serving:
    try:
        champion.rollback(service.scout.settings.home, of=name)
    except Changed as error:
        raise Refused(409, str(error)) from None
    _log.info("%s took %s back", caller.name, name)
    return _serving(service)


def _serving(service: Service) -> Serving:
    found = champion.current(service.scout.settings.home)
    way, notice = service.scout.serving()
    return Serving(found.name if found else None, way.recipe, notice or None)


async def results(ask: Ask[Nothing]) -> ResultsAnswer:
    """What `toolscout lab bench --out` wrote into the folder that the service was given; nothing without a folder."""
    folder = ask.service.results
    return ResultsAnswer([], []) if folder is None else await ask.service.thread(_results, folder)


def _results(folder: Path) -> ResultsAnswer:
    from toolscout.checks.results import read_results

    found, problems = read_results(folder)
    rows = [
        ResultRow(
            each.dataset,
            each.label,
            each.recipe,
            each.split,
            each.n_queries,
            each.n_tools,
            each.metrics,
            {name: list(pair) for name, pair in each.ci95.items()},
            each.latency_ms,
        )
        for each in found
    ]
    return ResultsAnswer(rows, [LineProblem(each.entry, each.message) for each in problems])
