"""Sweep: fits a recipe with many combinations of settings on train, and scores each on dev. Test is never read.

Optuna chooses the order. A journal beside the result holds every finished trial, so a sweep that was killed continues
where it stopped. If the recipe continues from another one (`base`), that one is fitted once and kept on the shelf. Of
the trials' models, only the best stays there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import msgspec

import toolscout
from toolscout import metrics
from toolscout.checks.results import SWEEP, write_json
from toolscout.dataset import Dataset, NoTool
from toolscout.encoders.shards import map_shards
from toolscout.errors import ConfigError, NotFound, UserError, require
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models import model_store
from toolscout.learn.fit import (
    BASE_PREFIX,
    SHELF_FOLDER,
    Lesson,
    fit,
    make_lesson,
    on_shelf,
    plan_fit,
    resolve_with_base,
)
from toolscout.rankers.lesson import DEV_METRICS
from toolscout.recipes import registry
from toolscout.search.pipeline import Cut
from toolscout.settings import Settings
from toolscout.sources.folder import read_tools
from toolscout_lab.bench_pipelines import RANKING_DEPTH
from toolscout_lab.encoders.pair_cache import PairCache
from toolscout_lab.llm import SharedLLM
from toolscout_lab.machine import Record, provenance
from toolscout_lab.progress import Say, ignore
from toolscout_lab.resources import CACHE_FOLDER, Workspace, search_all

if TYPE_CHECKING:
    import optuna

__all__ = ["ENCODER", "OBJECTIVE", "Sweep", "describe_settings", "sweep"]

ENCODER: Final = "encoder"  # can be swept although it is no setting of the recipe
OBJECTIVE: Final = ("ndcg@5", "comp@5")  # the best trial has the highest mean of these
MAX_REPEATED_DRAWS: Final = 10  # after so many finished combinations in a row, a new one is drawn at random
Key = tuple[str, ...]
"""A combination: its values, each as JSON."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The combinations to try.

    Attributes:
        dataset: the loaded dataset.
        recipe: name of the recipe.
        over: name of a setting (or `encoder`, or `base.…`) → its values.
        out: the folder of results.
        label: name of the result file; None: the recipe's name.
        changes: settings that all trials share.
        encoder: name of the encoder; None uses the recipe's own.
        seed: seed of the fits and of the order.
        trials: the most combinations to try; None: all.
        no_tool: queries that need no tool. The recipe must then estimate whether a query needs one.
        settings: timeouts, and where models and vectors are kept.
        llm: the language model, which the trials share with its budget.
    """

    dataset: Dataset
    recipe: str
    over: Mapping[str, Sequence[Any]]
    out: Path
    label: str | None = None
    changes: Record = dataclasses.field(default_factory=dict)
    encoder: str | None = None
    seed: int = 0
    trials: int | None = None
    no_tool: NoTool | None = None
    settings: Settings = dataclasses.field(default_factory=Settings)
    llm: SharedLLM | None = None

    @property
    def path(self) -> Path:
        """The file of the result."""
        return self.out / self.dataset.name / f"{self.label or self.recipe}{SWEEP}"

    @property
    def journal(self) -> Path:
        """The file of Optuna's journal."""
        return self.path.with_suffix(".journal")

    @property
    def grid(self) -> list[Record]:
        """All combinations of values."""
        return [dict(zip(self.over, values, strict=True)) for values in itertools.product(*self.over.values())]

    @property
    def encoder_name(self) -> str | None:
        """The encoder that trials use unless they sweep it; None: the recipe uses none."""
        recipe = registry.recipe(self.recipe)
        return (self.encoder or recipe.encoder or self.settings.encoder) if recipe.encodes else None


def sweep(job: Sweep, *, resume: bool = False, force: bool = False, say: Say = ignore) -> Record:
    """Try the combinations, write the result, and return it.

    Args:
        job: the combinations to try.
        resume: continue the same sweep where it stopped; finished trials are kept, failed ones are tried again.
        force: overwrite a sweep of the same label.
        say: called with progress messages.

    Raises:
        MissingExtra: without optuna.
        ConfigError: for a name or a value that the recipe does not know.
        UserError: if the label is taken by another sweep, or every trial failed.
    """
    optuna = require("optuna", "lab")
    _check_job(job)
    try:
        held_out = job.dataset.texts("test")
    except NotFound:
        held_out = {}
    lesson = make_lesson(job.dataset, read_tools(job.dataset.folder, "d").tools, held_out)
    if force and not resume:
        job.journal.unlink(missing_ok=True)
        job.path.unlink(missing_ok=True)
    if not resume and (job.journal.exists() or job.path.exists()):
        raise UserError(
            f"{job.path}: a sweep of this label exists. Use --resume to continue it, --force to start anew, "
            "or another --label."
        )
    job.journal.parent.mkdir(parents=True, exist_ok=True)
    with _silence_optuna(optuna):
        trials = _Trials(job, lesson, optuna, say)
        trials.run_all()
        result = trials.describe()
    write_json(job.path, result)
    if not result["trials"]:
        first_error = result["failed"][0]["error"]
        raise UserError(f"{job.recipe}: no combination could be fitted. The first error: {first_error}")
    return result


def _check_job(job: Sweep) -> None:
    """Refuse settings that the recipe does not know, before anything is fitted."""
    recipe = registry.recipe(job.recipe)
    if job.settings.ray and job.settings.llm:
        raise ConfigError("--ray: workers share no budget for the language model. Unset llm, or leave --ray out.")
    for name, values in job.over.items():
        _check_values(job, name, values)
    if not job.over:
        raise ConfigError("There is nothing to sweep. Name a setting and its values with --over NAME=V1,V2")
    if job.trials is not None and job.trials < 1:
        raise ConfigError(f"--trials: expected 1 or more, found {job.trials}")
    if job.no_tool is not None and not recipe.abstains:
        raise ConfigError(
            f"--no-tool: {job.recipe} does not estimate whether a query needs a tool. Use a recipe that does, such as "
            "masstool."
        )
    for settings in job.grid if recipe.is_fitted else ():
        changes = {**job.changes, **settings}
        own = [name for name in changes if name != ENCODER and not name.startswith(BASE_PREFIX)]
        registry.resolve(job.recipe, {name: changes[name] for name in own})


def _check_values(job: Sweep, name: str, values: Sequence[object]) -> None:
    """Refuse a list of values that cannot be swept."""
    if not values:
        raise ConfigError(f"--over {name} has no values. Write --over {name}=V1,V2")
    if len(set(map(_to_json, values))) < len(values):
        raise ConfigError(f"--over {name} has a value twice. Write each value once.")
    if name == ENCODER and not registry.recipe(job.recipe).encodes:
        raise ConfigError(f"--over {ENCODER}: {job.recipe} uses no encoder. Leave this setting out.")
    if name == ENCODER and not all(isinstance(value, str) for value in values):
        raise ConfigError(f"--over {ENCODER}: expected names of encoders, found {values!r}")
    if name in job.changes or (name == ENCODER and job.encoder):
        raise ConfigError(f"--over {name}: this setting is also fixed. Either fix it or sweep it.")


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


@contextlib.contextmanager
def _silence_optuna(optuna: ModuleType) -> Iterator[None]:
    """Keep Optuna from writing a line for each trial."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


class _Trials:
    """The trials of a sweep, finished and to come."""

    def __init__(self, job: Sweep, lesson: Lesson, optuna: ModuleType, say: Say) -> None:
        self.job, self.lesson, self.optuna, self.say = job, lesson, optuna, say
        self.grid = {tuple(_to_json(settings[name]) for name in job.over): settings for settings in job.grid}
        self.choices = {name: list(map(_to_json, values)) for name, values in job.over.items()}
        self.n_trials = min(len(self.grid), job.trials or len(self.grid))
        self.failed: dict[Key, str] = {}  # combination → error, in this run
        journal = optuna.storages.journal
        self.study = optuna.create_study(
            storage=optuna.storages.JournalStorage(journal.JournalFileBackend(str(job.journal))),
            study_name="sweep",
            load_if_exists=True,
            direction="maximize",
        )
        self._claim_journal()

    def _claim_journal(self) -> None:
        """Mark a new journal as this sweep's, and check that an existing one is.

        Raises:
            UserError: if the journal belongs to another sweep.
        """
        job, recipe = self.job, registry.recipe(self.job.recipe)
        identity = {
            "dataset": job.dataset.name,
            "recipe": job.recipe,
            "encoder": job.encoder_name,
            "version": toolscout.__version__,
            "revision": recipe.revision,
            "seed": job.seed,
            "over": {name: list(values) for name, values in job.over.items()},
            "settings": dict(job.changes),
            **({"asked": resolve_with_base(job.recipe, job.changes)} if recipe.is_fitted else {}),
            "data": self.lesson.fingerprint,
            "catalogue": model_store.fingerprint_catalogue(self.lesson.tools),
            **({"no_tool": job.no_tool.fingerprint} if job.no_tool else {}),
        }
        identity = msgspec.json.decode(msgspec.json.encode(identity))
        earlier = self.study.user_attrs.setdefault("sweep", identity)
        self.study.set_user_attr("sweep", earlier)
        differences = ", ".join(
            f"{key} {earlier.get(key)!r} (now {identity.get(key)!r})"
            for key in {**earlier, **identity}
            if earlier.get(key) != identity.get(key)
        )
        if differences:
            raise UserError(
                f"{job.journal} holds the trials of another sweep: {differences}. Choose another --label, or use "
                "--force to start anew."
            )

    # --- the next trials ----------------------------------------------------------------------------------------------

    def find_finished(self) -> dict[Key, optuna.trial.FrozenTrial]:
        """Return combination → its first finished trial."""
        complete = (self.optuna.trial.TrialState.COMPLETE,)
        finished: dict[Key, optuna.trial.FrozenTrial] = {}
        for trial in self.study.get_trials(deepcopy=False, states=complete):
            finished.setdefault(tuple(trial.params[name] for name in self.job.over), trial)
        return finished

    def _find_open(self) -> list[Key]:
        """Return the combinations that have neither finished nor failed in this run."""
        finished = self.find_finished()
        return [key for key in self.grid if key not in finished and key not in self.failed]

    def _count_done(self) -> int:
        return len(self.find_finished()) + len(self.failed)

    def run_all(self) -> None:
        """Run trials until there are as many as the sweep asks for."""
        samplers, seed = self.optuna.samplers, self.job.seed
        if self.n_trials == len(self.grid) and self.job.settings.ray:
            self._run_beside()
        elif self.n_trials == len(self.grid):
            sampler = samplers.GridSampler(self.choices, seed=seed)
            while not sampler.is_exhausted(self.study):
                self._run_one(sampler)
        else:
            sampler = samplers.TPESampler(seed=seed + len(self.study.trials))
            repeats = 0
            while self._count_done() < self.n_trials and repeats < MAX_REPEATED_DRAWS:
                n_before = self._count_done()
                self._run_one(sampler)
                repeats = repeats + 1 if self._count_done() == n_before else 0  # it drew what an earlier trial had
        waiting = (self.optuna.trial.TrialState.WAITING,)
        # What remains are trials that a kill left, and combinations that the sampler missed.
        while self._count_done() < self.n_trials:
            if not self.study.get_trials(deepcopy=False, states=waiting):
                self.study.enqueue_trial(dict(zip(self.job.over, self._find_open()[0], strict=True)))
            self._run_one(samplers.RandomSampler(seed=seed))

    def _run_beside(self) -> None:
        """Score all combinations that are open on a Ray cluster, and write each to the journal when it is done.

        The first one is scored here, so that a base that all share is fitted once.
        """
        categorical = self.optuna.distributions.CategoricalDistribution
        work = functools.partial(_try_settings, dataclasses.replace(self.job, llm=None), self.lesson)
        keys = self._find_open()
        for part, ray in ((keys[:1], ""), (keys[1:], self.job.settings.ray)):
            for number, outcome in map_shards(work, [self.grid[key] for key in part], ray):
                self._announce(part[number])
                if isinstance(outcome, str):
                    self.failed[part[number]] = outcome
                    continue
                self.study.add_trial(
                    self.optuna.trial.create_trial(
                        params=dict(zip(self.job.over, part[number], strict=True)),
                        distributions={name: categorical(choices) for name, choices in self.choices.items()},
                        value=outcome.value,
                        user_attrs=outcome.describe(),
                    )
                )
        self._remove_worse_models()

    def _run_one(self, sampler: optuna.samplers.BaseSampler) -> None:
        self.study.sampler = sampler
        self.study.optimize(self._run_trial, n_trials=1)
        self._remove_worse_models()

    def _announce(self, key: Key) -> None:
        self.say(f"trial {self._count_done() + 1} of {self.n_trials}: {describe_settings(self.grid[key])}")

    def _run_trial(self, trial: optuna.Trial) -> float:
        """Score the combination that Optuna suggests, unless an earlier trial had it. Returns its objective."""
        key = tuple(trial.suggest_categorical(name, choices) for name, choices in self.choices.items())
        earlier = self.find_finished().get(key)
        if earlier is not None:
            return float(earlier.value or 0.0)
        if key in self.failed:
            raise self.optuna.TrialPruned
        self._announce(key)
        outcome = _try_settings(self.job, self.lesson, self.grid[key], self.say)
        if isinstance(outcome, str):
            self.failed[key] = outcome
            raise self.optuna.TrialPruned
        for name, attribute in outcome.describe().items():
            trial.set_user_attr(name, attribute)
        return outcome.value

    def _remove_worse_models(self) -> None:
        """Delete the models that this sweep put on the shelf, except the best trial's."""
        finished = self.find_finished()
        trials = [finished[key] for key in self.grid if key in finished]
        best = max(trials, key=lambda trial: float(trial.value or 0.0), default=None)
        for trial in trials:
            if trial is not best and trial.user_attrs["model"]:
                name = Path(trial.user_attrs["model"]).name
                shutil.rmtree(self.job.settings.home / SHELF_FOLDER / name, ignore_errors=True)

    def describe(self) -> Record:
        """Return the content of the result file; trials in the order of the grid."""
        job, finished = self.job, self.find_finished()
        recipe = registry.recipe(job.recipe)
        trials = [
            {
                "settings": settings,
                **{name: finished[key].user_attrs[name] for name in ("dev", "seconds", "fit_seconds")},
            }
            for key, settings in self.grid.items()
            if key in finished
        ]
        return {
            "dataset": job.dataset.name,
            "recipe": job.recipe,
            "label": job.label or job.recipe,
            "encoder": None if ENCODER in job.over else job.encoder_name,
            "seed": job.seed,
            "settings": {**recipe.settings, **job.changes},
            "over": {name: list(values) for name, values in job.over.items()},
            **({"no_tool": True} if job.no_tool else {}),
            "selected_on": "dev",
            "objective": f"mean of {' and '.join(OBJECTIVE)}",
            "sampler": "grid" if self.n_trials == len(self.grid) else "tpe",
            "n_train": len(self.lesson.train),
            "n_dev": len(self.lesson.dev),
            "n_tools": len(self.lesson.tools),
            "dropped_leaks": len(self.lesson.dropped),
            "combinations": len(self.grid),
            "trials": trials,
            "failed": [{"settings": self.grid[key], "error": error} for key, error in self.failed.items()],
            "best": max(trials, key=lambda trial: sum(trial["dev"][name] for name in OBJECTIVE), default=None),
            **provenance("optuna"),
        }


def describe_settings(settings: Mapping[str, object]) -> str:
    """Write settings in one line."""
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


@dataclasses.dataclass(frozen=True)
class _DevScore:
    """Figures on dev, seconds of the fit, and the name of the model's folder if this trial put it on the shelf."""

    dev: dict[str, float]
    fit_seconds: float
    new_model: str | None
    seconds: float = 0.0

    @property
    def value(self) -> float:
        """The objective."""
        return sum(self.dev[name] for name in OBJECTIVE) / len(OBJECTIVE)

    def describe(self) -> Record:
        """Return what the journal keeps of a trial."""
        seconds = {"seconds": round(self.seconds, 3), "fit_seconds": round(self.fit_seconds, 3)}
        return {"dev": self.dev, **seconds, "model": self.new_model}


def _try_settings(job: Sweep, lesson: Lesson, settings: Record, say: Say = ignore) -> _DevScore | str:
    """Score one combination. Returns the error in a sentence if it could not be fitted."""
    started = time.perf_counter()
    try:
        score = _score_on_dev(job, lesson, settings, say)
    except UserError as error:
        return str(error)
    return dataclasses.replace(score, seconds=time.perf_counter() - started)


def _score_on_dev(job: Sweep, lesson: Lesson, settings: Record, say: Say) -> _DevScore:
    """Fit the recipe with one combination of settings, or build it if it is not fitted, and score it on dev."""
    changes = {**job.changes, **{name: value for name, value in settings.items() if name != ENCODER}}
    workspace = Workspace.open(
        settings.get(ENCODER, job.encoder),
        job.settings,
        pairs=PairCache(job.settings.home / CACHE_FOLDER),
        say=say,
        seed=job.seed,
        resume=True,
        shared_llm=job.llm,
    )
    if registry.recipe(job.recipe).is_fitted:
        lesson = dataclasses.replace(lesson, no_tool=job.no_tool) if job.no_tool else lesson
        task = on_shelf(plan_fit(job.recipe, lesson, workspace, job.settings.home, changes))
        was_kept = task.out.exists()
        manifest = fit(task).manifest
        return _DevScore(dict(manifest.metrics), manifest.fit_seconds, None if was_kept else task.out.name)
    if workspace.encoder:
        workspace = dataclasses.replace(workspace, encoder=workspace.load_encoder())
    started = time.perf_counter()
    stage = registry.build(job.recipe, Catalogue.of(lesson.tools), workspace, settings=changes) >> Cut(RANKING_DEPTH)
    seconds = time.perf_counter() - started
    texts = {query: lesson.texts[query] for query in lesson.dev}
    ranking = {query: list(search.ids) for query, search in search_all(stage, texts, RANKING_DEPTH)}
    return _DevScore(metrics.score(ranking, lesson.dev, DEV_METRICS).means(), seconds, None)
