"""The command `gateway`: serves all tools to an agent as one MCP server."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import click

from toolscout.access.policy_file import find_policy
from toolscout.cli.output import echo, encoder_option, escape_line, print_json, with_scout
from toolscout.config import MIN_BUDGET
from toolscout.errors import SourceError
from toolscout.privacy import trusted_folders
from toolscout.scout import Scout

KEY_VARIABLE = "TOOLSCOUT_KEY"


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
    "--pin", "pins", multiple=True, metavar="ID", help="Show this tool beside the three meta-tools; may be repeated."
)
@click.option(
    "--call-timeout", type=click.FloatRange(0, min_open=True), help="Maximum seconds of a call.  [default: 60]"
)
@click.option("--budget", type=click.IntRange(MIN_BUDGET), help="Maximum tokens of a search's answer.  [default: 3000]")
@click.option(
    "--print-config",
    type=click.Choice(["claude", "cursor", "vscode"]),
    help="Print the entry for this client's configuration, and exit.",
)
@encoder_option
@with_scout
def gateway_command(scout: Scout, configs: tuple[Path, ...], discover: bool, **options: Any) -> None:
    """Serve all tools to an agent as one MCP server: search_tools, describe_tools, call_tool."""
    for path in configs:
        if not path.expanduser().is_file():
            raise SourceError(f"expected an mcpServers JSON file, found none at {path}")
    options["policy"] = options["policy"] or find_policy(scout.settings.place)
    if options["print_config"]:
        print_json(_build_client_entry(scout, configs, discover, options))
        return
    import anyio

    from toolscout.access.policy import Policies
    from toolscout.gateway import Gateway, Options

    if discover:
        from toolscout.sources.mcp import discover as find_configurations

        trusted = functools.partial(trusted_folders.is_configuration_trusted, scout.settings.home)
        configs = (*configs, *find_configurations(trusted=trusted))
    settings = scout.settings
    gateway = Gateway(
        scout,
        Options(
            configs,
            options["pins"] or settings.pins,
            options["allow_python"],
            options["call_timeout"] or settings.call_timeout,
            options["budget"] or settings.gateway_budget,
        ),
        policies=Policies.load(options["policy"]),
        credential=os.environ.get(KEY_VARIABLE),
        say=lambda text: echo(escape_line(f"toolscout: {text}"), err=True),
    )
    if options["policy"]:
        gateway.say(f"the policy file {options['policy']} says who may see and call what")
    anyio.run(_serve, gateway, options)


async def _serve(gateway: Any, options: dict[str, Any]) -> None:
    import anyio

    from toolscout.gateway.http import PATH, serve

    if not options["http"]:
        gateway.say(f"serving {gateway.speaker.name} over standard input and output")
        async with anyio.create_task_group() as group:
            async with gateway.running():
                group.start_soon(_stop_at_signal, gateway)
                await gateway.serve_stdio()
            group.cancel_scope.cancel()
        return
    if options["policy"] is None:
        gateway.say(
            "there is no policy file, so everybody on this machine may see and call everything, and other machines "
            "have no access"
        )
    gateway.say(f"serving at http://{options['host']}:{options['port']}{PATH}")
    async with gateway.running():
        await serve(gateway.server, gateway.policies, options["host"], options["port"], options["names"])


async def _stop_at_signal(gateway: Any) -> None:
    """Stop the servers at a signal, then kill the program.

    A thread that waits for input would otherwise never end.
    """
    import anyio

    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            await gateway.stop()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _build_client_entry(
    scout: Scout, configs: tuple[Path, ...], discover: bool, options: dict[str, Any]
) -> dict[str, Any]:
    """Build the entry for a client's configuration, which starts the gateway or connects to it."""
    if options["http"]:
        url = f"http://{options['host']}:{options['port']}/mcp"
        entry: dict[str, Any] = {"type": "http", "url": url}
        if options["policy"]:
            entry["headers"] = {
                "Authorization": f"Bearer ${{{'env:' * (options['print_config'] != 'claude')}{KEY_VARIABLE}}}"
            }
    else:
        database = scout.settings.database
        words = ["--home", database.label if database else str(scout.settings.home.absolute())]
        words += [word for path in configs for word in ("--config", str(path.expanduser().absolute()))]
        words += ["--discover"] * discover + ["--allow-python"] * options["allow_python"]
        if options["policy"]:
            words += ["--policy", str(options["policy"].expanduser().absolute())]
        words += [word for pin in options["pins"] for word in ("--pin", pin)]
        program = shutil.which("toolscout")
        command = [program] if program else [sys.executable, "-m", "toolscout"]
        entry = {"command": command[0], "args": [*command[1:], "gateway", *words]}
        if options["print_config"] == "vscode":
            entry = {"type": "stdio", **entry}
    return {"servers" if options["print_config"] == "vscode" else "mcpServers": {"toolscout": entry}}
