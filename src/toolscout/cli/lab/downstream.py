"""downstream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from toolscout.cli.data import data_option, find_root
from toolscout.cli.llm import load_llm_settings, open_llm, print_cost, spending_options
from toolscout.cli.output import json_option, print_json, progress, table

OUTCOMES = ("condition", "n", "success", "success_ci95", "pass", "wins", "losses", "refused", "ungraded")
CALLS = ("condition", "recall", "precision", "exact", "order", "turns", "tools_given", "tokens", "dollars")


@click.command("downstream")
@click.argument("dataset")
@click.option(
    "--condition",
    "names",
    multiple=True,
    default=("retrieved", "gold", "none"),
    show_default=True,
    help="retrieved, all, none, gold, missing:N, wrong:N, each with +shuffled; may be repeated.",
)
@click.option("--recipe", "-r", default="hybrid", show_default=True, help="What retrieves.")
@click.option("--model", metavar="DIR", help="Its model, if it is fitted.")
@click.option("-k", default=5, show_default=True, help="How many tools it retrieves.")
@click.option("-n", "count", default=100, show_default=True, help="How many queries of the split.")
@click.option("--split", default="test", show_default=True, help="Whose queries.")
@click.option(
    "--run-python",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Run functions of this module for real; may be repeated. Everything else is simulated.",
)
@click.option(
    "--run-mcp",
    "servers",
    multiple=True,
    metavar="SERVER",
    help="Call tools of this MCP server for real; may be repeated.",
)
@click.option("--turns", default=8, show_default=True, help="Of one episode, at most.")
@click.option("--seed", default=0, show_default=True, help="Of the queries, and of what is missing or wrong.")
@click.option("--out", metavar="FILE", help="Write each episode as a line of JSON.")
@spending_options
@data_option
@json_option
@click.pass_context
def downstream_command(
    ctx: click.Context,
    /,
    dataset: str,
    names: tuple[str, ...],
    recipe: str,
    model: str | None,
    k: int,
    count: int,
    split: str,
    modules: tuple[str, ...],
    servers: tuple[str, ...],
    turns: int,
    seed: int,
    out: str | None,
    place: str | None,
    data: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Let an agent fulfil the queries of DATASET with the tools that each condition gives it."""
    from toolscout.catalogue.store import Catalogue
    from toolscout.lab.bench import load_dataset
    from toolscout.lab.downstream import Protocol, Task, condition, measure, summary
    from toolscout.lab.runners import MCP, DryRunner, Python, Runner
    from toolscout.lab.synth import chance
    from toolscout.recipes import registry
    from toolscout.sources.folder import read_tools
    from toolscout.workspace import Workspace

    settings = load_llm_settings(ctx, place)
    conditions = [condition(name) for name in names]
    loaded = load_dataset(dataset, find_root(data))
    tools = [_strip_source(tool) for tool in read_tools(loaded.folder, "d").tools]
    gold = loaded.split(split)
    sample = chance("downstream", seed).sample(sorted(gold), min(count, len(gold)))
    tasks = [Task(id, loaded.queries[id], tuple(gold[id])) for id in sample]
    runners: list[Runner] = [
        *(Python([module]) for module in modules),
        *(MCP([server], settings) for server in servers),
    ]
    if limits["dry_run"]:
        runners = [DryRunner(runner) for runner in runners]
    stage = None
    if any(condition.kind == "retrieved" for condition in conditions):
        workspace = Workspace(settings=settings)
        stage = registry.build(recipe, Catalogue.of(tools), workspace, model=Path(model) if model else None)
    title = f"{len(tasks):,} queries under {len(conditions)} conditions"
    with progress(title) as say, open_llm(settings, **limits) as llm:
        protocol = Protocol(stage=stage, k=k, runners=runners, turns=turns, seed=seed)
        episodes = measure(llm, tasks, tools, conditions, protocol, say=say)
        print_cost(llm, dry_run=limits["dry_run"])
    if limits["dry_run"]:
        return
    if out:
        Path(out).write_bytes(b"".join(msgspec.json.encode(episode) + b"\n" for episode in episodes))
    rows = summary(episodes)
    for row in rows:
        if row["refused"]:
            click.echo(
                f"{row['condition']}: the endpoint refused {row['refused']:,} of {row['n']:,} requests, with "
                f"{row['tools_given']:,.0f} tools each: give fewer tools if it does not take as many",
                err=True,
            )
    if as_json:
        print_json({"dataset": loaded.name, "split": split, "recipe": recipe, "k": k, "conditions": rows})
        return
    for names in (OUTCOMES, CALLS):
        keys = [f"call_{name}" if name in ("recall", "precision", "exact", "order") else name for name in names]
        table(
            [(name, "left" if name == "condition" else "right") for name in names],
            [[_cell(row[key]) for key in keys] for row in rows],
        )


def _cell(value: Any) -> object:
    if isinstance(value, list):
        return " … ".join(map(str, value))
    return "–" if value is None else value


def _strip_source(tool: Any) -> Any:
    """Return the tool with its id in the dataset."""
    return msgspec.structs.replace(tool, id=tool.id.partition("/")[2])
