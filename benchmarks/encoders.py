"""Compares encoders in one run and on one thread: speed and NDCG@5.

Prints JSON and writes it to benchmarks/results/encoders.json. Needs TOOLSCOUT_DATA and the extra `train`, and
all-MiniLM-L6-v2 on this machine. Compare ratios, not seconds, between machines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from toolscout import Scout, sources
from toolscout.dataset import Dataset
from toolscout.encoders import Encoder, load
from toolscout.indexes.exact import Exact
from toolscout.metrics import score
from toolscout.settings import Settings
from toolscout.types import Tool, render
from toolscout_lab.encoders.onnx_export import export
from toolscout_lab.machine import provenance

ROOT = Path(__file__).parent
SETS = ("bfcl_parallel_multiple", "mcpproxy_golden", "hammerbench")
MORE = (
    "bfcl",
    "livemcpbench",
    "metatool",
    "numpybank",
    "openapi/restbench_spotify",
    "openapi/restbench_tmdb",
    "seal_tools_in",
    "toolbench",
    "toollens",
    "toollinkos",
    "ultratool",
)
MINILM, FLOAT, INT8 = "minilm, PyTorch", "minilm, ONNX float32", "minilm, ONNX int8"
REQUESTS = 300
MOST_QUERIES = 500


def tools_of(folder: Path) -> list[Tool]:
    return [tool for reading in sources.read(str(folder), name="set", settings=Settings()) for tool in reading.tools]


def ndcg(encoder: Encoder, data: Path, name: str) -> float:
    """Return NDCG@5 of at most 500 test queries, by cosine with title and text."""
    dataset, tools = Dataset.load(data / name, name), tools_of(data / name)
    gold = dataset.split("test")
    ids = sorted(gold)[:: -(-len(gold) // MOST_QUERIES)]
    index = Exact(encoder.dim)
    index.upsert(
        [tool.id.partition("/")[2] for tool in tools], encoder.encode([render(tool, "raw") for tool in tools], "tool")
    )
    found, _ = index.search(encoder.encode([dataset.queries[query] for query in ids]), 5)
    run = dict(zip(ids, found, strict=True))
    return float(score(run, {query: gold[query] for query in ids}, ["ndcg@5"]).means()["ndcg@5"])


def requests(data: Path) -> list[str]:
    """Read test queries of the three sets."""
    texts = []
    for name in SETS:
        dataset = Dataset.load(data / name, name)
        texts += [dataset.queries[query] for query in sorted(dataset.split("test"))]
    return texts[:: max(1, len(texts) // REQUESTS)][:REQUESTS]


def in_turn(calls: Mapping[str, Callable[[str], object]], texts: Sequence[str]) -> dict[str, float]:
    """Return the median ms of each call; the calls take turns on each text, after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for text in (*texts[:20], *texts):
        for name, call in calls.items():
            started = time.perf_counter()
            call(text)
            times[name].append((time.perf_counter() - started) * 1000)
    return {name: statistics.median(values[20:]) for name, values in times.items()}


def texts_a_second(encoder: Encoder, texts: Sequence[str]) -> float:
    encoder.encode(texts[:32], "tool")
    started = time.perf_counter()
    encoder.encode(texts, "tool")
    return len(texts) / (time.perf_counter() - started)


@contextlib.contextmanager
def catalogue(home: str | None, data: Path) -> Iterator[Scout]:
    """Open the given home, or a new one with toucan and the OpenAPI documents."""
    with tempfile.TemporaryDirectory() as made, Scout(home or made, encoder="static") as scout:
        if not home:
            scout.add(data / "tool_corpora/toucan")
            for path in sorted((data / "openapi/specs").glob("*.json")):
                scout.add(path)
        yield scout


def main() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", help="a catalogue with toucan and the OpenAPI documents; by default one is made")
    parser.add_argument("--all", action="store_true", help="NDCG on all 14 sets instead of three")
    chosen = parser.parse_args()
    data = Path(os.environ.get("TOOLSCOUT_DATA") or sys.exit("Set TOOLSCOUT_DATA to the folder of the datasets."))
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as held:
        encoders: dict[str, Encoder] = {
            "static": load("static", Settings()),
            MINILM: load("minilm", Settings()),
            FLOAT: export("minilm", Path(held) / "float32"),
            INT8: export("minilm", Path(held) / "int8", int8=True),
        }
        sizes = {name: (Path(held) / name / "model.onnx").stat().st_size / 1e6 for name in ("float32", "int8")}
    texts = requests(data)
    single = in_turn(_calls(encoders), texts)
    tools = [render(tool, "short") for tool in tools_of(data / "hammerbench")]
    batches = {"static": texts_a_second(encoders["static"], tools * 5), MINILM: texts_a_second(encoders[MINILM], tools)}
    with catalogue(chosen.home, data) as scout:
        calls = {"hybrid": lambda text: scout.search(text, 5, recipe="hybrid"), **_calls({MINILM: encoders[MINILM]})}
        searched = in_turn(calls, texts)
        held_tools = sum(source.tools for source in scout.sources())
    names = (*SETS, *MORE) if chosen.all else SETS
    quality = {name: {label: ndcg(encoder, data, name) for label, encoder in encoders.items()} for name in names}
    means = {label: statistics.mean(row[label] for row in quality.values()) for label in encoders}
    return {
        "single_query_ms": single,
        "int8_times_as_fast_as_pytorch": single[MINILM] / single[INT8],
        "texts_a_second": batches,
        "static_times_as_fast_as_pytorch": batches["static"] / batches[MINILM],
        "search": {"tools": held_tools, "p50_ms": searched, "hybrid_to_minilm": searched["hybrid"] / searched[MINILM]},
        "ndcg@5": quality,
        "ndcg@5_mean": means,
        "int8_keeps": means[INT8] / means[MINILM],
        "int8_keeps_at_least": min(row[INT8] / row[MINILM] for row in quality.values()),
        "model_mb": sizes,
        "threads": 1,
        **provenance(),
    }


def _calls(encoders: Mapping[str, Encoder]) -> dict[str, Callable[[str], object]]:
    return {name: lambda text, encode=encoder.encode: encode([text]) for name, encoder in encoders.items()}


if __name__ == "__main__":
    with threadpool_limits(1):
        text = json.dumps(main(), indent=2)
    (ROOT / "results" / "encoders.json").write_text(text + "\n")
    sys.stdout.write(text + "\n")
