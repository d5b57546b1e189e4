"""The command `lab downstream`, and the options of all commands in which an agent works with tools."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from toolscout.cli.options import data_option, find_root, print_cost
from toolscout.cli.output import echo, json_option, print_json, print_table, progress
from toolscout_lab.commands.judge import write_lines
from toolscout_lab.commands.llm import lend_judge, load_llm_settings, share_llm, spending_options
from toolscout_lab.machine import Record

if TYPE_CHECKING:
    from toolscout.search.pipeline import Stage
    from toolscout.settings import Settings
    from toolscout.types import Tool
    from toolscout_lab.downstream import AgentProtocol, AgentTask
    from toolscout_lab.llm import LLM, SharedLLM
    from toolscout_lab.progress import Say

F = TypeVar("F", bound=Callable[..., Any])
OUTCOME_COLUMNS: Final = (
    *("condition", "n", "success", "success_ci95", "solved_without_call", "pass", "wins", "losses"),
    *("refused", "late", "ungraded"),
)
CALL_COLUMNS: Final = (
    "condition",
    "recall",
    "precision",
    "exact",
    "order",
    "turns",
    "tools_given",
    "tokens",
    "dollars",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentJob:
    """The options that both commands share: queries of a dataset, and an agent that answers them.

    Attributes:
        dataset: name of the dataset.
        k: number of tools to retrieve.
        count: number of queries.
        split: the split that the queries come from.
        modules: their functions are really run.
        servers: their tools are really called.
        turns: maximum number of turns per request.
        seed: of all random choices.
        judge_llm: the model that simulates tools and judges answers; None: the agent's.
        llm_address: the agent's model; None: that of the settings.
        data: data root; None: that of the environment.
        as_json: whether to print JSON.
        limits: the other options of `spending_options`.
    """

    dataset: str
    k: int
    count: int
    split: str
    modules: tuple[str, ...]
    servers: tuple[str, ...]
    turns: int
    seed: int
    judge_llm: str | None
    llm_address: str | None
    data: str | None
    as_json: bool
    limits: Record

    @classmethod
    def parse(cls, options: Record) -> AgentJob:
        """Take the options of a command."""
        own = {field.name for field in dataclasses.fields(cls)} - {"limits"}
        limits = {name: value for name, value in options.items() if name not in own}
        return cls(**{name: options[name] for name in own}, limits=limits)

    @property
    def is_dry(self) -> bool:
        """Whether only the cost is estimated."""
        return bool(self.limits["dry_run"])

    def load_tasks(self) -> tuple[str, list[AgentTask], list[Tool]]:
        """Draw tasks from the split. Returns the name of the dataset, the tasks, and all tools of the dataset."""
        from toolscout.sources.folder import read_tools
        from toolscout_lab.bench_jobs import load_dataset, strip_source
        from toolscout_lab.downstream import AgentTask
        from toolscout_lab.synth import chance

        dataset = load_dataset(self.dataset, find_root(self.data))
        tools = read_tools(dataset.folder, "d").tools
        gold = dataset.split(self.split)
        sample = chance("downstream", self.seed).sample(sorted(gold), min(self.count, len(gold)))
        tasks = [AgentTask(id, dataset.queries[id], tuple(gold[id])) for id in sample]
        return dataset.name, tasks, [msgspec.structs.replace(tool, id=strip_source(tool.id)) for tool in tools]

    def make_protocol(self, settings: Settings, *, examine: bool) -> AgentProtocol:
        """Make the protocol of episodes, without a stage. In a dry run its runners call nothing."""
        from toolscout_lab.downstream import AgentProtocol
        from toolscout_lab.runners import MCP, DryRunner, Python, Runner

        runners: list[Runner] = [
            *(Python([module]) for module in self.modules),
            *(MCP([server], settings) for server in self.servers),
        ]
        if self.is_dry:
            runners = [DryRunner(runner) for runner in runners]
        return AgentProtocol(k=self.k, runners=runners, turns=self.turns, seed=self.seed, examine=examine)

    @contextlib.contextmanager
    def open_models(self, title: str, settings: Settings) -> Iterator[tuple[Say, SharedLLM, LLM]]:
        """Open the models. Yields a function for progress, the agent's model, and the one that judges."""
        with progress(title) as say, share_llm(settings, **self.limits) as shared:
            with lend_judge(llm := shared(), settings, self.judge_llm) as judge:
                yield say, shared, judge
            print_cost(llm.spent, dry_run=self.is_dry)


def agent_options(k: int) -> Callable[[F], F]:
    """Add the options of `AgentJob`; `k` is the default number of tools to retrieve."""

    def add(command: F) -> F:
        for option in (
            json_option,
            data_option,
            spending_options,
            click.option(
                "--judge-llm",
                metavar="URL#MODEL",
                help="Model that simulates tools and judges answers. Default: the agent's.",
            ),
            click.option("--seed", default=0, show_default=True, help="Seed of all random choices."),
            click.option("--turns", default=8, show_default=True, help="Maximum number of turns per request."),
            click.option(
                "--run-mcp", "servers", multiple=True, metavar="SERVER", help="Really call tools of this MCP server."
            ),
            click.option(
                "--run-python",
                "modules",
                multiple=True,
                metavar="MODULE",
                help="Really run functions of this module. Other tools are simulated.",
            ),
            click.option("--split", default="test", show_default=True, help="The split that the queries come from."),
            click.option("-n", "count", default=100, show_default=True, help="Number of queries."),
            click.option("-k", default=k, show_default=True, help="Number of tools to retrieve."),
            click.argument("dataset"),
        ):
            command = option(command)
        return command

    return add


def build_stage(recipe: str, model: str | None, tools: Sequence[Tool], llm: SharedLLM) -> Stage:
    """Build the pipeline that retrieves tools for the agent; if it asks a language model, that is the agent's."""
    from toolscout.home.catalogue.store import Catalogue
    from toolscout.recipes import registry
    from toolscout_lab.resources import Workspace

    workspace = Workspace(settings=llm.settings, shared_llm=llm)
    return registry.build(recipe, Catalogue.of(tools), workspace, model=Path(model) if model else None)


@click.command("downstream")
@agent_options(k=5)
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
@click.option("--out", metavar="FILE", help="Write each episode as a JSON line, for `judge answers`.")
@click.pass_context
def downstream_command(
    ctx: click.Context, /, names: tuple[str, ...], recipe: str, model: str | None, out: str | None, **options: Any
) -> None:
    """Let an agent work on queries of DATASET, with the tools that each condition gives it."""
    from toolscout_lab.downstream import condition, measure, summary

    job = AgentJob.parse(options)
    settings = load_llm_settings(ctx, job.llm_address)
    conditions = [condition(name) for name in names]
    dataset, tasks, tools = job.load_tasks()
    protocol = job.make_protocol(settings, examine=True)
    title = f"{len(tasks):,} queries under {len(conditions)} conditions"
    with job.open_models(title, settings) as (say, shared, judge):
        if any(condition.kind == "retrieved" for condition in conditions):
            protocol = dataclasses.replace(protocol, stage=build_stage(recipe, model, tools, shared))
        episodes = measure(shared(), tasks, tools, conditions, protocol, judge=judge, say=say)
    if job.is_dry:
        return
    if out:
        write_lines(Path(out), episodes)
    rows = summary(episodes)
    for row in rows:
        if row["refused"]:
            echo(
                f"{row['condition']}: the endpoint refused {row['refused']:,} of {row['n']:,} requests, which had "
                f"{row['tools_given']:,.0f} tools each. It may accept requests with fewer tools",
                err=True,
            )
    if job.as_json:
        print_json({"dataset": dataset, "split": job.split, "recipe": recipe, "k": job.k, "conditions": rows})
        return
    for columns in (OUTCOME_COLUMNS, CALL_COLUMNS):
        keys = [f"call_{name}" if name in ("recall", "precision", "exact", "order") else name for name in columns]
        print_table(
            [(name, "left" if name == "condition" else "right") for name in columns],
            [[_format_cell(row[key]) for key in keys] for row in rows],
        )


def _format_cell(value: object) -> object:
    if isinstance(value, list):
        return " … ".join(map(str, value))
    return "–" if value is None else value
