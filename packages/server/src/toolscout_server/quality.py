"""Quality routes: checks of the catalogue, models and the champion, changes of the traffic, benchmark results."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from toolscout.checks.lint import Lint, lint
from toolscout.checks.selftest import Selftest, run_selftest
from toolscout.errors import Changed
from toolscout.home.catalogue.store import allows
from toolscout.home.models import champion
from toolscout.home.models.model_store import Manifest
from toolscout.learn import loop
from toolscout.learn.drift_report import DriftReport
from toolscout.recipes.registry import check_model
from toolscout.scout import Scout
from toolscout_server.history import read_history, record_lint, record_selftest
from toolscout_server.service import ApiRequest, RequestRefused, may_manage
from toolscout_server.shapes import (
    HistoryAnswer,
    LearningAnswer,
    LineProblem,
    LintRequest,
    ModelRow,
    ModelsAnswer,
    Nothing,
    PromoteRequest,
    ResultRow,
    ResultsAnswer,
    RollbackRequest,
    SelftestRequest,
    Serving,
)

__all__ = [
    "check_findability",
    "list_models",
    "promote",
    "read_check_history",
    "read_drift",
    "read_learning",
    "read_results",
    "rollback",
    "run_selftest_now",
]

_log: Final = logging.getLogger("toolscout.server")


def check_findability(request: ApiRequest[LintRequest]) -> Lint:
    """Find tools that a search misses or confuses, with advice."""
    scout, caller, max_tools = request.scout, request.caller, request.parameters.most
    scout.pipeline()  # opened before `reading`, because this may take long and a snapshot should be short
    with scout.store.reading():  # tools and searches see the same state
        catalogue, pipeline = scout.pipeline()
        visible = [tool for tool in catalogue.tools() if caller.visible is None or allows(caller.visible, tool)]
        editable = scout.find_editable()
        result = lint(visible, pipeline, max_tools=max_tools, visible=caller.visible, editable=editable)
    if may_manage(caller):  # figures of a part of the catalogue cannot be compared with those of all
        record_lint(scout.settings.place, catalogue.generation, result, max_tools)
    return result


def run_selftest_now(request: ApiRequest[SelftestRequest]) -> Selftest:
    """Measure how well each recipe finds the catalogue's own tools, with synthetic and logged queries."""
    scout, max_queries = request.scout, request.parameters.most
    selection, _ = scout.engine.serving()
    serving = "champion" if selection.model is not None else selection.recipe
    recipes = [serving] if selection.model is None else []  # it tests the champion anyway
    result = run_selftest(scout, recipe=recipes, max_queries=max_queries)
    record_selftest(scout.settings.place, scout.store.generation(), result, serving, max_queries)
    return result


def read_check_history(request: ApiRequest[Nothing]) -> HistoryAnswer:
    """Read the figures of former checks."""
    return HistoryAnswer(read_history(request.scout.settings.place))


# --- models and results -----------------------------------------------------------------------------------------------


def list_models(request: ApiRequest[Nothing]) -> ModelsAnswer:
    """List the fitted models in the home, and the recipe and model that serve. Every file is checked."""
    serving, notice = request.scout.engine.serving()
    entries = champion.list_models(request.scout.settings.place)
    job = serving.manifest.job if serving.manifest else None
    serves = serving.model.resolve() if serving.model else None
    rows = [_make_row(path, entry, path.resolve() == serves) for path, entry in entries]
    return ModelsAnswer(serving.recipe, job, notice or None, rows)


def _make_row(path: Path, manifest: Manifest | str, serving: bool) -> ModelRow:
    """Make the row of a model. A text as `manifest` says why the model cannot be read."""
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


def read_learning(request: ApiRequest[Nothing]) -> LearningAnswer:
    """Read the report of the last `toolscout learn`, the history of promotions, and whether the settings overrule it.

    The champion is overruled if the settings name a recipe or a model, which then answers in its place.
    """
    scout = request.scout
    home = scout.settings.place
    # A search that names no recipe and no model itself is answered by what the settings name, if they do.
    is_overruled = scout.engine.selector.is_named(recipe=None, model=None)
    return LearningAnswer(champion.history(home), is_overruled, loop.last(home))


def read_drift(request: ApiRequest[Nothing]) -> DriftReport:
    """Read whether the traffic is still that of the champion's time, what changed, and what to do."""
    return request.service.check_drift()


def promote(request: ApiRequest[PromoteRequest]) -> Serving:
    """Make a fitted model the champion, whatever its tests say. The next search uses it."""
    model, name = request.parameters.model, request.caller.name
    champion.promote(request.scout.settings.place, model, f"by hand, by {name}", check=check_model)
    _log.info("%s promoted %s", name, model)
    return _read_serving(request.scout)


def rollback(request: ApiRequest[RollbackRequest]) -> Serving:
    """Roll back to the former champion, or to the recipe of the settings if there was none.

    The request names the champion that it rolls back. It is refused if another one has been promoted meanwhile.
    """
    name = request.parameters.champion
    try:
        champion.rollback(request.scout.settings.place, of=name)
    except Changed as error:
        raise RequestRefused(409, str(error)) from None
    _log.info("%s rolled back %s", request.caller.name, name)
    return _read_serving(request.scout)


def _read_serving(scout: Scout) -> Serving:
    """Wait until the champion serves, or cannot, and return what serves now."""
    current = champion.current(scout.settings.place)
    serving, notice = scout.engine.await_champion()
    return Serving(current.name if current else None, serving.recipe, notice or None)


def read_results(request: ApiRequest[Nothing]) -> ResultsAnswer:
    """Read the results of `toolscout lab bench --out` in the folder of --results. Empty without that option."""
    from toolscout.checks.results import read_results as read_results_folder

    folder = request.service.results
    if folder is None:
        return ResultsAnswer([], [])
    results, problems = read_results_folder(folder)
    rows = [msgspec.convert(result, ResultRow, from_attributes=True) for result in results]
    return ResultsAnswer(rows, [LineProblem(problem.entry, problem.message) for problem in problems])
