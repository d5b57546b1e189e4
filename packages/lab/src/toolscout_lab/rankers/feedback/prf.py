"""Pseudo-relevance feedback: adds informative words of the first tools to the query and searches again.

It replaces the language model of `feedback` by a rule. The weight of a word grows with its frequency in the first
tools, where better tools count more, and with its rarity in the catalogue (after RM3: Abdul-Jaleel et al., 2004). Dev
chooses the number of tools and words, and whether the new answer replaces or joins the old one. If nothing is
significantly better on dev than the plain query, the query stays as it is. Nothing is trained, so if the base has
learned nothing either, training queries serve for these choices too.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from toolscout import metrics
from toolscout.dataset import Qrels
from toolscout.encoders import split_identifiers
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.indexes.words import tokenize
from toolscout.rankers import Artifacts
from toolscout.rankers.lesson import DEV_METRICS, Lesson
from toolscout.search.pipeline import DEPTH, Stage, newest
from toolscout.search.resources import Resources
from toolscout.types import Search, Tool, render
from toolscout_lab.rankers import LabMethod
from toolscout_lab.rankers.feedback.loop import Refined, Rounds, join_answers
from toolscout_lab.statistics import best_of

__all__ = ["MAX_P_VALUE", "Expand", "FeedbackPrf", "FeedbackPrfOptions", "sum_quality"]

Join = Literal["last", "fuse"]
TOOLS_GRID: Final = (2, 5, 10)
WORDS_GRID: Final = (5, 15)
JOIN_GRID: Final[tuple[Join, ...]] = ("last", "fuse")
MAX_JUDGING_QUERIES: Final = 600
MAX_P_VALUE: Final = 0.05
FEEDBACK_PRF_LABEL: Final = "feedback-prf"
_PRF_WORD: Final = re.compile(r"[^\W\d_]{2,}")
Count = Annotated[int, msgspec.Meta(ge=1)]


class FeedbackPrfOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of pseudo-relevance feedback: words of the first tools are added to the query, which is searched again.

    With None, the fit chooses the value that is best on dev.

    Attributes:
        base: name of the recipe that searches.
        tools: from how many of the first tools words are taken.
        words: how many words are added to a query.
        join: `last`: the second answer; `fuse`: both answers, fused by reciprocal rank.
        on: whether words are added at all; None: only if that helps significantly on dev.
    """

    base: str = "hybrid"
    tools: Count | None = None
    words: Count | None = None
    join: Join | None = None
    on: bool | None = None


class Expand:
    """The refiner that adds words of the first tools to a query. Each round takes words of that round's first tools."""

    def __init__(self, catalogue: Catalogue, *, tools: int, words: int) -> None:
        """Count the tools of the catalogue that contain each word."""
        self.catalogue, self.depth, self.words = catalogue, tools, words
        self.terms = {tool.id: _count_terms(tool) for tool in catalogue.tools()}
        self.document_frequency = Counter(term for terms in self.terms.values() for term in terms)

    def __call__(self, searches: Sequence[Search], states: Sequence[Any], seconds: Sequence[float]) -> list[Refined]:
        """Add words to each query, unless the first tools have no new word."""
        return [self._expand(search) for search in searches]

    def _expand(self, search: Search) -> Refined:
        """Add the words with the highest weights: frequent in the first tools, rare in the catalogue."""
        wording = newest(search)
        present = set(tokenize(wording))
        scores: dict[str, float] = {}
        spelled: dict[str, str] = {}
        for rank, hit in enumerate(search.hits[: self.depth], 1):
            terms = self.terms.get(hit.id, {})
            total = sum(count for count, _ in terms.values())
            for term, (count, word) in terms.items():
                if term not in present:
                    idf = math.log((1 + len(self.terms)) / self.document_frequency[term])
                    scores[term] = scores.get(term, 0.0) + count / total * idf / math.log2(1 + rank)
                    spelled.setdefault(term, word)
        chosen = sorted(scores, key=lambda term: (-scores[term], term))[: self.words]
        if not chosen:
            return Refined(None, "no word to add")
        return Refined(f"{wording} {' '.join(spelled[term] for term in chosen)}", f"{len(chosen)} words added")


def _count_terms(tool: Tool) -> dict[str, tuple[int, str]]:
    """Map each stem of a tool's text to its count and a word that it comes from."""
    terms: dict[str, tuple[int, str]] = {}
    for word in _PRF_WORD.findall(split_identifiers(render(tool, "short"))):
        for term in tokenize(word):
            count, spelled = terms.get(term, (0, word.lower()))
            terms[term] = (count + 1, spelled)
    return terms


class _Trial(NamedTuple):
    tools: int
    words: int
    join: Join


def sum_quality(figures: metrics.PerQuery) -> Any:
    """Return ndcg@5 + comp@5 of each query, the criterion of choices."""
    return np.asarray(figures.values["ndcg@5"]) + np.asarray(figures.values["comp@5"])


def _try_settings(
    resources: Resources, lesson: Lesson, options: FeedbackPrfOptions, qrels: Qrels
) -> tuple[metrics.PerQuery, dict[_Trial, metrics.PerQuery]]:
    """Score the queries with each combination of open settings.

    Returns:
        The figures of the plain queries; combination → its figures.
    """
    base = lesson.base_stage
    catalogue = Catalogue.of(lesson.tools)
    plain_searches = [Search(query=lesson.texts[query], k=DEPTH) for query in qrels]

    def score(searches: Sequence[Search]) -> metrics.PerQuery:
        rankings = {query: search.ids for query, search in zip(qrels, searches, strict=True)}
        return metrics.score(rankings, qrels, DEV_METRICS)

    plain = score(base(plain_searches))
    results: dict[_Trial, metrics.PerQuery] = {}
    for tools, words in itertools.product(
        TOOLS_GRID if options.tools is None else (options.tools,),
        WORDS_GRID if options.words is None else (options.words,),
    ):
        resources.say(f"trying the {words} words of {tools} tools on {len(qrels):,} queries")
        searches, answers = _build_rounds(base, catalogue, tools, words, "last").answers(plain_searches)
        for join in JOIN_GRID if options.join is None else (options.join,):
            joined = searches if join == "last" else join_answers(searches, answers)
            results[_Trial(tools, words, join)] = score(joined)
    return plain, results


def _build_rounds(inner: Stage, catalogue: Catalogue, tools: int, words: int, join: Join) -> Rounds:
    refiner = Expand(catalogue, tools=tools, words=words)
    return Rounds(inner, refiner, label=FEEDBACK_PRF_LABEL, rounds=1, join=join, seconds=math.inf)


class FeedbackPrf(LabMethod):
    """Adds words of the first tools to the query if this helps on dev."""

    options_type = FeedbackPrfOptions

    def fit(self, resources: Resources, lesson: Lesson, options: FeedbackPrfOptions) -> Artifacts:
        """Try the settings on dev; keep the best if it is significantly better than none. Nothing is trained."""
        assert lesson.base is not None
        qrels = {**lesson.dev, **(lesson.train if lesson.base.model is None else {})}
        qrels = dict(itertools.islice(qrels.items(), MAX_JUDGING_QUERIES))
        plain, results = _try_settings(resources, lesson, options, qrels)
        test = best_of(
            [sum_quality(figures) for figures in results.values()], sum_quality(plain), seed=resources.run.seed
        )
        best = list(results)[test.trial]
        on = test.p < MAX_P_VALUE if options.on is None else options.on
        chosen = {**best._asdict(), "on": on}
        return Artifacts(
            {},
            metrics=(results[best] if on else plain).means(),
            chosen={name: value for name, value in chosen.items() if getattr(options, name) is None},
            values={
                "judges": len(qrels),
                "p": test.p,
                "difference": test.difference,
                "plain": plain.means(),
                "trials": [{**trial._asdict(), **figures.means()} for trial, figures in results.items()],
            },
            files=lesson.base.save,
        )

    def build(self, resources: Resources, catalogue: Catalogue, model: Model) -> Stage:
        """Build the base, with the loop around it if the fit turned it on."""
        inner = resources.build_base(catalogue, model)
        settings = model.manifest.settings
        if not settings["on"].value:
            return inner
        tools, words, join = (settings[name].value for name in ("tools", "words", "join"))
        return _build_rounds(inner, catalogue, tools, words, join)
