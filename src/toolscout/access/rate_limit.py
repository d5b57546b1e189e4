"""Limits the rate of each caller with a token bucket, which allows short bursts."""

from __future__ import annotations

import threading
import time
from typing import Final

__all__ = ["Buckets"]

MAX_CALLERS: Final = 10_000  # with a bucket; the caller who was idle longest loses it


class Buckets:
    """Token buckets, one for each caller. A bucket holds the queries of ten seconds and fills at the rate."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self._buckets: dict[str, tuple[float, float]] = {}  # caller → (tokens, instant)
        self._lock = threading.Lock()

    def take(self, caller: str, cost: float = 1.0) -> float:
        """Take `cost` queries out of a caller's bucket. Returns 0, or the seconds until it holds enough.

        A request that costs more than a full bucket passes when the bucket is full, and leaves it in debt.
        """
        if self.rate is None:
            return 0.0
        full, now = max(1.0, self.rate * 10), time.monotonic()
        with self._lock:
            tokens, since = self._buckets.pop(caller, (full, now))
            tokens = min(full, tokens + (now - since) * self.rate)
            needed = min(cost, full)
            enough = tokens >= needed
            self._buckets[caller] = (
                tokens - cost if enough else tokens,
                now,
            )  # the last entry is the most recently used
            if len(self._buckets) > MAX_CALLERS:
                del self._buckets[next(iter(self._buckets))]
        return 0.0 if enough else (needed - tokens) / self.rate
