from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from toolscout.encoders import load, split_identifiers
from toolscout.encoders.encoder import Kind, Vectors
from toolscout.encoders.static import (
    MAX_CACHED_CALLS,
    MAX_CACHED_QUERIES,
    MAX_PIECES,
    STATIC_ENCODER_FOLDER,
    StaticEncoder,
    WordPieces,
)
from toolscout.errors import StoreError
from toolscout.settings import Settings


@pytest.fixture(scope="module")
def encoder() -> StaticEncoder:
    return StaticEncoder()


def cosine(encoder: StaticEncoder, one: str, other: str) -> float:
    first, second = encoder.encode([one, other])
    return float(first @ second)


def test_rows_are_unit_float32_of_the_said_length(encoder: StaticEncoder) -> None:
    vectors = encoder.encode(["send an e-mail", "weather"] * 700)
    assert vectors.dtype == np.float32
    assert vectors.shape == (1400, encoder.dim)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)


def test_a_text_has_the_same_vector_alone_in_a_batch_and_the_next_time(encoder: StaticEncoder) -> None:
    texts = [f"tool number {i} that sends mail" for i in range(30)]
    together = encoder.encode(texts)
    assert all(np.array_equal(StaticEncoder().encode([texts[i]])[0], together[i]) for i in (0, 7, 29))
    assert np.array_equal(encoder.encode(texts, kind="tool"), together)


def test_a_query_is_encoded_once_however_the_calls_group_it(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, encoded = StaticEncoder(), list[str]()
    encode_rows = encoder._encode_rows

    def record(texts: list[str], kind: Kind) -> Vectors:
        encoded.extend(texts)
        return encode_rows(texts, kind)

    monkeypatch.setattr(encoder, "_encode_rows", record)
    whole = encoder.encode(["rain and mail", "rain", "mail"])
    whole[:] = 0.0  # belongs to the caller
    parts = encoder.encode(["mail", "rain"])
    assert encoded == ["rain and mail", "rain", "mail"]
    assert np.array_equal(parts, StaticEncoder().encode(["mail", "rain"]))
    for number in range(MAX_CACHED_QUERIES * MAX_CACHED_CALLS):
        encoder.encode([f"query {number}"])
    encoder.encode([f"query {MAX_CACHED_QUERIES * MAX_CACHED_CALLS - 1}", "rain"])
    assert encoded[-1] == "rain"  # was forgotten, so that the cache stays small
    assert len(encoded) == 3 + MAX_CACHED_QUERIES * MAX_CACHED_CALLS + 1


def test_texts_without_a_known_word_give_zeros_and_no_texts_give_no_rows(encoder: StaticEncoder) -> None:
    vectors = encoder.encode(["", "?!", "rain", "\U0001f327"])
    assert vectors.any(axis=1).tolist() == [False, False, True, False]
    assert encoder.encode([]).shape == (0, encoder.dim)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("getUserById", "get user by id"),
        ("get_user_by_id", "get user by id"),
        ("users.list", "users list"),
        ("HTTPServer", "http server"),
        ("The Café, please!", "the cafe please"),
    ],
)
def test_identifiers_accents_case_and_punctuation_make_no_difference(
    encoder: StaticEncoder, text: str, same: str
) -> None:
    assert cosine(encoder, text, same) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("query", "near", "far"),
    [
        ("will it rain tomorrow in Oslo", "weather forecast for a city", "convert a currency"),
        ("how much is 20 dollars in euros", "convert a currency", "weather forecast for a city"),
        ("book a place to sleep", "find a hotel room", "compress an image"),
        ("what songs are popular", "top music tracks", "list the open pull requests"),
    ],
)
def test_meaning_is_found_without_a_word_in_common(encoder: StaticEncoder, query: str, near: str, far: str) -> None:
    assert cosine(encoder, query, near) > cosine(encoder, query, far) + 0.1


def test_only_the_beginning_of_a_long_text_counts(encoder: StaticEncoder) -> None:
    start = "rain " * MAX_PIECES
    assert cosine(encoder, start, start + "mail " * 1000) == pytest.approx(1.0, abs=1e-5)


def test_words_are_cut_greedily_and_unspellable_ones_left_out() -> None:
    cut = WordPieces(["play", "##ing", "##i", "p", "天"])
    assert cut("Playing plays, PLAY 天气") == [0, 1, 0, 4]
    assert cut("play " * 10, limit=3) == [0, 0, 0]
    assert cut("x" * 100_000) == []


def test_identifiers_are_split_and_plain_text_stays() -> None:
    assert split_identifiers("getHTTPResponse_code v1.2 e-mail. Next") == "get HTTP Response code v1.2 e-mail. Next"


def test_the_manifest_says_where_the_vectors_come_from_and_the_files_stay_small(encoder: StaticEncoder) -> None:
    manifest = json.loads((STATIC_ENCODER_FOLDER / "manifest.json").read_text())
    assert manifest["fingerprint"] == encoder.fingerprint == load("static", Settings()).fingerprint
    assert set(manifest["corpora"].values()) <= {"MIT", "Apache-2.0"}
    assert "Apache-2.0" in (STATIC_ENCODER_FOLDER / "README.md").read_text()
    assert sum(file.stat().st_size for file in STATIC_ENCODER_FOLDER.iterdir()) < 12_000_000


def test_a_damaged_or_foreign_folder_is_refused(tmp_path: Path) -> None:
    def broken(name: str) -> Path:
        return Path(shutil.copytree(STATIC_ENCODER_FOLDER, tmp_path / name))

    nothing = tmp_path / "nothing"
    cut = broken("cut")
    (cut / "vectors.safetensors").write_bytes((STATIC_ENCODER_FOLDER / "vectors.safetensors").read_bytes()[:1000])
    pieces = broken("pieces")
    (pieces / "pieces.txt").write_text("one\ntwo")
    foreign = broken("foreign")
    (foreign / "manifest.json").write_text("{}")
    wide = broken("wide")
    tensors = load_file(STATIC_ENCODER_FOLDER / "vectors.safetensors")
    save_file({**tensors, "rows": tensors["rows"].astype(np.int16)}, wide / "vectors.safetensors")
    for folder in (nothing, cut, pieces, foreign, wide):
        with pytest.raises(StoreError, match=r"static encoder in .* is damaged"):
            StaticEncoder(folder)


def test_loading_it_brings_no_heavy_package() -> None:
    code = (
        "import sys; from toolscout.encoders.static import StaticEncoder; StaticEncoder().encode(['x']);"
        "print(sorted({'torch', 'transformers', 'tokenizers', 'httpx'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
