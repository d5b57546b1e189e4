"""Pseudo-relevance feedback: the informative words of the first tools are added to the query, which is searched again.

It sits where `feedback` asks a language model, and needs none. Words are weighed by how often they stand in the first
tools, better tools counting more, and by how rare they are in the catalogue (after RM3: Abdul-Jaleel et al., 2004). How
many tools and words, and whether the new answer replaces or joins the old one, is chosen on dev; where nothing is
surely better there than to leave the query alone, the query is left alone. Nothing is trained, so where the recipe
inside has learned nothing either, training queries judge beside those of dev.
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
from toolscout.catalogue.store import Catalogue
from toolscout.encoders import split_identifiers
from toolscout.indexes.words import tokenize
from toolscout.methods import Artifacts, BaseRule
from toolscout.methods.feedback.loop import Refined, Rounds, join_answers
from toolscout.methods.lesson import DEV_METRICS, Lesson
from toolscout.models.model_store import Model
from toolscout.search.fusion import DEPTH
from toolscout.search.pipeline import Stage, newest
from toolscout.types import Search, Tool, render
from toolscout.workspace import Workspace

__all__ = ["SURE", "Expand", "FeedbackPrf", "Options", "both"]

Join = Literal["last", "fuse"]
TOOLS_GRID: Final = (2, 5, 10)
WORDS_GRID: Final = (5, 15)
JOIN_GRID: Final[tuple[Join, ...]] = ("last", "fuse")
MAX_JUDGING_QUERIES: Final = 600
SURE: Final = 0.05
FEEDBACK_PRF_LABEL: Final = "feedback-prf"
_PRF_WORD: Final = re.compile(r"[^\W\d_]{2,}")
Count = Annotated[int, msgspec.Meta(ge=1)]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the fit; None: the best on dev.

    Attributes:
        base: the recipe inside.
        tools: how many of the first tools lend words.
        words: how many words are added.
        join: `last`: the new answer; `fuse`: both, by reciprocal rank.
        on: whether to expand at all; None: only where dev says that it surely helps.
    """

    base: str = "hybrid"
    tools: Count | None = None
    words: Count | None = None
    join: Join | None = None
    on: bool | None = None


class Expand:
    """The refiner; in a further round the first tools that were found by then lend words that are not there yet."""

    def __init__(self, catalogue: Catalogue, *, tools: int, words: int) -> None:
        """Count in how many tools of the catalogue each word stands."""
        self.catalogue, self.depth, self.words = catalogue, tools, words
        self.terms = {tool.id: _terms(tool) for tool in catalogue.tools()}
        self.rarity = Counter(term for terms in self.terms.values() for term in terms)

    def __call__(self, searches: Sequence[Search], states: Sequence[Any], seconds: Sequence[float]) -> list[Refined]:
        """Query and words, unless the first tools have no word of their own."""
        return [self._one(search) for search in searches]

    def _one(self, search: Search) -> Refined:
        wording = newest(search)
        present = set(tokenize(wording))
        scores: dict[str, float] = {}
        spelled: dict[str, str] = {}
        for rank, hit in enumerate(search.hits[: self.depth], 1):
            terms = self.terms.get(hit.id, {})
            total = sum(count for count, _ in terms.values())
            for term, (count, word) in terms.items():
                if term not in present:
                    rare = math.log((1 + len(self.terms)) / self.rarity[term])
                    scores[term] = scores.get(term, 0.0) + count / total * rare / math.log2(1 + rank)
                    spelled.setdefault(term, word)
        chosen = sorted(scores, key=lambda term: (-scores[term], term))[: self.words]
        if not chosen:
            return Refined(None, "no word to add")
        return Refined(f"{wording} {' '.join(spelled[term] for term in chosen)}", f"{len(chosen)} words added")


def _terms(tool: Tool) -> dict[str, tuple[int, str]]:
    """Stem → how often it stands in what the tool says of itself, and a word that it comes from."""
    found: dict[str, tuple[int, str]] = {}
    for word in _PRF_WORD.findall(split_identifiers(render(tool, "short"))):
        for term in tokenize(word):
            count, spelled = found.get(term, (0, word.lower()))
            found[term] = (count + 1, spelled)
    return found


class _Trial(NamedTuple):
    tools: int
    words: int
    join: Join


def both(found: metrics.PerQuery) -> Any:
    """ndcg@5 + comp@5 of each query, by which is chosen."""
    return np.asarray(found.values["ndcg@5"]) + np.asarray(found.values["comp@5"])


def _rounds(inner: Stage, catalogue: Catalogue, tools: int, words: int, join: Join) -> Rounds:
    refiner = Expand(catalogue, tools=tools, words=words)
    return Rounds(inner, refiner, label=FEEDBACK_PRF_LABEL, rounds=1, join=join, seconds=math.inf)


class FeedbackPrf:
    """Adds words of the first tools to the query where dev says that this helps."""

    options_type = Options
    needs_usage = True
    transfers = True
    abstains = False
    base: BaseRule | None = None

    def fit(self, workspace: Workspace, lesson: Lesson, options: Options) -> Artifacts:
        """Try the settings on dev, and keep the best if it is surely better than none; nothing is trained."""
        assert lesson.base is not None
        chosen = options
        catalogue = Catalogue.of(lesson.tools)
        judges = {**lesson.dev, **(lesson.train if lesson.base.model is None else {})}
        judges = dict(itertools.islice(judges.items(), MAX_JUDGING_QUERIES))
        asked = [Search(query=lesson.texts[query], k=DEPTH) for query in judges]

        def score(searches: Sequence[Search]) -> metrics.PerQuery:
            rankings = {query: found.ids for query, found in zip(judges, searches, strict=True)}
            return metrics.score(rankings, judges, DEV_METRICS)

        plain = score(lesson.base.stage(asked))
        results: dict[_Trial, metrics.PerQuery] = {}
        for tools, words in itertools.product(
            TOOLS_GRID if chosen.tools is None else (chosen.tools,),
            WORDS_GRID if chosen.words is None else (chosen.words,),
        ):
            workspace.say(f"trying the {words} words of {tools} tools on {len(judges):,} queries")
            found, answers = _rounds(lesson.base.stage, catalogue, tools, words, "last").answers(asked)
            for join in JOIN_GRID if chosen.join is None else (chosen.join,):
                results[_Trial(tools, words, join)] = score(found if join == "last" else join_answers(found, answers))
        test = metrics.best_of([both(found) for found in results.values()], both(plain), seed=workspace.seed)
        best = list(results)[test.place]
        on = test.p < SURE if chosen.on is None else chosen.on
        told = {**best._asdict(), "on": on}
        return Artifacts(
            {},
            metrics=(results[best] if on else plain).means(),
            chosen={name: value for name, value in told.items() if getattr(chosen, name) is None},
            values={
                "judges": len(judges),
                "p": test.p,
                "difference": test.difference,
                "plain": plain.means(),
                "trials": [{**trial._asdict(), **found.means()} for trial, found in results.items()],
            },
            files=lesson.base.save,
        )

    def build(self, workspace: Workspace, catalogue: Catalogue, model: Model) -> Stage:
        """The base, and the loop around it where dev said that it helps."""
        inner = workspace.build_base(catalogue, model)
        told = model.manifest.settings
        if not told["on"].value:
            return inner
        return _rounds(inner, catalogue, told["tools"].value, told["words"].value, told["join"].value)
