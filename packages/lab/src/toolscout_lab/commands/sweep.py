"""The command `lab sweep`: compares combinations of settings on dev queries."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from toolscout.cli.options import data_option, find_folder, find_root, parse_settings, print_cost, set_option
from toolscout.cli.output import (
    choose_home,
    encoder_option,
    json_option,
    print_failure,
    print_json,
    print_table,
    progress,
    ray_option,
)
from toolscout.errors import ConfigError
from toolscout.settings import load_settings
from toolscout_lab.commands.llm import share_llm
from toolscout_lab.machine import Record


@click.command("sweep")
@click.argument("name", metavar="DATASET")
@click.option("--recipe", "-r", required=True, help="Recipe to fit.")
@click.option(
    "--over",
    multiple=True,
    required=True,
    metavar="NAME=V1,V2,…",
    help="A setting and its values (NAME=[…] for a JSON list); may be repeated. NAME can be encoder or base.SETTING.",
)
@set_option
@encoder_option
@ray_option
@click.option("--seed", default=0, show_default=True, help="Seed of the fits and of the order of trials.")
@click.option("--no-tool", metavar="DIR", help="Queries that need no tool, for recipes that abstain.")
@click.option("--trials", type=click.IntRange(min=1), help="Maximum number of combinations. Default: all.")
@click.option("--label", help="Name of the result file. Default: the recipe's name.")
@click.option("--resume", is_flag=True, help="Continue the same sweep where it stopped.")
@click.option("--force", is_flag=True, help="Overwrite a sweep with the same label.")
@data_option
@click.option("--out", default="benchmarks/results/sweeps", show_default=True, metavar="DIR", help="Results.")
@click.option("--llm-budget", metavar="LIMITS", help="Limits of the language model's calls. Default: llm_budget.")
@json_option
@click.pass_context
def sweep_command(
    ctx: click.Context,
    name: str,
    recipe: str,
    over: tuple[str, ...],
    pairs: tuple[str, ...],
    encoder: str | None,
    ray: str | None,
    seed: int,
    no_tool: str | None,
    trials: int | None,
    label: str | None,
    resume: bool,
    force: bool,
    data: str | None,
    out: str,
    llm_budget: str | None,
    as_json: bool,
) -> int:
    """Fit a recipe with each combination of settings on DATASET's training queries, and score it on dev.

    Test queries are not scored. The best model stays in the folder of `bench` models; the others are deleted.
    """
    from toolscout.dataset import NoTool
    from toolscout_lab.bench_jobs import label_of, load_dataset
    from toolscout_lab.sweep import Sweep, describe_settings, sweep

    root = find_root(data)
    settings = load_settings(**choose_home(ctx), ray=ray)
    job = Sweep(
        load_dataset(name, root),
        recipe,
        parse_values(over),
        Path(out),
        label=label_of(recipe, label, seed=seed),
        changes=parse_settings(pairs),
        encoder=encoder,
        seed=seed,
        trials=trials,
        no_tool=NoTool.load(find_folder(root, no_tool)) if no_tool else None,
        settings=settings,
    )
    title = f"trying {len(job.grid):,} combinations of {recipe}"
    with progress(title) as say, share_llm(settings, llm_budget=llm_budget) as shared:
        result = sweep(dataclasses.replace(job, llm=shared), resume=resume, force=force, say=say)
    if shared.spent.calls:
        print_cost(shared.spent, dry_run=False)
    if as_json:
        print_json(result)
    else:
        _print_trials(result)
        click.echo(f"best on dev: {describe_settings(result['best']['settings'])}")
        click.echo(job.path)
    for trial in result["failed"]:
        print_failure(f"{describe_settings(trial['settings'])}: {trial['error']}")
    return 3 if result["failed"] else 0


def parse_values(pairs: Sequence[str]) -> dict[str, list[Any]]:
    """Parse `NAME=V1,V2` pairs. Values that are valid JSON are decoded; `NAME=[…]` is a JSON list of values.

    Raises:
        ConfigError: if one is not a pair, or a name comes twice.
    """
    values: dict[str, list[Any]] = {}
    for pair in pairs:
        name, equals, listed = pair.partition("=")
        if not equals or not name or not listed:
            raise ConfigError(f"--over: expected NAME=V1,V2, found {pair!r}")
        if name in values:
            raise ConfigError(f"--over: expected each name once, found {name!r} twice")
        values[name] = _parse_list(listed)
    return values


def _parse_list(text: str) -> list[Any]:
    """Parse a JSON list, else values between commas."""
    if text.startswith("["):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=list[Any])
    return [parse_settings([f"value={item}"])["value"] for item in text.split(",")]


def _print_trials(result: Record) -> None:
    measures = list(result["trials"][0]["dev"])
    print_table(
        [*((name, "left") for name in result["over"]), *((name, "right") for name in measures), ("fit s", "right")],
        [
            (
                *(str(value) for value in trial["settings"].values()),
                *(f"{100 * trial['dev'][name]:.2f}" for name in measures),
                f"{trial['fit_seconds']:.1f}",
            )
            for trial in result["trials"]
        ],
        title=f"{result['dataset']}: {result['label']}, on {result['n_dev']:,} dev queries",
    )
