"""Invisible characters: finds them in tool text, and removes them from what a model reads."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Final

__all__ = ["find_invisible", "quote", "sanitise", "spelled_out"]

MAX_QUOTE_CHARS: Final = 80
MAX_IDEOGRAPH_VARIANTS: Final = 8  # of one text; more can spell a hidden text, as each is one of 240
# Ranges of characters that nobody sees, as parts of the pattern `_UNSEEN`.
_CONTROLS: Final = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_BIDI: Final = "\u202a-\u202e\u2066-\u2069"  # turn the direction of a part of the text
_BIDI_MARKS: Final = "\u200e\u200f\u061c"
_NO_WIDTH: Final = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # of shorthand and of music
)
_JOINERS: Final = "\u200c\u200d"  # decide whether the letters around them join
_VARIANTS: Final = "\ufe00-\ufe0f\U000e0100-\U000e01ef"  # select a variant of the character before
_TAGS: Final = "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"  # mirror ASCII; only flags need them
_UNSEEN: Final = re.compile(f"[{_CONTROLS}{_BIDI}{_BIDI_MARKS}{_NO_WIDTH}{_JOINERS}{_VARIANTS}{_TAGS}]+")
_DIRECTION_MARKS: Final = "\u200e\u200f\u061c\u202a\u202b\u202c\u2066\u2067\u2068\u2069"
_SUBDIVISIONS: Final = ("gbeng", "gbsct", "gbwls")  # England, Scotland, Wales: all flags of this sort that fonts have
_FLAGS: Final = frozenset(
    "".join(chr(0xE0000 + ord(letter)) for letter in name) + "\U000e007f" for name in _SUBDIVISIONS
)
_IDEOGRAPH: Final = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def sanitise(text: str) -> str:
    """Remove control codes and invisible characters, so that a model reads what people see.

    Emoji stay, and so do the characters that Arabic, Hebrew, Indic, Mongolian and other scripts need.
    """
    if not _UNSEEN.search(text):
        return text
    visible_parts, start = [], 0
    for run in _find_unneeded_runs(text):
        visible_parts.append(text[start : run.start()])
        start = run.end()
    return "".join(visible_parts) + text[start:]


def spelled_out(text: str) -> str:
    """Replace invisible characters by their code, such as `<U+200B>`, so that a person can judge the text."""
    return _UNSEEN.sub(lambda run: "".join(f"<U+{ord(letter):04X}>" for letter in run[0]), text)


def find_invisible(text: str) -> Iterator[str]:
    """Yield one phrase for each kind of invisible character in a text, such as `3 control codes`."""
    if text.isascii() and text.isprintable():
        return  # most texts, which need no search
    counts: Counter[str] = Counter()
    for run in _find_unneeded_runs(text):
        counts.update(map(_classify, run[0]))
    for kind, count in counts.items():
        hidden_text = _read_tags(text) if kind == "tag characters" else ""
        spelling = f", which spell “{quote(hidden_text)}”" if hidden_text else ""
        yield f"{count} {kind}{spelling}"


def _read_tags(text: str) -> str:
    """Return the text that the tag characters U+E0020 to U+E007E spell, which mirror ASCII."""
    return "".join(chr(ord(letter) - 0xE0000) for letter in text if 0xE0020 <= ord(letter) < 0xE007F)


def _classify(letter: str) -> str:
    """Name the kind of an invisible character, as people read it in a finding."""
    code = ord(letter)
    if code < 0xA0:
        return "control codes"
    if 0xE0000 <= code <= 0xE00FF:
        return "tag characters"
    if 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF:
        return "variation selectors"
    if 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069 or letter in _BIDI_MARKS:
        return "characters that turn the direction of text"
    return "characters of no width"


def _find_unneeded_runs(text: str) -> Iterator[re.Match[str]]:
    """Yield the runs of invisible characters that no script or emoji needs where they are."""
    n_variants = 0
    for run in _UNSEEN.finditer(text):
        is_variant = "\U000e0100" <= run[0] < "\U000e01f0"  # begins with a selector of an ideograph's variant
        if is_variant:
            n_variants += 1
        is_one_too_many = is_variant and n_variants > MAX_IDEOGRAPH_VARIANTS
        if is_one_too_many or not _is_needed(run, text):
            yield run


def _is_needed(run: re.Match[str], text: str) -> bool:
    """Tell whether the characters before and after a run of invisible ones need it."""
    letters = run[0]
    before = text[run.start() - 1] if run.start() else ""
    after = text[run.end() : run.end() + 1]
    is_between_foreign = not (before.isascii() or after.isascii())  # "", at an end of the text, is ASCII
    if letters == "\ufeff":  # a byte order mark
        return not before
    if letters in ("\u200b", "\u200c", "\u200d"):  # between letters of Thai, Persian or Hindi, or parts of an emoji
        return is_between_foreign and not (_is_latin(before) or _is_latin(after))
    if all(letter in _DIRECTION_MARKS for letter in letters):
        return len(letters) <= 2 and _is_right_to_left(text)
    if letters in _FLAGS:
        return before == "\U0001f3f4"  # the black flag
    return _is_needed_variant(letters, before, is_between_foreign)


def _is_needed_variant(letters: str, before: str, is_between_foreign: bool) -> bool:
    """Tell whether a run selects a variant of an emoji, an ideograph or a Mongolian letter, which is `before` it."""
    if letters in ("\ufe0f", "\ufe0e"):  # selects the emoji or the plain form of the sign before it
        return bool(before) and not before.isalpha() and not before.isspace()
    if letters == "\ufe0f\u200d":  # the same, joined to the next part of an emoji
        return is_between_foreign and not before.isalpha()
    if len(letters) > 1:
        return False
    if "\U000e0100" <= letters <= "\U000e01ef":
        return bool(_IDEOGRAPH.match(before))
    is_mongolian = "\u1800" <= before <= "\u18af"
    return is_mongolian and "\u180b" <= letters <= "\u180f"


def _is_latin(letter: str) -> bool:
    return unicodedata.name(letter, "").startswith("LATIN")


def _is_right_to_left(text: str) -> bool:
    return any(letter.isalpha() and unicodedata.bidirectional(letter) in ("R", "AL") for letter in text)


def quote(text: str) -> str:
    """Return a text on one line, without invisible characters, cut to `MAX_QUOTE_CHARS`."""
    line = " ".join(sanitise(text).split())
    return line if len(line) <= MAX_QUOTE_CHARS else line[: MAX_QUOTE_CHARS - 1] + "…"
