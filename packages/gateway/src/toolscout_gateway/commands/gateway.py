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
    from toolscout.home.access.live_policy import LivePolicies
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
            raise SourceError(f"expected an mcpServers JSON file, found none at {path}")
    names_policy = options["policy"] is not None

    from toolscout.home.access import telemetry

    say = telemetry.start_logs(
        scout.settings.log_format, lambda text: echo(escape_line(f"toolscout: {text}"), err=True)
    )
    keys = find_tenant_keys(scout, options["policy"], say) if options["http"] and not options["print_config"] else None
    policies, profiles = _load_policies(scout, options), _load_profiles(scout, options)
    if options["print_config"]:
        for path in configs:
            load_entries(path.expanduser())  # raises for an invalid file, before an entry with it is printed
        _warn_of_pins(scout, options["pins"], has_more=bool(configs) or discover)
        shown = {**options, "discover": discover, "names_policy": names_policy}
        echo(render_entry(options["print_config"], scout.settings, configs, shown))
        _warn_of_followed_files(scout, options["print_config"])
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
        run_server(_serve, gateway, options)


def _warn_of_pins(scout: Scout, pins: Sequence[str], *, has_more: bool) -> None:
    """Print which pins name no tool. With `has_more`, pins of sources that are not in the catalogue are not judged."""
    from toolscout.checks.references import Reference, explain_unknown

    present = {source.name for source in scout.sources()}
    sources = {source for pin in pins if (source := pin.partition("/")[0]) != pin}
    references = [Reference("A pin names", pin, "tool") for pin in pins]
    for sentence in explain_unknown(scout, references, sources - present if has_more else ()):
        echo(escape_line(f"toolscout: {sentence}"), err=True)


def _warn_of_followed_files(scout: Scout, client: str) -> None:
    """Print how to keep the servers that the catalogue reads from a file of the client, if the entry replaces them."""
    for origin in scout.store.origins():
        path = split_project(origin.locator)[0]
        if origin.kind == "mcp" and is_file_of(TITLES.get(client, ""), path):
            names = " ".join(source.name for source in scout.brought_by(origin))
            sentence = (
                f"note: your catalogue follows {path}. If this entry takes the place of the servers there, copy the "
                f"file first. Then run  toolscout remove {names}  and  toolscout add  with the copy"
            )
            echo(escape_line(sentence), err=True)


def _load_policies(scout: Scout, options: dict[str, Any]) -> LivePolicies:
    """Load the policy file that is named, or the home's. `options` then names the file in force, or None.

    Raises:
        ConfigError: if a file that is named is missing, or a file is invalid.
    """
    from toolscout.home.access.live_policy import open_policies

    policies = open_policies(options["policy"], scout.settings.place)
    options["policy"] = policies.path if policies.has_rules else None
    return policies


def _load_profiles(scout: Scout, options: dict[str, Any]) -> Profiles:
    """Load the profiles of the home, and check the one that is named.

    Raises:
        NotFound: if there is none of this name.
    """
    from toolscout.home.access.profiles import PROFILE_FILE, Profiles

    if options["profile"] and options["http"] and not options["print_config"]:
        raise click.UsageError("--profile is for standard input. Over HTTP each client chooses: /mcp/p/NAME.")
    place = scout.settings.place
    profiles = Profiles(place)
    left_behind = local_folder(place) / PROFILE_FILE
    if find_shared(place) and not profiles.has_file and left_behind.exists():
        echo(f"{left_behind} is not read: store it in the database with  toolscout profiles {left_behind}", err=True)
    if options["profile"]:
        profiles.require(options["profile"])
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


async def _serve(gateway: Any, options: dict[str, Any]) -> None:
    """Serve one gateway, over HTTP or standard input and output, until its client goes or a signal stops it."""
    import anyio

    from toolscout.home.access.http import check_host
    from toolscout_gateway.access.http import serve
    from toolscout_gateway.access.permissions import PATH

    if not options["http"]:
        speaker = _identify_speaker(gateway.permissions, options["policy"])
        gateway.say(f"serving {speaker.name} over standard input and output")
        async with anyio.create_task_group() as group:
            async with gateway.running():
                group.start_soon(_stop_at_signal, gateway)
                await gateway.serve_stdio()
            group.cancel_scope.cancel()
        return
    permissions = gateway.permissions
    check_host(permissions.policies, options["host"])
    if options["policy"] is None:
        gateway.say(
            "there is no policy file, so everybody on this machine may see and call everything, and other machines "
            "have no access"
        )
    gateway.say(f"serving at http://{options['host']}:{options['port']}{PATH}")
    async with gateway.running():
        where = options["host"], options["port"], options["names"]
        await serve(
            gateway.server, permissions.policies, *where, gateway.health, permissions.profiles, gateway.identities
        )


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
    """Stop the servers at a signal, then kill the program.

    A thread that waits for input would otherwise never end.
    """
    import anyio

    from toolscout.home.access import telemetry

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            await gateway.stop()
            telemetry.stop()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
