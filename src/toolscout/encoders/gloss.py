"""Puts English words, *glosses*, in the place of foreign ones: 获取新闻 becomes "get news".

The multilingual table has a vector for each piece of a word (`static.MultilingualTable`). These vectors are comparable
with the bundled encoder's vectors of English words, so the nearest English word of a piece is often its translation.
That is enough for an encoder that reads only English to rank a tool that is described in another language, and for BM25
to find it by English words.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from toolscout.encoders.encoder import Vectors, unit_rows
from toolscout.encoders.languages import is_plainly_foreign
from toolscout.encoders.static import StaticEncoder, load_static
from toolscout.errors import StoreError

__all__ = ["GLOSSES_FILE", "GLOSS_FORMAT", "Glossary", "find_glosses", "load_glossary"]

GLOSS_FORMAT: Final = "gloss/1"
GLOSSES_FILE: Final = "glosses.safetensors"
MIN_COSINE: Final = 0.65  # of a piece and its gloss
MIN_WORD_CHARS: Final = 3  # of an English word that can be a gloss
NO_GLOSS: Final = 2**16 - 1  # in an array of glosses: no English word is near enough
PIECES_AT_ONCE: Final = 2048
_LETTERS_OF_WORD: Final = re.compile(r"[^\W\d_]+")
_OTHER_SCRIPT: Final = re.compile("[\u0370-\u1fff\u2c00-\ud7ff]")

Glosses = npt.NDArray[np.uint16]


class Glossary:
    """Finds the glosses of foreign words."""

    def __init__(self, encoder: StaticEncoder) -> None:
        """Keep the bundled encoder. The file of its glosses is read with the first foreign word."""
        self._encoder = encoder

    def translate(self, text: str) -> str:
        """Return a text in which glosses replace the foreign words; see `_replace_words` for which words these are."""

        def replace(word: str, glosses: Sequence[str]) -> str:
            return f" {' '.join(glosses)} " if glosses or not word.isascii() else word

        return self._replace_words(text, replace)

    def list_words(self, text: str) -> list[str]:
        """Return the glosses of the foreign words of a text, in order; none for an English text."""
        if not is_plainly_foreign(text):
            return []
        words: list[str] = []

        def collect(_: str, glosses: Sequence[str]) -> str:
            words.extend(glosses)
            return ""

        self._replace_words(text, collect)
        return words

    def _replace_words(self, text: str, replace: Callable[[str, Sequence[str]], str]) -> str:
        """Replace each foreign word of a text by what `replace` makes of the word and its glosses.

        Words that the bundled encoder knows as a whole are not foreign. In a text with another script, no word in plain
        Latin letters is foreign: it is English, or a name.
        """
        keeps_latin = _OTHER_SCRIPT.search(text) is not None

        def replace_match(match: re.Match[str]) -> str:
            word = match[0]
            if (keeps_latin and word.isascii()) or self._encoder.pieces.is_word(word.lower()):
                return word
            return replace(word, self._find_glosses_of(word))

        return " ".join(_LETTERS_OF_WORD.sub(replace_match, text).split())

    def _find_glosses_of(self, word: str) -> list[str]:
        """Return the glosses of the pieces of a foreign word, in order; a piece may have none."""
        pieces = self._encoder.multilingual.pieces(word)
        numbers = self._glosses[pieces].tolist()
        return [self._english_words[number] for number in numbers if number != NO_GLOSS]

    @functools.cached_property
    def _glosses(self) -> Glosses:
        """For each piece of the multilingual table, the number of its gloss among the encoder's pieces, or NO_GLOSS."""
        return read_glosses(self._encoder)

    @functools.cached_property
    def _english_words(self) -> dict[int, str]:
        """The words that the bundled encoder knows as a whole, by the numbers of their pieces."""
        return {number: word for word, number in self._encoder.pieces.list_words().items()}


def find_glosses(encoder: StaticEncoder, pieces: Sequence[int]) -> Glosses:
    """Compute the glosses of pieces of the multilingual table.

    Args:
        encoder: has the table and the English words.
        pieces: numbers of pieces of the table.

    Returns:
        `(len(pieces),)`, the number of the nearest English word among the encoder's pieces; `NO_GLOSS`: none is near.
    """
    numbers = np.array(
        [
            number
            for word, number in encoder.pieces.list_words().items()
            if len(word) >= MIN_WORD_CHARS and word.isascii() and word.isalpha()
        ],
        dtype=np.uint16,
    )
    directions = unit_rows(encoder.look_up(numbers.astype(np.int64)))
    glosses = np.full(len(pieces), NO_GLOSS, dtype=np.uint16)
    for start in range(0, len(pieces), PIECES_AT_ONCE):
        cosines: Vectors = (
            unit_rows(encoder.multilingual.look_up(pieces[start : start + PIECES_AT_ONCE])) @ directions.T
        )
        best = cosines.argmax(axis=1)
        is_near = cosines[np.arange(len(best)), best] >= MIN_COSINE
        glosses[start : start + len(best)][is_near] = numbers[best[is_near]]
    return glosses


def read_glosses(encoder: StaticEncoder) -> Glosses:
    """Read the file that `scripts/make_glosses.py` writes beside the multilingual table.

    Raises:
        StoreError: if it is missing, damaged, or was made for another encoder or table.
    """
    from safetensors import SafetensorError, safe_open

    file, table = encoder.multilingual_folder / GLOSSES_FILE, encoder.multilingual
    try:
        with safe_open(file, framework="numpy") as tensors:
            facts, glosses = tensors.metadata() or {}, tensors.get_tensor("glosses")
        is_intact = (
            facts == describe_glosses(encoder) and glosses.dtype == np.uint16 and glosses.shape == (len(table.pieces),)
        )
    except (OSError, SafetensorError):
        is_intact = False
    if not is_intact:
        raise StoreError(f"{file} is damaged, or was made for another encoder. Install toolscout again.")
    read: Glosses = glosses
    return read


def describe_glosses(encoder: StaticEncoder) -> dict[str, str]:
    """Return what the glosses depend on, as their file states it."""
    return {"format": GLOSS_FORMAT, "encoder": encoder.fingerprint, "table": encoder.multilingual.fingerprint}


@functools.lru_cache(maxsize=1)
def load_glossary() -> Glossary:
    """Return the glossary of the bundled encoder. A process loads it once.

    Raises:
        StoreError: if the bundled encoder is damaged.
    """
    return Glossary(load_static())
