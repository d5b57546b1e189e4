"""Fakes and conformance checks that ship with the product: for our tests and for those who write their own parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from toolscout.encoders import Encoder, Kind, Vectors, split_identifiers, unit_rows
from toolscout.errors import SourceError
from toolscout.search.pipeline import Stage
from toolscout.sources import Reading
from toolscout.testing.scripted import Faults, ScriptedLLM
from toolscout.testing.server import ScriptedServer
from toolscout.types import Search, Tool, canonical_json, digest

__all__ = [
    "TOOLS",
    "Faults",
    "HashEncoder",
    "ScriptedLLM",
    "ScriptedServer",
    "check_encoder",
    "check_index",
    "check_source",
    "check_stage",
    "toy_tools",
]

TOOLS: dict[str, tuple[str, ...]] = {
    "weather/get_forecast": (
        "Will it rain or snow: the weather forecast of a city for the coming days.",
        "city",
        "days",
    ),
    "weather/getAirQuality": ("Air quality index of a city.", "city"),
    "mail/send_email": ("Send a message by e-mail.", "to", "subject", "body"),
    "mail/search": ("Find messages in the mailbox.", "query"),
    "files/copy": ("Copy a file to another folder.", "source", "target"),
    "files/sha256": ("Checksum of a file.", "path"),
    "travel/book_flight": ("Book a flight between two airports.", "origin", "destination", "date"),
    "travel/find_hotel": ("Find a hotel room in a city.", "city", "nights"),
    "zh/tianqi": ("查询城市天气预报", "chengshi"),
    "ru/perevod": ("Перевести текст на другой язык.", "text"),
}


class HashEncoder:
    """An encoder without a model: words and their beginnings, hashed into `dim` places. Deterministic."""

    name = "hash"
    cheap = True

    def __init__(self, dim: int = 64, *, cheap: bool = True) -> None:
        """Make vectors of length `dim`; `cheap` says whether they are worth keeping."""
        self.dim, self.cheap = dim, cheap
        self.fingerprint = digest("hash/1", dim)
        self.encoded = 0

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Texts → `(n, dim)` float32 unit rows."""
        rows = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in split_identifiers(text).casefold().split():
                for piece in (word, word[:4]):
                    row[int(digest("piece", piece)[:8], 16) % self.dim] += 1.0
        self.encoded += len(texts)
        return unit_rows(rows)


def toy_tools() -> list[Tool]:
    """A catalogue of ten tools: two scripts beside Latin, bare and special names, several sources."""
    return [
        Tool(
            id=tool_id,
            name=tool_id.partition("/")[2],
            description=description,
            path=(tool_id.partition("/")[0],),
            parameters={"type": "object", "properties": {name: {"type": "string"} for name in names}},
        )
        for tool_id, (description, *names) in TOOLS.items()
    ]


def check_stage(stage: Stage, searches: Sequence[Search]) -> None:
    """Assert what every stage promises: as many results as searches, the same again, no query lost, hits in order.

    Raises:
        AssertionError: naming the promise that was broken.
    """
    first, again = stage(searches), stage(searches)
    assert len(first) == len(searches), f"{stage.name}: expected {len(searches)} results, found {len(first)}"
    assert [each.query for each in first] == [each.query for each in searches], f"{stage.name}: a query was changed"
    assert [each.hits for each in first] == [each.hits for each in again], f"{stage.name}: not deterministic"
    for search, result in zip(searches, first, strict=True):
        [alone] = stage([search])
        assert alone.ids == result.ids, f"{stage.name}: alone and in a batch, the answers differ"
        assert len(set(result.ids)) == len(result.ids), f"{stage.name}: a tool was returned twice"
    assert stage([]) == [], f"{stage.name}: an empty batch must give an empty list"


def check_index(index: Any, queries: Any) -> None:
    """Assert what every index promises: ids ascending, best first, ties by id, masks respected, k respected.

    Args:
        index: see `toolscout.indexes`.
        queries: what it takes: texts, or rows of shape (n, d).

    Raises:
        AssertionError: naming the promise that was broken.
    """
    size = len(index.ids)
    assert list(index.ids) == sorted(index.ids), "ids must ascend"
    everything = index.search(queries, size)
    for k in (1, 3, size):
        ids, scores = index.search(queries, k)
        for row, values, (all_ids, _) in zip(ids, scores, zip(*everything, strict=True), strict=True):
            assert len(row) == len(values) <= k, "at most k, with one score each"
            pairs = list(zip(-np.asarray(values), row, strict=True))
            assert pairs == sorted(pairs), "best first, ties by id"
            assert row == all_ids[: len(row)], "a smaller k must be the beginning of a larger one"
    mask = np.arange(size) % 2 == 0
    allowed = {tool_id for tool_id, fits in zip(index.ids, mask, strict=True) if fits}
    masked, _ = index.search(queries, size, [mask] * len(queries))
    for row, all_ids in zip(masked, everything[0], strict=True):
        assert row == [tool_id for tool_id in all_ids if tool_id in allowed], "a mask must only leave out"
    hidden, _ = index.search(queries, size, [np.zeros(size, dtype=bool)] * len(queries))
    assert not any(hidden), "a mask of nothing must give nothing"


def check_encoder(encoder: Encoder) -> None:
    """Assert what every encoder promises: float32 unit rows in order, the same again, alone as in a batch.

    Raises:
        AssertionError: naming the promise that was broken.
    """
    texts = ["will it rain tomorrow?", "send a message", "rain", ""]
    for kind in ("query", "tool"):
        rows = encoder.encode(texts, kind)
        assert rows.shape == (len(texts), encoder.dim), f"expected {len(texts)} rows of {encoder.dim}"
        assert rows.dtype == np.float32, "expected float32"
        lengths = np.linalg.norm(rows, axis=1)
        assert all(abs(length - 1) < 1e-4 or length == 0 for length in lengths), "expected unit rows, or rows of zeros"
        again = encoder.encode(texts, kind)
        assert np.array_equal(rows, again), "another answer when asked again"
        alone = np.concatenate([encoder.encode([text], kind) for text in texts])
        assert np.allclose(rows, alone, atol=1e-5), "alone and in a batch, the rows differ"
    assert encoder.encode([]).shape == (0, encoder.dim), "no texts must give no rows"
    assert encoder.fingerprint and encoder.name, "expected a name and a fingerprint"


def check_source(read: Callable[[], list[Reading]]) -> list[Reading]:
    """Assert what every reader promises: ids of the source, no id twice, writable JSON, the same when read again.

    Raises:
        AssertionError: naming the promise that was broken.
    """
    try:
        readings = read()
    except SourceError as error:
        assert str(error) and "\n" not in str(error), "an error must be one sentence"
        raise
    again = {tool.id: tool.fingerprint for reading in read() for tool in reading.tools}
    seen: set[str] = set()
    for reading in readings:
        for tool in reading.tools:
            assert tool.id.startswith(f"{reading.source}/"), f"{tool.id}: expected to begin with {reading.source}/"
            assert tool.id not in seen, f"{tool.id}: twice"
            assert canonical_json(tool), tool.id
            assert again.get(tool.id) == tool.fingerprint, f"{tool.id}: another fingerprint when read again"
            seen.add(tool.id)
        for problem in reading.problems:
            assert problem.entry and problem.message, "a problem must name its entry"
    return readings
