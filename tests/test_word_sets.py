"""Pairs of sets of words are found and measured in flat arrays as one by one."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest

from toolscout.search.relations import word_sets
from toolscout.search.relations.similar import word_overlap
from toolscout.search.relations.word_sets import WordSets, pair_holders

CHANCE = random.Random(3)
WORDS = [f"word{number}" for number in range(700)]
SETS = [frozenset(CHANCE.sample(WORDS[: CHANCE.choice((12, 700))], CHANCE.randrange(0, 10))) for _ in range(120)]
SETS += [text | {"more"} for text in SETS[:40]]
ONES, OTHERS = (np.repeat(np.arange(len(SETS)), len(SETS)), np.tile(np.arange(len(SETS)), len(SETS)))


def test_overlaps_are_those_of_two_sets_to_the_last_bit() -> None:
    measured = WordSets.of(SETS).measure_overlap(ONES, OTHERS)
    assert measured.tolist() == [word_overlap(one, other) for one in SETS for other in SETS]


@pytest.mark.parametrize("least", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("counts_itself", [True, False])
def test_no_pair_is_ruled_out_that_overlaps_enough(
    least: float, counts_itself: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if counts_itself and not hasattr(np, "bitwise_count"):
        pytest.skip("this numpy counts no bits")
    if not counts_itself:
        monkeypatch.delattr(np, "bitwise_count", raising=False)
    sets = WordSets.of(SETS)
    near, possible = sets.measure_overlap(ONES, OTHERS) >= least, sets.may_overlap(ONES, OTHERS, least)
    assert near.sum() > 100 and not (near & ~possible).any()
    assert possible.sum() < 0.2 * len(ONES)


@pytest.mark.parametrize("batch", [3, 1 << 20])
@pytest.mark.parametrize("most", [2, 5, 100])
def test_members_are_paired_with_the_earliest_of_their_groups(
    most: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_sets, "PAIRS_BATCH", batch)
    sets = WordSets.of(SETS)
    expected: list[tuple[int, int]] = []
    holders: dict[int, list[int]] = defaultdict(list)
    for number in range(len(sets)):
        words = sets.read(number)
        before = {other for word in words for other in holders[word] if (number - other) % 3}
        expected += [(other, number) for other in sorted(before)]
        for word in words:
            if len(holders[word]) < most:
                holders[word].append(number)
    pairs = pair_holders(sets.words, sets.list_owners(), most, lambda ones, others: (others - ones) % 3 != 0)
    assert [pair for part in pairs for pair in zip(*(row.tolist() for row in part), strict=True)] == expected


def test_holders_of_a_word_are_found() -> None:
    builder = word_sets.WordSetsBuilder({})
    for words in SETS:
        builder.add(words)
    sets = builder.build()
    for word in ("word1", "word5", "more"):
        assert sets.find_holders(builder.numbers[word]).tolist() == [word in words for words in SETS]


def test_no_sets_give_no_pairs() -> None:
    empty = WordSets.of([])
    none = np.zeros(0, dtype=np.int64)
    assert len(empty) == 0 and not len(empty.measure_overlap(none, none))
    assert list(pair_holders(empty.words, empty.list_owners(), 3, lambda ones, others: ones == others)) == []
