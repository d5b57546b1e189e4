"""The commands `journal import`, `export`, `stats` and `prune`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

import click

from toolscout.cli.output import count_things, json_option, print_json, print_warning, with_scout
from toolscout.errors import SourceError
from toolscout.scout import Scout

DAYS_PER_UNIT: Final = {"h": 1 / 24, "d": 1.0, "w": 7.0}
MAX_AGE_DAYS: Final = 36_500.0


def read_age(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Parse an age such as `12h`, `30d` or `2w` into days."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s?([hdw])", value.strip().lower())
    days = float(match[1]) * DAYS_PER_UNIT[match[2]] if match else None
    if days is None or days > MAX_AGE_DAYS:
        raise click.BadParameter(f"expected an age such as 12h, 30d or 2w, found {value!r:.40}", ctx, param)
    return days


@click.group("journal")
def journal_command() -> None:
    """Manage the record of searches, shown tools, calls and their outcomes."""


@journal_command.command("stats")
@json_option
@with_scout
def stats_command(scout: Scout, as_json: bool) -> None:
    """Count events and callers."""
    stats = scout.journal.stats()
    if as_json:
        print_json(stats)
        return
    for name, value in stats.items():
        text = ", ".join(f"{count:,} {event}" for event, count in value.items()) if isinstance(value, dict) else value
        click.echo(f"{name.replace('_', ' ')}: {'—' if text is None else text}")


@journal_command.command("export")
@click.argument("file", default="-")
@with_scout
def export_command(scout: Scout, file: str) -> None:
    """Write all events as JSON lines to FILE (- is standard output)."""
    if file == "-":
        for line in scout.journal.export():
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        return
    target = Path(file)
    partial = target.with_name(f"{target.name}.partial")
    try:
        count = 0
        with partial.open("wb") as stream:
            for line in scout.journal.export():
                stream.write(line)
                count += 1
        partial.replace(target)
    except OSError as error:
        raise SourceError(f"{file} cannot be written ({error.strerror}). Choose another file.") from None
    click.echo(f"wrote {count_things(count, 'event')} to {file}")


@journal_command.command("import")
@click.argument("file")
@json_option
@with_scout
def import_command(scout: Scout, file: str, as_json: bool) -> int:
    """Import events from FILE (- is standard input).

    Bad lines are named and skipped. Events that are in the journal already are not added again.
    """
    try:
        if file == "-":
            result = scout.journal.import_lines(sys.stdin.buffer)
        else:
            with Path(file).open("rb") as stream:
                result = scout.journal.import_lines(stream)
    except OSError as error:
        raise SourceError(f"{file} cannot be read ({error.strerror}). Check its path.") from None
    if as_json:
        problems = [{"entry": entry, "message": text} for entry, text in result.problems]
        print_json({"new": result.new, "problems": problems, "bad_lines": result.bad})
    else:
        click.echo(count_things(result.new, "new event"))
    shown = result.problems if result.new else result.problems[:1]  # a wrong file: one line says enough
    for entry, text in shown:
        print_warning(f"{file}: {entry}: {text}")
    if (n_more := result.bad - len(shown)) > 0:
        print_warning(f"{file}: and {count_things(n_more, 'more bad line')}")
    return 3 if result.bad else 0  # the exit status "partly done"


@journal_command.command("prune")
@click.option("--older-than", "days", callback=read_age, required=True, metavar="AGE", help="Such as 12h, 30d or 2w.")
@json_option
@with_scout
def prune_command(scout: Scout, days: float, as_json: bool) -> None:
    """Remove events that are older than AGE, and every trace of them in the file."""
    pruned = scout.journal.prune(days)
    if as_json:
        print_json({"removed": pruned.removed, "undated": pruned.undated, "compacted": pruned.compacted})
        return
    click.echo(f"removed {count_things(pruned.removed, 'event')}")
    if pruned.undated:
        one, several = "imported event has no readable time and stays", "imported events have no readable time and stay"
        click.echo(count_things(pruned.undated, one, several), err=True)
    if not pruned.compacted:
        click.echo("Another process is using the journal, so the file keeps its size. Run this again later.", err=True)
