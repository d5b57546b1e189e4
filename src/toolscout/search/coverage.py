"""Estimates how likely an answer holds a right tool for every step of its request.

The merge of the steps (`search.steps.merge`) says how likely it is, if the split into steps is right and the chances of
the tools are. Both err in ways that repeat, so a logistic regression corrects the estimate. It also reads the number
of tools, how many steps the splitter probably missed, and which share of the request's words the tools have
(`search.word_cover`).

The numbers (`data/coverage.json`) were fitted by `benchmarks/coverage.py`; the file names its data.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.search.shipped import read_shipped
from toolscout.search.steps.splitter import Splitter
from toolscout.types import Hit

__all__ = ["BUNDLED_COVERAGE", "COVERAGE_FORMAT", "CoverageModel", "SplitChances", "load_coverage", "rate_split"]

BUNDLED_COVERAGE: Final = Path(__file__).with_name("data") / "coverage.json"
COVERAGE_FORMAT: Final = "coverage/2"
MIN_COVERED: Final = 1e-4  # a merged estimate nearer to 0 or 1 counts as this far from it
USUAL_SHARE: Final = 0.5  # of the words that the tools have, where it is not known


class SplitChances(NamedTuple):
    """How sure the split of a request into its steps is.

    Attributes:
        steps: step → probability that it is a step of its own, the mean over the cuts at both ends.
        missed: expected number of steps that begin where the request was not split.
    """

    steps: Mapping[str, float]
    missed: float


def rate_split(splitter: Splitter, text: str, steps: Sequence[str]) -> SplitChances:
    """Rate a split by the probabilities of the splitter.

    Args:
        splitter: that split the request.
        text: the request.
        steps: its steps; fewer than two: the request was not split.
    """
    chances = {cut.end: 1 / (1 + math.exp(-logit)) for cut, logit in splitter.score_cuts(text).items()}
    kept = [chances.pop(start) for start in _find_starts(text, [*chances], steps)]
    ends = [[*kept[max(0, number - 1) : number], *kept[number : number + 1]] for number in range(len(steps))]
    rated = {step: sum(both) / len(both) for step, both in zip(steps, ends, strict=True) if both}
    return SplitChances(rated, sum(chances.values()))


def _find_starts(text: str, places: Sequence[int], steps: Sequence[str]) -> list[int]:
    """Return the places at which the steps of a request begin, except for the first.

    A second call of the splitter would take as long as a search of a small catalogue.

    Args:
        text: the request.
        places: where a step may begin, ascending.
        steps: as the splitter returns them: parts of the text, some with a reference in brackets behind them.
    """
    starts: list[int] = []
    left = iter(places)
    for step in steps[1:]:
        own = step if step in text else step.rpartition(" (")[0]
        starts += itertools.islice((place for place in left if text[place:].lstrip().startswith(own)), 1)
    return starts


class CoverageModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A logistic regression that corrects the coverage of the merge.

    Attributes:
        format: `COVERAGE_FORMAT`.
        about: record of the data and the command of the fit; JSON values.
        constant: the constant.
        merged: weight of the logit of the merged estimate, above 0.
        places: weight of the logarithm of the number of tools, at least 0.
        missed: weight of the expected number of missed steps.
        words: weight of the share of the words that the tools have, at least 0.
    """

    format: str
    about: dict[str, Any]
    constant: float
    merged: float
    places: float
    missed: float
    words: float

    def estimate(self, merged: float, places: int, missed: float = 0.0, share: float = USUAL_SHARE) -> float:
        """Return the coverage of an answer. It never falls while tools are added.

        Args:
            merged: the estimate of the merge, 0 to 1.
            places: how many tools the answer has.
            missed: as in `SplitChances`.
            share: of the words of the request, those that a tool of the answer has.
        """
        if merged <= 0.0:
            return 0.0
        bounded = min(max(merged, MIN_COVERED), 1 - MIN_COVERED)
        logit = self.merged * math.log(bounded / (1 - bounded))
        logit += self.constant + self.places * math.log(places) + self.missed * missed + self.words * share
        return 1 / (1 + math.exp(-logit))

    def correct(self, hits: Sequence[Hit], missed: float = 0.0, shares: Sequence[float] = ()) -> tuple[Hit, ...]:
        """Return hits with the coverage of the answer that ends with each, instead of the estimate of the merge.

        Args:
            hits: best first; those without an estimate stay as they are.
            missed: as in `SplitChances`.
            shares: as in `estimate`, after each of the first tools; empty: not known.
        """
        all_shares = itertools.chain(shares, itertools.repeat(shares[-1] if shares else USUAL_SHARE))
        return tuple(
            [
                hit if hit.coverage is None else self._correct_hit(hit, places, missed, share)
                for places, (hit, share) in enumerate(zip(hits, all_shares, strict=False), 1)
            ]
        )

    def _correct_hit(self, hit: Hit, places: int, missed: float, share: float) -> Hit:
        coverage = self.estimate(hit.coverage or 0.0, places, missed, share)
        return Hit(hit.id, hit.score, hit.why, hit.tool, hit.step, hit.role, hit.similar, coverage)


@functools.cache
def load_coverage(file: Path = BUNDLED_COVERAGE) -> CoverageModel:
    """Read the model that ships with toolscout, or another.

    Raises:
        StoreError: if the file is damaged or something else.
    """
    return read_shipped(file, CoverageModel, COVERAGE_FORMAT, _is_sound)


def _is_sound(model: CoverageModel) -> bool:
    return model.merged > 0 and model.places >= 0 and model.words >= 0
