"""The vector cache stores vectors by text and encoder, so that each text is embedded once.

A vector belongs to a text, not to a tool, so tools and vectors cannot fall out of step. Each batch is written at once,
so an interrupted embedding continues where it stopped. Every vector has a checksum, because SQLite does not check its
content. A damaged vector is computed again.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
import zlib
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from toolscout.arrays import Array
from toolscout.errors import StoreError, Unavailable
from toolscout.home.database import CacheDatabase, rebuild_if_damaged

__all__ = ["Progress", "VectorMaker", "VectorStore", "show_progress"]

VECTOR_MIGRATIONS: Final = (
    """
    CREATE TABLE encoders (fingerprint TEXT PRIMARY KEY, name TEXT NOT NULL, dim INTEGER NOT NULL);
    CREATE TABLE vectors (
        encoder TEXT NOT NULL REFERENCES encoders ON DELETE CASCADE, text BLOB NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (encoder, text)) WITHOUT ROWID
    """,
    "ALTER TABLE vectors ADD COLUMN checksum INTEGER",  # NULL: the vector is older than checksums
)
VECTORS_FILE_NAME: Final = "vectors.db"
EMBED_BATCH: Final = 256
Rows = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]
"""(done, total) after each batch of texts."""
_log: Final = logging.getLogger("toolscout.catalogue.vector_cache")


class VectorStore(CacheDatabase):
    """The file that stores the vectors of one home."""

    def __init__(self, folder: Path, *, repair: bool = True) -> None:
        """Open or create the file; see `CacheDatabase`."""
        super().__init__(folder / VECTORS_FILE_NAME, VECTOR_MIGRATIONS, repair=repair)
        self._has_warned = False  # whether the log says that the file cannot be written

    @rebuild_if_damaged
    def has_any(self, encoder: str) -> bool:
        """Return whether there is a vector of the encoder with this fingerprint. A file begun anew has none."""
        with self.reading() as connection:
            query = "SELECT EXISTS (SELECT 1 FROM vectors WHERE encoder = ?)"
            return bool(connection.execute(query, (encoder,)).fetchone()[0])

    @rebuild_if_damaged
    def missing(self, encoder: str, texts: Sequence[str]) -> list[str]:
        """Return the texts without a vector of the encoder with this fingerprint, each once."""
        texts_by_key = {_hash_text(text): text for text in texts}
        with self.reading() as connection:
            rows = connection.execute("SELECT text FROM vectors WHERE encoder = ?", (encoder,))
            cached_keys = {key for (key,) in rows}
        return [text for key, text in texts_by_key.items() if key not in cached_keys]

    def rows(
        self,
        encoder: str,
        texts: Sequence[str],
        encode: Callable[[Sequence[str]], Rows],
        *,
        name: str = "",
        progress: Progress | None = None,
        encode_all: Callable[[Sequence[Sequence[str]]], Iterable[tuple[int, Rows]]] | None = None,
    ) -> Rows:
        """Return the vectors of `texts`, `(n, d)` float32, in their order. Missing ones are embedded and stored.

        Args:
            encoder: fingerprint of the encoder.
            texts: may repeat.
            encode: texts → rows, called with at most `EMBED_BATCH` texts of similar length.
            name: the encoder's name for people.
            progress: called with the numbers of new and of all missing vectors after each batch.
            encode_all: used instead of `encode`: batches → (number of the batch, its rows), in any order.
        """
        texts_by_key = {_hash_text(text): text for text in texts}
        vectors = self._read(encoder, texts_by_key)
        missing_texts = sorted((text for key, text in texts_by_key.items() if key not in vectors), key=len)
        starts = range(0, len(missing_texts), EMBED_BATCH)
        batches = [missing_texts[start : start + EMBED_BATCH] for start in starts]
        encoded = encode_all(batches) if encode_all else enumerate(map(encode, batches))
        n_done = 0
        for number, rows in encoded:
            batch = batches[number]
            new_rows = np.asarray(rows, dtype="<f4")
            vectors.update(zip(map(_hash_text, batch), new_rows, strict=True))
            self._write_if_possible(encoder, name, batch, new_rows)
            n_done += len(batch)
            if progress:
                progress(n_done, len(missing_texts))
        return np.array([vectors[_hash_text(text)] for text in texts], dtype=np.float32)

    @rebuild_if_damaged
    def encoders(self) -> list[tuple[str, int]]:
        """Return (name, number of vectors) of each encoder."""
        with self.reading() as connection:
            return connection.execute(
                "SELECT name, count(*) FROM encoders JOIN vectors ON vectors.encoder = encoders.fingerprint "
                "GROUP BY encoders.fingerprint ORDER BY name"
            ).fetchall()

    @rebuild_if_damaged
    def prune(self, texts: Sequence[str]) -> int:
        """Remove the vectors of all texts but these, of every encoder. Returns the number of removed vectors."""
        kept_keys = {_hash_text(text) for text in texts}
        with self.writing() as connection:
            rows = connection.execute("SELECT encoder, text FROM vectors").fetchall()
            obsolete = [(encoder, key) for encoder, key in rows if key not in kept_keys]
            connection.executemany("DELETE FROM vectors WHERE encoder = ? AND text = ?", obsolete)
        return len(obsolete)

    def check(self) -> list[str]:
        """Return SQLite's findings about the file, and how many vectors do not match their checksums."""
        findings = super().check()
        if findings:
            return findings
        with self.reading() as connection:
            rows = connection.execute("SELECT value, checksum FROM vectors")
            n_damaged = sum(not _is_sound(value, checksum) for value, checksum in rows)
        return [f"{n_damaged:,} vectors do not match their checksums"] if n_damaged else []

    def drop_damaged(self) -> int:
        """Remove vectors that do not match their checksums, and return how many. The next search embeds them again."""
        with self.writing() as connection:
            rows = connection.execute("SELECT encoder, text, value, checksum FROM vectors")
            damaged = [(encoder, key) for encoder, key, value, checksum in rows if not _is_sound(value, checksum)]
            connection.executemany("DELETE FROM vectors WHERE encoder = ? AND text = ?", damaged)
        return len(damaged)

    @rebuild_if_damaged
    def _read(self, encoder: str, keys: Container[bytes]) -> dict[bytes, Rows]:
        """Return key → stored vector, for those of `keys` that have one, without damaged vectors."""
        vectors: dict[bytes, Rows] = {}
        n_damaged = 0
        with self.reading() as connection:
            row = connection.execute("SELECT dim FROM encoders WHERE fingerprint = ?", (encoder,)).fetchone()
            if row is None:
                return {}
            (dim,) = row
            query = "SELECT text, value, checksum FROM vectors WHERE encoder = ?"
            for key, value, checksum in connection.execute(query, (encoder,)):
                if key not in keys:
                    continue
                if len(value) == 4 * dim and _is_sound(value, checksum):
                    vectors[key] = np.frombuffer(value, dtype="<f4")
                else:
                    n_damaged += 1
        if n_damaged:
            _log.warning("%s: %d vectors were damaged; they are computed again", self.path, n_damaged)
        return vectors

    @rebuild_if_damaged
    def _write_vectors(self, encoder: str, name: str, texts: Sequence[str], rows: Array) -> None:
        """Write vectors with a checksum for each, by which damage is noticed when they are read."""
        values = [row.tobytes() for row in np.asarray(rows, dtype="<f4")]
        new = [(encoder, _hash_text(text), value, zlib.crc32(value)) for text, value in zip(texts, values, strict=True)]
        _, dim = rows.shape
        with self.writing() as connection:
            connection.execute("INSERT OR IGNORE INTO encoders VALUES (?, ?, ?)", (encoder, name, dim))
            connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", new)

    def _write_if_possible(self, encoder: str, name: str, texts: Sequence[str], rows: Array) -> None:
        """Store vectors. If the file cannot be written, warn once; the vectors are then used for this search only."""
        try:
            if not self.read_only:
                self._write_vectors(encoder, name, texts, rows)
        except StoreError as error:
            if not self._has_warned:
                _log.warning("New vectors are not stored: %s", error)
            self._has_warned = True


def _is_sound(value: bytes, checksum: int | None) -> bool:
    """Return whether the bytes of a vector match its checksum. Old vectors have none."""
    return checksum is None or checksum == zlib.crc32(value)


def _hash_text(text: str) -> bytes:
    """Return the key of a text in the column `text`."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


def show_progress(done: int, total: int) -> None:
    """Show on a terminal that `done` of `total` vectors are made, if there is more than one batch."""
    if total > EMBED_BATCH and sys.stderr.isatty():
        line_end = "\n" if done >= total else ""  # until then the next call overwrites the line
        sys.stderr.write(f"\rtoolscout: {done:,} of {total:,} vectors of tools are made{line_end}")
        sys.stderr.flush()


class VectorMaker:
    """Makes vectors in a thread, until all are made or `stop` is called.

    Attributes:
        progress: a clause that says how many vectors are made.
    """

    def __init__(self, make: Callable[[Progress], None]) -> None:
        """Start the thread.

        Args:
            make: makes and stores the vectors, and calls the function that it is given after each batch.
        """
        self.progress = "the vectors of new tools are being made"
        self._shall_stop = False  # checked after each batch
        self._thread = threading.Thread(target=self._run, args=(make,), daemon=True, name="toolscout vectors")
        self._thread.start()

    def _run(self, make: Callable[[Progress], None]) -> None:
        """Run `make` in the thread, and log an error, except the one by which `_report` stops the work."""
        try:
            make(self._report)
        except Exception as error:
            if not self._shall_stop:
                _log.warning("Vectors are missing, and cannot be made: %s", error)

    def _report(self, done: int, total: int) -> None:
        """Log and show how many of `total` vectors are done. If `stop` was called, raise an error to end the work."""
        self.progress = f"{done:,} of {total:,} vectors of new tools are made"
        _log.info("%s", self.progress)
        show_progress(done, total)
        if self._shall_stop:
            raise Unavailable("The program ends, so the other vectors are made later.")

    @property
    def is_running(self) -> bool:
        """Whether some vectors are still to be made."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop after the present batch, and wait for that."""
        self._shall_stop = True
        self._thread.join()
