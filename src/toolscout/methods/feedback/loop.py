"""Iterative feedback: search, look at what was found, say the request better, search again.

`Rounds` wraps any pipeline. Each round it hands what was found to a refiner, which gives a new wording or None to stop;
only searches with a new wording are searched again. The original query stays in `query`, every wording in `rewrites`,
what happened in the trace.

`Critic` is the refiner of the paper (Iterative Feedback, section 4): a language model understands request and tools,
assesses what was found, and refines, or answers `N/A`. Ours: it has a deadline and a budget for each query; a new
wording that shares no word with the request is not believed; whatever goes wrong leaves the search as it was, and the
trace says so. `feedback_prf` brings a refiner that needs no model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from toolscout import llm
from toolscout.catalogue.store import Catalogue
from toolscout.errors import BadReply, NotFound, OverBudget, TimedOut, Unavailable
from toolscout.indexes.words import tokenize
from toolscout.llm import LLM, card, prompt
from toolscout.methods import BaseRule
from toolscout.search.pipeline import Stage, order, reciprocal_rank
from toolscout.types import Explanation, Hit, Search, Tool, Trace
from toolscout.workspace import Workspace

__all__ = [
    "Critic",
    "Feedback",
    "Options",
    "Refined",
    "Refiner",
    "Rounds",
    "find_degradation",
    "join_answers",
    "refine_each",
]

STOP_WORD: Final = "N/A"
LEFT_NOTE: Final = "left as it was"
LATE_NOTE: Final = "time is up: the last answer counts"
MAX_WORDING_CHARS: Final = 2_000  # characters of a new wording
Count = Annotated[int, msgspec.Meta(ge=1)]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the loop.

    Attributes:
        base: the recipe inside.
        model: the folder of its model, if it is fitted.
        rounds: at most (T of the paper).
        depth: tools that the model is shown (K of the paper).
        seconds: for a whole search, from when its turn comes; then the last answer that is there counts.
        tokens: that the model may spend on a query.
        join: `last`: the last wording's answer, as published; `fuse`: all answers by reciprocal rank.
    """

    base: str = "hybrid"
    model: str | None = None
    rounds: Count = 3
    depth: Count = 10
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    tokens: Count = 40_000
    join: Literal["last", "fuse"] = "last"


class Refined(NamedTuple):
    """What a refiner says of a search.

    Attributes:
        wording: a new one, or None to stop.
        note: a remark for the trace.
        state: what it wants back in the next round.
        seconds: that it took of the search's own.
    """

    wording: str | None
    note: str
    state: Any = None
    seconds: float = 0.0


Refiner = Callable[[Sequence[Search], Sequence[Any], Sequence[float]], Sequence[Refined]]
"""(searches with hits, the states of the round before or None, seconds that each has left) → one `Refined` each."""
NO_TIME: Final = Refined(None, f"{LEFT_NOTE}: the model did not answer in time")
Left = Callable[[], float | None]
Ask = Callable[[LLM, Search, Left], Refined]


class Rounds(Stage):
    """query → hits, by several wordings. Stops for each search by itself.

    Each search of a batch has its own `seconds`, of which the wait for its turn is none; its `deadline` holds too.
    """

    writes = frozenset({"hits", "rewrites"})

    def __init__(
        self,
        inner: Stage,
        refiner: Refiner,
        *,
        label: str = "feedback",
        rounds: int = 3,
        seconds: float = 60.0,
        join: Literal["last", "fuse"] = "last",
    ) -> None:
        """Wrap `inner`, which must write hits; see `Options` for the rest."""
        self.inner, self.refiner, self.label = inner, refiner, label
        self.rounds, self.seconds, self.join = rounds, seconds, join
        self.asks = inner.asks or isinstance(getattr(refiner, "model", None), LLM)

    @property
    def name(self) -> str:
        """What it is and what it wraps."""
        return f"{self.label}({self.inner.name})"

    def run(self, searches: Sequence[Search]) -> list[Search]:
        """Search, then refine and search again what is not finished, until nothing is left or time is up."""
        last, answers = self.answers(searches)
        return join_answers(last, answers) if self.join == "fuse" else last

    def answers(self, searches: Sequence[Search]) -> tuple[list[Search], list[list[tuple[Hit, ...]]]]:
        """The searches as they end, and for each the hits of every wording: of the query, then of each rewrite."""
        left = [self.seconds] * len(searches)

        def found_in(some: Sequence[Search], places: Sequence[int]) -> list[Search]:
            started = time.monotonic()
            done = self.inner(some)
            for place in places:
                left[place] -= (time.monotonic() - started) / len(places)
            return done

        going = list(range(len(searches)))
        found = found_in(searches, going)
        answers = [[search.hits] for search in found]
        states: list[Any] = [None] * len(found)
        for number in range(1, self.rounds + 1):
            seconds = {place: min(left[place], _until(found[place])) for place in going}
            for place in going:
                if seconds[place] <= 0:
                    found[place] = _add_note(found[place], self.label, 0.0, LATE_NOTE)
            going = [place for place in going if seconds[place] > 0]
            if not going:
                break
            started = time.perf_counter()
            said = self.refiner(
                [found[place] for place in going],
                [states[place] for place in going],
                [seconds[place] for place in going],
            )
            share = (time.perf_counter() - started) / len(going)
            again = []
            for place, refined in zip(going, said, strict=True):
                note = f"round {number}: {refined.note}"
                search = _add_note(found[place], f"{self.label}/refine", share, note)
                if refined.wording is not None:
                    search = msgspec.structs.replace(search, rewrites=(*search.rewrites, refined.wording))
                    again.append(place)
                found[place], states[place] = search, refined.state
                left[place] -= refined.seconds
            for place, search in zip(again, found_in([found[place] for place in again], again), strict=True):
                found[place] = search
                answers[place].append(search.hits)
            going = again
        return found, answers

    def note(self, search: Search) -> str:
        """How many wordings there were."""
        return f"{len(search.rewrites)} new wordings"

    def explain(self, search: Search, tool_id: str) -> Explanation | None:
        """Where the tool stands for the last wording."""
        [last] = self.run([search])
        inner = self.inner.explain(last, tool_id)
        return inner and msgspec.structs.replace(inner, stage=self.name)


def _until(search: Search) -> float:
    """Seconds until the search's own deadline."""
    return math.inf if search.deadline is None else search.deadline - time.monotonic()


def find_degradation(search: Search) -> str:
    """How a refiner that failed, or time that was up, ended the rounds of a search; empty: neither did."""
    return next((step.note for step in search.trace if f": {LEFT_NOTE}" in step.note or step.note == LATE_NOTE), "")


def _add_note(search: Search, stage: str, seconds: float, note: str) -> Search:
    return msgspec.structs.replace(search, trace=(*search.trace, Trace(stage, seconds, note)))


def join_answers(searches: Sequence[Search], answers: Sequence[Sequence[tuple[Hit, ...]]]) -> list[Search]:
    """The searches with the hits of all their wordings, by reciprocal rank; see `Rounds.answers`."""
    return [_join(search, hits) if len(hits) > 1 else search for search, hits in zip(searches, answers, strict=True)]


def _join(search: Search, answers: Sequence[tuple[Hit, ...]]) -> Search:
    scores = reciprocal_rank([[(hit.id, hit.score) for hit in hits] for hits in answers], search)
    why = {hit.id: hit.why for hits in answers for hit in hits}
    return msgspec.structs.replace(search, hits=order(Hit(id, score, why[id]) for id, score in scores.items()))


# --- the refiner that asks a language model ---------------------------------------------------------------------------


class Purpose(msgspec.Struct):
    """What a tool is for."""

    id: str
    purpose: str


class Comprehension(msgspec.Struct):
    """The first step."""

    goals: Annotated[list[str], msgspec.Meta(min_length=1)]
    tools: list[Purpose]


class Solved(msgspec.Struct):
    """A goal that is solved, and by which tools."""

    goal: str
    tools: list[str]
    reason: str


class Unsolved(msgspec.Struct):
    """A goal that is not."""

    goal: str
    reason: str


class Assessment(msgspec.Struct):
    """The second step."""

    solved: list[Solved]
    unsolved: list[Unsolved]
    ordered: bool
    reason: str


class Refinement(msgspec.Struct):
    """The last step."""

    instruction: str


class Critic:
    """Comprehension, assessment, refinement; see the head of this file."""

    def __init__(
        self,
        model: LLM,
        tools: Callable[[Sequence[str]], list[Tool]],
        *,
        depth: int = 10,
        tokens: int | None = None,
        strict: bool = False,
    ) -> None:
        """Take the model, what finds tools by their ids, how many it is shown, and tokens for each query.

        A strict one raises when the model does not answer, for work that can go on later from what is kept.
        """
        self.model, self.tools, self.depth, self.tokens, self.strict = model, tools, depth, tokens, strict

    def __call__(
        self, searches: Sequence[Search], states: Sequence[LLM | None], seconds: Sequence[float]
    ) -> list[Refined]:
        """Each search by itself, several at once; what is not done in time is left as it is."""
        return refine_each(self.model, self._refine, searches, states, seconds, self.tokens, strict=self.strict)

    def _refine(self, model: LLM, search: Search, left: Left) -> Refined:
        shown = self.tools(search.ids[: self.depth])
        wording = search.rewrites[-1] if search.rewrites else search.query
        cards = [card(tool) for tool in shown]
        ids = {tool.id for tool in shown}

        understood = model.ask(
            prompt("feedback_comprehend", query=wording, tools=cards),
            Comprehension,
            typical=Comprehension([wording], [Purpose(each, "does what is asked") for each in ids]),
            seconds=left(),
        )
        purposes = {each.id: each.purpose for each in understood.tools}
        assessment = model.ask(
            prompt(
                "feedback_assess",
                query=wording,
                goals=understood.goals,
                tools=[{**each, "purpose": purposes.get(each["id"], "")} for each in cards],
            ),
            Assessment,
            typical=Assessment([], [Unsolved(wording, "no function does that")], True, "as it should be"),
            check=lambda reply: _unknown(reply, ids),
            seconds=left(),
        )
        refinement = model.ask(
            prompt(
                "feedback_refine",
                original=search.query,
                query=wording,
                assessment=msgspec.to_builtins(assessment),
            ),
            Refinement,
            typical=Refinement(wording),
            seconds=left(),
        )
        return _check_wording(refinement.instruction.strip(), search, wording)


def refine_each(
    model: LLM,
    ask: Ask,
    searches: Sequence[Search],
    states: Sequence[LLM | None],
    seconds: Sequence[float],
    tokens: int | None,
    *,
    strict: bool = False,
) -> list[Refined]:
    """What `ask` says of each search, several at once; whatever fails or is late leaves the search as it was.

    Args:
        model: who is asked.
        ask: (the model within the query's budget, a search, what tells the seconds left or None) → the new wording.
        searches: with their hits.
        states: the models of the round before, whose budgets are partly spent; None in the first round.
        seconds: for each, from when its turn comes; infinite: there is no limit.
        tokens: for each query, over all rounds.
        strict: whether a model that does not answer is an error.

    Raises:
        OverBudget, Unavailable, NotFound: if `strict`; what is answered is kept.
    """

    def one(model: LLM, search: Search, seconds: float) -> Refined:
        started = time.monotonic()
        ends = started + min(seconds, _until(search))

        def left() -> float | None:
            return None if ends == math.inf else max(0.01, ends - time.monotonic())

        try:
            refined = ask(model, search, left)._replace(state=model) if ends > started else NO_TIME
        except BadReply as error:
            refined = Refined(None, f"{LEFT_NOTE}: the model's reply was {error.reason}")
        except (OverBudget, Unavailable, NotFound) as error:
            if strict:
                raise
            spent, late = isinstance(error, OverBudget), isinstance(error, TimedOut)
            why = f"{LEFT_NOTE}: the {'budget is spent' if spent else 'model does not answer'}"
            refined = NO_TIME if late else Refined(None, why)
        return refined._replace(seconds=time.monotonic() - started)

    turns = math.ceil(len(searches) / model.concurrency)
    ends = time.monotonic() + turns * max(seconds, default=0.0)
    waiting = [
        model.submit(one, model.limit_tokens(tokens) if state is None else state, search, own)
        for search, state, own in zip(searches, states, seconds, strict=True)
    ]
    return [_in_time(future, ends, search) for future, search in zip(waiting, searches, strict=True)]


def _in_time(future: Future[Refined], ends: float, search: Search) -> Refined:
    """What is said of a search, if it is said before its deadline and the end of all turns."""
    seconds = min(ends - time.monotonic(), _until(search))
    try:
        return future.result(None if seconds == math.inf else max(0.0, seconds))
    except TooLate:
        future.cancel()
        return NO_TIME


def _unknown(reply: Assessment, known: set[str]) -> str | None:
    named = {tool for solved in reply.solved for tool in solved.tools}
    return f"unknown_tool: {', '.join(sorted(named - known))} was not retrieved" if named - known else None


def _check_wording(instruction: str, search: Search, wording: str) -> Refined:
    """A new wording, unless the model is done or what it says cannot be the same request."""
    if instruction.strip("\"'. ").upper() == STOP_WORD:
        return Refined(None, "every goal is solved")
    if not instruction or len(instruction) > MAX_WORDING_CHARS:
        return Refined(None, f"{LEFT_NOTE}: the new wording is empty or too long")
    if not set(tokenize(instruction)) & set(tokenize(search.query)):
        return Refined(None, f"{LEFT_NOTE}: the new wording has nothing of the request")
    if instruction in (wording, search.query, *search.rewrites):
        return Refined(None, "the wording does not change any more")
    return Refined(instruction, "refined")


class Feedback:
    """Lets a language model look at what was found and say the query better, round by round."""

    options_type = Options
    needs_usage = False
    transfers = True
    abstains = False
    base: BaseRule | None = None

    def build(self, workspace: Workspace, catalogue: Catalogue, options: Options) -> Stage:
        """The loop around the base recipe.

        Raises:
            ConfigError: if no language model is set.
        """
        assert workspace.build is not None
        model = Path(options.model) if options.model else None
        inner = workspace.build(options.base, catalogue, workspace, model=model)
        critic = Critic(llm.connect(workspace.settings), catalogue.tools, depth=options.depth, tokens=options.tokens)
        return Rounds(inner, critic, rounds=options.rounds, seconds=options.seconds, join=options.join)
