"""Fits and measures the coverage of answers, and what `k="auto"` returns.

The coverage is the probability that the answer holds a right tool for every step. It is fitted and measured on requests
that say what they need: those with one gold tool, those of three sets whose requests name several needs, and joined
ones (`joining.py`). The other sets give several tools to one need; they are measured, but not fitted.

Each set is measured with a model that was fitted on dev requests of the other sets alone. Printed are the expected
calibration error (ECE) after 1 to 10 tools, by set and pooled; the ECE that a perfect estimate has by chance with so
many requests (`floor`); a reliability diagram by set; and the tools and COMP of `auto`, with the fixed k that has the
same COMP.

    python benchmarks/coverage.py --write         fits the model that ships, on dev of all sets
    python benchmarks/coverage.py                 dev
    python benchmarks/coverage.py --edition test  test, once; writes results/coverage.json
    python benchmarks/coverage.py --chances       fits the constants of the chances in `search.steps.merge`, on dev
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import numpy as np
from joined import is_complete
from joining import SETS, build_joined
from scipy.optimize import minimize

from toolscout.dataset import Dataset
from toolscout.home.catalogue.store import Catalogue
from toolscout.recipes import registry
from toolscout.scout import MAX_AUTO_TOOLS
from toolscout.search.coverage import BUNDLED_COVERAGE, COVERAGE_FORMAT, USUAL_SHARE, CoverageModel, rate_split
from toolscout.search.pipeline import Stage
from toolscout.search.prerequisites import bring_prerequisites
from toolscout.search.steps.merge import CANDIDATES, end_answer, read_words
from toolscout.search.steps.stage import StepSearch
from toolscout.settings import Settings
from toolscout.sources.folder import read_tools
from toolscout.types import Hit, Search
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import provenance

EXPLICIT = ("seal_tools_in", "bfcl", "ultratool")  # their requests name each of several needs
WITH_DEV = ("toollens", "metatool", "seal_tools_in", "ultratool", "hammerbench", "bfcl", "toollinkos", "numpybank")
ALL = (
    *WITH_DEV,
    *("toolbench", "bfcl_parallel_multiple", "livemcpbench", "mcpproxy_golden"),
    *("openapi/restbench_tmdb", "openapi/restbench_spotify"),
)
FITTED_CHANCES = ("hammerbench", "metatool", "bfcl", "toollens")
SINGLES = 600
JOINED = 300
BINS = 10
MAX_GROUP_WEIGHT = 150  # a set and kind weighs as its requests in the fit, but at most as so many
RIDGE = 1e-4
BATCH = 64
DRAWS = 20  # for the floor
RAW = CoverageModel(COVERAGE_FORMAT, {}, 0.0, 1.0, 0.0, 0.0, 0.0)  # returns the estimate of the merge as it is


class Request(NamedTuple):
    """What a request has after each of its first tools.

    Attributes:
        merged: the estimates of the merge.
        missed: expected number of missed steps.
        shares: of the words that the tools have.
        complete: whether the answer is complete.
        roles: of the tools.
    """

    merged: list[float]
    missed: float
    shares: list[float]
    complete: list[bool]
    roles: list[str]


Groups = Mapping[tuple[str, str], list[Request]]  # by set and kind: one, several, hidden, joined


def list_requests(dataset: Dataset, edition: str) -> dict[str, list[tuple[str, list[list[str]]]]]:
    """Return the texts of requests, and the right tools of each of their needs, by kind."""
    texts, qrels = dataset.texts(edition), dataset.split(edition)
    queries = sorted(qrels)
    by_kind: dict[str, list[tuple[str, list[list[str]]]]] = {}
    for query in random.Random(0).sample(queries, min(SINGLES, len(queries))):
        gold = [[f"d/{tool}"] for tool in qrels[query]]
        kind = "one" if len(gold) == 1 else "several" if dataset.name in EXPLICIT else "hidden"
        by_kind.setdefault(kind, []).append((texts[query], gold))
    if dataset.name in SETS:
        by_kind["joined"] = [
            (some.text, [[f"d/{tool}" for tool in qrels[part]] for part in some.parts])
            for some in build_joined(dataset, edition, JOINED)
        ]
    return by_kind


def collect(name: str, root: Path, edition: str) -> Groups:
    """Search the requests of a set, and return what they have."""
    dataset = load_dataset(name, root)
    catalogue = Catalogue.of(read_tools(dataset.folder, "d").tools)
    steps = registry.build("scout", catalogue)
    assert isinstance(steps, StepSearch)
    steps.coverage = RAW
    stage = steps >> bring_prerequisites(catalogue, Settings())
    return {
        (name, kind): [row for row in search_requests(stage, steps, requests) if row.merged]
        for kind, requests in list_requests(dataset, edition).items()
    }


def search_requests(
    stage: Stage, steps: StepSearch, requests: Sequence[tuple[str, list[list[str]]]]
) -> Iterable[Request]:
    """Search requests, and yield what they have after each tool."""
    for start in range(0, len(requests), BATCH):
        batch = requests[start : start + BATCH]
        searches = stage([Search(query=text, k=MAX_AUTO_TOOLS) for text, _ in batch])
        for search, (text, gold) in zip(searches, batch, strict=True):
            hits, ids = search.hits[:MAX_AUTO_TOOLS], search.ids
            merged = np.maximum.accumulate([hit.coverage or 0.0 for hit in hits]).tolist() if hits else []
            complete = [is_complete(gold, ids[:count]) for count in range(1, len(hits) + 1)]
            missed = rate_split(steps.splitter, text, search.steps).missed
            shares = read_words(text, hits, steps.words).list_shares(hits) if steps.words else []
            yield Request(merged, missed, shares or [USUAL_SHARE] * len(hits), complete, [hit.role for hit in hits])


def as_columns(request: Request) -> np.ndarray:
    """Return the inputs of the model, constant, logit of the merged estimate, log of tools, missed, share."""
    merged = np.clip(request.merged, 1e-4, 1 - 1e-4)
    places = np.log(np.arange(1, len(merged) + 1))
    columns = [np.ones(len(merged)), np.log(merged / (1 - merged)), places, np.full(len(merged), request.missed)]
    columns.append(np.array(request.shares))
    return np.stack(columns, axis=1)


def fit_model(groups: Groups, about: Mapping[str, Any]) -> CoverageModel:
    """Fit the model on the requests that say what they need."""
    chosen = [rows for (_, kind), rows in groups.items() if kind != "hidden" and rows]
    inputs = np.concatenate([as_columns(row) for rows in chosen for row in rows])
    complete = np.concatenate([np.array(row.complete, float) for rows in chosen for row in rows])
    weights = np.concatenate(
        [
            np.full(len(row.merged), min(len(rows), MAX_GROUP_WEIGHT) / sum(len(row.merged) for row in rows))
            for rows in chosen
            for row in rows
        ]
    )
    weights /= weights.sum()
    penalty = np.array([0.0, RIDGE, RIDGE, RIDGE, RIDGE])

    def measure_loss(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        logits = inputs @ numbers
        loss = (weights * (np.logaddexp(0, logits) - complete * logits)).sum() + (penalty * numbers**2).sum()
        slope = inputs.T @ (weights * (1 / (1 + np.exp(-logits)) - complete)) + 2 * penalty * numbers
        return float(loss), slope

    bounds = [(None, None), (0.01, None), (0.0, None), (None, None), (0.0, None)]
    found = minimize(measure_loss, np.array([0.0, 1.0, 0.0, 0.0, 0.0]), jac=True, method="L-BFGS-B", bounds=bounds)
    return CoverageModel(COVERAGE_FORMAT, dict(about), *(round(float(number), 4) for number in found.x))


def estimate(model: CoverageModel, request: Request) -> list[float]:
    """Return the coverage after each tool."""
    rows = enumerate(zip(request.merged, request.shares, strict=True), 1)
    return [model.estimate(value, count, request.missed, share) for count, (value, share) in rows]


class Estimated(NamedTuple):
    """A request with its coverage after each tool."""

    request: Request
    coverage: list[float]


def find_bins(values: np.ndarray, complete: np.ndarray) -> list[tuple[int, float, float]]:
    """Return count, mean coverage and share of complete answers, of ten bins of equal width that are not empty."""
    places = np.minimum((values * BINS).astype(int), BINS - 1)
    chosen = [places == number for number in range(BINS)]
    return [
        (int(some.sum()), float(values[some].mean()), float(complete[some].mean())) for some in chosen if some.any()
    ]


def find_error(values: np.ndarray, complete: np.ndarray) -> float:
    """Return the expected calibration error."""
    return sum(count * abs(mean - share) for count, mean, share in find_bins(values, complete)) / len(values)


def find_floor(rows: Sequence[Estimated]) -> float:
    """Return the mean error of as many requests whose coverage is right by construction."""
    draw = np.random.default_rng(0)
    values = np.concatenate([row.coverage for row in rows])
    errors = []
    for _ in range(DRAWS):
        complete = np.concatenate([np.array(row.coverage) > draw.random() for row in rows])
        errors.append(find_error(values, complete.astype(float)))
    return float(np.mean(errors))


def describe(rows: Sequence[Estimated], aim: float) -> dict[str, Any]:
    """Return error, floor and diagram of the coverage, and what `auto` returns against ten tools."""
    values = np.concatenate([row.coverage for row in rows])
    complete = np.concatenate([np.array(row.request.complete, float) for row in rows])
    ends = [end_auto(row, aim) for row in rows]
    found = 100 * np.mean([row.request.complete[end - 1] for row, end in zip(rows, ends, strict=True)])
    by_count = [
        100 * np.mean([row.request.complete[min(count, len(row.coverage)) - 1] for row in rows])
        for count in range(1, MAX_AUTO_TOOLS + 1)
    ]
    same = next(count for count, comp in enumerate(by_count, 1) if comp >= found - 1e-9)
    return {
        "n": len(rows),
        "ece": round(find_error(values, complete), 3),
        "floor": round(find_floor(rows), 3),
        "tools": round(float(np.mean(ends)), 2),
        "of": round(float(np.mean([len(row.coverage) for row in rows])), 2),
        "comp_auto": round(float(found), 1),
        "comp@10": round(float(by_count[-1]), 1),
        "fixed_k_of_same_comp": same,
        "bins": [[count, round(mean, 3), round(share, 3)] for count, mean, share in find_bins(values, complete)],
    }


def end_auto(row: Estimated, aim: float) -> int:
    """Return after how many tools `auto` ends."""
    hits = tuple(
        Hit(str(number), 0.0, "", role=role, coverage=value)  # type: ignore[arg-type]
        for number, (value, role) in enumerate(zip(row.coverage, row.request.roles, strict=True))
    )
    return len(end_answer(hits, aim)[0])


def show(name: str, figures: Mapping[str, Any]) -> None:
    """Print the figures of one set or kind."""
    click.echo(
        f"{name} (n={figures['n']}): ECE {figures['ece']:.3f} (floor {figures['floor']:.3f}); auto returns "
        f"{figures['tools']} of {figures['of']} tools, COMP {figures['comp_auto']} of {figures['comp@10']}, which "
        f"{figures['fixed_k_of_same_comp']} tools have"
    )


def measure(fitted: Groups, measured: Groups, aim: float) -> dict[str, Any]:
    """Measure each set with a model of the others; return figures by set and kind, by set, and pooled."""
    rows: dict[str, list[Estimated]] = {}
    for (name, kind), requests in measured.items():
        model = fit_model({key: some for key, some in fitted.items() if key[0] != name}, {})
        some = [Estimated(request, estimate(model, request)) for request in requests]
        for label in (f"{name}, {kind}", *((name, "pooled") if kind != "hidden" else ("pooled, hidden",))):
            rows.setdefault(label, []).extend(some)
    figures = {label: describe(some, aim) for label, some in sorted(rows.items()) if some}
    for label, some in figures.items():
        show(label, some)
    return figures


def measure_chances(numbers: Sequence[float], rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the mean negative logarithm of the chance of the gold tool, or of "none of these"."""
    loss = 0.0
    for scores, gold in rows:
        logits = scores / np.exp(numbers[0]) - numbers[1] * np.log(np.arange(1, len(scores) + 1))
        logits = np.append(logits, numbers[2])
        right = logits[:-1][gold] if gold.any() else logits[-1:]
        loss += np.logaddexp.reduce(logits) - right[0]
    return loss / len(rows)


def fit_chances(root: Path) -> None:
    """Fit the constants of the chances by likelihood, for each set and for all together, and print them."""
    every: list[tuple[np.ndarray, np.ndarray]] = []
    for name in FITTED_CHANCES:
        dataset = load_dataset(name, root)
        singles = list_requests(dataset, "dev")["one"]
        stage = registry.build("hybrid", Catalogue.of(read_tools(dataset.folder, "d").tools))
        hits = [found.hits[:CANDIDATES] for found in stage([Search(query=text) for text, _ in singles])]
        rows = [
            (np.array([hit.score for hit in some]), np.array([hit.id == gold[0][0] for hit in some], dtype=bool))
            for some, (_, gold) in zip(hits, singles, strict=True)
            if some
        ]
        every += rows
        for label, some in ((name, rows), ("all so far", every)):
            found = minimize(measure_chances, [0.5, 0.5, 2.5], args=(some,), method="Nelder-Mead")
            points, discount, none = np.exp(found.x[0]), found.x[1], found.x[2]
            click.echo(
                f"{label}: {points:.2f} points per nat, discount {discount:.2f}, no tool {none:.2f} (n={len(some)})"
            )


def main() -> None:
    """Fit, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--edition", choices=("dev", "test"), default="dev")
    parser.add_argument("--chances", action="store_true")
    parser.add_argument("--write", action="store_true", help="write the fitted model into the package")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "coverage.json"))
    options = parser.parse_args()
    if options.data is None:
        sys.exit("Name the data folder with --data or TOOLSCOUT_DATA.")
    root = Path(options.data)
    if options.chances:
        fit_chances(root)
        return
    fitted: dict[tuple[str, str], list[Request]] = {}
    for name in WITH_DEV:
        fitted.update(collect(name, root, "dev"))
    counts = {f"{name}, {kind}": len(rows) for (name, kind), rows in fitted.items() if kind != "hidden"}
    command = "python benchmarks/coverage.py --write"
    model = fit_model(fitted, {"requests": counts, "edition": "dev", "encoder": "static", "command": command})
    numbers = {name: getattr(model, name) for name in ("constant", "merged", "places", "missed", "words")}
    click.echo(", ".join(f"{name} {number}" for name, number in numbers.items()))
    if options.write:
        BUNDLED_COVERAGE.write_bytes(msgspec.json.format(msgspec.json.encode(model), indent=1) + b"\n")
    measured = dict(fitted)
    if options.edition == "test":
        measured = {}
        for name in ALL:
            measured.update(collect(name, root, "test"))
    figures = measure(fitted, measured, Settings().coverage_aim)
    if options.edition == "test":
        result = {"aim": Settings().coverage_aim, "model": msgspec.to_builtins(model), "sets": figures, **provenance()}
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
