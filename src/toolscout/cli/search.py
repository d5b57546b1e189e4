"""search."""

from __future__ import annotations

import click

from toolscout.cli.output import clip, json_option, print_json, table, with_scout
from toolscout.scout import Scout
from toolscout.types import Search
from toolscout.types import as_json as to_json


@click.command("search")
@click.argument("query")
@click.option("-k", type=click.IntRange(min=1), help="How many tools at most (5).")
@click.option("--recipe", "-r", help="How to search; by default the setting `recipe`.")
@click.option("--explain", is_flag=True, help="Show why each tool is there, and what each stage did.")
@json_option
@with_scout
def search_command(scout: Scout, query: str, k: int | None, recipe: str | None, explain: bool, as_json: bool) -> None:
    """Find the tools that QUERY needs."""
    scout.pipeline(recipe)  # opening the index is no part of the search's time
    found = scout.search(query, k, recipe=recipe)
    if as_json:
        print_json(to_json(found))
    else:
        show(found, explain=explain)


def show(found: Search, *, explain: bool = False) -> None:
    """Print an answer as a table, or the reason why there is none."""
    if found.hits:
        columns = [("", "right"), ("score", "right"), ("tool", "left"), ("what it does", "wrap")]
        rows = [
            (rank, f"{hit.score:.2f}", clip(hit.id, 56), clip(hit.tool.description if hit.tool else "", 110))
            for rank, hit in enumerate(found.hits, 1)
        ]
        if explain:
            columns.insert(3, ("why", "left"))
            rows = [(*row[:3], hit.why, row[3]) for row, hit in zip(rows, found.hits, strict=True)]  # type: ignore[misc]
        table(columns, rows)
    if found.reason or not found.hits:
        click.echo(f"{'note' if found.hits else (found.answer or 'nothing').replace('_', ' ')}: {found.reason}")
    if explain:
        table(
            [("stage", "left"), ("ms", "right"), ("note", "wrap")],
            [(step.stage, f"{step.seconds * 1000:.2f}", step.note) for step in found.trace],
        )
    click.echo(f"{len(found.hits)} tools in {found.seconds * 1000:.1f} ms")
