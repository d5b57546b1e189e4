"""The bundled encoder averages one vector per word piece. It works offline, and is deterministic.

Texts that are not English are read with a multilingual table, which is loaded when the first of them comes
(`toolscout.encoders.multilingual`).
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.encoders.encoder import ENGLISH, Kind, Vectors, split_identifiers, unit_rows
from toolscout.encoders.languages import is_foreign, is_plainly_foreign
from toolscout.encoders.multilingual import LANGUAGES, MULTILINGUAL_SUBFOLDER, MultilingualTable
from toolscout.errors import StoreError

__all__ = ["StaticEncoder", "WordPieces", "load_static"]

STATIC_ENCODER_FOLDER: Final = Path(__file__).with_name("static_data")
STATIC_FORMAT: Final = "toolscout-static/1"
MAX_PIECES: Final = 256
MAX_PIECED_WORD_CHARS: Final = 64
MAX_CACHED_WORD_PIECES: Final = 100_000
PARTIAL_SUMS: Final = 8
MAX_SUMMED_ROWS: Final = 128
MAX_CACHED_QUERIES: Final = 64  # of one call, and MAX_CACHED_CALLS times as many of all calls
MAX_CACHED_CALLS: Final = 4
# A run of letters and digits, or one character of a script written without spaces.
_IDEOGRAPHS: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_PIECED_WORD: Final = re.compile(f"[{_IDEOGRAPHS}]|[^\\W_{_IDEOGRAPHS}]+")


class WordPieces:
    """Splits lower-case words without accents greedily into the longest pieces of a vocabulary.

    A piece inside a word begins with `##`. Punctuation and words that the pieces cannot spell are skipped.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        """Index the pieces, given in the order of their ids."""
        self._ids = {piece: number for number, piece in enumerate(pieces)}
        self._inner = {number for piece, number in self._ids.items() if piece.startswith("##")}
        self._wholes = {number for piece, number in self._ids.items() if len(piece) > 1} - self._inner
        self._cache: dict[str, tuple[int, ...]] = {}

    def __call__(self, text: str, limit: int = MAX_PIECES) -> list[int]:
        """Return the ids of the first `limit` pieces of a text."""
        text = split_identifiers(text)
        if not text.isascii():
            text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
        ids: list[int] = []
        for match in _PIECED_WORD.finditer(text.lower()):
            word = match[0]
            pieces = self._cache.get(word)
            ids.extend(self._split_and_cache(word) if pieces is None else pieces)
            if len(ids) >= limit:
                return ids[:limit]
        return ids

    def __len__(self) -> int:
        return len(self._ids)

    def knows(self, ids: Sequence[int]) -> bool:
        """Return whether any piece is an entire word. A text of fragments alone has no meaning to the encoder.

        A piece is an entire word if it begins a word and no inner piece follows. Single characters do not count.
        """
        later = [*ids[1:], -1]
        return any(
            piece in self._wholes and following not in self._inner for piece, following in zip(ids, later, strict=True)
        )

    def is_word(self, word: str) -> bool:
        """Whether one piece spells this word, in small letters and without accents, as a whole."""
        return self._ids.get(word, -1) in self._wholes

    def list_words(self) -> dict[str, int]:
        """Return the ids of the pieces that are entire words."""
        return {piece: number for piece, number in self._ids.items() if number in self._wholes}

    def _split_and_cache(self, word: str) -> tuple[int, ...]:
        pieces = self._split(word) if len(word) <= MAX_PIECED_WORD_CHARS else ()
        if len(self._cache) >= MAX_CACHED_WORD_PIECES:
            self._cache.clear()
        self._cache[word] = pieces
        return pieces

    def _split(self, word: str) -> tuple[int, ...]:
        """Return the ids of the longest pieces that spell a word, from left to right. Empty if none fits somewhere."""
        ids: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            for end in range(len(word), start, -1):
                number = self._ids.get(mark + word[start:end])
                if number is not None:
                    break
            else:
                return ()
            ids.append(number)
            start = end
        return tuple(ids)


class StaticEncoder:
    """Encodes texts with vectors of word pieces, stored as 8-bit integers with one scale per piece.

    Attributes:
        dim: length of a vector.
        fingerprint: fingerprint of vectors and vocabulary for English.
        languages: English, and those of the multilingual table where the folder has one.
        multilingual_folder: folder of that table.
        max_tokens: maximum pieces of a text.
    """

    name = "static"
    cheap = True
    languages: frozenset[str] | None = ENGLISH
    max_tokens = MAX_PIECES

    def __init__(self, folder: Path = STATIC_ENCODER_FOLDER) -> None:
        """Load a folder written by `scripts/make_static_encoder.py`.

        Raises:
            StoreError: if the folder holds no static encoder, or a damaged one.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
            pieces = (folder / "pieces.txt").read_text(encoding="utf-8").split("\n")
            tensors = load_file(folder / "vectors.safetensors")
            self._rows, self._scales = tensors["rows"], tensors["scales"].astype(np.float32)
            intact = (
                manifest["format"] == STATIC_FORMAT
                and self._rows.dtype == np.int8
                and self._rows.shape == (len(pieces), manifest["dim"])
                and self._scales.shape == (len(pieces),)
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError, msgspec.MsgspecError):
            intact = False
        if not intact:
            raise StoreError(
                f"The static encoder in {folder} is damaged or not of format {STATIC_FORMAT}. Install toolscout again."
            )
        self.dim: int = manifest["dim"]
        self.fingerprint: str = manifest["fingerprint"]
        self.pieces = WordPieces(pieces)
        self.multilingual_folder = folder / MULTILINGUAL_SUBFOLDER
        self._has_multilingual = self.multilingual_folder.is_dir()
        if self._has_multilingual:
            self.languages = ENGLISH | LANGUAGES
        self._query_cache: dict[str, Vectors] = {}

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Encode texts as `(n, dim)` float32 unit rows.

        A tool without known pieces, and a query without known words, gives a row of zeros. The last queries are cached,
        because ranking and abstention encode the same request, and each of its steps, one after the other.

        Raises:
            StoreError: for the first text that is not English, if the multilingual table is damaged.
        """
        if kind == "tool" or len(texts) > MAX_CACHED_QUERIES:
            return self._encode_rows(texts, kind)
        cache = self._query_cache
        missing = [text for text in dict.fromkeys(texts) if text not in cache]
        if missing:
            if len(cache) + len(missing) > MAX_CACHED_CALLS * MAX_CACHED_QUERIES:
                cache = {text: cache[text] for text in texts if text in cache}
            cache.update(zip(missing, self._encode_rows(missing, kind), strict=True))
            self._query_cache = cache
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            vector[:] = cache[text]
        return vectors

    def _encode_rows(self, texts: Sequence[str], kind: Kind) -> Vectors:
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            bag = self.pieces(text)
            if bag and (kind == "tool" or self.pieces.knows(bag)):
                row[:] = _sum_rows(self.look_up(bag))
        if self._has_multilingual:
            foreign = [i for i, text in enumerate(texts) if self._is_foreign(text, kind)]
            if foreign:
                vectors[foreign] = self.multilingual.encode([texts[i] for i in foreign])
        return unit_rows(vectors)

    def look_up(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> Vectors:
        """Return the vectors of English pieces, `(n, dim)` float32; their lengths are their weights."""
        numbers = np.asarray(ids, dtype=np.int64)
        vectors: Vectors = self._rows[numbers] * self._scales[numbers, None]
        return vectors

    def _is_foreign(self, text: str, kind: Kind) -> bool:
        """Tell whether the multilingual table reads a text. A tool's text must show that it is not English."""
        return is_plainly_foreign(text) if kind == "tool" else is_foreign(text, self.pieces.is_word)

    @functools.cached_property
    def multilingual(self) -> MultilingualTable:
        """The table for other languages, loaded with the first text that needs it."""
        return MultilingualTable(self.multilingual_folder, self.fingerprint)


def _sum_rows(rows: Vectors) -> Vectors:
    """Return the sum of rows, `(d,)`, in the order of additions of `numpy.add.reduceat`, which is slow."""
    total: Vectors = rows[0] if len(rows) == 1 else rows[0] + _sum_pairwise(rows[1:])
    return total


def _sum_pairwise(rows: Vectors) -> Vectors:
    """Return the sum of rows, at least one: eight partial sums, their sum, and the rows that are left."""
    if len(rows) > MAX_SUMMED_ROWS:
        half = len(rows) // 2
        half -= half % PARTIAL_SUMS
        return _sum_pairwise(rows[:half]) + _sum_pairwise(rows[half:])
    n_even = len(rows) - len(rows) % PARTIAL_SUMS
    total: Vectors
    if not n_even:
        total = np.add.reduce(rows, axis=0)
        return total
    sums = np.add.reduce(rows[:n_even].reshape(-1, PARTIAL_SUMS, rows.shape[1]), axis=0)
    sums = sums[0::2] + sums[1::2]
    sums = sums[0::2] + sums[1::2]
    total = sums[0] + sums[1]
    for row in rows[n_even:]:
        total = total + row
    return total


@functools.lru_cache(maxsize=1)
def load_static() -> StaticEncoder:
    """Return the bundled encoder. A process loads it once: ranking, abstention and screening share it.

    Raises:
        StoreError: if it is damaged.
    """
    return StaticEncoder()
