"""The commands `lab convert` and `lab leaderboard`: datasets from other projects, and a table of results for a page."""

from __future__ import annotations

from pathlib import Path

import click

from toolscout.cli.output import choose_home, echo, print_failure, progress
from toolscout.settings import load_settings


@click.command("convert")
@click.argument("source", metavar="FOLDER|NAME")
@click.option("--out", required=True, metavar="DIR", help="New folder for the dataset.")
@click.option("--mirror", default="", metavar="URL", help="Download NAME from this address instead of its authors'.")
@click.pass_context
def convert_command(ctx: click.Context, source: str, out: str, mirror: str) -> None:
    """Make a dataset folder from FOLDER, in the layout of MTEB, ToolRet, ToolBench or SkillRet, or from a download.

    NAME is toollens or skillret. Its licence is said before the download, and its files are compared with their
    digests. Of toolret, toolbank, toolbench-g2 and toolbench-g3, the command says where to get them by hand.

    SkillRet becomes two folders, for `toolscout lab transfer DIR/train DIR/test`. A folder of BEIR needs no conversion.
    The texts keep their authors' licence.
    """
    from toolscout_lab.layouts import convert, fetch, load_published

    published = load_published().get(source)
    if published is None or Path(source).exists():
        datasets = convert(Path(source), Path(out))
    else:
        settings = load_settings(**choose_home(ctx))
        echo(f"{source}: from {published.page}. Licence: {published.licence}. {published.note}", err=True)
        with progress(f"downloading {source}") as say:
            datasets = fetch(source, Path(out), settings, mirror=mirror, say=say)
    for dataset in datasets:
        splits = ", ".join(f"{len(qrels):,} {split}" for split, qrels in dataset.qrels.items())
        click.echo(f"{dataset.folder}: {len(dataset.corpus_ids()):,} tools; queries: {splits}")


@click.command("leaderboard")
@click.argument("folder", default="benchmarks/results", metavar="[DIR]")
@click.option("--measure", default="ndcg@5", show_default=True, help="Measure of the results.")
@click.option("--dataset", "names", multiple=True, metavar="DATASET", help="Dataset; may be repeated. Default: all.")
def leaderboard_command(folder: str, measure: str, names: tuple[str, ...]) -> int:
    """Print the results in DIR as a Markdown table: labels by datasets, best mean first.

    The mean is over the datasets that every label in the table has been measured on.
    """
    from toolscout_lab.report.leaderboard import make_leaderboard

    lines, problems = make_leaderboard(Path(folder), measure, names)
    click.echo("\n".join(lines))
    for problem in problems:
        print_failure(f"{problem.entry}: {problem.message}")
    return 3 if problems else 0
