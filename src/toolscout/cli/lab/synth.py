"""synth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from toolscout.cli.data import data_option, find_root
from toolscout.cli.llm import load_llm_settings, open_llm, print_cost, spending_options
from toolscout.cli.output import clip, json_option, print_json, progress
from toolscout.errors import ConfigError

TEMPERATURE = 0.7


@click.group("synth")
def synth_command() -> None:
    """Write datasets for your tools with a language model.

    What is answered is kept: a command that was stopped goes on where it was, and pays for nothing twice.
    """


def _build_options(command: Any) -> Any:
    for option in (
        json_option,
        data_option,
        spending_options,
        click.option("--against", multiple=True, metavar="DATASET", help="Sets whose queries must not come up again."),
        click.option("--seed", default=0, show_default=True, help="Of everything random."),
        click.option("-n", "--queries", "wanted", default=1000, show_default=True, help="How many queries."),
        click.option("--out", required=True, metavar="DIR", help="The folder of the dataset."),
        click.argument("sources", nargs=-1, metavar="[SOURCE]..."),
    ):
        command = option(command)
    return command


@synth_command.command("toolbank")
@_build_options
@click.pass_context
def toolbank_command(ctx: click.Context, /, **options: Any) -> int:
    """Queries for two to five of ten tools that are drawn, then polished (ToolBank).

    SOURCE is what `add` takes, or boto3[:SERVICE,...]; without one, the tools of the catalogue.
    """
    return _build(ctx, "toolbank", **options)


@synth_command.command("toollens")
@_build_options
@click.pass_context
def toollens_command(ctx: click.Context, /, **options: Any) -> int:
    """Short queries that several kinds of tools serve, from scenes (ToolLens).

    SOURCE is what `add` takes, or boto3[:SERVICE,...]; without one, the tools of the catalogue.
    """
    return _build(ctx, "toollens", **options)


def _build(
    ctx: click.Context,
    kind: str,
    *,
    sources: tuple[str, ...],
    out: str,
    wanted: int,
    seed: int,
    against: tuple[str, ...],
    place: str | None,
    data: str | None,
    as_json: bool,
    **limits: Any,
) -> int:
    from toolscout import encoders
    from toolscout.lab.bench import load_dataset
    from toolscout.lab.synth import build, quality, refuse_other, write_dataset
    from toolscout.lab.synth.toolbank import ToolBank
    from toolscout.lab.synth.toollens import ToolLens

    settings = load_llm_settings(ctx, place)
    refuse_other(Path(out))
    root = find_root(data)
    held_out = [text for name in against for text in load_dataset(name, root).queries.values()]
    tools = _tools(sources, settings)
    with progress(f"writing queries for {len(tools):,} tools") as say:
        with open_llm(settings, temperature=TEMPERATURE, **limits) as llm:
            builder: Any = (
                ToolBank(tools, seed=seed)
                if kind == "toolbank"
                else ToolLens(tools, llm, encoders.load(settings.encoder, settings), seed=seed)
            )
            done = build(builder, llm, wanted, held_out=held_out, say=say)
            if limits["dry_run"]:
                report: dict[str, Any] = quality(builder.tools, done)
            else:
                report = write_dataset(Path(out), builder, done, seed=seed, model=llm.backend.model, wanted=wanted)
        print_cost(llm, dry_run=limits["dry_run"])
    _tell(report if not limits["dry_run"] else _cost(llm), out, wanted, as_json, limits["dry_run"])
    return 3 if not limits["dry_run"] and report["queries"] < wanted else 0


def _cost(llm: Any) -> dict[str, Any]:
    spent = llm.spent
    return {
        "calls": spent.calls,
        "tokens_in": spent.tokens_in,
        "tokens_out": spent.tokens_out,
        "dollars": spent.dollars or None,
    }


def _tell(report: dict[str, Any], out: str, wanted: int, as_json: bool, dry_run: bool) -> None:
    if as_json:
        print_json(report)
    elif not dry_run:
        drops = ", ".join(f"{count:,} {reason}" for reason, count in report["drops"].items()) or "nothing"
        click.echo(f"{out}: {report['queries']:,} of {wanted:,} queries; dropped: {drops}")


def _tools(sources: Sequence[str], settings: Any) -> list[Any]:
    if sources:
        from toolscout.lab.synth.collect import collect

        return collect(sources, settings)
    from toolscout.catalogue.store import Store

    store = Store(settings.home)
    try:
        tools = store.catalogue().tools()
    finally:
        store.close()
    if not tools:
        raise ConfigError(
            "expected a SOURCE or tools in the catalogue, found neither: name a source, or  toolscout add"
        )
    return tools


@synth_command.command("tooldet")
@click.option("--prompts", "file", required=True, metavar="FILE", help="General chat prompts: .jsonl, or one a line.")
@click.option("--queries", "dataset", required=True, metavar="DATASET", help="Whose queries need tools.")
@click.option("--out", required=True, metavar="DIR", help="The folder, for --no-tool.")
@click.option("-n", "wanted", default=1000, show_default=True, help="How many prompts.")
@click.option("--window", nargs=2, type=float, default=(0.4, 0.6), show_default=True, help="Of the greatest cosine.")
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
    place: str | None,
    data: str | None,
    as_json: bool,
    **limits: Any,
) -> int:
    """Prompts that need no tool but look as if they might (ToolDet); then  synth review."""
    from toolscout import encoders
    from toolscout.lab.bench import load_dataset
    from toolscout.lab.synth import refuse_other
    from toolscout.lab.synth.tooldet import Review, build, prompts_of, sift

    settings = load_llm_settings(ctx, place)
    refuse_other(Path(out))
    queries = list(load_dataset(dataset, find_root(data)).queries.values())
    with progress("sifting prompts") as say:
        encoder = encoders.load(settings.encoder, settings)
        candidates, drops = sift(prompts_of(Path(file)), queries, encoder, window=window)
        with open_llm(settings, **limits) as llm:
            kept = build(candidates, llm, wanted, drops, say=say)
            model = llm.backend.model
        print_cost(llm, dry_run=limits["dry_run"])
    if limits["dry_run"]:
        _tell(_cost(llm), out, wanted, as_json, True)
        return 0
    Review.write(Path(out), kept, drops, model=model, window=window, wanted=wanted)
    _tell({"queries": len(kept), "drops": dict(sorted(drops.items()))}, out, wanted, as_json, False)
    return 0 if len(kept) >= wanted else 3


@synth_command.command("review")
@click.argument("folder", metavar="DIR")
@click.option("--reviewed-only", is_flag=True, help="Leave out of queries.jsonl what nobody has looked at.")
@click.option("--by", default="", help="Who decides.")
def review_command(folder: str, reviewed_only: bool, by: str) -> None:
    """Accept or reject, one by one, what  synth tooldet  found; write queries.jsonl.

    a accepts, r rejects, s skips, q stops. Each decision is kept at once.
    """
    from toolscout.lab.synth.tooldet import Review

    review = Review(Path(folder))
    waiting = list(review.waiting())
    for number, each in enumerate(waiting, 1):
        click.echo(f"[{number} of {len(waiting)}] {clip(each.text, 2_000)}")
        click.echo(f"    cosine {each.similarity:.2f}; the model: {clip(each.reason)}")
        try:
            said = click.prompt("needs no tool?", type=click.Choice(["a", "r", "s", "q"]), show_choices=True)
        except click.Abort:
            break
        if said == "q":
            break
        if said != "s":
            review.decide(each.id, "accept" if said == "a" else "reject", by=by)
    count = review.export(reviewed_only=reviewed_only)
    click.echo(f"{folder}/queries.jsonl: {count:,} prompts; {len(list(review.waiting())):,} wait for review")
