"""The command `lab downstream`: an agent works with the tools that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolscout.cli.data import data_option, find_root
from toolscout.cli.output import json_option, print_json, print_table, progress
from toolscout.cli.spending import print_cost
from toolscout_lab.commands.llm import load_llm_settings, share_llm, spending_options

if TYPE_CHECKING:
    from toolscout.dataset import Dataset
    from toolscout.search.pipeline import Stage
    from toolscout.settings import Settings
    from toolscout.types import Tool
    from toolscout_lab.downstream import AgentTask, Episode
    from toolscout_lab.llm import SharedLLM
    from toolscout_lab.runners import Runner

OUTCOME_COLUMNS = ("condition", "n", "success", "success_ci95", "pass", "wins", "losses", "refused", "ungraded")
CALL_COLUMNS = ("condition", "recall", "precision", "exact", "order", "turns", "tools_given", "tokens", "dollars")


@click.command("downstream")
@click.argument("dataset")
@click.option(
    "--condition",
    "names",
    multiple=True,
    default=("retrieved", "gold", "none"),
    show_default=True,
    help="Tools for the agent: retrieved, all, none, gold, missing:N or wrong:N, also with +shuffled; may be repeated.",
)
@click.option("--recipe", "-r", default="hybrid", show_default=True, help="Recipe that retrieves the tools.")
@click.option("--model", metavar="DIR", help="The recipe's model, if it is fitted.")
@click.option("-k", default=5, show_default=True, help="Number of tools to retrieve.")
@click.option("-n", "count", default=100, show_default=True, help="Number of queries.")
@click.option("--split", default="test", show_default=True, help="The split that the queries come from.")
@click.option(
    "--run-python",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Really run functions of this module; may be repeated. Other tools are simulated.",
)
@click.option(
    "--run-mcp",
    "servers",
    multiple=True,
    metavar="SERVER",
    help="Really call tools of this MCP server; may be repeated.",
)
@click.option("--turns", default=8, show_default=True, help="Maximum number of turns per request.")
@click.option("--seed", default=0, show_default=True, help="Seed for drawing queries, and missing or wrong tools.")
@click.option("--out", metavar="FILE", help="Write each episode as a JSON line, for `judge answers`.")
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
    llm_address: str | None,
    data: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Let an agent work on queries of DATASET, with the tools that each condition gives it."""
    from toolscout_lab.bench_jobs import load_dataset
    from toolscout_lab.downstream import AgentProtocol, condition, measure, summary

    settings = load_llm_settings(ctx, llm_address)
    conditions = [condition(name) for name in names]
    loaded = load_dataset(dataset, find_root(data))
    tasks, tools = draw_tasks(loaded, split, count, seed)
    runners = make_runners(modules, servers, settings, dry_run=limits["dry_run"])
    title = f"{len(tasks):,} queries under {len(conditions)} conditions"
    with progress(title) as say, share_llm(settings, **limits) as shared:
        llm = shared()
        stage = None
        if any(condition.kind == "retrieved" for condition in conditions):
            stage = build_stage(recipe, model, tools, settings, shared)
        protocol = AgentProtocol(stage=stage, k=k, runners=runners, turns=turns, seed=seed)
        episodes = measure(llm, tasks, tools, conditions, protocol, say=say)
        print_cost(llm.spent, dry_run=limits["dry_run"])
    if limits["dry_run"]:
        return
    if out:
        write_episodes(Path(out), episodes)
    rows = summary(episodes)
    _warn_of_refusals(rows)
    if as_json:
        print_json({"dataset": loaded.name, "split": split, "recipe": recipe, "k": k, "conditions": rows})
    else:
        _print_summary(rows)


def draw_tasks(dataset: Dataset, split: str, count: int, seed: int) -> tuple[list[AgentTask], list[Tool]]:
    """Draw tasks from a split, at most `count`. Returns them with all tools of the dataset."""
    from toolscout.sources.folder import read_tools
    from toolscout_lab.downstream import AgentTask
    from toolscout_lab.synth import chance

    tools = [_strip_source(tool) for tool in read_tools(dataset.folder, "d").tools]
    gold = dataset.split(split)
    sample = chance("downstream", seed).sample(sorted(gold), min(count, len(gold)))
    return [AgentTask(id, dataset.queries[id], tuple(gold[id])) for id in sample], tools


def make_runners(modules: Sequence[str], servers: Sequence[str], settings: Settings, *, dry_run: bool) -> list[Runner]:
    """Make the runners of real tools. In a dry run they call nothing."""
    from toolscout_lab.runners import MCP, DryRunner, Python

    runners: list[Runner] = [
        *(Python([module]) for module in modules),
        *(MCP([server], settings) for server in servers),
    ]
    return [DryRunner(runner) for runner in runners] if dry_run else runners


def build_stage(recipe: str, model: str | None, tools: Sequence[Tool], settings: Settings, llm: SharedLLM) -> Stage:
    """Build the pipeline that retrieves tools for the agent; if it asks a language model, that is the agent's."""
    from toolscout.home.catalogue.store import Catalogue
    from toolscout.recipes import registry
    from toolscout_lab.resources import Workspace

    workspace = Workspace(settings=settings, shared_llm=llm)
    return registry.build(recipe, Catalogue.of(tools), workspace, model=Path(model) if model else None)


def write_episodes(file: Path, episodes: Sequence[Episode]) -> None:
    """Write episodes as JSON lines, which `lab judge answers` reads."""
    file.write_bytes(b"".join(msgspec.json.encode(episode) + b"\n" for episode in episodes))


def _warn_of_refusals(rows: Sequence[dict[str, Any]]) -> None:
    """Print a warning for each condition with requests that the endpoint refused."""
    for row in rows:
        if row["refused"]:
            click.echo(
                f"{row['condition']}: the endpoint refused {row['refused']:,} of {row['n']:,} requests, which had "
                f"{row['tools_given']:,.0f} tools each. It may accept requests with fewer tools",
                err=True,
            )


def _print_summary(rows: Sequence[dict[str, Any]]) -> None:
    for names in (OUTCOME_COLUMNS, CALL_COLUMNS):
        keys = [f"call_{name}" if name in ("recall", "precision", "exact", "order") else name for name in names]
        print_table(
            [(name, "left" if name == "condition" else "right") for name in names],
            [[_format_cell(row[key]) for key in keys] for row in rows],
        )


def _format_cell(value: Any) -> object:
    if isinstance(value, list):
        return " … ".join(map(str, value))
    return "–" if value is None else value


def _strip_source(tool: Tool) -> Tool:
    """Return the tool with its id within the dataset."""
    return msgspec.structs.replace(tool, id=tool.id.partition("/")[2])
