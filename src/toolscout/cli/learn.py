"""learn, promote, rollback."""

from __future__ import annotations

import os

import click

from toolscout.cli.output import json_option, print_json, progress, table, with_scout
from toolscout.learn.loop import BUDGET_MS, Report, learn
from toolscout.models import champion
from toolscout.scout import Scout


@click.command("learn")
@click.option("--recipe", "-r", "names", multiple=True, help="What to fit; by default the light ones that suffice.")
@click.option("--dry-run", is_flag=True, help="Fit and test, but promote nothing.")
@click.option(
    "--latency-ms",
    type=click.FloatRange(min=0, min_open=True),
    default=BUDGET_MS,
    show_default=True,
    help="What 95 % of the searches may take, processor time.",
)
@click.option("--seed", default=0, show_default=True, help="Of the fits and the tests.")
@click.option(
    "--nice",
    "niceness",
    type=click.IntRange(0, 19),
    default=10,
    show_default=True,
    help="How far to stand back behind what else runs here, such as those who search; 0: not at all.",
)
@json_option
@with_scout
def learn_command(
    scout: Scout, names: tuple[str, ...], dry_run: bool, latency_ms: float, seed: int, niceness: int, as_json: bool
) -> None:
    """Learn from the journal: fit recipes on the requests that successful calls followed, and promote what is better.

    The newest requests are held out. A candidate is promoted if it ranks better there than what serves now, by a paired
    test that no single caller can decide, and loses nowhere more than its allowance; else it is said why not.
    Interrupted, it goes on at the next call. Whatever serves meanwhile takes a new champion at its next search.
    """
    if niceness and hasattr(os, "nice"):
        os.nice(max(0, niceness - os.nice(0)))
    with progress("learning") as say:
        report = learn(scout, recipes=names, dry_run=dry_run, budget_ms=latency_ms, seed=seed, say=say)
    if as_json:
        print_json(report)
    else:
        _show(report)


def _show(report: Report) -> None:
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
        columns = [("on the newest requests", "left"), *((name, "right") for name in ("now", "then", "95 %", "p"))]
        rows = [
            (
                name,
                f"{100 * row['champion']:.1f}",
                f"{100 * row['candidate']:.1f}",
                "{:+.1f} to {:+.1f}".format(*(100 * each for each in row["ci95"])),
                f"{row['p']:.2g}",
            )
            for name, row in report.verdict.tests.items()
        ]
        table(columns, rows)
        click.echo(
            f"look {report.verdict.look} at the place of {report.champion}: better takes p < {report.verdict.level:.2g}"
        )
    click.echo(f"{report.outcome.replace('-', ' ')}: {report.reason}")


@click.command("promote")
@click.argument("name", metavar="ID")
@json_option
@with_scout
def promote_command(scout: Scout, name: str, as_json: bool) -> None:
    """Make a model of the home the champion, whatever a test says; `toolscout models` lists them."""
    done = champion.promote(scout.settings.home, name, "by hand")
    print_json(done) if as_json else click.echo(f"{done.model} serves from now on")


@click.command("rollback")
@json_option
@with_scout
def rollback_command(scout: Scout, as_json: bool) -> None:
    """Let the former champion serve again; before the first promotion that is the recipe of the settings."""
    left = champion.rollback(scout.settings.home)
    if as_json:
        print_json({"champion": left})
    else:
        click.echo(f"{left.model if left else scout.settings.recipe} serves again")
