"""The sums of word pieces are those that the bundled vectors were made with."""

from __future__ import annotations

import numpy as np

from toolscout.encoders.static import MAX_PIECES, _sum_rows


def test_sums_of_any_number_of_pieces_equal_those_of_numpy_to_the_last_bit() -> None:
    rows = np.random.default_rng(0).standard_normal((MAX_PIECES, 24)).astype(np.float32)
    for n_rows in range(1, MAX_PIECES + 1):
        expected = np.add.reduceat(rows[:n_rows], [0], axis=0)[0]
        assert _sum_rows(rows[:n_rows]).tolist() == expected.tolist(), n_rows
