"""The commands `search` and `why`."""

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
from toolscout.search.why import Why
from toolscout.types import Search
from toolscout.types import as_json as to_json


@click.command("search")
@click.argument("query")
@click.option("-k", type=click.IntRange(min=1), help="Maximum number of tools (5).")
@recipe_option
@model_option
@click.option("--explain", is_flag=True, help="Show why each tool is there, and what each stage did.")
@encoder_option
@json_option
@with_scout
def search_command(scout: Scout, query: str, k: int | None, explain: bool, as_json: bool) -> None:
    """Find the tools that QUERY needs."""
    scout.pipeline()  # opening the index does not count as search time
    answer = scout.search(query, k)
    if as_json:
        print_json(to_json(answer))
    else:
        print_search(answer, explain=explain)


@click.command("why")
@click.argument("query")
@click.argument("tool")
@click.option("-k", type=click.IntRange(min=1), help="Number of tools that the search returns (5).")
@recipe_option
@model_option
@encoder_option
@json_option
@with_scout
def why_command(scout: Scout, query: str, tool: str, k: int | None, as_json: bool) -> None:
    """Explain why TOOL (an id or a name) is missing from the answer to QUERY, and what would lift it."""
    explanation = scout.why(query, tool, k)
    if as_json:
        print_json(explanation)
        return
    _print_explanation(explanation)


def _print_explanation(explanation: Why) -> None:
    where = "no stage reaches it" if explanation.rank is None else f"rank {explanation.rank}"
    shown = "returned" if explanation.shown else "not returned"
    echo(f"{escape_line(explanation.tool)}: {shown}, {where} (of {explanation.k} asked for)\n")
    for stage in explanation.stages:
        rank = "not ranked" if stage.rank is None else f"rank {stage.rank}, score {stage.score:.2f}"
        echo(f"  {stage.stage}: {rank}" + (f" ({escape_line(stage.note)})" if stage.note else ""))
    if explanation.matched:
        echo("  words that match: " + ", ".join(f"{word} ({part:.2f})" for word, part in explanation.matched.items()))
    if explanation.missing:
        echo("  words it lacks: " + ", ".join(explanation.missing))
    for heading, sentences in (("why", explanation.causes), ("what would lift it", explanation.fixes)):
        echo("".join(f"\n{heading}\n" if n == 0 else "" for n, _ in enumerate(sentences[:1])), nl=False)
        echo("".join(f"  - {escape_line(sentence)}\n" for sentence in sentences), nl=False)
    if explanation.ahead and not explanation.shown:
        echo("\nreturned instead")
        echo("".join(f"  {score:6.2f}  {escape_line(tool_id)}\n" for tool_id, score in explanation.ahead), nl=False)


def print_search(answer: Search, *, explain: bool = False) -> None:
    """Print an answer as a table, or the reason why it is empty."""
    if answer.hits:
        columns = [("", "right"), ("score", "right"), ("tool", "left"), ("what it does", "wrap")]
        rows = [
            (rank, f"{hit.score:.2f}", clip(hit.id, 56), clip(hit.tool.description if hit.tool else "", 110))
            for rank, hit in enumerate(answer.hits, 1)
        ]
        if explain:
            columns.insert(3, ("why", "left"))
            pairs = zip(rows, answer.hits, strict=True)
            rows = [(*row[:3], hit.why, row[3]) for row, hit in pairs]  # type: ignore[misc]
        table(columns, rows)
    if answer.reason or not answer.hits:
        reason = escape_line(str(answer.reason))
        echo(f"{'note' if answer.hits else (answer.answer or 'nothing').replace('_', ' ')}: {reason}")
    if explain:
        table(
            [("stage", "left"), ("ms", "right"), ("note", "wrap")],
            [(step.stage, f"{step.seconds * 1000:.2f}", step.note) for step in answer.trace],
        )
    echo(f"{len(answer.hits)} tools in {answer.seconds * 1000:.1f} ms")
