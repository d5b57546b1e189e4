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
from toolscout.errors import StoreError
from toolscout.home.database import CacheDatabase, rebuild_if_damaged
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
        length: maximum tokens of a pair.
        fingerprint: changes whenever a pair would get another logit.
    """

    length: int
    fingerprint: str

    def logits(self, query: str, texts: Sequence[str], deadline: float | None = None) -> Floats:
        """Score how much the query needs each tool. With a deadline there may be fewer logits than texts."""
        ...


class PairCache(CacheDatabase):
    """The file that stores the logits of pairs.

    Attributes:
        reused: approximate number of logits that were read from the file; exactly 0 if none was.
        paused: whether the cache is bypassed at present.
    """

    def __init__(self, folder: Path, *, repair: bool = True) -> None:
        """Open or create the file in the folder; see `CacheDatabase`."""
        super().__init__(folder / PAIR_CACHE_FILE, PAIR_CACHE_MIGRATIONS, repair=repair)
        self.reused, self.paused = 0, False
        self._warned = False  # that the file cannot be written; said once

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
        """Return the stored logits of the scorer with this fingerprint, for the pairs that have one."""
        logits: dict[bytes, float] = {}
        with self.reading() as connection:
            for pair in pairs:
                statement = "SELECT logit FROM readings WHERE reader = ? AND pair = ?"
                for (logit,) in connection.execute(statement, (scorer, pair)):
                    logits[pair] = logit
        if logits:  # adding only above 0: concurrent threads may lose counts, but never make `reused` 0
            self.reused += len(logits)
        return logits

    def put(self, scorer: str, logits: Mapping[bytes, float]) -> None:
        """Store the logits of pairs. Warn once if the file cannot be written."""
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
    """A scorer that reads logits from the cache, and scores and stores the missing ones.

    With a deadline it bypasses the cache, so that the answer does not depend on earlier queries.
    """

    def __init__(self, scorer: PairScorer, cache: PairCache) -> None:
        """Put a cache in front of a scorer."""
        self.scorer, self.cache = scorer, cache
        self.length, self.fingerprint = scorer.length, scorer.fingerprint

    def logits(self, query: str, texts: Sequence[str], deadline: float | None = None) -> Floats:
        """Return the logits. Stored ones may differ by rounding, because they were scored in another batch."""
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
