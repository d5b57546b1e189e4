"""How much one caller may ask for: sizes, and a bucket of queries that fills up with time."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Final

__all__ = ["Buckets", "Limits"]

KEPT: Final = 10_000  # callers whose buckets are kept at most


@dataclasses.dataclass(frozen=True)
class Limits:
    """What is too much.

    Attributes:
        rate: queries a second that one caller may ask in the mean; None: as many as can be answered.
        body: bytes of a request.
        upload: bytes of an import of the journal.
        patience: seconds in which a request must have come in, and that open ones get when the service stops.
        waiting: queries that may wait at once; who would bring more is sent away.
    """

    rate: float | None = None
    body: int = 1 << 20
    upload: int = 64 << 20
    patience: int = 30
    waiting: int = 2_000


class Buckets:
    """One bucket a caller: it holds the queries of ten seconds, and fills at the rate."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self._held: dict[str, tuple[float, float]] = {}  # caller → (tokens, instant)
        self._lock = threading.Lock()

    def take(self, caller: str, cost: float = 1.0) -> float:
        """Take `cost` queries out of a caller's bucket. Returns 0, or the seconds after which there are enough.

        What costs more than a full bucket is let through when the bucket is full, and leaves it in debt.
        """
        if self.rate is None:
            return 0.0
        full, now = max(1.0, self.rate * 10), time.monotonic()
        with self._lock:
            tokens, since = self._held.pop(caller, (full, now))
            tokens = min(full, tokens + (now - since) * self.rate)
            needed = min(cost, full)
            enough = tokens >= needed
            self._held[caller] = (tokens - cost if enough else tokens, now)  # last: used most lately
            if len(self._held) > KEPT:
                del self._held[next(iter(self._held))]
        return 0.0 if enough else (needed - tokens) / self.rate
