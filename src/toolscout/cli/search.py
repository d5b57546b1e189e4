"""search."""

from __future__ import annotations

import click

from toolscout.cli.output import (
    clip,
    echo,
    encoder_option,
    escape_line,
    json_option,
    model_option,
    print_json,
    recipe_option,
    table,
    with_scout,
)
from toolscout.scout import Scout
from toolscout.types import Search
from toolscout.types import as_json as to_json


@click.command("search")
@click.argument("query")
@click.option("-k", type=click.IntRange(min=1), help="How many tools at most (5).")
@recipe_option
@model_option
@click.option("--explain", is_flag=True, help="Show why each tool is there, and what each stage did.")
@encoder_option
@json_option
@with_scout
def search_command(scout: Scout, query: str, k: int | None, explain: bool, as_json: bool) -> None:
    """Find the tools that QUERY needs."""
    scout.pipeline()  # opening the index is no part of the search's time
    found = scout.search(query, k)
    if as_json:
        print_json(to_json(found))
    else:
        show(found, explain=explain)


@click.command("why")
@click.argument("query")
@click.argument("tool")
@click.option("-k", type=click.IntRange(min=1), help="How many tools the search returns (5).")
@recipe_option
@model_option
@encoder_option
@json_option
@with_scout
def why_command(scout: Scout, query: str, tool: str, k: int | None, as_json: bool) -> None:
    """Say why TOOL (an id or a name) is not among the answers to QUERY, and what would lift it."""
    found = scout.why(query, tool, k)
    if as_json:
        print_json(found)
        return
    where = "no stage reaches it" if found.rank is None else f"rank {found.rank}"
    shown = "returned" if found.shown else "not returned"
    echo(f"{escape_line(found.tool)}: {shown}, {where} (of {found.k} asked for)\n")
    for stage in found.stages:
        rank = "not ranked" if stage.rank is None else f"rank {stage.rank}, score {stage.score:.2f}"
        echo(f"  {stage.stage}: {rank}" + (f" ({escape_line(stage.note)})" if stage.note else ""))
    if found.matched:
        echo("  words that match: " + ", ".join(f"{word} ({part:.2f})" for word, part in found.matched.items()))
    if found.missing:
        echo("  words it lacks: " + ", ".join(found.missing))
    for heading, sentences in (("why", found.causes), ("what would lift it", found.fixes)):
        echo("".join(f"\n{heading}\n" if n == 0 else "" for n, _ in enumerate(sentences[:1])), nl=False)
        echo("".join(f"  - {escape_line(sentence)}\n" for sentence in sentences), nl=False)
    if found.ahead and not found.shown:
        echo("\nreturned instead")
        echo("".join(f"  {score:6.2f}  {escape_line(tool_id)}\n" for tool_id, score in found.ahead), nl=False)


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
        reason = escape_line(str(found.reason))
        echo(f"{'note' if found.hits else (found.answer or 'nothing').replace('_', ' ')}: {reason}")
    if explain:
        table(
            [("stage", "left"), ("ms", "right"), ("note", "wrap")],
            [(step.stage, f"{step.seconds * 1000:.2f}", step.note) for step in found.trace],
        )
    echo(f"{len(found.hits)} tools in {found.seconds * 1000:.1f} ms")
