"""Quality routes: checks of the catalogue, and the figures of former ones."""

from __future__ import annotations

from toolscout.access.policy import Caller
from toolscout.catalogue.store import allows
from toolscout.checks.history import read_history, record_lint, record_selftest
from toolscout.checks.lint import Lint, lint
from toolscout.checks.selftest import Selftest, run_selftest
from toolscout.errors import Denied
from toolscout.server.operator_shapes import HistoryAnswer, SelftestRequest
from toolscout.server.service import ApiRequest, Service
from toolscout.server.shapes import LintRequest, Nothing
from toolscout.server.sources import may_manage

__all__ = ["check_findability", "read_check_history", "run_selftest_now"]


async def check_findability(request: ApiRequest[LintRequest]) -> Lint:
    """Find tools that a search misses or confuses, with advice."""
    async with request.service.slow_work:
        return await request.service.run_in_thread(
            _check_findability, request.service, request.caller, request.parameters.most
        )


def _check_findability(service: Service, caller: Caller, max_tools: int) -> Lint:
    scout = service.scout
    scout.pipeline()  # opening it may take long, and a snapshot should be held only for a short time
    with scout.store.reading():  # tools and searches see the same state
        catalogue, pipeline = scout.pipeline()
        visible = [tool for tool in catalogue.tools() if caller.visible is None or allows(caller.visible, tool)]
        result = lint(visible, pipeline, max_tools=max_tools, visible=caller.visible)
    if may_manage(caller):  # figures of a part of the catalogue cannot be compared with those of all
        record_lint(scout.settings.place, catalogue.generation, result, max_tools)
    return result


async def run_selftest_now(request: ApiRequest[SelftestRequest]) -> Selftest:
    """Measure how well each recipe finds the catalogue's own tools, with synthetic and logged queries."""
    if not may_manage(request.caller):
        raise Denied("The policy hides tools from you, so you may not run this check. Ask an operator who sees all.")
    async with request.service.slow_work:
        return await request.service.run_in_thread(_run_selftest, request.service, request.parameters.most)


def _run_selftest(service: Service, max_queries: int) -> Selftest:
    scout = service.scout
    selection, _ = scout.serving()
    serving = "champion" if selection.model is not None else selection.recipe
    extra = [serving] if selection.model is None else []
    result = run_selftest(scout, recipe=extra, max_queries=max_queries)
    record_selftest(scout.settings.place, scout.store.generation(), result, serving, max_queries)
    return result


async def read_check_history(request: ApiRequest[Nothing]) -> HistoryAnswer:
    """Read the figures of former checks."""
    runs = await request.service.run_in_thread(read_history, request.service.scout.settings.place)
    return HistoryAnswer(runs)
