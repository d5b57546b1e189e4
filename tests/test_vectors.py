from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import toolscout
from toolscout import encoders
from toolscout.encoders import Kind
from toolscout.errors import Unavailable
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.scout import Scout
from toolscout.testing import HashEncoder, check_encoder
from toolscout.types import OfKind, Search


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


def test_a_cache_with_a_text_that_cannot_be_decoded_is_begun_anew(kept: VectorStore, tmp_path: Path) -> None:
    rows(kept, HashEncoder(), ["rain"])
    with kept.writing() as connection:
        connection.execute("UPDATE encoders SET name = CAST(x'ff' AS TEXT)")
    assert kept.encoders() == [] and kept.was_set_aside
    assert len(list(tmp_path.glob("vectors.db.damaged-*"))) == 1
    rows(kept, HashEncoder(), ["rain"])
    assert kept.encoders() == [("hash", 1)]


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


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, "2"])
def test_an_encoder_with_an_invalid_short_weight_breaks_its_promise(weight: object) -> None:
    encoder = HashEncoder()
    encoder.short_weight = weight  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="short_weight"):
        check_encoder(encoder)


TOOLS = [{"name": f"t{number}", "description": f"tool number {number}"} for number in range(300)]
TEXTS_OF_TOOLS = 900  # a text, a name and a sentence each


class SlowEncoder(HashEncoder):
    """An encoder whose vectors are kept. It waits while `gate` is closed."""

    def __init__(self) -> None:
        super().__init__(cheap=False)
        self.gate = threading.Event()
        self.gate.set()

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> np.ndarray:
        assert self.gate.wait(60)
        return super().encode(texts, kind)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowEncoder:
    """What the setting `encoder=slow` loads, beside the encoders that are always there."""
    encoder, load = SlowEncoder(), encoders.load
    monkeypatch.setattr(
        "toolscout.encoders.load", lambda name, settings: encoder if name == "slow" else load(name, settings)
    )
    return encoder


def test_add_makes_the_vectors_and_a_search_only_those_of_its_query(tmp_path: Path, slow: SlowEncoder) -> None:
    with Scout(tmp_path / "home", encoder="slow", recipe="dense") as scout:
        scout.add(TOOLS, name="s")
        assert slow.encoded == TEXTS_OF_TOOLS
        assert len(scout.search("number 7").ids) == 5
        assert slow.encoded == TEXTS_OF_TOOLS + 1
        scout.add([{"name": "late", "description": "a late tool"}], name="late")
        assert slow.encoded == TEXTS_OF_TOOLS + 1 + 3
        assert scout.search("late tool").ids[0] == "late/late"


def test_nothing_tells_a_user_of_the_library_to_make_vectors_by_a_command() -> None:
    package = Path(toolscout.__file__).parent
    files = [
        file for folder in ("recipes", "search", "encoders", "rankers") for file in (package / folder).rglob("*.py")
    ]
    files += [package / "scout.py", package / "home" / "catalogue" / "vector_cache.py"]
    assert len(files) > 40
    assert [file for file in files if "toolscout sync" in file.read_text(encoding="utf-8")] == []


def test_a_home_goes_on_with_an_encoder_that_comes_or_goes(tmp_path: Path, slow: SlowEncoder) -> None:
    def search(**settings: str) -> Search:
        with Scout(tmp_path / "home", **settings) as scout:
            return scout.search("number 7")

    with Scout(tmp_path / "home", encoder="static") as scout:
        scout.add(TOOLS, name="s")
    assert search(encoder="slow").ids and not search(encoder="slow").reason
    assert slow.encoded == TEXTS_OF_TOOLS + 2
    assert search(encoder="static").ids and not search(encoder="static").reason
    assert search(encoder="slow").ids
    assert slow.encoded == TEXTS_OF_TOOLS + 3


def test_a_program_that_serves_answers_by_words_while_vectors_are_made(tmp_path: Path, slow: SlowEncoder) -> None:
    with Scout(tmp_path / "home", encoder="static") as scout:
        scout.add(TOOLS, name="s")
    slow.gate.clear()
    with Scout(tmp_path / "home", encoder="slow") as scout:
        scout.engine.switch_in_background()
        first, second = scout.search("tool number 7"), scout.search("tool number 7")
        assert first.ids[0] == second.ids[0] == "s/t7"
        assert first.reason == "searched with bm25 alone: 300 texts of tools have no vector of hash yet"
        assert second.reason.startswith("searched with bm25 alone: ") and "vectors of new tools" in second.reason
        limited = scout.search("tool number 7", visible=OfKind("tool"))
        assert limited.ids and limited.reason == "searched with bm25 alone: vectors of tools are still being made"
        slow.gate.set()
        deadline = time.monotonic() + 60
        while (answer := scout.search("tool number 7")).reason and time.monotonic() < deadline:
            time.sleep(0.05)
        assert answer.ids and not answer.reason


def test_a_program_that_ends_does_not_wait_for_all_vectors(tmp_path: Path, slow: SlowEncoder) -> None:
    with Scout(tmp_path / "home", encoder="static") as scout:
        scout.add(TOOLS, name="s")
    slow.gate.clear()
    with Scout(tmp_path / "home", encoder="slow") as scout:
        scout.engine.switch_in_background()
        assert scout.search("tool number 7").reason
        threading.Timer(0.2, slow.gate.set).start()
    assert 0 < slow.encoded < TEXTS_OF_TOOLS


def test_progress_is_shown_where_a_terminal_is(
    tmp_path: Path, slow: SlowEncoder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Scout(tmp_path / "home", encoder="slow", recipe="dense") as scout:
        scout.add(TOOLS[:10], name="few")
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        scout.add(TOOLS, name="s")
    assert "\rtoolscout: 290 of 290 vectors of tools are made\n" in capsys.readouterr().err


def test_tools_stay_if_their_vectors_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(name: str, settings: object) -> None:
        raise Unavailable("http://embeddings does not answer")

    monkeypatch.setattr("toolscout.encoders.load", refuse)
    with Scout(tmp_path / "home", encoder="x") as scout:
        assert scout.add(TOOLS, name="s")[0].new == 300
        assert "The new tools have no vectors yet: http://embeddings does not answer" in caplog.text
        assert scout.search("tool number 7").ids[0] == "s/t7"


def test_an_encoder_that_does_not_answer_leaves_words_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
