from __future__ import annotations

import numpy as np
import pytest

from toolscout.rankers.shared.sparse_features import Bags, Ngrams, hash_features
from toolscout.rankers.shared.usage import mix_usage, softmax, weigh_usage


def test_usage_counts_as_far_as_there_was_any() -> None:
    assert weigh_usage(np.array([0.0, 1.0, 3.0]), 3.0).tolist() == [0.0, 0.25, 0.5]
    assert weigh_usage(np.array([0.0, 1.0]), 0.0).tolist() == [0.0, 1.0]


def test_usage_and_description_are_mixed_by_weight() -> None:
    usage, description = np.array([[0.9, 0.1, 0.0]]), np.array([[0.2, 0.2, 0.6]])
    scores = mix_usage(usage, description, np.array([1.0, 0.5, 0.0]), 0.0, 1.0)
    assert np.exp(scores) == pytest.approx(np.array([[0.9, 0.15, 0.6]]))
    agreeing = mix_usage(usage, description, np.array([1.0, 0.5, 0.0]), 1.0, 1.0)
    assert np.exp(agreeing) == pytest.approx(np.array([[0.18, 0.03, 0.36]]))
    doubtful = mix_usage(usage, description, np.array([1.0, 0.5, 0.0]), 0.0, 0.5)
    assert np.exp(doubtful) == pytest.approx(np.array([[0.9, 0.15, 0.3]]))


def test_a_query_of_which_usage_knows_nothing_goes_by_the_description() -> None:
    description = np.array([[0.2, 0.2, 0.6]])
    assert np.exp(mix_usage(np.zeros((1, 3)), description, np.ones(3), 0.0, 0.1)) == pytest.approx(description)


def test_softmax_is_right_for_great_and_for_forbidden_scores() -> None:
    assert softmax(np.array([1000.0, 1000.0, -np.inf])).tolist() == [0.5, 0.5, 0.0]


def test_bags_multiply_as_dense_tables_do() -> None:
    bags = Bags(np.array([0, 2, 2, 3]), np.array([0, 2, 2]), np.array([0.5, 2.0, 1.0], np.float32))
    dense = np.array([[0.5, 0, 2.0], [0, 0, 0], [0, 0, 1.0]], np.float32)
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_allclose(bags.multiply(table), dense @ table)
    features, block = bags.to_dense()
    assert features.tolist() == [0, 2]
    np.testing.assert_array_equal(block, dense[:, [0, 2]])
    taken = bags.take(np.array([2, 0]))
    np.testing.assert_allclose(taken.multiply(table), dense[[2, 0]] @ table)


def test_features_are_words_and_pairs_that_two_queries_share() -> None:
    texts = ["book a flight", "book a hotel", "weather"]
    ngrams = Ngrams.of([hash_features(text) for text in texts])
    shared = set(hash_features("book a flight")) & set(hash_features("book a hotel"))
    assert set(ngrams.keys) == shared and shared
    bags = ngrams.make_bags([hash_features(text) for text in ("book a table", "unheard words", "weather")])
    assert np.diff(bags.indptr).tolist() == [len(shared), 0, 0]
    assert np.linalg.norm(bags.data) == pytest.approx(1.0)
    np.testing.assert_allclose(ngrams.rarity, 1 + np.log(3 / 2), rtol=1e-6)
