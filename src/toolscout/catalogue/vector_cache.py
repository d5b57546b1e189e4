"""Vectors of texts, kept by content and encoder: a text is embedded once, whatever tool or catalogue it belongs to.

A vector belongs to a text, not to a tool, so tools and vectors cannot fall out of step. Batches are written as they are
made: a long embedding that is interrupted goes on where it stopped. Every vector has a checksum, because SQLite
keeps none of its content: one that was damaged on the disk is made again.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toolscout.database import CacheDatabase, rebuild_if_damaged
from toolscout.errors import StoreError

__all__ = ["VectorStore"]

MIGRATIONS: Final = (
    """
    CREATE TABLE encoders (fingerprint TEXT PRIMARY KEY, name TEXT NOT NULL, dim INTEGER NOT NULL);
    CREATE TABLE vectors (
        encoder TEXT NOT NULL REFERENCES encoders ON DELETE CASCADE, text BLOB NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (encoder, text)) WITHOUT ROWID
    """,
    "ALTER TABLE vectors ADD COLUMN checksum INTEGER",  # NULL: written before there were any
)
FILE_NAME: Final = "vectors.db"
BATCH: Final = 256
Rows = npt.NDArray[np.float32]
_log: Final = logging.getLogger("toolscout.catalogue.vector_cache")


class VectorStore(CacheDatabase):
    """The file of vectors."""

    def __init__(self, folder: Path, *, repair: bool = True) -> None:
        """Open or create it; see `CacheDatabase`."""
        super().__init__(folder / FILE_NAME, MIGRATIONS, repair=repair)
        self._warned = False

    @rebuild_if_damaged
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
        keys = {_key(text): text for text in texts}
        held = self._read(encoder, keys)
        wanted = sorted((text for key, text in keys.items() if key not in held), key=len)
        for start in range(0, len(wanted), BATCH):
            batch = wanted[start : start + BATCH]
            made = np.asarray(encode(batch), dtype="<f4")
            held.update(zip(map(_key, batch), made, strict=True))
            self._put_if_possible(encoder, name, batch, made)
            if progress:
                progress(start + len(batch), len(wanted))
        return np.array([held[_key(text)] for text in texts], dtype=np.float32)

    @rebuild_if_damaged
    def encoders(self) -> list[tuple[str, int]]:
        """(name, number of vectors) of each encoder."""
        with self.reading() as connection:
            return connection.execute(
                "SELECT name, count(*) FROM encoders JOIN vectors ON vectors.encoder = encoders.fingerprint "
                "GROUP BY encoders.fingerprint ORDER BY name"
            ).fetchall()

    @rebuild_if_damaged
    def prune(self, texts: Sequence[str]) -> int:
        """Forget vectors of other texts. Returns how many went."""
        kept = {_key(text) for text in texts}
        with self.writing() as connection:
            rows = connection.execute("SELECT encoder, text FROM vectors").fetchall()
            gone = [row for row in rows if row[1] not in kept]
            connection.executemany("DELETE FROM vectors WHERE encoder = ? AND text = ?", gone)
        return len(gone)

    def check(self) -> list[str]:
        """What SQLite finds wrong with the file, and how many vectors do not match their checksums."""
        findings = super().check()
        if findings:
            return findings
        with self.reading() as connection:
            rows = connection.execute("SELECT value, checksum FROM vectors")
            bad = sum(checksum not in (None, zlib.crc32(value)) for value, checksum in rows)
        return [f"{bad:,} vectors do not match their checksums"] if bad else []

    def drop_damaged(self) -> int:
        """Remove vectors that do not match their checksums; the next search makes them again. Returns how many."""
        with self.writing() as connection:
            rows = connection.execute("SELECT encoder, text, value, checksum FROM vectors")
            bad = [row[:2] for row in rows if row[3] not in (None, zlib.crc32(row[2]))]
            connection.executemany("DELETE FROM vectors WHERE encoder = ? AND text = ?", bad)
        return len(bad)

    def _held(self, encoder: str) -> set[bytes]:
        with self.reading() as connection:
            return {row[0] for row in connection.execute("SELECT text FROM vectors WHERE encoder = ?", (encoder,))}

    @rebuild_if_damaged
    def _read(self, encoder: str, keys: Container[bytes]) -> dict[bytes, Rows]:
        """The kept vectors of these keys, without damaged ones."""
        found: dict[bytes, Rows] = {}
        damaged = 0
        with self.reading() as connection:
            row = connection.execute("SELECT dim FROM encoders WHERE fingerprint = ?", (encoder,)).fetchone()
            query = "SELECT text, value, checksum FROM vectors WHERE encoder = ?"
            for key, value, checksum in connection.execute(query, (encoder,)) if row else ():
                if key not in keys:
                    continue
                if len(value) == 4 * row[0] and checksum in (None, zlib.crc32(value)):
                    found[key] = np.frombuffer(value, dtype="<f4")
                else:
                    damaged += 1
        if damaged:
            _log.warning("%s: %d vectors were damaged: made again", self.path, damaged)
        return found

    @rebuild_if_damaged
    def _put(self, encoder: str, name: str, texts: Sequence[str], rows: npt.NDArray[Any]) -> None:
        values = [row.tobytes() for row in np.asarray(rows, dtype="<f4")]
        with self.writing() as connection:
            connection.execute("INSERT OR IGNORE INTO encoders VALUES (?, ?, ?)", (encoder, name, rows.shape[1]))
            connection.executemany(
                "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)",
                [(encoder, _key(text), value, zlib.crc32(value)) for text, value in zip(texts, values, strict=True)],
            )

    def _put_if_possible(self, encoder: str, name: str, texts: Sequence[str], rows: npt.NDArray[Any]) -> None:
        """Keep vectors; where the file cannot be written they serve this once, with one warning."""
        try:
            if not self.read_only:
                self._put(encoder, name, texts, rows)
        except StoreError as error:
            if not self._warned:
                _log.warning("new vectors are not kept: %s", error)
            self._warned = True


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
