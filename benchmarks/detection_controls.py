"""Measures whether masstool's retrieval uses what its detection tower learned (AdaKT), by taking that away.

AdaKT joins the hidden layer of the detection tower, h, with the neighbours of a query. For fitted models and the
queries of a split, this script ranks the tools with each of these for h, everything else as fitted:

* `own`: that of the query, as in a search;
* `shuffled`: that of another query, several draws, averaged per query;
* `mean`: the mean over the queries of the split, the same for all;
* `zero`: zeros;
* `no_joint`: h as it is, but without the joint part in the sum.

If `shuffled` and `mean` are as good as `own`, retrieval uses the joint part, but nothing that detection knows about
the query. Each has its figures with 95 % intervals, and its differences from `own` with paired tests. `joint_cosine` is
the mean cosine of the joint part with that of `own`: near 1, h hardly changes it. `encoder` ranks by the first stage's
vectors alone.

Give models of several seeds, and for each a model fitted with `--set need=0`, whose h never learned to detect. Then
`arms` compares both kinds on each dataset: the values of each query, averaged over the seeds, with paired tests. Fit
both kinds with `--set epoch_by=retrieval`; otherwise they differ in the rule that chose the epoch too.

    python benchmarks/detection_controls.py --model DIR [--model DIR …] [--split test] [--draws 3]

`TOOLSCOUT_DATA` names the folder with the datasets. Writes benchmarks/results/detection-controls.json. Choose on dev;
look at test once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from toolscout import metrics
from toolscout.arrays import Vectors
from toolscout.dataset import Dataset
from toolscout.encoders import unit_rows
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models import model_store
from toolscout.home.models.model_store import Model
from toolscout.metrics import PerQuery
from toolscout.sources.folder import read_tools
from toolscout.types import render
from toolscout_lab.bench_jobs import load_dataset
from toolscout_lab.machine import provenance
from toolscout_lab.rankers import dpr
from toolscout_lab.rankers.dpr import FittedEncoder
from toolscout_lab.rankers.masstool import ArrayTowers, Pool
from toolscout_lab.rankers.shared.tool_rows import load_tool_rows
from toolscout_lab.rankers.shared.tuning import ENCODER_FOLDER
from toolscout_lab.statistics import holm

MEASURES: Final = ("recall@3", "recall@5", "ndcg@3", "ndcg@5", "comp@3", "comp@5")
OWN: Final = "own"
ARMS: Final = (("detecting", True), ("other", False))
SETTINGS: Final = ("base", "transfer", "search", "k", "floor", "need")


def replace_hidden(hidden: Vectors, draws: int, seed: int = 0) -> dict[str, list[Vectors]]:
    """Return what stands for h in each control, `(n, d)` each; several for `shuffled`.

    A draw of `shuffled` is a random cycle through the queries, so that none keeps its own h.
    """
    random, n = np.random.default_rng(seed), len(hidden)
    shuffled = []
    for _ in range(draws):
        order, place = random.permutation(n), np.empty(n, dtype=np.intp)
        place[order] = np.roll(order, 1)
        shuffled.append(hidden[place])
    mean = np.broadcast_to(hidden.mean(axis=0), hidden.shape)
    return {OWN: [hidden], "shuffled": shuffled, "mean": [mean], "zero": [np.zeros_like(hidden)]}


def average(scored: Sequence[PerQuery]) -> PerQuery:
    """Average the values of each query over several draws."""
    values = {name: np.mean([each.values[name] for each in scored], axis=0) for name in scored[0].values}
    return PerQuery(scored[0].ids, values)


def compare(scored: PerQuery, other: PerQuery) -> dict[str, Any]:
    """Return the differences from `other` with intervals and p, corrected for the measures (Holm)."""
    tests = {name: metrics.paired_test(scored.values[name], other.values[name]) for name in MEASURES}
    corrected = holm([test.p for test in tests.values()])
    return {
        name: {"difference": test.difference, "ci95": [test.low, test.high], "p": test.p, "p_holm": p_holm}
        for (name, test), p_holm in zip(tests.items(), corrected, strict=True)
    }


def measure_model(model: Model, dataset: Dataset, split: str, draws: int) -> tuple[dict[str, Any], PerQuery]:
    """Rank the queries of a split by each control of a fitted model, and compare the figures.

    Returns:
        The report of the model, and the values of each query as in a search.

    Raises:
        SystemExit: if the model has no joint part.
    """
    settings = model.manifest.settings
    if settings.get("transfer") is None or settings["transfer"].value == "none":
        sys.exit(f"{model.folder}: this model has no joint part. Give a model of masstool.")
    encoder = FittedEncoder(model.folder / ENCODER_FOLDER, model.manifest.values["tool_length"])
    catalogue = Catalogue.of(read_tools(dataset.folder, "d").tools)
    tools = catalogue.tools()
    tool_rows = load_tool_rows(catalogue, model, encoder)
    gold = {
        query: {f"d/{tool}": grade for tool, grade in tools_of.items()}
        for query, tools_of in dataset.split(split).items()
    }
    rows = encoder.encode([dataset.queries[query] for query in gold], "query")
    pool = Pool(model.arrays["keys"], model.arrays["pool"])
    near = pool.near(rows, settings["k"].value, settings["floor"].value)
    towers = ArrayTowers.load(model)

    def compute_parts(hidden: Vectors) -> dict[str, Vectors]:
        return towers.parts(rows, pool.values, near, hidden)

    def score(parts: dict[str, Vectors]) -> PerQuery:
        vectors = unit_rows(np.sum(list(parts.values()), axis=0))
        return metrics.score(dpr.rank_nearest(vectors @ tool_rows.T, gold, tools), gold, MEASURES)

    own_parts = compute_parts(towers.compute_hidden(rows))
    has_joint = np.asarray(own_parts["joint"].any(axis=1))
    scored: dict[str, PerQuery] = {}
    cosines: dict[str, float] = {}
    for name, controls in replace_hidden(towers.compute_hidden(rows), draws).items():
        parts = [compute_parts(hidden) for hidden in controls]
        scored[name] = average([score(each) for each in parts])
        likeness = np.mean([(each["joint"] * own_parts["joint"]).sum(axis=1)[has_joint] for each in parts])
        cosines[name] = round(float(likeness), 6)
    scored["no_joint"] = score({name: part for name, part in own_parts.items() if name != "joint"})
    encoded_tools = encoder.encode([render(tool, dpr.TUNED_TEXT_STYLE) for tool in tools], "tool")
    scored["encoder"] = metrics.score(dpr.rank_nearest(rows @ encoded_tools.T, gold, tools), gold, MEASURES)
    report = {
        "recipe": model.manifest.recipe,
        "dataset": dataset.name,
        "split": split,
        "seed": model.manifest.seed,
        "towers": model.manifest.values.get("towers", 1),
        "settings": {name: settings[name].value for name in SETTINGS},
        "epoch_by": settings["epoch_by"].value if "epoch_by" in settings else "both",
        "best_epoch": model.manifest.values["best_epoch"],
        "history": model.manifest.values["history"],
        "detects": "need" in model.manifest.values,
        "n_queries": len(gold),
        "n_with_joint": int(has_joint.sum()),
        "draws": draws,
        "controls": {
            name: {
                "metrics": each.means(),
                "ci95": each.ci95(),
                **({"joint_cosine": cosines[name]} if name in cosines else {}),
                **({"from_own": compare(each, scored[OWN])} if name != OWN else {}),
            }
            for name, each in scored.items()
        },
    }
    return report, scored[OWN]


def compare_arms(measured: Sequence[tuple[dict[str, Any], PerQuery]]) -> list[dict[str, Any]]:
    """Compare the models that learned to detect with those that did not, of the same seeds, on each dataset.

    Returns:
        For each dataset with both kinds: the figures of both, and the differences of those that detect.

    Raises:
        SystemExit: if a seed has not one model of each kind.
    """
    compared = []
    for name in dict.fromkeys(report["dataset"] for report, _ in measured):
        arms = {
            kind: [each for each in measured if each[0]["dataset"] == name and each[0]["detects"] is kind]
            for _, kind in ARMS
        }
        if not all(arms.values()):
            continue
        seeds, other_seeds = (sorted(report["seed"] for report, _ in arms[kind]) for _, kind in ARMS)
        if seeds != other_seeds or len(set(seeds)) < len(seeds):
            sys.exit(
                f"{name}: the models that detect have the seeds {seeds}, the others {other_seeds}. Give one of each."
            )
        by_seed = {kind: {report["seed"]: (report, own) for report, own in arm} for kind, arm in arms.items()}
        detecting, other = (average([by_seed[kind][seed][1] for seed in seeds]) for kind in (True, False))
        compared.append(
            {
                "dataset": name,
                "seeds": seeds,
                "epoch_by": {label: sorted({report["epoch_by"] for report, _ in arms[kind]}) for label, kind in ARMS},
                "best_epochs": {
                    label: [by_seed[kind][seed][0]["best_epoch"] for seed in seeds] for label, kind in ARMS
                },
                "detecting": {"metrics": detecting.means(), "ci95": detecting.ci95()},
                "other": {"metrics": other.means(), "ci95": other.ci95()},
                "difference": compare(detecting, other),
                "by_seed": {seed: compare(by_seed[True][seed][1], by_seed[False][seed][1]) for seed in seeds},
            }
        )
    return compared


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure all models; write the file after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", dest="models", action="append", type=Path, required=True)
    parser.add_argument("--data", default=os.environ.get("TOOLSCOUT_DATA"))
    parser.add_argument("--split", default="test")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "detection-controls.json")
    given = parser.parse_args(arguments)
    measured: list[tuple[dict[str, Any], PerQuery]] = []
    for folder in given.models:
        model = model_store.load(folder)
        dataset = load_dataset(model.manifest.data.name, Path(given.data) if given.data else None)
        measured.append(measure_model(model, dataset, given.split, given.draws))
        _print_figures(folder.name, {name: each["metrics"] for name, each in measured[-1][0]["controls"].items()})
        _write(given.out, measured, [])
    arms = compare_arms(measured)
    _write(given.out, measured, arms)
    for arm in arms:
        _print_figures(arm["dataset"], {name: arm[name]["metrics"] for name in ("detecting", "other")})
        for measure, test in arm["difference"].items():
            low, high = test["ci95"]
            interval = f"({100 * low:+.1f} to {100 * high:+.1f}; p {test['p']:.4f}, Holm {test['p_holm']:.4f})"
            click.echo(f"{arm['dataset']}  {measure} {100 * test['difference']:+.2f} {interval}")
    return [report for report, _ in measured]


def _write(out: Path, measured: Sequence[tuple[dict[str, Any], PerQuery]], arms: list[dict[str, Any]]) -> None:
    content = {"models": [report for report, _ in measured], "arms": arms, "provenance": provenance()}
    out.write_text(json.dumps(content, indent=1) + "\n")


def _print_figures(label: str, rows: dict[str, dict[str, float]]) -> None:
    for name, figures in rows.items():
        click.echo(f"{label}  {name:<9} {'  '.join(f'{each} {100 * figures[each]:.1f}' for each in MEASURES)}")


if __name__ == "__main__":
    main()
