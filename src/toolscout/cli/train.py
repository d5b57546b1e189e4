"""The command `train`: fits a recipe on a dataset."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import click

from toolscout.cli.data import find_folder, parse_settings, set_option
from toolscout.cli.llm import describe_cost, load_llm_settings, print_cost, share_llm, spending_options
from toolscout.cli.output import encoder_option, json_option, print_json
from toolscout.errors import ConfigError, NotFound


@click.command("train")
@click.argument("recipe")
@click.option("--data", required=True, metavar="DIR", help="Folder of the dataset, or its path below TOOLSCOUT_DATA.")
@encoder_option
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
    data: str,
    encoder: str | None,
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
    estimates the cost of the fit, and a fit that stops at its budget continues with --resume.
    """
    from toolscout.catalogue.vector_cache import VectorStore
    from toolscout.dataset import NoTool
    from toolscout.lab.bench import load_dataset
    from toolscout.recipes.fit import fit, make_lesson, plan_fit, rehearse_fit
    from toolscout.sources.folder import read_tools
    from toolscout.workspace import Workspace

    if Path(out).resolve() in (Path.cwd(), *Path.cwd().parents):
        raise ConfigError(
            f"--out: expected a folder for the model alone, found {out}, which contains the folder you are in. "
            "Name a new folder"
        )
    data_root = os.environ.get("TOOLSCOUT_DATA")
    root = Path(data_root) if data_root else None
    settings = load_llm_settings(ctx, llm_address)
    dataset = load_dataset(data, root)
    try:
        held_out = dataset.texts("test")
    except NotFound:
        held_out = {}
    lesson = dataclasses.replace(
        make_lesson(dataset, read_tools(dataset.folder, "d").tools, held_out),
        no_tool=NoTool.load(find_folder(root, no_tool)) if no_tool else None,
    )
    with share_llm(settings, **limits) as shared:
        workspace = Workspace(
            encoder,
            shared.settings,
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
            print_cost(shared, dry_run=True)
            return
        try:
            model = fit(plan_fit(recipe, lesson, workspace, Path(out), changes))
        finally:
            if shared.spent.calls:
                print_cost(shared, dry_run=False)
    if as_json:
        print_json(model.manifest)
        return
    manifest = model.manifest
    for name, setting in manifest.settings.items():
        if setting.origin == "dev":
            click.echo(f"{name} = {setting.value} (dev)")
    figures = ", ".join(f"{name} {100 * value:.1f}" for name, value in manifest.metrics.items())
    click.echo(f"{model.folder}: {manifest.recipe}, fitted in {manifest.fit_seconds:.0f} s; on dev {figures}")
