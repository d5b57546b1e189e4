"""Fits the chances of `toolscout.search.step_merge`, and measures the coverage that follows from them, on dev requests.

A chance is a softmax over scores with a discount for rank and a weight for "none of these". Its three constants are
fitted by likelihood on requests with one gold tool, for each dataset and for all together; the numbers in the module
are those of all, rounded. Then `scout` answers: the expected calibration error of its coverage after 1 to 10 tools, and
what `k="auto"` returns, against ten tools.

    python benchmarks/coverage.py [--data DIR]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from joined import is_complete
from joining import SETS, build_joined
from scipy.optimize import minimize

from toolscout.catalogue.store import Catalogue
from toolscout.config import Settings
from toolscout.dataset import Dataset
from toolscout.lab.bench import load_dataset
from toolscout.recipes import registry
from toolscout.scout import MAX_AUTO_TOOLS
from toolscout.search.pipeline import Stage
from toolscout.search.step_merge import CANDIDATES
from toolscout.sources.folder import read_tools
from toolscout.types import Search

FITTED = ("hammerbench", "metatool", "bfcl", "toollens")
SINGLES = 400
JOINED = 150
BINS = 10
Row = tuple[np.ndarray, np.ndarray]  # scores, and whether each is of the gold tool
Answer = list[tuple[float, bool]]  # after each tool: the coverage, and whether the answer is complete


def list_singles(dataset: Dataset) -> list[tuple[str, str]]:
    """Return dev requests with one gold tool, and the tool."""
    texts, qrels = dataset.texts("dev"), dataset.split("dev")
    pairs = [(texts[query], f"d/{next(iter(gold))}") for query, gold in sorted(qrels.items()) if len(gold) == 1]
    return random.Random(0).sample(pairs, min(SINGLES, len(pairs)))


def measure_loss(numbers: Sequence[float], rows: Sequence[Row]) -> float:
    """Return the mean negative logarithm of the chance of the gold tool, or of "none of these"."""
    loss = 0.0
    for scores, gold in rows:
        logits = scores / np.exp(numbers[0]) - numbers[1] * np.log(np.arange(1, len(scores) + 1))
        logits = np.append(logits, numbers[2])
        right = logits[:-1][gold] if gold.any() else logits[-1:]
        loss += np.logaddexp.reduce(logits) - right[0]
    return loss / len(rows)


def fit_chances(rows: Sequence[Row]) -> str:
    """Return the fitted constants as text."""
    found = minimize(measure_loss, [0.5, 0.5, 2.5], args=(rows,), method="Nelder-Mead")
    points, discount, none = np.exp(found.x[0]), found.x[1], found.x[2]
    return f"{points:.2f} points per nat, discount {discount:.2f}, no tool {none:.2f} (n={len(rows)})"


def answer(stage: Stage, texts: Sequence[str], gold: Sequence[Sequence[Sequence[str]]]) -> list[Answer]:
    """Return coverage and completeness after each of the first ten tools, for each request with hits."""
    answers = []
    for search, need in zip(stage([Search(query=text, k=MAX_AUTO_TOOLS) for text in texts]), gold, strict=True):
        hits = search.hits[:MAX_AUTO_TOOLS]
        rows = [(hit.coverage or 0.0, is_complete(need, search.ids[:n])) for n, hit in enumerate(hits, 1)]
        answers += [rows] if rows else []
    return answers


def find_error(answers: Sequence[Answer]) -> float:
    """Return the expected calibration error of the coverage, with bins of equal width."""
    rows = np.array([row for some in answers for row in some], dtype=float)
    places = np.minimum((rows[:, 0] * BINS).astype(int), BINS - 1)
    bins = [rows[places == number] for number in range(BINS)]
    return float(sum(len(some) * abs(some[:, 0].mean() - some[:, 1].mean()) for some in bins if len(some)) / len(rows))


def describe(answers: Sequence[Answer], aim: float) -> str:
    """Return the calibration error, and what `auto` returns, as text."""
    ends = [next((n for n, (value, _) in enumerate(some) if value >= aim), len(some) - 1) for some in answers]
    share = 100 * sum(end + 1 for end in ends) / sum(map(len, answers))
    complete = 100 * np.mean([some[end][1] for some, end in zip(answers, ends, strict=True)])
    every = 100 * np.mean([some[-1][1] for some in answers])
    return f"ECE {find_error(answers):.3f}; auto returns {share:.0f} % of the tools, COMP {complete:.1f} of {every:.1f}"


def main() -> None:
    """Fit, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    fitted: list[Row] = []
    for name in dict.fromkeys((*FITTED, *SETS)):
        dataset = load_dataset(name, Path(options.data))
        catalogue = Catalogue.of(read_tools(dataset.folder, "d").tools)
        singles = list_singles(dataset)
        texts = [text for text, _ in singles]
        if name in FITTED:
            hits = [
                found.hits[:CANDIDATES]
                for found in registry.build("hybrid", catalogue)([Search(query=text) for text in texts])
            ]
            rows = [
                (np.array([hit.score for hit in some]), np.array([hit.id == gold for hit in some], dtype=bool))
                for some, (_, gold) in zip(hits, singles, strict=True)
                if some
            ]
            fitted += rows
            click.echo(f"{name}: {fit_chances(rows)}")
        scout = registry.build("scout", catalogue)
        aim = Settings().coverage_aim
        click.echo(f"{name}, one gold tool: {describe(answer(scout, texts, [[[gold]] for _, gold in singles]), aim)}")
        if name in SETS:
            joined, qrels = build_joined(dataset, "dev", JOINED), dataset.split("dev")
            needs = [[[f"d/{tool}" for tool in qrels[part]] for part in some.parts] for some in joined]
            click.echo(f"{name}, joined: {describe(answer(scout, [some.text for some in joined], needs), aim)}")
    click.echo(f"all: {fit_chances(fitted)}")


if __name__ == "__main__":
    main()
