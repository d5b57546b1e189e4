"""Repeated looks at overlapping requests: which look at a champion's place this is, and the level that it may use.

Every night `learn` holds a new candidate against the same champion, on requests most of which were looked at the night
before. Each such look is a chance to be fooled. So the level is spent over the looks since the champion was promoted:
look k may use 6 / (π² k²) of it: alpha spending, as in Foster & Stine 2008 ("α-investing", J. R. Statist. Soc. B 70)
and Javanmard & Montanari 2018 (arXiv:1603.09000). The shares add up to 1. So by the union bound, a champion that
nothing is better than is replaced with a probability of at most the level, however many looks there are and however
much they overlap.

::

    <home>/learn/looks.json     champion → fingerprint of each look → its number
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from toolscout.errors import StoreError
from toolscout.types import digest

__all__ = ["bound_p", "level_of_look", "number_look"]

FORMAT: Final = "toolscout-looks/1"


class _Looks(msgspec.Struct, forbid_unknown_fields=True):
    champions: dict[str, dict[str, int]] = {}
    format: str = FORMAT


def level_of_look(level: float, look: int) -> float:
    """What look number `look` (from 1) may use of `level`: all looks together use no more than `level`."""
    return level * 6 / (math.pi * look) ** 2


def bound_p(differences: npt.ArrayLike) -> float:
    """Bound the two-sided p-value of the paired randomization test from above (Hoeffding 1963, theorem 2).

    Were signs tossed, P(|Σ ±d| ≥ |Σ d|) ≤ 2 exp(-(Σ d)² / (2 Σ d²)), for any number of queries. It has no least value,
    where a test by n random flips never says less than 1 / (n + 1): later looks need less than that.

    Args:
        differences: (q,) of each query.
    """
    values = np.asarray(differences, dtype=float)
    squares = float((values**2).sum())
    return min(1.0, 2 * math.exp(-(float(values.sum()) ** 2) / (2 * squares))) if squares > 0 else 1.0


def number_look(home: Path, champion: str, tested: Any) -> int:
    """Count a look at a champion's place, and say which one it is, from 1.

    The same look again (a run that was killed, a dry run before the real one) keeps its number. The count is on disk
    before this returns. A champion that comes back by a rollback goes on with its own count.

    Args:
        home: where.
        champion: who is challenged.
        tested: what makes this look the same as another: candidate, requests, seed.

    Raises:
        StoreError: if the file is damaged.
    """
    file = home / "learn" / "looks.json"
    try:
        held = msgspec.json.decode(file.read_bytes(), type=_Looks)
    except FileNotFoundError:
        held = _Looks()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{file} is damaged ({error}), so nobody knows how often the champion was challenged. "
            "Remove the file to count from one again."
        ) from None
    looks = held.champions.setdefault(champion, {})
    fingerprint = digest("look/1", tested)
    if fingerprint not in looks:
        looks[fingerprint] = max(looks.values(), default=0) + 1
        _write(file, held)
    return looks[fingerprint]


def _write(file: Path, held: _Looks) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    with partial.open("wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(held), indent=1) + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)
