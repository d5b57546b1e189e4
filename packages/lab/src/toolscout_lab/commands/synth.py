"""The commands `lab synth …`: a language model writes datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from toolscout.cli.options import data_option, describe_cost, find_root, print_cost
from toolscout.cli.output import clip, json_option, print_json, progress
from toolscout.errors import ConfigError
from toolscout_lab.commands.llm import load_llm_settings, open_llm, spending_options
from toolscout_lab.machine import Record

if TYPE_CHECKING:
    from toolscout.settings import Settings
    from toolscout.types import Tool
    from toolscout_lab.llm import LLM
    from toolscout_lab.llm.prompts import Wording
    from toolscout_lab.progress import Say
    from toolscout_lab.synth import Builder

WRITING_TEMPERATURE: Final = 0.7
MAX_PROMPT_CHARS: Final = 2_000  # of a prompt that `review` shows


@click.group("synth")
def synth_command() -> None:
    """Write datasets for your tools with a language model.

    Replies are kept. A command that was stopped continues where it was, and pays for nothing twice.
    """


def _build_options(command: Any) -> Any:
    """Add the options of a command that builds a dataset of queries and tools."""
    for option in (
        json_option,
        data_option,
        spending_options,
        click.option("--against", multiple=True, metavar="DATASET", help="Never repeat a query of this dataset."),
        click.option("--seed", default=0, show_default=True, help="Seed of all random choices."),
        click.option(
            "-n",
            "--queries",
            "wanted",
            default=1000,
            show_default=True,
            type=click.IntRange(1),
            help="Number of queries.",
        ),
        click.option("--out", required=True, metavar="DIR", help="Folder of the new dataset."),
        click.argument("sources", nargs=-1, metavar="[SOURCE]..."),
    ):
        command = option(command)
    return command


_wording_option = click.option(
    "--prompts",
    "wording",
    type=click.Choice(["ours", "paper"]),
    default="ours",
    show_default=True,
    help="Whose wording of the prompts to use.",
)


@synth_command.command("toolbank")
@_build_options
@click.option("--shown", default=10, show_default=True, help="Tools that the model sees at a time (T in the paper).")
@click.option(
    "--chosen",
    nargs=2,
    type=int,
    default=(2, 5),
    show_default=True,
    help="Least and greatest number of tools of a query (M in the paper).",
)
@click.option(
    "--instructions",
    metavar="NAME|FILE",
    help="Further instructions for the model: numpy, pandas, boto3, or a text file.",
)
@_wording_option
@click.pass_context
def toolbank_command(
    ctx: click.Context,
    /,
    shown: int,
    chosen: tuple[int, int],
    instructions: str | None,
    wording: Wording,
    **options: Any,
) -> int:
    """Write queries for two to five of ten random tools, then polish them (ToolBank).

    SOURCE is what `add` takes, or boto3[:SERVICE,...]. Without SOURCE the tools of the catalogue are used.
    """
    from toolscout_lab.synth import load_instructions
    from toolscout_lab.synth.toolbank import ToolBank

    text = load_instructions(instructions) if instructions else ""

    def make_builder(tools: Sequence[Tool], seed: int, llm: LLM, loaded: Settings, say: Say) -> Builder:
        return ToolBank(tools, seed=seed, shown=shown, chosen=chosen, instructions=text, wording=wording)

    return _build_dataset(ctx, make_builder, **options)


@synth_command.command("toollens")
@_build_options
@click.option("--aspects", default=3, show_default=True, help="Kinds of tools that a query should need, 2 to 6.")
@click.option("--min-tools", default=1, show_default=True, help="Drop queries with fewer gold tools.")
@_wording_option
@click.pass_context
def toollens_command(ctx: click.Context, /, aspects: int, min_tools: int, wording: Wording, **options: Any) -> int:
    """Write short queries, each from an invented situation in which several kinds of tools are useful (ToolLens).

    SOURCE is what `add` takes, or boto3[:SERVICE,...]. Without SOURCE the tools of the catalogue are used.
    """
    from toolscout import encoders
    from toolscout_lab.synth.toollens import ToolLens

    def make_builder(tools: Sequence[Tool], seed: int, llm: LLM, loaded: Settings, say: Say) -> Builder:
        encoder = encoders.load(loaded.encoder, loaded)
        return ToolLens(tools, llm, encoder, seed=seed, aspects=aspects, min_tools=min_tools, wording=wording, say=say)

    return _build_dataset(ctx, make_builder, **options)


def _build_dataset(
    ctx: click.Context,
    make_builder: Callable[[Sequence[Tool], int, LLM, Settings, Say], Builder],
    *,
    sources: tuple[str, ...],
    out: str,
    wanted: int,
    seed: int,
    against: tuple[str, ...],
    llm_address: str | None,
    data: str | None,
    as_json: bool,
    **limits: Any,
) -> int:
    """Build a dataset. Returns the exit code, 3 if there are fewer queries than wanted.

    Args:
        ctx: of the command.
        make_builder: makes the builder from tools, seed, language model, settings and a function for progress.
        sources: where the tools come from; none: the catalogue.
        out: folder of the new dataset.
        wanted: number of queries.
        seed: of all random choices.
        against: datasets with queries that must not be repeated.
        llm_address: the language model, as `URL#MODEL`; None: that of the settings.
        data: data root; None: that of the environment.
        as_json: whether to print JSON.
        **limits: the options of `spending_options`.
    """
    from toolscout_lab.bench_jobs import load_dataset
    from toolscout_lab.synth import build, refuse_other, write_dataset

    settings = load_llm_settings(ctx, llm_address)
    refuse_other(Path(out))
    root = find_root(data)
    held_out = [text for name in against for text in load_dataset(name, root).queries.values()]
    tools = _load_tools(sources, settings)
    report: Record | None = None
    is_dry = limits["dry_run"]
    with progress(f"{'estimating' if is_dry else 'writing'} queries for {len(tools):,} tools") as say:
        with open_llm(settings, temperature=WRITING_TEMPERATURE, **limits) as llm:
            quiet = (lambda text: None) if is_dry else say  # nothing is written that could be counted
            builder = make_builder(tools, seed, llm, settings, quiet)
            done = build(builder, llm, wanted, held_out=held_out, say=quiet)
            if not is_dry:
                report = write_dataset(Path(out), builder, done, seed=seed, model=llm.backend.model, wanted=wanted)
        print_cost(llm.spent, dry_run=is_dry)
    return _finish(report, llm, out, wanted, as_json=as_json)


def _finish(report: Record | None, llm: LLM, out: str, wanted: int, *, as_json: bool) -> int:
    """Print the report of a build, or the cost of a dry run, which has no report. Returns the exit code."""
    if report is None:
        if as_json:
            print_json(describe_cost(llm.spent))
        return 0
    if as_json:
        print_json(report)
    else:
        drops = ", ".join(f"{count:,} {reason}" for reason, count in report["drops"].items()) or "nothing"
        click.echo(f"{out}: {report['queries']:,} of {wanted:,} queries; dropped: {drops}")
    return 0 if report["queries"] >= wanted else 3


def _load_tools(sources: Sequence[str], settings: Settings) -> Sequence[Tool]:
    """Load the tools of the sources, or those of the catalogue if there are no sources.

    Raises:
        ConfigError: if there are no sources and the catalogue is empty.
    """
    if sources:
        from toolscout_lab.synth.collect import collect

        return collect(sources, settings)
    from toolscout.home.catalogue.store import Store

    store = Store(settings.place)
    try:
        tools = store.catalogue().tools()
    finally:
        store.close()
    if not tools:
        raise ConfigError(
            "there are no tools to write queries for. Name a SOURCE, or fill the catalogue with  toolscout add SOURCE"
        )
    return tools


@synth_command.command("tooldet")
@click.option("--prompts", "file", required=True, metavar="FILE", help="General chat prompts: .jsonl, or one per line.")
@click.option("--queries", "dataset", required=True, metavar="DATASET", help="Dataset with queries that need tools.")
@click.option("--out", required=True, metavar="DIR", help="New folder, for the option --no-tool.")
@click.option("-n", "wanted", default=1000, show_default=True, type=click.IntRange(1), help="Number of prompts.")
@click.option(
    "--window",
    nargs=2,
    type=float,
    default=(0.4, 0.6),
    show_default=True,
    help="Range for the greatest cosine of a prompt with a query.",
)
@spending_options
@data_option
@json_option
@click.pass_context
def tooldet_command(
    ctx: click.Context,
    /,
    file: str,
    dataset: str,
    out: str,
    wanted: int,
    window: tuple[float, float],
    llm_address: str | None,
    data: str | None,
    as_json: bool,
    **limits: Any,
) -> int:
    """Collect prompts that need no tool but look as if they might (ToolDet).

    Continue with `synth review`.
    """
    from toolscout import encoders
    from toolscout_lab.bench_jobs import load_dataset
    from toolscout_lab.synth import refuse_other
    from toolscout_lab.synth.tooldet import Review, build, prompts_of, sift

    settings = load_llm_settings(ctx, llm_address)
    refuse_other(Path(out))
    queries = list(load_dataset(dataset, find_root(data)).queries.values())
    report: Record | None = None
    with progress("sifting prompts") as say:
        encoder = encoders.load(settings.encoder, settings)
        candidates, drops = sift(prompts_of(Path(file)), queries, encoder, window=window)
        with open_llm(settings, **limits) as llm:
            kept = build(candidates, llm, wanted, drops, say=say)
            model = llm.backend.model
        print_cost(llm.spent, dry_run=limits["dry_run"])
    if not limits["dry_run"]:
        Review.write(Path(out), kept, drops, model=model, window=window, wanted=wanted)
        report = {"queries": len(kept), "drops": dict(sorted(drops.items()))}
    return _finish(report, llm, out, wanted, as_json=as_json)


@synth_command.command("review")
@click.argument("folder", metavar="DIR")
@click.option("--reviewed-only", is_flag=True, help="Leave prompts that nobody reviewed out of queries.jsonl.")
@click.option("--by", default="", help="Name of the reviewer.")
def review_command(folder: str, reviewed_only: bool, by: str) -> None:
    """Accept or reject the prompts of `synth tooldet` one by one, then write queries.jsonl.

    Type a to accept, r to reject, s to skip, q to stop. Each decision is saved at once.
    """
    from toolscout_lab.synth.tooldet import Review

    review = Review(Path(folder))
    waiting = list(review.waiting())
    for number, candidate in enumerate(waiting, 1):
        click.echo(f"[{number} of {len(waiting)}] {clip(candidate.text, MAX_PROMPT_CHARS)}")
        click.echo(f"    cosine {candidate.similarity:.2f}; the model: {clip(candidate.reason)}")
        try:
            decision = click.prompt("needs no tool?", type=click.Choice(["a", "r", "s", "q"]), show_choices=True)
        except click.Abort:
            break
        if decision == "q":
            break
        if decision != "s":
            review.decide(candidate.id, "accept" if decision == "a" else "reject", by=by)
    count = review.export(reviewed_only=reviewed_only)
    click.echo(f"{folder}/queries.jsonl: {count:,} prompts; {len(list(review.waiting())):,} wait for review")
