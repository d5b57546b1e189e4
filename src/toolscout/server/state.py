"""State routes: the caller, whether the service lives, whether it is ready, and its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import toolscout
from toolscout.server.service import ApiRequest, Service
from toolscout.server.shapes import Health, Me, Nothing, Ready
from toolscout.server.sources import may_manage

if TYPE_CHECKING:
    from starlette.responses import Response

    from toolscout.access.policy import Caller

__all__ = ["check_health", "check_ready", "read_caller", "read_metrics"]


async def read_caller(request: ApiRequest[Nothing]) -> Me:
    """Read who the caller is, and what they may see and do."""
    return await request.service.run_in_thread(_read_caller, request.service, request.caller)


def _read_caller(service: Service, caller: Caller) -> Me:
    view, settings = service.views.current(caller), service.scout.settings
    return Me(
        caller=caller.name,
        operator=caller.operator,
        version=toolscout.__version__,
        generation=view.generation,
        tools=view.count_tools(caller),
        recipe=service.scout.serving()[0].recipe,
        k=settings.k,
        journal=settings.journal,
        results=service.results is not None,
        manages=may_manage(caller),
    )


async def check_health(request: ApiRequest[Nothing]) -> Health:
    """Check that the process answers."""
    return Health("ok")


async def check_ready(request: ApiRequest[Nothing]) -> Response:
    """Check that the index is open and the database answers. Status 503 if not; opening is then tried again."""
    import msgspec
    from starlette.responses import Response

    request.service.reopen()
    problem = await request.service.find_problem()
    if problem is not None and problem == request.service.not_ready_reason:
        problem = "the index is not open yet"  # the reason may name files
    state = Ready(problem is None, problem)
    return Response(msgspec.json.encode(state), 200 if state.ready else 503, media_type="application/json")


async def read_metrics(request: ApiRequest[Nothing]) -> Response:
    """Read counts and times for Prometheus."""
    from starlette.responses import Response

    text = await request.service.run_in_thread(request.service.metrics.render)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
