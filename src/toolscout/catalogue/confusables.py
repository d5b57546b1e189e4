"""Letters that look like others: which ASCII letter a foreign one is taken for, and the skeleton of a name.

The table is made of Unicode's confusables (UTS #39): `data/confusables.txt`.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from pathlib import Path
from typing import Final

from toolscout.catalogue.invisible import quote, sanitise

__all__ = ["find_look_alike", "fold", "skeleton"]

_TABLE: Final = Path(__file__).parent / "data" / "confusables.txt"
_WORD: Final = re.compile(r"[^\W\d_]+")
_NO_LETTER: Final = re.compile(r"[\W_]+")
_VERSION: Final = re.compile(r"(?<=[a-z]{3})v?\d{1,2}$")
_DIGITS: Final = str.maketrans("015", "ols")


@functools.cache
def _likenesses() -> dict[int, str]:
    """Code point → the ASCII letter or digit that it looks like."""
    found: dict[int, str] = {}
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        plain, _, letters = line.partition(" ")
        if plain != "#":
            found |= {ord(letter): plain for letter in letters}
    return found


def fold(text: str) -> str:
    """The text with each letter that looks like an ASCII one turned into that."""
    return text if text.isascii() else text.translate(_likenesses())


@functools.lru_cache(maxsize=65536)
def skeleton(name: str) -> str:
    """What a name looks like at a glance: without case, accents, marks, unseen characters and a version number.

    `Get_Weather`, `getWeather.`, `gеt-weather` (with a Cyrillic е) and `get_weather2` have one skeleton.
    """
    if not name.isascii():
        name = unicodedata.normalize("NFKD", fold(unicodedata.normalize("NFKC", sanitise(name))))
        name = "".join(letter for letter in name if not unicodedata.combining(letter))
    bare = _NO_LETTER.sub("", name).casefold()
    return _VERSION.sub("", bare).translate(_DIGITS)


def find_look_alike(name: str, description: str) -> str | None:
    """What is wrong with a name whose letters are not what they seem: mixed scripts, or foreign letters that spell.

    Args:
        name: of a tool.
        description: of the tool; in its script the name may be written.
    """
    likenesses = _likenesses()
    for word in _WORD.findall(name):
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
