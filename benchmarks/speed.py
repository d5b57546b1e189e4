"""Measures times that users notice: add, sync, import, --help, and a search compared with bare bm25s retrieval.

`--steps` measures `scout` against `hybrid` alone: requests of one step and of four, and batches. The two recipes take
turns; a request is never asked twice in one process, because what one recipe caches would serve the other.

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
from toolscout.types import render
from toolscout_lab.machine import provenance

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
        retrieve(text)
        scouted(text)
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


STEPS = """
import json, statistics, sys, time
from threadpoolctl import threadpool_limits
from toolscout import Scout
given = json.load(sys.stdin)
with Scout(sys.argv[1]) as scout, threadpool_limits(1):
    for text in given["warm"]:
        for recipe in ("hybrid", "scout"):
            scout.search(text, given["k"], recipe=recipe)
    times = []
    for number, text in enumerate(given["texts"]):
        recipe = ("hybrid", "scout")[(number + given["turn"]) % 2]
        wall, cpu = time.perf_counter(), time.thread_time()
        found = scout.search(text, given["k"], recipe=recipe)
        times.append((recipe, (time.perf_counter() - wall) * 1000, (time.thread_time() - cpu) * 1000, len(found.steps)))
    batches = {}
    for recipe, texts in zip(("hybrid", "scout")[:: 1 - 2 * given["turn"]], given["batches"]):
        started = time.perf_counter()
        scout.search_many(texts, given["k"], recipe=recipe)
        batches[recipe] = len(texts) / (time.perf_counter() - started)
print(json.dumps({"times": times, "batches": batches}))
"""


def read_joined(data: Path) -> list[str]:
    """Read dev requests of four parts, which the splitter parts into four steps."""
    from joining import SETS, build_joined

    from toolscout.search.steps.splitter import load_splitter
    from toolscout_lab.bench_jobs import load_dataset

    splitter, texts = load_splitter(), []
    for name in SETS:
        joined = [some.text for some in build_joined(load_dataset(name, data), "dev", QUERIES) if len(some.parts) == 4]
        texts += [text for text in joined if len(splitter.split(text)) == 4][: QUERIES // 8]
    return texts


def compare_steps(home: str, data: Path, k: int = 10) -> dict[str, Any]:
    """Return p50 of `hybrid` and `scout` and their ratios, and requests per second in batches; one thread.

    `cpu` is the time on the processor, for machines that others use too. The ratios are medians over requests.
    """
    from toolscout.search.steps.splitter import load_splitter

    splitter = load_splitter()
    singles = [text for text in dict.fromkeys(read_queries(data)) if len(splitter.split(text)) == 1]
    kinds = {"one_step": singles[20:220], "four_steps": read_joined(data)}
    batches = [singles[220::2], singles[221::2]]
    result: dict[str, Any] = {}
    for kind, texts in kinds.items():
        rows: dict[str, dict[int, tuple[float, float]]] = {"hybrid": {}, "scout": {}}
        speeds: dict[str, list[float]] = {"hybrid": [], "scout": []}
        for turn in (0, 1):
            asked = json.dumps({"warm": singles[:20], "texts": texts, "turn": turn, "batches": batches, "k": k})
            command = [sys.executable, "-c", STEPS, home]
            done = json.loads(subprocess.run(command, input=asked, check=True, capture_output=True, text=True).stdout)
            for number, (recipe, wall, cpu, _) in enumerate(done["times"]):
                rows[recipe][number] = (wall, cpu)
            for recipe, speed in done["batches"].items():
                speeds[recipe].append(speed)
        result[kind] = {"requests": len(texts)}
        for column, unit in enumerate(("", "_cpu")):
            for recipe, times in rows.items():
                result[kind][f"{recipe}_p50{unit}_ms"] = statistics.median(row[column] for row in times.values())
            ratios = [rows["scout"][number][column] / times[column] for number, times in rows["hybrid"].items()]
            result[kind][f"ratio{unit}"] = statistics.median(ratios)
        result["batch_requests_per_second"] = {recipe: max(values) for recipe, values in speeds.items()}
    return result


def measure_steps(k: int) -> dict[str, Any]:
    """Add the tools of toucan to a new home, and compare the recipes there."""
    data = Path(os.environ.get("TOOLSCOUT_DATA") or sys.exit("Set TOOLSCOUT_DATA to the folder of the datasets."))
    with tempfile.TemporaryDirectory() as home:
        with Scout(home) as scout:
            scout.add(str(data / "tool_corpora/toucan"))
            scout.embed("scout")
        return compare_steps(home, data, k) | provenance()


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
        report["steps"] = compare_steps(home, data)
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
    parser.add_argument("--steps", action="store_true", help="only scout against hybrid; prints, and writes nothing")
    parser.add_argument("--k", type=int, default=10, help="tools asked for, with --steps; from 9 on words are covered")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "speed.json")
    given = parser.parse_args()
    if given.steps:
        sys.exit(sys.stdout.write(json.dumps(measure_steps(given.k), indent=2) + "\n") and None)
    text = json.dumps(main(given.minilm), indent=2)
    given.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")
