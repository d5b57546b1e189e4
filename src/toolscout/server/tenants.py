"""Serves all tenants of a home over HTTP, each with its own catalogue, journal, models and policy."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

import anyio

from toolscout.access.live_policy import LivePolicies
from toolscout.access.tenants import TenantApp, TenantKeys
from toolscout.home import DEFAULT_TENANT
from toolscout.scout import Scout
from toolscout.server.app import app
from toolscout.server.service import Service

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["serve_tenants"]

MakeService = Callable[[Scout, LivePolicies], Service]


def serve_tenants(scout: Scout, keys: TenantKeys, make_service: MakeService, names: Sequence[str]) -> TenantApp:
    """Build the application for all tenants.

    Args:
        scout: of the tenant `default`.
        keys: say to whom a key belongs.
        make_service: makes the service of a tenant.
        names: host names under which the service is reached.
    """

    @contextlib.asynccontextmanager
    async def open_tenant(name: str, policies: LivePolicies) -> AsyncIterator[ASGIApp]:
        if name == DEFAULT_TENANT:
            yield app(make_service(scout, policies), names)
            return
        with contextlib.ExitStack() as stack:
            own = await anyio.to_thread.run_sync(scout.open_tenant, name)
            stack.callback(own.close)
            yield app(make_service(own, policies), names)

    return TenantApp(keys, open_tenant)
