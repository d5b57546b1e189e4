"""The commands `lab bench`, `lab transfer`, `lab compare` and `lab report`."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolscout.cli.options import (
    data_option,
    describe_cost,
    find_folder,
    find_root,
    parse_settings,
    print_cost,
    set_option,
)
from toolscout.cli.output import json_option, print_failure, print_json, print_table, print_warning, progress
from toolscout.errors import UserError
from toolscout_lab.commands.llm import load_llm_settings, share_llm, spending_options
from toolscout_lab.machine import Record

if TYPE_CHECKING:
    from toolscout.dataset import Dataset
    from toolscout_lab.bench_jobs import Job

SHOWN_MEASURES = ("recall@5", "ndcg@5", "comp@5", "mrr")

out_option = click.option(
    "--out", default="benchmarks/results", show_default=True, metavar="DIR", help="Folder of the results."
)


@click.command("bench")
@click.argument("names", nargs=-1, metavar="DATASET...")
@click.option("--recipe", "-r", "recipe_names", multiple=True, required=True, help="Recipe to score; may be repeated.")
@click.option("--label", help="Name of the result files. Default: the recipe's name.")
@click.option("--encoder", help="static, minilm, a model's folder or name, or an endpoint's address.")
@click.option("--no-tool", metavar="DIR", help="Folder of queries that need no tool; measures detection too.")
@click.option("--folds", metavar="KIND:N", help="Cross-validation for datasets without train: query:5 or parent:5.")
@click.option("--train-on", metavar="DATASET", help="Fit on this dataset and score on those of --test-on.")
@click.option(
    "--test-on", "test_on", multiple=True, metavar="DATASET", help="Dataset to score with --train-on; may be repeated."
)
@click.option(
    "--installed",
    is_flag=True,
    help="Measure the whole search: exact names, demotion, folding and abstention too, not the ranking alone.",
)
@click.option("--split", default="test", show_default=True, help="Split of the queries that are scored.")
@click.option("--seed", default=0, show_default=True, help="Seed of all random choices.")
@set_option
@click.option("--resume", is_flag=True, help="Keep existing results of the same job.")
@click.option("--force", is_flag=True, help="Overwrite a result with the same label and other settings.")
@click.option(
    "--allow-dirty",
    is_flag=True,
    help="Allow uncommitted changes when writing into the repository; the result says so.",
)
@data_option
@out_option
@spending_options
@json_option
@click.pass_context
def bench_command(
    ctx: click.Context,
    /,
    names: tuple[str, ...],
    recipe_names: tuple[str, ...],
    label: str | None,
    encoder: str | None,
    no_tool: str | None,
    folds: str | None,
    train_on: str | None,
    test_on: tuple[str, ...],
    installed: bool,
    split: str,
    seed: int,
    pairs: tuple[str, ...],
    resume: bool,
    force: bool,
    allow_dirty: bool,
    data: str | None,
    out: str,
    llm_address: str | None,
    as_json: bool,
    **limits: Any,
) -> int:
    """Score recipes on DATASETs: fit on train, choose on dev, score once on test.

    With --train-on each recipe is fitted once on that dataset, and scored there and on the datasets of --test-on.
    """
    from toolscout.dataset import NoTool
    from toolscout_lab.bench_jobs import Job, label_of, load_dataset
    from toolscout_lab.machine import refuse_dirty

    _check_arguments(names, recipe_names, label, train_on, test_on)
    refuse_dirty(Path(out), allow=allow_dirty)
    root = find_root(data)
    source = load_dataset(train_on, root) if train_on else None
    suffix = f"-from-{source.name.replace('/', '-')}" if source else ""
    settings = load_llm_settings(ctx, llm_address)
    prompts = NoTool.load(find_folder(root, no_tool)) if no_tool else None

    with progress("measuring") as say, share_llm(settings, **limits) as shared:

        def make_job(dataset: Dataset, recipe: str) -> Job:
            return Job(
                dataset,
                recipe,
                label_of(recipe, label, seed=seed, folds=folds, installed=installed) + suffix,
                Path(out),
                no_tool=prompts,
                encoder=encoder,
                split=split,
                folds=folds,
                seed=seed,
                changes=parse_settings(pairs),
                settings=settings,
                llm=shared,
                installed=installed,
            )

        run_options = {"resume": resume, "force": force, "allow_dirty": allow_dirty, "say": say}
        bench = _Bench(make_job, run_options, dry_run=limits["dry_run"])
        datasets = bench.load_datasets((*test_on, *names), root)
        if source is None:
            bench.score(datasets, recipe_names)
        elif datasets:
            bench.transfer(source, datasets, recipe_names)
    if as_json:
        print_json(describe_cost(shared.spent) if bench.dry_run else bench.results)
    elif bench.results:
        _print_results(bench.results, source.name if source else None)
    if bench.dry_run or shared.spent.calls:
        print_cost(shared.spent, dry_run=bench.dry_run)
    _print_warnings(bench.results, bench.failures)
    return bench.exit_code


def _check_arguments(
    names: Sequence[str], recipe_names: Sequence[str], label: str | None, train_on: str | None, test_on: Sequence[str]
) -> None:
    """Refuse arguments that do not go together.

    Raises:
        click.UsageError: if there are such arguments.
    """
    if bool(train_on) != bool(test_on) or not (train_on or names):
        raise click.UsageError("expected DATASETs, or --train-on with --test-on")
    if label and len(recipe_names) > 1:
        raise click.UsageError(f"--label goes with one --recipe, found {len(recipe_names)}")


@dataclasses.dataclass
class _Bench:
    """Runs jobs one after the other. A job that fails does not stop the others.

    Attributes:
        make_job: (dataset, recipe) → the job.
        run_options: arguments of `bench.run` for every job.
        results: of the jobs that succeeded.
        failures: for each dataset or job that failed, what failed and why.
        dry_run: whether the jobs only ask what they would ask a language model.
    """

    make_job: Callable[[Dataset, str], Job]
    run_options: Record
    results: list[Record] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)
    dry_run: bool = False

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0 success, 1 everything failed, 3 some jobs failed."""
        if not self.failures:
            return 0
        return 3 if self.results else 1

    def load_datasets(self, names: Sequence[str], root: Path | None) -> list[Dataset]:
        """Load each dataset once, in order."""
        from toolscout_lab.bench_jobs import load_dataset

        datasets: list[Dataset] = []
        for name in dict.fromkeys(names):
            with self._collect_failure(name):
                datasets.append(load_dataset(name, root))
        return datasets

    def score(self, datasets: Sequence[Dataset], recipes: Sequence[str]) -> None:
        """Score each recipe on each dataset."""
        for number, (dataset, recipe) in enumerate(itertools.product(datasets, recipes)):
            self._count_job(f"{dataset.name}: {recipe}", number, len(datasets) * len(recipes))
            with self._collect_failure(dataset.name, recipe):
                self._run(self.make_job(dataset, recipe))

    def transfer(self, source: Dataset, datasets: Sequence[Dataset], recipes: Sequence[str]) -> None:
        """Fit each recipe once on `source`, and score it there and on the other datasets."""
        from toolscout_lab.bench_jobs import plan_transfer

        for recipe in recipes:
            jobs: list[Job] = []
            with self._collect_failure(recipe):
                jobs = plan_transfer(self.make_job(source, recipe), datasets)
            for number, job in enumerate(jobs):
                with self._collect_failure(job.dataset.name, recipe):
                    self._run(job, reuse_model=number > 0)

    def _count_job(self, title: str, number: int, total: int) -> None:
        """Say which job of how many begins."""
        self.run_options["say"](f"{title}: measurement {number + 1} of {total}")

    def _run(self, job: Job, *, reuse_model: bool = False) -> None:
        """Run a job and keep its result. A rehearsal only checks that it could run."""
        from toolscout_lab.bench import rehearse, run

        if self.dry_run:
            if not reuse_model:
                rehearse(job)
            return
        self.results.append(run(job, reuse_model=reuse_model, **self.run_options).result)

    @contextlib.contextmanager
    def _collect_failure(self, *what: str) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            self.failures.append(": ".join((*what, str(error))))


def _print_warnings(results: Sequence[Record], failures: Sequence[str]) -> None:
    for result in results:
        if result.get("degraded"):
            print_warning(
                f"{result['dataset']}: {result['label']}: {result['degraded']:,} of {result['n_queries']:,} "
                "queries were answered without the language model or ran out of time"
            )
    for failure in failures:
        print_failure(failure)


@click.command("transfer")
@click.argument("source", metavar="SOURCE")
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option("--recipe", "-r", "recipe_names", multiple=True, required=True, help="Recipe to score; may be repeated.")
@click.option("--label", help="Name of the result files. Default: the recipe's name.")
@click.option("--encoder", help="static, minilm, a model's folder or name, or an endpoint's address.")
@click.option("--seed", default=0, show_default=True, help="Seed of all random choices.")
@set_option
@click.option("--resume", is_flag=True, help="Keep existing results of the same job.")
@click.option("--force", is_flag=True, help="Overwrite a result with the same label and other settings.")
@data_option
@out_option
@json_option
@click.pass_context
def transfer_command(ctx: click.Context, /, source: str, targets: tuple[str, ...], **options: Any) -> Any:
    """Fit each recipe once on SOURCE, then score it there and on every TARGET.

    Same as `bench --train-on SOURCE --test-on TARGET …`.
    """
    fixed = {"names": (), "no_tool": None, "folds": None, "split": "test"}
    return ctx.invoke(bench_command, train_on=source, test_on=targets, **fixed, **options)


def _print_results(results: Sequence[Record], source: str | None = None) -> None:
    """Print a row for each result, then the detection measures, then the mean of each label.

    Args:
        results: as `bench` writes them.
        source: the dataset of the fit in a transfer; the means leave it out.
    """
    from toolscout_lab.bench_jobs import TRANSFER_MEASURES

    measures = TRANSFER_MEASURES if source else SHOWN_MEASURES
    print_table(
        [("dataset", "left"), ("label", "left"), *((name, "right") for name in measures), ("p50 ms", "right")],
        [
            (
                result["dataset"],
                result["label"],
                *(f"{100 * result['metrics'][name]:.1f}" for name in measures),
                f"{result['latency_ms']['p50']:.2f}" if result["latency_ms"] else "—",
            )
            for result in results
        ],
    )
    _print_detection(results)
    _print_means([result for result in results if result["dataset"] != source], measures, is_transfer=bool(source))


def _print_detection(results: Sequence[Record]) -> None:
    for result in results:
        metrics = result["metrics"]
        if "detect_auroc" in metrics:
            click.echo(
                f"{result['dataset']}: {result['label']}: does it need a tool: AUROC {metrics['detect_auroc']:.4f}, "
                f"accuracy {100 * metrics['detect_accuracy']:.1f} %, calibration error {metrics['detect_ece']:.3f}"
            )


def _print_means(results: Sequence[Record], measures: Sequence[str], *, is_transfer: bool) -> None:
    """Print the mean of each label over the datasets, if a label has several."""
    metrics_of_label: dict[str, list[Mapping[str, float]]] = {}
    for result in results:
        metrics_of_label.setdefault(result["label"], []).append(result["metrics"])
    if len(results) == len(metrics_of_label):
        return
    for label, metrics in metrics_of_label.items():
        means = " · ".join(f"{name} {100 * sum(row[name] for row in metrics) / len(metrics):.1f}" for name in measures)
        click.echo(f"{label}: mean of {len(metrics)} {'other ' if is_transfer else ''}datasets: {means}")


@click.command("compare")
@click.argument("label_a")
@click.argument("label_b")
@click.option("--dataset", "names", multiple=True, required=True, metavar="DATASET", help="Dataset; may be repeated.")
@click.option("--seed", default=0, show_default=True, help="Seed of the tests.")
@data_option
@out_option
@json_option
def compare_command(
    label_a: str, label_b: str, names: tuple[str, ...], seed: int, data: str | None, out: str, as_json: bool
) -> None:
    """Compare two labels query by query: paired tests, wins, ties, losses and slices."""
    from toolscout_lab.bench_jobs import load_dataset
    from toolscout_lab.compare import compare

    root = find_root(data)
    comparisons = [compare(Path(out), load_dataset(name, root), label_a, label_b, seed=seed) for name in names]
    if as_json:
        print_json(comparisons if len(comparisons) > 1 else comparisons[0])
        return
    for comparison in comparisons:
        _print_comparison(comparison)


def _print_comparison(comparison: Record) -> None:
    a, b = comparison["a"], comparison["b"]
    click.echo(f"{comparison['dataset']}, {comparison['split']}, {comparison['n_queries']:,} queries: {a} against {b}")
    columns = ("measure", a, b, "difference", "95 %", "p", "p (Holm)", "wins/ties/losses")
    print_table(
        [(column, "left" if column == "measure" else "right") for column in columns],
        [
            (
                name,
                f"{100 * row['a']:.2f}",
                f"{100 * row['b']:.2f}",
                f"{100 * row['difference']:+.2f}",
                f"{100 * row['ci95'][0]:+.2f} … {100 * row['ci95'][1]:+.2f}",
                f"{row['p']:.4f}",
                f"{row['p_holm']:.4f}",
                f"{row['wins']}/{row['ties']}/{row['losses']}",
            )
            for name, row in comparison["tests"].items()
        ],
    )
    _print_slices(comparison["slices"])
    if comparison["parents"]:
        _print_parents(comparison["parents"])


def _print_slices(slices: Mapping[str, Record]) -> None:
    print_table(
        [("slice", "left"), ("value", "left"), ("n", "right"), *((name, "right") for name in SHOWN_MEASURES)],
        [
            (name, value, f"{row['n']:,}", *(f"{100 * row[key]:+.2f}" for key in SHOWN_MEASURES))
            for name, values in slices.items()
            for value, row in values.items()
        ],
    )


def _print_parents(parents: Record) -> None:
    """Print the differences by whether the training queries used tools of the same parents."""
    print_table(
        [("parents in training", "left"), ("n", "right"), *((f"{name} (p)", "right") for name in SHOWN_MEASURES)],
        [
            (
                value,
                f"{row['n']:,}",
                *(f"{100 * row[key]['difference']:+.2f} ({row[key]['p']:.4f})" for key in SHOWN_MEASURES),
            )
            for value, row in parents.items()
        ],
    )


@click.command("report")
@click.argument("folder", default="benchmarks/results", metavar="[DIR]")
@data_option
@click.option("--out", metavar="DIR", help="Folder for the report. Default: DIR.")
def report_command(folder: str, data: str | None, out: str | None) -> int:
    """Write an HTML page and PNG charts from the results and sweeps in DIR.

    Failures per tool are shown for datasets in the folder of --data.
    """
    from toolscout_lab.report import report

    written = report(Path(folder), Path(out) if out else None, data=find_root(data))
    for path in written:
        click.echo(path)
    for note in written.notes:
        print_warning(note)
    for problem in written.problems:
        print_failure(f"{problem.entry}: {problem.message}")
    return 3 if written.problems else 0
