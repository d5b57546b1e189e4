"""Reads the words of languages that rules need: one file for each language, `search/words/LANG.toml`.

Each file says where its words come from. A new language is a new file; no rule changes for it. The longest lists are
beside them: `LANG.everyday.txt` (phrases, of English alone so far) and `LANG.actions.txt` (verbs).
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FIRST_LANGUAGE", "WORDS_FOLDER", "join_phrases", "list_words", "read_pairs"]

WORDS_FOLDER: Final = Path(__file__).parent / "search" / "words"
FIRST_LANGUAGE: Final = "en"  # its words come first where their order counts


@functools.cache
def _read_files() -> dict[str, dict[str, str | list[str]]]:
    """Map each language to its entries, by `section.name` or `name`."""
    languages = {}
    for file in sorted(WORDS_FOLDER.glob("*.toml"), key=lambda file: (file.stem != FIRST_LANGUAGE, file.stem)):
        entries: dict[str, str | list[str]] = {}
        for name, value in tomllib.loads(file.read_text(encoding="utf-8")).items():
            section = value if isinstance(value, dict) else {"": value}
            entries |= {f"{name}.{inner}".rstrip("."): words for inner, words in section.items()}
        languages[file.stem] = entries
    return languages


@functools.cache
def list_words(name: str, *languages: str) -> tuple[str, ...]:
    """Return the words of an entry such as `steps.verbs`, of all languages or of these, each once.

    A text is a list of words; a list holds phrases, or regular expressions.

    Raises:
        KeyError: if no language has the entry.
    """
    files = _read_files()
    entries = [files[language].get(name) for language in languages or files]
    words = [word for some in entries if some is not None for word in (some.split() if isinstance(some, str) else some)]
    if not words:
        raise KeyError(name)
    return tuple(dict.fromkeys(words))


def read_pairs(name: str) -> dict[str, str]:
    """Return an entry of lines `left = right` as a dictionary; see `list_words`."""
    pairs = (line.partition(" = ") for line in list_words(name))
    return {left: right for left, _, right in pairs}


def join_phrases(phrases: Iterable[str]) -> str:
    """Return a regular expression for any of the phrases, longer ones first."""
    return "|".join(re.escape(phrase).replace(r"\ ", r"\s+") for phrase in sorted(phrases, key=len, reverse=True))
