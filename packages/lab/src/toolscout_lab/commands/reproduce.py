"""The command `lab reproduce`: makes the measurements of a paper and writes a page with its figures beside ours."""

from __future__ import annotations

import re
from pathlib import Path

import click

from toolscout.cli.options import data_option, find_root, print_cost
from toolscout.cli.output import choose_home, encoder_option, print_failure, print_table, print_warning, progress
from toolscout.errors import ConfigError
from toolscout.settings import load_settings
from toolscout_lab.commands.llm import share_llm

PAPERS = ("colt", "feedback", "masstool", "tool2vec", "toolrerank")
UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@click.command("reproduce")
@click.argument("paper", type=click.Choice(PAPERS))
@click.argument("dataset", required=False, metavar="[DATASET]")
@click.option("--budget", metavar="TIME", help="Time for everything, such as 2m or 3h. Default: as long as it takes.")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1, 10), help="Number of seeds, from 0.")
@click.option("--only", multiple=True, metavar="LABEL", help="Make this run alone; may be repeated.")
@click.option("--plan", is_flag=True, help="Print the runs and their minutes; run nothing.")
@click.option("--allow-dirty", is_flag=True, help="Allow uncommitted changes when writing into the repository.")
@encoder_option
@data_option
@click.option("--out", default="reproduced", show_default=True, metavar="DIR", help="Folder of results and charts.")
@click.option("--llm-budget", metavar="LIMITS", help="Limits of the language model's calls. Default: llm_budget.")
@click.pass_context
def reproduce_command(
    ctx: click.Context,
    paper: str,
    dataset: str | None,
    budget: str | None,
    seeds: int,
    only: tuple[str, ...],
    plan: bool,
    allow_dirty: bool,
    encoder: str | None,
    data: str | None,
    out: str,
    llm_budget: str | None,
) -> int:
    """Make the measurements of PAPER, and write a page with the paper's figures, ours and the differences.

    Finished runs are kept, so run it again to continue. If --budget is too short for all queries, each run gets a
    sample of them, and the page says so. Runs that ask a language model are left out unless the setting llm names one.
    """
    from toolscout_lab.report import report
    from toolscout_lab.reproduce import Figures, Reproduction, load_papers, reproduce, write_page

    settings = load_settings(**choose_home(ctx))
    with share_llm(settings, llm_budget=llm_budget) as shared:
        job = Reproduction(
            paper,
            Path(out),
            root=find_root(data),
            dataset=dataset,
            encoder=encoder,
            budget_s=parse_time(budget) if budget else None,
            seeds=seeds,
            only=only,
            settings=settings,
            llm=shared if settings.llm else None,
        )
        if plan:
            runs, own = job.list_runs(), dataset or load_papers()[paper].dataset
            print_table(
                [("run", "left"), ("dataset", "left"), ("minutes", "right")],
                [
                    (run.label or run.recipe, run.dataset or own, f"{minutes:.3g}")
                    for run, minutes in zip(runs, job.estimate_minutes(job.load_own()), strict=True)
                ],
            )
            return 0
        with progress(f"reproducing {paper}") as say:
            outcome = reproduce(job, allow_dirty=allow_dirty, say=say)
    if shared.spent.calls:
        print_cost(shared.spent, dry_run=False)
    for failure in outcome.failures:
        print_failure(failure)
    if outcome.left:
        print_warning(f"The budget left out {len(outcome.left)} of {len(outcome.left) + len(outcome.finished)} runs.")
    if not outcome.finished:
        return 1
    figures = Figures(job.out, {name: measured.name for name, measured in outcome.datasets.items()})
    charts = report(job.out, job.out / "report", data=job.root)
    page = job.out / "report" / f"{paper}.md"
    page.write_text(write_page(paper, figures, measured=outcome.describe()), encoding="utf-8")
    for path in (page, *charts):
        click.echo(path)
    return 3 if outcome.failures or outcome.left else 0


def parse_time(text: str) -> float:
    """Return the seconds of a time such as `90s`, `2m` or `3h`.

    Raises:
        ConfigError: if it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"--budget: expected a time such as 90s, 2m or 3h, found {text!r}")
    return float(match[1]) * UNIT_SECONDS[match[2]]
