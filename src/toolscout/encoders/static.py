"""The bundled encoder: it averages one vector per word piece, works offline, and is deterministic.

A *piece* is a word or a part of a word. Its number, or id, is its row in a table of vectors.

Texts that are not English are read with a multilingual table, which is loaded with the first of them. It has one vector
for each piece of a multilingual vocabulary. The sum of the vectors of a text's pieces is near the English encoder's
vector of the translation, so one vector per tool serves all languages.
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
MAX_PIECES: Final = 256  # of a text; further ones are ignored
MAX_PIECED_WORD_CHARS: Final = 64  # a longer word has no pieces
MAX_CACHED_WORD_PIECES: Final = 100_000  # words whose pieces are cached
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
WORD_START: Final = "▁"  # prefix of a piece that begins a word, as in SentencePiece
MAX_UNIGRAM_PIECES: Final = 256  # of a text; further ones are ignored
MAX_PIECE_CHARS: Final = 16
MIN_LETTERS_OF_PIECE: Final = 3  # mean over the pieces of a word in plain Latin letters; see `UnigramPieces.knows`
MAX_SEGMENTED_CHARS: Final = 4_000  # of a text; the rest is ignored
MAX_CACHED_SEGMENTS: Final = 50_000  # words whose pieces are cached
MAX_CACHED_SEGMENT_CHARS: Final = 64  # of such a word
_SKIP_SCORE: Final = -30.0  # of a character that no piece spells: worse than any piece

# Letters, with the vowel signs and accents that are within words. Digits and punctuation separate words.
_INNER_MARKS: Final = (
    "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0971-\u09e3\u09fc-\u0a63\u0a70-\u0ae3"
    "\u0af9-\u0b63\u0b71-\u0be5\u0c00-\u0c63\u0c80-\u0ce3\u0cf3-\u0d63\u0e31-\u0e4e\u3099\u309a\u30fc"
)
_SEGMENTED_WORD: Final = re.compile(f"(?:[^\\W\\d_]|[{_INNER_MARKS}])+")


class WordPieces:
    """Splits words, in small letters and without accents, greedily into the longest pieces of a vocabulary.

    A piece inside a word begins with `##`. Punctuation and words that the pieces cannot spell are skipped.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        """Index the pieces, given in the order of their ids."""
        self._ids = {piece: number for number, piece in enumerate(pieces)}
        self._inner_ids = {number for piece, number in self._ids.items() if piece.startswith("##")}
        self._word_ids = {number for piece, number in self._ids.items() if len(piece) > 1} - self._inner_ids
        self._split_cached = functools.lru_cache(MAX_CACHED_WORD_PIECES)(self._split)

    def __call__(self, text: str, limit: int = MAX_PIECES) -> list[int]:
        """Return the ids of the first `limit` pieces of a text."""
        text = split_identifiers(text)
        if not text.isascii():
            text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
        ids: list[int] = []
        for match in _PIECED_WORD.finditer(text.lower()):
            ids.extend(self._split_cached(match[0]))
            if len(ids) >= limit:
                return ids[:limit]
        return ids

    def __len__(self) -> int:
        return len(self._ids)

    def knows(self, ids: Sequence[int]) -> bool:
        """Return whether a text, given by its pieces, has an entire word. Fragments alone mean nothing to the encoder.

        A piece is an entire word if it begins a word and no inner piece follows. Single characters do not count.
        """
        following_ids = [*ids[1:], -1]  # no piece follows the last one
        return any(
            piece in self._word_ids and following not in self._inner_ids
            for piece, following in zip(ids, following_ids, strict=True)
        )

    def is_word(self, word: str) -> bool:
        """Tell whether a word, in small letters and without accents, is one piece as a whole."""
        return self._ids.get(word, -1) in self._word_ids

    def list_words(self) -> dict[str, int]:
        """Return the pieces that are entire words: word → id."""
        return {piece: number for piece, number in self._ids.items() if number in self._word_ids}

    def _split(self, word: str) -> tuple[int, ...]:
        """Return the ids of the longest pieces that spell a word, from left to right; none if they cannot spell it."""
        if len(word) > MAX_PIECED_WORD_CHARS:
            return ()
        ids: list[int] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                number = self._ids.get(prefix + word[start:end])
                if number is not None:
                    break
            else:  # no piece fits here
                return ()
            ids.append(number)
            start = end
        return tuple(ids)


def _normalize(text: str) -> str:
    """Return the beginning of a text in compatibility form and small letters. Joiners within words are removed."""
    text = unicodedata.normalize("NFKC", split_identifiers(text[:MAX_SEGMENTED_CHARS])).lower()
    return text.replace("i\u0307", "i").replace("\u200d", "")  # the dot that İ leaves behind; the zero-width joiner


class UnigramPieces:
    """Splits text into the most probable pieces of a unigram vocabulary (Kudo, 2018), word by word."""

    def __init__(self, pieces: Sequence[str], scores: npt.NDArray[np.float32]) -> None:
        """Index pieces, in the order of their ids; `scores`: the logarithms of their probabilities."""
        self._pieces = pieces
        self._ids = {piece: number for number, piece in enumerate(pieces)}
        self._scores = scores.tolist()
        self._split_cached = functools.lru_cache(MAX_CACHED_SEGMENTS)(self._split)

    def __call__(self, text: str, limit: int = MAX_UNIGRAM_PIECES) -> list[int]:
        """Return the ids of the first `limit` pieces of a text. Characters that no piece spells are skipped."""
        ids: list[int] = []
        for match in _SEGMENTED_WORD.finditer(_normalize(text)):
            split = self._split_cached if len(match[0]) <= MAX_CACHED_SEGMENT_CHARS else self._split
            ids.extend(split(WORD_START + match[0]))
            if len(ids) >= limit:
                return ids[:limit]
        return ids

    def __len__(self) -> int:
        return len(self._pieces)

    def knows(self, ids: Sequence[int]) -> bool:
        """Return whether a text, given by its pieces, has a word that means something, rather than letters in a row.

        Such a word has a letter beyond ASCII, or it has no piece of one letter, and on average at least
        `MIN_LETTERS_OF_PIECE` letters a piece.
        """
        words: list[list[str]] = []  # the pieces of each word
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
        """Return the ids of the pieces of a word that have the greatest sum of scores (Viterbi)."""
        size, ids, scores = len(word), self._ids, self._scores
        # For each end of a prefix: the best score, and (start, id) of its last piece; id -1: a skipped character.
        best, last_pieces = [0.0, *[-np.inf] * size], [(0, -1)] * (size + 1)
        for start in range(size):
            score_before = best[start]
            score_if_skipped = score_before + (0.0 if word[start] == WORD_START else _SKIP_SCORE)
            if score_if_skipped > best[start + 1]:
                best[start + 1], last_pieces[start + 1] = score_if_skipped, (start, -1)
            for end in range(start + 1, min(size, start + MAX_PIECE_CHARS) + 1):
                number = ids.get(word[start:end])
                if number is not None and score_before + scores[number] > best[end]:
                    best[end], last_pieces[end] = score_before + scores[number], (start, number)
        pieces, end = [], size
        while end:  # from the last piece to the first
            end, number = last_pieces[end]
            if number >= 0:
                pieces.append(number)
        return tuple(reversed(pieces))


class TableManifest(msgspec.Struct, frozen=True):
    """The `manifest.json` of a table of vectors.

    Attributes:
        format: of its files.
        dim: length of a vector.
        fingerprint: changes with vectors and vocabulary.
        encoder: fingerprint of the English encoder that a multilingual table belongs to; "" for an English table.
    """

    format: str
    dim: int
    fingerprint: str
    encoder: str = ""


def _read_table(folder: Path, name: str, expected_format: str) -> tuple[TableManifest, list[str], Arrays]:
    """Read the manifest, the pieces and the arrays of a table of vectors.

    Args:
        folder: of the table.
        name: of the table, for the message.
        expected_format: format of the table.

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
    """Tell whether the arrays of a table have the types and shapes of `n_pieces` vectors of length `dim`."""
    if "rows" in tensors:  # an English table; see `StaticEncoder`
        rows, scales = tensors["rows"], tensors["scales"]
        return rows.dtype == np.int8 and rows.shape == (n_pieces, dim) and scales.shape == (n_pieces,)
    codes, n_groups = tensors["codes"], tensors["codes"].shape[1]  # see `MultilingualTable`
    return (
        codes.dtype == np.uint8
        and len(codes) == n_pieces
        and tensors["parts"].shape == (n_groups, 256, -(-dim // n_groups))
        and tensors["lengths"].shape == tensors["scores"].shape == (n_pieces,)
    )


class MultilingualTable:
    """Encodes texts in many languages with vectors of pieces, stored by product quantisation.

    The dimensions are divided into groups: dimension `i` belongs to group `i % n_groups`. A piece has one byte for each
    group, which selects one of 256 stored parts of vectors (Jégou et al., 2011). The parts of all groups are the
    direction of its vector. Its length is stored too; it is the weight of the piece in a text.

    Attributes:
        dim: length of a vector.
        fingerprint: changes with vectors and vocabulary.
        pieces: splits texts into pieces.
    """

    def __init__(self, folder: Path, encoder: str) -> None:
        """Load a folder written by `scripts/make_multilingual.py`.

        Args:
            folder: of the table.
            encoder: fingerprint of the English encoder with which the vectors must be comparable.

        Raises:
            StoreError: if the folder has no table for this encoder, or a damaged one.
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
        known_pieces = [ids if self.pieces.knows(ids) else [] for ids in map(self.pieces, texts)]
        rows = [self.look_up(ids).sum(axis=0) for ids in known_pieces]
        return unit_rows(np.stack(rows)) if rows else np.zeros((0, self.dim), dtype=np.float32)

    def look_up(self, ids: Sequence[int]) -> Vectors:
        """Return the vectors of pieces, `(n, dim)` float32; their lengths are their weights."""
        numbers = np.asarray(ids, dtype=np.int64)
        n_groups, _, part_length = self._parts.shape
        parts = self._parts[np.arange(n_groups), self._codes[numbers]]  # (n, n_groups, part_length)
        # Transposed, dimension `i` is in group `i % n_groups`. The last ones may only fill up the groups.
        rows = parts.transpose(0, 2, 1).reshape(len(numbers), n_groups * part_length)[:, : self.dim]
        vectors: Vectors = rows * self._lengths[numbers, None]
        return vectors


class StaticEncoder:
    """Encodes texts with vectors of word pieces, stored as 8-bit integers with one scale per piece.

    Attributes:
        dim: length of a vector.
        fingerprint: fingerprint of vectors and vocabulary for English.
        languages: English, and the languages of the multilingual table if the folder has one.
        pieces: splits English texts into pieces.
        multilingual_folder: folder of the multilingual table.
        max_tokens: maximum pieces of a text.
    """

    name = "static"
    cheap = True
    languages: frozenset[str] | None = ENGLISH
    max_tokens = MAX_PIECES

    def __init__(self, folder: Path = STATIC_ENCODER_FOLDER) -> None:
        """Load a folder written by `scripts/make_static_encoder.py`.

        Raises:
            StoreError: if the folder has no static encoder, or a damaged one.
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
        if len(cache) + len(texts) > MAX_CACHED_CALLS * MAX_CACHED_QUERIES:  # full: keep only what is asked for now
            cache = self._query_cache = {text: cache[text] for text in texts if text in cache}
        missing = [text for text in dict.fromkeys(texts) if text not in cache]
        if missing:
            cache.update(zip(missing, self._encode_rows(missing, kind), strict=True))
        return np.array([cache[text] for text in texts], dtype=np.float32).reshape(len(texts), self.dim)

    def _encode_rows(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Encode texts without the cache. Those that are not English are read with the multilingual table."""
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            ids = self.pieces(text)
            if ids and (kind == "tool" or self.pieces.knows(ids)):
                row[:] = self.look_up(ids).sum(axis=0)
        if self._has_multilingual:
            foreign_rows = [row for row, text in enumerate(texts) if self._is_foreign(text, kind)]
            if foreign_rows:
                vectors[foreign_rows] = self.multilingual.encode([texts[row] for row in foreign_rows])
        return unit_rows(vectors)

    def look_up(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> Vectors:
        """Return the vectors of English pieces, `(n, dim)` float32; their lengths are their weights."""
        numbers = np.asarray(ids, dtype=np.int64)
        vectors: Vectors = self._rows[numbers] * self._scales[numbers, None]
        return vectors

    def _is_foreign(self, text: str, kind: Kind) -> bool:
        """Tell whether a text is read with the multilingual table. Of a tool, it must show that it is not English."""
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
