"""Compares two labels on one dataset: corrected paired tests query by query; wins, ties, losses; slices."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from toolscout import metrics
from toolscout.dataset import Dataset
from toolscout.errors import NotFound, UserError
from toolscout.sources.folder import read_tools
from toolscout_lab.bench_jobs import groups, load_dataset
from toolscout_lab.machine import Record
from toolscout_lab.run_files import read_run
from toolscout_lab.statistics import holm

__all__ = ["TESTED_MEASURES", "compare", "load_checked"]

TESTED_MEASURES: Final = ("recall@5", "ndcg@5", "comp@5", "mrr")
TOLERANCE: Final = 1e-9


def load_checked(out: Path, dataset: Dataset, label: str) -> tuple[Record, metrics.PerQuery]:
    """Load a result and its per-query values, which are recomputed from the run file and checked against it.

    Raises:
        NotFound: if there is no such result.
        UserError: if the run file is not the one that was scored.
    """
    folder = out / dataset.name
    try:
        result: Record = msgspec.json.decode((folder / f"{label}.json").read_bytes())
        if not (folder / f"{label}.run.gz").exists():
            raise NotFound(
                f"{folder / label}.run.gz: {label} has a summary but no rankings here. Make them with  "
                f"toolscout lab bench {dataset.name} --recipe {result['recipe']} --label {label} --force --out {out}"
            )
        content = (folder / f"{label}.run.gz").read_bytes()
    except FileNotFoundError as error:
        labels = ", ".join(sorted(path.stem for path in folder.glob("*.json")))
        mend = "" if labels else " Name the folder of the results with --out."
        raise NotFound(
            f"{error.filename}: there is no such result. The labels here are: {labels or 'none'}.{mend}"
        ) from None
    except msgspec.MsgspecError as error:
        raise UserError(f"{folder / label}.json: expected a result, found a damaged file: {error}") from None
    if result.get("run_sha256") != hashlib.sha256(content).hexdigest():
        raise UserError(
            f"{folder / label}.run.gz: expected the rankings that {label}.json was computed from, found others: "
            "run the bench again with --force"
        )
    ranking = {query: [tool for tool, _ in hits] for query, hits in read_run(folder / f"{label}.run.gz").items()}
    per_query = metrics.score(ranking, dataset.split(result["split"]))
    for name, value in per_query.means().items():
        if not math.isclose(result["metrics"].get(name, math.nan), value, abs_tol=TOLERANCE):
            raise UserError(
                f"{folder / label}.json: expected {name} {value:.6f} as its rankings give it, found "
                f"{result['metrics'].get(name)}: run the bench again with --force"
            )
    return result, per_query


def compare(
    out: Path, dataset: Dataset, label_a: str, label_b: str, *, seed: int = 0, measures: Sequence[str] = TESTED_MEASURES
) -> Record:
    """Compare `label_a` with `label_b`, measure by measure.

    Args:
        out: the folder of results.
        dataset: the dataset of both results.
        label_a: the first result.
        label_b: the second result.
        seed: seed of the tests.
        measures: the measures to test; p is corrected for their number. See `metrics.score`.

    Returns:
        `tests`: measure → a, b, difference (a - b), its 95 % interval, p (two-sided sign-flip), p corrected by Holm
        over the measures, wins, ties, losses of a; `slices`: slice → value → n and the difference of each measure;
        `parents`: seen, mixed, unseen → measure → difference, its 95 % interval, p, not corrected. `parents` refers to
        the training of `label_a`; it is empty without training, or after training on another dataset.

    Raises:
        NotFound, UserError: as `load_checked`; and if the two were scored on different queries.
    """
    result_a, a = load_checked(out, dataset, label_a)
    result_b, b = load_checked(out, dataset, label_b)
    if result_a["split"] != result_b["split"]:
        raise UserError(
            f"expected two results of one split, found {label_a} on {result_a['split']}, "
            f"{label_b} on {result_b['split']}"
        )
    table = _load_slices(dataset, result_a)
    tests: dict[str, Record] = {}
    for name in measures:
        test = metrics.paired_test(a.values[name], b.values[name], seed)
        tests[name] = {
            "a": float(np.mean(a.values[name])),
            "b": float(np.mean(b.values[name])),
            "difference": test.difference,
            "ci95": [test.low, test.high],
            "p": test.p,
            "wins": test.wins,
            "ties": test.ties,
            "losses": test.losses,
        }
    for name, corrected in zip(measures, holm([tests[name]["p"] for name in measures]), strict=True):
        tests[name]["p_holm"] = corrected
    return {
        "dataset": dataset.name,
        "split": result_a["split"],
        "a": label_a,
        "b": label_b,
        "n_queries": len(a.ids),
        "tests": tests,
        "slices": _subtract_slices(metrics.slices(a, table), metrics.slices(b, table), measures),
        "parents": _test_by_parents(table.get("parents", {}), a, b, seed, measures),
    }


def _load_slices(dataset: Dataset, result: Record) -> dict[str, dict[str, str]]:
    """Return the slices of a result. If it was trained on a dataset that is not here, they omit what training saw."""
    settings, split = result["settings"], result["split"]
    source = None
    if settings.get("train_on", dataset.name) != dataset.name:
        root = dataset.folder.parents[len(Path(dataset.name).parts) - 1]
        try:
            source = load_dataset(settings["train_on"], root)
        except NotFound:
            return dataset.groups(split)
    return groups(dataset, split, read_tools(dataset.folder, "d").tools, settings.get("folds"), source)


def _test_by_parents(
    labels: Mapping[str, str], a: metrics.PerQuery, b: metrics.PerQuery, seed: int, measures: Sequence[str]
) -> Record:
    """Run paired tests by what training saw of the parents of the gold tools: all, some, none."""
    by_label: Record = {}
    for value in sorted(set(labels.values())):
        rows = np.array([labels[query] == value for query in a.ids])
        by_label[value] = {"n": int(rows.sum())}
        for name in measures:
            test = metrics.paired_test(np.asarray(a.values[name])[rows], np.asarray(b.values[name])[rows], seed)
            by_label[value][name] = {"difference": test.difference, "ci95": [test.low, test.high], "p": test.p}
    return by_label


def _subtract_slices(a: Record, b: Record, names: Sequence[str]) -> Record:
    """Return the differences in the slices of both results."""
    return {
        name: {
            value: {"n": row["n"], **{key: row[key] - b[name][value][key] for key in names}}
            for value, row in values.items()
        }
        for name, values in a.items()
    }
