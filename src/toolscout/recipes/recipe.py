"""A recipe is a method with a name, a summary, and the options that differ from the method's defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from toolscout.methods import FittedMethod, Method

__all__ = ["Recipe"]


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
