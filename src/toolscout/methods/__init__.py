"""What pipelines are made of, and what can be fitted. This file holds the contract between recipes and methods.

A method is a module with three names ::

    Options                  a msgspec.Struct, frozen, forbid_unknown_fields: every setting with its default
    fit(job: Fitting)        learns from the job's queries and ends with `job.save(…)`
    make(parts, settings)    the stages up to the ranked hits, with what `parts.load()` brings

One that goes on from what only some recipes bring says which: `OVER`, a setting that all of these have, and what they
are called. A setting whose default is None is chosen on dev. A fitted pipeline still finds tools that training never
saw, and returns no other tools than those of the present catalogue: it starts from `parts.catalogue`, never from the
model.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

import toolscout
from toolscout import encoders, metrics
from toolscout.catalogue.store import Catalogue
from toolscout.catalogue.vector_cache import VectorStore
from toolscout.config import Settings
from toolscout.dataset import NoTool, Qrels
from toolscout.encoders import Encoder, Vectors, encode_tools
from toolscout.encoders.pair_cache import Readings
from toolscout.errors import ConfigError, StoreError
from toolscout.journal.evidence import Example
from toolscout.models import model_store
from toolscout.models.model_store import Data, Model, Setting
from toolscout.search.pipeline import Stage
from toolscout.types import Tool, digest

__all__ = ["Base", "Fitting", "Parts", "options"]

BASE: Final = "base"  # the folder, in a model's own, of the model that it goes on from
UNASKED: Final = 256  # so many texts a search may embed by itself; more are for add and sync, where people wait
JUDGED: Final = ("recall@5", "ndcg@5", "comp@5")
Options = TypeVar("Options", bound=msgspec.Struct)


def options(given: Mapping[str, Any], kind: type[Options]) -> Options:
    """Settings by name as the method's own struct.

    Raises:
        ConfigError: for a name that it does not have, or a value of another type.
    """
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"expected settings that it knows, found something else: {error}") from None


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a pipeline is built from.

    Attributes:
        catalogue: the snapshot to search.
        encoder: the encoder to use, by name or ready-made, unless the recipe has its own.
        settings: timeouts and the like.
        vectors: where vectors of texts are kept; None: they are made anew.
        embed: whether to embed whatever is missing; else a few texts at most, and a sentence when there are more.
        progress: called with (done, all) while texts are embedded.
        model: the folder of the fitted model, for recipes that are fitted.
        recipe: name of the recipe that is built.
        build: (name, parts) → another recipe's stages, for recipes that go on from one.
        gold: query → ids of the tools that it needs. Only `bench` has it, and only for recipes that are measured as an
            upper bound.
        readings: where what cross-encoders read is kept; None, as for every search: nowhere.
        live: what was used since the model was fitted: a number that changes with it, and the examples.
    """

    catalogue: Catalogue
    encoder: str | Encoder = "static"
    settings: Settings = dataclasses.field(default_factory=Settings)
    vectors: VectorStore | None = None
    embed: bool = True
    progress: Callable[[int, int], None] | None = None
    model: Path | None = None
    recipe: str = ""
    build: Callable[[str, Parts], Stage] | None = None
    gold: Callable[[str], Sequence[str]] | None = None
    readings: Readings | None = None
    live: Callable[[], tuple[int, Sequence[Example]]] | None = None

    def loaded(self) -> Encoder:
        """The encoder, ready-made."""
        return encoders.load(self.encoder, self.settings) if isinstance(self.encoder, str) else self.encoder

    def base(self, model: Model) -> Stage:
        """The stages of the recipe that a fitted model goes on from, which it carries with it."""
        name, folder = model.manifest.settings["base"].value, model.folder / BASE
        assert self.build is not None
        if not folder.exists():
            return self.build(name, dataclasses.replace(self, model=None))
        parts, mark = dataclasses.replace(self, model=folder), model_store.read_manifest(folder).encoder
        if mark is not None and (isinstance(self.encoder, str) or self.encoder.fingerprint != mark.fingerprint):
            parts = dataclasses.replace(parts, encoder=mark.name)
        return self.build(name, parts)

    def tool_rows(self, encoder: Encoder, style: str = "named") -> Vectors:
        """Vectors of the catalogue's tools, in its order; see `encoders.encode_tools`.

        Raises:
            StoreError: when more is missing than may be embedded now.
        """

        def rows(texts: list[str]) -> Vectors:
            if self.vectors is not None and not encoder.cheap and not self.embed:
                _refuse_many(self.vectors, encoder, texts, self.model)
            return _encoded(encoder, self.vectors, texts, "tool", self.progress)

        return encode_tools(rows, self.catalogue.tools(), style)

    def load(self, *, encoder: Encoder | None = None, bound: bool = True) -> Model:
        """The fitted model.

        Args:
            encoder: what the model must have been fitted on; None: it brings its own.
            bound: whether the method knows single tools, so that the model must know one of the catalogue at least.

        Raises:
            UserError: if there is none, it is damaged, or belongs to another recipe, encoder or catalogue.
        """
        if self.model is None:
            raise ConfigError(
                f"expected a fitted model, found none: run  toolscout train {self.recipe} --data DIR --out MODEL_DIR"
            )
        tools = self.catalogue.tools() if bound else None
        return model_store.load(self.model, recipe=self.recipe, encoder=encoder, catalogue=tools)


@dataclasses.dataclass(frozen=True)
class Base:
    """The recipe that a fit goes on from, fitted on the same queries.

    Attributes:
        recipe: its name.
        model: its model; None: it is not fitted.
        stage: its stages over the catalogue of the fit.
        job: identity of its fit.
    """

    recipe: str
    model: Model | None
    stage: Stage
    job: str

    def save(self, folder: Path) -> None:
        """Put its model into a model's folder, where `Parts.base` finds it."""
        if self.model is not None:
            model_store.put(self.model.folder, folder / BASE)


@dataclasses.dataclass(frozen=True)
class Fitting:
    """One fit: what to learn from, with which settings, and where the model goes.

    Attributes:
        recipe: name of the recipe.
        options: the method's `Options`, resolved; None where a value is to be chosen on dev.
        origins: name of each setting → where its value came from.
        tools: the catalogue, ascending by id.
        texts: query id → text, of all queries below.
        train: query id → tool id → grade; the ids are `Tool.id`s.
        dev: the same for the queries to choose on; none of them is in train.
        encoder: by name or ready-made; see `loaded`.
        data: what the manifest says of the data.
        out: the folder of the model.
        seed: of everything random.
        settings: timeouts and the like.
        vectors: where vectors of texts are kept; None: they are made anew.
        readings: where what cross-encoders read is kept; None: in `work`, for a resume.
        no_tool: queries that need no tool, for methods that judge the need.
        licence: of the data, where it is known.
        revision: of the recipe's rules; a model fitted by others is another.
        resume: whether to go on from what an interrupted fit left in `work`.
        base: what it goes on from, if its options have a `base`.
        notes: → what whoever ordered the fit wants to find in the manifest's `values`, JSON values; it is asked when
            the model is saved.
        say: told what is going on, one line at a time.
        started: `time.monotonic()` at the start of the fit.
    """

    recipe: str
    options: Any
    origins: Mapping[str, str]
    tools: Sequence[Tool]
    texts: Mapping[str, str]
    train: Qrels
    dev: Qrels
    encoder: str | Encoder
    data: Data
    out: Path
    seed: int = 0
    settings: Settings = dataclasses.field(default_factory=Settings)
    vectors: VectorStore | None = None
    readings: Readings | None = None
    no_tool: NoTool | None = None
    licence: str | None = None
    resume: bool = False
    revision: int = 1
    base: Base | None = None
    notes: Callable[[], Mapping[str, Any]] = dict
    say: Callable[[str], None] = lambda text: None
    started: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def work(self) -> Path:
        """A folder beside `out` for checkpoints; it stays after a kill, and goes when the model is saved."""
        return self.out.with_name(f"{self.out.name}.work")

    @property
    def identity(self) -> str:
        """What makes two fits the same: recipe, settings, seed, encoder, data, catalogue, version, no-tool queries."""
        encoder = self.encoder if isinstance(self.encoder, str) else self.encoder.fingerprint
        settings = msgspec.structs.asdict(self.options)
        data = [self.data.fingerprint, model_store.catalogue_mark(self.tools), *([self.base.job] if self.base else [])]
        if self.no_tool is not None:
            data.append(self.no_tool.fingerprint)
        recipe = self.recipe if self.revision == 1 else f"{self.recipe}/{self.revision}"
        return digest("fit/1", [toolscout.__version__, recipe, settings, self.seed, encoder, *data])

    def loaded(self) -> Encoder:
        """The encoder, ready-made."""
        return encoders.load(self.encoder, self.settings) if isinstance(self.encoder, str) else self.encoder

    def query_rows(self, encoder: Encoder, queries: Sequence[str]) -> Vectors:
        """Vectors of queries by id, `(n, dim)` float32 unit rows; of an expensive encoder they are kept."""
        return self.text_rows(encoder, [self.texts[query] for query in queries])

    def text_rows(self, encoder: Encoder, texts: Sequence[str]) -> Vectors:
        """The same of queries that have no id here, such as those that need no tool."""
        return _encoded(encoder, self.vectors, list(texts), "query", self._progress)

    def tool_rows(self, encoder: Encoder, style: str = "named") -> Vectors:
        """Vectors of `tools`; see `encoders.encode_tools`."""

        def rows(texts: list[str]) -> Vectors:
            return _encoded(encoder, self.vectors, texts, "tool", self._progress)

        return encode_tools(rows, self.tools, style)

    def _progress(self, done: int, every: int) -> None:
        self.say(f"embedding: {done:,} of {every:,} texts")

    def judge(self, rankings: Mapping[str, Sequence[str]]) -> dict[str, float]:
        """recall@5, ndcg@5 and comp@5 on dev of query id → tool ids, best first."""
        return self.judged(rankings).means()

    def judged(self, rankings: Mapping[str, Sequence[str]]) -> metrics.PerQuery:
        """The same, of each query."""
        return metrics.score(rankings, self.dev, JUDGED)

    def save(
        self,
        arrays: model_store.Arrays,
        *,
        metrics: Mapping[str, float],
        encoder: Encoder | None = None,
        chosen: Mapping[str, Any] | None = None,
        values: Mapping[str, Any] | None = None,
        refit: bool = False,
        earlier: float = 0.0,
        files: Callable[[Path], None] | None = None,
    ) -> Model:
        """Write the model; rows of arrays that belong to tools are in the order of `tools`.

        Args:
            arrays: name → array.
            metrics: what `judge` said of the settings that were chosen, before any refit.
            encoder: what queries must be encoded with; None: the model needs none, or brings its own.
            chosen: settings that were chosen on dev.
            values: what the method wants to know again; JSON values.
            refit: whether the model was at last fitted on train and dev together.
            earlier: seconds that were spent on this fit before it was interrupted and resumed.
            files: writes further files of the model into the folder that it is given.
        """
        picked = chosen or {}
        told = {
            name: Setting(picked.get(name, value), "dev" if name in picked else self.origins.get(name, "default"))
            for name, value in msgspec.structs.asdict(self.options).items()
        }
        data = msgspec.structs.replace(self.data, refit=refit)
        model = model_store.save(
            self.out,
            recipe=self.recipe,
            job=self.identity,
            arrays=arrays,
            tools=self.tools,
            settings=told,
            seed=self.seed,
            data=data,
            metrics=metrics,
            fit_seconds=earlier + time.monotonic() - self.started,
            encoder=encoder,
            values={**(values or {}), **self.notes()},
            card=_card(data, self.licence, told, metrics),
            files=files,
        )
        shutil.rmtree(self.work, ignore_errors=True)
        return model


def _refuse_many(kept: VectorStore, encoder: Encoder, texts: list[str], model: Path | None) -> None:
    missing = kept.missing(encoder.fingerprint, texts)
    if len(missing) > UNASKED and not kept.was_set_aside:  # what was there before a damage is made again unasked
        held = ", ".join(f"{name} ({count:,})" for name, count in kept.encoders()) or "none"
        raise StoreError(
            f"expected vectors of {encoder.name} for {len(texts):,} tools, found {len(missing):,} of them missing "
            f"(kept are vectors of: {held}): run  toolscout sync "
            + (f"--model {model}" if model else f"--encoder {encoder.name}")
        )


def _encoded(
    encoder: Encoder,
    kept: VectorStore | None,
    texts: list[str],
    kind: encoders.Kind,
    progress: Callable[[int, int], None] | None,
) -> Vectors:
    if encoder.cheap or kept is None:
        return encoder.encode(texts, kind)
    mark = encoder.fingerprint if kind == "tool" else f"{encoder.fingerprint}/{kind}"
    return kept.rows(mark, texts, lambda some: encoder.encode(some, kind), name=encoder.name, progress=progress)


def _card(data: Data, licence: str | None, settings: Mapping[str, Setting], metrics: Mapping[str, float]) -> str:
    lines = [
        f"Fitted on the dataset **{data.name}** (licence: {licence or 'none known'}): {data.n_train:,} queries to "
        f"train on, {data.n_dev:,} to choose on; {data.dropped_leaks:,} left out because a test query has their text.",
        "After choosing, it was fitted on both." if data.refit else "Those to choose on were not trained on.",
        "",
        "| setting | value | from |",
        "|---|---|---|",
        *(f"| {name} | {each.value} | {each.origin} |" for name, each in settings.items()),
        "",
        "| on dev, before any refit | |",
        "|---|---|",
        *(f"| {name} | {value:.4f} |" for name, value in metrics.items()),
    ]
    return "\n".join(lines)
