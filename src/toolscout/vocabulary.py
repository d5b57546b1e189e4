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
    """Map each language to its entries, by `section.name`, or by `name` where they are in no section."""
    languages = {}
    files = sorted(WORDS_FOLDER.glob("*.toml"), key=lambda file: file.stem)
    files.sort(key=lambda file: file.stem != FIRST_LANGUAGE)  # the first language comes first, as False sorts first
    for file in files:
        entries: dict[str, str | list[str]] = {}
        for name, value in tomllib.loads(file.read_text(encoding="utf-8")).items():
            if isinstance(value, dict):
                entries |= {f"{name}.{inner_name}": words for inner_name, words in value.items()}
            else:
                entries[name] = value
        languages[file.stem] = entries
    return languages


@functools.cache
def list_words(name: str, *languages: str) -> tuple[str, ...]:
    """Return the words of an entry such as `steps.verbs`, each once: of these languages, or of all if none is named.

    An entry that is a text consists of words with spaces between them. A list contains phrases, or regular expressions.

    Raises:
        KeyError: if no language has the entry.
    """
    files = _read_files()
    words: list[str] = []
    for language in languages or files:
        entry = files[language].get(name, [])
        words += entry.split() if isinstance(entry, str) else entry
    if not words:
        raise KeyError(name)
    return tuple(dict.fromkeys(words))


def read_pairs(name: str) -> dict[str, str]:
    """Return an entry of lines `left = right` as a dictionary; see `list_words`."""
    pairs = (line.partition(" = ") for line in list_words(name))
    return {left: right for left, _, right in pairs}


def join_phrases(phrases: Iterable[str]) -> str:
    """Return a regular expression for any of the phrases, longer ones first. A space stands for any white space."""
    return "|".join(re.escape(phrase).replace(r"\ ", r"\s+") for phrase in sorted(phrases, key=len, reverse=True))
