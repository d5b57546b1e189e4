"""Reproduces a paper: its measurements one after the other, and a page with the paper's figures beside ours.

`papers.toml` lists the items of each paper and the runs that give our figures. A run is a benchmark, a sweep or a
transfer, with the settings of `toolscout lab bench`, `sweep` and `transfer`; finished runs are kept, and trainings
continue from their checkpoints. With a budget that is too short for all of it, every run gets a sample of the dataset.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from toolscout.checks.results import SWEEPS_FOLDER, Result, read_results
from toolscout.dataset import Dataset, NoTool, Prompt, Qrels, read_lines
from toolscout.errors import ConfigError, UserError
from toolscout.recipes import registry
from toolscout.settings import Settings
from toolscout_lab import bench, sweep
from toolscout_lab.bench_jobs import Job, label_of, load_dataset, plan_transfer
from toolscout_lab.layouts import write_folder
from toolscout_lab.llm import SharedLLM
from toolscout_lab.machine import Record, machine, refuse_dirty
from toolscout_lab.progress import Say, ignore
from toolscout_lab.report.markdown import lay_out

__all__ = [
    "PAPERS",
    "STATES",
    "Paper",
    "Reproduction",
    "ReproductionReport",
    "Run",
    "draw_ids",
    "draw_sample",
    "load_papers",
    "reproduce",
    "write_page",
]

PAPERS: Final = ("colt", "feedback", "masstool", "tool2vec", "toolrerank")
STATES: Final = ("present", "partly", "absent", "not comparable")
SAMPLES_FOLDER: Final = "samples"  # of datasets, below the home
SAMPLE_MARK: Final = "-sample-"  # in the name of a sample
SAMPLE_SHARE: Final = 0.5  # of the budget that the queries of a sample may take; the rest is loading and indexing
MIN_TRAIN_QUERIES: Final = 24
MIN_SCORED_QUERIES: Final = 16  # of dev and of test
MIN_TOOLS: Final = 64
PARTS: Final = {"train": "four in five", "test": "one in five"}  # advice for a dataset that is not split
MIN_RUN_MINUTES: Final = 1.0  # of a run on a small dataset of one's own
NO_TOOL_FOLDER: Final = "no_tool"  # beside the datasets
MARK: Final = re.compile(r"\{(\S+) (\S+) (\S+)\}")  # dataset, label, measure
PERCENT: Final = re.compile(r"(?<![\w@.])\d+\.\d+(?![\w.])")
Row = tuple[str, Literal["present", "partly", "absent", "not comparable"], str, str, str, str]
"""Item, state, place in the code, published figures, ours with marks such as `{toollens colt recall@5}`, reason."""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run of a paper.

    Attributes:
        recipe: name of the recipe.
        minutes: on two processor cores, from its result or from shorter runs.
        label: name of the result; by default that of the recipe.
        dataset: by default that of the paper.
        settings: that replace those of the recipe.
        over: setting → the values of a sweep on dev; none: a benchmark.
        encoder: name of the encoder; None: that of the recipe.
        folds: as in `Job`.
        no_tool: whether the queries that need no tool are scored too, where they are at hand.
        transfer: further datasets that the fitted recipe is scored on.
        model: whether it asks a language model.
        trial: whether the result lies beside the sweeps, since it compares settings with one epoch.
    """

    recipe: str
    minutes: Annotated[float, msgspec.Meta(gt=0)]
    label: str | None = None
    dataset: str | None = None
    settings: Record = {}
    over: dict[str, list[Any]] = {}
    encoder: str | None = None
    folds: str | None = None
    no_tool: bool = False
    transfer: list[str] = []
    model: bool = False
    trial: bool = False


class Paper(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A paper: its title, the page of the method, its dataset, its items and the runs that give our figures.

    Attributes:
        title: with the number at arXiv.
        method: address of the page, as the pages of the papers write it.
        dataset: path below the data root.
        queries: number of queries of the dataset, train and test; the minutes of a run are for these.
        rows: the items.
        runs: those that answer most first.
    """

    title: str
    method: str
    dataset: str
    queries: Annotated[int, msgspec.Meta(gt=0)]
    rows: list[Row]
    runs: list[Run]

    def count(self, state: str) -> int:
        """Return how many items are in a state."""
        return sum(row[1] == state for row in self.rows)


@functools.cache
def load_papers() -> dict[str, Paper]:
    """Read `papers.toml`: name → paper."""
    text = resources.files("toolscout_lab").joinpath("papers.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=dict[str, Paper])


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """What to reproduce.

    Attributes:
        paper: its name.
        out: the folder of results, charts and page.
        root: the data root.
        dataset: dataset to use instead of the paper's; runs on further datasets are left out.
        encoder: name of the encoder; runs that compare encoders are left out. None: that of each run.
        budget_s: seconds for everything; None: no limit.
        seeds: number of seeds, from 0.
        only: labels to run; none: all.
        settings: timeouts, and where models, vectors and samples are kept.
        llm: the language model; runs that ask one are left out without it.
    """

    paper: str
    out: Path
    root: Path | None = None
    dataset: str | None = None
    encoder: str | None = None
    budget_s: float | None = None
    seeds: int = 1
    only: Collection[str] = ()
    settings: Settings = dataclasses.field(default_factory=Settings)
    llm: SharedLLM | None = None

    def list_runs(self) -> list[Run]:
        """Return the runs to make, those that answer most first.

        Raises:
            ConfigError: if `only` names a label that no run has.
        """
        paper = load_papers()[self.paper]
        runs = [run for run in paper.runs if self.llm is not None or not run.model]
        if self.dataset is not None:
            runs = [run for run in runs if run.dataset is None and not run.transfer]
        if self.encoder is not None:
            runs = [run for run in runs if run.encoder is None and sweep.ENCODER not in run.over]
        labels = [run.label or run.recipe for run in runs]
        if unknown := set(self.only) - set(labels):
            raise ConfigError(f"--only: expected some of {', '.join(labels)}, found {', '.join(sorted(unknown))}")
        return [run for run, label in zip(runs, labels, strict=True) if not self.only or label in self.only]

    def load_own(self) -> Dataset | None:
        """Load the dataset that is used instead of the paper's; None: there is none.

        Raises:
            UserError: if it cannot be read, or has no queries to learn from although a run learns.
        """
        if self.dataset is None:
            return None
        dataset = load_dataset(self.dataset, self.root)
        learning = [run for run in self.list_runs() if registry.recipe(run.recipe).is_fitted and not run.folds]
        missing = [split for split in ("train", "test") if split not in dataset.qrels]
        if missing == ["train"] and not learning:
            missing = []
        if missing:
            raise ConfigError(
                f"{dataset.folder}: expected qrels/train.tsv to learn from and qrels/test.tsv to score, found no "
                f"qrels/{missing[0]}.tsv. Move {PARTS[missing[0]]} of the lines of the other file into it."
            )
        return dataset

    def estimate_minutes(self, own: Dataset | None) -> list[float]:
        """Return the minutes of each run, which are fewer on a dataset of one's own with fewer queries."""
        if own is None:
            return [run.minutes for run in self.list_runs()]
        size = sum(map(len, own.qrels.values())) / load_papers()[self.paper].queries
        return [max(MIN_RUN_MINUTES, size * run.minutes) for run in self.list_runs()]

    def find_share(self, own: Dataset | None) -> float:
        """Return the share of the training queries that the budget allows for; 1: all of them."""
        minutes = self.seeds * sum(self.estimate_minutes(own))
        if self.budget_s is None or self.budget_s >= 60 * minutes:
            return 1.0
        return SAMPLE_SHARE * self.budget_s / (60 * minutes)


class ReproductionReport(NamedTuple):
    """What was done.

    Attributes:
        finished: labels of the finished runs.
        left: labels that the budget left out.
        failures: why others failed.
        datasets: dataset of `papers.toml` → the dataset that was measured, perhaps a sample.
    """

    finished: list[str]
    left: list[str]
    failures: list[str]
    datasets: dict[str, Dataset]

    def describe(self) -> str:
        """Say in sentences what was measured, for the page."""
        sizes = [
            f"{dataset.name} ({len(dataset.qrels.get('train', ())):,} training and {len(dataset.qrels['test']):,} test "
            f"queries, {len(dataset.corpus_ids()):,} tools)"
            for dataset in self.datasets.values()
        ]
        sampled = any(SAMPLE_MARK in dataset.name for dataset in self.datasets.values())
        other = any(name != dataset.name for name, dataset in self.datasets.items())
        data = "samples" if sampled else "other data"
        note = f" Figures of {data} are not comparable with the paper's, so no difference is shown." if other else ""
        left = f" The budget left out {len(self.left)} runs." if self.left else ""
        failed = f" {len(self.failures)} runs failed; the command says why." if self.failures else ""
        return f"Measured on {', '.join(sizes)}; {machine()}.{note}{left}{failed}"


def reproduce(job: Reproduction, *, allow_dirty: bool = False, say: Say = ignore) -> ReproductionReport:
    """Make the runs of a paper that are not finished yet, until the budget is used up.

    A run that has begun is not interrupted. One that fails is named, and the next one begins.

    Args:
        job: what to reproduce.
        allow_dirty: see `bench.run`.
        say: called with progress messages.

    Raises:
        UserError: see `refuse_dirty`, `Reproduction.list_runs` and `Reproduction.load_own`.
    """
    refuse_dirty(job.out, allow=allow_dirty)
    started, outcome, share = time.monotonic(), ReproductionReport([], [], [], {}), job.find_share(job.load_own())
    runs = [(seed, run) for seed in range(job.seeds) for run in job.list_runs()]
    for number, (seed, run) in enumerate(runs, 1):
        label = label_of(run.recipe, run.label, seed=seed, folds=run.folds)
        if job.budget_s is not None and time.monotonic() - started > job.budget_s:
            outcome.left.append(label)
            continue
        tell = functools.partial(_tell, say, f"run {number} of {len(runs)}")
        tell(label)
        try:
            _make_run(job, run, label, seed, share, outcome.datasets, allow_dirty, tell)
        except UserError as error:
            outcome.failures.append(f"{label}: {error}")
        else:
            outcome.finished.append(label)
    return outcome


def _tell(say: Say, place: str, text: str) -> None:
    """Say which run a message is about."""
    say(f"{place}: {text}")


def _make_run(
    job: Reproduction,
    run: Run,
    label: str,
    seed: int,
    share: float,
    datasets: dict[str, Dataset],
    allow_dirty: bool,
    say: Say,
) -> None:
    """Make one run, or keep its result; add the datasets that it loads to `datasets`.

    Raises:
        UserError: if it cannot be made.
    """
    own = run.dataset or load_papers()[job.paper].dataset
    for name in (own, *run.transfer):
        if name not in datasets:
            datasets[name] = _load_sample(job, (name == own and job.dataset) or name, share)
    dataset, targets = datasets[own], [datasets[name] for name in run.transfer]
    no_tool = _load_no_tool(job.root, share) if run.no_tool else None
    encoder = run.encoder or job.encoder
    if run.over:
        swept = sweep.Sweep(
            dataset,
            run.recipe,
            run.over,
            job.out / SWEEPS_FOLDER,
            label=label,
            changes=run.settings,
            encoder=encoder,
            seed=seed,
            no_tool=no_tool,
            settings=job.settings,
        )
        sweep.sweep(swept, resume=True, say=say)
        return
    first = Job(
        dataset,
        run.recipe,
        f"{label}-from-{dataset.name.replace('/', '-')}" if targets else label,
        job.out / SWEEPS_FOLDER if run.trial else job.out,
        no_tool=no_tool,
        encoder=encoder,
        folds=run.folds,
        seed=seed,
        changes=run.settings,
        settings=job.settings,
        llm=job.llm,
    )
    for each in plan_transfer(first, targets) if targets else [first]:
        bench.run(each, resume=True, allow_dirty=allow_dirty, say=say)


# --- samples ----------------------------------------------------------------------------------------------------------


def _load_sample(job: Reproduction, name: str, share: float) -> Dataset:
    """Load a dataset, or a sample of it with this share of its queries, which is written below the home."""
    dataset = load_dataset(name, job.root)
    if share >= 1:
        return dataset
    learns = "train" in dataset.qrels
    least = {"train": MIN_TRAIN_QUERIES, "test": MIN_SCORED_QUERIES if learns else 2 * MIN_TRAIN_QUERIES}
    counts = {
        split: max(least.get(split, MIN_SCORED_QUERIES), round(share * len(qrels)))
        for split, qrels in dataset.qrels.items()
    }
    return draw_sample(dataset, counts, job.settings.home / SAMPLES_FOLDER)


def draw_sample(dataset: Dataset, counts: Mapping[str, int], home: Path) -> Dataset:
    """Write a sample of a dataset with at most so many queries of each split, and load it.

    A larger sample contains the smaller ones: queries are drawn in the order of the hashes of their ids. The tools are
    the gold tools of these queries and as many others, at least 64 in all.

    Args:
        dataset: the whole dataset.
        counts: split → number of queries; other splits are left out.
        home: the folder of samples.
    """
    drawn: dict[str, Qrels] = {}
    for split in ("train", "dev", "test"):
        if split in counts and (qrels := dataset.qrels.get(split)):
            drawn[split] = {query: qrels[query] for query in draw_ids(qrels, counts[split])}
    gold = {tool for qrels in drawn.values() for tools in qrels.values() for tool in tools}
    others = draw_ids(set(dataset.corpus_ids()) - gold, max(MIN_TOOLS - len(gold), len(gold)))
    texts = {query for qrels in drawn.values() for query in qrels}
    name = f"{dataset.name.replace('/', '-')}{SAMPLE_MARK}{len(texts)}"
    folder = home / name
    tools, queries = (
        [row for _, line in read_lines(dataset.folder / file) if (row := msgspec.json.decode(line))["_id"] in ids]
        for file, ids in (("corpus.jsonl", gold.union(others)), ("queries.jsonl", texts))
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_folder(folder, tools, queries, drawn)
    return Dataset.load(folder, name)


def draw_ids(ids: Iterable[str], count: int) -> list[str]:
    """Draw the `count` ids with the smallest hash: always the same ids, in the order of the hash.

    `dataset.in_dev` selects dev queries by a small hash too. This is another hash, so that a sample has not only
    dev queries.
    """
    return sorted(ids, key=lambda each: hashlib.blake2b(each.encode(), person=b"sample").digest())[:count]


def _load_no_tool(root: Path | None, share: float) -> NoTool | None:
    """Load the queries that need no tool, or as small a share of them; None where they are not at hand."""
    folder = (root or Path()) / NO_TOOL_FOLDER
    if not (folder / "queries.jsonl").is_file():
        return None
    prompts = NoTool.load(folder)

    def thin(part: Sequence[Prompt]) -> list[Prompt]:
        by_id = {prompt.id: prompt for prompt in part}
        return [by_id[name] for name in draw_ids(by_id, max(MIN_SCORED_QUERIES, round(share * len(part))))]

    return prompts if share >= 1 else NoTool(thin(prompts.train), thin(prompts.calibrate), thin(prompts.test))


# --- the page ---------------------------------------------------------------------------------------------------------


class Figures:
    """The figures of a folder of results, in percent.

    Attributes:
        results: (dataset, label) → result.
        renamed: dataset of `papers.toml` → name of the dataset that was measured instead.
    """

    def __init__(self, folder: Path, renamed: Mapping[str, str] | None = None) -> None:
        found = [*read_results(folder)[0], *read_results(folder / SWEEPS_FOLDER)[0]]
        self.results = {(result.dataset, result.label): result for result in found}
        self.renamed = renamed or {}

    def find(self, dataset: str, label: str) -> list[Result]:
        """Return the results of a label, one for each seed from 0 on that was measured."""
        name = self.renamed.get(dataset, dataset)
        seeds = (self.results.get((name, f"{label}{f'-s{seed}' if seed else ''}")) for seed in range(10))
        return [result for result in seeds if result is not None]

    def measure(self, dataset: str, label: str, measure: str) -> tuple[float, str] | None:
        """Return the mean over the seeds, and how certain it is: ± half of its 95 % interval, or the seeds' extremes.

        None: it was not measured.
        """
        values = [100 * result.metrics[measure] for result in self.find(dataset, label) if measure in result.metrics]
        if not values:
            return None
        mean = sum(values) / len(values)
        if len(values) > 1:
            return mean, f"{mean:.1f} ({min(values):.1f} to {max(values):.1f})"
        interval = self.find(dataset, label)[0].ci95.get(measure)
        return mean, f"{mean:.1f}" + (f" ±{50 * (interval[1] - interval[0]):.1f}" if interval else "")

    def fill(self, cell: str) -> tuple[str, list[float | None]]:
        """Replace the marks in a cell by figures; return it, and the figures in their order, None: not measured."""
        found = [self.measure(*mark.groups()) for mark in MARK.finditer(cell)]
        texts = iter([figure[1] if figure else "not run" for figure in found])
        return MARK.sub(lambda _: next(texts), cell), [figure[0] if figure else None for figure in found]


def write_page(name: str, figures: Figures, *, measured: str = "") -> str:
    """Write the page of a paper in Markdown: each item with the paper's figure, ours, the difference and the reason.

    Args:
        name: of the paper.
        figures: our figures.
        measured: what was measured, in sentences; items without a figure of a run are left out. Empty: all items, with
            links to the documentation.
    """
    paper = load_papers()[name]
    rows = [
        (str(number), row, *figures.fill(row[4]))
        for number, row in enumerate(paper.rows, 1)
        if not measured or MARK.search(row[4])
    ]
    compared = [
        [number, row[0].replace("|", "\\|"), row[3], ours, _subtract(row, values, figures.renamed)]
        for number, row, ours, values in rows
    ]
    reasons = [[number, row[1], row[2], figures.fill(row[5])[0]] for number, row, _, _ in rows]
    links = f"[The method]({paper.method}) says how it works. [The papers](../papers.md) say what the states mean."
    lines = [
        f"# {paper.title}: the paper's figures and ours",
        "",
        f"`toolscout lab reproduce {name}` makes the runs and this page.",
        measured or links,
        "R, N and C are recall, NDCG and COMP in percent; ± is half of a 95 % interval.",
        "",
        *lay_out(["#", "item", "published", "ours", "difference"], compared, keys=2, text_columns=4),
        "",
        *lay_out(["#", "state", "where", "what differs, or is missing"], reasons, text_columns=4),
    ]
    return "\n".join(lines) + "\n"


def _subtract(row: Row, ours: Sequence[float | None], renamed: Mapping[str, str]) -> str:
    """Write our figures less the published ones, where there are as many and both are of the same data."""
    published = [float(figure) for figure in PERCENT.findall(row[3])]
    is_other = any(renamed.get(dataset, dataset) != dataset for dataset, _, _ in MARK.findall(row[4]))
    if row[1] == "not comparable" or is_other or len(published) != len(ours) or None in ours:
        return ""
    return ", ".join(f"{value - other:+.1f}" for value, other in zip(ours, published, strict=True) if value is not None)
