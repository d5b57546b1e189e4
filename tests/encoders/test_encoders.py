from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from toolscout.encoders import Kind, Vectors, encode_tools, unit_rows
from toolscout.types import Tool


class Axes:
    """One axis a text, in the order in which texts are first seen; remembers the kinds it was asked for."""

    dim = 8
    fingerprint = "axes"

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.kinds: set[str] = set()

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        self.kinds.add(kind)
        return np.eye(self.dim, dtype=np.float32)[[self.seen.setdefault(text, len(self.seen)) for text in texts]]


def test_a_tool_is_found_by_its_text_its_name_and_its_first_sentence() -> None:
    encoder = Axes()
    tools = [Tool(id="a/x", name="x", description="One. Two."), Tool(id="a/y", name="y")]
    vectors = encode_tools(lambda texts: encoder.encode(texts, "tool"), tools)
    assert list(encoder.seen) == ["x: One. Two.", "y:", "x", "y", "One."]
    assert vectors[0] == pytest.approx(np.array([1, 0, 1, 0, 1, 0, 0, 0]) / 3**0.5)
    assert vectors[1] == pytest.approx(np.array([0, 1, 0, 2, 0, 0, 0, 0]) / 5**0.5)
    assert encoder.kinds == {"tool"}


def test_rows_of_zeros_stay_and_all_others_get_length_one() -> None:
    assert unit_rows(np.array([[3, 4], [0, 0]])).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]
