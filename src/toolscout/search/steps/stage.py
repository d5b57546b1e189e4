"""Searches each step of a compound request by itself, and merges the answers so that every step is served.

`search.steps.merge` merges the hits of the steps and of the unsplit request. If all steps have the same best tool, the
request is one need after all. A request with one need keeps the hits of the *base*, the stages that rank tools for one
text, except at the last places.

The *judge* (`search.abstain.decision`) tells whether a step needs a tool and whether one fits. A step that is surely
chat gets no place. A step for which the judge would abstain is named in `uncovered`, unless the merge finds it a likely
tool: the judge reads the step alone, and "what can I do with two dumbbells?" says little without the server that the
rest of the request points to.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import msgspec

from toolscout.search.coverage import CoverageModel, load_coverage, rate_split
from toolscout.search.exact_names import parse_selection
from toolscout.search.pipeline import Stage, Verdict
from toolscout.search.steps.merge import (
    FIRST_COVER_PLACE,
    BestChance,
    Words,
    cover_words,
    estimate_coverage,
    find_best_chances,
    merge_steps,
    read_words,
)
from toolscout.search.steps.splitter import Splitter, is_command
from toolscout.types import Answer, Explanation, Hit, Tool, Trace

__all__ = ["StepSearch"]

Judge = Callable[[Sequence[Answer]], Sequence[Verdict | None]]
IsChat = Callable[[str, Sequence[str], Callable[[Tool], bool] | None], bool]
"""(request, its steps, what is visible) → whether the request is clearly chat."""

SURE_CHAT_NEED: Final = 0.02  # a step gets no place if the judge calls it chat and its need is lower
MAX_UNCOVERED_CHANCE: Final = 0.4  # a step is covered if its best tool is at least so likely the right one
MAX_UNCOVERED_LIFT: Final = 0.15  # it is also covered if the other steps and the request make the tool so much likelier


class StepSearch(Stage):
    """Splits each request into steps, searches the steps and the request with `base`, and merges the hits."""

    writes = frozenset({"hits", "steps", "uncovered"})
    name = "steps"

    def __init__(
        self,
        base: Stage,
        splitter: Splitter | None,
        judge: Judge | None = None,
        coverage: CoverageModel | None = None,
        is_chat: IsChat | None = None,
        words: Words | None = None,
        covers: bool = True,
    ) -> None:
        """Search the steps and the whole request with a base.

        Args:
            base: ranks the tools for one text.
            splitter: splits requests. None: every request is one need.
            judge: tells whether a tool fits a step. None: every step is served.
            coverage: estimates the coverage of answers. None: the model that ships with toolscout.
            is_chat: tells whether a request is clearly chat. Chat is not split, because steps of few words are hardly
                ever turned away. None: every request may be split.
            words: compares the words of requests with tools. None: no tool moves up, and no words count for coverage.
            covers: whether the last places are for words that no earlier tool has.
        """
        self.base, self.splitter, self.judge = base, splitter, judge
        self.is_chat, self.words, self.covers = is_chat, words, covers
        self.coverage = load_coverage() if coverage is None else coverage
        self.asks = base.asks

    def run(self, searches: Sequence[Answer], every: bool = False) -> list[Answer]:
        """Return the searches with hits; those with several steps also with `steps` and `uncovered`.

        `every`: whether to return every hit of a merge, and not only the first ones.
        """
        splits = [self._split(search) for search in searches]
        batch: list[Answer] = []
        for search, steps in zip(searches, splits, strict=True):
            # A step has the rights and bounds of the request, and a trace of its own.
            batch += [search, *(msgspec.structs.replace(search, query=step, trace=()) for step in steps)]
        ranked = iter(self.base(batch))
        groups = [(next(ranked), list(islice(ranked, len(steps)))) for steps in splits]  # (request, its steps)
        all_parts = [part for _, parts in groups for part in parts]
        judged = self.judge(all_parts) if self.judge and all_parts else [None] * len(all_parts)
        verdicts = iter(judged)  # in the order of all steps of all requests
        answers = []
        for search, (whole, parts) in zip(searches, groups, strict=True):
            if parts:
                answer = self._merge(search, whole, parts, list(islice(verdicts, len(parts))), every)
            else:
                answer = msgspec.structs.replace(whole, hits=estimate_coverage(whole.hits))
            answers.append(self._finish_hits(answer))
        return answers

    def _finish_hits(self, answer: Answer) -> Answer:
        """Give the last places to words that no earlier tool has, and correct the coverage of each hit."""
        hits = answer.hits
        shares: Sequence[float] = ()
        is_one_text = not answer.rewrites and parse_selection(answer.query) is None
        if self.words is not None and hits and is_one_text:
            table = read_words(answer.query, hits, self.words)
            if self.covers:
                hits = cover_words(hits, table, answer.k)
            shares = table.list_shares(hits)
        missed = rate_split(self.splitter, answer.query, answer.steps).missed if self.splitter else 0.0
        return msgspec.structs.replace(answer, hits=self.coverage.correct(hits, missed, shares))

    def _split(self, search: Answer) -> tuple[str, ...]:
        """Return the steps to search one by one; empty if the request is one need or is not to be split."""
        if self.splitter is None or not search.split or search.rewrites or parse_selection(search.query) is not None:
            return ()
        steps = self.splitter.split(search.query)
        if len(steps) < 2:
            return ()
        is_chat = self.is_chat is not None and self.is_chat(search.query, steps, search.visible)
        return () if is_chat else steps

    def _merge(
        self, search: Answer, whole: Answer, parts: Sequence[Answer], verdicts: Sequence[Verdict | None], every: bool
    ) -> Answer:
        """Merge the hits of a request and its steps.

        `search` is the request as it came in, `whole` the request with its own hits, and `parts` are its steps, each
        with its own hits and the judge's verdict on it.
        """
        judged = list(zip(parts, verdicts, strict=True))
        is_refused = any(_is_refused(verdict) for verdict in verdicts)
        trace = (*search.trace, *_add_traces(search, [whole, *parts]))
        best_tools = {part.hits[0].id if part.hits else None for part in parts}
        # If all steps have the same best tool, they are one need, unless a step must be named as uncovered.
        if len(best_tools) == 1 and not is_refused:
            return msgspec.structs.replace(whole, hits=estimate_coverage(whole.hits), trace=trace)
        kept = [part for part, verdict in judged if not _is_sure_chat(verdict)]
        needs = [verdict.need for verdict in verdicts if verdict and not _is_refused(verdict)]
        return msgspec.structs.replace(
            search,
            hits=self._merge_hits(whole, parts, kept, None if every else search.k),
            steps=tuple(part.query for part in parts),
            uncovered=_find_uncovered(whole, judged),
            need=max(needs, default=search.need),
            trace=trace,
        )

    def _merge_hits(
        self, whole: Answer, parts: Sequence[Answer], kept: Sequence[Answer], k: int | None
    ) -> tuple[Hit, ...]:
        """Merge the hits of a request with the hits of the steps that are not surely chat (`kept`).

        The texts of all steps (`parts`) decide how likely each is a step of its own. `k`: how many hits are wanted;
        None: all.
        """
        if not kept or self.splitter is None:
            return whole.hits
        # text of a part → probability that it is a step of its own, and not a piece of a longer step
        probabilities = rate_split(self.splitter, whole.query, [part.query for part in parts]).steps
        return merge_steps(whole.hits, [part.hits for part in kept], [part.query for part in kept], k, probabilities)

    def note(self, search: Answer) -> str:
        """Return the note for the trace, such as `3 steps`."""
        return f"{len(search.steps)} steps" if search.steps else ""

    def explain(self, search: Answer, tool_id: str) -> Explanation | None:
        """Explain the rank of a tool among the merged hits by the step of the request that ranks it best.

        A request without steps is explained by the base and `_explain_place`. None if the base can't explain the tool
        for any step.
        """
        steps = self._split(search)
        if not steps:
            return self._explain_place(search, tool_id)
        explained: dict[str, Explanation] = {}  # by step
        for step in steps:
            explanation = self.base.explain(msgspec.structs.replace(search, query=step, trace=()), tool_id)
            if explanation is not None:
                explained[step] = explanation
        if not explained:
            return None
        step = min(explained, key=lambda step: explained[step].rank or math.inf)
        rank, score = self._find_rank(search, tool_id)
        return Explanation(self.name, rank, score, f"for the step “{step}”", parts=(explained[step],))

    def _explain_place(self, search: Answer, tool_id: str) -> Explanation | None:
        """Return the explanation of the base, or the rank in the answer if tools for uncovered words changed it."""
        explained = self.base.explain(search, tool_id)
        if explained is None or explained.rank is None or explained.rank <= FIRST_COVER_PLACE or self.words is None:
            return explained
        rank, score = self._find_rank(search, tool_id)
        if rank is None or rank == explained.rank:
            return explained
        moved = "it matches words" if rank < explained.rank else "behind tools for words"
        note = f"{explained.rank} before; {moved} of the request that no tool before has"
        return Explanation(self.name, rank, score, note, parts=(explained,))

    def _find_rank(self, search: Answer, tool_id: str) -> tuple[int | None, float | None]:
        """Return the rank and the score of a tool among all hits of a request; (None, None) if it is no hit."""
        [answer] = self.run([search], every=True)
        ranks = ((rank, hit.score) for rank, hit in enumerate(answer.hits, 1) if hit.id == tool_id)
        return next(ranks, (None, None))


def _find_uncovered(whole: Answer, judged: Sequence[tuple[Answer, Verdict | None]]) -> tuple[str, ...]:
    """Return the steps that no tool fits by the verdict, and that the rest of the request gives no likely tool either.

    `judged`: each step with its hits, and the verdict on it.
    """
    if not any(_is_uncovered(part.query, verdict) for part, verdict in judged):
        return ()
    chances = find_best_chances(whole.hits, [part.hits for part, _ in judged])
    return tuple(
        part.query
        for (part, verdict), chance in zip(judged, chances, strict=True)
        if _is_uncovered(part.query, verdict) and not _is_likely(chance)
    )


def _is_likely(chance: BestChance) -> bool:
    """Tell whether the best tool of a step is likely enough, or gains enough by the rest of the request."""
    lift = chance.together - chance.alone
    return chance.together >= MAX_UNCOVERED_CHANCE or lift >= MAX_UNCOVERED_LIFT


def _is_uncovered(step: str, verdict: Verdict | None) -> bool:
    """Tell whether a step asks for something that no tool does. A remark that needs no tool is not such a step."""
    if verdict is None or not _is_refused(verdict):
        return False
    return verdict.kind == "no_tool_fits" or is_command(step)


def _is_sure_chat(verdict: Verdict | None) -> bool:
    """Tell whether the judge is so sure that a step is chat that the step gets no place."""
    return verdict is not None and verdict.kind == "no_tool_needed" and verdict.need < SURE_CHAT_NEED


def _is_refused(verdict: Verdict | None) -> bool:
    """Tell whether the judge would abstain for a step."""
    return verdict is not None and verdict.kind is not None


def _add_traces(search: Answer, results: Sequence[Answer]) -> list[Trace]:
    """Return one trace entry for each inner stage: its seconds for a request and its steps together.

    `results`: the ranked request, whose trace begins with the earlier stages in the trace of `search`; then its steps.
    """
    whole, *parts = results
    seconds: defaultdict[str, float] = defaultdict(float)
    for entries in (whole.trace[len(search.trace) :], *(part.trace for part in parts)):
        for entry in entries:
            seconds[entry.stage] += entry.seconds
    return [Trace(stage, total) for stage, total in seconds.items()]
