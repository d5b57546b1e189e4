"""Measures times that users notice: add, sync, import, --help, and a search compared with bare bm25s retrieval.

Prints JSON and writes it to benchmarks/results/speed.json. Needs TOOLSCOUT_DATA (tool_corpora/toucan and openapi/specs)
and bm25s. All figures come from one run; compare ratios, not seconds, between machines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from toolscout import Scout
from toolscout.lab.machine import provenance
from toolscout.types import render

ROOT = Path(__file__).parent
QUERIES = 400


def seconds(*command: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return time.perf_counter() - started


def time_above_bare(*command: str, pairs: int = 15) -> float:
    """Return the median seconds that `python command` takes longer than `python -c pass`; both run in turn."""
    return statistics.median(-seconds("-c", "pass") + seconds(*command) for _ in range(pairs))


def read_queries(data: Path) -> list[str]:
    """Read real queries of several datasets."""
    texts: list[str] = []
    for name in ("livemcpbench", "bfcl", "metatool", "ultratool", "toolbench"):
        lines = (data / name / "queries.jsonl").read_text().splitlines()
        texts += [json.loads(line)["text"] for line in lines[:: max(1, len(lines) // (QUERIES // 5))]]
    return texts[:QUERIES]


def compare_with_bm25s(scout: Scout, texts: list[str]) -> dict[str, float]:
    """Return p50 and p95 in ms of `Scout.search` and of bare bm25s, in turn for each query, in one thread."""
    import bm25s

    catalogue, _ = scout.pipeline("bm25")
    corpus = [
        " ".join(render(tool, field) for field in ("name", "description", "parameters", "path"))
        for tool in catalogue.tools()
    ]
    bare = bm25s.BM25()
    bare.index(bm25s.tokenize(corpus, stopwords="en", show_progress=False), show_progress=False)

    def retrieve(text: str) -> None:
        tokens = bm25s.tokenize(text, stopwords="en", show_progress=False, return_ids=False)
        bare.retrieve(tokens, k=5, show_progress=False, n_threads=0)

    def scouted(text: str) -> None:
        scout.search(text, 5, recipe="bm25")

    times: dict[str, list[float]] = {"bm25s": [], "scout": []}
    for text in texts[:20]:
        retrieve(text), scouted(text)
    for text in texts:
        for name, call in (("bm25s", retrieve), ("scout", scouted)):
            started = time.perf_counter()
            call(text)
            times[name].append((time.perf_counter() - started) * 1000)
    result = {}
    for name, values in times.items():
        result[f"{name}_p50_ms"] = statistics.median(values)
        result[f"{name}_p95_ms"] = statistics.quantiles(values, n=20)[-1]
    result["ratio_p50"] = result["scout_p50_ms"] / result["bm25s_p50_ms"]
    return result


HYBRID = """
import json, resource, statistics, sys, time
from threadpoolctl import threadpool_limits
from toolscout import Scout
texts = json.load(sys.stdin)
with Scout(sys.argv[1], **json.loads(sys.argv[2])) as scout, threadpool_limits(1):
    times = []
    for text in [*texts[:20], *texts]:
        started = time.perf_counter()
        scout.search(text, 5)
        times.append((time.perf_counter() - started) * 1000)
print(json.dumps({"p50_ms": statistics.median(times[20:]), "p95_ms": statistics.quantiles(times[20:], n=20)[-1],
                  "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def measure_hybrid_search(home: str, texts: list[str], **settings: Any) -> dict[str, float]:
    """Measure p50, p95 and peak memory of a new process that only searches, with its journal, in one thread.

    Args:
        home: the home to search.
        texts: the queries.
        settings: settings of the scout that differ from the defaults.
    """
    command = [sys.executable, "-c", HYBRID, home, json.dumps({"recipe": "hybrid", **settings})]
    done = subprocess.run(command, input=json.dumps(texts), check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main(minilm: bool = False) -> dict[str, Any]:
    data = Path(os.environ.get("TOOLSCOUT_DATA") or sys.exit("Set TOOLSCOUT_DATA to the folder of the datasets."))
    sources = [str(data / "tool_corpora/toucan"), *map(str, sorted((data / "openapi/specs").glob("*.json")))]
    with tempfile.TemporaryDirectory() as home:
        program = ("-m", "toolscout", "--home", home)
        report: dict[str, Any] = {"add_seconds": seconds(*program, "add", *sources)}
        report["sync_seconds"] = statistics.median(seconds(*program, "sync") for _ in range(3))
        report["cold_search_seconds"] = statistics.median(
            seconds(*program, "search", "rain tomorrow") for _ in range(3)
        )
        with Scout(home) as scout:
            report["tools"] = sum(source.tools for source in scout.sources())
            report["search"] = compare_with_bm25s(scout, read_queries(data))
        report["hybrid_search"] = measure_hybrid_search(home, read_queries(data))
        report["hybrid_search_without_judgement"] = measure_hybrid_search(home, read_queries(data), false_rejects=0.0)
        if minilm:
            report["hybrid_minilm_search"] = measure_hybrid_search(home, read_queries(data), recipe="hybrid-minilm")
    report["import_seconds_above_bare"] = time_above_bare("-c", "import toolscout")
    report["help_seconds_above_bare"] = time_above_bare("-m", "toolscout", "--help")
    return report | provenance("bm25s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", action="store_true", help="hybrid-minilm too, whose vectors take minutes to make")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "speed.json")
    given = parser.parse_args()
    text = json.dumps(main(given.minilm), indent=2)
    given.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")
