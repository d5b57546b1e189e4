from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from toolscout.arrays import Floats
from toolscout_lab.encoders.pair_cache import CachedPairScorer, PairCache, cache_pairs


class Reader:
    """Says the length of both texts, and remembers what it was asked."""

    def __init__(self, fingerprint: str = "one") -> None:
        self.length, self.fingerprint = 8, fingerprint
        self.asked: list[tuple[str, str]] = []

    def logits(self, query: str, texts: Sequence[str], deadline: float | None = None) -> Floats:
        self.asked += [(query, text) for text in texts]
        some = texts if deadline is None or deadline > time.monotonic() else texts[:1]
        return np.array([len(query) + 0.1 * len(text) for text in some], dtype=np.float64)


@pytest.fixture
def readings(tmp_path: Path) -> PairCache:
    return PairCache(tmp_path)


def test_a_pair_is_read_once_and_in_one_batch_with_others_that_are_missing(readings: PairCache, tmp_path: Path) -> None:
    reader = Reader()
    over = cache_pairs(reader, readings)
    texts = ["a", "bb", "a", "ccc"]
    assert over.logits("q", texts[:2]).tolist() == Reader().logits("q", texts[:2]).tolist()
    assert over.logits("q", texts).tolist() == Reader().logits("q", texts).tolist()
    assert reader.asked == [("q", "a"), ("q", "bb"), ("q", "ccc")] and readings.reused == 2
    again = Reader()
    assert cache_pairs(again, PairCache(tmp_path)).logits("q", texts).tolist() == Reader().logits("q", texts).tolist()
    assert again.asked == [], "it outlives the process"
    assert over.logits("q", []).shape == (0,)


def test_other_queries_texts_and_readers_are_other_pairs(readings: PairCache) -> None:
    one, other = Reader(), Reader("other")
    cache_pairs(one, readings).logits("ab", ["c"])
    cache_pairs(one, readings).logits("a", ["bc"])
    cache_pairs(other, readings).logits("ab", ["c"])
    assert one.asked == [("ab", "c"), ("a", "bc")] and other.asked == [("ab", "c")]
    assert cache_pairs(one, readings).fingerprint == "one" and cache_pairs(one, readings).length == 8


def test_with_a_deadline_and_at_rest_all_is_read_anew_and_nothing_cache_pairs(readings: PairCache) -> None:
    reader = Reader()
    over = cache_pairs(reader, readings)
    assert len(over.logits("q", ["a", "b"], time.monotonic() - 1)) == 1
    with readings.pause():
        over.logits("q", ["a", "b"])
    assert len(reader.asked) == 4 and readings.reused == 0
    over.logits("q", ["a", "b"])
    with pytest.raises(KeyError), readings.pause():
        raise KeyError
    over.logits("q", ["a", "b"])
    assert len(reader.asked) == 6 and readings.reused == 2


def test_many_threads_may_read(readings: PairCache) -> None:
    over = cache_pairs(Reader(), readings)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            found = list(pool.map(lambda n: over.logits(f"q{n % 10}", ["a", "b" * n]).tolist(), range(40)))
            assert found == [Reader().logits(f"q{n % 10}", ["a", "b" * n]).tolist() for n in range(40)]


def test_nothing_is_kept_unless_asked_for_and_never_twice(readings: PairCache) -> None:
    reader = Reader()
    assert cache_pairs(reader, None) is reader
    over = cache_pairs(reader, readings)
    assert isinstance(over, CachedPairScorer) and cache_pairs(over, readings) is over
