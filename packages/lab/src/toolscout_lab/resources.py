"""What only rankers of the laboratory are lent: a language model, cached logits of pairs, the gold tools of a query.

Also what every measurement does with a pipeline: it searches many queries in batches, or one at a time by the clock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from threadpoolctl import threadpool_limits

from toolscout.encoders import Encoder
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.search.home_resources import HomeResources
from toolscout.search.pipeline import Stage
from toolscout.search.resources import Resources
from toolscout.settings import Settings
from toolscout.types import Search
from toolscout_lab import llm
from toolscout_lab.encoders.pair_cache import PairCache
from toolscout_lab.llm import LLM, SharedLLM

__all__ = [
    "CACHE_FOLDER",
    "SEARCH_BATCH",
    "Workspace",
    "connect_llm",
    "find_gold",
    "find_pairs",
    "lend_llm",
    "search_all",
    "time_searches",
]

CACHE_FOLDER: Final = "bench"  # of vectors and logits, below the home
SEARCH_BATCH: Final = 256
MAX_TIMED_QUERIES: Final = 200
WARM_UP_QUERIES: Final = 10


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

    @classmethod
    def open(cls, encoder: str | Encoder | None, settings: Settings, **fields: object) -> Workspace:
        """Open a workspace with the vectors that all measurements of a home share; `fields` are further attributes."""
        return cls(encoder, settings, VectorStore(settings.home / CACHE_FOLDER), **fields)  # type: ignore[arg-type]


def find_pairs(resources: Resources) -> PairCache | None:
    """Return the cache of cross-encoder logits. None, as in every search: no cache."""
    return resources.pairs if isinstance(resources, Workspace) else None


def find_gold(resources: Resources) -> Callable[[str], Sequence[str]] | None:
    """Return the function from a query to the ids of its gold tools. None: they are not known."""
    return resources.gold if isinstance(resources, Workspace) else None


def find_shared_llm(resources: Resources) -> Callable[[], LLM] | None:
    """Return the function that returns the language model which all fits and builds share. None: there is none.

    A measurement has one in its workspace. A scout or a service keeps one among its extras, made at the first use.
    """
    if isinstance(resources, Workspace) and resources.shared_llm:
        return resources.shared_llm
    if resources.extras.lasting:  # otherwise nobody would close the model
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


# --- searching for measurements ---------------------------------------------------------------------------------------


def search_all(stage: Stage, texts: Mapping[str, str], k: int) -> Iterator[tuple[str, Search]]:
    """Search for texts by query id, `k` hits each, in batches of 256."""
    ids = list(texts)
    for start in range(0, len(ids), SEARCH_BATCH):
        part = ids[start : start + SEARCH_BATCH]
        yield from zip(part, stage([Search(query=texts[query], k=k) for query in part]), strict=True)


def time_searches(stage: Stage, texts: Sequence[str], k: int = 5) -> Iterator[tuple[Search, float]]:
    """Search one query at a time on one thread, after a warm-up: at most 200 texts, at even distances.

    Yields:
        The search and its milliseconds.
    """
    chosen = texts[:: max(1, len(texts) // MAX_TIMED_QUERIES)][:MAX_TIMED_QUERIES]
    with threadpool_limits(1):
        for text in chosen[:WARM_UP_QUERIES]:
            stage([Search(query=text, k=k)])
        for text in chosen:
            started = time.perf_counter()
            [search] = stage([Search(query=text, k=k)])
            yield search, (time.perf_counter() - started) * 1000
