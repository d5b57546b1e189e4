"""The commands `learn`, `promote` and `rollback`."""

from __future__ import annotations

import os

import click

from toolscout.cli.output import json_option, print_json, progress, table, with_scout
from toolscout.learn.gate import Verdict
from toolscout.learn.loop import BUDGET_MS, Report, learn
from toolscout.models import champion
from toolscout.scout import Scout


@click.command("learn")
@click.option(
    "--recipe",
    "-r",
    "names",
    multiple=True,
    help="A recipe to fit; by default the light ones that suit the data. May be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Fit and test, but promote nothing.")
@click.option(
    "--latency-ms",
    type=click.FloatRange(min=0, min_open=True),
    default=BUDGET_MS,
    show_default=True,
    help="Processor time that 95 % of the searches may take.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the fits and the tests.")
@click.option(
    "--nice",
    "niceness",
    type=click.IntRange(0, 19),
    default=10,
    show_default=True,
    help="Lower the priority of this process, so that searches stay fast; 0: not at all.",
)
@json_option
@with_scout
def learn_command(
    scout: Scout, names: tuple[str, ...], dry_run: bool, latency_ms: float, seed: int, niceness: int, as_json: bool
) -> None:
    """Learn from the journal: fit recipes on requests with successful calls, and promote a better one.

    The newest requests are held out. A candidate is promoted if it ranks them better than the present champion in a
    paired test that no single caller can decide, and loses nowhere more than its allowance. Otherwise the report says
    why not. An interrupted run continues at the next call. Running services use a new champion at their next search.
    """
    if niceness and hasattr(os, "nice"):
        os.nice(max(0, niceness - os.nice(0)))
    with progress("learning") as say:
        report = learn(scout, recipes=names, dry_run=dry_run, budget_ms=latency_ms, seed=seed, say=say)
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def _print_report(report: Report) -> None:
    figures = list(dict.fromkeys(name for each in report.candidates for name in each.dev))
    if report.candidates:
        columns = [("candidate", "left"), *((f"dev {name}", "right") for name in figures)]
        rows = [
            (
                each.model or each.recipe,
                *(f"{100 * each.dev[name]:.1f}" if name in each.dev else "" for name in figures),
                f"{each.seconds:.0f}" if each.model else "",
                each.problem or ("chosen" if each.model == report.candidate else ""),
            )
            for each in report.candidates
        ]
        table([*columns, ("seconds", "right"), ("", "wrap")], rows)
    if report.verdict is not None:
        _print_verdict(report.verdict, report.champion)
    click.echo(f"{report.outcome.replace('-', ' ')}: {report.reason}")


def _print_verdict(verdict: Verdict, champion: str) -> None:
    columns = [("on the newest requests", "left"), *((name, "right") for name in ("now", "then", "95 %", "p"))]
    rows = [
        (
            name,
            f"{100 * row['champion']:.1f}",
            f"{100 * row['candidate']:.1f}",
            "{:+.1f} to {:+.1f}".format(*(100 * each for each in row["ci95"])),
            f"{row['p']:.2g}",
        )
        for name, row in verdict.tests.items()
    ]
    table(columns, rows)
    click.echo(f"look {verdict.look} at the place of {champion}: better takes p < {verdict.level:.2g}")


@click.command("promote")
@click.argument("name", metavar="ID")
@json_option
@with_scout
def promote_command(scout: Scout, name: str, as_json: bool) -> None:
    """Make a model of the home the champion, whatever its tests say; `toolscout models` lists them."""
    done = champion.promote(scout.settings.home, name, "by hand")
    print_json(done) if as_json else click.echo(f"{done.model} serves from now on")


@click.command("rollback")
@json_option
@with_scout
def rollback_command(scout: Scout, as_json: bool) -> None:
    """Roll back to the former champion, or to the recipe of the settings if there was none."""
    left = champion.rollback(scout.settings.home)
    if as_json:
        print_json({"champion": left})
    else:
        click.echo(f"{left.model if left else scout.settings.recipe} serves again")
