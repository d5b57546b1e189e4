"""What the rankers of one home may use: encoders with cached vectors, indexes that are stored with snapshots, progress.

An index is built once for each snapshot of the catalogue. What it has of tools that have not changed is taken over from
the snapshot before, called the earlier one.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from toolscout import encoders
from toolscout.arrays import Vectors
from toolscout.encoders import Encoder
from toolscout.encoders.shards import encode_batches
from toolscout.errors import ConfigError, Unavailable
from toolscout.home.catalogue.array_file import Arrays
from toolscout.home.catalogue.snapshot import TOOLS_BATCH
from toolscout.home.catalogue.snapshot_files import EarlierSnapshot, SnapshotPart
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.catalogue.vector_cache import VectorStore
from toolscout.home.models import model_store
from toolscout.home.models.model_store import Model
from toolscout.indexes import BUILT_IN_INDEXES, VectorIndex, choose_index, find_index_class, new_index
from toolscout.indexes.bm25 import BM25, CODE_SETTINGS, BM25Settings
from toolscout.indexes.bm25_build import (
    TERM_COUNTS_FORMAT,
    EarlierTerms,
    TermCounts,
    drop_parameters,
    find_shared_parameters,
)
from toolscout.indexes.engine import Snapshot, WordsInEngine, find_engine
from toolscout.indexes.exact import Exact
from toolscout.indexes.strings import Strings
from toolscout.search.everyday import EVERYDAY_WEIGHT, ExpandedWords, load_thesaurus
from toolscout.search.pipeline import Stage
from toolscout.search.resources import BASE_FOLDER, Extras, FitRun, LiveEvidence
from toolscout.settings import Settings
from toolscout.types import Tool, digest

__all__ = ["BASE_FOLDER", "HomeResources", "VectorsMissing", "expand_words", "index_words", "name_space"]

SHARED_PARAMETERS_FORMAT: Final = "shared parameters/1"  # raise it whenever an unchanged source would share others
MAX_TEXTS_EMBEDDED_BY_SEARCH: Final = 256  # every caller waits for them; see `HomeResources.embed`


class VectorsMissing(Unavailable):
    """Too many vectors are missing for a search to wait for them."""


def _say_nothing(line: str) -> None:
    """Ignore a line of progress."""


@dataclasses.dataclass(frozen=True)
class HomeResources:
    """The encoder, caches and settings that the rankers of one home may use; see `search.resources.Resources`.

    Attributes:
        encoder: by name or loaded. A recipe with its own encoder ignores a name. None: the recipe's own encoder, or
            else the one in the settings.
        settings: timeouts, home folder, endpoints.
        vectors: cache of text vectors. None: texts are always embedded.
        embed: whether to embed everything that is missing. False: a build embeds at most a few texts, and raises
            `VectorsMissing` if more are missing.
        progress: called with (done, all) while texts are embedded.
        say: called with one line of progress at a time.
        seed: see `FitRun`; likewise `resume`, `work` and `identity`.
        live: examples since the model was fitted. None: there are none.
        extras: objects that packages share with their own rankers.
        build: builds another recipe. `recipes.registry.build` sets it to itself.
    """

    encoder: str | Encoder | None = None
    settings: Settings = dataclasses.field(default_factory=Settings)
    vectors: VectorStore | None = None
    _: dataclasses.KW_ONLY
    embed: bool = True
    progress: Callable[[int, int], None] | None = None
    say: Callable[[str], None] = _say_nothing
    seed: int = 0
    resume: bool = False
    work: Path = Path("work")
    identity: str = ""
    live: LiveEvidence | None = None
    extras: Extras = dataclasses.field(default_factory=Extras)
    build: BuildRecipe | None = None

    @property
    def run(self) -> FitRun:
        """The run of the fit."""
        return FitRun(self.seed, self.resume, self.work, self.identity)

    def load_encoder(self) -> Encoder:
        """Return the encoder, and load it first if it is given by name."""
        encoder = self.encoder or self.settings.encoder
        if isinstance(encoder, str):
            return encoders.load(encoder, self.settings)
        return encoder

    def encode_queries(self, encoder: Encoder, texts: Sequence[str]) -> Vectors:
        """Encode queries as `(n, dim)` unit rows. Vectors of an expensive encoder are cached."""
        return self._encode(encoder, list(texts), "query")

    def encode_tools(self, encoder: Encoder, tools: Sequence[Tool], style: str = "named") -> Vectors:
        """Encode tools as `(n, dim)` unit rows; see `encoders.encode_tools`.

        Raises:
            VectorsMissing: if more vectors are missing than may be computed now.
        """

        def encode(texts: list[str]) -> Vectors:
            is_limited = not (self.embed or encoder.cheap)
            if is_limited and self.vectors is not None:
                n_missing = len(self.vectors.missing(encoder.fingerprint, texts))
                if n_missing > MAX_TEXTS_EMBEDDED_BY_SEARCH:
                    raise VectorsMissing(f"{n_missing:,} texts of tools have no vector of {encoder.name} yet")
            return self._encode(encoder, texts, "tool")

        return encoders.encode_tools(encode, tools, style)

    def index_tools(self, catalogue: Catalogue, encoder: Encoder, style: str = "named") -> Exact:
        """Return the index over the vectors of the catalogue's tools. It is stored with the catalogue's snapshot.

        `style` names the text of a tool that is encoded; see `encoders.encode_tools`.
        """
        index_class = find_index_class(choose_index(len(catalogue), self.settings.index), len(catalogue))
        key = f"{index_class.key}/{name_space(encoder, style)}"

        def build() -> tuple[Arrays, Mapping[str, object]]:
            """Build the index for the file of the snapshot, as arrays and JSON values."""
            earlier = catalogue.open_earlier(key) if self._may_reuse_vectors(encoder) else None
            index = index_class.of(catalogue.ids, self._encode_all(catalogue, encoder, style, earlier))
            earlier_arrays = None  # arrays of the earlier index, and the position there of each present tool
            if earlier:
                snapshot, part = earlier
                earlier_arrays = part.arrays, snapshot.positions
            # A graph is built in other threads. Meanwhile, this thread indexes the words, which every recipe needs.
            prepare_words = functools.partial(index_words, catalogue)
            return index.arrays(meanwhile=prepare_words, earlier=earlier_arrays), index.meta

        def load() -> Exact:
            part = catalogue.load_part(key, build)
            return index_class.from_arrays(part.arrays, part.meta, catalogue.ids, part.rows)

        return catalogue.share(key, load)

    def _encode_all(
        self, catalogue: Catalogue, encoder: Encoder, style: str, earlier: tuple[EarlierSnapshot, SnapshotPart] | None
    ) -> Vectors:
        """Return the vectors of all tools of a snapshot, (tools, dim). Tools without an earlier vector are encoded."""
        rows = np.empty((len(catalogue), encoder.dim), dtype=np.float32)
        to_encode = np.arange(len(catalogue))
        if earlier is not None:
            snapshot, part = earlier
            kept = snapshot.kept_positions
            rows[kept] = part.arrays["vectors"][snapshot.positions[kept]]
            to_encode = snapshot.new_positions
        # A cheap encoder gets the tools batch by batch, so that few are in memory. The vector cache, which another
        # encoder goes through, makes batches of its own, so it gets all tools at once.
        batch_size = TOOLS_BATCH if encoder.cheap else max(1, len(to_encode))
        n_encoded = 0
        for batch in catalogue.batches(to_encode, batch_size):
            positions = to_encode[n_encoded : n_encoded + len(batch)]
            rows[positions] = self.encode_tools(encoder, batch, style)
            n_encoded += len(batch)
        return rows

    def index_nearest(self, catalogue: Catalogue, encoder: Encoder, style: str = "named") -> VectorIndex:
        """Return the index that the setting `index` names, over the vectors of the catalogue's tools.

        Only the search for candidates uses it. What needs the scores of all tools uses `index_tools`, the exact index.

        Raises:
            ConfigError: if there is no such index, or if a package's index returns other ids than it was given.
        """
        exact, name = self.index_tools(catalogue, encoder, style), self.settings.index
        space, engine = name_space(encoder, style, name), find_engine(name)
        if engine is not None:
            # A catalogue without fingerprints is not in a store, so it must not change what an engine stores.
            if catalogue.fingerprints is None:
                return exact
            snapshot = Snapshot(catalogue.generation, catalogue.ids, catalogue.fingerprints)
            weigh = functools.partial(_weigh_terms, catalogue)
            open_index = functools.partial(engine.open_index, self.settings, space, snapshot, exact, weigh)
            return catalogue.share(f"{name}/{space}", open_index)
        if name in BUILT_IN_INDEXES or not len(exact.ids):
            return exact

        def fill_index() -> VectorIndex:
            index = new_index(name, exact.dim, self.settings)
            index.upsert(exact.ids, exact.vectors)
            if tuple(index.ids) != exact.ids:
                raise ConfigError(f"index {name}: it does not hold the ids of the tools in ascending order")
            return index

        return catalogue.share(f"{name}/{space}", fill_index)

    def index_nearest_words(
        self, catalogue: Catalogue, encoder: Encoder, style: str = "named", settings: BM25Settings = CODE_SETTINGS
    ) -> BM25 | WordsInEngine:
        """Return the BM25 index, or an engine that stores the BM25 weights beside the vectors of an encoder."""
        nearest = self.index_nearest(catalogue, encoder, style)  # first, because its graph takes longest
        words = index_words(catalogue, settings)
        engine = find_engine(self.settings.index)
        if engine is None or not engine.searches_words:
            return words
        # An engine stores the weights of `CODE_SETTINGS` only, and only for a catalogue in a store.
        is_in_engine = catalogue.fingerprints is not None and settings == CODE_SETTINGS
        return engine.search_words(nearest, words) if is_in_engine else words

    def build_recipe(self, name: str, catalogue: Catalogue, model: Path | None = None) -> Stage:
        """Build another recipe over the same resources, up to its ranked hits."""
        assert self.build is not None  # recipes are built by the registry, which sets it
        return self.build(name, catalogue, self, model=model)

    def build_base(self, catalogue: Catalogue, model: Model) -> Stage:
        """Build the base of a fitted model: the recipe that finds its candidates.

        If the base is fitted too, its own model is in a folder of the model, and it gets the encoder that it was fitted
        on.
        """
        name, folder = model.manifest.settings["base"].value, model.folder / BASE_FOLDER
        if not folder.exists():
            return self.build_recipe(name, catalogue)
        fitted_on = model_store.read_manifest(folder).encoder
        if fitted_on is None or getattr(self.encoder, "fingerprint", None) == fitted_on.fingerprint:
            return self.build_recipe(name, catalogue, folder)  # needs no encoder, or the right one is loaded already
        return dataclasses.replace(self, encoder=fitted_on.name).build_recipe(name, catalogue, folder)

    def _encode(self, encoder: Encoder, texts: list[str], kind: encoders.Kind) -> Vectors:
        """Return the vectors of texts, (texts, dim). Vectors of an expensive encoder come from the cache."""
        if encoder.cheap or self.vectors is None:
            return encoder.encode(texts, kind)
        cache_key = encoder.fingerprint if kind == "tool" else f"{encoder.fingerprint}/{kind}"
        return self.vectors.rows(
            cache_key,
            texts,
            lambda missing: encoder.encode(missing, kind),
            name=encoder.name,
            progress=self.progress,
            encode_all=lambda batches: encode_batches(encoder, kind, batches, self.settings),
        )

    def _may_reuse_vectors(self, encoder: Encoder) -> bool:
        """Tell whether vectors may be taken over from the earlier snapshot instead of being encoded."""
        if encoder.cheap or self.vectors is None:
            return True
        # If the cache has no vector of the encoder, someone has cleared it. Encoding all tools fills it again.
        return self.vectors.has_any(encoder.fingerprint)


def _weigh_terms(catalogue: Catalogue, ids: Sequence[str]) -> list[Mapping[str, float]]:
    """Return term → BM25 weight for each of some tools, as `index_words` indexes them."""
    words, shared = index_words(catalogue), _load_shared_parameters(catalogue)
    return [words.weigh_tool(drop_parameters(tool, shared.get(tool.source, ()))) for tool in catalogue.tools(ids)]


def name_space(encoder: Encoder, style: str = "named", index: str = "") -> str:
    """Name the vectors that can be compared with each other, by a digest of the encoder and of how a tool becomes text.

    `index` is the name of an index, which may be an engine.
    """
    parts = [encoder.fingerprint, style]
    engine = find_engine(index) if index else None
    if engine is not None and engine.searches_words:
        parts.append(CODE_SETTINGS.fingerprint)  # such an engine stores the weights of BM25 beside the vectors
    return digest("dense/3", parts)


class BuildRecipe(Protocol):
    """The signature of `recipes.registry.build`."""

    def __call__(
        self, name: str, catalogue: Catalogue, resources: HomeResources | None = None, *, model: Path | None = None
    ) -> Stage: ...


def index_words(catalogue: Catalogue, settings: BM25Settings = CODE_SETTINGS) -> BM25:
    """Return the BM25 index over the catalogue's tools. It is stored with the snapshot.

    The index has no words of *shared parameters*: parameters that most tools of a source have tell none of them apart.
    """
    key, counts_key = f"bm25/{settings.fingerprint}", f"{TERM_COUNTS_FORMAT}/{settings.fingerprint}"

    def build_index() -> tuple[Arrays, Mapping[str, object]]:
        """Build the BM25 index. The terms of tools that have not changed come from the earlier index."""
        shared = _load_shared_parameters(catalogue)
        earlier = _open_earlier_terms(catalogue, key, counts_key, shared)
        batches = (
            [drop_parameters(tool, shared.get(tool.source, ())) for tool in batch]
            for batch in catalogue.batches(earlier.new_positions if earlier else None)
        )
        index = BM25.build_batches(batches, settings, ids=catalogue.ids, earlier=earlier)
        assert index.counts is not None
        counts = index.counts.arrays()
        # `load_part` stores a part that is missing. The index of the next snapshot is built from these counts.
        catalogue.load_part(counts_key, lambda: (counts, {}))
        return index.arrays(), index.meta

    def load() -> BM25:
        part = catalogue.load_part(key, build_index)
        # A file has a checksum over its arrays, so its values need no other check.
        return BM25.from_arrays(part.arrays, part.meta, catalogue.ids, is_checked=part.is_file)

    return catalogue.share(key, load)


def expand_words(
    catalogue: Catalogue, settings: BM25Settings = CODE_SETTINGS, weight: float = EVERYDAY_WEIGHT
) -> ExpandedWords:
    """Return the BM25 index that also searches for the words that everyday phrases in a query add."""
    key = f"expanded/{settings.fingerprint}/{weight}"
    return catalogue.share(key, lambda: ExpandedWords(index_words(catalogue, settings), load_thesaurus, weight))


def _load_shared_parameters(catalogue: Catalogue) -> dict[str, list[str]]:
    """Return source → the parameters that most of its tools have. The index leaves their words out."""

    def find() -> bytes:
        """Find the shared parameters of new and changed sources. Those of unchanged sources are taken over."""
        encoded, positions = catalogue.load_earlier_value(SHARED_PARAMETERS_FORMAT)
        shared = find_shared_parameters(itertools.chain.from_iterable(catalogue.batches(positions)))
        if encoded is not None and catalogue.earlier is not None:
            earlier = msgspec.json.decode(encoded, type=dict[str, list[str]])
            unchanged = catalogue.earlier.unchanged_sources
            shared |= {source: names for source, names in earlier.items() if source in unchanged}
        return msgspec.json.encode(shared, order="sorted")

    encoded = catalogue.load_or_build(SHARED_PARAMETERS_FORMAT, find)
    return msgspec.json.decode(encoded, type=dict[str, list[str]])


def _open_earlier_terms(
    catalogue: Catalogue, key: str, counts_key: str, shared: Mapping[str, list[str]]
) -> EarlierTerms | None:
    """Return the terms of the tools that have not changed since the earlier snapshot; None if it stored no terms.

    Args:
        catalogue: the snapshot.
        key: key of the index.
        counts_key: key of its counts.
        shared: source → the parameters that the index leaves out.
    """
    index, counts = catalogue.open_earlier(key), catalogue.open_earlier(counts_key)
    if index is None or counts is None:
        return None
    (earlier, index_part), (_, counts_part) = index, counts
    encoded = earlier.load_value(SHARED_PARAMETERS_FORMAT)
    earlier_shared = msgspec.json.decode(encoded, type=dict[str, list[str]]) if encoded else {}
    # If the index now leaves out other parameters of a source, all tools of that source are read again.
    sources = {*shared, *earlier_shared}
    changed = {source for source in sources if shared.get(source) != earlier_shared.get(source)}
    is_changed = np.fromiter((id.partition("/")[0] in changed for id in catalogue.ids), np.bool_, len(catalogue.ids))
    places = np.where(is_changed, -1, earlier.positions)  # -1: read the tool again
    vocabulary = Strings.from_arrays(index_part.arrays, "vocabulary")
    return EarlierTerms(places, vocabulary, index_part.arrays, TermCounts.from_arrays(counts_part.arrays))


def __getattr__(name: str) -> Any:
    """Return `HomeResources` under the name that it had in version 0.2, with a warning."""
    if name != "Workspace":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("Workspace is now toolscout.search.home_resources.HomeResources", DeprecationWarning, stacklevel=2)
    return HomeResources
