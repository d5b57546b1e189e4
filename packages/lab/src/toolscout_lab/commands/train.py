"""The command `train`: fits a recipe on a dataset, or tunes an encoder on several."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Final

import click

from toolscout.cli.options import describe_cost, find_folder, parse_settings, print_cost, set_option
from toolscout.cli.output import choose_home, encoder_option, json_option, print_json, ray_option
from toolscout.errors import ConfigError, NotFound
from toolscout.settings import Settings, load_settings
from toolscout_lab.commands.llm import load_llm_settings, share_llm, spending_options

TRAIN_ENCODER: Final = "encoder"
DEFAULT_START: Final = "minilm"  # the encoder that `train encoder` starts from


@click.command("train")
@click.argument("recipe")
@click.option(
    "--data",
    "datasets",
    required=True,
    multiple=True,
    metavar="DIR",
    help="Folder of the dataset, or its path below TOOLSCOUT_DATA. For `encoder`, may be repeated.",
)
@encoder_option
@ray_option
@click.option("--no-tool", metavar="DIR", help="Queries that need no tool, for recipes that abstain.")
@click.option("--seed", default=0, show_default=True, help="Seed of all random choices.")
@set_option
@click.option("--out", required=True, metavar="MODEL_DIR", help="Folder for the model.")
@click.option("--resume", is_flag=True, help="Continue an interrupted fit; keep a finished one.")
@spending_options
@json_option
@click.pass_context
def train_command(
    ctx: click.Context,
    /,
    recipe: str,
    datasets: tuple[str, ...],
    encoder: str | None,
    ray: str | None,
    no_tool: str | None,
    seed: int,
    pairs: tuple[str, ...],
    out: str,
    resume: bool,
    llm_address: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Fit RECIPE on the training queries of a dataset, choose options on dev, and write the model.

    Training queries with the text of a test query are left out. If the recipe asks a language model, --dry-run
    estimates the cost of the fit, and a fit that stops at its budget continues with --resume. RECIPE `encoder` tunes a
    sentence encoder on one or more datasets instead; other commands take the folder that it writes as their --encoder.
    """
    _refuse_enclosing_folder(out)
    if recipe == TRAIN_ENCODER:
        if no_tool:
            raise ConfigError("train encoder learns from requests that need tools only. Leave --no-tool out.")
        _tune_encoder(ctx, datasets, encoder or DEFAULT_START, seed, pairs, Path(out), resume=resume, as_json=as_json)
        return
    if len(datasets) > 1:
        raise ConfigError(f"{recipe} is fitted on one dataset, but --data names {len(datasets)}. Name one of them.")
    from toolscout.dataset import NoTool
    from toolscout.home.catalogue.vector_cache import VectorStore
    from toolscout.learn.fit import fit, make_lesson, plan_fit, rehearse_fit
    from toolscout.sources.folder import read_tools
    from toolscout_lab.bench_jobs import load_dataset
    from toolscout_lab.resources import Workspace

    data_root = os.environ.get("TOOLSCOUT_DATA")
    root = Path(data_root) if data_root else None
    settings = load_llm_settings(ctx, llm_address)
    dataset = load_dataset(datasets[0], root)
    try:
        held_out = dataset.texts("test")
    except NotFound:
        held_out = {}
    lesson = dataclasses.replace(
        make_lesson(dataset, read_tools(dataset.folder, "d").tools, held_out),
        no_tool=NoTool.load(find_folder(root, no_tool)) if no_tool else None,
    )
    with share_llm(settings, prints_cost=True, **limits) as shared:
        workspace = Workspace(
            encoder,
            _choose_ray(shared.settings, ray),
            VectorStore(settings.home / "bench"),
            say=lambda line: click.echo(line, err=True),
            seed=seed,
            resume=resume,
            shared_llm=shared,
        )
        changes = parse_settings(pairs)
        if limits["dry_run"]:
            rehearse_fit(recipe, lesson, workspace, changes)
            if as_json:
                print_json(describe_cost(shared.spent))
            print_cost(shared.spent, dry_run=True)
            return
        model = fit(plan_fit(recipe, lesson, workspace, Path(out), changes))
    if as_json:
        print_json(model.manifest)
        return
    manifest = model.manifest
    for name, setting in manifest.settings.items():
        if setting.origin == "dev":
            click.echo(f"{name} = {setting.value} (dev)")
    figures = ", ".join(f"{name} {100 * value:.1f}" for name, value in manifest.metrics.items())
    click.echo(f"{model.folder}: {manifest.recipe}, fitted in {manifest.fit_seconds:.0f} s; on dev {figures}")


def _choose_ray(settings: Settings, ray: str | None) -> Settings:
    return dataclasses.replace(settings, ray=ray or settings.ray)


def _refuse_enclosing_folder(out: str) -> None:
    """Refuse a folder that contains the working directory, because its files would be replaced."""
    if Path(out).resolve() in (Path.cwd(), *Path.cwd().parents):
        raise ConfigError(
            f"--out: expected a folder for the model alone, found {out}, which contains the folder you are in. "
            "Name a new folder"
        )


def _tune_encoder(
    ctx: click.Context,
    datasets: tuple[str, ...],
    start: str,
    seed: int,
    pairs: tuple[str, ...],
    out: Path,
    *,
    resume: bool,
    as_json: bool,
) -> None:
    """Build the training set of some datasets, tune an encoder on it, and say where it lies."""
    from toolscout import encoders
    from toolscout.rankers import parse_options
    from toolscout_lab.encoder_data import DataPlan, EncoderOptions, build_training_set
    from toolscout_lab.encoder_training import train_encoder
    from toolscout_lab.rankers.shared.tuning import require_tunable

    options = parse_options(parse_settings(pairs), EncoderOptions)
    encoder = require_tunable(encoders.load(start, load_settings(**choose_home(ctx))))
    root = Path(os.environ.get("TOOLSCOUT_DATA") or ".")
    made = build_training_set(DataPlan(root, datasets, corpus=None, test_sets=datasets, seed=seed))
    record = train_encoder(
        encoder, made, out, options, seed=seed, resume=resume, say=lambda line: click.echo(line, err=True)
    )
    if as_json:
        print_json(record)
        return
    click.echo(f"{out}: tuned in {record['seconds']:.0f} s on {made.report['examples']:,} examples")
    click.echo(f"Use it: toolscout search --encoder {out} …")
