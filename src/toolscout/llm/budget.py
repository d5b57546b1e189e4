"""What calls cost: an estimate of their tokens, budgets that stop before they are overrun, and a pace."""

from __future__ import annotations

import dataclasses
import math
import re
import threading
import time
from typing import Final

from toolscout.errors import ConfigError, OverBudget

__all__ = ["Budget", "Pace", "Prices", "Spent", "estimate"]

MARGIN: Final = 1.25  # an estimate may fall short by a fifth; a budget must hold all the same
_PIECE: Final = re.compile(r"'[a-z]{1,2}\b|[A-Za-z]+|\d{1,3}|[^\x00-\x7f]|[^\sA-Za-z\d]+|\n\s*")


def estimate(text: str) -> int:
    """Tokens of a text, without a tokenizer: words, runs of punctuation, up to three digits, other scripts by letter.

    Held against byte-pair vocabularies by `tests/llm/test_budget.py`.
    """
    count = 0.0
    for piece in _PIECE.findall(text):
        first = piece[0]
        if first.isascii() and first.isalpha():
            count += 1 + max(0, len(piece) - 7) / 7
        elif first.isascii() and not first.isspace() and not first.isdigit():
            count += max(1.0, len(piece) / 3)
        elif not first.isascii():
            count += 0.75
        elif first == "\n":
            count += 0.5
        else:
            count += 1
    return max(1, round(0.96 * count)) if text else 0


@dataclasses.dataclass(frozen=True)
class Prices:
    """US dollars a million tokens; 0: not known."""

    into: float = 0.0
    out: float = 0.0

    def of(self, tokens_in: float, tokens_out: float) -> float:
        """Dollars."""
        return (tokens_in * self.into + tokens_out * self.out) / 1e6


@dataclasses.dataclass(frozen=True)
class Spent:
    """What was spent: calls, tokens, dollars (0 where no prices are set).

    `unanswered` of the calls were not answered in time; they count with the most that they can have cost.
    """

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    dollars: float = 0.0
    unanswered: int = 0

    @property
    def tokens(self) -> int:
        """Both ways together."""
        return self.tokens_in + self.tokens_out


class Budget:
    """A hard limit: each call is booked with the most it can cost before it is sent, and settled when it is answered.

    Safe to use from several threads.
    """

    def __init__(
        self, *, tokens: int | None = None, dollars: float | None = None, prices: Prices | None = None
    ) -> None:
        """Allow that much; None: no limit.

        Raises:
            ConfigError: for a limit in dollars without prices.
        """
        self.most_tokens, self.most_dollars, self.prices = tokens, dollars, prices or Prices()
        if dollars is not None and not (self.prices.into and self.prices.out):
            raise ConfigError(
                "expected prices for a limit in dollars, found none: set llm_price_in and llm_price_out, "
                "in dollars a million tokens"
            )
        self._lock = threading.Lock()
        self._booked_tokens = 0.0
        self._booked_dollars = 0.0
        self._spent = Spent()

    @property
    def spent(self) -> Spent:
        """What was spent so far."""
        with self._lock:
            return self._spent

    def book(self, tokens_in: int, tokens_out: int) -> tuple[float, float]:
        """Set aside the most that a call can cost.

        Args:
            tokens_in: as estimated.
            tokens_out: the most that the reply may have.

        Returns:
            What `settle` wants back.

        Raises:
            OverBudget: if that is not left.
        """
        tokens = tokens_in * MARGIN + tokens_out
        dollars = self.prices.of(tokens_in * MARGIN, tokens_out)
        with self._lock:
            for most, used, wanted, unit in (
                (self.most_tokens, self._spent.tokens + self._booked_tokens, tokens, "tokens"),
                (self.most_dollars, self._spent.dollars + self._booked_dollars, dollars, "dollars"),
            ):
                if most is not None and used + wanted > most:
                    raise OverBudget(
                        f"expected a call within the budget of {most:,} {unit}, found {used:,.6g} spent or under way "
                        f"and up to {wanted:,.6g} more to spend: what is answered is kept; allow more to go on"
                    )
            self._booked_tokens += tokens
            self._booked_dollars += dollars
        return tokens, dollars

    def settle(self, booked: tuple[float, float], used: tuple[int, int] | None, *, answered: bool = True) -> None:
        """Give back what was booked, and count what was used (tokens in, out); None: there is nothing to pay for."""
        with self._lock:
            self._booked_tokens -= booked[0]
            self._booked_dollars -= booked[1]
            if used is not None:
                held = self._spent
                self._spent = Spent(
                    held.calls + 1,
                    held.tokens_in + used[0],
                    held.tokens_out + used[1],
                    held.dollars + self.prices.of(*used),
                    held.unanswered + (not answered),
                )


class Pace:
    """At most so many calls a minute, evenly spread."""

    def __init__(self, per_minute: float) -> None:
        """Allow `per_minute` calls; 0: no limit."""
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._lock = threading.Lock()
        self._next = 0.0

    def wait(self, most: float = math.inf) -> bool:
        """Return when the next call may be sent; at once and False if that is more than `most` seconds away."""
        with self._lock:
            now = time.monotonic()
            start = max(self._next, now)
            if start - now > most:
                return False
            self._next = start + self._gap
        if (rest := start - time.monotonic()) > 0:
            time.sleep(rest)
        return True
