"""The command `lint`: lists tools that are hard to find."""

from __future__ import annotations

from collections.abc import Collection

import click

from toolscout.checks.lint import Lint, lint
from toolscout.cli.output import (
    count_things,
    echo,
    escape_line,
    json_option,
    print_json,
    print_table,
    progress,
    recipe_option,
    with_scout,
)
from toolscout.errors import NotFound
from toolscout.scout import Scout


@click.command("lint")
@recipe_option
@click.option(
    "--most",
    "max_tools",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    help="Maximum number of tools to check.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of rows per table."
)
@json_option
@with_scout
def lint_command(scout: Scout, max_tools: int, limit: int, as_json: bool) -> None:
    """List tools that a search misses or confuses, with advice.

    Each tool is searched for with queries generated from its own definition. Tools come first that you can edit: their
    source is a file or a module of yours, or an MCP server that runs a script of yours.
    """
    if not scout.store.catalogue().ids:
        raise NotFound("The catalogue has no tools to check. Add a source with  toolscout add SOURCE")
    editable = scout.find_editable()
    with progress("searching for each tool") as say:
        catalogue, pipeline = scout.pipeline()
        result = lint(
            catalogue.tools(),
            pipeline,
            max_tools=max_tools,
            editable=editable,
            progress=lambda done, total: say("searching with phrases of the tools", done, total),
        )
    if as_json:
        print_json(result)
    else:
        _print_result(result, limit, editable)


def _print_result(result: Lint, limit: int, editable: Collection[str]) -> None:
    if result.hidden:
        rows = [
            (finding.tool, f"{finding.found:.0%}", "; ".join(finding.causes), "; ".join(finding.fixes))
            for finding in result.hidden
        ]
        columns = [("hard to find", "id"), ("found", "right"), ("why", "wrap"), ("advice", "wrap")]
        print_table(columns, rows[:limit])
    if result.confused:
        pairs = [(pair.one, pair.other, pair.times, pair.fix) for pair in result.confused]
        columns = [("confused", "id"), ("with", "id"), ("times", "right"), ("advice", "wrap")]
        print_table(columns, pairs[:limit])
    for tool in result.silent[:limit]:
        echo(f"{escape_line(tool)} has no description: only its name and parameters can be found.")
    if editable and (result.hidden or result.confused or result.silent):
        echo(f"You can edit {escape_line(', '.join(sorted(editable)))}: their tools come first.")
    echo(
        f"{count_things(result.asked, 'tool')} checked: {len(result.hidden):,} hard to find, "
        f"{count_things(len(result.confused), 'pair')} confused, "
        f"{len(result.silent):,} without a description"
    )
