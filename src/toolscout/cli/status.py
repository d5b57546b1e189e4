"""The command `status`: shows the gateways that run on this home, and the servers behind them."""

from __future__ import annotations

import click

from toolscout.cli.output import echo, json_option, print_json, print_table, with_scout
from toolscout.scout import Scout


@click.command("status")
@json_option
@with_scout
def status_command(scout: Scout, as_json: bool) -> None:
    """Show the gateways that run on this home, and the state of each server behind them.

    A server is idle (it starts at its first call), starting, ok or in error. Nothing is asked of the servers.
    """
    from toolscout.gateway.health import read_states

    gateways = list(read_states(scout.settings.home))
    if as_json:
        print_json({"gateways": gateways})
        return
    if not gateways:
        echo("No gateway is running on this home. Start one with  toolscout gateway")
        return
    columns = [("server", "left"), ("state", "left"), ("calls", "right"), ("failed", "right"), ("last error", "wrap")]
    for gateway in gateways:
        rows = [
            (server.name, server.state, f"{server.calls:,}", f"{server.failed_calls:,}", server.message)
            for server in gateway.servers
        ]
        print_table(columns, rows, title=f"process {gateway.pid}: {gateway.processes} of {gateway.max_processes} slots")
