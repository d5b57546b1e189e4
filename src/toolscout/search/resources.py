"""What a ranker may use while it is fitted or built: vectors, words, progress lines, the run of its fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar, runtime_checkable

from toolscout.arrays import Vectors
from toolscout.encoders.encoder import Encoder
from toolscout.home.catalogue.snapshot import Catalogue
from toolscout.home.journal.evidence import Example
from toolscout.home.models.model_store import Model
from toolscout.indexes import VectorIndex
from toolscout.indexes.bm25 import BM25
from toolscout.indexes.bm25_settings import CODE_SETTINGS, BM25Settings
from toolscout.indexes.engine import WordsInEngine
from toolscout.indexes.exact import Exact
from toolscout.search.pipeline import Stage
from toolscout.settings import Settings
from toolscout.types import Tool

__all__ = ["BASE_FOLDER", "Extras", "FitRun", "LiveEvidence", "Resources"]

LiveEvidence = Callable[[], tuple[int, Sequence[Example]]]
"""() → (a number that changes with the examples, the examples since the model was fitted)."""
BASE_FOLDER: Final = "base"  # folder inside a model that contains the model of its base
Item = TypeVar("Item")


class FitRun(NamedTuple):
    """One run of a fit.

    Attributes:
        seed: seed of all random choices.
        resume: whether the fit continues from the checkpoints of an interrupted one in `work`.
        work: folder for checkpoints.
        identity: equal fits have equal identities.
    """

    seed: int
    resume: bool
    work: Path
    identity: str


class Extras:
    """Objects that a package lends to its own rankers, one of each class, such as a shared language model.

    Attributes:
        lasting: whether the owner keeps the objects from one build to the next, and closes them.
        rehearse: whether services that cost money only count what they would cost.
    """

    def __init__(self, lasting: bool = False) -> None:
        """Begin empty. `lasting`: see the attributes."""
        self.lasting, self.rehearse = lasting, False
        self._items: dict[type, object] = {}  # class → its object

    def find(self, kind: type[Item]) -> Item | None:
        """Return the object of this class, or None."""
        item = self._items.get(kind)
        return item if isinstance(item, kind) else None

    def share(self, kind: type[Item], make: Callable[[], Item]) -> Item:
        """Return the object of class `kind`. If there is none yet, `make` makes it, and later calls return it."""
        item = self.find(kind)
        if item is None:
            item = make()
            self._items[kind] = item
        return item

    def list_items(self) -> list[object]:
        """Return all objects."""
        return list(self._items.values())

    def close(self) -> None:
        """Close the objects that can be closed."""
        for item in self._items.values():
            if isinstance(item, Closeable):
                item.close()


@runtime_checkable
class Closeable(Protocol):
    """An object that its owner closes."""

    def close(self) -> None: ...


class Resources(Protocol):
    """What a ranker sees of the home and of the run. `search.home_resources` has the implementation."""

    @property
    def settings(self) -> Settings:
        """Settings of the home."""

    @property
    def say(self) -> Callable[[str], None]:
        """Reports one line of progress."""

    @property
    def run(self) -> FitRun:
        """The run of the fit."""

    @property
    def live(self) -> LiveEvidence | None:
        """Examples since the model was fitted. None: there are none."""

    @property
    def extras(self) -> Extras:
        """What packages lend to their own rankers."""

    def load_encoder(self) -> Encoder:
        """Return the encoder. One that is given by name is loaded at the first call."""

    def encode_queries(self, encoder: Encoder, texts: Sequence[str]) -> Vectors:
        """Encode queries as `(n, dim)` unit rows."""

    def encode_tools(self, encoder: Encoder, tools: Sequence[Tool], style: str = "named") -> Vectors:
        """Encode tools as `(n, dim)` unit rows. `style`: which text of a tool, a key of `STYLES` or `named`."""

    def index_tools(self, catalogue: Catalogue, encoder: Encoder, style: str = "named") -> Exact:
        """Return the index that scores all tools of the catalogue by their vectors."""

    def index_nearest(self, catalogue: Catalogue, encoder: Encoder, style: str = "named") -> VectorIndex:
        """Return the index of the setting `index`, which finds the tools with the nearest vectors."""

    def index_nearest_words(
        self, catalogue: Catalogue, encoder: Encoder, style: str = "named", settings: BM25Settings = CODE_SETTINGS
    ) -> BM25 | WordsInEngine:
        """Return the BM25 index, or the engine that scores words like BM25 if it stores the vectors and the words."""

    def build_recipe(self, name: str, catalogue: Catalogue, model: Path | None = None) -> Stage:
        """Build another recipe over the same resources."""

    def build_base(self, catalogue: Catalogue, model: Model) -> Stage:
        """Build the base of a fitted model."""
