"""The command `gateway`: serves all tools to an agent as one MCP server."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolscout.cli.output import echo, encoder_option, escape_line, with_scout
from toolscout.cli.serving import run_server
from toolscout.cli.tenant import find_tenant_keys
from toolscout.errors import Denied, SourceError
from toolscout.location import DEFAULT_TENANT, find_shared, local_folder
from toolscout.scout import Scout
from toolscout.settings import MIN_BUDGET, MIN_RESULT_BUDGET
from toolscout.sources.clients import is_file_of
from toolscout.sources.mcp_config import load_entries, split_project
from toolscout.trust import trusted_folders
from toolscout.trust.policy import Caller, ScopeMissing
from toolscout_gateway.commands.client_entries import CLIENTS, KEY_VARIABLE, TITLES, render_entry

if TYPE_CHECKING:
    from toolscout.home.access.profiles import Profiles
    from toolscout.home.access.tenants import TenantKeys
    from toolscout_gateway.access.permissions import Permissions
    from toolscout_gateway.options import Options


@click.command("gateway")
@click.option(
    "--config",
    "configs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="An mcpServers JSON file; may be repeated.",
)
@click.option("--discover", is_flag=True, help="Also read MCP configuration files in the usual places.")
@click.option("--allow-python", is_flag=True, help="Allow calls of Python functions in the catalogue.")
@click.option("--run-code", is_flag=True, help="Let agents run programs that call several tools at once.")
@click.option("--http", is_flag=True, help="Serve streamable HTTP instead of standard input and output.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen at. Others than this machine need --policy.",
)
@click.option("--port", default=8765, show_default=True, type=click.IntRange(1, 65535), help="Port to listen at.")
@click.option("--allow-host", "names", multiple=True, help="Another host name of this service; may be repeated.")
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="File that says who may see and call what. Default: policy.toml in the home, if it exists.",
)
@click.option(
    "--pin", "pins", multiple=True, metavar="ID", help="Show this tool beside the meta-tools; may be repeated."
)
@click.option(
    "--call-timeout", type=click.FloatRange(0, min_open=True), help="Maximum seconds of a call.  [default: 60]"
)
@click.option("--budget", type=click.IntRange(MIN_BUDGET), help="Maximum tokens of a search's answer.  [default: 3000]")
@click.option(
    "--result-budget",
    type=click.IntRange(MIN_RESULT_BUDGET),
    help="Maximum tokens of a call's result; the rest is read by handle.  [default: 10000]",
)
@click.option("--profile", metavar="NAME", help="Serve only this part of the tools: a profile of profiles.toml.")
@click.option(
    "--print-config",
    type=click.Choice(CLIENTS),
    help="Print the entry for this client's configuration, and exit.",
)
@encoder_option
@with_scout
def gateway_command(scout: Scout, configs: tuple[Path, ...], discover: bool, **options: Any) -> None:
    """Serve all tools to an agent as one MCP server: search_tools, describe_tools, call_tool, read_result."""
    for path in configs:
        if not path.expanduser().is_file():
            raise SourceError(f"expected an mcpServers JSON file, found none at {path}. Check its path.")
        load_entries(path.expanduser())  # raises for a file without servers
    names_policy = options["policy"] is not None
    serves_http = options["http"] and not options["print_config"]

    from toolscout.home.access import telemetry
    from toolscout.home.access.live_policy import open_policies

    say = telemetry.start_logs(
        scout.settings.log_format, lambda text: echo(escape_line(f"toolscout: {text}"), err=True)
    )
    keys = find_tenant_keys(scout, options["policy"], say) if serves_http else None
    policies = open_policies(options["policy"], scout.settings.place)
    options["policy"] = policies.path if policies.has_rules else None  # the file in force
    if options["profile"] and serves_http:
        raise click.UsageError("--profile is for standard input. Over HTTP each client chooses: /mcp/p/NAME.")
    profiles = _load_profiles(scout, options["profile"])
    if options["print_config"]:
        _print_entry(scout, configs, {**options, "discover": discover, "names_policy": names_policy})
        return
    from toolscout_gateway import Gateway, choose_options

    if discover:
        from toolscout.sources.mcp import discover as find_configurations

        trusted = functools.partial(trusted_folders.is_configuration_trusted, scout.settings.home)
        configs = (*configs, *find_configurations(trusted=trusted, catalogue=scout.settings.place))
    chosen = choose_options(scout.settings, configs, options)
    if keys is not None:
        with telemetry.start(scout.settings.telemetry, "toolscout-gateway", scout.settings.telemetry_share):
            run_server(_serve_tenants, scout, keys, chosen, options)
        return
    credential = os.environ.get(KEY_VARIABLE)
    gateway = Gateway(scout, chosen, policies=policies, profiles=profiles, credential=credential, say=say)
    if options["policy"]:
        gateway.say(f"the policy file {options['policy']} says who may see and call what")
        for sentence in policies.explain_idle_callers():
            gateway.say(sentence)
    with telemetry.start(scout.settings.telemetry, "toolscout-gateway", scout.settings.telemetry_share):
        run_server(_serve_http if serves_http else _serve_stdio, gateway, options)


def _print_entry(scout: Scout, configs: tuple[Path, ...], options: dict[str, Any]) -> None:
    """Print the entry for a client's configuration, after a check of the pins in it."""
    _warn_of_pins(scout, options["pins"], may_add_sources=bool(configs) or options["discover"])
    echo(render_entry(options["print_config"], scout.settings, configs, options))
    _warn_of_followed_files(scout, options["print_config"])


def _warn_of_pins(scout: Scout, pins: Sequence[str], *, may_add_sources: bool) -> None:
    """Print which pins name no tool. If the gateway may add sources, pins of sources that are not here may be right."""
    from toolscout.checks.references import Reference, explain_unknown

    awaited: set[str] = set()
    if may_add_sources:
        awaited = {pin.partition("/")[0] for pin in pins if "/" in pin} - {source.name for source in scout.sources()}
    references = [Reference("A pin names", pin, "tool") for pin in pins]
    for sentence in explain_unknown(scout, references, awaited):
        echo(escape_line(f"toolscout: {sentence}"), err=True)


def _warn_of_followed_files(scout: Scout, client: str) -> None:
    """Print how to keep the servers that the catalogue reads from a file of the client, if the entry replaces them."""
    for origin in scout.store.origins():
        path = split_project(origin.locator)[0]
        if origin.kind == "mcp" and is_file_of(TITLES.get(client, ""), path):
            sentence = (
                f"note: your catalogue follows {path}. If this entry takes the place of the servers there, copy the "
                "file first, and run  toolscout add  with the copy"
            )
            echo(escape_line(sentence), err=True)


def _load_profiles(scout: Scout, required: str | None) -> Profiles:
    """Load the profiles of the home.

    Raises:
        NotFound: if the profile `required` is not among them.
    """
    from toolscout.home.access.profiles import PROFILE_FILE, Profiles

    place = scout.settings.place
    profiles = Profiles(place)
    file = local_folder(place) / PROFILE_FILE
    has_no_stored_profiles = bool(find_shared(place)) and not profiles.has_file
    if has_no_stored_profiles and file.exists():
        echo(f"{file} is not read: store it in the database with  toolscout profiles {file}", err=True)
    if required:
        profiles.require(required)
    return profiles


async def _serve_tenants(scout: Scout, keys: TenantKeys, chosen: Options, options: dict[str, Any]) -> None:
    """Serve the gateways of all tenants over HTTP."""
    from toolscout.home.access.http import Ending, names_of, serve
    from toolscout_gateway.access.http import GATEWAY_CLOSE_S, build_base, serve_tenants
    from toolscout_gateway.access.permissions import PATH

    host, port = options["host"], options["port"]
    application = serve_tenants(scout, keys, chosen, names_of(host, options["names"]), build_base(host, port))
    async with application.running():
        policies = keys.policies[DEFAULT_TENANT]  # all tenants use the same addresses, so one checks the host for all
        keys.say(f"serving {len(keys.policies)} tenants at http://{host}:{port}{PATH}, each for its own keys")
        await serve(
            application,
            policies,
            host,
            port,
            extra="mcp",
            ending=Ending(GATEWAY_CLOSE_S, scout.settings.drain_seconds),
            lifespan=False,  # `running` did it above
        )


async def _serve_stdio(gateway: Any, options: dict[str, Any]) -> None:
    """Serve one gateway over standard input and output, until its client goes or a signal stops it."""
    import anyio

    speaker = _identify_speaker(gateway.permissions, options["policy"])
    gateway.say(f"serving {speaker.name} over standard input and output")
    async with anyio.create_task_group() as group:
        async with gateway.running():
            group.start_soon(_stop_at_signal, gateway)
            await gateway.serve_stdio()
        group.cancel_scope.cancel()


async def _serve_http(gateway: Any, options: dict[str, Any]) -> None:
    """Serve one gateway over HTTP, until a signal stops it."""
    from toolscout.home.access.http import check_host
    from toolscout_gateway.access.http import serve
    from toolscout_gateway.access.permissions import PATH

    permissions = gateway.permissions
    check_host(permissions.policies, options["host"])
    if options["policy"] is None:
        gateway.say(
            "there is no policy file, so everybody on this machine may see and call everything, and other machines "
            "have no access"
        )

    def say_address(port: int) -> None:
        gateway.say(f"serving at http://{options['host']}:{port}{PATH}")

    async with gateway.running():
        await serve(gateway, options["host"], options["port"], options["names"], ready=say_address)


def _identify_speaker(permissions: Permissions, policy: Path | None) -> Caller:
    """Return the caller on standard input and output.

    Raises:
        Denied: if the policy knows no such caller. Whoever starts the gateway can set the key or change the file.
    """
    try:
        return permissions.speaker
    except ScopeMissing:
        raise
    except Denied:
        if permissions.credential is None:
            found, advice = "none", "set it, or"
        else:
            found, advice = "another value", "set it to the key of a caller, or leave it out and"
        raise Denied(
            f"expected a valid key or token in {KEY_VARIABLE}, found {found}: {advice} "
            f'write  default = "NAME"  at the top of {policy}'
        ) from None


async def _stop_at_signal(gateway: Any) -> None:
    """Stop the servers at a signal, then kill the program: the thread that waits for input would keep it alive."""
    import anyio

    from toolscout.home.access import telemetry

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            await gateway.stop()
            telemetry.stop()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
