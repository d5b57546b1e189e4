"""The command `serve`: serves search, catalogue, journal and a web page over HTTP."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolscout.checks.references import explain_unknown, list_policy_names, list_setting_names
from toolscout.cli.output import encoder_option, model_option, recipe_option, with_scout
from toolscout.cli.serving import run_server
from toolscout.cli.tenant import find_tenant_keys
from toolscout.errors import NotFound, require
from toolscout.home.access.live_policy import LivePolicies, open_policies
from toolscout.location import DEFAULT_TENANT
from toolscout.scout import Scout
from toolscout.trust.policy import Caller

if TYPE_CHECKING:
    from toolscout_server import Limits

DEFAULT_QUERIES_PER_S = 200.0  # for each caller, if there is a policy file


def choose_limits(rate: float | None, *, has_tenants: bool) -> Limits:
    """Choose how many queries a second one caller may send.

    Without a rate, callers are limited if there are tenants, or while a policy file is in force; else nobody is.

    Args:
        rate: the option. 0: no limit; None: not given.
        has_tenants: whether the service has several tenants.
    """
    from toolscout_server import Limits

    if rate is not None:
        return Limits(rate=rate or None)
    return Limits(rate=DEFAULT_QUERIES_PER_S if has_tenants else None, rate_with_policy=DEFAULT_QUERIES_PER_S)


def _say_unknown_names(scout: Scout, callers: Iterable[Caller], say: Callable[[str], None]) -> None:
    for sentence in explain_unknown(scout, [*list_setting_names(scout.settings, ()), *list_policy_names(callers)]):
        say(sentence)


@click.command("serve")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen at. Others than this machine need --policy.",
)
@click.option(
    "--port",
    default=8766,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen at. 0: any free port.",
)
@click.option("--allow-host", "names", multiple=True, help="Another host name of this service; may be repeated.")
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="File that says who may use the service and see what. Default: policy.toml in the home, if it exists.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0),
    help="Average queries per second that one caller may send; 0: no limit.  [default: 200 with a policy, else 0]",
)
@click.option("--results", type=click.Path(path_type=Path), help="Folder of `bench` results, for charts on the page.")
@recipe_option
@model_option
@encoder_option
@with_scout
def serve_command(scout: Scout, host: str, port: int, names: tuple[str, ...], **options: Any) -> None:
    """Serve search, catalogue, journal and a web page over HTTP."""
    for package in ("starlette", "uvicorn", "prometheus_client"):
        require(package, "server")
    from toolscout.home.access import telemetry
    from toolscout.home.access.http import Ending, names_of, serve
    from toolscout_server import Service, app

    results: Path | None = options["results"]
    if results is not None and not results.is_dir():
        raise NotFound(f"--results: expected a folder, found none at {results}")

    settings = scout.settings
    say = telemetry.start_logs(settings.log_format, lambda text: click.echo(f"toolscout: {text}", err=True))

    keys = find_tenant_keys(scout, options["policy"], say)
    policies = keys.policies[DEFAULT_TENANT] if keys else open_policies(options["policy"], settings.place)
    policy = policies.path if policies.has_rules else None
    limits = choose_limits(options["rate"], has_tenants=keys is not None)

    services: list[Service] = []

    def make_service(scout: Scout, policies: LivePolicies) -> Service:
        follow = None if keys else say  # the policies of tenants are followed together
        services.append(Service(scout, policies, limits=limits, results=results, follow_policies=follow))
        return services[-1]

    def begin_stop() -> None:
        for service in services:
            service.begin_stop()

    def ready(port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        say(f"serving the page and the API at http://{shown}:{port}/ (described at /openapi.json)")

    if keys:
        say(f"the key of a request says to which of {len(keys.policies)} tenants it goes")
    elif policy:
        say(f"the policy file {policy} says who may use the service and see what")
        for sentence in policies.explain_idle_callers():
            say(sentence)
    else:
        say(
            "there is no policy file, so everybody on this machine may see everything, and other machines "
            "have no access"
        )
    _say_unknown_names(scout, () if keys else policies.callers, say)
    ending = Ending(limits.patience, settings.drain_seconds, begin_stop)
    run = functools.partial(serve, extra="server", ending=ending, lifespan=keys is None, ready=ready)
    has_uvloop = importlib.util.find_spec("uvloop") is not None

    async def run_service() -> None:
        """Serve the one catalogue, or all tenants if the home has keys of tenants, until a signal."""
        host_names = names_of(host, names)
        if keys is None:
            await run(app(make_service(scout, policies), host_names), policies, host, port)
            return
        from toolscout_server.app import serve_tenants

        application = serve_tenants(scout, keys, make_service, host_names)
        async with application.running():
            await run(application, policies, host, port)

    with telemetry.start(settings.telemetry, "toolscout", settings.telemetry_share):
        run_server(run_service, use_uvloop=has_uvloop)
    say("stopped serving.")
