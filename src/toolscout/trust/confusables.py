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
_SIMILAR_LETTERS: Final = str.maketrans("015i", "olsl")  # a large I looks like a small l, and names have one case here


@functools.cache
def _load_look_alikes() -> dict[int, str]:
    """Return the code point of each foreign letter that looks like an ASCII letter or digit → that letter or digit."""
    ascii_by_code: dict[int, str] = {}
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        ascii_letter, _, look_alikes = line.partition(" ")
        is_comment = ascii_letter == "#"
        if not is_comment:
            ascii_by_code |= {ord(letter): ascii_letter for letter in look_alikes}
    return ascii_by_code


def fold(text: str) -> str:
    """Replace each letter that looks like an ASCII letter by that letter."""
    return text if text.isascii() else text.translate(_load_look_alikes())


@functools.lru_cache(maxsize=65536)
def skeleton(name: str) -> str:
    """Return what a name looks like at a glance: names with one skeleton are easily confused.

    A skeleton has no case, accents, punctuation, invisible characters and version number. `Get_Weather`, `getWeather.`,
    `gеt-weather` (with a Cyrillic е) and `get_weather2` have one skeleton. So have names that differ in `I`, `i`, `l`
    and `1`, or in `rn` and `m`: `send_emaiI` and `send_email`.
    """
    if not name.isascii():
        name = unicodedata.normalize("NFKD", fold(unicodedata.normalize("NFKC", sanitise(name))))
        name = "".join(letter for letter in name if not unicodedata.combining(letter))
    letters_and_digits = _NO_LETTER.sub("", name).casefold()
    return _VERSION_SUFFIX.sub("", letters_and_digits).translate(_SIMILAR_LETTERS).replace("rn", "m")


def find_look_alike(name: str, description: str) -> str | None:
    """Say why the letters of a name may deceive: mixed scripts, or foreign letters that look like ASCII.

    A name may use the script of its tool's description, such as Cyrillic. Returns None if nothing deceives.
    """
    look_alikes = _load_look_alikes()
    for word in _LETTERS_RUN.findall(name):
        if word.isascii():
            continue
        scripts = _find_scripts(word)
        plain = unicodedata.normalize("NFKC", word)
        if plain != word and plain.isascii():  # such as letters of full width, or mathematical ones
            return f"“{quote(word)}” is written in other forms of the letters of “{plain}”"
        if "LATIN" in scripts and scripts & {"CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"}:
            return f"“{quote(word)}” mixes letters of {' and '.join(sorted(scripts))}"
        description_scripts = _find_scripts(description[:1000])
        is_foreign = "LATIN" in description_scripts and scripts.isdisjoint(description_scripts)
        if is_foreign and all(ord(letter) in look_alikes for letter in word):
            return f"“{quote(word)}” looks like “{fold(word)}” in other letters"
    return None


def _find_scripts(text: str) -> set[str]:
    """Return the scripts of the letters in a text, such as LATIN and CYRILLIC."""
    return {_name_script(letter) for letter in set(text) if letter.isalpha()}


@functools.lru_cache(maxsize=4096)
def _name_script(letter: str) -> str:
    """Return the first word of a letter's Unicode name, as in CYRILLIC SMALL LETTER IE."""
    return unicodedata.name(letter, "").partition(" ")[0]
