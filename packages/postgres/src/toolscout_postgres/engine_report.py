"""The part of `doctor` about the engine of the index: its size, its generation, and what differs from the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolscout.cli.output import count_things, echo, escape_line
from toolscout.errors import UserError
from toolscout.home.database import CacheDatabase
from toolscout.indexes.engine import EngineInUse, Snapshot, find_engine
from toolscout.recipes.select import Selection
from toolscout.scout import Scout
from toolscout.search.home_resources import name_space
from toolscout.settings import Settings
from toolscout_postgres.engines import CollectionEngine
from toolscout_postgres.engines.contract import UNFINISHED, CollectionState, identify_home
from toolscout_postgres.engines.search import compare, open_engine

__all__ = ["CACHE_FILES", "check", "describe", "print_report"]

CACHE_FILES: Final[Mapping[str, type[CacheDatabase]]] = {}  # part of the contract: an engine has no cache in the home


def uses_collections(index: str) -> bool:
    """Return whether the setting `index` names an engine of this package."""
    return isinstance(find_engine(index), CollectionEngine)


def describe(settings: Settings, scout: Scout | None) -> dict[str, Any] | None:
    """Describe the engine and its collections of this home for `doctor`. None: the index is not in an engine."""
    if scout is None or not uses_collections(scout.settings.index):
        return None
    try:
        engine = open_engine(scout.settings)
        states = engine.list_collections(identify_home(scout.settings.place))
        current_space = _find_current_space(scout)
    except UserError as error:
        return {"name": scout.settings.index.partition(":")[0], "place": None, "error": str(error), "collections": []}
    return {
        "name": engine.name,
        "place": engine.label,
        "error": None,
        "collections": [_describe_collection(state, current_space) for state in states],
    }


def _describe_collection(state: CollectionState, current_space: str) -> dict[str, Any]:
    """Describe a collection for `doctor`. Its generation is None while a change has begun and not ended.

    Args:
        state: of the collection.
        current_space: names the encoder in the settings; see `CollectionKey`.
    """
    return {
        "tenant": state.key.tenant,
        "dim": state.key.dim,
        "tools": state.mark.size,
        "generation": None if state.mark.generation == UNFINISHED else state.mark.generation,
        "current_encoder": state.key.space == current_space,
    }


def _find_current_space(scout: Scout) -> str:
    """Return the name by which collections know the encoder in the settings; see `CollectionKey.space`."""
    encoder = scout.engine.builder.make_resources(Selection(scout.settings.recipe)).load_encoder()
    return name_space(encoder, index=scout.settings.index)


def check(scout: Scout) -> list[str]:
    """Compare the engine with the catalogue. Returns one line for each problem.

    Only the collections of the encoder in the settings are compared, because no search uses the others. If another
    process uses the engine, nothing can be read from it, and no problem is returned.
    """
    if not uses_collections(scout.settings.index):
        return []
    try:
        engine = open_engine(scout.settings)
        current_space = _find_current_space(scout)
        catalogue = scout.store.catalogue()
        assert catalogue.fingerprints is not None
        snapshot = Snapshot(catalogue.generation, catalogue.ids, catalogue.fingerprints)
        problems = []
        for state in engine.list_collections(identify_home(scout.settings.place)):
            if state.key.space != current_space:
                continue
            if differences := str(compare(engine.collection(state.key), snapshot)):
                problems.append(f"index: {engine.label} differs from the catalogue: tools {differences}")
            elif state.mark.generation == UNFINISHED:
                problems.append(f"index: a change of {engine.label} was interrupted")
    except EngineInUse:
        return []
    except UserError as error:
        return [f"index: {error}"]
    return problems


def print_report(report: dict[str, Any] | None) -> None:
    """Print the description that `describe` returned."""
    if report is None:
        return
    echo()
    echo(escape_line(f"index in {report['name']}: {report['place'] or report['error']}"))
    for collection in report["collections"]:
        tools = count_things(collection["tools"], "tool")
        generation = collection["generation"]
        state = "a change is not finished" if generation is None else f"generation {generation}"
        encoder = "" if collection["current_encoder"] else ", of another encoder"
        echo(escape_line(f"  {tools}, {state}, tenant {collection['tenant']}{encoder}"))
