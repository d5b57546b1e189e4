"""Checks that a source, an encoder, an index or a stage keeps its contract; has a small catalogue to check with."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final

import numpy as np

from toolscout.encoders import Encoder, Kind, Vectors, get_languages, get_short_weight, split_identifiers, unit_rows
from toolscout.errors import SourceError, UserError
from toolscout.search.pipeline import Stage
from toolscout.sources import Reading
from toolscout.types import Search, Tool, canonical_json, digest

__all__ = [
    "TOY_TOOLS",
    "HashEncoder",
    "check_encoder",
    "check_index",
    "check_source",
    "check_stage",
    "toy_tools",
]

STEM_LETTERS: Final = 4
LANGUAGE_CODE: Final = re.compile(r"[a-z]{2,3}(-[A-Za-z]+)*")
#: Tool id → its description, and the names of its parameters.
TOY_TOOLS: dict[str, tuple[str, ...]] = {
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
    """A deterministic encoder without a model: each word, and its first letters, add 1 to the component they hash to.

    Attributes:
        encoded: number of texts so far, for tests of what is cached.
    """

    name = "hash"
    cheap = True
    languages: frozenset[str] | None = None

    def __init__(self, dim: int = 64, *, cheap: bool = True) -> None:
        """Create an encoder of dimension `dim`; `cheap`: see `Encoder`."""
        self.dim, self.cheap = dim, cheap
        self.fingerprint = digest("hash/1", dim)
        self.encoded = 0

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Encode texts as `(n, dim)` float32 unit rows, queries and tools alike.

        The first letters of a word count too, so that its inflections are near: "invoice" and "invoices".
        """
        rows = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in split_identifiers(text).casefold().split():
                for piece in (word, word[:STEM_LETTERS]):
                    row[int(digest("piece", piece)[:8], 16) % self.dim] += 1.0
        self.encoded += len(texts)
        return unit_rows(rows)


def toy_tools() -> list[Tool]:
    """Make a catalogue of ten tools, of several sources, with two scripts besides Latin and names of several styles."""
    return [
        Tool(
            id=tool_id,
            name=tool_id.partition("/")[2],
            description=description,
            path=(tool_id.partition("/")[0],),
            parameters={"type": "object", "properties": {name: {"type": "string"} for name in names}},
        )
        for tool_id, (description, *names) in TOY_TOOLS.items()
    ]


def check_stage(stage: Stage, searches: Sequence[Search]) -> None:
    """Check the contract of stages: one result per search, the same each time, unchanged queries, no tool twice.

    Raises:
        AssertionError: naming the broken rule.
    """
    first, second = stage(searches), stage(searches)
    assert len(first) == len(searches), f"{stage.name}: expected {len(searches)} results, found {len(first)}"
    queries = [search.query for search in searches]
    assert [result.query for result in first] == queries, f"{stage.name}: a query was changed"
    assert [result.hits for result in first] == [result.hits for result in second], f"{stage.name}: not deterministic"
    for search, result in zip(searches, first, strict=True):
        [alone] = stage([search])
        assert alone.ids == result.ids, f"{stage.name}: alone and in a batch, the answers differ"
        assert len(set(result.ids)) == len(result.ids), f"{stage.name}: a tool was returned twice"
    assert stage([]) == [], f"{stage.name}: an empty batch must give an empty list"


def check_index(index: Any, queries: Any) -> None:
    """Check the contract of indexes: ids ascend, best first, ties by id; `k`, masks and `explain` agree.

    Args:
        index: see `toolscout.indexes`.
        queries: texts, or rows of shape (n, d), whichever the index takes.

    Raises:
        AssertionError: naming the broken rule.
    """
    size = len(index.ids)
    assert list(index.ids) == sorted(index.ids), "ids must ascend"
    complete = index.search(queries, size)
    for k in (1, 3, size):
        ids, scores = index.search(queries, k)
        for row, values, (all_ids, _) in zip(ids, scores, zip(*complete, strict=True), strict=True):
            assert len(row) == len(values) <= k, "at most k, with one score each"
            pairs = list(zip(-np.asarray(values), row, strict=True))
            assert pairs == sorted(pairs), "best first, ties by id"
            assert row == all_ids[: len(row)], "a smaller k must be the beginning of a larger one"
    complete_ids, _ = complete
    _check_masks(index, queries, complete_ids)
    for query, ids, scores in zip(queries, *complete, strict=True):
        for place, tool_id in enumerate(ids):
            explanation = index.explain(query, tool_id)
            # An index that misses tools may explain a rank that is worse than the place among its hits.
            assert explanation.rank > place, f"{tool_id}: `explain` names a better rank than the search"
            assert np.isclose(explanation.score, scores[place]), f"{tool_id}: `explain` names another score"


def _check_masks(index: Any, queries: Any, rankings: Sequence[Sequence[str]]) -> None:
    """Check that a mask only removes tools from the rankings of all tools, `rankings`."""
    size = len(index.ids)
    mask = np.arange(size) % 2 == 0
    visible = {tool_id for tool_id, is_visible in zip(index.ids, mask, strict=True) if is_visible}
    masked, _ = index.search(queries, size, [mask] * len(queries))
    for row, all_ids in zip(masked, rankings, strict=True):
        assert row == [tool_id for tool_id in all_ids if tool_id in visible], "a mask must only leave out"
    rows_without_tools, _ = index.search(queries, size, [np.zeros(size, dtype=bool)] * len(queries))
    assert not any(rows_without_tools), "a mask of nothing must give nothing"


def check_encoder(encoder: Encoder) -> None:
    """Check the contract of encoders: float32 unit rows in order, the same each time and in any batch.

    Raises:
        AssertionError: naming the broken rule.
    """
    texts = ["will it rain tomorrow?", "send a message", "rain", ""]
    kinds: tuple[Kind, ...] = ("query", "tool")
    for kind in kinds:
        _check_rows(encoder, texts, kind)
    assert encoder.encode([]).shape == (0, encoder.dim), "no texts must give no rows"
    assert encoder.fingerprint and encoder.name, "expected a name and a fingerprint"
    languages = get_languages(encoder)
    assert languages is None or (isinstance(languages, frozenset) and all(map(LANGUAGE_CODE.fullmatch, languages))), (
        "expected languages as a frozenset of codes such as en, or None"
    )
    weight = get_short_weight(encoder)
    assert isinstance(weight, (int, float)) and 0 <= weight < math.inf, (
        f"expected short_weight as a finite number of at least 0, found {weight!r}"
    )


def _check_rows(encoder: Encoder, texts: Sequence[str], kind: Kind) -> None:
    """Check the rows of texts of one kind: their shape and length, and that a second call and single texts agree."""
    rows = encoder.encode(texts, kind)
    assert rows.shape == (len(texts), encoder.dim), f"expected {len(texts)} rows of {encoder.dim}"
    assert rows.dtype == np.float32, "expected float32"
    lengths = np.linalg.norm(rows, axis=1)
    is_unit = (np.abs(lengths - 1) < 1e-4) | (lengths == 0)
    assert is_unit.all(), "expected unit rows, or rows of zeros"
    assert np.array_equal(rows, encoder.encode(texts, kind)), "a second call gave other rows"
    alone = np.concatenate([encoder.encode([text], kind) for text in texts])
    assert np.allclose(rows, alone, atol=1e-5), "alone and in a batch, the rows differ"


def check_source(read: Callable[[], list[Reading]]) -> list[Reading]:
    """Check the contract of source readers: ids of the source, no id twice, valid JSON, the same each time.

    The Python functions that tools name are imported, but not called.

    Args:
        read: reads the source; called twice.

    Returns:
        What the first call read.

    Raises:
        AssertionError: naming the broken rule.
        SourceError: if the source cannot be read.
    """
    try:
        readings = read()
    except SourceError as error:
        assert str(error) and "\n" not in str(error), "an error must be one sentence"
        raise
    fingerprints = {tool.id: tool.fingerprint for reading in read() for tool in reading.tools}
    seen: set[str] = set()
    for reading in readings:
        for tool in reading.tools:
            _check_source_tool(tool, reading.source, fingerprints, seen)
            seen.add(tool.id)
    _check_problems(readings)
    return readings


def _check_source_tool(tool: Tool, source: str, fingerprints: Mapping[str, str], seen: Set[str]) -> None:
    """Check one tool of a source.

    Args:
        tool: as the first reading gave it.
        source: name of its source.
        fingerprints: tool id → fingerprint, from a second reading.
        seen: ids of the tools before it.
    """
    assert tool.id.startswith(f"{source}/"), f"{tool.id}: expected to begin with {source}/"
    assert tool.id not in seen, f"{tool.id}: twice"
    assert canonical_json(tool), tool.id  # raises if the tool is not valid JSON
    assert fingerprints.get(tool.id) == tool.fingerprint, f"{tool.id}: another fingerprint when read again"
    if tool.meta.get("module"):
        _check_function(tool)


def _check_function(tool: Tool) -> None:
    """Check that the function of a tool exists, and that its fixed arguments are no parameters of the tool."""
    from toolscout.sources.callables import find_function

    try:
        find_function(tool.meta)
    except UserError as error:
        raise AssertionError(f"{tool.id}: {error}") from error
    names = (tool.parameters or {}).get("properties", {}).keys() & tool.meta.get("arguments", {}).keys()
    assert not names, f"{tool.id}: `meta` fixes {', '.join(sorted(names))}, which must not be in `parameters` too"


def _check_problems(readings: Sequence[Reading]) -> None:
    """Check that each problem of a source names its entry."""
    for reading in readings:
        for problem in reading.problems:
            assert problem.entry and problem.message, "a problem must name its entry"
