"""Tools that a person hid: they leave the catalogue, and no reading of their source brings them back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from toolscout.database import Connection

__all__ = ["HIDDEN_MIGRATION", "hide_tools", "list_hidden", "show_tools"]

HIDDEN_MIGRATION: Final = "CREATE TABLE hidden (id TEXT PRIMARY KEY, hidden_at TEXT NOT NULL)"


def list_hidden(connection: Connection) -> list[str]:
    """Return the ids of the hidden tools, in ascending order."""
    return [id for (id,) in connection.execute("SELECT id FROM hidden ORDER BY id")]


def hide_tools(connection: Connection, ids: Iterable[str], at: str) -> None:
    """Note tools as hidden, and take them out of the catalogue and of the definitions that wait for approval."""
    for id in ids:
        connection.execute("INSERT INTO hidden VALUES (?, ?) ON CONFLICT (id) DO NOTHING", (id, at))
        connection.execute("DELETE FROM tools WHERE id = ?", (id,))
        connection.execute("DELETE FROM quarantine WHERE id = ?", (id,))


def show_tools(connection: Connection, ids: Iterable[str]) -> None:
    """Forget that tools were hidden. The next reading of their source brings them back."""
    for id in ids:
        connection.execute("DELETE FROM hidden WHERE id = ?", (id,))
