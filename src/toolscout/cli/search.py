"""The commands `search` and `why`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from toolscout.cli.output import (
    clip,
    echo,
    encoder_option,
    escape_line,
    json_option,
    model_option,
    print_json,
    print_table,
    recipe_option,
    with_scout,
)
from toolscout.scout import Scout
from toolscout.search.why import Why
from toolscout.types import Hit, Search
from toolscout.types import as_json as to_json

PRINTED_ID_CHARS: Final = 56
PRINTED_DESCRIPTION_CHARS: Final = 110
PRINTED_STEP_CHARS: Final = 32


@click.command("search")
@click.argument("query")
@click.option("-k", type=click.IntRange(min=1), help="Maximum number of tools (5).")
@recipe_option
@model_option
@click.option("--explain", is_flag=True, help="Show why each tool was returned, and what each stage did.")
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
    _print_ranks(explanation)
    _print_list("why", [f"- {sentence}" for sentence in explanation.causes])
    _print_list("what would lift it", [f"- {sentence}" for sentence in explanation.fixes])
    if not explanation.shown:
        _print_list("returned instead", [f"{score:6.2f}  {tool_id}" for tool_id, score in explanation.ahead])


def _print_ranks(explanation: Why) -> None:
    """Print the rank that each stage gave the tool, and the words that counted."""
    for stage in explanation.stages:
        rank = "not ranked" if stage.rank is None else f"rank {stage.rank}, score {stage.score:.2f}"
        echo(f"  {stage.stage}: {rank}" + (f" ({escape_line(stage.note)})" if stage.note else ""))
    if explanation.matched:
        echo("  words that match: " + ", ".join(f"{word} ({part:.2f})" for word, part in explanation.matched.items()))
    if explanation.missing:
        echo("  words it lacks: " + ", ".join(explanation.missing))


def _print_list(heading: str, lines: Sequence[str]) -> None:
    """Print the lines under a heading, after an empty line. Without lines nothing is printed."""
    if lines:
        echo(f"\n{heading}")
    for line in lines:
        echo(f"  {escape_line(line)}")


def print_search(answer: Search, *, explain: bool = False) -> None:
    """Print an answer as a table, or the reason why it is empty."""
    if answer.hits:
        _print_hits(answer.hits, explain=explain, with_steps=bool(answer.steps))
    for step in answer.uncovered:
        echo(f"no tool fits the step: {escape_line(step)}")
    if answer.reason or not answer.hits:
        reason = escape_line(str(answer.reason))
        echo(f"{'note' if answer.hits else (answer.answer or 'nothing').replace('_', ' ')}: {reason}")
    if explain:
        print_table(
            [("stage", "left"), ("ms", "right"), ("note", "wrap")],
            [(step.stage, f"{step.seconds * 1000:.2f}", step.note) for step in answer.trace],
        )
    echo(f"{len(answer.hits)} tools in {answer.seconds * 1000:.1f} ms")


def _print_hits(hits: Sequence[Hit], *, explain: bool, with_steps: bool) -> None:
    columns = [("", "right"), ("score", "right"), ("tool", "left")]
    columns += [("step", "left")] if with_steps else []
    columns += [("why", "left")] if explain else []
    rows = []
    for rank, hit in enumerate(hits, 1):
        row = [str(rank), f"{hit.score:.2f}", clip(hit.id, PRINTED_ID_CHARS)]
        row[2] += f" +{len(hit.similar)} similar" if hit.similar else ""
        row += [clip(hit.step or "(the whole request)", PRINTED_STEP_CHARS)] if with_steps else []
        row += [hit.why] if explain else []
        row += [clip(hit.tool.description if hit.tool else "", PRINTED_DESCRIPTION_CHARS)]
        rows.append(row)
    print_table([*columns, ("what it does", "wrap")], rows)
    if explain:
        for hit in hits:
            if hit.similar:
                echo(f"similar to {escape_line(hit.id)}: {escape_line(', '.join(hit.similar))}")
