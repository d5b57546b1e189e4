"""Measures every figure of README.md again that is missing or older than the code.

A result is kept if its commit is an ancestor of HEAD, the code was committed, and no file that makes figures
(`machine.MAKES_FIGURES`) has changed since. So an interrupted run can be resumed, and results may be committed in
between.

    scripts/bench headline [--plan] [--force] [--out DIR] [--only zero-shot|toollens|speed|contamination] [DATASET…]

`--plan` prints the commands and about how long each took when it was measured last, and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from toolscout.checks.results import TRAINED, UNTRAINED
from toolscout.errors import UserError
from toolscout_lab.machine import MAKES_FIGURES, refuse_dirty

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
ZERO_SHOT = ("bm25-plain", "dense-minilm", "rrf-minilm", "hybrid", "scout-installed")
LEARNED = (("mlc-light", 0), ("mlc", 0), ("mlc", 1), ("mlc", 2))
SCRIPTS = {"contamination": ((), 60.0), "speed": (("--minilm",), 900.0)}  # options, about how many seconds


class Step(NamedTuple):
    """One command, the file that it writes, and its approximate seconds; None: not known."""

    part: str
    command: list[str]
    file: Path
    seconds: float | None


def plan_steps(out: Path, names: Sequence[str]) -> Iterator[Step]:
    """Yield all steps, the quick ones first."""
    program = [sys.executable, "-m", "toolscout", "lab", "bench"]
    for script, (options, seconds) in SCRIPTS.items():
        command = [sys.executable, f"benchmarks/{script}.py", *options, "--out", str(out / f"{script}.json")]
        yield Step(script, command, out / f"{script}.json", seconds)
    for label in ZERO_SHOT:
        for name in names:
            file = out / name / f"{label}.json"
            recipe = label.removesuffix("-installed")
            added = ["--installed"] if label != recipe else []
            command = [*program, name, "--recipe", recipe, *added, "--out", str(out), "--force"]
            yield Step("zero-shot", command, file, estimate_seconds(name, label))
    for recipe, seed in LEARNED if "toollens" in names else ():
        label = f"{recipe}-s{seed}" if seed else recipe
        command = [*program, "toollens", "--recipe", recipe, "--seed", str(seed), "--out", str(out), "--force"]
        yield Step("toollens", command, out / "toollens" / f"{label}.json", estimate_seconds("toollens", label))


def estimate_seconds(name: str, label: str) -> float | None:
    """Estimate the seconds of a result from its last measurement: fit, batches and latencies."""
    file = RESULTS / name / f"{label}.json"
    if not file.exists():
        return None
    held = json.loads(file.read_text())
    searching = held["n_queries"] / held["batch_qps"] if held.get("batch_qps") else 0.0
    return float(held["fit_seconds"] + searching + 0.21 * held["latency_ms"].get("p50", 0.0))


def is_current(file: Path) -> bool:
    """Whether a file of figures was made by the code of HEAD."""
    if not file.exists():
        return False
    held: dict[str, Any] = json.loads(file.read_text())
    commit = held.get("commit")
    if not commit or held.get("dirty") is not False:
        return False
    same = ["git", "diff", "--quiet", commit, "HEAD", "--", *MAKES_FIGURES]
    above = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    return all(subprocess.run(words, cwd=ROOT, capture_output=True).returncode == 0 for words in (above, same))


def main(given: Sequence[str] | None = None) -> int:
    """Print the plan, then carry it out; the exit code of the first command that fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="DATASET", help="by default all 14")
    parser.add_argument("--plan", action="store_true", help="print the commands, run nothing")
    parser.add_argument("--force", action="store_true", help="measure again what is current too")
    parser.add_argument("--only", action="append", choices=("zero-shot", "toollens", *SCRIPTS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(given)
    steps = [
        step
        for step in plan_steps(options.out, options.names or [*TRAINED, *UNTRAINED])
        if (not options.only or step.part in options.only) and (options.force or not is_current(step.file))
    ]
    for step in steps:
        took = "not measured yet" if step.seconds is None else f"about {step.seconds:,.0f} s"
        click.echo(f"{took:>16}  {shlex.join(['python', *step.command[1:]])}")
    known = sum(step.seconds or 0.0 for step in steps)
    click.echo(f"{len(steps)} commands, about {known / 60:,.0f} minutes, and the encoding of texts not met before")
    if options.plan:
        return 0
    try:
        refuse_dirty(options.out)
    except UserError as error:
        click.echo(str(error), err=True)
        return 1
    for number, step in enumerate(steps, 1):
        click.echo(f"[{number} of {len(steps)}] {step.file}", err=True)
        done = subprocess.run(step.command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "src")})
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
