"""Fitting a recipe on a dataset: who trains, who chooses, what must not be seen; the shelf of models of `bench`."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from toolscout import encoders
from toolscout.abstain import decision
from toolscout.catalogue.store import Catalogue
from toolscout.catalogue.vector_cache import VectorStore
from toolscout.config import Settings
from toolscout.dataset import Dataset, NoTool, Qrels, drop_leaks, in_dev
from toolscout.encoders import Encoder
from toolscout.encoders.pair_cache import Readings
from toolscout.errors import CheckpointError, ConfigError, NotFound, StoreError, UserError
from toolscout.methods import Base, Fitting, Parts
from toolscout.models import model_store
from toolscout.models.model_store import Data, Manifest, Model
from toolscout.recipes import registry
from toolscout.search.pipeline import Floors
from toolscout.types import Tool, digest

__all__ = ["Lesson", "asked", "fit", "lesson", "on_shelf", "prepared"]

CALIBRATE: Final = (
    4_000  # requests that the floors of the decision are set by, at most; 500 missed a budget of 2 % by 0.9
)
AS_BASE: Final = {"refit": False}  # settings of what a fit goes on from; see `methods.usage.Blend`
OF_BASE: Final = "base."  # settings with this before their name are those of the recipe that a fit goes on from


@dataclasses.dataclass(frozen=True)
class Lesson:
    """What a fit may see.

    Attributes:
        dataset: where it comes from.
        tools: the catalogue, ascending by id.
        train: query id → `Tool.id` → grade.
        dev: the same, to choose on.
        dropped: ids of the training queries that a test query repeats; they are not in `train`.
    """

    dataset: Dataset
    tools: Sequence[Tool]
    train: Qrels
    dev: Qrels
    dropped: Sequence[str]

    @property
    def fingerprint(self) -> str:
        """Of the texts and the gold tools of train and dev."""
        texts = self.dataset.queries
        parts = [sorted(part.items()) for part in (self.train, self.dev)]
        return digest("lesson/1", [[[query, texts[query], gold] for query, gold in part] for part in parts])

    @functools.cached_property
    def floors(self) -> Floors:
        """How low need and fit may be before a request is turned away, by requests that the tools are known to serve.

        Worked out once, when the first model of this lesson is saved.
        """
        queries = [*self.dev, *self.train]
        some = queries[:: -(-len(queries) // CALIBRATE)]
        return decision.floors_of(Parts(Catalogue.of(self.tools)), [self.dataset.queries[each] for each in some])


def lesson(
    dataset: Dataset, tools: Sequence[Tool], held_out: Mapping[str, str], queries: Sequence[str] | None = None
) -> Lesson:
    """What a fit on a dataset may see: train and dev, without what the held-out queries repeat.

    Args:
        dataset: the dataset.
        tools: its tools.
        held_out: query id → text of the queries that will be scored.
        queries: ids of the queries to learn from, for folds; a tenth of them, by the rule for sets without dev, is dev.
            None: the dataset's own train and dev.

    Raises:
        UserError: if there is nothing to learn from, or nothing to choose on.
    """
    if queries is None:
        try:
            train, dev = dataset.split("train"), dataset.split("dev")
        except NotFound as error:
            raise NotFound(f"a fitted recipe needs queries to learn from: {error}") from None
    else:
        judged = {query: gold for part in dataset.qrels.values() for query, gold in part.items()}
        train = {query: judged[query] for query in queries if not in_dev(query)}
        dev = {query: judged[query] for query in queries if in_dev(query)}
    train, dropped = drop_leaks(train, dataset.queries, held_out)
    dev, dropped_dev = drop_leaks(dev, dataset.queries, held_out)
    if not train or not dev:
        raise UserError(
            f"{dataset.name}: expected queries to train on and to choose on, found {len(train):,} and {len(dev):,}: "
            "add training queries"
        )
    ids = {tool.id.partition("/")[2]: tool.id for tool in tools}
    return Lesson(
        dataset,
        sorted(tools, key=lambda tool: tool.id),
        _whole(train, ids),
        _whole(dev, ids),
        [*dropped, *dropped_dev],
    )


def _whole(qrels: Qrels, ids: Mapping[str, str]) -> Qrels:
    """The qrels with whole ids, without the tools that could not be read and the queries that this leaves empty."""
    found = {query: {ids[tool]: grade for tool, grade in gold.items() if tool in ids} for query, gold in qrels.items()}
    return {query: gold for query, gold in found.items() if gold}


def prepared(
    name: str,
    learned: Lesson,
    out: Path,
    *,
    encoder: str | Encoder | None = None,
    changes: Mapping[str, Any] | None = None,
    seed: int = 0,
    no_tool: NoTool | None = None,
    settings: Settings | None = None,
    vectors: VectorStore | None = None,
    readings: Readings | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Fitting:
    """A fit, ready to be done: the recipe that it goes on from, if there is one, is fitted, or found on the shelf.

    Args:
        name: of the recipe.
        learned: what it may see.
        out: the folder of the model.
        encoder: by name or ready-made; None: the recipe's own, or the setting.
        changes: settings over the recipe's own; with `base.` before the name, over those of what it goes on from.
        seed: of everything random.
        no_tool: queries that need no tool.
        settings: timeouts and the like.
        vectors: where vectors of texts are kept.
        readings: where what cross-encoders read is kept.
        resume: keep a finished model of the same fit, and go on with an interrupted one.
        say: told every setting with its origin, and what is going on.

    Raises:
        UserError: for a recipe that cannot be fitted so.
    """
    chosen = registry.recipe(name)
    changes = changes or {}
    options, origins = registry.resolve(name, {key: changes[key] for key in changes if not key.startswith(OF_BASE)})
    if no_tool is not None and not chosen.judges:
        raise ConfigError(f"--no-tool: expected a recipe that judges whether a tool is needed, found {name}")
    settings = settings or Settings()
    wanted = encoder or chosen.encoder or settings.encoder
    below = {key.removeprefix(OF_BASE): changes[key] for key in changes if key.startswith(OF_BASE)}
    base = None
    ready = encoders.load(wanted, settings) if chosen.encodes and isinstance(wanted, str) else wanted
    if (first := getattr(options, "base", None)) is not None:
        _check_base(chosen, first)
        base = _base(
            first,
            learned,
            ready,
            {
                "changes": below,
                "seed": seed,
                "settings": settings,
                "vectors": vectors,
                "readings": readings,
                "say": say,
            },
        )
    elif below:
        raise ConfigError(f"recipe {name}: expected settings of its own, found {OF_BASE}{next(iter(below))}")
    return Fitting(
        recipe=name,
        options=options,
        origins=origins,
        tools=learned.tools,
        texts=learned.dataset.queries,
        train=learned.train,
        dev=learned.dev,
        encoder=ready,
        data=Data(
            name=learned.dataset.name,
            fingerprint=learned.fingerprint,
            n_train=len(learned.train),
            n_dev=len(learned.dev),
            dropped_leaks=len(learned.dropped),
        ),
        out=out,
        seed=seed,
        settings=settings,
        vectors=vectors,
        readings=readings,
        no_tool=no_tool,
        resume=resume,
        revision=registry.recipe(name).revision,
        base=base,
        notes=lambda: {"floors": msgspec.to_builtins(learned.floors)},
        say=say,
    )


def asked(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a fit, and with `base.` before their names those of what it goes on from; None: chosen on dev.

    Raises:
        ConfigError: for a recipe that is not fitted, or a setting that it does not know.
    """
    options, _ = registry.resolve(name, {key: changes[key] for key in changes if not key.startswith(OF_BASE)})
    found = msgspec.structs.asdict(options)
    first = found.get("base")
    if first is not None and registry.recipe(first).fit is not None:
        below = {key.removeprefix(OF_BASE): changes[key] for key in changes if key.startswith(OF_BASE)}
        found |= {OF_BASE + key: value for key, value in asked(first, _of_a_base(first, below)).items()}
    return found


def _of_a_base(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes to a recipe's settings when another fit goes on from it."""
    fitted = registry.recipe(name).options
    known = () if fitted is None else fitted.__struct_fields__
    return {**{key: value for key, value in AS_BASE.items() if key in known}, **changes}


def _check_base(chosen: registry.Recipe, first: str) -> None:
    """Refuse, before anything is fitted, what a recipe cannot go on from."""
    if chosen.over is not None:
        setting, called = chosen.over
        found = registry.recipe(first).options
        if found is None or setting not in found.__struct_fields__:
            raise ConfigError(f"--set base: expected {called}, found {first}")


def _base(name: str, learned: Lesson, encoder: str | Encoder, given: Mapping[str, Any]) -> Base:
    """The recipe that a fit goes on from, over the encoder of that fit, as `Parts.base` builds it again later."""
    settings = given["settings"]
    parts = Parts(Catalogue.of(learned.tools), encoder, settings, given["vectors"], readings=given["readings"])
    if registry.recipe(name).fit is None:
        if given["changes"]:
            raise ConfigError(
                f"expected settings of a base that is fitted, found {OF_BASE}{next(iter(given['changes']))} and base "
                f"{name}, which is not: leave the setting out"
            )
        return Base(name, None, registry.build(name, parts), name)
    whole = _of_a_base(name, given["changes"])
    job = prepared(name, learned, settings.home, encoder=encoder, resume=True, **{**given, "changes": whole})
    ours = dict.fromkeys(set(whole) - set(given["changes"]), "base")
    job = dataclasses.replace(job, origins={**job.origins, **ours})
    model = fit(on_shelf(job))
    if model.manifest.data.refit:
        given["say"](
            f"{name} was fitted on the queries to choose on too: what is chosen now trusts it more than it should"
        )
    return Base(name, model, registry.build(name, dataclasses.replace(parts, model=model.folder)), job.identity)


def on_shelf(job: Fitting) -> Fitting:
    """The same fit, with its model on the shelf of `bench`, where fits of the same identity meet."""
    return dataclasses.replace(job, out=_shelf(job) / f"{job.recipe}-{job.identity[:16]}")


def _shelf(job: Fitting) -> Path:
    return job.settings.home / "bench-models"


def fit(job: Fitting) -> Model:
    """Say the settings, do the fit, and read the model that it wrote.

    Raises:
        UserError: when the fit is not possible, or the folder holds something else.
    """
    for line in _said(job):
        job.say(line)
    shelved = job.out.parent == _shelf(job)
    if job.out.exists():
        held = _held(job, ours=shelved)
        if job.resume and held is not None and held.job == job.identity:
            try:
                model = model_store.load(job.out, recipe=job.recipe)
            except StoreError as error:
                job.say(str(error))
            else:
                job.say(f"kept {job.out}: it is finished")
                return model
    if not job.resume:
        shutil.rmtree(job.work, ignore_errors=True)
    job.work.mkdir(parents=True, exist_ok=True)
    method = registry.recipe(job.recipe).fit
    assert method is not None
    try:
        method(dataclasses.replace(job, started=time.monotonic()))
    except CheckpointError as error:
        if not shelved:
            raise
        job.say(str(error))
        shutil.rmtree(job.work)
        job.work.mkdir(parents=True)
        method(dataclasses.replace(job, started=time.monotonic()))
    return model_store.load(job.out, recipe=job.recipe)


def _said(job: Fitting) -> list[str]:
    """What it learns from, and every setting with its origin; one line each."""
    name = job.encoder if isinstance(job.encoder, str) else job.encoder.name
    return [
        f"{job.recipe}: {job.data.n_train:,} queries of {job.data.name} to train on, {job.data.n_dev:,} to choose on, "
        f"{job.data.dropped_leaks:,} left out because a test query repeats them; {len(job.tools):,} tools",
        f"encoder = {name}, seed = {job.seed}",
        *(
            f"{name} = {'chosen on dev' if (value := getattr(job.options, name)) is None else value} ({origin})"
            for name, origin in job.origins.items()
        ),
    ]


def _held(job: Fitting, *, ours: bool) -> Manifest | None:
    """The model that stands where this one shall go; None: nothing does that is worth keeping.

    Args:
        job: the fit.
        ours: whether nothing but this fit can have put anything there, so that what is damaged may be replaced.

    Raises:
        ConfigError: if it is something that must not be overwritten.
    """
    if not job.out.is_dir():
        raise ConfigError(f"{job.out}: expected a folder for the model, found a file: choose another place")
    try:
        held = model_store.read_manifest(job.out)
    except (NotFound, StoreError) as error:
        if ours:
            job.say(str(error))
            return None
        if isinstance(error, NotFound) and not any(job.out.iterdir()):
            return None
        found = (
            "other files"
            if isinstance(error, NotFound)
            else f"a {model_store.MANIFEST} that is damaged, or of no model"
        )
        raise ConfigError(
            f"{job.out}: expected a free folder or a model, found {found}: choose another folder, or remove it"
        ) from None
    if held.recipe != job.recipe:
        raise ConfigError(
            f"{job.out}: expected a free folder or a model of {job.recipe}, found one of {held.recipe}: "
            "choose another folder"
        )
    return held
