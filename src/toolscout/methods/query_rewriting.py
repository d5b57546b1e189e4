"""Two baselines that let a language model write (MassTool, appendix C.2), both as simple as published.

`mmrr`: for each query the model imagines the tool that would serve it, and what is searched for is that description.
`qta`: the model rewrites the training queries, so that `dpr` learns from more of them.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import msgspec

from toolscout import llm
from toolscout.catalogue.store import Catalogue
from toolscout.dataset import drop_leaks
from toolscout.errors import BadReply
from toolscout.llm import LLM, prompt
from toolscout.methods import Artifacts, BaseRule, dpr
from toolscout.methods.feedback.loop import Refined, Rounds, refine_each
from toolscout.methods.lesson import Lesson
from toolscout.search.pipeline import Stage
from toolscout.types import Search
from toolscout.workspace import Workspace

__all__ = ["Describe", "DescribeOptions", "Mmrr", "Qta", "QtaOptions"]

Count = Annotated[int, msgspec.Meta(ge=1)]


class DescribeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `mmrr`: the recipe that searches, seconds and tokens for a query."""

    base: str = "dense"
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    tokens: Count = 10_000


class Described(msgspec.Struct):
    """A tool that does not exist."""

    name: str
    description: str
    parameters: list[str]


class Describe:
    """The refiner of `mmrr`."""

    def __init__(self, model: LLM, *, tokens: int | None = None) -> None:
        """Take the model, and tokens for each query."""
        self.model, self.tokens = model, tokens

    def __call__(self, searches: Any, states: Any, seconds: Any) -> list[Refined]:
        """The text of an imagined tool; a model that fails leaves the query as it was."""
        return refine_each(self.model, self._describe, searches, states, seconds, self.tokens)

    def _describe(self, model: LLM, search: Search, seconds: Any) -> Refined:
        found = model.ask(
            prompt("mmrr_describe", query=search.query),
            Described,
            typical=Described("find_it", "Finds what is asked for, by its name or kind.", ["name", "kind"]),
            seconds=seconds(),
        )
        return Refined(f"{found.name} {found.description} {' '.join(found.parameters)}", "searched by description")


class QtaOptions(dpr.Options, frozen=True, forbid_unknown_fields=True):
    """Settings of `qta`: those of `dpr`, and how many rewritings each training query gets."""

    rewritings: Count = 2


class Variants(msgspec.Struct):
    """Other wordings of a query."""

    queries: list[str]


class Mmrr:
    """Searches for the description of a tool that a language model imagines."""

    options_type = DescribeOptions
    needs_usage = False
    transfers = True
    abstains = False
    base: BaseRule | None = None

    def build(self, workspace: Workspace, catalogue: Catalogue, options: DescribeOptions) -> Stage:
        """The base, asked for an imagined tool. The plain answer is what counts if the model fails."""
        assert workspace.build is not None
        refiner = Describe(llm.connect(workspace.settings), tokens=options.tokens)
        return Rounds(
            workspace.build(options.base, catalogue, workspace),
            refiner,
            label="mmrr",
            rounds=1,
            seconds=options.seconds,
        )


class Qta(dpr.SearchTuned):
    """Fits `dpr` on the training queries and a language model's rewritings of them."""

    options_type = QtaOptions

    def fit(self, workspace: Workspace, lesson: Lesson, options: QtaOptions) -> Artifacts:
        """Fit `dpr` on the training queries and their rewritings, without rewritings that repeat a dev query.

        Raises:
            OverBudget, Unavailable: what is answered is kept; begun again, the fit goes on from there.
        """
        count = options.rewritings
        with llm.connect(workspace.settings) as model:

            def vary(query: str) -> list[str]:
                what = prompt("qta_rewrite", count=count, query=lesson.texts[query])
                try:
                    found = model.ask(what, Variants, typical=Variants([lesson.texts[query]] * count)).queries
                except BadReply:
                    return []
                return [text.strip() for text in found[:count] if text.strip()]

            written = dict(zip(lesson.train, model.map(vary, lesson.train), strict=True))
            workspace.say(
                f"{sum(map(len, written.values())):,} rewritings of {len(written):,} queries by {model.backend.model}"
            )
        texts, train = dict(lesson.texts), dict(lesson.train)
        for query, others in written.items():
            for number, text in enumerate(others, 1):
                texts[f"{query}#{number}"], train[f"{query}#{number}"] = text, lesson.train[query]
        train, _ = drop_leaks(train, texts, {query: texts[query] for query in lesson.dev})
        return dpr.tune(workspace, dataclasses.replace(lesson, texts=texts, train=train), options)
