"""Reads dataset folders: queries, gold tools, splits, folds, leaks. Invalid data is an error that names the line.

`sources.folder` reads the tools themselves; here a tool is only its bare `_id`.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import math
import re
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from toolscout.errors import NotFound, SourceError
from toolscout.types import digest

__all__ = [
    "Dataset",
    "Fold",
    "NoTool",
    "Prompt",
    "Qrels",
    "drop_leaks",
    "in_dev",
    "leaks",
    "read_lines",
    "seen_labels",
]

Qrels = dict[str, dict[str, float]]
"""Query id → tool id → score, only scores above 0."""

Value = TypeVar("Value")

QRELS_HEADER: Final = ["query-id", "corpus-id", "score"]
DEV_HASH_LIMIT: Final = 26  # first byte of a query id's hash; a tenth of the queries is below
CALIBRATE_HASH_LIMIT: Final = 51  # a fifth is below
_BOM: Final = b"\xef\xbb\xbf"


def in_dev(query: str) -> bool:
    """Return whether a training query belongs to dev in a set without a dev file; `query`: its id.

    It does if the first byte of the BLAKE2b hash of its id is below 26. That is so for a tenth of the ids.
    """
    return _hash(query.encode())[0] < DEV_HASH_LIMIT


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data).digest()


class Fold(NamedTuple):
    """One fold: the ids of its training queries and of its test queries."""

    train: list[str]
    test: list[str]


class _CorpusRow(msgspec.Struct, rename={"id": "_id"}):
    id: str


class _Query(_CorpusRow, rename={"id": "_id"}):
    text: str
    metadata: dict[str, Any] | None = None


_Row = TypeVar("_Row", bound=_CorpusRow)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A dataset folder without its tools. All ids are the bare `_id`s.

    Attributes:
        folder: its path.
        name: the path below the data root, else the folder's name.
        queries: query id → text.
        query_meta: query id → its metadata.
        qrels: split → query id → tool id → score above 0. Without a dev file, dev is a part of train (`in_dev`).
    """

    folder: Path
    name: str
    queries: dict[str, str]
    query_meta: dict[str, dict[str, Any]]
    qrels: dict[str, Qrels]
    _corpus: tuple[str, ...]

    @classmethod
    def load(cls, folder: str | Path, name: str | None = None, *, root: str | Path | None = None) -> Dataset:
        """Read and check a dataset folder.

        Args:
            folder: contains corpus.jsonl, queries.jsonl and qrels/*.tsv, one file per split.
            name: by default the path below `root`, or the folder's name outside it.
            root: the data root, if any.

        Raises:
            SourceError: naming file and line, for invalid JSON, a missing column or header, a repeated id, an unknown
                query or tool, two scores for one pair, or a query without gold or in two splits.
        """
        folder = Path(folder)
        corpus = tuple(_read_by_id(folder / "corpus.jsonl", _CorpusRow))
        queries = _read_by_id(folder / "queries.jsonl", _Query)
        files = sorted((folder / "qrels").glob("*.tsv"))
        if not files:
            raise SourceError(f"{folder}: expected qrels/test.tsv or another split, found no such file")
        tool_ids = frozenset(corpus)
        qrels = {file.stem: _read_qrels(file, queries, tool_ids) for file in files}
        _check_splits(folder, qrels)
        if "train" in qrels and "dev" not in qrels:
            train = qrels["train"]
            qrels["dev"] = {query: tools for query, tools in train.items() if in_dev(query)}
            qrels["train"] = {query: tools for query, tools in train.items() if query not in qrels["dev"]}
        return cls(
            folder=folder,
            name=name or _name_below(folder, root),
            queries={query.id: query.text for query in queries.values()},
            query_meta={query.id: query.metadata or {} for query in queries.values()},
            qrels=qrels,
            _corpus=corpus,
        )

    def corpus_ids(self) -> tuple[str, ...]:
        """Return the `_id` of every tool, in the order of corpus.jsonl."""
        return self._corpus

    def split(self, name: str) -> Qrels:
        """Return the gold tools of one split, or of several joined with a plus: `train+dev`.

        Raises:
            NotFound: if the set has no such split.
        """
        joined: Qrels = {}
        for part in name.split("+"):
            if part not in self.qrels:
                raise NotFound(
                    f"{self.name}: expected a split of {', '.join(sorted(self.qrels))}, found {part!r}"
                    + ("; a set without it can be cut into folds (--folds query:5)" if part == "train" else "")
                )
            joined |= self.qrels[part]
        return joined

    def texts(self, split: str) -> dict[str, str]:
        """Map the query ids of one split to their texts, in the order of its file.

        Raises:
            NotFound: as `split`.
        """
        return {query: self.queries[query] for query in self.split(split)}

    def groups(self, split: str, *, train: Mapping[str, Iterable[str]] | None = None) -> dict[str, dict[str, str]]:
        """Compute the slices of the result files, for `metrics.slices`: name of the slice → query id → label.

        `gold`: number of tools that the query needs, up to `6+`; `length`: words of the query, such as `11-20`; `kind`:
        from its metadata, if any query has one; `tools`: `seen_labels`, if `train` is given.

        Raises:
            NotFound: as `split`.
        """
        qrels = self.split(split)
        table = {
            "gold": {query: str(len(tools)) if len(tools) < 6 else "6+" for query, tools in qrels.items()},
            "length": {query: _label_length(self.queries[query]) for query in qrels},
        }
        kinds = {query: self.query_meta[query].get("kind") for query in qrels}
        if any(kinds.values()):
            table["kind"] = {query: str(kind) for query, kind in kinds.items() if kind}
        if train is not None:
            table["tools"] = seen_labels(train, qrels)
        return table

    def folds(
        self, spec: str, *, parent_of: Mapping[str, Sequence[str]] | None = None, split: str = "test"
    ) -> list[Fold]:
        """Cut the queries of a split into folds, so that each is scored exactly once.

        `query:5` puts a query into fold `int.from_bytes(blake2b(id)[:8], "big") % 5`. `parent:5` puts parents into
        folds by the same hash of their JSON array without spaces. A query is scored in the lowest fold with one of its
        parents, and is not trained on in any fold with one of them. Folds without queries to score are dropped.

        Args:
            spec: `query:N` or `parent:N`, N at least 2.
            parent_of: tool id → the tool's parent; for `parent:N`.
            split: the split to cut.

        Raises:
            NotFound: if the set has no such split.
            SourceError: for another spec, a gold tool without a parent, or a fold without training queries.
        """
        kind, count = _parse_folds(spec)
        qrels = self.split(split)
        if kind == "query":
            folds_of = {query: {_choose_fold(query.encode(), count)} for query in qrels}
        else:  # the folds of the parents of the query's gold tools
            folds_of = {
                query: {self._choose_parent_fold(tool, parent_of or {}, count) for tool in tools}
                for query, tools in qrels.items()
            }
        folds = [
            Fold(
                train=[query for query, numbers in folds_of.items() if number not in numbers],
                test=[query for query, numbers in folds_of.items() if number == min(numbers)],
            )
            for number in range(count)
        ]
        folds = [fold for fold in folds if fold.test]
        if not all(fold.train for fold in folds):
            raise SourceError(
                f"{self.name}: expected queries left to train on in each fold of {spec}, found a fold without: "
                "use query folds, or more queries and parents"
            )
        return folds

    def _choose_parent_fold(self, tool: str, parent_of: Mapping[str, Sequence[str]], count: int) -> int:
        if tool not in parent_of:
            raise SourceError(f"{self.name}: expected a parent for every gold tool, found none for {tool!r}")
        return _choose_fold(msgspec.json.encode(list(parent_of[tool])), count)


def _choose_fold(data: bytes, count: int) -> int:
    """Return the number of a fold below `count`, by the hash of what must not be split between folds."""
    return int.from_bytes(_hash(data)[:8], "big") % count


def _parse_folds(spec: str) -> tuple[str, int]:
    """Parse `query:N` or `parent:N`: return the kind and the number of folds."""
    kind, _, number = spec.partition(":")
    if kind not in ("query", "parent") or not re.fullmatch(r"[1-9]\d{0,3}", number) or int(number) < 2:
        raise SourceError(f"expected folds as query:5 or parent:5, found {spec!r}")
    return kind, int(number)


def _check_splits(folder: Path, qrels: Mapping[str, Qrels]) -> None:
    """Raise SourceError if a query is in two splits."""
    split_of: dict[str, str] = {}
    for split, queries in qrels.items():
        for query in queries:
            if split_of.setdefault(query, split) != split:  # the first split of a query is noted
                raise SourceError(
                    f"{folder}: expected each query in one split, found {query!r} in "
                    f"{split_of[query]}.tsv and in {split}.tsv"
                )


def _label_length(text: str) -> str:
    """Return the range in which the number of words of a text is."""
    n_words = len(text.split())
    return next((label for most, label in ((10, "1-10"), (20, "11-20"), (40, "21-40")) if n_words <= most), "41+")


def _name_below(folder: Path, root: str | Path | None) -> str:
    """Return the path of a folder below the data root, or the name of a folder that is not below it."""
    folder = folder.resolve()
    if root is not None and Path(root).resolve() in folder.parents:
        return folder.relative_to(Path(root).resolve()).as_posix()
    return folder.name


class Prompt(NamedTuple):
    """A query that needs no tool: its id, text and kind."""

    id: str
    text: str
    kind: str


@dataclasses.dataclass(frozen=True)
class NoTool:
    """Queries that need no tool. The file knows only dev and test, so dev is divided into `train` and `calibrate`.

    Attributes:
        train: four fifths of the queries whose `metadata.split` is dev.
        calibrate: the other fifth: the first byte of the id's BLAKE2b digest is below 51.
        test: the queries whose `metadata.split` is test.
    """

    train: list[Prompt]
    calibrate: list[Prompt]
    test: list[Prompt]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the queries that a fit may see."""
        return digest("no-tool/1", [self.train, self.calibrate])

    @classmethod
    def load(cls, folder: str | Path) -> NoTool:
        """Read a folder with only queries.jsonl.

        Raises:
            SourceError: naming file and line.
        """
        file = Path(folder) / "queries.jsonl"
        prompts = cls([], [], [])
        for query in _read_by_id(file, _Query).values():
            meta = query.metadata or {}
            prompt = Prompt(query.id, query.text, str(meta.get("kind") or ""))
            if meta.get("split") == "test":
                prompts.test.append(prompt)
            elif meta.get("split") == "dev":
                calibrates = _hash(query.id.encode())[0] < CALIBRATE_HASH_LIMIT
                (prompts.calibrate if calibrates else prompts.train).append(prompt)
            else:
                raise SourceError(
                    f"{file}: query {query.id!r}: expected metadata.split dev or test, found {meta.get('split')!r}"
                )
        return prompts


# --- overlap of training and test -------------------------------------------------------------------------------------


def leaks(train_texts: Mapping[str, str], test_texts: Mapping[str, str]) -> list[str]:
    """Find the training queries that equal a test query apart from case, spacing and punctuation.

    Args:
        train_texts: id → text.
        test_texts: id → text.

    Returns:
        Ids of training queries.
    """
    held_out = {_normalise(text) for text in test_texts.values()}
    return [query for query, text in train_texts.items() if _normalise(text) in held_out]


def _normalise(text: str) -> str:
    folded = " ".join(text.casefold().split())
    return " ".join(re.sub(r"[\W_]+", " ", folded).split()) or folded  # a text of punctuation alone stays as it is


def drop_leaks(
    train: Mapping[str, Value], train_texts: Mapping[str, str], test_texts: Mapping[str, str]
) -> tuple[dict[str, Value], list[str]]:
    """Remove the queries that `leaks` finds from `train`; return the remaining queries, and the removed ids.

    Args:
        train: query id → any value, such as the qrels of a split.
        train_texts: the texts of at least these queries.
        test_texts: the texts that training must not see.
    """
    dropped = leaks({query: train_texts[query] for query in train}, test_texts)
    dropped_ids = set(dropped)
    return {query: value for query, value in train.items() if query not in dropped_ids}, dropped


def seen_labels(
    train_qrels: Mapping[str, Iterable[str]],
    test_qrels: Mapping[str, Iterable[str]],
    key: Callable[[str], Hashable] = lambda tool: tool,
) -> dict[str, str]:
    """Label each test query by whether training saw its gold tools.

    The label is `seen` if it saw all of them, `unseen` if it saw none, else `mixed`.

    Args:
        train_qrels: query id → gold tool ids.
        test_qrels: query id → gold tool ids of the test queries.
        key: maps a tool to what must have been seen: the tool itself, or for example its parent.
    """
    seen = {key(tool) for tools in train_qrels.values() for tool in tools}
    labels = {}
    for query, tools in test_qrels.items():
        was_seen = [key(tool) in seen for tool in tools]
        labels[query] = "seen" if all(was_seen) else "mixed" if any(was_seen) else "unseen"
    return labels


# --- reading ----------------------------------------------------------------------------------------------------------


def read_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of every line that is not blank, without byte order mark and line ends."""
    try:
        data = file.read_bytes()
        if file.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SourceError(f"{file}: expected a readable file, found: {reason}") from None
    for number, line in enumerate(data.removeprefix(_BOM).split(b"\n"), 1):
        if line.strip():
            yield number, line.rstrip(b"\r")


def _read_by_id(file: Path, row: type[_Row]) -> dict[str, _Row]:
    """Read a file of JSON lines: id → row, in the order of the file."""
    decoder = msgspec.json.Decoder(row)
    rows: dict[str, _Row] = {}
    for number, line in read_lines(file):
        try:
            entry = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise SourceError(
                f"{file}, line {number}: expected a JSON object of the right shape, found: {error}"
            ) from None
        if not entry.id or entry.id in rows:
            problem = f"{entry.id!r} again" if entry.id else "an empty one"
            raise SourceError(f"{file}, line {number}: expected a unique _id, found {problem}")
        rows[entry.id] = entry
    return rows


def _check_qrels_header(file: Path, number: int, line: bytes) -> None:
    """Raise SourceError if the line with this number isn't the header of a file of gold tools."""
    if line.split(b"\t") != [column.encode() for column in QRELS_HEADER]:
        start = line[:80].decode(errors="replace")
        raise SourceError(
            f"{file}, line {number}: expected the header {'<TAB>'.join(QRELS_HEADER)}, found {start!r}: add it"
        )


def _read_qrels(file: Path, queries: Mapping[str, object], corpus: frozenset[str]) -> Qrels:
    """Read one split: the gold tools of its queries. Tools of score 0 are left out.

    Raises:
        SourceError: naming the line, for a bad header, score or id, two scores for one pair, or a query without gold.
    """
    lines = read_lines(file)
    number, header = next(lines, (1, b""))  # an empty file lacks the header in its first line
    _check_qrels_header(file, number, header)
    judged: Qrels = {}
    for number, line in lines:
        try:
            query, tool, text = line.decode().split("\t")
            score = float(text)
        except ValueError:
            start = line[:80].decode(errors="replace")
            raise SourceError(
                f"{file}, line {number}: expected query-id<TAB>corpus-id<TAB>score, found {start!r}"
            ) from None
        if query not in queries:
            problem = f"a query of queries.jsonl, found {query!r}"
        elif tool not in corpus:
            problem = f"a tool of corpus.jsonl, found {tool!r}"
        elif not math.isfinite(score):
            problem = f"a finite score, found {text!r}"
        elif judged.setdefault(query, {}).setdefault(tool, score) != score:  # stores the first score of a pair
            problem = f"one score for query {query!r} and tool {tool!r}, found two"
        else:
            continue
        raise SourceError(f"{file}, line {number}: expected {problem}")
    qrels = {query: {tool: score for tool, score in tools.items() if score > 0} for query, tools in judged.items()}
    for query, tools in qrels.items():
        if not tools:
            raise SourceError(f"{file}: expected a tool with a score above 0 for query {query!r}, found none")
    return qrels
