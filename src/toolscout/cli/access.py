"""key, approve; and how findings and definitions that wait are shown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import click
import msgspec

from toolscout.cli.output import echo, escape_line, json_option, print_json, with_scout
from toolscout.policy import hashed_key, new_key
from toolscout.scout import Scout
from toolscout.store import Waiting
from toolscout.trust import scan, spelled_out
from toolscout.types import Tool

__all__ = ["findings", "show_findings", "show_waiting"]


@click.command("key")
@click.argument("name")
def key_command(name: str) -> None:
    """Make a fresh API key for the caller NAME, and the lines for the policy file."""
    key = new_key()
    echo(f"{key}\n")
    echo("This key is shown once: give it to the caller. Put these lines into the policy file:\n")
    title = msgspec.json.encode(name).decode()  # a string of JSON is one of TOML
    echo(f'[[caller]]\nname = {title}\nkey = "{hashed_key(key)}"\nallow = []')


@click.command("approve")
@click.argument("names", nargs=-1, metavar="[ID|SOURCE]...")
@click.option("--all", "everything", is_flag=True, help="Approve everything that waits.")
@json_option
@with_scout
def approve_command(scout: Scout, names: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Show the definitions that wait for approval, with what changed; with IDs, SOURCEs or --all, approve them.

    A tool of an MCP server is approved as it is first seen. When its definition changes later, it is not served until
    it is approved again.
    """
    if names and everything:
        raise click.UsageError("expected names or --all, found both")
    held = scout.waiting(names)
    count = scout.approve(held) if names or everything else 0
    if count:
        scout.embed()
    if as_json:
        print_json({"approved": count, "waiting" if not count else "definitions": [_as_json(each) for each in held]})
        return
    for each in held:
        show_waiting(each)
    if names or everything:
        echo(f"approved {count:,} definitions")
    elif held:
        echo(f"{len(held):,} definitions wait: approve with  toolscout approve ID…, SOURCE… or --all")
    else:
        echo("nothing waits for approval")


def _as_json(each: Waiting) -> dict[str, Any]:
    return {
        "id": each.id,
        "why": each.why,
        "since": each.since,
        "fingerprint": each.fingerprint,
        "before": each.approved,
        "now": each.tool,
        "findings": scan(each.tool),
    }


def show_waiting(each: Waiting) -> None:
    """Print a definition that waits, as the difference to the approved one, if there was one."""
    echo(
        f"{spelled_out(escape_line(each.id))} waits for approval since {each.since[:16].replace('T', ' ')}: {each.why}"
    )
    before = list(_lines(each.approved)) if each.approved else []
    for line in difflib.unified_diff(before, list(_lines(each.tool)), "approved", "now", n=1, lineterm=""):
        colour = {"+": "green", "-": "red"}.get(line[:1])
        echo(f"  {line}", fg=colour)
    show_findings([each.tool])
    echo()


def _lines(tool: Tool) -> Iterator[str]:
    """A definition line by line, a sentence of the description on each, hidden characters spelled out."""
    yield f"name: {spelled_out(escape_line(tool.name))}"
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", tool.description):
        yield f"description: {spelled_out(sentence)}"
    rest = msgspec.to_builtins(tool)
    for field in ("path", "hints", "tags", "parameters", "returns", "meta"):
        if field in rest:
            text = msgspec.json.format(msgspec.json.encode(rest[field], order="deterministic"), indent=2).decode()
            yield from (f"{field}: {spelled_out(line)}" for line in text.split("\n"))


def findings(tools: Iterable[Tool]) -> list[dict[str, str]]:
    """What `trust.scan` finds, one entry a finding."""
    return [
        {"id": tool.id, "kind": each.kind, "field": each.field, "message": each.message}
        for tool in tools
        for each in scan(tool)
    ]


def show_findings(tools: Iterable[Tool], limit: int = 10) -> None:
    """Print what `trust.scan` finds, on standard error."""
    found = findings(tools)
    for each in found[:limit]:
        line = f"  suspicious: {each['id']}: {each['kind']} in {each['field']}: {each['message']}"
        echo(spelled_out(escape_line(line)), err=True)
    if len(found) > limit:
        echo(f"  and {len(found) - limit:,} more findings: see  toolscout doctor", err=True)
