"""What has been learned: the recipe and model that serve, the models on the shelf, figures of benchmarks."""

from __future__ import annotations

from pathlib import Path

from toolscout import models
from toolscout.models import Manifest
from toolscout.server.service import Ask, Service
from toolscout.server.shapes import LineProblem, ModelRow, ModelsAnswer, Nothing, ResultRow, ResultsAnswer

__all__ = ["results", "shelf"]


async def shelf(ask: Ask[Nothing]) -> ModelsAnswer:
    """The recipe and model that serve, and all models in the folder `models` of the home; every file is checked."""
    async with ask.service.heavy:
        return await ask.service.thread(_shelf, ask.service)


def _shelf(service: Service) -> ModelsAnswer:
    way = service.scout.ways.find(None, None)
    found = models.list_models(service.scout.settings.home / "models")
    job = way.manifest.job if way.manifest else None
    return ModelsAnswer(way.recipe, job, [_row(path, each, job) for path, each in found])


def _row(path: Path, found: Manifest | str, serving: str | None) -> ModelRow:
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
        serving=found.job == serving,
    )


async def results(ask: Ask[Nothing]) -> ResultsAnswer:
    """What `toolscout bench --out` wrote into the folder that the service was given; nothing, if it was given none."""
    folder = ask.service.results
    return ResultsAnswer([], []) if folder is None else await ask.service.thread(_results, folder)


def _results(folder: Path) -> ResultsAnswer:
    from toolscout.lab.results import read_results

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
