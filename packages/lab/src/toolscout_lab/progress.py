"""Says how much of a long work is done: n of N, with an estimate of the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

__all__ = ["Progress", "Say", "ignore"]

INTERVAL_S: Final = 5.0
Say = Callable[[str], None]
Item = TypeVar("Item")


def ignore(text: str) -> None:
    """Say nothing."""


class Progress:
    """Reports the first item, the last one, and between them one every five seconds."""

    def __init__(self, say: Say, what: str, total: int) -> None:
        """Report with `say`; `what` names the items, such as `queries`."""
        self.say, self.what, self.total = say, what, total
        self.started = time.monotonic()
        self.said_at: float | None = None  # monotonic seconds of the last line

    def show(self, done: int, note: str = "") -> None:
        """Report that so many are done; `note` is added."""
        now = time.monotonic()
        if self.said_at is not None and done < self.total and now - self.said_at < INTERVAL_S:
            return
        self.said_at = now
        left = (now - self.started) / done * (self.total - done) if done else 0.0
        minutes = f", {left / 60:.0f} min left" if left > 60 else f", {left:.0f} s left" if left > 1 else ""
        self.say(f"{done:,} of {self.total:,} {self.what}{note}{minutes}")

    def count(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items, and report each."""
        for number, item in enumerate(items, 1):
            yield item
            self.show(number)
