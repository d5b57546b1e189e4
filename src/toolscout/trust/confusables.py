"""Confusable letters: finds foreign letters that look like ASCII, and computes skeletons of names.

The table `data/confusables.txt` comes from Unicode's confusables (UTS #39).
"""

from __future__ import annotations

import functools
import re
import unicodedata
from pathlib import Path
from typing import Final

from toolscout.trust.invisible import quote, sanitise

__all__ = ["find_look_alike", "fold", "skeleton"]

_TABLE: Final = Path(__file__).parent / "data" / "confusables.txt"
_LETTERS_RUN: Final = re.compile(r"[^\W\d_]+")
_NO_LETTER: Final = re.compile(r"[\W_]+")
_VERSION_SUFFIX: Final = re.compile(r"(?<=[a-z]{3})v?\d{1,2}$")
_SIMILAR_LETTERS: Final = str.maketrans("015i", "olsl")  # a large I looks like a small l


@functools.cache
def _load_likenesses() -> dict[int, str]:
    """Return code point → the ASCII letter or digit that it looks like."""
    ascii_letters: dict[int, str] = {}
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        plain, _, letters = line.partition(" ")
        if plain != "#":
            ascii_letters |= {ord(letter): plain for letter in letters}
    return ascii_letters


def fold(text: str) -> str:
    """Replace each letter that looks like an ASCII letter by that letter."""
    return text if text.isascii() else text.translate(_load_likenesses())


@functools.lru_cache(maxsize=65536)
def skeleton(name: str) -> str:
    """Return what a name looks like at a glance.

    A skeleton has no case, accents, marks, invisible characters and version number.
    `Get_Weather`, `getWeather.`, `gеt-weather` (with a Cyrillic е) and `get_weather2` have one skeleton. So have names
    that differ in `I`, `i`, `l` and `1`, or in `rn` and `m`: `send_emaiI` and `send_email`.
    """
    if not name.isascii():
        name = unicodedata.normalize("NFKD", fold(unicodedata.normalize("NFKC", sanitise(name))))
        name = "".join(letter for letter in name if not unicodedata.combining(letter))
    bare = _NO_LETTER.sub("", name).casefold()
    return _VERSION_SUFFIX.sub("", bare).translate(_SIMILAR_LETTERS).replace("rn", "m")


def find_look_alike(name: str, description: str) -> str | None:
    """Say why a name looks like another one: mixed scripts, or foreign letters; None: it does not.

    Args:
        name: of a tool.
        description: of the tool; the name may be written in the script of its description.
    """
    likenesses = _load_likenesses()
    for word in _LETTERS_RUN.findall(name):
        if word.isascii():
            continue
        scripts = {_script(letter) for letter in word}
        plain = unicodedata.normalize("NFKC", word)
        if plain != word and plain.isascii():
            return f"“{quote(word)}” is written in other forms of the letters of “{plain}”"
        if "LATIN" in scripts and scripts & {"CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"}:
            return f"“{quote(word)}” mixes letters of {' and '.join(sorted(scripts))}"
        around = _scripts(description[:1000])
        if all(ord(letter) in likenesses for letter in word) and "LATIN" in around and not scripts & around:
            return f"“{quote(word)}” looks like “{fold(word)}” in other letters"
    return None


def _scripts(text: str) -> set[str]:
    return {_script(letter) for letter in set(text) if letter.isalpha()}


@functools.lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]
