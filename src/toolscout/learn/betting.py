"""A sequential test of whether observations still come from where the reference came from, by betting.

Each observation gets a conformal p-value: the share of the reference, and of the observations so far, that are at least
as extreme. As long as nothing changes, all are exchangeable, so the p-values are independent and uniform (Vovk,
Nouretdinov & Gammerman 2003, "Testing exchangeability on-line", ICML). A bet against uniform p-values then gains
nothing on average: the capital is a nonnegative martingale. By Ville's inequality it ever reaches 1/α with a
probability of at most α, however long one watches. Vovk et al. 2021 ("Retrain or not retrain: conformal test
martingales for change-point detection", arXiv:2102.10439) decide by such a martingale when to train a model again.

Of failures, a bet is on their share instead. While it is at most q, the factors 1 + λ (failed - q) gain nothing on
average, whatever else is true of them (Waudby-Smith & Ramdas 2024, "Estimating means of bounded random variables by
betting", arXiv:2010.09686). This notices a failing server after fewer calls than ranks do.

A change may come late, when the capital of one bettor is lost. So a new bettor starts after every `block` observations,
with the share 6 / (π² k²) of the money for number k. All shares add up to 1, so the sum is a martingale too.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from toolscout.arrays import Floats

__all__ = ["ConformalTest", "ShareTest", "bound_share", "draw_uniform"]

POWERS: Final = (0.2, 0.4, 0.7)  # κ of the bets κ p^(κ-1) of Vovk et al. 2003; small ones win on very strange p-values
SHARES_AT_RISK: Final = (0.2, 0.5, 0.9)  # of a bettor's money, lost at a success
MIN_P: Final = 1e-9


def draw_uniform(*parts: str) -> float:
    """Return a number above 0 and at most 1 that depends on the parts alone, and otherwise looks random."""
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 1) / 2**64


def bound_share(failures: float, count: int, error: float) -> float:
    """Return an upper bound on the share of failures, from a sample (Chernoff).

    Args:
        failures: number of failures in the sample.
        count: size of the sample; 0 gives the bound 1.
        error: above 0; the share is above the bound with a probability of at most this.
    """
    if not count:
        return 1.0
    low = share = failures / count
    high = 1.0
    while high - low > 1e-6:  # each step halves the range that contains the bound
        middle = (low + high) / 2
        if count * _compute_divergence(share, middle) > math.log(1 / error):
            high = middle
        else:
            low = middle
    return high


def _compute_divergence(share: float, expected: float) -> float:
    """Compute how far a share of failures is from an expected share (Kullback-Leibler divergence)."""
    of_failures = share * math.log(share / expected) if share > 0 else 0.0
    of_successes = (1 - share) * math.log((1 - share) / (1 - expected)) if share < 1 else 0.0
    return of_failures + of_successes


class _Bettors:
    """The money of all bettors of a test. Each one divides its share of the money evenly over the same bets.

    Attributes:
        seen: number of observations.
        high: natural logarithm of the highest capital so far. The test rejects when it reaches log(1/α).
        since: index of the observation at which the bettor started who has most of that capital.
    """

    def __init__(self, block: int) -> None:
        self._block = block
        self._log_gains: Floats = np.zeros((0, 0))  # (bettors, bets): log of what a stake of 1 has become
        self.seen, self.high, self.since = 0, 0.0, 0

    def _place_bets(self, log_factors: list[float]) -> None:
        """Multiply the money in each bet by a factor, whose natural logarithm is given, for all bettors alike."""
        n_bets = len(log_factors)
        if self.seen % self._block == 0:  # one more bettor starts
            self._log_gains = np.vstack([self._log_gains.reshape(-1, n_bets), np.zeros((1, n_bets))])
        self._log_gains += np.array(log_factors)
        self.seen += 1
        numbers = np.arange(1, len(self._log_gains) + 1)
        log_shares = np.log(6.0) - 2 * np.log(np.pi * numbers)
        log_money = log_shares + np.logaddexp.reduce(self._log_gains, axis=1) - math.log(n_bets)  # by bettor
        unspent = max(MIN_P, 1.0 - float(np.exp(log_shares).sum()))  # the shares of bettors who start later
        total = float(np.logaddexp(np.logaddexp.reduce(log_money), math.log(unspent)))
        if total > self.high:
            self.high, self.since = total, int(np.argmax(log_money)) * self._block


class ShareTest(_Bettors):
    """Watches whether the share of failures stays at most a bound. Attributes as in `_Bettors`."""

    def __init__(self, bound: float, *, block: int = 10) -> None:
        """Start with a capital of 1.

        Args:
            bound: the share, above 0 and below 1.
            block: number of observations after which the next bettor starts.
        """
        super().__init__(block)
        # Logarithms of the factors 1 + λ (failed - bound). With λ = risk / bound, a success costs `risk` of the stake.
        self._at_failure = [math.log1p(risk / bound * (1.0 - bound)) for risk in SHARES_AT_RISK]
        self._at_success = [math.log1p(risk / bound * (0.0 - bound)) for risk in SHARES_AT_RISK]

    def observe(self, failed: float) -> None:
        """Bet on one more call: 1 if it failed, else 0."""
        self._place_bets(self._at_failure if failed else self._at_success)


class ConformalTest(_Bettors):
    """Watches one number: a distance, a score, or 1 for an event and 0 otherwise. Attributes as in `_Bettors`."""

    def __init__(self, reference: Iterable[float], *, both: bool = False, block: int = 50) -> None:
        """Start with a capital of 1.

        Args:
            reference: the numbers to compare with.
            both: whether low values count as strange too. Otherwise only high values count.
            block: number of observations after which the next bettor starts.
        """
        super().__init__(block)
        self._values, self._both = sorted(reference), both  # `observe` inserts each number in order

    def rank(self, value: float, tie: float) -> float:
        """Return the p-value of a number: the share of the numbers so far, and of itself, that are at least as high.

        Args:
            value: the number.
            tie: uniform, above 0 and at most 1; decides between equal numbers.
        """
        above = len(self._values) - bisect.bisect_right(self._values, value)
        equal = bisect.bisect_right(self._values, value) - bisect.bisect_left(self._values, value)
        return min(1.0, max(MIN_P, (above + tie * (equal + 1)) / (len(self._values) + 1)))

    def observe(self, value: float, tie: float) -> float:
        """Bet on one more number, and return its p-value. `tie` is that of `rank`; it must not depend on the number."""
        p = self.rank(value, tie)
        bisect.insort(self._values, value)
        p_values = [p]
        if self._both:
            p_values.append(max(MIN_P, 1.0 - p))  # it is small if the number is low
        logs = [math.log(p_value) for p_value in p_values]
        self._place_bets([math.log(power) + (power - 1.0) * log for log in logs for power in POWERS])
        return p
