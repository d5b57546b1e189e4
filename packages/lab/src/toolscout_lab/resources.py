"""What only rankers of the laboratory are lent: a language model, cached logits of pairs, the gold tools of a query."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

from toolscout.search.home_resources import HomeResources
from toolscout.search.resources import Resources
from toolscout_lab import llm
from toolscout_lab.encoders.pair_cache import PairCache
from toolscout_lab.llm import LLM, SharedLLM

__all__ = ["Workspace", "connect_llm", "find_gold", "find_pairs", "lend_llm"]


@dataclasses.dataclass(frozen=True)
class Workspace(HomeResources):
    """What the laboratory lends its rankers besides.

    Attributes:
        pairs: cache of cross-encoder logits. None: no cache.
        gold: query → ids of its gold tools. Only `bench` sets it, for recipes measured as an upper bound.
        shared_llm: returns the language model that all fits and builds share, with its budget. None: each connects to
            that of the settings.
    """

    pairs: PairCache | None = None
    gold: Callable[[str], Sequence[str]] | None = None
    shared_llm: Callable[[], LLM] | None = None


def find_pairs(resources: Resources) -> PairCache | None:
    """Return the cache of cross-encoder logits. None, as in every search: no cache."""
    return resources.pairs if isinstance(resources, Workspace) else None


def find_gold(resources: Resources) -> Callable[[str], Sequence[str]] | None:
    """Return the function from a query to the ids of its gold tools. None: they are not known."""
    return resources.gold if isinstance(resources, Workspace) else None


def find_shared_llm(resources: Resources) -> Callable[[], LLM] | None:
    """Return the function that returns the language model which all fits and builds share. None: there is none."""
    if isinstance(resources, Workspace) and resources.shared_llm:
        return resources.shared_llm
    if resources.extras.lasting:
        return resources.extras.share(
            SharedLLM, lambda: SharedLLM(resources.settings, rehearse=resources.extras.rehearse)
        )
    return None


def connect_llm(resources: Resources) -> LLM:
    """Return the shared language model, or else a new connection to that of the settings.

    Raises:
        ConfigError: if no language model is set.
    """
    shared = find_shared_llm(resources)
    return shared() if shared else llm.connect(resources.settings)


@contextlib.contextmanager
def lend_llm(resources: Resources) -> Iterator[LLM]:
    """Lend the language model for a fit; one that is not shared is closed at the end."""
    model = connect_llm(resources)
    try:
        yield model
    finally:
        if not find_shared_llm(resources):
            model.close()
