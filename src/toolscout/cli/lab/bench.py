"""bench, compare, report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import click

from toolscout.cli.data import data_option, find_folder, find_root, parse_settings, set_option
from toolscout.cli.output import json_option, print_json, progress, table
from toolscout.config import load_settings
from toolscout.errors import UserError

SHOWN_MEASURES = ("recall@5", "ndcg@5", "comp@5", "mrr")

out_option = click.option("--out", default="benchmarks/results", show_default=True, metavar="DIR", help="Results.")


@click.command("bench")
@click.argument("names", nargs=-1, metavar="DATASET...")
@click.option("--recipe", "-r", "recipe_names", multiple=True, required=True, help="What to measure; may be repeated.")
@click.option("--label", help="Name of the result files; by default the recipe's name.")
@click.option("--encoder", help="static, minilm, a model's folder or name, or an endpoint's address.")
@click.option("--no-tool", metavar="DIR", help="Queries that need no tool: measure detection too.")
@click.option("--folds", metavar="KIND:N", help="query:5 or parent:5, where there is no train.")
@click.option("--train-on", metavar="DATASET", help="Fit on this dataset, score on those of --test-on.")
@click.option("--test-on", "test_on", multiple=True, metavar="DATASET", help="With --train-on; may be repeated.")
@click.option("--split", default="test", show_default=True, help="Whose queries are scored.")
@click.option("--seed", default=0, show_default=True, help="Of everything random.")
@set_option
@click.option("--resume", is_flag=True, help="Keep results of the same job that are there already.")
@click.option("--force", is_flag=True, help="Overwrite a result of the same label and other settings.")
@click.option(
    "--allow-dirty",
    is_flag=True,
    help="Write into the repository though its code has changes that are not committed; the result says so.",
)
@data_option
@out_option
@json_option
@click.pass_context
def bench_command(
    ctx: click.Context,
    names: tuple[str, ...],
    recipe_names: tuple[str, ...],
    label: str | None,
    encoder: str | None,
    no_tool: str | None,
    folds: str | None,
    train_on: str | None,
    test_on: tuple[str, ...],
    split: str,
    seed: int,
    pairs: tuple[str, ...],
    resume: bool,
    force: bool,
    allow_dirty: bool,
    data: str | None,
    out: str,
    as_json: bool,
) -> int:
    """Score recipes on DATASETs: fitted on train, chosen on dev, scored on test, once.

    With --train-on each recipe is fitted on that dataset once, and scored there and on all the others that are named.
    """
    from toolscout.dataset import Dataset, NoTool
    from toolscout.lab import transfer
    from toolscout.lab.bench import Job, label_of, load_dataset, run
    from toolscout.lab.machine import refuse_dirty

    if bool(train_on) != bool(test_on) or not (train_on or names):
        raise click.UsageError("expected DATASETs, or --train-on with --test-on")
    if label and len(recipe_names) > 1:
        raise click.UsageError(f"--label goes with one --recipe, found {len(recipe_names)}")
    refuse_dirty(Path(out), allow=allow_dirty)
    root = find_root(data)
    source = load_dataset(train_on, root) if train_on else None
    suffix = f"-from-{source.name.replace('/', '-')}" if source else ""
    settings = load_settings(home=(ctx.obj or {}).get("home"))
    prompts = NoTool.load(find_folder(root, no_tool)) if no_tool else None
    results: list[dict[str, Any]] = []
    failures: list[str] = []

    def job(dataset: Dataset, recipe: str) -> Job:
        return Job(
            dataset,
            recipe,
            label_of(recipe, label, seed=seed, folds=folds) + suffix,
            Path(out),
            no_tool=prompts,
            encoder=encoder,
            split=split,
            folds=folds,
            seed=seed,
            changes=parse_settings(pairs),
            settings=settings,
        )

    @contextmanager
    def collect_failure(*what: str) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            failures.append(": ".join((*what, str(error))))

    with progress("measuring") as say:
        how: dict[str, Any] = {"resume": resume, "force": force, "allow_dirty": allow_dirty, "say": say}
        datasets: list[Dataset] = []
        for name in dict.fromkeys((*test_on, *names)):
            with collect_failure(name):
                datasets.append(load_dataset(name, root))
        for dataset, recipe in product(datasets, recipe_names) if source is None else ():
            with collect_failure(dataset.name, recipe):
                results.append(run(job(dataset, recipe), **how).result)
        for recipe in recipe_names if source and datasets else ():
            planned: list[Job] = []
            with collect_failure(recipe):
                assert source is not None
                planned = transfer.jobs(job(source, recipe), datasets)
            for number, each in enumerate(planned):
                with collect_failure(each.dataset.name, recipe):
                    results.append(run(each, reuse_model=number > 0, **how).result)
    if as_json:
        print_json(results)
    elif results:
        _show(results, source.name if source else None)
    for result in results:
        if result.get("degraded"):
            click.echo(
                f"toolscout: {result['dataset']}: {result['label']}: {result['degraded']:,} of {result['n_queries']:,} "
                "queries had to do without the language model, or ran out of time",
                err=True,
            )
    for failure in failures:
        click.echo(f"toolscout: {failure}", err=True)
    return (3 if results else 1) if failures else 0


@click.command("transfer")
@click.argument("source", metavar="SOURCE")
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("--recipe", "-r", "recipe_names", multiple=True, required=True, help="What to measure; may be repeated.")
@click.option("--label", help="Name of the result files; by default the recipe's name.")
@click.option("--encoder", help="static, minilm, a model's folder or name, or an endpoint's address.")
@click.option("--seed", default=0, show_default=True, help="Of everything random.")
@set_option
@click.option("--resume", is_flag=True, help="Keep results of the same job that are there already.")
@click.option("--force", is_flag=True, help="Overwrite a result of the same label and other settings.")
@data_option
@out_option
@json_option
@click.pass_context
def transfer_command(ctx: click.Context, /, source: str, targets: tuple[str, ...], **options: Any) -> Any:
    """Fit each recipe once on SOURCE, and score it there and on every TARGET.

    The same as `bench --train-on SOURCE --test-on TARGET …`.
    """
    fixed = {"names": (), "no_tool": None, "folds": None, "split": "test"}
    return ctx.invoke(bench_command, train_on=source, test_on=targets, **fixed, **options)


def _show(results: Sequence[Mapping[str, Any]], source: str | None = None) -> None:
    """A row a result, and the means of each label; where it was fitted on `source`, of what lies out of its domain."""
    from toolscout.lab import transfer

    shown = transfer.TRANSFER_MEASURES if source else SHOWN_MEASURES
    table(
        [("dataset", "left"), ("label", "left"), *((name, "right") for name in shown), ("p50 ms", "right")],
        [
            (
                each["dataset"],
                each["label"],
                *(f"{100 * each['metrics'][name]:.1f}" for name in shown),
                f"{each['latency_ms']['p50']:.2f}" if each["latency_ms"] else "—",
            )
            for each in results
        ],
    )
    for each in results:
        found = each["metrics"]
        if "detect_auroc" in found:
            click.echo(
                f"{each['dataset']}: {each['label']}: does it need a tool: AUROC {found['detect_auroc']:.4f}, accuracy "
                f"{100 * found['detect_accuracy']:.1f} %, calibration error {found['detect_ece']:.3f}"
            )
    counted = [each for each in results if each["dataset"] != source]
    labels = dict.fromkeys(each["label"] for each in counted)
    for label in labels if len(counted) > len(labels) else ():
        held = [each["metrics"] for each in counted if each["label"] == label]
        means = " · ".join(f"{name} {100 * sum(one[name] for one in held) / len(held):.1f}" for name in shown)
        click.echo(f"{label}: mean of {len(held)} {'other ' if source else ''}datasets: {means}")


@click.command("compare")
@click.argument("label_a")
@click.argument("label_b")
@click.option("--dataset", "names", multiple=True, required=True, metavar="DATASET", help="May be repeated.")
@click.option("--seed", default=0, show_default=True, help="Of the tests.")
@data_option
@out_option
@json_option
def compare_command(
    label_a: str, label_b: str, names: tuple[str, ...], seed: int, data: str | None, out: str, as_json: bool
) -> None:
    """Compare two labels query by query: paired tests, wins, ties and losses, slices."""
    from toolscout.lab.bench import load_dataset
    from toolscout.lab.compare import compare

    root = find_root(data)
    comparisons = [compare(Path(out), load_dataset(name, root), label_a, label_b, seed=seed) for name in names]
    if as_json:
        print_json(comparisons if len(comparisons) > 1 else comparisons[0])
        return
    for comparison in comparisons:
        _show_comparison(comparison)


def _show_comparison(found: Mapping[str, Any]) -> None:
    click.echo(
        f"{found['dataset']}, {found['split']}, {found['n_queries']:,} queries: {found['a']} against {found['b']}"
    )
    columns = ("measure", found["a"], found["b"], "difference", "95 %", "p", "p (Holm)", "wins/ties/losses")
    table(
        [(column, "left" if column == "measure" else "right") for column in columns],
        [
            (
                name,
                *(f"{100 * row[key]:.2f}" for key in ("a", "b")),
                f"{100 * row['difference']:+.2f}",
                f"{100 * row['ci95'][0]:+.2f} … {100 * row['ci95'][1]:+.2f}",
                f"{row['p']:.4f}",
                f"{row['p_holm']:.4f}",
                f"{row['wins']}/{row['ties']}/{row['losses']}",
            )
            for name, row in found["tests"].items()
        ],
    )
    rows = [
        (name, value, f"{row['n']:,}", *(f"{100 * row[key]:+.2f}" for key in SHOWN_MEASURES))
        for name, values in found["slices"].items()
        for value, row in values.items()
    ]
    table([("slice", "left"), ("value", "left"), ("n", "right"), *((name, "right") for name in SHOWN_MEASURES)], rows)
    if found["parents"]:
        table(
            [("parents in training", "left"), ("n", "right"), *((f"{name} (p)", "right") for name in SHOWN_MEASURES)],
            [
                (
                    value,
                    f"{row['n']:,}",
                    *(f"{100 * row[key]['difference']:+.2f} ({row[key]['p']:.4f})" for key in SHOWN_MEASURES),
                )
                for value, row in found["parents"].items()
            ],
        )


@click.command("report")
@click.argument("folder", default="benchmarks/results", metavar="[DIR]")
@data_option
@click.option("--out", metavar="DIR", help="Where to write; by default DIR itself.")
def report_command(folder: str, data: str | None, out: str | None) -> int:
    """Write HTML and PNG from the results and sweeps in DIR.

    Failures per tool are shown for the datasets that --data has.
    """
    from toolscout.lab.report import report

    written = report(Path(folder), Path(out) if out else None, data=find_root(data))
    for path in written:
        click.echo(path)
    for note in written.notes:
        click.echo(f"toolscout: {note}", err=True)
    for problem in written.problems:
        click.echo(f"toolscout: {problem.entry}: {problem.message}", err=True)
    return 3 if written.problems else 0
