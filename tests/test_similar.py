"""Nearly the same descriptions are found without comparing every pair."""

from __future__ import annotations

import itertools
import random

from toolscout.search.relations.similar import (
    MIN_DESCRIPTION_WORDS,
    MIN_SHARED,
    _find_similar_texts,
    word_overlap,
)
from toolscout.search.relations.word_sets import WordSetsBuilder, rank_by_rarity


def test_every_pair_that_shares_enough_words_is_compared_and_few_others() -> None:
    chance = random.Random(5)
    vocabulary = [f"word{number}" for number in range(60)]
    texts = [frozenset(chance.sample(vocabulary, chance.randrange(2, 16))) for _ in range(150)]
    texts += [text | set(chance.sample(vocabulary, 3)) for text in texts[:60]]
    pairs = list(itertools.combinations(range(len(texts)), 2))
    near = {
        (a, b)
        for a, b in pairs
        if min(len(texts[a]), len(texts[b])) >= MIN_DESCRIPTION_WORDS and word_overlap(texts[a], texts[b]) >= MIN_SHARED
    }
    builder = WordSetsBuilder({})
    for text in texts:
        builder.add(text)
    ranked = rank_by_rarity(builder.build(), builder.numbers)
    compared = [
        pair for part in _find_similar_texts(ranked) for pair in zip(*(row.tolist() for row in part), strict=True)
    ]
    assert len(near) > 40 and near <= set(compared) and len(compared) == len(set(compared))
    assert len(compared) < 0.25 * len(pairs)
    assert all(MIN_SHARED * len(texts[a]) <= len(texts[b]) <= len(texts[a]) / MIN_SHARED for a, b in compared)
