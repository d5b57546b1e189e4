"""The bundled encoder: one vector for each piece of a word, a text is their mean. Offline, deterministic, English."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from toolscout.encoders import Kind, Vectors, split_identifiers, unit_rows
from toolscout.errors import StoreError

__all__ = ["StaticEncoder", "WordPieces"]

BUNDLED: Final = Path(__file__).with_name("static_data")
FORMAT: Final = "toolscout-static/1"
MAX_PIECES: Final = 256
_MAX_WORD: Final = 64
_MOST_CACHED: Final = 100_000
_BATCH: Final = 1024
_KEPT: Final = 64
# A run of letters and digits, or one character of a script written without spaces.
_IDEOGRAPHS: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD: Final = re.compile(f"[{_IDEOGRAPHS}]|[^\\W_{_IDEOGRAPHS}]+")


class WordPieces:
    """Words in lower case without accents, each cut greedily into the longest pieces that the vocabulary has.

    A piece that goes on a word begins with `##`. Punctuation, and words that the pieces cannot spell, are left out.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        """Take the pieces in the order of their ids."""
        self._ids = {piece: number for number, piece in enumerate(pieces)}
        self._inner = {number for piece, number in self._ids.items() if piece.startswith("##")}
        self._wholes = {number for piece, number in self._ids.items() if len(piece) > 1} - self._inner
        self._known: dict[str, tuple[int, ...]] = {}

    def __call__(self, text: str, limit: int = MAX_PIECES) -> list[int]:
        """Ids of the first `limit` pieces of a text."""
        text = split_identifiers(text)
        if not text.isascii():
            text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
        ids: list[int] = []
        for match in _WORD.finditer(text.lower()):
            word = match[0]
            found = self._known.get(word)
            ids.extend(self._learn(word) if found is None else found)
            if len(ids) >= limit:
                return ids[:limit]
        return ids

    def knows(self, ids: Sequence[int]) -> bool:
        """Whether any of these pieces begins and ends a word: a text that is spelled in pieces alone says nothing.

        A piece that begins a word is whole if nothing that goes on a word follows it; single characters do not count.
        """
        later = [*ids[1:], -1]
        return any(
            piece in self._wholes and following not in self._inner for piece, following in zip(ids, later, strict=True)
        )

    def _learn(self, word: str) -> tuple[int, ...]:
        found = self._cut(word) if len(word) <= _MAX_WORD else ()
        if len(self._known) >= _MOST_CACHED:
            self._known.clear()
        self._known[word] = found
        return found

    def _cut(self, word: str) -> tuple[int, ...]:
        ids: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            for end in range(len(word), start, -1):
                found = self._ids.get(mark + word[start:end])
                if found is not None:
                    break
            else:
                return ()
            ids.append(found)
            start = end
        return tuple(ids)


class StaticEncoder:
    """Vectors of word pieces, kept as 8-bit whole numbers with one scale a piece.

    Attributes:
        dim: length of a vector.
        fingerprint: of the vectors and the vocabulary.
    """

    name = "static"
    cheap = True

    def __init__(self, folder: Path = BUNDLED) -> None:
        """Read a folder that `scripts/make_static_encoder.py` wrote.

        Raises:
            StoreError: if it is none, or damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            manifest = msgspec.json.decode((folder / "manifest.json").read_bytes())
            pieces = (folder / "pieces.txt").read_text(encoding="utf-8").split("\n")
            tensors = load_file(folder / "vectors.safetensors")
            self._rows, self._scales = tensors["rows"], tensors["scales"].astype(np.float32)
            whole = (
                manifest["format"] == FORMAT
                and self._rows.dtype == np.int8
                and self._rows.shape == (len(pieces), manifest["dim"])
                and self._scales.shape == (len(pieces),)
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError, msgspec.MsgspecError):
            whole = False
        if not whole:
            raise StoreError(
                f"{folder}: expected a static encoder of format {FORMAT}, found a damaged or another one: "
                "install toolscout again"
            )
        self.dim: int = manifest["dim"]
        self.fingerprint: str = manifest["fingerprint"]
        self.pieces = WordPieces(pieces)
        self._last: tuple[tuple[str, ...], Vectors] = ((), np.zeros((0, self.dim), dtype=np.float32))

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Texts → `(n, dim)` float32 unit rows; zeros for a text without known pieces, a query without known words.

        The last few queries are kept: what ranks the tools and what judges whether any fits ask one after the other.
        """
        if kind == "tool" or len(texts) > _KEPT:
            return self._encoded(texts, kind)
        last, rows = self._last
        if last != (key := tuple(texts)):
            rows = self._encoded(texts, kind)
            self._last = key, rows
        return rows.copy()

    def _encoded(self, texts: Sequence[str], kind: Kind) -> Vectors:
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for start in range(0, len(texts), _BATCH):
            bags = [self.pieces(text) for text in texts[start : start + _BATCH]]
            filled = [i for i, bag in enumerate(bags) if bag and (kind == "tool" or self.pieces.knows(bag))]
            if filled:
                ids = np.concatenate([bags[i] for i in filled])
                starts = np.cumsum([0, *(len(bags[i]) for i in filled[:-1])])
                rows = self._rows[ids] * self._scales[ids, None]
                vectors[np.add(filled, start)] = np.add.reduceat(rows, starts, axis=0)
        return unit_rows(vectors)
