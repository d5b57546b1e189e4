"""Estimates how likely an answer has a right tool for every step of its request: its *coverage*.

The merge of the steps (`search.steps.merge`) estimates it too, as if the split into steps were right and so were the
chances of the tools. Both err in ways that repeat, so a logistic regression corrects the estimate of the merge. It also
reads the number of tools, how many steps the splitter probably missed, and which share of the request's words the tools
have (`search.steps.merge.WordTable`).

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
USUAL_SHARE: Final = 0.5  # stands for the share of the request's words that the tools have, if it is not known


class SplitChances(NamedTuple):
    """How sure the split of a request into its steps is.

    Attributes:
        steps: step → probability that it is a step of its own, the mean over the cuts at both ends.
        missed: expected number of steps that begin where the request was not split.
    """

    steps: Mapping[str, float]
    missed: float


def rate_split(splitter: Splitter, text: str, steps: Sequence[str]) -> SplitChances:
    """Rate the split of a request into `steps` by the probabilities of its splitter."""
    probabilities = {cut.end: 1 / (1 + math.exp(-logit)) for cut, logit in splitter.score_cuts(text).items()}
    # Where the steps begin, except for the first. The steps are parts of the text, in order. They are looked for in it,
    # because asking the splitter again would take as long as a search of a small catalogue.
    starts: list[int] = []
    remaining_places = iter(probabilities)  # an iterator, so that each step is looked for behind the one before
    for step in steps[1:]:
        start = next((place for place in remaining_places if text[place:].lstrip().startswith(step)), None)
        if start is not None:
            starts.append(start)
    cuts = [probabilities[start] for start in starts]
    rated: dict[str, float] = {}
    for number, step in enumerate(steps):
        cuts_around = cuts[max(0, number - 1) : number + 1]  # the first step has none before it, the last none behind
        if cuts_around:
            rated[step] = sum(cuts_around) / len(cuts_around)
    missed = sum(probability for place, probability in probabilities.items() if place not in starts)
    return SplitChances(rated, missed)


class CoverageModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A logistic regression that corrects the coverage of the merge.

    Attributes:
        format: `COVERAGE_FORMAT`.
        about: record of the data and the command of the fit; JSON values.
        constant: the constant.
        merged: weight of the logit of the merge's estimate, above 0.
        places: weight of the logarithm of the number of tools, at least 0.
        missed: weight of the expected number of missed steps.
        words: weight of the share of the request's words that the tools have, at least 0.
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
            places: number of tools in the answer.
            missed: as in `SplitChances`.
            share: share of the request's words that a tool of the answer has.
        """
        if merged <= 0.0:  # without any tool that may be right, the number of tools and the words prove nothing
            return 0.0
        bounded = min(max(merged, MIN_COVERED), 1 - MIN_COVERED)
        logit = self.merged * math.log(bounded / (1 - bounded))
        logit += self.constant + self.places * math.log(places) + self.missed * missed + self.words * share
        return 1 / (1 + math.exp(-logit))

    def correct(self, hits: Sequence[Hit], missed: float = 0.0, shares: Sequence[float] = ()) -> tuple[Hit, ...]:
        """Return the hits with corrected coverages. The coverage of a hit is that of the hits up to it.

        Args:
            hits: best first, with the estimates of the merge; those without an estimate stay as they are.
            missed: as in `SplitChances`.
            shares: for each of the first hits, the share of the request's words that the tools up to it have. The last
                share also counts for all further hits. Empty: no share is known.
        """
        last_share = shares[-1] if shares else USUAL_SHARE
        corrected = list(hits)
        all_shares = itertools.chain(shares, itertools.repeat(last_share))
        for place, (hit, share) in enumerate(zip(hits, all_shares, strict=False)):
            if hit.coverage is not None:
                coverage = self.estimate(hit.coverage, place + 1, missed, share)
                corrected[place] = msgspec.structs.replace(hit, coverage=coverage)
        return tuple(corrected)


@functools.cache
def load_coverage(file: Path = BUNDLED_COVERAGE) -> CoverageModel:
    """Read the model that ships with toolscout, or the model in another file.

    Raises:
        StoreError: if the file is damaged or no such model.
    """
    return read_shipped(file, CoverageModel, COVERAGE_FORMAT, _is_sound)


def _is_sound(model: CoverageModel) -> bool:
    return model.merged > 0 and model.places >= 0 and model.words >= 0
