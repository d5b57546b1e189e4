"""selftest."""

from __future__ import annotations

from pathlib import Path

import click

from toolscout.checks.selftest import Selftest, floor, read_floor, selftest
from toolscout.cli.output import json_option, print_json, progress, table, with_scout
from toolscout.errors import SourceError
from toolscout.scout import Scout


@click.command("selftest")
@click.option("--recipe", "-r", "names", multiple=True, help="One more recipe to score; may be repeated.")
@click.option("--most", type=click.IntRange(min=1), default=1_000, show_default=True, help="Requests by rule at most.")
@click.option("--seed", default=0, show_default=True, help="Of the requests.")
@click.option("--min-recall", type=click.FloatRange(0, 1), help="Exit 1 where recall@5 of what serves now is below.")
@click.option("--write", "target", metavar="FILE", type=click.Path(path_type=Path), help="Write a floor file for CI.")
@click.option("--check", metavar="FILE", type=click.Path(path_type=Path), help="Exit 1 below the floor of this file.")
@json_option
@with_scout
def selftest_command(
    scout: Scout,
    names: tuple[str, ...],
    most: int,
    seed: int,
    min_recall: float | None,
    target: Path | None,
    check: Path | None,
    as_json: bool,
) -> int:
    """Ask for your own tools in other words, score the recipes on that, and recommend one.

    The requests are made by rule from names, descriptions and parameters, and taken from the journal where it holds
    enough. The figures compare recipes and watch for loss; they do not say how well people are served.
    """
    way, _ = scout.serving()
    serving = "champion" if way.model is not None else way.recipe
    wanted, lowest = read_floor(check) if check else (serving, min_recall)
    extra = [name for name in (*names, serving, wanted) if name != "champion"]
    with progress("asking") as say:
        found = selftest(scout, recipe=extra, most=most, seed=seed, say=say)
    if target is not None:
        try:
            target.write_bytes(floor(found, serving))
        except OSError as error:
            raise SourceError(f"{target}: expected a file to write, found: {error.strerror}") from None
    print_json(found) if as_json else _show(found, serving)
    for recipe, floor_of in ((wanted, lowest), (serving, min_recall)):
        if floor_of is not None and found.row(recipe).measures["recall@5"] < floor_of:
            reached = found.row(recipe).measures["recall@5"]
            click.echo(
                f"toolscout: expected recall@5 of {recipe} to be at least {floor_of:.4f}, found {reached:.4f}: "
                "see  toolscout lint",
                err=True,
            )
            return 1
    return 0


def _show(found: Selftest, serving: str) -> None:
    kinds = [kind for kind in found.requests if kind != "no-tool"]
    columns = [("recipe", "left"), *((name, "right") for name in found.rows[0].measures)]
    columns += [(f"{kind} ({found.requests[kind]:,})", "right") for kind in kinds]
    rows = [
        (
            row.recipe,
            *(f"{100 * value:.1f}" for value in row.measures.values()),
            *(f"{100 * row.kinds[kind]['recall@5']:.1f}" if kind in row.kinds else "" for kind in kinds),
            f"{100 * row.no_tool:.0f}",
        )
        for row in found.rows
    ]
    table([*columns, ("no tool", "right")], rows, title=f"{found.n_tools:,} tools; kinds of requests by recall@5")
    for recipe, problem in found.problems.items():
        click.echo(f"{recipe}: {problem}")
    surely = "" if found.sure else ", though not significantly better than the next"
    advice = "" if found.recommended == serving else f" (what serves now is {serving})"
    click.echo(f"recommended: {found.recommended}{surely}{advice}")
