"""The contract of a method: options, `fit`, `build`, and four facts about it. A `Recipe` gives a method a name.

A method that learns (`FittedMethod`) turns a `Lesson` into `Artifacts`; `learn.fit` writes these as a model folder;
its `Stage` is built from the loaded model. A method that learns nothing (`PlainMethod`) builds it from options alone.
Both get `Resources`: vectors of an encoder, a line for progress, and the run of the fit.

A method may list `fit_packages`, pairs of a package and its extra that a fit needs at its end. They are looked for
before its base is fitted.

Every pipeline starts from the tools of the catalogue, never from the tools of the model: tools that training never saw
are found, and tools that are gone are never returned. `testing.check_method` proves this, and that a fit is seeded, can
be resumed, and survives saving and loading unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from toolscout.arrays import Arrays
from toolscout.encoders.encoder import Encoder
from toolscout.errors import ConfigError, explain_unknown_field
from toolscout.home.catalogue.snapshot import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.rankers.lesson import Lesson
from toolscout.search.pipeline import Stage
from toolscout.search.resources import Resources

__all__ = [
    "Artifacts",
    "AskingMethod",
    "BaseRule",
    "FittedMethod",
    "Method",
    "PlainMethod",
    "Recipe",
    "Resources",
    "parse_options",
]

Positive = Annotated[float, msgspec.Meta(ge=1e-9, le=1e6)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
NonNegative = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Batch = Annotated[int, msgspec.Meta(ge=2)]
OptionsT = TypeVar("OptionsT", bound=msgspec.Struct)


class BaseRule(NamedTuple):
    """The base of a method must be a recipe with this option; messages use the description for such recipes."""

    option: str
    description: str


@dataclasses.dataclass(frozen=True)
class Artifacts:
    """The result of a fit.

    Attributes:
        arrays: name → array; rows that belong to tools are in the order of `lesson.tools`.
        metrics: figures on dev with the chosen options, before any refit.
        encoder: the encoder of the queries. None: the model needs no encoder, or brings its own.
        chosen: options that were chosen on dev.
        values: JSON values that `build` reads.
        files: writes further files of the model into a folder.
        refit: whether the model was fitted on train and dev together in the end.
        seconds_before: time spent on this fit before it was interrupted and resumed.
    """

    arrays: Arrays
    metrics: Mapping[str, float]
    encoder: Encoder | None = None
    chosen: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: Callable[[Path], None] | None = None
    refit: bool = False
    seconds_before: float = 0.0


class _Facts(Protocol):
    """Facts about every recipe that uses the method."""

    @property
    def options_type(self) -> type[msgspec.Struct]:
        """The struct of all options with defaults and bounds. An option with the default None is chosen on dev."""

    @property
    def needs_usage(self) -> bool:
        """Whether it learns from queries with gold tools."""

    @property
    def transfers(self) -> bool:
        """Whether a model can serve a catalogue although it knows none of the tools."""

    @property
    def abstains(self) -> bool:
        """Whether it can learn from queries that need no tool to turn such queries away."""

    @property
    def base(self) -> BaseRule | None:
        """Which recipes the option `base` may name; None: any, if there is such an option."""


class PlainMethod(_Facts, Protocol):
    """A method that learns nothing."""

    def build(self, resources: Resources, catalogue: Catalogue, options: Any, /) -> Stage:
        """Build the pipeline up to the ranked hits; `options` is an `options_type`."""


@runtime_checkable
class FittedMethod(_Facts, Protocol):
    """A method that learns."""

    def fit(self, resources: Resources, lesson: Lesson, options: Any, /) -> Artifacts:
        """Learn from a lesson; `options` is an `options_type`, None in it where a value is to be chosen on dev."""

    def build(self, resources: Resources, catalogue: Catalogue, model: Model, /) -> Stage:
        """Build the pipeline up to the ranked hits from a fitted model."""


@runtime_checkable
class AskingMethod(Protocol):
    """A fitted method that can ask a language model."""

    def prompt_versions(self, options: Any, /) -> Sequence[str]:
        """Return the digests of the prompts that a fit with these options uses; empty: it asks nothing."""

    def rehearse(self, resources: Resources, lesson: Lesson, options: Any, queries: Sequence[str], /) -> None:
        """Ask every question that a fit, and searches for these queries, may ask. Nothing is trained."""


Method: TypeAlias = PlainMethod | FittedMethod


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One recipe.

    Attributes:
        name: as the command line spells it.
        summary: what it is, in one sentence.
        method: what fits and builds it.
        settings: options that differ from the method's defaults. `--set key=value` changes them.
        when: when to choose it, in one line; only for recipes that users choose from.
        encoder: the encoder that it always uses. None: the one in the settings.
        encodes: whether it needs an encoder.
        fallback: the recipe that serves while the encoder does not answer.
        revision: raised whenever its rules change, so that an older model is not taken for the same fit.
    """

    name: str
    summary: str
    method: Method
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    when: str = ""
    encoder: str | None = None
    encodes: bool = True
    fallback: str | None = None
    revision: int = 1

    @property
    def fitted_method(self) -> FittedMethod | None:
        """The method, if it learns. None: there is nothing to fit."""
        return self.method if isinstance(self.method, FittedMethod) else None

    @property
    def is_fitted(self) -> bool:
        """Whether it needs a model."""
        return self.method.needs_usage

    @property
    def abstains(self) -> bool:
        """Whether it learns from queries that need no tool to turn such queries away."""
        return self.method.abstains and self.settings.get("need") != 0


def parse_options(values: Mapping[str, Any], options_type: type[OptionsT]) -> OptionsT:
    """Turn options by name into the method's own struct.

    Raises:
        ConfigError: for an unknown name, a value of another type, or one out of bounds.
    """
    try:
        return msgspec.convert(dict(values), options_type)
    except msgspec.ValidationError as error:
        raise ConfigError(f"a setting is not valid: {explain_unknown_field(error, options_type)}") from None
