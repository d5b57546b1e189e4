"""Converts datasets of other projects into dataset folders (docs/reference/formats.md).

Known layouts: MTEB (judgements as JSON lines), ToolRet, the retrieval data of ToolBench, and SkillRet. The texts are
untrusted, and their licences stay those of their authors. A folder of BEIR, or of COLT's repository, needs no
conversion.

`published.toml` names datasets by their authors' addresses. `fetch` downloads one and compares its files with their
digests. Where nobody knew a digest when the table was written, the folder keeps those of the first download.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.checks.results import write_json
from toolscout.dataset import QRELS_HEADER, Dataset, Qrels, read_lines
from toolscout.errors import ConfigError, NotFound, SourceError, name_nearest
from toolscout.settings import Settings
from toolscout_lab.progress import Say, ignore

__all__ = ["LAYOUTS", "ConvertedDataset", "PublishedDataset", "convert", "fetch", "load_published", "write_folder"]

ORIGIN_FILE: Final = "origin.json"  # in a dataset that was downloaded: its licence, its address, the digests
MAX_DOWNLOAD_BYTES: Final = 2**30  # of one file
DOWNLOAD_S: Final = 600.0  # of one file
MAX_FIELD_CHARS: Final = 2**24  # of a column of tabbed text
SCHEMA_TYPES: Final = {
    "str": "string",
    "string": "string",
    "int": "integer",
    "integer": "integer",
    "float": "number",
    "number": "number",
    "bool": "boolean",
    "boolean": "boolean",
    "list": "array",
    "array": "array",
    "dict": "object",
    "object": "object",
}
Entry = Mapping[str, Any]


class ConvertedDataset(NamedTuple):
    """A dataset before it is written: tools and queries as JSON objects, and the gold tools by split."""

    tools: Sequence[Entry]
    queries: Sequence[Entry]
    qrels: dict[str, Qrels]


def write_folder(folder: Path, tools: Iterable[Entry], queries: Iterable[Entry], qrels: Mapping[str, Qrels]) -> None:
    """Write a dataset folder, whole or not at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", tools), ("queries", queries)):
        with (partial / f"{name}.jsonl").open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    for split, judged in qrels.items():
        lines = [f"{query}\t{tool}\t{grade:g}" for query, gold in judged.items() for tool, grade in gold.items()]
        (partial / "qrels" / f"{split}.tsv").write_text("\n".join(["\t".join(QRELS_HEADER), *lines]) + "\n", "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)


def convert(source: Path, out: Path) -> list[Dataset]:
    """Convert a folder in one of the known layouts, and load what was written.

    SkillRet judges training and test queries over different skills, so it becomes two folders, `train` and `test`.

    Args:
        source: the folder, as its authors publish it. Files of Parquet must have been exported as JSON lines.
        out: a folder that does not exist, or is empty.

    Raises:
        ConfigError: if `out` holds files, or `source` has none of the layouts.
        SourceError: naming file and line, if a line cannot be read.
    """
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out: expected a new folder, found files in {out}")
    for is_layout, read in LAYOUTS.values():
        if is_layout(source):
            parts = read(source)
            folders = {name: out / name if name else out for name in parts}
            for name, part in parts.items():
                folders[name].parent.mkdir(parents=True, exist_ok=True)
                write_folder(folders[name], *part)
            return [Dataset.load(folder) for folder in folders.values()]
    raise ConfigError(f"{source}: expected a layout of {', '.join(LAYOUTS)}, found none. See docs/reference/formats.md")


def _read_objects(file: Path) -> Iterator[Entry]:
    """Yield the objects of a file of JSON lines.

    Raises:
        SourceError: naming the line that is none.
    """
    for number, line in read_lines(file):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, Mapping):
            raise SourceError(
                f"{file}, line {number}: expected a JSON object, found {line[:60].decode(errors='replace')!r}"
            )
        yield value


def _take(entry: Entry, *names: str) -> Any:
    """Return the first of some fields that an entry has.

    Raises:
        SourceError: if it has none of them.
    """
    for name in names:
        if entry.get(name) is not None:
            return entry[name]
    raise SourceError(f"expected a field {' or '.join(names)}, found {', '.join(map(str, entry))[:120]}")


# --- MTEB -------------------------------------------------------------------------------------------------------------


def _is_mteb(folder: Path) -> bool:
    return (folder / "corpus.jsonl").is_file() and any((folder / "qrels").glob("*.jsonl"))


def _read_mteb(folder: Path) -> dict[str, ConvertedDataset]:
    """Read an MTEB retrieval dataset, without a name of its own (""). Judgements of grade 0 are left out."""
    qrels: dict[str, Qrels] = {}
    for file in sorted((folder / "qrels").glob("*.jsonl")):
        judged = qrels.setdefault("test" if file.stem == "default" else file.stem, {})
        for entry in _read_objects(file):
            grade = float(_take(entry, "score"))
            if grade > 0:
                judged.setdefault(str(_take(entry, "query-id")), {})[str(_take(entry, "corpus-id"))] = grade

    def rename(entry: Entry) -> Entry:
        return {**entry, "_id": str(_take(entry, "_id", "id"))}

    files = (folder / "corpus.jsonl", folder / "queries.jsonl")
    tools, queries = (list(map(rename, _read_objects(file))) for file in files)
    return {"": ConvertedDataset(tools, queries, qrels)}


# --- ToolRet ----------------------------------------------------------------------------------------------------------


def _is_toolret(folder: Path) -> bool:
    return (folder / "tools.jsonl").is_file() and (folder / "queries.jsonl").is_file()


def _read_toolret(folder: Path) -> dict[str, ConvertedDataset]:
    """Read ToolRet: one dataset, without a name of its own (""). All its queries are in the split `test`."""
    tools = [_make_tool(str(_take(entry, "id", "_id")), entry) for entry in _read_objects(folder / "tools.jsonl")]
    queries, judged = [], {}
    for entry in _read_objects(folder / "queries.jsonl"):
        query, labels = str(_take(entry, "id", "_id")), _decode(_take(entry, "labels"))
        metadata = {"kind": str(entry["category"])} if entry.get("category") else {}
        queries.append({"_id": query, "text": str(_take(entry, "query")), "metadata": metadata})
        judged[query] = {str(_take(label, "id")): float(label.get("relevance", 1)) for label in labels}
    return {"": ConvertedDataset(tools, queries, {"test": judged})}


def _decode(value: Any) -> Any:
    """Decode a text that is JSON; anything else stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _make_tool(name: str, entry: Entry) -> Entry:
    """Make the entry of a tool whose document is a text or an object with name, description and parameters."""
    document = _decode(_take(entry, "documentation", "doc", "document_content"))
    if not isinstance(document, Mapping):
        return {"_id": name, "title": name, "text": str(document), "metadata": {}}
    title = document.get("api_name") or document.get("name") or document.get("func_name") or name
    text = document.get("api_description") or document.get("description") or document.get("func_description") or ""
    path = [str(document[key]) for key in ("category_name", "tool_name") if document.get(key)]
    schema = _make_schema(document)
    metadata = {**({"path": path} if path else {}), **({"parameters": schema} if schema else {})}
    return {"_id": name, "title": str(title), "text": str(text), "metadata": metadata}


def _make_schema(document: Entry) -> dict[str, Any] | None:
    """Make a JSON Schema of parameters that are listed by name, or as ToolBench lists them; None: there are none."""
    given = document.get("parameters")
    if isinstance(given, Mapping) and isinstance(given.get("properties"), Mapping):
        return dict(given)
    properties = {str(key): _make_property(value) for key, value in given.items()} if isinstance(given, Mapping) else {}
    required = []
    for key in ("required_parameters", "optional_parameters"):
        for parameter in document.get(key) or ():
            if isinstance(parameter, Mapping) and parameter.get("name"):
                properties[str(parameter["name"])] = _make_property(parameter)
                required += [str(parameter["name"])] if key == "required_parameters" else []
    if not properties:
        return None
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _make_property(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    kind = SCHEMA_TYPES.get(str(value.get("type", "")).lower())
    description = value.get("description")
    return {**({"type": kind} if kind else {}), **({"description": str(description)} if description else {})}


# --- ToolBench --------------------------------------------------------------------------------------------------------


def _is_toolbench(folder: Path) -> bool:
    return (folder / "corpus.tsv").is_file() and any(folder.glob("qrels.*.tsv"))


def _read_toolbench(folder: Path) -> dict[str, ConvertedDataset]:
    """Read ToolBench: one dataset, without a name of its own (""). Its files name the splits."""
    tools = {row[0]: _make_tool(row[0], {"doc": row[1]}) for row in _read_rows(folder / "corpus.tsv", 2)}
    tools.pop("docid", None)  # the header
    queries: dict[str, Entry] = {}
    qrels: dict[str, Qrels] = {}
    for file in sorted(folder.glob("qrels.*.tsv")):
        split = file.name.split(".")[1]
        judged = qrels.setdefault(split, {})
        for query, _, tool, grade in _read_rows(file, 4):
            judged.setdefault(query, {})[tool] = float(grade)
        for query, text in _read_rows(folder / f"{split}.query.txt", 2):
            queries[query] = {"_id": query, "text": text}
    return {"": ConvertedDataset(list(tools.values()), list(queries.values()), qrels)}


def _read_rows(file: Path, width: int) -> Iterator[list[str]]:
    """Yield the rows of a file with tabs and quotes, as pandas writes it.

    Raises:
        SourceError: if it cannot be read, or naming a row with another number of columns.
    """
    csv.field_size_limit(MAX_FIELD_CHARS)
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            for number, row in enumerate(csv.reader(stream, delimiter="\t"), 1):
                if len(row) != width:
                    raise SourceError(f"{file}, row {number}: expected {width} columns, found {len(row)}")
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"{file}: expected a readable file, found: {reason}") from None


# --- SkillRet ---------------------------------------------------------------------------------------------------------


def _find_skills(folder: Path) -> Path:
    return folder / "data" if (folder / "data").is_dir() else folder


def _is_skillret(folder: Path) -> bool:
    return any((_find_skills(folder) / "skills").glob("*.jsonl"))


def _read_skillret(folder: Path) -> dict[str, ConvertedDataset]:
    """Read SkillRet. Its files name the splits, each with skills and queries of its own."""
    base, parts = _find_skills(folder), {}
    for file in sorted((base / "skills").glob("*.jsonl")):
        skills = [
            {
                "_id": str(_take(entry, "id")),
                "title": str(_take(entry, "name")),
                "text": str(entry.get("description") or ""),
                "metadata": {"path": [str(entry[key]) for key in ("major", "sub") if entry.get(key)]},
            }
            for entry in _read_objects(file)
        ]
        queries = [
            {"_id": str(_take(entry, "id")), "text": str(_take(entry, "query"))}
            for entry in _read_objects(base / "queries" / file.name)
        ]
        judged: Qrels = {}
        for entry in _read_objects(base / "qrels" / file.name):
            grade = float(entry.get("relevance", 1))
            if grade > 0:
                judged.setdefault(str(_take(entry, "query_id")), {})[str(_take(entry, "skill_id"))] = grade
        parts[file.stem] = ConvertedDataset(skills, queries, {file.stem: judged})
    return parts


LAYOUTS: Final[Mapping[str, tuple[Callable[[Path], bool], Callable[[Path], dict[str, ConvertedDataset]]]]] = {
    "MTEB": (_is_mteb, _read_mteb),
    "ToolBench": (_is_toolbench, _read_toolbench),
    "SkillRet": (_is_skillret, _read_skillret),
    "ToolRet": (_is_toolret, _read_toolret),
}
"""Name of a layout → whether a folder has it, and the function that reads it: name of a part → the part."""


# --- published datasets -----------------------------------------------------------------------------------------------


class PublishedDataset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the authors of a dataset publish it.

    Attributes:
        page: the page of the dataset.
        licence: what its authors say about its use.
        base: the address that the names of its files follow; empty: it cannot be downloaded file by file.
        files: name of a file → its SHA-256 digest; empty: it was not known.
        note: what to know before the download, or how to get it by hand.
    """

    page: str
    licence: str
    base: str = ""
    files: dict[str, str] = {}
    note: str = ""


@functools.cache
def load_published() -> dict[str, PublishedDataset]:
    """Read `published.toml`: name → dataset."""
    text = resources.files("toolscout_lab").joinpath("published.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=dict[str, PublishedDataset])


def fetch(name: str, out: Path, settings: Settings, *, mirror: str = "", say: Say = ignore) -> list[Dataset]:
    """Download a published dataset, compare its files with their digests, and bring it into our layout.

    Args:
        name: of `published.toml`.
        out: a folder that does not exist, or is empty.
        settings: timeouts and private hosts.
        mirror: another address with the same files.
        say: called with progress messages.

    Raises:
        NotFound: for an unknown name.
        ConfigError: if `out` holds files, or the dataset can only be had by hand.
        SourceError: if a file cannot be downloaded, or is another one than was published.
    """
    published = load_published().get(name)
    if published is None:
        names = list(load_published())
        raise NotFound(f"expected a published dataset, found {name!r}. {name_nearest(name, names, ', '.join(names))}")
    if not published.base:
        raise ConfigError(f"{name} cannot be downloaded file by file. {published.note} See {published.page}")
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out: expected a new folder, found files in {out}")
    base, digests = (mirror or published.base).rstrip("/"), {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (file, expected) in enumerate(published.files.items(), 1):
            say(f"file {number} of {len(published.files)}: {file}")
            content = _download(f"{base}/{file}", settings)
            digests[file] = hashlib.sha256(content).hexdigest()
            if expected and digests[file] != expected:
                raise SourceError(
                    f"{base}/{file}: expected the published file (SHA-256 {expected[:12]}…), found another one "
                    f"({digests[file][:12]}…). Nothing was written."
                )
            path = Path(folder) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        datasets = _bring_in(Path(folder), out)
    origin = {"name": name, "page": published.page, "licence": published.licence, "base": base, "sha256": digests}
    write_json(out / ORIGIN_FILE, origin)
    return datasets


def _bring_in(folder: Path, out: Path) -> list[Dataset]:
    """Convert a folder, or copy it if it has our layout."""
    if any(is_layout(folder) for is_layout, _ in LAYOUTS.values()):
        return convert(folder, out)
    Dataset.load(folder)
    shutil.copytree(folder, out, dirs_exist_ok=True)
    return [Dataset.load(out)]


def _download(url: str, settings: Settings) -> bytes:
    """Return the file at an address of the table, or of a mirror that the user named."""
    import httpx

    from toolscout.sources.addresses import Downloader, Reach, UnsupportedEncoding

    reach = Reach.of(url, settings.private_hosts)
    try:
        with Downloader(reach, timeout=settings.http_timeout, total=DOWNLOAD_S) as downloader:
            download = downloader.get(url, MAX_DOWNLOAD_BYTES)
    except (httpx.HTTPError, httpx.InvalidURL, UnsupportedEncoding, OSError) as error:
        raise SourceError(f"{url}: expected a file, found: {str(error)[:200] or type(error).__name__}") from None
    if download.status != 200:
        raise SourceError(f"{url}: expected a file, found HTTP status {download.status}")
    if download.is_cut:
        raise SourceError(f"{url}: expected at most {MAX_DOWNLOAD_BYTES:,} bytes, found more")
    return bytes(download.content)
