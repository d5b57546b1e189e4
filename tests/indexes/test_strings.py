from __future__ import annotations

import numpy as np
import pytest

from toolscout.indexes.strings import StringIndex, Strings, Vocabulary

TEXTS = ["", "Zebra", "a b", "s/getUser", "Über", "天气", "\ud800", "a" * 300]


def test_a_table_reads_what_went_in() -> None:
    table = Strings.of(TEXTS)
    assert list(table) == table[:] == [table[place] for place in range(len(table))] == TEXTS
    assert table[-1] == TEXTS[-1] and table == TEXTS and table != TEXTS[1:]
    assert Strings.from_arrays(table.arrays("x"), "x") == table
    with pytest.raises(IndexError):
        table[len(TEXTS)]


def test_an_ascending_table_is_searched() -> None:
    table = Strings.of(sorted(TEXTS))
    assert [table.find(text) for text in sorted(TEXTS)] == list(range(len(TEXTS)))
    assert table.find("absent") is None and "absent" not in table and "天气" in table


@pytest.mark.parametrize("damage", [{"x.ends": np.array([0, 9])}, {"x.ends": np.zeros(0, np.int64)}, {"x.text": None}])
def test_a_damaged_table_is_refused(damage: dict[str, np.ndarray | None]) -> None:
    arrays = {**Strings.of(TEXTS).arrays("x"), **damage}
    with pytest.raises((KeyError, ValueError)):
        Strings.from_arrays({name: array for name, array in arrays.items() if array is not None}, "x")


def test_a_key_has_all_its_places_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["b", "a", "b", "c", "b"]
    lookup = StringIndex.from_arrays(StringIndex.of(keys).arrays("k"), "k")
    assert lookup.find("b", keys.__getitem__) == [0, 2, 4]
    assert lookup.find("d", keys.__getitem__) == []
    monkeypatch.setattr("toolscout.indexes.strings._hash", lambda string: 7)  # all keys collide
    assert StringIndex.of(keys).find("b", keys.__getitem__) == [0, 2, 4]
    assert StringIndex.of(keys).find("d", keys.__getitem__) == []


def test_a_vocabulary_numbers_its_terms() -> None:
    vocabulary = Vocabulary.from_arrays(Vocabulary.of(TEXTS).arrays("v"), "v")
    assert [vocabulary.get(term) for term in TEXTS] == list(range(len(TEXTS)))
    assert vocabulary.get("absent") is vocabulary.get("absent") is None
