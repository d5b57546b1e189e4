"""How the service is: who asks, whether it lives, whether it is ready, and its counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import toolscout
from toolscout.server.service import Ask, Service
from toolscout.server.shapes import Health, Me, Nothing, Ready

if TYPE_CHECKING:
    from starlette.responses import Response

    from toolscout.access.policy import Caller

__all__ = ["health", "me", "metrics", "ready"]


async def me(ask: Ask[Nothing]) -> Me:
    """Who asks, and what there is for them."""
    return await ask.service.thread(_me, ask.service, ask.caller)


def _me(service: Service, caller: Caller) -> Me:
    view, settings = service.views.now(caller), service.scout.settings
    return Me(
        caller=caller.name,
        operator=caller.operator,
        version=toolscout.__version__,
        generation=view.generation,
        tools=view.size(caller),
        recipe=service.scout.serving()[0].recipe,
        k=settings.k,
        journal=settings.journal,
        results=service.results is not None,
    )


async def health(ask: Ask[Nothing]) -> Health:
    """The process answers."""
    return Health("ok")


async def ready(ask: Ask[Nothing]) -> Response:
    """Searches are answered at once; status 503 while they are not. What could not be opened is tried again."""
    import msgspec
    from starlette.responses import Response

    ask.service.rewarm()
    state = Ready(ask.service.unready is None, ask.service.unready and "the index is not open yet")
    return Response(msgspec.json.encode(state), 200 if state.ready else 503, media_type="application/json")


async def metrics(ask: Ask[Nothing]) -> Response:
    """Counts and times for Prometheus."""
    from starlette.responses import Response

    text = await ask.service.thread(ask.service.metrics.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
