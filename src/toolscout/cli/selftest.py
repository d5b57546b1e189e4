"""The command `selftest`: measures how well the catalogue's tools are found."""

from __future__ import annotations

from pathlib import Path

import click

from toolscout.checks.selftest import Selftest, encode_baseline, read_baseline, run_selftest
from toolscout.cli.output import count_things, json_option, print_failure, print_json, print_table, progress, with_scout
from toolscout.errors import SourceError
from toolscout.scout import Scout


@click.command("selftest")
@click.option("--recipe", "-r", "names", multiple=True, help="Another recipe to score; may be repeated.")
@click.option(
    "--most",
    "max_queries",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    help="Maximum number of synthetic queries.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the synthetic queries.")
@click.option("--min-recall", type=click.FloatRange(0, 1), help="Exit 1 if recall@5 of the serving recipe is lower.")
@click.option("--write", "target", metavar="FILE", type=click.Path(path_type=Path), help="Write a baseline for CI.")
@click.option(
    "--check", metavar="FILE", type=click.Path(path_type=Path), help="Exit 1 if recall@5 is below this baseline."
)
@json_option
@with_scout
def selftest_command(
    scout: Scout,
    names: tuple[str, ...],
    max_queries: int,
    seed: int,
    min_recall: float | None,
    target: Path | None,
    check: Path | None,
    as_json: bool,
) -> int:
    """Measure how well your own tools are found, and recommend a recipe.

    Queries are generated from names, descriptions and parameters. If the journal holds enough queries, those are used
    too. The figures compare recipes and reveal regressions. They do not say how well people are served.
    """
    selection, _ = scout.engine.serving()
    serving = "champion" if selection.model is not None else selection.recipe
    checked, baseline = read_baseline(check) if check else (serving, min_recall)  # a recipe and its minimum
    more_recipes = [name for name in (*names, serving, checked) if name != "champion"]
    with progress("searching") as say:
        result = run_selftest(scout, recipe=more_recipes, max_queries=max_queries, seed=seed, say=say)
    if target is not None:
        try:
            target.write_bytes(encode_baseline(result, serving))
        except OSError as error:
            raise SourceError(f"{target} cannot be written ({error.strerror}).") from None
    if as_json:
        print_json(result)
    else:
        _print_result(result, serving)
    for recipe, minimum in ((checked, baseline), (serving, min_recall)):  # equal if there is no baseline
        if minimum is None:
            continue
        recall = result.row(recipe).measures["recall@5"]
        if recall < minimum:
            print_failure(
                f"recall@5 of {recipe} is {recall:.4f}, below the required {minimum:.4f}. "
                "Run  toolscout lint  to see which tools are not found."
            )
            return 1
    return 0


def _print_result(result: Selftest, serving: str) -> None:
    """Print a table of the recipes, and which is recommended. `serving` is the recipe that answers searches now."""
    kinds = [kind for kind in result.requests if kind != "no-tool"]
    columns = [("recipe", "left"), *((name, "right") for name in result.rows[0].measures)]
    columns += [(f"{kind} ({result.requests[kind]:,})", "right") for kind in kinds]
    rows = [
        (
            row.recipe,
            *(f"{100 * value:.1f}" for value in row.measures.values()),
            *(f"{100 * row.kinds[kind]['recall@5']:.1f}" if kind in row.kinds else "" for kind in kinds),
            f"{100 * row.no_tool:.0f}",
        )
        for row in result.rows
    ]
    print_table(
        [*columns, ("chat turned away", "right")],
        rows,
        title=f"{count_things(result.n_tools, 'tool')}; kinds of requests by recall@5",
    )
    for recipe, problem in result.problems.items():
        click.echo(f"{recipe}: {problem}")
    click.echo(_recommend(result, serving, sum(result.requests[kind] for kind in kinds)))


def _recommend(result: Selftest, serving: str, n_queries: int) -> str:
    """Say which recipe is best, or why none is recommended."""
    if result.recommended is None:
        queries = count_things(n_queries, "query", "queries")
        return (
            f"{queries} cannot tell which recipe is better, so none is recommended ({serving} serves now). "
            "Add more tools with descriptions."
        )
    certainty = "" if result.sure else ", though not significantly better than the next"
    present = "" if result.recommended == serving else f" ({serving} serves now)"
    note = f"\n{result.note}" if result.note else ""
    return f"recommended: {result.recommended}{certainty}{present}{note}"
