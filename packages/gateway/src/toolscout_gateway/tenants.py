"""Serves all tenants of a home as MCP servers at one address, each with its own servers and sessions."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import anyio

from toolscout.home.access.live_policy import LivePolicies
from toolscout.home.access.tenants import TenantApp, TenantKeys
from toolscout.location import DEFAULT_TENANT
from toolscout.scout import Scout
from toolscout_gateway.http import app
from toolscout_gateway.options import Options
from toolscout_gateway.server import Gateway
from toolscout_gateway.sign_in import CALLBACK_PATH, SIGN_IN_PATH

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope

__all__ = ["serve_tenants"]


def serve_tenants(scout: Scout, keys: TenantKeys, options: Options, names: Sequence[str], base: str) -> TenantApp:
    """Build the application for all tenants.

    Args:
        scout: of the tenant `default`.
        keys: say to whom a key belongs.
        options: of all gateways. Configuration files and pins are those of the tenant `default`.
        names: host names under which the gateway is reached.
        base: the address that browsers reach, unless the setting `public_url` names it.
    """
    gateways: dict[str, Gateway] = {}

    @contextlib.asynccontextmanager
    async def open_tenant(name: str, policies: LivePolicies) -> AsyncIterator[ASGIApp]:
        with contextlib.ExitStack() as stack:
            own = scout
            if name != DEFAULT_TENANT:
                own = await anyio.to_thread.run_sync(scout.open_tenant, name)
                stack.callback(own.close)
            gateway = gateways[name] = _make_gateway(own, options, policies, keys)
            stack.callback(gateways.pop, name)
            gateway.identities.sign_ins.base = gateway.identities.sign_ins.base or base
            async with gateway.running():
                yield app(gateway.server, policies, names, gateway.health, gateway.profiles, gateway.identities)

    def find_open(scope: Scope) -> str:
        """Return the tenant for whom a browser comes back from a sign-in."""
        from starlette.datastructures import QueryParams

        if scope["path"] not in (SIGN_IN_PATH, CALLBACK_PATH):
            return ""
        query = QueryParams(scope.get("query_string", b""))
        for name, gateway in gateways.items():
            sign_ins = gateway.identities.sign_ins
            if sign_ins.find(query.get("id", "")) or sign_ins.find_by_state(query.get("state", "")):
                return name
        return ""

    return TenantApp(keys, open_tenant, find_open)


def _make_gateway(scout: Scout, options: Options, policies: LivePolicies, keys: TenantKeys) -> Gateway:
    tenant = scout.settings.tenant
    if tenant != DEFAULT_TENANT:
        options = dataclasses.replace(options, configs=(), pins=())
    return Gateway(scout, options, policies=policies, say=lambda text: keys.say(f"tenant {tenant}: {text}"))
