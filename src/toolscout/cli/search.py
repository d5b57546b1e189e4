"""The commands `search` and `why`."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from toolscout.cli.options import Spender, Spent, budget_options, describe_cost, print_cost, set_option
from toolscout.cli.output import (
    clip,
    count_things,
    echo,
    encoder_option,
    escape_line,
    json_option,
    model_option,
    print_json,
    print_table,
    recipe_option,
    suggest_names,
    with_scout,
)
from toolscout.errors import Unavailable, find_nearest
from toolscout.scout import Scout
from toolscout.search.why import Why
from toolscout.types import KINDS, Count, Hit, Kind, Search, keep_kind
from toolscout.types import as_json as to_json

DEADLINE_HELP: Final = "Return what is found after this time, such as the hits before a language model answers."
PRINTED_DESCRIPTION_CHARS: Final = 110
PRINTED_STEP_CHARS: Final = 32


Column = tuple[str, str, Callable[[int, Hit], object]]
"""(heading, form as in `print_table`, function that returns the cell of a rank and a hit)"""


class _Count(click.ParamType[Count]):
    """A number of tools, or `auto`."""

    name = "number|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Count:
        """Return the number, or `auto`."""
        return "auto" if value == "auto" else int(click.IntRange(min=1).convert(value, param, ctx))


@click.command("search")
@click.argument("query")
@click.option("-k", type=_Count(), help="Maximum number of tools (5); auto: as many as the request needs.")
@recipe_option
@model_option
@set_option
@click.option("--deadline", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help=DEADLINE_HELP)
@click.option("--kind", type=click.Choice(KINDS), help="Only tools, only skills, or only agents.")
@click.option("--explain", is_flag=True, help="Show why each tool was returned, and what each stage did.")
@encoder_option
@budget_options
@json_option
@with_scout
def search_command(
    scout: Scout,
    query: str,
    k: Count | None,
    deadline: float | None,
    kind: Kind | None,
    explain: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Find the tools that QUERY needs."""
    _require_words(query)
    extras = scout.engine.builder.extras  # what packages lend rankers, such as a language model
    extras.rehearse = dry_run  # it then counts what it would be asked, and is asked nothing
    with contextlib.suppress(Unavailable):  # the search then says what does not answer
        scout.pipeline()  # opening the index does not count as search time
    deadline = None if deadline is None else time.monotonic() + deadline
    answer = scout.search(query, k, deadline=deadline, visible=keep_kind(kind))
    extras.close()  # what is still asked ends, so that the cost is final
    spenders = [item for item in extras.list_items() if isinstance(item, Spender)]
    spent = spenders[0].spent if spenders else Spent()  # all rankers share one language model
    if as_json:
        print_json(describe_cost(spent) if dry_run else to_json(answer))
    elif not dry_run:
        print_search(answer, explain=explain, is_first=True)
        _print_waiting(scout.store.count_waiting())
    if dry_run or spent.calls:
        print_cost(spent, dry_run=dry_run)


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
    _require_words(query)
    catalogue_ids = scout.store.catalogue().ids
    id_as_query = find_nearest(query, catalogue_ids) if "/" in query else None
    if id_as_query is not None and tool not in catalogue_ids:
        raise click.UsageError(f"The query comes first:  toolscout why {shlex.quote(tool)} {id_as_query}")
    with suggest_names(scout, tool, kind="tool"):
        explanation = scout.why(query, tool, k)
    if as_json:
        print_json(explanation)
        return
    _print_explanation(explanation)


def _require_words(query: str) -> None:
    """Raise a UsageError for a query that is empty or blank."""
    if not query.strip():
        raise click.UsageError("expected words to search for as QUERY, found an empty text")


def _print_explanation(explanation: Why) -> None:
    """Print where the tool is in the ranking, why, what would lift it, and which tools are returned instead."""
    where = "no stage reaches it" if explanation.rank is None else f"rank {explanation.rank}"
    verdict = "returned" if explanation.shown else "not returned"
    echo(f"{escape_line(explanation.tool)}: {verdict}, {where} (of {explanation.k} asked for)\n")
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
        echo("  words that match: " + ", ".join(f"{word} ({score:.2f})" for word, score in explanation.matched.items()))
    if explanation.missing:
        echo("  words it lacks: " + ", ".join(explanation.missing))


def _print_list(heading: str, lines: Sequence[str]) -> None:
    """Print the lines under a heading, after an empty line. Without lines nothing is printed."""
    if lines:
        echo(f"\n{heading}")
    for line in lines:
        echo(f"  {escape_line(line)}")


def print_search(answer: Search, *, explain: bool = False, is_first: bool = False) -> None:
    """Print an answer: a table of the hits, or why there are none, and notes.

    Args:
        answer: of the search.
        explain: whether to print all hits, and what each stage did. Else the last hits with a score of 0.00 are left
            out.
        is_first: whether the time includes loading what the first search of a process needs.
    """
    hits = answer.hits if explain else _drop_zeros(answer.hits)
    if hits:
        _print_hits(hits, explain=explain, with_steps=bool(answer.steps))
    for step in answer.uncovered:
        echo(f"no tool seems to fit the step: {escape_line(step)}")
    if answer.reason or not answer.hits:
        echo(f"{_name_reason(answer)}: {escape_line(str(answer.reason))}")
    if answer.degraded:
        echo(escape_line(f"note: {answer.degraded}"), err=True)
    if explain:
        print_table(
            [("stage", "left"), ("ms", "right"), ("note", "wrap")],
            [(step.stage, f"{step.seconds * 1000:.2f}", step.note) for step in answer.trace],
        )
    left_out = f"; {len(answer.hits) - len(hits)} more with the score 0.00" if len(hits) < len(answer.hits) else ""
    loading = " (with loading)" if is_first else ""
    echo(f"{count_things(len(hits), 'tool')} in {answer.seconds * 1000:.1f} ms{loading}{left_out}")


def _drop_zeros(hits: Sequence[Hit]) -> Sequence[Hit]:
    """Return the hits without the last ones whose scores are shown as 0.00; all hits if no score is higher."""
    n_kept = max((rank for rank, hit in enumerate(hits, 1) if round(hit.score, 2)), default=len(hits))
    return hits[:n_kept]


def _print_waiting(n_waiting: int) -> None:
    """Print how many definitions wait for approval, so that nobody looks for their tools among the hits."""
    if n_waiting:
        waits = count_things(n_waiting, "definition waits", "definitions wait")
        echo(f"{waits} for approval and can't be found: see  toolscout approve", dim=True)


def _name_reason(answer: Search) -> str:
    """Return the words before the reason of an answer, such as `no tool fits` or `low confidence`."""
    if not answer.hits:
        return (answer.kind or "nothing").replace("_", " ")
    return "low confidence" if answer.is_doubtful else "note"


def _print_hits(hits: Sequence[Hit], *, explain: bool, with_steps: bool) -> None:
    columns = _choose_columns(hits, explain=explain, with_steps=with_steps)
    rows = [[make_cell(rank, hit) for _, _, make_cell in columns] for rank, hit in enumerate(hits, 1)]
    print_table([(heading, form) for heading, form, _ in columns], rows)
    for hit in hits if explain else ():
        if hit.similar:
            echo(f"similar to {escape_line(hit.id)}: {escape_line(', '.join(hit.similar))}")


def _choose_columns(hits: Sequence[Hit], *, explain: bool, with_steps: bool) -> list[Column]:
    """Choose the columns of the table. Reasons have a column if asked for, or if a hit is a prerequisite."""
    columns: list[Column] = [
        ("", "right", lambda rank, hit: rank),
        ("score", "right", lambda rank, hit: f"{round(hit.score, 2) + 0.0:.2f}"),  # `+ 0.0` makes 0.00 of -0.00
        ("tool", "id", lambda rank, hit: hit.id),
    ]
    if with_steps:
        columns.append(("step", "left", lambda rank, hit: clip(hit.step or "(the whole request)", PRINTED_STEP_CHARS)))
    if explain:
        columns.append(("why", "left", lambda rank, hit: hit.why))
    elif any(hit.role == "prerequisite" for hit in hits):
        columns.append(("prerequisite", "wrap", lambda rank, hit: hit.why if hit.role == "prerequisite" else ""))
    columns.append(("what it does", "wrap", lambda rank, hit: _describe_hit(hit)))
    return columns


def _describe_hit(hit: Hit) -> str:
    similar = f"(+{len(hit.similar)} similar) " if hit.similar else ""
    return similar + clip(hit.tool.description if hit.tool else "", PRINTED_DESCRIPTION_CHARS)
