"""Two baselines with a language model (MassTool, appendix C.2), both as simple as published.

`mmrr`: the model describes an imaginary tool that would serve the query, and the search uses that description.
`qta`: the model rewrites the training queries, so that `dpr` learns from more of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from toolscout.dataset import drop_leaks
from toolscout.errors import BadReply
from toolscout.home.catalogue.store import Catalogue
from toolscout.rankers import Artifacts
from toolscout.rankers.lesson import Lesson
from toolscout.search.pipeline import Stage
from toolscout.search.resources import Resources
from toolscout.types import Search
from toolscout_lab.llm import LLM, Few, prompt
from toolscout_lab.llm.prompts import version
from toolscout_lab.rankers import LabMethod, dpr
from toolscout_lab.rankers.feedback.loop import Refined, Rounds, refine_each
from toolscout_lab.rankers.shared.tuning import require_tunable
from toolscout_lab.resources import connect_llm, lend_llm

__all__ = ["Describe", "DescribeOptions", "Mmrr", "Qta", "QtaOptions"]

Count = Annotated[int, msgspec.Meta(ge=1)]


class DescribeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `mmrr`: the recipe that searches, and the seconds and tokens per query."""

    base: str = "dense"
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    tokens: Count = 10_000


class Described(msgspec.Struct):
    """An imaginary tool, as the language model describes it."""

    name: str
    description: str
    parameters: Annotated[list[str], msgspec.Meta(max_length=8)]


class Describe:
    """The refiner of `mmrr`: replaces the query by the description of an imaginary tool."""

    def __init__(self, model: LLM, *, tokens: int | None = None) -> None:
        """Ask this model, with at most so many tokens per query."""
        self.model, self.tokens = model, tokens

    def __call__(self, searches: Any, states: Any, seconds: Any) -> list[Refined]:
        """Describe a tool for each search. If the model fails, the query stays as it was."""
        return refine_each(self.model, self._describe, searches, states, seconds, self.tokens)

    def _describe(self, model: LLM, search: Search, seconds: Any) -> Refined:
        tool = model.ask(
            prompt("mmrr_describe", query=search.query),
            Described,
            example_reply=Described("find_it", "Finds what is asked for, by its name or kind.", ["name", "kind"]),
            seconds=seconds(),
        )
        return Refined(f"{tool.name} {tool.description} {' '.join(tool.parameters)}", "searched by description")


class QtaOptions(dpr.DprOptions, frozen=True, forbid_unknown_fields=True):
    """Settings of `qta`: those of `dpr`, and the number of rewritings per training query."""

    rewritings: Count = 2


class Variants(msgspec.Struct):
    """Other wordings of a query."""

    queries: Few[str]


class Mmrr(LabMethod):
    """Searches with the description of a tool that a language model imagines."""

    options_type = DescribeOptions
    needs_usage = False

    def build(self, resources: Resources, catalogue: Catalogue, options: DescribeOptions) -> Stage:
        """Build the base with the refiner in front. If the model fails, the plain answer counts."""
        refiner = Describe(connect_llm(resources), tokens=options.tokens)
        return Rounds(
            resources.build_recipe(options.base, catalogue),
            refiner,
            label="mmrr",
            rounds=1,
            seconds=options.seconds,
        )


class Qta(dpr.SearchTuned):
    """Fits `dpr` on the training queries and a language model's rewritings of them."""

    options_type = QtaOptions

    def fit(self, resources: Resources, lesson: Lesson, options: QtaOptions) -> Artifacts:
        """Fit `dpr` on the training queries and their rewritings, without rewritings that repeat a dev query.

        Raises:
            ConfigError: if the encoder cannot be tuned.
            OverBudget, Unavailable: the answers so far are kept, and a new fit continues from them.
        """
        require_tunable(resources.load_encoder())  # before anything is paid for
        with lend_llm(resources) as model:
            rewritings = _rewrite_queries(model, lesson, options.rewritings)
            n_variants = sum(map(len, rewritings.values()))
            resources.say(f"{n_variants:,} rewritings of {len(rewritings):,} queries by {model.backend.model}")
        texts, train = dict(lesson.texts), dict(lesson.train)
        for query, variants in rewritings.items():
            for number, text in enumerate(variants, 1):
                texts[f"{query}#{number}"], train[f"{query}#{number}"] = text, lesson.train[query]
        train, _ = drop_leaks(train, texts, {query: texts[query] for query in lesson.dev})
        return dpr.tune_encoder(resources, dataclasses.replace(lesson, texts=texts, train=train), options)

    def prompt_versions(self, options: QtaOptions) -> Sequence[str]:
        """Return the version of the one prompt that a fit uses."""
        return (version("qta_rewrite"),)

    def rehearse(self, resources: Resources, lesson: Lesson, options: QtaOptions, queries: Sequence[str]) -> None:
        """Ask what a fit asks. Its searches ask nothing."""
        _rewrite_queries(connect_llm(resources), lesson, options.rewritings)


def _rewrite_queries(model: LLM, lesson: Lesson, count: int) -> dict[str, list[str]]:
    """Return up to `count` rewritings of each training query; none where the model's reply is not valid."""

    def rewrite(query: str) -> list[str]:
        request = prompt("qta_rewrite", count=count, query=lesson.texts[query])
        try:
            wordings = model.ask(request, Variants, example_reply=Variants([lesson.texts[query]] * count)).queries
        except BadReply:  # the query is used without rewritings
            return []
        return [text.strip() for text in wordings[:count] if text.strip()]

    return dict(zip(lesson.train, model.map(rewrite, lesson.train), strict=True))
