"""lint."""

from __future__ import annotations

import click

from toolscout.checks.lint import lint
from toolscout.cli.output import (
    echo,
    escape_line,
    json_option,
    print_json,
    progress,
    recipe_option,
    table,
    with_scout,
)
from toolscout.scout import Scout


@click.command("lint")
@recipe_option
@click.option("--most", type=click.IntRange(min=1), default=1_000, show_default=True, help="Tools to ask for at most.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Lines of each table.")
@json_option
@with_scout
def lint_command(scout: Scout, most: int, limit: int, as_json: bool) -> None:
    """Say which tools are not found by requests made for them, which are confused, and what would help."""
    with progress("asking for each tool"):
        catalogue, pipeline = scout.pipeline()
        found = lint(catalogue.tools(), pipeline, most=most)
    if as_json:
        print_json(found)
        return
    if found.hidden:
        rows = [
            (each.tool, f"{each.found:.0%}", "; ".join(each.causes), "; ".join(each.fixes)) for each in found.hidden
        ]
        columns = [("hard to find", "left"), ("found", "right"), ("why", "wrap"), ("what would help", "wrap")]
        table(columns, rows)
    if found.confused:
        pairs = [(each.one, each.other, each.times, each.fix) for each in found.confused]
        columns = [("confused", "left"), ("with", "left"), ("times", "right"), ("what would help", "wrap")]
        table(columns, pairs[:limit])
    for tool in found.silent[:limit]:
        echo(f"{escape_line(tool)}: it has no description, so that only its name and parameters can be found")
    echo(
        f"{found.asked:,} tools asked for: {len(found.hidden):,} hard to find, {len(found.confused):,} pairs confused, "
        f"{len(found.silent):,} without a description"
    )
