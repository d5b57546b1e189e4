"""A recipe with many settings: each combination fitted on train and judged on dev. Test is never looked at.

Optuna chooses the order and keeps the book: a journal beside the result holds every finished trial, so a sweep that was
killed goes on where it stopped. A recipe that goes on from another one (`base`) fits that one once: it stands on the
shelf. Of the models of the trials, only the best one's stays there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import toolscout
from toolscout import metrics
from toolscout.catalogue.store import Catalogue
from toolscout.catalogue.vector_cache import VectorStore
from toolscout.checks.results import SWEEP, write_json
from toolscout.config import Settings
from toolscout.dataset import Dataset, NoTool
from toolscout.encoders.pair_cache import PairCache
from toolscout.errors import ConfigError, NotFound, UserError, require
from toolscout.lab.machine import provenance
from toolscout.methods.lesson import DEV_METRICS
from toolscout.models import model_store
from toolscout.recipes import registry
from toolscout.recipes.fit import BASE_PREFIX, Lesson, fit, make_lesson, on_shelf, plan_fit, resolve_with_base
from toolscout.search.pipeline import Cut
from toolscout.sources.folder import read_tools
from toolscout.types import Search
from toolscout.workspace import Workspace

__all__ = ["ENCODER", "OBJECTIVE", "Sweep", "sweep"]

ENCODER: Final = "encoder"  # the one name that may be swept without being a setting of the recipe
OBJECTIVE: Final = ("ndcg@5", "comp@5")  # their mean is what the best trial has most of
SHELF: Final = "bench-models"  # where `on_shelf` puts models, below the home folder
DEPTH: Final = 20
BATCH: Final = 256
PATIENCE: Final = 10  # so often in a row a sampler may name what is done; then something new is drawn for it


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What to try.

    Attributes:
        dataset: the dataset, loaded.
        recipe: name of the recipe.
        over: name of a setting (or `encoder`, or `base.…`) → its values.
        out: the folder of results.
        label: name of the result file; None: the recipe's name.
        changes: settings that all trials share.
        encoder: by name; None: the recipe's own.
        seed: of the fits, and of the order.
        trials: how many combinations at most; None: all.
        no_tool: queries that need no tool; the recipe must then judge the need.
        settings: timeouts, and where models and vectors are kept.
    """

    dataset: Dataset
    recipe: str
    over: Mapping[str, Sequence[Any]]
    out: Path
    label: str | None = None
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    encoder: str | None = None
    seed: int = 0
    trials: int | None = None
    no_tool: NoTool | None = None
    settings: Settings = dataclasses.field(default_factory=Settings)

    @property
    def path(self) -> Path:
        """Where the result goes."""
        return self.out / self.dataset.name / f"{self.label or self.recipe}{SWEEP}"

    @property
    def journal(self) -> Path:
        """Where Optuna keeps its book."""
        return self.path.with_suffix(".journal")

    @property
    def grid(self) -> list[dict[str, Any]]:
        """Every combination."""
        return [dict(zip(self.over, values, strict=True)) for values in itertools.product(*self.over.values())]


def sweep(
    job: Sweep, *, resume: bool = False, force: bool = False, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Try the combinations, and write and return the result.

    Args:
        job: what to try.
        resume: go on with the same sweep where it stopped; finished trials are kept, failed ones tried again.
        force: overwrite a sweep of the same label.
        say: told what is going on.

    Raises:
        MissingExtra: without optuna.
        ConfigError: for a name or a value that the recipe does not know.
        UserError: if the label is taken by another sweep, or every trial failed.
    """
    optuna = require("optuna", "lab")
    _check(job)
    try:
        held_out = job.dataset.texts("test")
    except NotFound:
        held_out = {}
    learned = make_lesson(job.dataset, read_tools(job.dataset.folder, "d").tools, held_out)
    if force and not resume:
        job.journal.unlink(missing_ok=True)
        job.path.unlink(missing_ok=True)
    if not resume and (job.journal.exists() or job.path.exists()):
        raise UserError(
            f"{job.path}: expected a free label, found a sweep: use --resume to go on with it, --force to start anew, "
            "or another --label"
        )
    job.journal.parent.mkdir(parents=True, exist_ok=True)
    with _quiet(optuna):
        book = _Book(job, learned, optuna, say)
        book.fill()
        result = book.result()
    write_json(job.path, result)
    if not result["trials"]:
        raise UserError(
            f"{job.recipe}: expected a combination that can be fitted, found: {result['failed'][0]['error']}"
        )
    return result


def _check(job: Sweep) -> None:
    """Refuse what the recipe does not know before anything is paid."""
    chosen = registry.recipe(job.recipe)
    for name, values in job.over.items():
        if not values:
            raise ConfigError(f"--over {name}: expected values, found none: write {name}=V1,V2")
        if len({_written(value) for value in values}) < len(values):
            raise ConfigError(f"--over {name}: expected each value once, found one twice")
        if name == ENCODER and not chosen.encodes:
            raise ConfigError(f"--over {ENCODER}: expected a recipe that encodes, found {job.recipe}")
        if name == ENCODER and not all(isinstance(value, str) for value in values):
            raise ConfigError(f"--over {ENCODER}: expected names of encoders, found {values!r}")
        if name in job.changes or (name == ENCODER and job.encoder):
            raise ConfigError(f"--over {name}: expected a setting that is not fixed too, found both")
    if not job.over:
        raise ConfigError("--over: expected a setting and its values, found none: write --over NAME=V1,V2")
    if job.trials is not None and job.trials < 1:
        raise ConfigError(f"--trials: expected 1 or more, found {job.trials}")
    if job.no_tool is not None and not chosen.abstains:
        raise ConfigError(f"--no-tool: expected a recipe that judges whether a tool is needed, found {job.recipe}")
    if chosen.is_fitted:
        for settings in job.grid:
            own = {**job.changes, **settings}
            registry.resolve(
                job.recipe,
                {name: value for name, value in own.items() if name != ENCODER and not name.startswith(BASE_PREFIX)},
            )


def _written(value: Any) -> str:
    return msgspec.json.encode(value).decode()


@contextlib.contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


class _Book:
    """The trials of a sweep: what is done, what comes next. A combination is known by its values written as JSON."""

    def __init__(self, job: Sweep, learned: Lesson, optuna: Any, say: Callable[[str], None]) -> None:
        self.job, self.learned, self.optuna, self.say = job, learned, optuna, say
        self.grid = {self._key(settings): settings for settings in job.grid}
        self.choices = {name: [_written(value) for value in values] for name, values in job.over.items()}
        self.wanted = min(len(self.grid), job.trials or len(self.grid))
        self.failed: dict[tuple[str, ...], str] = {}
        self.repeated = False
        journal = optuna.storages.journal
        self.study = optuna.create_study(
            storage=optuna.storages.JournalStorage(journal.JournalFileBackend(str(job.journal))),
            study_name="sweep",
            load_if_exists=True,
            direction="maximize",
        )
        self._own()

    def _own(self) -> None:
        """Make sure that the journal is this sweep's, or make it so.

        Raises:
            UserError: if it is another one's.
        """
        job, chosen = self.job, registry.recipe(self.job.recipe)
        identity = {
            "dataset": job.dataset.name,
            "recipe": job.recipe,
            "encoder": (job.encoder or chosen.encoder or job.settings.encoder) if chosen.encodes else None,
            "version": toolscout.__version__,
            "revision": chosen.revision,
            "seed": job.seed,
            "over": {name: list(values) for name, values in job.over.items()},
            "settings": dict(job.changes),
            **({"asked": resolve_with_base(job.recipe, job.changes)} if chosen.is_fitted else {}),
            "data": self.learned.fingerprint,
            "catalogue": model_store.catalogue_mark(self.learned.tools),
            **({"no_tool": job.no_tool.fingerprint} if job.no_tool else {}),
        }
        wanted = msgspec.json.decode(msgspec.json.encode(identity))
        held = self.study.user_attrs.get("sweep")
        if held is None:
            self.study.set_user_attr("sweep", wanted)
        elif held != wanted:
            other = ", ".join(
                f"{key} {held.get(key)!r} (now {wanted.get(key)!r})"
                for key in {**held, **wanted}
                if held.get(key) != wanted.get(key)
            )
            raise UserError(
                f"{job.journal}: expected the trials of this sweep, found those of another: {other}; "
                "choose another --label, or --force"
            )

    def _key(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(_written(settings[name]) for name in self.job.over)

    # --- which come next ----------------------------------------------------------------------------------------------

    def done(self) -> dict[tuple[str, ...], Any]:
        """Combination → its finished trial, the first of several."""
        complete = (self.optuna.trial.TrialState.COMPLETE,)
        found: dict[tuple[str, ...], Any] = {}
        for trial in self.study.get_trials(deepcopy=False, states=complete):
            found.setdefault(tuple(trial.params[name] for name in self.job.over), trial)
        return found

    def left(self) -> list[tuple[str, ...]]:
        """Combinations that are neither done nor failed in this run."""
        done = self.done()
        return [key for key in self.grid if key not in done and key not in self.failed]

    def fill(self) -> None:
        """Do trials until there are as many as wanted."""
        samplers, seed = self.optuna.samplers, self.job.seed
        if self.wanted == len(self.grid):
            sampler = samplers.GridSampler(self.choices, seed=seed)
            while not sampler.is_exhausted(self.study):
                self._go(sampler)
        else:
            sampler = samplers.TPESampler(seed=seed + len(self.study.trials))
            repeats = 0
            while len(self.done()) + len(self.failed) < self.wanted and repeats < PATIENCE:
                self._go(sampler)
                repeats = repeats + 1 if self.repeated else 0
        waiting = (self.optuna.trial.TrialState.WAITING,)
        while len(self.done()) + len(self.failed) < self.wanted:  # what a kill left, or the sampler did not find
            if not self.study.get_trials(deepcopy=False, states=waiting):
                self.study.enqueue_trial(dict(zip(self.job.over, self.left()[0], strict=True)))
            self._go(samplers.RandomSampler(seed=seed))

    def _go(self, sampler: Any) -> None:
        self.study.sampler = sampler
        self.study.optimize(self._trial, n_trials=1)
        self._tidy()

    # --- one trial ----------------------------------------------------------------------------------------------------

    def _trial(self, trial: Any) -> float:
        key = tuple(trial.suggest_categorical(name, choices) for name, choices in self.choices.items())
        earlier = self.done().get(key)
        self.repeated = earlier is not None or key in self.failed
        if earlier is not None:
            return float(earlier.value)
        if key in self.failed:
            raise self.optuna.TrialPruned
        settings = self.grid[key]
        number = len(self.done()) + len(self.failed) + 1
        self.say(f"trial {number} of {self.wanted}: {shown(settings)}")
        started = time.perf_counter()
        try:
            found = _judged(self.job, self.learned, settings, self.say)
        except UserError as error:
            self.failed[key] = str(error)
            raise self.optuna.TrialPruned from None
        value = sum(found.dev[name] for name in OBJECTIVE) / len(OBJECTIVE)
        for name, held in (
            ("dev", found.dev),
            ("seconds", round(time.perf_counter() - started, 3)),
            ("fit_seconds", round(found.fit_seconds, 3)),
            ("model", found.made),
        ):
            trial.set_user_attr(name, held)
        return value

    def _tidy(self) -> None:
        """Keep the best trial's model alone, of those that this sweep put on the shelf."""
        done = self.done()
        ranked = [done[key] for key in self.grid if key in done]
        best = max(ranked, key=lambda trial: float(trial.value), default=None)
        for trial in ranked:
            if trial is not best and trial.user_attrs["model"]:
                name = Path(trial.user_attrs["model"]).name
                shutil.rmtree(self.job.settings.home / SHELF / name, ignore_errors=True)

    # --- what came out ------------------------------------------------------------------------------------------------

    def result(self) -> dict[str, Any]:
        """The result file's content; trials in the order of the grid."""
        job, done = self.job, self.done()
        chosen = registry.recipe(job.recipe)
        trials = [
            {
                "settings": self.grid[key],
                **{name: done[key].user_attrs[name] for name in ("dev", "seconds", "fit_seconds")},
            }
            for key in self.grid
            if key in done
        ]
        best = max(trials, key=lambda trial: sum(trial["dev"][name] for name in OBJECTIVE), default=None)
        encoder = None if ENCODER in job.over else job.encoder or chosen.encoder or job.settings.encoder
        return {
            "dataset": job.dataset.name,
            "recipe": job.recipe,
            "label": job.label or job.recipe,
            "encoder": encoder if chosen.encodes else None,
            "seed": job.seed,
            "settings": {**chosen.settings, **job.changes},
            "over": {name: list(values) for name, values in job.over.items()},
            **({"no_tool": True} if job.no_tool else {}),
            "selected_on": "dev",
            "objective": f"mean of {' and '.join(OBJECTIVE)}",
            "sampler": "grid" if self.wanted == len(self.grid) else "tpe",
            "n_train": len(self.learned.train),
            "n_dev": len(self.learned.dev),
            "n_tools": len(self.learned.tools),
            "dropped_leaks": len(self.learned.dropped),
            "combinations": len(self.grid),
            "trials": trials,
            "failed": [{"settings": self.grid[key], "error": error} for key, error in self.failed.items()],
            "best": best,
            **provenance("optuna"),
        }


def shown(settings: Mapping[str, Any]) -> str:
    """Settings in one line."""
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


@dataclasses.dataclass(frozen=True)
class _Judged:
    """Figures on dev, seconds of the fit, and the name of the model's folder if this trial put it on the shelf."""

    dev: dict[str, float]
    fit_seconds: float
    made: str | None


def _judged(job: Sweep, learned: Lesson, settings: Mapping[str, Any], say: Callable[[str], None]) -> _Judged:
    changes = {**job.changes, **{name: value for name, value in settings.items() if name != ENCODER}}
    encoder = settings.get(ENCODER, job.encoder)
    workspace = Workspace(
        encoder,
        job.settings,
        VectorStore(job.settings.home / "bench"),
        PairCache(job.settings.home / "bench"),
        say=say,
        seed=job.seed,
        resume=True,
    )
    if not registry.recipe(job.recipe).is_fitted:
        return _judge_unfitted(job, learned, workspace, changes)
    lesson = dataclasses.replace(learned, no_tool=job.no_tool) if job.no_tool else learned
    task = on_shelf(plan_fit(job.recipe, lesson, workspace, job.settings.home, changes))
    there = task.out.exists()
    manifest = fit(task).manifest
    return _Judged(manifest.metrics, manifest.fit_seconds, None if there else task.out.name)


def _judge_unfitted(job: Sweep, learned: Lesson, workspace: Workspace, changes: Mapping[str, Any]) -> _Judged:
    texts = learned.texts
    if workspace.encoder:
        workspace = dataclasses.replace(workspace, encoder=workspace.load_encoder())
    started = time.perf_counter()
    stage = registry.build(job.recipe, Catalogue.of(learned.tools), workspace, settings=changes) >> Cut(DEPTH)
    seconds = time.perf_counter() - started
    queries = list(learned.dev)
    ranking: dict[str, list[str]] = {}
    for start in range(0, len(queries), BATCH):
        batch = queries[start : start + BATCH]
        found = stage([Search(query=texts[query], k=DEPTH) for query in batch])
        ranking |= {query: [hit.id for hit in each.hits] for query, each in zip(batch, found, strict=True)}
    return _Judged(metrics.score(ranking, learned.dev, DEV_METRICS).means(), seconds, None)
