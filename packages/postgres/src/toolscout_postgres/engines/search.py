"""Turns a collection of an engine into an index: exact scores, ties by tool id, visibility.

A *collection* keeps the vectors of one encoder for the tools of a home (or tenant); its *mark* says which generation of
the catalogue it reflects. See `contract`.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array, Vectors
from toolscout.errors import ConfigError
from toolscout.home.database import hold_lock
from toolscout.indexes.engine import Snapshot
from toolscout.indexes.exact import Exact
from toolscout.indexes.ranking import Mask, check_rows, masks, place, top_k
from toolscout.location import DEFAULT_TENANT, Home, is_address
from toolscout.settings import Settings
from toolscout.types import Explanation, digest
from toolscout_postgres.address import Address
from toolscout_postgres.engines.contract import (
    Candidates,
    Collection,
    CollectionKey,
    Engine,
    Mark,
    Mend,
    Numbers,
    ToolRows,
    View,
    hash_number,
    identify_home,
)

__all__ = [
    "Differences",
    "EngineIndex",
    "EngineWords",
    "Snapshot",
    "close_engine",
    "compare",
    "drop_collections",
    "number_terms",
    "open_empty",
    "open_engine",
    "open_index",
    "reflect",
]

_engines: dict[tuple[str, Home], Engine] = {}  # by the setting `index` and the home: the engines that are open
_engines_lock: Final = threading.Lock()


def open_engine(settings: Settings) -> Engine:
    """Return the engine that the setting `index` names. A process opens it once for each home.

    Raises:
        ConfigError: if the setting is incomplete, or the server cannot keep vectors.
        MissingExtra: if a package is missing.
    """
    key = settings.index, settings.place
    with _engines_lock:
        if key not in _engines:
            _engines[key] = _make_engine(settings)
        return _engines[key]


def close_engine(settings: Settings) -> None:
    """Close the engine of these settings if it is open. The next use opens it again."""
    with _engines_lock:
        engine = _engines.pop((settings.index, settings.place), None)
    if engine is not None:
        engine.close()


@contextlib.contextmanager
def drop_collections(settings: Settings) -> Iterator[None]:
    """Delete the vectors of a home or of one of its tenants. The caller deletes the rest in the `with` block.

    The vectors are deleted first, so after a crash the tenant is still there and can be removed. They are deleted again
    after the block, because a service may have written some meanwhile.

    Raises:
        UserError: if the engine does not answer; nothing is then removed.
    """
    home, engine = identify_home(settings.place), open_engine(settings)
    # The label of a Milvus Lite file is its path. A file in the folder of the home is deleted with the folder.
    is_in_home_folder = Path(engine.label).is_relative_to(settings.home)
    # `pgvector` alone means the database of the home. There, a tenant's rows are deleted with its row in `tenants`.
    is_in_home_database = settings.index == "pgvector"
    try:
        if not is_in_home_folder:
            _drop_all(engine, home)
        yield
        if not is_in_home_folder and not is_in_home_database:
            _drop_all(engine, home)
    finally:
        close_engine(settings)


def _drop_all(engine: Engine, home: str) -> None:
    """Delete the collections of a home; see `identify_home`."""
    for state in engine.list_collections(home):
        engine.collection(state.key).drop()


def _make_engine(settings: Settings) -> Engine:
    """Return the engine that the setting `index` names.

    Raises:
        ConfigError: if the setting lacks the place of the vectors.
    """
    name, _, argument = settings.index.partition(":")
    if name == "milvus":
        from toolscout_postgres.engines.milvus import MilvusEngine

        if not argument:
            raise ConfigError(
                'index: Milvus needs a file or an address. Set  index = "milvus:milvus.db"  or  '
                'index = "milvus:http://localhost:19530"'
            )
        return MilvusEngine(argument, settings)
    from toolscout_postgres.engines.pgvector import PgvectorEngine

    if argument:
        if not is_address(argument):
            raise ConfigError("index: pgvector needs an address such as  pgvector:postgresql://user@host/database")
        address = Address.parse(argument)
        if settings.tenant != DEFAULT_TENANT:
            address = dataclasses.replace(address, tenant=settings.tenant)
    elif isinstance(settings.database, Address):
        address = settings.database
    else:
        raise ConfigError(
            "index: pgvector keeps vectors in the database of the home, but this home is a folder. Set  "
            'index = "pgvector:postgresql://user@host/database"  or move the home with  toolscout migrate'
        )
    return PgvectorEngine(address, shares_home=address == settings.database)


MIN_SPARE: Final = 64  # candidates beyond k: the engine's order is approximate, and other tools may be among them
WIDEN: Final = 4  # a search that may have missed a tool is repeated with so many times the candidates
MARK_CHECK_S: Final = 1.0  # how long a search trusts the mark that it read


class EngineIndex:
    """The index over one collection; the score is the cosine.

    The engine finds candidates. Their cosines are computed again here from the vectors as they were written, so equal
    vectors get equal scores, ordered by tool id. If the last answer and the last candidate are about equally near,
    more candidates are read, because a tie could reach beyond them. No tool is returned that is not in `ids`.

    Attributes:
        ids: tool ids, ascending, of the snapshot that is searched.
        collection: contains the vectors.
    """

    def __init__(
        self,
        collection: Collection,
        ids: Sequence[str] = (),
        *,
        mark: Mark | None = None,
        mend: Mend | None = None,
        exact: Exact | None = None,
    ) -> None:
        """Search a collection.

        Args:
            collection: contains at least the tools of `ids`.
            ids: ascending.
            mark: of the collection, when it was in step with `ids`.
            mend: brings the collection in step with `ids`; called when its mark has changed. None: never.
            exact: all vectors, if they are at hand, to explain any rank. None: they are read from the engine.
        """
        self.ids: tuple[str, ...] = tuple(ids)
        self.collection = collection
        self._mark, self._mend, self._exact = mark, mend, exact
        self._checked_at = time.monotonic() if mark else 0.0  # when the mark was last compared
        self._numbers: Numbers | None = None  # of `ids` in the engine, once they are needed
        self._lock = threading.Lock()

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.collection.key.dim

    def upsert(self, ids: Sequence[str], vectors: Array) -> None:
        """Add tools, or replace their vectors: `(len(ids), dim)`, finite, unit rows.

        Raises:
            ValueError: for another shape, a value that is not finite, or a repeated id; nothing is then written.
        """
        if len(set(ids)) != len(ids):
            raise ValueError("expected each id once, found one of them again")
        rows = check_rows(vectors, (len(ids), self.dim))
        fingerprints = [digest("row/1", row.tobytes().hex()) for row in rows]  # there are no definitions to hash
        self._change(ToolRows(ids, fingerprints, rows), (), {*self.ids, *ids})

    def delete(self, ids: Iterable[str]) -> None:
        """Remove tools; unknown ids are ignored."""
        gone = set(ids) & set(self.ids)
        rows = ToolRows((), (), np.empty((0, self.dim), dtype=np.float32))
        self._change(rows, sorted(gone), set(self.ids) - gone)

    def _change(self, rows: ToolRows, gone: Sequence[str], ids: set[str]) -> None:
        """Write rows, remove the tools in `gone`, and search `ids` from now on."""
        mark = self.collection.read_mark()
        self._mark = self.collection.change(rows, gone, mark.generation + 1 if mark else 0)
        self.ids, self._numbers, self._exact = tuple(sorted(ids)), None, None

    def search(
        self, queries: Array, k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[Vectors]]:
        """Find the nearest tools of each query: `(ids, scores)`, best first; see `Exact.search`.

        Queries with the same mask are searched together. A query of zeros finds nothing.
        """
        rows = check_rows(queries, (len(queries), self.dim))
        query_masks = masks(visible, len(rows))
        self.check_mark()
        ids: list[list[str]] = [[] for _ in rows]
        scores: list[Vectors] = [np.empty(0, dtype=np.float32) for _ in rows]
        queries_of_mask: dict[int, list[int]] = defaultdict(list)  # by `id(mask)`; the masks live as long
        for number, mask in enumerate(query_masks):
            if rows[number].any():
                queries_of_mask[id(mask)].append(number)
        for numbers in queries_of_mask.values():
            answers = self._search_with_mask(rows[numbers], k, query_masks[numbers[0]])
            for number, (positions, values) in zip(numbers, answers, strict=True):
                ids[number] = [self.ids[position] for position in positions]
                scores[number] = values
        return ids, scores

    def _search_with_mask(self, rows: Vectors, k: int, mask: Mask | None) -> list[tuple[npt.NDArray[np.intp], Vectors]]:
        """Search for queries with one mask. Returns positions and scores of the nearest for each, best first.

        The engine is asked for some candidates more than `k`, and again for `WIDEN` times as many for each query whose
        answer is not certain, up to what the engine can return.
        """
        if mask is not None and mask.shape != (len(self.ids),):
            raise ValueError(f"expected a mask of shape {(len(self.ids),)}, found {mask.shape}")
        n_visible = len(self.ids) if mask is None else int(mask.sum())
        n_wanted = min(k, n_visible)
        nothing = np.empty(0, dtype=np.intp), np.empty(0, dtype=np.float32)
        answers = [nothing] * len(rows)
        pending = list(range(len(rows))) if n_wanted > 0 else []
        limit, view = max(2 * n_wanted, n_wanted + MIN_SPARE), None if mask is None else self.view(mask)
        while pending:
            limit = min(limit, self.collection.max_limit)
            uncertain = []
            for number, candidates in zip(pending, self.collection.find(rows[pending], limit, view), strict=True):
                answers[number], is_certain = self._rank(rows[number], candidates, n_wanted, mask)
                if not is_certain:
                    uncertain.append(number)
            if not uncertain or (limit == self.collection.max_limit and view is not None):
                break
            # Without a view, tools of the collection that the snapshot lacks can take the places of others.
            view = view or self.view(np.ones(len(self.ids), dtype=np.bool_))
            pending, limit = uncertain, limit * WIDEN
        return answers

    def _rank(
        self, row: Vectors, candidates: Candidates, n_wanted: int, mask: Mask | None
    ) -> tuple[tuple[npt.NDArray[np.intp], Vectors], bool]:
        """Choose the nearest of the candidates that are in the snapshot and visible.

        Returns:
            Their positions and scores, best first; whether it is certain that no other tool belongs among them.
        """
        scores = np.einsum("nd,d->n", candidates.vectors, row)
        lowest = float(scores.min(initial=np.inf))
        positions = np.array([self.find_position(tool_id) for tool_id in candidates.ids], dtype=np.intp)
        allowed = positions >= 0
        if mask is not None:
            allowed &= mask[positions]  # at -1 it reads the last tool's value, but is False already
        order = np.argsort(positions[allowed], kind="stable")  # `top_k` orders equal scores by place: here by tool id
        positions, scores = positions[allowed][order], scores[allowed][order]
        best = top_k(scores, n_wanted)
        # `slack` bounds the error of the engine's scores. A tool that is not a candidate scores at most the lowest
        # candidate plus slack. If the last of the best is above that, no such tool belongs among them.
        is_certain = candidates.complete or (
            len(best) == n_wanted and float(scores[best[-1]]) > lowest + candidates.slack
        )
        return (positions[best], scores[best]), is_certain

    def find_position(self, tool_id: str) -> int:
        """Return the position of a tool, or -1 if the snapshot has no such tool."""
        position = bisect.bisect_left(self.ids, tool_id)
        return position if position < len(self.ids) and self.ids[position] == tool_id else -1

    def view(self, mask: Mask) -> View:
        """Return what the engine needs to search only the tools of a mask. Their numbers are read once."""
        with self._lock:
            if self._numbers is None:
                self._numbers = self.collection.number_tools(self.ids)
            return View(self._numbers, mask)

    def check_mark(self) -> None:
        """Mend the collection if somebody has changed it since it was in step with `ids`."""
        if self._mend is None or time.monotonic() - self._checked_at < MARK_CHECK_S:
            return
        mark = self.collection.read_mark()
        if mark != self._mark:
            self._mark, self._numbers = self._mend(), None
        self._checked_at = time.monotonic()

    def explain(self, query: Array, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain rank and score of one tool, exact at any rank.

        Raises:
            NotFound: if the index has no such tool.
        """
        place(self.ids, tool_id)  # raises NotFound before all vectors are read
        return self._load_exact().explain(query, tool_id, visible)

    def _load_exact(self) -> Exact:
        """Return all vectors of the snapshot as an index, which is read from the engine once if it was not given."""
        with self._lock:
            if self._exact is None:
                ids, vectors = self.collection.read_vectors()
                exact = Exact(self.dim)
                exact.upsert(ids, vectors)
                exact.delete(set(ids) - set(self.ids))
                self._exact = exact
            return self._exact


if TYPE_CHECKING:
    from toolscout.indexes.bm25 import BM25


MAX_TERM: Final = 2**32 - 2  # the highest number of a term in Milvus
SCORE_SLACK: Final = 1e-4  # scores closer than this count as a tie: sums of the engine and ours differ by less


def number_terms(weights: Mapping[str, float]) -> dict[int, float]:
    """Replace each term by a hash from 1 to `MAX_TERM - 1`, because Milvus names terms by numbers.

    Terms with a weight of 0 are left out.
    """
    return {1 + hash_number(term) % (MAX_TERM - 1): weight for term, weight in weights.items() if weight > 0}


class EngineWords:
    """The BM25 index in a collection of an engine; see `BM25.search` and `BM25.explain`.

    Attributes:
        nearest: the index over the vectors of the same collection.
        words: the BM25 index of the same snapshot, which knows how rare each term is.
    """

    def __init__(self, nearest: EngineIndex, words: BM25) -> None:
        """Take both indexes of a snapshot."""
        self.nearest, self.words = nearest, words

    def with_words(self, words: BM25) -> EngineWords:
        """Return the same search with other weights for the terms of queries."""
        return EngineWords(self.nearest, words)

    @property
    def ids(self) -> Sequence[str]:
        """Tool ids, ascending."""
        return self.nearest.ids

    def search(
        self, queries: Sequence[str], k: int, visible: Mask | Sequence[Mask | None] | None = None
    ) -> tuple[list[list[str]], list[npt.NDArray[np.float32]]]:
        """Find the best tools for each query that share a term with it: `(ids, scores)`, best first."""
        self.nearest.check_mark()
        ids, scores = [], []
        for query, mask in zip(queries, masks(visible, len(queries)), strict=True):
            hits = self._search_one(number_terms(self.words.weigh_query(query)), k, mask)
            ids.append([self.ids[position] for position, _ in hits])
            scores.append(np.array([score for _, score in hits], dtype=np.float32))
        return ids, scores

    def _search_one(self, query: Mapping[int, float], k: int, mask: Mask | None) -> list[tuple[int, float]]:
        """Return (position, score) of the best tools, equal scores by position, also at the cut.

        Args:
            query: number of each term → its weight; see `number_terms`.
            k: maximum number of tools.
            mask: mask over positions; None for all.
        """
        n_visible = len(self.ids) if mask is None else int(mask.sum())
        n_wanted = min(k, n_visible)
        if not query or n_wanted <= 0:
            return []
        collection, limit = self.nearest.collection, max(2 * n_wanted, n_wanted + MIN_SPARE)
        view: View | None = None if mask is None else self.nearest.view(mask)
        while True:
            limit = min(limit, collection.max_limit)
            [scored] = collection.find_words([query], limit, view)
            hits = self._keep_visible(scored, mask)
            is_complete = len(scored) < limit
            # The last hit is clearly above the last candidate: no tie reaches beyond the candidates.
            is_certain = len(hits) >= n_wanted and hits[n_wanted - 1][1] > scored[-1][1] + SCORE_SLACK
            if is_complete or is_certain or limit == collection.max_limit:
                return hits[:n_wanted]
            limit *= WIDEN

    def _keep_visible(self, scored: Sequence[tuple[str, float]], mask: Mask | None) -> list[tuple[int, float]]:
        """Return (position, score) of the tools that are visible and in the snapshot, best first.

        Args:
            scored: (tool id, score).
            mask: mask over positions; None for all.
        """
        hits = [(self.nearest.find_position(tool_id), score) for tool_id, score in scored]
        hits = [(position, score) for position, score in hits if position >= 0 and (mask is None or mask[position])]
        return sorted(hits, key=lambda hit: (-hit[1], hit[0]))

    def explain(self, query: str, tool_id: str, visible: Mask | None = None) -> Explanation:
        """Explain rank and score of one tool by its terms, exact at any rank; see `BM25.explain`."""
        return self.words.explain(query, tool_id, visible)


LOCK_NAME = "engine.lock"  # of the home: one process at a time changes its collections
MAX_LOCK_WAIT_S = 600.0
MakeTerms = Callable[[Sequence[str]], Sequence[Mapping[int, float]]]  # tool ids → number of a term → its weight


class Differences(NamedTuple):
    """Ids of tools in which a collection differs from a snapshot.

    Attributes:
        missing: tools that the collection lacks.
        changed: tools whose definition has changed since their vector was written.
        extra: tools that the snapshot does not have.
    """

    missing: list[str]
    changed: list[str]
    extra: list[str]

    def __str__(self) -> str:
        """Describe the differences in one phrase."""
        counts = (
            (len(self.missing), "missing"),
            (len(self.changed), "outdated"),
            (len(self.extra), "no longer in the catalogue"),
        )
        return ", ".join(f"{count:,} {what}" for count, what in counts if count)


def compare(collection: Collection, snapshot: Snapshot) -> Differences:
    """Compare the rows of a collection with a snapshot, tool by tool."""
    rows, fingerprints = collection.list_rows(), snapshot.fingerprints()
    ids = set(snapshot.ids)
    return Differences(
        [tool_id for tool_id in snapshot.ids if tool_id not in rows],
        [tool_id for tool_id in snapshot.ids if tool_id in rows and rows[tool_id] != fingerprints.get(tool_id)],
        sorted(tool_id for tool_id in rows if tool_id not in ids),
    )


def reflect(
    collection: Collection, snapshot: Snapshot, vectors: Callable[[], Vectors], terms: MakeTerms | None = None
) -> Mark:
    """Bring a collection in step with a snapshot: write the tools that differ. Returns the collection's mark.

    If another process has brought the collection to a newer generation in which all tools of this snapshot are as they
    were, nothing is written: the search leaves out what the snapshot does not have.

    Args:
        collection: to bring in step.
        snapshot: what it must contain.
        vectors: returns the vectors of the snapshot, `(len(snapshot.ids), dim)`, in the order of the ids.
        terms: tool ids → the weights of each tool's terms; None: the engine searches no words.
    """
    mark = collection.read_mark()
    if mark is not None and mark.generation == snapshot.generation and mark.size == len(snapshot.ids):
        return mark
    differences = compare(collection, snapshot)
    write = [*differences.missing, *differences.changed]  # ids
    if mark is not None and mark.generation > snapshot.generation and not write:
        return mark
    rows = _make_rows(collection.key.dim, snapshot, write, vectors, terms)
    return collection.change(rows, differences.extra, snapshot.generation)


def _make_rows(
    dim: int, snapshot: Snapshot, ids: Sequence[str], vectors: Callable[[], Vectors], terms: MakeTerms | None
) -> ToolRows:
    """Return the rows of some tools of a snapshot; the other arguments are as in `reflect`."""
    if not ids:  # then neither vectors nor terms are computed
        return ToolRows((), (), np.empty((0, dim), dtype=np.float32))
    fingerprint_of = snapshot.fingerprints()
    position_of = {tool_id: position for position, tool_id in enumerate(snapshot.ids)}
    positions = [position_of[tool_id] for tool_id in ids]
    fingerprints = [fingerprint_of.get(tool_id, "") for tool_id in ids]
    return ToolRows(ids, fingerprints, vectors()[positions], terms(ids) if terms else None)


def _make_key(settings: Settings, space: str, dim: int) -> CollectionKey:
    """Name the collection of an encoder (`space`) for the home and the tenant of the settings."""
    return CollectionKey(identify_home(settings.place), space, dim, settings.tenant)


def open_empty(name: str, dim: int, settings: Settings) -> EngineIndex:
    """Return an empty index in an engine, for checks of the contract. It is not over the catalogue of the home.

    Args:
        name: as the setting `index` has it.
        dim: length of a vector.
        settings: name the home.
    """
    engine = open_engine(dataclasses.replace(settings, index=name))
    collection = engine.collection(_make_key(settings, digest("empty/1", dim), dim))
    collection.drop()
    return EngineIndex(collection)


def open_index(
    settings: Settings, space: str, snapshot: Snapshot, exact: Exact, terms: MakeTerms | None = None
) -> EngineIndex:
    """Bring the collection of an encoder in step with a snapshot, and return the index over it.

    Args:
        settings: name the engine and the home.
        space: names the encoder: a digest of its fingerprint and of how a tool becomes text.
        snapshot: the tools to search.
        exact: their vectors.
        terms: see `reflect`.

    Raises:
        Unavailable: if the engine does not answer.
        UserError: if it cannot keep these vectors.
    """
    engine = open_engine(settings)
    collection = engine.collection(_make_key(settings, space, exact.dim))
    refusal = f"Another process has been writing to {engine.label} for ten minutes. Try again."

    def mend() -> Mark:
        mark = collection.read_mark()
        if mark == Mark(snapshot.generation, len(snapshot.ids)):
            return mark
        with hold_lock(settings.place, LOCK_NAME, refusal, wait=MAX_LOCK_WAIT_S):
            return reflect(collection, snapshot, lambda: exact.vectors, terms)

    return EngineIndex(collection, snapshot.ids, mark=mend(), mend=mend, exact=exact)
