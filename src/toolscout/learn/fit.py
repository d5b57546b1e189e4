"""Fits a recipe on a dataset: makes the lesson, fits the base first, and writes the model folder."""

from __future__ import annotations

import dataclasses
import functools
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import toolscout
from toolscout import encoders
from toolscout.dataset import Dataset, Qrels, drop_leaks, in_dev
from toolscout.errors import CheckpointError, ConfigError, NotFound, StoreError, UserError, require
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models import model_store
from toolscout.home.models.model_store import Draft, Manifest, Model, ModelSetting
from toolscout.indexes import BUILT_IN_INDEXES
from toolscout.rankers import Artifacts, AskingMethod, FittedMethod, Recipe
from toolscout.rankers.lesson import Base, Lesson
from toolscout.recipes import registry
from toolscout.search.abstain import decision
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import Floors, Stage
from toolscout.trust.private_files import refuse_links
from toolscout.types import Search, Tool, digest

__all__ = [
    "BASE_PREFIX",
    "SHELF_FOLDER",
    "FitJob",
    "Lesson",
    "fit",
    "fit_abstention_floors",
    "make_lesson",
    "on_shelf",
    "plan_fit",
    "rehearse_fit",
    "rehearse_searches",
    "resolve_with_base",
]

BASE_SETTINGS: Final = {"refit": False}  # a base is not fitted on dev too, or choices on dev would trust it too much
BASE_PREFIX: Final = "base."  # begins the names of settings that belong to the base
SHELF_FOLDER: Final = "bench-models"
MAX_ABSTENTION_QUERIES: Final = 4_000  # set the abstention thresholds; 500 missed a budget of 2 % by 0.9 points


@dataclasses.dataclass(frozen=True)
class FitJob:
    """One fit: what to learn from, with which options, and where the model is written.

    Attributes:
        recipe: the recipe to fit.
        options: resolved options of the method; a None is chosen on dev.
        origins: name of each option → where its value came from.
        lesson: the training and dev queries.
        base: the fitted recipe that this one builds on, if its options name one.
        workspace: encoder, caches, seed and progress; its `work` and `identity` are set when the fit begins.
        out: the folder of the model.
        notes: returns further JSON values for the manifest's `values`; called when the model is saved.
    """

    recipe: Recipe
    options: Any
    origins: Mapping[str, str]
    lesson: Lesson
    base: Base | None
    workspace: HomeResources
    out: Path
    notes: Callable[[], Mapping[str, Any]] = dict

    @property
    def work(self) -> Path:
        """Folder for checkpoints beside `out`. It survives a kill, and is removed once the model is saved."""
        return self.out.with_name(f"{self.out.name}.work")

    @property
    def identity(self) -> str:
        """Digest of everything that determines the model. Fits with equal digests give equal models."""
        encoder, lesson, recipe = self.workspace.encoder, self.lesson, self.recipe
        encoder_mark = encoder if isinstance(encoder, str | None) else encoder.fingerprint
        marks = [lesson.fingerprint, model_store.fingerprint_catalogue(lesson.tools)]
        if self.base is not None:
            marks.append(self.base.identity)
        if lesson.no_tool is not None:
            marks.append(lesson.no_tool.fingerprint)
        if self.workspace.settings.index not in BUILT_IN_INDEXES:  # a plug-in's index may find other neighbours
            marks.append(self.workspace.settings.index)
        versions = recipe.method.prompt_versions(self.options) if isinstance(recipe.method, AskingMethod) else ()
        if versions:
            marks.append(digest("llm/1", [self.workspace.settings.llm, *versions]))
        name = recipe.name if recipe.revision == 1 else f"{recipe.name}/{recipe.revision}"
        options = msgspec.structs.asdict(self.options)
        return digest("fit/1", [toolscout.__version__, name, options, self.workspace.seed, encoder_mark, *marks])

    @property
    def shelf(self) -> Path:
        """Folder of the models that the laboratory fits, and of the bases that any fit needs."""
        return self.workspace.settings.home / SHELF_FOLDER


# --- the lesson -------------------------------------------------------------------------------------------------------


def make_lesson(
    dataset: Dataset, tools: Sequence[Tool], held_out: Mapping[str, str], queries: Sequence[str] | None = None
) -> Lesson:
    """Make the lesson of a fit: train and dev of a dataset, without queries that repeat a held-out query.

    Args:
        dataset: the dataset.
        tools: its tools.
        held_out: query id → text of the queries that will be scored.
        queries: for folds, ids of the queries to learn from; a tenth of them becomes dev, as in sets without dev. None:
            the dataset's own train and dev.

    Raises:
        UserError: if there is nothing to learn from, or nothing to choose on.
    """
    if queries is None:
        try:
            train, dev = dataset.split("train"), dataset.split("dev")
        except NotFound as error:
            raise NotFound(f"A fitted recipe needs queries to learn from. {error}") from None
    else:
        judged = {query: gold for split in dataset.qrels.values() for query, gold in split.items()}
        train = {query: judged[query] for query in queries if not in_dev(query)}
        dev = {query: judged[query] for query in queries if in_dev(query)}
    train, dropped = drop_leaks(train, dataset.queries, held_out)
    dev, dropped_dev = drop_leaks(dev, dataset.queries, held_out)
    if not train or not dev:
        raise UserError(
            f"{dataset.name} has {len(train):,} queries to train on and {len(dev):,} to choose on, and a fit needs "
            "both. Add training queries."
        )
    full_ids = {tool.id.partition("/")[2]: tool.id for tool in tools}
    return Lesson(
        name=dataset.name,
        tools=sorted(tools, key=lambda tool: tool.id),
        texts=dataset.queries,
        train=_use_full_ids(train, full_ids),
        dev=_use_full_ids(dev, full_ids),
        dropped=[*dropped, *dropped_dev],
    )


def _use_full_ids(qrels: Qrels, full_ids: Mapping[str, str]) -> Qrels:
    """Replace the ids of a dataset's tools by their ids in the catalogue, `source/id`.

    Tools that could not be read are left out, and so are queries without any other gold tool.
    """
    renamed = {
        query: {full_ids[tool]: grade for tool, grade in gold.items() if tool in full_ids}
        for query, gold in qrels.items()
    }
    return {query: gold for query, gold in renamed.items() if gold}


def fit_abstention_floors(lesson: Lesson) -> Floors:
    """Fit the thresholds of the bundled abstention decision on queries of a lesson. Each of them has a fitting tool."""
    queries = [*lesson.dev, *lesson.train]
    step = math.ceil(len(queries) / MAX_ABSTENTION_QUERIES)
    return decision.fit_floors(HomeResources(), Catalogue.of(lesson.tools), lesson.texts_of(queries[::step]))


# --- planning a fit ---------------------------------------------------------------------------------------------------


def plan_fit(
    recipe: str | Recipe,
    lesson: Lesson,
    workspace: HomeResources,
    out: Path,
    changes: Mapping[str, object] | None = None,
    *,
    fit_floors: Callable[[], Floors] | None = None,
) -> FitJob:
    """Prepare a fit. If the recipe builds on another one (its base), the base is fitted now, unless it already is.

    Args:
        recipe: its name, or the recipe.
        lesson: the training and dev queries.
        workspace: if its encoder is None, the recipe's own is used, or the one in the settings.
        out: the folder of the model.
        changes: options that replace the recipe's own; names with the prefix `base.` replace options of the base.
        fit_floors: returns the thresholds of abstention. None: `fit_abstention_floors` on the lesson.

    Raises:
        UserError: if the recipe cannot be fitted with these arguments.
    """
    # The thresholds take long, so they are fitted when a model is saved, and once for the recipe and its base.
    fit_floors = fit_floors or functools.cache(functools.partial(fit_abstention_floors, lesson))
    chosen = registry.recipe(recipe) if isinstance(recipe, str) else recipe
    own_changes, base_changes = _split_changes(changes or {})
    options, origins = registry.resolve(chosen, own_changes)
    _require_packages(chosen)
    if lesson.no_tool is not None and not chosen.abstains:
        raise ConfigError(f"--no-tool: expected a recipe that judges whether a tool is needed, found {chosen.name}")
    encoder = workspace.encoder or chosen.encoder or workspace.settings.encoder
    if chosen.encodes and isinstance(encoder, str):
        encoder = encoders.load(encoder, workspace.settings)
    workspace = dataclasses.replace(workspace, encoder=encoder)
    base: Base | None = None
    base_name = getattr(options, "base", None)
    if base_name is not None:
        _check_base(chosen, base_name)
        base = _fit_base(base_name, lesson, workspace, base_changes, fit_floors)
    elif base_changes:
        raise ConfigError(
            f"recipe {chosen.name}: it has no base, so the setting {BASE_PREFIX}{next(iter(base_changes))} has no "
            "meaning. Leave it out"
        )
    return FitJob(
        recipe=chosen,
        options=options,
        origins=origins,
        lesson=lesson,
        base=base,
        workspace=workspace,
        out=out,
        notes=lambda: {"floors": msgspec.to_builtins(fit_floors())},
    )


def resolve_with_base(name: str, changes: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a fit, and the options of its base with the prefix `base.`; a None is chosen on dev.

    Raises:
        ConfigError: for a recipe that is not fitted, or an unknown option.
    """
    own_changes, base_changes = _split_changes(changes)
    options, _ = registry.resolve(name, own_changes)
    resolved = msgspec.structs.asdict(options)
    base = resolved.get("base")
    if base is not None and registry.recipe(base).is_fitted:
        base_options = resolve_with_base(base, _add_base_settings(base, base_changes))
        resolved |= {BASE_PREFIX + name: value for name, value in base_options.items()}
    return resolved


def _split_changes(changes: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the changed options of a fit, and the changed options of its base, which lose the prefix `base.`."""
    own = {name: value for name, value in changes.items() if not name.startswith(BASE_PREFIX)}
    base = {name.removeprefix(BASE_PREFIX): changes[name] for name in changes if name not in own}
    return own, base


def _add_base_settings(name: str, changes: Mapping[str, object]) -> dict[str, object]:
    """Return the changed options of a base, with `BASE_SETTINGS` for those of its options that are not changed."""
    method = registry.recipe(name).method
    fields = method.options_type.__struct_fields__ if method.needs_usage else ()
    defaults = {option: value for option, value in BASE_SETTINGS.items() if option in fields}
    return {**defaults, **changes}


def _require_packages(recipe: Recipe) -> None:
    """Require the packages that a fit needs at its end, so that a missing one is noticed before anything is fitted.

    Raises:
        MissingExtra: naming the package.
    """
    for package, extra in getattr(recipe.method, "fit_packages", ()):
        require(package, extra)


def _check_base(recipe: Recipe, base: str) -> None:
    """Refuse a base that the recipe cannot build on.

    Raises:
        ConfigError: naming what is possible.
    """
    rule, method = recipe.method.base, registry.recipe(base).method
    if rule is None:  # the recipe can build on any other
        return
    has_option = rule.option in method.options_type.__struct_fields__
    if not method.needs_usage or not has_option:
        raise ConfigError(f"--set base: expected {rule.description}, found {base}")


def _fit_base(
    name: str,
    lesson: Lesson,
    workspace: HomeResources,
    changes: Mapping[str, object],
    fit_floors: Callable[[], Floors],
) -> Base:
    """Fit the base with the same encoder, or read its model if there is one. A base that needs no fit is only built."""
    catalogue = Catalogue.of(lesson.tools)
    if not registry.recipe(name).is_fitted:
        if changes:
            raise ConfigError(
                f"the base {name} is not fitted, so the setting {BASE_PREFIX}{next(iter(changes))} has no meaning. "
                "Leave it out"
            )
        return Base(name, None, registry.build(name, catalogue, workspace), name)
    all_changes = _add_base_settings(name, changes)
    if lesson.no_tool is not None:  # only the recipe that builds on the base learns to abstain
        lesson = dataclasses.replace(lesson, no_tool=None)
    resumable = dataclasses.replace(workspace, resume=True)
    placeholder = workspace.settings.home  # `on_shelf` replaces it by a folder that the planned job names
    job = plan_fit(name, lesson, resumable, placeholder, all_changes, fit_floors=fit_floors)
    base_origins = dict.fromkeys(all_changes.keys() - changes.keys(), "base")
    job = on_shelf(dataclasses.replace(job, origins={**job.origins, **base_origins}))
    model = fit(job)
    if model.manifest.data.refit:
        workspace.say(
            f"{name} was fitted on the dev queries too, so values chosen on dev now trust it more than they should"
        )
    return Base(name, model, registry.build(name, catalogue, workspace, model=model.folder), job.identity)


def on_shelf(job: FitJob) -> FitJob:
    """Return the same fit with its model on the shelf, in a folder that equal fits share: `RECIPE-IDENTITY`."""
    return dataclasses.replace(job, out=job.shelf / f"{job.recipe.name}-{job.identity[:16]}")


def rehearse_fit(
    name: str, lesson: Lesson, workspace: HomeResources, changes: Mapping[str, object], queries: Sequence[str] = ()
) -> None:
    """Ask the language model all that a fit of the recipe and of its bases, and searches for `queries`, could ask it.

    Nothing is trained. If the language model is a `Rehearsal` of toolscout-lab, it counts the calls and sends none.

    Raises:
        UserError: if the recipe cannot be fitted with these arguments.
    """
    own_changes, base_changes = _split_changes(changes)
    options, _ = registry.resolve(name, own_changes)
    base = getattr(options, "base", None)
    if base is not None and registry.recipe(base).is_fitted:
        rehearse_fit(base, lesson, workspace, _add_base_settings(base, base_changes), queries)
    elif base is not None:
        texts = [lesson.texts[query] for query in (*lesson.train, *lesson.dev)]
        rehearse_searches(registry.build(base, Catalogue.of(lesson.tools), workspace), [*texts, *queries])
    method = registry.recipe(name).method
    if isinstance(method, AskingMethod):
        method.rehearse(workspace, lesson, options, queries)


def rehearse_searches(stage: Stage, queries: Sequence[str]) -> None:
    """Search for each text, if the stage asks a language model then. The answers are not needed."""
    if stage.asks:
        for text in queries:
            stage([Search(query=text)])


# --- the fit ----------------------------------------------------------------------------------------------------------


def fit(job: FitJob) -> Model:
    """Report the options, fit, write the model, and read it back.

    If the workspace resumes, a finished model of the same fit is read instead, and checkpoints are continued. On the
    shelf, damaged models and checkpoints are replaced; elsewhere they are an error, since they may be the user's.

    Raises:
        UserError: if the fit is impossible, or the folder has something else in it.
    """
    say = job.workspace.say
    for line in _describe_fit(job):
        say(line)
    is_on_shelf = job.out.parent == job.shelf
    if job.out.exists():
        manifest = _read_former(job, replace_damaged=is_on_shelf)
        is_same_fit = manifest is not None and manifest.job == job.identity
        if job.workspace.resume and is_same_fit:
            try:
                model = model_store.load(job.out, recipe=job.recipe.name)
            except StoreError as error:
                say(str(error))
            else:
                say(f"{job.out} is already finished, and stays as it is")
                return model
    refuse_links(job.work)
    if not job.workspace.resume:
        shutil.rmtree(job.work, ignore_errors=True)
    job.work.mkdir(parents=True, exist_ok=True)
    try:
        return _fit_and_save(job)
    except CheckpointError as error:
        if not is_on_shelf:
            raise
        say(str(error))
        shutil.rmtree(job.work)
        job.work.mkdir(parents=True)
        return _fit_and_save(job)


def _fit_and_save(job: FitJob) -> Model:
    """Run the fit, save the model, remove the checkpoints, and read the model back."""
    method, say = job.recipe.method, job.workspace.say
    assert isinstance(method, FittedMethod)
    workspace = dataclasses.replace(
        job.workspace,
        work=job.work,
        identity=job.identity,
        progress=lambda done, total: say(f"embedding: {done:,} of {total:,} texts"),
    )
    lesson = dataclasses.replace(job.lesson, base=job.base)
    started = time.monotonic()
    artifacts = method.fit(workspace, lesson, job.options)
    model_store.save(job.out, _make_draft(job, artifacts, time.monotonic() - started))
    shutil.rmtree(job.work, ignore_errors=True)
    return model_store.load(job.out, recipe=job.recipe.name)


def _make_draft(job: FitJob, artifacts: Artifacts, seconds: float) -> Draft:
    """Make what is written into the model folder; `seconds` is the duration of the fit in this process."""
    settings = {
        name: ModelSetting(value, job.origins.get(name, "default"))
        for name, value in msgspec.structs.asdict(job.options).items()
    }
    settings |= {name: ModelSetting(value, "dev") for name, value in artifacts.chosen.items() if name in settings}
    data = msgspec.structs.replace(job.lesson.data, refit=artifacts.refit)
    return Draft(
        recipe=job.recipe.name,
        job=job.identity,
        arrays=artifacts.arrays,
        tools=job.lesson.tools,
        settings=settings,
        seed=job.workspace.seed,
        data=data,
        metrics=artifacts.metrics,
        fit_seconds=artifacts.seconds_before + seconds,
        encoder=artifacts.encoder,
        values={**artifacts.values, **job.notes()},
        card=_write_card(data, job.lesson.licence, settings, artifacts.metrics),
        files=artifacts.files,
    )


def _write_card(
    data: model_store.Data, licence: str | None, settings: Mapping[str, ModelSetting], figures: Mapping[str, float]
) -> str:
    """Write the card of a fitted model: its data, settings with where they came from, and figures on dev."""
    lines = [
        f"Fitted on the dataset **{data.name}** (licence: {licence or 'none known'}): {data.n_train:,} queries to "
        f"train on, {data.n_dev:,} to choose on; {data.dropped_leaks:,} left out because a test query has their text.",
        "After choosing, it was fitted on both." if data.refit else "It was not trained on the queries to choose on.",
        "",
        "| setting | value | from |",
        "|---|---|---|",
        *(f"| {name} | {setting.value} | {setting.origin} |" for name, setting in settings.items()),
        "",
        "| on dev, before any refit | |",
        "|---|---|",
        *(f"| {name} | {value:.4f} |" for name, value in figures.items()),
    ]
    return "\n".join(lines)


def _describe_fit(job: FitJob) -> list[str]:
    """Describe the data, the encoder and every option with its origin, one line each."""
    encoder, data = job.workspace.encoder, job.lesson.data
    encoder_name = encoder if isinstance(encoder, str | None) else encoder.name
    options = msgspec.structs.asdict(job.options)
    return [
        f"{job.recipe.name}: {data.n_train:,} queries of {data.name} to train on, {data.n_dev:,} to choose on, "
        f"{data.dropped_leaks:,} left out because a test query repeats them; {len(job.lesson.tools):,} tools",
        f"encoder = {encoder_name if job.recipe.encodes else 'none'}, seed = {job.workspace.seed}",
        *(
            f"{name} = {'chosen on dev' if options[name] is None else options[name]} ({origin})"
            for name, origin in job.origins.items()
        ),
    ]


def _read_former(job: FitJob, *, replace_damaged: bool) -> Manifest | None:
    """Read the manifest of the model that this fit would replace. None: the folder is empty or may be overwritten.

    With `replace_damaged`, a damaged model may be overwritten, because only fits write there.

    Raises:
        ConfigError: if something is there that must not be overwritten.
    """
    if not job.out.is_dir():
        raise ConfigError(f"{job.out}: this is a file, and a model is a folder. Choose another place")
    try:
        manifest = model_store.read_manifest(job.out)
    except (NotFound, StoreError) as error:
        if replace_damaged:
            job.workspace.say(str(error))
            return None
        has_manifest = not isinstance(error, NotFound)
        if not has_manifest and not any(job.out.iterdir()):
            return None
        content = f"a {model_store.MANIFEST} that is damaged, or not of a model" if has_manifest else "other files"
        raise ConfigError(f"{job.out}: the folder holds {content}. Choose another folder, or remove it") from None
    if manifest.recipe != job.recipe.name:
        raise ConfigError(
            f"{job.out}: the folder holds a model of {manifest.recipe}, not of {job.recipe.name}. Choose another folder"
        )
    return manifest
