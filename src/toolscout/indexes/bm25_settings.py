"""The settings of a BM25 index, and the kinds of terms that they give it."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.errors import ConfigError
from toolscout.indexes.words import Tokenizer, WordSplitter, tokenizer_for
from toolscout.types import STYLES, digest

__all__ = ["BM25_FORMAT", "CODE_SETTINGS", "PLAIN_SETTINGS", "WRITTEN_MARK", "BM25Settings", "TokenKind", "list_kinds"]

BM25_FORMAT: Final = "bm25/4"  # raise it whenever the same settings would give other terms or scores
WRITTEN_MARK: Final = "="  # prefix of a term that is a word as written, not its stem; no tokenizer yields this sign


class BM25Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a BM25 index. The defaults were chosen on train and dev queries of datasets (LAB.md).

    Attributes:
        tokenizer, stem, stopwords, fold: see `tokenize`.
        written: weight of the words as written in a score, from 0 to 1; their stems have the rest. It lets `list` and
            `listing` differ where tools differ in little else. Without stems it has no effect.
        repeats: whether a repeated word of a query counts each time, or once.
        fields: weight of each field of a tool (a style of `render`). A word in a field of weight 2 counts twice.
        glosses: weight of the English words that stand for a description in another language (`encoders.gloss`). They
            do not lengthen the tool, because they repeat what the description says. 0: there are none.
        k1: saturation of term frequency; higher lets repeated words count more.
        b: length normalisation, 0 to 1; higher discounts long tools more.
    """

    tokenizer: Tokenizer = "code"
    stem: bool = True
    stopwords: bool = True
    fold: bool = True
    written: float = 0.3
    repeats: bool = False
    fields: dict[str, float] = msgspec.field(
        default_factory=lambda: {
            "name": 2.0,
            "description": 1.0,
            "parameters": 0.5,
            "parameter_descriptions": 0.5,
            "path": 0.25,
        }
    )
    glosses: float = 0.8
    k1: float = 2.0
    b: float = 0.75

    def __post_init__(self) -> None:
        are_known = all(name in STYLES for name in self.fields)
        have_weights = all(0 < weight < math.inf for weight in self.fields.values())
        if not (self.fields and are_known and have_weights):
            raise ConfigError(f"fields: expected weights above 0 for any of {', '.join(STYLES)}, found {self.fields!r}")
        if not (0 <= self.k1 < math.inf and 0 <= self.b <= 1):
            raise ConfigError(f"expected k1 of 0 or more and b from 0 to 1, found k1={self.k1} and b={self.b}")
        if not 0 <= self.glosses < math.inf:
            raise ConfigError(f"expected glosses of 0 or more, found {self.glosses}")
        if not 0 <= self.written <= 1:
            raise ConfigError(f"expected written from 0 to 1, found {self.written}")

    @property
    def fingerprint(self) -> str:
        """Hash of settings and format. An index with another fingerprint must not be reused."""
        return digest(BM25_FORMAT, self)

    def replace(self, **changes: Any) -> BM25Settings:
        """Return these settings with some values replaced.

        Raises:
            ConfigError: for an unknown setting or an invalid value.
        """
        try:
            return msgspec.convert(msgspec.to_builtins(self) | changes, BM25Settings)
        except msgspec.ValidationError as error:
            raise ConfigError(f"A BM25 setting is not valid: {error}") from None


CODE_SETTINGS: Final = BM25Settings()
PLAIN_SETTINGS: Final = BM25Settings(
    tokenizer="plain",
    stem=False,
    fold=False,
    repeats=True,
    fields={"name": 1.0, "description": 1.0, "parameters": 1.0},
    glosses=0.0,
    k1=1.5,
)


class TokenKind(NamedTuple):
    """One kind of terms: stems, or words as written.

    Attributes:
        mark: prefix of each term in the vocabulary: "" for stems, `WRITTEN_MARK` for words as written.
        tokens: splits a text into terms, without the prefix.
        weight: weight of the kind in a score; the weights of all kinds add up to 1.
    """

    mark: str
    tokens: WordSplitter
    weight: float


def list_kinds(settings: BM25Settings) -> tuple[TokenKind, ...]:
    """Return the kinds of terms of an index: stems first, then words as written, unless their weight is 0."""
    tokens = tokenizer_for(settings.tokenizer, settings.stem, settings.stopwords, settings.fold)
    if not settings.stem or not settings.written:  # without stemming, `tokens` are the words as written already
        return (TokenKind("", tokens, 1.0),)
    written = tokenizer_for(settings.tokenizer, False, settings.stopwords, settings.fold)
    return (TokenKind("", tokens, 1.0 - settings.written), TokenKind(WRITTEN_MARK, written, settings.written))
