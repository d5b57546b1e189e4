"""Completes the references of a step to the one before: "check the weather there" gets the place of the flight."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from toolscout.search.steps import words

__all__ = ["complete_references"]

MAX_REFERENCE_TOKENS: Final = 5
_TOKEN: Final = re.compile(r"[\w'’-]+")


def complete_references(steps: Sequence[str]) -> tuple[str, ...]:
    """Append to each step what its words for a place or a thing stand for in the step before."""
    completed: list[str] = []
    for number, step in enumerate(steps):
        tokens = {token.lower() for token in _TOKEN.findall(step)}
        added = ""
        if number and tokens & words.PLACE_REFERENCES:
            added = _find_object(steps[number - 1], after_preposition=True)
        elif number and len(tokens) <= 8 and tokens & words.THING_REFERENCES:
            added = _find_object(steps[number - 1], after_preposition=False)
        completed.append(f"{step} ({added})" if added and added.lower() not in step.lower() else step)
    return tuple(completed)


def _find_object(step: str, *, after_preposition: bool) -> str:
    """Return what a step acts on: the words after its first verb, at most `MAX_REFERENCE_TOKENS`.

    With `after_preposition`, the words after its last preposition, which name the place (`… to the folder Docs`).
    """
    tokens = _TOKEN.findall(step)
    lowered = [token.lower() for token in tokens]
    places = [n for n, word in enumerate(lowered) if word in words.PREPOSITIONS and n + 1 < len(tokens)]
    verbs = [n for n, word in enumerate(lowered) if word in words.VERBS]
    start = places[-1] + 1 if after_preposition and places else verbs[0] + 1 if verbs else 0
    empty = words.PRONOUNS | words.PREPOSITIONS | words.ANAPHORA | words.PARTICLES
    kept = [token for token in tokens[start:] if token.lower() not in empty]
    return " ".join(kept[:MAX_REFERENCE_TOKENS])
