"""The commands `learn`, `promote` and `rollback`."""

from __future__ import annotations

import os

import click

from toolscout.cli.output import json_option, print_json, print_table, progress, with_scout
from toolscout.home.models import champion
from toolscout.learn.gate import PromotionVerdict
from toolscout.learn.loop import BUDGET_MS, FULL_RECIPE, Report, learn
from toolscout.recipes.registry import check_model
from toolscout.scout import Scout


@click.command("learn")
@click.option(
    "--recipe",
    "-r",
    "names",
    multiple=True,
    help="Recipe to fit; may be repeated. Default: scout-light.",
)
@click.option("--full", is_flag=True, help="Fit scout-full, which tunes two encoders. Needs the extra `train`.")
@click.option("--dry-run", is_flag=True, help="Fit and test, but promote nothing.")
@click.option(
    "--latency-ms",
    type=click.FloatRange(min=0, min_open=True),
    default=BUDGET_MS,
    show_default=True,
    help="Processor time that 95 % of the searches must keep.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the fits and the tests.")
@click.option(
    "--nice",
    "niceness",
    type=click.IntRange(0, 19),
    default=10,
    show_default=True,
    help="Lower the priority of this process by so much, so that searches stay fast.",
)
@json_option
@with_scout
def learn_command(
    scout: Scout,
    names: tuple[str, ...],
    full: bool,
    dry_run: bool,
    latency_ms: float,
    seed: int,
    niceness: int,
    as_json: bool,
) -> None:
    """Learn from the journal: fit recipes on requests with successful calls, and promote a better one.

    The newest requests are held out for a paired test. A candidate is promoted if it ranks them better than the
    champion, if no single caller decides the test, and if it is nowhere worse than its allowance. Otherwise the report
    says why not. An interrupted run continues at the next call. Running services use a new champion at their next
    search.
    """
    if niceness and hasattr(os, "nice"):
        os.nice(max(0, niceness - os.nice(0)))  # `nice` adds to the present value, which `nice(0)` returns
    if full:
        names = (*names, FULL_RECIPE)
    with progress("learning") as say:
        report = learn(scout, recipes=names, dry_run=dry_run, budget_ms=latency_ms, seed=seed, say=say)
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def _print_report(report: Report) -> None:
    if report.candidates:
        _print_candidates(report)
    if report.verdict is not None:
        _print_verdict(report.verdict, report.champion)
    click.echo(f"{report.outcome.replace('-', ' ')}: {report.reason}")


def _print_candidates(report: Report) -> None:
    """Print the recipes that were tried: measures on dev, seconds of the fit, and what became of them."""
    measures = list(dict.fromkeys(name for candidate in report.candidates for name in candidate.dev))
    columns = [("candidate", "left"), *((f"dev {name}", "right") for name in measures)]
    rows = [
        (
            candidate.model or candidate.recipe,
            *(f"{100 * candidate.dev[name]:.1f}" if name in candidate.dev else "" for name in measures),
            f"{candidate.seconds:.0f}" if candidate.model else "",
            candidate.problem or ("chosen" if candidate.model == report.candidate else ""),
        )
        for candidate in report.candidates
    ]
    print_table([*columns, ("seconds", "right"), ("", "wrap")], rows)


def _print_verdict(verdict: PromotionVerdict, champion: str) -> None:
    """Print each measure of the champion (now) and of the candidate (then), with interval and p of the difference."""
    columns = [("on the newest requests", "left"), *((name, "right") for name in ("now", "then", "95 %", "p"))]
    rows = [
        (
            name,
            f"{100 * row['champion']:.1f}",
            f"{100 * row['candidate']:.1f}",
            "{:+.1f} to {:+.1f}".format(*(100 * bound for bound in row["ci95"])),
            f"{row['p']:.2g}",
        )
        for name, row in verdict.tests.items()
    ]
    print_table(columns, rows)
    click.echo(f"comparison {verdict.look} with {champion}: a better candidate needs p < {verdict.level:.2g}")


@click.command("promote")
@click.argument("name", metavar="ID")
@json_option
@with_scout
def promote_command(scout: Scout, name: str, as_json: bool) -> None:
    """Make the model ID the champion, whatever its tests say. `toolscout models` lists the models."""
    promotion = champion.promote(scout.settings.place, name, "by hand", check=check_model)
    if as_json:
        print_json(promotion)
    else:
        click.echo(f"{promotion.model} serves from now on")


@click.command("rollback")
@json_option
@with_scout
def rollback_command(scout: Scout, as_json: bool) -> None:
    """Roll back to the former champion, or to the recipe of the settings if there was none."""
    former = champion.rollback(scout.settings.place)
    if as_json:
        print_json({"champion": former})
    else:
        click.echo(f"{former.model if former else scout.settings.recipe} serves again")
