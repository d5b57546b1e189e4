"""Vectors of texts, kept by content and encoder: a text is embedded once, whatever tool or catalogue it belongs to.

A vector belongs to a text, not to a tool, so tools and vectors cannot fall out of step. Batches are written as they are
made: a long embedding that is interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolscout.database import Database

__all__ = ["VectorStore"]

MIGRATIONS: Final = (
    """
    CREATE TABLE encoders (fingerprint TEXT PRIMARY KEY, name TEXT NOT NULL, dim INTEGER NOT NULL);
    CREATE TABLE vectors (
        encoder TEXT NOT NULL REFERENCES encoders ON DELETE CASCADE, text BLOB NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (encoder, text)) WITHOUT ROWID
    """,
)
BATCH: Final = 256
Rows = npt.NDArray[np.float32]


class VectorStore(Database):
    """The file of vectors."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "vectors.db", MIGRATIONS)

    def missing(self, encoder: str, texts: Sequence[str]) -> list[str]:
        """Those of `texts` that the encoder of that fingerprint has not embedded yet, each once."""
        keys, held = {_key(text): text for text in texts}, self._held(encoder)
        return [text for key, text in keys.items() if key not in held]

    def rows(
        self,
        encoder: str,
        texts: Sequence[str],
        encode: Callable[[Sequence[str]], Rows],
        *,
        name: str = "",
        progress: Callable[[int, int], None] | None = None,
    ) -> Rows:
        """Vectors of `texts`, `(n, d)` float32, in order; what is missing is embedded and kept.

        Args:
            encoder: fingerprint of the encoder.
            texts: may repeat.
            encode: texts → rows, called with at most 256 texts of like length.
            name: what people call the encoder.
            progress: called with (done, all) after each batch.
        """
        wanted = sorted(self.missing(encoder, texts), key=len)
        for start in range(0, len(wanted), BATCH):
            batch = wanted[start : start + BATCH]
            self._put(encoder, name, batch, encode(batch))
            if progress:
                progress(start + len(batch), len(wanted))
        with self.reading() as connection:
            query = "SELECT text, value FROM vectors WHERE encoder = ?"
            held = {key: np.frombuffer(value, dtype="<f4") for key, value in connection.execute(query, (encoder,))}
        return np.array([held[_key(text)] for text in texts], dtype=np.float32)

    def encoders(self) -> list[tuple[str, int]]:
        """(name, number of vectors) of each encoder."""
        with self.reading() as connection:
            return connection.execute(
                "SELECT name, count(*) FROM encoders JOIN vectors ON vectors.encoder = encoders.fingerprint "
                "GROUP BY encoders.fingerprint ORDER BY name"
            ).fetchall()

    def prune(self, texts: Sequence[str]) -> int:
        """Forget vectors of other texts. Returns how many went."""
        kept = {_key(text) for text in texts}
        with self.writing() as connection:
            rows = connection.execute("SELECT encoder, text FROM vectors").fetchall()
            gone = [row for row in rows if row[1] not in kept]
            connection.executemany("DELETE FROM vectors WHERE encoder = ? AND text = ?", gone)
        return len(gone)

    def _held(self, encoder: str) -> set[bytes]:
        with self.reading() as connection:
            return {row[0] for row in connection.execute("SELECT text FROM vectors WHERE encoder = ?", (encoder,))}

    def _put(self, encoder: str, name: str, texts: Sequence[str], rows: npt.NDArray[Any]) -> None:
        values = np.asarray(rows, dtype="<f4")
        with self.writing() as connection:
            connection.execute("INSERT OR IGNORE INTO encoders VALUES (?, ?, ?)", (encoder, name, values.shape[1]))
            connection.executemany(
                "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)",
                [(encoder, _key(text), row.tobytes()) for text, row in zip(texts, values, strict=True)],
            )


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
