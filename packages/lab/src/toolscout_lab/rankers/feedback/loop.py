"""Iterative feedback: search, assess the hits, reword the request, search again.

`Rounds` wraps any pipeline. After each search a refiner sees the hits and returns a new wording, or None to stop. Only
searches with a new wording are searched again. The original query stays in `query`; `rewrites` holds every wording, and
the trace records each round.

`Critic` is the refiner of the paper (Iterative Feedback, section 4). A language model comprehends the request and the
tools, assesses the hits, and refines the wording or answers `N/A`. We add a deadline and a token budget for each query,
and reject a new wording that shares no word with the request. If anything fails, the search stays as it was, and the
trace says so. The refiner of `feedback_prf` needs no language model.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from toolscout.errors import BadReply, NotFound, OverBudget, TimedOut, Unavailable
from toolscout.home.catalogue.store import Catalogue
from toolscout.indexes.words import tokenize
from toolscout.search.pipeline import Stage, order, reciprocal_rank
from toolscout.search.resources import Resources
from toolscout.types import Explanation, Hit, Search, Tool, Trace
from toolscout_lab.llm import LLM, Few, card, prompt
from toolscout_lab.llm.prompts import ShownTools
from toolscout_lab.rankers import LabMethod
from toolscout_lab.resources import connect_llm

__all__ = [
    "CRITIC_PROMPTS",
    "Critic",
    "Feedback",
    "FeedbackOptions",
    "Refined",
    "Refiner",
    "Rounds",
    "join_answers",
    "refine_each",
]

CRITIC_PROMPTS: Final = ("feedback_comprehend", "feedback_assess", "feedback_refine")
STOP_WORD: Final = "N/A"
LEFT_NOTE: Final = "left as it was"
LATE_NOTE: Final = "time is up: the last answer counts"
LATE_REPLY: Final = "The model did not answer in time."
MAX_WORDING_CHARS: Final = 2_000
MAX_GOALS: Final = 24  # of a request; weak models list without an end
MAX_PURPOSES: Final = 64  # more tools are hardly shown
TEXT_LIMIT: Final = {"maxLength": 120}
TEXT_LIMITS: Final = {  # for endpoints that keep to the schema: without them, weak models fill the reply with one text
    "goals": {"maxItems": 6, **TEXT_LIMIT},
    "goal": TEXT_LIMIT,
    "purpose": TEXT_LIMIT,
    "reason": TEXT_LIMIT,
    "solved": {"maxItems": 6},
    "unsolved": {"maxItems": 6},
    "instruction": {"maxLength": 400},
}
Count = Annotated[int, msgspec.Meta(ge=1)]


class FeedbackOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the loop.

    Attributes:
        base: the recipe inside.
        model: the folder of its model, if it is fitted.
        rounds: maximum number of rounds (T of the paper).
        depth: number of tools that the model sees (K of the paper).
        seconds: time of a whole search, without the wait for its turn; then the last answer so far counts.
        tokens: token budget of a query.
        join: `last`: the answer to the last wording, as published; `fuse`: all answers by reciprocal rank.
    """

    base: str = "hybrid"
    model: str | None = None
    rounds: Count = 3
    depth: Count = 10
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    tokens: Count = 40_000
    join: Literal["last", "fuse"] = "last"


class Refined(NamedTuple):
    """The reply of a refiner about one search.

    Attributes:
        wording: a new wording, or None to stop.
        note: a remark for the trace.
        state: passed back to the refiner in the next round.
        seconds: how much of the search's own time it took.
        problem: one sentence on why the refiner could not help; empty if it could.
    """

    wording: str | None
    note: str
    state: Any = None
    seconds: float = 0.0
    problem: str = ""


def _leave(problem: str) -> Refined:
    """Leave the search as it was, because of this problem, which is one sentence."""
    return Refined(None, LEFT_NOTE, problem=problem)


NO_TIME: Final = _leave(LATE_REPLY)
Refiner = Callable[[Sequence[Search], Sequence[Any], Sequence[float]], Sequence[Refined]]
"""(searches with hits, their states from the round before or None, seconds left for each) → one `Refined` each."""
SecondsLeft = Callable[[], float | None]
"""Returns the seconds left for a search; None: there is no limit."""
Ask = Callable[[LLM, Search, SecondsLeft], Refined]
"""(the model within the query's budget, a search, its time) → the reply about it."""


class Rounds(Stage):
    """Searches with several wordings of a query, one round after another.

    Each search of a batch stops for itself, and has its own `seconds`. The wait for its turn does not count. Its
    `deadline` holds too.
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
        """Wrap a pipeline that writes hits.

        Args:
            inner: the pipeline.
            refiner: writes a new wording of each query after each round.
            label: name of this stage in traces.
            rounds: how many new wordings at most.
            seconds: for the refiner, for each search.
            join: `last`: the answer to the last wording; `fuse`: all answers, fused by reciprocal rank.
        """
        self.inner, self.refiner, self.label = inner, refiner, label
        self.rounds, self.seconds, self.join = rounds, seconds, join
        self.asks = inner.asks or isinstance(getattr(refiner, "model", None), LLM)
        self.name = f"{label}({inner.name})"

    def run(self, searches: Sequence[Search]) -> list[Search]:
        """Search, then refine and search again until no search has a new wording or time is up."""
        last, answers = self.answers(searches)
        return join_answers(last, answers) if self.join == "fuse" else last

    def answers(self, searches: Sequence[Search]) -> tuple[list[Search], list[list[tuple[Hit, ...]]]]:
        """Return the searches with their last hits, and for each the hits of the query and of every rewrite."""
        turns = [_Turn(search, self.seconds) for search in searches]
        self._search(turns)
        open_turns = turns
        for number in range(1, self.rounds + 1):
            open_turns = self._stop_late(open_turns)
            if not open_turns:
                break
            open_turns = self._refine(number, open_turns)
            self._search(open_turns)
        return [turn.search for turn in turns], [turn.answers for turn in turns]

    def _search(self, turns: Sequence[_Turn]) -> None:
        """Search with the newest wordings; the searches share the time that this takes."""
        started = time.monotonic()
        searches = self.inner([turn.search for turn in turns])
        for turn, search in zip(turns, searches, strict=True):
            turn.search = search
            turn.answers.append(search.hits)
            turn.seconds -= (time.monotonic() - started) / len(turns)

    def _stop_late(self, turns: Sequence[_Turn]) -> list[_Turn]:
        """Return the turns that have time left; the trace of the others says that time is up."""
        in_time = []
        for turn in turns:
            if turn.seconds_left() > 0:
                in_time.append(turn)
            else:
                turn.search = _degrade(_add_note(turn.search, self.label, 0.0, LATE_NOTE), self.label, LATE_NOTE)
        return in_time

    def _refine(self, number: int, turns: Sequence[_Turn]) -> list[_Turn]:
        """Ask the refiner about all turns at once; return those with a new wording."""
        started = time.perf_counter()
        replies = self.refiner(
            [turn.search for turn in turns],
            [turn.state for turn in turns],
            [turn.seconds_left() for turn in turns],
        )
        share = (time.perf_counter() - started) / len(turns)
        reworded = []
        for turn, refined in zip(turns, replies, strict=True):
            turn.state = refined.state
            turn.seconds -= refined.seconds
            note = f"round {number}: {refined.note}" + (f": {refined.problem}" if refined.problem else "")
            turn.search = _add_note(turn.search, f"{self.label}/refine", share, note)
            if refined.problem:
                turn.search = _degrade(turn.search, self.label, f"no help in round {number}: {refined.problem}")
            if refined.wording is not None:
                rewrites = (*turn.search.rewrites, refined.wording)
                turn.search = msgspec.structs.replace(turn.search, rewrites=rewrites)
                reworded.append(turn)
        return reworded

    def note(self, search: Search) -> str:
        """Return the note for the trace, such as `2 new wordings`."""
        return f"{len(search.rewrites)} new wordings"

    def explain(self, search: Search, tool_id: str) -> Explanation | None:
        """Explain the place of a tool in the answer to the last wording."""
        [last] = self.run([search])
        inner = self.inner.explain(last, tool_id)
        return inner and msgspec.structs.replace(inner, stage=self.name)


@dataclasses.dataclass
class _Turn:
    """One search of a batch on its way through the rounds.

    Attributes:
        search: with the hits and the trace so far.
        seconds: how many the refiner may still use for this search.
        answers: the hits of each wording, the first wording first.
        state: what the refiner returned for the next round.
    """

    search: Search
    seconds: float
    answers: list[tuple[Hit, ...]] = dataclasses.field(default_factory=list)
    state: Any = None

    def seconds_left(self) -> float:
        """Return the seconds until its time is up or its deadline comes."""
        return min(self.seconds, _seconds_to_deadline(self.search))


def _seconds_to_deadline(search: Search) -> float:
    """Return the seconds until the search's own deadline; infinite without one."""
    return math.inf if search.deadline is None else search.deadline - time.monotonic()


def _degrade(search: Search, label: str, problem: str) -> Search:
    """Say in the answer what kept the refiner from helping."""
    problems = [search.degraded] if search.degraded else []
    return msgspec.structs.replace(search, degraded=" ".join([*problems, f"{label}: {problem}"]))


def _add_note(search: Search, stage: str, seconds: float, note: str) -> Search:
    return msgspec.structs.replace(search, trace=(*search.trace, Trace(stage, seconds, note)))


def join_answers(searches: Sequence[Search], answers: Sequence[Sequence[tuple[Hit, ...]]]) -> list[Search]:
    """Fuse the hits of all wordings of each search by reciprocal rank; see `Rounds.answers`."""
    return [_join(search, hits) if len(hits) > 1 else search for search, hits in zip(searches, answers, strict=True)]


def _join(search: Search, answers: Sequence[tuple[Hit, ...]]) -> Search:
    scores = reciprocal_rank([[(hit.id, hit.score) for hit in hits] for hits in answers], search)
    why = {hit.id: hit.why for hits in answers for hit in hits}
    return msgspec.structs.replace(search, hits=order(Hit(id, score, why[id]) for id, score in scores.items()))


# --- the refiner that asks a language model ---------------------------------------------------------------------------


class Purpose(msgspec.Struct):
    """The purpose of a tool."""

    id: str
    purpose: str


class Comprehension(msgspec.Struct):
    """The reply of the first step: the goals of the request, and the purpose of each tool."""

    goals: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_GOALS)]
    tools: Annotated[list[Purpose], msgspec.Meta(max_length=MAX_PURPOSES)]


class Solved(msgspec.Struct):
    """A goal that some tools solve."""

    goal: str
    tools: Few[str]
    reason: str


class Unsolved(msgspec.Struct):
    """A goal that no tool solves."""

    goal: str
    reason: str


class Assessment(msgspec.Struct):
    """The reply of the second step: which goals the tools solve, and whether they rank in a good order."""

    solved: Few[Solved]
    unsolved: Few[Unsolved]
    ordered: bool
    reason: str


class Refinement(msgspec.Struct):
    """The reply of the last step: a new wording, or `N/A`."""

    instruction: str


class Critic:
    """The refiner that asks a language model: comprehension, assessment, refinement."""

    def __init__(
        self,
        model: LLM,
        tools: Callable[[Sequence[str]], list[Tool]],
        *,
        depth: int = 10,
        tokens: int | None = None,
        strict: bool = False,
    ) -> None:
        """Set up the refiner.

        Args:
            model: the language model.
            tools: returns the tools with these ids.
            depth: number of tools that the model sees.
            tokens: token budget of a query; None: no limit.
            strict: whether to raise if the model does not answer, for work that can be resumed.
        """
        self.model, self.tools, self.depth, self.tokens, self.strict = model, tools, depth, tokens, strict

    def __call__(
        self, searches: Sequence[Search], states: Sequence[LLM | None], seconds: Sequence[float]
    ) -> list[Refined]:
        """Refine each search by itself, several at once; a search that runs out of time stays as it is."""
        return refine_each(self.model, self._refine, searches, states, seconds, self.tokens, strict=self.strict)

    def _refine(self, model: LLM, search: Search, seconds_left: SecondsLeft) -> Refined:
        """Ask the model in three steps for a new wording: understand, assess the hits, refine."""
        shown = self.tools(search.ids[: self.depth])
        wording = search.rewrites[-1] if search.rewrites else search.query
        cards, names = [card(tool) for tool in shown], ShownTools(shown)
        known_ids: dict[str, Any] = {"enum": [tool.id for tool in shown]}
        limits = TEXT_LIMITS | ({"id": known_ids, "tools": {**known_ids, "maxItems": len(shown)}} if shown else {})

        understood = model.ask(
            prompt("feedback_comprehend", query=wording, tools=cards),
            Comprehension,
            example_reply=Comprehension([wording], [Purpose(tool.id, "does what is asked") for tool in shown]),
            limits=limits,
            seconds=seconds_left(),
        )
        purposes = {names.find(tool.id): tool.purpose for tool in understood.tools}
        understood_cards = [{**entry, "purpose": purposes.get(entry["id"], "")} for entry in cards]
        assessment = model.ask(
            prompt("feedback_assess", query=wording, goals=understood.goals, tools=understood_cards),
            Assessment,
            example_reply=Assessment([], [Unsolved(wording, "no function does that")], True, "as it should be"),
            check=lambda reply: _find_unknown_tools(reply, names),
            limits=limits,
            seconds=seconds_left(),
        )
        for solved in assessment.solved:
            solved.tools = list(map(names.find, solved.tools))
        refinement = model.ask(
            prompt(
                "feedback_refine",
                original=search.query,
                query=wording,
                tools=understood_cards,
                assessment=msgspec.to_builtins(assessment),
            ),
            Refinement,
            example_reply=Refinement(f"{wording} again"),  # a rehearsal counts every round
            limits=TEXT_LIMITS,
            seconds=seconds_left(),
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
    """Refine each search with `ask`, several at once. A failed or late refinement leaves the search as it was.

    Args:
        model: the language model.
        ask: refines one search.
        searches: with their hits.
        states: the models of the round before, with partly spent budgets; None in the first round.
        seconds: time of each search, without the wait for its turn; infinite: no limit.
        tokens: token budget of a query over all rounds; None: no limit.
        strict: whether to raise if the model does not answer.

    Raises:
        OverBudget, Unavailable, NotFound: if `strict`; replies so far stay in the cache.
    """

    def refine_one(model: LLM, search: Search, seconds: float) -> Refined:
        """Refine one search in the time that is left. A reply that cannot be used leaves the search as it is."""
        started = time.monotonic()
        ends = started + min(seconds, _seconds_to_deadline(search))

        def seconds_left() -> float | None:
            return None if ends == math.inf else max(0.01, ends - time.monotonic())

        try:
            refined = ask(model, search, seconds_left)._replace(state=model) if ends > started else NO_TIME
        except (BadReply, OverBudget, Unavailable, NotFound) as error:
            if strict and not isinstance(error, BadReply):
                raise
            refined = NO_TIME if isinstance(error, TimedOut) else _leave(str(error))
        return refined._replace(seconds=time.monotonic() - started)

    turns = math.ceil(len(searches) / model.concurrency)
    ends = time.monotonic() + turns * max(seconds, default=0.0)
    futures = [
        model.submit(refine_one, model.limit_tokens(tokens) if state is None else state, search, limit)
        for search, state, limit in zip(searches, states, seconds, strict=True)
    ]
    return [_wait_for_reply(future, ends, search) for future, search in zip(futures, searches, strict=True)]


def _wait_for_reply(future: Future[Refined], ends: float, search: Search) -> Refined:
    """Return the reply about a search if it comes before its deadline and the end of all turns; else `NO_TIME`."""
    seconds = min(ends - time.monotonic(), _seconds_to_deadline(search))
    try:
        return future.result(None if seconds == math.inf else max(0.0, seconds))
    except TooLate:
        future.cancel()
        return NO_TIME


def _find_unknown_tools(reply: Assessment, shown: ShownTools) -> str | None:
    """Return what is wrong with an assessment that names a tool which was not retrieved; None: nothing."""
    unknown = shown.find_unknown(tool for solved in reply.solved for tool in solved.tools)
    return f"unknown_tool: {unknown} was not retrieved" if unknown else None


def _check_wording(instruction: str, search: Search, wording: str) -> Refined:
    """Accept a new wording, unless the model is done or the wording cannot be the same request."""
    if instruction.strip("\"'. ").upper() == STOP_WORD:
        return Refined(None, "every goal is solved")
    if not instruction or len(instruction) > MAX_WORDING_CHARS:
        return _leave("The new wording is empty or too long.")
    if not set(tokenize(instruction)) & set(tokenize(search.query)):
        return _leave("The new wording has nothing of the request.")
    if instruction in (wording, search.query, *search.rewrites):
        return Refined(None, "the wording does not change any more")
    return Refined(instruction, "refined")


class Feedback(LabMethod):
    """Lets a language model assess the hits and reword the query, round by round."""

    options_type = FeedbackOptions
    needs_usage = False

    def build(self, resources: Resources, catalogue: Catalogue, options: FeedbackOptions) -> Stage:
        """Build the base recipe with the loop around it.

        Raises:
            ConfigError: if no language model is set.
        """
        model = Path(options.model) if options.model else None
        inner = resources.build_recipe(options.base, catalogue, model)
        critic = Critic(connect_llm(resources), catalogue.tools, depth=options.depth, tokens=options.tokens)
        return Rounds(inner, critic, rounds=options.rounds, seconds=options.seconds, join=options.join)
