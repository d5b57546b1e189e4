"""The command `status`: shows the gateways of this home, the servers behind them, and whether the traffic changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from toolscout.cli.output import count_things, echo, escape_line, json_option, print_json, print_table, with_scout
from toolscout.location import Home, find_shared
from toolscout.scout import Scout

if TYPE_CHECKING:
    from toolscout.learn.drift_report import DriftReport
    from toolscout_gateway.health import GatewayState, ServerState


@click.command("status")
@json_option
@with_scout
def status_command(scout: Scout, as_json: bool) -> None:
    """Show the gateways that run on this home, and the state of each server behind them.

    If the home is in a database, only the gateways on this machine are shown. A server is idle (it starts at its first
    call), starting, ok or in error. Its circuit is open while calls are refused after several failures. No server is
    asked. Then you see whether the traffic has changed since the champion was fitted, what changed, and what to do.
    """
    from toolscout.learn.drift import DriftWatch
    from toolscout_gateway.health import read_states

    gateways, drift = list(read_states(scout.settings.home)), DriftWatch(scout).check()
    if as_json:
        print_json({"gateways": gateways, "drift": drift})
        return
    _print_gateways(gateways, scout.settings.place)
    _print_drift(drift)


def _print_gateways(gateways: Sequence[GatewayState], home: Home) -> None:
    """Print a table of the servers behind each gateway. A slot is the place of one server that runs as a process."""
    if not gateways:
        if find_shared(home):
            echo("No gateway of this home is running on this machine. Those of other machines answer at their /status.")
        else:
            echo("No gateway is running on this home. Start one with  toolscout gateway")
        return
    columns = [("server", "left"), ("state", "left"), ("circuit", "left"), ("calls", "right"), ("failed", "right")]
    columns += [("last answer", "left"), ("last error", "wrap")]
    for gateway in gateways:
        rows = []
        for server in gateway.servers:
            calls, failed = f"{server.calls:,}", f"{server.failed_calls:,}"
            last_answer, last_error = _shorten_instant(server.answered_at), _describe_error(server)
            rows.append((server.name, server.state, server.circuit, calls, failed, last_answer, last_error))
        print_table(columns, rows, title=f"process {gateway.pid}: {gateway.processes} of {gateway.max_processes} slots")


def _shorten_instant(instant: str) -> str:
    """Return an instant without the fraction of its second."""
    return f"{instant[:19]}Z" if instant else "never"


def _describe_error(server: ServerState) -> str:
    """Say what is wrong with a server, or what was wrong last and when."""
    if server.message or not server.last_error:
        return server.message
    return f"{_shorten_instant(server.last_error_at)}: {server.last_error}"


def _print_drift(drift: DriftReport) -> None:
    """Print whether the traffic has changed since the champion was fitted, with examples of new topics."""
    if drift.state == "waiting":
        echo("The journal holds too few searches to notice changes of the traffic.")
        return
    if drift.state == "quiet":
        echo(f"The traffic has not changed: {drift.watched:,} searches are like the earlier ones.")
        return
    echo(drift.message, fg="yellow")
    for topic in drift.topics:
        examples = "; ".join(f'"{escape_line(example)}"' for example in topic.examples)
        echo(f"  new topic, {topic.size:,} requests of {count_things(topic.callers, 'caller')}: {examples}")
