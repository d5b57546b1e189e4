"""One recipe on one dataset, honestly: fitted on train, chosen on dev, scored on test, once.

Writes `<dataset>/<label>.json` and `<label>.run.gz` as docs/formats.md says, so that any scorer can check the figures.
Exact-name answers are off here: what is measured is the recipe.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from toolscout import metrics
from toolscout.catalogue.store import Catalogue
from toolscout.catalogue.vector_cache import VectorStore
from toolscout.checks.results import write_json
from toolscout.config import Settings
from toolscout.dataset import (
    Dataset,
    Fold,
    NoTool,
    Qrels,
    drop_leaks,
    in_dev,
    seen_labels,
)
from toolscout.encoders.pair_cache import PairCache
from toolscout.errors import ConfigError, NotFound, Unavailable, UserError
from toolscout.lab.machine import peak_mb, provenance, refuse_dirty, reset_peak
from toolscout.lab.origins import describe_fits, find_other_defaults
from toolscout.lab.run_files import write_detect, write_run
from toolscout.methods.feedback.loop import find_degradation
from toolscout.models.model_store import Model, keys, places
from toolscout.recipes import registry
from toolscout.recipes.fit import fit, make_lesson, on_shelf, plan_fit, resolve_with_base
from toolscout.search.pipeline import Cut, Stage
from toolscout.sources.folder import read_tools
from toolscout.types import Search, Tool
from toolscout.workspace import Workspace

__all__ = ["Job", "Outcome", "groups", "label_of", "load_dataset", "run", "shares_tools"]

DEPTH: Final = 20
BATCH: Final = 256
TIMED: Final = 200
WARM_UP: Final = 10


@dataclasses.dataclass(frozen=True)
class Job:
    """What to measure.

    Attributes:
        dataset: the dataset, loaded.
        recipe: name of the recipe.
        label: name of the result files.
        out: the folder of results.
        no_tool: queries that need no tool; the recipe must then judge the need.
        encoder: by name; None: the recipe's own.
        split: whose queries are scored.
        folds: `query:5` or `parent:5`: fit on all folds but one, score on that one, pool.
        train_on: fit on this dataset instead; its name goes into the settings.
        held_out: any id → text of queries that the fit must not see either; see `transfer`.
        seed: of everything random.
        changes: settings of the recipe, over its own.
        settings: timeouts and where vectors are kept.
    """

    dataset: Dataset
    recipe: str
    label: str
    out: Path
    no_tool: NoTool | None = None
    encoder: str | None = None
    split: str = "test"
    folds: str | None = None
    train_on: Dataset | None = None
    held_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seed: int = 0
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Settings = dataclasses.field(default_factory=Settings)

    @property
    def json_path(self) -> Path:
        """Where the figures go."""
        return self.out / self.dataset.name / f"{self.label}.json"

    @property
    def run_path(self) -> Path:
        """Where the rankings go."""
        return self.out / self.dataset.name / f"{self.label}.run.gz"

    @property
    def detect_path(self) -> Path:
        """Where each query's need goes, if no-tool queries are given."""
        return self.out / self.dataset.name / f"{self.label}.detect.gz"

    def identity(self) -> dict[str, Any]:
        """What makes two jobs of one label the same."""
        chosen = registry.recipe(self.recipe)
        return {
            "dataset": self.dataset.name,
            "recipe": self.recipe,
            "label": self.label,
            "encoder": (self.encoder or chosen.encoder or self.settings.encoder) if chosen.encodes else None,
            "split": self.split,
            "seed": self.seed,
            "settings": {
                **chosen.settings,
                **self.changes,
                **({"folds": self.folds} if self.folds else {}),
                **({"train_on": self.train_on.name} if self.train_on else {}),
                **({"no_tool": True} if self.no_tool else {}),
            },
        }


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One finished job: its result, and whether it was there already."""

    result: dict[str, Any]
    kept: bool = False


def label_of(recipe: str, label: str | None, *, seed: int = 0, folds: str | None = None) -> str:
    """The name of the result files: `label` or the recipe's name, with what formats.md appends.

    Raises:
        ConfigError: for a label that cannot be a file name.
    """
    base = label or recipe
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", base):
        raise ConfigError(f"label: expected letters, digits, '.', '_', '+' or '-', found {base!r}")
    parent = "-parent" if folds and folds.startswith("parent") else ""
    return f"{base}{parent}{f'-s{seed}' if seed else ''}"


def load_dataset(name: str, root: Path | None) -> Dataset:
    """A dataset by its path below the data root, or by its folder.

    Raises:
        NotFound: naming both places looked at.
    """
    places = [*([root / name] if root else []), Path(name)]
    for place in places:
        if (place / "queries.jsonl").is_file():
            return Dataset.load(place, root=root)
    looked = " and ".join(map(str, places))
    hint = "" if root else ": set --data or TOOLSCOUT_DATA to the folder of the datasets"
    raise NotFound(f"expected a dataset folder with queries.jsonl, found none at {looked}{hint}")


def run(
    job: Job,
    *,
    resume: bool = False,
    force: bool = False,
    shelved: bool = False,
    allow_dirty: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Do one job and write its files.

    Args:
        job: what to measure.
        resume: keep a result of the same job that is there already.
        force: overwrite a result of the same label and other settings.
        shelved: keep a model of the same fit that is there already, as `resume` does too.
        allow_dirty: write into the repository though the code differs from its commit; the result says so.
        say: told what is going on.

    Raises:
        UserError: if the label is taken by another job, or something is missing.
    """
    held = _held(job, force)
    if held is not None and resume and job.run_path.exists():
        if not (other := find_other_defaults(job.recipe, job.changes, held)):
            return Outcome(held, kept=True)
        say(f"{job.dataset.name}: {job.label}: measured again, for other defaults stood behind it: {_shown(other)}")
    if job.folds and job.no_tool:
        raise ConfigError("--no-tool: expected queries to train on, found --folds too: leave one of them out")
    if (
        job.no_tool
        and registry.recipe(job.recipe).abstains
        and resolve_with_base(job.recipe, job.changes).get("need") == 0
    ):
        raise ConfigError("--no-tool: expected a weight above 0 for what judges the need, found need=0: leave one out")
    refuse_dirty(job.out, allow=allow_dirty)
    origin = provenance()  # of the code as it is now; it may change while this runs
    qrels = job.dataset.split(job.split)
    tools = _tools(job.dataset, qrels)
    reset_peak()
    ranking: dict[str, list[tuple[str, float]]] = {}
    needs: dict[str, float] = {}
    models: list[Model] = []
    fit_seconds = seconds = 0.0
    worse, known = 0, False
    folds = _folds(job.dataset, job.split, job.folds, tools)
    pairs = PairCache(job.settings.home / "bench")
    for part in _parts(job, tools, qrels, folds, pairs, resume or shelved, say):
        say(f"{job.dataset.name}: {job.label}: searching {len(part.queries):,} queries")
        reused = pairs.reused
        found, needed, without, spent = _rank(job, part.stage, part.queries)
        worse, known = worse + without, known or pairs.reused > reused
        ranking |= found
        needs |= needed
        fit_seconds, seconds = fit_seconds + part.seconds, seconds + spent
        models += [part.model] if part.model else []
    write_run(job.run_path, job.label, ranking)
    with pairs.pause():
        latency = {} if part.stage.asks else _latency(job, part.stage, list(qrels))
    measured = figures(
        qrels,
        {query: [tool for tool, _ in hits] for query, hits in ranking.items()},
        groups(job.dataset, job.split, tools, job.folds, job.train_on),
        job.seed,
    )
    if job.no_tool is not None:
        say(f"{job.dataset.name}: {job.label}: judging {len(job.no_tool.test):,} queries that need no tool")
        for name, more in _detected(job, part.stage, needs).items():
            measured[name] |= more
    result = {
        **job.identity(),
        "n_queries": len(qrels),
        "n_tools": len(tools),
        **measured,
        **(describe_fits(models) if models else {}),
        "fit_seconds": round(fit_seconds, 3),
        **({"degraded": worse} if part.stage.asks else {}),
        "latency_ms": latency,
        "batch_qps": None if part.stage.asks or known else round(len(qrels) / seconds, 1),
        "peak_rss_mb": round(peak_mb(), 1),
        "selected_on": "dev",
        "run_sha256": hashlib.sha256(job.run_path.read_bytes()).hexdigest(),
        **origin,
    }
    write_json(job.json_path, result)
    return Outcome(result)


def figures(
    qrels: Qrels, ranking: Mapping[str, Sequence[str]], table: Mapping[str, Mapping[str, str]], seed: int
) -> dict[str, Any]:
    """`metrics`, `ci95` and `slices` of one ranking, as a result file holds them; `table` is that of `groups`."""
    per_query = metrics.score(ranking, qrels)
    return {
        "metrics": per_query.means(),
        "ci95": per_query.ci95(seed),
        "slices": metrics.slices(per_query, table),
    }


def groups(
    dataset: Dataset, split: str, tools: Sequence[Tool], folds: str | None = None, train_on: Dataset | None = None
) -> dict[str, dict[str, str]]:
    """The slices of a result: those of `Dataset.groups`, and what training saw of each query's gold.

    `tools` says it of the gold tools, `parents` of what they belong to, if that is not the same for all: `seen`,
    `mixed` or `unseen` (`seen_labels`). A tool without a parent belongs to nothing but itself. With folds it is judged
    by the training part of the fold that scores the query, without the tenth of it that is dev and without what
    `lesson` leaves out; after training on another dataset, of the tools alone, which are the same where id and name are
    (`models.places`).
    """
    qrels, table = dataset.split(split), dataset.groups(split)
    if train_on is not None and train_on.name != dataset.name:
        asked = {tool for gold in train_on.qrels.get("train", {}).values() for tool in gold}
        known = [tool for tool in _tools(train_on, {}) if _bare(tool.id) in asked]
        met = [_bare(tool.id) for tool, place in zip(tools, places(keys(known), tools), strict=True) if place >= 0]
        return {**table, "tools": seen_labels({"": met}, qrels)}
    cut = _folds(dataset, split, folds, tools)
    if cut is not None:
        pairs = [
            (
                {query: qrels[query] for query in fold.train if not in_dev(query)},
                {query: qrels[query] for query in fold.test},
            )
            for fold in cut
        ]
    else:
        pairs = [(dataset.qrels["train"], qrels)] if "train" in dataset.qrels else []
    parents = _parents(tools)
    for whole, scored in pairs:
        train, _ = drop_leaks(whole, dataset.queries, {query: dataset.queries[query] for query in scored})
        table.setdefault("tools", {}).update(seen_labels(train, scored))
        if len(set(parents.values())) > 1:
            labels = seen_labels(train, scored, key=lambda tool: parents[tool] or tool)
            table.setdefault("parents", {}).update(labels)
    return table


def shares_tools(one: Dataset, other: Dataset) -> bool:
    """Whether a model that is fitted on one dataset would know a tool of the other."""
    return bool((places(keys(_tools(one, {})), _tools(other, {})) >= 0).any())


def _parents(tools: Sequence[Tool]) -> dict[str, tuple[str, ...]]:
    return {_bare(tool.id): tool.parent or () for tool in tools}


def _folds(dataset: Dataset, split: str, spec: str | None, tools: Sequence[Tool]) -> list[Fold] | None:
    return dataset.folds(spec, parent_of=_parents(tools), split=split) if spec else None


# --- the parts of a job -----------------------------------------------------------------------------------------------


def _held(job: Job, force: bool) -> dict[str, Any] | None:
    """The result that stands under the job's label, if it is of the same job."""
    try:
        held: dict[str, Any] = msgspec.json.decode(job.json_path.read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        if force:
            return None
        raise UserError(f"{job.json_path}: expected a result, found damage: use --force") from None
    wanted = msgspec.json.decode(msgspec.json.encode(job.identity()))
    other = {key: (held.get(key), wanted[key]) for key in wanted if held.get(key) != wanted[key]}
    if not other:
        return held
    if force:
        return None
    raise UserError(
        f"{job.json_path}: expected a free label, found a result with other settings: {_shown(other)}; "
        "choose another --label, or --force"
    )


def _shown(other: Mapping[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{key} {found!r} (now {now!r})" for key, (found, now) in other.items())


def _tools(dataset: Dataset, qrels: Qrels) -> list[Tool]:
    reading = read_tools(dataset.folder, "d")
    present = {_bare(tool.id) for tool in reading.tools}
    lost = sorted({tool for gold in qrels.values() for tool in gold} - present)
    if lost:
        raise UserError(
            f"{dataset.name}: expected every gold tool among the tools, found {len(lost)} missing, {lost[0]!r} first: "
            + "; ".join(f"{problem.entry}: {problem.message}" for problem in reading.problems[:3])
        )
    return list(reading.tools)


def _bare(tool_id: str) -> str:
    return tool_id.partition("/")[2]


class _Part(NamedTuple):
    """A pipeline and the queries that it may be scored on: all, or those of one fold."""

    stage: Stage
    queries: list[str]
    seconds: float
    model: Model | None


def _parts(
    job: Job,
    tools: Sequence[Tool],
    qrels: Qrels,
    folds: Sequence[Fold] | None,
    pairs: PairCache,
    resume: bool,
    say: Callable[[str], None],
) -> Iterator[_Part]:
    """The pipelines of a job, one after the other.

    A recipe that is not fitted gives every fold the same pipeline: then it is only checked that folds can be made.
    """

    def told(text: str) -> None:
        say(f"{job.dataset.name}: {job.label}: {text}")

    chosen = registry.recipe(job.recipe)
    catalogue = Catalogue.of(tools)
    workspace = Workspace(
        job.encoder or chosen.encoder or job.settings.encoder,
        job.settings,
        VectorStore(job.settings.home / "bench"),
        pairs,
        progress=lambda done, every: told(f"embedding {done:,} of {every:,} tools"),
        say=told,
        seed=job.seed,
        resume=resume,
    )
    if chosen.encodes and (chosen.is_fitted or (job.encoder and chosen.encoder)):
        workspace = dataclasses.replace(workspace, encoder=workspace.load_encoder())
    if {**chosen.settings, **job.changes}.get("hierarchy") == "oracle":
        golds = {job.dataset.queries[query]: [f"d/{tool}" for tool in gold] for query, gold in qrels.items()}
        workspace = dataclasses.replace(workspace, gold=golds.__getitem__)
    if not chosen.is_fitted:
        told(f"indexing {len(tools):,} tools")
        started = time.perf_counter()
        stage = registry.build(job.recipe, catalogue, workspace, settings=job.changes)
        _check_need(job, stage)
        yield _Part(stage >> Cut(DEPTH), list(qrels), time.perf_counter() - started, None)
    elif folds is None:
        yield _fit(job, workspace, catalogue, list(qrels), None)
    else:
        for fold in folds:
            yield _fit(job, workspace, catalogue, fold.test, fold.train)


def _fit(
    job: Job,
    workspace: Workspace,
    catalogue: Catalogue,
    scored: list[str],
    train: list[str] | None,
) -> _Part:
    """Fit, build and check one pipeline.

    Args:
        job: what to measure.
        workspace: of the fit and the build.
        catalogue: of the dataset that is scored.
        scored: the queries that are scored: none of them is learned from, nor any that says the same.
        train: the queries to learn from; None: the dataset's own train and dev.
    """
    source = job.train_on or job.dataset
    known = _tools(source, {}) if job.train_on else catalogue.tools()
    if job.train_on and not registry.recipe(job.recipe).method.transfers and not shares_tools(source, job.dataset):
        raise ConfigError(
            f"--train-on: expected a recipe that serves tools it was not fitted on, found {job.recipe}, and "
            f"{source.name} and {job.dataset.name} share no tool: use another recipe"
        )
    own = {query for part in ("train", "dev") for query in source.qrels.get(part, ())}
    if train is None and source is job.dataset and own & set(scored):
        raise ConfigError(
            f"--split: expected queries that a fitted recipe does not learn from, found {job.split}: use test"
        )
    held_out = {**job.held_out, **{query: job.dataset.queries[query] for query in scored}}
    lesson = dataclasses.replace(make_lesson(source, known, held_out, train), no_tool=job.no_tool)
    model = fit(on_shelf(plan_fit(job.recipe, lesson, workspace, job.settings.home, job.changes)))
    stage = registry.build(job.recipe, catalogue, workspace, model=model.folder)
    _check_need(job, stage)
    return _Part(stage >> Cut(DEPTH), scored, model.manifest.fit_seconds, model)


def _check_need(job: Job, stage: Stage) -> None:
    if job.no_tool is not None and "need" not in stage.writes:
        raise ConfigError(f"--no-tool: expected a recipe that judges whether a tool is needed, found {job.recipe}")


def _detected(job: Job, stage: Stage, needs: Mapping[str, float]) -> dict[str, Any]:
    """Judge the no-tool queries too, write the detect file → `metrics`, `ci95` and `slices` of the decision."""
    assert job.no_tool is not None
    rows = [(query, 1, need) for query, need in needs.items()]
    kinds: dict[str, list[float]] = {}
    for start in range(0, len(job.no_tool.test), BATCH):
        some = job.no_tool.test[start : start + BATCH]
        for prompt, found in zip(some, stage([Search(query=each.text, k=1) for each in some]), strict=True):
            assert found.need is not None
            rows.append((prompt.id, 0, found.need))
            kinds.setdefault(prompt.kind, []).append(found.need)
    write_detect(job.detect_path, rows)
    labels, values = [label for _, label, _ in rows], [need for _, _, need in rows]
    tool = list(needs.values())
    return {
        "metrics": metrics.detection(labels, values),
        "ci95": {name: list(pair) for name, pair in metrics.detection_ci(labels, values, seed=job.seed).items()},
        "slices": {
            "no_tool_kind": {
                kind: {"n": len(held), **metrics.detection([1] * len(tool) + [0] * len(held), [*tool, *held])}
                for kind, held in sorted(kinds.items())
            }
        },
    }


def _rank(
    job: Job, stage: Stage, queries: Sequence[str]
) -> tuple[dict[str, list[tuple[str, float]]], dict[str, float], int, float]:
    """Query id → its hits, and → its need where the recipe judges it; how many had to do without the language model
    that the recipe asks; and the seconds that it took.

    Raises:
        Unavailable: if all of the first batch had to: the result would be another recipe's.
    """
    texts = job.dataset.queries
    ranking: dict[str, list[tuple[str, float]]] = {}
    needs: dict[str, float] = {}
    left: list[str] = []
    refined = False
    started = time.perf_counter()
    for start in range(0, len(queries), BATCH):
        batch = queries[start : start + BATCH]
        for query, found in zip(batch, stage([Search(query=texts[each], k=DEPTH) for each in batch]), strict=True):
            ranking[query] = [(_bare(hit.id), hit.score) for hit in found.hits]
            if found.need is not None:
                needs[query] = found.need
            if stage.asks and (note := find_degradation(found)):
                left.append(note)
            refined = refined or bool(found.rewrites)
        if left and len(left) == len(ranking) and not refined:
            raise Unavailable(
                f"expected a language model's help with some queries, found none with {len(left):,} of them "
                f"(the last: {left[-1]}): check the setting llm and its key; no result is written"
            )
    return ranking, needs, len(left), time.perf_counter() - started


def _latency(job: Job, stage: Stage, queries: Sequence[str]) -> dict[str, float]:
    """p50 and p95 of one query at a time through the whole pipeline, one thread, after a warm-up."""
    from threadpoolctl import threadpool_limits

    step = max(1, len(queries) // TIMED)
    chosen = [job.dataset.queries[query] for query in queries[::step]][:TIMED]
    times = []
    with threadpool_limits(1):
        for text in [*chosen[:WARM_UP], *chosen]:
            started = time.perf_counter()
            stage([Search(query=text, k=5)])
            times.append((time.perf_counter() - started) * 1000)
    return metrics.percentiles(times[min(WARM_UP, len(chosen)) :])
