"""The command `lab elo`: an agent answers with the tools of several recipes, and its answers are compared in pairs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from toolscout.cli.output import echo, print_json, print_table
from toolscout.errors import ConfigError
from toolscout_lab.commands.downstream import AgentJob, agent_options, build_stage
from toolscout_lab.commands.judge import ANSWER_ASPECTS, print_comparison, write_lines
from toolscout_lab.commands.llm import load_llm_settings
from toolscout_lab.machine import Record

if TYPE_CHECKING:
    from toolscout.types import Tool
    from toolscout_lab.answers import PeopleFile
    from toolscout_lab.downstream import AgentProtocol, Condition, Episode
    from toolscout_lab.judge import Pair
    from toolscout_lab.llm import SharedLLM

SYSTEM_COLUMNS: Final = ("system", "answers", "without_call", "refused", "late", "recall", "comp")
PERSON_CHOICES: Final[Mapping[str, Literal["first", "second", "tie"]]] = {"1": "first", "2": "second", "t": "tie"}


@click.command("elo")
@agent_options(k=3)
@click.option("--recipe", "-r", "recipes", multiple=True, help="Recipe that retrieves tools; may be repeated.")
@click.option("--model", "models", multiple=True, metavar="RECIPE=DIR", help="Model of a recipe; may be repeated.")
@click.option(
    "--condition",
    "names",
    multiple=True,
    help="Tools that no recipe retrieves: all, none, gold, missing:N or wrong:N; may be repeated.",
)
@click.option(
    "--judge",
    "judge_kind",
    type=click.Choice(["model", "people"]),
    default="model",
    show_default=True,
    help="Who compares the answers: the language model, or a person at this terminal.",
)
@click.option("--aspect", "aspects", multiple=True, help="What to compare; may be repeated. Default: as in the paper.")
@click.option("--out", required=True, metavar="DIR", help="Folder for answers, results and report.")
@click.pass_context
def elo_command(
    ctx: click.Context,
    /,
    recipes: tuple[str, ...],
    models: tuple[str, ...],
    names: tuple[str, ...],
    judge_kind: str,
    aspects: tuple[str, ...],
    out: str,
    **options: Any,
) -> None:
    """Rate recipes on queries of DATASET by the answers that an agent gives with their tools (COLT, section 5.4).

    Each recipe retrieves the best K tools. An agent answers with them. A model or a person compares every two answers
    to a request, and Elo rates the recipes. DIR holds the answers, the results and report.json. A command that was
    stopped continues where it was.
    """
    from toolscout.checks.results import write_json
    from toolscout_lab.answers import PeopleFile, collect_answers, pair_answers
    from toolscout_lab.downstream import measure
    from toolscout_lab.judge import agreement, check_aspects, judge, rate_systems
    from toolscout_lab.judge import table as count_results
    from toolscout_lab.synth import refuse_other

    job, folder, chosen_aspects = AgentJob.parse(options), Path(out), aspects or ANSWER_ASPECTS
    check_aspects(chosen_aspects)
    refuse_other(folder)
    settings = load_llm_settings(ctx, job.llm_address)
    dataset, tasks, tools = job.load_tasks()
    protocol, folders = job.make_protocol(settings, examine=False), _read_models(models, recipes)
    outcomes = []
    with job.open_models(f"answering {len(tasks):,} queries", settings) as (say, shared, judging):
        systems = _plan_systems(recipes, names, folders, tools, shared, protocol)
        episodes = {
            name: measure(shared(), tasks, tools, [condition], protocol, judge=judging, say=say)
            for name, (condition, protocol) in systems.items()
        }
        pairs = pair_answers({name: collect_answers(group) for name, group in episodes.items()})
        if judge_kind == "model":
            outcomes = judge(judging, pairs, chosen_aspects, say=say)
        answering_model, judging_model = shared().backend.model, judging.backend.model
    if job.is_dry:
        return
    gold = {task.id: set(task.gold) for task in tasks}
    report: Record = {
        "dataset": dataset,
        "split": job.split,
        "n": len(tasks),
        "k": job.k,
        "seed": job.seed,
        "model": answering_model,
        "judge": judge_kind,
        "judge_model": judging_model,
        "systems": [_describe_system(name, group, gold) for name, group in episodes.items()],
    }
    write_json(folder / "report.json", report)  # before a person is asked, so that a stopped command can go on
    (folder / "answers").mkdir(parents=True, exist_ok=True)
    for name, group in episodes.items():
        write_lines(folder / "answers" / f"{re.sub(r'[^A-Za-z0-9._+-]+', '-', name)}.jsonl", group)
    people = PeopleFile(folder / "people.jsonl", pairs, chosen_aspects)
    if judge_kind == "people":
        _ask_person(people, job.seed)
        outcomes = people.list_outcomes()
    else:
        write_lines(folder / "outcomes.jsonl", outcomes)
    report |= {"pairs": count_results(outcomes), "elo": rate_systems(outcomes, chosen_aspects, seed=job.seed)}
    if judge_kind == "model" and people.results:
        report["people"] = agreement(outcomes, people.results)
    write_json(folder / "report.json", report)
    if job.as_json:
        print_json(report)
        return
    print_table(
        [(name, "left" if name == "system" else "right") for name in SYSTEM_COLUMNS],
        [[row[name] for name in SYSTEM_COLUMNS] for row in report["systems"]],
    )
    print_comparison(report)


def _read_models(models: Sequence[str], recipes: Sequence[str]) -> dict[str, str]:
    """Read `RECIPE=DIR` of each model."""
    folders: dict[str, str] = {}
    for item in models:
        recipe, _, folder = item.partition("=")
        if not folder or recipe not in recipes:
            raise click.UsageError(f"--model: expected RECIPE=DIR with a recipe of --recipe, found {item}")
        folders[recipe] = folder
    return folders


def _plan_systems(
    recipes: Sequence[str],
    names: Sequence[str],
    models: Mapping[str, str],
    tools: Sequence[Tool],
    llm: SharedLLM,
    base: AgentProtocol,
) -> dict[str, tuple[Condition, AgentProtocol]]:
    """Plan the systems that are compared: name → which tools it gives the agent, and how.

    Raises:
        ConfigError: if there are fewer than two.
    """
    from toolscout_lab.downstream import condition

    systems = {
        recipe: (
            condition("retrieved"),
            dataclasses.replace(base, stage=build_stage(recipe, models.get(recipe), tools, llm)),
        )
        for recipe in recipes
    }
    for name in names:
        if condition(name).kind == "retrieved":
            raise ConfigError(f"{name} needs a recipe. Give it with --recipe.")
        systems[name] = condition(name), base
    if len(systems) < 2:
        raise ConfigError(f"Elo compares two systems or more, and there are {len(systems)}. Repeat --recipe.")
    return systems


def _describe_system(name: str, episodes: Sequence[Episode], gold: Mapping[str, set[str]]) -> Record:
    """Count the answers of a system, and measure recall and completeness of the tools that it gave the agent."""
    from toolscout_lab.downstream import UNANSWERED

    recalls = [len(gold[each.task] & set(each.given)) / max(1, len(gold[each.task])) for each in episodes]
    return {
        "system": name,
        "answers": sum(episode.stopped == "answer" for episode in episodes),
        **{stopped: sum(episode.stopped == stopped for episode in episodes) for stopped in UNANSWERED},
        "without_call": sum(not any(step.tool for step in episode.steps) for episode in episodes),
        "recall": round(sum(recalls) / max(1, len(recalls)), 4),
        "comp": round(sum(recall == 1.0 for recall in recalls) / max(1, len(recalls)), 4),
    }


def _ask_person(people: PeopleFile, seed: int) -> None:
    """Ask about each pair that waits, in random order of its texts and without the names of the systems.

    Each result is written at once.
    """
    from toolscout_lab.judge import ASPECTS
    from toolscout_lab.synth import chance

    waiting = people.list_waiting()
    shown: Pair | None = None
    for number, (pair, aspect) in enumerate(waiting, 1):
        swapped = chance("people", seed, pair.id, pair.a, pair.b).random() < 0.5
        if pair is not shown:
            shown = pair
            first, second = (pair.text_b, pair.text_a) if swapped else (pair.text_a, pair.text_b)
            for title, text in (("Request", pair.request), ("First answer", first), ("Second answer", second)):
                echo(f"\n{title}:\n{text}", err=True)
        question = f"[{number} of {len(waiting)}] {ASPECTS[aspect]} 1, 2, t for a tie, s to skip, q to stop"
        try:
            choice = click.prompt(
                question, type=click.Choice([*PERSON_CHOICES, "s", "q"]), show_choices=False, err=True
            )
        except click.Abort:  # what was answered is kept, as with q
            return
        if choice == "q":
            return
        if choice != "s":
            winner = PERSON_CHOICES[choice]
            a_won = (winner == "second") if swapped else (winner == "first")
            people.decide(pair, aspect, "tie" if winner == "tie" else "win" if a_won else "loss")
