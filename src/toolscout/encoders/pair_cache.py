"""A cache of cross-encoder logits, keyed by the content of the pair: each (query, tool) pair is scored once.

It serves measurements, not searches: `bench` fits and scores many recipes over one cross-encoder.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from toolscout.arrays import Floats
from toolscout.database import CacheDatabase, rebuild_if_damaged
from toolscout.errors import StoreError
from toolscout.types import digest

__all__ = ["CachedPairScorer", "PairCache", "PairScorer", "cache_pairs"]

PAIR_CACHE_FILE: Final = "readings.db"
PAIR_CACHE_MIGRATIONS: Final = (
    """
    CREATE TABLE readings (
        reader TEXT NOT NULL, pair BLOB NOT NULL, logit REAL NOT NULL, PRIMARY KEY (reader, pair)) WITHOUT ROWID
    """,
)
_log: Final = logging.getLogger("toolscout.encoders.pair_cache")


class PairScorer(Protocol):
    """A cross-encoder; see `OnnxPairs`.

    Attributes:
        length: the most tokens it reads of a pair.
        fingerprint: changes with everything that decides a logit.
    """

    length: int
    fingerprint: str

    def logits(self, query: str, texts: Sequence[str], deadline: float | None = None) -> Floats:
        """Return how much the query needs each tool; fewer logits if the deadline comes first."""
        ...


class PairCache(CacheDatabase):
    """The file of kept logits.

    Attributes:
        reused: about how many logits were answered from the file; 0 if none was.
        paused: whether the cache is bypassed at present.
    """

    def __init__(self, folder: Path, *, repair: bool = True) -> None:
        """Open or create the file in the folder; see `CacheDatabase`."""
        super().__init__(folder / PAIR_CACHE_FILE, PAIR_CACHE_MIGRATIONS, repair=repair)
        self.reused, self.paused, self._warned = 0, False, False

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Bypass the cache within the block, so that a pair takes as long as it does in a search."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    @rebuild_if_damaged
    def get(self, scorer: str, pairs: Sequence[bytes]) -> dict[bytes, float]:
        """Return the kept logits of those pairs that the scorer of this fingerprint has scored."""
        logits: dict[bytes, float] = {}
        with self.reading() as connection:
            for pair in pairs:
                statement = "SELECT logit FROM readings WHERE reader = ? AND pair = ?"
                for (logit,) in connection.execute(statement, (scorer, pair)):
                    logits[pair] = logit
        if logits:  # nothing else is added: threads may lose some of the count, but never all of it
            self.reused += len(logits)
        return logits

    def put(self, scorer: str, logits: Mapping[bytes, float]) -> None:
        """Keep the logits of pairs. Warn once if the file cannot be written."""
        try:
            if not self.read_only:
                self._put(scorer, logits)
        except StoreError as error:
            if not self._warned:
                _log.warning("new logits are not kept: %s", error)
            self._warned = True

    @rebuild_if_damaged
    def _put(self, scorer: str, logits: Mapping[bytes, float]) -> None:
        with self.writing() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO readings VALUES (?, ?, ?)",
                [(scorer, pair, logit) for pair, logit in logits.items()],
            )


class CachedPairScorer:
    """A scorer that looks into the cache first and keeps what it had to score.

    With a deadline it scores every pair anew: an answer in time must not depend on earlier queries.
    """

    def __init__(self, scorer: PairScorer, cache: PairCache) -> None:
        """Take the scorer and its cache."""
        self.scorer, self.cache = scorer, cache
        self.length, self.fingerprint = scorer.length, scorer.fingerprint

    def logits(self, query: str, texts: Sequence[str], deadline: float | None = None) -> Floats:
        """Return the logits of the scorer; kept ones may differ by the rounding of another batch."""
        if deadline is not None or self.cache.paused:
            return self.scorer.logits(query, texts, deadline)
        pairs = [bytes.fromhex(digest("pair/1", [query, text])) for text in texts]
        logits = self.cache.get(self.fingerprint, pairs)
        missing = {pair: text for pair, text in zip(pairs, texts, strict=True) if pair not in logits}
        if missing:
            scored = dict(zip(missing, self.scorer.logits(query, [*missing.values()]).tolist(), strict=True))
            self.cache.put(self.fingerprint, scored)
            logits |= scored
        return np.array([logits[pair] for pair in pairs], dtype=np.float64)


def cache_pairs(scorer: PairScorer, cache: PairCache | None) -> PairScorer:
    """Put the cache in front of the scorer, unless there is no cache or the scorer has one."""
    return scorer if cache is None or isinstance(scorer, CachedPairScorer) else CachedPairScorer(scorer, cache)
