"""Queries and tools as vectors of a fitted encoder, for methods that train the vectors themselves over graphs.

A tool that no training query used keeps the encoder's vector of its text. So does a tool that is new in a catalogue.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from toolscout.arrays import Mask, Places, Vectors
from toolscout.encoders import unit_rows
from toolscout.home.catalogue.store import Catalogue
from toolscout.home.models.model_store import Model
from toolscout.indexes.exact import Exact
from toolscout.rankers.lesson import Lesson
from toolscout.rankers.shared.sparse_features import ToolSets
from toolscout.search.resources import Resources
from toolscout.types import Tool, render
from toolscout_lab.rankers import dpr
from toolscout_lab.rankers.dpr import FittedEncoder

__all__ = ["EncodedLesson", "index_rows", "load_tool_rows"]


@dataclasses.dataclass(frozen=True)
class EncodedLesson:
    """A lesson as arrays.

    Attributes:
        train: (training queries, d) unit rows.
        dev: (dev queries, d) unit rows.
        tools: (tools, d) unit rows of the tools' texts.
        gold: positions of the gold tools of each training query, ascending.
        scene_of: (training queries,) number of the set of tools that each query needs.
        used: (tools,) whether a training query needs the tool.
    """

    train: Vectors
    dev: Vectors
    tools: Vectors
    gold: list[Places]
    scene_of: Places
    used: Mask

    @classmethod
    def encode(cls, resources: Resources, lesson: Lesson, encoder: FittedEncoder) -> EncodedLesson:
        """Encode the queries and tools of a lesson."""
        gold = [np.sort(places) for places in lesson.gold_positions()]
        resources.say("encoding queries and tools")
        rows = resources.encode_queries(encoder, lesson.texts_of([*lesson.train, *lesson.dev]))
        tools = resources.encode_tools(encoder, lesson.tools, dpr.TUNED_TEXT_STYLE)
        used = np.zeros(len(tools), dtype=np.bool_)
        used[np.concatenate(gold)] = True
        _, scene_of = ToolSets.group(gold)
        return cls(rows[: len(gold)], rows[len(gold) :], tools, gold, scene_of, used)

    def replace_used(self, fitted: Vectors) -> Vectors:
        """Return the fitted vectors of the used tools as unit rows, and the encoder's vectors of the others."""
        return np.where(self.used[:, None], unit_rows(fitted), self.tools)


def load_tool_rows(catalogue: Catalogue, model: Model, encoder: FittedEncoder) -> Vectors:
    """Return the vectors of a catalogue's tools, `(tools, d)`; those of new tools come from the encoder.

    Args:
        catalogue: the tools.
        model: has the array `tools`.
        encoder: that the model was fitted over.
    """
    tools: list[Tool] = catalogue.tools()
    places = model.places(tools)
    fitted, new = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
    rows = np.empty((len(tools), encoder.dim), dtype=np.float32)
    rows[fitted] = model.arrays["tools"][places[fitted]]
    rows[new] = encoder.encode([render(tools[number], dpr.TUNED_TEXT_STYLE) for number in new], "tool")
    return rows


def index_rows(catalogue: Catalogue, rows: Vectors) -> Exact:
    """Index the vectors of a catalogue's tools, `(tools, d)`."""
    index = Exact(rows.shape[1])
    index.upsert(catalogue.ids, rows)
    return index
