"""Puts English words in the place of foreign ones: 获取新闻 becomes "get news".

The pieces of the multilingual table lie in the space of the bundled English encoder. So the nearest English word of a
piece is often its translation. That is enough for an encoder that reads only English to rank a tool that is described
in another language.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from toolscout.encoders.encoder import Vectors, unit_rows
from toolscout.encoders.static import StaticEncoder

__all__ = ["GLOSS_FORMAT", "Glossary"]

GLOSS_FORMAT: Final = "gloss/1"
MIN_COSINE: Final = 0.65  # of a piece and the English word that stands for it
MAX_GLOSSES: Final = 50_000
MIN_WORD_CHARS: Final = 3
_LETTERS_OF_WORD: Final = re.compile(r"[^\W\d_]+")
_OTHER_SCRIPT: Final = re.compile("[\u0370-\u1fff\u2c00-\ud7ff]")


class Glossary:
    """Finds the nearest English words of foreign ones."""

    def __init__(self, encoder: StaticEncoder) -> None:
        """Keep the bundled encoder. The vectors of its words are read with the first foreign word."""
        self._encoder = encoder
        self._find_word = functools.lru_cache(maxsize=MAX_GLOSSES)(self._search_word)

    def translate(self, text: str) -> str:
        """Return a text with English words for the foreign ones.

        Beside another script, words in plain Latin letters stay: they are English, or names. Elsewhere those stay that
        the bundled encoder knows as a whole.
        """
        keeps_latin = _OTHER_SCRIPT.search(text) is not None
        return " ".join(_LETTERS_OF_WORD.sub(lambda match: self._replace(match[0], keeps_latin), text).split())

    def _replace(self, word: str, keeps_latin: bool) -> str:
        if (keeps_latin and word.isascii()) or self._encoder.pieces.is_word(word.lower()):
            return word
        pieces = self._encoder.multilingual.pieces(word)
        glosses = [gloss for gloss in map(self._find_word, pieces) if gloss]
        return f" {' '.join(glosses)} " if glosses or not word.isascii() else word

    def _search_word(self, piece: int) -> str:
        """Return the nearest English word of a piece; empty if none is near."""
        [vector] = unit_rows(self._encoder.multilingual.look_up([piece]))
        words, rows = self._words
        cosines = rows @ vector
        best = int(cosines.argmax())
        return words[best] if cosines[best] >= MIN_COSINE else ""

    @functools.cached_property
    def _words(self) -> tuple[tuple[str, ...], Vectors]:
        """The whole words of the bundled encoder, and their directions."""
        words = {
            word: number
            for word, number in self._encoder.pieces.list_words().items()
            if len(word) >= MIN_WORD_CHARS and word.isascii() and word.isalpha()
        }
        return tuple(words), unit_rows(self._encoder.look_up(list(words.values())))
