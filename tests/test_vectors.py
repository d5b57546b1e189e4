from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from toolscout.encoders import Kind
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.scout import Scout
from toolscout.testing import HashEncoder, check_encoder


@pytest.fixture
def kept(tmp_path: Path) -> VectorStore:
    return VectorStore(tmp_path)


def rows(kept: VectorStore, encoder: HashEncoder, texts: Sequence[str]) -> np.ndarray:
    return kept.rows(encoder.fingerprint, texts, encoder.encode, name=encoder.name)


def test_a_text_is_embedded_once_whatever_it_belongs_to(kept: VectorStore) -> None:
    encoder = HashEncoder()
    first = rows(kept, encoder, ["rain", "snow", "rain"])
    assert encoder.encoded == 2
    again = rows(kept, encoder, ["snow", "hail", "rain"])
    assert encoder.encoded == 3
    assert np.array_equal(first[0], again[2]) and np.array_equal(first[0], first[2])
    assert np.array_equal(again, encoder.encode(["snow", "hail", "rain"]))
    assert kept.encoders() == [("hash", 3)]


def test_texts_that_differ_in_a_letter_or_its_case_have_vectors_of_their_own(kept: VectorStore) -> None:
    texts = ["Rain", "rain", "rain ", "ra\u00efn", "rain\ud800"]
    rows = kept.rows("e", texts, lambda batch: np.array([[texts.index(text)] for text in batch], dtype=np.float32))
    assert rows[:, 0].tolist() == [0, 1, 2, 3, 4]


class Mirror(HashEncoder):
    """Another encoder of the same length, whose vectors point the other way."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.fingerprint = f"mirror/{self.fingerprint}"

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> np.ndarray:
        return -super().encode(texts, kind)


def test_vectors_of_two_encoders_do_not_mix(kept: VectorStore) -> None:
    small, large = HashEncoder(16), HashEncoder(32)
    assert rows(kept, small, ["rain"]).shape == (1, 16)
    assert rows(kept, large, ["rain"]).shape == (1, 32)
    assert kept.missing(small.fingerprint, ["rain", "snow"]) == ["snow"]
    mirror = Mirror(16)
    for encoder in (mirror, small, large, mirror):
        assert np.array_equal(rows(kept, encoder, ["rain"]), encoder.encode(["rain"])), "each reads its own back"


def test_an_embedding_that_is_interrupted_goes_on_where_it_stopped(kept: VectorStore) -> None:
    encoder = HashEncoder()
    texts = [f"text number {number}" for number in range(700)]

    def breaks(batch: Sequence[str]) -> np.ndarray:
        if encoder.encoded >= 512:
            raise KeyboardInterrupt
        return encoder.encode(batch)

    seen: list[tuple[int, int]] = []
    with pytest.raises(KeyboardInterrupt):
        kept.rows(encoder.fingerprint, texts, breaks, progress=lambda *step: seen.append(step))
    assert seen == [(256, 700), (512, 700)]
    assert len(kept.missing(encoder.fingerprint, texts)) == 188
    rows(kept, encoder, texts)
    assert encoder.encoded == 700


def test_vectors_of_texts_that_are_gone_can_be_forgotten(kept: VectorStore) -> None:
    encoder = HashEncoder()
    rows(kept, encoder, ["a", "b", "c"])
    assert kept.prune(["b"]) == 2
    assert kept.missing(encoder.fingerprint, ["a", "b"]) == ["a"]


def test_the_hash_encoder_keeps_the_promises_of_an_encoder() -> None:
    check_encoder(HashEncoder())


def test_a_search_does_not_embed_a_whole_catalogue_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = HashEncoder(cheap=False)
    monkeypatch.setattr("toolscout.encoders.load", lambda name, settings: encoder)
    with Scout(tmp_path / "home", encoder="slow", recipe="dense") as scout:
        scout.add([{"name": f"t{number}", "description": f"tool number {number}"} for number in range(300)], name="s")
        with pytest.raises(Exception, match=r"300 of 300 tools have no vector of hash yet .*toolscout sync --encoder"):
            scout.search("number 7")
        scout.embed()
        assert encoder.encoded == 900  # a text, a name and a sentence each
        assert len(scout.search("number 7").ids) == 5
        scout.add([{"name": "late", "description": "a late tool"}], name="late")
        assert scout.search("late tool").ids[0] == "late/late"
        assert encoder.encoded == 900 + 2 + 3  # two searches, one more tool


def test_an_encoder_that_does_not_answer_leaves_words_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolscout.errors import Unavailable

    class Down(HashEncoder):
        def encode(self, texts: Sequence[str], kind: object = "query") -> np.ndarray:  # type: ignore[override]
            raise Unavailable("http://embeddings: expected vectors, found no answer")

    monkeypatch.setattr("toolscout.encoders.load", lambda name, settings: Down())
    with Scout(tmp_path / "home", encoder="x") as scout:
        scout.add([{"name": "rain", "description": "Will it rain?"}], name="s")
        found = scout.search("rain", recipe="hybrid")
        assert found.ids == ("s/rain",)
        assert found.reason == "searched with bm25 alone: http://embeddings: expected vectors, found no answer"
        with pytest.raises(Unavailable):
            scout.search("rain", recipe="dense")
