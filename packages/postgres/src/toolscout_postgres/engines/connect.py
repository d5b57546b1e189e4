"""Opens the engine that the setting `index` names, once in a process."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from toolscout.errors import ConfigError
from toolscout.location import DEFAULT_TENANT, Home, is_address
from toolscout.settings import Settings
from toolscout_postgres.address import Address
from toolscout_postgres.engines.contract import Engine, identify_home

__all__ = ["close_engine", "drop_collections", "open_engine"]

_engines: dict[tuple[str, Home], Engine] = {}
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
    """Delete the vectors of a home or of one of its tenants, around the block that removes the rest.

    They go first, so after a crash the tenant is still there and can be removed. They go again after the block, because
    a service may have written some meanwhile. What lies in the home itself goes with it.

    Raises:
        UserError: if the engine does not answer; nothing is then removed.
    """
    home, engine = identify_home(settings.place), open_engine(settings)
    try:
        if not Path(engine.label).is_relative_to(settings.home):
            _drop_all(engine, home)
        yield
        if settings.index != "pgvector" and not Path(engine.label).is_relative_to(settings.home):
            _drop_all(engine, home)
    finally:
        close_engine(settings)


def _drop_all(engine: Engine, home: str) -> None:
    for state in engine.list_collections(home):
        engine.collection(state.key).drop()


def _make_engine(settings: Settings) -> Engine:
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

    if argument and not is_address(argument):
        raise ConfigError("index: pgvector needs an address such as  pgvector:postgresql://user@host/database")
    address = Address.parse(argument) if argument else _find_address(settings)
    if argument and settings.tenant != DEFAULT_TENANT:
        address = dataclasses.replace(Address.parse(argument), tenant=settings.tenant)
    if address is None:
        raise ConfigError(
            "index: pgvector keeps vectors in the database of the home, but this home is a folder. Set  "
            'index = "pgvector:postgresql://user@host/database"  or move the home with  toolscout migrate'
        )
    return PgvectorEngine(address, shares_home=address == settings.database)


def _find_address(settings: Settings) -> Address | None:
    return settings.database if isinstance(settings.database, Address) else None
