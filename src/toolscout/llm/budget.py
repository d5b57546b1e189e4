"""What calls cost: an estimate of their tokens, budgets that stop before they are overrun, and a pace."""

from __future__ import annotations

import dataclasses
import math
import re
import threading
import time
from typing import Final

from toolscout.errors import ConfigError, OverBudget

__all__ = ["Budget", "Pace", "Prices", "Spent", "bound", "estimate"]

MARGIN: Final = 1.25  # an estimate may fall short by a fifth; what is booked must not
BYTES: Final = 1.8  # of UTF-8 a token, at least, in the languages that people write
FOREIGN: Final = 0.06  # share of words with accents from which a text is not English
_PIECE: Final = re.compile(
    r"(?P<shreds>(?=[A-Za-z]*\d)[A-Za-z\d]{20,}|[A-Za-z]{60,})|(?P<end>'[a-z]{1,2}\b)|(?P<capitals>[A-Z]{4,}(?![a-z]))"
    r"|(?P<word>[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Z])|(?P<accented>[\u00c0-\u024f])|(?P<digits>\d{1,3})"
    r"|(?P<line>\n\s*)|(?P<gap>[^\S\n]{2,})|(?P<marks>[!-/:-@\[-`{-~]+)"
    r"|(?P<letter>[\u0370-\u1fff])|(?P<sign>[\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef])"
    r"|(?P<picture>[\U0001f000-\U0001faff])|(?P<rare>[\U00010000-\U0010ffff])|(?P<other>[^\s\x00-\x7f])"
)
#: Tokens of a piece, for those that all cost the same: fitted to texts in twenty languages (o200k_base).
_COSTS: Final = {
    "end": 1.0,
    "digits": 1.0,
    "line": 0.5,
    "gap": 0.7,
    "accented": 0.8,
    "letter": 0.38,  # Cyrillic, Greek, Arabic, Hebrew, Indic, Thai
    "sign": 0.78,  # Chinese, Japanese, Korean
    "picture": 2.4,
    "rare": 4.0,
    "other": 1.0,
}


def estimate(text: str) -> int:
    """Tokens of a text, without a tokenizer: words, runs of punctuation, up to three digits, other scripts by letter.

    Of English, code and JSON within a fifth, of other languages within a third, held against byte-pair vocabularies by
    `tests/llm/test_budget.py`. Older vocabularies (cl100k_base) need up to three times as many for other scripts.
    """
    pieces = [(match.lastgroup or "", len(match[0]), match[0]) for match in _PIECE.finditer(text)]
    words = sum(kind in ("word", "capitals") for kind, _, _ in pieces)
    foreign = sum(kind == "accented" for kind, _, _ in pieces) > FOREIGN * words
    count = 0.0
    for kind, length, piece in pieces:
        if kind == "word":
            usual = 1 + max(0, length - 4) / 5 if foreign else 1 + max(0, length - 7) / 7
            count += usual
        elif kind == "shreds":  # keys, digests, base64
            count += length / 1.5
        elif kind == "capitals":
            count += length / 3
        elif kind == "marks":
            count += max(1.0, length / 3) if length <= 6 or len(set(piece)) <= 3 else length / 1.5
        else:
            count += _COSTS[kind]
    return max(1, round(0.96 * count)) if text else 0


def bound(text: str) -> int:
    """Tokens that a text has at most, for budgets, which must hold: of English about twice as many as it has.

    Held against the same vocabularies, for languages, code, keys and random characters too.
    """
    return math.ceil(max(MARGIN * estimate(text), len(text.encode(errors="replace")) / BYTES))


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
            tokens_in: the most that the request may have; see `bound`.
            tokens_out: the most that the reply may have.

        Returns:
            What `settle` wants back.

        Raises:
            OverBudget: if that is not left.
        """
        tokens = float(tokens_in + tokens_out)
        dollars = self.prices.of(tokens_in, tokens_out)
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
