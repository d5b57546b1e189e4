"""Alpha spending: numbers the comparisons with one champion, and gives each its share of the level.

A comparison is called a look. Each night `learn` compares a new candidate with the same champion, mostly on requests of
the night before. Every look is another chance of a false promotion. So the significance level is spent over the looks
since the champion was promoted: look k may use 6 / (π² k²) of it, as in Foster & Stine 2008 ("α-investing", J. R.
Statist. Soc. B 70) and Javanmard & Montanari 2018 (arXiv:1603.09000). These shares add up to 1. By the union bound, a
champion that no candidate beats is replaced with a probability of at most the level, for any number of looks and any
overlap.

::

    <home>/learn/looks.json     champion → fingerprint of each look → its number
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.database.documents import read_document, write_document
from toolscout.errors import StoreError
from toolscout.home import Home, describe_home
from toolscout.types import digest

__all__ = ["bound_p", "level_of_look", "number_look"]

LOOKS_FORMAT: Final = "toolscout-looks/1"
LOOKS_FILE: Final = "learn/looks.json"


class _Looks(msgspec.Struct, forbid_unknown_fields=True):
    champions: dict[str, dict[str, int]] = {}
    format: str = LOOKS_FORMAT


def level_of_look(level: float, look: int) -> float:
    """Return the share of `level` for look number `look`, from 1. All shares add up to `level`."""
    return level * 6 / (math.pi * look) ** 2


def bound_p(differences: npt.ArrayLike) -> float:
    """Bound the two-sided p-value of the paired randomization test from above (Hoeffding 1963, theorem 2).

    With random signs, P(|Σ ±d| ≥ |Σ d|) ≤ 2 exp(-(Σ d)² / (2 Σ d²)), for any number of queries. The bound can be
    arbitrarily small. A test with n random flips never returns less than 1 / (n + 1), and later looks need less.

    Args:
        differences: (q,) the difference of each query.
    """
    values = np.asarray(differences, dtype=float)
    squares = float((values**2).sum())
    return min(1.0, 2 * math.exp(-(float(values.sum()) ** 2) / (2 * squares))) if squares > 0 else 1.0


def number_look(home: Home, champion: str, tested: Any) -> int:
    """Count a comparison with a champion, and return its number, from 1.

    A repeated look (after a kill, or after a dry run) keeps its number. The count is on disk before this returns. A
    champion that comes back by a rollback continues its own count.

    Args:
        home: the home.
        champion: name of the champion.
        tested: what identifies the look: candidate, requests, seed.

    Raises:
        StoreError: if the file is damaged.
    """
    try:
        counts = msgspec.json.decode(read_document(home, LOOKS_FILE), type=_Looks)
    except FileNotFoundError:
        counts = _Looks()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{describe_home(home)}/{LOOKS_FILE} is damaged ({error}), so the number of earlier looks is lost. "
            "Remove the file to count from one again."
        ) from None
    looks = counts.champions.setdefault(champion, {})
    fingerprint = digest("look/1", tested)
    if fingerprint not in looks:
        looks[fingerprint] = max(looks.values(), default=0) + 1
        write_document(home, LOOKS_FILE, msgspec.json.format(msgspec.json.encode(counts), indent=1) + b"\n")
    return looks[fingerprint]
