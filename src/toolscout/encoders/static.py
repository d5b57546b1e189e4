"""The bundled encoder averages one vector per word piece. It works offline, and is deterministic.

Texts that are not English are read with a multilingual table, which is loaded when the first of them comes. It has one
vector for each piece of a multilingual vocabulary. The sum of the vectors of a text's pieces is near the English
encoder's vector of the translation, so one vector per tool serves all languages.
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

from toolscout.arrays import Arrays
from toolscout.encoders.encoder import ENGLISH, Kind, Vectors, split_identifiers, unit_rows
from toolscout.encoders.languages import is_foreign, is_plainly_foreign
from toolscout.errors import StoreError

__all__ = [
    "LANGUAGES",
    "MULTILINGUAL_FORMAT",
    "MULTILINGUAL_SUBFOLDER",
    "STATIC_ENCODER_FOLDER",
    "STATIC_FORMAT",
    "MultilingualTable",
    "StaticEncoder",
    "UnigramPieces",
    "WordPieces",
    "load_static",
]

STATIC_ENCODER_FOLDER: Final = Path(__file__).with_name("static_data")
STATIC_FORMAT: Final = "toolscout-static/1"
MAX_PIECES: Final = 256
MAX_PIECED_WORD_CHARS: Final = 64
MAX_CACHED_WORD_PIECES: Final = 100_000
MAX_CACHED_QUERIES: Final = 64  # of one call, and MAX_CACHED_CALLS times as many of all calls
MAX_CACHED_CALLS: Final = 4
# A run of letters and digits, or one character of a script written without spaces.
_IDEOGRAPHS: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_PIECED_WORD: Final = re.compile(f"[{_IDEOGRAPHS}]|[^\\W_{_IDEOGRAPHS}]+")

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

# Letters, with the vowel signs and accents that are within words. Digits and punctuation separate words.
_INNER_MARKS: Final = (
    "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0971-\u09e3\u09fc-\u0a63\u0a70-\u0ae3"
    "\u0af9-\u0b63\u0b71-\u0be5\u0c00-\u0c63\u0c80-\u0ce3\u0cf3-\u0d63\u0e31-\u0e4e\u3099\u309a\u30fc"
)
_SEGMENTED_WORD: Final = re.compile(f"(?:[^\\W\\d_]|[{_INNER_MARKS}])+")


class WordPieces:
    """Splits lower-case words without accents greedily into the longest pieces of a vocabulary.

    A piece inside a word begins with `##`. Punctuation and words that the pieces cannot spell are skipped.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        """Index the pieces, given in the order of their ids."""
        self._ids = {piece: number for number, piece in enumerate(pieces)}
        self._inner = {number for piece, number in self._ids.items() if piece.startswith("##")}
        self._wholes = {number for piece, number in self._ids.items() if len(piece) > 1} - self._inner
        self._split_once = functools.lru_cache(MAX_CACHED_WORD_PIECES)(self._split)

    def __call__(self, text: str, limit: int = MAX_PIECES) -> list[int]:
        """Return the ids of the first `limit` pieces of a text."""
        text = split_identifiers(text)
        if not text.isascii():
            text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
        ids: list[int] = []
        for match in _PIECED_WORD.finditer(text.lower()):
            ids.extend(self._split_once(match[0]))
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

    def _split(self, word: str) -> tuple[int, ...]:
        """Return the ids of the longest pieces that spell a word, from left to right. Empty if none fits somewhere."""
        if len(word) > MAX_PIECED_WORD_CHARS:
            return ()
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
        self._split_once = functools.lru_cache(MAX_CACHED_SEGMENTS)(self._split)

    def __call__(self, text: str, limit: int = MAX_UNIGRAM_PIECES) -> list[int]:
        """Return the ids of the first `limit` pieces of a text. Characters that no piece spells are skipped."""
        ids: list[int] = []
        for match in _SEGMENTED_WORD.finditer(_normalize(text)):
            split = self._split_once if len(match[0]) <= MAX_CACHED_SEGMENT_CHARS else self._split
            ids.extend(split(WORD_START + match[0]))
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


class TableManifest(msgspec.Struct, frozen=True):
    """What a table of vectors says of itself.

    Attributes:
        format: of its files.
        dim: length of a vector.
        fingerprint: changes with vectors and vocabulary.
        encoder: of a multilingual table, the fingerprint of the English encoder that it belongs to.
    """

    format: str
    dim: int
    fingerprint: str
    encoder: str = ""


def _read_table(folder: Path, name: str, expected_format: str) -> tuple[TableManifest, list[str], Arrays]:
    """Read the manifest, the pieces and the arrays of a table of vectors.

    Raises:
        StoreError: if the folder has no table of that format, or a damaged one.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        manifest = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=TableManifest)
        pieces = (folder / "pieces.txt").read_text(encoding="utf-8").split("\n")
        tensors = load_file(folder / "vectors.safetensors")
        is_intact = manifest.format == expected_format and _fits(manifest.dim, len(pieces), tensors)
    except (OSError, ValueError, KeyError, IndexError, SafetensorError, msgspec.MsgspecError):
        is_intact = False
    if not is_intact:
        raise StoreError(f"{name} in {folder} is damaged or not of format {expected_format}. Install toolscout again.")
    return manifest, pieces, tensors


def _fits(dim: int, n_pieces: int, tensors: Arrays) -> bool:
    """Tell whether the arrays of a table have the types and shapes of so many vectors."""
    if "rows" in tensors:
        rows, scales = tensors["rows"], tensors["scales"]
        return rows.dtype == np.int8 and rows.shape == (n_pieces, dim) and scales.shape == (n_pieces,)
    codes, groups = tensors["codes"], tensors["codes"].shape[1]
    return (
        codes.dtype == np.uint8
        and len(codes) == n_pieces
        and tensors["parts"].shape == (groups, 256, -(-dim // groups))
        and tensors["lengths"].shape == tensors["scores"].shape == (n_pieces,)
    )


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
        manifest, pieces, tensors = _read_table(folder, "The multilingual table", MULTILINGUAL_FORMAT)
        self._codes, self._parts = tensors["codes"], tensors["parts"].astype(np.float32)
        self._lengths, made_for = tensors["lengths"].astype(np.float32), manifest.encoder
        if made_for != encoder:
            raise StoreError(
                f"The multilingual table in {folder} was made for the encoder {made_for}, not for {encoder}. "
                "Make it anew with scripts/make_multilingual.py, or install toolscout again."
            )
        self.dim, self.fingerprint = manifest.dim, manifest.fingerprint
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
        manifest, pieces, tensors = _read_table(folder, "The static encoder", STATIC_FORMAT)
        self._rows, self._scales = tensors["rows"], tensors["scales"].astype(np.float32)
        self.dim, self.fingerprint = manifest.dim, manifest.fingerprint
        self.pieces = WordPieces(pieces)
        self.multilingual_folder = folder / MULTILINGUAL_SUBFOLDER
        self._has_multilingual = self.multilingual_folder.is_dir()
        if self._has_multilingual:
            self.languages = ENGLISH | LANGUAGES
        self._query_cache: dict[str, Vectors] = {}  # text → vector; see `encode`

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
        if len(cache) + len(texts) > MAX_CACHED_CALLS * MAX_CACHED_QUERIES:
            cache = self._query_cache = {text: cache[text] for text in texts if text in cache}
        missing = [text for text in dict.fromkeys(texts) if text not in cache]
        cache.update(zip(missing, self._encode_rows(missing, kind), strict=True))
        return np.array([cache[text] for text in texts], dtype=np.float32).reshape(len(texts), self.dim)

    def _encode_rows(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Encode texts without the cache.

        Those in another language than English get their vectors from the other table.
        """
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            bag = self.pieces(text)
            if bag and (kind == "tool" or self.pieces.knows(bag)):
                row[:] = self.look_up(bag).sum(axis=0)
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


@functools.lru_cache(maxsize=1)
def load_static() -> StaticEncoder:
    """Return the bundled encoder. A process loads it once: ranking, abstention and screening share it.

    Raises:
        StoreError: if it is damaged.
    """
    return StaticEncoder()
