"""Runs the measurements that docs/results/papers.md still lacks, one after the other. Each of them takes hours.

Every step is a command of toolscout that keeps what is finished and continues what was interrupted, so stop this at any
time and run it again. A step that fails is named, and the next one runs.

    python benchmarks/papers.py --plan
    python benchmarks/papers.py [--only NAME …] [--data DIR] [--out benchmarks/results]

`TOOLSCOUT_DATA` names the folder with the datasets. Fitted models lie in the home of toolscout. What needs a language
model is not here: docs/use/language-models.md has its commands.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click

from toolscout.settings import load_settings

ROOT: Final = Path(__file__).resolve().parent.parent
MASSTOOL_SETS: Final = ("hammerbench", "ultratool", "toollens")
MASSTOOL_SEEDS: Final = (0, 1, 2)
PUBLISHED_STAGE_ONE: Final = {"base.epochs": 5, "base.batch": 16, "base.tool_length": 350}
OTHER_SETS: Final = ("ultratool", "hammerbench", "bfcl", "toolbench")
CANDIDATES: Final = (8, 16, 32, 64, 128)


class Measurement(NamedTuple):
    """One measurement.

    Attributes:
        name: for `--only`.
        question: what it answers.
        hours: on two processor cores, from the times of shorter runs; None of it was measured.
        commands: arguments of toolscout, or of Python where the first ends with `.py`.
    """

    name: str
    question: str
    hours: float
    commands: list[list[str]]


def bench(sets: str, recipe: str, label: str = "", /, *options: str, **changes: object) -> list[str]:
    """Return the arguments of one benchmark; `changes` are settings of the recipe, with `__` for a dot."""
    named = ["--label", label] if label else []
    settings = [part for name, value in changes.items() for part in ("--set", f"{name.replace('__', '.')}={value}")]
    return ["lab", "bench", *sets.split(), "--recipe", recipe, *named, *options, *settings, "--resume"]


def list_measurements(models: Path) -> list[Measurement]:
    """List all measurements, those that answer most first. `models` is the folder for models that are read later."""
    stage_one = {name.replace(".", "__"): value for name, value in PUBLISHED_STAGE_ONE.items()}
    return [
        Measurement(
            "masstool",
            "Does detection help retrieval over a mid-strength first stage? need=0, three seeds, three sets, controls.",
            3.0,
            list(plan_masstool(models)),
        ),
        Measurement(
            "hard-negatives",
            "Is it the wordings or the hard negatives that feedback-dpr gains by?",
            0.7,
            [bench("seal_tools_in", "feedback-dpr-no-rounds")],
        ),
        Measurement(
            "out-of-domain",
            "Does feedback-dpr help on sets that it was not trained on (its paper's table 3)?",
            1.0,
            [["lab", "transfer", "seal_tools_in", *OTHER_SETS, "-r", "dpr", "-r", "feedback-dpr", "--resume"]],
        ),
        Measurement(
            "colt",
            "What does COLT reach with the published amount of training in stage 1, and each of its parts?",
            12.0,
            [
                bench("toollens", "colt", "colt-long", **stage_one),
                bench("toollens", "colt-no-contrastive", "colt-long-no-contrastive", **stage_one),
                bench("toollens", "colt-no-collaborative", "colt-long-no-collaborative", **stage_one),
                bench("toollens", "colt", "colt-long-layers-2", layers=2, **stage_one),
            ],
        ),
        Measurement(
            "colt-size",
            "How does COLT grow with its encoder (figure 6)?",
            2.0,
            [bench("toollens", "colt", f"colt-minilm-{n}", "--encoder", f"minilm:{n}") for n in (2, 4)],
        ),
        Measurement(
            "mlc",
            "What does MLC reach in its published form?",
            0.6,
            [bench("toollens numpybank", "mlc-published")],
        ),
        Measurement(
            "candidates",
            "How many candidates does ToolRefiner need over MLC, and over Tool2Vec with 128 (table 4)? Also on test.",
            6.0,
            [
                sweep("toolrefiner", "refiner-candidates-mlc", CANDIDATES),
                sweep("toolrefiner-tool2vec", "refiner-candidates-128", CANDIDATES[-2:]),
                bench("toollens", "toolrefiner-tool2vec", "toolrefiner-tool2vec-128", candidates=128, epochs=6),
            ],
        ),
        Measurement(
            "numpybank",
            "What do Tool2Vec with a tuned encoder and ToolRefiner reach on numpybank (table 2)?",
            0.5,
            [bench("numpybank", name) for name in ("tool2vec-tuned", "toolrefiner", "toolrefiner-tool2vec")],
        ),
        Measurement(
            "toolbench",
            "What do five methods reach in folds of toolbench? Not comparable with the papers' splits.",
            6.0,
            [
                bench("toolbench", name, "", "--folds", "query:5")
                for name in ("tool2vec", "mlc", "toolrefiner", "colt", "masstool")
            ],
        ),
        Measurement(
            "toolrerank",
            "Do other sets agree with toolbench on the default of toolrerank?",
            2.0,
            [bench("seal_tools_in hammerbench", "toolrerank-published")],
        ),
    ]


def sweep(recipe: str, label: str, candidates: Sequence[int]) -> list[str]:
    """Return the arguments of a sweep over the number of candidates, on a fifth of ToolLens's training queries."""
    values = ",".join(map(str, candidates))
    options = ["--set", "part=0.2", "--over", f"candidates={values}", "--label", label, "--resume"]
    return ["lab", "sweep", "toollens", "--recipe", recipe, *options]


def plan_masstool(models: Path) -> Iterator[list[str]]:
    """Plan masstool with and without detection, then all figures: both kinds compared, and each model's controls.

    The first stage gets one epoch, so that the paper's recall@5 of 94 to 95 is not exceeded before it starts. Both
    kinds choose their epoch by retrieval alone; by the AUROC of the need too, those that detect would choose a later
    one.
    """
    folders = []
    for name in MASSTOOL_SETS:
        for seed in MASSTOOL_SEEDS:
            for need, options in (("", ["--no-tool", "no_tool"]), ("-no-need", ["--set", "need=0"])):
                folder = models / f"masstool-mid{need}-{name}-{seed}"
                settings = ["--set", "base.epochs=1", "--set", "epoch_by=retrieval", "--seed", str(seed), *options]
                yield ["train", "masstool", "--data", name, "--out", str(folder), *settings, "--resume"]
                folders.append(folder)
    yield ["benchmarks/detection_controls.py", *(part for folder in folders for part in ("--model", str(folder)))]


def run_command(command: Sequence[str], data: str | None, out: str) -> int:
    """Run one command, and return its exit code."""
    if command[0].endswith(".py"):
        arguments = [sys.executable, str(ROOT / command[0]), *command[1:]]
    else:
        # sweeps have a folder of their own below the results
        folder = f"{out}/sweeps" if "sweep" in command[:2] else out
        target = ["--out", folder] if command[0] == "lab" else []
        arguments = [sys.executable, "-m", "toolscout", *command, *target]
    environment = os.environ if data is None else {**os.environ, "TOOLSCOUT_DATA": data}
    return subprocess.run(arguments, cwd=ROOT, env=environment, check=False).returncode


@click.command()
@click.option("--plan", is_flag=True, help="Print the measurements and their commands; run nothing.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this measurement; may be repeated.")
@click.option("--data", metavar="DIR", help="Folder of the datasets. Default: TOOLSCOUT_DATA.")
@click.option("--out", default="benchmarks/results", show_default=True, metavar="DIR", help="Folder of the results.")
def main(plan: bool, only: tuple[str, ...], data: str | None, out: str) -> None:
    """Run the measurements that the papers' pages still lack. Each can be interrupted and continued."""
    measurements = list_measurements(load_settings().home / "papers")
    if unknown := set(only) - {each.name for each in measurements}:
        raise click.UsageError(
            f"--only: expected one of {', '.join(each.name for each in measurements)}, found "
            f"{', '.join(sorted(unknown))}"
        )
    failures = []
    for measurement in measurements:
        if only and measurement.name not in only:
            continue
        click.echo(f"{measurement.name} (about {measurement.hours:g} hours): {measurement.question}")
        for command in measurement.commands:
            click.echo(f"    {' '.join(command)}")
            if not plan and run_command(command, data, out):
                failures.append(f"{measurement.name}: {' '.join(command)}")
    for failure in failures:
        click.echo(f"failed: {failure}", err=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
