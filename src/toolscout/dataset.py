"""Dataset folders: queries, gold tools, splits, folds, leaks; run files. Strict: what cannot be right is refused.

The tools themselves are read by `sources.folder`; here a tool is only its bare `_id`.
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
from urllib.parse import quote, unquote

import msgspec
import numpy as np

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
    "read_detect",
    "read_run",
    "seen_labels",
    "write_detect",
    "write_run",
]

Qrels = dict[str, dict[str, float]]
"""Query id → tool id → score, only scores above 0."""

Value = TypeVar("Value")

HEADER: Final = ["query-id", "corpus-id", "score"]
DEV_BELOW: Final = 26
CALIBRATE_BELOW: Final = 51
RUN_DEPTH: Final = 20
_BOM: Final = b"\xef\xbb\xbf"


def in_dev(query: str) -> bool:
    """Whether a training query belongs to dev where a set has no dev file: BLAKE2b of its id, first byte below 26."""
    return _hash(query.encode())[0] < DEV_BELOW


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data).digest()


class Fold(NamedTuple):
    """One fold: the query ids to train on and those to score."""

    train: list[str]
    test: list[str]


class _Entry(msgspec.Struct, rename={"id": "_id"}):
    id: str


class _Query(_Entry, rename={"id": "_id"}):
    text: str
    metadata: dict[str, Any] | None = None


_Row = TypeVar("_Row", bound=_Entry)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A dataset folder without its tools. All ids are the bare `_id`s.

    Attributes:
        folder: where it lies.
        name: the path below the data root, else the folder's name.
        queries: query id → text.
        query_meta: query id → its metadata.
        qrels: split → query id → tool id → score above 0. Without a dev file, dev was taken out of train (`in_dev`).
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
            folder: holds corpus.jsonl, queries.jsonl and qrels/*.tsv, one file a split.
            name: by default the path below `root`, or the folder's own name when it lies elsewhere.
            root: the data root, if there is one.

        Raises:
            SourceError: naming file and line: not JSON, not three columns, no header, an id twice, a query or a tool
                that does not exist, two scores for one pair, a query without gold or in two splits.
        """
        folder = Path(folder)
        corpus = tuple(_keyed(folder / "corpus.jsonl", _Entry))
        queries = _keyed(folder / "queries.jsonl", _Query)
        files = sorted((folder / "qrels").glob("*.tsv"))
        if not files:
            raise SourceError(f"{folder}: expected qrels/test.tsv or another split, found no such file")
        known = frozenset(corpus)
        qrels = {file.stem: _read_qrels(file, queries, known) for file in files}
        owner: dict[str, str] = {}
        for split, found in qrels.items():
            for query in found:
                if owner.setdefault(query, split) != split:
                    raise SourceError(
                        f"{folder}: expected each query in one split, found {query!r} in "
                        f"{owner[query]}.tsv and in {split}.tsv"
                    )
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
        """The `_id` of every tool, in the order of corpus.jsonl."""
        return self._corpus

    def split(self, name: str) -> Qrels:
        """The gold tools of one split, or of several joined with a plus: `train+dev`.

        Raises:
            NotFound: when the set has no such split.
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
        """Query id → text of one split, in the order of its file.

        Raises:
            NotFound: as `split`.
        """
        return {query: self.queries[query] for query in self.split(split)}

    def groups(self, split: str, *, train: Mapping[str, Iterable[str]] | None = None) -> dict[str, dict[str, str]]:
        """The slices of the result files, for `metrics.slices`: name → query id → label.

        `gold`: how many tools the query needs, up to `6+`; `length`: words of the query; `kind`: of its metadata, if
        any query has one; `tools`: `seen_labels`, if `train` is given.

        Raises:
            NotFound: as `split`.
        """
        qrels = self.split(split)
        table = {
            "gold": {query: str(len(tools)) if len(tools) < 6 else "6+" for query, tools in qrels.items()},
            "length": {query: _length(self.queries[query]) for query in qrels},
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

        `query:5` puts a query in fold `int.from_bytes(blake2b(id)[:8], "big") % 5`. `parent:5` puts parents in folds
        by the same hash of their JSON array without spaces. A query is scored in the lowest fold that holds one of its
        parents, and leaves training in every fold that holds any of them. Folds without queries to score are left out.

        Args:
            spec: `query:N` or `parent:N`, N at least 2.
            parent_of: tool id → the tool's parent; for `parent:N`.
            split: whose queries to cut.

        Raises:
            NotFound: when the set has no such split.
            SourceError: for another spec, a gold tool without a parent, or a fold that leaves nothing to train on.
        """
        kind, _, number = spec.partition(":")
        if kind not in ("query", "parent") or not re.fullmatch(r"[1-9]\d{0,3}", number) or int(number) < 2:
            raise SourceError(f"expected folds as query:5 or parent:5, found {spec!r}")
        count, qrels = int(number), self.split(split)
        if kind == "query":
            touched = {query: {_fold(query.encode(), count)} for query in qrels}
        else:
            touched = {
                query: {self._parent_fold(tool, parent_of or {}, count) for tool in tools}
                for query, tools in qrels.items()
            }
        folds = [
            Fold(
                train=[query for query, places in touched.items() if fold not in places],
                test=[query for query, places in touched.items() if fold == min(places)],
            )
            for fold in range(count)
        ]
        folds = [fold for fold in folds if fold.test]
        if not all(fold.train for fold in folds):
            raise SourceError(
                f"{self.name}: expected queries left to train on in each fold of {spec}, found a fold without: "
                "use query folds, or more queries and parents"
            )
        return folds

    def _parent_fold(self, tool: str, parent_of: Mapping[str, Sequence[str]], count: int) -> int:
        if tool not in parent_of:
            raise SourceError(f"{self.name}: expected a parent for every gold tool, found none for {tool!r}")
        return _fold(msgspec.json.encode(list(parent_of[tool])), count)


def _fold(data: bytes, count: int) -> int:
    return int.from_bytes(_hash(data)[:8], "big") % count


def _length(text: str) -> str:
    words = len(text.split())
    return next((label for most, label in ((10, "1-10"), (20, "11-20"), (40, "21-40")) if words <= most), "41+")


def _name_below(folder: Path, root: str | Path | None) -> str:
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
    """Queries that need no tool: test ones, and of the dev ones a fifth to calibrate with and the rest to train on.

    Attributes:
        train: of `metadata.split` dev, the rest.
        calibrate: of dev, those whose id has a BLAKE2b with a first byte below 51.
        test: of `metadata.split` test.
    """

    train: list[Prompt]
    calibrate: list[Prompt]
    test: list[Prompt]

    @property
    def fingerprint(self) -> str:
        """Of what a fit may see."""
        return digest("no-tool/1", [self.train, self.calibrate])

    @classmethod
    def load(cls, folder: str | Path) -> NoTool:
        """Read a folder that holds queries.jsonl alone.

        Raises:
            SourceError: naming file and line.
        """
        file = Path(folder) / "queries.jsonl"
        parts = cls([], [], [])
        for query in _keyed(file, _Query).values():
            meta = query.metadata or {}
            prompt = Prompt(query.id, query.text, str(meta.get("kind") or ""))
            if meta.get("split") == "test":
                parts.test.append(prompt)
            elif meta.get("split") == "dev":
                calibrates = _hash(query.id.encode())[0] < CALIBRATE_BELOW
                (parts.calibrate if calibrates else parts.train).append(prompt)
            else:
                raise SourceError(
                    f"{file}: query {query.id!r}: expected metadata.split dev or test, found {meta.get('split')!r}"
                )
        return parts


# --- what training may have seen --------------------------------------------------------------------------------------


def leaks(train_texts: Mapping[str, str], test_texts: Mapping[str, str]) -> list[str]:
    """Ids of the training queries whose text, but for case, spacing and punctuation, is that of a test query."""
    held_out = {_normalised(text) for text in test_texts.values()}
    return [query for query, text in train_texts.items() if _normalised(text) in held_out]


def _normalised(text: str) -> str:
    folded = " ".join(text.casefold().split())
    return " ".join(re.sub(r"[\W_]+", " ", folded).split()) or folded


def drop_leaks(
    train: Mapping[str, Value], train_texts: Mapping[str, str], test_texts: Mapping[str, str]
) -> tuple[dict[str, Value], list[str]]:
    """`train` without the queries that `leaks` names, and their ids, so that they can be counted.

    Args:
        train: query id → anything, such as the qrels of a split.
        train_texts: the texts of at least these queries.
        test_texts: the texts that training must not see.
    """
    dropped = leaks({query: train_texts[query] for query in train}, test_texts)
    gone = set(dropped)
    return {query: value for query, value in train.items() if query not in gone}, dropped


def seen_labels(
    train_qrels: Mapping[str, Iterable[str]],
    test_qrels: Mapping[str, Iterable[str]],
    key: Callable[[str], Hashable] = lambda tool: tool,
) -> dict[str, str]:
    """Whether training saw the gold of each test query: `seen` all of it, `unseen` none of it, else `mixed`.

    Args:
        train_qrels: query id → gold tool ids.
        test_qrels: the same for the test queries.
        key: what must have been seen of a tool: itself, or for instance its parent.
    """
    seen = {key(tool) for tools in train_qrels.values() for tool in tools}
    labels = {}
    for query, tools in test_qrels.items():
        known = [key(tool) in seen for tool in tools]
        labels[query] = "seen" if all(known) else "mixed" if any(known) else "unseen"
    return labels


# --- reading ----------------------------------------------------------------------------------------------------------


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of every line that is not blank; the mark of byte order and carriage returns are taken off."""
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


def _keyed(file: Path, row: type[_Row]) -> dict[str, _Row]:
    decoder = msgspec.json.Decoder(row)
    rows: dict[str, _Row] = {}
    for number, line in _lines(file):
        try:
            entry = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise SourceError(
                f"{file}, line {number}: expected a JSON object of the right shape, found: {error}"
            ) from None
        if not entry.id or entry.id in rows:
            found = f"{entry.id!r} again" if entry.id else "an empty one"
            raise SourceError(f"{file}, line {number}: expected an _id of its own, found {found}")
        rows[entry.id] = entry
    return rows


def _read_qrels(file: Path, queries: Mapping[str, object], corpus: frozenset[str]) -> Qrels:
    lines = _lines(file)
    number, line = next(lines, (1, b""))
    if line.split(b"\t") != [column.encode() for column in HEADER]:
        found = line[:80].decode(errors="replace")
        raise SourceError(f"{file}, line {number}: expected the header {'<TAB>'.join(HEADER)}, found {found!r}: add it")
    judged: Qrels = {}
    for number, line in lines:
        try:
            query, tool, text = line.decode().split("\t")
            score = float(text)
        except ValueError:
            found = line[:80].decode(errors="replace")
            raise SourceError(
                f"{file}, line {number}: expected query-id<TAB>corpus-id<TAB>score, found {found!r}"
            ) from None
        if query not in queries:
            problem = f"a query of queries.jsonl, found {query!r}"
        elif tool not in corpus:
            problem = f"a tool of corpus.jsonl, found {tool!r}"
        elif not math.isfinite(score):
            problem = f"a finite score, found {text!r}"
        elif judged.setdefault(query, {}).setdefault(tool, score) != score:
            problem = f"one score for query {query!r} and tool {tool!r}, found two"
        else:
            continue
        raise SourceError(f"{file}, line {number}: expected {problem}")
    qrels = {query: {tool: score for tool, score in tools.items() if score > 0} for query, tools in judged.items()}
    for query, tools in qrels.items():
        if not tools:
            raise SourceError(f"{file}: expected a tool with a score above 0 for query {query!r}, found none")
    return qrels


# --- run files --------------------------------------------------------------------------------------------------------


def write_run(path: str | Path, label: str, run: Mapping[str, Sequence[tuple[str, float]]]) -> None:
    """Write rankings as gzipped TREC lines `query-id Q0 tool-id rank score label`; equal runs give equal bytes.

    The order given is the ranking, and scorers that sort by score shall keep it: scores are written in single
    precision, and one that does not fall below its predecessor is written as the next smaller number. Scorers split at
    white space, so white space within an id is percent-encoded (and a percent sign that two hexadecimal digits follow).

    Args:
        path: the file, as a rule `<label>.run.gz`; replaced in one step.
        label: last column.
        run: query id → (tool id, score), best first; the first 20 are written.

    Raises:
        ValueError: for a score that is not a finite single-precision number.
    """
    _write_gzip(
        path,
        (
            f"{_escaped(query)} Q0 {_escaped(tool)} {rank} {score!s} {_escaped(label)}"
            for query in sorted(run)
            for rank, (tool, score) in enumerate(_falling(query, run[query][:RUN_DEPTH]), 1)
        ),
    )


def _falling(query: str, hits: Iterable[tuple[str, float]]) -> Iterator[tuple[str, np.float32]]:
    last = np.float32(np.inf)
    for tool, score in hits:
        with np.errstate(over="ignore"):
            value = np.float32(score)
        if not np.isfinite(value):
            raise ValueError(f"expected a finite score for query {query!r} and tool {tool!r}, found {score}")
        last = min(value, np.nextafter(last, np.float32(-np.inf)))
        yield tool, last


def read_run(path: str | Path) -> dict[str, list[tuple[str, float]]]:
    """Read a TREC run, gzipped or not: query id → (tool id, score) in the order of the rank column.

    Raises:
        SourceError: naming the file and the line that is not a TREC line, or that ranks a tool again.
    """
    file = Path(path)
    ranked: dict[str, dict[str, tuple[int, float]]] = {}
    for number, line in _lines(file):
        try:
            query, _, tool, rank, score, _ = line.decode().split()
            entry = int(rank), float(score)
        except ValueError:
            found = line[:80].decode(errors="replace")
            raise SourceError(
                f"{file}, line {number}: expected query-id Q0 tool-id rank score label, found {found!r}"
            ) from None
        tools = ranked.setdefault(unquote(query), {})
        if unquote(tool) in tools:
            raise SourceError(f"{file}, line {number}: expected each tool once a query, found {unquote(tool)!r} again")
        tools[unquote(tool)] = entry
    return {
        query: [(tool, score) for tool, (_, score) in sorted(tools.items(), key=lambda item: item[1][0])]
        for query, tools in ranked.items()
    }


def write_detect(path: str | Path, rows: Iterable[tuple[str, int, float]]) -> None:
    """Write `query-id label need` lines, gzipped, in the order given; ids are encoded as in `write_run`.

    Args:
        path: the file, as a rule `<label>.detect.gz`; replaced in one step.
        rows: query id, 1 if it needs a tool or 0, estimated probability that it needs one.
    """
    _write_gzip(path, (f"{_escaped(query)} {int(label)} {float(need)!r}" for query, label, need in rows))


def read_detect(path: str | Path) -> list[tuple[str, int, float]]:
    """Read what `write_detect` wrote, gzipped or not: query id, label and need, in the order of the file.

    Raises:
        SourceError: naming the file and the line that is not such a line.
    """
    file, found = Path(path), []
    for number, line in _lines(file):
        try:
            query, label, need = line.decode().split()
            row = unquote(query), int(label), float(need)
        except ValueError:
            shown = line[:80].decode(errors="replace")
            raise SourceError(f"{file}, line {number}: expected query-id label need, found {shown!r}") from None
        if row[1] not in (0, 1) or not 0 <= row[2] <= 1:
            raise SourceError(
                f"{file}, line {number}: expected label 0 or 1 and a need in [0, 1], found {line.decode()!r}"
            )
        found.append(row)
    return found


def _escaped(text: str) -> str:
    return re.sub(r"\s|%(?=[0-9A-Fa-f]{2})", lambda found: quote(found[0]), text)


def _write_gzip(path: str | Path, lines: Iterable[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
            packed.write(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
