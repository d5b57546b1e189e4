"""Pairwise judging by a language model in both orders: wins, ties and losses; Elo; agreement with people.

Questions and protocol are those of COLT (appendix A.2 and C.1) and of Tool2Vec (figure 1). Each pair is judged twice,
the other text first the second time; one verdict for each text, or two ties, make a tie. So a judge that always says
"first" has no influence.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from toolscout.errors import BadReply, ConfigError
from toolscout_lab.llm import LLM, prompt
from toolscout_lab.llm.prompts import TrustedText
from toolscout_lab.machine import Record
from toolscout_lab.progress import Progress, Say, ignore

__all__ = ["ASPECTS", "JudgeOutcome", "Pair", "agreement", "check_aspects", "elo", "judge", "rate_systems", "table"]

ASPECTS: Final = {
    "naturalness": "Which of the two sounds more like what a person would really type?",
    "fluency": "Which of the two is more fluent and more coherent?",
    "multifacetedness": "Which of the two can be served from more different sides, by more kinds of functions?",
    "coherence": "Which answer is more coherent: ordered, consistent, easy to follow?",
    "relevance": "Which answer keeps more closely to what was asked?",
    "comprehensiveness": "Which answer covers more of what was asked?",
    "overall": "Which answer would the person be better served with, all things considered?",
}
FIRST_POINTS: Final = {"first": 1.0, "tie": 0.5, "second": 0.0}
ELO_START: Final = 1000.0
ELO_STEP: Final = 32.0  # K
ELO_SHUFFLES: Final = 10_000
Result = Literal["win", "tie", "loss"]


class Winner(msgspec.Struct):
    """The judge's reply about two texts in one order, and its reason."""

    winner: Literal["first", "second", "tie"]
    reason: str


class Pair(msgspec.Struct, frozen=True):
    """Two texts to compare.

    Attributes:
        id: of the request.
        a: name of the first system.
        b: name of the second system.
        text_a: what the first system wrote.
        text_b: what the second system wrote.
        request: what both answer; empty: the texts are requests themselves.
    """

    id: str
    a: str
    b: str
    text_a: str
    text_b: str
    request: str = ""


class JudgeOutcome(msgspec.Struct, frozen=True):
    """The outcome of a pair in one aspect.

    Attributes:
        id: of the request.
        a: name of the first system.
        b: name of the second system.
        result: `win`, `tie` or `loss` of `a`; None: the judge gave no verdict of the right shape.
        verdicts: of both orders, `a` first.
        reasons: of both orders.
    """

    id: str
    a: str
    b: str
    aspect: str
    result: Result | None
    verdicts: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


def judge(llm: LLM, pairs: Sequence[Pair], aspects: Sequence[str], *, say: Say = ignore) -> list[JudgeOutcome]:
    """Judge every pair on every aspect, in both orders.

    Args:
        llm: judges.
        pairs: of texts.
        aspects: in which texts are compared, of `ASPECTS`.
        say: receives the progress.

    Returns:
        An outcome for each aspect and pair. A pair without a valid reply has no result.

    Raises:
        ConfigError: for an unknown aspect.
        OverBudget, Unavailable: replies so far stay in the cache.
    """
    check_aspects(aspects)

    def judge_pair(item: tuple[str, Pair]) -> JudgeOutcome:
        """Judge a pair in both orders, since judges favour the first. Two verdicts that contradict are a tie."""
        aspect, pair = item
        unjudged = JudgeOutcome(pair.id, pair.a, pair.b, aspect, None)
        try:
            forward = _verdict(llm, pair, aspect, pair.text_a, pair.text_b)
            back = _verdict(llm, pair, aspect, pair.text_b, pair.text_a)
        except BadReply:
            return unjudged
        points = FIRST_POINTS[forward.winner] - FIRST_POINTS[back.winner]
        return msgspec.structs.replace(
            unjudged,
            result="win" if points > 0 else "loss" if points < 0 else "tie",
            verdicts=(forward.winner, back.winner),
            reasons=(forward.reason, back.reason),
        )

    work = list(itertools.product(aspects, pairs))
    return list(Progress(say, "pairs judged", len(work)).count(llm.map(judge_pair, work)))


def check_aspects(aspects: Sequence[str]) -> None:
    """Refuse an aspect without a question.

    Raises:
        ConfigError: naming the aspects there are.
    """
    for aspect in aspects:
        if aspect not in ASPECTS:
            raise ConfigError(f"expected an aspect of {', '.join(ASPECTS)}, found {aspect!r}")


def _verdict(llm: LLM, pair: Pair, aspect: str, first: str, second: str) -> Winner:
    """Ask which of two texts is better, in this order."""
    question = TrustedText(ASPECTS[aspect])
    if pair.request:
        what = prompt("judge_answers", aspect=question, request=pair.request, first=first, second=second)
    else:
        what = prompt("judge_queries", aspect=question, first=first, second=second)
    return llm.ask(
        what, Winner, example_reply=Winner("first", "It reads more naturally and says more of what is wanted.")
    )


def table(outcomes: Sequence[JudgeOutcome]) -> list[Record]:
    """Count for each aspect and pair of systems: wins, ties and losses of `a`, unjudged pairs, and the rates."""
    groups: dict[tuple[str, str, str], Counter[str]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.aspect, outcome.a, outcome.b), Counter())[outcome.result or "unjudged"] += 1
    rows = []
    for (aspect, a, b), counts in groups.items():
        judged = counts["win"] + counts["tie"] + counts["loss"]
        rates = {f"{name}_rate": round(counts[name] / judged, 4) if judged else None for name in ("win", "tie", "loss")}
        rows.append(
            {"aspect": aspect, "a": a, "b": b, **{name: counts[name] for name in ("win", "tie", "loss", "unjudged")}}
            | rates
        )
    return rows


class Rating(NamedTuple):
    """Elo of a system: mean over the shuffled orders, and the bounds `low` and `high` of 95 % of them."""

    mean: float
    low: float
    high: float


def elo(matches: Sequence[tuple[str, str, float]], *, shuffles: int = ELO_SHUFFLES, seed: int = 0) -> dict[str, Rating]:
    """Compute Elo from 1000 with K = 32 over many random orders of the matches (COLT, section 5.4).

    Args:
        matches: (one, other, score of the one: 1, 0.5 or 0).
        shuffles: number of random orders.
        seed: seed of the orders.
    """
    names = sorted({name for one, other, _ in matches for name in (one, other)})
    place = {name: number for number, name in enumerate(names)}
    played = np.array([(place[one], place[other]) for one, other, _ in matches], dtype=np.intp).reshape(-1, 2)
    scores = np.array([score for _, _, score in matches], dtype=np.float64)
    chance, rows = np.random.default_rng(seed), np.arange(shuffles)
    orders = chance.permuted(np.tile(np.arange(len(matches)), (shuffles, 1)), axis=1)
    ratings = np.full((shuffles, len(names)), ELO_START)
    for number in range(len(matches)):
        match = orders[:, number]
        one, other = played[match, 0], played[match, 1]
        expected = 1.0 / (1.0 + 10.0 ** ((ratings[rows, other] - ratings[rows, one]) / 400.0))
        gained = ELO_STEP * (scores[match] - expected)
        ratings[rows, one] += gained
        ratings[rows, other] -= gained
    low, high = np.percentile(ratings, [2.5, 97.5], axis=0)
    return {
        name: Rating(float(ratings[:, number].mean()), float(low[number]), float(high[number]))
        for name, number in place.items()
    }


def matches(outcomes: Sequence[JudgeOutcome]) -> list[tuple[str, str, float]]:
    """Return the judged pairs as matches."""
    worth = {"win": 1.0, "tie": 0.5, "loss": 0.0}
    return [(outcome.a, outcome.b, worth[outcome.result]) for outcome in outcomes if outcome.result is not None]


def rate_systems(
    outcomes: Sequence[JudgeOutcome], aspects: Sequence[str], *, seed: int = 0
) -> dict[str, dict[str, dict[str, float]]]:
    """Rate the systems by Elo: aspect → name of a system → mean, low and high. See `elo`."""
    ratings = {}
    for aspect in aspects:
        played = matches([outcome for outcome in outcomes if outcome.aspect == aspect])
        ratings[aspect] = {name: rating._asdict() for name, rating in elo(played, seed=seed).items()}
    return ratings


def agreement(outcomes: Sequence[JudgeOutcome], people: Mapping[tuple[str, str, str, str], Result]) -> Record:
    """Measure agreement of judge and people: share of equal results, Cohen's kappa (1: fully; 0: as by chance).

    Args:
        outcomes: of the judge.
        people: (id, aspect, a, b) → the result that people gave `a`.
    """
    keyed = [((outcome.id, outcome.aspect, outcome.a, outcome.b), outcome.result) for outcome in outcomes]
    shared = [(result, people[key]) for key, result in keyed if result is not None and key in people]
    if not shared:
        return {"n": 0, "agreement": None, "kappa": None}
    equal = sum(one == other for one, other in shared) / len(shared)
    ours, theirs = (Counter(side) for side in zip(*shared, strict=True))
    by_chance = sum(ours[name] * theirs[name] for name in ours) / len(shared) ** 2
    kappa = (equal - by_chance) / (1 - by_chance) if by_chance < 1 else 1.0
    return {"n": len(shared), "agreement": round(equal, 4), "kappa": round(kappa, 4)}
