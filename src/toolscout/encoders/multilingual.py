"""The multilingual table gives texts that are not English vectors in the space of the bundled English encoder.

It has one vector for each piece of a multilingual vocabulary. The sum of the vectors of a text's pieces lies near the
English encoder's vector of the translation, so one vector per tool serves all languages. `StaticEncoder` loads the
table with the first text that needs it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.encoders.encoder import Vectors, split_identifiers, unit_rows
from toolscout.errors import StoreError

__all__ = ["LANGUAGES", "MULTILINGUAL_FORMAT", "MULTILINGUAL_SUBFOLDER", "MultilingualTable", "UnigramPieces"]

MULTILINGUAL_SUBFOLDER: Final = "multilingual"  # of the folder of the English encoder that it belongs to
MULTILINGUAL_FORMAT: Final = "toolscout-multilingual/1"
#: The languages that the table was built and measured for, besides English.
LANGUAGES: Final = frozenset(
    ("ar", "bn", "de", "es", "fa", "fr", "hi", "id", "it", "ja", "ko", "nl", "pl", "pt", "ru", "tr", "uk", "ur", "vi")
) | {"zh"}
WORD_START: Final = "▁"  # begins a piece that begins a word, as in SentencePiece
MAX_UNIGRAM_PIECES: Final = 256
MAX_PIECE_CHARS: Final = 16
MIN_LETTERS_OF_PIECE: Final = 3  # on average over the pieces of a word in plain Latin letters
MAX_SEGMENTED_CHARS: Final = 4_000
MAX_CACHED_SEGMENTS: Final = 50_000
MAX_CACHED_SEGMENT_CHARS: Final = 64
_SKIP_SCORE: Final = -30.0  # of a character that no piece spells: worse than any piece

# Letters, with the vowel signs and accents that stand within words. Digits and punctuation separate words.
_INNER_MARKS: Final = (
    "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0971-\u09e3\u09fc-\u0a63\u0a70-\u0ae3"
    "\u0af9-\u0b63\u0b71-\u0be5\u0c00-\u0c63\u0c80-\u0ce3\u0cf3-\u0d63\u0e31-\u0e4e\u3099\u309a\u30fc"
)
_SEGMENTED_WORD: Final = re.compile(f"(?:[^\\W\\d_]|[{_INNER_MARKS}])+")


def _normalize(text: str) -> str:
    """Return the text in compatibility form and small letters. Joiners within words are removed."""
    text = unicodedata.normalize("NFKC", split_identifiers(text[:MAX_SEGMENTED_CHARS])).lower()
    return text.replace("i\u0307", "i").replace("\u200d", "")


class UnigramPieces:
    """Splits text into the most probable pieces of a unigram vocabulary (Kudo, 2018), word by word."""

    def __init__(self, pieces: Sequence[str], scores: npt.NDArray[np.float32]) -> None:
        """Index pieces, in the order of their ids, and the logarithms of their probabilities."""
        self._pieces = pieces
        self._ids = {piece: number for number, piece in enumerate(pieces)}
        self._scores = scores.tolist()
        self._cache: dict[str, tuple[int, ...]] = {}

    def __call__(self, text: str, limit: int = MAX_UNIGRAM_PIECES) -> list[int]:
        """Return the ids of the first `limit` pieces of a text. Characters that no piece spells are skipped."""
        ids: list[int] = []
        for match in _SEGMENTED_WORD.finditer(_normalize(text)):
            word = match[0]
            pieces = self._cache.get(word)
            ids.extend(self._split_and_cache(word) if pieces is None else pieces)
            if len(ids) >= limit:
                return ids[:limit]
        return ids

    def __len__(self) -> int:
        return len(self._pieces)

    def knows(self, ids: Sequence[int]) -> bool:
        """Return whether the pieces spell any word that has a meaning here, and not only letters in a row.

        That is a word with a letter beyond ASCII, or one without single letters and with three letters a piece.
        """
        words: list[list[str]] = []
        for piece in map(self._pieces.__getitem__, ids):
            if piece.startswith(WORD_START) or not words:
                words.append([])
            words[-1].append(piece.removeprefix(WORD_START))
        return any(
            not "".join(word).isascii()
            or (min(map(len, word)) > 1 and sum(map(len, word)) >= MIN_LETTERS_OF_PIECE * len(word))
            for word in words
        )

    def _split_and_cache(self, word: str) -> tuple[int, ...]:
        pieces = self._split(WORD_START + word)
        if len(word) <= MAX_CACHED_SEGMENT_CHARS:
            if len(self._cache) >= MAX_CACHED_SEGMENTS:
                self._cache.clear()
            self._cache[word] = pieces
        return pieces

    def _split(self, word: str) -> tuple[int, ...]:
        """Return the ids of the pieces whose scores have the greatest sum (Viterbi)."""
        size, ids, scores = len(word), self._ids, self._scores
        best, origins = [0.0, *[-np.inf] * size], [(0, -1)] * (size + 1)
        for start in range(size):
            base = best[start]
            skipped = base + (0.0 if word[start] == WORD_START else _SKIP_SCORE)
            if skipped > best[start + 1]:
                best[start + 1], origins[start + 1] = skipped, (start, -1)
            for end in range(start + 1, min(size, start + MAX_PIECE_CHARS) + 1):
                number = ids.get(word[start:end])
                if number is not None and base + scores[number] > best[end]:
                    best[end], origins[end] = base + scores[number], (start, number)
        pieces, end = [], size
        while end:
            end, number = origins[end]
            if number >= 0:
                pieces.append(number)
        return tuple(reversed(pieces))


class MultilingualTable:
    """Encodes texts in many languages with vectors of pieces, stored by product quantisation.

    A piece has one byte for each group of dimensions, which picks a part of its direction out of 256 (Jégou et al.,
    2011), and a length, which is the weight of the piece. Dimension `i` belongs to group `i % groups`.
    """

    def __init__(self, folder: Path, encoder: str) -> None:
        """Load a folder written by `scripts/make_multilingual.py`.

        Args:
            folder: of the table.
            encoder: fingerprint of the English encoder whose space the vectors must lie in.

        Raises:
            StoreError: if the folder holds no table for this encoder, or a damaged one.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
            pieces = (folder / "pieces.txt").read_text(encoding="utf-8").split("\n")
            tensors = load_file(folder / "vectors.safetensors")
            self._codes, self._parts = tensors["codes"], tensors["parts"].astype(np.float32)
            self._lengths = tensors["lengths"].astype(np.float32)
            groups, dim = self._codes.shape[1], manifest["dim"]
            intact = (
                manifest["format"] == MULTILINGUAL_FORMAT
                and self._codes.dtype == np.uint8
                and self._parts.shape == (groups, 256, -(-dim // groups))
                and self._codes.shape[0] == len(pieces)
                and self._lengths.shape == tensors["scores"].shape == (len(pieces),)
            )
            made_for = manifest["encoder"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError, msgspec.MsgspecError):
            intact, made_for = False, encoder
        if not intact:
            raise StoreError(
                f"The multilingual table in {folder} is damaged or not of format {MULTILINGUAL_FORMAT}. "
                "Install toolscout again."
            )
        if made_for != encoder:
            raise StoreError(
                f"The multilingual table in {folder} was made for the encoder {made_for}, not for {encoder}. "
                "Make it anew with scripts/make_multilingual.py, or install toolscout again."
            )
        self.dim: int = dim
        self.fingerprint: str = manifest["fingerprint"]
        self.pieces = UnigramPieces(pieces, tensors["scores"].astype(np.float32))

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode texts as `(n, dim)` float32 unit rows; a text without known words gives a row of zeros."""
        bags = [ids if self.pieces.knows(ids) else [] for ids in map(self.pieces, texts)]
        rows = [self.look_up(ids).sum(axis=0) for ids in bags]
        return unit_rows(np.stack(rows)) if rows else np.zeros((0, self.dim), dtype=np.float32)

    def look_up(self, ids: Sequence[int]) -> Vectors:
        """Return the vectors of pieces, `(n, dim)` float32; their lengths are their weights."""
        numbers = np.asarray(ids, dtype=np.int64)
        parts = self._parts[np.arange(self._codes.shape[1]), self._codes[numbers]]
        width = self._parts.shape[0] * self._parts.shape[2]
        rows = parts.transpose(0, 2, 1).reshape(len(numbers), width)[:, : self.dim]
        vectors: Vectors = rows * self._lengths[numbers, None]
        return vectors
