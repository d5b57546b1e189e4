"""Token estimates, budgets that refuse a call before it exceeds them, and a rate limit."""

from __future__ import annotations

import dataclasses
import math
import re
import threading
import time
from typing import Final

from toolscout.cli.options import Spent
from toolscout.errors import ConfigError, OverBudget
from toolscout.settings import BUDGET_UNITS, parse_llm_budget

__all__ = ["Budget", "Pace", "Prices", "Spent", "bound", "estimate"]

ESTIMATE_MARGIN: Final = 1.25  # an estimate may be a fifth too low; a booked amount must not be
MIN_BYTES_PER_TOKEN: Final = 1.8  # UTF-8 bytes, in natural languages
MAX_ENGLISH_ACCENT_SHARE: Final = 0.06  # a text with more accented letters per word is not English
_PIECE: Final = re.compile(
    r"(?P<shreds>(?=[A-Za-z]*\d)[A-Za-z\d]{20,}|[A-Za-z]{60,})|(?P<end>'[a-z]{1,2}\b)|(?P<capitals>[A-Z]{4,}(?![a-z]))"
    r"|(?P<word>[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Z])|(?P<accented>[\u00c0-\u024f])|(?P<digits>\d{1,3})"
    r"|(?P<line>\n\s*)|(?P<gap>[^\S\n]{2,})|(?P<marks>[!-/:-@\[-`{-~]+)"
    r"|(?P<letter>[\u0370-\u1fff])|(?P<sign>[\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef])"
    r"|(?P<picture>[\U0001f000-\U0001faff])|(?P<rare>[\U00010000-\U0010ffff])|(?P<other>[^\s\x00-\x7f])"
)
#: Tokens per piece, for kinds with a constant cost; fitted to texts in twenty languages (o200k_base).
_PIECE_TOKENS: Final = {
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
    """Estimate the tokens of a text without a tokenizer, from words, punctuation, digits and letters of other scripts.

    A test compares it with byte-pair vocabularies: within a fifth for English, code and JSON, and
    within a third for other languages. Older vocabularies (cl100k_base) need up to three times as many for other
    scripts.
    """
    pieces = [(match.lastgroup or "", len(match[0]), match[0]) for match in _PIECE.finditer(text)]
    words = sum(kind in ("word", "capitals") for kind, _, _ in pieces)
    foreign = sum(kind == "accented" for kind, _, _ in pieces) > MAX_ENGLISH_ACCENT_SHARE * words
    count = 0.0
    for kind, length, piece in pieces:
        count += _estimate_piece(kind, length, piece, foreign=foreign)
    return max(1, round(0.96 * count)) if text else 0


def _estimate_piece(kind: str, length: int, piece: str, *, foreign: bool) -> float:
    """Estimate the tokens of one piece; `foreign` marks a text that is not English."""
    if kind == "word":
        return 1 + max(0, length - 4) / 5 if foreign else 1 + max(0, length - 7) / 7
    if kind == "shreds":  # keys, digests, base64
        return length / 1.5
    if kind == "capitals":
        return length / 3
    if kind == "marks":
        return max(1.0, length / 3) if length <= 6 or len(set(piece)) <= 3 else length / 1.5
    return _PIECE_TOKENS[kind]


def bound(text: str) -> int:
    """Compute an upper bound of a text's tokens, for budgets; for English it is about twice the real number.

    The tests compare it with the same vocabularies, also for code, keys and random characters.
    """
    return math.ceil(max(ESTIMATE_MARGIN * estimate(text), len(text.encode(errors="replace")) / MIN_BYTES_PER_TOKEN))


@dataclasses.dataclass(frozen=True)
class Prices:
    """US dollars per million tokens; 0 means unknown."""

    into: float = 0.0
    out: float = 0.0

    def of(self, tokens_in: float, tokens_out: float) -> float:
        """Compute the price of tokens in US dollars."""
        return (tokens_in * self.into + tokens_out * self.out) / 1e6


class Budget:
    """A hard limit: books the maximum cost of each call before it is sent, and settles it after the answer.

    Safe to use from several threads.

    Attributes:
        limits: unit → maximum.
        prices: of the tokens.
        is_used_up: whether a call was refused.
    """

    def __init__(
        self,
        *,
        calls: int | None = None,
        tokens: int | None = None,
        dollars: float | None = None,
        prices: Prices | None = None,
    ) -> None:
        """Set the limits; None sets no limit.

        Raises:
            ConfigError: for a limit in dollars without prices.
        """
        self.limits = dict(zip(BUDGET_UNITS, (calls, tokens, dollars), strict=True))
        self.prices, self.is_used_up = prices or Prices(), False
        if dollars is not None and not (self.prices.into and self.prices.out):
            raise ConfigError(
                "A limit in dollars needs prices. Set llm_price_in and llm_price_out, in dollars per million tokens."
            )
        self._lock = threading.Lock()
        self._booked = self._spent = self._answered = Spent()

    @classmethod
    def parse(cls, text: str, prices: Prices | None = None) -> Budget:
        """Parse limits like `calls=500,tokens=200000,dollars=2`; an empty text sets no limit.

        Raises:
            ConfigError: for another text, or a limit in dollars without prices.
        """
        limits = parse_llm_budget(text)
        calls, tokens = (None if limit is None else int(limit) for limit in (limits["calls"], limits["tokens"]))
        return cls(calls=calls, tokens=tokens, dollars=limits["dollars"], prices=prices)

    @property
    def spent(self) -> Spent:
        """What was paid so far; answers from the cache cost nothing."""
        return self._spent

    @property
    def answered(self) -> Spent:
        """What all answers cost at first, also those from the cache."""
        return self._answered

    def book(self, tokens_in: int, tokens_out: int) -> Spent:
        """Reserve the maximum cost of a call.

        Args:
            tokens_in: maximum tokens of the request; see `bound`.
            tokens_out: maximum tokens of the reply.

        Returns:
            The reserved cost, for `settle`.

        Raises:
            OverBudget: if the budget does not have that much left.
        """
        cost = self._price(tokens_in, tokens_out)
        with self._lock:
            reserved = _add(self._spent, self._booked)
            for unit, limit in self.limits.items():
                used, more = getattr(reserved, unit), getattr(cost, unit)
                if limit is not None and used + more > limit:
                    self.is_used_up = True
                    raise OverBudget(
                        f"The budget of {limit:,} {unit} is used up: {used:,.6g} are spent or reserved, and the next "
                        f"call may cost {more:,.6g} more. Answers so far are kept. Raise the budget to continue."
                    )
            self._booked = _add(self._booked, cost)
        return cost

    def settle(self, booked: Spent, used: tuple[int, int] | None, *, answered: bool = True) -> None:
        """Release a booking and count the tokens used (in, out); None if there is nothing to pay."""
        with self._lock:
            self._booked = _add(self._booked, booked, sign=-1)
            if used is not None:
                self._spent = _add(self._spent, self._price(*used, unanswered=not answered))

    def count_answer(self, tokens_in: int, tokens_out: int) -> None:
        """Count an answer in `answered`, whether it was paid for now or comes from the cache."""
        with self._lock:
            self._answered = _add(self._answered, self._price(tokens_in, tokens_out))

    def _price(self, tokens_in: int, tokens_out: int, *, unanswered: bool = False) -> Spent:
        """Return the cost of one call."""
        return Spent(1, tokens_in, tokens_out, self.prices.of(tokens_in, tokens_out), int(unanswered))


def _add(one: Spent, other: Spent, sign: int = 1) -> Spent:
    pairs = zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True)
    return Spent(*(value + sign * more for value, more in pairs))


class Pace:
    """Limits the calls per minute: each call begins at least `60 / per_minute` seconds after the one before."""

    def __init__(self, per_minute: float) -> None:
        """Allow `per_minute` calls; 0 sets no limit."""
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._lock = threading.Lock()
        self._next = 0.0  # monotonic seconds before which no call may start

    def wait(self, timeout: float = math.inf) -> bool:
        """Wait until the next call may be sent; return False at once if that takes more than `timeout` seconds."""
        with self._lock:
            now = time.monotonic()
            start = max(self._next, now)
            if start - now > timeout:
                return False
            self._next = start + self._gap
        if (rest := start - time.monotonic()) > 0:
            time.sleep(rest)
        return True
