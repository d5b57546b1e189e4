"""Measures large catalogues: time to add, first search of a new process, each search, memory, recall, bytes moved.

The first search is measured twice: *warm*, right after the tools were added, and *cold*, after the system has dropped
what it keeps of the home's files in memory.

The tools vary those of `tool_corpora/toucan`: the first 13,685 are its own, and in each further copy half of the words
of every name and description are exchanged for other words of the corpus, or now and then for a new word.

    python benchmarks/scale.py [--tools 1000,10000,41055,177000,1000000] [--data DIR] [--work DIR] [--out FILE]
    python scripts/tables.py && python scripts/draw_methods.py       write the tables and the chart of the page

Every size gets a home of its own, filled by one process and searched by a second one on one thread. Processor seconds
and the load of the machine stand beside wall seconds, since other work may run on it. Each size is written when it is
done. With `--work`, an interrupted run goes on where it was: with the part of the size that was not done. A size that
was measured before is replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import copy as copy_index
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "scale.json"
SIZES = (1_000, 10_000, 41_055, 177_000, 1_000_000)
MORE_TOOLS = 10  # that are added to a home that is ready
BANDWIDTH_BYTES = 1 << 28  # read to measure the memory
REQUESTS = ("livemcpbench", "toolbench", "bfcl", "metatool", "hammerbench")
REQUESTS_OF_EACH = 40
COMMON = ("list all items", "get user data", "search for files", "create a new project", "send a message to a user")
VISIBLE = (0.01, 0.1, 0.5)
RECALL_AT = 10
EXCHANGED = 0.5
INVENTED = 0.02
_WORD = re.compile(r"[A-Za-z]{3,}")


def make_tools(corpus: Path, folder: Path, n_tools: int, seed: int = 0) -> list[Path]:
    """Write tools as dataset folders, each as large as the corpus. Returns the folders.

    Args:
        corpus: `corpus.jsonl` of toucan.
        folder: gets one folder for each copy.
        n_tools: how many tools.
        seed: of all random choices.
    """
    entries = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    words = [word.lower() for entry in entries for word in _WORD.findall(entry["text"])]
    draw, folders = random.Random(seed), []

    def exchange(match: re.Match[str]) -> str:
        chance = draw.random()
        if chance < INVENTED:
            return "".join(draw.choices("bcdfgklmnprstvz", k=3)) + str(draw.choice(words))
        return draw.choice(words) if chance < EXCHANGED else match[0]

    for copy in range(-(-n_tools // len(entries))):
        folders.append(folder / f"registry{copy:03}")
        folders[-1].mkdir(parents=True, exist_ok=True)
        with (folders[-1] / "corpus.jsonl").open("w", encoding="utf-8") as file:
            for entry in entries[: n_tools - copy * len(entries)]:
                if copy:
                    entry = {**entry, "_id": f"{entry['_id']}-{copy}"}
                    entry |= {field: _WORD.sub(exchange, entry[field]) for field in ("title", "text")}
                file.write(json.dumps(entry) + "\n")
    return folders


def list_requests(data: Path) -> list[str]:
    """Return requests of several datasets, and short ones of common words."""
    texts = [
        json.loads(line)["text"]
        for name in REQUESTS
        for line in (data / name / "queries.jsonl").read_text(encoding="utf-8").splitlines()[:REQUESTS_OF_EACH]
    ]
    return [*texts, *COMMON]


def time_call(call: Callable[[], Any]) -> dict[str, float]:
    """Return the wall and the processor seconds of a call."""
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return {"wall_s": time.perf_counter() - wall, "processor_s": time.process_time() - processor}


def read_memory_mb() -> dict[str, float]:
    """Return the resident memory of this process: what is its own, and what it shares with others."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return {name: int(match[1]) / 1024 for name, field in (("own_mb", "RssAnon"), ("shared_mb", "RssFile"))
            if (match := re.search(rf"{field}:\s+(\d+)", status))}  # fmt: skip


def describe_times(seconds: Sequence[float]) -> dict[str, float]:
    """Return median and 95th percentile in milliseconds."""
    import numpy as np

    p50, p95 = np.percentile(seconds, [50, 95]) * 1e3
    return {"p50_ms": float(p50), "p95_ms": float(p95)}


# --- the processes of a size ------------------------------------------------------------------------------------------


def add_tools(home: Path, folders: Sequence[Path]) -> dict[str, Any]:
    """Fill a home, and build what searches need."""
    from toolscout.scout import Scout
    from toolscout_lab.machine import peak_mb

    loads = [os.getloadavg()[0]]
    with Scout(home) as scout:
        read = time_call(lambda: [scout.add(folder) for folder in folders])
        build = time_call(scout.embed)
        loads.append(os.getloadavg()[0])
        others = os.times()
        report = {"read": read, "build": build, "others_processor_s": others.children_user + others.children_system}
        report |= {"peak_mb": peak_mb(), "loads": loads}
        report["snapshot_mb"] = sum(path.stat().st_size for path in (home / "snapshots").glob("*.arrays")) / 1e6
        report["catalogue_mb"] = sum(path.stat().st_size for path in home.glob("catalogue.db*")) / 1e6
    return report


def add_more_tools(home: Path, folder: Path) -> dict[str, Any]:
    """Add a few tools to a home that is ready."""
    from toolscout.scout import Scout

    with Scout(home) as scout:
        return {"read": time_call(lambda: scout.add(folder)), "build": time_call(scout.embed)}


def measure_bandwidth() -> float:
    """Return how many bytes of memory one thread reads in a second, at best of several times."""
    import numpy as np

    block = np.ones(BANDWIDTH_BYTES // 8)
    return BANDWIDTH_BYTES / min(time_call(block.sum)["processor_s"] for _ in range(5))


def drop_files(home: Path) -> None:
    """Have the system forget what it keeps of a home's files in memory, where it can be asked to."""
    for path in (path for path in home.rglob("*") if path.is_file() and hasattr(os, "posix_fadvise")):
        with path.open("rb") as file:
            os.fsync(file.fileno())  # only what is on the disk can be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def search_first(home: Path, request: str) -> tuple[Any, dict[str, Any]]:
    """Open a filled home as a new process and search it once. Returns the open home and the times."""
    began, began_processor = time.perf_counter(), time.process_time()
    from toolscout.scout import Scout

    imported = time.perf_counter() - began
    scout = Scout(home)
    scout.search(request, recipe="hybrid")
    first = {"wall_s": time.perf_counter() - began, "processor_s": time.process_time() - began_processor}
    return scout, {"import_s": imported, "first_search": first}


def search_cold(home: Path, request: str) -> dict[str, Any]:
    """Search a home once whose files must be read from the disk."""
    drop_files(home)
    scout, report = search_first(home, request)
    with scout:
        return report


def search_tools(home: Path, requests: Sequence[str]) -> dict[str, Any]:
    """Search a filled home as a new process."""
    scout, report = search_first(home, requests[0])
    with scout:
        report["recipes"] = {}
        for recipe in ("bm25", "dense", "hybrid"):
            scout.search(requests[0], recipe=recipe)
            times = [time_call(functools.partial(scout.search, text, recipe=recipe)) for text in requests]
            report["recipes"][recipe] = {
                key: describe_times([entry[f"{key}_s"] for entry in times]) for key in ("wall", "processor")
            }
        report["memory"] = read_memory_mb()
        report |= measure_indexes(scout, requests)
    report |= {"memory_bytes_per_s": measure_bandwidth(), "load": os.getloadavg()[0]}
    return report


def measure_indexes(scout: Any, requests: Sequence[str]) -> dict[str, Any]:
    """Measure recall against comparing every tool, the gain of pruning, and the bytes that a search reads."""
    import numpy as np

    from toolscout.encoders.static import load_static
    from toolscout.indexes.exact import Exact
    from toolscout.recipes.select import Selection
    from toolscout.search.home_resources import index_words

    catalogue, _ = scout.pipeline("hybrid")
    index = scout.engine.builder.make_resources(Selection("hybrid")).index_tools(catalogue, load_static())
    words = index_words(catalogue)
    exact = Exact.of(index.ids, index.vectors)
    rows = load_static().encode(list(requests), "query")
    rows = rows[rows.any(axis=1)]
    recall = {}
    for share in (1.0, *VISIBLE):
        mask = None if share == 1 else np.random.default_rng(0).random(len(catalogue)) < share
        found = [index.search(row[None], RECALL_AT, mask)[0][0] for row in rows]
        best = [exact.search(row[None], RECALL_AT, mask)[0][0] for row in rows]
        pairs = zip(found, best, strict=True)
        recall[str(share)] = float(np.mean([len({*one} & {*other}) / max(1, len(other)) for one, other in pairs]))
    n_postings = [sum(part.end - part.start for part in words._look_up_terms(text)[1].values()) for text in requests]
    return {
        "tools": len(catalogue),
        "index": index.key.partition("/")[0],
        "recall_at_10": recall,
        "words": measure_words(words, requests),
        "bytes_per_search": {"words": 8 * float(np.median(n_postings)), "vectors": count_vector_bytes(index, rows)},
    }


def measure_words(words: Any, requests: Sequence[str]) -> dict[str, float]:
    """Return the milliseconds of the search for words with and without prefixes of common words' lists."""
    report: dict[str, Any] = {}
    for name in ("whole", "pruned"):
        seconds = []
        for text in requests:
            index = copy_index(words)  # with empty caches
            index._scores_cache, index._terms_cache = {}, {}
            index._large = words._large if name == "pruned" else None
            seconds.append(time_call(functools.partial(index.search, [text], 100))["processor_s"])
        report |= {f"{name}_{key}": value for key, value in describe_times(seconds).items()}
    return report


def count_vector_bytes(index: Any, rows: Any) -> float:
    """Return the bytes of vectors that one search reads, at the median."""
    import numpy as np

    from toolscout.search.pipeline import DEPTH

    if type(index).__name__ != "Ann":
        if type(index).__name__ == "Exact":
            return float(index.vectors.nbytes)
        near = [index._rounded.find_near(row, DEPTH, None, 1.0) for row in rows]
        n_near = np.median([len(index.ids) if positions is None else len(positions) for positions in near])
        return float(index._rounded.codes.nbytes + n_near * 4 * index.dim)
    from toolscout_scale.ann import MIN_CANDIDATES, count_candidates

    n_candidates = count_candidates(len(index.ids))
    index._graph.expansion_search = n_candidates
    compared = [index._graph.search(index.make_graph_code(row), n_candidates, threads=1).computed_distances
                for row in rows]  # fmt: skip
    n_rows = max(MIN_CANDIDATES, n_candidates // 2)
    return float(np.median(compared) * index._graph.ndim + n_rows * 4 * index.dim)


# --- all sizes --------------------------------------------------------------------------------------------------------


def measure(n_tools: int, data: Path, work: Path, commit: str | None) -> dict[str, Any]:
    """Measure one size in a process for each part. Parts that an interrupted run of the same commit did are kept."""
    folder = work / f"scale-{n_tools}"
    begun = folder / f"begun-{commit}"
    if not begun.exists():
        shutil.rmtree(folder, ignore_errors=True)
        corpus = data / "tool_corpora" / "toucan" / "corpus.jsonl"
        make_tools(corpus, folder / "tools", n_tools)
        [more] = make_tools(corpus, folder / "more", MORE_TOOLS)
        more.rename(folder / "more" / "added")
        begun.touch()
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # An installed package is compiled. A checkout is too after its first run, unless the environment forbids it.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    inherited["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    report = {}
    for part, environment in (("add", {}), ("search", threads), ("cold", threads), ("more", {})):
        done = folder / f"{part}.json"
        if not done.exists():
            if part == "add":
                shutil.rmtree(folder / "home", ignore_errors=True)
            command = [sys.executable, __file__, "--part", part, "--work", str(folder), "--data", str(data)]
            printed = subprocess.run(
                command, env={**inherited, **environment}, capture_output=True, text=True, check=True
            ).stdout
            done.write_text(printed, encoding="utf-8")
        report[part] = json.loads(done.read_text(encoding="utf-8"))
    shutil.rmtree(folder)
    return report


def run_part(part: str, folder: Path, data: Path) -> dict[str, Any]:
    """Do one of the parts of a size in this process."""
    home = folder / "home"
    if part == "add":
        return add_tools(home, sorted((folder / "tools").iterdir()))
    if part == "more":
        return add_more_tools(home, folder / "more" / "added")
    requests = list_requests(data)
    return search_cold(home, requests[0]) if part == "cold" else search_tools(home, requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(map(str, SIZES)), help="sizes, separated by commas")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("TOOLSCOUT_DATA", "data")))
    parser.add_argument(
        "--work",
        type=Path,
        help="where homes are made, and kept until their size is done; by default a temporary folder",
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--part", choices=("add", "search", "cold", "more"), help="of one size, in this process")
    arguments = parser.parse_args()
    if arguments.part:
        sys.stdout.write(json.dumps(run_part(arguments.part, arguments.work, arguments.data)))
        return
    results = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {"sizes": {}}
    from toolscout_lab.machine import provenance

    with contextlib.ExitStack() as stack:
        work = arguments.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for size in map(int, arguments.tools.split(",")):
            origin = provenance()
            results["sizes"][str(size)] = {**measure(size, arguments.data, work, origin["commit"]), **origin}
            arguments.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
            sys.stderr.write(f"{size:,} tools: measured\n")


if __name__ == "__main__":
    main()
